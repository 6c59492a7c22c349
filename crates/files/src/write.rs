//! Writing a far file, to every copy of its extents.
//!
//! The idea: a write is acknowledged when every copy that the file's map still lists has it. If a node did not take the
//! write, its copy is dropped from the map first, for good. No later read can then return its old bytes. A node that
//! stalls costs its writers one timeout and not the whole query.

use crate::encrypted_pages::{page_runs, within};
use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, FileState, Phase, WriteRange, WriteRun, check_end, hull};
use crate::leases::Patience;
use crate::node_batches::{NodeBatches, Outcome, failure, may_arrive_late, span};
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::options::Protection;
use crate::plan::{
    Allocation, CopyId, EXTENT_BYTES_MAX, Group, RangeLockKind, RangeSet, Segment, pages_around,
};
use crate::stats::add;
use farpool_transport::WriteOp;
use farpool_wire::{Name, mutant};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of pages that are encrypted before the first of them is sent, at most. A single range may have more. The
/// ciphertext takes this much memory again, once for each copy.
const ENCRYPTED_BYTES_AT_ONCE: u64 = 8 << 20;

impl FileInner {
    pub(crate) fn write_ranges(
        &self,
        ranges: &[WriteRange<'_>],
        can_move: &dyn Fn(&NodeLinks) -> bool,
    ) -> Result<(), Error> {
        // An empty write behind the end does not move the end.
        let mut ranges: Vec<WriteRange<'_>> =
            ranges.iter().filter(|range| !range.from.is_empty()).copied().collect();
        if ranges.is_empty() {
            return self.check_writable(&self.state().phase);
        }
        check_end(hull(ranges.iter().map(|range| (range.offset, range.from.len()))).end)?;
        if self.key.is_none() {
            let single = |ranges: &'_ [WriteRange<'_>]| ranges[0].file();
            let runs: Vec<WriteRun<'_>> =
                ranges.chunks(1).map(|ranges| WriteRun { file: single(ranges), ranges }).collect();
            return self.write_runs(&runs, can_move);
        }
        let mut rest = &mut ranges[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let mut fits = |range: &WriteRange<'_>| {
                let pages = pages_around(range.file());
                bytes += pages.end - pages.start;
                bytes <= ENCRYPTED_BYTES_AT_ONCE
            };
            let count = rest.iter().take_while(|range| fits(range)).count().max(1);
            let (now, later) = rest.split_at_mut(count);
            self.write_runs(&page_runs(now), can_move)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes several runs of a file at once. Runs of an encrypted file are whole pages and do not overlap. Bytes that
    /// their pages already hold are fetched first, for all runs. If that fails, or if an earlier write to one of them
    /// may still arrive, nothing is sent. After that, runs of an encrypted file succeed or fail one by one.
    fn write_runs(&self, runs: &[WriteRun<'_>], can_move: &dyn Fn(&NodeLinks) -> bool) -> Result<(), Error> {
        let bytes_of = |file: &Range<u64>| (file.end - file.start) as usize;
        let hull = hull(runs.iter().map(|run| (run.file.start, bytes_of(&run.file))));
        let (lock, segments) = loop {
            self.grow(hull.end)?;
            let begun = self.begin(RangeLockKind::Write, &hull, |state| {
                self.check_writable(&state.phase)?;
                if runs.iter().any(|run| state.map.is_quarantined(run.file.clone())) {
                    let message = "an earlier write to this range was not answered and may still arrive; write to a \
                                   new file";
                    return Err(Error::new(ErrorKind::Poisoned, message));
                }
                if state.map.allocated() < hull.end {
                    // Another thread has truncated the file since it was grown.
                    return Ok(None);
                }
                // Done under the same lock as the start of the operation, so that a copy being made of these extents is
                // not accepted.
                runs.iter().for_each(|run| state.map.begin_write(&run.file));
                Ok(Some(runs.iter().map(|run| state.map.copies_of(run.file.clone())).collect::<Vec<_>>()))
            })?;
            if let (lock, Some(segments)) = begun {
                break (lock, segments);
            }
        };
        // Decided once, because a node may answer again while this write is under way.
        let skipped: BTreeSet<CopyId> = segments
            .iter()
            .flat_map(|segments| segments.iter().filter(|segment| self.is_better_dropped(segment, segments)))
            .map(|segment| segment.copy)
            .collect();
        let sent: Vec<_> = segments
            .iter()
            .map(|segments| {
                segments.iter().filter(|segment| !skipped.contains(&segment.copy)).collect::<Vec<_>>()
            })
            .collect();
        let encrypted = match &self.key {
            Some(key) => self.encrypt_pages(key, runs, &sent)?,
            None => Vec::new(),
        };
        let mut by_node = NodeBatches::default();
        for segment in &encrypted {
            by_node
                .add(&segment.segment.region, WriteOp { span: span(segment.segment), from: &segment.bytes });
        }
        if self.key.is_none() {
            for (run, sent) in runs.iter().zip(&sent) {
                for segment in sent {
                    let from = &run.ranges[0].from[within(&segment.file, &run.file)];
                    by_node.add(&segment.region, WriteOp { span: span(segment), from });
                }
            }
        }
        let may_give_up = |node: &NodeLinks, outcomes: &[Outcome]| {
            self.is_enough_without(node, &sent, outcomes) || can_move(node)
        };
        let outcomes = by_node.write(&self.session, &may_give_up);
        {
            let mut state = self.state();
            encrypted.iter().for_each(|one| state.map.store_tags(one.segment, &one.tags));
        }
        if let Some(disk) = &self.disk {
            for range in runs.iter().flat_map(|run| run.ranges) {
                self.session.behind.put(disk, range.offset, range.from);
            }
        }
        let is_late = |segment: &&Segment<Arc<LeasedRegion>>| {
            failure(&outcomes, &segment.region).is_some_and(|error| may_arrive_late(error, &segment.region))
        };
        let late: Vec<_> = segments.iter().flatten().filter(is_late).collect();
        // Noted before any of their locations is given back, which waits for operations that began before this one.
        late.iter().for_each(|segment| self.session.leases.note_late(&segment.region, segment.offset));
        let late: BTreeSet<CopyId> = late.into_iter().map(|segment| segment.copy).collect();
        let settle = |(run, segments): (&WriteRun<'_>, &Vec<_>)| {
            self.settle(run.file.clone(), segments, &skipped, &outcomes)
        };
        let settled: Vec<Result<(), Error>> = runs.iter().zip(&segments).map(settle).collect();
        let failed = settled.iter().find_map(|result| result.as_ref().err().cloned());
        let mut state = self.state();
        for (run, settled) in runs.iter().zip(&settled) {
            let is_written = if self.key.is_some() { settled.is_ok() } else { failed.is_none() };
            if !is_written {
                state.map.poison(run.file.clone(), |id| late.contains(&id));
            }
            for range in run.ranges {
                match is_written {
                    // Only this range of the pages is written. The rest of them is as before, or zero.
                    true => state.map.wrote(range.file()),
                    false => state.map.extend(range.file().end),
                }
            }
        }
        drop(state);
        drop(lock);
        failed.map_or(Ok(()), Err)
    }

    /// Reports whether a copy should be dropped without sending it the write: its node did not answer last time, and
    /// another copy or the disk can replace it. Otherwise each write would wait for that node again.
    fn is_better_dropped(
        &self,
        segment: &Segment<Arc<LeasedRegion>>,
        among: &[Segment<Arc<LeasedRegion>>],
    ) -> bool {
        let is_bad = |region: &LeasedRegion| region.node.is_suspect() || region.check_usable().is_err();
        let has_other = among.iter().any(|other| other.file == segment.file && !is_bad(&other.region));
        is_bad(&segment.region) && (has_other || self.disk.is_some())
    }

    /// Reports whether a write has succeeded without a node: the disk has it, or another copy of each extent.
    fn is_enough_without(
        &self,
        node: &NodeLinks,
        sent: &[Vec<&Segment<Arc<LeasedRegion>>>],
        outcomes: &[Outcome],
    ) -> bool {
        let is_written = |segment: &&Segment<Arc<LeasedRegion>>| {
            outcomes.iter().any(|outcome| outcome.is_success_of(&segment.region.node))
        };
        let is_enough = |copies: &[&Segment<Arc<LeasedRegion>>]| {
            let is_there = |segment: &&Segment<Arc<LeasedRegion>>| std::ptr::eq(&*segment.region.node, node);
            !copies.iter().any(is_there) || copies.iter().any(is_written)
        };
        // The copies of an extent follow each other.
        let extents = sent.iter().flat_map(|segments| segments.chunk_by(|one, next| one.file == next.file));
        self.disk.is_some() || extents.into_iter().all(is_enough)
    }

    /// Settles a written range. A copy that missed the write leaves the file if another copy or the disk has the bytes.
    ///
    /// Errors: no copy has all bytes of the range, so the write has failed.
    fn settle(
        &self,
        range: Range<u64>,
        segments: &[Segment<Arc<LeasedRegion>>],
        skipped: &BTreeSet<CopyId>,
        outcomes: &[Outcome],
    ) -> Result<(), Error> {
        let untried = Error::new(ErrorKind::Lost, "its node did not answer");
        let mut written = RangeSet::default();
        let mut missed: Vec<(&Segment<Arc<LeasedRegion>>, &Error)> = Vec::new();
        // Checked and dropped under one lock, so that two writes never drop each other's last copy.
        let mut state = self.state();
        let listed: BTreeSet<CopyId> =
            state.map.copies_of(range.clone()).iter().map(|segment| segment.copy).collect();
        for segment in segments {
            match failure(outcomes, &segment.region) {
                _ if skipped.contains(&segment.copy) => missed.push((segment, &untried)),
                Some(error) => missed.push((segment, error)),
                None if listed.contains(&segment.copy) => written.insert(segment.file.clone()),
                None => {}
            }
        }
        let written_bytes: u64 = written.overlaps(range.clone()).map(|part| part.end - part.start).sum();
        if written_bytes < range.end - range.start {
            let Some(disk) = &self.disk else {
                return Err(missed.first().map_or(untried.clone(), |(_, error)| (*error).clone()));
            };
            drop(state);
            self.session.behind.confirm(disk, range)?;
            state = self.state();
        }
        for (segment, _) in missed.into_iter().filter(|_| !mutant!(MissedCopyKept)) {
            self.drop_copy(&mut state, segment.copy);
        }
        Ok(())
    }

    /// Takes a copy out of the file for good. Its location is given back after all operations under way have ended,
    /// since one of them may be using it.
    fn drop_copy(&self, state: &mut FileState, id: CopyId) {
        let Some(copy) = state.map.drop_copy(id) else { return };
        add(&self.session.counters().dropped_copy_bytes, copy.allocation.bytes.into());
        state.leave(copy);
        self.session.repair.request();
    }

    /// Allocates extents for all bytes before `end`.
    fn grow(&self, end: u64) -> Result<(), Error> {
        let missing = end.saturating_sub(self.state().map.allocated());
        if missing > EXTENT_BYTES_MAX && self.protection() == Protection::None {
            self.check_writable(&self.state().phase)?;
            self.session.leases.make_room(self.group, missing)?;
        }
        loop {
            let (at, bytes) = {
                let state = self.state();
                self.check_writable(&state.phase)?;
                let Some(bytes) = state.map.next_extent_bytes(end) else { return Ok(()) };
                (state.map.allocated(), bytes)
            };
            let allocations = self.allocate_copies(self.group_before(at + u64::from(bytes)), bytes)?;
            let mut state = self.state();
            if state.phase == Phase::Writable && state.map.allocated() == at {
                state.map.push(bytes, allocations);
            } else {
                drop(state);
                self.session.leases.give_back(allocations);
            }
        }
    }

    /// Allocates the next `bytes` bytes of the file in a single region, so that a single node can serve them, and each
    /// copy of them likewise, on hosts other than those with the labels in `beside`. Makes as many copies as possible.
    /// Returns where they begin in the file.
    pub(crate) fn grow_in_one_region(&self, bytes: u64, beside: Vec<Name>) -> Result<u64, Error> {
        self.check_writable(&self.state().phase)?;
        let leases = &self.session.leases;
        let group = self.group_before(self.state().map.allocated() + bytes);
        let mut copies: Vec<Vec<Allocation<Arc<LeasedRegion>>>> = Vec::new();
        let mut apart = beside;
        for _ in 0..self.protection().copies() {
            let patience = if apart.is_empty() { Patience::Full } else { Patience::Brief };
            match leases.allocate_run(group, bytes, &apart, patience) {
                Ok(run) => {
                    apart.extend(run.first().map(|first| first.region.node.info.host_label.clone()));
                    copies.push(run);
                }
                Err(error) if copies.is_empty() => return Err(error),
                // One copy is better than none. Nodes make the second when there is room.
                Err(_) => break,
            }
        }
        let mut state = self.state();
        if state.phase != Phase::Writable {
            drop(state);
            leases.give_back(copies.into_iter().flatten().collect());
            return self.check_writable(&self.state().phase).and(Ok(0));
        }
        let start = state.map.allocated();
        // Runs of the same length consist of extents of the same sizes.
        let mut copies: Vec<_> = copies.into_iter().map(Vec::into_iter).collect();
        loop {
            let extent: Vec<_> = copies.iter_mut().filter_map(Iterator::next).collect();
            let Some(first) = extent.first() else { return Ok(start) };
            state.map.push(first.bytes, extent);
        }
    }

    /// Allocates as many copies of an extent as the protection of the file asks for, or as many as possible.
    fn allocate_copies(&self, group: Group, bytes: u32) -> Result<Vec<Allocation<Arc<LeasedRegion>>>, Error> {
        let session = &*self.session;
        self.spread(bytes.into());
        match self.protection() {
            Protection::None | Protection::Rs { .. } => {
                Ok(vec![session.leases.allocate(group, bytes, &[], self.patience)?])
            }
            Protection::Mirror => {
                let first = session.leases.allocate(group, bytes, &[], self.patience)?;
                let label = first.region.node.info.host_label.clone();
                match session.leases.allocate(group, bytes, &[label], Patience::Brief) {
                    Ok(second) => Ok(vec![first, second]),
                    // One copy is better than none. The repair makes the second when there is room.
                    Err(_) => {
                        session.repair.request();
                        Ok(vec![first])
                    }
                }
            }
            Protection::Local => match session.leases.allocate(group, bytes, &[], Patience::Brief) {
                Ok(allocation) => Ok(vec![allocation]),
                Err(error) if error.kind() == ErrorKind::Closed => Err(error),
                // The disk holds what the pool has no room for.
                Err(_) => {
                    session.repair.request();
                    Ok(Vec::new())
                }
            },
        }
    }

    /// Writes zeros to ranges that were never written, so that all bytes of the file exist.
    pub(crate) fn fill_holes(&self, holes: &[Range<u64>]) -> Result<(), Error> {
        let zeros = vec![0; EXTENT_BYTES_MAX as usize];
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end {
                let count = (hole.end - at).min(EXTENT_BYTES_MAX) as usize;
                self.write_ranges(&[WriteRange { offset: at, from: &zeros[..count] }], &|_| false)?;
                at += count as u64;
            }
        }
        Ok(())
    }
}
