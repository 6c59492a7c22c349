//! What operators do, cut into morsels that workers take one after another.
//!
//! The idea: a morsel says which bytes it moves on which tier, and what is to be done with them. Backends run the same
//! stages: one takes the bytes' time from a virtual clock, one holds real work up until its tickets are due, one simply
//! does it where memory has tiers.

use crate::pace::Pace;
use crate::plan::interleave::Interleave;
use crate::plan::traffic::{Side, Traffic};

/// What is done with a morsel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Its chunk of the input is copied to where it is read from now on.
    Copy,
    /// Its rows are counted by partition.
    Count,
    /// Its rows go to their partitions.
    Scatter,
    /// The partition of this number is joined.
    Join,
    /// Its rows are put in a hash table.
    Build,
    /// Its rows are looked up in it.
    Probe,
}

/// A piece of work of one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Morsel {
    /// What is to be done.
    pub task: Task,
    /// Which chunk of what it reads.
    pub chunk: u32,
    /// Bytes that it reads one after another, by side.
    pub read_bytes: [u64; 2],
    /// Bytes that it writes, by side.
    pub written_bytes: [u64; 2],
    /// Lines that it touches here and there, by side.
    pub lines: [u32; 2],
}

impl Morsel {
    /// One that only reads, from one tier.
    pub fn reading(task: Task, chunk: u32, from: Side, bytes: impl Into<u64>) -> Morsel {
        let mut read_bytes = [0; 2];
        read_bytes[from.index()] = bytes.into();
        Morsel::reading_both(task, chunk, read_bytes)
    }

    /// One that only reads, from both tiers.
    pub fn reading_both(task: Task, chunk: u32, read_bytes: [u64; 2]) -> Morsel {
        Morsel { task, chunk, read_bytes, written_bytes: [0; 2], lines: [0; 2] }
    }

    /// The tier that most of what it reads lies on.
    pub fn from(&self) -> Side {
        if self.read_bytes[0] > self.read_bytes[1] { Side::Near } else { Side::Far }
    }

    /// So many bytes are written to one tier.
    pub fn writing(mut self, to: Side, bytes: impl Into<u64>) -> Morsel {
        self.written_bytes[to.index()] += bytes.into();
        self
    }

    /// So many bytes are written, a share of them near.
    pub fn writing_share(self, near_share: f64, bytes: impl Into<u64>) -> Morsel {
        let bytes = bytes.into();
        let near = (bytes as f64 * near_share.clamp(0.0, 1.0)).round() as u64;
        self.writing(Side::Near, near).writing(Side::Far, bytes - near.min(bytes))
    }

    /// So many lines are touched, a share of them near.
    pub fn touching(mut self, near_share: f64, lines: u32) -> Morsel {
        let near = (f64::from(lines) * near_share.clamp(0.0, 1.0)).round() as u32;
        self.lines = [near, lines - near];
        self
    }
}

/// How lines are touched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lines {
    /// Bytes that each moves.
    pub bytes: u32,
    /// How many a worker asks for together: what a core has under way.
    pub together: u32,
    /// Whether they are written back.
    pub are_written: bool,
}

impl Lines {
    /// Cache lines, of which a core has about a dozen under way.
    pub const READ: Lines = Lines { bytes: 64, together: 12, are_written: false };
}

/// In which order morsels are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they stand, near and far from one queue: they must be mixed.
    AsGiven,
    /// From two queues, near and far, of which each worker has morsels of either under way.
    TwoQueues,
}

/// Morsels that may be done at the same time. Stages follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// What phase of a plan it belongs to.
    pub name: &'static str,
    /// What is to be done.
    pub morsels: Vec<Morsel>,
    /// In which order.
    pub order: Order,
    /// How the lines of its morsels are touched.
    pub lines: Lines,
}

impl Stage {
    /// Morsels as they stand.
    pub fn new(name: &'static str, morsels: Vec<Morsel>) -> Stage {
        Stage { name, morsels, order: Order::AsGiven, lines: Lines::READ }
    }

    /// What it moves.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for morsel in &self.morsels {
            for side in Side::ALL {
                let lines = f64::from(morsel.lines[side.index()]) * f64::from(self.lines.bytes);
                let written = if self.lines.are_written { lines } else { 0.0 };
                let of_side = traffic.of_mut(side);
                of_side.read += lines + morsel.read_bytes[side.index()] as f64;
                of_side.written += written + morsel.written_bytes[side.index()] as f64;
            }
        }
        traffic
    }
}

/// The same morsels, near and far ones mixed evenly: in blocks, one tier would work at a time.
pub(crate) fn mixed(morsels: Vec<Morsel>) -> Vec<Morsel> {
    let (near, far) = morsels.into_iter().partition(|morsel| morsel.from() == Side::Near);
    evenly(near, far)
}

/// Two lists as one, in which either is as far along as the other at any time.
pub(crate) fn evenly(first: Vec<Morsel>, second: Vec<Morsel>) -> Vec<Morsel> {
    let all = first.len() + second.len();
    let interleave = Interleave::share(first.len() as f64 / all.max(1) as f64, all as u64);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let next = |at| match interleave.is_near(at) {
        true => first.next().or_else(|| second.next()),
        false => second.next().or_else(|| first.next()),
    };
    (0..all as u64).filter_map(next).collect()
}

/// What running a stage came to.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReport {
    /// Of the stage.
    pub name: &'static str,
    /// Until the last byte was there.
    pub seconds: f64,
    /// What was moved.
    pub traffic: Traffic,
    /// By side: until the last morsel that reads there was done. 0 if there is none.
    pub drained_seconds: [f64; 2],
}

impl StageReport {
    /// This and what came next as one. Queues are those of the first.
    pub fn then(self, next: StageReport) -> StageReport {
        let (seconds, traffic) = (self.seconds + next.seconds, self.traffic.plus(next.traffic, 1.0));
        StageReport { seconds, traffic, ..self }
    }
}

/// What is done with morsels, by whoever knows the bytes: the real work.
pub trait Work: Sync {
    /// Does one. Workers are numbered from 0; a worker does one at a time.
    fn run(&self, worker: usize, morsel: &Morsel);
}

/// Where stages run.
pub trait Backend {
    /// What its figures are to be called: `virtual`, `emulated` or `numa`.
    fn label(&self) -> &'static str;

    /// How many workers there are.
    fn workers(&self) -> usize;

    /// Runs one stage to its end. On a virtual clock no work is done.
    fn run(&self, stage: &Stage, work: &dyn Work) -> StageReport;

    /// Runs stages one after another.
    fn run_all(&self, stages: &[Stage], work: &dyn Work) -> Vec<StageReport> {
        stages.iter().map(|stage| self.run(stage, work)).collect()
    }
}

/// Where real work is done on real memory: what [`join`](crate::join()) runs on.
pub trait RealTime: Backend {
    /// Begins a stage now.
    fn begin(&self) -> Pace;
}

/// The work of a virtual clock, and of whoever measures nothing but tickets.
pub struct NoWork;

impl Work for NoWork {
    fn run(&self, _worker: usize, _morsel: &Morsel) {}
}
