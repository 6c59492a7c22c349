//! The session of a process with a pool: its leases, its broker, the nodes it uses, and the thread that renews the
//! leases.

use crate::broker::{Broker, answer_of};
use crate::disk_copy::WriteBehind;
use crate::error::{Error, ErrorKind};
use crate::kept::Kept;
use crate::leases::Leases;
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::nodes::Nodes;
use crate::options::{PoolOptions, Protection};
use crate::plan::PageKey;
use crate::rebuilding::Rebuilding;
use crate::repair::Repair;
use crate::session_core::SessionCore;
use crate::stats::{Counters, add};
use farpool_transport::recv_buffers::RecvBufferPool;
use farpool_transport::times::ConnectionKind;
use farpool_transport::{Brokers, Dialer, Link, LinkError, Transport};
use farpool_wire::{Epoch, Incarnation, MonoNs, Name, Opcode, RegionIndex, Request, SessionId, TraceId};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Leases and connections of this process in the pool of one broker.
///
/// A session is made of parts: the `Broker`, the `Nodes`, the `Leases` at them, the `Repair` of files with lost copies,
/// and the `Rebuilding` of lost published files. All share one `SessionCore`. Code that needs one part calls that part.
///
/// Methods are of three kinds. `Session::open` opens the session at the broker and comes first. Most others may be
/// called at any time, by any thread. `Session::close` and `Session::abandon` end the session; every later request is
/// refused. `Session::keep_alive` is called by the session's own thread only, again and again.
///
/// The session has no lock of its own. Each part has its locks and says in which order they are taken.
pub struct Session {
    pub(crate) base: Arc<SessionCore>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) repair: Arc<Repair>,
    pub(crate) leases: Leases,
    pub(crate) rebuilding: Rebuilding,
    /// Tenant that the broker takes this process for.
    tenant: Name,
    /// Number of failure domains whose nodes can grant leases, as the broker last reported.
    hosts: AtomicU32,
    /// Most that it ever reported. A broker that has just begun to lead hears of its nodes one after the other.
    hosts_seen: AtomicU32,
    /// True if the broker keeps several copies of published files. It is asked when that first matters.
    knows_copies: OnceLock<bool>,
    /// Key that encrypts the pages of encrypted files. Made with the first such file.
    page_key: OnceLock<Arc<PageKey>>,
    /// Writes that wait for the local disk.
    pub(crate) behind: Arc<WriteBehind>,
    /// Handle that keeps the pool of receive buffers in use, so that replies are received into memory used before.
    pub(crate) recv_buffers: RecvBufferPool,
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
        let base = Arc::new(SessionCore::new(host, options)?);
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
            tenant: opened.tenant,
            hosts: AtomicU32::new(opened.hosts),
            hosts_seen: AtomicU32::new(opened.hosts),
            knows_copies: OnceLock::new(),
            page_key: OnceLock::new(),
            behind,
            recv_buffers: RecvBufferPool::new(),
            kept: Kept::default(),
        })
    }

    /// Returns the host, which gives clock, threads, random numbers and connections.
    pub fn host(&self) -> &Arc<dyn Dialer> {
        &self.base.host
    }

    /// Draws the trace id of a new query or call.
    pub fn draw_trace(&self) -> Result<TraceId, Error> {
        let mut random = [0; 8];
        let drawn = self.base.host.random(&mut random);
        drawn.map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        // 0 is no trace.
        Ok(TraceId(u64::from_le_bytes(random).max(1)))
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.base.counters
    }

    /// Returns the settings of the session.
    pub fn options(&self) -> &PoolOptions {
        &self.base.options
    }

    /// Fails if the session was closed, or was opened by the process that this one was forked from.
    pub fn check_open(&self) -> Result<(), Error> {
        self.base.check_open()
    }

    /// Returns the value of type `T` that crates built on this one keep with this session. Makes it on the first call.
    pub fn kept<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.kept.get()
    }

    /// Reports whether a node is on this machine.
    pub fn is_here(&self, node: &NodeLinks) -> bool {
        self.nodes.is_here(node)
    }

    /// Counts a request for ranges that was sent over this link at `sent` and is answered now.
    pub(crate) fn note_time(&self, link: &dyn Link, opcode: Opcode, sent: MonoNs) {
        let kind = match link.transport() {
            Transport::Shm => ConnectionKind::Shm,
            Transport::Tcp | Transport::Sim if self.options().tls.is_some() => ConnectionKind::Tls,
            Transport::Tcp | Transport::Sim => ConnectionKind::Tcp,
        };
        let now = self.host().now();
        // Threads that begin at about the same time seldom end at the same nanosecond: this spreads them over shards.
        self.base.times.note(now.0 >> 4, kind, opcode, now.0.saturating_sub(sent.0));
    }

    /// Counts the row groups of tables that a query read, and those it skipped.
    pub fn count_row_groups(&self, read: usize, skipped: usize) {
        add(&self.base.counters.row_groups_read, read as u64);
        add(&self.base.counters.row_groups_skipped, skipped as u64);
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.base.is_forked()
    }

    /// Returns the deadline of an operation that starts now and may take `timeout_ms`.
    pub fn deadline(&self, timeout_ms: u64) -> MonoNs {
        self.base.deadline(timeout_ms)
    }

    /// Returns the deadline of a request to one peer that is sent now.
    pub fn request_deadline(&self) -> MonoNs {
        self.base.request_deadline()
    }

    /// Returns the id by which the broker and the nodes know the session.
    pub fn id(&self) -> SessionId {
        self.leases.proof().session
    }

    /// Returns the tenant that the broker takes this process for.
    pub fn tenant(&self) -> &Name {
        &self.tenant
    }

    /// Waits until the reply to the oldest posted operation begins to arrive. Asks `node` now and then whether it is
    /// there, if others can do the same. Calls `meanwhile` before each look at the connection, which returns the time
    /// of the next one at the latest, or ends the waiting with an error.
    ///
    /// Errors: [`LinkError::TimedOut`] if the deadline passes, or if the node is silent.
    pub fn await_reply(
        &self,
        node: Option<&NodeLinks>,
        link: &mut dyn Link,
        deadline: MonoNs,
        meanwhile: impl Fn(MonoNs) -> Result<MonoNs, LinkError>,
    ) -> Result<(), LinkError> {
        self.leases.await_reply(node, link, deadline, meanwhile)
    }

    /// Asks a node whether it is there. Any answer will do.
    pub(crate) fn answers(&self, node: &NodeLinks) -> bool {
        self.leases.answers(node)
    }

    /// Returns the key of encrypted files. It never leaves this process and ends with the session.
    pub(crate) fn page_key(&self) -> Result<Arc<PageKey>, Error> {
        if let Some(key) = self.page_key.get() {
            return Ok(Arc::clone(key));
        }
        let mut secret = [0; 32];
        self.base.host.random(&mut secret).map_err(|error| {
            Error::new(ErrorKind::Refused, format!("cannot create an encryption key: {error}"))
        })?;
        Ok(Arc::clone(self.page_key.get_or_init(|| Arc::new(PageKey::new(&mut secret)))))
    }

    /// Returns how many failure domains have nodes that can grant leases.
    pub(crate) fn hosts(&self) -> u32 {
        self.hosts.load(Ordering::Relaxed)
    }

    /// Returns the largest number of failure domains with nodes that this session has heard of.
    pub(crate) fn hosts_seen(&self) -> u32 {
        self.hosts_seen.load(Ordering::Relaxed)
    }

    fn note_hosts(&self, hosts: u32) {
        self.hosts_seen.fetch_max(hosts, Ordering::Relaxed);
        if self.hosts.swap(hosts, Ordering::Relaxed) < hosts {
            // A file with too few copies may find a second host now.
            self.repair.note_nodes();
        }
    }

    /// Returns the protection of pinned files that choose none: a mirror, if the pool has two hosts and its broker
    /// keeps several copies. Asks the broker once if it seems that the pool has one host: a session that begins just
    /// after its broker hears of few nodes at first.
    pub(crate) fn default_protection(&self) -> Protection {
        if self.hosts() < 2
            && let Some(kept) = self.broker.keep(self.leases.proof(), self.base.options.request_timeout_ms)
        {
            self.note_hosts(kept.hosts);
        }
        if self.hosts() >= 2 && *self.knows_copies.get_or_init(|| self.broker.knows_copies()) {
            Protection::Mirror
        } else {
            Protection::None
        }
    }

    /// Returns a protection. Waits up to the duration of a lease if the pool had enough hosts for it before.
    ///
    /// Errors: the pool has too few hosts for it.
    pub(crate) fn check_hosts(&self, asked: Protection) -> Result<Protection, Error> {
        let hosts_min = asked.hosts_min();
        let give_up = self.deadline(self.leases.ttl_ms());
        while self.hosts() < hosts_min {
            // Another host may have come since the last heartbeat.
            let kept = self.broker.ask(&Request::KeepSession(self.leases.proof().clone()))?;
            self.note_hosts(answer_of!(kept, KeepSession)?.hosts);
            let had_enough = self.hosts_seen() >= hosts_min;
            if self.hosts() >= hosts_min || !had_enough || self.base.host.now() >= give_up {
                break;
            }
            self.base.pause(50)?;
        }
        let hosts = self.hosts();
        if hosts >= hosts_min {
            return Ok(asked);
        }
        let weaker = if hosts < 2 { "none" } else { "mirror" };
        let message = format!(
            "protection {asked} needs memory nodes on {hosts_min} hosts, and the pool has {hosts}: start nodes on \
             other hosts (or with other --host-label), or use protection {weaker}"
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Reports whether the session has a region, or has yet to give it back because the node did not answer.
    pub fn knows_region(&self, node: Incarnation, region: RegionIndex, epoch: Epoch) -> bool {
        self.leases.knows_region(node, region, epoch)
    }

    /// Checks that the session's leases at the region's node still hold. Renews them first if they are past their time.
    pub fn check_lease(&self, region: &LeasedRegion) -> Result<(), Error> {
        self.leases.check(region)
    }

    /// Waits for the next renewal, then renews the leases, notices lost nodes and gives idle regions back. The
    /// session's thread calls this until it returns false, which it does once the session has ended.
    ///
    /// The nodes are renewed first and the broker afterwards, because the broker only lists the session. What can wait
    /// is left for the next time if these took long, so that the next renewal comes before the leases end.
    pub(crate) fn keep_alive(self: &Arc<Self>) -> bool {
        let (period_ms, share_ms) = (self.leases.ttl_ms() / 3, self.leases.ttl_ms() / 4);
        if self.base.pause(period_ms.clamp(20, self.base.options.renew_ms_max)).is_err() {
            return false;
        }
        let share_ms = share_ms.min(self.base.options.request_timeout_ms);
        let late = self.base.deadline(share_ms);
        self.leases.renew_all(share_ms);
        if self.nodes.have_changed() {
            self.repair.note_nodes();
        }
        if let Some(kept) = self.broker.keep(self.leases.proof(), share_ms) {
            self.note_hosts(kept.hosts);
        }
        let is_late = || self.base.host.now() > late;
        if !is_late() {
            self.leases.find_unanswered(share_ms);
        }
        if !is_late() {
            self.leases.release_idle(share_ms);
            self.leases.send_given_up();
        }
        self.recv_buffers.age();
        if self.repair.claim() {
            let session = Arc::clone(self);
            if self.base.host.spawn("farpool-repair", Box::new(move || session.repair.run())).is_err() {
                // No thread could be started. The next renewal tries again.
                self.repair.leave();
            }
        }
        true
    }

    /// Ends the session and gives everything back.
    pub(crate) fn close(&self) {
        if self.base.close() {
            self.leases.end();
            self.broker.close(self.leases.proof());
        }
    }

    /// Ends the session in this process only, without a message to anybody. Called after a fork, when the connections
    /// belong to the parent process.
    pub(crate) fn abandon(&self) {
        self.base.abandon();
    }
}
