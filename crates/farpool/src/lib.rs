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
//! The idea: this is the face of four crates. `farpool_files` has pools and files, `farpool_calls` functions that run
//! beside their bytes, `farpool_tables` Arrow columns in them, and a pool inside this process is a broker and nodes.
//! Engines that need no more than files have no use for the other three.
//!
//! Losing a node never gives a wrong answer: the bytes it held answer [`ErrorKind::Lost`] from then on.
//!
//! Never in this crate: anything that these crates could do themselves.
#![forbid(unsafe_code)]

mod embedded;
mod file;
pub mod function;
mod pool;
pub mod table;

pub use embedded::EmbeddedOptions;
pub use farpool_files::{
    AsyncQueue, Chunks, Completion, CreateOptions, Error, ErrorKind, FarReader, FileClass, FileInfo,
    Identity, IfTaken, NodeStatus, Operation, PoolOptions, Protection, Queue, ReadRange, Retry, RunningCall,
    RunningCalls, Stats, StatusReport, Tls, TlsError, TlsErrorKind, TlsFiles, TransportChoice, WriteRange,
    plan, prints, shown, shown_lines,
};
/// Where queries and calls run.
pub use farpool_planner::{Placement, UnknownPlacement, Way};
/// Expressions, queries and the programs they become.
pub use farpool_tables::operators;
/// Keys of encrypted tables.
pub use farpool_tables::{TableKey, WrongKeyLength};
pub use file::FarFile;
pub use function::Function;
pub use pool::Pool;
pub use table::{FarTable, TableInfo};

/// Result of every operation here.
pub type Result<T> = std::result::Result<T, Error>;
