//! The hot loops of near-data operators, on plain slices, at the speed of the memory they read (paper 003, Farview).
//!
//! The idea: one pass over memory that is read anyway. Each kernel exists twice: in [`portable`], which says what it
//! does in a few plain lines, and in `x86`, which does the same with AVX-512. Which one runs is decided by the CPU
//! at run time, so one binary serves every machine, and tests compare the two.
//!
//! Never in this crate: types of Arrow's, programs, I/O, clocks, threads; a kernel without a portable one beside it;
//! unsafe code outside `x86`, what is in it, and `pages`.
#![deny(unsafe_code)]

mod automaton;
mod compare;
mod gather;
mod pages;
pub mod portable;
mod rows;
mod tables;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use automaton::{Automaton, Followed, STATES_MAX};
pub use compare::{Comparison, Ordered, compare};
pub use gather::{Kept, Value, gather, gather_bits};
pub use pages::zeroed;
pub use rows::{Ranges, Row, project_rows, select_rows, split_rows};
pub use tables::{
    BLOCK_ROWS, COPIES, Hasher, LANES, Shape, Sums, Table, add, find, find_and_add, ones, update,
};

/// Whether the CPU has what gathering and comparing use. Without, the portable loops run, and libraries may be faster:
/// they are written to be read.
pub fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    let found = x86::has_avx512();
    #[cfg(not(target_arch = "x86_64"))]
    let found = false;
    found
}

mod sealed {
    /// Keeps other crates from saying what a plain number is: vector code copies its bits.
    pub trait Sealed {}
    macro_rules! sealed {
        ($($number:ty)*) => { $(impl Sealed for $number {})* };
    }
    sealed!(i8 i16 i32 i64 i128 u8 u16 u32 u64 f32 f64);
}
