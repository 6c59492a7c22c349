//! Service of a broker: takes a request, decides under one lock, commits the records, and replies.

use crate::news::event_of;
use crate::stores::Store;
use crate::waits::Waits;
use farpool_host::{Event, Host, HostMutex, Level};
use farpool_lease::broker::{SessionStatus, StateChange};
use farpool_lease::{BrokerLeases, BrokerSettings, tenant, ticket};
use farpool_lock::MutexGuard;
use farpool_transport::delay::{Delay, Waker};
use farpool_transport::times::OperationTimes;
use farpool_transport::{Identity, Peer, Service};
use farpool_wire::control::{ListNames, Names, RepairsListed, StatusReport};
use farpool_wire::limits::AWAIT_MS_MAX;
use farpool_wire::{Code, Name, Refusal, Reply, Request, SessionId, Term, mutant};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Transactions in which one look drops what nobody needs of tables, at most.
const TIDY_STEPS: usize = 8;

struct Core {
    leases: BrokerLeases,
    store: Box<dyn Store>,
    waits: Waits,
    /// Signals of requests that wait no more, until they are given without the lock.
    woken: Vec<Waker>,
}

/// Service that answers the peers of a broker. It has no listener.
pub struct BrokerService {
    host: Arc<dyn Host>,
    /// Mutex held from a decision until its records are in the store.
    core: HostMutex<Core>,
    /// True once a commit has failed. Memory and store may then differ, so nothing is answered any more.
    has_failed: AtomicBool,
    /// Times of the requests that were answered.
    times: OperationTimes,
    /// Requests that wait for changes of names.
    waits: Waits,
}

/// Returns the tenant that the certificate of a peer names. Peers without TLS are of the local tenant.
fn tenant_of(peer: &Peer) -> Name {
    peer.identity.as_ref().and_then(Identity::tenant_name).unwrap_or_else(tenant::local)
}

impl BrokerService {
    /// Begins a new term with the records of the store.
    pub fn open(
        host: Arc<dyn Host>,
        settings: impl Into<BrokerSettings>,
        mut store: Box<dyn Store>,
    ) -> io::Result<BrokerService> {
        let settings = settings.into();
        if let Some(mistake) = settings.mistakes().into_iter().next() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, mistake));
        }
        let mut durable = store.load().map_err(io::Error::other)?;
        // The store may be new, or restored from an older backup, and then does not know the last term that nodes have
        // seen. Milliseconds since 1970 are greater than any earlier such value plus the restarts since. (`mutant!` is
        // false, except in tests that make this mistake on purpose.)
        if durable.term == Term(0) || !mutant!(TermKept) {
            durable.term = durable.term.max(Term(host.wall_ms()));
        }
        let mut key = [0; 32];
        host.random(&mut key)?;
        let mut records = Vec::new();
        let leases = BrokerLeases::start(host.now(), settings, durable, key, &mut records);
        store.commit(&records).map_err(io::Error::other)?;
        let waits = Waits::default();
        Ok(BrokerService {
            host,
            core: HostMutex::new(Core { leases, store, waits: waits.clone(), woken: Vec::new() }),
            has_failed: AtomicBool::new(false),
            times: OperationTimes::default(),
            waits,
        })
    }

    /// Returns the term of the broker.
    pub fn term(&self) -> Term {
        self.core().leases.term()
    }

    /// Returns the state of the whole pool.
    pub fn status(&self) -> StatusReport {
        self.core().leases.status(self.host.now(), &tenant::admin())
    }

    /// Returns a page of the published files of all tenants.
    pub fn names(&self, list: &ListNames) -> Names {
        self.core().leases.list_names(&tenant::admin(), list)
    }

    /// Returns what published files of all tenants lack.
    pub fn repairs(&self) -> RepairsListed {
        self.core().leases.list_repairs(self.host.now(), &tenant::admin())
    }

    /// Returns the first `count_max` sessions.
    pub fn sessions(&self, count_max: usize) -> Vec<SessionStatus> {
        self.core().leases.sessions(self.host.now(), count_max)
    }

    /// Returns how many requests wait for changes of names.
    pub fn waiting(&self) -> usize {
        self.waits.count()
    }

    /// Has requests that wait be answered now. They are refused if this broker does not lead at the moment.
    pub(crate) fn wake_waits(&self) {
        self.waits.all().iter().for_each(Waker::wake);
    }

    /// Has requests that wait be answered now, and lets none wait any more, because another broker leads.
    pub(crate) fn end_waits(&self) {
        self.waits.end();
    }

    /// Notes that this broker goes on to answer, after it did not know for a while whether it leads.
    pub(crate) fn resume(&self) {
        self.core().leases.resume(self.host.now());
    }

    /// Finds changes of the pool that come with time and without a request, such as a node that has fallen silent, and
    /// logs them. Ends snapshots of tables whose time is over.
    pub fn look(&self) {
        let mut core = self.core();
        core.leases.tick(self.host.now());
        self.tell(core);
        // Requests get their turn in between, and a leader has to say in time that it lives.
        for _ in 0..TIDY_STEPS {
            if self.has_failed() || !self.tidy_tables() {
                return;
            }
        }
    }

    /// Ends snapshots and drops what nobody needs of tables: as much as one transaction holds. Returns whether there is
    /// more to do.
    fn tidy_tables(&self) -> bool {
        let mut records = Vec::new();
        let mut core = self.core();
        let more = core.leases.tidy_tables(self.host.now(), self.host.wall_ms(), &mut records);
        let is_stored = core.store(&*self.host, &self.has_failed, &records).is_ok();
        self.tell(core);
        is_stored && more
    }

    /// Wakes requests that wait for what has changed, and logs what has changed in the pool. Releases the lock first,
    /// because writing a log may take long.
    fn tell(&self, mut core: MutexGuard<'_, Core>) {
        let news = core.leases.take_news();
        let woken = std::mem::take(&mut core.woken);
        drop(core);
        woken.iter().for_each(Waker::wake);
        news.into_iter().for_each(|news| self.host.log(&event_of(news)));
    }

    /// Reports whether the store has failed. The broker answers nothing from then on.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.take(&*self.host)
    }
}

/// Checks that a peer with this identity may send this request. A node speaks for itself only. Requests about sessions,
/// names and files come from tenants and the administrator.
fn check_permitted(identity: &Identity, request: &Request) -> Result<(), Refusal> {
    let is_permitted = match request {
        Request::Offer(offer) => {
            let info = &offer.info;
            *identity == Identity::Node(info.node) && ticket::node_id(&info.name) == info.node
        }
        Request::Inventory(inventory) => *identity == Identity::Node(inventory.node),
        Request::OfferMemory(memory) => *identity == Identity::Node(memory.node),
        Request::NextRepair(asked) => *identity == Identity::Node(asked.node),
        Request::Segments(report) => *identity == Identity::Node(report.node),
        Request::EndRepair(report) => *identity == Identity::Node(report.order.node),
        Request::Status(_) | Request::ListMemory(_) => true,
        _ => matches!(identity, Identity::Tenant(_) | Identity::Admin),
    };
    is_permitted.then_some(()).ok_or(Refusal::new(Code::NotPermitted, request.opcode() as u64))
}

impl Core {
    fn answer(
        &mut self,
        host: &dyn Host,
        failed: &AtomicBool,
        peer: &Peer,
        request: Request,
    ) -> Result<Reply, Refusal> {
        let (now, tenant) = (host.now(), &tenant_of(peer));
        let leases = &mut self.leases;
        leases.tick(now);
        let mut records: Vec<StateChange> = Vec::new();
        let answer = match request {
            Request::OpenSession(open) => {
                let mut fresh = [0; 8];
                host.random(&mut fresh).map_err(|_| Refusal::new(Code::StoreFailed, 0))?;
                // Zero means "no session" on the wire.
                let fresh = SessionId(u64::from_le_bytes(fresh).max(1));
                leases.open_session(now, tenant, &open, fresh).map(Reply::OpenSession)
            }
            Request::KeepSession(proof) => leases.keep_session(now, tenant, &proof).map(Reply::KeepSession),
            Request::CloseSession(proof) => {
                leases.close_session(now, tenant, &proof).map(Reply::CloseSession)
            }
            Request::RequestTickets(request) => {
                leases.request_tickets(now, tenant, &request).map(Reply::RequestTickets)
            }
            Request::PublishPlaces(publish) => {
                leases.publish(now, tenant, &publish, &mut records).map(Reply::PublishPlaces)
            }
            Request::OpenPlaces(by) => leases.open_places(tenant, &by.name).map(Reply::OpenPlaces),
            Request::Publish(publish) => {
                leases.publish_extents(now, tenant, &publish, &mut records).map(Reply::Publish)
            }
            Request::OpenName(by) => leases.open_extents(tenant, &by.name).map(Reply::OpenName),
            Request::DropName(by) => leases.drop_name(tenant, &by.name, &mut records).map(Reply::DropName),
            Request::RenameName(rename) => {
                leases.rename(tenant, &rename, &mut records).map(Reply::RenameName)
            }
            Request::ListNames(list) => Ok(Reply::ListNames(leases.list_names(tenant, &list))),
            Request::Status(_) => Ok(Reply::Status(leases.status(now, tenant))),
            Request::Drain(order) => leases.drain(tenant, &order).map(Reply::Drain),
            Request::ListMemory(_) => Ok(Reply::ListMemory(leases.list_memory())),
            Request::OfferMemory(memory) => {
                leases.offer_memory(peer.connection, memory).map(Reply::OfferMemory)
            }
            Request::NextRepair(asked) => {
                leases.next_repair(now, peer.connection, &asked, &mut records).map(Reply::NextRepair)
            }
            Request::EndRepair(report) => {
                leases.end_repair(now, peer.connection, &report, &mut records).map(Reply::EndRepair)
            }
            Request::ClaimRebuild(claim) => {
                leases.claim_rebuild(now, tenant, &claim).map(Reply::ClaimRebuild)
            }
            Request::AddParts(add) => leases.add_parts(now, tenant, &add, &mut records).map(Reply::AddParts),
            Request::CommitTables(commit) => {
                let made = leases.commit_tables(now, host.wall_ms(), tenant, &commit, &mut records);
                // Another broker may lead by now, and have made this very commit. It has not if there is a conflict:
                // the root was replaced while this one led.
                if made.as_ref().is_err_and(|refusal| refusal.code != Code::Conflict)
                    && self.store.confirm().is_err()
                {
                    return Err(Refusal::new(Code::NotLeader, 0));
                }
                made.map(Reply::CommitTables)
            }
            Request::OpenTable(open) => leases.open_table(now, tenant, &open).map(Reply::OpenTable),
            Request::OpenParts(open) => leases.open_parts(tenant, &open).map(Reply::OpenParts),
            Request::HoldSnapshots(hold) => {
                leases.hold_snapshots(now, tenant, &hold).map(Reply::HoldSnapshots)
            }
            Request::ListSnapshots(list) => leases.list_snapshots(tenant, &list).map(Reply::ListSnapshots),
            Request::AwaitNames(asked) => leases.await_names(now, tenant, &asked).map(Reply::AwaitNames),
            Request::ListRepairs(_) => Ok(Reply::ListRepairs(leases.list_repairs(now, tenant))),
            Request::Offer(offer) => leases.offer(now, peer.connection, offer).map(Reply::Offer),
            Request::Segments(report) => leases.segments(peer.connection, &report).map(Reply::Segments),
            Request::Inventory(inventory) => {
                leases.inventory(now, peer.connection, inventory).map(Reply::Inventory)
            }
            other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
        }?;
        self.store(host, failed, &records)?;
        Ok(answer)
    }

    /// Commits records to the store.
    fn store(
        &mut self,
        host: &dyn Host,
        failed: &AtomicBool,
        records: &[StateChange],
    ) -> Result<(), Refusal> {
        if records.is_empty() || mutant!(AnsweredBeforeStored) {
            return Ok(());
        }
        self.store.commit(records).map_err(|error| {
            let term = self.leases.term();
            let message = format!(
                "{error}; this broker answers no more requests in term {term}: restart it, unless another takes over"
            );
            host.log(&Event::error("store_failed", message));
            failed.store(true, Ordering::Release);
            self.woken.extend(self.waits.all());
            Refusal::new(Code::StoreFailed, 0)
        })?;
        self.woken.extend(self.waits.changed_by(records));
        Ok(())
    }
}

impl Service for BrokerService {
    fn times(&self) -> Option<&OperationTimes> {
        Some(&self.times)
    }

    fn delay(&self, peer: &Peer, request: &Request) -> Result<Option<Delay>, Refusal> {
        let Request::AwaitNames(asked) = request else { return Ok(None) };
        if let Some(identity) = &peer.identity {
            check_permitted(identity, request)?;
        }
        let mut core = self.core();
        let now = self.host.now();
        core.leases.tick(now);
        let answer = core.leases.await_names(now, &tenant_of(peer), asked)?;
        let is_same = asked.known.iter().zip(answer.now.iter()).all(|(known, now)| known.file == now.file);
        if !is_same || asked.wait_ms == 0 || self.has_failed() {
            return Ok(None);
        }
        // A process with too many open files answers at once.
        let Ok(waker) = Waker::new() else { return Ok(None) };
        // No record is stored while the lock is held, so no change is missed.
        let wait = self.waits.add(&tenant_of(peer), asked, &waker)?;
        let ms = asked.wait_ms.min(AWAIT_MS_MAX).into();
        Ok(wait.map(|wait| Delay { waker, ms, kept: Box::new(wait) }))
    }

    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        if let Some(identity) = &peer.identity {
            check_permitted(identity, &request)?;
        }
        let mut core = self.core();
        if self.has_failed() {
            return Err(Refusal::new(Code::StoreFailed, 0));
        }
        let opcode = request.opcode();
        let answer = core.answer(&*self.host, &self.has_failed, peer, request);
        self.tell(core);
        if let Err(refusal) = &answer
            && self.host.logs(Level::Debug)
        {
            let tenant = tenant_of(peer);
            let message = format!("refused {opcode:?} of tenant {tenant}: {refusal}");
            self.host.log(&Event::debug("refused", message).tenant(&*tenant).trace(peer.trace));
        }
        answer
    }
}
