//! Far memory for database engines: idle RAM, leased as files.
//!
//! ```no_run
//! use farpool::{CreateOptions, FileClass, Pool};
//! # fn main() -> Result<(), farpool::Error> {
//! let pool = Pool::connect("farpool://127.0.0.1:7700")?;
//! let file = pool.create("spill-1", FileClass::Scratch, CreateOptions::default())?;
//! file.write_at(0, b"rows that do not fit")?;
//! let mut back = [0; 4];
//! file.read_at(16, &mut back)?;
//! assert_eq!(&back, b" fit");
//! pool.delete("spill-1")?;
//! # Ok(())
//! # }
//! ```
//!
//! The idea: this crate is the interface of three others and a broker. `farpool_files` has pools and files,
//! `farpool_calls` functions that run beside the bytes of files, and `farpool_tables` Arrow columns in files. A pool
//! inside this process is a broker and nodes. Programs that need files only can use `farpool_files` alone.
//!
//! A lost node never causes a wrong answer: reads of the bytes that it held return [`ErrorKind::Lost`] from then on.
//!
//! Never in this crate: anything that one of these crates could do itself.
#![forbid(unsafe_code)]

mod embedded;
mod file;
pub mod function;
pub mod monitoring;
mod pool;
pub mod table;

pub use embedded::EmbeddedOptions;
pub use farpool_files::{
    AsyncQueue, Completion, CreateOptions, Error, ErrorKind, FarReader, FileClass, FileInfo, Identity,
    IfTaken, MemoryKind, NodeMemory, NodeStatus, Operation, POOL_VARIABLE, PUTS_MAX, PoolOptions, Protection,
    Queue, RangeStream, ReadRange, Recipe, Relay, Retry, RunningCall, RunningCalls, Stats, StatusReport, Tls,
    TlsError, TlsErrorKind, TlsFiles, TransportChoice, WriteRange, plan, prints, shown, shown_lines, units,
};
/// Memory that a process may use.
pub use farpool_host::{BoundedMemory, UsableMemory};
/// Placement of queries and calls.
pub use farpool_planner::{Placement, UnknownPlacement, Way};
/// Expressions, queries and the programs that queries are compiled to.
pub use farpool_tables::operators;
/// Keys of encrypted tables.
pub use farpool_tables::{TableKey, WrongKeyLength};
pub use farpool_wire::{FileId, TraceId};
pub use file::FarFile;
pub use function::Function;
pub use pool::Pool;
pub use table::{FarTable, TableInfo};

/// Result of every operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;
