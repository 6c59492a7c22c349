//! Who may touch which bytes of a ring, and when to call the other side.
//!
//! The idea: each side counts the bytes it has moved since the beginning and shows the count; their difference is
//! what lies in the ring. A side that finds nothing to do says that it parks, looks once more, and parks. A side
//! that has moved bytes shows its count and looks whether the other parks. Between showing and looking both have a
//! sequentially consistent fence, so at least one of the two sees the other (Dekker): a call is never missed.
//! `tests/ring.rs` has loom try every order.
//!
//! The other side may be another program, or hostile: its count is believed only as far as it is possible, and ours
//! is never read back from where the other side could have changed it.

/// A number that both sides see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Bytes written since the beginning.
    Written,
    /// Bytes taken since the beginning.
    Taken,
    /// Whether the reader is parked, or about to be.
    ReaderParks,
    /// Whether the writer is.
    WriterParks,
}

/// The words of one ring.
pub trait Words {
    /// Reads one, acquiring.
    fn load(&self, word: Word) -> u64;
    /// Writes one, releasing.
    fn store(&self, word: Word, value: u64);
    /// Writes one; what it was. Both of the above.
    fn swap(&self, word: Word, value: u64) -> u64;
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// The other side shows a count that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

/// One side of a ring: the writer, whose own word is `Written`, or the reader, whose own is `Taken`.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    is_writer: bool,
    capacity: u64,
    moved: u64,
}

impl Side {
    /// The side that writes into a fresh ring of so many bytes.
    pub fn writer(capacity: u64) -> Side {
        Side { is_writer: true, capacity, moved: 0 }
    }

    /// The side that reads from it.
    pub fn reader(capacity: u64) -> Side {
        Side { is_writer: false, capacity, moved: 0 }
    }

    /// The same side where another process has left it, as far as its own word says.
    pub fn resumed(self, words: &impl Words) -> Side {
        let own = if self.is_writer { Word::Written } else { Word::Taken };
        Side { moved: words.load(own), ..self }
    }

    /// Where in the ring the next byte to move is.
    pub fn offset(&self) -> u64 {
        self.moved % self.capacity
    }

    /// Bytes that this side may move now: room, or what has come.
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

    /// So many bytes have been moved, no more than were ready. Whether the other side is to be called.
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

    /// Says that this side parks. Whether it may: if not, there is something to do after all.
    pub fn park(&self, words: &impl Words) -> Result<bool, Impossible> {
        words.store(self.parks(), 1);
        words.fence();
        let may = self.ready(words)? == 0;
        if !may {
            self.unpark(words);
        }
        Ok(may)
    }

    /// Says that it does not park any more.
    pub fn unpark(&self, words: &impl Words) {
        words.store(self.parks(), 0);
    }

    fn parks(&self) -> Word {
        if self.is_writer { Word::WriterParks } else { Word::ReaderParks }
    }
}
