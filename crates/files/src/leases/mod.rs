//! Leases of a session: the nodes that granted them, the regions they are for, and the extents allocated in these.
//!
//! Methods are of four kinds. Those in this file contact a node, check and renew leases, and note losses. Those in
//! `leasing` allocate extents and lease more regions if these are full. Those in `renewal` are called by the session's
//! thread and by publishing: they renew, seal, and give back regions. Those in `watching` send requests to nodes that
//! may be silent. [`Leases::end`] gives everything back and comes last.
//!
//! Locks: the mutex `growing` is taken first and is held while the broker and nodes are asked for more memory. The lock
//! `held` is taken inside it, for each access, and never while anybody is asked. A thread that has it may lock the
//! table of nodes and a node's links.

mod leasing;
mod renewal;
mod segments;
mod watching;

pub(crate) use leasing::FULL_TRIES;
pub(crate) use watching::NodeRequest;
pub use watching::Waits;

use crate::broker::{Broker, answer_of};
use crate::error::Error;
use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
use crate::nodes::Nodes;
use crate::plan::{Allocation, Allocator, Group};
use crate::repair::Repair;
use crate::session_core::SessionCore;
use crate::stats::{add, subtract};
use farpool_host::HostMutex;
use farpool_lock::Mutex;
use farpool_transport::LinkError;
use farpool_wire::control::*;
use farpool_wire::limits::HOST_LABEL_LEVELS_MAX;
use farpool_wire::{Code, Epoch, Incarnation, List, MonoNs, RegionIndex, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes leased or sealed by one request, at most. A node makes so many ready well within a request's timeout.
const STEP_BYTES: u64 = 512 << 20;

/// Effort to get memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Long waits: for a broker that restarts, and for nodes that wipe regions.
    Full,
    /// One request, because the caller has an alternative. After a refusal none is sent for a while.
    Brief,
}

/// Regions that are held, and their use.
#[derive(Default)]
struct Held {
    allocator: Allocator<u64>,
    /// Regions by their numbers in this session.
    regions: BTreeMap<u64, Arc<LeasedRegion>>,
    /// Number of renewals for which each region has held no extent.
    idle_for: BTreeMap<u64, u32>,
    next_id: u64,
    /// Bytes of scratch regions that stay leased even if they are idle.
    floor_bytes: u64,
    /// Regions given back whose node has not received the release.
    unsent_releases: Vec<Arc<LeasedRegion>>,
}

/// Results of requests for memory, shared by the threads that ask.
#[derive(Default)]
struct Growing {
    /// Time at which the thread that holds the mutex began to wait for it.
    asked: MonoNs,
    /// Time until which requests with [`Patience::Brief`] fail without asking the broker, by the levels between hosts
    /// and the domains that they avoid ([`crate::plan::Apart`]).
    brief_until: [MonoNs; HOST_LABEL_LEVELS_MAX],
    /// Time until which requests are sent once and not retried, because no broker answered a moment ago.
    unreachable_until: MonoNs,
    /// Time at which a request with [`Patience::Full`] was last refused.
    refused_at: MonoNs,
    /// Time until which memory may become free that the broker promised to this session, at a node that did not answer.
    /// The broker counts it as in use until the ticket is too old.
    unredeemed_until: MonoNs,
    /// Tickets that a node was asked to redeem and did not answer, with the groups of files that need the memory. The
    /// node may have leased it, and is asked again: it would stay leased for nobody while the session lives.
    unanswered: Vec<(Group, TicketOffer)>,
}

/// Leases of a session.
pub(crate) struct Leases {
    base: Arc<SessionCore>,
    broker: Arc<Broker>,
    nodes: Arc<Nodes>,
    repair: Arc<Repair>,
    proof: SessionProof,
    ttl_ms: u64,
    grace_ms: u64,
    held: Mutex<Held>,
    /// Mutex under which a thread asks for more memory.
    growing: HostMutex<Growing>,
    /// Number of files that are sealed, or are being sealed, and have not been published.
    pub(crate) unnamed: AtomicU64,
    /// Number of the next request to copy ranges into segments.
    sealings: AtomicU64,
    /// True once a node has refused that as unknown.
    has_no_segments: AtomicBool,
    /// Copies in segments that will not be published, and of which their nodes were not told yet.
    given_up: Mutex<Vec<Allocation<Arc<LeasedRegion>>>>,
}

impl Leases {
    /// Makes an empty set of leases for the session that was opened.
    pub(crate) fn new(
        base: Arc<SessionCore>,
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
            growing: HostMutex::default(),
            unnamed: AtomicU64::new(0),
            sealings: AtomicU64::new(1),
            has_no_segments: AtomicBool::new(false),
            given_up: Mutex::default(),
        }
    }

    /// Returns the session id and its secret, which prove to nodes and the broker whose the leases are.
    pub(crate) fn proof(&self) -> &SessionProof {
        &self.proof
    }

    pub(crate) fn knows_region(&self, node: Incarnation, region: RegionIndex, epoch: Epoch) -> bool {
        let held = self.held.lock();
        let mut known = held.regions.values().chain(&held.unsent_releases);
        known.any(|one| (one.node.info.incarnation, one.region, one.epoch) == (node, region, epoch))
    }

    /// Returns the duration of a lease in ms.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// Returns the links to one life of a node. If that life was marked lost and answers again, makes new ones.
    pub(crate) fn links(&self, info: &NodeInfo) -> Result<Arc<NodeLinks>, Error> {
        self.nodes.links(info, |former, fresh| self.release_former(former, fresh))
    }

    /// Releases all that this session still holds at a node that was marked lost. The node may still keep it for us,
    /// and the next lease would prolong that.
    fn release_former(&self, former: &Arc<NodeLinks>, fresh: &NodeLinks) -> Result<(), Error> {
        self.lose_regions(former);
        let release = self.release_all();
        let deadline = self.base.request_deadline();
        fresh.converse(deadline, Repeat::Harmless, |link| match link.call(&release, deadline) {
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::UnknownSession => Ok(()),
            other => other.map(drop),
        })
    }

    /// Checks that the leases at the region's node still hold. Renews them first if they are past their time.
    pub(crate) fn check(&self, region: &LeasedRegion) -> Result<(), Error> {
        self.check_within(region, self.base.options.request_timeout_ms)
    }

    fn check_within(&self, region: &LeasedRegion, timeout_ms: u64) -> Result<(), Error> {
        region.check_usable()?;
        if region.is_leased && self.base.host.now() >= region.node.leased_until() {
            self.renew_within(&region.node, timeout_ms)?;
            region.check_usable()?;
        }
        Ok(())
    }

    /// Renews the leases at a node, or finds that they are over.
    pub(crate) fn renew(&self, links: &Arc<NodeLinks>) -> Result<(), Error> {
        self.renew_within(links, self.base.options.request_timeout_ms)
    }

    fn renew_within(&self, links: &Arc<NodeLinks>, timeout_ms: u64) -> Result<(), Error> {
        let asked = self.base.host.now();
        let deadline = self.base.deadline(timeout_ms);
        let renew = Request::Renew(self.proof.clone());
        // Regions leased while the request is under way are not covered by the answer.
        let below = self.held.lock().next_id;
        let answer = links.converse(deadline, Repeat::Harmless, |link| {
            // A node that does not know the session has freed its regions. That is an answer and not a failure.
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
                // The node reported over an earlier lease that it is draining. If it still is, it reports that with the
                // next lease. The broker grants no tickets for a draining node.
                links.set_draining(false);
                self.lose_regions_below(links, below);
            }
        }
        Ok(())
    }

    /// Notes that no region held at a node is ours any more. Returns these regions.
    pub(crate) fn lose_regions(&self, links: &Arc<NodeLinks>) -> Vec<Arc<LeasedRegion>> {
        self.lose_regions_below(links, u64::MAX)
    }

    /// Notes that one region is not ours any more, although the node knows the session. The node had forgotten the
    /// session, and a lease that was under way introduced it again. No renewal shows that; only the region itself does.
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

    fn lose_regions_below(&self, links: &Arc<NodeLinks>, below: u64) -> Vec<Arc<LeasedRegion>> {
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
        for region in &gone {
            region.is_taken.store(true, Ordering::Release);
            self.forget_region(&mut held, region);
        }
        gone
    }

    /// Takes a region out of what the session holds, unless another thread has done that: a region that is being sealed
    /// seems to be lost to whoever uses it then.
    fn forget_region(&self, held: &mut Held, region: &LeasedRegion) {
        if held.regions.remove(&region.id).is_none() {
            return;
        }
        subtract(&self.base.counters.used_bytes, held.allocator.remove(region.id));
        held.idle_for.remove(&region.id);
        region.node.forget(region.region);
        subtract(&self.base.counters.leased_bytes, region.node.info.region_bytes);
    }

    /// Gives everything back. Nodes that cannot be reached free it by themselves.
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
