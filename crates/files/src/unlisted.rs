//! A file on its way to a name, and what it is written by: runs of bytes that each lie in one region.

use crate::error::Error;
use crate::file::FarFile;
use crate::leases::Patience;
use crate::options::{IfTaken, Protection};
use crate::pool::Pool;
use farpool_wire::FileClass;
use std::sync::Arc;

/// A new pinned file that no name leads to until it is published. It is deleted unless it was: nobody else knows of it.
pub struct Unlisted {
    file: FarFile,
    /// Whether there may be a node that has no region of this file yet.
    may_widen: bool,
}

impl Unlisted {
    /// Makes one that is to have this name.
    pub fn create(pool: &Pool, name: String) -> Result<Unlisted, Error> {
        let session = Arc::clone(pool.session());
        let (number, protection) = (pool.next_number(), Protection::None);
        let patience = Patience::Full;
        let file = FarFile::create(session, name, FileClass::Pinned, number, protection, None, patience)?;
        Ok(Unlisted { file, may_widen: true })
    }

    /// Returns how many bytes it has.
    pub fn length(&self) -> u64 {
        self.file.length()
    }

    /// Writes bytes behind all others.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(self.length(), bytes)
    }

    /// Writes bytes behind all others in a single region, so that a single node can serve them, and returns where they
    /// begin in the file.
    pub fn append_in_one_region(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        let inner = &self.file.inner;
        let count = bytes.len() as u64;
        let (held, free) = inner.session.leases.held_by(inner.group);
        // It takes whole regions, so a small one should not take one at every node.
        if self.may_widen && held > 0 && (held - free) * 4 >= held {
            self.may_widen = inner.session.leases.widen(inner.group, count);
        }
        let offset = inner.grow_in_one_region(count)?;
        self.file.write_at(offset, bytes)?;
        Ok(offset)
    }

    /// Seals it and gives it to its name.
    pub fn publish(self, if_taken: IfTaken) -> Result<(), Error> {
        self.file.publish(if_taken)
    }
}

impl Drop for Unlisted {
    fn drop(&mut self) {
        if !self.file.is_published() {
            self.file.delete();
        }
    }
}
