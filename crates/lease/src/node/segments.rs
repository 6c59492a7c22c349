//! Segments: regions that the node fills with ranges of many small published files of one tenant.
//!
//! The idea: a published file of some KiB should not take a region. The node copies what a session wants to publish
//! into a segment, a region that only the node writes and every holder of its read handle reads. Bytes are added behind
//! those that are there, and none that was added ever changes, so readers see what they would see in a region of their
//! own: the epoch of the segment stays, and a read is admitted or refused as in any region. Places are not used again.
//! When no name and no session needs anything in a segment, it goes as a whole, like any region.
//!
//! A range is *pending* from its copying until the broker has said what became of it. Segments with pending ranges are
//! not freed.
//!
//! Invariants: those of [`NodeLeases`]. The writing handle of a segment never leaves the node.

use super::{Action, NodeLeases, Session, State};
use farpool_wire::control::*;
use farpool_wire::limits::*;
use farpool_wire::{
    Code, Epoch, FileClass, Handle, List, Name, Opcode, Refusal, RegionIndex, SessionId, mutant,
};
use std::collections::BTreeMap;

/// Bytes to which a range is aligned as it was where it is copied from: functions see whole pages of a file.
const ALIGNMENT: u32 = WINDOW_PAGE_BYTES as u32;
/// Share of a region that a range may take, at most. What does not fit into a segment is left free behind it.
pub const RANGE_SHARE: u64 = 4;
/// Requests of a session whose answers are remembered, for the case that one was lost.
const REMEMBERED_MAX: usize = 16;

/// Region that is filled with ranges of many files.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Right to write, of the node alone.
    own: Handle,
    /// Right to read.
    handle: Handle,
    /// First byte that nothing was copied to.
    end: u32,
    is_open: bool,
    /// Ranges whose fate is not known, by their first bytes.
    pending: BTreeMap<u32, Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    bytes: u32,
    owner: PendingOwner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingOwner {
    /// It is being copied. Nobody may publish it yet.
    Filling,
    /// Session that may publish it. Session 0 is the node itself.
    Session(SessionId),
    /// Nobody.
    Orphan,
}

/// Who has a segment opened. Copies that the node makes are not limited by quotas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opener {
    Session,
    Node,
}

/// Place in a segment that was set aside for a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Region and epoch of the segment.
    pub at: RegionAt,
    /// Right to write there.
    pub own: Handle,
    /// First byte.
    pub offset: u32,
    /// Number of bytes.
    pub bytes: u32,
}

impl NodeLeases {
    /// Reports whether ranges may be copied into segments: whether the broker knows them.
    pub fn has_segments(&self) -> bool {
        self.has_segments
    }

    /// Notes that the broker is of an earlier version, which knows no segments.
    pub fn set_no_segments(&mut self) {
        self.has_segments = false;
    }

    /// Returns the answer to a request to copy ranges into segments that was carried out before.
    ///
    /// Errors: the session does not prove itself.
    pub fn ranges_sealed_before(
        &mut self,
        asker: Option<&Name>,
        seal: &SealRanges,
    ) -> Result<Option<RangesSealed>, Refusal> {
        let session = self.session_of(asker, seal.session, seal.secret)?;
        Ok(session
            .ranges_sealed
            .iter()
            .find(|(number, _)| *number == seal.number)
            .map(|(_, sealed)| sealed.clone()))
    }

    /// Sets places in segments of the session's tenant aside for ranges that are to be copied there, all or none. Opens
    /// new segments as needed: the caller carries the actions out before it copies, then calls [`Self::end_filling`] or
    /// [`Self::abandon_filling`]. Notes which copies the session gives up.
    pub fn begin_filling(
        &mut self,
        asker: Option<&Name>,
        seal: &SealRanges,
        region_bytes: u64,
        handles: impl FnMut() -> Handle,
        actions: &mut Vec<Action>,
    ) -> Result<Vec<Reserved>, Refusal> {
        let tenant = self.session_of(asker, seal.session, seal.secret)?.tenant.clone();
        for RangeAt { region, epoch, offset } in seal.given_up.iter() {
            let at = RegionAt { region: *region, epoch: *epoch };
            let own = PendingOwner::Session(seal.session);
            if let Some(pending) = self.pending_at(&at, *offset).filter(|pending| pending.owner == own) {
                pending.owner = PendingOwner::Orphan;
            }
        }
        for range in seal.ranges.iter() {
            self.check_own(seal.session, range)?;
            let end = u64::from(range.offset) + u64::from(range.bytes);
            if range.bytes == 0 || u64::from(range.bytes) > region_bytes / RANGE_SHARE || end > region_bytes {
                return Err(Refusal::new(Code::OutOfBounds, region_bytes / RANGE_SHARE));
            }
        }
        let wanted: Vec<(u32, u32)> = seal.ranges.iter().map(|range| (range.offset, range.bytes)).collect();
        self.reserve(&tenant, &wanted, Opener::Session, region_bytes, handles, actions)
    }

    /// Sets a place aside for copies that the node makes itself, of a tenant's file. Ends as [`Self::begin_filling`].
    pub fn begin_filling_copies(
        &mut self,
        tenant: &Name,
        bytes: u32,
        region_bytes: u64,
        handles: impl FnMut() -> Handle,
        actions: &mut Vec<Action>,
    ) -> Result<Reserved, Refusal> {
        let reserved = self.reserve(tenant, &[(0, bytes)], Opener::Node, region_bytes, handles, actions)?;
        reserved.into_iter().next().ok_or(Refusal::new(Code::Exhausted, 0))
    }

    fn check_own(&self, session: SessionId, range: &LeasedRange) -> Result<(), Refusal> {
        let entry = self.entry(range.region)?;
        match entry.state {
            State::Leased(holder) if holder == session && entry.epoch == range.epoch => Ok(()),
            _ => Err(Refusal::new(Code::StaleEpoch, entry.epoch.0)),
        }
    }

    fn reserve(
        &mut self,
        name: &Name,
        wanted: &[(u32, u32)],
        opener: Opener,
        region_bytes: u64,
        mut handles: impl FnMut() -> Handle,
        actions: &mut Vec<Action>,
    ) -> Result<Vec<Reserved>, Refusal> {
        if !self.has_segments {
            return Err(Refusal::new(Code::Unsupported, Opcode::SealRanges as u64));
        }
        if self.is_draining() {
            return Err(Refusal::new(Code::Draining, 0));
        }
        let tenant =
            self.tenants.index_of(name).ok_or(Refusal::new(Code::LimitReached, TENANTS_MAX as u64))?;
        let (mut own, mut others) = (0, 0);
        for (region, segment) in &self.segments {
            let is_own = self.regions[region.0 as usize].tenant == tenant;
            *(if is_own { &mut own } else { &mut others }) += segment.pending.len();
        }
        // A tenant gets half of what the others leave, so that it cannot use up all.
        let permitted = (PENDING_RANGES_MAX - others) / 2;
        if own + wanted.len() > permitted {
            return Err(Refusal::new(Code::LimitReached, permitted as u64));
        }
        let mut reserved: Vec<Reserved> = Vec::with_capacity(wanted.len());
        for &(from, bytes) in wanted {
            let regions = &self.regions;
            let fits = |(region, segment): &(&RegionIndex, &Segment)| {
                let end = u64::from(aligned(segment.end, from)) + u64::from(bytes);
                segment.is_open && regions[region.0 as usize].tenant == tenant && end <= region_bytes
            };
            let found = self.segments.iter().find(fits).map(|(region, _)| *region);
            let region = match found {
                Some(region) => region,
                None => match self.open_segment(name, tenant, opener, &mut handles, actions) {
                    Ok(region) => region,
                    Err(refusal) => {
                        self.abandon_filling(&reserved);
                        return Err(refusal);
                    }
                },
            };
            let epoch = self.regions[region.0 as usize].epoch;
            let Some(segment) = self.segments.get_mut(&region) else { continue };
            let offset = aligned(segment.end, from);
            segment.end = offset + bytes;
            segment.pending.insert(offset, Pending { bytes, owner: PendingOwner::Filling });
            reserved.push(Reserved { at: RegionAt { region, epoch }, own: segment.own, offset, bytes });
        }
        Ok(reserved)
    }

    /// Takes a free region for a tenant's ranges. Nothing is added to its other segments any more.
    fn open_segment(
        &mut self,
        name: &Name,
        tenant: crate::tenant::TenantIndex,
        opener: Opener,
        handles: &mut impl FnMut() -> Handle,
        actions: &mut Vec<Action>,
    ) -> Result<RegionIndex, Refusal> {
        if self.firm() >= self.firm_max {
            return Err(Refusal::new(Code::Exhausted, 0));
        }
        let left = self.segments_left.get(name).copied().unwrap_or(self.segments_left_others);
        if left == 0 && opener == Opener::Session {
            return Err(Refusal::new(Code::OverQuota, 0));
        }
        let region = super::redeeming::pick(&mut self.free, &mut self.mappable, true);
        let region = region.ok_or(Refusal::new(Code::Exhausted, 0))?;
        if left != SEGMENTS_UNLIMITED && opener == Opener::Session {
            self.segments_left.insert(name.clone(), left.saturating_sub(1));
            *self.segments_opened.entry(name.clone()).or_default() += 1;
        }
        for (other, segment) in &mut self.segments {
            segment.is_open &= self.regions[other.0 as usize].tenant != tenant;
        }
        let entry = &mut self.regions[region.0 as usize];
        entry.epoch = Epoch(entry.epoch.0 + 1);
        (entry.state, entry.tenant, entry.class) = (State::Segment, tenant, FileClass::Pinned);
        self.tenants.add(tenant);
        let (own, handle) = (handles(), handles());
        actions.push(Action::OpenSegment { region, epoch: entry.epoch, own, handle });
        self.segments
            .insert(region, Segment { own, handle, end: 0, is_open: true, pending: BTreeMap::new() });
        Ok(region)
    }

    /// Notes that ranges were copied to the places that were set aside for them. From now on the session may publish
    /// them.
    ///
    /// Refused if a region that was copied from was not the session's own all the time, or if a segment was taken back:
    /// then the places are given up.
    pub fn end_filling(
        &mut self,
        asker: Option<&Name>,
        seal: &SealRanges,
        reserved: &[Reserved],
        checksums: &[u32],
    ) -> Result<RangesSealed, Refusal> {
        let checked = self.session_of(asker, seal.session, seal.secret).map(drop);
        let checked = checked
            .and_then(|()| seal.ranges.iter().try_for_each(|range| self.check_own(seal.session, range)));
        let checked = checked.and_then(|()| self.check_reserved(reserved));
        if let Err(refusal) = checked {
            self.abandon_filling(reserved);
            return Err(refusal);
        }
        let mut ranges = Vec::with_capacity(reserved.len());
        for (place, checksum) in reserved.iter().zip(checksums) {
            self.note_filled(place, PendingOwner::Session(seal.session));
            let handle =
                self.segments.get(&place.at.region).map_or(Handle::default(), |segment| segment.handle);
            let RegionAt { region, epoch } = place.at;
            ranges.push(SealedRange { region, epoch, handle, offset: place.offset, checksum: *checksum });
        }
        let ranges =
            List::new(ranges).map_err(|_| Refusal::new(Code::LimitReached, SEALED_RANGES_MAX as u64))?;
        let sealed = RangesSealed { ranges };
        if let Some(session) = self.sessions.get_mut(&seal.session) {
            session.remember_ranges(seal.number, sealed.clone());
        }
        Ok(sealed)
    }

    /// Notes that the node's own copies are in the place that was set aside for them. Returns the right to read them.
    pub fn end_filling_copies(&mut self, place: &Reserved) -> Result<Grant, Refusal> {
        self.check_reserved(std::slice::from_ref(place))?;
        self.note_filled(place, PendingOwner::Session(SessionId(0)));
        let handle = self.segments.get(&place.at.region).map_or(Handle::default(), |segment| segment.handle);
        Ok(Grant { region: place.at.region, epoch: place.at.epoch, handle })
    }

    fn check_reserved(&self, reserved: &[Reserved]) -> Result<(), Refusal> {
        reserved.iter().try_for_each(|place| {
            let entry = self.entry(place.at.region)?;
            match entry.state {
                State::Segment if entry.epoch == place.at.epoch => Ok(()),
                _ => Err(Refusal::new(Code::StaleEpoch, entry.epoch.0)),
            }
        })
    }

    fn note_filled(&mut self, place: &Reserved, owner: PendingOwner) {
        if let Some(pending) = self.pending_at(&place.at, place.offset) {
            pending.owner = owner;
        }
    }

    fn pending_at(&mut self, at: &RegionAt, offset: u32) -> Option<&mut Pending> {
        let is_it = self.regions.get(at.region.0 as usize).is_some_and(|entry| entry.epoch == at.epoch);
        self.segments.get_mut(&at.region).filter(|_| is_it)?.pending.get_mut(&offset)
    }

    /// Takes back a segment that could not be opened.
    pub fn abandon_segment(&mut self, region: RegionIndex, epoch: Epoch, actions: &mut Vec<Action>) {
        let is_it = |entry: &&super::Region| entry.epoch == epoch && entry.state == State::Segment;
        if self.regions.get(region.0 as usize).filter(is_it).is_some() {
            self.take_back(region, actions);
        }
    }

    /// Gives up places that were set aside. They are not used again.
    pub fn abandon_filling(&mut self, reserved: &[Reserved]) {
        for place in reserved {
            if self.check_reserved(std::slice::from_ref(place)).is_ok()
                && let Some(segment) = self.segments.get_mut(&place.at.region)
            {
                segment.pending.remove(&place.offset);
            }
        }
    }

    /// Notes that the broker knows of the node's own copies in a segment. With its next ruling it says whether a file
    /// has them.
    pub(super) fn copies_known_in_segment(&mut self, region: RegionIndex, epoch: Epoch) {
        if self.regions.get(region.0 as usize).is_none_or(|entry| entry.epoch != epoch) {
            return;
        }
        for pending in
            self.segments.get_mut(&region).into_iter().flat_map(|segment| segment.pending.values_mut())
        {
            if pending.owner == PendingOwner::Session(SessionId(0)) {
                pending.owner = PendingOwner::Orphan;
            }
        }
    }

    /// Returns the report about the segments.
    pub fn segment_report(&self) -> SegmentReport {
        let known = |session: SessionId| session == SessionId(0) || self.sessions.contains_key(&session);
        let shown = |(offset, pending): (&u32, &Pending)| {
            let owner = match pending.owner {
                // A segment in which it is hidden could be dropped: the number of bytes has it already.
                PendingOwner::Filling => RegionOwner::Session(SessionId(0)),
                PendingOwner::Session(session) if known(session) => RegionOwner::Sealing(session),
                PendingOwner::Session(_) | PendingOwner::Orphan => RegionOwner::Orphan,
            };
            PendingRange { offset: *offset, bytes: pending.bytes, owner }
        };
        let held = |(region, segment): (&RegionIndex, &Segment)| SegmentHeld {
            region: *region,
            epoch: self.regions[region.0 as usize].epoch,
            end: segment.end,
            is_open: segment.is_open,
            // `reserve` bounds the pending ranges of all segments together.
            pending: List::new(segment.pending.iter().map(shown).collect()).unwrap_or_default(),
        };
        SegmentReport {
            node: self.node,
            incarnation: self.incarnation,
            // A node has no more segments than regions.
            segments: List::new(self.segments.iter().map(held).collect()).unwrap_or_default(),
        }
    }

    /// Follows the broker's ruling on segments, which answers a report about them. Frees a segment only if nothing was
    /// added since that report and nothing is pending.
    pub fn rule_segments(&mut self, ruling: &SegmentRuling, actions: &mut Vec<Action>) {
        if ruling.term < self.term {
            return;
        }
        self.enter_term(ruling.term);
        self.has_segments = true;
        // The broker has not heard of the segments that were opened since the ruling before.
        let opened = std::mem::take(&mut self.segments_opened);
        let left = |of: &TenantSegments| match of.segments {
            SEGMENTS_UNLIMITED => SEGMENTS_UNLIMITED,
            segments => segments.saturating_sub(opened.get(&of.tenant).copied().unwrap_or(0)),
        };
        self.segments_left = ruling.limited.iter().map(|of| (of.tenant.clone(), left(of))).collect();
        self.segments_left_others = ruling.others;
        for RangeAt { region, epoch, offset } in ruling.settled.iter() {
            if self.regions.get(region.0 as usize).is_some_and(|entry| entry.epoch == *epoch)
                && let Some(segment) = self.segments.get_mut(region)
                && segment.pending.get(offset).is_some_and(|pending| pending.owner != PendingOwner::Filling)
            {
                segment.pending.remove(offset);
            }
        }
        for SegmentAt { region, epoch, end } in ruling.dropped.iter() {
            let is_idle = |segment: &Segment| {
                segment.end == *end && segment.pending.is_empty() || mutant!(SegmentFreedLate)
            };
            if self.regions.get(region.0 as usize).is_some_and(|entry| entry.epoch == *epoch)
                && self.segments.get(region).is_some_and(is_idle)
            {
                self.take_back(*region, actions);
            }
        }
    }
}

impl Session {
    /// Remembers the answer to a request to copy ranges.
    fn remember_ranges(&mut self, number: u64, sealed: RangesSealed) {
        if self.ranges_sealed.len() == REMEMBERED_MAX {
            self.ranges_sealed.pop_front();
        }
        self.ranges_sealed.push_back((number, sealed));
    }
}

/// Returns the first place from `end` on that is aligned as the place `from` is.
fn aligned(end: u32, from: u32) -> u32 {
    end + (from % ALIGNMENT + ALIGNMENT - end % ALIGNMENT) % ALIGNMENT
}
