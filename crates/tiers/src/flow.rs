//! A worker: takes morsels, asks for their bytes, does the work when they are there, and asks for what it writes.
//!
//! The idea: some morsels are under way at a time, as a core and its prefetchers have reads under way; the one whose
//! bytes are there first is done first. Writes are only waited for when there are twice as many. Lines that are touched
//! here and there are asked for with the rest of a morsel where they take no longer than their bytes; where each takes
//! a latency, so many together when it is their turn, as a core has no more of them under way. All of it is a state
//! machine that is told what time it is and says until when it waits, so a virtual clock and a thread drive the very
//! same one.

use crate::meter::{Meter, PICOS_PER_SECOND, Picos, Way};
use crate::plan::traffic::Side;
use crate::room::Room;
use crate::stage::{Lines, Morsel, Order, Stage};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Morsels of a stage that nobody has taken.
pub(crate) struct Queues {
    lines: Lines,
    /// One for all, or one for each side.
    queues: Vec<(Vec<Morsel>, AtomicUsize)>,
}

impl Queues {
    pub(crate) fn new(stage: &Stage) -> Queues {
        let all = &stage.morsels;
        let from = |side| all.iter().filter(|morsel| morsel.from() == side).copied().collect();
        let queues = match stage.order {
            Order::AsGiven => vec![all.clone()],
            Order::TwoQueues => Side::ALL.map(from).into(),
        };
        Queues::of(stage.lines, queues)
    }

    pub(crate) fn of(lines: Lines, queues: Vec<Vec<Morsel>>) -> Queues {
        Queues { lines, queues: queues.into_iter().map(|queue| (queue, AtomicUsize::new(0))).collect() }
    }

    fn take(&self, queue: usize) -> Option<Morsel> {
        let (morsels, next) = &self.queues[queue];
        // Whoever finds it drained puts it forward once more: workers times windows, far from an overflow.
        morsels.get(next.fetch_add(1, Ordering::Relaxed)).copied()
    }
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing until then.
    WaitUntil(Picos),
    /// The work of this morsel, then ask again.
    Work(Morsel),
    /// It has nothing left to do.
    Done,
}

#[derive(Clone, Copy)]
enum State {
    Choosing,
    /// Lines that are left, and bytes of the stream beside them, by side.
    Touching {
        morsel: Morsel,
        left: [u32; 2],
        bytes: [u64; 2],
    },
    Working(Morsel),
    Writing(Morsel),
    Ending,
}

struct UnderWay {
    due: Picos,
    queue: usize,
    morsel: Morsel,
}

pub(crate) struct Flow {
    meter: Arc<Meter>,
    is_latent: bool,
    queues: Arc<Queues>,
    window: usize,
    /// Whether morsels are done in the order in which they were asked for, or as they come.
    is_in_order: bool,
    /// Where what is written goes; as morsels say if there is none.
    room: Option<Arc<Room>>,
    reads: Vec<UnderWay>,
    writes: VecDeque<Picos>,
    state: State,
    drained: [Picos; 2],
}

impl Flow {
    /// With so many morsels under way, of each queue.
    pub(crate) fn new(meter: Arc<Meter>, queues: Arc<Queues>, window: usize) -> Flow {
        Flow {
            is_latent: meter.is_latent(),
            meter,
            queues,
            window: window.max(1),
            is_in_order: false,
            room: None,
            reads: Vec::new(),
            writes: VecDeque::new(),
            state: State::Choosing,
            drained: [0; 2],
        }
    }

    /// Does morsels as they stand, whichever of them is there first.
    pub(crate) fn in_order(mut self) -> Flow {
        self.is_in_order = true;
        self
    }

    /// Writes go where there is room.
    pub(crate) fn write_to(&mut self, room: &Arc<Room>) {
        self.room = Some(Arc::clone(room));
    }

    /// By side, when the last morsel that reads there was done.
    pub(crate) fn drained_seconds(&self) -> [f64; 2] {
        self.drained.map(|picos| picos as f64 / PICOS_PER_SECOND)
    }

    /// What to do now. To be asked again at the time it says, or when the work is done.
    pub(crate) fn step(&mut self, now: Picos) -> Step {
        loop {
            match self.state {
                State::Choosing => {
                    if let Some(due) = self.wait_for_writes(now, 2 * self.window) {
                        return Step::WaitUntil(due);
                    }
                    self.ask(now);
                    let first = match self.is_in_order {
                        true => (!self.reads.is_empty()).then_some(0),
                        // Of equal times the one that was asked for first.
                        false => (0..self.reads.len()).min_by_key(|at| self.reads[*at].due),
                    };
                    let Some(first) = first else {
                        self.state = State::Ending;
                        continue;
                    };
                    // In order, so that of equal times the one that was asked for first is done first.
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
                    for side in Side::ALL {
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

    /// Forgets writes until no more than so many are left. Returns when the next one is there if it is not yet.
    fn wait_for_writes(&mut self, now: Picos, most: usize) -> Option<Picos> {
        while self.writes.len() > most {
            match self.writes.front() {
                Some(due) if *due > now => return Some(*due),
                _ => self.writes.pop_front(),
            };
        }
        None
    }

    /// Whether a morsel's lines are asked for a few at a time.
    fn is_touching(&self, morsel: &Morsel) -> bool {
        self.is_latent && morsel.lines != [0, 0]
    }

    fn line_bytes(&self, morsel: &Morsel) -> [u64; 2] {
        morsel.lines.map(|lines| u64::from(lines) * u64::from(self.queues.lines.bytes))
    }

    /// When all of it is there.
    fn stream(&self, now: Picos, bytes: [u64; 2]) -> Picos {
        let due = Side::ALL.map(|side| self.meter.stream(now, side, Way::Read, bytes[side.index()]));
        due[0].max(due[1])
    }

    /// Asks for morsels until enough of each queue are under way.
    fn ask(&mut self, now: Picos) {
        for queue in 0..self.queues.queues.len() {
            let mut under_way = self.reads.iter().filter(|read| read.queue == queue).count();
            while under_way < self.window
                && let Some(morsel) = self.queues.take(queue)
            {
                // Where lines wait for a latency, the rest is read along with them: a whole chunk would be in their
                // way.
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

    /// Asks for the next lines together, near and far as they are left, and for their share of the stream. Returns when
    /// all of it is there, and what is left.
    fn touch(&mut self, now: Picos, left: [u32; 2], bytes: [u64; 2]) -> (Picos, [u32; 2], [u64; 2]) {
        let lines = self.queues.lines;
        let all = u64::from(left[0]) + u64::from(left[1]);
        let taken = all.min(u64::from(lines.together.max(1)));
        let near = ((taken * u64::from(left[0]) + all / 2) / all).min(u64::from(left[0]));
        let far = (taken - near).min(u64::from(left[1]));
        let near = taken - far;
        let streamed = bytes.map(|bytes| bytes * taken / all);
        let mut due = self.stream(now, streamed);
        for (side, count) in [(Side::Near, near), (Side::Far, far)] {
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
        // No more than there are, so they fit.
        let left = [left[0] - near as u32, left[1] - far as u32];
        (due, left, [bytes[0] - streamed[0], bytes[1] - streamed[1]])
    }
}

/// By side, of all workers.
pub(crate) fn latest(drained: impl IntoIterator<Item = [f64; 2]>) -> [f64; 2] {
    drained.into_iter().fold([0.0; 2], |most, of| [most[0].max(of[0]), most[1].max(of[1])])
}

fn plus(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [one[0] + other[0], one[1] + other[1]]
}
