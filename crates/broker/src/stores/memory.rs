//! Nothing on disk: for embedded pools and tests, whose broker and names live and die together.

use super::{Store, StoreError};
use farpool_lease::broker::{Durable, Record};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    durable: Durable,
}

impl Store for MemoryStore {
    fn load(&self) -> Result<Durable, StoreError> {
        Ok(self.durable.clone())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        for record in records {
            self.durable.apply(record.clone());
        }
        Ok(())
    }
}
