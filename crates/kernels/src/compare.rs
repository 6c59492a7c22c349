//! Columns compared with one value.

use crate::{portable, sealed};

/// How a value of a column compares with the literal, if it is to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
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

/// A number with a total order: of floats, every NaN is the same and above all else, and both zeros are one.
pub trait Ordered: Copy + sealed::Sealed + 'static {
    /// Where it stands beside another.
    fn order(self, other: Self) -> std::cmp::Ordering;
}

macro_rules! integers {
    ($($number:ty)*) => { $(impl Ordered for $number {
        #[inline]
        fn order(self, other: Self) -> std::cmp::Ordering {
            self.cmp(&other)
        }
    })* };
}
integers!(i8 i16 i32 i64 i128 u8 u16 u32 u64);

macro_rules! floats {
    ($($number:ty)*) => { $(impl Ordered for $number {
        #[inline]
        fn order(self, other: Self) -> std::cmp::Ordering {
            // Of NaN nothing is known but that it is one.
            self.partial_cmp(&other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
        }
    })* };
}
floats!(f32 f64);

/// Replaces `into` by a bit for each value, in words, the least significant first: whether it compares so with the
/// literal. Bits behind the last are 0.
pub fn compare<T: Ordered>(values: &[T], comparison: Comparison, literal: T, into: &mut Vec<u64>) {
    into.clear();
    #[cfg(target_arch = "x86_64")]
    let done = crate::x86::compare(values, comparison, literal, into);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    portable::compare(&values[done..], comparison, literal, into);
}
