//! `farpool.Scan`, a query over a far table that is built step by step and runs when it is collected, and
//! `farpool.Rows`, its result.

mod methods;

use crate::expression::{self, PyExpr, What};
use crate::report::told;
use crate::{arrow, errors, forks};
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use farpool::FarTable;
use farpool::operators::run::{data_type, sorted};
use farpool::operators::{Agg, By, Expr, Plan, Query, SortKey};
use farpool::table::{Answer, Report, TableOnDemand};
use farpool::{Placement, UnknownPlacement};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyString, PyTuple};
use std::sync::Arc;

/// A query over a far table. Each step returns a new query. Nothing is read until it is collected.
#[pyclass(name = "Scan", module = "farpool", frozen)]
#[derive(Clone)]
pub(crate) struct PyScan {
    table: TableOnDemand,
    query: Query,
    /// Sort order of the whole result, which the client applies, and the number of rows to keep. `None` without a sort.
    order: Option<(Vec<By>, Option<u64>)>,
    forks: u64,
}

/// Returns the expressions of positional and of keyword arguments.
fn expressions(list: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<PyExpr>> {
    let mut all = Vec::new();
    for one in list.iter() {
        // A list of columns may be passed for several arguments.
        match one.cast::<PyList>() {
            Ok(inner) => {
                for one in inner.iter() {
                    all.push(expression::of_column(&one)?);
                }
            }
            Err(_) => all.push(expression::of_column(&one)?),
        }
    }
    for (name, one) in named.into_iter().flat_map(|named| named.iter()) {
        all.push(expression::of(&one)?.named(name.extract()?));
    }
    Ok(all)
}

/// Returns each expression with its name. Aggregates are an error, which names the operation `what`.
fn values(py: Python<'_>, list: Vec<PyExpr>, what: &str) -> PyResult<Vec<(String, Expr)>> {
    list.into_iter().map(|one| Ok((one.name.clone(), one.value(py, what)?))).collect()
}

fn check_names<'a>(py: Python<'_>, names: impl Iterator<Item = &'a String>) -> PyResult<()> {
    let mut known = std::collections::HashSet::new();
    for name in names {
        if !known.insert(name) {
            return Err(errors::invalid(
                py,
                format!("two columns are named {name:?}: rename one of them with alias()"),
            ));
        }
    }
    Ok(())
}

/// Returns a flag for each of `count` columns: one value for all, or a list.
fn flags(value: &Bound<'_, PyAny>, count: usize, what: &str) -> PyResult<Vec<bool>> {
    if let Ok(one) = value.extract::<bool>() {
        return Ok(vec![one; count]);
    }
    match value.extract::<Vec<bool>>() {
        Ok(list) if list.len() == count => Ok(list),
        _ => {
            let text = format!("{what} is {}: True, False or {count} of them are permitted", value.repr()?);
            Err(errors::invalid(value.py(), text))
        }
    }
}

/// Returns the pairs of columns to join by: one of this query, one of the other table.
fn pairs(on: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let same = |name: &Bound<'_, PyAny>| name.extract::<String>().map(|name| (name.clone(), name));
    let pairs = match on.cast::<PyDict>() {
        _ if on.is_instance_of::<PyString>() => same(on).map(|pair| vec![pair]),
        Ok(named) => named.extract::<std::collections::BTreeMap<String, String>>().map(|_| {
            // `named` keeps the order in which the pairs were written.
            named.iter().filter_map(|(mine, theirs)| mine.extract().ok().zip(theirs.extract().ok())).collect()
        }),
        Err(_) => on.try_iter().and_then(|list| {
            list.map(|one| {
                let one = one?;
                same(&one).or_else(|_| one.extract::<(String, String)>())
            })
            .collect()
        }),
    };
    pairs.map_err(|_| {
        let found = on.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        let text = format!(
            "on is {found}: a column, a list of columns or of pairs (mine, theirs), and a dict {{mine: theirs}} are \
             permitted"
        );
        errors::invalid(on.py(), text)
    })
}

/// Parses the name of a placement.
pub(crate) fn placement_of(py: Python<'_>, name: &str) -> PyResult<Placement> {
    name.parse().map_err(|unknown: UnknownPlacement| errors::invalid(py, unknown.to_string()))
}

impl PyScan {
    pub(crate) fn new(table: TableOnDemand) -> Result<PyScan, farpool::Error> {
        Ok(PyScan { query: table.query()?, table, order: None, forks: forks() })
    }

    pub(crate) fn usable(&self, py: Python<'_>) -> PyResult<()> {
        if self.forks != forks() { Err(errors::forked(py)) } else { Ok(()) }
    }

    /// Opens the files of the table that a query has to read.
    pub(crate) fn open_for(&self, plan: &Plan) -> Result<FarTable, farpool::Error> {
        self.table.open_for(plan)
    }

    /// Reports whether the client sorts the rows.
    pub(crate) fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Returns the Arrow schema of the result.
    pub(crate) fn arrow_schema(&self) -> SchemaRef {
        let field = |(name, of): &(String, _)| Field::new(name, data_type(*of), true);
        Arc::new(Schema::new(self.query.columns().iter().map(field).collect::<Vec<_>>()))
    }

    /// Adds a step. No step may follow a sort of all rows.
    fn step(&self, py: Python<'_>, act: impl FnOnce(Query) -> Query) -> PyResult<PyScan> {
        self.usable(py)?;
        if self.order.is_some() {
            let text = "only limit may follow sort; sort last, or limit first";
            return Err(errors::invalid(py, text));
        }
        let query = act(self.query.clone());
        // Errors in a step are raised here, and not when the query runs.
        query.clone().plan().map_err(|error| errors::invalid(py, error.to_string()))?;
        Ok(PyScan { query, ..self.clone() })
    }

    fn plan(&self, py: Python<'_>) -> PyResult<Plan> {
        self.usable(py)?;
        self.query.clone().plan().map_err(|error| errors::invalid(py, error.to_string()))
    }

    /// Returns a query for the rows that have a partner in another table, or those that have none if `is_anti`.
    fn joined(
        &self,
        other: &Bound<'_, PyAny>,
        on: &Bound<'_, PyAny>,
        placement: &str,
        is_anti: bool,
    ) -> PyResult<PyScan> {
        let py = other.py();
        self.usable(py)?;
        let placement = placement_of(py, placement)?;
        let on = pairs(on)?;
        let (schema, batches) = match other.cast::<PyScan>() {
            Ok(scan) => {
                let scan = scan.get();
                let plan = scan.plan(py)?;
                let rows = scan.run(py, &plan, placement)?;
                (rows.schema, rows.batches)
            }
            Err(_) => {
                let stream = arrow::stream_of(other)?;
                let schema = stream.schema();
                // Only the key columns are kept. A missing column is reported by the step that is added below.
                let mut places: Vec<usize> =
                    on.iter().filter_map(|(_, name)| schema.index_of(name).ok()).collect();
                places.sort_unstable();
                places.dedup();
                let read = || {
                    let batches =
                        stream.map(|batch| batch?.project(&places)).collect::<Result<Vec<_>, _>>()?;
                    Ok::<_, ArrowError>((schema.project(&places)?, batches))
                };
                let read = if on.iter().all(|(_, name)| schema.index_of(name).is_ok()) {
                    // The interpreter's lock (the GIL) is kept, because the library that makes the batches may need it.
                    read().map(|(schema, batches)| (Arc::new(schema), batches))
                } else {
                    Ok((Arc::clone(&schema), Vec::new()))
                };
                read.map_err(|error| errors::invalid(py, format!("the other table cannot be read: {error}")))?
            }
        };
        self.step(py, |query| {
            py.detach(|| match is_anti {
                false => query.semi_join(on, &schema, &batches),
                true => query.anti_join(on, &schema, &batches),
            })
        })
    }

    fn position(&self, name: &str) -> Option<u16> {
        self.query.columns().iter().zip(0u16..).find(|((known, _), _)| known == name).map(|(_, at)| at)
    }

    fn by(
        &self,
        list: &Bound<'_, PyTuple>,
        descending: &Bound<'_, PyAny>,
        nulls_last: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<By>> {
        let py = list.py();
        let keys = expressions(list, None)?;
        if keys.is_empty() {
            return Err(errors::invalid(py, "sort needs at least one column"));
        }
        let descending = flags(descending, keys.len(), "descending")?;
        let nulls_last = flags(nulls_last, keys.len(), "nulls_last")?;
        let key = |((key, is_descending), nulls_last): ((PyExpr, bool), bool)| {
            let column = match key.value(py, "a sort")? {
                Expr::Column(column) => column,
                _ => {
                    let text = "sort takes columns only; compute the sort key in with_columns first";
                    return Err(errors::invalid(py, text));
                }
            };
            if self.position(&column).is_none() {
                let names: Vec<&str> = self.query.columns().iter().map(|(name, _)| &**name).collect();
                let text = format!("sort: no column {column:?}; there are {}", names.join(", "));
                return Err(errors::invalid(py, text));
            }
            Ok(By { column, is_descending, nulls_first: !nulls_last })
        };
        keys.into_iter().zip(descending).zip(nulls_last).map(key).collect()
    }

    /// Groups by keys and computes aggregates. Without keys the result is one row.
    fn aggregated(&self, py: Python<'_>, keys: Vec<PyExpr>, list: Vec<PyExpr>) -> PyResult<PyScan> {
        check_names(py, keys.iter().chain(&list).map(|one| &one.name))?;
        let aggregate = |one: PyExpr| match one.what {
            What::Aggregate(agg) => Ok((one.name, agg)),
            What::Value(_) => {
                let text = format!(
                    "{:?} is not an aggregate: use sum(), min(), max(), mean() or count() of it, or farpool.len()",
                    one.name
                );
                Err(errors::invalid(py, text))
            }
        };
        let aggregates: Vec<(String, Agg)> = list.into_iter().map(aggregate).collect::<PyResult<_>>()?;
        let keys = values(py, keys, "grouping")?;
        self.step(py, |query| query.group_by(keys, aggregates))
    }

    /// Runs the query. Returns the report and the rows, sorted if the query sorts. It blocks, so the caller must not
    /// hold the GIL.
    pub(crate) fn answer(
        &self,
        plan: &Plan,
        placement: Placement,
    ) -> Result<(Answer, Vec<RecordBatch>), Box<dyn std::error::Error + Send + Sync>> {
        let mut answer = self.table.open_for(plan)?.run(plan, placement)?;
        let batches = std::mem::take(&mut answer.batches);
        let Some((by, rows)) = &self.order else { return Ok((answer, batches)) };
        let key = |by: &By| {
            let column = self.position(&by.column).unwrap_or(u16::MAX);
            SortKey { column, is_descending: by.is_descending, nulls_first: by.nulls_first }
        };
        let keys: Vec<SortKey> = by.iter().map(key).collect();
        let rows = rows.map_or(usize::MAX, |rows| usize::try_from(rows).unwrap_or(usize::MAX));
        let sorted = sorted(&batches, &keys, rows).map_err(|error| error.to_string())?;
        Ok((answer, sorted))
    }

    fn run(&self, py: Python<'_>, plan: &Plan, placement: Placement) -> PyResult<PyRows> {
        let answered = py.detach(|| self.answer(plan, placement));
        let (answer, batches) = answered.map_err(|error| match error.downcast_ref() {
            Some(error) => errors::of(py, error),
            None => errors::invalid(py, error.to_string()),
        })?;
        Ok(PyRows { schema: answer.schema, batches, report: answer.report })
    }
}

/// A query and the keys that it is grouped by.
#[pyclass(name = "GroupBy", module = "farpool", frozen)]
pub(crate) struct PyGroupBy {
    scan: PyScan,
    keys: Vec<PyExpr>,
}

#[pymethods]
impl PyGroupBy {
    /// Sets the aggregates to compute over the rows of each group.
    ///
    /// >>> groups = pool.scan("sales").group_by("item").agg(total=col("price").sum(), rows=farpool.len())
    /// >>> groups.to_arrow().to_pylist()
    /// [{'item': 'cup', 'total': 5.5, 'rows': 2}, {'item': 'jug', 'total': 9.0, 'rows': 1}]
    #[pyo3(signature = (*aggregates, **named))]
    fn agg(&self, aggregates: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<PyScan> {
        let list = expressions(aggregates, named)?;
        self.scan.aggregated(aggregates.py(), self.keys.clone(), list)
    }
}

/// Rows of a query, in the memory of this process. Any library that reads Arrow streams can take them, any number of
/// times and without a copy.
#[pyclass(name = "Rows", module = "farpool", frozen)]
pub(crate) struct PyRows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    report: Report,
}

#[pymethods]
impl PyRows {
    /// Report of the query: the placement asked for and the one chosen, and why; row groups, bytes and times; and the
    /// estimates for each placement.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        told(py, Some(&self.report), self.num_rows())
    }

    /// Returns the report as text.
    fn explain(&self) -> String {
        self.report.to_string()
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    fn __len__(&self) -> usize {
        self.num_rows() as usize
    }

    fn __repr__(&self) -> String {
        format!("<farpool.Rows {} of {}>", self.num_rows(), farpool::shown(&self.column_names().join(", ")))
    }

    /// Returns the rows as a `pyarrow.Table`.
    fn to_arrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pyarrow")?.getattr("table")?.call1((slf,))
    }

    /// Exports the rows to any library that reads Arrow.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = self.batches.clone().into_iter().map(Ok);
        let batches = RecordBatchIterator::new(batches, Arc::clone(&self.schema));
        arrow::capsule_of(py, requested_schema, Box::new(batches))
    }
}
