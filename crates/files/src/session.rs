//! A session: what this process holds in the pool, and the conversations that keep it.

use crate::base::Base;
use crate::broker::{Broker, answer_of};
use crate::disk_copy::WriteBehind;
use crate::error::{Error, ErrorKind};
use crate::kept::Kept;
use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
use crate::nodes::Nodes;
use crate::options::PoolOptions;
use crate::plan::{Allocator, PageKey};
use crate::rebuilding::Rebuilding;
use crate::repair::Repair;
use crate::stats::{Counters, add, subtract};
use farpool_host::Turn;
use farpool_lock::Mutex;
use farpool_transport::landing::Keeper;
use farpool_transport::{Brokers, Dialer, LinkError};
use farpool_wire::control::*;
use farpool_wire::{Code, Epoch, List, MonoNs, Name, RegionIndex, Request};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What the session holds, and what is known of it.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) allocator: Allocator<u64>,
    pub(crate) regions: BTreeMap<u64, Arc<LeasedRegion>>,
    pub(crate) idle_for: BTreeMap<u64, u32>,
    pub(crate) next_id: u64,
    /// Until when not to ask for memory that there is another way for.
    pub(crate) brief_until: MonoNs,
    /// Until when to ask for memory but once: no broker answered a moment ago.
    pub(crate) unreachable_until: MonoNs,
    /// When somebody last heard that there is none, in spite of their patience.
    pub(crate) refused_at: MonoNs,
}

/// What this process holds in the pool of a broker, and the conversations that keep it.
pub struct Session {
    pub(crate) base: Arc<Base>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) proof: SessionProof,
    pub(crate) lease_ttl_ms: u32,
    pub(crate) grace_ms: u32,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) held: Mutex<Held>,
    /// One thread at a time asks for more.
    pub(crate) growing: Turn<()>,
    /// Scratch bytes that stay leased however idle they are.
    pub(crate) floor_bytes: AtomicU64,
    /// Failure domains that can grant leases, as the broker said last.
    pub(crate) hosts: AtomicU32,
    /// Seals the pages of sealed files; made when the first of them is.
    page_key: OnceLock<Arc<PageKey>>,
    /// What waits for the local disk.
    pub(crate) behind: Arc<WriteBehind>,
    pub(crate) repair: Arc<Repair>,
    /// Regions given up whose node has not heard of it.
    pub(crate) unheard: Mutex<Vec<Arc<LeasedRegion>>>,
    pub(crate) rebuilding: Rebuilding,
    /// What has been received is to be received into again.
    pub(crate) landing: Keeper,
    kept: Kept,
}

impl Session {
    pub(crate) fn open(
        host: Arc<dyn Dialer>,
        brokers: Brokers,
        options: PoolOptions,
    ) -> Result<Session, Error> {
        options.check()?;
        let label = options.label.clone().unwrap_or_else(|| format!("pid {}", std::process::id()));
        let label = Name::new(label).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let base = Arc::new(Base::new(host, options)?);
        let (host, counters) = (base.host.clone(), Arc::clone(&base.counters));
        let behind = Arc::new(WriteBehind::new(host, counters, base.options.write_behind_bytes));
        let nodes = Arc::new(Nodes::new(Arc::clone(&base)));
        let repair = Arc::new(Repair::new(Arc::clone(&base)));
        let broker = Arc::new(Broker::new(Arc::clone(&base), brokers, Arc::clone(&nodes)));
        let opened = broker.open(label)?;
        Ok(Session {
            base,
            broker,
            proof: SessionProof { session: opened.session, secret: opened.secret },
            lease_ttl_ms: opened.lease_ttl_ms,
            grace_ms: opened.grace_ms,
            nodes,
            held: Mutex::default(),
            growing: Turn::default(),
            floor_bytes: AtomicU64::new(0),
            hosts: AtomicU32::new(opened.hosts),
            page_key: OnceLock::new(),
            behind,
            repair,
            unheard: Mutex::default(),
            rebuilding: Rebuilding::default(),
            landing: Keeper::new(),
            kept: Kept::default(),
        })
    }

    /// Returns the clock, the threads, the random numbers and the ways to others that it has.
    pub fn host(&self) -> &Arc<dyn Dialer> {
        &self.base.host
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.base.counters
    }

    /// Returns its settings.
    pub fn options(&self) -> &PoolOptions {
        &self.base.options
    }

    /// Refuses what is asked of a session that was closed, or that another process opened.
    pub fn check_open(&self) -> Result<(), Error> {
        self.base.check_open()
    }

    /// Returns what those who build on this session keep with it, of this type.
    pub fn kept<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.kept.get()
    }

    /// Returns true if a node is on this machine.
    pub fn is_here(&self, node: &NodeLinks) -> bool {
        self.nodes.is_here(node)
    }

    /// Counts row groups of tables that a query needs, and those that it passed over.
    pub fn count_row_groups(&self, read: usize, skipped: usize) {
        add(&self.base.counters.row_groups_read, read as u64);
        add(&self.base.counters.row_groups_skipped, skipped as u64);
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.base.is_forked()
    }

    /// Until when something that begins now may last.
    pub fn deadline(&self, timeout_ms: u64) -> MonoNs {
        self.base.deadline(timeout_ms)
    }

    /// Until when one peer may be waited for that is asked now.
    pub fn request_deadline(&self) -> MonoNs {
        self.base.request_deadline()
    }

    pub(crate) fn proof(&self) -> SessionProof {
        self.proof.clone()
    }

    /// The links to a life of a node. One that was given up as lost, and is there after all, is begun anew with.
    pub(crate) fn links(&self, info: &NodeInfo) -> Result<Arc<NodeLinks>, Error> {
        self.nodes.links(info, |former, fresh| self.leave_behind(former, fresh))
    }

    /// What we had at a node and gave up as lost, the node may still keep for us, and the next lease would prolong
    /// that.
    fn leave_behind(&self, former: &Arc<NodeLinks>, fresh: &NodeLinks) -> Result<(), Error> {
        self.lose_regions(former);
        let release = Request::Release(Release {
            session: self.proof.session,
            secret: self.proof.secret,
            whole: true,
            regions: List::default(),
        });
        let deadline = self.request_deadline();
        fresh.converse(deadline, Repeat::Harmless, |link| match link.call(&release, deadline) {
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::UnknownSession => Ok(()),
            other => other.map(drop),
        })
    }

    /// The key of sealed files. It never leaves this process, nor outlives the session.
    pub(crate) fn page_key(&self) -> Result<Arc<PageKey>, Error> {
        if let Some(key) = self.page_key.get() {
            return Ok(Arc::clone(key));
        }
        let mut secret = [0; 32];
        self.base
            .host
            .random(&mut secret)
            .map_err(|error| Error::new(ErrorKind::Refused, format!("no key could be made: {error}")))?;
        Ok(Arc::clone(self.page_key.get_or_init(|| Arc::new(PageKey::new(&mut secret)))))
    }

    /// Failure domains that can grant leases.
    pub(crate) fn hosts(&self) -> u32 {
        self.hosts.load(Ordering::Relaxed)
    }

    /// Makes sure our leases at a node still hold, renewing at once if the time for it was missed.
    pub fn check_lease(&self, region: &LeasedRegion) -> Result<(), Error> {
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

    pub(crate) fn renew_within(&self, links: &Arc<NodeLinks>, timeout_ms: u64) -> Result<(), Error> {
        let asked = self.base.host.now();
        let deadline = self.deadline(timeout_ms);
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

    pub(crate) fn forget_region(&self, held: &mut Held, region: &LeasedRegion) {
        subtract(&self.base.counters.used_bytes, held.allocator.remove(region.id));
        held.regions.remove(&region.id);
        held.idle_for.remove(&region.id);
        region.node.forget(region.region);
        subtract(&self.base.counters.leased_bytes, region.node.info.region_bytes);
    }

    /// Gives everything back and ends the session. Nodes that cannot be told free it by themselves.
    pub(crate) fn close(&self) {
        if !self.base.close() {
            return;
        }
        for links in self.nodes.all() {
            let release = Request::Release(Release {
                session: self.proof.session,
                secret: self.proof.secret,
                whole: true,
                regions: List::default(),
            });
            let deadline = self.request_deadline();
            let _ = links.converse(deadline, Repeat::Harmless, |link| link.call(&release, deadline));
            links.mark_lost("the pool was closed");
            self.lose_regions(&links);
        }
        self.broker.close(&self.proof);
    }

    /// Ends the session in this process without telling anybody: after a fork the connections are another
    /// process's conversations.
    pub(crate) fn abandon(&self) {
        self.base.abandon();
    }
}
