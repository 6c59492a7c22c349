//! Functions shipped to far memory: what they get and leave, those that nodes are built with, and the processes that
//! run the others.
//!
//! The idea: a function sees a window of sealed bytes where they lie, and nothing else. [`abi`] is its contract, byte
//! for byte; [`resident`] runs Rust in the node; everything that comes from elsewhere runs in a process of its
//! caller's, which [`sandboxes`] starts, hands connections over to, watches and kills. `crates/functions/sandbox` is
//! that process; [`confinement`], [`setup`] and [`status`] are all that passes between the two.
//!
//! Never in this crate: running code that was sent, or deciding where a function should run.
#![deny(unsafe_code)]

pub mod abi;
pub mod confinement;
pub mod names;
mod options;
pub mod resident;
pub mod sandboxes;
pub mod setup;
mod standard;
pub mod status;

pub use options::SandboxOptions;
pub use resident::{Resident, ResidentCall, Stopped};
pub use sandboxes::{Owner, Running, Sandboxes};
pub use standard::standard;
