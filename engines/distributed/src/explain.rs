//! Reports on the stages of a distributed query, as text.

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{DistributedExec, DistributedMetricsFormat, explain_analyze};
use std::sync::Arc;
use std::time::Duration;

/// Time to wait for the metrics of the workers, which arrive after the last row. Those of a lost worker never arrive.
const METRICS: Duration = Duration::from_secs(2);

/// Describes the stages and tasks of a query that has run. Returns `None` if it ran in this process only, or if a
/// worker did not send its metrics in time.
pub async fn explain(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if !plan.is::<DistributedExec>() {
        return Ok(None);
    }
    let told = explain_analyze(Arc::clone(plan), DistributedMetricsFormat::PerTask);
    tokio::time::timeout(METRICS, told).await.ok().transpose()
}
