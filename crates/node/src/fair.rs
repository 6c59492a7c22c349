//! Whose turn it is, when more clients want something of a node than it can do at once. Pure: no clock, no
//! thread, no socket, no count of what is being done (that is the turnstile's).
//!
//! The idea: deficit round robin (Shreedhar and Varghese 1995). The clients that want something stand in a circle;
//! who is visited gets a quantum of cost to spend, and is served while it has some left. A piece's cost is known
//! only when it is over, so a grant takes what the client's last piece cost, the end of the piece corrects that,
//! and a client may come to owe: it is then passed over until its quanta have paid. A quantum is small (that of
//! 8 KiB) because a client that asks for one small thing at a time has no more than that to spend when it is
//! visited, and others should not spend more meanwhile.
//!
//! Only who owes waits. A client with something left to spend begins at once, though nothing is free: it is the
//! kernel that shares CPUs between threads, and a wait for a slot whose holder the kernel has put aside would cost
//! it more than the slot is worth. So it is those who had more than their share that make room.
//!
//! A client leaves the circle when its turn comes and it owes nothing and wants nothing. So going away for a moment
//! neither pays a debt nor brings another quantum.
//!
//! Cost is in nanoseconds of one CPU. Bytes cost what a CPU takes to move them over a socket, and a piece costs
//! the larger of its bytes and its CPU time, not their sum: moving bytes is what most of that time goes into, so
//! a sum would charge it twice, while the larger charges each piece for what it had most of. TLS, checksums and
//! operators beside the data show in the CPU time.
//!
//! Invariants, as the tests have them: while anybody waits, somebody is next; every ticket is granted once; what is
//! left to spend never exceeds a quantum; when nobody waits nobody has anything left to spend; and from one turn of
//! a waiting client to its next any other is served a quantum for each that the first owes, two more, and its pieces
//! in service.

use std::collections::VecDeque;

/// What a visit gives a client to spend: the cost of 8 KiB.
pub const QUANTUM: i64 = 2_048;
/// Bytes that cost as much as a nanosecond of a CPU: 4 GB/s, what a core about moves.
pub const BYTES_PER_NS: u64 = 4;
/// The least a piece costs: the calls around it.
pub const COST_MIN: u64 = 1_000;
/// The most a piece is charged, so that no sum overflows: an hour.
pub const COST_MAX: u64 = 3_600_000_000_000;

/// What a piece of this many bytes and this much CPU time costs.
pub fn cost(bytes: u64, cpu_ns: u64) -> u64 {
    (bytes / BYTES_PER_NS).max(cpu_ns).clamp(COST_MIN, COST_MAX)
}

/// A client among [`Rounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(usize);

/// A place in the queue of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Leave to begin a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which of those who wait may go on.
    pub ticket: Ticket,
    /// What it was charged already; [`Rounds::finish`] wants to know.
    pub reserved: u64,
}

#[derive(Debug, Default)]
struct Client {
    /// What it may still spend; below zero it owes.
    deficit: i64,
    /// What its last piece cost, or nothing yet.
    last_cost: u64,
    tickets: VecDeque<Ticket>,
    /// Whether it stands in the circle.
    is_listed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Rounds {
    clients: Vec<Client>,
    /// Places in `clients` that nobody has.
    vacant: Vec<Member>,
    /// The circle; its first is visited next.
    circle: VecDeque<Member>,
    waiting: usize,
    next_ticket: u64,
}

impl Rounds {
    /// A client that wants nothing yet. It costs a few words until it leaves.
    pub fn join(&mut self) -> Member {
        self.vacant.pop().unwrap_or_else(|| {
            self.clients.push(Client::default());
            Member(self.clients.len() - 1)
        })
    }

    /// A client is gone. What it still waited for is not granted any more.
    pub fn leave(&mut self, member: Member) {
        let client = std::mem::take(&mut self.clients[member.0]);
        self.waiting -= client.tickets.len();
        self.circle.retain(|listed| *listed != member);
        self.vacant.push(member);
        self.forgive_if_idle();
    }

    /// How many tickets are not granted yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// What a client may spend before it is passed over; below zero what it owes.
    pub fn deficit(&self, member: Member) -> i64 {
        self.clients[member.0].deficit
    }

    /// A client wants to begin a piece.
    pub fn wait(&mut self, member: Member) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting += 1;
        self.list(member);
        self.clients[member.0].tickets.push_back(ticket);
        ticket
    }

    /// Lets a client begin a piece without waiting, if it owes nothing and has nothing waiting, whether or not
    /// anything is free. What is reserved for the piece.
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

    /// Puts a client into the circle, if it is not there, with a quantum to spend.
    fn list(&mut self, member: Member) {
        let client = &mut self.clients[member.0];
        if !client.is_listed {
            client.is_listed = true;
            client.deficit = QUANTUM;
            self.circle.push_back(member);
        }
    }

    /// Who goes on next. Nothing only if nobody waits.
    pub fn grant_next(&mut self) -> Option<Grant> {
        if self.waiting == 0 {
            return None;
        }
        let mut passed_over = 0;
        loop {
            // Whoever has a ticket is listed, so the circle has somebody.
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
            // A round takes as many visits as the circle has clients. After one in which all owed, those that are
            // as good for nobody are gone through at once.
            passed_over += 1;
            if passed_over > self.circle.len() {
                self.skip_rounds();
                passed_over = 0;
            }
        }
    }

    /// Gives everybody in the circle the quanta of as many rounds as pass until one who waits owes nothing.
    fn skip_rounds(&mut self) {
        let owed = self.circle.iter().map(|member| &self.clients[member.0]);
        let least = owed.filter(|client| !client.tickets.is_empty()).map(|client| client.deficit).max();
        let rounds = least.map_or(0, |deficit| deficit.min(0) / -QUANTUM);
        for member in &self.circle {
            let client = &mut self.clients[member.0];
            client.deficit = (client.deficit + rounds * QUANTUM).min(QUANTUM);
        }
    }

    /// A piece is over: what it cost takes the place of what was reserved for it, 0 if it began without waiting.
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
            // It was there when the piece began, and everybody has begun anew since.
            client.deficit = 0;
        }
    }

    /// When nobody waits, nobody was kept waiting: all begin anew.
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
