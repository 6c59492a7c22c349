//! Buffer of blocks in this process, in front of a temporary file in far memory.
//!
//! The idea: SQLite reads and writes temporary files page by page and waits for each, which would be a round trip per
//! page. Therefore the buffer holds blocks of many pages. A written block goes to far memory when the buffer needs its
//! space; a small file may never go there. When the file is read in order, the next block is fetched together with the
//! one that is needed. When it is read at random, only the needed block is.

use std::collections::HashMap;
use std::ops::Range;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 64 << 10;
/// Number of blocks that the buffer of one file holds, at most. It is several times 16, because a sort merges from 16
/// places of a file at the same time.
const BLOCKS: usize = 64;
/// Number of blocks that are fetched together when a file is read in order.
const AHEAD: u64 = 2;

/// Storage in which the file's bytes are when they are not in the buffer: far memory, or a model in tests.
pub(crate) trait Store {
    /// Error of an operation.
    type Error;

    /// Fills the buffer with the stored bytes. Ranges never written are zeros.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes all of the data.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Self::Error>;

    /// Sets the length. Bytes that are added are zeros.
    fn truncate(&self, bytes: u64) -> Result<(), Self::Error>;
}

struct Block {
    bytes: Box<[u8]>,
    /// Range of `bytes` that was written and that the store does not have yet.
    dirty: Range<usize>,
    /// Value of [`Buffered::now`] when the block was last accessed.
    asked: u64,
}

/// File of which recently used blocks are in a buffer, and all others in the store. Written bytes may be in the buffer
/// only; a failed operation loses none of them.
pub(crate) struct Buffered<S> {
    store: S,
    blocks: HashMap<u64, Block>,
    length: u64,
    /// Length of the file in the store, in bytes.
    stored: u64,
    /// Number of block accesses so far. It orders blocks by their last access.
    now: u64,
}

impl<S: Store> Buffered<S> {
    /// Creates the buffer of an empty file. `store` must be empty too.
    pub(crate) fn new(store: S) -> Buffered<S> {
        Buffered { store, blocks: HashMap::new(), length: 0, stored: 0, now: 0 }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads until the buffer is full or the file ends. Returns the number of bytes.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, S::Error> {
        let end = self.length.min(offset.saturating_add(into.len() as u64));
        for (number, within, at) in block_ranges(offset, end) {
            let block = self.block(number, true)?;
            into[at..at + within.len()].copy_from_slice(&block.bytes[within]);
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    /// Writes all of the data.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), S::Error> {
        let end = offset.saturating_add(from.len() as u64);
        for (number, within, at) in block_ranges(offset, end) {
            let start = number * BLOCK_BYTES;
            let is_whole =
                within.start == 0 && start + within.end as u64 >= self.stored.min(start + BLOCK_BYTES);
            let block = self.block(number, !is_whole)?;
            block.bytes[within.clone()].copy_from_slice(&from[at..at + within.len()]);
            block.dirty = match block.dirty.is_empty() {
                true => within,
                false => block.dirty.start.min(within.start)..block.dirty.end.max(within.end),
            };
        }
        self.length = self.length.max(end);
        Ok(())
    }

    /// Sets the length. Bytes that are added are zeros.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), S::Error> {
        if bytes < self.stored {
            self.store.truncate(bytes)?;
            self.stored = bytes;
        }
        self.blocks.retain(|number, _| number * BLOCK_BYTES < bytes);
        if let Some(last) = self.blocks.get_mut(&(bytes / BLOCK_BYTES)) {
            let end = (bytes % BLOCK_BYTES) as usize;
            last.bytes[end..].fill(0);
            last.dirty = last.dirty.start.min(end)..last.dirty.end.min(end);
        }
        self.length = bytes;
        Ok(())
    }

    /// Returns a block, which is added to the buffer if it is not there. Its stored bytes are only read if `is_needed`
    /// is true. Otherwise the caller overwrites all of them.
    fn block(&mut self, number: u64, is_needed: bool) -> Result<&mut Block, S::Error> {
        self.now += 1;
        if !self.blocks.contains_key(&number) {
            let is_in_order = number > 0 && self.blocks.contains_key(&(number - 1));
            let ahead = if is_needed && is_in_order { AHEAD } else { 1 };
            let fetched = (number..number + ahead)
                .take_while(|next| *next == number || self.is_worth_fetching(*next))
                .count() as u64;
            self.fetch(number..number + fetched, is_needed)?;
        }
        let block = self.blocks.get_mut(&number).expect("it was taken in");
        block.asked = self.now;
        Ok(block)
    }

    fn is_worth_fetching(&self, number: u64) -> bool {
        number * BLOCK_BYTES < self.stored && !self.blocks.contains_key(&number)
    }

    /// Adds adjacent blocks to the buffer, none of which may be there. Their stored bytes are only read if `is_needed`.
    fn fetch(&mut self, numbers: Range<u64>, is_needed: bool) -> Result<(), S::Error> {
        let count = (numbers.end - numbers.start) as usize;
        self.make_room(count)?;
        let from = numbers.start * BLOCK_BYTES;
        let mut bytes = vec![0; count * BLOCK_BYTES as usize];
        let stored = self.stored.saturating_sub(from).min(bytes.len() as u64) as usize;
        if is_needed && stored > 0 {
            self.store.read_at(from, &mut bytes[..stored])?;
        }
        for (number, part) in numbers.zip(bytes.chunks(BLOCK_BYTES as usize)) {
            self.blocks.insert(number, Block { bytes: part.into(), dirty: 0..0, asked: self.now });
        }
        Ok(())
    }

    /// Makes room for `wanted` blocks. Removes the least recently used ones, after their dirty ranges were written to
    /// the store.
    fn make_room(&mut self, wanted: usize) -> Result<(), S::Error> {
        while self.blocks.len() + wanted > BLOCKS {
            let Some((&number, oldest)) = self.blocks.iter().min_by_key(|(_, block)| block.asked) else {
                return Ok(());
            };
            if !oldest.dirty.is_empty() {
                let at = number * BLOCK_BYTES + oldest.dirty.start as u64;
                self.store.write_at(at, &oldest.bytes[oldest.dirty.clone()])?;
                self.stored = self.stored.max(at + oldest.dirty.len() as u64);
            }
            self.blocks.remove(&number);
        }
        Ok(())
    }
}

/// Splits the range `offset..end` of a file at block boundaries. Each item has the number of a block, the part of the
/// range within that block, and the distance of this part from `offset`.
fn block_ranges(offset: u64, end: u64) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let numbers = if offset < end { offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) } else { 0..0 };
    numbers.map(move |number| {
        let start = number * BLOCK_BYTES;
        let within = offset.max(start)..end.min(start + BLOCK_BYTES);
        let at = (within.start - offset) as usize;
        (number, (within.start - start) as usize..(within.end - start) as usize, at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// Store in memory, which fails while `fails` is set.
    #[derive(Default)]
    struct Model {
        bytes: RefCell<Vec<u8>>,
        fails: RefCell<bool>,
    }

    impl Model {
        fn answer(&self) -> Result<(), &'static str> {
            if *self.fails.borrow() { Err("it was told to fail") } else { Ok(()) }
        }
    }

    impl Store for Model {
        type Error = &'static str;

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error> {
            self.answer()?;
            let offset = offset as usize;
            into.copy_from_slice(&self.bytes.borrow()[offset..offset + into.len()]);
            Ok(())
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Self::Error> {
            self.answer()?;
            let (mut bytes, offset) = (self.bytes.borrow_mut(), offset as usize);
            let end = (offset + from.len()).max(bytes.len());
            bytes.resize(end, 0);
            bytes[offset..offset + from.len()].copy_from_slice(from);
            Ok(())
        }

        fn truncate(&self, length: u64) -> Result<(), Self::Error> {
            self.answer()?;
            self.bytes.borrow_mut().resize(length as usize, 0);
            Ok(())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, u8),
        Read(u64, usize),
        Truncate(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Offsets go up to three times the capacity of the buffer, so that blocks are removed from it.
        let anywhere = 0..3 * BLOCKS as u64 * BLOCK_BYTES;
        let length = prop_oneof![Just(4096_usize), 1..300_000_usize];
        prop_oneof![
            6 => (anywhere.clone(), length.clone(), any::<u8>()).prop_map(|(at, length, byte)| Step::Write(at, length, byte)),
            6 => (anywhere.clone(), length).prop_map(|(at, length)| Step::Read(at, length)),
            1 => anywhere.prop_map(Step::Truncate),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn file_is_what_was_written_to_it_whatever_was_held_and_whatever_failed(
            steps in prop::collection::vec((step(), prop::bool::weighted(0.1)), 1..200)
        ) {
            let mut file = Buffered::new(Model::default());
            let mut wanted: Vec<u8> = Vec::new();
            for (step, fails) in steps {
                *file.store.fails.borrow_mut() = fails;
                match step {
                    Step::Write(at, length, byte) => {
                        let bytes: Vec<u8> = (0..length).map(|i| byte.wrapping_add(i as u8)).collect();
                        // A write that failed may have changed a part of the file, so it is repeated without failures.
                        if file.write(at, &bytes).is_err() {
                            *file.store.fails.borrow_mut() = false;
                            file.write(at, &bytes).expect("written");
                        }
                        let end = at as usize + length;
                        wanted.resize(wanted.len().max(end), 0);
                        wanted[at as usize..end].copy_from_slice(&bytes);
                    }
                    Step::Read(at, length) => {
                        let mut into = vec![1; length];
                        if let Ok(count) = file.read(at, &mut into) {
                            let from = wanted.len().min(at as usize);
                            let until = wanted.len().min(at as usize + length);
                            prop_assert!(into[..count] == wanted[from..until]);
                        }
                    }
                    Step::Truncate(length) => {
                        if file.truncate(length).is_ok() {
                            wanted.resize(length as usize, 0);
                        }
                    }
                }
                prop_assert_eq!(file.length(), wanted.len() as u64);
                prop_assert!(file.blocks.len() <= BLOCKS);
            }
        }
    }
}
