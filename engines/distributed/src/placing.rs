//! Handlers that datafusion-distributed calls while it divides a plan: how many tasks a scan is worth, which row groups
//! each task reads, and which worker runs it.

use crate::codec::source_of;
use crate::dividing::{Group, divide, route, worth};
use crate::workers::{Assigned, Live, Workers};
use async_trait::async_trait;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DesiredTaskCountHandler, DistributedLeafExec,
    RouteTasksEvent, RouteTasksEventResponse, RouteTasksHandler, ScaleUpLeafNodeEvent,
    ScaleUpLeafNodeEventResponse, ScaleUpLeafNodeHandler,
};
use farpool_datafusion::{FarSource, Options};
use std::sync::Arc;

/// Handlers for scans of far tables. For other operators they return `None`, and the defaults apply.
#[derive(Clone)]
pub(crate) struct Placing {
    pub(crate) workers: Arc<Workers>,
}

/// Returns the row groups that a scan has to read, with the workers near the memory node of each.
fn groups(source: &FarSource, workers: &[Live]) -> Vec<Group> {
    let group = |number: usize| {
        let node = source.table().place(number).map(|place| place.node);
        let is_near = |worker: &Live| node.as_ref().is_some_and(|node| worker.near.contains(node));
        let near = workers.iter().enumerate().filter(|(_, worker)| is_near(worker)).map(|(at, _)| at);
        let bytes = source.table().row_groups().get(number).map_or(0, |group| u64::from(group.bytes));
        Group { number, bytes, near: near.collect() }
    };
    source.groups_that_may_pass().into_iter().map(group).collect()
}

#[async_trait]
impl DesiredTaskCountHandler for Placing {
    async fn handle(
        &self,
        event: DesiredTaskCountEvent<'_>,
    ) -> Option<Result<DesiredTaskCountEventResponse>> {
        let source = source_of(event.plan.as_ref())?;
        // The operator above may take one task's rows for the whole result, so the scan stays a single task.
        if !source.is_divisible() {
            return Some(Ok(DesiredTaskCountEventResponse::maximum(1)));
        }
        let workers = self.workers.live_now();
        let tasks = worth(&groups(source, &workers), workers.len());
        Some(Ok(DesiredTaskCountEventResponse::desired(tasks)))
    }
}

impl ScaleUpLeafNodeHandler for Placing {
    fn handle(&self, event: ScaleUpLeafNodeEvent) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
        let source = source_of(event.plan.as_ref())?;
        if event.task_count > 1 && !source.is_divisible() {
            let name = farpool::shown(source.table().name());
            return Some(internal_err!(
                "{} tasks for a scan of {name} that cannot be divided",
                event.task_count
            ));
        }
        let options = event.session_config.options().extensions.get::<Options>();
        let placed = source.placed(options.cloned().unwrap_or_default().placement);
        let workers = self.workers.live_now();
        let shares = divide(&groups(source, &workers), workers.len(), event.task_count);
        let variants = shares.into_iter().map(|share| {
            DataSourceExec::from_data_source(placed.over_groups(share.groups)) as Arc<dyn ExecutionPlan>
        });
        let divided = DistributedLeafExec::try_new(Arc::clone(event.plan), variants);
        Some(divided.map(|divided| ScaleUpLeafNodeEventResponse::new(Arc::new(divided))))
    }
}

impl RouteTasksHandler for Placing {
    fn handle(&self, event: RouteTasksEvent) -> Option<Result<RouteTasksEventResponse>> {
        let workers = self.workers.live_now();
        if workers.is_empty() {
            return None;
        }
        let mut tasks: Vec<Vec<&FarSource>> = vec![Vec::new(); event.task_count];
        let mut leaves = Vec::new();
        let seen = event.plan.apply(|plan| {
            if plan.is::<DistributedLeafExec>() {
                leaves.push(Arc::clone(plan));
            }
            Ok(TreeNodeRecursion::Continue)
        });
        if let Err(error) = seen {
            return Some(Err(error));
        }
        for leaf in leaves.iter().filter_map(|leaf| leaf.downcast_ref::<DistributedLeafExec>()) {
            for (task, variant) in tasks.iter_mut().zip(leaf.variants()) {
                task.extend(source_of(variant.as_ref()));
            }
        }
        // Tasks without far scans may run anywhere.
        if tasks.iter().all(Vec::is_empty) {
            return None;
        }
        let of_task: Vec<Vec<(&FarSource, Vec<Group>)>> = tasks
            .into_iter()
            .map(|scans| scans.into_iter().map(|source| (source, groups(source, &workers))).collect())
            .collect();
        let near_bytes = |worker: usize, scans: &[(&FarSource, Vec<Group>)]| -> u64 {
            let groups = scans.iter().flat_map(|(_, groups)| groups);
            groups.filter(|group| group.near.contains(&worker)).map(|group| group.bytes).sum()
        };
        let wishes: Vec<Vec<u64>> = of_task
            .iter()
            .map(|scans| (0..workers.len()).map(|worker| near_bytes(worker, scans)).collect())
            .collect();
        let routed = route(&wishes, workers.len());
        for (task, (worker, scans)) in routed.iter().zip(&of_task).enumerate() {
            self.workers.note(scans.iter().map(|(source, groups)| Assigned {
                table: source.table().name().to_owned(),
                task,
                groups: source.groups().to_vec(),
                near: groups.iter().filter(|group| group.near.contains(worker)).count(),
                worker: workers[*worker].url.clone(),
            }));
        }
        let urls = routed.into_iter().map(|worker| workers[worker].url.clone()).collect();
        Some(Ok(RouteTasksEventResponse::new(urls)))
    }
}
