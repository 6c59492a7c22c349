//! Where objects should lie on two memory tiers, from bytes alone.
//!
//! The idea: phases of an operator state their bytes on either tier ([`traffic`], [`phases`]), a small linear program
//! finds where objects should lie, and a share corrects itself while it runs ([`balance`]).
//!
//! Never in this module: I/O, a clock, threads, randomness, locks, unsafe code; anything else of this crate.

pub mod balance;
pub mod hash_join;
pub mod interleave;
pub mod operators;
pub mod partial_move;
pub mod phases;
mod simplex;
pub mod traffic;
