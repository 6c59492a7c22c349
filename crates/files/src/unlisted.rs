//! Files that are being written to be published, with runs of bytes that each lie in one region.

use crate::error::{Error, ErrorKind};
use crate::file::{FarFile, WriteRange};
use crate::leases::Patience;
use crate::node_links::NodeLinks;
use crate::options::{IfTaken, Protection};
use crate::parity_ahead::OpenStripe;
use crate::pool::Pool;
use crate::read::is_elsewhere;
use crate::recipe::Recipe;
use crate::session_core::PLACES_MAX;
use crate::stats::add;
use farpool_wire::{FileClass, Name};
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

    /// Appends bytes, at [`Self::end`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let at = self.end();
        if self.stripe.is_none() {
            return self.file.write_at(at, bytes);
        }
        match self.append_in_one_region(bytes) {
            // No region may be as large.
            Err(error) if error.kind() == ErrorKind::Exhausted => self.place(bytes, |_| Ok(at)).map(drop),
            appended => appended.map(|appended| debug_assert_eq!(appended, at)),
        }
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
        let offset = self.place(bytes, |unlisted| unlisted.grow(count))?;
        let inner = &self.file.inner;
        if let Some(stripe) = &mut self.stripe {
            let end = inner.state().map.allocated();
            stripe.add(inner, offset..end, bytes);
        }
        Ok(offset)
    }

    /// Writes bytes to extents of their own, at the offset that `grow` returns. If their nodes are lost, others get
    /// them; if they are silent, others that have memory. Returns the offset.
    fn place(
        &mut self,
        bytes: &[u8],
        grow: impl Fn(&mut Unlisted) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let before = self.file.length();
        let mut left = PLACES_MAX;
        loop {
            left -= 1;
            let offset = grow(self)?;
            let can_move = |node: &NodeLinks| left > 0 && self.has_room_without(node, bytes.len() as u64);
            match self.file.write_unless(&[WriteRange { offset, from: bytes }], &can_move) {
                // Only these bytes are behind the former end.
                Err(error) if left > 0 && is_elsewhere(&error) => self.file.truncate(before)?,
                Err(error) => {
                    add(&self.file.inner.session.counters().failed_ops, 1);
                    return Err(error);
                }
                Ok(()) => return Ok(offset),
            }
        }
    }

    /// Reports whether other nodes than a silent one have memory for bytes in a single region.
    fn has_room_without(&self, node: &NodeLinks, bytes: u64) -> bool {
        // No memory is taken from a suspect.
        let was_suspect = node.is_suspect();
        node.suspect();
        let inner = &self.file.inner;
        let leases = &inner.session.leases;
        let beside = self.stripe.as_ref().map(OpenStripe::beside).unwrap_or_default();
        let spare = |beside: &[Name]| leases.allocate_run(inner.group, bytes, beside, Patience::Brief);
        let found = if beside.is_empty() { spare(&[]) } else { spare(&beside).or_else(|_| spare(&[])) };
        let has_room = found.map(|run| leases.give_back(run)).is_ok();
        node.set_suspect(has_room || was_suspect);
        has_room
    }

    /// Adds extents for bytes that lie in a single region. Returns where they begin.
    fn grow(&mut self, bytes: u64) -> Result<u64, Error> {
        let beside = self.stripe.as_ref().map(OpenStripe::beside).unwrap_or_default();
        match self.file.inner.grow_in_one_region(bytes, beside.clone()) {
            // No other host has room.
            Err(_) if !beside.is_empty() => {
                if let Some(stripe) = &mut self.stripe {
                    stripe.give_up();
                }
                self.file.inner.grow_in_one_region(bytes, Vec::new())
            }
            grown => grown,
        }
    }

    /// Sets the recipe with which the file is published.
    ///
    /// Errors: it is too long.
    pub fn set_recipe(&self, recipe: &Recipe) -> Result<(), Error> {
        self.file.set_recipe(recipe)
    }

    /// Seals the file (makes it immutable) and publishes it under its name.
    pub fn publish(mut self, if_taken: IfTaken) -> Result<(), Error> {
        if let Some(stripe) = &mut self.stripe {
            stripe.end(&self.file.inner);
        }
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
