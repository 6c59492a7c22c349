//! `DELETE` and `UPDATE` of far tables: each row group in which a row changes is written anew.
//!
//! The idea: DataFusion's plan of the statement is run over one row group after the other, in place of the table. It says
//! how many rows the condition is true for. If there are any, those for which it is not true stay, and an `UPDATE` adds
//! the others with their new values.

use crate::catalog::FarTableProvider;
use crate::external;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::cast;
use datafusion::catalog::default_table_source::DefaultTableSource;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::prelude::DataFrame;
use farpool::table::{GroupChange, PutOptions};
use farpool::{Error, ErrorKind, FarTable, Pool};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Rows that a statement changes, and how.
struct Statement {
    /// Scan of the table, perhaps under another name.
    scan: LogicalPlan,
    /// Condition that is true for the rows that change. `None`: all change.
    condition: Option<Expr>,
    /// New values of the columns. `None`: the rows are deleted.
    values: Option<Vec<Expr>>,
}

impl Statement {
    fn of(input: &LogicalPlan) -> Result<Statement> {
        let (values, input) = match input {
            LogicalPlan::Projection(projection) => (Some(projection.expr.clone()), projection.input.as_ref()),
            other => (None, other),
        };
        let (condition, scan) = match input {
            LogicalPlan::Filter(filter) => (Some(filter.predicate.clone()), filter.input.as_ref()),
            other => (None, other),
        };
        let is_scan = match scan {
            LogicalPlan::SubqueryAlias(alias) => matches!(*alias.input, LogicalPlan::TableScan(_)),
            other => matches!(other, LogicalPlan::TableScan(_)),
        };
        match is_scan {
            true => Ok(Statement { scan: scan.clone(), condition, values }),
            false => exec_err!(
                "a far table is changed by a condition on its own rows, without other tables beside it"
            ),
        }
    }

    /// Returns the scan of one row group in place of the table.
    fn over(&self, group: &FarTable) -> Result<LogicalPlan> {
        let provider = Arc::new(FarTableProvider::new(group.clone()));
        let source = Arc::new(DefaultTableSource::new(provider));
        let replaced = |plan: LogicalPlan| {
            Ok(match plan {
                LogicalPlan::TableScan(scan) => {
                    let source = Arc::clone(&source);
                    Transformed::yes(LogicalPlan::TableScan(TableScan { source, ..scan }))
                }
                other => Transformed::no(other),
            })
        };
        Ok(self.scan.clone().transform_up(replaced)?.data)
    }

    /// Returns what becomes of a row group, and how many of its rows change.
    async fn change(&self, state: &SessionState, group: &FarTable) -> Result<(GroupChange, u64)> {
        let scan = self.over(group)?;
        let filtered = |condition: Option<Expr>| {
            let builder = LogicalPlanBuilder::from(scan.clone());
            match condition {
                Some(condition) => builder.filter(condition)?.build(),
                None => builder.build(),
            }
        };
        let changed = filtered(self.condition.clone())?;
        let count = DataFrame::new(state.clone(), changed.clone()).count().await? as u64;
        if count == 0 {
            return Ok((GroupChange::Unchanged, 0));
        }
        let mut plans = Vec::new();
        if let Some(condition) = &self.condition {
            plans.push(filtered(Some(Expr::IsNotTrue(Box::new(condition.clone()))))?);
        }
        if let Some(values) = &self.values {
            plans.push(LogicalPlanBuilder::from(changed).project(values.clone())?.build()?);
        }
        let mut rows = Vec::new();
        for plan in plans {
            for batch in DataFrame::new(state.clone(), plan).collect().await? {
                rows.push(in_columns_of(group, &batch)?);
            }
        }
        Ok((GroupChange::Rows(rows), count))
    }
}

/// Returns rows in the columns and types of a table.
fn in_columns_of(table: &FarTable, rows: &RecordBatch) -> Result<RecordBatch> {
    let columns = table.schema().fields().iter().zip(rows.columns());
    let columns =
        columns.map(|(field, column)| cast(column, field.data_type())).collect::<Result<Vec<_>, _>>()?;
    Ok(RecordBatch::try_new(Arc::clone(table.schema()), columns)?)
}

/// Changes rows of a far table as a `DELETE` or `UPDATE` says. Returns their number.
pub(crate) async fn change(
    pool: &Pool,
    state: SessionState,
    name: &str,
    input: &LogicalPlan,
    options: PutOptions,
) -> Result<u64> {
    let statement = Statement::of(input)?;
    let summary = if statement.values.is_some() { "update" } else { "delete" };
    let (pool, name, handle) = (pool.clone(), name.to_owned(), Handle::current());
    let changed = tokio::task::spawn_blocking(move || {
        let mut count = 0;
        let changed = pool.change_table(&name, &options, summary, |group| {
            let (change, of_group) = handle
                .block_on(statement.change(&state, group))
                .map_err(|error| Error::new(ErrorKind::Invalid, error.strip_backtrace()))?;
            count += of_group;
            Ok(change)
        });
        changed.map(|_| count).map_err(external)
    });
    changed.await.map_err(|error| exec_datafusion_err!("changing a far table: {error}"))?
}
