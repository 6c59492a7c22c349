//! Joins over two tiers, step by step: the strategies of `crate::plan::hash_join`, with the shares of a plan.
//!
//! The idea: a strategy decides in which order sides are copied, partitioned and joined, and on which tier results are
//! written. Two implementations of its steps exist. [`join`](crate::join()) does them on real memory.
//! [`PartitionedStrategy::times`] only computes when bytes arrive. Both run the same order of steps, so the virtual
//! clock describes what joins really do.
//!
//! A share that is moved near can correct itself. With a [`Balance`], near and far morsels wait in two queues. If one
//! queue is empty first, the next side or the next join moves another share.

use crate::plan::balance::Balance;
use crate::plan::hash_join::{Joining, NonPartitioned, PartitionedJoin, Partitioning};
use crate::plan::interleave::Interleave;
use crate::plan::phases::NearShares;
use crate::plan::traffic::TierSide;
use crate::stage::{Backend, Lines, Morsel, MorselTask, NoWork, Order, Stage, StageReport, evenly};

/// Bytes that a morsel (the work that a thread takes at a time) reads; the last one of an input may read fewer.
pub const MORSEL_BYTES: u32 = 64 << 10;

/// Strategy of a join, with the near share of each object.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// Join that partitions both sides.
    Partitioned(PartitionedStrategy),
    /// Join that makes one table of the build side.
    NonPartitioned(NonPartitionedStrategy),
}

/// Strategy of a partitioned join.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionedStrategy {
    /// Method of partitioning the inputs.
    pub partitioning: Partitioning,
    /// Step after partitioning. [`Joining::Beside`] needs [`Partitioning::OnePass`].
    pub joining: Joining,
    /// Share of the input that is copied near. Used by `MoveThenRun` and `KeepWhileCounting` only.
    pub input_share: f64,
    /// Near share of the build side's partitions.
    pub build_share: f64,
    /// Near share of the partitions of each batch of the probe side. Batches beyond the last entry have its share.
    pub batch_shares: Vec<f64>,
    /// Near share of the mix of both tiers, to which `CopyMixed` copies, and all methods but `OnePass` write
    /// partitions.
    pub mixed: f64,
    /// True if near morsels come first and far ones after them. Only used to show what that costs.
    pub is_blocked: bool,
}

/// Rows that are partitioned in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowSet {
    /// The whole build side.
    Build,
    /// Batch of the probe side: its number, and the number of batches.
    Batch(usize, usize),
}

/// Implementation of the steps of a partitioned join.
pub(crate) trait Steps {
    type Error;

    /// Copies `near_share` of the rows near, or all of them to a mix with that near share. Returns `None` if nothing is
    /// copied.
    fn copy(&mut self, row_set: RowSet, near_share: f64) -> Result<Option<StageReport>, Self::Error>;

    /// Partitions the rows. `near_share` of them were copied, or are kept near while they are counted. `joins` is a
    /// finished batch to join meanwhile.
    fn partition(
        &mut self,
        row_set: RowSet,
        near_share: f64,
        order: Order,
        joins: Option<usize>,
    ) -> Result<StageReport, Self::Error>;

    /// Joins a batch of the probe side with the build side, both partitioned already, and nothing else meanwhile.
    fn join(&mut self, batch: usize) -> Result<StageReport, Self::Error>;
}

impl PartitionedStrategy {
    /// Returns a strategy that moves no share of the inputs and writes partitions to a mix with the near share `mixed`.
    pub fn new(partitioning: Partitioning, joining: Joining, mixed: f64) -> PartitionedStrategy {
        PartitionedStrategy {
            partitioning,
            joining,
            input_share: 0.0,
            build_share: mixed,
            batch_shares: vec![mixed],
            mixed,
            is_blocked: false,
        }
    }

    /// Takes the shares from a placement of the plan `join`.
    pub fn placed(mut self, join: &PartitionedJoin, placement: &NearShares) -> PartitionedStrategy {
        self.input_share = placement.share(join.input);
        self.build_share = placement.share(join.build);
        self.batch_shares = join.batches.iter().map(|batch| placement.share(*batch)).collect();
        self
    }

    /// Runs the steps on a backend without touching rows, and returns their times. `build` and `probe` are the number
    /// of morsels of each side. With [`Partitioning::MoveThenRun`], `correcting` gives the share that is moved near,
    /// and is corrected after each side.
    pub fn times(
        &self,
        backend: &dyn Backend,
        [build, probe]: [u32; 2],
        correcting: Option<&mut Balance>,
    ) -> Vec<StageReport> {
        let mut timing = Timing { strategy: self, backend, build, probe };
        match self.run(correcting, &mut timing) {
            Ok(reports) => reports,
            Err(never) => match never {},
        }
    }

    /// Runs the steps of the join in order: copies and partitions each side or batch, and joins them.
    pub(crate) fn run<S: Steps>(
        &self,
        mut correcting: Option<&mut Balance>,
        steps: &mut S,
    ) -> Result<Vec<StageReport>, S::Error> {
        let batches = self.joining.batches() as usize;
        let mut reports = Vec::new();
        for row_set in
            std::iter::once(RowSet::Build).chain((0..batches).map(|batch| RowSet::Batch(batch, batches)))
        {
            let planned = match self.partitioning {
                Partitioning::InFar | Partitioning::OnePass => 0.0,
                Partitioning::CopyNear => 1.0,
                Partitioning::CopyMixed => self.mixed,
                Partitioning::MoveThenRun | Partitioning::KeepWhileCounting => self.input_share,
            };
            let is_open = self.partitioning == Partitioning::MoveThenRun;
            let mut balance = correcting.as_deref_mut().filter(|_| is_open);
            let share = balance.as_deref().map_or(planned, Balance::share);
            if self.is_copied_first() {
                reports.extend(steps.copy(row_set, share)?);
            }
            let joins = match row_set {
                RowSet::Batch(batch, _) => batch.checked_sub(1),
                RowSet::Build => None,
            };
            let order = if balance.is_some() { Order::TwoQueues } else { Order::AsGiven };
            let report = steps.partition(row_set, share, order, joins)?;
            if let Some(balance) = &mut balance {
                let [near, far] = report.drained_seconds;
                balance.drained(near, far);
            }
            reports.push(report);
        }
        if self.joining != Joining::Left {
            reports.push(steps.join(batches - 1)?);
        }
        Ok(reports)
    }

    fn is_copied_first(&self) -> bool {
        use Partitioning::{CopyMixed, CopyNear, MoveThenRun};
        matches!(self.partitioning, CopyNear | CopyMixed | MoveThenRun)
    }

    /// Returns the tier of a morsel's copy; `None` if the morsel is not copied.
    pub(crate) fn copy_of(&self, morsel: u32, morsels: u32, near_share: f64) -> Option<TierSide> {
        match self.partitioning {
            Partitioning::InFar | Partitioning::OnePass => None,
            Partitioning::CopyMixed => Some(self.side(morsel, morsels, near_share)),
            Partitioning::CopyNear | Partitioning::MoveThenRun | Partitioning::KeepWhileCounting => {
                (self.side(morsel, morsels, near_share) == TierSide::Near).then_some(TierSide::Near)
            }
        }
    }

    fn side(&self, morsel: u32, morsels: u32, near_share: f64) -> TierSide {
        let interleave = Interleave::share(near_share, u64::from(morsels));
        let is_near = match self.is_blocked {
            false => interleave.is_near(u64::from(morsel)),
            true => u64::from(morsel) < interleave.near_among(u64::from(morsels)),
        };
        if is_near { TierSide::Near } else { TierSide::Far }
    }

    /// Returns the near share of the partitions of a side or batch.
    pub(crate) fn output_share(&self, row_set: RowSet) -> f64 {
        let of_batch = |batch: usize| self.batch_shares.get(batch).or(self.batch_shares.last());
        match (self.partitioning, row_set) {
            (Partitioning::OnePass, RowSet::Build) => self.build_share,
            (Partitioning::OnePass, RowSet::Batch(batch, _)) => {
                of_batch(batch).copied().unwrap_or(self.mixed)
            }
            _ => self.mixed,
        }
    }
}

/// Returns the rows of batch number `at` if `all` rows are divided into `of` batches. Batches begin at multiples of
/// `unit` rows.
pub(crate) fn batch_of(all: usize, unit: usize, at: usize, of: usize) -> std::ops::Range<usize> {
    let units = all.div_ceil(unit);
    let start = |at: usize| all.min(units * at / of.max(1) * unit);
    start(at)..start(at + 1)
}

/// Steps that only count bytes and times.
struct Timing<'a> {
    strategy: &'a PartitionedStrategy,
    backend: &'a dyn Backend,
    /// Number of morsels of the build side.
    build: u32,
    /// Number of morsels of the probe side.
    probe: u32,
}

impl Timing<'_> {
    fn morsels(&self, row_set: RowSet) -> u32 {
        match row_set {
            RowSet::Build => self.build,
            // The cast fits: a batch is at most all of `probe`.
            RowSet::Batch(at, of) => batch_of(self.probe as usize, 1, at, of).len() as u32,
        }
    }

    fn joining(&self, batch: usize) -> Vec<Morsel> {
        let batches = self.strategy.joining.batches() as usize;
        let reading = |row_set| {
            let morsels = self.morsels(row_set);
            let side = move |at| self.strategy.side(at, morsels, self.strategy.output_share(row_set));
            (0..morsels)
                .map(move |at| Morsel::reading(MorselTask::Join, at, side(at), MORSEL_BYTES))
                .collect()
        };
        evenly(reading(RowSet::Build), reading(RowSet::Batch(batch, batches)))
    }
}

impl Steps for Timing<'_> {
    type Error = std::convert::Infallible;

    fn copy(&mut self, row_set: RowSet, near_share: f64) -> Result<Option<StageReport>, Self::Error> {
        let morsels = self.morsels(row_set);
        let copies = (0..morsels).filter_map(|at| {
            let to = self.strategy.copy_of(at, morsels, near_share)?;
            Some(Morsel::reading(MorselTask::Copy, at, TierSide::Far, MORSEL_BYTES).writing(to, MORSEL_BYTES))
        });
        let stage = Stage::new("move", copies.collect());
        Ok((!stage.morsels.is_empty()).then(|| self.backend.run(&stage, &NoWork)))
    }

    fn partition(
        &mut self,
        row_set: RowSet,
        near_share: f64,
        order: Order,
        joins: Option<usize>,
    ) -> Result<StageReport, Self::Error> {
        let strategy = self.strategy;
        let (morsels, written) = (self.morsels(row_set), strategy.output_share(row_set));
        let copy = |at| strategy.copy_of(at, morsels, near_share);
        let lies = |at| copy(at).unwrap_or(TierSide::Far);
        let scatter = |at| {
            Morsel::reading(MorselTask::Scatter, at, lies(at), MORSEL_BYTES)
                .writing_share(written, MORSEL_BYTES)
        };
        let scatters: Vec<Morsel> = (0..morsels).map(scatter).collect();
        let scatters = match joins {
            Some(batch) => evenly(scatters, self.joining(batch)),
            None => scatters,
        };
        let scatter = Stage { order, ..Stage::new("partition", scatters) };
        if strategy.partitioning.reads() == 1 {
            return Ok(self.backend.run(&scatter, &NoWork));
        }
        let keeps = strategy.partitioning == Partitioning::KeepWhileCounting;
        let count = |at| match copy(at).filter(|_| keeps) {
            Some(to) => {
                Morsel::reading(MorselTask::Count, at, TierSide::Far, MORSEL_BYTES).writing(to, MORSEL_BYTES)
            }
            None => Morsel::reading(MorselTask::Count, at, lies(at), MORSEL_BYTES),
        };
        let count = Stage { order, ..Stage::new("partition", (0..morsels).map(count).collect()) };
        Ok(self.backend.run(&count, &NoWork).then(self.backend.run(&scatter, &NoWork)))
    }

    fn join(&mut self, batch: usize) -> Result<StageReport, Self::Error> {
        Ok(self.backend.run(&Stage::new("join", self.joining(batch)), &NoWork))
    }
}

/// Strategy of a join through one shared table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonPartitionedStrategy {
    /// Copying of the inputs before they are read.
    pub moved: CopyPlan,
    /// Near share of the partitions that the table is built from.
    pub partitions_share: f64,
    /// Near share of the table.
    pub table_share: f64,
}

/// Copying of inputs before they are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CopyPlan {
    /// Share of each input that is copied near. The other rows stay where they lie.
    Share(f64),
    /// Near share of a mix to which everything is copied.
    Mixed(f64),
}

/// Bytes that one lookup moves: a bucket is a cache line.
pub const LOOKUP_BYTES: u32 = Lines::READ.bytes;
/// Bytes of a large hash table for each of its rows.
pub const TABLE_ROW_BYTES: f64 = 64.0 * 2.0 / 3.0;

impl NonPartitionedStrategy {
    /// Returns the strategy with the shares of a placement of the plan `join`. The share of the probe side that the
    /// placement moves near counts for both sides.
    pub fn placed(join: &NonPartitioned, placement: &NearShares) -> NonPartitionedStrategy {
        NonPartitionedStrategy {
            moved: CopyPlan::Share(placement.share(join.probe)),
            partitions_share: placement.share(join.partitions),
            table_share: placement.share(join.table),
        }
    }

    /// Runs the stages on a backend without touching rows, and returns their times. `build` and `probe` are the number
    /// of morsels of each side.
    pub fn times(&self, backend: &dyn Backend, [build, probe]: [u32; 2]) -> Vec<StageReport> {
        const ROWS: u32 = MORSEL_BYTES / 16;
        let mut stages = Vec::new();
        let lies = |at, morsels| self.copy_of(at, morsels).unwrap_or(TierSide::Far);
        if build > 0 {
            stages.extend(self.moving("move build side", build));
            let scatter = |at| {
                let from = lies(at, build);
                Morsel::reading(MorselTask::Scatter, at, from, MORSEL_BYTES)
                    .writing_share(self.partitions_share, MORSEL_BYTES)
            };
            stages.push(Stage::new("partition", (0..build).map(scatter).collect()));
            let parts = Interleave::share(self.partitions_share, u64::from(build));
            let fill = |at| {
                let from = if parts.is_near(u64::from(at)) { TierSide::Near } else { TierSide::Far };
                let made = f64::from(ROWS) * TABLE_ROW_BYTES;
                Morsel::reading(MorselTask::Build, at, from, MORSEL_BYTES)
                    .writing_share(self.table_share, made as u32)
            };
            stages.push(Stage::new("build", (0..build).map(fill).collect()));
        }
        stages.extend(self.moving("move probe side", probe));
        let look_up = |at| {
            Morsel::reading(MorselTask::Probe, at, lies(at, probe), MORSEL_BYTES)
                .touching(self.table_share, ROWS)
        };
        stages.push(Stage::new("probe", (0..probe).map(look_up).collect()));
        backend.run_all(&stages, &NoWork)
    }

    /// Returns the tier of a morsel's copy; `None` if the morsel is not copied.
    pub(crate) fn copy_of(&self, morsel: u32, morsels: u32) -> Option<TierSide> {
        let is_near = |share| Interleave::share(share, u64::from(morsels)).is_near(u64::from(morsel));
        match self.moved {
            CopyPlan::Share(share) => is_near(share).then_some(TierSide::Near),
            CopyPlan::Mixed(share) => Some(if is_near(share) { TierSide::Near } else { TierSide::Far }),
        }
    }

    fn moving(&self, name: &'static str, morsels: u32) -> Option<Stage> {
        let copies = (0..morsels).filter_map(|at| {
            let to = self.copy_of(at, morsels)?;
            Some(Morsel::reading(MorselTask::Copy, at, TierSide::Far, MORSEL_BYTES).writing(to, MORSEL_BYTES))
        });
        let stage = Stage::new(name, copies.collect());
        (!stage.morsels.is_empty()).then_some(stage)
    }
}
