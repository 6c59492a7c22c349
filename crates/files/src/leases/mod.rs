//! What a session holds at nodes: the leases, the regions they are for, and the extents cut from these.
//!
//! Methods of four kinds. Those here begin with a node, check and renew what is held there, and take note of what was
//! lost; those of `leasing` cut extents and get more when that is not enough; those of `keeping` seal, give back what
//! is not needed, and are what the session's thread does until it ends; [`Leases::end`] gives all of it back.
//!
//! Two locks. The turn to ask for more is taken first, and held while the broker and the nodes are asked. What is held
//! is locked within, for a look or a change each time and never while anybody is asked; whoever locks it may look at
//! the table of nodes and at a node's links.

mod keeping;
mod leasing;

use crate::base::Base;
use crate::broker::{Broker, answer_of};
use crate::error::Error;
use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
use crate::nodes::Nodes;
use crate::plan::Allocator;
use crate::repair::Repair;
use crate::stats::{add, subtract};
use farpool_host::Turn;
use farpool_lock::Mutex;
use farpool_transport::LinkError;
use farpool_wire::control::*;
use farpool_wire::{Code, Epoch, List, MonoNs, RegionIndex, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A lease this large is made ready, and a seal this large is carried out, well within a request's time.
const STEP_BYTES: u64 = 512 << 20;

/// How hard to try to get memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Wait for a broker that restarts and for nodes that are wiping.
    Full,
    /// There is another way: ask once, and not again for a while if the answer was no.
    Brief,
}

/// What is held, and what is known of it.
#[derive(Default)]
struct Held {
    allocator: Allocator<u64>,
    regions: BTreeMap<u64, Arc<LeasedRegion>>,
    idle_for: BTreeMap<u64, u32>,
    next_id: u64,
    /// Scratch bytes that stay leased however idle they are.
    floor_bytes: u64,
    /// Regions given up whose node has not heard of it.
    unheard: Vec<Arc<LeasedRegion>>,
}

/// What those who ask for more learn from each other.
#[derive(Default)]
struct Growing {
    /// Since when whoever has the turn has wanted it.
    asked: MonoNs,
    /// Until when not to ask for memory that there is another way for.
    brief_until: MonoNs,
    /// Until when to ask for memory but once: no broker answered a moment ago.
    unreachable_until: MonoNs,
    /// When somebody last heard that there is none, in spite of their patience.
    refused_at: MonoNs,
}

/// See the module.
pub(crate) struct Leases {
    base: Arc<Base>,
    broker: Arc<Broker>,
    nodes: Arc<Nodes>,
    repair: Arc<Repair>,
    proof: SessionProof,
    ttl_ms: u64,
    grace_ms: u64,
    held: Mutex<Held>,
    /// One thread at a time asks for more.
    growing: Turn<Growing>,
}

impl Leases {
    /// Nothing is held as yet. `opened` is the session that it will be held by.
    pub(crate) fn new(
        base: Arc<Base>,
        broker: Arc<Broker>,
        nodes: Arc<Nodes>,
        repair: Arc<Repair>,
        opened: &SessionOpened,
    ) -> Leases {
        Leases {
            base,
            broker,
            nodes,
            repair,
            proof: SessionProof { session: opened.session, secret: opened.secret },
            ttl_ms: opened.lease_ttl_ms.into(),
            grace_ms: opened.grace_ms.into(),
            held: Mutex::default(),
            growing: Turn::default(),
        }
    }

    /// What shows nodes and the broker whose the leases are.
    pub(crate) fn proof(&self) -> &SessionProof {
        &self.proof
    }

    /// How long a lease lasts.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// The links to a life of a node. One that was given up as lost, and is there after all, is begun anew with.
    pub(crate) fn links(&self, info: &NodeInfo) -> Result<Arc<NodeLinks>, Error> {
        self.nodes.links(info, |former, fresh| self.leave_behind(former, fresh))
    }

    /// What we had at a node and gave up as lost, the node may still keep for us, and the next lease would prolong
    /// that.
    fn leave_behind(&self, former: &Arc<NodeLinks>, fresh: &NodeLinks) -> Result<(), Error> {
        self.lose_regions(former);
        let release = self.release_all();
        let deadline = self.base.request_deadline();
        fresh.converse(deadline, Repeat::Harmless, |link| match link.call(&release, deadline) {
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::UnknownSession => Ok(()),
            other => other.map(drop),
        })
    }

    /// Makes sure our leases at a node still hold, renewing at once if the time for it was missed.
    pub(crate) fn check(&self, region: &LeasedRegion) -> Result<(), Error> {
        region.check_usable()?;
        if region.is_leased && self.base.host.now() >= region.node.leased_until() {
            self.renew(&region.node)?;
            region.check_usable()?;
        }
        Ok(())
    }

    /// Extends our leases at a node, or learns that they are over.
    pub(crate) fn renew(&self, links: &Arc<NodeLinks>) -> Result<(), Error> {
        self.renew_within(links, self.base.options.request_timeout_ms)
    }

    fn renew_within(&self, links: &Arc<NodeLinks>, timeout_ms: u64) -> Result<(), Error> {
        let asked = self.base.host.now();
        let deadline = self.base.deadline(timeout_ms);
        let renew = Request::Renew(self.proof.clone());
        // What is leased while we ask is not what the answer is about.
        let below = self.held.lock().next_id;
        let answer = links.converse(deadline, Repeat::Harmless, |link| {
            // A node that forgot the session has freed its regions: that is an answer, not a failure.
            match link.call(&renew, deadline) {
                Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::UnknownSession => Ok(None),
                other => other.map(Some),
            }
        })?;
        match answer {
            Some(reply) => {
                let renewed = answer_of!(reply, Renew)?;
                links.extend_lease(asked, renewed.lease_ttl_ms);
                links.set_suspect(false);
                if links.set_draining(renewed.draining) {
                    self.repair.request();
                }
            }
            None => {
                links.set_suspect(false);
                // It told an earlier lease of ours that it was being emptied. Whether it still is, the next one
                // hears; the broker gives no tickets for a node that is.
                links.set_draining(false);
                self.lose_regions_below(links, below);
            }
        }
        Ok(())
    }

    /// The regions held at a node are not ours any more.
    pub(crate) fn lose_regions(&self, links: &Arc<NodeLinks>) {
        self.lose_regions_below(links, u64::MAX);
    }

    /// One region is not ours any more, although the node knows the session: it had forgotten us, and a lease
    /// that was under way meanwhile introduced us anew. So no renewal tells; the region itself does.
    pub(crate) fn lose_region(&self, links: &Arc<NodeLinks>, region: RegionIndex, epoch: Epoch) {
        let mut held = self.held.lock();
        let is_it = |held: &&Arc<LeasedRegion>| {
            Arc::ptr_eq(&held.node, links) && held.region == region && held.epoch == epoch
        };
        if let Some(gone) = held.regions.values().find(is_it).cloned() {
            self.repair.request();
            gone.is_taken.store(true, Ordering::Release);
            self.forget_region(&mut held, &gone);
        }
    }

    fn lose_regions_below(&self, links: &Arc<NodeLinks>, below: u64) {
        let mut held = self.held.lock();
        let gone: Vec<Arc<LeasedRegion>> = held
            .regions
            .values()
            .filter(|region| Arc::ptr_eq(&region.node, links) && region.id < below)
            .cloned()
            .collect();
        if links.is_lost() && !gone.is_empty() {
            add(&self.base.counters.nodes_lost, 1);
        }
        if !gone.is_empty() {
            self.repair.request();
        }
        for region in gone {
            region.is_taken.store(true, Ordering::Release);
            self.forget_region(&mut held, &region);
        }
    }

    fn forget_region(&self, held: &mut Held, region: &LeasedRegion) {
        subtract(&self.base.counters.used_bytes, held.allocator.remove(region.id));
        held.regions.remove(&region.id);
        held.idle_for.remove(&region.id);
        region.node.forget(region.region);
        subtract(&self.base.counters.leased_bytes, region.node.info.region_bytes);
    }

    /// Gives everything back. Nodes that cannot be told free it by themselves.
    pub(crate) fn end(&self) {
        for links in self.nodes.all() {
            let release = self.release_all();
            let deadline = self.base.request_deadline();
            let _ = links.converse(deadline, Repeat::Harmless, |link| link.call(&release, deadline));
            links.mark_lost("the pool was closed");
            self.lose_regions(&links);
        }
    }

    fn release_all(&self) -> Request {
        let SessionProof { session, secret } = self.proof.clone();
        Request::Release(Release { session, secret, whole: true, regions: List::default() })
    }
}
