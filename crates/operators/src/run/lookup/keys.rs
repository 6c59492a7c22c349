//! The keys of another table, each once: exact.
//!
//! The idea: whole numbers that lie close together are bits, and one look is one bit. Other numbers are in buckets of
//! four, which are compared without a branch, as half of the rows may be found and half not. All else is bytes in a
//! row, and a table of where each key begins. Who does not know the seed cannot choose keys that meet in either table.

use super::bloom::{KeyColumn, Keyed, appended_bytes};
use crate::run::batch::*;
use crate::run::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use crate::run::hash::{fold, hash_bytes, mixed};
use crate::types::Type;
use arrow_array::RecordBatch;
use arrow_buffer::BooleanBuffer;
use farpool_kernels::zeroed;

/// Keys of one table.
const KEYS_MAX: u64 = 1 << 28;
/// Numbers are bits if there are no more bits than so many for each: less than a table of buckets takes.
const BITS_OF_A_KEY: u64 = 64;
/// Whatever there are of them: 8 KiB.
const BITS_ALWAYS: u64 = 1 << 16;
/// Words of a table that the nearest caches hold.
const NEAR_WORDS: usize = 64 << 10;
/// Rows that are made bytes or numbers at a time: copies of more would take as much as the keys themselves.
const ROWS_AT_A_TIME: usize = 8 << 10;
/// Bytes of copies of a value that are there meanwhile, at most: with another unit or zone, and as a number.
const COPIED_BYTES: u64 = 16;
/// Numbers of a bucket.
const LANES: usize = 4;
/// Keys of a bucket that it is made for, of the four that it has room for: one bucket in fifty is full, or, where
/// memory is far and less of it is worth more, one in seven.
const KEYS_OF_A_BUCKET: usize = 1;
const KEYS_OF_A_FAR_BUCKET: usize = 2;

/// Keys, each once.
#[derive(Debug)]
pub struct Keys {
    types: Vec<Type>,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Bits { least: i64, words: Vec<u64> },
    Buckets(Buckets),
    Rows(RowTable),
}

impl Keys {
    /// The keys of batches, all of whose columns are keys of these types, under a seed that nobody else should know.
    /// Rows with a NULL have no partner. Keys without types and batches are those of any type, and none.
    ///
    /// # Errors
    /// Batches of other columns, more than 2^28 keys, or more than 1 GiB of them.
    pub fn new(types: Vec<Type>, batches: &[RecordBatch], seed: u64) -> Result<Keys, Stopped> {
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        bounded("keys of a semi-join", rows, KEYS_MAX)?;
        let mut numbers = match types[..] {
            [of] => is_ordered(of).then(|| Vec::with_capacity(rows as usize)),
            _ => None,
        };
        let mut table = match numbers {
            Some(_) => RowTable::new(0, 0, seed),
            None => {
                RowTable::new(rows, batches.iter().map(|batch| appended_bytes(batch.columns())).sum(), seed)
            }
        };
        let parts = batches.iter().flat_map(|batch| {
            let starts = (0..batch.num_rows().max(1)).step_by(ROWS_AT_A_TIME);
            starts.map(|start| batch.slice(start, ROWS_AT_A_TIME.min(batch.num_rows() - start)))
        });
        for part in parts {
            let columns = columns_of(&part, &types)?;
            let columns =
                columns.iter().map(|key| plain(key, BATCH_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
            let keyed = Keyed::of(&columns);
            let is_key = |row: &usize| keyed.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
            match (&mut numbers, &keyed.columns[..]) {
                (Some(numbers), [KeyColumn::Numbers(values)]) => {
                    numbers.extend((0..keyed.rows).filter(is_key).map(|row| values[row]));
                }
                _ => (0..keyed.rows).filter(is_key).try_for_each(|row| table.insert(&keyed, row))?,
            }
        }
        let held = match numbers {
            Some(numbers) => of_numbers(&numbers, seed),
            None => Held::Rows(table.shrunk()),
        };
        Ok(Keys { types, held })
    }

    /// Bytes of memory that [`Keys::new`] takes for these, at most, and beside them: what it leaves, and what that is
    /// made by.
    pub(super) fn bytes_at_most(types: &[Type], batches: &[RecordBatch]) -> u64 {
        let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let copied = rows.min(ROWS_AT_A_TIME as u64) * types.len() as u64 * COPIED_BYTES;
        let held = match types[..] {
            [of] if is_ordered(of) => {
                let bits = BITS_ALWAYS.max(rows * BITS_OF_A_KEY) / 8 + 8;
                let buckets = Buckets::count_for(rows as usize) * LANES * size_of::<u64>();
                rows * size_of::<i64>() as u64 + bits.max(buckets as u64)
            }
            _ => {
                let bytes = batches.iter().map(|batch| appended_bytes(batch.columns())).sum::<u64>();
                let slots = RowTable::slots_for(rows) * size_of::<(u32, u32)>();
                bytes + rows * size_of::<u32>() as u64 + slots as u64
            }
        };
        copied + held
    }

    /// Bytes of memory that they take.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.held {
            Held::Bits { words, .. } | Held::Buckets(Buckets { words, .. }) => {
                words.capacity() * size_of::<u64>()
            }
            Held::Rows(table) => {
                table.bytes.capacity()
                    + table.ends.capacity() * size_of::<u32>()
                    + table.slots.capacity() * size_of::<(u32, u32)>()
            }
        }
    }

    /// Of these columns. Without types it has no keys, of whatever types.
    pub(super) fn fits(&self, types: &[Type]) -> bool {
        self.types.is_empty() || self.types == types
    }

    /// Which rows are found. Of one with a NULL it means nothing.
    pub(super) fn search(&self, keyed: &Keyed<'_>) -> BooleanBuffer {
        match (&self.held, &keyed.columns[..]) {
            (Held::Bits { least, words }, [KeyColumn::Numbers(values)]) => {
                let is_found = |value: i64| {
                    let bit = value.wrapping_sub(*least) as u64;
                    // What is below the least has wrapped around, far beyond the last.
                    words.get((bit / 64) as usize).map_or(0, |word| word >> (bit % 64) & 1)
                };
                let word = |values: &[i64]| {
                    let bits = values.iter().enumerate();
                    bits.fold(0, |word, (at, value)| word | is_found(*value) << at)
                };
                let found: Vec<u64> = values.chunks(64).map(word).collect();
                BooleanBuffer::new(found.into(), 0, keyed.rows)
            }
            (Held::Buckets(buckets), [KeyColumn::Numbers(values)]) => buckets.search(values),
            (Held::Rows(table), _) => {
                let mut row_bytes = Vec::new();
                let mut is_found = |row: usize| {
                    row_bytes.clear();
                    keyed.append(row, &mut row_bytes);
                    table.find(&row_bytes).is_ok()
                };
                (0..keyed.rows).map(&mut is_found).collect()
            }
            // Types have been compared before.
            _ => BooleanBuffer::new_unset(keyed.rows),
        }
    }
}

/// Numbers as bits or in buckets, whichever takes less.
fn of_numbers(numbers: &[i64], seed: u64) -> Held {
    let (Some(least), Some(most)) = (numbers.iter().min(), numbers.iter().max()) else {
        return Held::Bits { least: 0, words: Vec::new() };
    };
    let bits = most.wrapping_sub(*least) as u64;
    if bits >= BITS_ALWAYS.max(numbers.len() as u64 * BITS_OF_A_KEY) {
        return Held::Buckets(Buckets::new(numbers, seed));
    }
    let mut words = vec![0u64; (bits / 64) as usize + 1];
    for number in numbers {
        let bit = number.wrapping_sub(*least) as u64;
        words[(bit / 64) as usize] |= 1 << (bit % 64);
    }
    Held::Bits { least: *least, words }
}

/// Numbers in buckets of four, those that find theirs full in the next one with room.
#[derive(Debug)]
struct Buckets {
    seed: u64,
    /// What numbers are masked with, which is none of them: masked, a free place is 0. The places of a bucket are taken
    /// in order.
    free: u64,
    /// A power of two of buckets.
    words: Vec<u64>,
}

impl Buckets {
    /// How many there are of so many numbers: a power of two.
    fn count_for(numbers: usize) -> usize {
        let is_far = numbers * LANES > NEAR_WORDS;
        let room = if is_far { KEYS_OF_A_FAR_BUCKET } else { KEYS_OF_A_BUCKET };
        numbers.div_ceil(room).next_power_of_two()
    }

    fn new(numbers: &[i64], seed: u64) -> Buckets {
        let mut free = mixed(seed);
        while numbers.contains(&free.cast_signed()) {
            free = mixed(free);
        }
        let buckets = Buckets::count_for(numbers.len());
        let mut made = Buckets { seed, free, words: zeroed(buckets * LANES) };
        for number in numbers {
            let masked = number.cast_unsigned() ^ free;
            let mut at = made.home(masked);
            // Most places are free.
            loop {
                let bucket = &mut made.words.as_chunks_mut::<LANES>().0[at];
                match bucket.iter_mut().find(|place| **place == 0 || **place == masked) {
                    Some(place) => break *place = masked,
                    None => at = (at + 1) & (buckets - 1),
                }
            }
        }
        made
    }

    fn buckets(&self) -> &[[u64; LANES]] {
        self.words.as_chunks().0
    }

    #[inline]
    fn home(&self, masked: u64) -> usize {
        fold(masked, self.seed) as usize & (self.words.len() / LANES - 1)
    }

    fn search(&self, values: &[i64]) -> BooleanBuffer {
        let is_far = self.words.len() > NEAR_WORDS;
        let found: Vec<u64> = values.chunks(64).map(|values| self.word(values, is_far)).collect();
        BooleanBuffer::new(found.into(), 0, values.len())
    }

    /// A bit for each of up to 64 numbers.
    #[inline]
    fn word(&self, values: &[i64], is_far: bool) -> u64 {
        let buckets = self.buckets();
        if is_far {
            // All are asked for from memory before any is looked at: what is decided for one would keep others waiting.
            let touch = |touched: u64, value: &i64| {
                touched | buckets[self.home(value.cast_unsigned() ^ self.free)][0]
            };
            std::hint::black_box(values.iter().fold(0, touch));
        }
        let bit = |value: &i64| {
            let masked = value.cast_unsigned() ^ self.free;
            let home = self.home(masked);
            let [first, second, third, last] = buckets[home];
            let is_here = (first == masked) | (second == masked) | (third == masked) | (last == masked);
            // Few buckets are full.
            let is_here = if !is_here && last != 0 { self.is_beyond(masked, home) } else { is_here };
            u64::from(is_here & (masked != 0))
        };
        values.iter().enumerate().fold(0, |word, (at, value)| word | bit(value) << at)
    }

    /// Whether a number that is not in a full bucket is in a later one.
    #[cold]
    fn is_beyond(&self, masked: u64, home: usize) -> bool {
        let buckets = self.buckets();
        let mut at = home;
        loop {
            at = (at + 1) & (buckets.len() - 1);
            if buckets[at].contains(&masked) {
                return true;
            }
            if buckets[at][LANES - 1] == 0 {
                return false;
            }
        }
    }
}

/// Rows of keys as bytes.
#[derive(Debug)]
struct RowTable {
    seed: u64,
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<u32>,
    /// The upper half of a key's hash, and its number counted from 1; 0 is a free place.
    slots: Vec<(u32, u32)>,
    /// The key that is being added.
    row: Vec<u8>,
}

impl RowTable {
    /// One for so many rows, of so many bytes together. It does not grow: for a while it would be there twice.
    fn new(rows: u64, bytes: u64, seed: u64) -> RowTable {
        RowTable {
            seed,
            bytes: Vec::with_capacity(bytes.min(BATCH_BYTES_MAX as u64) as usize),
            ends: Vec::with_capacity(rows as usize),
            slots: vec![(0, 0); RowTable::slots_for(rows)],
            row: Vec::new(),
        }
    }

    /// Places of so many keys, of which every other one stays free: a power of two.
    fn slots_for(rows: u64) -> usize {
        (rows as usize * 2).next_power_of_two().max(16)
    }

    /// Without room for keys that came twice.
    fn shrunk(mut self) -> RowTable {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.row = Vec::new();
        let slots = RowTable::slots_for(self.ends.len() as u64);
        if slots < self.slots.len() {
            // The old ones go before: keys are known without them.
            self.slots = Vec::new();
            self.slots = vec![(0, 0); slots];
            for number in 1..=self.ends.len() as u32 {
                if let Err((at, tag)) = self.find(self.key(number)) {
                    self.slots[at] = (tag, number);
                }
            }
        }
        self
    }

    fn key(&self, number: u32) -> &[u8] {
        let start = if number == 1 { 0 } else { self.ends[number as usize - 2] };
        &self.bytes[start as usize..self.ends[number as usize - 1] as usize]
    }

    /// The number of a key, or the free place that it may have, and the upper half of its hash.
    #[inline]
    fn find(&self, row: &[u8]) -> Result<u32, (usize, u32)> {
        let hash = hash_bytes(row, self.seed);
        let tag = (hash >> 32) as u32;
        let mut at = hash as usize & (self.slots.len() - 1);
        // Every other place is free.
        loop {
            match self.slots[at] {
                (_, 0) => return Err((at, tag)),
                (found, number) if found == tag && self.key(number) == row => return Ok(number),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn insert(&mut self, keyed: &Keyed<'_>, row: usize) -> Result<(), Stopped> {
        let mut bytes = std::mem::take(&mut self.row);
        bytes.clear();
        keyed.append(row, &mut bytes);
        if let Err((at, tag)) = self.find(&bytes) {
            bounded("bytes of keys", (self.bytes.len() + bytes.len()) as u64, BATCH_BYTES_MAX as u64)?;
            self.bytes.extend_from_slice(&bytes);
            self.ends.push(self.bytes.len() as u32);
            self.slots[at] = (tag, self.ends.len() as u32);
        }
        self.row = bytes;
        Ok(())
    }
}
