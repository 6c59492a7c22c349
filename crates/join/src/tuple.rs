//! Rows as a join sees them, and where they come from.

use std::ops::Range;

/// A key and what belongs to it: a value, or the number of a row. 16 bytes, as in the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(16))]
pub struct Tuple {
    /// What is joined by. Every value is permitted.
    pub key: i64,
    /// What comes out.
    pub payload: i64,
}

const _: () = assert!(size_of::<Tuple>() == 16);

/// An input of a join.
pub trait Source: Sync {
    /// How many rows there are.
    fn rows(&self) -> usize;

    /// Hands the tuples of these rows to `take`, some at a time and in order. Rows that can match nothing may be left
    /// out.
    ///
    /// # Panics
    /// If the range goes beyond the rows.
    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple]));
}

impl Source for [Tuple] {
    fn rows(&self) -> usize {
        self.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        take(&self[rows]);
    }
}

impl Source for Vec<Tuple> {
    fn rows(&self) -> usize {
        self.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        take(&self[rows]);
    }
}
