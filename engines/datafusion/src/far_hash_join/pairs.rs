//! Joins the two sides bucket by bucket, by DataFusion's hash join or, where possible, by farpool's own kernel.
//!
//! The idea: rows that join are in the same bucket on both sides, so the join is the union of the joins of its buckets,
//! for every join type. Buckets whose build side is in memory are joined while the probe side is read. The spilled ones
//! are joined afterwards, from their files. If a build bucket is still too large, the sides are swapped if the probe
//! bucket fits; else both are divided again, by another hash. When that does not help, because most rows have the same
//! key, the build bucket is read in several passes, each of as many rows as fit, which are joined with the whole probe
//! bucket.

use super::bucket_hash::{Block, BucketHash};
use super::buckets::{Bucket, Files, ProbeBuckets, SpilledBuild, needed_of, stream_of};
use super::word_join::WordJoin;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{
    DataFusionError, JoinType, Result, exec_datafusion_err, internal_err, resources_datafusion_err,
};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext, TryEmitter, async_try_stream};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::Count;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use farpool_lock::Mutex;
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;

/// Number of times that the rows of a bucket are divided, at most.
const LEVELS_MAX: u32 = 4;
/// Share of the rows above which one bucket makes their division useless. Such a bucket is then joined in passes.
const MOST_ROWS: (usize, usize) = (9, 10);
/// Bytes of a pass that is read even if the memory pool refuses the memory: the join could not finish otherwise.
const PASS_BYTES_MIN: usize = 256 << 10;

pub(crate) type Rows = BoxStream<'static, Result<RecordBatch>>;

/// Settings and resources that all buckets of one join share.
pub(crate) struct Joining {
    pub(crate) join: Arc<HashJoinExec>,
    /// Farpool's own kernel. `None` if the kernel cannot do this kind of join.
    pub(crate) words: Option<WordJoin>,
    /// Metric of EXPLAIN ANALYZE: number of buckets that the kernel joined.
    pub(crate) by_kernel: Count,
    /// Context to run DataFusion's join in. Its memory has no limit, because this operator has already reserved the
    /// memory that a bucket takes.
    pub(crate) unbounded: Arc<TaskContext>,
    /// Reservation of memory of this operator, from which those of buckets are split off.
    pub(crate) held: MemoryReservation,
    pub(crate) build_files: Files,
    pub(crate) probe_files: Files,
    /// Number of buckets that rows are divided into.
    pub(crate) buckets: usize,
    /// Number of bytes of rows that are divided at once.
    pub(crate) block_bytes: usize,
}

/// Bucket of both sides that spilled: rows that are joined with each other only.
struct Pair {
    build: Bucket,
    probe: Bucket,
    /// Number of times that its rows were divided.
    level: u32,
    /// True if the last division left almost all rows in this bucket, so that another is useless.
    is_stuck: bool,
}

/// A pair whose files are being read.
struct Opened {
    pair: Pair,
    build: SendableRecordBatchStream,
    probe: SendableRecordBatchStream,
}

impl Joining {
    fn keys(
        &self,
        side: fn(&(PhysicalExprRef, PhysicalExprRef)) -> &PhysicalExprRef,
    ) -> Vec<PhysicalExprRef> {
        self.join.on().iter().map(|pair| Arc::clone(side(pair))).collect()
    }

    /// Returns the hash that divides the build side into buckets. `level` is the number of times that the rows have
    /// been divided already. Each level has another hash.
    pub(crate) fn build_hash(&self, level: u32) -> BucketHash {
        BucketHash::new(self.keys(|(build, _)| build), self.buckets, level)
    }

    /// Returns an empty block, whose rows will be divided by this hash.
    pub(crate) fn block(&self, hash: BucketHash) -> Block {
        Block::new(hash, self.block_bytes, &self.held)
    }

    fn probe_hash(&self, level: u32) -> BucketHash {
        BucketHash::new(self.keys(|(_, probe)| probe), self.buckets, level)
    }

    /// Joins two streams. `held` is the reservation of the build side's memory, and is kept until all rows have been
    /// read.
    fn run(
        self: &Arc<Joining>,
        build: SendableRecordBatchStream,
        mut probe: SendableRecordBatchStream,
        is_swapped: bool,
        held: Arc<MemoryReservation>,
    ) -> Result<Rows> {
        if self.words.is_none() || is_swapped {
            return Ok(holding(self.engine(build, probe, is_swapped)?, held));
        }
        let joining = Arc::clone(self);
        let rows = async_try_stream(|mut rows: TryEmitter<RecordBatch, DataFusionError>| async move {
            let batches: Vec<RecordBatch> = build.try_collect().await?;
            let all = concat_batches(joining.build_files.manager.schema(), &batches)?;
            drop(batches);
            if let Some(words) = &joining.words
                && let Some(lookup) = words.lookup(&all)?
            {
                joining.by_kernel.add(1);
                while let Some(batch) = probe.next().await.transpose()? {
                    rows.emit(words.join(&lookup, &all, &batch)?).await;
                }
            } else {
                let build = stream_of(&joining.build_files, vec![all]);
                let mut joined = joining.engine(build, probe, false)?;
                while let Some(batch) = joined.next().await.transpose()? {
                    rows.emit(batch).await;
                }
            }
            Ok(())
        });
        Ok(holding(rows, held))
    }

    /// Joins two streams by DataFusion's join, with the sides swapped if `is_swapped`.
    fn engine(
        &self,
        build: SendableRecordBatchStream,
        probe: SendableRecordBatchStream,
        is_swapped: bool,
    ) -> Result<SendableRecordBatchStream> {
        let children = vec![given(build)?, given(probe)?];
        let join = self.join.builder().reset_state().with_fetch(None);
        let join =
            join.with_partition_mode(PartitionMode::Partitioned).with_new_children(children)?.build()?;
        let plan: Arc<dyn ExecutionPlan> = match is_swapped {
            true => join.swap_inputs(PartitionMode::Partitioned)?,
            false => Arc::new(join),
        };
        plan.execute(0, Arc::clone(&self.unbounded))
    }

    /// Returns a join of one build side with all partitions of the probe side, each of which executes it.
    pub(crate) fn for_all(
        &self,
        batches: Vec<RecordBatch>,
        probe: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<HashJoinExec> {
        let schema = probe.schema();
        let partition = |partition| -> Arc<dyn PartitionStream> {
            let (plan, context) = (Arc::clone(probe), Arc::clone(context));
            Arc::new(Probe { schema: Arc::clone(&schema), plan, partition, context })
        };
        let partitions = (0..probe.output_partitioning().partition_count()).map(partition).collect();
        let probe = StreamingTableExec::try_new(Arc::clone(&schema), partitions, None, [], false, None)?;
        let children = vec![given(stream_of(&self.build_files, batches))?, Arc::new(probe) as _];
        self.join.builder().reset_state().with_fetch(None).with_new_children(children)?.build()
    }

    /// Returns the context for joins by DataFusion whose memory has no limit.
    pub(crate) fn unbounded(&self) -> Arc<TaskContext> {
        Arc::clone(&self.unbounded)
    }

    /// Joins a build side that is in memory with the probe side.
    pub(crate) fn near(
        self: &Arc<Joining>,
        batches: Vec<RecordBatch>,
        probe: SendableRecordBatchStream,
        held: Arc<MemoryReservation>,
    ) -> Result<Rows> {
        self.run(stream_of(&self.build_files, batches), probe, false, held)
    }

    /// Joins a build side that spilled with the probe side: first its buckets in memory, then those in files.
    pub(crate) fn spilled(
        self: Arc<Joining>,
        build: SpilledBuild,
        probe: SendableRecordBatchStream,
        held: MemoryReservation,
    ) -> Result<Rows> {
        let is_far = build.buckets.iter().map(Option::is_some).collect();
        let block = self.block(self.probe_hash(0));
        let buckets = ProbeBuckets::new(block, self.probe_files.clone(), is_far);
        let probing =
            Arc::new(tokio::sync::Mutex::new(Probing { rows: Some(probe), buckets: Some(buckets) }));
        let handed_on = stream::try_unfold(Arc::clone(&probing), |probing| async move {
            let rows = probing.lock().await.next().await?;
            Ok(rows.map(|rows| (rows, probing)))
        });
        let schema = Arc::clone(self.probe_files.manager.schema());
        let handed_on = Box::pin(RecordBatchStreamAdapter::new(schema, handed_on));
        let near = self.near(build.near, handed_on, Arc::new(held))?;
        let far = stream::once(self.far(probing, build.buckets));
        Ok(near.chain(far.try_flatten()).boxed())
    }

    /// Joins the buckets in files, after those in memory have been joined.
    async fn far(
        self: Arc<Joining>,
        probing: Arc<tokio::sync::Mutex<Probing>>,
        builds: Vec<Option<Bucket>>,
    ) -> Result<Rows> {
        let mut probing = probing.lock().await;
        // DataFusion's join may skip the probe side if its build side in memory is empty. The probe rows of the buckets
        // in files must still be written.
        while probing.next().await?.is_some() {}
        let probes = match probing.buckets.take() {
            Some(buckets) => buckets.finish()?,
            None => return internal_err!("a join's probe side was taken twice"),
        };
        let pairs = builds
            .into_iter()
            .zip(probes)
            .filter_map(|(build, probe)| Some(Pair { build: build?, probe, level: 1, is_stuck: false }));
        Ok(self.pairs(pairs.collect()))
    }

    /// Joins pairs one after another. While one is joined, the files of the next one are opened and read ahead.
    fn pairs(self: &Arc<Joining>, pairs: Vec<Pair>) -> Rows {
        let ahead = Ahead { joining: Arc::clone(self), pairs: pairs.into_iter(), next: None };
        stream::try_unfold(ahead, Ahead::rows).try_flatten().boxed()
    }

    fn open(&self, pair: Pair) -> Result<Opened> {
        let build = pair.build.read(&self.build_files)?;
        let probe = pair.probe.read(&self.probe_files)?;
        Ok(Opened { pair, build, probe })
    }

    async fn pair(self: Arc<Joining>, opened: Opened) -> Result<Rows> {
        let Opened { pair, build, probe } = opened;
        let held = self.held.new_empty();
        if held.try_grow(pair.build.needed()).is_ok() {
            return self.run(build, probe, false, Arc::new(held));
        }
        if self.join.join_type().supports_swap()
            && pair.probe.needed() < pair.build.needed()
            && held.try_grow(pair.probe.needed()).is_ok()
        {
            return self.run(build, probe, true, Arc::new(held));
        }
        drop((build, probe));
        match pair.level < LEVELS_MAX && !pair.is_stuck {
            true => self.distribute_again(pair).await,
            false => self.in_passes(pair, held),
        }
    }

    async fn distribute_again(self: &Arc<Joining>, pair: Pair) -> Result<Rows> {
        let Pair { build, probe, level, .. } = pair;
        let all = vec![true; self.buckets];
        let (rows, mut sides) = (build.rows, Vec::new());
        for (bucket, files, hash) in [
            (build, &self.build_files, self.build_hash(level)),
            (probe, &self.probe_files, self.probe_hash(level)),
        ] {
            let mut buckets = ProbeBuckets::new(self.block(hash), files.clone(), all.clone());
            let mut batches = bucket.read(files)?;
            while let Some(batch) = batches.next().await {
                buckets.push(batch?)?;
            }
            buckets.distribute()?;
            sides.push(buckets.finish()?);
        }
        let (Some(probes), Some(builds)) = (sides.pop(), sides.pop()) else {
            return Ok(stream::empty().boxed());
        };
        let (most, of) = MOST_ROWS;
        let pairs = builds.into_iter().zip(probes).filter(|(build, probe)| build.rows + probe.rows > 0);
        let pairs = pairs.map(|(build, probe)| {
            let is_stuck = build.rows * of > rows * most;
            Pair { build, probe, level: level + 1, is_stuck }
        });
        Ok(self.pairs(pairs.collect()))
    }

    /// Joins a pair in passes: each joins part of one side with all of the other side. The first is the side whose rows
    /// can be decided by one pass alone, which depends on the join type.
    fn in_passes(self: Arc<Joining>, pair: Pair, held: MemoryReservation) -> Result<Rows> {
        let is_swapped = match self.join.join_type() {
            JoinType::Inner
            | JoinType::Left
            | JoinType::LeftSemi
            | JoinType::LeftAnti
            | JoinType::LeftMark => false,
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => true,
            JoinType::Full => {
                return Err(resources_datafusion_err!(
                    "FarHashJoinExec: a FULL join has {} and {} rows with keys of the same hash, and neither side fits \
                     into memory; permit more memory",
                    pair.build.rows,
                    pair.probe.rows
                ));
            }
        };
        let (outer, files) = match is_swapped {
            false => (&pair.build, &self.build_files),
            true => (&pair.probe, &self.probe_files),
        };
        let mut bytes = outer.needed();
        while held.try_grow(bytes).is_err() {
            bytes /= 2;
            if bytes <= PASS_BYTES_MIN {
                bytes = PASS_BYTES_MIN;
                held.grow(bytes);
                break;
            }
        }
        let (batches, held) = (outer.read(files)?, Arc::new(held));
        let passes = stream::try_unfold((batches, None), move |(mut batches, first)| async move {
            let mut rows: Vec<RecordBatch> = Vec::from_iter(first);
            let mut taken: usize = rows.iter().map(needed_of).sum();
            while let Some(batch) = batches.next().await.transpose()? {
                let needed = needed_of(&batch);
                if taken + needed > bytes && !rows.is_empty() {
                    return Ok(Some((rows, (batches, Some(batch)))));
                }
                taken += needed;
                rows.push(batch);
            }
            Ok((!rows.is_empty()).then_some((rows, (batches, None))))
        });
        let joined = passes.and_then(move |rows| {
            let joined = match is_swapped {
                false => pair.probe.read(&self.probe_files).and_then(|probe| {
                    self.run(stream_of(&self.build_files, rows), probe, false, Arc::clone(&held))
                }),
                true => pair.build.read(&self.build_files).and_then(|build| {
                    self.run(build, stream_of(&self.probe_files, rows), true, Arc::clone(&held))
                }),
            };
            futures::future::ready(joined)
        });
        Ok(joined.try_flatten().boxed())
    }
}

/// Pairs that are still to be joined. `next` is opened already.
struct Ahead {
    joining: Arc<Joining>,
    pairs: std::vec::IntoIter<Pair>,
    next: Option<Opened>,
}

impl Ahead {
    fn open(&mut self) -> Result<Option<Opened>> {
        self.pairs.next().map(|pair| self.joining.open(pair)).transpose()
    }

    /// Starts the join of the next pair. Returns its rows, and the pairs that remain.
    async fn rows(mut self) -> Result<Option<(Rows, Ahead)>> {
        let now = match self.next.take() {
            None => self.open()?,
            opened => opened,
        };
        let Some(now) = now else { return Ok(None) };
        self.next = self.open()?;
        let rows = Arc::clone(&self.joining).pair(now).await?;
        Ok(Some((rows, self)))
    }
}

/// Returns `rows` as a stream that keeps the reservation of memory until it is dropped.
pub(crate) fn holding(
    rows: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    held: Arc<MemoryReservation>,
) -> Rows {
    rows.inspect(move |_| _ = held.size()).boxed()
}

/// One partition of the probe side, executed in the context of the whole join.
struct Probe {
    schema: SchemaRef,
    plan: Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl PartitionStream for Probe {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.plan.execute(self.partition, Arc::clone(&self.context)).unwrap_or_else(|error| {
            let error = stream::once(futures::future::err(error));
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), error))
        })
    }
}

/// Probe side while it is read.
struct Probing {
    rows: Option<SendableRecordBatchStream>,
    buckets: Option<ProbeBuckets>,
}

impl Probing {
    /// Returns probe rows whose bucket is in memory, and writes those of other buckets to files. `None` at the end.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (Some(rows), Some(buckets)) = (&mut self.rows, &mut self.buckets) else { return Ok(None) };
        while let Some(batch) = rows.next().await {
            if let Some(near) = buckets.push(batch?)? {
                return Ok(Some(near));
            }
        }
        self.rows = None;
        buckets.distribute()
    }
}

/// Returns a plan whose only output is this stream. It can be executed once.
fn given(rows: SendableRecordBatchStream) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = rows.schema();
    let given = Given { schema: Arc::clone(&schema), rows: Mutex::new(Some(rows)) };
    Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(given)], None, [], false, None)?))
}

struct Given {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").finish_non_exhaustive()
    }
}

impl PartitionStream for Given {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        match self.rows.lock().take() {
            Some(rows) => rows,
            None => {
                let twice = exec_datafusion_err!("internal: a partition of a hash join was read twice");
                let error = stream::once(futures::future::err(twice));
                Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), error))
            }
        }
    }
}
