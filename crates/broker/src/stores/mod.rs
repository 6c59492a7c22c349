//! Stores of a broker's records. Each is a file in this folder; `tests/stores.rs` checks all of them against one
//! contract.

mod commits;
mod file;
mod memory;
mod published;
pub mod records;
mod redb;

pub use self::memory::MemoryStore;
pub use self::published::{decode_file, encode_file};
pub use self::redb::{Rebuilt, RedbStore};

use farpool_lease::broker::{Durable, StateChange};
use std::fmt;

/// Error of a store, as a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// Store of records. After `commit` has returned, its records survive a crash of the process and, in stores on disk, of
/// the machine. If it fails, none of them is stored.
pub trait Store: Send {
    /// Returns everything that was committed.
    fn load(&self) -> Result<Durable, StoreError>;
    /// Stores records durably: all of them or none.
    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError>;
    /// Returns only if nobody else can have written to the store since it was opened. The default is right for stores
    /// that one process has to itself.
    fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}
