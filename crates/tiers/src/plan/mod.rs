//! Plans of which share of each object should lie near, computed from bytes alone.
//!
//! The idea: each phase of an operator states how many bytes it moves on either tier ([`traffic`], [`phases`]). A small
//! linear program finds the shares of the objects that take least time. A share can also correct itself while an
//! operator runs ([`balance`]).
//!
//! Never in this module: I/O, a clock, threads, randomness, locks, unsafe code; other modules of this crate.

pub mod balance;
pub mod hash_join;
pub mod interleave;
pub mod operators;
pub mod partial_move;
pub mod phases;
mod simplex;
pub mod traffic;
