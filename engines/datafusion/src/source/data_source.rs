//! `FarSource` as a data source of DataFusion: its statistics, the operators that it takes over, and how it is run.

use super::{FarSource, Said};
use crate::explain::outlook;
use crate::pipeline::{Ending, Leaving, Narrowing};
use crate::statistics;
use crate::steps::Steps;
use crate::translate::condition;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err};
use datafusion::datasource::source::{DataSource, OpenArgs};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{
    AcrossPartitions, ConstExpr, EquivalenceProperties, Partitioning, PhysicalExpr,
};
use datafusion::physical_plan::DisplayFormatType;
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use farpool::shown;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Share of rows assumed to pass a filter of unknown selectivity. The value is DataFusion's own default.
const PASSING: f64 = 0.2;

impl DataSource for FarSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let steps = self.create_sibling_state(context.session_config().options());
        self.open_with_args(OpenArgs::new(partition, context).with_shared_state(steps))
    }

    fn open_with_args(&self, args: OpenArgs) -> Result<SendableRecordBatchStream> {
        let steps = args.sibling_state.and_then(|steps| steps.downcast::<Steps>().ok());
        let steps = steps.ok_or_else(|| internal_datafusion_err!("a scan without its steps"))?;
        Ok(steps.stream(args.partition))
    }

    fn create_sibling_state(&self, config: &ConfigOptions) -> Option<Arc<dyn Any + Send + Sync>> {
        let of_session = || config.extensions.get::<crate::Options>().cloned().unwrap_or_default().placement;
        let placement = self.placement.unwrap_or_else(of_session);
        Some(Arc::new(Steps::new(self.clone(), placement)))
    }

    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = |f: &mut fmt::Formatter<'_>, name: &str, what: &[String], separator: &str| match what {
            [] => Ok(()),
            _ if form == DisplayFormatType::TreeRender => {
                writeln!(f, "{name}={}", shown(&what.join(separator)))
            }
            _ => write!(f, ", {name}=[{}]", shown(&what.join(separator))),
        };
        match form {
            DisplayFormatType::TreeRender => writeln!(f, "far table={}", shown(self.table.name()))?,
            _ => write!(f, "far table={}", shown(self.table.name()))?,
        }
        lines(f, "pushed down", &self.ships(), "; ")?;
        lines(f, "dynamic filters", &self.dynamic(), "; ")?;
        lines(f, "not pushed down", &self.stays, "; ")?;
        outlook(self, form, f)
    }

    fn repartitioned(
        &self,
        _target_partitions: usize,
        _file_min_size: usize,
        _ordering: Option<datafusion::physical_expr::LexOrdering>,
    ) -> Result<Option<Arc<dyn DataSource>>> {
        Ok(None)
    }

    fn output_partitioning(&self) -> Partitioning {
        Partitioning::UnknownPartitioning(self.partitions)
    }

    /// Reports which output columns are equal or constant. If a projection defined these columns before the scan took
    /// it over, it reported the same, and the planner relies on it.
    fn eq_properties(&self) -> EquivalenceProperties {
        let mut known = EquivalenceProperties::new(Arc::clone(&self.schema));
        let column = |place: usize| -> Arc<dyn PhysicalExpr> {
            Arc::new(Column::new(self.schema.field(place).name(), place))
        };
        for leaves in self.pipeline.leaving() {
            // The call cannot fail, since both columns are of this schema.
            let _ = match leaves {
                Leaving::Copy { of, place } => known.add_equal_conditions(column(of), column(place)),
                Leaving::Constant { place } => {
                    known.add_constants([ConstExpr::new(column(place), AcrossPartitions::Uniform(None))])
                }
            };
        }
        known
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let place = |said: &Said| said.expr.downcast_ref::<Column>().map(Column::index);
        let places: Option<Vec<usize>> = self.said.iter().map(place).collect();
        let whole =
            match places.filter(|places| partition.is_none() && places.len() == self.schema.fields().len()) {
                Some(places) if self.is_rows() => statistics::of_table(&self.table, &places),
                _ => Statistics {
                    num_rows: Precision::Exact(self.table.rows() as usize),
                    ..Statistics::new_unknown(&self.schema)
                },
            };
        // The scan may be decoded from another process's program: then its pipeline has filters, but their texts in
        // `filters` are missing.
        let is_filtered = !self.filters.is_empty() || !self.pipeline.filters.is_empty();
        let is_all = self.groups.len() == self.table.row_groups().len();
        let is_exact =
            !is_filtered && is_all && self.dynamic.is_empty() && partition.is_none() && self.is_rows();
        if is_exact && self.limit().is_none() {
            return Ok(Arc::new(whole));
        }
        let mut known = whole.to_inexact();
        let rows =
            |group: &usize| self.table.row_groups().get(*group).map_or(0, |group| u64::from(group.rows));
        let read = self.groups.iter().map(rows).sum::<u64>() as f64 / self.table.rows().max(1) as f64;
        let share = if is_filtered { PASSING * read } else { read };
        let parts = if partition.is_some() { self.partitions as f64 } else { 1.0 };
        let scaled = |of: Precision<usize>| match of.get_value() {
            Some(value) => Precision::Inexact((*value as f64 * share / parts) as usize),
            None => Precision::Absent,
        };
        (known.num_rows, known.total_byte_size) = (scaled(known.num_rows), scaled(known.total_byte_size));
        let rows_max = match &self.pipeline.ending {
            Ending::Rows(limit) => limit.map(|limit| limit as usize),
            Ending::Top { rows, .. } => Some(*rows as usize),
            Ending::Groups { keys: 0, .. } => Some(1),
            Ending::Groups { .. } => None,
        };
        if let Some((rows, max)) = known.num_rows.get_value().copied().zip(rows_max) {
            known.num_rows = Precision::Inexact(rows.min(max));
        }
        Ok(Arc::new(known))
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn DataSource>> {
        let mut source = self.clone();
        let Ending::Rows(known) = &mut source.pipeline.ending else { return None };
        *known = limit.map(|limit| limit as u64);
        Some(Arc::new(source))
    }

    fn fetch(&self) -> Option<usize> {
        self.limit().map(|limit| limit as usize)
    }

    fn metrics(&self) -> ExecutionPlanMetricsSet {
        self.metrics.clone()
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn DataSource>>> {
        if self.is_ended() && self.limit().is_none() {
            return Ok(None);
        }
        let over = |one: &datafusion::physical_expr::projection::ProjectionExpr| {
            Ok(Said { name: one.alias.clone(), expr: self.over_table(&one.expr)? })
        };
        let said: Vec<Said> = projection.iter().map(over).collect::<Result<_>>()?;
        let schema = Arc::new(projection.project_schema(&self.schema)?);
        // A projection is computed beside the data only if its result is no wider than the columns that it is computed
        // from.
        let places = said.iter().flat_map(|said| collect_columns(&said.expr));
        let places: std::collections::BTreeSet<usize> = places.map(|column| column.index()).collect();
        let table = self.table.schema();
        let read = places.iter().map(|place| Said {
            name: String::new(),
            expr: Arc::new(Column::new(table.field(*place).name(), *place)),
        });
        let (now, before) = (self.width(&said, table), self.width(&read.collect::<Vec<_>>(), table));
        let is_plain = said.iter().all(|said| said.expr.is::<Column>());
        if !is_plain && now > before {
            return Ok(None);
        }
        match self.with_said(said, schema) {
            Ok(source) => Ok(Some(Arc::new(source))),
            Err(_) => Ok(None),
        }
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn DataSource>>> {
        let mut source = self.clone();
        let mut answers = Vec::new();
        for filter in filters {
            answers.push(source.take_filter(&filter)?);
        }
        Ok(FilterPushdownPropagation::with_parent_pushdown_result(answers)
            .with_updated_node(Arc::new(source) as Arc<dyn DataSource>))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in &self.dynamic {
            if f(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }
}

impl FarSource {
    /// Estimates the bytes of an output row with these columns.
    fn width(&self, exprs: &[Said], schema: &Schema) -> usize {
        let width = |said: &Said| {
            let of = said.expr.data_type(schema).ok();
            of.and_then(|of| of.primitive_width()).unwrap_or(32)
        };
        exprs.iter().map(width).sum()
    }

    /// Takes a filter over the scan's output, if it can run beside the data.
    fn take_filter(&mut self, filter: &Arc<dyn PhysicalExpr>) -> Result<PushedDown> {
        if self.is_ended() {
            // A filter above a limit or a grouping applies to the result of that step, and the scan applies filters
            // before it.
            return Ok(PushedDown::No);
        }
        let over = self.over_table(filter)?;
        if holds_dynamic(&over) {
            // The answer is No because the operator that made the filter need not rely on it: a dynamic filter only
            // saves work.
            self.dynamic.push(over);
            return Ok(PushedDown::No);
        }
        let taken = condition(&over, self.table.schema()).and_then(|code| {
            let mut with = self.pipeline.clone();
            with.filters.push(code);
            with.plan(&self.types, &Narrowing::default()).map(|_| with)
        });
        match taken {
            Ok(pipeline) => {
                self.pipeline = pipeline;
                self.filters.push(over.to_string());
                Ok(PushedDown::Yes)
            }
            Err(why) => {
                *self = self.noting(format!("filter: {why}"));
                Ok(PushedDown::No)
            }
        }
    }
}

fn holds_dynamic(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<DynamicFilterPhysicalExpr>() || expr.children().into_iter().any(holds_dynamic)
}
