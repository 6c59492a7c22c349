//! A scan of a far table as DataFusion plans it: one of its data sources, which takes filters, projections, limits and,
//! by the rules of [`crate::rules`], groupings and tops, as far as they can be said beside the data.

mod data_source;

use crate::keys::JoinKeys;
use crate::narrowing::narrowing;
use crate::outcome::Outcome;
use crate::pipeline::{Ending, Narrowing, Output, Pipeline};
use crate::translate::translate;
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_datafusion_err, plan_datafusion_err, plan_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use farpool::operators::run::type_of;
use farpool::operators::{Aggregate, Function, Plan, Program, SortKey, Type, words};
use farpool::{FarTable, Placement, shown};
use std::sync::Arc;
use std::time::Duration;

/// A scan is taken in turns by several partitions if it has at least so many row groups for each. A session's
/// configuration may have another number among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupsEach(pub usize);

impl Default for GroupsEach {
    fn default() -> GroupsEach {
        GroupsEach(4)
    }
}

/// What stands above a scan that a step is moved into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merges {
    /// Something that merges what several partitions leave.
    Partitions,
    /// Something that takes one partition for all there is.
    One,
}

/// A column that leaves the scan, as DataFusion said it, over columns of the table.
#[derive(Clone, Debug)]
struct Said {
    name: String,
    expr: Arc<dyn PhysicalExpr>,
}

/// What one scan does.
#[derive(Clone, Debug)]
pub struct FarSource {
    table: FarTable,
    /// The types of all columns of the table.
    types: Arc<[Type]>,
    /// What leaves, by the names and types that DataFusion knows.
    schema: SchemaRef,
    said: Vec<Said>,
    pipeline: Pipeline,
    /// Conditions as DataFusion said them, for people.
    filters: Vec<String>,
    /// Over columns of the table.
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// Columns of the table, and keys of joins that rows of no use lack there.
    joins: Vec<(Vec<usize>, Arc<JoinKeys>)>,
    /// What could not be done beside the data, and why.
    stays: Vec<String>,
    /// The row groups that are read, unless statistics rule them out.
    groups: Arc<[usize]>,
    partitions: usize,
    /// Whether what is above it was planned for several partitions, and so merges what several leave.
    is_divisible: bool,
    /// Where its steps run, whatever the session says.
    placement: Option<Placement>,
    metrics: ExecutionPlanMetricsSet,
    outcome: Arc<Outcome>,
}

/// What a scan is expected to take and to leave.
pub(crate) struct Expected {
    pub(crate) time: Duration,
    /// Rows, if none were left out for what comes while it runs.
    pub(crate) rows: u64,
}

/// What a value without a fixed width takes, for want of better knowledge.
const TEXT_BYTES: usize = 16;

impl FarSource {
    /// All rows of these columns.
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
                    "column {} of far table {} is {}",
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

    /// The table.
    pub fn table(&self) -> &FarTable {
        &self.table
    }

    /// The row groups that are read, unless statistics rule them out.
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Of them, those that statistics do not rule out.
    pub fn groups_that_may_pass(&self) -> Vec<usize> {
        let Ok(plan) = self.plan(&Narrowing::default()) else { return self.groups.to_vec() };
        let may_pass = self.table.groups_that_may_pass(&plan);
        let is_wanted = |group: &usize| may_pass.binary_search(group).is_ok();
        self.groups.iter().copied().filter(is_wanted).collect()
    }

    /// Streams that it leaves.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Whether it may be divided into scans of some of its row groups each: what is above it merges what they leave,
    /// as it was planned for several partitions. Above others a limit or a merge may stand that takes each for all.
    pub fn is_divisible(&self) -> bool {
        self.is_divisible
    }

    /// The same whose steps run there, whatever the session says.
    pub fn placed(&self, placement: Placement) -> FarSource {
        FarSource { placement: Some(placement), ..self.clone() }
    }

    /// Where its steps run, if something was said.
    pub fn placement(&self) -> Option<Placement> {
        self.placement
    }

    /// The same over some of its row groups only, in ascending order.
    pub fn over_groups(&self, groups: impl IntoIterator<Item = usize>) -> FarSource {
        FarSource { groups: groups.into_iter().collect(), outcome: Arc::default(), ..self.clone() }
    }

    /// What another process needs to run it: the program over all columns of the table, and the columns that leave.
    /// Filters that come while it runs are not among it: they spare work, and change no answer.
    pub fn program(&self) -> Result<(Vec<u8>, SchemaRef)> {
        let plan = self.plan(&Narrowing::default()).map_err(|why| internal_datafusion_err!("{why}"))?;
        let bytes = plan.near.encode().map_err(|error| plan_datafusion_err!("{error}"))?;
        Ok((bytes, Arc::clone(&self.schema)))
    }

    /// A scan of these row groups by such a program, which may be anybody's, in so many streams.
    ///
    /// Errors: bytes that are no program, one over other columns than the table's, one that leaves other columns than
    /// said, and row groups that there are not.
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
            return plan_err!("far table {name} has other columns than it had when the query was planned");
        }
        let (left, said) = (program.output().len(), schema.fields().len());
        if left != said {
            return plan_err!("far table {name}: a program that leaves {left} columns where {said} are said");
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

    /// What its scans have done.
    pub fn outcome(&self) -> &Arc<Outcome> {
        &self.outcome
    }

    /// What could not be done beside the data, and why.
    pub fn stays(&self) -> &[String] {
        &self.stays
    }

    /// What runs beside the data, a line for each step.
    pub fn ships(&self) -> Vec<String> {
        let names: Vec<String> =
            self.table.schema().fields().iter().map(|field| field.name().clone()).collect();
        match self.plan(&Narrowing::default()) {
            Ok(plan) => words::lines(&plan.near, &names).0,
            Err(why) => vec![why],
        }
    }

    /// What it is expected to take, where the planner would have it run, and to leave.
    pub(crate) fn expected(&self) -> std::result::Result<Expected, String> {
        let all = self.table.estimate(&self.plan(&Narrowing::default())?, &self.groups);
        let widths = self.schema.fields().iter().map(|field| field.data_type().primitive_width());
        let row_bytes: usize = widths.map(|width| width.unwrap_or(TEXT_BYTES)).sum();
        // What nodes would leave, whoever runs it.
        let rows = (all.ship.link_bytes / row_bytes.max(1) as u64).min(self.table.rows());
        Ok(Expected { time: all.of(all.choice).time, rows })
    }

    /// The names of filters that come while it runs.
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

    /// The columns that leave with how many values a mean is of. DataFusion's other counts are never NULL.
    pub(crate) fn counts_of_means(&self) -> Vec<usize> {
        let Ending::Groups { keys, aggregates } = &self.pipeline.ending else { return Vec::new() };
        let is_of_mean = |(place, aggregate): &(usize, &Aggregate)| {
            let may_be_null = self.schema.fields().get(*place).is_some_and(|field| field.is_nullable());
            aggregate.function == Function::Count && may_be_null
        };
        (*keys..).zip(aggregates).filter(is_of_mean).map(|(place, _)| place).collect()
    }

    /// Whether it can be taken step by step.
    pub(crate) fn is_rows(&self) -> bool {
        matches!(self.pipeline.ending, Ending::Rows(_))
    }

    /// What is known now of rows without a partner.
    pub(crate) fn narrowing(&self) -> Narrowing {
        let keys = |(places, keys): &(Vec<usize>, Arc<JoinKeys>)| {
            let types =
                places.iter().map(|place| self.types.get(*place).copied()).collect::<Option<Vec<_>>>()?;
            let set = keys.set(&types, self.table.rows())?;
            Some((places.iter().map(|place| *place as u16).collect(), set))
        };
        narrowing(&self.dynamic, self.joins.iter().filter_map(keys).collect(), self.table.schema())
    }

    /// The same, its rows looked up in keys of a join by these columns of the table.
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

    /// An expression over what leaves as one over columns of the table.
    pub(crate) fn over_table(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let place = |expr: Arc<dyn PhysicalExpr>| match expr.downcast_ref::<Column>() {
            None => Ok(Transformed::no(expr)),
            Some(column) => {
                let said = self.said.get(column.index());
                let said = said.ok_or_else(|| internal_datafusion_err!("no column {column}"))?;
                // What stands there is over the table already, and is not looked into again.
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

    /// The same with other columns leaving it.
    fn with_said(&self, said: Vec<Said>, schema: SchemaRef) -> std::result::Result<FarSource, String> {
        let mut source = FarSource { schema, ..self.clone() };
        source.pipeline.outputs = source.outputs(&said)?;
        source.said = said;
        source.plan(&Narrowing::default())?;
        Ok(source)
    }

    /// The same with a reason why something is done elsewhere.
    pub(crate) fn noting(&self, why: String) -> FarSource {
        let mut source = self.clone();
        if !source.stays.contains(&why) {
            source.stays.push(why);
        }
        source
    }

    /// Its rows grouped by the first of these expressions, all of which are over columns of the table: partial results
    /// of this schema leave.
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

    /// Its first rows in an order.
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
