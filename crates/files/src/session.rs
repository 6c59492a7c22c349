//! A session: what this process holds in the pool, and the conversations that keep it.
//!
//! It is made of what it knows: its [`Broker`], its [`Nodes`], the [`Leases`] it has there, the [`Repair`] of files
//! with bytes at them, and the [`Rebuilding`] of files that are lost. They share the [`Base`]; whoever wants something
//! of one of them asks that one. Each has its locks and says in which order they are taken; a session has none of its
//! own.
//!
//! Methods of three kinds: [`Session::open`] returns a session that the broker knows; those that follow are for use at
//! any time, by any thread; [`Session::close`] and [`Session::abandon`] end it, and whatever is asked afterwards is
//! refused.

use crate::base::Base;
use crate::broker::Broker;
use crate::disk_copy::WriteBehind;
use crate::error::{Error, ErrorKind};
use crate::kept::Kept;
use crate::leases::Leases;
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::nodes::Nodes;
use crate::options::PoolOptions;
use crate::plan::PageKey;
use crate::rebuilding::Rebuilding;
use crate::repair::Repair;
use crate::stats::{Counters, add};
use farpool_transport::landing::Keeper;
use farpool_transport::{Brokers, Dialer};
use farpool_wire::{MonoNs, Name};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// What this process holds in the pool of a broker, and the conversations that keep it.
pub struct Session {
    pub(crate) base: Arc<Base>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) repair: Arc<Repair>,
    pub(crate) leases: Leases,
    pub(crate) rebuilding: Rebuilding,
    /// Failure domains that can grant leases, as the broker said last.
    hosts: AtomicU32,
    /// Seals the pages of sealed files; made when the first of them is.
    page_key: OnceLock<Arc<PageKey>>,
    /// What waits for the local disk.
    pub(crate) behind: Arc<WriteBehind>,
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
        let leases = Leases::new(
            Arc::clone(&base),
            Arc::clone(&broker),
            Arc::clone(&nodes),
            Arc::clone(&repair),
            &opened,
        );
        Ok(Session {
            base,
            broker,
            nodes,
            repair,
            leases,
            rebuilding: Rebuilding::default(),
            hosts: AtomicU32::new(opened.hosts),
            page_key: OnceLock::new(),
            behind,
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
        self.leases.check(region)
    }

    /// What the background thread does until the session ends: renew, notice losses, give idle regions back. Whether to
    /// go on.
    ///
    /// The nodes come first, and the broker, which only lists us, last.
    pub(crate) fn keep_alive(self: &Arc<Self>) -> bool {
        let (period_ms, share_ms) = (self.leases.ttl_ms() / 3, self.leases.ttl_ms() / 4);
        if self.base.pause(period_ms.clamp(20, self.base.options.renew_ms_max)).is_err() {
            return false;
        }
        let share_ms = share_ms.min(self.base.options.request_timeout_ms);
        self.leases.renew_all(share_ms);
        if let Some(kept) = self.broker.keep(self.leases.proof(), share_ms)
            && self.hosts.swap(kept.hosts, Ordering::Relaxed) < kept.hosts
        {
            // What found no second place may find one now.
            self.repair.request();
        }
        self.leases.release_idle(share_ms);
        self.landing.age();
        if self.repair.claim() {
            let session = Arc::clone(self);
            if self.base.host.spawn("farpool-mending", Box::new(move || session.repair.run())).is_err() {
                // The next renewal tries again.
                self.repair.leave();
            }
        }
        true
    }

    /// Gives everything back and ends the session.
    pub(crate) fn close(&self) {
        if self.base.close() {
            self.leases.end();
            self.broker.close(self.leases.proof());
        }
    }

    /// Ends the session in this process without telling anybody: after a fork the connections are another
    /// process's conversations.
    pub(crate) fn abandon(&self) {
        self.base.abandon();
    }
}
