//! The kernels in plain Rust, for CPUs without the instructions that `x86` uses, and as the reference that tests
//! compare with.

use crate::{
    Automaton, BLOCK_ROWS, COPIES, CompareOp, Kept, KeyTable, LANES, Ordered, PlainNumber, Ranges, Row,
    SecretHasher, Sums,
};
use std::ops::Range;

/// Returns the number of bits that are 1.
pub(crate) fn count(words: &[u64]) -> usize {
    words.iter().map(|word| word.count_ones() as usize).sum()
}

/// Appends the values of the kept rows to `into`. Portable form of [`crate::gather`].
pub fn gather<T: PlainNumber>(kept: &Kept, values: &[T], into: &mut Vec<T>) {
    into.reserve(kept.count());
    for (word, values) in kept.words.iter().zip(values.chunks(64)) {
        let mut word = *word;
        if word == u64::MAX {
            into.extend_from_slice(values);
            continue;
        }
        while word != 0 {
            into.push(values[word.trailing_zeros() as usize]);
            word &= word - 1;
        }
    }
}

/// Returns the bits of the kept rows, in words. Portable form of [`crate::gather_bits`].
pub fn gather_bits(kept: &Kept, bits: &[u64]) -> Vec<u64> {
    let mut packer = Packer::new(kept.count());
    for (word, bits) in kept.words.iter().zip(bits) {
        let mut word = *word;
        let (mut found, mut count) = (0, 0);
        while word != 0 {
            found |= (bits >> word.trailing_zeros() & 1) << count;
            count += 1;
            word &= word - 1;
        }
        packer.push(found, count);
    }
    packer.finish()
}

/// Vector of bits that is filled a few bits at a time.
pub(crate) struct Packer {
    /// Words of which all bits are filled.
    words: Vec<u64>,
    /// Word that comes next, of which some bits may be filled.
    last: u64,
    /// Number of filled bits of `last`, less than 64.
    filled: u32,
}

impl Packer {
    pub(crate) fn new(bits: usize) -> Packer {
        Packer { words: Vec::with_capacity(bits.div_ceil(64)), last: 0, filled: 0 }
    }

    /// Appends the lowest `count` bits of a word, at most 64. All other bits must be 0.
    #[inline]
    pub(crate) fn push(&mut self, bits: u64, count: u32) {
        self.last |= bits << self.filled;
        let filled = self.filled + count;
        if filled >= 64 {
            self.words.push(self.last);
            // The bits that did not fit begin the next word. There are none if all 64 went into an empty word.
            self.last = bits.checked_shr(64 - self.filled).unwrap_or(0);
        }
        self.filled = filled % 64;
    }

    pub(crate) fn finish(mut self) -> Vec<u64> {
        if self.filled > 0 {
            self.words.push(self.last);
        }
        self.words
    }
}

/// Appends to `into` one bit per value, in words: 1 if the comparison with the literal is true. Portable form of
/// [`crate::compare`], which replaces `into` instead.
pub fn compare<T: Ordered>(values: &[T], comparison: CompareOp, literal: T, into: &mut Vec<u64>) {
    let mut with = |passes: fn(std::cmp::Ordering) -> bool| {
        let word = |values: &[T]| {
            let bit = |(at, value): (usize, &T)| u64::from(passes(value.cmp(&literal))) << at;
            values.iter().enumerate().map(bit).fold(0, |word, bit| word | bit)
        };
        into.extend(values.chunks(64).map(word));
    };
    match comparison {
        CompareOp::Equal => with(std::cmp::Ordering::is_eq),
        CompareOp::NotEqual => with(std::cmp::Ordering::is_ne),
        CompareOp::Less => with(std::cmp::Ordering::is_lt),
        CompareOp::LessOrEqual => with(std::cmp::Ordering::is_le),
        CompareOp::Greater => with(std::cmp::Ordering::is_gt),
        CompareOp::GreaterOrEqual => with(std::cmp::Ordering::is_ge),
    }
}

/// Appends the rows that are within the ranges to `into`. Portable form of [`crate::select_rows`].
pub fn select_rows(rows: &[Row], ranges: &Ranges, into: &mut Vec<Row>) {
    into.extend(rows.iter().filter(|row| ranges.contain(row)));
}

/// Appends the bytes `columns` of each row of `width` bytes to `into`. Portable form of [`crate::project_rows`].
///
/// # Panics
/// If the columns reach beyond a row, or `width` is 0.
pub fn project_rows(rows: &[u8], width: usize, columns: Range<usize>, into: &mut Vec<u8>) {
    rows.chunks_exact(width).for_each(|row| into.extend_from_slice(&row[columns.clone()]));
}

/// Returns one bit per string, in words: 1 if the automaton accepts it. Portable form of [`Automaton::matches`].
pub fn matches(automaton: &Automaton, bytes: &[u8], offsets: &[i32]) -> Vec<u64> {
    let mut found = vec![0; offsets.len().saturating_sub(1).div_ceil(64)];
    for (row, ends) in offsets.windows(2).enumerate() {
        let passes = automaton.passes(&bytes[ends[0] as usize..ends[1] as usize]);
        found[row / 64] |= u64::from(passes) << (row % 64);
    }
    found
}

/// Bytes of a string that are read between two checks for a state at which reading may stop.
pub(crate) const LOOK_BYTES: usize = 64;

/// Follows a string until its end, a settled state or the start state. Returns the state that it stops in, and the
/// number of bytes read. Portable form of [`Automaton::follow`].
pub(crate) fn follow(automaton: &Automaton, string: &[u8]) -> (u8, usize) {
    let (mut state, mut at) = (automaton.start, 0);
    for part in string.chunks(LOOK_BYTES) {
        let step = |state: u8, byte: &u8| automaton.steps[usize::from(*byte)][usize::from(state)];
        state = part.iter().fold(state, step);
        at += part.len();
        if state == automaton.start || automaton.settled[usize::from(state)] != 0 {
            break;
        }
    }
    (state, at)
}

/// Returns the hash of a masked key: a product of 128 bits whose halves are XORed. Portable form of
/// [`SecretHasher::hash`].
#[inline]
pub fn hash(hasher: &SecretHasher, masked: u64) -> u64 {
    let product = u128::from(masked) * u128::from(hasher.rounds[0][0] | 1);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Looks up each key in its bucket, and returns how many were not found. Stores the position of each key (of its bucket
/// if it was not found) in `places`, and the indexes of keys that were not found in `others`. Portable form of
/// [`crate::find`], which prefetches nothing.
///
/// Unlike [`crate::find`] it does not check the lengths. Keys beyond the length of `places` are left out.
///
/// # Panics
/// If more than [`BLOCK_ROWS`] keys are not found.
pub fn find(
    table: &KeyTable<'_>,
    keys: &[i64],
    _ahead: &[i64],
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    let mut count = 0;
    for (row, (key, place)) in keys.iter().zip(places).enumerate() {
        let masked = table.hasher.masked(*key as u64);
        let start = table.start(masked);
        let lane = table.words[start..start + LANES].iter().position(|held| *held == masked);
        *place = start as u32;
        match lane {
            Some(lane) if masked != 0 => *place += lane as u32,
            _ => {
                others[count] = row as u8;
                count += 1;
            }
        }
    }
    count
}

/// Second half of the portable [`crate::find_and_add`]: adds the value of each row to the word that belongs to the key
/// at its place, except for rows in `others`, whose keys were not found.
///
/// # Panics
/// If a place is beyond the words.
pub fn add_found(words: &mut [u64], sums: Sums<'_>, places: &[u32], others: &[u8]) {
    let length = sums.copies.len() / COPIES;
    let mut others = others.iter().peekable();
    for (row, (place, value)) in places.iter().zip(sums.values).enumerate() {
        if others.next_if(|other| usize::from(**other) == row).is_some() {
            continue;
        }
        let place = *place as usize + LANES;
        let word = match sums.copies.is_empty() {
            true => &mut words[place],
            false => &mut sums.copies[row % COPIES * length + place],
        };
        *word = word.wrapping_add(*value as u64);
    }
}

/// Replaces the word at each place by the result of `with`. Portable form of [`crate::update`].
///
/// # Panics
/// If a place is beyond the words.
pub fn update(words: &mut [u64], places: &[u32], mut with: impl FnMut(usize, u64) -> u64) {
    let count = words.len();
    for (row, place) in places.iter().enumerate() {
        let Some(word) = words.get_mut(*place as usize) else {
            panic!("places beyond {count} words");
        };
        *word = with(row, *word);
    }
}

/// Adds each value to the word at its place. Portable form of [`crate::add`].
///
/// # Panics
/// If a place is beyond the words, or there are fewer values than places.
pub fn add(words: &mut [u64], places: &[u32], values: &[i64]) {
    update(words, places, |row, word| word.wrapping_add(values[row] as u64));
}

/// Returns the bitwise OR of the magnitudes of the values. Portable form of [`crate::ones`].
pub fn ones(values: &[i64]) -> u64 {
    values.iter().fold(0, |ones, value| ones | (*value ^ (*value >> 63)) as u64)
}
