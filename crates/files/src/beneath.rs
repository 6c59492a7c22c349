//! Access to sessions, nodes and the location of file bytes, for crates that have nodes do more than move bytes.
//!
//! The idea: calls of functions and queries send nodes the ids and handles of regions, under deadlines, and keep state
//! with the session. This module is all they see of how files work. A location is valid until somebody writes, moves or
//! frees the bytes. Published files never change, but they may be moved.

use crate::error::{Error, ErrorKind};
use crate::file::{FarFile, Phase};
use crate::plan::{ReadPlan, Segment};
use crate::pool::Pool;
use std::ops::Range;
use std::sync::Arc;

pub use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
pub use crate::published::{Became, became};
pub use crate::session::Session;
pub use crate::unlisted::Unlisted;

/// Returns the session that a file was opened in.
pub fn session_of(file: &FarFile) -> &Arc<Session> {
    &file.inner.session
}

/// Returns the session of a pool.
pub fn session_of_pool(pool: &Pool) -> &Arc<Session> {
    pool.session()
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

/// Consecutive bytes of a file that lie together in one region.
#[derive(Clone)]
pub struct Stretch {
    /// Range of the file.
    pub file: Range<u64>,
    /// Region that has the bytes.
    pub region: Arc<LeasedRegion>,
    /// Offset of the first byte in the region.
    pub offset: u64,
}

/// Returns where all bytes of a range lie, in order. `None` if the file can still be written.
///
/// Errors: [`ErrorKind::Lost`] if some bytes have no copy left.
pub fn stretches(file: &FarFile, range: &Range<u64>) -> Result<Option<Vec<Stretch>>, Error> {
    let state = file.inner.state();
    if !matches!(state.phase, Phase::Published(_) | Phase::Sealed(_)) {
        return Ok(None);
    }
    let mut stretches: Vec<Stretch> = Vec::new();
    for (extent, copies) in state.map.extents() {
        let (start, end) = (extent.start.max(range.start), extent.end.min(range.end));
        if start >= end {
            continue;
        }
        let Some(copy) = copies.first() else {
            return Err(Error::new(ErrorKind::Lost, format!("bytes from {start} on have no copy left")));
        };
        let (region, offset) =
            (Arc::clone(&copy.allocation.region), copy.allocation.offset + (start - extent.start));
        match stretches.last_mut() {
            // Adjacent bytes of one region become one entry, which needs only one mapping.
            Some(last)
                if Arc::ptr_eq(&last.region, &region)
                    && last.file.end == start
                    && last.offset + (last.file.end - last.file.start) == offset =>
            {
                last.file.end = end;
            }
            _ => stretches.push(Stretch { file: start..end, region, offset }),
        }
    }
    Ok(Some(stretches))
}

/// Returns a region from which the whole range can be read now, and the offset there. `None` if there is none. A node
/// that did not answer lately is used only if no other has the bytes, as in a read.
pub fn readable_in_one_region(file: &FarFile, range: Range<u64>) -> Option<(Arc<LeasedRegion>, u64)> {
    let start = range.start;
    let rank = |region: &Arc<LeasedRegion>| {
        region.check_usable().is_ok().then(|| u32::from(region.node.is_suspect()))
    };
    let plan = file.inner.state().map.plan_read(range, rank);
    let ReadPlan::Fetch { segments, bare } = plan else { return None };
    let first = segments.first().filter(|_| bare.is_empty())?;
    let at = first.offset.checked_sub(first.file.start - start)?;
    let is_next = |segment: &Segment<Arc<LeasedRegion>>| {
        Arc::ptr_eq(&segment.region, &first.region) && segment.offset == at + (segment.file.start - start)
    };
    segments.iter().all(is_next).then(|| (Arc::clone(&first.region), at))
}

/// Returns the region that has the whole range, and the offset there, even if it cannot be read now. `None` if the
/// range is not contiguous in one region.
pub fn in_one_region(file: &FarFile, range: Range<u64>) -> Option<(Arc<LeasedRegion>, u64)> {
    let start = range.start;
    let segments = file.inner.state().map.copies_of(range);
    let first = segments.first()?;
    let is_next = |segment: &Segment<Arc<LeasedRegion>>| {
        segment.region.node.info.node == first.region.node.info.node
            && segment.region.region == first.region.region
            && segment.offset == first.offset + (segment.file.start - start)
    };
    segments.iter().all(is_next).then(|| (Arc::clone(&first.region), first.offset))
}
