//! What every connection of a node passes before it moves data: as many are inside as the node has slots, and
//! when more want to, [`Rounds`] says whose turn it is.
//!
//! The idea: one word holds how many are inside (low half) and how many wait (high half). While nobody waits and a
//! slot is free, one atomic addition lets a connection in and another lets it out: no lock, nobody is charged, for
//! nobody is kept waiting. Otherwise the lock is taken. A client that owes nothing goes in all the same; of one that
//! owes, the connection's thread parks until a slot is given to it by name. While anybody waits nobody enters past
//! the lock, for the word says so.
//!
//! Why no wake-up is lost: who is to wait adds itself to the word in the same step in which it sees that it has to,
//! with the lock held. Whoever leaves before that changes the word, and the step is tried anew; whoever leaves
//! after it sees somebody waiting, takes the lock, which is free when the waiter's ticket is in its place, and
//! gives the slot away.
//!
//! A node with limits counts each piece, under the lock. One of those who wait for the buckets watches the clock
//! for all of them.

use crate::fair::{self, Member, Rounds, Ticket};
use crate::limits::{BURST_NS, Bucket};
use crate::options::Limits;
use farpool_host::Host;
use farpool_lock::Mutex;
use farpool_transport::{Identity, Passage, Peer};
use farpool_wire::{ClientId, MonoNs};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// One who waits, in the word.
const WAITING: u64 = 1 << 32;
const INSIDE: u64 = WAITING - 1;

/// Whose connections count as one client: those of one identity that name the same client, or one connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A client of an identity, by the name it gives itself.
    Named(Option<Identity>, ClientId),
    /// A connection that gives no name.
    Connection(u64),
}

impl Key {
    /// Whom a peer's work is charged to.
    pub fn of(peer: &Peer) -> Key {
        match peer.client {
            ClientId(0) => Key::Connection(peer.connection),
            client => Key::Named(peer.identity.clone(), client),
        }
    }
}

/// Where a waiting thread finds its grant.
#[derive(Debug)]
struct Seat {
    /// What was reserved for its piece, and one; 0 while it waits.
    granted: AtomicU64,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Queue {
    rounds: Rounds,
    seats: BTreeMap<Ticket, Arc<Seat>>,
    /// Members, and how many connections each has.
    members: BTreeMap<Key, (Member, usize)>,
    /// Bytes over sockets; CPU nanoseconds of connection threads.
    buckets: [Option<Bucket>; 2],
    /// Who watches the clock for those that wait for a bucket.
    keeper: Option<Ticket>,
    /// When it will look next.
    alarm: MonoNs,
}

/// See the module.
#[derive(Debug)]
pub struct Turnstile {
    word: AtomicU64,
    slots: u64,
    is_limited: bool,
    /// Whether bytes, and whether CPU time, count when turns are shared: where there is one limit, what it limits
    /// is what is short; otherwise both may be.
    counts: [bool; 2],
    may_spin: bool,
    queue: Mutex<Queue>,
    host: Arc<dyn Host>,
}

/// CPU time of this thread, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Both parts are non-negative on this clock.
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

impl Turnstile {
    /// One with at least one slot, that lets in no more than the limits permit.
    pub fn new(host: Arc<dyn Host>, slots: usize, limits: &Limits) -> Arc<Turnstile> {
        let now = host.now();
        let cpu = limits.cpu_milli.map(|milli| Bucket::new(u64::from(milli) * 1_000_000, now));
        let bytes = limits.bytes_per_second.map(|bytes| Bucket::new(bytes, now));
        Arc::new(Turnstile {
            word: AtomicU64::new(0),
            slots: slots.max(1) as u64,
            is_limited: bytes.is_some() || cpu.is_some(),
            counts: [bytes.is_some() || cpu.is_none(), cpu.is_some() || bytes.is_none()],
            may_spin: cpu.is_none(),
            queue: Mutex::new(Queue { buckets: [bytes, cpu], ..Queue::default() }),
            host,
        })
    }

    /// A connection's way through.
    pub fn passage(self: &Arc<Turnstile>, peer: &Peer) -> TurnstilePassage {
        let key = Key::of(peer);
        let mut queue = self.queue.lock();
        let Queue { members, rounds, .. } = &mut *queue;
        let (member, connections) = members.entry(key.clone()).or_insert_with(|| (rounds.join(), 0));
        *connections += 1;
        let member = *member;
        drop(queue);
        let turnstile = Arc::clone(self);
        let cpu_ns = self.is_limited.then(thread_cpu_ns);
        TurnstilePassage { turnstile, key, member, inside: None, paid_cpu_ns: cpu_ns }
    }

    /// Ends all limits: the node stops, and nobody is to wait for that.
    pub fn lift_limits(&self) {
        let mut queue = self.queue.lock();
        queue.buckets = [None, None];
        self.give_slots(&mut queue);
    }

    /// Goes in if a slot is free and nobody waits. Whether it did.
    fn enter_now(&self) -> bool {
        let free = |word: u64| (word < self.slots).then(|| word + 1);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_ok()
    }

    /// Waits to be let in. What was reserved for the piece.
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
            // In one step with having seen that there is no slot, or that no bucket has anything.
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
                // Only a grant needs the thread; anything else that woke it is not for us.
                match seat.granted.load(Ordering::Acquire) {
                    0 => {}
                    granted => return granted - 1,
                }
            }
            queue = self.queue.lock();
        }
    }

    /// How long the caller is to park, if it is the one who watches the clock.
    fn watch_clock(&self, queue: &mut Queue, ticket: Ticket) -> Option<Duration> {
        if !self.is_limited || *queue.keeper.get_or_insert(ticket) != ticket {
            return None;
        }
        // If no slot is free, whoever leaves one looks at the buckets; this one looks again all the same.
        let left = self.wait_ns(queue);
        let left = if left == 0 { BURST_NS } else { left.min(BURST_NS) };
        queue.alarm = MonoNs(self.host.now().0.saturating_add(left));
        Some(Duration::from_nanos(left))
    }

    /// Has the one who watches the clock look earlier, if the buckets will have something before it would. Else
    /// tokens gather while all wait, and what they buy is served in a rush in which who asks for one thing at a time
    /// is not back in time for its next turn.
    fn set_alarm(&self, queue: &Queue, left_ns: u64) {
        let is_late = queue.alarm.0 > self.host.now().0.saturating_add(left_ns);
        if left_ns > 0
            && is_late
            && let Some(seat) = queue.keeper.and_then(|keeper| queue.seats.get(&keeper))
        {
            seat.thread.unpark();
        }
    }

    /// Somebody else watches the clock, if the caller did or was about to: one who is called to do so may be let
    /// in before it wakes, and calls the next.
    fn hand_over_clock(&self, queue: &mut Queue, ticket: Ticket) {
        if queue.keeper.is_none_or(|keeper| keeper == ticket) {
            queue.keeper = None;
            if let Some(seat) = queue.seats.values().next() {
                seat.thread.unpark();
            }
        }
    }

    /// How long the buckets let nobody begin; 0 if they do.
    fn wait_ns(&self, queue: &mut Queue) -> u64 {
        if !self.is_limited {
            return 0;
        }
        let now = self.host.now();
        queue.buckets.iter_mut().flatten().map(|bucket| bucket.wait_ns(now)).max().unwrap_or(0)
    }

    /// Gives free slots to those whose turn it is.
    fn give_slots(&self, queue: &mut Queue) {
        while queue.rounds.waiting() > 0 && self.wait_ns(queue) == 0 {
            let free = |word: u64| (word & INSIDE < self.slots).then(|| word - WAITING + 1);
            if self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).is_err() {
                return;
            }
            // As many wait in the word as in the rounds, for both change under the lock.
            let Some(grant) = queue.rounds.grant_next() else { return };
            if let Some(seat) = queue.seats.remove(&grant.ticket) {
                seat.granted.store(grant.reserved + 1, Ordering::Release);
                seat.thread.unpark();
            }
        }
    }

    /// Leaves, and charges the piece if anybody cares.
    fn leave(&self, member: Member, piece: &Piece) {
        if !self.is_limited && piece.reserved == 0 {
            let before = self.word.fetch_sub(1, Ordering::AcqRel);
            if before < WAITING {
                return;
            }
            let mut queue = self.queue.lock();
            queue.rounds.finish(member, 0, fair::cost(piece.bytes, piece.cpu_ns));
            return self.give_slots(&mut queue);
        }
        let mut queue = self.queue.lock();
        self.word.fetch_sub(1, Ordering::AcqRel);
        for (bucket, spent) in queue.buckets.iter_mut().zip([piece.bytes, piece.thread_cpu_ns]) {
            if let Some(bucket) = bucket {
                bucket.take(spent);
            }
        }
        let counted = |kind: usize, spent| if self.counts[kind] { spent } else { 0 };
        let cost = fair::cost(counted(0, piece.bytes), counted(1, piece.cpu_ns));
        queue.rounds.finish(member, piece.reserved, cost);
        self.give_slots(&mut queue);
        let left_ns = self.wait_ns(&mut queue);
        self.set_alarm(&queue, left_ns);
    }
}

/// What was done inside.
struct Piece {
    reserved: u64,
    bytes: u64,
    /// CPU time inside, where it was looked at.
    cpu_ns: u64,
    /// With limits, all CPU time of the thread since its last piece: waiting and watching the clock included, which
    /// the node has to pay for but which is no service to the client.
    thread_cpu_ns: u64,
}

/// One connection's way through a [`Turnstile`].
#[derive(Debug)]
pub struct TurnstilePassage {
    turnstile: Arc<Turnstile>,
    key: Key,
    member: Member,
    /// While inside: what was reserved, and the thread's CPU time when it went in, where that is looked at.
    inside: Option<(u64, Option<u64>)>,
    /// With limits, the thread's CPU time up to which it has paid.
    paid_cpu_ns: Option<u64>,
}

impl Passage for TurnstilePassage {
    fn enter(&mut self) {
        if !self.turnstile.is_limited && self.turnstile.enter_now() {
            self.inside = Some((0, None));
            return;
        }
        let reserved = self.turnstile.enter_in_turn(self.member);
        // Looking costs a call, so it is only done where somebody waits or is counted for.
        self.inside = Some((reserved, Some(thread_cpu_ns())));
    }

    fn leave(&mut self, bytes: u64) {
        let Some((reserved, begun)) = self.inside.take() else { return };
        let now = if begun.is_some() { thread_cpu_ns() } else { 0 };
        let since = |then: Option<u64>| then.map_or(0, |then| now.saturating_sub(then));
        let piece = Piece { reserved, bytes, cpu_ns: since(begun), thread_cpu_ns: since(self.paid_cpu_ns) };
        self.paid_cpu_ns = self.paid_cpu_ns.map(|_| now);
        self.turnstile.leave(self.member, &piece);
    }

    fn is_wanted(&self) -> bool {
        self.turnstile.word.load(Ordering::Relaxed) >= WAITING
    }

    fn may_spin(&self) -> bool {
        self.turnstile.may_spin
    }
}

impl Drop for TurnstilePassage {
    fn drop(&mut self) {
        self.leave(0);
        let mut queue = self.turnstile.queue.lock();
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
