//! Hot loops of near-data operators on plain slices, as fast as the memory that they read (paper 003, Farview).
//!
//! The idea: one pass over memory that has to be read anyway. Each kernel exists twice. [`portable`] has it in a few
//! plain lines, and `x86` does the same with AVX-512. The CPU decides at run time which one is used, so one binary
//! serves every machine. Tests compare the two.
//!
//! Never in this crate: types of Arrow, programs, I/O, clocks, threads; a kernel without a portable twin; unsafe code
//! outside `x86`, its submodules and `pages`.
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
pub use compare::{CompareOp, Ordered, compare};
pub use gather::{Kept, PlainNumber, gather, gather_bits};
pub use pages::zeroed;
pub use rows::{Ranges, Row, project_rows, select_rows, split_rows};
pub use tables::{
    BLOCK_ROWS, COPIES, KeyTable, LANES, SecretHasher, Sums, TableShape, add, find, find_and_add, ones,
    update,
};

/// Reports whether the CPU has the instructions for gathering and comparing. Without them the portable loops run.
/// Other libraries may be faster than those, which are written to be read.
pub fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    let found = x86::has_avx512();
    #[cfg(not(target_arch = "x86_64"))]
    let found = false;
    found
}

mod sealed {
    /// Marker that only this crate can implement. It limits the types that vector code copies as plain bits.
    pub trait Sealed {}
    macro_rules! sealed {
        ($($number:ty)*) => { $(impl Sealed for $number {})* };
    }
    sealed!(i8 i16 i32 i64 i128 u8 u16 u32 u64 f32 f64);
}
