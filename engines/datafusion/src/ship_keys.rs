//! Optimizer rule that makes scans of far tables look their rows up in the keys of a join, so that nodes return only
//! rows with a join partner.

use crate::keys::{CollectKeys, JoinKeys};
use crate::source::FarSource;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{NullEquality, Result};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};
use std::sync::Arc;

/// Optimizer rule that makes scans on the probe side of a hash join look rows up in the keys of the build side. It must
/// run after the last push-down of filters, and finds the scans by the join's dynamic filter.
#[derive(Debug, Default)]
pub struct ShipJoinKeys;

impl PhysicalOptimizerRule for ShipJoinKeys {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| match plan.downcast_ref::<HashJoinExec>() {
            Some(join) => ship_keys(join, &plan),
            None => Ok(Transformed::no(plan)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "farpool_ship_join_keys"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn ship_keys(
    join: &HashJoinExec,
    plan: &Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let unchanged = Transformed::no(Arc::clone(plan));
    // If NULL equals NULL, or one NULL decides about all rows (`NOT IN`), rows with NULL keys must not be left out by
    // the scan.
    let is_plain = join.null_equality() == NullEquality::NullEqualsNothing && !join.null_aware;
    let made = join.dynamic_expressions_produced();
    let id = made.first().filter(|_| is_plain).and_then(|filter| filter.expression_id());
    let Some(id) = id else { return Ok(unchanged) };
    let left = join.left();
    let field = |(number, key): (usize, &Arc<dyn PhysicalExpr>)| {
        Ok(Field::new(format!("key {number}"), key.data_type(&left.schema())?, true))
    };
    let fields = join.on().iter().map(|(key, _)| key).enumerate().map(field).collect::<Result<Vec<_>>>()?;
    let keys =
        Arc::new(JoinKeys::new(Arc::new(Schema::new(fields)), left.output_partitioning().partition_count()));
    let mut is_taken = false;
    let right = Arc::clone(join.right()).transform_down(|plan| {
        let scan = plan.downcast_ref::<DataSourceExec>();
        let Some(source) = scan.and_then(|scan| scan.data_source().downcast_ref::<FarSource>()) else {
            return Ok(Transformed::no(plan));
        };
        let found = source.dynamic_filters().iter().find(|filter| filter.expression_id() == Some(id));
        let places = found.and_then(|filter| {
            let place = |key: &Arc<dyn PhysicalExpr>| Some(key.downcast_ref::<Column>()?.index());
            filter.children().into_iter().map(place).collect::<Option<Vec<_>>>()
        });
        let Some(places) = places.filter(|places| places.len() == join.on().len()) else {
            return Ok(Transformed::no(plan));
        };
        is_taken = true;
        let looking = DataSourceExec::from_data_source(source.looking_up(places, Arc::clone(&keys)));
        Ok(Transformed::yes(looking as Arc<dyn ExecutionPlan>))
    })?;
    if !is_taken {
        return Ok(unchanged);
    }
    let exprs = join.on().iter().map(|(key, _)| Arc::clone(key)).collect();
    let left = Arc::new(CollectKeys { input: Arc::clone(left), keys: exprs, into: keys });
    Ok(Transformed::yes(replace_children_if_necessary(Arc::clone(plan), vec![left, right.data])?))
}
