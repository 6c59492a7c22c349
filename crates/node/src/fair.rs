//! Fair sharing of a node between clients: decides who is next when the clients want more than the node can do at once.
//! Pure: it has no clock, no thread and no socket. The admission queue (`admission_queue`) counts the work in progress.
//! A *morsel* of work is all that a connection does between two admissions: mostly moving up to 256 KiB.
//!
//! Picture people who queue at a counter. Each may spend a small amount per visit. Somebody whose order turned out
//! larger than that owes the difference, and is passed over until later rounds have paid the debt. This is deficit
//! round robin (Shreedhar and Varghese 1995): the waiting clients stand in a circle, and each visit gives a client a
//! quantum of cost. The cost of a morsel of work is known only when it ends. A grant therefore reserves the cost of the
//! client's previous morsel, and the end of the morsel corrects it. The quantum is small (the cost of 8 KiB), because a
//! client that asks for one small thing at a time has no more than that to spend per visit, and others should not spend
//! more meanwhile.
//!
//! A client that owes nothing does not wait, even if no slot is free. The kernel shares the CPUs between threads
//! anyway, and waiting for a slot whose holder is not running would cost that client more than the slot is worth. Only
//! clients that had more than their share make room.
//!
//! A client leaves the circle when it is visited, owes nothing and wants nothing. Going away for a moment therefore
//! neither pays a debt nor earns another quantum. When nobody waits, all debts are forgiven.
//!
//! Cost is in ns of one CPU. A morsel costs the larger of its CPU time and of the time a CPU takes to move its bytes
//! over a socket. The sum would charge the move twice, because most of the CPU time goes into it. TLS, checksums and
//! operators beside the data show in the CPU time.
//!
//! Invariants, which the tests check: while anybody waits, somebody is next; every ticket is granted once; a balance
//! never exceeds a quantum; when nobody waits, nobody has a balance; between two visits of a waiting client, any other
//! client is served at most a quantum for each quantum that the first one owes, two more, and its morsels in service.

use std::collections::VecDeque;

/// Cost that a client may spend per visit, in ns: that of 8 KiB. With the cost of 256 KiB, a client with many requests
/// would get 32 pages while another gets one (`docs/decisions/0012-fair-sharing.md`).
pub const QUANTUM: i64 = 2_048;
/// Bytes that a CPU moves per ns: 4 GB/s, about what a core moves.
pub const BYTES_PER_NS: u64 = 4;
/// Least cost of a morsel (piece of work), in ns: the system calls around it.
pub const COST_MIN: u64 = 1_000;
/// Most cost of a morsel (piece of work), in ns: an hour. It keeps sums from overflowing.
pub const COST_MAX: u64 = 3_600_000_000_000;

/// Returns the cost in ns of a morsel (piece of work) that moves this many bytes and takes this much CPU time.
pub fn cost(bytes: u64, cpu_ns: u64) -> u64 {
    (bytes / BYTES_PER_NS).max(cpu_ns).clamp(COST_MIN, COST_MAX)
}

/// Index of a client in [`Rounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(usize);

/// Number of one waiting request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Permission to begin a morsel (piece of work).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Ticket of the request that may begin.
    pub ticket: Ticket,
    /// Cost that was charged already, to be passed to [`Rounds::finish`].
    pub reserved: u64,
}

#[derive(Debug, Default)]
struct Client {
    /// Cost it may still spend; negative if it owes.
    deficit: i64,
    /// Cost of its last morsel (piece of work) in ns; 0 before the first.
    last_cost: u64,
    tickets: VecDeque<Ticket>,
    /// True if the client stands in the circle.
    is_listed: bool,
}

/// Deficit round robin over the clients of a node.
#[derive(Debug, Default)]
pub struct Rounds {
    clients: Vec<Client>,
    /// Unused indices of `clients`.
    vacant: Vec<Member>,
    /// Clients in the circle; the first is visited next.
    circle: VecDeque<Member>,
    waiting: usize,
    next_ticket: u64,
}

impl Rounds {
    /// Adds a client that wants nothing yet. It takes a few words of memory until it leaves.
    pub fn join(&mut self) -> Member {
        self.vacant.pop().unwrap_or_else(|| {
            self.clients.push(Client::default());
            Member(self.clients.len() - 1)
        })
    }

    /// Removes a client. Its waiting tickets are not granted any more.
    pub fn leave(&mut self, member: Member) {
        let client = std::mem::take(&mut self.clients[member.0]);
        self.waiting -= client.tickets.len();
        self.circle.retain(|listed| *listed != member);
        self.vacant.push(member);
        self.forgive_if_idle();
    }

    /// Returns the number of tickets that are not granted yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the cost that a client may spend before it is passed over; negative if it owes.
    pub fn deficit(&self, member: Member) -> i64 {
        self.clients[member.0].deficit
    }

    /// Queues a client's request to begin a morsel (piece of work).
    pub fn wait(&mut self, member: Member) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting += 1;
        self.list(member);
        self.clients[member.0].tickets.push_back(ticket);
        ticket
    }

    /// Lets a client begin a morsel (piece of work) at once, even without a free slot, if it owes nothing and has no
    /// waiting ticket. Returns the reserved cost, or `None` if it has to wait.
    pub fn begin(&mut self, member: Member) -> Option<u64> {
        self.list(member);
        let client = &mut self.clients[member.0];
        if client.deficit <= 0 || !client.tickets.is_empty() {
            return None;
        }
        let reserved = client.last_cost.max(COST_MIN);
        client.deficit -= reserved as i64;
        self.forgive_if_idle();
        Some(reserved)
    }

    /// Puts a client into the circle with a quantum to spend, if it is not there.
    fn list(&mut self, member: Member) {
        let client = &mut self.clients[member.0];
        if !client.is_listed {
            client.is_listed = true;
            client.deficit = QUANTUM;
            self.circle.push_back(member);
        }
    }

    /// Grants the next ticket. `None` only if nobody waits.
    pub fn grant_next(&mut self) -> Option<Grant> {
        if self.waiting == 0 {
            return None;
        }
        let mut passed_over = 0;
        loop {
            // Every client with a ticket is in the circle, so the circle is not empty.
            let member = *self.circle.front()?;
            let client = &mut self.clients[member.0];
            if client.deficit > 0
                && let Some(ticket) = client.tickets.pop_front()
            {
                let reserved = client.last_cost.max(COST_MIN);
                client.deficit -= reserved as i64;
                self.waiting -= 1;
                self.forgive_if_idle();
                return Some(Grant { ticket, reserved });
            }
            self.circle.pop_front();
            if client.deficit > 0 {
                client.deficit = 0;
                client.is_listed = false;
                continue;
            }
            client.deficit += QUANTUM;
            self.circle.push_back(member);
            // A round visits every client of the circle once. After a round in which all owed, the further rounds that
            // would grant nothing are applied in one step.
            passed_over += 1;
            if passed_over > self.circle.len() {
                self.skip_rounds();
                passed_over = 0;
            }
        }
    }

    /// Gives each client in the circle the quanta of the rounds that pass until a waiting client owes nothing.
    fn skip_rounds(&mut self) {
        let owed = self.circle.iter().map(|member| &self.clients[member.0]);
        let least = owed.filter(|client| !client.tickets.is_empty()).map(|client| client.deficit).max();
        let rounds = least.map_or(0, |deficit| deficit.min(0) / -QUANTUM);
        for member in &self.circle {
            let client = &mut self.clients[member.0];
            client.deficit = (client.deficit + rounds * QUANTUM).min(QUANTUM);
        }
    }

    /// Ends a morsel (piece of work): its cost replaces the reserved cost, which is 0 if it began without a
    /// reservation.
    pub fn finish(&mut self, member: Member, reserved: u64, cost: u64) {
        let cost = cost.clamp(COST_MIN, COST_MAX);
        self.clients[member.0].last_cost = cost;
        if self.waiting == 0 {
            return;
        }
        if reserved == 0 {
            self.list(member);
        }
        let client = &mut self.clients[member.0];
        client.deficit = (client.deficit + reserved as i64 - cost as i64).clamp(-(COST_MAX as i64), QUANTUM);
        if !client.is_listed {
            // The client was in the circle when the morsel began, and all debts have been forgiven since.
            client.deficit = 0;
        }
    }

    /// Forgives all debts and empties the circle if nobody waits.
    fn forgive_if_idle(&mut self) {
        if self.waiting == 0 {
            for member in self.circle.drain(..) {
                let client = &mut self.clients[member.0];
                client.deficit = 0;
                client.is_listed = false;
            }
        }
    }
}
