//! A node's answers: data operations straight at the gates, control messages under the lease lock.

use crate::dispatch::admit;
use crate::extension::{Extend, Extension};
use crate::memory::{Inside, Memory, Range};
use crate::options::Limits;
use crate::pieces::{copy_out, each_piece};
use crate::turnstile::Turnstile;
use farpool_host::{Bell, Host, Turn};
use farpool_lease::NodeLeases;
use farpool_lease::node::Action;
use farpool_lease::ticket::TicketKey;
use farpool_lock::{Mutex, MutexGuard};
use farpool_region::{Arena, GATE_BYTES_MAX, RegionError, SharedAccess, WINDOWS_MAX};
use farpool_transport::{Identity, Intent, Passage, Peer, RefusedAt, Service, Shared, Successor};
use farpool_wire::control::*;
use farpool_wire::data::{Span, parts_behind};
use farpool_wire::{
    Code, Handle, Incarnation, Name, NodeId, Opcode, Refusal, RegionIndex, Reply, Request, mutant,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often whoever waits for a region to be moved looks again, were it to miss the bell.
const MOVING_LOOK_MS: u64 = 50;

/// What was served, counted without locks.
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
    /// Closed regions to wipe.
    pub(crate) scrub: VecDeque<RegionIndex>,
    /// Something changed that the broker should hear of.
    pub(crate) report: bool,
    /// A client on this host has leased: others will, and mappable memory takes time to make.
    pub(crate) sharing_wanted: bool,
    /// Regions whose touching ahead of their use has begun, or ended.
    pub(crate) touched: u64,
    /// The broker has answered this node's first report.
    pub(crate) joined: bool,
    /// The node was told to end once it holds nothing; it does, and the broker knows.
    pub(crate) drained: bool,
    /// The node stops.
    pub(crate) stop: bool,
}

/// A node at work on its memory, without listeners or threads: requests in, decisions under the lease lock,
/// effects at the gates, replies out. [`keep_time`](crate::keep_time), [`keep_house`](crate::keep_house) and
/// [`report`](crate::report) run beside it until [`Self::stop`].
pub struct NodeService<M = Arena> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) arena: Arc<M>,
    /// Held from a decision until its effects have reached the gates, and so while a gate drains.
    leases: Turn<NodeLeases>,
    pub(crate) chores: Mutex<Chores>,
    pub(crate) chores_changed: Bell,
    /// Rings once, when the node stops.
    pub(crate) stopped: Bell,
    counters: Counters,
    /// Regions that could not be wiped, or were found unclean when they were to be granted. Never granted
    /// again.
    withheld: Mutex<BTreeSet<RegionIndex>>,
    /// Regions that are being made ready for a lease, or whose bytes are being moved to be sealed, without the
    /// lease lock. Until that is over nobody wipes them, and so nobody else gets them.
    moving: Mutex<BTreeSet<RegionIndex>>,
    /// Rings when that is over for some of them.
    moved: Bell,
    /// Answers what is not about leases or bytes.
    pub(crate) extension: Box<dyn Extension>,
    /// What connections pass before they move data.
    turnstile: Arc<Turnstile>,
}

/// What makes one life of a node another than those before it.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Which life it is.
    pub incarnation: Incarnation,
    /// Signs and checks its tickets.
    pub ticket_key: TicketKey,
}

fn fresh<const N: usize>(host: &dyn Host) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    host.random(&mut bytes)?;
    Ok(bytes)
}

/// The tenant that a connection proves. A process of this machine may bring anybody's ticket: without TLS nobody
/// proves anything, and a local socket shows the user only.
fn tenant_of(peer: &Peer) -> Option<Name> {
    peer.identity.as_ref().and_then(Identity::tenant_name)
}

/// Whether a peer may have sessions: nodes and brokers have none.
fn has_sessions(peer: &Peer) -> bool {
    matches!(peer.identity, None | Some(Identity::Tenant(_) | Identity::Admin))
}

/// How many pieces are moved at once: as many as there are CPUs to move them. Pieces do not wait for anything but
/// CPUs.
fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A random number that nobody else knows, not 0.
pub fn fresh_handle(host: &dyn Host) -> Result<Handle, Refusal> {
    // Without randomness there are no capabilities, so there is nothing to grant.
    let bytes = fresh(host).map_err(|_| Refusal::new(Code::Exhausted, 0))?;
    // Zero is what a gate holds when there is no handle.
    Ok(Handle(u128::from_le_bytes(bytes) | 1))
}

/// A region that is being made ready for its holder has a closed gate: nothing to suspend yet.
fn unless_closed(result: Result<(), RegionError>) -> Result<(), RegionError> {
    match result {
        Err(RegionError::NotOpen { .. }) => Ok(()),
        other => other,
    }
}

impl<M: Memory> NodeService<M> {
    /// Begins a life of a node, over memory that nobody has used.
    pub fn begin(host: Arc<dyn Host>, arena: M, node: NodeId) -> io::Result<(Self, Life)> {
        let incarnation = Incarnation(u64::from_le_bytes(fresh(&*host)?).max(1));
        let ticket_key = fresh(&*host)?;
        let mut leases = NodeLeases::new(node, incarnation, ticket_key, arena.region_count());
        // Fresh mappings are zero; pre-faulting them changes only how fast their first use is.
        for region in 0..arena.region_count() {
            let _ = leases.scrubbed(RegionIndex(region));
        }
        Ok((NodeService::new(host, arena, leases), Life { incarnation, ticket_key }))
    }

    /// The same, before it serves anybody, with limits to what it spends on its clients.
    pub fn within(mut self, limits: &Limits) -> Self {
        self.turnstile = Turnstile::new(Arc::clone(&self.host), slots(), limits);
        self
    }

    /// The same, before it serves anybody, with an extension.
    pub fn extended(mut self, extend: Extend<M>) -> io::Result<Self> {
        self.extension = extend(Arc::clone(&self.host), Arc::clone(&self.arena))?;
        Ok(self)
    }

    fn new(host: Arc<dyn Host>, arena: M, leases: NodeLeases) -> Self {
        NodeService {
            turnstile: Turnstile::new(Arc::clone(&host), slots(), &Limits::default()),
            host,
            arena: Arc::new(arena),
            leases: Turn::new(leases),
            chores: Mutex::default(),
            chores_changed: Bell::default(),
            stopped: Bell::default(),
            counters: Counters::default(),
            withheld: Mutex::default(),
            moving: Mutex::default(),
            moved: Bell::default(),
            extension: Box::new(()),
        }
    }

    /// The rules, and with them the lock.
    pub fn leases(&self) -> MutexGuard<'_, NodeLeases> {
        self.leases.take(&*self.host)
    }

    /// The rules, unless they are being changed.
    pub fn try_leases(&self) -> Option<MutexGuard<'_, NodeLeases>> {
        self.leases.try_take()
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.arena
    }

    /// Whether the node was told to end once it holds nothing, holds nothing, and the broker knows.
    pub fn is_drained(&self) -> bool {
        self.chores.lock().drained
    }

    /// Ends the background loops.
    pub fn stop(&self) {
        self.chores.lock().stop = true;
        self.chores_changed.ring();
        self.stopped.ring();
        self.turnstile.lift_limits();
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

    /// Leases and gates disagreeing is a bug of this program: said aloud, and answered by granting nothing.
    fn agree(&self, result: Result<(), RegionError>) -> Result<(), Refusal> {
        result.map_err(|error| {
            self.host.say(&format!("farpool node: {error}"));
            Refusal::new(Code::Exhausted, 0)
        })
    }

    /// Carries out what the leases decided, in order. Called with the lease lock held, so that two decisions
    /// about one region reach its gate in the order they were made.
    ///
    /// Opening is left to [`Self::open_granted`] and [`Self::open_sealed`]: it may take long and needs no lock.
    pub(crate) fn carry_out(&self, actions: &[Action]) -> Result<(), Refusal> {
        let mut result = Ok(());
        let mut dirty = false;
        for action in actions {
            let done = match *action {
                Action::Open { .. } => Ok(()),
                Action::Suspend(region) => unless_closed(self.arena.suspend(region)),
                Action::Resume(region) => unless_closed(self.arena.resume(region)),
                Action::Close { region, epoch } => self.arena.close(region, epoch),
                Action::Scrub(region) => {
                    self.chores.lock().scrub.push_back(region);
                    dirty = true;
                    Ok(())
                }
                // As quick as a system call; nobody can be granted the region meanwhile.
                Action::GiveBack(region) => self.arena.give_back(region),
            };
            result = result.and(self.agree(done));
        }
        if dirty {
            self.chores_changed.ring();
        }
        result
    }

    /// Makes the regions of a grant ready and opens them, without the lease lock: wiping is looked at again
    /// and shared memory is made where none is ready, some 35 ms for each 64 MiB. If the session ends meanwhile, the
    /// gate refuses to open at an epoch that is over.
    fn open_granted(&self, actions: &[Action], shared: bool) -> Result<(), Refusal> {
        for action in actions {
            if let Action::Open { region, epoch, writable: true, handle } = *action {
                self.open_fresh(region, shared)?;
                match self.arena.open(region, epoch, Some(handle), None) {
                    // Taken back meanwhile.
                    Err(RegionError::EpochOrder { current, .. }) => {
                        return Err(Refusal::new(Code::StaleEpoch, current.0));
                    }
                    other => self.agree(other)?,
                }
            }
        }
        Ok(())
    }

    /// Makes a free region ready for its new owner.
    fn open_fresh(&self, region: RegionIndex, shared: bool) -> Result<(), Refusal> {
        let is_shared = self.arena.is_shared(region) == Some(true);
        if shared
            && !is_shared
            && let Err(error) = self.arena.share(region)
        {
            self.host.say(&format!("farpool node: sharing region {region}: {error}"));
            return Err(Refusal::new(Code::OutOfMemory, self.arena.region_bytes()));
        }
        // Wiped when it was released; looked at again, because this is where a mistake would show somebody
        // another's bytes.
        match self.arena.verify_zero(region) {
            Ok(false) if mutant!(NoWiping) => Ok(()),
            Ok(true) => Ok(()),
            Ok(false) => {
                self.host.say(&format!("farpool node: region {region} was not clean and is withheld"));
                self.withhold(region);
                Err(Refusal::new(Code::Exhausted, 0))
            }
            Err(error) => self.agree(Err(error)),
        }
    }

    pub(crate) fn withhold(&self, region: RegionIndex) {
        self.withheld.lock().insert(region);
    }

    pub(crate) fn is_withheld(&self, region: RegionIndex) -> bool {
        self.withheld.lock().contains(&region)
    }

    /// Whether this inventory shows nothing that is still anybody's or still to be wiped. Regions that are
    /// withheld for good do not count.
    pub(crate) fn is_empty(&self, inventory: &Inventory) -> bool {
        let withheld = self.withheld.lock().len();
        inventory.owned.is_empty() && inventory.counts.cleaning as usize <= withheld
    }

    /// Asks for a report to the broker soon.
    pub(crate) fn changed(&self) {
        self.chores.lock().report = true;
        self.chores_changed.ring();
    }

    fn lease(&self, asker: Option<&Name>, lease: &Lease) -> Result<Reply, Refusal> {
        let session = lease.ticket.session;
        let wanted = (lease.ticket.region_count as usize).min(farpool_wire::limits::LEASE_REGIONS_MAX);
        let mut handles = Vec::with_capacity(wanted);
        for _ in 0..wanted {
            handles.push(fresh_handle(&*self.host)?);
        }
        let mut actions = Vec::new();
        let (leased, claimed) = {
            let mut leases = self.leases();
            let next = || handles.pop().unwrap_or_default();
            let leased = leases.redeem(self.host.now(), asker, lease, next, &mut actions)?;
            self.carry_out(&actions)?;
            // Before the lock goes: from then on they might be taken back, granted to others and written.
            let claimed = self.claim_moving(&leased.grants);
            (leased, claimed)
        };
        if lease.shared {
            self.chores.lock().sharing_wanted = true;
        }
        let opened = self.open_granted(&actions, lease.shared);
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
            // Of a grant that fails in part, nothing stays.
            Err(_) => leases.abandon(session, &regions, &mut after),
        }
        self.carry_out(&after)?;
        drop(leases);
        self.changed();
        opened.map(|()| Reply::Lease(leased))
    }

    fn seal(&self, asker: Option<&Name>, seal: &Seal) -> Result<Reply, Refusal> {
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
            // Claimed before the lock goes: from then on they might be taken back, wiped and granted anew.
            let claimed = self.claim_moving(&sealed.regions);
            drop(leases);
            let is_whole = claimed.len() == sealed.regions.len();
            let opened = closed.and_then(|()| claimed.iter().try_for_each(|grant| self.open_sealed(grant)));
            self.end_moving(&claimed);
            self.changed();
            opened?;
            if is_whole {
                return self.still_sealed(sealed).map(Reply::Seal);
            }
            // The same was asked a moment ago and is under way: its end is the end of this as well.
            self.host.wait(&self.moved, heard, self.host.now().plus_ms(MOVING_LOOK_MS));
        }
    }

    /// Those of these regions that nobody else is moving; from now on the caller is.
    fn claim_moving(&self, grants: &[Grant]) -> Vec<Grant> {
        let mut moving = self.moving.lock();
        grants.iter().filter(|grant| moving.insert(grant.region)).cloned().collect()
    }

    fn end_moving(&self, grants: &[Grant]) {
        let mut moving = self.moving.lock();
        grants.iter().for_each(|grant| _ = moving.remove(&grant.region));
        drop(moving);
        // Who moved nothing has no news, least of all for itself.
        if !grants.is_empty() {
            self.moved.ring();
        }
    }

    /// Waits until nobody moves the bytes of a region.
    pub(crate) fn wait_moved(&self, region: RegionIndex) {
        loop {
            let heard = self.moved.heard();
            if !self.moving.lock().contains(&region) {
                return;
            }
            self.host.wait(&self.moved, heard, self.host.now().plus_ms(MOVING_LOOK_MS));
        }
    }

    /// Moves a sealed region's bytes out of the reach of its writer, who may still have it mapped, and lets
    /// readers in. Some 50 ms for each 64 MiB; the lease lock is not held. Nothing if that was done before.
    fn open_sealed(&self, grant: &Grant) -> Result<(), Refusal> {
        let Grant { region, epoch, handle } = *grant;
        let fence = self.arena.enter(region)?.fence();
        if fence.epoch != epoch {
            return Err(Refusal::new(Code::StaleEpoch, fence.epoch.0));
        }
        if fence.read_handle == Some(handle) {
            return Ok(());
        }
        let moved = if mutant!(SealedNotMoved) { Ok(()) } else { self.arena.reseat(region) };
        match moved.and_then(|()| self.arena.open(region, epoch, None, Some(handle))) {
            // Taken back meanwhile; it is wiped when this is over.
            Err(RegionError::EpochOrder { current, .. }) => Err(Refusal::new(Code::StaleEpoch, current.0)),
            // Asked again when the host has memory, it is done then.
            Err(error @ RegionError::System { .. }) => {
                self.host.say(&format!("farpool node: sealing region {region}: {error}"));
                Err(Refusal::new(Code::OutOfMemory, self.arena.region_bytes()))
            }
            other => self.agree(other),
        }
    }

    /// The answer to a seal, if none of its regions was taken back while it was made.
    fn still_sealed(&self, sealed: Sealed) -> Result<Sealed, Refusal> {
        let leases = self.leases();
        for grant in sealed.regions.iter() {
            match leases.epoch_of(grant.region) {
                Some(epoch) if epoch == grant.epoch => {}
                epoch => return Err(Refusal::new(Code::StaleEpoch, epoch.unwrap_or_default().0)),
            }
        }
        Ok(sealed)
    }

    fn renew(&self, asker: Option<&Name>, proof: &SessionProof) -> Result<Reply, Refusal> {
        let mut actions = Vec::new();
        let mut leases = self.leases();
        let renewed = leases.renew(self.host.now(), asker, proof, &mut actions)?;
        self.carry_out(&actions)?;
        Ok(Reply::Renew(renewed))
    }

    fn release(&self, asker: Option<&Name>, release: &Release) -> Result<Reply, Refusal> {
        let mut actions = Vec::new();
        let mut leases = self.leases();
        let released = leases.release(asker, release, &mut actions)?;
        self.carry_out(&actions)?;
        drop(leases);
        self.changed();
        Ok(Reply::Release(released))
    }

    /// Enters the gates of what one call may move: at most `GATE_BYTES_MAX` bytes behind the first `skip`, and as
    /// many ranges as the call takes. All of it is admitted, or none.
    fn visit(
        &self,
        spans: &[Span],
        skip: u64,
        intent: Intent,
    ) -> Result<Vec<Range<M::Entered<'_>>>, RefusedAt> {
        let mut left = GATE_BYTES_MAX;
        let mut ranges = Vec::with_capacity(spans.len().min(WINDOWS_MAX));
        for (index, span) in parts_behind(spans, skip) {
            if left == 0 || ranges.len() == WINDOWS_MAX {
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
        // Leases are for sessions. Data operations need no such look: they carry the lease's handle. The status,
        // which anybody may ask for, is not served here.
        if !has_sessions(peer) && !matches!(request, Request::Status(_)) {
            return Err(Refusal::new(Code::NotPermitted, request.opcode() as u64));
        }
        match request {
            Request::Lease(lease) => self.lease(tenant_of(peer).as_ref(), &lease),
            Request::Seal(seal) => self.seal(tenant_of(peer).as_ref(), &seal),
            Request::Renew(proof) => self.renew(tenant_of(peer).as_ref(), &proof),
            Request::Release(release) => self.release(tenant_of(peer).as_ref(), &release),
            other => self.extension.call(peer, other),
        }
    }

    fn open_lane(&self, peer: &Peer, open: OpenLane) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        if !has_sessions(peer) {
            return Err(Refusal::new(Code::NotPermitted, Opcode::OpenLane as u64));
        }
        self.extension.open_lane(peer, open)
    }

    fn ended(&self, peer: &Peer) {
        self.extension.ended(peer);
    }

    fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        let result = copy_out(&*self.arena, span, into);
        self.counted(result, &self.counters.read_ops, &self.counters.read_bytes, span.bytes)
    }

    fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        let result = each_piece(&*self.arena, span, Intent::Write, |entered, offset, piece| {
            entered.copy_in(offset, &from[piece])
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
            let begun = parts_behind(spans, skip).filter(|(index, part)| part.offset == spans[*index].offset);
            let reached = parts_behind(spans, skip + *count as u64).count();
            let begun = begun.count().saturating_sub(reached) as u64;
            counters.write_ops.fetch_add(begun, Ordering::Relaxed);
            counters.write_bytes.fetch_add(*count as u64, Ordering::Relaxed);
        }
        Ok(result)
    }

    fn passage(&self, peer: &Peer) -> Option<Box<dyn Passage>> {
        // Where all take turns on one thread, one is moved at a time, and nobody may block that thread.
        (!self.host.is_one_thread()).then(|| Box::new(self.turnstile.passage(peer)) as Box<dyn Passage>)
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
        // Still the same epoch, so the descriptor is the one that was asked for.
        judge()?;
        self.counters.mapped_regions.fetch_add(1, Ordering::Relaxed);
        Ok(shared)
    }
}
