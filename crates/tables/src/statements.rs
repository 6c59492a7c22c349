//! Rows that are deleted or updated by conditions over the columns of their table.
//!
//! The idea: a query over one row group after the other counts the rows that change, beside the data. Only where there
//! are some, the others are read.

use crate::changing::{GroupChange, change_rows, remove_all_rows};
use crate::far_table::FarTable;
use crate::opening::table_on_demand;
use crate::options::PutOptions;
use arrow_array::{Array, ArrayRef, RecordBatch, make_array};
use arrow_schema::{ArrowError, DataType, FieldRef, Schema};
use farpool_files::{Error, ErrorKind, Pool};
use farpool_operators::run::type_of;
use farpool_operators::{Expr, Query, QueryError, col, lit};
use farpool_planner::Placement;
use std::sync::Arc;

/// Rows that a change was about, and the snapshot that it has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsChanged {
    /// Number of rows for which the condition was true.
    pub rows: u64,
    /// Number of the snapshot. `None` if there were no such rows, so that nothing has changed.
    pub snapshot: Option<u64>,
}

/// Deletes the rows for which a condition is true; without one all rows, of which none is read.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if the condition does not fit its
/// columns; [`ErrorKind::Conflict`] if another commit has changed the same row groups meanwhile.
pub fn delete_rows(
    pool: &Pool,
    name: &str,
    condition: Option<&Expr>,
    options: &PutOptions,
) -> Result<RowsChanged, Error> {
    let Some(condition) = condition else {
        let removed = remove_all_rows(pool, name, options, "delete")?;
        let (snapshot, rows) = removed.map_or((None, 0), |(made, rows)| (Some(made.snapshot), rows));
        return Ok(RowsChanged { rows, snapshot });
    };
    change_by(pool, name, None, Some(condition), options)
}

/// Gives columns other values, in the rows for which a condition is true; without one in all rows. A value is computed
/// from the columns as they were, and has the type of its column.
///
/// Errors: those of [`delete_rows`]; [`ErrorKind::Invalid`] if there is no such column, or if a value does not fit it.
pub fn update_rows(
    pool: &Pool,
    name: &str,
    values: &[(String, Expr)],
    condition: Option<&Expr>,
    options: &PutOptions,
) -> Result<RowsChanged, Error> {
    change_by(pool, name, Some(values), condition, options)
}

/// Returns all columns of a table, some of which have other values.
fn columns(schema: &Schema, values: &[(String, Expr)]) -> Result<Vec<(String, Expr)>, Error> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let refused = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    if let Some((name, _)) = values.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        return refused(format!("no column {name:?}; there are {}", names.join(", ")));
    }
    if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return refused(format!("there are two columns {name:?}, which cannot be told apart"));
    }
    let value = |field: &FieldRef| {
        let value = values.iter().rev().find(|(name, _)| name == field.name());
        let expr = match (value, type_of(field.data_type())) {
            (Some((_, value)), Some(of)) => value.clone().cast(of),
            _ => col(field.name().clone()),
        };
        (field.name().clone(), expr)
    };
    Ok(schema.fields().iter().map(value).collect())
}

/// Deletes the rows for which a condition is true, or gives them other values.
fn change_by(
    pool: &Pool,
    name: &str,
    values: Option<&[(String, Expr)]>,
    condition: Option<&Expr>,
    options: &PutOptions,
) -> Result<RowsChanged, Error> {
    let passing = |all: Query| match condition {
        Some(condition) => all.filter(condition.clone()),
        None => all,
    };
    let updated = |all: Query, schema: &Schema| -> Result<Option<Query>, Error> {
        let Some(values) = values else { return Ok(None) };
        Ok(Some(passing(all).select(columns(schema, values)?)))
    };
    let check = || {
        let table = table_on_demand(pool, name, None, options.key.as_ref())?;
        let all = table.query()?;
        if let Some(query) = updated(all.clone(), table.schema())? {
            query.plan().map_err(invalid)?;
        }
        passing(all).plan().map_err(invalid)
    };
    let plan = check().map_err(|error: Error| error.during(format_args!("changing far table {name:?}")))?;
    let verb = if values.is_some() { "update" } else { "delete" };
    let mut rows = 0;
    let made = change_rows(pool, name, options, verb, Some(&plan), |group| {
        let mut stays = Vec::new();
        if let Some(condition) = condition {
            let one = passing(group.query()?).select([("one".to_owned(), lit(true))]).limit(1);
            if count(&run(group, one)?) == 0 {
                return Ok(GroupChange::Unchanged);
            }
            // A row stays unless the condition is true for it: it may be unknown.
            let other = (!condition.clone()).or(condition.is_null());
            stays = stored(group, run(group, group.query()?.filter(other))?)?;
        }
        rows += group.rows() - count(&stays);
        if let Some(query) = updated(group.query()?, group.schema())? {
            stays.extend(stored(group, run(group, query)?)?);
        }
        Ok(GroupChange::Rows(stays))
    })?;
    Ok(RowsChanged { rows, snapshot: made.map(|made| made.snapshot) })
}

fn run(group: &FarTable, query: Query) -> Result<Vec<RecordBatch>, Error> {
    Ok(group.run(&query.plan().map_err(invalid)?, Placement::Auto)?.batches)
}

fn count(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.num_rows() as u64).sum()
}

fn invalid(error: QueryError) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

/// Returns rows of a query over all columns of a table in the types that it stores: queries know no names of time
/// zones.
fn stored(table: &FarTable, rows: Vec<RecordBatch>) -> Result<Vec<RecordBatch>, Error> {
    let schema = table.schema();
    let column = |(field, column): (&FieldRef, &ArrayRef)| match (field.data_type(), column.data_type()) {
        (DataType::Timestamp(unit, Some(_)), DataType::Timestamp(found, Some(_))) if unit == found => {
            column.to_data().into_builder().data_type(field.data_type().clone()).build().map(make_array)
        }
        _ => Ok(Arc::clone(column)),
    };
    let batch = |batch: RecordBatch| {
        let columns = schema.fields().iter().zip(batch.columns()).map(column).collect::<Result<_, _>>()?;
        RecordBatch::try_new(Arc::clone(schema), columns)
    };
    let invalid = |error: ArrowError| Error::new(ErrorKind::Invalid, error.to_string());
    rows.into_iter().map(batch).collect::<Result<_, _>>().map_err(invalid)
}
