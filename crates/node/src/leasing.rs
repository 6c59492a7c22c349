//! Leases of clients: granting, sealing, renewing and releasing regions, as the rules of the node's leases decide.
//!
//! The idea: the lock of the leases is held for decisions. What takes long is done without it: regions are made ready
//! before they open to a client, and sealed bytes move to memory that nobody has mapped for writing. Such a region is
//! claimed meanwhile, so that it is not wiped, and two threads with the same request do not both work on it.

use crate::memory::{Inside, Memory, Sharing};
use crate::service::{NodeService, fresh_handle};
use farpool_host::{Event, Level};
use farpool_lease::node::Action;
use farpool_region::RegionError;
use farpool_wire::control::*;
use farpool_wire::limits::LEASE_REGIONS_MAX;
use farpool_wire::{Code, FileClass, Name, Refusal, RegionIndex, Reply, mutant};

/// Milliseconds after which a thread that waits for a region to be moved checks again, in case it missed the event.
const MOVING_LOOK_MS: u64 = 50;

impl<M: Memory> NodeService<M> {
    pub(crate) fn lease(&self, asker: Option<&Name>, lease: &Lease) -> Result<Reply, Refusal> {
        let session = lease.ticket.session;
        let wanted = (lease.ticket.region_count as usize).min(LEASE_REGIONS_MAX);
        let mut handles = Vec::with_capacity(wanted);
        for _ in 0..wanted {
            handles.push(fresh_handle(&*self.host)?);
        }
        let mut actions = Vec::new();
        let (leased, claimed) = {
            let mut leases = self.leases();
            if let Some(leased) = leases.redeemed(self.host.now(), asker, &lease.ticket, &mut actions) {
                self.carry_out(&actions)?;
                drop(leases);
                return self.leased_before(leased).map(Reply::Lease);
            }
            let next = || handles.pop().unwrap_or_default();
            let leased = leases.redeem(self.host.now(), asker, lease, next, &mut actions)?;
            self.carry_out(&actions)?;
            // The regions are claimed before the lock is released: afterwards they might be revoked, granted to others
            // and written.
            let claimed = self.claim_moving(&leased.grants);
            (leased, claimed)
        };
        if lease.shared || lease.ticket.class == FileClass::Pinned {
            let mut chores = self.chores.lock();
            chores.sharing_wanted |= lease.shared;
            chores.sealing_wanted |= !lease.shared;
        }
        let sharing = if lease.shared { Sharing::Mappable } else { Sharing::Any };
        let opened = self.open_granted(&actions, sharing);
        self.end_moving(&claimed);
        let regions: Vec<RegionAt> =
            leased.grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch }).collect();
        let mut leases = self.leases();
        let mut after = Vec::new();
        match opened {
            // The lease may have expired while its regions were made ready.
            Ok(()) if leases.is_suspended(session) => {
                after.extend(regions.iter().map(|at| Action::Suspend(at.region)));
            }
            Ok(()) => {}
            // A grant that fails in part is undone as a whole.
            Err(_) => leases.abandon(session, &regions, &mut after),
        }
        self.carry_out(&after)?;
        drop(leases);
        self.changed();
        opened?;
        if self.host.logs(Level::Debug) {
            for at in &regions {
                let event = Event::debug("leased", "leased a region").lease(at.region, at.epoch);
                self.host.log(&event.session(session).tenant(&*lease.ticket.tenant));
            }
        }
        Ok(Reply::Lease(leased))
    }

    /// Returns the reply to a repeated request for a lease, once no other thread makes its regions ready.
    fn leased_before(&self, leased: Leased) -> Result<Leased, Refusal> {
        leased.grants.iter().for_each(|grant| self.wait_moved(grant.region));
        self.check_epochs(&leased.grants)?;
        Ok(leased)
    }

    pub(crate) fn seal(&self, asker: Option<&Name>, seal: &Seal) -> Result<Reply, Refusal> {
        loop {
            let heard = self.moved.heard();
            let mut handles = Vec::with_capacity(seal.regions.len());
            for _ in 0..seal.regions.len() {
                handles.push(fresh_handle(&*self.host)?);
            }
            let mut actions = Vec::new();
            let mut leases = self.leases();
            let sealed = leases.seal(asker, seal, || handles.pop().unwrap_or_default(), &mut actions)?;
            let closed = self.carry_out(&actions);
            // The regions are claimed before the lock is released: afterwards they might be revoked, wiped and granted
            // anew.
            let claimed = self.claim_moving(&sealed.regions);
            drop(leases);
            let is_whole = claimed.len() == sealed.regions.len();
            let opened = closed.and_then(|()| claimed.iter().try_for_each(|grant| self.open_sealed(grant)));
            self.end_moving(&claimed);
            self.changed();
            opened?;
            if is_whole {
                self.check_epochs(&sealed.regions)?;
                return Ok(Reply::Seal(sealed));
            }
            // Another thread is handling the same request. This thread waits until that one is done.
            self.host.wait(&self.moved, heard, self.host.now().plus_ms(MOVING_LOOK_MS));
        }
    }

    /// Claims the regions that no other thread moves, and returns them.
    pub(crate) fn claim_moving(&self, grants: &[Grant]) -> Vec<Grant> {
        let mut moving = self.moving.lock();
        grants.iter().filter(|grant| moving.insert(grant.region)).cloned().collect()
    }

    pub(crate) fn end_moving(&self, grants: &[Grant]) {
        let mut moving = self.moving.lock();
        grants.iter().for_each(|grant| _ = moving.remove(&grant.region));
        drop(moving);
        // A thread that claimed nothing signals nothing: it may be about to wait for this very event.
        if !grants.is_empty() {
            self.moved.signal();
        }
    }

    /// Waits until no thread moves the bytes of a region.
    pub(crate) fn wait_moved(&self, region: RegionIndex) {
        loop {
            let heard = self.moved.heard();
            if !self.moving.lock().contains(&region) {
                return;
            }
            self.host.wait(&self.moved, heard, self.host.now().plus_ms(MOVING_LOOK_MS));
        }
    }

    /// Moves the bytes of a region to memory that its writer has not mapped. Uses that of a free region, if one has
    /// memory that is ready.
    fn reseat(&self, region: RegionIndex) -> Result<(), RegionError> {
        let spare = if self.arena.is_copied_to_seal(region) { self.leases().take_mappable() } else { None };
        let moved = self.arena.reseat(region, spare);
        if let Some(spare) = spare {
            // Its memory may have to go to the host by now. Carrying that out fails only because of a bug.
            let _ = self.put_back(spare);
        }
        moved
    }

    /// Makes a region free again that was taken out of the free ones, and is clean.
    pub(crate) fn put_back(&self, region: RegionIndex) -> Result<(), Refusal> {
        let is_mappable = self.arena.is_shared(region) == Some(true);
        let mut leases = self.leases();
        let action = match is_mappable {
            true => leases.made_mappable(region),
            false => leases.scrubbed(region),
        };
        self.carry_out(action.as_slice())
    }

    /// Moves the bytes of an immutable region to memory that its writer has not mapped, and lets readers in. Takes some
    /// 6 ms for each 64 MiB, or 50 ms if no memory is ready, without the lease lock. Does nothing if it was done
    /// before.
    pub(crate) fn open_sealed(&self, grant: &Grant) -> Result<(), Refusal> {
        let Grant { region, epoch, handle } = *grant;
        let fence = self.arena.enter(region)?.fence();
        if fence.epoch != epoch {
            return Err(Refusal::new(Code::StaleEpoch, fence.epoch.0));
        }
        if fence.read_handle == Some(handle) {
            return Ok(());
        }
        let moved = if mutant!(SealedNotMoved) { Ok(()) } else { self.reseat(region) };
        match moved.and_then(|()| self.arena.open(region, epoch, None, Some(handle))) {
            // The region was revoked meanwhile. It is wiped once this is over.
            Err(RegionError::EpochOrder { current, .. }) => Err(Refusal::new(Code::StaleEpoch, current.0)),
            // A retry succeeds when the host has memory.
            Err(error @ (RegionError::System { .. } | RegionError::Donation(_))) => {
                let message = format!("region {region} cannot be made immutable yet: {error}");
                self.host.log(&Event::warn("out_of_memory", message));
                Err(Refusal::new(Code::OutOfMemory, self.arena.region_bytes()))
            }
            other => self.agree(other),
        }
    }

    /// Fails if a region of these grants was revoked meanwhile.
    fn check_epochs(&self, grants: &[Grant]) -> Result<(), Refusal> {
        let leases = self.leases();
        for grant in grants {
            match leases.epoch_of(grant.region) {
                Some(epoch) if epoch == grant.epoch => {}
                epoch => return Err(Refusal::new(Code::StaleEpoch, epoch.unwrap_or_default().0)),
            }
        }
        Ok(())
    }

    pub(crate) fn renew(&self, asker: Option<&Name>, proof: &SessionProof) -> Result<Reply, Refusal> {
        let mut actions = Vec::new();
        let mut leases = self.leases();
        let renewed = leases.renew(self.host.now(), asker, proof, &mut actions)?;
        self.carry_out(&actions)?;
        Ok(Reply::Renew(renewed))
    }

    pub(crate) fn release(&self, asker: Option<&Name>, release: &Release) -> Result<Reply, Refusal> {
        let mut actions = Vec::new();
        let mut leases = self.leases();
        let released = leases.release(asker, release, &mut actions)?;
        self.carry_out(&actions)?;
        drop(leases);
        self.changed();
        Ok(Reply::Release(released))
    }

    /// Makes the regions of a grant ready and opens them, without the lease lock. It checks that each region is zero,
    /// and makes shared memory if none is ready: some 35 ms for each 64 MiB. If the session ends meanwhile, the gate
    /// refuses to open at an old epoch.
    pub(crate) fn open_granted(&self, actions: &[Action], sharing: Sharing) -> Result<(), Refusal> {
        for action in actions {
            if let Action::Open { region, epoch, writable: true, handle } = *action {
                self.open_fresh(region, sharing)?;
                self.opened(self.arena.open(region, epoch, Some(handle), None))?;
            }
        }
        Ok(())
    }

    /// Returns what became of opening a fresh region. It may have been revoked meanwhile.
    pub(crate) fn opened(&self, opened: Result<(), RegionError>) -> Result<(), Refusal> {
        match opened {
            Err(RegionError::EpochOrder { current, .. }) => Err(Refusal::new(Code::StaleEpoch, current.0)),
            other => self.agree(other),
        }
    }

    /// Makes a free region ready for its new owner.
    pub(crate) fn open_fresh(&self, region: RegionIndex, sharing: Sharing) -> Result<(), Refusal> {
        let is_shared = self.arena.is_shared(region) == Some(true);
        if sharing == Sharing::Mappable
            && !is_shared
            && let Err(error) = self.arena.share(region)
        {
            let message = format!("region {region} cannot be shared with clients of this host: {error}");
            self.host.log(&Event::warn("out_of_memory", message));
            return Err(Refusal::new(Code::OutOfMemory, self.arena.region_bytes()));
        }
        // The region was zeroed when it was released. It is checked again, because a mistake would show somebody
        // another's bytes.
        match self.arena.verify_zero(region) {
            Ok(false) if mutant!(NoWiping) => Ok(()),
            Ok(true) => Ok(()),
            Ok(false) => {
                let message =
                    format!("region {region} was not clean; it is not used again until the node restarts");
                self.host.log(&Event::error("region_withheld", message));
                self.withhold(region);
                Err(Refusal::new(Code::Exhausted, 0))
            }
            Err(error) => self.agree(Err(error)),
        }
    }
}
