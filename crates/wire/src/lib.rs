//! The wire protocol: the ids, limits, frames and messages that Farpool's processes exchange.
//!
//! A frame is a fixed 40-byte header with its own checksum, and a bounded body; `spec/wire.md` gives every byte. This
//! crate turns bytes into values and back.
//!
//! Never in this crate: I/O, clocks, threads, unsafe code, allocation before a bound check, or a panic that a peer's
//! bytes can cause (invariant I10).
#![forbid(unsafe_code)]

mod catalog;
pub mod codec;
pub mod control;
pub mod data;
pub mod frame;
mod function;
pub mod host_label;
pub mod ids;
pub mod limits;
pub mod mutants;
mod nodes;
pub mod refusal;
mod repair;
mod scan;
mod segments;
mod shown;
mod snapshots;

pub use codec::{Bytes, List, Name, Payload, Text, WireError};
pub use control::{Reply, Request};
pub use frame::{Header, Opcode};
pub use ids::*;
pub use refusal::{Code, Refusal};
pub use shown::{prints, shown, shown_lines};
