//! Far files: bytes of a memory pool under names and at offsets, and the sessions that use them. This crate knows
//! nothing about rows.
//!
//! A *region* is the unit of memory that a node leases out. An *extent* is a part of a region, 64 KiB to 1 MiB long,
//! that belongs to one file.
//!
//! ```no_run
//! use farpool_files::{CreateOptions, FileClass, Pool};
//! # fn main() -> Result<(), farpool_files::Error> {
//! let pool = Pool::connect("farpool://127.0.0.1:7700")?;
//! let file = pool.create("spill-1", FileClass::Scratch, CreateOptions::default())?;
//! file.write_at(0, b"rows that do not fit")?;
//! pool.delete("spill-1")?;
//! # Ok(())
//! # }
//! ```
//!
//! The idea: a session leases whole regions and allocates extents in them by itself. Files are created, grow, shrink
//! and end without a request to anybody. The broker is needed only for more regions and for published names. Decisions
//! are pure code in [`plan`]: which extents hold a range, where the next extent is allocated, what was never written.
//! Code that moves bytes stands outside it. Crates that have nodes do more than move bytes use [`beneath`].
//!
//! Losing a node never gives a wrong answer. Reads of the bytes it held fail with [`ErrorKind::Lost`] from then on.
//!
//! Never in this crate: region memory, a rule about leases (crate `lease` has those), a way to a node other than a
//! transport's link, or a table.
#![forbid(unsafe_code)]

mod asynchronous;
pub mod beneath;
mod broker;
mod disk_copy;
mod encrypted_pages;
mod ended;
mod environment;
mod error;
mod feed;
mod file;
mod file_repair;
mod kept;
mod leases;
mod mapped_access;
mod mapped_runs;
mod node_batches;
mod node_links;
mod nodes;
mod options;
mod parity;
mod parity_ahead;
pub mod plan;
mod pool;
mod published;
mod queue;
mod read;
mod rebuilding;
mod recipe;
mod refused;
mod repair;
mod sealed_map;
mod session;
mod session_core;
mod shared_regions;
mod snapshots;
mod stats;
pub mod units;
mod unlisted;
mod write;

pub use asynchronous::{AsyncQueue, FarReader, Operation, RangeStream};
pub use ended::Ended;
pub use environment::POOL_VARIABLE;
pub use error::{Error, ErrorKind, PUTS_MAX, Retry};
pub use farpool_transport::relay::Relay;
pub use farpool_transport::{Identity, Tls, TlsError, TlsErrorKind, TlsFiles};
pub use farpool_wire::FileClass;
pub use farpool_wire::control::{
    MemoryKind, NodeMemory, NodeStatus, RunningCall, RunningCalls, StatusReport,
};
pub use farpool_wire::{prints, shown, shown_lines};
pub use file::{FarFile, ReadRange, WriteRange};
pub use options::{CreateOptions, IfTaken, PoolOptions, Protection, TransportChoice};
pub use pool::{FileInfo, Pool};
pub use queue::{Completion, Queue};
pub use recipe::Recipe;
pub use stats::Stats;
