//! Hash joins over two tiers as plans of phases: the four strategies of paper 002 (section 4.1), and those that its
//! model leaves out.
//!
//! The idea: inputs lie far. Partitioning reads them, once or twice, and writes partitions; joining reads these once.
//! Whatever is moved beforehand is read far once more than needed. So it pays more to read the far tier once and to
//! choose where the partitions go (*the partition is the move*) than to move inputs, at any share.

use super::phases::{ObjectId, Phase, Plan};
use super::traffic::Side;

/// How inputs become partitions. The first four are the paper's and read their input twice: for a histogram, and to
/// scatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Partitioning {
    /// Where the inputs lie.
    InFar,
    /// All of them are copied near first.
    CopyNear,
    /// All of them are copied to a mix of both tiers first.
    CopyMixed,
    /// A share of them is copied near first: the paper's proposal.
    MoveThenRun,
    /// A share of them is kept near as the histogram reads them.
    KeepWhileCounting,
    /// They are read once, into lists of chunks, whose place is free.
    OnePass,
}

impl Partitioning {
    /// All of them.
    pub const ALL: [Partitioning; 6] = [
        Partitioning::InFar,
        Partitioning::CopyNear,
        Partitioning::CopyMixed,
        Partitioning::MoveThenRun,
        Partitioning::KeepWhileCounting,
        Partitioning::OnePass,
    ];

    /// In words.
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

    /// How often the input is read to be partitioned.
    pub fn reads(self) -> u32 {
        if self == Partitioning::OnePass { 1 } else { 2 }
    }
}

/// What follows partitioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Joining {
    /// Nothing: the partition phase alone.
    Left,
    /// Partitions are joined once all are there.
    After,
    /// The probe side is partitioned in so many batches, and each is joined while the next one is partitioned. The
    /// build side's partitions are read again for each.
    Beside {
        /// How many, 1 to [`BATCHES_MAX`]; one is the same as [`Joining::After`].
        batches: u32,
    },
}

/// Most batches of a probe side: each is an object of the plan.
pub const BATCHES_MAX: u32 = 12;

impl Joining {
    /// How many batches the probe side comes in.
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
    /// Of the build side.
    pub build: f64,
    /// Of the probe side.
    pub probe: f64,
}

/// A partitioned join, whose shares are still free unless its strategy says them.
#[derive(Clone, Debug, PartialEq)]
pub struct Partitioned {
    /// Its phases.
    pub plan: Plan,
    /// The inputs; what of them is copied near.
    pub input: ObjectId,
    /// What the build side is partitioned into.
    pub build: ObjectId,
    /// What the batches of the probe side are partitioned into.
    pub batches: Vec<ObjectId>,
}

impl Partitioned {
    /// Of so many bytes. `mixed` is the near share of the mix of both tiers, to which the paper writes partitions
    /// whatever the strategy.
    pub fn new(partitioning: Partitioning, joining: Joining, inputs: Inputs, mixed: f64) -> Partitioned {
        let mut plan = Plan::default();
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
                plan.then(Phase::new("move").reads_on(Side::Far, bytes).writes(input, bytes));
            }
        }
        let keeps = partitioning == Partitioning::KeepWhileCounting;
        let reads = f64::from(partitioning.reads()) - f64::from(u8::from(keeps));
        let partition = |of: f64, into| {
            let phase = Phase::new("partition").reads(input, of * reads).writes(into, of);
            // The histogram is a phase of its own only where it moves something else.
            keeps
                .then(|| Phase::new("partition").reads_on(Side::Far, of).keeps(input, of))
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
        // What was copied is needed no longer once partitions are there, and partitions are not there before.
        plan.lives(input, 0..read_in);
        let first = read_in - batches.len();
        plan.lives(build, first.saturating_sub(1)..usize::MAX);
        for (at, batch) in batches.iter().enumerate() {
            plan.lives(*batch, first + at..first + at + 2);
        }
        Partitioned { plan, input, build, batches }
    }
}

/// Sizes of a join through one shared hash table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// Bytes of the build side.
    pub build_bytes: f64,
    /// Bytes of the probe side.
    pub probe_bytes: f64,
    /// Bytes of a row of either.
    pub row_bytes: f64,
    /// Bytes that looking a row up moves: 64 for a bucket that fills a line; less for slots of which several share one,
    /// in a table so compact that what is moved is used.
    pub slot_bytes: f64,
    /// Bytes of the table for each row of the build side.
    pub table_row_bytes: f64,
    /// The near share of the table, and of the partitions that it is made of; free if there is none.
    pub near_share: Option<f64>,
    /// Whether a share of the inputs may be moved near before they are read.
    pub may_move: bool,
}

/// A join through one shared table.
#[derive(Clone, Debug, PartialEq)]
pub struct NonPartitioned {
    /// Its phases: moving and building, moving and probing.
    pub plan: Plan,
    /// The build side; what of it is moved.
    pub build: ObjectId,
    /// The probe side; what of it is moved.
    pub probe: ObjectId,
    /// What the build side is partitioned into, so that the table is made from its front to its end.
    pub partitions: ObjectId,
    /// The hash table.
    pub table: ObjectId,
}

impl NonPartitioned {
    /// The build side is partitioned in one pass, and its partitions are read to write the table; looking up reads a
    /// slot.
    pub fn new(sizes: &Table) -> NonPartitioned {
        let Table { build_bytes, probe_bytes, row_bytes, slot_bytes, table_row_bytes, .. } = *sizes;
        let mut plan = Plan::default();
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
