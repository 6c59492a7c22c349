//! Exact keys of another table, for semi-joins. Each key is held once.
//!
//! The idea: whole numbers that lie close together become a bitmap, and a lookup reads one bit. Other numbers lie in
//! buckets of four that are compared without a branch, because a branch mispredicts often when about half of the rows
//! match. All other keys are rows of bytes with a hash table of their positions. Without the seed nobody can choose
//! keys that collide in either table.

use super::bloom::{KeyColumn, Keyed, appended_bytes};
use crate::run::batch::*;
use crate::run::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use crate::run::hash::{fold, hash_bytes, mixed};
use crate::types::Type;
use arrow_array::RecordBatch;
use arrow_buffer::BooleanBuffer;
use farpool_kernels::zeroed;

/// Most keys of one set.
const KEYS_MAX: u64 = 1 << 28;
/// Most bits of a bitmap per number: one bit for each integer from the least number to the greatest. A bitmap within
/// this limit is smaller than buckets.
const BITS_OF_A_KEY: u64 = 64;
/// Bits of a bitmap up to which numbers always become one, however few they are: 8 KiB.
const BITS_ALWAYS: u64 = 1 << 16;
/// Words of a table that the near caches hold.
const NEAR_WORDS: usize = 64 << 10;
/// Rows that are converted to bytes or numbers at a time. The copies of more rows could take as much memory as the
/// keys.
const ROWS_AT_A_TIME: usize = 8 << 10;
/// Most bytes of temporary copies per value: one with another unit or zone, and one as a number.
const COPIED_BYTES: u64 = 16;
/// Numbers of a bucket.
const LANES: usize = 4;
/// Numbers per bucket that a table is made for, of the four that a bucket has room for: then one bucket in fifty is
/// full. In a table beyond the near caches, where memory is worth more, it is `KEYS_OF_A_FAR_BUCKET`, and one bucket
/// in seven is full.
const KEYS_OF_A_BUCKET: usize = 1;
const KEYS_OF_A_FAR_BUCKET: usize = 2;

/// Set of exact keys.
#[derive(Debug)]
pub struct Keys {
    types: Vec<Type>,
    held: Held,
}

/// Keys in the form in which they are searched.
#[derive(Debug)]
enum Held {
    /// Bitmap of numbers: bit `n` stands for `least + n`.
    Bits {
        least: i64,
        words: Vec<u64>,
    },
    Buckets(Buckets),
    Rows(RowTable),
}

impl Keys {
    /// Makes the set from batches whose columns are all keys of these types. Nobody else should know the seed. A row
    /// with a NULL is left out. Without types and batches, it is an empty set that fits keys of any type.
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

    /// Returns the most bytes of memory that [`Keys::new`] takes for these batches, besides the batches: for the
    /// result and for temporary copies.
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

    /// Returns the bytes of memory that the keys take.
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

    /// Reports whether the keys are of these types. A set without types is empty and fits any.
    pub(super) fn fits(&self, types: &[Type]) -> bool {
        self.types.is_empty() || self.types == types
    }

    /// Returns for each row whether its key is found. The result for a row with a NULL has no meaning.
    pub(super) fn search(&self, keyed: &Keyed<'_>) -> BooleanBuffer {
        match (&self.held, &keyed.columns[..]) {
            (Held::Bits { least, words }, [KeyColumn::Numbers(values)]) => {
                let is_found = |value: i64| {
                    let bit = value.wrapping_sub(*least) as u64;
                    // A value below the least wraps around to a bit far beyond the last.
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
            // Not reached: the types were compared before.
            _ => BooleanBuffer::new_unset(keyed.rows),
        }
    }
}

/// Makes a bitmap of the numbers if it is smaller than buckets or takes at most 8 KiB, and buckets otherwise.
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

/// Hash table of numbers in buckets of four. A number whose bucket is full is in the next bucket with room.
#[derive(Debug)]
struct Buckets {
    seed: u64,
    /// Mask that numbers are XORed with. It is none of the numbers, so a masked number is never 0, and 0 marks a free
    /// slot. The slots of a bucket are filled in order.
    free: u64,
    /// Slots of all buckets. The number of buckets is a power of two.
    words: Vec<u64>,
}

impl Buckets {
    /// Returns the number of buckets for this many numbers, a power of two.
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
            // Most slots are free, so the loop is short.
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

    /// Returns one bit for each of up to 64 numbers: 1 if it is found.
    #[inline]
    fn word(&self, values: &[i64], is_far: bool) -> u64 {
        let buckets = self.buckets();
        if is_far {
            // All buckets are read before any is compared. Otherwise a mispredicted branch on one would delay the
            // reads of the others.
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

    /// Reports whether a number that is not in its full bucket is in a later one.
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

/// Hash table of keys as rows of bytes.
#[derive(Debug)]
struct RowTable {
    seed: u64,
    bytes: Vec<u8>,
    /// End of each key in `bytes`.
    ends: Vec<u32>,
    /// Upper half of the hash of a key, and the number of the key from 1. The number 0 marks a free slot.
    slots: Vec<(u32, u32)>,
    /// Scratch space for the key that is being added.
    row: Vec<u8>,
}

impl RowTable {
    /// Makes a table for this many rows of this many bytes together. It never grows: while it did, memory would hold
    /// the old slots and the new ones.
    fn new(rows: u64, bytes: u64, seed: u64) -> RowTable {
        RowTable {
            seed,
            bytes: Vec::with_capacity(bytes.min(BATCH_BYTES_MAX as u64) as usize),
            ends: Vec::with_capacity(rows as usize),
            slots: vec![(0, 0); RowTable::slots_for(rows)],
            row: Vec::new(),
        }
    }

    /// Returns the number of slots for this many keys: a power of two, at least twice the keys.
    fn slots_for(rows: u64) -> usize {
        (rows as usize * 2).next_power_of_two().max(16)
    }

    /// Returns the table without the room for keys that came twice.
    fn shrunk(mut self) -> RowTable {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.row = Vec::new();
        let slots = RowTable::slots_for(self.ends.len() as u64);
        if slots < self.slots.len() {
            // The old slots are freed before the new ones are allocated. The keys can be found without them.
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

    /// Returns the number of a key. If it is not held, returns the free slot for it and the upper half of its hash.
    #[inline]
    fn find(&self, row: &[u8]) -> Result<u32, (usize, u32)> {
        let hash = hash_bytes(row, self.seed);
        let tag = (hash >> 32) as u32;
        let mut at = hash as usize & (self.slots.len() - 1);
        // The loop ends because at least half of the slots are free.
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
