//! Morsels for a join's kernels, handed out when their bytes are there.
//!
//! The idea: a kernel asks for what to do next, and whoever asks is done with what it had. So the state machine of a
//! worker ([`Flow`]) runs inside of that question: it issues the writes of the last morsel, has reads of coming ones
//! under way, and answers when those of one are due. What a kernel reads twice is asked for in the order in which it
//! has it. A stage may have joins of finished partitions among its morsels: these are done before the answer.

use crate::drive;
use crate::flow::{Flow, Queues, latest};
use crate::pace::Pace;
use crate::room::Room;
use crate::stage::{Lines, Morsel, Stage, StageReport, Task};
use farpool_join::Morsels;
use farpool_lock::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Joins one partition on the thread of a worker.
pub(crate) type JoinOne<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A stage whose work kernels do.
pub(crate) struct Feed<'a> {
    name: &'static str,
    pace: Pace,
    lines: Lines,
    chunk_rows: usize,
    /// Of all chunks.
    rows: usize,
    workers: Vec<Mutex<Worker>>,
    /// Where what is written in the second reading goes; if there is one.
    again: Option<Arc<Room>>,
    joins: Option<JoinOne<'a>>,
}

struct Worker {
    flow: Flow,
    /// What it was handed, to be read again.
    taken: Vec<Morsel>,
    again: Option<Flow>,
}

impl<'a> Feed<'a> {
    /// Of a stage that begins now, whose chunks have so many rows, of so many.
    pub(crate) fn new(pace: Pace, workers: usize, stage: &Stage, chunk_rows: usize, rows: usize) -> Feed<'a> {
        let queues = Arc::new(Queues::new(stage));
        let worker =
            || Mutex::new(Worker { flow: drive::paced(&pace, &queues), taken: Vec::new(), again: None });
        let workers = (0..workers).map(|_| worker()).collect();
        let Stage { name, lines, .. } = *stage;
        Feed { name, lines, pace, chunk_rows, rows, workers, again: None, joins: None }
    }

    /// What is written goes where there is room.
    pub(crate) fn writing_to(mut self, room: &Arc<Room>) -> Feed<'a> {
        for worker in &mut self.workers {
            worker.get_mut().flow.write_to(room);
        }
        self
    }

    /// All of it is read twice, and only written where there is room after that.
    pub(crate) fn reading_again(mut self, room: &Arc<Room>) -> Feed<'a> {
        self.again = Some(Arc::clone(room));
        self
    }

    /// Its morsels of [`Task::Join`] are done by this.
    pub(crate) fn joining(mut self, joins: JoinOne<'a>) -> Feed<'a> {
        self.joins = Some(joins);
        self
    }

    /// When the kernel has returned: waits for the last writes, and says what it came to.
    pub(crate) fn finish(self) -> StageReport {
        let mut drained = Vec::new();
        for worker in &self.workers {
            let mut own = worker.lock();
            drained.push(own.flow.drained_seconds());
            let own = &mut *own;
            for flow in [Some(&mut own.flow), own.again.as_mut()].into_iter().flatten() {
                // A kernel that failed has left morsels behind: these are nobody's.
                let _ = drive::next_work(&self.pace, flow);
            }
        }
        drive::report(&self.pace, self.name, latest(drained))
    }

    fn rows_of(&self, morsel: &Morsel) -> Range<usize> {
        let start = morsel.chunk as usize * self.chunk_rows;
        start..self.rows.min(start + self.chunk_rows)
    }
}

impl Morsels for Feed<'_> {
    fn next(&self, worker: usize) -> Option<Range<usize>> {
        let mut own = self.workers.get(worker)?.lock();
        loop {
            let morsel = drive::next_work(&self.pace, &mut own.flow)?;
            match (morsel.task, self.joins) {
                (Task::Join, Some(join)) => join(worker, morsel.chunk as usize),
                _ => {
                    if self.again.is_some() {
                        own.taken.push(morsel);
                    }
                    return Some(self.rows_of(&morsel));
                }
            }
        }
    }

    fn again(&self, worker: usize, rows: &Range<usize>) {
        let (Some(room), Some(own)) = (&self.again, self.workers.get(worker)) else { return };
        let mut own = own.lock();
        let own = &mut *own;
        let flow = own.again.get_or_insert_with(|| {
            let once_more = |morsel: &Morsel| {
                // What was kept is read from there. As much is written as is read; where, the room says.
                let kept = morsel.written_bytes;
                let read_bytes = if kept == [0, 0] { morsel.read_bytes } else { kept };
                Morsel { task: Task::Scatter, read_bytes, written_bytes: read_bytes, ..*morsel }
            };
            let taken = own.taken.iter().map(once_more).collect();
            let queues = Arc::new(Queues::of(self.lines, vec![taken]));
            let mut flow = drive::paced(&self.pace, &queues).in_order();
            flow.write_to(room);
            flow
        });
        while let Some(morsel) = drive::next_work(&self.pace, flow) {
            if self.rows_of(&morsel) == *rows {
                return;
            }
        }
    }
}
