//! Safe Rust interface for functions that run beside far memory: their inputs and their output, as `spec/function.md`
//! specifies them.
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
//! A [`Call`] consists of slices over what the call record points to, so every access is bounds-checked. A test can
//! pass its own slices ([`CallInputs`]); the function cannot tell them from far memory.
//!
//! Never in this crate: I/O, clocks, threads, dependencies, or a slice over the whole window, which may be larger
//! than Rust's slices can be.
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

pub use call::{Call, CallInputs, Part};
pub use columns::{Column, Columns, Group, Type, Values};
pub use entry::{Record, enter};
pub use failure::Failure;
pub use output::Output;
pub use value::Value;
pub use window::Window;
