//! Segments: regions of nodes that many small published files share.
//!
//! The idea: a node reports its segments, and which of their ranges are pending: sealed, and not known to belong to a
//! name. A session publishes what is pending for it, and nothing else, so a publication that comes again after its name
//! was dropped is refused, as its ranges are not pending any more. The broker counts what is alive in a segment. One in
//! which nothing is alive or pending is freed as a whole. One that is less than half alive, and to which nothing is
//! added, is emptied like a node that is drained: other copies are made of what is alive in it, and then it is freed.

use super::nodes::reporting;
use super::records::region_key;
use super::segment_seen::SegmentSeen;
use super::{BrokerLeases, NamedFile, Owner, RegionKey};
use crate::settings::Quotas;
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Opcode, Refusal, mutant};
use std::collections::BTreeMap;

/// Bytes to which nodes align ranges. Each counts as if it filled them.
const ALIGNMENT: u64 = WINDOW_PAGE_BYTES;

/// Ranges of a region that do not overlap: the first byte of each, and the one behind it.
pub(super) type Ranges = BTreeMap<u32, u32>;

/// Reports whether a range overlaps one of others.
pub(super) fn overlaps(ranges: &Ranges, from: u32, bytes: u32) -> bool {
    ranges.range(..from.saturating_add(bytes)).next_back().is_some_and(|(_, end)| *end > from)
}

/// Returns the ranges that a file has in the regions that pass a test.
pub(super) fn ranges_of<'p>(
    places: &'p Places,
    is_one: impl Fn(&NamedRegion) -> bool + 'p,
) -> impl Iterator<Item = (&'p NamedRegion, (u32, u32))> {
    let copies = |run: &'p NamedRun| places.copies(run).map(move |copy| (run, copy));
    let copies = places.runs.iter().flat_map(copies).filter(move |(_, (region, _))| is_one(region));
    // Offsets in regions are below 4 GiB.
    copies.map(|(run, (region, offset))| (region, (offset as u32, (offset as u32).saturating_add(run.bytes))))
}

/// Returns the bytes that a run takes in a segment.
pub(super) fn taken_bytes(run: &NamedRun) -> u64 {
    u64::from(run.bytes).next_multiple_of(ALIGNMENT)
}

impl BrokerLeases {
    /// Takes a node's report about its segments, which comes before that about its regions. Returns what the node may
    /// forget or free.
    pub fn segments(&mut self, connection: u64, report: &SegmentReport) -> Result<SegmentRuling, Refusal> {
        let (id, incarnation) = (report.node, report.incarnation);
        let node = reporting(self.nodes.get_mut(&id), connection, id, incarnation)?;
        let region_bytes = node.info.region_bytes;
        let is_sound = |held: &SegmentHeld| {
            let mut ranges = held.pending.iter();
            u64::from(held.end) <= region_bytes
                && ranges.all(|range| u64::from(range.offset) + u64::from(range.bytes) <= held.end.into())
        };
        let pending: usize = report.segments.iter().map(|held| held.pending.len()).sum();
        if pending > PENDING_RANGES_MAX || !report.segments.iter().all(is_sound) {
            return Err(Refusal::new(Code::Malformed, Opcode::Segments as u64));
        }
        let seen: BTreeMap<RegionIndex, SegmentSeen> =
            report.segments.iter().map(|held| (held.region, SegmentSeen::of(held))).collect();
        // Ranges that were let go are forgotten once they are not pending any more.
        for ((place, epoch), ranges) in self.let_go.iter_mut().filter(|((place, _), _)| place.0 == id) {
            let segment = seen.get(&place.2).filter(|segment| segment.epoch == *epoch);
            let segment = segment.filter(|_| place.1 == incarnation);
            let pending: Ranges = segment.map_or_else(Ranges::new, |segment| {
                segment.pending.iter().map(|(from, (bytes, _))| (*from, from + bytes)).collect()
            });
            ranges.retain(|from, end| overlaps(&pending, *from, *end - *from));
        }
        self.let_go.retain(|_, ranges| !ranges.is_empty());
        let before = std::mem::replace(&mut node.segments, seen);
        let (mut settled, mut dropped) = (Vec::new(), Vec::new());
        for held in report.segments.iter() {
            let SegmentHeld { region, epoch, end, .. } = *held;
            let place: RegionKey = (id, incarnation, region);
            let owner = self.owners.get(&place).filter(|owner| owner.epoch == epoch);
            let named = match owner {
                Some(owner) if !held.pending.is_empty() => self.ranges_in(&place, owner),
                _ => Ranges::new(),
            };
            let none = Ranges::new();
            let let_go = self.let_go.get(&(place, epoch)).unwrap_or(&none);
            for range in held.pending.iter() {
                let has_name = overlaps(&named, range.offset, range.bytes);
                let is_let_go = overlaps(let_go, range.offset, range.bytes);
                if has_name || is_let_go || range.owner == RegionOwner::Orphan {
                    settled.push(RangeAt { region, epoch, offset: range.offset });
                }
            }
            let owner = owner.filter(|_| !mutant!(LiveSegmentFreed));
            match owner {
                None if held.pending.is_empty() => dropped.push(SegmentAt { region, epoch, end }),
                None => {}
                Some(owner) => {
                    let live_bytes = owner.live_bytes();
                    let was_sparse = before.get(&region).is_some_and(|before| before.is_sparse(live_bytes));
                    if was_sparse != SegmentSeen::of(held).is_sparse(live_bytes) {
                        self.note_segment(&place);
                    }
                }
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            for RangeAt { region, offset, .. } in &settled {
                let segment = node.segments.get_mut(region);
                if let Some((_, owner)) = segment.and_then(|segment| segment.pending.get_mut(offset)) {
                    *owner = RegionOwner::Orphan;
                }
            }
        }
        let (limited, others) = self.segments_left(id);
        Ok(SegmentRuling {
            term: self.durable.term,
            // Neither list is longer than the report's, which has the same limit.
            settled: List::new(settled).unwrap_or_default(),
            dropped: List::new(dropped).unwrap_or_default(),
            limited,
            others,
        })
    }

    /// Returns how many segments a node may open until its next report: for tenants there, and for any other. Nodes
    /// share what is left of a quota, but each may open one segment, as long as a region is left.
    fn segments_left(&self, id: NodeId) -> (List<TenantSegments, TENANTS_MAX>, u32) {
        let quotas = &self.settings.quotas;
        let Some(node) = self.nodes.get(&id).filter(|_| *quotas != Quotas::default()) else {
            return (List::default(), SEGMENTS_UNLIMITED);
        };
        let part = |left_bytes: u64| {
            let regions = left_bytes / node.info.region_bytes;
            regions.div_ceil(self.taken.nodes.max(1)).min((SEGMENTS_UNLIMITED - 1).into()) as u32
        };
        let limited = node.shares().filter_map(|(tenant, here)| {
            let segments = match quotas.of(tenant) {
                None if quotas.default_bytes.is_none() => return None,
                // The administrator has not the quota of any other tenant.
                None => SEGMENTS_UNLIMITED,
                Some(quota_bytes) => {
                    let elsewhere = self.taken.elsewhere(id, tenant);
                    part(quota_bytes.saturating_sub(elsewhere + here.held + here.promised))
                }
            };
            Some(TenantSegments { tenant: tenant.clone(), segments })
        });
        let others = quotas.default_bytes.map_or(SEGMENTS_UNLIMITED, part);
        // A tenant that is left out has what any other tenant has.
        (List::new(limited.take(TENANTS_MAX).collect()).unwrap_or_default(), others)
    }

    /// Returns the ranges of a segment that published files have.
    fn ranges_in(&self, place: &RegionKey, owner: &Owner) -> Ranges {
        let names = owner.files.keys().filter_map(|file| self.names_of_files.get(file));
        let files = names.filter_map(|name| self.durable.names.get(name));
        files
            .flat_map(|file| ranges_of(&file.places, |region| region_key(region) == *place))
            .map(|(_, range)| range)
            .collect()
    }

    /// Notes that what the files in a segment lack may have changed.
    fn note_segment(&mut self, place: &RegionKey) {
        let files = self.owners.get(place).into_iter().flat_map(|owner| owner.files.keys());
        let names: Vec<_> = files.filter_map(|file| self.names_of_files.get(file).cloned()).collect();
        names.iter().for_each(|name| self.repairs.note_change(name));
    }

    /// Returns the segment that a region is, if the node's last report shows it at the same epoch.
    pub(super) fn segment(&self, region: &NamedRegion) -> Option<&SegmentSeen> {
        let node = self.nodes.get(&region.node).filter(|node| node.info.incarnation == region.incarnation)?;
        node.segments.get(&region.region).filter(|segment| segment.epoch == region.epoch)
    }

    /// Reports whether a region is a segment, or may be one: its node has not shown its regions over its present
    /// connection.
    pub(super) fn may_be_segment(&self, region: &NamedRegion) -> bool {
        let has_shown = self.nodes.get(&region.node).is_some_and(|node| node.inventory.is_some());
        !has_shown || self.segment(region).is_some()
    }

    /// Notes that a file has its ranges of segments, so that nobody else publishes them.
    pub(super) fn take_ranges(&mut self, file: &NamedFile) {
        for (region, (from, end)) in ranges_of(&file.places, |_| true) {
            let node = self.nodes.get_mut(&region.node);
            let node = node.filter(|node| node.info.incarnation == region.incarnation);
            let segment = node.and_then(|node| node.segments.get_mut(&region.region));
            if let Some(segment) = segment.filter(|segment| segment.epoch == region.epoch) {
                segment.take(from, end);
            }
        }
    }

    /// Reports whether a region is a segment that should be emptied.
    pub(super) fn is_sparse_segment(&self, region: &NamedRegion) -> bool {
        self.segment(region).is_some_and(|segment| {
            let owner = self.owners.get(&region_key(region)).filter(|owner| owner.epoch == region.epoch);
            segment.is_sparse(owner.map_or(0, Owner::live_bytes))
        })
    }

    /// Checks that all runs of a file that lie in a segment are pending there for the session that publishes it.
    pub(super) fn check_pending(
        &self,
        session: SessionId,
        places: &Places,
        index: usize,
        segment: &SegmentSeen,
    ) -> Result<(), Refusal> {
        let region = places.regions.get(index);
        let let_go = region.and_then(|region| self.let_go.get(&(region_key(region), region.epoch)));
        for run in places.runs.iter() {
            for copy in run.copies.iter().filter(|copy| copy.region as usize == index) {
                if let_go.is_some_and(|let_go| overlaps(let_go, copy.offset, run.bytes)) {
                    return Err(Refusal::new(Code::StaleEpoch, segment.epoch.0));
                }
                // It may still have been copied when the node reported.
                if !segment.is_pending(session, copy.offset, run.bytes) {
                    return Err(Refusal::new(Code::NotReported, region.map_or(0, |region| region.node.0)));
                }
            }
        }
        Ok(())
    }

    /// Takes a region from a file that does not have it any more.
    pub(super) fn disown_region(&mut self, file: FileId, place: RegionKey, epoch: Epoch) {
        let Some(owner) = self.owners.get_mut(&place).filter(|owner| owner.epoch == epoch) else { return };
        if owner.files.remove(&file).is_none() {
            return;
        }
        if owner.files.is_empty() {
            self.owners.remove(&place);
        } else {
            self.note_segment(&place);
        }
    }
}
