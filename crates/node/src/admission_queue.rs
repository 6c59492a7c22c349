//! Admission queue of a node: every connection passes it before it moves data. The node has as many slots as CPUs. If
//! more connections want to enter than there are slots, [`Rounds`] decides who has to wait and who is next. It charges
//! work to clients: one that had more than its share owes the difference.
//!
//! One atomic word holds the number of connections inside (low half) and waiting (high half). When the node is idle,
//! one atomic addition lets a connection in and another lets it out: no lock, and nobody is charged, because nobody
//! waits. When all slots are taken, the lock is used. A client that owes nothing enters all the same, beyond the slots.
//! The thread of a client that owes parks until a slot is given to its ticket. While anybody waits, the word says so,
//! and nobody enters without the lock.
//!
//! A plain semaphore would be simpler, but it serves connections, not clients: a client with sixteen connections would
//! get sixteen times the share of a client with one. It would also make everybody wait for a slot whose holder the
//! kernel has suspended. That was measured on two busy CPUs: 72,000 instead of 242,000 reads of 8 KiB per second
//! (`docs/decisions/0012-fair-sharing.md`).
//!
//! No wake-up is lost: a thread that has to wait adds itself to the word by one compare-and-swap against the value in
//! which it saw that it has to, with the lock held. If a connection leaves before that, the word has changed and the
//! step is retried. If it leaves after that, it sees somebody waiting, takes the lock, which is free only once the
//! waiter's ticket is queued, and gives the slot away.
//!
//! A node with limits counts each morsel of work (all that a connection does between entering and leaving) under the
//! lock. Threads also wait while the token buckets, which hold the work that the limits still permit, are empty. One of
//! these threads watches the clock for all of them.

use crate::fair::{self, Member, Rounds, Ticket};
use crate::limits::{BURST_NS, Bucket};
use crate::options::Limits;
use farpool_host::Host;
use farpool_lock::Mutex;
use farpool_transport::{Admission, Identity, Peer};
use farpool_wire::{ClientId, MonoNs};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Amount that one waiting thread adds to the word, whose low half counts the connections inside.
const WAITING: u64 = 1 << 32;
/// Mask of the low half of the word.
const INSIDE: u64 = WAITING - 1;

/// Key of a client: connections with the same identity and client number count as one client. A connection without a
/// client number is a client of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientKey {
    /// A client of an identity, with the number from its greeting.
    Named(Option<Identity>, ClientId),
    /// A connection without a client number.
    Connection(u64),
}

impl ClientKey {
    /// Returns the client to which a peer's work is charged.
    pub fn of(peer: &Peer) -> ClientKey {
        match peer.client {
            ClientId(0) => ClientKey::Connection(peer.connection),
            client => ClientKey::Named(peer.identity.clone(), client),
        }
    }
}

/// Place where a waiting thread finds its permission to enter.
#[derive(Debug)]
struct Seat {
    /// Cost in ns that was reserved for the thread's work, plus one; 0 while the thread waits.
    granted: AtomicU64,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Queue {
    rounds: Rounds,
    seats: BTreeMap<Ticket, Arc<Seat>>,
    /// Clients, each with the number of its connections.
    members: BTreeMap<ClientKey, (Member, usize)>,
    /// Token buckets: for bytes over sockets, and for CPU ns of connection threads. `None` without that limit.
    buckets: [Option<Bucket>; 2],
    /// Ticket of the thread that watches the clock for all that wait for a bucket.
    keeper: Option<Ticket>,
    /// Time at which the keeper wakes next.
    alarm: MonoNs,
}

/// Admission queue of a node.
#[derive(Debug)]
pub struct AdmissionQueue {
    word: AtomicU64,
    slots: u64,
    is_limited: bool,
    /// Two flags: bytes count as cost, and CPU time counts as cost. With one limit only the limited resource counts,
    /// because it is the scarce one. Otherwise both count.
    counts: [bool; 2],
    may_spin: bool,
    queue: Mutex<Queue>,
    host: Arc<dyn Host>,
}

/// Returns the CPU time of this thread, in ns.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Both fields are non-negative on this clock.
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

impl AdmissionQueue {
    /// Makes a queue with this many slots, at least one, that enforces the limits.
    pub fn new(host: Arc<dyn Host>, slots: usize, limits: &Limits) -> Arc<AdmissionQueue> {
        let now = host.now();
        let cpu = limits.cpu_milli.map(|milli| Bucket::new(u64::from(milli) * 1_000_000, now));
        let bytes = limits.bytes_per_second.map(|bytes| Bucket::new(bytes, now));
        Arc::new(AdmissionQueue {
            word: AtomicU64::new(0),
            slots: slots.max(1) as u64,
            is_limited: bytes.is_some() || cpu.is_some(),
            counts: [bytes.is_some() || cpu.is_none(), cpu.is_some() || bytes.is_none()],
            may_spin: cpu.is_none(),
            queue: Mutex::new(Queue { buckets: [bytes, cpu], ..Queue::default() }),
            host,
        })
    }

    /// Returns a connection's handle on the queue.
    pub fn admission(self: &Arc<AdmissionQueue>, peer: &Peer) -> QueuedAdmission {
        let key = ClientKey::of(peer);
        let mut queue = self.queue.lock();
        let Queue { members, rounds, .. } = &mut *queue;
        let (member, connections) = members.entry(key.clone()).or_insert_with(|| (rounds.join(), 0));
        *connections += 1;
        let member = *member;
        drop(queue);
        let admission_queue = Arc::clone(self);
        let cpu_ns = self.is_limited.then(thread_cpu_ns);
        QueuedAdmission { admission_queue, key, member, inside: None, paid_cpu_ns: cpu_ns }
    }

    /// Ends all limits, because the node stops and nobody should wait for them.
    pub fn lift_limits(&self) {
        let mut queue = self.queue.lock();
        queue.buckets = [None, None];
        self.give_slots(&mut queue);
    }

    /// Enters if a slot is free and nobody waits. Reports whether it did.
    fn enter_now(&self) -> bool {
        let free = |word: u64| (word < self.slots).then(|| word + 1);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_ok()
    }

    /// Enters, and waits if it has to. Returns the cost in ns that was reserved for the work; 0 if none was.
    fn enter_in_turn(&self, member: Member) -> u64 {
        let mut queue = self.queue.lock();
        loop {
            let may_begin = self.wait_ns(&mut queue) == 0;
            if may_begin && self.enter_now() {
                return 0;
            }
            if may_begin && let Some(reserved) = queue.rounds.begin(member) {
                self.word.fetch_add(1, Ordering::Acquire);
                return reserved;
            }
            let word = self.word.load(Ordering::Relaxed);
            if may_begin && word < self.slots {
                continue;
            }
            // One compare-and-swap, against the word in which no slot was free or the buckets were empty.
            let added = self.word.compare_exchange(word, word + WAITING, Ordering::AcqRel, Ordering::Relaxed);
            if added.is_ok() {
                break;
            }
        }
        let seat = Arc::new(Seat { granted: AtomicU64::new(0), thread: std::thread::current() });
        let ticket = queue.rounds.wait(member);
        queue.seats.insert(ticket, Arc::clone(&seat));
        loop {
            if self.is_limited {
                self.give_slots(&mut queue);
            }
            let granted = seat.granted.load(Ordering::Acquire);
            if granted > 0 {
                if !self.is_limited {
                    return granted - 1;
                }
                self.hand_over_clock(&mut queue, ticket);
                return granted - 1;
            }
            let until = self.watch_clock(&mut queue, ticket);
            drop(queue);
            match until {
                None => std::thread::park(),
                Some(left) => std::thread::park_timeout(left),
            }
            if !self.is_limited {
                // The thread wakes for its grant only. Any other wake-up is ignored.
                match seat.granted.load(Ordering::Acquire) {
                    0 => {}
                    granted => return granted - 1,
                }
            }
            queue = self.queue.lock();
        }
    }

    /// Returns how long the caller parks if it is the thread that watches the clock for all that wait. `None` for all
    /// others, which park without a timeout.
    fn watch_clock(&self, queue: &mut Queue, ticket: Ticket) -> Option<Duration> {
        if !self.is_limited || *queue.keeper.get_or_insert(ticket) != ticket {
            return None;
        }
        // If no slot is free, the next connection that leaves checks the buckets. This thread checks them again all the
        // same.
        let left = self.wait_ns(queue);
        let left = if left == 0 { BURST_NS } else { left.min(BURST_NS) };
        queue.alarm = MonoNs(self.host.now().0.saturating_add(left));
        Some(Duration::from_nanos(left))
    }

    /// Wakes the thread that watches the clock if the buckets will permit work before it would wake. If it slept on,
    /// tokens would gather while all wait and then be spent in a burst, in which a client with one request at a time is
    /// too late for its next turn.
    fn set_alarm(&self, queue: &Queue, left_ns: u64) {
        let is_late = queue.alarm.0 > self.host.now().0.saturating_add(left_ns);
        if left_ns > 0
            && is_late
            && let Some(seat) = queue.keeper.and_then(|keeper| queue.seats.get(&keeper))
        {
            seat.thread.unpark();
        }
    }

    /// Passes the watch of the clock to another thread, if the caller had it or was about to take it. That thread may
    /// be admitted before it runs; it then passes the watch on.
    fn hand_over_clock(&self, queue: &mut Queue, ticket: Ticket) {
        if queue.keeper.is_none_or(|keeper| keeper == ticket) {
            queue.keeper = None;
            if let Some(seat) = queue.seats.values().next() {
                seat.thread.unpark();
            }
        }
    }

    /// Returns for how many ns the buckets let nobody begin; 0 if they permit work.
    fn wait_ns(&self, queue: &mut Queue) -> u64 {
        if !self.is_limited {
            return 0;
        }
        let now = self.host.now();
        queue.buckets.iter_mut().flatten().map(|bucket| bucket.wait_ns(now)).max().unwrap_or(0)
    }

    /// Gives free slots to the clients that are next.
    fn give_slots(&self, queue: &mut Queue) {
        while queue.rounds.waiting() > 0 && self.wait_ns(queue) == 0 {
            let free = |word: u64| (word & INSIDE < self.slots).then(|| word - WAITING + 1);
            if self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).is_err() {
                return;
            }
            // The word and the rounds agree on the number of waiting threads, because both change under the lock.
            let Some(grant) = queue.rounds.grant_next() else { return };
            if let Some(seat) = queue.seats.remove(&grant.ticket) {
                seat.granted.store(grant.reserved + 1, Ordering::Release);
                seat.thread.unpark();
            }
        }
    }

    /// Lets a connection out. Charges its morsel (the work since it entered) to the client if somebody waits or a limit
    /// counts it.
    fn leave(&self, member: Member, usage: &Usage) {
        if !self.is_limited && usage.reserved == 0 {
            let before = self.word.fetch_sub(1, Ordering::AcqRel);
            if before < WAITING {
                return;
            }
            let mut queue = self.queue.lock();
            queue.rounds.finish(member, 0, fair::cost(usage.bytes, usage.cpu_ns));
            return self.give_slots(&mut queue);
        }
        let mut queue = self.queue.lock();
        self.word.fetch_sub(1, Ordering::AcqRel);
        for (bucket, spent) in queue.buckets.iter_mut().zip([usage.bytes, usage.thread_cpu_ns]) {
            if let Some(bucket) = bucket {
                bucket.take(spent);
            }
        }
        let counted = |kind: usize, spent| if self.counts[kind] { spent } else { 0 };
        let cost = fair::cost(counted(0, usage.bytes), counted(1, usage.cpu_ns));
        queue.rounds.finish(member, usage.reserved, cost);
        self.give_slots(&mut queue);
        let left_ns = self.wait_ns(&mut queue);
        self.set_alarm(&queue, left_ns);
    }
}

/// Work done during one stay inside.
struct Usage {
    reserved: u64,
    bytes: u64,
    /// CPU ns inside; 0 if it was not measured.
    cpu_ns: u64,
    /// CPU ns of the thread since its last morsel, waiting and watching the clock included; 0 without limits. The
    /// buckets pay for all of it, but only `cpu_ns` counts as service to the client.
    thread_cpu_ns: u64,
}

/// One connection's handle on a [`AdmissionQueue`].
#[derive(Debug)]
pub struct QueuedAdmission {
    admission_queue: Arc<AdmissionQueue>,
    key: ClientKey,
    member: Member,
    /// While inside: the reserved cost, and the thread's CPU time at entry if it is measured.
    inside: Option<(u64, Option<u64>)>,
    /// CPU time of the thread that has been charged to the buckets; `None` without limits.
    paid_cpu_ns: Option<u64>,
}

impl Admission for QueuedAdmission {
    fn enter(&mut self) {
        if !self.admission_queue.is_limited && self.admission_queue.enter_now() {
            self.inside = Some((0, None));
            return;
        }
        let reserved = self.admission_queue.enter_in_turn(self.member);
        // Measuring costs a system call, so it is done only if somebody waits or a limit counts it.
        self.inside = Some((reserved, Some(thread_cpu_ns())));
    }

    fn leave(&mut self, bytes: u64) {
        let Some((reserved, begun)) = self.inside.take() else { return };
        let now = if begun.is_some() { thread_cpu_ns() } else { 0 };
        let since = |then: Option<u64>| then.map_or(0, |then| now.saturating_sub(then));
        let usage = Usage { reserved, bytes, cpu_ns: since(begun), thread_cpu_ns: since(self.paid_cpu_ns) };
        self.paid_cpu_ns = self.paid_cpu_ns.map(|_| now);
        self.admission_queue.leave(self.member, &usage);
    }

    fn is_wanted(&self) -> bool {
        self.admission_queue.word.load(Ordering::Relaxed) >= WAITING
    }

    fn may_spin(&self) -> bool {
        self.admission_queue.may_spin
    }
}

impl Drop for QueuedAdmission {
    fn drop(&mut self) {
        self.leave(0);
        let mut queue = self.admission_queue.queue.lock();
        let Queue { members, rounds, .. } = &mut *queue;
        if let Some((member, connections)) = members.get_mut(&self.key) {
            *connections -= 1;
            if *connections == 0 {
                rounds.leave(*member);
                members.remove(&self.key);
            }
        }
    }
}
