//! Mapped reads and mapped writes: the fast path for bytes that this process has mapped. It needs no plan, and reads
//! need no lock.
//!
//! The idea: think of a timetable with an edition number. A traveller notes the number, walks to the platform, and
//! looks at the number again. If it is the same, it was the right platform. Here the timetable is a list of where each
//! readable byte of the file is mapped, made from the file's map. The edition is the layout number of the map. A reader
//! looks at the number, copies, and looks again, as with a sequence lock. Whatever moves or frees bytes changes the
//! number before these bytes can be reused.
//!
//! - Usual case: the number is the same. The read has cost one copy.
//! - Bad case: the number changed, or the fence word shows that the region is not leased any more (`MappedRegion`
//!   checks it before and after each copy). The fast path reports failure without a reason. The slow path (`read`,
//!   `write`) plans under the file's lock and handles the error.
//! - After enough reads took the slow path, the next of them makes a new list.
//!
//! Reads do not take the file's lock instead, because then readers on different threads would wait for each other.
//!
//! Never here: an error returned to the caller, a request to a node, a write to an encrypted or mirrored file.
//!
//! Invariants: I3 (a read returns bytes that this file wrote, or an error) and I7 (from a copy that has all writes), as
//! in `read` and `write`.

use crate::file::{FileInner, RangeLock, ReadRange, WriteRange, hull};
use crate::mapped_runs::{List, Run, mapped};
use crate::node_links::LeasedRegion;
use crate::options::Protection;
use crate::stats::add;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Returns where `part` lies in a buffer that begins at the byte `start` of the file.
fn slice_of(part: &Range<u64>, start: u64) -> Range<usize> {
    (part.start - start) as usize..(part.end - start) as usize
}

impl FileInner {
    /// Reads the ranges by the fast path. Returns false if that is not possible; the buffers then hold arbitrary bytes.
    pub(crate) fn read_mapped(&self, ranges: &mut [ReadRange<'_>]) -> bool {
        let Some(list) = self.direct.list.try_read() else { return false };
        if list.runs.is_empty() || list.layout != self.layout() || self.session.check_open().is_err() {
            return false;
        }
        let now = self.session.host().now();
        let mut bytes = 0;
        for range in &mut *ranges {
            let Some(end) = range.offset.checked_add(range.into.len() as u64) else { return false };
            for part in list.runs_in(range.offset..end) {
                let Some((run, part)) = part.filter(|(run, _)| run.region.is_ours(now)) else { return false };
                let into = &mut range.into[slice_of(&part, range.offset)];
                let span = run.span(run.offset + (part.start - run.file.start), into.len() as u32);
                if run.memory.read(&span, into).is_err() {
                    return false;
                }
            }
            bytes += range.into.len() as u64;
        }
        // Keeps the copies above from being reordered after the second look at the layout.
        fence(Ordering::SeqCst);
        if list.layout != self.layout() {
            return false;
        }
        let counters = self.session.counters();
        counters.count_read(ranges.len(), bytes);
        add(&counters.mapped_read_ops, ranges.len() as u64);
        add(&counters.mapped_bytes_read, bytes);
        true
    }

    /// Writes the ranges by the fast path, if each has one copy and that is mapped. Returns false if that is not
    /// possible; some bytes may have been written then, and the caller must write all of them again.
    pub(crate) fn write_mapped(&self, ranges: &[WriteRange<'_>]) -> bool {
        if self.protection() != Protection::None {
            return false;
        }
        let Some(list) = self.direct.list.try_read() else { return false };
        if list.runs.is_empty() || self.session.check_open().is_err() {
            return false;
        }
        let now = self.session.host().now();
        let of =
            |range: &WriteRange<'_>| Some(range.offset..range.offset.checked_add(range.from.len() as u64)?);
        let leads_there = |range: &WriteRange<'_>| {
            let may_write = |(run, _): (&Run, _)| run.is_only && run.region.is_ours(now);
            of(range).is_some_and(|range| list.runs_in(range).all(|part| part.is_some_and(may_write)))
        };
        if !ranges.iter().all(leads_there) {
            return false;
        }
        let hull = hull(ranges.iter().map(|range| (range.offset, range.from.len())));
        let Some(id) = self.state().try_write(&hull, list.layout) else { return false };
        let _lock = RangeLock::of(self, id);
        let mut bytes = 0;
        for range in ranges {
            let end = range.offset + range.from.len() as u64;
            for (run, part) in list.runs_in(range.offset..end).flatten() {
                let from = &range.from[slice_of(&part, range.offset)];
                let span = run.span(run.offset + (part.start - run.file.start), from.len() as u32);
                if run.memory.write(&span, from).is_err() {
                    // The ranges may be half written, so they must not be read or published. The slow path writes them
                    // again.
                    let mut state = self.state();
                    ranges.iter().filter_map(of).for_each(|range| state.map.poison(range, |_| false));
                    return false;
                }
            }
            bytes += range.from.len() as u64;
        }
        let counters = self.session.counters();
        counters.count_write(self.class, ranges.len(), bytes);
        add(&counters.mapped_write_ops, ranges.len() as u64);
        add(&counters.mapped_bytes_written, bytes);
        true
    }

    /// Drops mappings of memory that does not hold the file any more.
    pub(crate) fn forget_mapped(&self) {
        if let Some(mut list) = self.direct.list.try_write()
            && (list.layout != self.layout()
                || list.runs.iter().any(|run| run.region.check_usable().is_err()))
        {
            *list = List::default();
        }
    }

    /// Counts a read that took the slow path. Makes a new list once enough reads did.
    pub(crate) fn refresh_mapped_runs(&self) {
        if self.key.is_some() || !self.session.nodes.has_shared() {
            return;
        }
        let misses = self.direct.misses.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(mut list) = self.direct.list.try_write() else { return };
        // A new list is made only after one slow read for each 16 runs that it will look at. Making lists then costs no
        // more than those reads, whatever the size of the file.
        if misses <= list.looked_at / 16 {
            return;
        }
        let state = self.state();
        let layout = state.map.layout();
        let rank = |region: &Arc<LeasedRegion>| {
            let is_near = region.node.is_shared() && region.check_usable().is_ok();
            is_near.then_some(u32::from(region.node.is_suspect()))
        };
        let readable = state.map.readable(rank);
        drop(state);
        let looked_at = readable.len();
        *list = List { layout, looked_at, runs: readable.into_iter().filter_map(mapped).collect() };
        self.direct.misses.store(0, Ordering::Relaxed);
    }
}
