//! The service of a node. Data operations enter the gates of their regions, which count the operations inside, and take
//! no lock. Control messages change leases under the lease lock.

use crate::admission_queue::AdmissionQueue;
use crate::admit::admit;
use crate::copy_order::CopyOrder;
use crate::copy_steps::{checksums, copy_out, each_step};
use crate::extension::{Extend, Extension};
use crate::memory::{Inside, Memory, Range};
use crate::observation::PressureSeen;
use crate::options::Limits;
use farpool_host::{Event, Host, HostEvent, HostMutex, Level};
use farpool_lease::NodeLeases;
use farpool_lease::node::Action;
use farpool_lease::ticket::TicketKey;
use farpool_lock::{Mutex, MutexGuard};
use farpool_region::{Arena, GATE_BYTES_MAX, RANGES_MAX, RegionError, SharedAccess};
use farpool_transport::times::OperationTimes;
use farpool_transport::{Admission, Dialer, Identity, Intent, Peer, RefusedAt, Service, Shared, Successor};
use farpool_wire::control::*;
use farpool_wire::data::{Span, spans_behind};
use farpool_wire::{
    Code, Handle, Incarnation, Name, NodeId, Opcode, Refusal, RegionIndex, Reply, Request, SessionId,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of served operations, updated without locks.
#[derive(Default)]
struct Counters {
    read_ops: AtomicU64,
    read_bytes: AtomicU64,
    write_ops: AtomicU64,
    write_bytes: AtomicU64,
    refused_ops: AtomicU64,
    mapped_regions: AtomicU64,
}

/// Work for the housekeeping and reporting threads.
#[derive(Default)]
pub(crate) struct Chores {
    /// Closed regions to zero.
    pub(crate) scrub: VecDeque<RegionIndex>,
    /// True if something changed that the broker should learn.
    pub(crate) report: bool,
    /// True once a client on this host has leased. Others will follow, and mappable memory takes time to make.
    pub(crate) sharing_wanted: bool,
    /// True once a client has leased for pinned files. Their regions are sealed, which costs nothing if they are
    /// mappable.
    pub(crate) sealing_wanted: bool,
    /// Count of starts and ends of prefaults, which consume the host's memory.
    pub(crate) touched: u64,
    /// True once the broker has answered this node's first report.
    pub(crate) joined: bool,
    /// True once the node was told to end, holds nothing any more, and the broker knows or cannot be told.
    pub(crate) drained: bool,
    /// True once the node stops.
    pub(crate) stop: bool,
}

/// A node's leases and memory, without listeners and threads.
///
/// It implements [`Service`]: connection threads call it, many at once. Data operations take none of its locks; they
/// enter the gate of each region and check the rights there. Control messages take the lease lock, decide, and carry
/// the effects out to the gates before they release it and reply. Slow work (zeroing, moving bytes of an extent that is
/// made immutable) runs without the lease lock; the set `moving` keeps its regions from being wiped or granted
/// meanwhile.
///
/// Order of calls: [`Self::begin`], then [`Self::within`] and [`Self::extended`] before it serves anybody. Then
/// [`keep_time`](crate::keep_time), [`keep_house`](crate::keep_house) and [`report`](crate::report) run beside it, each
/// on its own thread, until [`Self::stop`].
pub struct NodeService<M = Arena> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) arena: Arc<M>,
    /// Rules and state of the leases. The lock is held from a decision until its effects have reached the gates, and
    /// therefore also while a closing gate waits for the operations inside.
    leases: HostMutex<NodeLeases>,
    pub(crate) chores: Mutex<Chores>,
    pub(crate) chores_changed: HostEvent,
    /// Event that is signalled once, when the node stops.
    pub(crate) stopped: HostEvent,
    counters: Counters,
    /// Times of the operations that were served.
    pub(crate) times: OperationTimes,
    /// Memory of the host as it was seen last.
    pub(crate) pressure_seen: Mutex<PressureSeen>,
    /// Regions that could not be zeroed, or were not zero when they were to be granted. They are never granted again.
    withheld: Mutex<BTreeSet<RegionIndex>>,
    /// Regions that a thread makes ready for a lease, or whose bytes it moves to make them immutable, without the lease
    /// lock. Nobody zeroes or grants them meanwhile.
    pub(crate) moving: Mutex<BTreeSet<RegionIndex>>,
    /// Event that is signalled when regions leave `moving`.
    pub(crate) moved: HostEvent,
    /// Order to make copies of a published file.
    pub(crate) copy_order: CopyOrder,
    /// Extension that answers the requests that are about neither leases nor bytes.
    pub(crate) extension: Box<dyn Extension>,
    /// Admission queue of the connections that move data.
    admission_queue: Arc<AdmissionQueue>,
}

/// Values that distinguish this life of a node (one run of its process) from earlier ones.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Random number of this life.
    pub incarnation: Incarnation,
    /// Key that signs and checks the tickets of this life.
    pub ticket_key: TicketKey,
}

/// Returns the session of a request about leases. `None` for other requests.
fn session_of(request: &Request) -> Option<SessionId> {
    match request {
        Request::Lease(lease) => Some(lease.ticket.session),
        Request::Seal(seal) => Some(seal.session),
        Request::SealRanges(seal) => Some(seal.session),
        Request::Renew(proof) => Some(proof.session),
        Request::Release(release) => Some(release.session),
        _ => None,
    }
}

fn fresh<const N: usize>(host: &dyn Host) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    host.random(&mut bytes)?;
    Ok(bytes)
}

/// Returns the tenant that the connection proves. `None` without TLS; a process of this machine may then present any
/// tenant's ticket, because a local socket shows only the user.
fn tenant_of(peer: &Peer) -> Option<Name> {
    peer.identity.as_ref().and_then(Identity::tenant_name)
}

/// Reports whether a peer may have sessions. Nodes and brokers may not.
fn has_sessions(peer: &Peer) -> bool {
    matches!(peer.identity, None | Some(Identity::Tenant(_) | Identity::Admin))
}

/// Returns the number of connections that move data at once: one for each CPU, because moving data waits for nothing
/// else.
fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns a secret random number that is not 0.
pub fn fresh_handle(host: &dyn Host) -> Result<Handle, Refusal> {
    // A node without random numbers has no handles, and can grant nothing.
    let bytes = fresh(host).map_err(|_| Refusal::new(Code::Exhausted, 0))?;
    // The lowest bit is set, so that the handle is not 0: a gate without a handle holds 0.
    Ok(Handle(u128::from_le_bytes(bytes) | 1))
}

/// Ignores the error that a region's gate is closed: a region that is still being made ready for its holder has nothing
/// to suspend.
fn unless_closed(result: Result<(), RegionError>) -> Result<(), RegionError> {
    match result {
        Err(RegionError::NotOpen { .. }) => Ok(()),
        other => other,
    }
}

impl<M: Memory> NodeService<M> {
    /// Makes the service of a node over memory that no client has used in this life of the node. Each call draws a new
    /// incarnation and ticket key.
    pub fn begin(host: Arc<dyn Host>, arena: M, node: NodeId) -> io::Result<(Self, Life)> {
        let incarnation = Incarnation(u64::from_le_bytes(fresh(&*host)?).max(1));
        let ticket_key = fresh(&*host)?;
        let mut leases = NodeLeases::new(node, incarnation, ticket_key, arena.region_count());
        let mut scrub = VecDeque::new();
        for region in (0..arena.region_count()).map(RegionIndex) {
            // Fresh mappings are zero. A device still has the bytes of an earlier node.
            if arena.begins_clean() {
                let _ = leases.scrubbed(region);
            } else {
                scrub.push_back(region);
            }
        }
        let service = NodeService::new(host, arena, leases);
        service.chores.lock().scrub = scrub;
        Ok((service, Life { incarnation, ticket_key }))
    }

    /// Sets limits on the work for clients. Called before the node serves anybody.
    pub fn within(mut self, limits: &Limits) -> Self {
        self.admission_queue = AdmissionQueue::new(Arc::clone(&self.host), slots(), limits);
        self
    }

    /// Adds an extension. Called before the node serves anybody.
    pub fn extended(mut self, dialer: Arc<dyn Dialer>, extend: Extend<M>) -> io::Result<Self> {
        self.extension = extend(Arc::clone(&self.host), dialer, Arc::clone(&self.arena))?;
        Ok(self)
    }

    fn new(host: Arc<dyn Host>, arena: M, leases: NodeLeases) -> Self {
        NodeService {
            admission_queue: AdmissionQueue::new(Arc::clone(&host), slots(), &Limits::default()),
            host,
            arena: Arc::new(arena),
            leases: HostMutex::new(leases),
            chores: Mutex::default(),
            chores_changed: HostEvent::default(),
            stopped: HostEvent::default(),
            counters: Counters::default(),
            times: OperationTimes::default(),
            pressure_seen: Mutex::default(),
            withheld: Mutex::default(),
            moving: Mutex::default(),
            moved: HostEvent::default(),
            copy_order: CopyOrder::default(),
            extension: Box::new(()),
        }
    }

    /// Locks the leases and returns them.
    pub fn leases(&self) -> MutexGuard<'_, NodeLeases> {
        self.leases.take(&*self.host)
    }

    /// Locks the leases and returns them. `None` if another thread holds the lock.
    pub fn try_leases(&self) -> Option<MutexGuard<'_, NodeLeases>> {
        self.leases.try_take()
    }

    /// Returns the memory.
    pub fn memory(&self) -> &M {
        &self.arena
    }

    /// Reports whether the node was told to end, holds nothing any more, and the broker knows or cannot be told.
    pub fn is_drained(&self) -> bool {
        self.chores.lock().drained
    }

    /// Stops the background threads.
    pub fn stop(&self) {
        self.chores.lock().stop = true;
        self.chores_changed.signal();
        self.stopped.signal();
        self.copy_order.wake();
        self.admission_queue.lift_limits();
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            read_ops: read(&self.counters.read_ops),
            read_bytes: read(&self.counters.read_bytes),
            write_ops: read(&self.counters.write_ops),
            write_bytes: read(&self.counters.write_bytes),
            refused_ops: read(&self.counters.refused_ops),
            mapped_regions: read(&self.counters.mapped_regions),
            spun_ns: self.host.spun_ns(),
        }
    }

    /// Turns a disagreement between leases and gates, which is a bug of this program, into a logged error. The caller
    /// then grants nothing.
    pub(crate) fn agree(&self, result: Result<(), RegionError>) -> Result<(), Refusal> {
        result.map_err(|error| {
            self.host.log(&Event::error("bug", format!("leases and memory disagree: {error}")));
            Refusal::new(Code::Exhausted, 0)
        })
    }

    /// Carries out the decisions of the leases, in order. The caller holds the lease lock, so that two decisions about
    /// one region reach its gate in the order in which they were made.
    ///
    /// [`Self::open_granted`] and [`Self::open_sealed`] open regions, because that may take long and needs no lock.
    pub(crate) fn carry_out(&self, actions: &[Action]) -> Result<(), Refusal> {
        let mut result = Ok(());
        let mut dirty = false;
        for action in actions {
            let done = match *action {
                Action::Open { .. } | Action::OpenSegment { .. } => Ok(()),
                Action::Suspend(region) => unless_closed(self.arena.suspend(region)),
                Action::Resume(region) => unless_closed(self.arena.resume(region)),
                Action::Close { region, epoch } => self.arena.close(region, epoch),
                Action::Scrub(region) => {
                    self.chores.lock().scrub.push_back(region);
                    dirty = true;
                    Ok(())
                }
                // Returning the pages takes one system call. Nobody can be granted the region meanwhile.
                Action::GiveBack(region) => self.arena.give_back(region),
            };
            result = result.and(self.agree(done));
        }
        if dirty {
            self.chores_changed.signal();
        }
        result
    }

    pub(crate) fn withhold(&self, region: RegionIndex) {
        self.withheld.lock().insert(region);
    }

    pub(crate) fn is_withheld(&self, region: RegionIndex) -> bool {
        self.withheld.lock().contains(&region)
    }

    /// Reports whether the inventory (report) shows no region that is owned or still to be zeroed. Regions that are
    /// withheld for ever do not count.
    pub(crate) fn is_empty(&self, inventory: &Inventory) -> bool {
        let withheld = self.withheld.lock().len();
        inventory.owned.is_empty() && inventory.counts.cleaning as usize <= withheld
    }

    /// Asks for a report to the broker soon.
    pub(crate) fn changed(&self) {
        self.chores.lock().report = true;
        self.chores_changed.signal();
    }

    /// Enters the gates of the ranges that one call may move: at most `GATE_BYTES_MAX` bytes after the first `skip`,
    /// and as many ranges as the call takes. Either all of them are admitted or none.
    fn visit(
        &self,
        spans: &[Span],
        skip: u64,
        intent: Intent,
    ) -> Result<Vec<Range<M::Entered<'_>>>, RefusedAt> {
        let mut left = GATE_BYTES_MAX;
        let mut ranges = Vec::with_capacity(spans.len().min(RANGES_MAX));
        for (index, span) in spans_behind(spans, skip) {
            if left == 0 || ranges.len() == RANGES_MAX {
                break;
            }
            let bytes = (span.bytes as usize).min(left);
            left -= bytes;
            let enter = || {
                let entered = self.arena.enter(span.region)?;
                admit(&span, intent, &entered.fence())?;
                Ok(Range { entered, offset: span.offset, bytes })
            };
            ranges.push(enter().map_err(|refusal| self.refused(index, refusal))?);
        }
        Ok(ranges)
    }

    fn refused(&self, index: usize, refusal: Refusal) -> RefusedAt {
        self.counters.refused_ops.fetch_add(1, Ordering::Relaxed);
        (index, refusal)
    }

    fn counted(
        &self,
        result: Result<(), Refusal>,
        ops: &AtomicU64,
        bytes: &AtomicU64,
        count: u32,
    ) -> Result<(), Refusal> {
        match result {
            Ok(()) => {
                ops.fetch_add(1, Ordering::Relaxed);
                bytes.fetch_add(count.into(), Ordering::Relaxed);
            }
            Err(_) => {
                self.counters.refused_ops.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }
}

impl<M: Memory> Service for NodeService<M> {
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        // Leases are for sessions. Data operations need no such check, because they carry the lease's handle. The
        // status, which everybody may ask for, is served elsewhere.
        if !has_sessions(peer) && !matches!(request, Request::Status(_)) {
            return Err(Refusal::new(Code::NotPermitted, request.opcode() as u64));
        }
        let (opcode, session) = (request.opcode(), session_of(&request));
        let answer = match request {
            Request::Lease(lease) => self.lease(tenant_of(peer).as_ref(), &lease),
            Request::Seal(seal) => self.seal(tenant_of(peer).as_ref(), &seal),
            Request::SealRanges(seal) => self.seal_ranges(tenant_of(peer).as_ref(), &seal),
            Request::Renew(proof) => self.renew(tenant_of(peer).as_ref(), &proof),
            Request::Release(release) => self.release(tenant_of(peer).as_ref(), &release),
            Request::Checksums(asked) => checksums(&*self.arena, &asked).map(Reply::Checksums),
            other => self.extension.call(peer, other),
        };
        if let Err(refusal) = &answer
            && self.host.logs(Level::Debug)
        {
            let event = Event::debug("refused", format!("refused {opcode:?}: {refusal}")).trace(peer.trace);
            self.host.log(&session.into_iter().fold(event, Event::session));
        }
        answer
    }

    fn open_lane(
        &self,
        peer: &Peer,
        open: OpenHoppingLane,
    ) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        // A node asks in place of a caller whose function has hopped, and nobody else does.
        let is_node = matches!(peer.identity, Some(Identity::Node(_)));
        let may_open = match open.caller.is_empty() {
            true => has_sessions(peer),
            false => is_node || peer.identity.is_none(),
        };
        if !may_open {
            return Err(Refusal::new(Code::NotPermitted, Opcode::OpenLane as u64));
        }
        self.extension.open_lane(peer, open)
    }

    fn times(&self) -> Option<&OperationTimes> {
        Some(&self.times)
    }

    fn ended(&self, peer: &Peer) {
        self.extension.ended(peer);
    }

    fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        let result = copy_out(&*self.arena, span, into);
        self.counted(result, &self.counters.read_ops, &self.counters.read_bytes, span.bytes)
    }

    fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        let result = each_step(&*self.arena, span, Intent::Write, |entered, offset, step| {
            entered.copy_in(offset, &from[step])
        });
        self.counted(result, &self.counters.write_ops, &self.counters.write_bytes, span.bytes)
    }

    fn admits(&self, spans: &[Span], intent: Intent) -> Result<(), RefusedAt> {
        let looked_at = |span: &Span| admit(span, intent, &self.arena.enter(span.region)?.fence());
        for (index, span) in spans.iter().enumerate() {
            looked_at(span).map_err(|refusal| self.refused(index, refusal))?;
        }
        Ok(())
    }

    fn send(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        spans: &[Span],
        skip: u64,
    ) -> Result<io::Result<usize>, RefusedAt> {
        let ranges = self.visit(spans, skip, Intent::Read)?;
        let result = self.arena.send(socket, head, &ranges).map_err(|refusal| self.refused(0, refusal))?;
        if let Ok(count) = &result {
            let counters = &self.counters;
            let begun = if skip == 0 { spans.len() as u64 } else { 0 };
            counters.read_ops.fetch_add(begun, Ordering::Relaxed);
            counters.read_bytes.fetch_add(count.saturating_sub(head.len()) as u64, Ordering::Relaxed);
        }
        Ok(result)
    }

    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        spans: &[Span],
        skip: u64,
    ) -> Result<io::Result<usize>, RefusedAt> {
        let ranges = self.visit(spans, skip, Intent::Write)?;
        let result = self.arena.receive(socket, &ranges).map_err(|refusal| self.refused(0, refusal))?;
        if let Ok(count) = &result {
            let counters = &self.counters;
            let begun = spans_behind(spans, skip).filter(|(index, part)| part.offset == spans[*index].offset);
            let reached = spans_behind(spans, skip + *count as u64).count();
            let begun = begun.count().saturating_sub(reached) as u64;
            counters.write_ops.fetch_add(begun, Ordering::Relaxed);
            counters.write_bytes.fetch_add(*count as u64, Ordering::Relaxed);
        }
        Ok(result)
    }

    fn admission(&self, peer: &Peer) -> Option<Box<dyn Admission>> {
        // All tasks of the simulator run on one thread. Only one of them moves data at a time, so nothing has to be
        // shared, and a task that waited in the queue would block all others.
        (!self.host.is_one_thread())
            .then(|| Box::new(self.admission_queue.admission(peer)) as Box<dyn Admission>)
    }

    fn share(&self, attach: &Attach) -> Result<Shared, Refusal> {
        let span =
            Span { region: attach.region, bytes: 0, offset: 0, epoch: attach.epoch, handle: attach.handle };
        let judge = || {
            let fence = self.arena.enter(attach.region)?.fence();
            admit(&span, Intent::Read, &fence).map(|()| fence)
        };
        let fence = judge()?;
        let may_write = fence.write_handle == Some(attach.handle);
        let access = if may_write { SharedAccess::ReadWrite } else { SharedAccess::Read };
        let not_shared = Refusal::new(Code::NotShared, 0);
        let shared = self.arena.hand_out(attach.region, access).map_err(|_| not_shared)?;
        // The epoch is still the same, so the descriptor belongs to the requested lease.
        judge()?;
        self.counters.mapped_regions.fetch_add(1, Ordering::Relaxed);
        Ok(shared)
    }
}
