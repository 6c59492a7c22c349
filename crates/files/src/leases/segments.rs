//! Ranges of leased regions that nodes copy into segments, regions which many small published files share.

use super::{Leases, NodeRequest, Waits};
use crate::broker::answer_of;
use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::plan::{Allocation, Group};
use farpool_wire::control::*;
use farpool_wire::limits::SEALED_RANGES_MAX;
use farpool_wire::{Epoch, FileClass, Incarnation, List, NodeId, RegionIndex, Reply, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Place = Allocation<Arc<LeasedRegion>>;

impl Leases {
    /// Reports whether a node has said that ranges cannot be copied into segments, because it or the broker is of an
    /// earlier version.
    pub(crate) fn has_no_segments(&self) -> bool {
        self.has_no_segments.load(Ordering::Relaxed)
    }

    /// Returns the numbers of the leased regions that files which will be published share.
    pub(crate) fn shared_by_files(&self) -> BTreeSet<u64> {
        let held = self.held.lock();
        let shared = Group::Class(FileClass::Pinned);
        held.allocator.regions().filter(|(.., group)| *group == shared).map(|(id, ..)| id).collect()
    }

    /// Has nodes copy ranges of leased regions into segments. Calls `copied` with each range, its copy, and the CRC32C
    /// of its bytes. After an error it can be called again with the other ranges. An error of one node does not keep
    /// those at the others from being copied.
    pub(crate) fn seal_ranges(
        &self,
        ranges: &[Place],
        waits: Waits,
        mut copied: impl FnMut(&Place, Place, u32),
    ) -> Result<(), Error> {
        let mut by_node: BTreeMap<(NodeId, Incarnation), Vec<&Place>> = BTreeMap::new();
        let mut failed = None;
        for range in ranges {
            if let Err(error) = self.check(&range.region) {
                failed.get_or_insert(error);
                continue;
            }
            let info = &range.region.node.info;
            by_node.entry((info.node, info.incarnation)).or_default().push(range);
        }
        let (mut steps, mut requests) = (Vec::new(), Vec::new());
        for ranges in by_node.values().flat_map(|ranges| ranges.chunks(SEALED_RANGES_MAX)) {
            let Some(first) = ranges.first() else { continue };
            let bytes = ranges.iter().map(|range| u64::from(range.bytes)).sum();
            let node = Arc::clone(&first.region.node);
            requests.push(NodeRequest { node, request: self.request_to_copy(ranges, Vec::new()), bytes });
            steps.push(ranges);
        }
        for (ranges, answer) in steps.into_iter().zip(self.ask_all(&requests, waits)) {
            match answer.and_then(|reply| copies_of(ranges, reply)) {
                Ok(copies) => ranges
                    .iter()
                    .zip(copies)
                    .for_each(|(range, (copy, checksum))| copied(range, copy, checksum)),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        match failed {
            Some(error)
                if error.refusal().is_some_and(|refusal| refusal.code == farpool_wire::Code::Unsupported) =>
            {
                self.has_no_segments.store(true, Ordering::Relaxed);
                Err(error)
            }
            other => other.map_or(Ok(()), Err),
        }
    }

    /// Notes that what the session has sealed was published. The next renewal tells its nodes that it is not the
    /// session's any more: if the name is dropped at once, another broker may not know that there was one.
    pub(crate) fn let_published_go(&self, sealed: Vec<Place>) {
        let (copies, sealed): (Vec<_>, Vec<_>) =
            sealed.into_iter().partition(|place| place.region.is_segment());
        self.give_up_copies(copies);
        let regions: BTreeMap<u64, Arc<LeasedRegion>> =
            sealed.into_iter().map(|place| (place.region.id, place.region)).collect();
        self.held.lock().unsent_releases.extend(regions.into_values());
    }

    /// Notes that copies of ranges will not be published. Their nodes are told with the next renewal.
    pub(crate) fn give_up_copies(&self, copies: impl IntoIterator<Item = Place>) {
        self.given_up.lock().extend(copies);
    }

    /// Tells nodes which copies of ranges will not be published. A node that does not answer keeps its copies until
    /// the session ends.
    pub(crate) fn send_given_up(&self) {
        let mut by_node: BTreeMap<(NodeId, Incarnation), (Arc<NodeLinks>, Vec<RangeAt>)> = BTreeMap::new();
        for Allocation { region, offset, .. } in std::mem::take(&mut *self.given_up.lock()) {
            let info = &region.node.info;
            let of_node = by_node.entry((info.node, info.incarnation));
            let (_, places) = of_node.or_insert_with(|| (Arc::clone(&region.node), Vec::new()));
            places.push(RangeAt { region: region.region, epoch: region.epoch, offset: offset as u32 });
        }
        let mut requests = Vec::new();
        for (node, places) in by_node.into_values().filter(|(node, _)| !node.is_suspect()) {
            for places in places.chunks(SEALED_RANGES_MAX) {
                let (node, request) = (Arc::clone(&node), self.request_to_copy(&[], places.to_vec()));
                requests.push(NodeRequest { node, request, bytes: 0 });
            }
        }
        let _ = self.ask_all(&requests, Waits::WhileItIsThere);
    }

    fn request_to_copy(&self, ranges: &[&Place], given_up: Vec<RangeAt>) -> Request {
        let leased = |range: &&Place| LeasedRange {
            region: range.region.region,
            epoch: range.region.epoch,
            // Offsets in regions are below 4 GiB.
            offset: range.offset as u32,
            bytes: range.bytes,
        };
        Request::SealRanges(SealRanges {
            session: self.proof.session,
            secret: self.proof.secret,
            number: self.sealings.fetch_add(1, Ordering::Relaxed),
            // There are no more than one request may have.
            ranges: List::new(ranges.iter().map(leased).collect()).unwrap_or_default(),
            given_up: List::new(given_up).unwrap_or_default(),
        })
    }
}

/// Returns the copies of ranges that a node has made, and the CRC32C of their bytes.
fn copies_of(ranges: &[&Place], reply: Reply) -> Result<Vec<(Place, u32)>, Error> {
    let sealed = answer_of!(reply, SealRanges)?;
    if sealed.ranges.len() != ranges.len() {
        let message = "a node copied a different number of ranges than it was asked to";
        return Err(Error::new(ErrorKind::Refused, message));
    }
    let mut segments: BTreeMap<(RegionIndex, Epoch), Arc<LeasedRegion>> = BTreeMap::new();
    let copy = |(range, sealed): (&&Place, &SealedRange)| {
        let SealedRange { region, epoch, handle, offset, checksum } = *sealed;
        let segment = segments.entry((region, epoch)).or_insert_with(|| {
            Arc::new(LeasedRegion {
                id: LeasedRegion::NO_ID,
                node: Arc::clone(&range.region.node),
                region,
                epoch,
                handle,
                is_leased: false,
                is_taken: AtomicBool::new(false),
            })
        });
        let copy = Allocation { region: Arc::clone(segment), offset: offset.into(), bytes: range.bytes };
        (copy, checksum)
    };
    Ok(ranges.iter().zip(sealed.ranges.iter()).map(copy).collect())
}
