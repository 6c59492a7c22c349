//! Files that are being written to be published, with runs of bytes that each lie in one region.

use crate::error::Error;
use crate::file::FarFile;
use crate::leases::Patience;
use crate::options::{IfTaken, Protection};
use crate::pool::Pool;
use crate::recipe::Recipe;
use farpool_wire::FileClass;
use std::sync::Arc;

/// New pinned file that has no name until it is published. It is deleted on drop if it was not, because nobody else
/// knows of it.
pub struct Unlisted {
    file: FarFile,
    /// True if there may be a node that has no region of this file yet.
    may_widen: bool,
}

impl Unlisted {
    /// Creates a file that can be published as `name`, with this protection; by default that of pinned files.
    ///
    /// Errors: the protection is local, or the pool has too few hosts for it.
    pub fn create(pool: &Pool, name: String, protection: Option<Protection>) -> Result<Unlisted, Error> {
        let session = Arc::clone(pool.session());
        let protection = pool.protection(FileClass::Pinned, protection)?;
        let number = pool.next_number();
        let patience = Patience::Full;
        let file = FarFile::create(session, name, FileClass::Pinned, number, protection, None, patience)?;
        Ok(Unlisted { file, may_widen: true })
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.file.length()
    }

    /// Appends bytes.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(self.length(), bytes)
    }

    /// Appends bytes in a single region, so that a single node can serve them. Returns where they begin in the file.
    pub fn append_in_one_region(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        let inner = &self.file.inner;
        let count = bytes.len() as u64;
        inner.spread(count);
        let (held, free) = inner.session.leases.held_by(inner.group);
        // The file takes whole regions. A small file must not take one at every node, so it spreads only when a
        // quarter of what it holds is used.
        if self.may_widen && held > 0 && (held - free) * 4 >= held {
            self.may_widen = inner.session.leases.widen(inner.group, count);
        }
        let offset = inner.grow_in_one_region(count)?;
        self.file.write_at(offset, bytes)?;
        Ok(offset)
    }

    /// Sets the recipe with which the file is published.
    ///
    /// Errors: it is too long.
    pub fn set_recipe(&self, recipe: &Recipe) -> Result<(), Error> {
        self.file.set_recipe(recipe)
    }

    /// Seals the file (makes it immutable) and publishes it under its name.
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
