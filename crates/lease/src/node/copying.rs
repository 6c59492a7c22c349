//! Regions that the node fills by itself, with copies of published files.
//!
//! The idea: such a region goes through the same epochs as one that a client fills and seals, but its only writer is
//! the node, and no session owns it. The report to the broker shows it as sealed by session 0, which does not exist, so
//! that the broker neither frees it nor lets anybody publish it. It belongs to a file once the broker has listed it.
//!
//! Invariants: those of [`NodeLeases`].

use super::{Action, NodeLeases, State};
use farpool_wire::control::{Grant, RegionAt};
use farpool_wire::limits::TENANTS_MAX;
use farpool_wire::{Code, Epoch, FileClass, Handle, Name, Refusal, RegionIndex};

impl NodeLeases {
    /// Takes a free region for copies of a tenant's file, and opens it to the node itself: nobody else gets `handle`.
    pub fn begin_copying(
        &mut self,
        tenant: &Name,
        handle: Handle,
        actions: &mut Vec<Action>,
    ) -> Result<RegionAt, Refusal> {
        if self.is_draining() {
            return Err(Refusal::new(Code::Draining, 0));
        }
        if self.firm() >= self.firm_max {
            return Err(Refusal::new(Code::Exhausted, 0));
        }
        let tenant =
            self.tenants.index_of(tenant).ok_or(Refusal::new(Code::LimitReached, TENANTS_MAX as u64))?;
        let region = super::redeeming::pick(&mut self.free, &mut self.mappable, true);
        let region = region.ok_or(Refusal::new(Code::Exhausted, 0))?;
        let entry = &mut self.regions[region.0 as usize];
        entry.epoch = Epoch(entry.epoch.0 + 1);
        (entry.state, entry.tenant, entry.class) = (State::Copying, tenant, FileClass::Pinned);
        self.tenants.add(tenant);
        actions.push(Action::Open { region, epoch: entry.epoch, writable: true, handle });
        Ok(RegionAt { region, epoch: entry.epoch })
    }

    /// Makes a region that has its copies immutable. Whoever gets `handle` from the broker may read it.
    pub fn end_copying(
        &mut self,
        at: &RegionAt,
        handle: Handle,
        actions: &mut Vec<Action>,
    ) -> Result<Grant, Refusal> {
        let region = at.region;
        let entry = self.entry(region)?;
        if entry.epoch != at.epoch || entry.state != State::Copying {
            return Err(Refusal::new(Code::StaleEpoch, entry.epoch.0));
        }
        let epoch = Epoch(entry.epoch.0 + 1);
        let entry = &mut self.regions[region.0 as usize];
        (entry.epoch, entry.state) = (epoch, State::Copied);
        actions.push(Action::Close { region, epoch });
        actions.push(Action::Open { region, epoch, writable: false, handle });
        Ok(Grant { region, epoch, handle })
    }

    /// Takes back a region that could not be filled. Does nothing if that was done already.
    pub fn abandon_copying(&mut self, at: &RegionAt, actions: &mut Vec<Action>) {
        if self.entry(at.region).is_ok_and(|entry| entry.epoch == at.epoch && entry.state == State::Copying) {
            self.take_back(at.region, actions);
        }
    }

    /// Notes that the broker knows of a region that has its copies. With its next ruling it says whether the region
    /// belongs to a file now or is freed.
    pub fn copies_known(&mut self, region: RegionIndex, epoch: Epoch) {
        if let Some(entry) = self.regions.get_mut(region.0 as usize)
            && entry.epoch == epoch
            && entry.state == State::Copied
        {
            entry.state = State::Orphan;
        }
        self.copies_known_in_segment(region, epoch);
    }
}
