//! `DELETE` and `UPDATE` of far tables: each row group in which a row changes is written anew.
//!
//! The idea: the condition of the statement is evaluated once for each row, over one row group after the other. Only
//! its columns are read for that; the others only where a row changes. Sub-queries are run before, once, and their
//! results stand in the condition in their place. What the statistics of files and row groups rule out is not read at
//! all.

use crate::catalog::FarTableProvider;
use crate::{external, translate};
use datafusion::arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use datafusion::arrow::compute::{
    CastOptions, cast_with_options, filter_record_batch, not, prep_null_mask_filter,
};
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{
    DFSchema, DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err, plan_err,
};
use datafusion::datasource::source_as_provider;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Operator as Sign, Subquery, lit};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, InListExpr, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::prelude::DataFrame;
use datafusion::sql::parser;
use datafusion::sql::sqlparser::ast;
use farpool::operators::limits::LIST_VALUES_MAX as PROGRAM_LIST_VALUES_MAX;
use farpool::operators::run::type_of;
use farpool::operators::{Operator, Plan, Program, Type};
use farpool::table::{GroupChange, PutOptions};
use farpool::{Error, ErrorKind, FarTable, Pool, shown};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Checks that an UPDATE gives each column one value.
pub(crate) fn check_assignments(statement: &parser::Statement) -> Result<()> {
    let parser::Statement::Statement(statement) = statement else { return Ok(()) };
    let ast::Statement::Update(update) = &**statement else { return Ok(()) };
    let mut named = HashSet::new();
    match update
        .assignments
        .iter()
        .map(|one| one.target.to_string())
        .find(|column| !named.insert(column.clone()))
    {
        Some(column) => plan_err!("UPDATE sets column {} more than once", shown(&column)),
        None => Ok(()),
    }
}

/// Values that a sub-query behind `IN` may give, at most.
const LIST_VALUES_MAX: usize = 1 << 18;

/// Changes rows of a far table as a `DELETE` or `UPDATE` says. Returns their number.
pub(crate) async fn change(
    pool: &Pool,
    state: SessionState,
    name: &str,
    input: &LogicalPlan,
    options: PutOptions,
) -> Result<u64> {
    let Some(statement) = Statement::of(&state, name, input).await? else {
        let (pool, name) = (pool.clone(), name.to_owned());
        let deleted = tokio::task::spawn_blocking(move || pool.delete_rows(&name, None, &options));
        return Ok(joined(deleted.await)?.map_err(external)?.rows);
    };
    let (pool, name) = (pool.clone(), name.to_owned());
    // It is dropped with the statement, as by Ctrl-C in a shell. The thread then ends with the row group that it reads.
    let wanted = Arc::new(());
    let asked = Arc::downgrade(&wanted);
    let changed = tokio::task::spawn_blocking(move || {
        let verb = if statement.values.is_some() { "update" } else { "delete" };
        let passing = statement.passing();
        let mut count = 0;
        pool.change_table(&name, &options, verb, passing.as_ref(), |group| {
            if asked.strong_count() == 0 {
                return Err(Error::new(ErrorKind::Invalid, "the statement was given up"));
            }
            let changed = statement.change(group, &mut count);
            changed.map_err(|error| match error {
                DataFusionError::External(error) => match error.downcast::<Error>() {
                    Ok(error) => *error,
                    Err(error) => Error::new(ErrorKind::Invalid, error.to_string()),
                },
                error => Error::new(ErrorKind::Invalid, error.strip_backtrace()),
            })
        })?;
        Ok::<_, Error>(count)
    });
    let changed = joined(changed.await)?.map_err(external);
    drop(wanted);
    changed
}

fn joined<T>(result: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    result.map_err(|error| exec_datafusion_err!("changing a far table: {error}"))
}

/// Rows that a statement changes, and how.
struct Statement {
    /// Columns of the table.
    schema: SchemaRef,
    /// Condition that is true for the rows that change, over all columns of the table. `None`: all change.
    condition: Option<Arc<dyn PhysicalExpr>>,
    /// New values of all columns. `None`: the rows are deleted.
    values: Option<Vec<Arc<dyn PhysicalExpr>>>,
}

impl Statement {
    /// Prepares a statement over the table of a name. `None` if it deletes all rows.
    async fn of(state: &SessionState, name: &str, input: &LogicalPlan) -> Result<Option<Statement>> {
        let (values, input) = match input {
            LogicalPlan::Projection(projection) => (Some(&projection.expr), projection.input.as_ref()),
            other => (None, other),
        };
        let (condition, scan) = match input {
            LogicalPlan::Filter(filter) => (Some(&filter.predicate), filter.input.as_ref()),
            other => (None, other),
        };
        let is_scan = match scan {
            LogicalPlan::SubqueryAlias(alias) => matches!(*alias.input, LogicalPlan::TableScan(_)),
            other => matches!(other, LogicalPlan::TableScan(_)),
        };
        if !is_scan {
            return exec_err!(
                "a far table is changed by a condition on its own rows: FROM with other tables, joins and LIMIT are \
                 not supported; use sub-queries over other tables"
            );
        }
        if values.is_none() && condition.is_none() {
            return Ok(None);
        }
        let schema = scan.schema();
        let condition = match condition {
            Some(condition) => Some(compiled(state, name, condition, schema).await?),
            None => None,
        };
        let values = match values {
            Some(values) => {
                let mut all = Vec::with_capacity(values.len());
                for value in values {
                    all.push(compiled(state, name, value, schema).await?);
                }
                Some(all)
            }
            None => None,
        };
        let schema = Arc::new(schema.as_arrow().clone());
        Ok(Some(Statement { schema, condition, values }))
    }

    /// Returns a plan whose filters pass all rows that change. `None` if all may.
    fn passing(&self) -> Option<Plan> {
        let types: Option<Vec<Type>> =
            self.schema.fields().iter().map(|field| type_of(field.data_type())).collect();
        let types = types?;
        let mut filters = Vec::new();
        for part in split_conjunction(self.condition.as_ref()?) {
            let Ok(code) = translate::condition(&bounded(part), &self.schema) else { continue };
            filters.push(Operator::Filter(code));
            // A condition that is too large for one program is left out: then fewer rows are ruled out.
            if Program::check(types.clone(), filters.clone()).is_err() {
                filters.pop();
            }
        }
        let near = Program::check(types.clone(), filters).ok()?;
        let finish = Program::check(types.clone(), Vec::new()).ok()?;
        let columns = self.schema.fields().iter().zip(types);
        let columns = columns.map(|(field, of)| (field.name().clone(), of)).collect();
        Some(Plan { near, finish, columns, key_sets: Vec::new() })
    }

    /// Returns what becomes of a row group. Adds the number of rows that change to `count`.
    fn change(&self, group: &FarTable, count: &mut u64) -> Result<GroupChange> {
        if !is_alike(group.schema(), &self.schema) {
            return exec_err!("the table has other columns since the statement was planned; try again");
        }
        let changes = match &self.condition {
            Some(condition) => self.truth(group, condition)?,
            None => BooleanArray::from(vec![true; group.rows() as usize]),
        };
        let of_group = changes.true_count() as u64;
        if of_group == 0 {
            return Ok(GroupChange::Unchanged);
        }
        *count += of_group;
        let mut rows = Vec::new();
        if of_group == group.rows() && self.values.is_none() {
            return Ok(GroupChange::Rows(rows));
        }
        let all = read(group, None)?;
        if of_group < group.rows() {
            rows.push(filter_record_batch(&all, &not(&changes)?)?);
        }
        if let Some(values) = &self.values {
            let before = filter_record_batch(&all, &changes)?;
            let value = |(expr, field): (&Arc<dyn PhysicalExpr>, &FieldRef)| {
                let value = expr.evaluate(&before)?.into_array(before.num_rows())?;
                let to = CastOptions { safe: false, ..CastOptions::default() };
                Ok(cast_with_options(&value, field.data_type(), &to)?)
            };
            let columns = values.iter().zip(self.schema.fields()).map(value).collect::<Result<Vec<_>>>()?;
            rows.push(RecordBatch::try_new(Arc::clone(group.schema()), columns)?);
        }
        Ok(GroupChange::Rows(rows))
    }

    /// Returns for each row of a row group whether the condition is true.
    fn truth(&self, group: &FarTable, condition: &Arc<dyn PhysicalExpr>) -> Result<BooleanArray> {
        let mut columns: Vec<usize> = collect_columns(condition).iter().map(Column::index).collect();
        columns.sort_unstable();
        columns.dedup();
        let moved = |expr: Arc<dyn PhysicalExpr>| match expr.downcast_ref::<Column>() {
            Some(column) => {
                let place = columns.iter().position(|known| *known == column.index());
                let place =
                    place.ok_or_else(|| exec_datafusion_err!("{column} is no column of the table"))?;
                Ok(Transformed::yes(Arc::new(Column::new(column.name(), place)) as Arc<dyn PhysicalExpr>))
            }
            None => Ok(Transformed::no(expr)),
        };
        let condition = Arc::clone(condition).transform_up(moved)?.data;
        let rows = read(group, Some(&columns))?;
        let truth = condition.evaluate(&rows)?.into_array(rows.num_rows())?;
        let truth = truth.as_boolean_opt();
        let truth = truth.ok_or_else(|| exec_datafusion_err!("the condition is neither true nor false"))?;
        // A row for which it is unknown stays.
        Ok(if truth.null_count() > 0 { prep_null_mask_filter(truth) } else { truth.clone() })
    }
}

/// Reads columns of the table of one row group; `None`: all.
fn read(group: &FarTable, columns: Option<&[usize]>) -> Result<RecordBatch> {
    let first = group.read(columns, None).map_err(external)?.next();
    first.ok_or_else(|| exec_datafusion_err!("a row group has no rows"))?.map_err(external)
}

/// Reports whether columns have the same names and types.
fn is_alike(one: &Schema, other: &Schema) -> bool {
    let mut pairs = one.fields().iter().zip(other.fields());
    one.fields().len() == other.fields().len()
        && pairs.all(|(one, other)| (one.name(), one.data_type()) == (other.name(), other.data_type()))
}

/// Returns a condition that is true for all rows for which another one is: in place of a list that is too long for a
/// program its bounds.
fn bounded(condition: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    let within = || {
        let list = condition.downcast_ref::<InListExpr>()?;
        if list.negated() || list.list().len() <= PROGRAM_LIST_VALUES_MAX {
            return None;
        }
        let value = |value: &Arc<dyn PhysicalExpr>| Some(value.downcast_ref::<Literal>()?.value().clone());
        let values = list.list().iter().map(value).collect::<Option<Vec<ScalarValue>>>()?;
        let known = || values.iter().filter(|value| !value.is_null());
        let order =
            |one: &&ScalarValue, other: &&ScalarValue| one.partial_cmp(other).unwrap_or(Ordering::Equal);
        let (least, most) = (known().min_by(order)?, known().max_by(order)?);
        let compare = |sign: Sign, value: &ScalarValue| -> Arc<dyn PhysicalExpr> {
            Arc::new(BinaryExpr::new(Arc::clone(list.expr()), sign, Arc::new(Literal::new(value.clone()))))
        };
        let (from, to) = (compare(Sign::GtEq, least), compare(Sign::LtEq, most));
        Some(Arc::new(BinaryExpr::new(from, Sign::And, to)) as Arc<dyn PhysicalExpr>)
    };
    within().unwrap_or_else(|| Arc::clone(condition))
}

/// Compiles an expression over the columns of the table, after its sub-queries were run.
async fn compiled(
    state: &SessionState,
    name: &str,
    expr: &Expr,
    schema: &DFSchema,
) -> Result<Arc<dyn PhysicalExpr>> {
    let mut expr = expr.clone();
    loop {
        let mut found = Vec::new();
        expr.apply(|part| {
            Ok(match part {
                Expr::InSubquery(_) | Expr::Exists(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_) => {
                    found.push(part.clone());
                    TreeNodeRecursion::Jump
                }
                _ => TreeNodeRecursion::Continue,
            })
        })?;
        if found.is_empty() {
            return state.create_physical_expr(expr, schema);
        }
        let mut results = HashMap::with_capacity(found.len());
        for part in found {
            let result = result_of(state, name, &part).await?;
            results.insert(part, result);
        }
        let replaced = |part: Expr| {
            Ok(match results.get(&part) {
                Some(result) => Transformed::new(result.clone(), true, TreeNodeRecursion::Jump),
                None => Transformed::no(part),
            })
        };
        expr = expr.transform_down(replaced)?.data;
    }
}

/// Runs a sub-query. Returns what stands in its place.
async fn result_of(state: &SessionState, name: &str, part: &Expr) -> Result<Expr> {
    match part {
        Expr::ScalarSubquery(subquery) => {
            let (of, mut values) = values_of(state, name, subquery, 2).await?;
            match (values.pop(), values.is_empty()) {
                (Some(value), true) => Ok(Expr::Literal(value, None)),
                (None, _) => Ok(Expr::Literal(ScalarValue::try_from(&of)?, None)),
                _ => exec_err!("a sub-query that stands for a value has more than one row"),
            }
        }
        Expr::Exists(exists) => {
            let (_, values) = values_of(state, name, &exists.subquery, 1).await?;
            Ok(lit(values.is_empty() == exists.negated))
        }
        Expr::InSubquery(within) => {
            let (_, values) = values_of(state, name, &within.subquery, LIST_VALUES_MAX + 1).await?;
            match values.len() {
                // Nothing is in an empty list, not even NULL.
                0 => Ok(lit(within.negated)),
                1..=LIST_VALUES_MAX => {
                    let list = values.into_iter().map(|value| Expr::Literal(value, None)).collect();
                    Ok(within.expr.as_ref().clone().in_list(list, within.negated))
                }
                _ => exec_err!(
                    "the sub-query behind IN has more than {LIST_VALUES_MAX} values, which is the most that DELETE and \
                     UPDATE take; use several statements"
                ),
            }
        }
        other => exec_err!("DELETE and UPDATE do not support the sub-query of {other}"),
    }
}

/// Runs a sub-query. Returns the type of its first column, and the values of its first rows.
async fn values_of(
    state: &SessionState,
    name: &str,
    subquery: &Subquery,
    rows_max: usize,
) -> Result<(DataType, Vec<ScalarValue>)> {
    if !subquery.outer_ref_columns.is_empty() {
        return exec_err!(
            "a sub-query of DELETE or UPDATE refers to columns of the changed table, which is not supported"
        );
    }
    let mut reads_changed = false;
    subquery.subquery.apply_with_subqueries(|plan| {
        if let LogicalPlan::TableScan(scan) = plan
            && scan.table_name.table() == name
            && source_as_provider(&scan.source)?.downcast_ref::<FarTableProvider>().is_some()
        {
            reads_changed = true;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if reads_changed {
        return exec_err!(
            "a sub-query of DELETE or UPDATE reads {0}, which the statement changes: others could change it meanwhile; \
             read {0} AS OF SNAPSHOT n instead",
            shown(name)
        );
    }
    let plan =
        LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).limit(0, Some(rows_max))?.build()?;
    let of = plan.schema().fields().first().map_or(DataType::Null, |field| field.data_type().clone());
    let mut values = Vec::new();
    for batch in DataFrame::new(state.clone(), plan).collect().await? {
        let Some(column) = batch.columns().first() else {
            // A row without columns is a row.
            values.resize(values.len() + batch.num_rows(), ScalarValue::Null);
            continue;
        };
        for row in 0..batch.num_rows() {
            values.push(ScalarValue::try_from_array(column, row)?);
        }
    }
    Ok((of, values))
}
