//! Renewing the leases of a session, sealing regions that will outlive it, and giving back regions it does not need.

use super::{Leases, NodeRequest, STEP_BYTES, Waits};
use crate::broker::answer_of;
use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, Repeat};
use crate::plan::Group;
use crate::stats::add;
use farpool_wire::control::*;
use farpool_wire::limits::LEASE_REGIONS_MAX;
use farpool_wire::{FileClass, Incarnation, List, NodeId, Reply, Request, mutant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Renewals after which a region that holds no extent is given back.
const IDLE_RENEWALS: u32 = 4;

impl Leases {
    /// Renews the leases at every node, and notices lost nodes.
    ///
    /// A node that hangs must not make the leases at others expire. Each renewal therefore gets only a share of the
    /// lease time, and nodes that answered last time come first.
    pub(crate) fn renew_all(&self, share_ms: u64) {
        let mut nodes = self.nodes.all();
        nodes.sort_by_key(|links| links.is_suspect());
        let suspects_until = self.base.host.now().plus_ms(2 * share_ms);
        for links in nodes {
            let holds = self.held.lock().regions.values().any(|region| Arc::ptr_eq(&region.node, &links));
            // Nodes where nothing is held any more are renewed too, because regions that were sealed there may be about
            // to be published. Nodes that did not answer last time are asked so that they can be used again once they
            // answer.
            let renews = holds || links.leased_until().0 > 0 || links.is_suspect();
            if renews && !links.is_lost() && (!links.is_suspect() || self.base.host.now() < suspects_until) {
                let failed_before = links.is_suspect();
                let fails = self.renew_within(&links, share_ms).is_err();
                links.set_suspect(fails);
                // A node that does not answer keeps our regions until the lease is over on its own clock. A single
                // failure does not count: this process may have been stopped and let the time pass.
                let over = links.leased_until().plus_ms(self.ttl_ms + self.grace_ms);
                if fails && failed_before && links.leased_until().0 > 0 && self.base.host.now() > over {
                    // The regions there are gone. The node may only be out of reach, and come back.
                    links.end_lease();
                    if holds {
                        add(&self.base.counters.nodes_lost, 1);
                        // A node that was stopped may find a renewal that was sent meanwhile, before it looks at its
                        // clock. It then keeps them as long as it is told that the session lives.
                        let gone = self.lose_regions(&links);
                        self.held.lock().unsent_releases.extend(gone);
                    }
                }
            }
            if links.is_lost() && holds {
                self.lose_regions(&links);
            }
        }
    }

    /// Gives back regions that have been idle for several renewals, or that are idle on a node that is being emptied.
    pub(crate) fn release_idle(&self, timeout_ms: u64) {
        let mut leaving = Vec::new();
        {
            let mut held = self.held.lock();
            // Releases that a node did not receive are sent again once it answers.
            leaving.extend(held.unsent_releases.extract_if(.., |region| !region.node.is_suspect()));
            let mut groups: Vec<Group> = held.allocator.regions().map(|(_, _, group)| group).collect();
            groups.sort_unstable();
            groups.dedup();
            for group in groups {
                let is_scratch = group == Group::Class(FileClass::Scratch);
                let floor = if is_scratch { held.floor_bytes } else { 0 };
                let (mut all, _) = held.allocator.held(group);
                for id in held.allocator.idle(group) {
                    let Some(region) = held.regions.get(&id).cloned() else { continue };
                    let region_bytes = region.node.info.region_bytes;
                    let is_leaving = region.node.is_draining() || held.allocator.has_late(id);
                    let idle_for = held.idle_for.entry(id).or_default();
                    *idle_for += 1;
                    if is_leaving || *idle_for > IDLE_RENEWALS && all >= floor + region_bytes {
                        all -= region_bytes;
                        self.forget_region(&mut held, &region);
                        leaving.push(region);
                    }
                }
            }
        }
        self.release(&leaving, timeout_ms);
        self.leave_drained(timeout_ms);
    }

    /// Leaves nodes that are being emptied and at which the session has nothing left. A node may still keep what the
    /// session has sealed there: if a file was published and replaced at once, a broker that began to lead in between
    /// does not know that the region had a name, and waits for the session to publish it.
    fn leave_drained(&self, timeout_ms: u64) {
        for links in self.nodes.all() {
            let is_left = links.is_draining() && links.leased_until().0 > 0;
            // No region is leased while this is held, so none is given back that was leased a moment ago.
            let Some(_growing) = self.growing.try_take().filter(|_| is_left && !links.is_suspect()) else {
                continue;
            };
            let holds = self.held.lock().regions.values().any(|region| Arc::ptr_eq(&region.node, &links));
            if holds || self.unnamed.load(Ordering::Acquire) > 0 {
                continue;
            }
            let (release, deadline) = (self.release_all(), self.base.deadline(timeout_ms));
            let told = links.converse(deadline, Repeat::Harmless, |link| link.call(&release, deadline));
            if told.is_ok() {
                links.end_lease();
                // No renewal tells any more when it is used again. Until then the broker grants no tickets for it.
                links.set_draining(false);
            }
        }
    }

    /// Tells the nodes that this session does not use these regions any more.
    pub(crate) fn release(&self, regions: &[Arc<LeasedRegion>], timeout_ms: u64) {
        let mut by_node: BTreeMap<(NodeId, Incarnation), Vec<&Arc<LeasedRegion>>> = BTreeMap::new();
        for region in regions {
            by_node.entry((region.node.info.node, region.node.info.incarnation)).or_default().push(region);
        }
        for regions in by_node.values().flat_map(|regions| regions.chunks(LEASE_REGIONS_MAX)) {
            let Some(first) = regions.first() else { continue };
            let node = &first.node;
            let at = regions.iter().map(|region| RegionAt { region: region.region, epoch: region.epoch });
            let release = Request::Release(Release {
                session: self.proof.session,
                secret: self.proof.secret,
                whole: false,
                regions: List::new(at.collect()).unwrap_or_default(),
            });
            let deadline = self.base.deadline(timeout_ms);
            let is_unheard = node.is_suspect()
                || self
                    .ask(node, &release, deadline, Waits::WhileItIsThere)
                    .is_err_and(|error| error.kind() == ErrorKind::Unreachable);
            // If the node did not hear of it, renewals would keep the regions leased for nobody until the session ends.
            if is_unheard && !mutant!(ReleaseForgotten) {
                self.held.lock().unsent_releases.extend(regions.iter().map(|region| Arc::clone(region)));
            }
        }
    }

    /// Seals the regions of a file's group whose numbers `listed` has (makes them immutable). `sealed` is called with
    /// the sealed regions, by the numbers that the leased ones had. After an error it can be called again; regions that
    /// were sealed stay sealed. An error of one node does not keep the regions of the others from being sealed.
    pub(crate) fn seal(
        &self,
        group: Group,
        listed: &BTreeSet<u64>,
        waits: Waits,
        mut sealed: impl FnMut(BTreeMap<u64, Arc<LeasedRegion>>),
    ) -> Result<(), Error> {
        let (regions, idle): (Vec<Arc<LeasedRegion>>, Vec<Arc<LeasedRegion>>) = {
            let mut held = self.held.lock();
            let ids = held.allocator.idle(group);
            let idle: Vec<_> = ids.into_iter().filter_map(|id| held.regions.get(&id).cloned()).collect();
            idle.iter().for_each(|region| self.forget_region(&mut held, region));
            // A copy that is just being made is in none of these. Its region is given back when that ends.
            let ids = held.allocator.regions().filter(|(id, _, of)| *of == group && listed.contains(id));
            let used = ids.filter_map(|(id, _, _)| held.regions.get(&id).cloned()).collect();
            (used, idle)
        };
        // Regions that hold nothing of the file need not outlive the session.
        self.release(&idle, self.base.options.request_timeout_ms);
        let mut by_node: BTreeMap<(NodeId, Incarnation), Vec<Arc<LeasedRegion>>> = BTreeMap::new();
        let mut failed = None;
        for region in regions {
            let timeout_ms = match waits {
                Waits::Long => self.base.options.request_timeout_ms,
                Waits::WhileItIsThere => region.node.brief_ms(),
            };
            if let Err(error) = self.check_within(&region, timeout_ms) {
                failed.get_or_insert(error);
                continue;
            }
            by_node.entry((region.node.info.node, region.node.info.incarnation)).or_default().push(region);
        }
        let (mut steps, mut requests) = (Vec::new(), Vec::new());
        for regions in by_node.values() {
            let Some(node) = regions.first().map(|region| &region.node) else { continue };
            let region_bytes = node.info.region_bytes;
            for regions in regions.chunks((STEP_BYTES / region_bytes).max(1) as usize) {
                let request = self.seal_request(regions)?;
                let bytes = regions.len() as u64 * region_bytes;
                requests.push(NodeRequest { node: Arc::clone(node), request, bytes });
                steps.push(regions);
            }
        }
        for (regions, answer) in steps.into_iter().zip(self.ask_all(&requests, waits)) {
            match answer.and_then(|reply| self.note_sealed(regions, reply)) {
                Ok(these) => sealed(these),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Returns the request to seal some regions of one node.
    fn seal_request(&self, regions: &[Arc<LeasedRegion>]) -> Result<Request, Error> {
        let at = regions.iter().map(|region| RegionAt { region: region.region, epoch: region.epoch });
        let regions = List::new(at.collect()).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("too many regions to seal at once: {error}"))
        })?;
        Ok(Request::Seal(Seal { session: self.proof.session, secret: self.proof.secret, regions }))
    }

    /// Takes the answer to the request to seal some regions. Returns the sealed regions, by the numbers that the leased
    /// ones had.
    fn note_sealed(
        &self,
        regions: &[Arc<LeasedRegion>],
        reply: Reply,
    ) -> Result<BTreeMap<u64, Arc<LeasedRegion>>, Error> {
        let grants = answer_of!(reply, Seal)?;
        if grants.regions.len() != regions.len() {
            let message = "a node sealed a different number of regions than it was asked to";
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let mut sealed = BTreeMap::new();
        let mut held = self.held.lock();
        for (before, grant) in regions.iter().zip(grants.regions.iter()) {
            self.forget_region(&mut held, before);
            let after = LeasedRegion {
                id: before.id,
                node: Arc::clone(&before.node),
                region: grant.region,
                epoch: grant.epoch,
                handle: grant.handle,
                is_leased: false,
                is_taken: AtomicBool::new(false),
            };
            sealed.insert(before.id, Arc::new(after));
        }
        Ok(sealed)
    }
}
