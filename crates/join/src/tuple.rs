//! Rows of a join, and inputs that supply them.

use std::ops::Range;

/// Row of a join: a key, and a value or a row number. 16 bytes, as in paper 002.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(16))]
pub struct Tuple {
    /// Key that rows are joined by. Every value is permitted.
    pub key: i64,
    /// Value or row number that is output.
    pub payload: i64,
}

const _: () = assert!(size_of::<Tuple>() == 16);

/// Input of a join.
pub trait JoinInput: Sync {
    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Passes the tuples of these rows to `take`, in order, some at a time. May leave out rows that can match nothing.
    ///
    /// # Panics
    /// Panics if the range goes beyond the rows.
    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple]));
}

impl JoinInput for [Tuple] {
    fn rows(&self) -> usize {
        self.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        take(&self[rows]);
    }
}

impl JoinInput for Vec<Tuple> {
    fn rows(&self) -> usize {
        self.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        take(&self[rows]);
    }
}
