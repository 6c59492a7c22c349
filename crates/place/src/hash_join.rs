//! Hash joins over two tiers as plans of phases: the four strategies of paper 002 (section 4.1), and those that its model
//! leaves out.
//!
//! The idea: inputs lie far. Partitioning reads them, once or twice, and writes partitions; joining reads these once.
//! Whatever is moved beforehand is read far once more than needed. So it pays more to read the far tier once and to choose
//! where the partitions go (*the partition is the move*) than to move inputs, at any share.

use crate::phases::{ObjectId, Phase, Plan};
use crate::traffic::Side;

/// How inputs become partitions. The first four are the paper's and read their input twice: for a histogram, and to scatter.
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
    /// Finished partitions are joined while others are made.
    Beside,
}

/// A partitioned join, whose shares are still free unless its strategy says them.
#[derive(Clone, Debug, PartialEq)]
pub struct Partitioned {
    /// Its phases.
    pub plan: Plan,
    /// The inputs; what of them is copied near.
    pub input: ObjectId,
    /// What they are partitioned into.
    pub partitions: ObjectId,
}

impl Partitioned {
    /// Of so many bytes of both inputs. `mixed` is the near share of the mix of both tiers, to which the paper writes
    /// partitions whatever the strategy.
    pub fn new(partitioning: Partitioning, joining: Joining, input_bytes: f64, mixed: f64) -> Partitioned {
        let mut plan = Plan::default();
        let bytes = input_bytes;
        let input = match partitioning {
            Partitioning::InFar | Partitioning::OnePass => plan.fixed_object("input", bytes, 0.0),
            Partitioning::CopyNear => plan.fixed_object("input", bytes, 1.0),
            Partitioning::CopyMixed => plan.fixed_object("input", bytes, mixed),
            Partitioning::MoveThenRun | Partitioning::KeepWhileCounting => plan.object("input", bytes),
        };
        let partitions = match partitioning {
            Partitioning::OnePass => plan.object("partitions", bytes),
            _ => plan.fixed_object("partitions", bytes, mixed),
        };
        match partitioning {
            Partitioning::InFar | Partitioning::OnePass => {}
            Partitioning::CopyNear | Partitioning::MoveThenRun => {
                plan.then(Phase::new("move").moves(input, bytes));
            }
            Partitioning::CopyMixed => {
                plan.then(Phase::new("move").reads_on(Side::Far, bytes).writes(input, bytes));
            }
            Partitioning::KeepWhileCounting => {
                plan.then(Phase::new("histogram").reads_on(Side::Far, bytes).keeps(input, bytes));
            }
        }
        let left = f64::from(partitioning.reads())
            - if partitioning == Partitioning::KeepWhileCounting { 1.0 } else { 0.0 };
        let partition = Phase::new("partition").reads(input, bytes * left).writes(partitions, bytes);
        let join = |name| Phase::new(name).reads(partitions, bytes);
        match joining {
            Joining::Left => plan.then(partition),
            Joining::After => plan.then(partition).then(join("join")),
            Joining::Beside => plan.then(partition.beside(join("join"))),
        };
        // What was copied is needed no longer once partitions are there.
        let read_in = plan.phases().len() - usize::from(joining == Joining::After);
        plan.lives(input, 0..read_in);
        let written_in = read_in - 1;
        plan.lives(partitions, written_in..usize::MAX);
        Partitioned { plan, input, partitions }
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
    /// Bytes that looking a row up moves: 64 for a bucket that fills a line; less for slots of which several share one, in
    /// a table so compact that what is moved is used.
    pub slot_bytes: f64,
    /// The near share of the table; free if there is none.
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
    /// The hash table.
    pub table: ObjectId,
}

impl NonPartitioned {
    /// Building reads and writes a slot for each row, probing reads one.
    pub fn new(sizes: &Table) -> NonPartitioned {
        let Table { build_bytes, probe_bytes, row_bytes, slot_bytes, .. } = *sizes;
        let mut plan = Plan::default();
        let slots = |bytes: f64| bytes / row_bytes * slot_bytes;
        let most = if sizes.may_move { 1.0 } else { 0.0 };
        let build = plan.object("build side", build_bytes);
        let probe = plan.object("probe side", probe_bytes);
        let table = plan.object("hash table", slots(build_bytes));
        plan.bound(build, 0.0, most);
        plan.bound(probe, 0.0, most);
        if let Some(share) = sizes.near_share {
            plan.bound(table, share, share);
        }
        let made = slots(build_bytes);
        if build_bytes > 0.0 {
            plan.then(Phase::new("move build side").moves(build, build_bytes))
                .then(Phase::new("build").reads(build, build_bytes).reads(table, made).writes(table, made));
        }
        plan.then(Phase::new("move probe side").moves(probe, probe_bytes))
            .then(Phase::new("probe").reads(probe, probe_bytes).reads(table, slots(probe_bytes)));
        NonPartitioned { plan, build, probe, table }
    }
}
