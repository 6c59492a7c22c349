//! Files that are being written to be published, with runs of bytes that each lie in one region.

use crate::error::Error;
use crate::file::FarFile;
use crate::leases::Patience;
use crate::options::{IfTaken, Protection};
use crate::parity_ahead::OpenStripe;
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
    /// Stripe that is being filled, if the file gets parity.
    stripe: Option<OpenStripe>,
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
        let stripe = match protection {
            Protection::Rs { data, parity } => Some(OpenStripe::new(data, parity)),
            _ => None,
        };
        Ok(Unlisted { file, may_widen: true, stripe })
    }

    /// Returns the offset at which [`Self::append`] writes the next bytes. In a file that gets parity they begin an
    /// extent of their own: the parity of those before may be written, and takes what follows the bytes in them for
    /// zeros.
    pub fn end(&self) -> u64 {
        match self.stripe {
            Some(_) => self.file.inner.state().map.allocated(),
            None => self.file.length(),
        }
    }

    /// Appends bytes.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(self.end(), bytes)
    }

    /// Appends bytes in a single region, so that a single node can serve them. Returns where they begin in the file. If
    /// the file gets parity, they are kept in memory until their stripe is full.
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
        let beside = self.stripe.as_ref().map(OpenStripe::beside).unwrap_or_default();
        let offset = match inner.grow_in_one_region(count, beside.clone()) {
            // No other host has room.
            Err(_) if !beside.is_empty() => {
                if let Some(stripe) = &mut self.stripe {
                    stripe.give_up();
                }
                inner.grow_in_one_region(count, Vec::new())?
            }
            grown => grown?,
        };
        self.file.write_at(offset, bytes)?;
        if let Some(stripe) = &mut self.stripe {
            let end = inner.state().map.allocated();
            stripe.add(inner, offset..end, bytes);
        }
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
