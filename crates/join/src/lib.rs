//! Hash joins in memory that the caller places (paper 002, "Hash Joins Meet CXL").
//!
//! The idea: a join consists of phases, each of which reads something once and writes something once. A *partitioned*
//! join (PHJ) divides both sides by hash into partitions that fit a cache ([`partition()`]), and joins partitions one
//! by one ([`join_partitions`]). A *non-partitioned* join (NPHJ) makes one table in memory of the build side
//! ([`BuildTable::build`]) and looks the probe side up in it ([`probe`]).
//!
//! Each phase is a function of its own. It can be timed and planned alone. Memory for what a phase writes comes from
//! [`ChunkSource`], and the next rows to read come from [`Morsels`]. The caller implements both, so the same code runs over
//! one memory tier or several. Rows are tuples of 16 bytes ([`Tuple`]), or Arrow columns converted to tuples
//! ([`columns`]). Matches go to a [`Sink`].
//!
//! Never in this crate: I/O, clocks, sockets; knowledge of tiers, nodes of memory or planners; threads that outlive a
//! call; unsafe code outside `arena`, `memory`, `huge_pages` and `x86`; a kernel without a portable version.
#![deny(unsafe_code)]

mod arena;
mod chunks;
pub mod columns;
mod dense_table;
mod emit;
mod error;
mod hash;
mod huge_pages;
mod kernels;
mod memory;
mod morsels;
mod one_pass;
mod partition;
mod partitioned;
mod phases;
mod portable;
mod settings;
mod table;
mod threads;
mod tuple;
mod two_reads;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use chunks::{CHUNK_BYTES, CHUNK_LINES, ChunkSource, JoinSide, Purpose};
pub use emit::{Equal, Exact, JoinSpec, Kind, Sides, Sink};
pub use error::JoinError;
pub use hash::PartitionHasher;
pub use huge_pages::HugePages;
pub use kernels::Kernels;
pub use memory::{CacheLine, LineMemory};
pub use morsels::{MORSEL_ROWS, Morsels, RowQueue};
pub use partition::partition;
pub use partitioned::Partitioned;
pub use phases::{join_partitions, join_partitions_by, probe};
pub use settings::{Partitioner, Settings};
pub use table::{BuildTable, table_bytes};
pub use tuple::{JoinInput, Tuple};
