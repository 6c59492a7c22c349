//! The optimizer rule that moves partial aggregations, DISTINCT and top-k into scans of far tables.
//!
//! The idea: DataFusion aggregates in two steps. Each partition makes partial results, and a second operator merges
//! them. This rule gives the first step to the scan, which returns the same partial states in the same columns. The
//! nodes then send groups and not rows. The second step stays in DataFusion, so the results have DataFusion's types. A
//! top-k works the same way: the scan returns its first rows, and DataFusion sorts them once more.
//!
//! If a step cannot run beside the data, the plan stays as it was. The scan notes the reason, which EXPLAIN shows. With
//! the placement `auto`, a grouping is moved only if the planner expects that to be faster than fetching the rows and
//! grouping them on all threads here.
//!
//! The rule must come before the last filter push-down, because that creates dynamic filters, which keep references
//! into the plan as it is at that time.

use crate::options::Options;
use crate::source::{FarSource, Merges};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use farpool::Placement;
use farpool::operators::limits::TOP_ROWS_MAX;
use farpool::operators::{Aggregate, AggregateFunction, SortKey};
use std::sync::Arc;
use std::time::Duration;

// The costs below are what DataFusion takes on one thread to group one row. They were measured on TPC-H's line items,
// grouped by 4 text keys, by 10,000 numbers, and by 200,000 numbers.

/// Cost of a key that is a number, in ns.
const NUMBER_KEY_NS: u64 = 25;
/// Cost of any other key, in ns.
const OTHER_KEY_NS: u64 = 30;
/// Cost of an aggregate, in ns, while the groups fit into the CPU caches.
const AGGREGATE_NS: u64 = 8;
/// Cost of an aggregate, in ns, with more than [`NEAR_GROUPS`] groups.
const FAR_AGGREGATE_NS: u64 = 33;
/// Number of groups, at most, whose states the CPU caches hold.
const NEAR_GROUPS: u64 = 1 << 16;

/// Optimizer rule that moves partial aggregations, DISTINCT and top-k into scans of far tables.
/// [`builder`](crate::builder) registers it.
#[derive(Debug, Default)]
pub struct ShipToScans;

impl PhysicalOptimizerRule for ShipToScans {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
                return shipped(
                    aggregate.input(),
                    |reached| ship_aggregate(aggregate, reached, config),
                    &plan,
                );
            }
            if let Some(sort) = plan.downcast_ref::<SortExec>() {
                return shipped(sort.input(), |reached| ship_top(sort, reached), &plan);
            }
            Ok(Transformed::no(plan))
        })
        .data()
    }

    fn name(&self) -> &str {
        "farpool_ship_to_scans"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Scan of a far table below an operator, and the projections between them, the topmost first.
struct ScanBelow<'p> {
    source: &'p FarSource,
    projections: Vec<&'p ProjectionExprs>,
    /// True if a filter lies between the operator and the scan, so the scan returns more rows than the operator gets.
    is_filtered: bool,
}

/// Result of trying to move an operator into a scan: the operator that replaces it, `None` if the rule does not apply,
/// or the reason why the scan cannot run it.
type Shipped = std::result::Result<Option<Arc<dyn ExecutionPlan>>, String>;

fn shipped(
    input: &Arc<dyn ExecutionPlan>,
    ship: impl FnOnce(&ScanBelow<'_>) -> Shipped,
    plan: &Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(reached) = reach(input) else { return Ok(Transformed::no(Arc::clone(plan))) };
    match ship(&reached) {
        Ok(Some(shipped)) => Ok(Transformed::yes(shipped)),
        Ok(None) => Ok(Transformed::no(Arc::clone(plan))),
        Err(why) => {
            let noted = noting(input, &why)?;
            let plan = Arc::clone(plan);
            Ok(Transformed::yes(replace_children_if_necessary(plan, vec![noted])?))
        }
    }
}

/// Returns the far scan that `plan` reads, if only projections, filters, repartitionings and merges of partitions lie
/// between them.
fn reach(plan: &Arc<dyn ExecutionPlan>) -> Option<ScanBelow<'_>> {
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        let source = scan.data_source().downcast_ref::<FarSource>()?;
        return Some(ScanBelow { source, projections: Vec::new(), is_filtered: false });
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut reached = reach(projection.input())?;
        reached.projections.insert(0, projection.projection_expr());
        return Some(reached);
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let reached = reach(filter.input())?;
        return Some(ScanBelow { is_filtered: true, ..reached });
    }
    let hands_on = plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>();
    match plan.children()[..] {
        [input] if hands_on && plan.fetch().is_none() => reach(input),
        _ => None,
    }
}

/// Returns the plan with the reason `why` noted in its scan of a far table, where EXPLAIN shows it.
fn noting(plan: &Arc<dyn ExecutionPlan>, why: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let note = |plan: Arc<dyn ExecutionPlan>| {
        let source = plan
            .downcast_ref::<DataSourceExec>()
            .and_then(|scan| scan.data_source().downcast_ref::<FarSource>());
        Ok(match source {
            Some(source) => {
                let noted: Arc<dyn ExecutionPlan> =
                    DataSourceExec::from_data_source(source.noting(why.to_owned()));
                Transformed::new(noted, true, TreeNodeRecursion::Stop)
            }
            None => Transformed::no(plan),
        })
    };
    Arc::clone(plan).transform_down(note).data()
}

impl ScanBelow<'_> {
    /// Rewrites an expression over the operator's input into one over the table's columns.
    fn over_table(&self, expr: &Arc<dyn PhysicalExpr>) -> std::result::Result<Arc<dyn PhysicalExpr>, String> {
        let mut expr = Arc::clone(expr);
        for projection in &self.projections {
            let place = |expr: Arc<dyn PhysicalExpr>| match expr.downcast_ref::<Column>() {
                None => Ok(Transformed::no(expr)),
                Some(column) => match projection.iter().nth(column.index()) {
                    Some(one) => Ok(Transformed::new(Arc::clone(&one.expr), true, TreeNodeRecursion::Jump)),
                    None => datafusion::common::internal_err!("no column {column}"),
                },
            };
            expr = expr.transform_down(place).data().map_err(|error| error.to_string())?;
        }
        self.source.over_table(&expr).map_err(|error| error.to_string())
    }

    /// Checks that the scan has no limit, grouping, or top-k, and no filter above it. The error begins with `what`.
    fn check(&self, what: &str) -> std::result::Result<(), String> {
        match () {
            () if self.source.is_ended() => {
                Err(format!("{what}: the scan ends with a limit, grouping or top-k already"))
            }
            () if self.is_filtered => Err(format!("{what}: a filter below it could not be pushed down")),
            () => Ok(()),
        }
    }
}

fn ship_aggregate(aggregate: &AggregateExec, reached: &ScanBelow<'_>, config: &ConfigOptions) -> Shipped {
    if aggregate.mode().input_mode() != AggregateInputMode::Raw {
        return Ok(None);
    }
    let group = aggregate.group_expr();
    let what = match (group.expr().len(), aggregate.aggr_expr().len()) {
        (_, 0) => "distinct",
        (0, _) => "aggregation",
        _ => "grouping",
    };
    reached.check(what)?;
    if group.has_grouping_set() || (!group.is_single() && !group.is_empty()) {
        return Err(format!("{what}: grouping sets (ROLLUP, CUBE) are not pushed down"));
    }
    let mut inputs: Vec<(String, Arc<dyn PhysicalExpr>)> = Vec::new();
    for (expr, name) in group.expr() {
        inputs.push((name.clone(), reached.over_table(expr)?));
    }
    let keys = inputs.len();
    let mut aggregates = Vec::new();
    for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
        let functions = functions(function).map_err(|why| format!("{what}: {why}"))?;
        if filter.is_some() {
            return Err(format!("{what}: {} has a FILTER clause", function.name()));
        }
        let over = match &function.expressions()[..] {
            // COUNT of a constant that is not NULL counts all rows.
            [literal] if functions == [AggregateFunction::Count] && is_value(literal) => None,
            [] if functions == [AggregateFunction::Count] => None,
            [expr] => Some(reached.over_table(expr)?),
            _ => return Err(format!("{what}: {} has several arguments", function.name())),
        };
        // Equal expressions, in several aggregates, share one input column.
        let column = over.map(|over| {
            let known = inputs[keys..].iter().position(|(_, known)| known.as_ref() == over.as_ref());
            if known.is_none() {
                inputs.push((function.name().to_owned(), over));
            }
            known.map_or(inputs.len() - 1, |at| keys + at) as u16
        });
        aggregates.extend(functions.iter().map(|function| Aggregate { function: *function, column }));
    }
    let failed = |error: datafusion::error::DataFusionError| format!("{what}: {error}");
    let is_partial = *aggregate.mode() == AggregateMode::Partial;
    let schema = if is_partial { aggregate.schema() } else { partial_schema(aggregate).map_err(failed)? };
    let merges = if is_partial { Merges::Partitions } else { Merges::One };
    let source = reached.source.grouped(inputs, keys, aggregates, schema, merges);
    let source = source.map_err(|why| format!("{what}: {why}"))?;
    check_worth(&source, keys, reached.source, config).map_err(|why| format!("{what}: {why}"))?;
    let scan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(source);
    if is_partial {
        return Ok(Some(scan));
    }
    merged(aggregate, scan).map(Some).map_err(failed)
}

/// Checks that the scan is expected to make the groups faster than DataFusion would make them here, on all its threads.
/// The error says why not.
fn check_worth(
    groups: &FarSource,
    keys: usize,
    rows: &FarSource,
    config: &ConfigOptions,
) -> std::result::Result<(), String> {
    let placement = config.extensions.get::<Options>().cloned().unwrap_or_default().placement;
    match placement {
        Placement::Ship | Placement::Split => Ok(()),
        Placement::Fetch => Err("farpool.placement is fetch".to_owned()),
        Placement::Auto => {
            let (made, left) = (groups.expected()?, rows.expected()?);
            let threads = config.execution.target_partitions.max(1) as u64;
            let here = Duration::from_nanos(grouping_ns(groups, keys, made.rows) * left.rows / threads);
            match made.time <= left.time.max(here) {
                true => Ok(()),
                false => Err(format!(
                    "estimated {:.1?} at the nodes; fetching the rows takes {:.1?} and grouping them here {here:.1?}",
                    made.time, left.time
                )),
            }
        }
    }
}

/// Returns the estimated cost in ns of grouping one row here on one thread, if there are `count` groups.
fn grouping_ns(groups: &FarSource, keys: usize, count: u64) -> u64 {
    let fields = groups.schema().fields();
    let key = |field: &FieldRef| match field.data_type().primitive_width() {
        Some(_) => NUMBER_KEY_NS,
        None => OTHER_KEY_NS,
    };
    let aggregate = if count > NEAR_GROUPS { FAR_AGGREGATE_NS } else { AGGREGATE_NS };
    fields.iter().take(keys).map(key).sum::<u64>() + fields.len().saturating_sub(keys) as u64 * aggregate
}

fn partial_schema(aggregate: &AggregateExec) -> Result<SchemaRef> {
    let partial = AggregateExec::try_new(
        AggregateMode::Partial,
        aggregate.group_expr().clone(),
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        Arc::clone(aggregate.input()),
        aggregate.input_schema(),
    )?;
    Ok(partial.schema())
}

/// Returns the operator that merges the partial states of an aggregate that one operator computed as a whole in the
/// original plan. It returns as many partitions as that operator.
fn merged(aggregate: &AggregateExec, scan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let group = aggregate.group_expr().as_final();
    let partitions = aggregate.cache().partitioning.partition_count();
    let (mode, input): (_, Arc<dyn ExecutionPlan>) = match aggregate.mode() {
        AggregateMode::SinglePartitioned if partitions > 1 => {
            let by = Partitioning::Hash(group.input_exprs(), partitions);
            (AggregateMode::FinalPartitioned, Arc::new(RepartitionExec::try_new(scan, by)?))
        }
        _ => (AggregateMode::Final, scan),
    };
    let merging = AggregateExec::try_new(
        mode,
        group,
        aggregate.aggr_expr().to_vec(),
        vec![None; aggregate.aggr_expr().len()],
        input,
        aggregate.input_schema(),
    )?;
    Ok(Arc::new(merging.with_limit_options(aggregate.limit_options())))
}

/// Returns the functions whose values are the state columns of an aggregate in DataFusion, in that order.
fn functions(aggregate: &AggregateFunctionExpr) -> std::result::Result<&'static [AggregateFunction], String> {
    if aggregate.is_distinct() {
        return Err(format!("{} has DISTINCT", aggregate.name()));
    }
    if !aggregate.order_bys().is_empty() {
        return Err(format!("{} has an ORDER BY", aggregate.name()));
    }
    match aggregate.fun().name() {
        "count" => Ok(&[AggregateFunction::Count]),
        "sum" => Ok(&[AggregateFunction::Sum]),
        "min" => Ok(&[AggregateFunction::Min]),
        "max" => Ok(&[AggregateFunction::Max]),
        "avg" => Ok(&[AggregateFunction::Count, AggregateFunction::Sum]),
        _ => Err(format!("{} cannot be pushed down", aggregate.name())),
    }
}

fn is_value(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
}

fn ship_top(sort: &SortExec, reached: &ScanBelow<'_>) -> Shipped {
    let Some(rows) = sort.fetch() else { return Ok(None) };
    let rows = match u32::try_from(rows) {
        Ok(rows @ 1..=TOP_ROWS_MAX) => rows,
        _ => return Err(format!("top-k of {rows} rows: 1 to {TOP_ROWS_MAX} rows are permitted")),
    };
    reached.check("top-k")?;
    if !reached.projections.is_empty() {
        return Err("top-k: its sort key is computed here".to_owned());
    }
    let mut keys: Vec<SortKey> = Vec::new();
    for by in sort.expr() {
        let column = by
            .expr
            .downcast_ref::<Column>()
            .ok_or_else(|| format!("top-k: its sort key {} is not a column", by.expr))?;
        let column = column.index() as u16;
        // A column that is a sort key already cannot decide between rows that are equal in it, so it is left out.
        if keys.iter().all(|known| known.column != column) {
            keys.push(SortKey {
                column,
                is_descending: by.options.descending,
                nulls_first: by.options.nulls_first,
            });
        }
    }
    let merges = if sort.preserve_partitioning() { Merges::Partitions } else { Merges::One };
    let source = reached.source.top(keys, rows, merges).map_err(|why| format!("top-k: {why}"))?;
    let scan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(source);
    let sorted = SortExec::new(sort.expr().clone(), scan)
        .with_fetch(sort.fetch())
        .with_preserve_partitioning(sort.preserve_partitioning());
    Ok(Some(Arc::new(sorted)))
}
