//! A hash join that spills when its build side does not fit into memory.
//!
//! The idea: DataFusion's hash join needs its whole build side in memory, and fails when the memory pool has no more.
//! This join collects the build side too, and joins it like that one while all of it fits. When it does not fit, both
//! sides are divided into buckets by a hash of their keys ([`bucket_hash`]), which puts rows with equal keys into the
//! same bucket. Buckets of the build side stay in memory while there is room, and the largest spill first
//! ([`buckets`]). Rows of the probe side whose bucket is in memory are joined at once; the other rows go to files. At
//! the end the spilled buckets are joined one after another ([`pairs`]).
//!
//! Each of these joins is run by DataFusion, so all join types, conditions and NULLs behave as they do there. The one
//! exception is the most frequent case, numbers that are unique on the build side, which a kernel of our own joins
//! ([`word_join`]). Temporary files are those of the session. They lie in far memory if
//! [`FarTempFiles`](crate::FarTempFiles) makes them.
//!
//! Paper 002 ("Hash Joins Meet CXL") asks in general which share of a join's data should lie in the near memory tier.
//! Here near is the memory of this process, and far is wherever the files lie.
//!
//! Buckets are not partitions: in this module, a *partition* is one of the parallel streams of a plan of DataFusion,
//! and each partition of the join has buckets of its own.

mod bounds;
mod bucket_hash;
mod buckets;
mod pairs;
mod rule;
mod word_join;

pub use rule::SpillHashJoins;

use bounds::{Bounds, PartitionBounds};
use buckets::{BuildBuckets, Files, SpilledBuild, needed, needed_of};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, NullEquality, Result, internal_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryReservation, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::limit::LimitStream;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, SpillMetrics,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, ReplaceChildrenOptions, SpillManager, Statistics,
    StatisticsArgs, StatisticsContext,
};
use farpool_lock::Mutex;
use futures::future::{BoxFuture, FutureExt, Shared, TryFutureExt};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use std::fmt;
use std::sync::{Arc, OnceLock};
use word_join::WordJoin;

/// Number of buckets that a side is divided into, at least.
const BUCKETS_MIN: usize = 8;
/// Number of buckets that a side is divided into, at most.
const BUCKETS_MAX: usize = 128;
/// Number of buckets if the size of the build side is unknown.
const BUCKETS_UNKNOWN: usize = 32;
/// Inverse of the share that a bucket should take at most of the memory which a partition may use. Buckets differ in
/// size, and other operators need memory too.
const SHARE: usize = 4;
/// Least number of bytes that a partition collects before it divides them into buckets.
const BLOCK_BYTES_MIN: usize = 128 << 10;
/// Largest number of bytes that a partition collects before it divides them into buckets.
const BLOCK_BYTES_MAX: usize = 8 << 20;
/// Inverse of the share of the memory pool's limit that all partitions together collect before they divide it into
/// buckets. The bounds above apply to each partition.
const BLOCK_SHARE: usize = 16;

/// Hash join that can spill. It wraps DataFusion's [`HashJoinExec`], and runs that one unchanged if the memory pool has
/// no limit.
#[derive(Debug)]
pub struct FarHashJoinExec {
    join: Arc<HashJoinExec>,
    metrics: ExecutionPlanMetricsSet,
    bounds: OnceLock<Option<Arc<Bounds>>>,
    /// Build side that all partitions share. It is unused in partitioned mode, in which each partition has its own.
    collected: OnceLock<Collecting>,
}

/// Build side that all partitions of the probe side share.
enum Collected {
    /// It fits into memory. The wrapped join tracks which of its rows were matched, for all partitions together.
    Near(HashJoinExec, Arc<MemoryReservation>),
    /// It spilled. The first partition to arrive takes it and joins the whole probe side; the other partitions return
    /// no rows.
    Spilled(Mutex<Option<(SpilledBuild, MemoryReservation)>>),
}

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Collected::Near(..)) { "Near" } else { "Spilled" })
    }
}

/// Future of the shared build side. Each partition that waits also polls it, so it proceeds if the first partition is
/// dropped. All partitions get its error.
type Collecting = Shared<BoxFuture<'static, std::result::Result<Arc<Collected>, Arc<DataFusionError>>>>;

/// Build side after it was read.
enum Built {
    Near(Vec<RecordBatch>),
    Spilled(SpilledBuild),
}

impl FarHashJoinExec {
    /// Makes a join that runs in the place of `join`.
    pub fn new(join: Arc<HashJoinExec>) -> FarHashJoinExec {
        let (metrics, bounds, collected) = Default::default();
        FarHashJoinExec { join, metrics, bounds, collected }
    }

    /// Returns the bounds of the build side's keys. `None` if no scan on the probe side has a dynamic filter of this
    /// join.
    fn bounds(&self) -> Option<&Arc<Bounds>> {
        let made = || {
            let filter = self.join.dynamic_expressions_produced().pop()?;
            // Where NULL equals NULL, a filter by bounds would drop rows with NULL keys that match.
            if self.join.null_equality() != NullEquality::NullEqualsNothing {
                return None;
            }
            let keys = self.join.on().iter().map(|(_, key)| Arc::clone(key)).collect();
            let partitions = self.join.left().output_partitioning().partition_count();
            Some(Arc::new(Bounds::new(filter, keys, partitions)))
        };
        self.bounds.get_or_init(made).as_ref()
    }

    /// Returns the number of buckets to divide a build side into if each partition may keep `near_bytes` in memory.
    fn buckets(&self, near_bytes: usize) -> usize {
        let left = self.join.left();
        let known = StatisticsContext::new().compute(left.as_ref(), &StatisticsArgs::new());
        let bytes = known.ok().and_then(|known| {
            let rows = *known.num_rows.get_value()?;
            Some(needed(rows, known.total_byte_size.get_value().copied().unwrap_or_default()))
        });
        let Some(bytes) = bytes else { return BUCKETS_UNKNOWN };
        let each = bytes / left.output_partitioning().partition_count();
        (each * SHARE / near_bytes.max(1)).next_power_of_two().clamp(BUCKETS_MIN, BUCKETS_MAX)
    }

    fn joining(&self, partition: usize, limit: usize, context: &TaskContext) -> Result<pairs::Joining> {
        let partitions = self.join.right().output_partitioning().partition_count();
        let spilled = SpillMetrics::new(&self.metrics, partition);
        let files = |child: &Arc<dyn ExecutionPlan>, name| {
            let manager = SpillManager::new(context.runtime_env(), spilled.clone(), child.schema())
                .with_compression_type(context.session_config().spill_compression());
            Files { manager, name }
        };
        let unbounded = RuntimeEnvBuilder::from_runtime_env(&context.runtime_env())
            .with_memory_pool(Arc::new(UnboundedMemoryPool::default()))
            .build_arc()?;
        let unbounded = TaskContext::default()
            .with_session_config(context.session_config().clone())
            .with_runtime(unbounded);
        let consumer = MemoryConsumer::new(format!("FarHashJoin[{partition}]")).with_can_spill(true);
        Ok(pairs::Joining {
            join: Arc::clone(&self.join),
            words: WordJoin::new(&self.join),
            by_kernel: MetricBuilder::new(&self.metrics).counter("parts_joined_by_words", partition),
            unbounded: Arc::new(unbounded),
            held: consumer.register(context.memory_pool()),
            build_files: files(self.join.left(), "FarHashJoin build side"),
            probe_files: files(self.join.right(), "FarHashJoin probe side"),
            buckets: self.buckets(limit / partitions),
            block_bytes: (limit / BLOCK_SHARE / partitions).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
        })
    }

    fn run(
        &self,
        partition: usize,
        limit: usize,
        context: Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let joining = Arc::new(self.joining(partition, limit, &context)?);
        let bounds = self.bounds().map(Bounds::partition);
        let (left, right) = (Arc::clone(self.join.left()), Arc::clone(self.join.right()));
        let is_one = right.output_partitioning().partition_count() == 1;
        if *self.join.partition_mode() == PartitionMode::Partitioned || is_one {
            let build = left.execute(partition, Arc::clone(&context))?;
            return Ok(stream::once(async move {
                let held = joining.held.new_empty();
                let built = build_side(&joining, build, bounds, &held).await?;
                let probe = right.execute(partition, context)?;
                match built {
                    Built::Near(batches) => joining.near(batches, probe, Arc::new(held)),
                    Built::Spilled(build) => joining.spilled(build, probe, held),
                }
            })
            .try_flatten()
            .boxed());
        }
        let collect = || {
            let (joining, right, context) = (Arc::clone(&joining), Arc::clone(&right), Arc::clone(&context));
            let collected = async move {
                let held = joining.held.new_empty();
                let build = left.execute(0, Arc::clone(&context))?;
                Ok(Arc::new(match build_side(&joining, build, bounds, &held).await? {
                    Built::Near(batches) => {
                        Collected::Near(joining.for_all(batches, &right, &context)?, Arc::new(held))
                    }
                    Built::Spilled(build) => Collected::Spilled(Mutex::new(Some((build, held)))),
                }))
            };
            collected.map_err(Arc::new).boxed().shared()
        };
        let collected = self.collected.get_or_init(collect).clone();
        Ok(stream::once(async move {
            match &*collected.await.map_err(DataFusionError::Shared)? {
                Collected::Near(join, held) => {
                    Ok(pairs::holding(join.execute(partition, joining.unbounded())?, Arc::clone(held)))
                }
                Collected::Spilled(build) => {
                    let build = build.lock().take();
                    let Some((build, held)) = build else { return Ok(stream::empty().boxed()) };
                    let probe = CoalescePartitionsExec::new(right).execute(0, context)?;
                    joining.spilled(build, probe, held)
                }
            }
        })
        .try_flatten()
        .boxed())
    }
}

/// Reads the build side: collects it in memory while all of it fits, and then divides it into buckets.
async fn build_side(
    joining: &pairs::Joining,
    mut rows: SendableRecordBatchStream,
    mut bounds: Option<PartitionBounds>,
    held: &MemoryReservation,
) -> Result<Built> {
    let hash = joining.build_hash(0);
    let mut near = Vec::new();
    let mut buckets: Option<BuildBuckets> = None;
    while let Some(batch) = rows.next().await.transpose()? {
        if let Some(bounds) = &mut bounds {
            bounds.note(&hash.keys(&batch)?)?;
        }
        match &mut buckets {
            Some(buckets) => buckets.push(batch, held)?,
            None if held.try_grow(needed_of(&batch)).is_ok() => near.push(batch),
            None => {
                let mut spilling =
                    BuildBuckets::new(joining.block(hash.clone()), joining.build_files.clone());
                for batch in near.drain(..) {
                    held.shrink(needed_of(&batch));
                    spilling.push(batch, held)?;
                }
                spilling.push(batch, held)?;
                buckets = Some(spilling);
            }
        }
    }
    if let Some(bounds) = bounds {
        bounds.end()?;
    }
    Ok(match buckets {
        Some(buckets) => Built::Spilled(buckets.finish(held)?),
        None => Built::Near(near),
    })
}

impl DisplayAs for FarHashJoinExec {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if form != DisplayFormatType::TreeRender {
            // The wrapped join prints its name next, so the whole name is `FarHashJoinExec`.
            f.write_str("Far")?;
        }
        self.join.fmt_as(form, f)
    }
}

impl ExecutionPlan for FarHashJoinExec {
    fn name(&self) -> &'static str {
        "FarHashJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join.properties()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.join.input_distribution_requirements()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.join.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.join.dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != 2 {
            return internal_err!("FarHashJoinExec has two inputs");
        }
        let join = self.join.builder().recompute_properties().with_new_children(children)?.build()?;
        Ok(Arc::new(FarHashJoinExec::new(Arc::new(join))))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(FarHashJoinExec::new(Arc::new(self.join.builder().reset_state().build()?))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let limit = match context.memory_pool().memory_limit() {
            MemoryLimit::Infinite => return self.join.execute(partition, context),
            MemoryLimit::Finite(bytes) => bytes,
            MemoryLimit::Unknown => usize::MAX,
        };
        let rows = self.run(partition, limit, context)?;
        let output_rows = MetricBuilder::new(&self.metrics).output_rows(partition);
        let rows = rows.inspect_ok(move |batch| output_rows.add(batch.num_rows()));
        let rows = Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows));
        match self.join.fetch() {
            None => Ok(rows),
            Some(_) => {
                let metrics = BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), partition);
                Ok(Box::pin(LimitStream::new(rows, 0, self.join.fetch(), metrics)))
            }
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let own = self.metrics.clone_inner();
        if own.iter().next().is_none() { self.join.metrics() } else { Some(own) }
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.join.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.join.statistics_from_inputs(inputs, args)
    }

    fn fetch(&self) -> Option<usize> {
        self.join.fetch()
    }
}
