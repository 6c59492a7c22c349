//! A node's answers: data operations straight at the gates, control messages under the lease lock.

use crate::dispatch::{Intent, admit};
use farpool_lease::NodeLeases;
use farpool_lease::node::Action;
use farpool_region::{Arena, GATE_BYTES_MAX, RegionError, SharedAccess};
use farpool_transport::{Peer, Service, Shared, clock};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::{Code, Handle, Refusal, RegionIndex, Reply, Request};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
    /// The broker has answered this node's first report.
    pub(crate) joined: bool,
    /// The node stops.
    pub(crate) stop: bool,
}

pub(crate) struct NodeService {
    pub(crate) arena: Arena,
    leases: Mutex<NodeLeases>,
    pub(crate) chores: Mutex<Chores>,
    pub(crate) chores_changed: Condvar,
    counters: Counters,
    /// Regions that were found unclean when they were to be granted. Never granted again.
    withheld: Mutex<BTreeSet<RegionIndex>>,
}

fn fresh_handle() -> Result<Handle, Refusal> {
    let mut bytes = [0; 16];
    // Without randomness there are no capabilities, so there is nothing to grant.
    getrandom::fill(&mut bytes).map_err(|_| Refusal::new(Code::Exhausted, 0))?;
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

/// Leases and gates disagreeing is a bug of this program: said aloud, and answered by granting nothing.
fn withheld(result: Result<(), RegionError>) -> Result<(), Refusal> {
    result.map_err(|error| {
        eprintln!("farpool node: {error}");
        Refusal::new(Code::Exhausted, 0)
    })
}

impl NodeService {
    pub(crate) fn new(arena: Arena, leases: NodeLeases) -> Self {
        NodeService {
            arena,
            leases: Mutex::new(leases),
            chores: Mutex::default(),
            chores_changed: Condvar::new(),
            counters: Counters::default(),
            withheld: Mutex::default(),
        }
    }

    pub(crate) fn leases(&self) -> MutexGuard<'_, NodeLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chores(&self) -> MutexGuard<'_, Chores> {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner)
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
        }
    }

    /// Carries out what the leases decided, in order. Called with the lease lock held, so that two decisions
    /// about one region reach its gate in the order they were made.
    ///
    /// Opening a fresh region is left to [`Self::open_granted`]: it may take long and needs no lock.
    pub(crate) fn carry_out(&self, actions: &[Action]) -> Result<(), Refusal> {
        let mut result = Ok(());
        let mut dirty = false;
        for (index, action) in actions.iter().enumerate() {
            let done = match *action {
                Action::Open { writable: true, .. } => Ok(()),
                Action::Open { region, epoch, writable: false, handle } => {
                    self.arena.open(region, epoch, None, Some(handle))
                }
                Action::Suspend(region) => unless_closed(self.arena.suspend(region)),
                Action::Resume(region) => unless_closed(self.arena.resume(region)),
                Action::Close { region, epoch } => {
                    let is_sealed = matches!(actions.get(index + 1), Some(Action::Open { region: next, .. }) if *next == region);
                    let closed = self.arena.close(region, epoch);
                    // Its writer may still have it mapped: the sealed bytes move out of its reach.
                    if is_sealed { closed.and_then(|()| self.arena.reseat(region)) } else { closed }
                }
                Action::Scrub(region) => {
                    self.chores().scrub.push_back(region);
                    dirty = true;
                    Ok(())
                }
            };
            result = result.and(withheld(done));
        }
        if dirty {
            self.chores_changed.notify_all();
        }
        result
    }

    /// Makes the regions of a grant ready and opens them, without the lease lock: wiping is looked at again
    /// and shared memory is made where none is ready, some 35 ms for each 64 MiB. If the session ends meanwhile, the gate refuses
    /// to open at an epoch that is over.
    fn open_granted(&self, actions: &[Action], shared: bool) -> Result<(), Refusal> {
        for action in actions {
            if let Action::Open { region, epoch, writable: true, handle } = *action {
                self.open_fresh(region, shared)?;
                withheld(self.arena.open(region, epoch, Some(handle), None))?;
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
            eprintln!("farpool node: sharing region {region}: {error}");
            return Err(Refusal::new(Code::OutOfMemory, self.arena.region_bytes()));
        }
        // Wiped when it was released; looked at again, because this is where a mistake would show somebody
        // another's bytes.
        match self.arena.verify_zero(region) {
            Ok(true) => Ok(()),
            Ok(false) => {
                eprintln!("farpool node: region {region} was not clean and is withheld");
                self.withheld.lock().unwrap_or_else(PoisonError::into_inner).insert(region);
                Err(Refusal::new(Code::Exhausted, 0))
            }
            Err(error) => withheld(Err(error)),
        }
    }

    pub(crate) fn is_withheld(&self, region: RegionIndex) -> bool {
        self.withheld.lock().unwrap_or_else(PoisonError::into_inner).contains(&region)
    }

    /// Asks for a report to the broker soon.
    pub(crate) fn changed(&self) {
        self.chores().report = true;
        self.chores_changed.notify_all();
    }

    fn lease(&self, lease: &Lease) -> Result<Reply, Refusal> {
        let session = lease.ticket.session;
        let wanted = (lease.ticket.region_count as usize).min(farpool_wire::limits::LEASE_REGIONS_MAX);
        let mut handles = Vec::with_capacity(wanted);
        for _ in 0..wanted {
            handles.push(fresh_handle()?);
        }
        let mut actions = Vec::new();
        let leased = {
            let mut leases = self.leases();
            let next = || handles.pop().unwrap_or_default();
            let leased = leases.redeem(clock::now(), lease, next, &mut actions)?;
            self.carry_out(&actions)?;
            leased
        };
        if lease.shared {
            self.chores().sharing_wanted = true;
        }
        let opened = self.open_granted(&actions, lease.shared);
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

    fn seal(&self, seal: &Seal) -> Result<Reply, Refusal> {
        let mut handles = Vec::with_capacity(seal.regions.len());
        for _ in 0..seal.regions.len() {
            handles.push(fresh_handle()?);
        }
        let mut actions = Vec::new();
        let mut leases = self.leases();
        let sealed = leases.seal(seal, || handles.pop().unwrap_or_default(), &mut actions)?;
        self.carry_out(&actions)?;
        drop(leases);
        self.changed();
        Ok(Reply::Seal(sealed))
    }

    fn control(&self, request: Request) -> Result<Reply, Refusal> {
        let mut actions = Vec::new();
        match request {
            Request::Lease(lease) => self.lease(&lease),
            Request::Seal(seal) => self.seal(&seal),
            Request::Renew(proof) => {
                let mut leases = self.leases();
                let renewed = leases.renew(clock::now(), &proof, &mut actions)?;
                self.carry_out(&actions)?;
                Ok(Reply::Renew(renewed))
            }
            Request::Release(release) => {
                let mut leases = self.leases();
                let released = leases.release(&release, &mut actions)?;
                self.carry_out(&actions)?;
                drop(leases);
                self.changed();
                Ok(Reply::Release(released))
            }
            other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
        }
    }

    /// Runs `copy` on each piece of a range, every piece inside the region's gate and admitted anew.
    fn each_piece(
        &self,
        span: &Span,
        intent: Intent,
        mut copy: impl FnMut(&farpool_region::Entered<'_>, u64, std::ops::Range<usize>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let total = span.bytes as usize;
        let mut done = 0;
        loop {
            let entered = self.arena.enter(span.region)?;
            admit(span, intent, &entered.fence())?;
            let piece = done..total.min(done + GATE_BYTES_MAX);
            copy(&entered, span.offset + done as u64, piece.clone())?;
            done = piece.end;
            if done == total {
                return Ok(());
            }
        }
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

impl Service for NodeService {
    fn call(&self, _peer: Peer, request: Request) -> Result<Reply, Refusal> {
        self.control(request)
    }

    fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        let result = self.each_piece(span, Intent::Read, |entered, offset, piece| {
            entered.copy_out(offset, &mut into[piece])
        });
        self.counted(result, &self.counters.read_ops, &self.counters.read_bytes, span.bytes)
    }

    fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        let result = self
            .each_piece(span, Intent::Write, |entered, offset, piece| entered.copy_in(offset, &from[piece]));
        self.counted(result, &self.counters.write_ops, &self.counters.write_bytes, span.bytes)
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
        let region = self.arena.shared_fd(attach.region, access).map_err(|_| not_shared)?;
        // Still the same epoch, so the descriptor is the one that was asked for.
        judge()?;
        let words = self.arena.words_fd().try_clone_to_owned().map_err(|_| not_shared)?;
        self.counters.mapped_regions.fetch_add(1, Ordering::Relaxed);
        let attached = Attached {
            region_bytes: self.arena.region_bytes(),
            word_offset: self.arena.word_offset(attach.region),
            words_bytes: self.arena.words_bytes(),
        };
        Ok(Shared { region, words, attached })
    }
}
