//! A worker: takes morsels, asks for their bytes, does the work when they are there, and asks for what it writes.
//!
//! The idea: some morsels are under way at a time, as a core and its prefetchers have reads under way; the one whose bytes
//! are there first is done first. Writes are only waited for when there are twice as many. All of it is a state machine
//! that is told what time it is and says until when it waits, so a virtual clock and a thread drive the very same one.

use crate::meter::{Meter, PICOS_PER_SECOND, Picos, Way};
use crate::stage::{Morsel, Order, Stage};
use farpool_place::traffic::Side;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Morsels of a stage that nobody has taken.
pub(crate) struct Queues<'a> {
    stage: &'a Stage,
    /// By queue, which morsels: one for all, or by side.
    queues: Vec<(Vec<u32>, AtomicUsize)>,
}

impl<'a> Queues<'a> {
    pub(crate) fn new(stage: &'a Stage) -> Queues<'a> {
        let of = |is_in: &dyn Fn(&Morsel) -> bool| {
            let all = (0u32..).zip(&stage.morsels);
            let chosen = all.filter(|(_, morsel)| is_in(morsel)).map(|(at, _)| at).collect();
            (chosen, AtomicUsize::new(0))
        };
        let queues = match stage.order {
            Order::AsGiven => vec![of(&|_| true)],
            Order::TwoQueues => Side::ALL.map(|side| of(&|morsel| morsel.from == side)).into(),
        };
        Queues { stage, queues }
    }

    pub(crate) fn take(&self, queue: usize) -> Option<Morsel> {
        let (morsels, next) = &self.queues[queue];
        // Whoever finds it drained puts it forward once more: workers times windows, far from an overflow.
        let at = *morsels.get(next.fetch_add(1, Ordering::Relaxed))?;
        Some(self.stage.morsels[at as usize])
    }

    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn stage(&self) -> &Stage {
        self.stage
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
    /// Lines that are left, by side, and bytes of the stream beside them.
    Touching {
        morsel: Morsel,
        left: [u32; 2],
        bytes: u32,
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

pub(crate) struct Flow<'a> {
    meter: &'a Meter,
    queues: &'a Queues<'a>,
    window: usize,
    reads: Vec<UnderWay>,
    writes: VecDeque<Picos>,
    state: State,
    drained: [Picos; 2],
}

impl<'a> Flow<'a> {
    /// With so many morsels under way, of each queue.
    pub(crate) fn new(meter: &'a Meter, queues: &'a Queues<'a>, window: usize) -> Flow<'a> {
        Flow {
            meter,
            queues,
            window: window.max(1),
            reads: Vec::new(),
            writes: VecDeque::new(),
            state: State::Choosing,
            drained: [0; 2],
        }
    }

    /// By side, when the last morsel that reads there had its bytes.
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
                    let Some(first) = (0..self.reads.len()).min_by_key(|at| self.reads[*at].due) else {
                        self.state = State::Ending;
                        continue;
                    };
                    // In order, so that of equal times the one that was asked for first is done first.
                    let UnderWay { due, morsel, .. } = self.reads.remove(first);
                    let drained = &mut self.drained[morsel.from.index()];
                    *drained = due.max(*drained);
                    let bytes = if morsel.lines == [0, 0] { 0 } else { morsel.read_bytes };
                    self.state = State::Touching { morsel, left: morsel.lines, bytes };
                    if due > now {
                        return Step::WaitUntil(due);
                    }
                }
                State::Touching { morsel, left: [0, 0], .. } => self.state = State::Working(morsel),
                State::Touching { morsel, left, bytes } => {
                    let (due, left, bytes) = self.touch(now, morsel.from, left, bytes);
                    let drained = &mut self.drained[morsel.from.index()];
                    *drained = due.max(*drained);
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
                    for side in Side::ALL {
                        let bytes = morsel.written_bytes[side.index()];
                        if bytes > 0 {
                            let due = self.meter.stream(now, side, Way::Write, u64::from(bytes));
                            self.writes.push_back(due);
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

    /// Asks for morsels until enough of each queue are under way.
    fn ask(&mut self, now: Picos) {
        for queue in 0..self.queues.count() {
            let mut under_way = self.reads.iter().filter(|read| read.queue == queue).count();
            while under_way < self.window
                && let Some(morsel) = self.queues.take(queue)
            {
                // What touches lines is read along with them: a whole chunk would be in their way.
                let bytes = if morsel.lines == [0, 0] { morsel.read_bytes } else { 0 };
                let due = self.meter.stream(now, morsel.from, Way::Read, u64::from(bytes));
                self.reads.push(UnderWay { due, queue, morsel });
                under_way += 1;
            }
        }
    }

    /// Asks for the next lines together, near and far as they are left, and for their share of the stream. Returns when all
    /// of it is there, and what is left.
    fn touch(&mut self, now: Picos, from: Side, left: [u32; 2], bytes: u32) -> (Picos, [u32; 2], u32) {
        let lines = self.queues.stage().lines;
        let all = u64::from(left[0]) + u64::from(left[1]);
        let taken = all.min(u64::from(lines.together.max(1)));
        let near = ((taken * u64::from(left[0]) + all / 2) / all).min(u64::from(left[0]));
        let far = (taken - near).min(u64::from(left[1]));
        let near = taken - far;
        let streamed = u64::from(bytes) * taken / all;
        let mut due = self.meter.stream(now, from, Way::Read, streamed);
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
        (due, [left[0] - near as u32, left[1] - far as u32], bytes - streamed as u32)
    }
}
