//! Comparison of all values of a column with one value, the literal.

use crate::{portable, sealed};

/// Comparison of a value of the column with the literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// Whole number of a column that can be compared with a literal.
pub trait Ordered: Copy + Ord + sealed::Sealed + 'static {}

macro_rules! integers {
    ($($number:ty)*) => { $(impl Ordered for $number {})* };
}
integers!(i8 i16 i32 i64 i128 u8 u16 u32 u64);

/// Replaces `into` by one bit per value, in words with the least significant bit first: 1 if the comparison with the
/// literal is true. Bits behind the last value are 0.
pub fn compare<T: Ordered>(values: &[T], comparison: CompareOp, literal: T, into: &mut Vec<u64>) {
    into.clear();
    #[cfg(target_arch = "x86_64")]
    let done = crate::x86::compare(values, comparison, literal, into);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    portable::compare(&values[done..], comparison, literal, into);
}
