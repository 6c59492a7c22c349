//! Output of a task that is kept at its worker until the query ends, so that it can be read again.
//!
//! The idea: tasks of one stage read what tasks of the stage below put out. If a worker is lost, its tasks run again on
//! another one, and read their inputs again. Without kept outputs, the inputs would have to be computed again as well:
//! an operator of DataFusion gives its rows once.
//!
//! The first request for any partition makes the task run to its end. Requests are answered from what it put out.

use crate::kept_rows::{Keeper, KeptRows, MemoryLeft};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_err, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, ReplaceChildrenOptions,
};
use datafusion_distributed::{
    BroadcastExec, DistributedTaskContext, MaybeEncoded, NetworkBoundaryExt, ProducerHead, Stage,
};
use farpool_host::{Event, Host, Machine};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryFutureExt};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

/// Rows of one partition, which may still be computed.
type Partition = Shared<BoxFuture<'static, Result<Arc<KeptRows>, Arc<DataFusionError>>>>;

/// Operator that keeps the rows of its input, by partition, as long as it exists.
pub(crate) struct StageOutputExec {
    input: Arc<dyn ExecutionPlan>,
    /// Threads that compute the rows. `None` if they are those of the caller.
    threads: Option<Handle>,
    partitions: OnceLock<Vec<Partition>>,
    metrics: ExecutionPlanMetricsSet,
}

impl StageOutputExec {
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, threads: Option<Handle>) -> StageOutputExec {
        StageOutputExec {
            input,
            threads,
            partitions: OnceLock::new(),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Begins to compute all partitions. An operator that divides its rows waits for readers of all of them.
    fn begin(&self, context: &Arc<TaskContext>) -> Vec<Partition> {
        let task = DistributedTaskContext::from_ctx(context);
        let message = format!("runs task {} of {}: {}", task.task_index, task.task_count, self.input.name());
        Machine.log(&Event::debug("task_begun", message));
        let memory = MemoryLeft::default();
        let begin = |partition| {
            let schema = Some(self.input.schema());
            let keeper = Keeper::new(schema, context, &self.metrics, partition, memory.clone());
            let (input, context) = (Arc::clone(&self.input), Arc::clone(context));
            let keep = async move { keeper.add_all(input.execute(partition, context)?.boxed()).await };
            let task = match &self.threads {
                Some(threads) => {
                    let _threads = threads.enter();
                    SpawnedTask::spawn(keep)
                }
                None => SpawnedTask::spawn(keep),
            };
            async move {
                match task.await {
                    Ok(kept) => kept.map(Arc::new).map_err(Arc::new),
                    Err(error) => Err(Arc::new(DataFusionError::ExecutionJoin(Box::new(error)))),
                }
            }
            .boxed()
            .shared()
        };
        (0..self.input.output_partitioning().partition_count()).map(begin).collect()
    }
}

impl fmt::Debug for StageOutputExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageOutputExec").field("input", &self.input).finish_non_exhaustive()
    }
}

impl DisplayAs for StageOutputExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StageOutputExec")
    }
}

impl ExecutionPlan for StageOutputExec {
    fn name(&self) -> &str {
        "StageOutputExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(StageOutputExec::new(input, self.threads.clone()))),
            Err(children) => internal_err!("StageOutputExec has one input, not {}", children.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let partitions = self.partitions.get_or_init(|| self.begin(&context));
        let Some(rows) = partitions.get(partition).cloned() else {
            return internal_err!("StageOutputExec has {} partitions, not {partition}", partitions.len());
        };
        let read = async move { rows.await.map_err(DataFusionError::Shared)?.read() };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.input.schema(), read.try_flatten_stream())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Returns a plan whose stages keep their outputs. `tasks` is the number of tasks that run it.
pub(crate) fn keep_outputs(plan: Arc<dyn ExecutionPlan>, tasks: usize) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(boundary) = plan.as_network_boundary() {
        let Stage::Local(mut stage) = boundary.input_stage().clone() else {
            return internal_err!("a stage was sent to workers before it was planned");
        };
        let input = keep_outputs(stage.plan, stage.tasks)?;
        stage.plan = Arc::new(StageOutputExec::new(headed(input, boundary.producer_head(tasks)?)?, None));
        return Ok(boundary.with_input_stage(Stage::Local(stage))?);
    }
    let old: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
    let new: Vec<Arc<dyn ExecutionPlan>> =
        old.iter().map(|child| keep_outputs(Arc::clone(child), tasks)).collect::<Result<_>>()?;
    match old.iter().zip(&new).all(|(old, new)| Arc::ptr_eq(old, new)) {
        true => Ok(plan),
        false => plan.replace_children(new, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)),
    }
}

/// Returns the plan of a stage with the operator at its top that divides the rows among the tasks which read them.
/// `datafusion-distributed` would put it there when the first of these tasks asks.
fn headed(plan: Arc<dyn ExecutionPlan>, head: ProducerHead) -> Result<Arc<dyn ExecutionPlan>> {
    let input = match (plan.downcast_ref::<RepartitionExec>(), plan.downcast_ref::<BroadcastExec>()) {
        (Some(divided), _) => Arc::clone(divided.input()),
        (_, Some(repeated)) => Arc::clone(repeated.input()),
        _ => plan,
    };
    Ok(match head {
        ProducerHead::None => input,
        ProducerHead::BroadcastExec { output_partitions } => {
            let each = input.output_partitioning().partition_count().max(1);
            Arc::new(BroadcastExec::new(input, output_partitions / each))
        }
        ProducerHead::RepartitionExec { partitioning: MaybeEncoded::Decoded(partitioning) } => {
            Arc::new(RepartitionExec::try_new(input, partitioning)?)
        }
        ProducerHead::RepartitionExec { partitioning: MaybeEncoded::Encoded(_) } => {
            return plan_err!("the partitions of a stage were encoded before it was planned");
        }
    })
}
