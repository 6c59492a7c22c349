//! The rules of a ring: which side writes which word, and when a side must wake the other.
//!
//! Each side counts the bytes it has moved since the beginning and publishes the count. The difference of the two
//! counts is the number of bytes in the ring. A side that finds nothing to do publishes that it parks, checks once
//! more, and parks. A side that has moved bytes publishes its count, then checks whether the other side parks. Between
//! publishing and checking, both sides execute a sequentially consistent fence. Therefore at least one of the two sees
//! the other (Dekker's algorithm), and no wake-up is lost. `tests/ring.rs` has loom try every order of the steps.
//!
//! The other side may be another program, or hostile. Its count is rejected if it is impossible. The own count is never
//! read back from the shared memory while the connection runs, because the other side could have changed it.

/// A number in shared memory that both sides see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Bytes written since the beginning.
    Written,
    /// Bytes read since the beginning.
    Taken,
    /// 1 if the reader is parked or about to park, else 0.
    ReaderParks,
    /// 1 if the writer is parked or about to park, else 0.
    WriterParks,
}

/// Access to the words of one ring.
pub trait Words {
    /// Loads a word with acquire ordering.
    fn load(&self, word: Word) -> u64;
    /// Stores a word with release ordering.
    fn store(&self, word: Word, value: u64);
    /// Swaps a word with acquire and release ordering and returns its old value.
    fn swap(&self, word: Word, value: u64) -> u64;
    /// Executes a sequentially consistent fence.
    fn fence(&self);
}

/// Error: the other side's count is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

/// One side of a ring. The writer owns the word `Written`, the reader owns `Taken`.
#[derive(Clone, Copy, Debug)]
pub struct RingSide {
    is_writer: bool,
    capacity: u64,
    moved: u64,
}

impl RingSide {
    /// Makes the writing side of a new ring of `capacity` bytes.
    pub fn writer(capacity: u64) -> RingSide {
        RingSide { is_writer: true, capacity, moved: 0 }
    }

    /// Makes the reading side of a new ring of `capacity` bytes.
    pub fn reader(capacity: u64) -> RingSide {
        RingSide { is_writer: false, capacity, moved: 0 }
    }

    /// Returns this side with the count that another process has left in the side's own word.
    pub fn resumed(self, words: &impl Words) -> RingSide {
        let own = if self.is_writer { Word::Written } else { Word::Taken };
        RingSide { moved: words.load(own), ..self }
    }

    /// Returns the offset in the ring of the next byte to move.
    pub fn offset(&self) -> u64 {
        self.moved % self.capacity
    }

    /// Returns the number of bytes that this side may move now: free room for the writer, unread bytes for the reader.
    pub fn ready(&self, words: &impl Words) -> Result<u64, Impossible> {
        let (written, taken) = match self.is_writer {
            true => (self.moved, words.load(Word::Taken)),
            false => (words.load(Word::Written), self.moved),
        };
        let inside = written.wrapping_sub(taken);
        match inside <= self.capacity {
            true if self.is_writer => Ok(self.capacity - inside),
            true => Ok(inside),
            false => Err(Impossible),
        }
    }

    /// Notes that `count` bytes were moved, no more than were ready. Reports whether the other side must be woken.
    pub fn advance(&mut self, words: &impl Words, count: u64) -> bool {
        self.moved = self.moved.wrapping_add(count);
        let (own, other) = match self.is_writer {
            true => (Word::Written, Word::ReaderParks),
            false => (Word::Taken, Word::WriterParks),
        };
        words.store(own, self.moved);
        words.fence();
        words.load(other) != 0 && words.swap(other, 0) != 0
    }

    /// Publishes that this side parks. Returns false if there are bytes to move after all; the side must then not park.
    pub fn park(&self, words: &impl Words) -> Result<bool, Impossible> {
        words.store(self.parks(), 1);
        words.fence();
        let may = self.ready(words)? == 0;
        if !may {
            self.unpark(words);
        }
        Ok(may)
    }

    /// Publishes that this side does not park any more.
    pub fn unpark(&self, words: &impl Words) {
        words.store(self.parks(), 0);
    }

    fn parks(&self) -> Word {
        if self.is_writer { Word::WriterParks } else { Word::ReaderParks }
    }
}
