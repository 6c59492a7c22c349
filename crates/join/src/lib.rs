//! Hash joins in memory whose place is the caller's to say (paper 002, "Hash Joins Meet CXL").
//!
//! The idea: a join is phases that each read something once and write something once. *Partitioned* (PHJ): both sides
//! are cut by hash into partitions that fit a cache ([`partition()`]), and partitions are joined one by one
//! ([`join_partitions`]). *Non-partitioned* (NPHJ): the build side becomes one table in memory ([`Table::build`]),
//! which the probe side is looked up in ([`probe`]). Each phase is a function of its own, so that it can be timed, and
//! planned, alone. What a phase writes lies in memory from [`Chunks`], what it reads is handed out by [`Morsels`]: both
//! are the caller's, so the same code runs over one tier or several. Rows are tuples of 16 bytes ([`Tuple`]), or
//! columns of Arrow's behind them ([`columns`]). Matches go to a [`Sink`].
//!
//! Never in this crate: I/O, clocks, sockets; knowledge of tiers, nodes of memory or planners; threads that outlive a
//! call; unsafe code outside `arena`, `memory`, `huge_pages` and `x86`; a kernel without a portable one beside it.
#![deny(unsafe_code)]

mod arena;
mod chunks;
pub mod columns;
mod direct;
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

pub use chunks::{CHUNK_BYTES, CHUNK_LINES, Chunks, Purpose, Side};
pub use emit::{Equal, Exact, How, Kind, Sides, Sink};
pub use error::JoinError;
pub use hash::Hasher;
pub use huge_pages::HugePages;
pub use kernels::Kernels;
pub use memory::{Line, Memory};
pub use morsels::{Cursor, MORSEL_ROWS, Morsels};
pub use partition::partition;
pub use partitioned::Partitioned;
pub use phases::{join_partitions, join_partitions_by, probe};
pub use settings::{Partitioner, Settings};
pub use table::{Table, table_bytes};
pub use tuple::{Source, Tuple};
