//! Far files: bytes of a pool of memory at names and offsets, and the sessions that they are had in. No rows.
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
//! The idea: a session leases whole regions and cuts them into extents by itself, so files grow, shrink and
//! come and go without asking anybody; the broker is needed only for more regions and for published names.
//! What decides (range to extents, where to cut, what is unwritten) is pure and lives in [`plan`]; what
//! moves bytes stands outside it. Who has nodes do more than move bytes finds in [`beneath`] what that takes.
//!
//! Losing a node never gives a wrong answer: the bytes it held answer [`ErrorKind::Lost`] from then on.
//!
//! Never in this crate: region memory, a rule about leases (that is `lease`), a second way to reach a node
//! beside a transport's link, or a table.
#![forbid(unsafe_code)]

mod asynchronous;
mod base;
pub mod beneath;
mod broker;
mod by_node;
mod direct;
mod disk_copy;
mod ended;
mod error;
mod file;
mod kept;
mod leases;
mod mapped_runs;
mod mending;
mod node_links;
mod nodes;
mod options;
pub mod plan;
mod pool;
mod published;
mod queue;
mod read;
mod rebuilding;
mod refused;
mod repair;
mod sealed_pages;
mod session;
mod stats;
mod unlisted;
mod write;

pub use asynchronous::{AsyncQueue, Chunks, FarReader, Operation};
pub use ended::Ended;
pub use error::{Error, ErrorKind, Retry};
pub use farpool_transport::{Identity, Tls, TlsError, TlsErrorKind, TlsFiles};
pub use farpool_wire::FileClass;
pub use farpool_wire::control::{NodeStatus, RunningCall, RunningCalls, StatusReport};
pub use farpool_wire::{prints, shown, shown_lines};
pub use file::{FarFile, ReadRange, WriteRange};
pub use options::{CreateOptions, IfTaken, PoolOptions, Protection, TransportChoice};
pub use pool::{FileInfo, Pool};
pub use queue::{Completion, Queue};
pub use stats::Stats;
