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
use farpool_wire::control::Places;
use farpool_wire::limits::RECIPE_BYTES_MAX;
use farpool_wire::{Bytes, FileClass, FileId, Name, NodeId};
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
        match self.append_each_in_one_region(&[bytes]) {
            // No region may be as large.
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                self.place(&[bytes], |_, _| Ok(at)).map(drop)
            }
            appended => appended.map(|appended| debug_assert_eq!(appended, [at])),
        }
    }

    /// Appends runs of bytes, each of them in a single region, so that a single node can serve it. All are written at
    /// once. Returns where they begin in the file, in order. If the file gets parity, they are written one after the
    /// other, and kept in memory until their stripe is full.
    pub fn append_each_in_one_region(&mut self, runs: &[&[u8]]) -> Result<Vec<u64>, Error> {
        // Where a run of a stripe may lie depends on those before it.
        let at_once = if self.stripe.is_some() { 1 } else { runs.len().max(1) };
        let mut offsets = Vec::with_capacity(runs.len());
        for runs in runs.chunks(at_once) {
            let placed = self.place(runs, Unlisted::grow)?;
            if let (Some(stripe), [bytes], [offset]) = (&mut self.stripe, runs, &placed[..]) {
                let inner = &self.file.inner;
                let end = inner.state().map.allocated();
                stripe.add(inner, *offset..end, bytes);
            }
            offsets.extend(placed);
        }
        Ok(offsets)
    }

    /// Writes runs of bytes to extents of their own, at the offsets that `grow` returns, all at once. If their nodes
    /// are lost, others get them; if they are silent, others that have memory. Returns the offsets.
    fn place(
        &mut self,
        runs: &[&[u8]],
        grow: impl Fn(&mut Unlisted, u64) -> Result<u64, Error>,
    ) -> Result<Vec<u64>, Error> {
        let before = self.file.length();
        let mut left = PLACES_MAX;
        loop {
            left -= 1;
            let mut offsets = Vec::with_capacity(runs.len());
            for run in runs {
                offsets.push(grow(self, run.len() as u64)?);
            }
            let can_move = |node: &NodeLinks| left > 0 && self.has_room_without(node, runs);
            let ranges = offsets.iter().zip(runs).map(|(offset, from)| WriteRange { offset: *offset, from });
            let ranges: Vec<WriteRange<'_>> = ranges.collect();
            match self.file.write_unless(&ranges, &can_move) {
                // Only these bytes are behind the former end.
                Err(error) if left > 0 && is_elsewhere(&error) => self.file.truncate(before)?,
                Err(error) => {
                    add(&self.file.inner.session.counters().failed_ops, 1);
                    return Err(error);
                }
                Ok(()) => return Ok(offsets),
            }
        }
    }

    /// Reports whether other nodes than a silent one have memory for runs of bytes, each in a single region.
    fn has_room_without(&self, node: &NodeLinks, runs: &[&[u8]]) -> bool {
        // No memory is taken from a suspect.
        let was_suspect = node.is_suspect();
        node.suspect();
        let inner = &self.file.inner;
        let leases = &inner.session.leases;
        let beside = self.stripe.as_ref().map(OpenStripe::beside).unwrap_or_default();
        let mut found = Vec::new();
        let mut has_room_for = |run: &&[u8]| {
            let spare =
                |beside: &[Name]| leases.allocate_run(inner.group, run.len() as u64, beside, Patience::Brief);
            let spared = if beside.is_empty() { spare(&[]) } else { spare(&beside).or_else(|_| spare(&[])) };
            spared.map(|run| found.extend(run)).is_ok()
        };
        let has_room = runs.iter().all(&mut has_room_for);
        leases.give_back(found);
        node.set_suspect(has_room || was_suspect);
        has_room
    }

    /// Adds extents for bytes that lie in a single region. Returns where they begin.
    fn grow(&mut self, bytes: u64) -> Result<u64, Error> {
        let inner = &self.file.inner;
        inner.spread(bytes);
        let (held, free) = inner.session.leases.held_by(inner.group);
        // The file takes whole regions. A small file must not take one at every node, so it spreads only when a
        // quarter of what it holds is used.
        if self.may_widen && held > 0 && (held - free) * 4 >= held {
            self.may_widen = inner.session.leases.widen(inner.group, bytes);
        }
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

    /// Writes the parity of the last stripe, if the file gets parity. Nothing is appended from then on.
    pub fn complete(&mut self) {
        if let Some(stripe) = &mut self.stripe {
            stripe.end(&self.file.inner);
        }
    }

    /// Returns the links to a node if it has copies of the file.
    pub(crate) fn node_of_copies(&self, node: NodeId) -> Option<Arc<NodeLinks>> {
        self.file.inner.node_of_copies(node)
    }

    /// Seals the file (makes it immutable) if that is not done yet, and returns its places. Their handles are not bound
    /// to a name.
    pub(crate) fn sealed_places(&self) -> Result<Places, Error> {
        self.file.inner.sealed_with_checksums()
    }

    /// Keeps other places of the sealed file, which lack some copies, and returns them.
    pub(crate) fn keep_places(&self, places: Places) -> Places {
        self.file.inner.keep_places(&places);
        places
    }

    /// Notes that the broker has given these places to a part or root of a table.
    pub(crate) fn note_published(&self, places: &Places) {
        // Nobody reads a part through the handle that wrote it, so the id does not matter.
        self.file.inner.note_published(FileId(0), places);
    }

    /// Returns the number of copies that each run should have.
    pub(crate) fn copies_wanted(&self) -> u8 {
        self.file.inner.protection().copies() as u8
    }

    /// Returns the recipe of the file; empty if it has none.
    pub(crate) fn recipe(&self) -> Bytes<RECIPE_BYTES_MAX> {
        self.file.inner.recipe.get().cloned().unwrap_or_default()
    }

    /// Seals the file (makes it immutable) and publishes it under its name.
    pub fn publish(mut self, if_taken: IfTaken) -> Result<(), Error> {
        self.complete();
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
