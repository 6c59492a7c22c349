//! The optimizer rule that replaces DataFusion's hash joins by joins that can spill.

use super::FarHashJoinExec;
use crate::options::Options;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use std::sync::Arc;

/// Optimizer rule that replaces DataFusion's hash joins by [`FarHashJoinExec`]. It must run after all rules that look
/// for DataFusion's joins.
#[derive(Debug, Default)]
pub struct SpillHashJoins;

impl PhysicalOptimizerRule for SpillHashJoins {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = config.extensions.get::<Options>();
        if options.is_some_and(|options| !options.spill_joins) {
            return Ok(plan);
        }
        plan.transform_up(|plan| match plan.downcast_ref::<HashJoinExec>() {
            Some(join) if can_spill(join) => {
                let join = join.builder().build()?;
                Ok(Transformed::yes(Arc::new(FarHashJoinExec::new(Arc::new(join)))))
            }
            _ => Ok(Transformed::no(plan)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "farpool_spill_hash_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Reports whether a join may be replaced by one that can spill. Two conditions: the join has no output order, which
/// spilling would change, and each bucket of rows can be joined alone. In `NOT IN` it cannot, because a NULL in one
/// bucket decides about the rows of all buckets.
fn can_spill(join: &HashJoinExec) -> bool {
    join.properties().output_ordering().is_none() && !join.null_aware
}
