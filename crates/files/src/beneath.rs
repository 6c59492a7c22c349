//! Access to sessions, nodes and the location of file bytes, for crates that have nodes do more than move bytes.
//!
//! The idea: calls of functions and queries send nodes the ids and handles of regions, under deadlines, and keep state
//! with the session. This module is all they see of how files work. A location is valid until somebody writes, moves or
//! frees the bytes. Published files never change, but they may be moved.

use crate::error::{Error, ErrorKind};
use crate::file::{FarFile, Phase};
use crate::plan::{EXTENT_BYTES_MAX, ExtentCopy, ReadPlan, Segment};
use crate::pool::Pool;
use crate::published::Looked;
use crate::queue::Queue;
use farpool_wire::FileId;
use std::ops::Range;
use std::sync::Arc;

pub use crate::feed::{NameChange, NameFeed};
pub use crate::leases::Waits;
pub use crate::node_links::{LeasedRegion, NodeLinks, Repeat, RunningCall};
pub use crate::published::{Became, became};
pub use crate::session::Session;
pub use crate::session_core::BRIEF_MS;
pub use crate::snapshots::{
    ChangedTable, CommitMade, OpenedSnapshot, TableCommit, UnlistedPart, list_snapshots, open_parts,
    open_snapshot,
};
pub use crate::unlisted::Unlisted;

/// Returns the session that a file was opened in.
pub fn session_of(file: &FarFile) -> &Arc<Session> {
    &file.inner.session
}

/// Returns the id of a published file. `None` for any other file.
pub fn id_of(file: &FarFile) -> Option<FileId> {
    match file.inner.state().phase {
        Phase::Published(file) => Some(file),
        _ => None,
    }
}

/// Returns the session of a pool.
pub fn session_of_pool(pool: &Pool) -> &Arc<Session> {
    pool.session()
}

/// Returns a queue of operations on files of a session, by which reads of many files are under way at once.
pub fn queue_of(session: &Arc<Session>) -> Queue {
    Queue::new(Arc::clone(session))
}

/// Deletes a private file of this session. Returns true if there was one.
pub fn delete_private(pool: &Pool, name: &str) -> bool {
    pool.delete_private(name)
}

/// Looks up where a published file is now, after its bytes were not found: they may have moved.
///
/// Errors: `gone`, if the file has not moved.
pub fn reopen(file: &FarFile, gone: &Error) -> Result<(), Error> {
    file.inner.reopen(gone)
}

/// Looks up where a published file is now, after nodes were silent. Returns true if nodes have made copies again that
/// the file did not know. Waits for the broker as `waits` says.
pub fn look_for_copies(file: &FarFile, waits: Waits) -> bool {
    file.inner.look_for_copies(waits) == Looked::Found
}

/// Consecutive bytes of a file that lie together in one region.
#[derive(Clone)]
pub struct Stretch {
    /// Range of the file.
    pub file: Range<u64>,
    /// Region that has the bytes. `None` if it is lost or its node is silent, and the bytes are computed from parity.
    pub region: Option<Arc<LeasedRegion>>,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// True if the bytes can be had without the region's node: another one has a copy, or they can be computed.
    pub has_others: bool,
}

/// Returns where all bytes of a range lie, in order. `None` if the file can still be written. Nodes named in `without`
/// count as lost.
///
/// Errors: [`ErrorKind::Lost`] if some bytes have no copy left, and there is no parity.
pub fn stretches(
    file: &FarFile,
    range: &Range<u64>,
    without: &[String],
) -> Result<Option<Vec<Stretch>>, Error> {
    let is_there = |region: &LeasedRegion| {
        region.check_usable().is_ok() && without.iter().all(|name| **name != *region.node.info.name)
    };
    let state = file.inner.state();
    if !matches!(state.phase, Phase::Published(_) | Phase::Sealed(_)) {
        return Ok(None);
    }
    let has_parity = state.stripes.is_some();
    let mut stretches: Vec<Stretch> = Vec::new();
    for (extent, copies) in state.map.extents() {
        let (start, end) = (extent.start.max(range.start), extent.end.min(range.end));
        if start >= end {
            continue;
        }
        // A copy that goes on in the region of the bytes before needs no mapping of its own, and one on the same node
        // no request to another. Otherwise a node of this host is best, and then one that runs few calls.
        let last = stretches.last().and_then(|last| last.region.clone());
        let is_good = |region: &LeasedRegion| is_there(region) && !region.node.is_suspect();
        let rank = |copy: &&ExtentCopy<Arc<LeasedRegion>>| {
            let region = &copy.allocation.region;
            let is_here = last.as_ref().is_some_and(|last| Arc::ptr_eq(last, region));
            let is_near = last.as_ref().is_some_and(|last| Arc::ptr_eq(&last.node, &region.node));
            let is_far = !file.inner.session.is_here(&region.node);
            let is_bad = (!is_there(region), region.node.is_suspect());
            (is_bad, !is_here, !is_near, is_far, region.node.running())
        };
        let found = copies.iter().min_by_key(rank).map(|copy| &copy.allocation);
        let found = found.filter(|found| !has_parity || is_good(&found.region));
        if found.is_none() && !has_parity {
            return Err(Error::new(ErrorKind::Lost, format!("bytes from {start} on have no copy left")));
        }
        let region = found.map(|found| Arc::clone(&found.region));
        let offset = found.map_or(0, |found| found.offset + (start - extent.start));
        let is_other = |copy: &ExtentCopy<Arc<LeasedRegion>>| {
            let other = &copy.allocation.region;
            is_good(other) && region.as_ref().is_some_and(|region| !Arc::ptr_eq(&region.node, &other.node))
        };
        let has_others = has_parity || copies.iter().any(is_other);
        match stretches.last_mut() {
            // Adjacent bytes of one region become one entry, which needs only one mapping.
            Some(last)
                if last
                    .region
                    .as_ref()
                    .zip(region.as_ref())
                    .is_some_and(|(one, other)| Arc::ptr_eq(one, other))
                    && last.file.end == start
                    && last.offset + (last.file.end - last.file.start) == offset =>
            {
                last.file.end = end;
                last.has_others &= has_others;
            }
            _ => stretches.push(Stretch { file: start..end, region, offset, has_others }),
        }
    }
    Ok(Some(stretches))
}

/// Range that one region holds as a whole.
pub struct InOneRegion {
    /// The region.
    pub region: Arc<LeasedRegion>,
    /// Offset of the range in the region.
    pub offset: u64,
    /// True if another node has such a region, too, or if the range can be computed from parity.
    pub has_others: bool,
}

/// Returns a region from which the whole range can be read now. `None` if there is none. A node that did not answer
/// lately is used only if no other has the bytes, nor parity of them, as in a read, and one in `without` not at all.
/// Copies that are as good take turns.
pub fn readable_in_one_region(
    file: &FarFile,
    range: Range<u64>,
    without: &[Arc<NodeLinks>],
) -> Option<InOneRegion> {
    let turn = (range.start / EXTENT_BYTES_MAX) as usize;
    let mut copies = copies_in_one_region(file, range);
    let is_left_out = |node: &Arc<NodeLinks>| without.iter().any(|other| Arc::ptr_eq(node, other));
    let has_parity = file.inner.state().stripes.is_some();
    let is_good = |node: &Arc<NodeLinks>| !(has_parity && node.is_suspect() || is_left_out(node));
    copies.retain(|(region, _)| region.check_usable().is_ok() && is_good(&region.node));
    let count = copies.len().max(1);
    copies.rotate_left(turn % count);
    let (region, offset) = copies.iter().min_by_key(|(region, _)| region.node.is_suspect())?;
    let is_other = |(other, _): &(Arc<LeasedRegion>, u64)| !Arc::ptr_eq(&other.node, &region.node);
    let has_others = copies.iter().any(is_other) || has_parity;
    Some(InOneRegion { region: Arc::clone(region), offset: *offset, has_others })
}

/// Returns the region that has the whole range, and the offset there, even if it cannot be read now. `None` if the
/// range is not contiguous in one region.
pub fn in_one_region(file: &FarFile, range: Range<u64>) -> Option<(Arc<LeasedRegion>, u64)> {
    copies_in_one_region(file, range).into_iter().next()
}

/// Returns each region that has a copy of the whole range, contiguously, and the offset there. None if some of the
/// range cannot be read.
fn copies_in_one_region(file: &FarFile, range: Range<u64>) -> Vec<(Arc<LeasedRegion>, u64)> {
    let state = file.inner.state();
    match state.map.plan_read(range.clone(), |_| Some(0)) {
        ReadPlan::Fetch { segments, bare } if bare.is_empty() && !segments.is_empty() => {}
        _ => return Vec::new(),
    }
    let segments = state.map.copies_of(range.clone());
    drop(state);
    let reaches_end = |first: &Segment<Arc<LeasedRegion>>| {
        let is_next = |end: u64, segment: &Segment<Arc<LeasedRegion>>| {
            segment.file.start == end
                && is_same(&segment.region, &first.region)
                && segment.offset == first.offset + (end - first.file.start)
        };
        // The copies of an extent come before those of the next one.
        let end = segments.iter().fold(first.file.end, |end, segment| match is_next(end, segment) {
            true => segment.file.end,
            false => end,
        });
        end >= range.end
    };
    let begins = |segment: &&Segment<Arc<LeasedRegion>>| segment.file.start == range.start;
    let firsts = segments.iter().filter(begins).filter(|first| reaches_end(first));
    firsts.map(|first| (Arc::clone(&first.region), first.offset)).collect()
}

fn is_same(one: &LeasedRegion, other: &LeasedRegion) -> bool {
    (one.node.info.incarnation, one.region) == (other.node.info.incarnation, other.region)
}
