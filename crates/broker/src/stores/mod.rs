//! Where a broker's records survive. One folder entry per store; `tests/stores.rs` holds them all to the
//! same contract.

mod file;
mod memory;
mod published;
pub mod records;
mod redb;

pub use self::memory::MemoryStore;
pub use self::published::{decode_file, encode_file};
pub use self::redb::{Rebuilt, RedbStore};

use farpool_lease::broker::{Durable, Record};
use std::fmt;

/// A store that could not do what it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// Keeps records. After `commit` returns, a crash of the process (for stores on disk: of the machine) does
/// not lose them; if it fails, none of them is kept.
pub trait Store: Send {
    /// Everything committed so far.
    fn load(&self) -> Result<Durable, StoreError>;
    /// Makes records durable, all or none.
    fn commit(&mut self, records: &[Record]) -> Result<(), StoreError>;
}
