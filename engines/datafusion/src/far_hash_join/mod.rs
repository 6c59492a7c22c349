//! A hash join that completes when its build side does not fit: parts of both sides go to temporary files.
//!
//! The idea: DataFusion's hash join wants its whole build side in memory, and fails when the memory pool has no more.
//! This one collects it too, and while all of it fits, nothing else happens. When it does not, both sides are cut by a
//! hash of their keys ([`cutting`]); parts stay near for as long as there is memory, the largest leave first
//! ([`parts`]); parts that left are joined one after another ([`pairs`]). Each join of parts is DataFusion's, so all
//! kinds, conditions and NULLs are its own; but for the most frequent one, of numbers that the build side has once
//! ([`words`]). Temporary files are those of the session: far memory, if [`FarTempFiles`](crate::FarTempFiles) makes
//! them.
//!
//! Paper 002 calls the same question which share of a join's data lies near: here the far tier is whatever the files
//! are in.

mod bounds;
mod cutting;
mod pairs;
mod parts;
mod rule;
mod words;

pub use rule::SpillHashJoins;

use bounds::{Bounds, PartitionBounds};
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
use parts::{BuildParts, Cut, Files, needed, needed_of};
use std::fmt;
use std::sync::{Arc, OnceLock};
use words::Words;

/// Parts of a cut.
const PARTS_MIN: usize = 8;
const PARTS_MAX: usize = 128;
/// Of a build side that nobody knows the size of.
const PARTS_UNKNOWN: usize = 32;
/// A part is to take this part of what a partition may use of the memory pool: not all parts are of one size, and
/// others use it too.
const SHARE: usize = 4;
/// Bytes that are cut at once, and which part of the memory pool's they are at most.
const BLOCK_BYTES_MIN: usize = 128 << 10;
const BLOCK_BYTES_MAX: usize = 8 << 20;
const BLOCK_SHARE: usize = 16;

/// See the module. What it has in common with DataFusion's is a [`HashJoinExec`], which runs itself where memory has no
/// limit.
#[derive(Debug)]
pub struct FarHashJoinExec {
    join: Arc<HashJoinExec>,
    metrics: ExecutionPlanMetricsSet,
    bounds: OnceLock<Option<Arc<Bounds>>>,
    /// The build side of all partitions, if it is one for all.
    collected: OnceLock<Collecting>,
}

/// A build side that is one for all partitions of the other.
enum Collected {
    /// A join that has it, and finds out for all partitions together which of its rows were found.
    Near(HashJoinExec, Arc<MemoryReservation>),
    /// For whoever comes first, which then joins all partitions.
    Cut(Mutex<Option<(Cut, MemoryReservation)>>),
}

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Collected::Near(..)) { "Near" } else { "Cut" })
    }
}

/// Whoever waits for it drives it, so that it goes on if the first gives up; and all have its error.
type Collecting = Shared<BoxFuture<'static, std::result::Result<Arc<Collected>, Arc<DataFusionError>>>>;

/// What became of a build side.
enum Built {
    Near(Vec<RecordBatch>),
    Cut(Cut),
}

impl FarHashJoinExec {
    /// In the place of this join.
    pub fn new(join: Arc<HashJoinExec>) -> FarHashJoinExec {
        let (metrics, bounds, collected) = Default::default();
        FarHashJoinExec { join, metrics, bounds, collected }
    }

    /// The bounds of the build side's keys, if a scan on the other side waits for them.
    fn bounds(&self) -> Option<&Arc<Bounds>> {
        let made = || {
            let filter = self.join.dynamic_expressions_produced().pop()?;
            // Where NULL finds NULL, rows without a key are not to be left out.
            if self.join.null_equality() != NullEquality::NullEqualsNothing {
                return None;
            }
            let keys = self.join.on().iter().map(|(_, key)| Arc::clone(key)).collect();
            let partitions = self.join.left().output_partitioning().partition_count();
            Some(Arc::new(Bounds::new(filter, keys, partitions)))
        };
        self.bounds.get_or_init(made).as_ref()
    }

    /// How many parts a build side is cut into, of which a partition may hold so much near.
    fn parts(&self, near_bytes: usize) -> usize {
        let left = self.join.left();
        let known = StatisticsContext::new().compute(left.as_ref(), &StatisticsArgs::new());
        let bytes = known.ok().and_then(|known| {
            let rows = *known.num_rows.get_value()?;
            Some(needed(rows, known.total_byte_size.get_value().copied().unwrap_or_default()))
        });
        let Some(bytes) = bytes else { return PARTS_UNKNOWN };
        let each = bytes / left.output_partitioning().partition_count();
        (each * SHARE / near_bytes.max(1)).next_power_of_two().clamp(PARTS_MIN, PARTS_MAX)
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
            words: Words::new(&self.join),
            by_words: MetricBuilder::new(&self.metrics).counter("parts_joined_by_words", partition),
            unbounded: Arc::new(unbounded),
            held: consumer.register(context.memory_pool()),
            build_files: files(self.join.left(), "FarHashJoin build side"),
            probe_files: files(self.join.right(), "FarHashJoin probe side"),
            parts: self.parts(limit / partitions),
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
                    Built::Cut(cut) => joining.cut(cut, probe, held),
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
                    Built::Cut(cut) => Collected::Cut(Mutex::new(Some((cut, held)))),
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
                Collected::Cut(cut) => {
                    let cut = cut.lock().take();
                    let Some((cut, held)) = cut else { return Ok(stream::empty().boxed()) };
                    let probe = CoalescePartitionsExec::new(right).execute(0, context)?;
                    joining.cut(cut, probe, held)
                }
            }
        })
        .try_flatten()
        .boxed())
    }
}

/// Collects a build side, for as long as there is memory as a whole, then in parts.
async fn build_side(
    joining: &pairs::Joining,
    mut rows: SendableRecordBatchStream,
    mut bounds: Option<PartitionBounds>,
    held: &MemoryReservation,
) -> Result<Built> {
    let cutter = joining.build_cutter(0);
    let mut near = Vec::new();
    let mut parts: Option<BuildParts> = None;
    while let Some(batch) = rows.next().await.transpose()? {
        if let Some(bounds) = &mut bounds {
            bounds.note(&cutter.keys(&batch)?)?;
        }
        match &mut parts {
            Some(parts) => parts.push(batch, held)?,
            None if held.try_grow(needed_of(&batch)).is_ok() => near.push(batch),
            None => {
                let mut cut = BuildParts::new(joining.block(cutter.clone()), joining.build_files.clone());
                for batch in near.drain(..) {
                    held.shrink(needed_of(&batch));
                    cut.push(batch, held)?;
                }
                cut.push(batch, held)?;
                parts = Some(cut);
            }
        }
    }
    if let Some(bounds) = bounds {
        bounds.end()?;
    }
    Ok(match parts {
        Some(parts) => Built::Cut(parts.finish(held)?),
        None => Built::Near(near),
    })
}

impl DisplayAs for FarHashJoinExec {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if form != DisplayFormatType::TreeRender {
            // It says what it is itself.
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
