//! State machine of a worker: takes morsels, requests their bytes, works when they have arrived, and requests writes.
//!
//! The idea: a core and its prefetchers have several reads in flight. A worker does the same with morsels (parts of a
//! stage). The number of morsels whose reads are in flight is limited. The morsel whose bytes arrive first is worked on
//! first. A worker waits for writes only if their number is more than twice that limit.
//!
//! Random accesses to cache lines are requested together with the other bytes of a morsel if they have no latency of
//! their own. If they have one, only as many as a core has in flight are requested at a time, when it is the morsel's
//! turn.
//!
//! The machine is given the time and returns until when to wait. That is why a virtual clock and a thread can drive the
//! same code.

use crate::free_space::FreeSpace;
use crate::meter::{Meter, PICOS_PER_SECOND, Picos, Way};
use crate::plan::traffic::TierSide;
use crate::stage::{Lines, Morsel, Order, Stage};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Morsels of a stage that no worker has taken.
pub(crate) struct Queues {
    /// Kind of the stage's random accesses to cache lines.
    lines: Lines,
    /// One queue for all morsels, or one for each tier. Each has the index of its next morsel.
    queues: Vec<(Vec<Morsel>, AtomicUsize)>,
}

impl Queues {
    pub(crate) fn new(stage: &Stage) -> Queues {
        let all = &stage.morsels;
        let from = |side| all.iter().filter(|morsel| morsel.from() == side).copied().collect();
        let queues = match stage.order {
            Order::AsGiven => vec![all.clone()],
            Order::TwoQueues => TierSide::ALL.map(from).into(),
        };
        Queues::of(stage.lines, queues)
    }

    pub(crate) fn of(lines: Lines, queues: Vec<Vec<Morsel>>) -> Queues {
        Queues { lines, queues: queues.into_iter().map(|queue| (queue, AtomicUsize::new(0))).collect() }
    }

    fn take(&self, queue: usize) -> Option<Morsel> {
        let (morsels, next) = &self.queues[queue];
        // The index grows beyond the end with each attempt that finds the queue empty. A worker makes few of these
        // before it is done, so that the index stays far from an overflow.
        morsels.get(next.fetch_add(1, Ordering::Relaxed)).copied()
    }
}

/// Next action of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Wait until this time, then call `step`.
    WaitUntil(Picos),
    /// Work on this morsel, then call `step`.
    Work(Morsel),
    /// The worker has nothing left to do.
    Done,
}

#[derive(Clone, Copy)]
enum State {
    /// Requests morsels ahead, and waits for the one that arrives first.
    Choosing,
    /// Requests random accesses in groups. `left` counts the cache lines and `bytes` the sequential bytes that are not
    /// requested yet, by tier (near, far).
    Touching { morsel: Morsel, left: [u32; 2], bytes: [u64; 2] },
    /// Has all bytes of the morsel, which is worked on next.
    Working(Morsel),
    /// Has done the work of the morsel, whose writes are requested next.
    Writing(Morsel),
    /// Waits for the last writes.
    Ending,
}

/// Morsel whose bytes were requested.
struct UnderWay {
    /// Time at which the bytes will have arrived.
    due: Picos,
    /// Index of the queue that the morsel comes from.
    queue: usize,
    morsel: Morsel,
}

/// State machine of one worker of a stage.
pub(crate) struct WorkerState {
    /// Links of both tiers, which say when bytes arrive.
    meter: Arc<Meter>,
    /// True if random accesses have a latency on either tier.
    is_latent: bool,
    queues: Arc<Queues>,
    /// Most morsels of each queue whose reads are in flight.
    in_flight_max: usize,
    /// True if morsels are worked on in the order in which they were requested, not as they arrive.
    is_in_order: bool,
    /// Free space that decides on which tier writes count; `None` if morsels state the tier.
    room: Option<Arc<FreeSpace>>,
    /// Morsels whose reads are in flight, in the order of the requests.
    reads: Vec<UnderWay>,
    /// Times at which writes in flight will have ended.
    writes: VecDeque<Picos>,
    state: State,
    /// Time at which the last morsel was done that mostly reads from a tier, by tier (near, far).
    drained: [Picos; 2],
}

impl WorkerState {
    /// Returns a worker with `in_flight_max` morsels in flight for each queue.
    pub(crate) fn new(meter: Arc<Meter>, queues: Arc<Queues>, in_flight_max: usize) -> WorkerState {
        WorkerState {
            is_latent: meter.is_latent(),
            meter,
            queues,
            in_flight_max: in_flight_max.max(1),
            is_in_order: false,
            room: None,
            reads: Vec::new(),
            writes: VecDeque::new(),
            state: State::Choosing,
            drained: [0; 2],
        }
    }

    /// Works on morsels in the order of the queue, even if a later one arrives first.
    pub(crate) fn in_order(mut self) -> WorkerState {
        self.is_in_order = true;
        self
    }

    /// Counts writes on the tiers where there is free space in `room`, instead of those that morsels state.
    pub(crate) fn write_to(&mut self, room: &Arc<FreeSpace>) {
        self.room = Some(Arc::clone(room));
    }

    /// Returns the seconds until the last morsel that mostly reads from each tier was done (near, far).
    pub(crate) fn drained_seconds(&self) -> [f64; 2] {
        self.drained.map(|picos| picos as f64 / PICOS_PER_SECOND)
    }

    /// Returns the next action at time `now`. The caller calls again at the returned time, or when the work is done.
    pub(crate) fn step(&mut self, now: Picos) -> Step {
        loop {
            match self.state {
                State::Choosing => {
                    if let Some(due) = self.wait_for_writes(now, 2 * self.in_flight_max) {
                        return Step::WaitUntil(due);
                    }
                    self.ask(now);
                    let first = match self.is_in_order {
                        true => (!self.reads.is_empty()).then_some(0),
                        // If several are due at the same time, the one that was requested first is taken.
                        false => (0..self.reads.len()).min_by_key(|at| self.reads[*at].due),
                    };
                    let Some(first) = first else {
                        self.state = State::Ending;
                        continue;
                    };
                    // `remove` keeps the order, which ties depend on.
                    let UnderWay { due, morsel, .. } = self.reads.remove(first);
                    self.state = match self.is_touching(&morsel) {
                        true => State::Touching { morsel, left: morsel.lines, bytes: morsel.read_bytes },
                        false => State::Working(morsel),
                    };
                    if due > now {
                        return Step::WaitUntil(due);
                    }
                }
                State::Touching { morsel, left: [0, 0], .. } => self.state = State::Working(morsel),
                State::Touching { morsel, left, bytes } => {
                    let (due, left, bytes) = self.touch(now, left, bytes);
                    self.state = State::Touching { morsel, left, bytes };
                    if due > now {
                        return Step::WaitUntil(due);
                    }
                }
                State::Working(morsel) => {
                    self.state = State::Writing(morsel);
                    return Step::Work(morsel);
                }
                State::Writing(morsel) => {
                    self.drained[morsel.from().index()] = now;
                    let mut written = match &self.room {
                        Some(room) => room.fill(morsel.written_bytes),
                        None => morsel.written_bytes,
                    };
                    if self.queues.lines.are_written && !self.is_touching(&morsel) {
                        written = plus(written, self.line_bytes(&morsel));
                    }
                    for side in TierSide::ALL {
                        let bytes = written[side.index()];
                        if bytes > 0 {
                            self.writes.push_back(self.meter.stream(now, side, Way::Write, bytes));
                        }
                    }
                    self.state = State::Choosing;
                }
                State::Ending => {
                    return match self.wait_for_writes(now, 0) {
                        Some(due) => Step::WaitUntil(due),
                        None => Step::Done,
                    };
                }
            }
        }
    }

    /// Drops writes that have ended until at most `most` are left. Returns the due time of the first one that has not
    /// ended, if more are left.
    fn wait_for_writes(&mut self, now: Picos, most: usize) -> Option<Picos> {
        while self.writes.len() > most {
            match self.writes.front() {
                Some(due) if *due > now => return Some(*due),
                _ => self.writes.pop_front(),
            };
        }
        None
    }

    /// Reports whether a morsel's random accesses have a latency, so that they are requested in groups.
    fn is_touching(&self, morsel: &Morsel) -> bool {
        self.is_latent && morsel.lines != [0, 0]
    }

    fn line_bytes(&self, morsel: &Morsel) -> [u64; 2] {
        morsel.lines.map(|lines| u64::from(lines) * u64::from(self.queues.lines.bytes))
    }

    /// Returns the time at which all bytes have arrived.
    fn stream(&self, now: Picos, bytes: [u64; 2]) -> Picos {
        let due = TierSide::ALL.map(|side| self.meter.stream(now, side, Way::Read, bytes[side.index()]));
        due[0].max(due[1])
    }

    /// Requests morsels until enough of each queue are in flight.
    fn ask(&mut self, now: Picos) {
        for queue in 0..self.queues.queues.len() {
            let mut under_way = self.reads.iter().filter(|read| read.queue == queue).count();
            while under_way < self.in_flight_max
                && let Some(morsel) = self.queues.take(queue)
            {
                // If lines have a latency, the sequential bytes are requested along with them. Requesting a whole
                // morsel ahead would delay the lines.
                let bytes = match self.is_touching(&morsel) {
                    true => [0; 2],
                    false => plus(morsel.read_bytes, self.line_bytes(&morsel)),
                };
                let due = self.stream(now, bytes);
                self.reads.push(UnderWay { due, queue, morsel });
                under_way += 1;
            }
        }
    }

    /// Requests the next group of cache lines, near and far in proportion to `left`, and their share of the sequential
    /// bytes. Returns the time at which all have arrived, and the lines and bytes that are left to be requested.
    fn touch(&mut self, now: Picos, left: [u32; 2], bytes: [u64; 2]) -> (Picos, [u32; 2], [u64; 2]) {
        let lines = self.queues.lines;
        let all = u64::from(left[0]) + u64::from(left[1]);
        let taken = all.min(u64::from(lines.together.max(1)));
        let near = ((taken * u64::from(left[0]) + all / 2) / all).min(u64::from(left[0]));
        let far = (taken - near).min(u64::from(left[1]));
        let near = taken - far;
        let streamed = bytes.map(|bytes| bytes * taken / all);
        let mut due = self.stream(now, streamed);
        for (side, count) in [(TierSide::Near, near), (TierSide::Far, far)] {
            due = due.max(self.meter.lines(now, side, count, u64::from(lines.bytes)));
            if lines.are_written && count > 0 {
                self.writes.push_back(self.meter.stream(
                    now,
                    side,
                    Way::Write,
                    count * u64::from(lines.bytes),
                ));
            }
        }
        // The casts fit: no more lines than `left`.
        let left = [left[0] - near as u32, left[1] - far as u32];
        (due, left, [bytes[0] - streamed[0], bytes[1] - streamed[1]])
    }
}

/// Returns the latest of the workers' times, by tier (near, far).
pub(crate) fn latest(drained: impl IntoIterator<Item = [f64; 2]>) -> [f64; 2] {
    drained.into_iter().fold([0.0; 2], |most, of| [most[0].max(of[0]), most[1].max(of[1])])
}

fn plus(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [one[0] + other[0], one[1] + other[1]]
}
