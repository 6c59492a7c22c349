//! Gathering: copies the kept rows out of columns of fixed width.

use crate::{portable, sealed};

/// Plain number of 1, 2, 4, 8 or 16 bytes. Only its bits are moved; its meaning does not matter.
pub trait PlainNumber: Copy + sealed::Sealed {}

macro_rules! values {
    ($($number:ty)*) => { $(impl PlainNumber for $number {})* };
}
values!(i8 i16 i32 i64 i128 u8 u16 u32 u64 f32 f64);

/// Rows are copied one by one if fewer than one in this many is kept. Then fewer than half of the cache lines of 8-byte
/// values hold a kept row.
const SPARSE_ROWS: usize = 16;

/// Rows that are kept, prepared once for all columns of a batch.
///
/// A word has one bit for each of 64 rows: 1 if the row is kept. The set has the position in the result at which the
/// rows of each word begin, so no load of a column waits for the count of an earlier word. If few rows are kept, the
/// set has a list of their numbers instead.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// One bit for each row, 1 if it is kept, in words of 64 rows.
    pub(crate) words: Vec<u64>,
    /// Number of kept rows before each word. Empty if the rows are listed.
    pub(crate) before: Vec<u32>,
    /// Numbers of the kept rows, in order. Empty unless they are few ([`SPARSE_ROWS`]).
    pub(crate) listed: Vec<u32>,
    /// Number of rows, kept or not.
    rows: usize,
    /// Number of kept rows.
    count: usize,
}

impl Kept {
    /// Makes the set from one bit per row, 1 if it is kept, in words with the least significant bit first. Bits behind
    /// the last row are ignored.
    ///
    /// # Panics
    /// If there are not exactly the words of `rows` rows, or there are more rows than a `u32` counts.
    pub fn new(words: &[u64], rows: usize) -> Kept {
        let mut kept = Kept::default();
        kept.set(words, rows);
        kept
    }

    /// Replaces the set by other rows, so that one allocation serves many blocks.
    ///
    /// # Panics
    /// Like [`Kept::new`].
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

    /// Returns the number of rows, kept or not.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of rows that are kept.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// Appends the values of the kept rows of a column to `into`.
///
/// # Panics
/// If the column has not [`Kept::rows`] rows.
pub fn gather<T: PlainNumber>(kept: &Kept, values: &[T], into: &mut Vec<T>) {
    assert!(values.len() == kept.rows, "{} values of {} rows", values.len(), kept.rows);
    #[cfg(target_arch = "x86_64")]
    if crate::x86::gather(kept, values, into) {
        return;
    }
    portable::gather(kept, values, into);
}

/// Returns the bits of the kept rows of a column of bits, in words. Bits behind the last row are 0.
///
/// # Panics
/// If there are not exactly the words of [`Kept::rows`] rows.
pub fn gather_bits(kept: &Kept, bits: &[u64]) -> Vec<u64> {
    assert!(bits.len() == kept.words.len(), "{} words of {} rows", bits.len(), kept.rows);
    #[cfg(target_arch = "x86_64")]
    if let Some(found) = crate::x86::gather_bits(kept, bits) {
        return found;
    }
    portable::gather_bits(kept, bits)
}
