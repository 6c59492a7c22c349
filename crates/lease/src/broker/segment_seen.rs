//! Segment as the last report of its node showed it.

use farpool_wire::control::*;
use farpool_wire::ids::*;
use std::collections::BTreeMap;

/// Segment of a node, as the node's last report showed it.
#[derive(Clone, Debug)]
pub(super) struct SegmentSeen {
    pub(super) epoch: Epoch,
    /// Bytes that are in use, or were.
    end: u32,
    is_open: bool,
    /// Bytes and owner of each range of which the node does not know yet whether a name owns it, by its first byte. The
    /// owner is an orphan if nobody may publish it any more.
    pub(super) pending: BTreeMap<u32, (u32, RegionOwner)>,
}

impl SegmentSeen {
    pub(super) fn of(held: &SegmentHeld) -> SegmentSeen {
        let pending = held.pending.iter().map(|range| (range.offset, (range.bytes, range.owner)));
        let SegmentHeld { epoch, end, is_open, .. } = *held;
        SegmentSeen { epoch, end, is_open, pending: pending.collect() }
    }

    /// Reports whether a range lies in some that are pending for a session and follow each other.
    pub(super) fn is_pending(&self, session: SessionId, offset: u32, bytes: u32) -> bool {
        let end = u64::from(offset) + u64::from(bytes);
        let mut at = u64::from(offset);
        while at < end {
            let before = self.pending.range(..=at as u32).next_back();
            let Some((from, (pending, _))) =
                before.filter(|(_, (_, owner))| *owner == RegionOwner::Sealing(session))
            else {
                return false;
            };
            let next = u64::from(*from) + u64::from(*pending);
            if next <= at {
                return false;
            }
            at = next;
        }
        true
    }

    /// Notes that a file has a range, so that nobody else publishes it.
    pub(super) fn take(&mut self, from: u32, end: u32) {
        let overlapping = self.pending.range_mut(..end).rev();
        for (_, (_, owner)) in overlapping.take_while(|(offset, (bytes, _))| **offset + *bytes > from) {
            *owner = RegionOwner::Orphan;
        }
    }

    /// Returns the first byte and the number of bytes of the copies that the node has made itself.
    pub(super) fn own_copies(&self) -> Option<(u32, u32)> {
        let is_own =
            |(_, (_, owner)): &(&u32, &(u32, RegionOwner))| *owner == RegionOwner::Sealing(SessionId(0));
        self.pending.iter().find(is_own).map(|(offset, (bytes, _))| (*offset, *bytes))
    }

    /// Reports whether so little is alive of a segment to which nothing is added that it should be emptied.
    pub(super) fn is_sparse(&self, live_bytes: u64) -> bool {
        !self.is_open && self.pending.is_empty() && 2 * live_bytes < u64::from(self.end)
    }
}
