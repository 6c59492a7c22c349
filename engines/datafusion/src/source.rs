//! A scan of a far table as a data source of DataFusion.
//!
//! The idea: DataFusion's optimizer offers operators to the leaves of a plan: filters, projections and limits, and by
//! the rules of [`crate::rules`] groupings and top-k. [`FarSource`] is such a leaf. It accepts an operator only if
//! near-data programs give the same values, and returns a changed copy of itself. The accepted operators become one
//! program in [`crate::pipeline`]. When nothing can be pushed down, the scan reads its columns as they are, and
//! DataFusion does the rest.

mod data_source;

use crate::keys::JoinKeys;
use crate::narrowing::narrowing;
use crate::outcome::ScanReports;
use crate::pipeline::{Ending, Narrowing, Output, Pipeline};
use crate::translate::translate;
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_datafusion_err, plan_datafusion_err, plan_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use farpool::operators::run::type_of;
use farpool::operators::{Aggregate, AggregateFunction, Plan, Program, SortKey, Type, display};
use farpool::{FarTable, Placement, shown};
use std::sync::Arc;
use std::time::Duration;

/// Least number of row groups for each partition of a scan. A scan of few row groups gets fewer partitions than
/// DataFusion wants. A session can set another number as an extension of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupsEach(pub usize);

impl Default for GroupsEach {
    fn default() -> GroupsEach {
        GroupsEach(4)
    }
}

/// Operator above the scan. It decides whether a step that is moved into the scan may be divided among several scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merges {
    /// It merges the rows of several partitions.
    Partitions,
    /// It takes one partition for the whole result.
    One,
}

/// Output column of the scan, as DataFusion's expression over columns of the table.
#[derive(Clone, Debug)]
struct Said {
    name: String,
    expr: Arc<dyn PhysicalExpr>,
}

/// Scan of a far table in a plan of DataFusion: its columns, its row groups, the steps that run beside the data, and
/// counters.
///
/// A `FarSource` is immutable. DataFusion's planner and the optimizer rules of this crate make changed copies:
/// `over_groups` (other row groups), `placed` (another placement), `noting` (a reason why an operator was not pushed
/// down), `looking_up` (a semi-join), `grouped`, `top`, and the methods of `DataSource` that take filters, projections
/// and limits. Each execution makes a queue of steps (`Steps`) from it, and adds the reports of the steps to `outcome`.
#[derive(Clone, Debug)]
pub struct FarSource {
    table: FarTable,
    /// The types of all columns of the table.
    types: Arc<[Type]>,
    /// Output columns of the scan, with the names and types that DataFusion expects.
    schema: SchemaRef,
    said: Vec<Said>,
    pipeline: Pipeline,
    /// Filters that were pushed down, as DataFusion prints them.
    filters: Vec<String>,
    /// Dynamic filters, over columns of the table. They may change while the query runs.
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// Semi-joins: columns of the table, and the join keys in which their values are looked up.
    joins: Vec<(Vec<usize>, Arc<JoinKeys>)>,
    /// Operators that could not be pushed down, each with the reason.
    stays: Vec<String>,
    /// Row groups of the scan, in ascending order. Statistics may rule out some of them.
    groups: Arc<[usize]>,
    partitions: usize,
    /// True if the operator above merges the results of several partitions, so the scan may be divided into several.
    is_divisible: bool,
    /// Placement of the steps. `None` if the session's placement applies.
    placement: Option<Placement>,
    metrics: ExecutionPlanMetricsSet,
    outcome: Arc<ScanReports>,
}

/// Estimate of the time that a scan takes and of the rows that it returns.
pub(crate) struct Expected {
    pub(crate) time: Duration,
    /// Number of rows that the scan returns, without the effect of dynamic filters.
    pub(crate) rows: u64,
}

/// Bytes that a value without a fixed width is assumed to have.
const TEXT_BYTES: usize = 16;

impl FarSource {
    /// Makes a scan of all rows, with these columns.
    ///
    /// Errors: a column of a type that queries do not know, or an encrypted table without its key.
    pub fn try_new(
        table: FarTable,
        columns: &[usize],
        target_partitions: usize,
        each: GroupsEach,
    ) -> Result<FarSource> {
        table.query().map_err(crate::external)?;
        let known = |field: &Arc<Field>| {
            type_of(field.data_type()).ok_or_else(|| {
                plan_datafusion_err!(
                    "column {} of far table {} has type {}, which queries do not support",
                    field.name(),
                    table.name(),
                    field.data_type()
                )
            })
        };
        let types: Vec<Type> = table.schema().fields().iter().map(known).collect::<Result<_>>()?;
        let field = |place: &usize| {
            table.schema().fields().get(*place).ok_or_else(|| internal_datafusion_err!("no column {place}"))
        };
        let said = |place: &usize| {
            let name = field(place)?.name().clone();
            Ok(Said { expr: Arc::new(Column::new(&name, *place)), name })
        };
        let said: Vec<Said> = columns.iter().map(said).collect::<Result<_>>()?;
        let fields = columns.iter().map(|place| Ok(Arc::clone(field(place)?))).collect::<Result<Vec<_>>>()?;
        let partitions = (table.row_groups().len() / each.0.max(1)).clamp(1, target_partitions.max(1));
        let mut source = FarSource {
            types: types.into(),
            schema: Arc::new(Schema::new(fields)),
            said,
            pipeline: Pipeline { filters: Vec::new(), outputs: Vec::new(), ending: Ending::Rows(None) },
            filters: Vec::new(),
            dynamic: Vec::new(),
            joins: Vec::new(),
            stays: Vec::new(),
            groups: (0..table.row_groups().len()).collect(),
            partitions,
            is_divisible: partitions > 1,
            placement: None,
            metrics: ExecutionPlanMetricsSet::new(),
            outcome: Arc::default(),
            table,
        };
        source.pipeline.outputs =
            source.outputs(&source.said).map_err(|why| internal_datafusion_err!("{why}"))?;
        Ok(source)
    }

    /// Returns the table.
    pub fn table(&self) -> &FarTable {
        &self.table
    }

    /// Returns the row groups of the scan. Statistics may rule out some of them.
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Returns the row groups of the scan except those in which, by their statistics, no row can pass its filters.
    pub fn groups_that_may_pass(&self) -> Vec<usize> {
        let Ok(plan) = self.plan(&Narrowing::default()) else { return self.groups.to_vec() };
        let may_pass = self.table.groups_that_may_pass(&plan);
        let is_wanted = |group: &usize| may_pass.binary_search(group).is_ok();
        self.groups.iter().copied().filter(is_wanted).collect()
    }

    /// Returns the number of output partitions.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Reports whether the scan may be divided into scans of some row groups each. True if the operator above it merges
    /// several partitions. If false, a limit or a merge above may take each scan for the whole result.
    pub fn is_divisible(&self) -> bool {
        self.is_divisible
    }

    /// Returns a copy whose steps run at this placement, and not at that of the session.
    pub fn placed(&self, placement: Placement) -> FarSource {
        FarSource { placement: Some(placement), ..self.clone() }
    }

    /// Returns the placement of the steps. `None` if the session's placement applies.
    pub fn placement(&self) -> Option<Placement> {
        self.placement
    }

    /// Returns a copy over these row groups only, which must be in ascending order.
    pub fn over_groups(&self, groups: impl IntoIterator<Item = usize>) -> FarSource {
        FarSource { groups: groups.into_iter().collect(), outcome: Arc::default(), ..self.clone() }
    }

    /// Returns the data that another process needs to run the scan: the encoded program over all columns of the table,
    /// and the schema of the output columns. Dynamic filters are left out: they save work, and never change the answer.
    pub fn program(&self) -> Result<(Vec<u8>, SchemaRef)> {
        let plan = self.plan(&Narrowing::default()).map_err(|why| internal_datafusion_err!("{why}"))?;
        let bytes = plan.near.encode().map_err(|error| plan_datafusion_err!("{error}"))?;
        Ok((bytes, Arc::clone(&self.schema)))
    }

    /// Makes a scan of `groups` by an encoded program, in `partitions` partitions. The program may come from an
    /// untrusted peer, and is checked.
    ///
    /// Errors: bytes that are no program, a program over other columns than the table's or with other output columns
    /// than `schema`, and row groups that do not exist.
    pub fn of_program(
        table: FarTable,
        program: &[u8],
        schema: SchemaRef,
        groups: Vec<usize>,
        partitions: usize,
    ) -> Result<FarSource> {
        let name = shown(table.name()).to_string();
        let mut source = FarSource::try_new(table, &[], 1, GroupsEach::default())?;
        let program =
            Program::decode(program).map_err(|error| plan_datafusion_err!("far table {name}: {error}"))?;
        if program.input() != &source.types[..] {
            return plan_err!(
                "the columns of far table {name} changed after the query was planned; plan it again"
            );
        }
        let (left, said) = (program.output().len(), schema.fields().len());
        if left != said {
            return plan_err!(
                "far table {name}: its program returns {left} columns, but {said} are declared"
            );
        }
        let count = source.table.row_groups().len();
        if let Some(group) = groups.iter().find(|group| **group >= count) {
            return plan_err!("far table {name} has no row group {group}: it has {count}");
        }
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        source.pipeline =
            Pipeline::of(&program, &names).map_err(|why| plan_datafusion_err!("far table {name}: {why}"))?;
        source.schema = schema;
        source.groups = groups.into();
        source.partitions = partitions.max(1);
        Ok(source)
    }

    /// Returns the counters that all runs of this scan add to.
    pub fn outcome(&self) -> &Arc<ScanReports> {
        &self.outcome
    }

    /// Returns the operators that could not be pushed down, each with the reason.
    pub fn stays(&self) -> &[String] {
        &self.stays
    }

    /// Returns the steps that run beside the data, one line each.
    pub fn ships(&self) -> Vec<String> {
        let names: Vec<String> =
            self.table.schema().fields().iter().map(|field| field.name().clone()).collect();
        match self.plan(&Narrowing::default()) {
            Ok(plan) => display::lines(&plan.near, &names).0,
            Err(why) => vec![why],
        }
    }

    /// Estimates the time of the scan at the placement that the planner would choose, and the rows that it returns.
    pub(crate) fn expected(&self) -> std::result::Result<Expected, String> {
        let all = self.table.estimate(&self.plan(&Narrowing::default())?, &self.groups);
        let widths = self.schema.fields().iter().map(|field| field.data_type().primitive_width());
        let row_bytes: usize = widths.map(|width| width.unwrap_or(TEXT_BYTES)).sum();
        // The rows are the same whether nodes or the client compute them. The bytes that a shipped scan sends over the
        // link are its rows.
        let rows = (all.ship.link_bytes / row_bytes.max(1) as u64).min(self.table.rows());
        Ok(Expected { time: all.of(all.choice).time, rows })
    }

    /// Returns the dynamic filters as text.
    pub fn dynamic(&self) -> Vec<String> {
        self.dynamic.iter().map(|filter| filter.to_string()).collect()
    }

    pub(crate) fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.pipeline.ending != Ending::Rows(None)
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        match self.pipeline.ending {
            Ending::Rows(limit) => limit,
            _ => None,
        }
    }

    /// Returns the indices of the output columns that hold the count part of a mean's partial state. Only these counts
    /// are nullable: DataFusion's other counts are never NULL.
    pub(crate) fn counts_of_means(&self) -> Vec<usize> {
        let Ending::Groups { keys, aggregates } = &self.pipeline.ending else { return Vec::new() };
        let is_of_mean = |(place, aggregate): &(usize, &Aggregate)| {
            let may_be_null = self.schema.fields().get(*place).is_some_and(|field| field.is_nullable());
            aggregate.function == AggregateFunction::Count && may_be_null
        };
        (*keys..).zip(aggregates).filter(is_of_mean).map(|(place, _)| place).collect()
    }

    /// Reports whether the scan returns plain rows, so that it can be run step by step.
    pub(crate) fn is_rows(&self) -> bool {
        matches!(self.pipeline.ending, Ending::Rows(_))
    }

    /// Returns the conditions, and the key sets of joins, that are known by now to exclude rows without a join partner.
    pub(crate) fn narrowing(&self) -> Narrowing {
        let keys = |(places, keys): &(Vec<usize>, Arc<JoinKeys>)| {
            let types =
                places.iter().map(|place| self.types.get(*place).copied()).collect::<Option<Vec<_>>>()?;
            let set = keys.set(&types, self.table.rows())?;
            Some((places.iter().map(|place| *place as u16).collect(), set))
        };
        narrowing(&self.dynamic, self.joins.iter().filter_map(keys).collect(), self.table.schema())
    }

    /// Returns a copy that looks up these columns of the table in the keys of a join.
    pub(crate) fn looking_up(&self, places: Vec<usize>, keys: Arc<JoinKeys>) -> FarSource {
        let mut source = self.clone();
        source.joins.push((places, keys));
        source
    }

    pub(crate) fn dynamic_filters(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.dynamic
    }

    pub(crate) fn plan(&self, narrowing: &Narrowing) -> std::result::Result<Plan, String> {
        self.pipeline.plan(&self.types, narrowing)
    }

    /// Rewrites an expression over the scan's output into one over columns of the table.
    pub(crate) fn over_table(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let place = |expr: Arc<dyn PhysicalExpr>| match expr.downcast_ref::<Column>() {
            None => Ok(Transformed::no(expr)),
            Some(column) => {
                let said = self.said.get(column.index());
                let said = said.ok_or_else(|| internal_datafusion_err!("no column {column}"))?;
                // The replacement is an expression over the table already, so it is not rewritten again.
                Ok(Transformed::new(Arc::clone(&said.expr), true, TreeNodeRecursion::Jump))
            }
        };
        Arc::clone(expr).transform_down(place).data()
    }

    fn outputs(&self, said: &[Said]) -> std::result::Result<Vec<Output>, String> {
        let output = |said: &Said| {
            let code = translate(&said.expr, self.table.schema())?.code;
            Ok(Output { name: said.name.clone(), code })
        };
        said.iter().map(output).collect()
    }

    /// Returns a copy with other output columns. The error says why they cannot be computed beside the data.
    fn with_said(&self, said: Vec<Said>, schema: SchemaRef) -> std::result::Result<FarSource, String> {
        let mut source = FarSource { schema, ..self.clone() };
        source.pipeline.outputs = source.outputs(&said)?;
        source.said = said;
        source.plan(&Narrowing::default())?;
        Ok(source)
    }

    /// Returns a copy with one more reason why an operator was not pushed down.
    pub(crate) fn noting(&self, why: String) -> FarSource {
        let mut source = self.clone();
        if !source.stays.contains(&why) {
            source.stays.push(why);
        }
        source
    }

    /// Returns a copy that groups its rows and returns partial results of this schema. `inputs` are expressions over
    /// columns of the table; the first `keys` of them are the grouping keys.
    pub(crate) fn grouped(
        &self,
        inputs: Vec<(String, Arc<dyn PhysicalExpr>)>,
        keys: usize,
        aggregates: Vec<Aggregate>,
        schema: SchemaRef,
        merges: Merges,
    ) -> std::result::Result<FarSource, String> {
        let said: Vec<Said> = inputs.into_iter().map(|(name, expr)| Said { name, expr }).collect();
        let is_divisible = self.is_divisible && merges == Merges::Partitions;
        let mut source = FarSource { schema, partitions: 1, is_divisible, ..self.clone() };
        source.pipeline.outputs = source.outputs(&said)?;
        source.pipeline.ending = Ending::Groups { keys, aggregates };
        source.said = said;
        source.plan(&Narrowing::default())?;
        Ok(source)
    }

    /// Returns a copy that returns its first `rows` rows in the order of `keys`.
    pub(crate) fn top(
        &self,
        keys: Vec<SortKey>,
        rows: u32,
        merges: Merges,
    ) -> std::result::Result<FarSource, String> {
        let is_divisible = self.is_divisible && merges == Merges::Partitions;
        let mut source = FarSource { partitions: 1, is_divisible, ..self.clone() };
        source.pipeline.ending = Ending::Top { keys, rows };
        source.plan(&Narrowing::default())?;
        Ok(source)
    }
}
