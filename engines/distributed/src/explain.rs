//! What the stages of a query did, for people.

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{DistributedExec, DistributedMetricsFormat, explain_analyze};
use std::sync::Arc;
use std::time::Duration;

/// Workers tell what they did behind the last row; one that was lost meanwhile never does.
const METRICS: Duration = Duration::from_secs(2);

/// The stages of a query that has run, its tasks and what each of them did; nothing if it ran in this process alone, or
/// if not all workers told.
pub async fn explain(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if !plan.is::<DistributedExec>() {
        return Ok(None);
    }
    let told = explain_analyze(Arc::clone(plan), DistributedMetricsFormat::PerTask);
    tokio::time::timeout(METRICS, told).await.ok().transpose()
}
