//! The short way through shared memory: what lies mapped in this process is read and written without a plan, and
//! read without a lock.
//!
//! The idea: a list of where every readable byte of a file is mapped, made now and then from the map and good as
//! long as the map keeps its layout. A reader looks at the layout's number, copies, and looks again, as one reads
//! under a sequence lock: whatever moved or freed the bytes meanwhile has changed the number before anybody could
//! put them to other uses. That the region is still ours, the fence word says, before and after each piece
//! (`MappedRegion`). Whoever finds anything unusual goes the long way, which knows what to do about it.
//!
//! Never here: the last word on a failure, a request to a node, a byte of a sealed or mirrored file written.
//!
//! Invariants: I3 and I7, as in `read` and `write`.

use crate::file::{FileInner, Flight, ReadRange, WriteRange, hull};
use crate::mapped_runs::{List, Run, mapped};
use crate::node_links::LeasedRegion;
use crate::options::Protection;
use crate::stats::add;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The bytes of `part` in a buffer for the file from `start` on.
fn slice_of(part: &Range<u64>, start: u64) -> Range<usize> {
    (part.start - start) as usize..(part.end - start) as usize
}

impl FileInner {
    /// Reads, if the short way leads there. Otherwise the buffers hold anything.
    pub(crate) fn read_direct(&self, ranges: &mut [ReadRange<'_>]) -> bool {
        let Some(list) = self.direct.list.try_read() else { return false };
        if list.runs.is_empty() || list.layout != self.layout() || self.session.check_open().is_err() {
            return false;
        }
        let now = self.session.host().now();
        let mut bytes = 0;
        for range in &mut *ranges {
            let Some(end) = range.offset.checked_add(range.into.len() as u64) else { return false };
            for part in list.parts(range.offset..end) {
                let Some((run, part)) = part.filter(|(run, _)| run.region.is_ours(now)) else { return false };
                let into = &mut range.into[slice_of(&part, range.offset)];
                let span = run.span(run.offset + (part.start - run.file.start), into.len() as u32);
                if run.memory.read(&span, into).is_err() {
                    return false;
                }
            }
            bytes += range.into.len() as u64;
        }
        // The copies must not sink below the second look.
        fence(Ordering::SeqCst);
        if list.layout != self.layout() {
            return false;
        }
        let counters = self.session.counters();
        add(&counters.read_ops, ranges.len() as u64);
        add(&counters.bytes_read, bytes);
        true
    }

    /// Writes where there is one copy and the short way leads to it. Otherwise perhaps part of it, which is to be
    /// written anew.
    pub(crate) fn write_direct(&self, ranges: &[WriteRange<'_>]) -> bool {
        if self.protection != Protection::None {
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
            of(range).is_some_and(|range| list.parts(range).all(|part| part.is_some_and(may_write)))
        };
        if !ranges.iter().all(leads_there) {
            return false;
        }
        let hull = hull(ranges.iter().map(|range| (range.offset, range.from.len())));
        let Some(id) = self.state().try_write(&hull, list.layout) else { return false };
        let _flight = Flight::of(self, id);
        let mut bytes = 0;
        for range in ranges {
            let end = range.offset + range.from.len() as u64;
            for (run, part) in list.parts(range.offset..end).flatten() {
                let from = &range.from[slice_of(&part, range.offset)];
                let span = run.span(run.offset + (part.start - run.file.start), from.len() as u32);
                if run.memory.write(&span, from).is_err() {
                    // Nobody reads or publishes what is half written; the long way makes it good, if it can.
                    let mut state = self.state();
                    ranges.iter().filter_map(of).for_each(|range| state.map.poison(range, |_| false));
                    return false;
                }
            }
            bytes += range.from.len() as u64;
        }
        let counters = self.session.counters();
        add(&counters.write_ops, ranges.len() as u64);
        add(&counters.bytes_written, bytes);
        true
    }

    /// Lets go of memory that the file does not lie in any more.
    pub(crate) fn forget_direct(&self) {
        if let Some(mut list) = self.direct.list.try_write()
            && (list.layout != self.layout()
                || list.runs.iter().any(|run| run.region.check_usable().is_err()))
        {
            *list = List::default();
        }
    }

    /// A read went the long way. When so many have that a new list is worth making, makes one.
    pub(crate) fn read_otherwise(&self) {
        if self.key.is_some() || !self.session.nodes.has_shared() {
            return;
        }
        let misses = self.direct.misses.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(mut list) = self.direct.list.try_write() else { return };
        // So that making lists costs no more than reading does, however large the file.
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
