//! Segments: regions into which the node copies ranges of many small published files.
//!
//! The idea: places are set aside under the lease lock, and bytes are copied without it, behind the gates of both
//! regions. Nobody is told of a place before all of its bytes are there.

use crate::admit::admit;
use crate::memory::{Inside, Memory, Sharing};
use crate::service::{NodeService, fresh_handle};
use farpool_lease::node::{Action, Reserved};
use farpool_region::GATE_BYTES_MAX;
use farpool_transport::Intent;
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::limits::WINDOW_PAGE_BYTES;
use farpool_wire::{Code, Handle, Name, Refusal, Reply};

impl<M: Memory> NodeService<M> {
    /// Copies ranges of regions that a session leases into segments.
    pub(crate) fn seal_ranges(&self, asker: Option<&Name>, seal: &SealRanges) -> Result<Reply, Refusal> {
        if let Some(before) = self.leases().ranges_sealed_before(asker, seal)? {
            return Ok(Reply::SealRanges(before));
        }
        let region_bytes = self.arena.region_bytes();
        let all_bytes: u64 = seal.ranges.iter().map(|range| u64::from(range.bytes)).sum();
        let mut handles = self.handles_for(all_bytes, seal.ranges.len())?;
        let next = || handles.pop().unwrap_or_default();
        let reserved = self
            .open_segments(|leases, actions| leases.begin_filling(asker, seal, region_bytes, next, actions));
        // The broker's next ruling may permit more, and settle what is pending.
        let reserved = reserved.inspect_err(|_| self.changed())?;
        let filled = self.fill(seal, &reserved);
        let mut leases = self.leases();
        let sealed = match filled {
            Ok(checksums) => leases.end_filling(asker, seal, &reserved, &checksums),
            Err(refusal) => {
                leases.abandon_filling(&reserved);
                Err(refusal)
            }
        };
        drop(leases);
        self.changed();
        sealed.map(Reply::SealRanges)
    }

    /// Draws the handles of as many segments as ranges of so many bytes may need.
    pub(crate) fn handles_for(&self, bytes: u64, ranges: usize) -> Result<Vec<Handle>, Refusal> {
        // Each segment but the last is more than half full, with the gaps by which ranges are aligned.
        let bytes = bytes + ranges as u64 * WINDOW_PAGE_BYTES;
        let segments = (2 * bytes / self.arena.region_bytes() + 2).min(ranges as u64 + 1);
        (0..2 * segments).map(|_| fresh_handle(&*self.host)).collect()
    }

    /// Sets places in segments aside, and opens the segments that this begins.
    pub(crate) fn open_segments(
        &self,
        begin: impl FnOnce(&mut farpool_lease::NodeLeases, &mut Vec<Action>) -> Result<Vec<Reserved>, Refusal>,
    ) -> Result<Vec<Reserved>, Refusal> {
        let mut actions = Vec::new();
        let (begun, claimed) = {
            let mut leases = self.leases();
            let begun = begin(&mut leases, &mut actions);
            self.carry_out(&actions)?;
            let opened = actions.iter().filter_map(|action| match *action {
                Action::OpenSegment { region, epoch, own, .. } => Some(Grant { region, epoch, handle: own }),
                _ => None,
            });
            // Claimed before the lock is released: afterwards they might be taken back, and wiped.
            let claimed = self.claim_moving(&opened.collect::<Vec<_>>());
            (begun, claimed)
        };
        let opened = actions.iter().try_for_each(|action| match *action {
            Action::OpenSegment { region, epoch, own, handle } => {
                self.open_fresh(region, Sharing::Mappable)?;
                self.opened(self.arena.open(region, epoch, Some(own), Some(handle)))
            }
            _ => Ok(()),
        });
        self.end_moving(&claimed);
        if let Err(refusal) = opened {
            let mut after = Vec::new();
            let mut leases = self.leases();
            claimed.iter().for_each(|grant| leases.abandon_segment(grant.region, grant.epoch, &mut after));
            // Other places lie in segments that were there before.
            leases.abandon_filling(begun.as_deref().unwrap_or_default());
            // Closing and wiping cannot fail.
            let _ = self.carry_out(&after);
            return Err(refusal);
        }
        begun
    }

    /// Copies ranges to their places. Returns the checksum of each.
    fn fill(&self, seal: &SealRanges, reserved: &[Reserved]) -> Result<Vec<u32>, Refusal> {
        let mut piece = vec![0; GATE_BYTES_MAX];
        let mut checksums = Vec::with_capacity(reserved.len());
        for (range, place) in seal.ranges.iter().zip(reserved) {
            // Another thread may be opening the segment.
            self.wait_moved(place.at.region);
            let (mut done, mut checksum) = (0, 0);
            while done < range.bytes {
                let bytes = (range.bytes - done).min(GATE_BYTES_MAX as u32);
                let read = &mut piece[..bytes as usize];
                let from = self.arena.enter(range.region)?;
                let epoch = from.fence().epoch;
                if epoch != range.epoch {
                    return Err(Refusal::new(Code::StaleEpoch, epoch.0));
                }
                from.copy_out(u64::from(range.offset) + u64::from(done), read)?;
                drop(from);
                checksum = crc32c::crc32c_append(checksum, read);
                self.put_into(place, done, read)?;
                done += bytes;
            }
            checksums.push(checksum);
        }
        Ok(checksums)
    }

    /// Writes bytes of a range to its place, at `done` from its first byte on.
    pub(crate) fn put_into(&self, place: &Reserved, done: u32, piece: &[u8]) -> Result<(), Refusal> {
        let offset = u64::from(place.offset) + u64::from(done);
        let RegionAt { region, epoch } = place.at;
        let at = Span { region, bytes: piece.len() as u32, offset, epoch, handle: place.own };
        let entered = self.arena.enter(region)?;
        admit(&at, Intent::Write, &entered.fence())?;
        entered.copy_in(offset, piece)
    }
}
