//! Memory tiers of one machine: DRAM beside larger and slower memory, behind CXL or on another NUMA node.
//!
//! The idea: operators that stream data are limited by the links to memory. Their time depends on how many bytes go
//! over which link, and on whether all links are busy at the same time. [`plan`] computes on which tier each object (an
//! input, partitions, a table) should lie. The rest of this crate has the memory ([`TieredRegion`], [`TierMemory`]),
//! the topology that the kernel reports ([`topology`]), measured rates ([`calibrate`]), and three backends. They run
//! stages of an operator ([`stage`], [`strategy`]), which consist of morsels (parts of the work, each done by one
//! thread):
//!
//! - [`Numa`] runs on real tiers.
//! - [`Emulated`] runs on one tier and delays work to the rates of two.
//! - [`Virtual`] computes times only, under a virtual clock.
//!
//! The function [`join()`] runs the kernels of `farpool-join` on the first two, over memory that is placed as a plan
//! says.
//!
//! Times of emulated tiers are labelled `emulated` wherever they are shown. Their ratios mean something, their rates do
//! not.
//!
//! Never in this crate: an operator over rows, a decision outside [`plan`] where something should lie, sockets. Unsafe
//! code is in `memory.rs` only.
#![deny(unsafe_code)]

pub mod calibrate;
mod drive;
mod emulated;
mod feed;
mod free_space;
mod join;
pub mod kept;
mod memory;
mod meter;
mod moving;
mod numa;
mod pace;
pub mod plan;
pub mod region;
pub mod stage;
pub mod strategy;
mod virtual_clock;
mod worker_state;

pub use emulated::Emulated;
pub use farpool_region::topology;
pub use join::{Joined, TierError, Tiered, join};
pub use memory::{TierMemory, share_in_chunks};
pub use numa::Numa;
pub use pace::StageClock;
pub use region::{Nodes, TieredRegion};
pub use virtual_clock::Virtual;
