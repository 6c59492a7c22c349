//! A session whose queries run on many machines.

use crate::codec::{ScanCodec, source_of};
use crate::placing::Placing;
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
use farpool_datafusion::{GroupsEach, Options, Plans, Session, builder_for};
use std::sync::Arc;

/// Of rows that came from a worker and were not taken yet: any number. One connection carries several streams, and is
/// not read while it holds more than this. What merges streams in an order waits for one of them while the others fill
/// up, so with any bound below what they hold it waits for ever.
const BUFFER_BYTES: usize = usize::MAX;

/// A session over the far tables of a pool, whose queries are divided among these workers. [`Workers::refresh`] says
/// who takes part in the next one.
///
/// A query stays in this process if it reads anything but far tables (a worker has other files, or none), if a part of
/// its plan cannot be sent, or if it is not worth more than one worker.
pub fn session(pool: &Pool, options: Options, workers: &Arc<Workers>) -> Result<Session> {
    let config = SessionConfig::new();
    // A plan for several partitions merges what they leave; so it is right for several tasks.
    let partitions = config.target_partitions().max(2);
    let config = config.with_target_partitions(partitions).with_extension(Arc::new(GroupsEach(1)));
    let codec = ScanCodec::new(pool);
    let placing = Placing { workers: Arc::clone(workers) };
    let mut builder = builder_for(config, options, Plans::Travel)
        .with_default_features()
        .with_query_planner(Arc::new(Given))
        .with_distributed_planner()
        .with_distributed_worker_resolver(Arc::clone(workers) as Arc<dyn WorkerResolver>)
        .with_distributed_channel_resolver(workers.channels().clone())
        .with_distributed_user_codec(codec.clone())
        .with_distributed_desired_task_count_handler(placing.clone())
        .with_distributed_scale_up_leaf_node_handler(placing.clone())
        .with_distributed_route_tasks_handler(placing)
        // Each task has its part of every scan, so that row groups can be near it.
        .with_distributed_children_isolator_unions(false)?
        .with_distributed_worker_connection_buffer_budget_bytes(BUFFER_BYTES)?;
    let distributed = builder.query_planner().take();
    let distributed = distributed.ok_or_else(|| internal_datafusion_err!("no planner of many machines"))?;
    let state = builder.with_query_planner(Arc::new(Planner { distributed, codec })).build();
    Ok(Session::over(pool, state))
}

/// Plans for this process, and has the plan divided if it can travel.
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
        self.distributed.create_physical_plan(logical, &state).await
    }
}

impl Planner {
    fn travels(&self, plan: &Arc<dyn ExecutionPlan>) -> bool {
        // Were it found out later, workers would wait for a plan that never comes.
        let is_sendable = || {
            let converter = DeduplicatingProtoConverter::default();
            physical_plan_to_bytes_with_proto_converter(Arc::clone(plan), &self.codec, &converter).is_ok()
        };
        check(plan).is_ok() && is_sendable()
    }
}

/// The plan that there is already, for the planner that divides it.
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

/// That a plan reads far tables and nothing else, and writes nothing. If not: what it does.
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
