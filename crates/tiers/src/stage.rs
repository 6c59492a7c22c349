//! Work of operators, divided into morsels that workers take one after another.
//!
//! The idea: a morsel is a part of the work. It states how many bytes it moves on which tier, and what to do with them.
//! All backends run the same stages. One computes times by a virtual clock, one delays real work until its bytes would
//! have arrived, and one works without delays, on a machine whose memory has tiers.

use crate::pace::StageClock;
use crate::plan::interleave::Interleave;
use crate::plan::traffic::{TierSide, Traffic};

/// Kind of work on a morsel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MorselTask {
    /// Copy of the rows to the place where later stages read them.
    Copy,
    /// Count of the rows of each partition.
    Count,
    /// Writes of the rows to their partitions.
    Scatter,
    /// Join of one partition; the morsel's number is that of the partition.
    Join,
    /// Inserts of the rows into a hash table.
    Build,
    /// Lookups of the rows in a hash table.
    Probe,
}

/// Unit of work that one worker does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Morsel {
    /// Kind of work.
    pub task: MorselTask,
    /// Number of the morsel within the input of its stage, or of the partition that it reads.
    pub number: u32,
    /// Bytes that the morsel reads sequentially, by tier (near, far).
    pub read_bytes: [u64; 2],
    /// Bytes that the morsel writes, by tier (near, far).
    pub written_bytes: [u64; 2],
    /// Number of cache lines that the morsel accesses at random, by tier (near, far).
    pub lines: [u32; 2],
}

impl Morsel {
    /// Returns a morsel that only reads, from one tier.
    pub fn reading(task: MorselTask, number: u32, from: TierSide, bytes: impl Into<u64>) -> Morsel {
        let mut read_bytes = [0; 2];
        read_bytes[from.index()] = bytes.into();
        Morsel::reading_both(task, number, read_bytes)
    }

    /// Returns a morsel that only reads, from both tiers.
    pub fn reading_both(task: MorselTask, number: u32, read_bytes: [u64; 2]) -> Morsel {
        Morsel { task, number, read_bytes, written_bytes: [0; 2], lines: [0; 2] }
    }

    /// Returns the tier from which the morsel reads most of its bytes; far if it reads as many from both.
    pub fn from(&self) -> TierSide {
        if self.read_bytes[0] > self.read_bytes[1] { TierSide::Near } else { TierSide::Far }
    }

    /// Adds writes to one tier.
    pub fn writing(mut self, to: TierSide, bytes: impl Into<u64>) -> Morsel {
        self.written_bytes[to.index()] += bytes.into();
        self
    }

    /// Adds writes, of which the share `near_share` goes to the near tier.
    pub fn writing_share(self, near_share: f64, bytes: impl Into<u64>) -> Morsel {
        let bytes = bytes.into();
        let near = (bytes as f64 * near_share.clamp(0.0, 1.0)).round() as u64;
        self.writing(TierSide::Near, near).writing(TierSide::Far, bytes - near.min(bytes))
    }

    /// Sets the number of cache lines that are accessed at random, of which the share `near_share` is near.
    pub fn touching(mut self, near_share: f64, lines: u32) -> Morsel {
        let near = (f64::from(lines) * near_share.clamp(0.0, 1.0)).round() as u32;
        self.lines = [near, lines - near];
        self
    }
}

/// Kind of random accesses to cache lines that a stage makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lines {
    /// Bytes that each access moves.
    pub bytes: u32,
    /// Accesses that a worker has in flight at a time.
    pub together: u32,
    /// True if the lines are written back.
    pub are_written: bool,
}

impl Lines {
    /// Reads of cache lines of 64 bytes. A core has about a dozen in flight.
    pub const READ: Lines = Lines { bytes: 64, together: 12, are_written: false };
}

/// Order in which morsels are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Order of the list, from one queue. Morsels that read near and far must be mixed in the list.
    AsGiven,
    /// Two queues, by the tier that a morsel mostly reads. Each worker requests morsels of both ahead.
    TwoQueues,
}

/// Morsels that may be done at the same time. Stages run one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Name of the phase of a plan that the stage belongs to.
    pub name: &'static str,
    /// Morsels to be done.
    pub morsels: Vec<Morsel>,
    /// Order in which morsels are taken.
    pub order: Order,
    /// Kind of the random accesses that the morsels make.
    pub lines: Lines,
}

impl Stage {
    /// Returns a stage that takes the morsels as listed.
    pub fn new(name: &'static str, morsels: Vec<Morsel>) -> Stage {
        Stage { name, morsels, order: Order::AsGiven, lines: Lines::READ }
    }

    /// Returns the bytes that all morsels move.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for morsel in &self.morsels {
            for side in TierSide::ALL {
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

/// Returns the morsels with near and far ones evenly mixed. In blocks, only one tier would work at a time.
pub(crate) fn mixed(morsels: Vec<Morsel>) -> Vec<Morsel> {
    let (near, far) = morsels.into_iter().partition(|morsel| morsel.from() == TierSide::Near);
    evenly(near, far)
}

/// Merges two lists so that at each position about the same share of either has been used.
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

/// Measurements of one run of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReport {
    /// Name of the stage.
    pub name: &'static str,
    /// Seconds from the beginning of the stage until all work was done and all written bytes had arrived.
    pub seconds: f64,
    /// Bytes that were moved on each tier.
    pub traffic: Traffic,
    /// Seconds until the last morsel that mostly reads from the near tier was done, and the same for the far tier. 0 if
    /// there is none.
    pub drained_seconds: [f64; 2],
}

impl StageReport {
    /// Adds the report of the next stage to this one. `drained_seconds` stays that of this one.
    pub fn then(self, next: StageReport) -> StageReport {
        let (seconds, traffic) = (self.seconds + next.seconds, self.traffic.plus(next.traffic, 1.0));
        StageReport { seconds, traffic, ..self }
    }
}

/// Real work on morsels.
pub trait Work: Sync {
    /// Does the work of one morsel. Workers are numbered from 0, and each has one morsel at a time.
    fn run(&self, worker: usize, morsel: &Morsel);
}

/// Backend: runs the stages of an operator, or computes how long they take.
pub trait Backend {
    /// Returns the label under which its times are shown: `virtual`, `emulated` or `numa`.
    fn label(&self) -> &'static str;

    /// Returns the number of workers.
    fn workers(&self) -> usize;

    /// Runs one stage to its end. Calls `work` for each morsel, unless the backend only computes times.
    fn run(&self, stage: &Stage, work: &dyn Work) -> StageReport;

    /// Runs stages one after another.
    fn run_all(&self, stages: &[Stage], work: &dyn Work) -> Vec<StageReport> {
        stages.iter().map(|stage| self.run(stage, work)).collect()
    }
}

/// Backend that does real work on real memory. [`join`](crate::join()) needs one.
pub trait RealTime: Backend {
    /// Starts the clock of a stage.
    fn begin(&self) -> StageClock;
}

/// Work that does nothing, for the virtual clock and for measuring delivery times alone.
pub struct NoWork;

impl Work for NoWork {
    fn run(&self, _worker: usize, _morsel: &Morsel) {}
}
