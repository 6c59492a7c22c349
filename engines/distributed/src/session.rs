//! Session whose queries run on several machines.

use crate::codec::{ScanCodec, source_of};
use crate::placing::Placing;
use crate::stage_output::keep_outputs;
use crate::workers::Workers;
use async_trait::async_trait;
use datafusion::catalog::Session as PlanningSession;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt, WorkerResolver};
use datafusion_proto::bytes::physical_plan_to_bytes_with_proto_converter;
use datafusion_proto::physical_plan::DeduplicatingProtoConverter;
use farpool::Pool;
use farpool_datafusion::{FarSession, FarTempFiles, GroupsEach, Options, Plans, builder_for, runtime};
use std::sync::Arc;

/// Opens a session over the far tables of a pool, whose queries are divided among these workers. [`Workers::refresh`]
/// decides which workers take part in the next query.
///
/// A query is not divided, and runs in this process, if it reads anything but far tables (a worker does not have the
/// files), if part of its plan cannot be encoded, or if it is not worth more than one worker.
pub fn session(pool: &Pool, options: Options, workers: &Arc<Workers>) -> Result<FarSession> {
    let config = SessionConfig::new();
    // A plan for one partition could not be divided into tasks. A plan for several partitions merges their results.
    let partitions = config.target_partitions().max(2);
    let config = config.with_target_partitions(partitions).with_extension(Arc::new(GroupsEach(1)));
    let codec = ScanCodec::new(pool);
    let placing = Placing { workers: Arc::clone(workers) };
    let files = Arc::new(FarTempFiles::new(pool, None)?);
    let mut builder = builder_for(config, options, Plans::Travel)
        .with_runtime_env(runtime(None, Some(files))?)
        .with_default_features()
        .with_query_planner(Arc::new(Given))
        .with_distributed_planner()
        .with_distributed_worker_resolver(Arc::clone(workers) as Arc<dyn WorkerResolver>)
        .with_distributed_channel_resolver(workers.channels().clone())
        .with_distributed_user_codec(codec.clone())
        .with_distributed_desired_task_count_handler(placing.clone())
        .with_distributed_scale_up_leaf_node_handler(placing.clone())
        .with_distributed_route_tasks_handler(placing)
        // Each task gets a part of every scan of a UNION, so that all row groups of the task can be near its worker.
        .with_distributed_children_isolator_unions(false)?;
    let distributed = builder.query_planner().take();
    let distributed =
        distributed.ok_or_else(|| internal_datafusion_err!("no planner for several machines"))?;
    let state = builder.with_query_planner(Arc::new(Planner { distributed, codec })).build();
    Ok(FarSession::over(pool, state))
}

/// Planner that plans a query for this process, and then has the plan divided into tasks if it can be sent to workers.
#[derive(Debug)]
struct Planner {
    distributed: Arc<dyn QueryPlanner + Send + Sync>,
    codec: ScanCodec,
}

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        logical: &LogicalPlan,
        session: &dyn PlanningSession,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = DefaultPhysicalPlanner::default().create_physical_plan(logical, session).await?;
        let state = session.as_any().downcast_ref::<SessionState>();
        let Some(state) = state.filter(|_| self.travels(&plan)) else { return Ok(plan) };
        let mut state = state.clone();
        state.config_mut().set_extension(Arc::new(Planned(plan)));
        let divided = self.distributed.create_physical_plan(logical, &state).await?;
        // This process is the only reader of the uppermost stage.
        keep_outputs(divided, 1)
    }
}

impl Planner {
    fn travels(&self, plan: &Arc<dyn ExecutionPlan>) -> bool {
        // This must be known before the plan is divided: otherwise workers would wait for a plan that cannot be sent.
        let is_sendable = || {
            let converter = DeduplicatingProtoConverter::default();
            physical_plan_to_bytes_with_proto_converter(Arc::clone(plan), &self.codec, &converter).is_ok()
        };
        check(plan).is_ok() && is_sendable()
    }
}

/// Existing plan, passed to the planner that divides it.
struct Planned(Arc<dyn ExecutionPlan>);

#[derive(Debug)]
struct Given;

#[async_trait]
impl QueryPlanner for Given {
    async fn create_physical_plan(
        &self,
        _logical: &LogicalPlan,
        session: &dyn PlanningSession,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = session.config().get_extension::<Planned>();
        let planned = planned.ok_or_else(|| internal_datafusion_err!("no plan to divide"))?;
        Ok(Arc::clone(&planned.0))
    }
}

/// Checks that a plan reads only far tables without encryption, and writes nothing. The error names the operator.
pub(crate) fn check(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<(), String> {
    use datafusion_distributed::NetworkBoundaryExt;
    let mut fault = None;
    let seen = plan.apply(|plan| {
        let is_known = plan.is::<EmptyExec>()
            || plan.is::<PlaceholderRowExec>()
            || plan.is_network_boundary()
            || source_of(plan.as_ref()).is_some_and(|source| !source.table().is_encrypted());
        if plan.is::<DataSinkExec>() || (plan.children().is_empty() && !is_known) {
            fault = Some(plan.name().to_owned());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    match (seen, fault) {
        (Err(error), _) => Err(error.strip_backtrace()),
        (Ok(_), Some(fault)) => Err(fault),
        (Ok(_), None) => Ok(()),
    }
}
