//! Repair of one file: lost copies are made again, and copies on draining nodes are moved. In the background, at a
//! limited rate, extent by extent.
//!
//! The idea: think of copying a page of a notebook in which somebody still writes. Note the page's revision number,
//! copy, and look again. If the number is the same, the copy is good. Here an extent's version is noted first. The new
//! copy joins the file only if no write has begun since; that is checked and done in one step, with nothing else
//! running in the extent.
//!
//! - Idle file: the first try succeeds.
//! - Busy file: writes keep beginning. After two tries the last one holds them off while it copies one extent (1 MiB at
//!   most). In an encrypted file every try holds them off.
//! - Bad case: an operation in the extent does not end. The repair gives up and tries again in the next round.
//!
//! Holding off writers from the start would be simpler, but each of them would wait for the slowest node of a copy.

use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, FileState, Phase};
use crate::leases::{Patience, Waits};
use crate::node_batches::{copy_bytes, may_arrive_late, write_bytes};
use crate::node_links::LeasedRegion;
use crate::options::Protection;
use crate::plan::{
    Allocation, CopyId, EXTENT_BYTES_MAX, ExtentCopy, PageTags, RangeLockKind, Segment, Snapshot,
};
use crate::published::Looked;
use crate::repair::{Repairable, Repaired};
use farpool_wire::{MonoNs, Name};
use std::sync::Arc;

/// Number of tries to copy an extent while it may be written. Writes are held off after them.
const UNLOCKED_TRIES_MAX: u32 = 2;

/// New copy that is not part of its file yet.
struct NewCopy {
    allocation: Allocation<Arc<LeasedRegion>>,
    tags: PageTags,
}

/// Reports whether a copy can stay where it is.
fn is_in_sync(copy: &ExtentCopy<Arc<LeasedRegion>>) -> bool {
    copy.allocation.region.check_usable().is_ok()
        && !copy.is_quarantined
        && !copy.allocation.region.node.is_draining()
}

impl Repairable for FileInner {
    fn repair(&self, looks: bool) -> Repaired {
        self.forget_mapped();
        let mut repaired = Repaired::All;
        let mut from = 0;
        loop {
            let start = {
                let state = self.state();
                match state.phase {
                    Phase::Writable => {}
                    Phase::Published(_) => {
                        let is_whole = self.is_whole(&state);
                        drop(state);
                        if is_whole || self.protection() == Protection::None {
                            return Repaired::All;
                        }
                        let is_gone = looks && self.look_for_copies(Waits::WhileItIsThere) == Looked::IsGone;
                        return if is_gone { Repaired::All } else { Repaired::Awaited };
                    }
                    _ => return Repaired::All,
                }
                match state.map.find_extent(from, |copies| self.needs_work(copies)) {
                    Some(start) => start,
                    None => return repaired,
                }
            };
            from = start + 1;
            match self.repair_extent(start) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Closed => return Repaired::Part,
                Err(_) => repaired = Repaired::Part,
            }
        }
    }

    fn unprotected_bytes(&self) -> u64 {
        let state = self.state();
        let has_copies = matches!(self.protection(), Protection::Mirror | Protection::Local);
        if !has_copies || state.phase != Phase::Writable {
            return 0;
        }
        let is_bare = |file: &std::ops::Range<u64>, copies: &[ExtentCopy<Arc<LeasedRegion>>]| match &self.disk
        {
            Some(disk) => disk.lacks(file.clone()),
            None => copies.iter().filter(|copy| is_in_sync(copy)).count() < 2,
        };
        let bare = state.map.extents().filter(|(file, copies)| is_bare(file, copies));
        bare.map(|(file, _)| file.end.min(state.map.length()).saturating_sub(file.start)).sum()
    }
}

impl FileInner {
    /// Returns how many copies an extent should have now.
    fn copies_wanted(&self) -> usize {
        match self.protection() {
            Protection::Mirror if self.session.hosts() >= 2 => 2,
            _ => 1,
        }
    }

    /// Reports whether an extent needs repair and can be repaired now.
    fn needs_work(&self, copies: &[ExtentCopy<Arc<LeasedRegion>>]) -> bool {
        let sound = copies.iter().filter(|copy| is_in_sync(copy)).count();
        let is_short = sound < self.copies_wanted();
        let has_source =
            self.disk.is_some() || copies.iter().any(|copy| copy.allocation.region.check_usable().is_ok());
        (is_short && has_source) || (sound > 0 && sound < copies.len())
    }

    /// Gives the extent at `start` the copies it should have, and removes the others.
    fn repair_extent(&self, start: u64) -> Result<(), Error> {
        let around = start..start + EXTENT_BYTES_MAX;
        for _ in 0..UNLOCKED_TRIES_MAX {
            // No write runs while the snapshot is taken, so all copies in it have all writes.
            let look = |state: &mut FileState| Ok(state.map.snapshot(start));
            let (lock, snapshot) = self.begin(RangeLockKind::ReadWhole, &around, look)?;
            let Some(snapshot) = snapshot else { return Ok(()) };
            // A page that is encrypted again while it is copied could not be decrypted, and its node would be blamed.
            let held_off = self.key.is_some().then_some(lock);
            let fresh = self.copy_extent(&snapshot)?;
            drop(held_off);
            let _lock = match self.begin_change_until(snapshot.range.clone(), self.patience()) {
                Some(lock) => lock,
                None => return Err(self.give_up(fresh)),
            };
            if self.take_in(&snapshot, fresh) {
                return self.keep_pace(&snapshot);
            }
        }
        let Some(lock) = self.begin_change_until(around, self.patience()) else {
            return Err(self.give_up(None));
        };
        let Some(snapshot) = self.state().map.snapshot(start) else { return Ok(()) };
        let fresh = self.copy_extent(&snapshot)?;
        let is_taken_in = self.take_in(&snapshot, fresh);
        drop(lock);
        debug_assert!(is_taken_in, "nothing was written since");
        self.keep_pace(&snapshot)
    }

    /// Returns the deadline of a wait for operations in an extent.
    fn patience(&self) -> MonoNs {
        self.session.request_deadline()
    }

    /// Frees the new copy, because operations in the extent do not end. A later round repairs the extent.
    fn give_up(&self, fresh: Option<NewCopy>) -> Error {
        self.session.leases.give_back(fresh.into_iter().map(|fresh| fresh.allocation).collect());
        Error::new(ErrorKind::Unreachable, "repair was put off: operations in the extent did not end in time")
    }

    fn keep_pace(&self, snapshot: &Snapshot<Arc<LeasedRegion>>) -> Result<(), Error> {
        self.session
            .repair
            .keep_pace(snapshot.written.iter().map(|written| written.end - written.start).sum())
    }

    /// Makes a copy of a snapshot, on another failure domain than its good copies. `None` if it has enough of those.
    fn copy_extent(&self, snapshot: &Snapshot<Arc<LeasedRegion>>) -> Result<Option<NewCopy>, Error> {
        let session = &*self.session;
        if snapshot.copies.iter().filter(|copy| is_in_sync(copy)).count() >= self.copies_wanted() {
            return Ok(None);
        }
        let label =
            |copy: &ExtentCopy<Arc<LeasedRegion>>| copy.allocation.region.node.info.host_label.clone();
        let apart: Vec<Name> = snapshot.copies.iter().filter(|copy| is_in_sync(copy)).map(label).collect();
        let bytes = (snapshot.range.end - snapshot.range.start) as u32;
        let group = self.group_before(snapshot.range.end);
        let allocation = session.leases.allocate(group, bytes, &apart, Patience::Brief)?;
        let copied = self.copy_written(snapshot, &allocation);
        if let Err(error) = &copied {
            if may_arrive_late(error, &allocation.region) {
                session.leases.note_late(&allocation.region, allocation.offset);
            }
            session.leases.give_back(vec![allocation.clone()]);
        }
        copied.map(|tags| Some(NewCopy { allocation, tags }))
    }

    fn copy_written(
        &self,
        snapshot: &Snapshot<Arc<LeasedRegion>>,
        allocation: &Allocation<Arc<LeasedRegion>>,
    ) -> Result<PageTags, Error> {
        let session = &*self.session;
        let usable = snapshot.copies.iter().filter(|copy| copy.allocation.region.check_usable().is_ok());
        let source = usable.min_by_key(|copy| (copy.allocation.region.node.is_suspect(), !is_in_sync(copy)));
        if let Some(key) = &self.key {
            return self.copy_encrypted(key, snapshot, source, allocation);
        }
        for written in &snapshot.written {
            let at =
                |copy: &ExtentCopy<Arc<LeasedRegion>>, allocation: &Allocation<Arc<LeasedRegion>>| Segment {
                    copy: copy.id,
                    region: Arc::clone(&allocation.region),
                    offset: allocation.offset + (written.start - snapshot.range.start),
                    file: written.clone(),
                };
            match (source, &self.disk) {
                (Some(copy), _) => copy_bytes(session, &at(copy, &copy.allocation), &at(copy, allocation))?,
                (None, Some(disk)) => {
                    let mut bytes = vec![0; (written.end - written.start) as usize];
                    session.behind.read(disk, written.start, &mut bytes)?;
                    let to = Segment {
                        copy: CopyId::default(),
                        region: Arc::clone(&allocation.region),
                        offset: allocation.offset + (written.start - snapshot.range.start),
                        file: written.clone(),
                    };
                    write_bytes(session, &to, &bytes)?;
                }
                (None, None) => return Err(Error::new(ErrorKind::Lost, "no copy is left to copy from")),
            }
        }
        Ok(PageTags::new(allocation.bytes))
    }

    /// Adds the new copy to the file and drops its bad ones. The caller makes sure that nothing runs in the extent.
    /// Returns false if the extent was written since the snapshot.
    fn take_in(&self, snapshot: &Snapshot<Arc<LeasedRegion>>, fresh: Option<NewCopy>) -> bool {
        let mut freed = Vec::new();
        let mut state = self.state();
        let attached = match fresh {
            Some(fresh) if state.phase != Phase::Writable => Err(fresh.allocation),
            Some(fresh) => state.map.attach(snapshot, fresh.allocation, fresh.tags).map(drop),
            None => Ok(()),
        };
        let is_taken_in = attached.is_ok();
        freed.extend(attached.err());
        let now = state.map.snapshot(snapshot.range.start).map_or(Vec::new(), |now| now.copies);
        if state.phase == Phase::Writable && now.iter().any(is_in_sync) {
            for copy in now.iter().filter(|copy| !is_in_sync(copy)) {
                freed.extend(state.map.drop_copy(copy.id).map(|copy| copy.allocation));
            }
        }
        let is_over = state.phase != Phase::Writable;
        drop(state);
        self.session.leases.give_back(freed);
        is_taken_in || is_over
    }
}
