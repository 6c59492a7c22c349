//! Functions shipped to far memory, on the node's side: their contract, the functions that are built into nodes, and
//! the processes that run all others.
//!
//! The idea: a function sees one range of sealed bytes, its window, at the place where the bytes lie, and nothing else.
//! [`abi`] defines byte for byte what it finds in memory. [`resident`] runs functions in Rust that are part of the
//! node. Code that comes from elsewhere runs in a process of its caller's: [`sandboxes`] starts these processes, hands
//! connections over to them, watches them and kills them. `crates/functions/sandbox` is the program that they run.
//! [`confinement`], [`setup`] and [`status`] are all that passes between a node and such a process.
//!
//! Never in this crate: running code that was sent, or deciding where a function should run.
#![deny(unsafe_code)]

pub mod abi;
mod callers;
pub mod confinement;
mod cpu_time;
pub mod names;
mod options;
pub mod resident;
pub mod sandboxes;
pub mod setup;
mod standard;
pub mod status;

pub use callers::{CallInProgress, EndedCall, EndedCalls, Owner};
pub use options::SandboxOptions;
pub use resident::{Resident, ResidentCall, ResidentFailure};
pub use sandboxes::Sandboxes;
pub use standard::standard;
