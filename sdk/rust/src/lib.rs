//! What a function that is shipped to far memory gets and leaves (`spec/function.md`), as safe Rust.
//!
//! ```
//! use farpool_function::{Call, Failure};
//!
//! farpool_function::export!(sum, |call| -> Result<(), Failure> {
//!     let first: u64 = call.arg(0)?;
//!     let count: u64 = call.arg(8)?;
//!     let sum = call.slice_of::<i64>(first, count)?.iter().fold(0i64, |sum, value| sum.wrapping_add(*value));
//!     call.output().put(&sum)
//! });
//! ```
//!
//! The idea: a [`Call`] is made of slices over what the call record names, so everything behind it is checked as slices
//! are; and a function that is given slices by a test cannot tell them from far memory.
//!
//! Never in this crate: I/O, clocks, threads, dependencies, or a slice over the whole window, which may be larger than
//! Rust's slices can be.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

mod call;
mod columns;
mod entry;
mod failure;
#[cfg(all(target_arch = "wasm32", feature = "heap"))]
mod heap;
mod output;
mod value;
mod window;

pub use call::{Call, Part, Pieces};
pub use columns::{Column, Columns, Group, Type, Values};
pub use entry::{Record, enter};
pub use failure::Failure;
pub use output::Output;
pub use value::Value;
pub use window::Window;
