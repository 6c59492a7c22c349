//! Joins of tuples over two tiers, by any strategy, with the kernels of `farpool-join`.
//!
//! The idea: kernels (the loops that partition and join rows) ask for rows, for partitions and for chunks of 2 MiB, and
//! know nothing of tiers. They get rows when their bytes would have arrived, near and far ones mixed (`feed.rs`). A
//! plan says which share of an object's chunks lies near (`memory.rs`). Rows that were moved beforehand are read from
//! their copy (`moving.rs`). Bytes are counted on the tier where they lie by address, not where a plan meant them to
//! lie.

use crate::feed::MorselFeed;
use crate::memory::{ObjectMemory, TierMemory};
use crate::moving::{Copies, Input, MORSEL_ROWS};
use crate::plan::balance::Balance;
use crate::plan::hash_join::{Joining, Partitioning};
use crate::plan::traffic::TierSide;
use crate::region::TierRegionError;
use crate::stage::{Morsel, MorselTask, Order, RealTime, Stage, StageReport, evenly, mixed};
use crate::strategy::{NonPartitionedStrategy, PartitionedStrategy, RowSet, Steps, Strategy, batch_of};
use farpool_join::{
    BuildTable, Equal, JoinError, JoinInput, JoinSide as Of, JoinSpec, Morsels, PartitionHasher, Partitioned,
    Partitioner, Settings, Sides, Sink, Tuple, join_partitions_by, partition, probe, table_bytes,
};
use farpool_lock::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Backend that runs a join, and the memory that it uses.
#[derive(Clone, Copy)]
pub struct Tiered<'a> {
    /// Backend that runs the stages.
    pub tiers: &'a dyn RealTime,
    /// Memory of both tiers, for partitions, tables and copies.
    pub memory: &'a TierMemory,
}

/// Results of a join, and measurements.
#[derive(Debug)]
pub struct Joined<S> {
    /// Sinks with the joined rows, one for each worker.
    pub sinks: Vec<S>,
    /// Time and traffic of each phase. Allocating memory and finding where partitions lie happen between phases and are
    /// not included.
    pub reports: Vec<StageReport>,
    /// Bytes of all partitions by tier (near, far), counted where they lie.
    pub partition_bytes: [u64; 2],
    /// Bytes of the shared table by tier (near, far), in whole chunks. 0 for a partitioned join.
    pub table_bytes: [u64; 2],
}

/// Joins two inputs. Rows outside `on.memory` count as far. If `correcting` is given and the strategy moves a share of
/// the inputs near before it partitions them ([`Partitioning::MoveThenRun`]), that share is corrected after each side,
/// and from join to join. If the strategy only partitions ([`Joining::Left`]), the partitions are joined all the same,
/// to check them, but the time of that is not reported.
///
/// # Errors
/// Returns an error if `settings` or `sinks` are for another number of workers, if memory is missing, or if the
/// strategy joins batches of the probe side during partitioning but partitions by a method that reads inputs twice.
pub fn join<S: Sink, E: Equal>(
    on: Tiered<'_>,
    settings: &Settings,
    strategy: &Strategy,
    sides: Sides<&[Tuple]>,
    how: JoinSpec<'_, E>,
    correcting: Option<&mut Balance>,
    sinks: Vec<S>,
) -> Result<Joined<S>, TierError> {
    let Tiered { tiers, memory } = on;
    let workers = tiers.workers();
    if settings.threads != workers || sinks.len() != workers {
        let (threads, sinks) = (settings.threads, sinks.len());
        return Err(TierError::Workers { workers, threads, sinks });
    }
    let hasher = settings.hasher(sides.build.len())?;
    let common = Common { tiers, memory, settings, hasher: &hasher };
    match strategy {
        Strategy::Partitioned(strategy) => partitioned(&common, strategy, sides, how, correcting, sinks),
        Strategy::NonPartitioned(strategy) => non_partitioned(&common, strategy, sides, how, sinks),
    }
}

/// Context that all steps of a join share: backend, memory, and settings of the kernels.
struct Common<'a> {
    tiers: &'a dyn RealTime,
    memory: &'a TierMemory,
    settings: &'a Settings,
    hasher: &'a PartitionHasher,
}

impl Common<'_> {
    /// Returns for each morsel of an input the bytes that it reads, by tier (near, far). A morsel with a copy is read
    /// on the tier of the copy.
    fn reads(&self, input: &Input<'_>, copies: &[Option<TierSide>]) -> Vec<[u64; 2]> {
        let of_morsel = |(morsel, bytes): (usize, u64)| match copies.get(morsel).copied().flatten() {
            Some(side) => {
                let mut read = [0; 2];
                read[side.index()] = bytes;
                read
            }
            None => self.memory.bytes_by_side([input.original(morsel)]),
        };
        input.morsel_bytes().enumerate().map(of_morsel).collect()
    }

    /// Copies the morsels whose entry in `copies` is a tier to that tier. Returns `None` if there is no such entry.
    fn copy(
        &self,
        name: &'static str,
        input: &Input<'_>,
        copies: &[Option<TierSide>],
    ) -> Option<StageReport> {
        let before = self.reads(input, &[]);
        let morsels = before.iter().zip(copies).zip(0..).filter_map(|((read, to), at)| {
            let morsel = Morsel::reading_both(MorselTask::Copy, at, *read);
            Some(morsel.writing((*to)?, read[0] + read[1]))
        });
        let stage = Stage::new(name, morsels.collect());
        (!stage.morsels.is_empty()).then(|| self.tiers.run(&stage, input))
    }

    fn feed(&self, stage: &Stage, morsel_rows: usize, rows: usize) -> MorselFeed<'_> {
        MorselFeed::new(self.tiers.begin(), self.tiers.workers(), stage, morsel_rows, rows)
    }

    /// Returns a morsel for each partition, near and far ones mixed. Without mixing, partitions that were laid out in a
    /// row would come from one chunk, hence one tier, for a long time.
    fn of_partitions(&self, task: MorselTask, partitioned: &[&Partitioned<'_>]) -> Vec<Morsel> {
        let partitions = self.hasher.partitions();
        let read = |at: usize| self.memory.bytes_by_side(partitioned.iter().flat_map(|side| side.slices(at)));
        // The cast fits: there are at most 2^14 partitions.
        mixed((0..partitions).map(|at| Morsel::reading_both(task, at as u32, read(at))).collect())
    }

    fn bytes_of(&self, side: &Partitioned<'_>) -> [u64; 2] {
        self.memory.bytes_by_side((0..side.partitions()).flat_map(|at| side.slices(at)))
    }

    /// Returns the number of chunks that partitions need beside their rows, for blocks that are not full.
    fn spare_chunks(&self) -> usize {
        self.tiers.workers() * (self.hasher.partitions() / 128 + 2)
    }
}

fn morsels_of(rows: usize) -> u32 {
    // The cast fits: a side has at most 2^31 rows.
    rows.div_ceil(MORSEL_ROWS) as u32
}

fn partitioned<S: Sink, E: Equal>(
    common: &Common<'_>,
    strategy: &PartitionedStrategy,
    sides: Sides<&[Tuple]>,
    how: JoinSpec<'_, E>,
    correcting: Option<&mut Balance>,
    sinks: Vec<S>,
) -> Result<Joined<S>, TierError> {
    let Sides { build, probe: outer } = sides;
    let batches = strategy.joining.batches() as usize;
    if batches > 1 && strategy.partitioning != Partitioning::OnePass {
        return Err(TierError::Beside(strategy.partitioning));
    }
    let rows: Vec<(RowSet, &[Tuple])> = std::iter::once((RowSet::Build, build))
        .chain((0..batches).map(|at| {
            let rows = batch_of(outer.len(), MORSEL_ROWS, at, batches);
            (RowSet::Batch(at, batches), &outer[rows])
        }))
        .collect();
    let placed: Vec<ObjectMemory<'_>> = rows
        .iter()
        .map(|(row_set, _)| ObjectMemory::new(common.memory, strategy.output_share(*row_set)))
        .collect();
    if strategy.partitioning == Partitioning::OnePass {
        for (placed, (_, rows)) in placed.iter().zip(&rows) {
            placed.reserve(size_of_val(*rows), common.spare_chunks())?;
        }
    }
    let scratch = ObjectMemory::new(common.memory, 1.0);
    let mut kernels = Kernels {
        common,
        strategy,
        rows: &rows,
        placed: &placed,
        scratch: &scratch,
        copies: None,
        partitioned: rows.iter().map(|_| None).collect(),
        how,
        sinks: sinks.into_iter().map(|sink| Mutex::new(Some(sink))).collect(),
    };
    let reports = strategy.run(correcting, &mut kernels)?;
    if strategy.joining == Joining::Left {
        // Joins the partitions nevertheless, so that the sinks show if they are right.
        kernels.join(batches - 1)?;
    }
    let partitioned = kernels.partitioned.iter().flatten();
    let partition_bytes = partitioned.map(|side| common.bytes_of(side));
    let partition_bytes = partition_bytes.fold([0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
    let sinks = kernels.sinks.into_iter().filter_map(Mutex::into_inner).collect();
    Ok(Joined { sinks, reports, partition_bytes, table_bytes: [0; 2] })
}

/// Steps of a partitioned join, done by kernels on real memory.
struct Kernels<'a, S, E> {
    common: &'a Common<'a>,
    strategy: &'a PartitionedStrategy,
    /// Rows of the build side, then those of each batch of the probe side.
    rows: &'a [(RowSet, &'a [Tuple])],
    /// Memory for the partitions of each entry of `rows`.
    placed: &'a [ObjectMemory<'a>],
    /// Memory for tables of single partitions.
    scratch: &'a ObjectMemory<'a>,
    /// Copies made for the side or batch that is partitioned next.
    copies: Option<Copies<'a>>,
    /// Partitions of each entry of `rows`; `None` until they are made.
    partitioned: Vec<Option<Partitioned<'a>>>,
    how: JoinSpec<'a, E>,
    /// Sinks by worker; `None` if the sink was lost with an error.
    sinks: Vec<Mutex<Option<S>>>,
}

impl<'a, S, E> Kernels<'a, S, E> {
    /// Returns the index of a side or batch, its rows, and the destination of the copy of each of its morsels.
    fn row_set(&self, row_set: RowSet, near_share: f64) -> (usize, &'a [Tuple], Vec<Option<TierSide>>) {
        let at = match row_set {
            RowSet::Build => 0,
            RowSet::Batch(batch, _) => batch + 1,
        };
        let rows = self.rows[at].1;
        let morsels = morsels_of(rows.len());
        let copies = (0..morsels).map(|morsel| self.strategy.copy_of(morsel, morsels, near_share));
        (at, rows, copies.collect())
    }

    /// Returns the build side and a batch of the probe side; `None` if either is not partitioned yet.
    fn sides(&self, batch: usize) -> Option<Sides<&Partitioned<'a>>> {
        Some(Sides { build: self.partitioned[0].as_ref()?, probe: self.partitioned[batch + 1].as_ref()? })
    }
}

impl<'a, S: Sink, E: Equal> Steps for Kernels<'a, S, E> {
    type Error = TierError;

    fn copy(&mut self, row_set: RowSet, near_share: f64) -> Result<Option<StageReport>, TierError> {
        let (_, rows, to) = self.row_set(row_set, near_share);
        let mut copies = Copies::new(self.common.memory, to.clone())?;
        let report = self.common.copy("move", &Input::new(rows, &mut copies), &to);
        self.copies = Some(copies);
        Ok(report)
    }

    fn partition(
        &mut self,
        row_set: RowSet,
        near_share: f64,
        order: Order,
        joins: Option<usize>,
    ) -> Result<StageReport, TierError> {
        let (common, strategy) = (self.common, self.strategy);
        let (at, rows, to) = self.row_set(row_set, near_share);
        let keeps = strategy.partitioning == Partitioning::KeepWhileCounting;
        let mut copies = match self.copies.take() {
            Some(copies) => copies,
            None if keeps => Copies::new(common.memory, to.clone())?,
            None => Copies::none(),
        };
        let input = match keeps {
            true => Input::kept_by_readers(rows, &mut copies),
            false => Input::copied(rows, &copies),
        };
        let reads = common.reads(&input, if keeps { &[] } else { &to });
        let reads_twice = strategy.partitioning.reads() == 2;
        let written = strategy.output_share(row_set);
        let morsel = |(number, read): (u32, [u64; 2])| {
            let bytes = read[0] + read[1];
            match to.get(number as usize).copied().flatten().filter(|_| keeps) {
                Some(side) => Morsel::reading_both(MorselTask::Count, number, read).writing(side, bytes),
                None if reads_twice => Morsel::reading_both(MorselTask::Count, number, read),
                None => Morsel::reading_both(MorselTask::Scatter, number, read).writing_share(written, bytes),
            }
        };
        let mut morsels: Vec<Morsel> = (0..).zip(reads).map(morsel).collect();
        if order == Order::AsGiven && !strategy.is_blocked {
            morsels = mixed(morsels);
        }
        let before = joins.and_then(|batch| self.sides(batch));
        if let Some(Sides { build, probe }) = before {
            morsels = evenly(morsels, common.of_partitions(MorselTask::Join, &[build, probe]));
        }
        let failed = Mutex::new(None);
        let join_one = |worker: usize, partition: usize| {
            let Some((sides, slot)) = before.zip(self.sinks.get(worker)) else { return };
            let mut slot = slot.lock();
            let Some(sink) = slot.take() else { return };
            let alone = Settings { threads: 1, ..*common.settings };
            let once = Once { partition, is_handed: AtomicBool::new(false) };
            match join_partitions_by(&alone, self.scratch, sides, &once, self.how, vec![sink]) {
                Ok(mut sinks) => *slot = sinks.pop(),
                Err(error) => *failed.lock() = Some(error),
            }
        };
        let stage = Stage { order, ..Stage::new("partition", morsels) };
        let placed = &self.placed[at];
        let feed = common.feed(&stage, MORSEL_ROWS, rows.len()).joining(&join_one);
        let (feed, partitioner) = match reads_twice {
            true => (feed.reading_again(&placed.room), Partitioner::TwoReads),
            false => (feed.writing_to(&placed.room), Partitioner::OnePass),
        };
        let side = if row_set == RowSet::Build { Of::Build } else { Of::Probe };
        let settings = Settings { partitioner, ..*common.settings };
        let made = partition(&settings, common.hasher, placed, side, &input, &feed)?;
        let report = feed.finish();
        if let Some(error) = failed.into_inner() {
            return Err(error.into());
        }
        self.partitioned[at] = Some(made);
        Ok(report)
    }

    fn join(&mut self, batch: usize) -> Result<StageReport, TierError> {
        let common = self.common;
        let Some(sides) = self.sides(batch) else { return Err(JoinError::Unlike.into()) };
        let morsels = common.of_partitions(MorselTask::Join, &[sides.build, sides.probe]);
        let feed = common.feed(&Stage::new("join", morsels), 1, common.hasher.partitions());
        let sinks = self.sinks.iter().filter_map(|sink| sink.lock().take()).collect();
        let sinks = join_partitions_by(common.settings, self.scratch, sides, &feed, self.how, sinks)?;
        let report = feed.finish();
        self.sinks = sinks.into_iter().map(|sink| Mutex::new(Some(sink))).collect();
        Ok(report)
    }
}

/// Queue that returns one partition, once.
struct Once {
    /// Number of the partition.
    partition: usize,
    /// True once the partition was returned.
    is_handed: AtomicBool,
}

impl Morsels for Once {
    fn next(&self, _worker: usize) -> Option<Range<usize>> {
        let is_first = !self.is_handed.swap(true, Ordering::Relaxed);
        is_first.then_some(self.partition..self.partition + 1)
    }
}

fn non_partitioned<S: Sink, E: Equal>(
    common: &Common<'_>,
    strategy: &NonPartitionedStrategy,
    sides: Sides<&[Tuple]>,
    how: JoinSpec<'_, E>,
    sinks: Vec<S>,
) -> Result<Joined<S>, TierError> {
    let Sides { build, probe: outer } = sides;
    let (memory, mut reports) = (common.memory, Vec::new());
    let copies_of = |rows: &[Tuple]| -> Vec<Option<TierSide>> {
        let morsels = morsels_of(rows.len());
        (0..morsels).map(|morsel| strategy.copy_of(morsel, morsels)).collect()
    };
    let to = copies_of(build);
    let mut copies = Copies::new(memory, to.clone())?;
    reports.extend(common.copy("move build side", &Input::new(build, &mut copies), &to));
    let input = Input::copied(build, &copies);
    let placed = ObjectMemory::new(memory, strategy.partitions_share);
    placed.reserve(size_of_val(build), common.spare_chunks())?;
    let scatter = |(at, read): (u32, [u64; 2])| {
        let morsel = Morsel::reading_both(MorselTask::Scatter, at, read);
        morsel.writing_share(strategy.partitions_share, read[0] + read[1])
    };
    let morsels = (0..).zip(common.reads(&input, &to)).map(scatter).collect();
    let stage = Stage::new("partition", mixed(morsels));
    let feed = common.feed(&stage, MORSEL_ROWS, build.len()).writing_to(&placed.room);
    let settings = Settings { partitioner: Partitioner::OnePass, ..*common.settings };
    let partitioned = partition(&settings, common.hasher, &placed, Of::Build, &input, &feed)?;
    reports.push(feed.finish());

    let of_table = ObjectMemory::new(memory, strategy.table_share);
    let fill = |morsel: Morsel| {
        let made = table_bytes(partitioned.count(morsel.number as usize)) as u64;
        morsel.writing_share(strategy.table_share, made)
    };
    let morsels = common.of_partitions(MorselTask::Build, &[&partitioned]).into_iter().map(fill).collect();
    let feed = common.feed(&Stage::new("build", morsels), 1, partitioned.partitions());
    let feed = feed.writing_to(&of_table.room);
    let table = BuildTable::build_by(&settings, &of_table, &partitioned, &feed)?;
    reports.push(feed.finish());
    let partition_bytes = common.bytes_of(&partitioned);
    drop(partitioned);

    let to = copies_of(outer);
    let mut copies = Copies::new(memory, to.clone())?;
    reports.extend(common.copy("move probe side", &Input::new(outer, &mut copies), &to));
    let input = Input::copied(outer, &copies);
    let [near, far] = of_table.taken_bytes();
    let share = near as f64 / (near + far).max(1) as f64;
    let look_up = |(at, read): (u32, [u64; 2])| {
        // The cast fits: a morsel has at most 64 KiB.
        let rows = ((read[0] + read[1]) / size_of::<Tuple>() as u64) as u32;
        Morsel::reading_both(MorselTask::Probe, at, read).touching(share, rows)
    };
    let morsels = (0..).zip(common.reads(&input, &to)).map(look_up).collect();
    let stage = Stage::new("probe", mixed(morsels));
    let feed = common.feed(&stage, MORSEL_ROWS, input.rows());
    let sinks = probe(&settings, &table, &input, &feed, how, sinks)?;
    reports.push(feed.finish());
    Ok(Joined { sinks, reports, partition_bytes, table_bytes: of_table.taken_bytes() })
}

/// Reason why a join over tiers failed.
#[derive(Clone, Debug, PartialEq)]
pub enum TierError {
    /// The kernels failed.
    Join(JoinError),
    /// Memory of a tier could not be had.
    Region(TierRegionError),
    /// Settings or sinks are for another number of threads than there are workers.
    Workers {
        /// Workers of the backend.
        workers: usize,
        /// Threads of the settings.
        threads: usize,
        /// Number of sinks.
        sinks: usize,
    },
    /// The strategy joins each batch of the probe side while the next one is partitioned. Only a method of partitioning
    /// that reads its input once can do that, and this one reads it twice.
    Beside(Partitioning),
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TierError::Join(error) => error.fmt(f),
            TierError::Region(error) => error.fmt(f),
            TierError::Workers { workers, threads, sinks } => write!(
                f,
                "a join on {workers} workers has settings for {threads} threads and {sinks} sinks; all must be equal"
            ),
            TierError::Beside(partitioning) => write!(
                f,
                "joining batches during partitioning needs one-pass partitioning, not {:?}",
                partitioning.name()
            ),
        }
    }
}

impl std::error::Error for TierError {}

impl From<JoinError> for TierError {
    fn from(error: JoinError) -> TierError {
        TierError::Join(error)
    }
}

impl From<TierRegionError> for TierError {
    fn from(error: TierRegionError) -> TierError {
        TierError::Region(error)
    }
}
