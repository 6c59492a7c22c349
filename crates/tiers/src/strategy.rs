//! Joins over two tiers as stages: the strategies of `farpool_place::hash_join`, cut into morsels of one chunk each.
//!
//! The idea: every chunk of an object has a tier, by the object's near share, evenly mixed ([`Interleave`]); a morsel reads
//! one chunk from where it lies. So the tickets of a stage add up to what the plan's phase says it moves, and differ from
//! it only by what two tiers lose where morsels cannot keep both busy.

use crate::stage::{Lines, Morsel, Order, Stage, Task};
use farpool_place::hash_join::{Joining, Partitioning};
use farpool_place::interleave::Interleave;
use farpool_place::traffic::Side;

/// Bytes that a morsel reads, unless said otherwise.
pub const MORSEL_BYTES: u32 = 64 << 10;

/// How long chunks wait until they are joined beside partitioning: a share of all, as those partitions must be finished.
const BESIDE_LAG: u32 = 64;

/// A partitioned join, its strategy, and where objects lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartitionedRun {
    /// How inputs become partitions.
    pub partitioning: Partitioning,
    /// What follows.
    pub joining: Joining,
    /// Chunks of both inputs.
    pub chunks: u32,
    /// Bytes of each.
    pub morsel_bytes: u32,
    /// The share of the input that is copied near, where the strategy leaves that open.
    pub input_share: f64,
    /// The near share of the partitions, where the strategy leaves that open.
    pub partitions_share: f64,
    /// The near share of the mix of both tiers.
    pub mixed: f64,
    /// Near chunks first and far ones behind them, to show what that costs.
    pub is_blocked: bool,
}

impl PartitionedRun {
    /// Partitions that lie in the mix, of an input of which nothing is moved.
    pub fn new(partitioning: Partitioning, joining: Joining, chunks: u32, mixed: f64) -> PartitionedRun {
        PartitionedRun {
            partitioning,
            joining,
            chunks,
            morsel_bytes: MORSEL_BYTES,
            input_share: 0.0,
            partitions_share: mixed,
            mixed,
            is_blocked: false,
        }
    }

    /// Where the copy of an input chunk lies, if it has one.
    fn copy_of(&self, chunk: u32) -> Option<Side> {
        match self.partitioning {
            Partitioning::InFar | Partitioning::OnePass => None,
            Partitioning::CopyNear => Some(Side::Near),
            Partitioning::CopyMixed => Some(self.side(chunk, self.mixed)),
            Partitioning::MoveThenRun | Partitioning::KeepWhileCounting => {
                (self.side(chunk, self.input_share) == Side::Near).then_some(Side::Near)
            }
        }
    }

    fn side(&self, chunk: u32, near_share: f64) -> Side {
        let interleave = Interleave::share(near_share, u64::from(self.chunks));
        let is_near = match self.is_blocked {
            false => interleave.is_near(u64::from(chunk)),
            true => u64::from(chunk) < interleave.near_among(u64::from(self.chunks)),
        };
        if is_near { Side::Near } else { Side::Far }
    }

    /// The near share of the partitions.
    fn output_share(&self) -> f64 {
        if self.partitioning == Partitioning::OnePass { self.partitions_share } else { self.mixed }
    }

    /// The stages, by the names of the plan's phases; a histogram is one of `partition`.
    pub fn stages(&self) -> Vec<Stage> {
        let bytes = self.morsel_bytes;
        let chunks = 0..self.chunks;
        let mut stages = Vec::new();
        let is_copied_first = matches!(
            self.partitioning,
            Partitioning::CopyNear | Partitioning::CopyMixed | Partitioning::MoveThenRun
        );
        if is_copied_first {
            let copies = chunks.clone().filter_map(|chunk| Some((chunk, self.copy_of(chunk)?)));
            let copy = |(chunk, to)| Morsel::reading(Task::Copy, chunk, Side::Far, bytes).writing(to, bytes);
            stages.push(Stage::new("move", copies.map(copy).collect()));
        }
        let lies = |chunk: u32| self.copy_of(chunk).unwrap_or(Side::Far);
        if self.partitioning == Partitioning::KeepWhileCounting {
            let count = |chunk: u32| match self.copy_of(chunk) {
                Some(to) => Morsel::reading(Task::CountAndKeep, chunk, Side::Far, bytes).writing(to, bytes),
                None => Morsel::reading(Task::Count, chunk, Side::Far, bytes),
            };
            stages.push(Stage::new("histogram", chunks.clone().map(count).collect()));
        } else if self.partitioning.reads() == 2 {
            let count = |chunk| Morsel::reading(Task::Count, chunk, lies(chunk), bytes);
            stages.push(Stage::new("partition", chunks.clone().map(count).collect()));
        }
        let share = self.output_share();
        let scatter =
            |chunk| Morsel::reading(Task::Scatter, chunk, lies(chunk), bytes).writing_share(share, bytes);
        let read_back = |chunk| Morsel::reading(Task::ReadBack, chunk, self.side(chunk, share), bytes);
        if self.joining == Joining::Beside {
            let lag = self.chunks / BESIDE_LAG;
            let mut morsels = Vec::new();
            for at in 0..self.chunks.saturating_add(lag) {
                if at < self.chunks {
                    morsels.push(scatter(at));
                }
                if at >= lag {
                    morsels.push(read_back(at - lag));
                }
            }
            stages.push(Stage::new("partition", morsels));
            return stages;
        }
        stages.push(Stage::new("partition", chunks.clone().map(scatter).collect()));
        if self.joining == Joining::After {
            stages.push(Stage::new("join", chunks.map(read_back).collect()));
        }
        stages
    }
}

/// A join through one shared table, and where objects lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonPartitionedRun {
    /// Chunks of the build side.
    pub build_chunks: u32,
    /// Chunks of the probe side.
    pub probe_chunks: u32,
    /// Bytes of each.
    pub morsel_bytes: u32,
    /// Rows of a chunk.
    pub chunk_rows: u32,
    /// Bytes that looking a row up moves.
    pub slot_bytes: u32,
    /// The near share of the table.
    pub table_share: f64,
    /// Shares of either input that are moved before it is read; `CopyMixed` moves all of it to the mix.
    pub moved: Moved,
    /// Lines that a worker asks for together.
    pub lines_together: u32,
}

/// What of the inputs is copied before they are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moved {
    /// So much of it, near.
    Share(f64),
    /// All of it, to a mix with such a near share.
    Mixed(f64),
}

impl NonPartitionedRun {
    /// The stages, by the names of the plan's phases.
    pub fn stages(&self) -> Vec<Stage> {
        let mut stages = Vec::new();
        if self.build_chunks > 0 {
            stages.extend(self.moving("move build side", self.build_chunks));
            stages.push(self.reading("build", Task::Build, self.build_chunks, true));
        }
        stages.extend(self.moving("move probe side", self.probe_chunks));
        stages.push(self.reading("probe", Task::Probe, self.probe_chunks, false));
        stages
    }

    /// Where the copy of a chunk lies, if it has one.
    fn copy_of(&self, chunk: u32, chunks: u32) -> Option<Side> {
        let is_near = |share| Interleave::share(share, u64::from(chunks)).is_near(u64::from(chunk));
        match self.moved {
            Moved::Share(share) => is_near(share).then_some(Side::Near),
            Moved::Mixed(share) => Some(if is_near(share) { Side::Near } else { Side::Far }),
        }
    }

    fn moving(&self, name: &'static str, chunks: u32) -> Option<Stage> {
        let bytes = self.morsel_bytes;
        let copies = (0..chunks).filter_map(|chunk| Some((chunk, self.copy_of(chunk, chunks)?)));
        let copy = |(chunk, to)| Morsel::reading(Task::Copy, chunk, Side::Far, bytes).writing(to, bytes);
        let morsels: Vec<Morsel> = copies.map(copy).collect();
        (!morsels.is_empty()).then(|| Stage::new(name, morsels))
    }

    fn reading(&self, name: &'static str, task: Task, chunks: u32, are_written: bool) -> Stage {
        let morsel = |chunk| {
            let from = self.copy_of(chunk, chunks).unwrap_or(Side::Far);
            Morsel::reading(task, chunk, from, self.morsel_bytes).touching(self.table_share, self.chunk_rows)
        };
        let lines = Lines { bytes: self.slot_bytes, together: self.lines_together, are_written };
        Stage { name, morsels: (0..chunks).map(morsel).collect(), order: Order::AsGiven, lines }
    }
}
