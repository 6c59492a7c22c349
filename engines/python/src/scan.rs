//! `farpool.Scan`: a query over a far table, written step by step and run when it is collected; and what it leaves.

use crate::expression::{self, PyExpr, What};
use crate::stream::{self, PyStream};
use crate::{arrow, errors, forks};
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use farpool::FarTable;
use farpool::operators::limits::TOP_ROWS_MAX;
use farpool::operators::run::{data_type, sorted};
use farpool::operators::{Agg, By, Expr, Plan, Query, SortKey};
use farpool::table::{Answer, JoinBy, Mode, Report, SemiJoin};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyString, PyTuple};
use std::sync::Arc;

/// A query over a far table. Each step gives another query; nothing is read before it is collected.
#[pyclass(name = "Scan", module = "farpool", frozen)]
#[derive(Clone)]
pub(crate) struct PyScan {
    table: FarTable,
    query: Query,
    /// An order that the whole result gets in the client, and how many of its rows are kept.
    order: Option<(Vec<By>, Option<u64>)>,
    forks: u64,
}

/// Expressions by place and by name.
fn expressions(list: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<PyExpr>> {
    let mut all = Vec::new();
    for one in list.iter() {
        // A list of columns is as good as columns.
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

/// Each with its own name.
fn values(py: Python<'_>, list: Vec<PyExpr>, what: &str) -> PyResult<Vec<(String, Expr)>> {
    list.into_iter().map(|one| Ok((one.name.clone(), one.value(py, what)?))).collect()
}

fn check_names<'a>(py: Python<'_>, names: impl Iterator<Item = &'a String>) -> PyResult<()> {
    let mut known = std::collections::HashSet::new();
    for name in names {
        if !known.insert(name) {
            return Err(errors::invalid(py, format!("two columns {name:?}: alias() gives one another name")));
        }
    }
    Ok(())
}

/// Whether each of several columns is sorted so: one word for all, or one for each.
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

/// Columns of this query and those of another table that they are compared with.
fn pairs(on: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let same = |name: &Bound<'_, PyAny>| name.extract::<String>().map(|name| (name.clone(), name));
    let pairs = match on.cast::<PyDict>() {
        _ if on.is_instance_of::<PyString>() => same(on).map(|pair| vec![pair]),
        Ok(named) => named.extract::<std::collections::BTreeMap<String, String>>().map(|_| {
            // In the order in which they were written.
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

/// Where it runs, by its name.
fn mode_of(py: Python<'_>, name: &str) -> PyResult<Mode> {
    name.parse().map_err(|error: farpool::Error| errors::of(py, &error))
}

impl PyScan {
    pub(crate) fn new(table: FarTable) -> Result<PyScan, farpool::Error> {
        Ok(PyScan { query: table.query()?, table, order: None, forks: forks() })
    }

    pub(crate) fn usable(&self, py: Python<'_>) -> PyResult<()> {
        if self.forks != forks() { Err(errors::forked(py)) } else { Ok(()) }
    }

    pub(crate) fn table(&self) -> &FarTable {
        &self.table
    }

    /// Whether its rows get an order in the client.
    pub(crate) fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Its columns as Arrow names them.
    pub(crate) fn arrow_schema(&self) -> SchemaRef {
        let field = |(name, of): &(String, _)| Field::new(name, data_type(*of), true);
        Arc::new(Schema::new(self.query.columns().iter().map(field).collect::<Vec<_>>()))
    }

    /// One step further. Behind an order of all rows there is none.
    fn step(&self, py: Python<'_>, act: impl FnOnce(Query) -> Query) -> PyResult<PyScan> {
        self.usable(py)?;
        if self.order.is_some() {
            let text = "behind sort only limit is permitted; sort last, or limit first";
            return Err(errors::invalid(py, text));
        }
        let query = act(self.query.clone());
        // What is wrong is said where it was written.
        query.clone().plan().map_err(|error| errors::invalid(py, error.to_string()))?;
        Ok(PyScan { query, ..self.clone() })
    }

    fn plan(&self, py: Python<'_>) -> PyResult<Plan> {
        self.usable(py)?;
        self.query.clone().plan().map_err(|error| errors::invalid(py, error.to_string()))
    }

    /// Rows that have, or do not have, a partner in another table.
    fn joined(
        &self,
        other: &Bound<'_, PyAny>,
        on: &Bound<'_, PyAny>,
        mode: &str,
        is_anti: bool,
    ) -> PyResult<PyScan> {
        let py = other.py();
        self.usable(py)?;
        let mode = mode_of(py, mode)?;
        let on = pairs(on)?;
        let (schema, batches) = match other.cast::<PyScan>() {
            Ok(scan) => {
                let scan = scan.get();
                let plan = scan.plan(py)?;
                let rows = scan.run(py, &plan, mode)?;
                (rows.schema, rows.batches)
            }
            Err(_) => {
                let stream = arrow::stream_of(other)?;
                let schema = stream.schema();
                // Nothing but keys is kept. Who asks for a column that is not there is told so behind that.
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
                    // Other libraries may want the interpreter for the next batch.
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
            return Err(errors::invalid(py, "an order by nothing: one column or more are permitted"));
        }
        let descending = flags(descending, keys.len(), "descending")?;
        let nulls_last = flags(nulls_last, keys.len(), "nulls_last")?;
        let key = |((key, is_descending), nulls_last): ((PyExpr, bool), bool)| {
            let column = match key.value(py, "an order")? {
                Expr::Column(column) => column,
                _ => {
                    let text = "an order is by columns: name what is computed in with_columns first";
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

    /// Groups by keys and aggregates; without keys one row.
    fn aggregated(&self, py: Python<'_>, keys: Vec<PyExpr>, list: Vec<PyExpr>) -> PyResult<PyScan> {
        check_names(py, keys.iter().chain(&list).map(|one| &one.name))?;
        let aggregate = |one: PyExpr| match one.what {
            What::Aggregate(agg) => Ok((one.name, agg)),
            What::Value(_) => {
                let text = format!(
                    "{:?} is no aggregate: sum(), min(), max(), mean(), count() of it, and farpool.len(), are permitted",
                    one.name
                );
                Err(errors::invalid(py, text))
            }
        };
        let aggregates: Vec<(String, Agg)> = list.into_iter().map(aggregate).collect::<PyResult<_>>()?;
        let keys = values(py, keys, "grouping")?;
        self.step(py, |query| query.group_by(keys, aggregates))
    }

    /// What was done for it, and its rows in their order. Waits, and so holds no interpreter.
    pub(crate) fn answer(
        &self,
        plan: &Plan,
        mode: Mode,
    ) -> Result<(Answer, Vec<RecordBatch>), Box<dyn std::error::Error + Send + Sync>> {
        let mut answer = self.table.run(plan, mode)?;
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

    fn run(&self, py: Python<'_>, plan: &Plan, mode: Mode) -> PyResult<PyRows> {
        let answered = py.detach(|| self.answer(plan, mode));
        let (answer, batches) = answered.map_err(|error| match error.downcast_ref() {
            Some(error) => errors::of(py, error),
            None => errors::invalid(py, error.to_string()),
        })?;
        Ok(PyRows { schema: answer.schema, batches, report: answer.report })
    }
}

#[pymethods]
impl PyScan {
    /// The names of its columns.
    #[getter]
    fn column_names(&self) -> Vec<&str> {
        self.query.columns().iter().map(|(name, _)| &**name).collect()
    }

    /// The types of its columns, by name, in words.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let schema = PyDict::new(py);
        for (name, of) in self.query.columns() {
            schema.set_item(name, of.to_string())?;
        }
        Ok(schema)
    }

    /// Rows for which all of these are true.
    ///
    /// >>> pool.scan("sales").filter(col("item") == "cup", col("year") > 2024).count()
    /// 1
    #[pyo3(signature = (*conditions))]
    fn filter(&self, conditions: &Bound<'_, PyTuple>) -> PyResult<PyScan> {
        let py = conditions.py();
        let conditions = conditions.iter().map(|one| expression::of(&one)?.value(py, "a filter"));
        let all = conditions.collect::<PyResult<Vec<Expr>>>()?.into_iter().reduce(Expr::and);
        match all {
            Some(all) => self.step(py, |query| query.filter(all)),
            None => Ok(self.clone()),
        }
    }

    /// Rows whose keys are those of a row of another table: anything that reads as Arrow, or a scan, which is run at
    /// once, in `mode` as `collect` says. `on` is a column of both, a list of such or of pairs (mine, theirs), or a
    /// dict {mine: theirs}. NULL is like nothing. Keys of other types are compared as this scan's where that loses
    /// nothing. What the keys are is sent to the nodes of this scan's table, unless it is fetched.
    ///
    /// Raises InvalidError (no such column, types that do not compare), and what `collect` raises if `other` is a scan.
    #[pyo3(signature = (other, on, *, mode="auto"))]
    fn semi_join(&self, other: &Bound<'_, PyAny>, on: &Bound<'_, PyAny>, mode: &str) -> PyResult<PyScan> {
        self.joined(other, on, mode, false)
    }

    /// Rows whose keys are those of no row of another table, or have a NULL among them. As `semi_join` otherwise.
    #[pyo3(signature = (other, on, *, mode="auto"))]
    fn anti_join(&self, other: &Bound<'_, PyAny>, on: &Bound<'_, PyAny>, mode: &str) -> PyResult<PyScan> {
        self.joined(other, on, mode, true)
    }

    /// These columns instead; if all of them are aggregates, one row of them.
    ///
    /// >>> pool.scan("sales").select(col("price").sum()).to_arrow().to_pylist()
    /// [{'price': 14.5}]
    #[pyo3(signature = (*columns, **named))]
    fn select(&self, columns: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<PyScan> {
        let py = columns.py();
        let list = expressions(columns, named)?;
        if list.is_empty() {
            return Err(errors::invalid(py, "a select of nothing: one column or more are permitted"));
        }
        if list.iter().all(|one| matches!(one.what, What::Aggregate(_))) {
            return self.aggregated(py, Vec::new(), list);
        }
        check_names(py, list.iter().map(|one| &one.name))?;
        let list = values(py, list, "a select beside columns")?;
        self.step(py, |query| query.select(list))
    }

    /// Its columns and these, which take the place of columns of their names.
    #[pyo3(signature = (*columns, **named))]
    fn with_columns(
        &self,
        columns: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyScan> {
        let py = columns.py();
        let list = expressions(columns, named)?;
        check_names(py, list.iter().map(|one| &one.name))?;
        let names = self.query.columns().iter().map(|(name, _)| name);
        let mut all: Vec<(String, Expr)> =
            names.map(|name| (name.clone(), farpool::operators::col(name.clone()))).collect();
        for (name, expr) in values(py, list, "with_columns")? {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some(known) => known.1 = expr,
                None => all.push((name, expr)),
            }
        }
        self.step(py, |query| query.select(all))
    }

    /// One row for each combination of these that there is, once `agg` says what is computed.
    #[pyo3(signature = (*keys, **named))]
    fn group_by(&self, keys: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<PyGroupBy> {
        let py = keys.py();
        let keys = expressions(keys, named)?;
        if keys.is_empty() {
            return Err(errors::invalid(
                py,
                "a grouping by nothing: select(...) of aggregates leaves one row",
            ));
        }
        Ok(PyGroupBy { scan: self.clone(), keys })
    }

    /// Each row once.
    fn distinct(&self, py: Python<'_>) -> PyResult<PyScan> {
        self.step(py, Query::distinct)
    }

    /// All rows in an order, which the client gives them; with a `limit` behind it, only the first are kept, on the way
    /// as well. NULL comes first unless `nulls_last`; NaN comes behind all numbers, and before them if its sign is set.
    #[pyo3(signature = (*by, descending=None, nulls_last=None))]
    fn sort(
        &self,
        by: &Bound<'_, PyTuple>,
        descending: Option<&Bound<'_, PyAny>>,
        nulls_last: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyScan> {
        let py = by.py();
        let no = pyo3::types::PyBool::new(py, false).to_owned().into_any();
        let by = self.by(by, descending.unwrap_or(&no), nulls_last.unwrap_or(&no))?;
        let sorted = self.step(py, |query| query)?;
        Ok(PyScan { order: Some((by, None)), ..sorted })
    }

    /// The `k` rows that are greatest by these columns, greatest first, NULL last; with `reverse` the least.
    ///
    /// >>> pool.scan("sales").top_k(1, by="price").to_arrow()["item"].to_pylist()
    /// ['jug']
    #[pyo3(signature = (k, *, by, reverse=false))]
    fn top_k(&self, k: u64, by: &Bound<'_, PyAny>, reverse: bool) -> PyResult<PyScan> {
        let py = by.py();
        let list = match by.cast::<PyList>() {
            Ok(list) => list.to_tuple(),
            Err(_) => PyTuple::new(py, [by])?,
        };
        let flag = |value: bool| pyo3::types::PyBool::new(py, value).to_owned().into_any();
        let by = self.by(&list, &flag(!reverse), &flag(true))?;
        let sorted = self.step(py, |query| query)?;
        PyScan { order: Some((by, None)), ..sorted }.limit(py, k)
    }

    /// No more than so many rows: the first ones behind `sort`, otherwise any.
    fn limit(&self, py: Python<'_>, rows: u64) -> PyResult<PyScan> {
        match &self.order {
            None => self.step(py, |query| query.limit(rows)),
            // What is too long to be held by memory nodes is sorted as a whole.
            Some((by, None)) if rows == 0 || rows > u64::from(TOP_ROWS_MAX) => {
                Ok(PyScan { order: Some((by.clone(), Some(rows))), ..self.clone() })
            }
            Some((by, None)) => {
                let scan = PyScan { order: None, ..self.clone() };
                scan.step(py, |query| query.top(by.clone(), rows as u32))
            }
            Some((by, Some(fewer))) => {
                Ok(PyScan { order: Some((by.clone(), Some(rows.min(*fewer)))), ..self.clone() })
            }
        }
    }

    /// Runs it and counts its rows, which are not kept.
    ///
    /// Raises what `collect` raises.
    #[pyo3(signature = (*, mode="auto"))]
    fn count(&self, py: Python<'_>, mode: &str) -> PyResult<u64> {
        self.usable(py)?;
        let count = [("len".to_owned(), Agg::Rows)];
        // A query groups once: behind a grouping, top or limit its rows are there to be counted.
        let plan = match self.query.clone().group_by([], count).plan() {
            Ok(plan) if self.order.is_none() => plan,
            _ => return Ok(self.collect(py, mode)?.num_rows()),
        };
        let mode = mode_of(py, mode)?;
        let answer = py.detach(|| self.table.run(&plan, mode)).map_err(|error| errors::of(py, &error))?;
        let batches = answer.batches;
        let column = batches.first().map(|batch| Arc::clone(batch.column(0)));
        let counted =
            column.as_ref().and_then(|column| column.as_any().downcast_ref::<arrow_array::Int64Array>());
        Ok(counted.map_or(0, |counted| counted.value(0).cast_unsigned()))
    }

    /// Runs it: at the nodes ("ship"), here over columns that are fetched ("fetch"), both at once ("split"), or where
    /// it is expected to take least ("auto"), which `report` of the rows tells of. The rows are the same. Groups come
    /// in the order of their keys, null first; other rows in that of the table.
    ///
    /// Raises LostError, ClosedError (the table was dropped or replaced), UnreachableError, InvalidError (a value that
    /// does not fit its type, a pattern that is no regular expression).
    ///
    /// >>> rows = pool.scan("sales").distinct().collect(mode="ship")
    /// >>> len(rows), rows.report["mode"]
    /// (3, 'ship')
    #[pyo3(signature = (*, mode="auto"))]
    fn collect(&self, py: Python<'_>, mode: &str) -> PyResult<PyRows> {
        let mode = mode_of(py, mode)?;
        let plan = self.plan(py)?;
        self.run(py, &plan, mode)
    }

    /// Its rows as they come: some row groups at a time, so that they need not all be here at once. What groups, sorts,
    /// or joins comes as a whole. Rows are those of `collect`, in its order; what it raises, whoever takes the rows
    /// raises.
    #[pyo3(signature = (*, mode="auto"))]
    fn stream(&self, py: Python<'_>, mode: &str) -> PyResult<PyStream> {
        let mode = mode_of(py, mode)?;
        let plan = self.plan(py)?;
        Ok(PyStream::new(self.clone(), plan, mode))
    }

    /// The names and types of its columns, for any library that reads Arrow, such as `pyarrow.schema`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema_capsule_of(py, &self.arrow_schema())
    }

    /// Runs it, and gives its rows as a `pyarrow.Table`. Raises what `collect` raises.
    #[pyo3(signature = (*, mode="auto"))]
    fn to_arrow<'py>(&self, py: Python<'py>, mode: &str) -> PyResult<Bound<'py, PyAny>> {
        PyRows::to_arrow(&Bound::new(py, self.collect(py, mode)?)?)
    }

    /// Runs it as `collect` does, for any library that reads Arrow, and for `Pool.put_table`, which makes a table of
    /// it.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.collect(py, "auto")?.__arrow_c_stream__(py, requested_schema)
    }

    /// What it would read, where each step would run, and what each mode is expected to take, in words, or with
    /// `format="json"` as JSON. Reads nothing.
    ///
    /// >>> query = pool.scan("sales").filter(col("price") > 5).select("item")
    /// >>> print(query.explain().splitlines()[2])
    /// reads 2 of 3 columns: item, price
    #[pyo3(signature = (*, format="text"))]
    fn explain(&self, py: Python<'_>, format: &str) -> PyResult<String> {
        let plan = self.plan(py)?;
        let mut explanation = self.table.explain(&plan);
        if let Some((by, rows)) = &self.order {
            let key = |by: &By| {
                let order = if by.is_descending { " descending" } else { "" };
                format!("{}{order}{}", by.column, if by.nulls_first { " (NULL first)" } else { "" })
            };
            let rows = rows.map_or("all rows".to_owned(), |rows| format!("first {rows} rows"));
            let by: Vec<String> = by.iter().map(key).collect();
            explanation.finish.push(format!("sort {rows} by {}", by.join(", ")));
        }
        match format {
            "text" => Ok(explanation.to_string()),
            "json" => {
                let told = PyDict::new(py);
                told.set_item("table", &explanation.table)?;
                told.set_item("columns", &explanation.columns)?;
                told.set_item("columns_total", explanation.columns_total)?;
                told.set_item("row_groups", explanation.row_groups)?;
                told.set_item("row_groups_total", explanation.row_groups_total)?;
                told.set_item("row_groups_skipped", explanation.row_groups_total - explanation.row_groups)?;
                told.set_item("rows", explanation.rows)?;
                told.set_item("rows_total", explanation.rows_total)?;
                told.set_item("bytes", explanation.bytes)?;
                told.set_item("near", &explanation.near)?;
                told.set_item("finish", &explanation.finish)?;
                let join = |join: &SemiJoin| {
                    let told = PyDict::new(py);
                    let by = match join.by {
                        JoinBy::Keys => "keys",
                        JoinBy::Filter => "filter",
                        JoinBy::Here => "here",
                    };
                    told.set_item("by", by)?;
                    told.set_item("keys", join.keys)?;
                    told.set_item("bytes", join.bytes)?;
                    Ok(told)
                };
                let joins = explanation.semi_joins.iter().map(join).collect::<PyResult<Vec<_>>>()?;
                told.set_item("semi_joins", joins)?;
                let result = PyDict::new(py);
                for (name, of) in &explanation.result {
                    result.set_item(name, of.to_string())?;
                }
                told.set_item("result", result)?;
                told.set_item("expected", stream::expected(py, &explanation.estimates)?)?;
                told.set_item("choice", explanation.estimates.choice.name())?;
                told.set_item("sure", explanation.estimates.is_sure)?;
                told.set_item("why", &explanation.estimates.why)?;
                py.import("json")?.getattr("dumps")?.call1((told,))?.extract()
            }
            other => {
                let text = format!("format is {other:?}: \"text\" and \"json\" are permitted");
                Err(errors::invalid(py, text))
            }
        }
    }

    fn __repr__(&self) -> String {
        let columns = self.column_names().join(", ");
        format!("<farpool.Scan of {:?}: {}>", self.table.name(), farpool::shown(&columns))
    }
}

/// A query and the keys it groups by.
#[pyclass(name = "GroupBy", module = "farpool", frozen)]
pub(crate) struct PyGroupBy {
    scan: PyScan,
    keys: Vec<PyExpr>,
}

#[pymethods]
impl PyGroupBy {
    /// What is computed over the rows of each group.
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

/// The rows of a query, in this process. Anything that reads Arrow streams takes them, as often as it likes and without
/// a copy.
#[pyclass(name = "Rows", module = "farpool", frozen)]
pub(crate) struct PyRows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    report: Report,
}

#[pymethods]
impl PyRows {
    /// What was done for them: the mode asked for and the one chosen, and why; row groups, bytes and times; and what
    /// each way was expected to take before.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stream::told(py, Some(&self.report), self.num_rows())
    }

    /// The same in words.
    fn explain(&self) -> String {
        self.report.to_string()
    }

    /// How many there are.
    #[getter]
    fn num_rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    /// The names of their columns.
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

    /// As a `pyarrow.Table`.
    fn to_arrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pyarrow")?.getattr("table")?.call1((slf,))
    }

    /// For any library that reads Arrow.
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
