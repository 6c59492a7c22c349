//! Queue from which the kernels of a join get morsels (ranges of rows) when their bytes would have arrived.
//!
//! The idea: a kernel asks for its next rows when it is done with the rows before. The state machine of the worker
//! ([`WorkerState`]) runs inside that call. It issues the writes of the last morsel, keeps reads of later morsels in
//! flight, and returns when the reads of one are due. If a kernel reads its rows twice, the second reading asks for
//! them in the order of the first. A stage may contain joins of finished partitions. These run inside the call too,
//! before it returns.

use crate::drive;
use crate::free_space::FreeSpace;
use crate::pace::StageClock;
use crate::stage::{Lines, Morsel, MorselTask, Stage, StageReport};
use crate::worker_state::{Queues, WorkerState, latest};
use farpool_join::Morsels;
use farpool_lock::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Function that joins one partition, on the thread of a worker. Its arguments are worker and partition.
pub(crate) type JoinOne<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Stage whose work is done by kernels that ask for rows.
pub(crate) struct MorselFeed<'a> {
    /// Name of the stage.
    name: &'static str,
    /// Clock of the stage, and the times at which bytes arrive.
    pace: StageClock,
    /// Kind of the stage's random accesses to cache lines.
    lines: Lines,
    /// Rows of a morsel.
    morsel_rows: usize,
    /// Rows of all morsels together.
    rows: usize,
    workers: Vec<Mutex<Worker>>,
    /// Free space that the writes of the second reading fill; `None` if rows are read once.
    again: Option<Arc<FreeSpace>>,
    /// Function that joins a finished partition; `None` if the stage has no such morsels.
    joins: Option<JoinOne<'a>>,
}

struct Worker {
    /// State machine that says when the next morsel's bytes have arrived.
    flow: WorkerState,
    /// Morsels that the kernel got, in order. Recorded only if it will read them a second time.
    taken: Vec<Morsel>,
    /// State machine of the second reading; `None` before that begins.
    again: Option<WorkerState>,
}

impl<'a> MorselFeed<'a> {
    /// Begins a stage now. Each morsel has `morsel_rows` rows, and the last one maybe fewer. All together have `rows`
    /// rows.
    pub(crate) fn new(
        pace: StageClock,
        workers: usize,
        stage: &Stage,
        morsel_rows: usize,
        rows: usize,
    ) -> MorselFeed<'a> {
        let queues = Arc::new(Queues::new(stage));
        let worker =
            || Mutex::new(Worker { flow: drive::paced(&pace, &queues), taken: Vec::new(), again: None });
        let workers = (0..workers).map(|_| worker()).collect();
        let Stage { name, lines, .. } = *stage;
        MorselFeed { name, lines, pace, morsel_rows, rows, workers, again: None, joins: None }
    }

    /// Counts writes on the tiers where the kernel's output lies: on those of the chunks that it took, in proportion to
    /// their free space `room`.
    pub(crate) fn writing_to(mut self, room: &Arc<FreeSpace>) -> MorselFeed<'a> {
        for worker in &mut self.workers {
            worker.get_mut().flow.write_to(room);
        }
        self
    }

    /// Expects all rows to be read twice. Writes happen only in the second reading. They count on the tiers of the
    /// chunks that the kernel took for its output, in proportion to their free space `room`.
    pub(crate) fn reading_again(mut self, room: &Arc<FreeSpace>) -> MorselFeed<'a> {
        self.again = Some(Arc::clone(room));
        self
    }

    /// Sets the function for morsels of [`MorselTask::Join`].
    pub(crate) fn joining(mut self, joins: JoinOne<'a>) -> MorselFeed<'a> {
        self.joins = Some(joins);
        self
    }

    /// Waits for the last writes and returns the report. Called after the kernel has returned.
    pub(crate) fn finish(self) -> StageReport {
        let mut drained = Vec::new();
        for worker in &self.workers {
            let mut own = worker.lock();
            drained.push(own.flow.drained_seconds());
            let own = &mut *own;
            for flow in [Some(&mut own.flow), own.again.as_mut()].into_iter().flatten() {
                // Lets the writes end. Morsels are left only if a kernel has failed, and are dropped.
                let _ = drive::next_work(&self.pace, flow);
            }
        }
        drive::report(&self.pace, self.name, latest(drained))
    }

    fn rows_of(&self, morsel: &Morsel) -> Range<usize> {
        let start = morsel.number as usize * self.morsel_rows;
        start..self.rows.min(start + self.morsel_rows)
    }
}

impl Morsels for MorselFeed<'_> {
    fn next(&self, worker: usize) -> Option<Range<usize>> {
        let mut own = self.workers.get(worker)?.lock();
        loop {
            let morsel = drive::next_work(&self.pace, &mut own.flow)?;
            match (morsel.task, self.joins) {
                (MorselTask::Join, Some(join)) => join(worker, morsel.number as usize),
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
                // A copy that was kept in the first reading is read instead of the original. As many bytes are written
                // as read; `room` decides on which side.
                let kept = morsel.written_bytes;
                let read_bytes = if kept == [0, 0] { morsel.read_bytes } else { kept };
                Morsel { task: MorselTask::Scatter, read_bytes, written_bytes: read_bytes, ..*morsel }
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
