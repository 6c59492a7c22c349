//! Taking the kept rows out of columns of fixed width.

use crate::{portable, sealed};

/// A plain number of 1, 2, 4, 8 or 16 bytes. What it means does not matter here: only its bits move.
pub trait Value: Copy + sealed::Sealed {}

macro_rules! values {
    ($($number:ty)*) => { $(impl Value for $number {})* };
}
values!(i8 i16 i32 i64 i128 u8 u16 u32 u64 f32 f64);

/// Below one kept row in this many, rows are taken one by one: fewer than half of the cache lines of 8-byte values
/// hold one then.
const SPARSE_ROWS: usize = 16;

/// Which rows are kept, prepared once for all columns of a batch.
///
/// Where each word's rows begin in the result is known beforehand, so no load of a column waits for the count of
/// another. If few are kept, their positions are listed instead.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub(crate) words: Vec<u64>,
    /// Kept rows before each word; empty if the rows are listed.
    pub(crate) before: Vec<u32>,
    /// The kept rows in order; empty unless they are few.
    pub(crate) listed: Vec<u32>,
    rows: usize,
    count: usize,
}

impl Kept {
    /// Of bits in words, the least significant first. Bits behind the last row do not count.
    ///
    /// # Panics
    /// If the words are not those of `rows` rows, or the rows more than a `u32` counts.
    pub fn new(words: &[u64], rows: usize) -> Kept {
        let mut kept = Kept::default();
        kept.set(words, rows);
        kept
    }

    /// The same in place, for one block of rows after another.
    ///
    /// # Panics
    /// As [`Kept::new`] does.
    pub fn set(&mut self, words: &[u64], rows: usize) {
        assert!(
            words.len() == rows.div_ceil(64) && rows <= u32::MAX as usize,
            "{rows} rows in {} words",
            words.len()
        );
        self.words.clear();
        self.words.extend_from_slice(words);
        if let (Some(last), 1..) = (self.words.last_mut(), rows % 64) {
            *last &= u64::MAX >> (64 - rows % 64);
        }
        self.rows = rows;
        self.count = portable::count(&self.words);
        self.before.clear();
        self.listed.clear();
        if self.count * SPARSE_ROWS < rows {
            self.listed.reserve(self.count);
            for (index, word) in self.words.iter().enumerate() {
                let mut word = *word;
                while word != 0 {
                    self.listed.push(index as u32 * 64 + word.trailing_zeros());
                    word &= word - 1;
                }
            }
        } else {
            self.before.reserve(self.words.len());
            let mut before = 0;
            for word in &self.words {
                self.before.push(before);
                before += word.count_ones();
            }
        }
    }

    /// Rows that there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that are kept.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// Appends the kept rows of a column.
///
/// # Panics
/// If the column is not of [`Kept::rows`] rows.
pub fn gather<T: Value>(kept: &Kept, values: &[T], into: &mut Vec<T>) {
    assert!(values.len() == kept.rows, "{} values of {} rows", values.len(), kept.rows);
    #[cfg(target_arch = "x86_64")]
    if crate::x86::gather(kept, values, into) {
        return;
    }
    portable::gather(kept, values, into);
}

/// The kept rows of a column of bits, in words; bits behind the last are 0.
///
/// # Panics
/// If the words are not those of [`Kept::rows`] rows.
pub fn gather_bits(kept: &Kept, bits: &[u64]) -> Vec<u64> {
    assert!(bits.len() == kept.words.len(), "{} words of {} rows", bits.len(), kept.rows);
    #[cfg(target_arch = "x86_64")]
    if let Some(found) = crate::x86::gather_bits(kept, bits) {
        return found;
    }
    portable::gather_bits(kept, bits)
}
