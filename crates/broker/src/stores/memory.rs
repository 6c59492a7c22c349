//! Store in memory, for embedded pools and tests, where the names need not outlive the broker.

use super::{Store, StoreError};
use farpool_lease::broker::{Durable, StateChange};

/// Store in memory, which ends with the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    durable: Durable,
}

impl Store for MemoryStore {
    fn load(&self) -> Result<Durable, StoreError> {
        Ok(self.durable.clone())
    }

    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError> {
        for record in records {
            self.durable.apply(record.clone());
        }
        Ok(())
    }
}
