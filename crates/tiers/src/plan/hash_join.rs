//! Hash joins over two tiers as plans of phases: the four strategies of paper 002 (section 4.1), and two that its model
//! does not have.
//!
//! The idea: inputs lie far. Partitioning reads them once or twice and writes partitions, and joining reads the
//! partitions once. Moving an input near beforehand reads it from the far tier once more than needed. It is cheaper to
//! read the far tier once and write some partitions near (*the partition is the move*) than to move any share of the
//! inputs.

use super::phases::{ObjectId, Phase, PhasePlan};
use super::traffic::TierSide;

/// Method of partitioning inputs that lie far. All but `OnePass` read the input twice: to count the rows of each
/// partition, and to write the rows to their partitions (of a copy, if they copy it first). The first four are those of
/// paper 002 ("Hash Joins Meet CXL").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Partitioning {
    /// Partitioning of the inputs where they lie.
    InFar,
    /// Copy of all inputs near, then partitioning of the copy.
    CopyNear,
    /// Copy of all inputs to a mix of both tiers, then partitioning of the copy.
    CopyMixed,
    /// Copy of a share of the inputs near, then partitioning: the proposal of the paper.
    MoveThenRun,
    /// Partitioning that writes a share of the inputs near while it reads them to count.
    KeepWhileCounting,
    /// Partitioning that reads the inputs once, into lists of chunks. Any share of the chunks may lie near.
    OnePass,
}

impl Partitioning {
    /// All methods.
    pub const ALL: [Partitioning; 6] = [
        Partitioning::InFar,
        Partitioning::CopyNear,
        Partitioning::CopyMixed,
        Partitioning::MoveThenRun,
        Partitioning::KeepWhileCounting,
        Partitioning::OnePass,
    ];

    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Partitioning::InFar => "in the far tier",
            Partitioning::CopyNear => "copy all near",
            Partitioning::CopyMixed => "copy all to the mix",
            Partitioning::MoveThenRun => "move a share near",
            Partitioning::KeepWhileCounting => "keep a share while counting",
            Partitioning::OnePass => "one pass",
        }
    }

    /// Returns how often the input is read to be partitioned.
    pub fn reads(self) -> u32 {
        if self == Partitioning::OnePass { 1 } else { 2 }
    }
}

/// Step that follows partitioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Joining {
    /// No join: the partition phase alone.
    Left,
    /// Join that begins after all partitions are complete.
    After,
    /// Join beside partitioning: the probe side is partitioned in batches. Each batch is joined while the next one is
    /// partitioned. Each join of a batch reads the partitions of the build side again.
    Beside {
        /// Number of batches, 1 to [`BATCHES_MAX`]. One batch is the same as [`Joining::After`].
        batches: u32,
    },
}

/// Most batches of a probe side. Each batch is an object of the plan, which has a limit.
pub const BATCHES_MAX: u32 = 12;

impl Joining {
    /// Returns the number of batches of the probe side.
    pub fn batches(self) -> u32 {
        match self {
            Joining::Left | Joining::After => 1,
            Joining::Beside { batches } => batches.clamp(1, BATCHES_MAX),
        }
    }
}

/// Bytes of both inputs of a join.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// Bytes of the build side.
    pub build: f64,
    /// Bytes of the probe side.
    pub probe: f64,
}

/// Plan of a partitioned join. The solver chooses the near shares that the strategy does not fix.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionedJoin {
    /// Phases of the join.
    pub plan: PhasePlan,
    /// Both inputs as one object; its share is copied near.
    pub input: ObjectId,
    /// Partitions of the build side.
    pub build: ObjectId,
    /// Partitions of the probe side, one object for each batch.
    pub batches: Vec<ObjectId>,
}

impl PartitionedJoin {
    /// Returns the plan for inputs of these sizes. `mixed` is the near share of a mix of both tiers. The strategies of
    /// the paper always write partitions to that mix.
    pub fn new(partitioning: Partitioning, joining: Joining, inputs: Inputs, mixed: f64) -> PartitionedJoin {
        let mut plan = PhasePlan::default();
        let bytes = inputs.build + inputs.probe;
        let input = match partitioning {
            Partitioning::InFar | Partitioning::OnePass => plan.fixed_object("input", bytes, 0.0),
            Partitioning::CopyNear => plan.fixed_object("input", bytes, 1.0),
            Partitioning::CopyMixed => plan.fixed_object("input", bytes, mixed),
            Partitioning::MoveThenRun | Partitioning::KeepWhileCounting => plan.object("input", bytes),
        };
        let mut partitions = |name, bytes| match partitioning {
            Partitioning::OnePass => plan.object(name, bytes),
            _ => plan.fixed_object(name, bytes, mixed),
        };
        let of_batch = inputs.probe / f64::from(joining.batches());
        let build = partitions("build partitions", inputs.build);
        let batches: Vec<ObjectId> =
            (0..joining.batches()).map(|_| partitions("probe partitions", of_batch)).collect();
        match partitioning {
            Partitioning::InFar | Partitioning::OnePass | Partitioning::KeepWhileCounting => {}
            Partitioning::CopyNear | Partitioning::MoveThenRun => {
                plan.then(Phase::new("move").moves(input, bytes));
            }
            Partitioning::CopyMixed => {
                plan.then(Phase::new("move").reads_on(TierSide::Far, bytes).writes(input, bytes));
            }
        }
        let keeps = partitioning == Partitioning::KeepWhileCounting;
        let reads = f64::from(partitioning.reads()) - f64::from(u8::from(keeps));
        let partition = |of: f64, into| {
            let phase = Phase::new("partition").reads(input, of * reads).writes(into, of);
            // Counting is a phase of its own only if it moves other bytes than writing the partitions.
            keeps
                .then(|| Phase::new("partition").reads_on(TierSide::Far, of).keeps(input, of))
                .into_iter()
                .chain([phase])
        };
        let join = |batch: ObjectId| Phase::new("join").reads(build, inputs.build).reads(batch, of_batch);
        if inputs.build > 0.0 {
            partition(inputs.build, build).for_each(|phase| {
                plan.then(phase);
            });
        }
        for (at, batch) in batches.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| join(batches[before]));
            let phases: Vec<Phase> = partition(of_batch, *batch).collect();
            let last = phases.len() - 1;
            for (number, phase) in phases.into_iter().enumerate() {
                let beside = before.clone().filter(|_| number == last);
                plan.then(match beside {
                    Some(join) => phase.beside(join),
                    None => phase,
                });
            }
        }
        let read_in = plan.phases().len();
        if let (Some(batch), true) = (batches.last(), joining != Joining::Left) {
            plan.then(join(*batch));
        }
        // Copies of inputs are needed until partitioning has ended. Partitions take memory from the phase that writes
        // them. If `keeps`, there are also phases that count, and partitions may take memory in the plan from a later
        // phase only.
        plan.lives(input, 0..read_in);
        let first = read_in - batches.len();
        plan.lives(build, first.saturating_sub(1)..usize::MAX);
        for (at, batch) in batches.iter().enumerate() {
            plan.lives(*batch, first + at..first + at + 2);
        }
        PartitionedJoin { plan, input, build, batches }
    }
}

/// Sizes of a join through one shared hash table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedTable {
    /// Bytes of the build side.
    pub build_bytes: f64,
    /// Bytes of the probe side.
    pub probe_bytes: f64,
    /// Bytes of a row of either side.
    pub row_bytes: f64,
    /// Bytes that one lookup moves: 64 if a bucket fills a cache line. Less if several slots share a line and the table
    /// is so compact that all of a line is used.
    pub slot_bytes: f64,
    /// Bytes of the table for each row of the build side.
    pub table_row_bytes: f64,
    /// Near share of the table and of the partitions that it is built from; `None` lets the solver choose.
    pub near_share: Option<f64>,
    /// True if a share of the inputs may be moved near before they are read.
    pub may_move: bool,
}

/// Plan of a join through one shared table.
#[derive(Clone, Debug, PartialEq)]
pub struct NonPartitioned {
    /// Phases: moving, partitioning and building; then moving and probing.
    pub plan: PhasePlan,
    /// Build side; its share is moved near.
    pub build: ObjectId,
    /// Probe side; its share is moved near.
    pub probe: ObjectId,
    /// Partitions of the build side. They let the table be written sequentially.
    pub partitions: ObjectId,
    /// Hash table.
    pub table: ObjectId,
}

impl NonPartitioned {
    /// Returns the plan. The build side is partitioned in one pass, and its partitions are read to write the table.
    /// Each lookup reads one slot.
    pub fn new(sizes: &SharedTable) -> NonPartitioned {
        let SharedTable { build_bytes, probe_bytes, row_bytes, slot_bytes, table_row_bytes, .. } = *sizes;
        let mut plan = PhasePlan::default();
        let most = if sizes.may_move { 1.0 } else { 0.0 };
        let build = plan.object("build side", build_bytes);
        let probe = plan.object("probe side", probe_bytes);
        let made = build_bytes / row_bytes * table_row_bytes;
        let partitions = plan.object("build partitions", build_bytes);
        let table = plan.object("hash table", made);
        plan.bound(build, 0.0, most);
        plan.bound(probe, 0.0, most);
        if let Some(share) = sizes.near_share {
            plan.bound(table, share, share);
            plan.bound(partitions, share, share);
        }
        if build_bytes > 0.0 {
            plan.then(Phase::new("move build side").moves(build, build_bytes))
                .then(Phase::new("partition").reads(build, build_bytes).writes(partitions, build_bytes))
                .then(Phase::new("build").reads(partitions, build_bytes).writes(table, made));
            plan.lives(partitions, 1..3);
        }
        let lookups = probe_bytes / row_bytes * slot_bytes;
        plan.then(Phase::new("move probe side").moves(probe, probe_bytes))
            .then(Phase::new("probe").reads(probe, probe_bytes).reads(table, lookups));
        NonPartitioned { plan, build, probe, partitions, table }
    }
}
