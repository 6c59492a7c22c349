//! Methods of `farpool.Scan`.

use super::{PyGroupBy, PyRows, PyScan, check_names, expressions, placement_of, values};
use crate::expression::{self, What};
use crate::report::expected;
use crate::stream::PyStream;
use crate::{arrow, errors};
use farpool::operators::limits::TOP_ROWS_MAX;
use farpool::operators::{Agg, By, Expr, Query};
use farpool::table::{JoinBy, SemiJoin};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};
use std::sync::Arc;

#[pymethods]
impl PyScan {
    /// Names of the query's columns.
    #[getter]
    fn column_names(&self) -> Vec<&str> {
        self.query.columns().iter().map(|(name, _)| &**name).collect()
    }

    /// Types of the query's columns, as text, by name.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let schema = PyDict::new(py);
        for (name, of) in self.query.columns() {
            schema.set_item(name, of.to_string())?;
        }
        Ok(schema)
    }

    /// Keeps the rows for which all conditions are true.
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

    /// Keeps the rows whose keys occur in another table: any object that can be read as Arrow, or a scan, which is run
    /// at once with this `placement` (see `collect`). `on` is a column of both tables, a list of columns or of pairs
    /// (mine, theirs), or a dict {mine: theirs}. NULL matches nothing. Keys of another type are converted to the type
    /// of this scan's key if that loses nothing. The keys are sent to the nodes of this scan's table, unless the query
    /// is fetched.
    ///
    /// Raises InvalidError (no such column, types that cannot be compared), and the errors of `collect` if `other` is a
    /// scan.
    #[pyo3(signature = (other, on, *, placement="auto"))]
    fn semi_join(
        &self,
        other: &Bound<'_, PyAny>,
        on: &Bound<'_, PyAny>,
        placement: &str,
    ) -> PyResult<PyScan> {
        self.joined(other, on, placement, false)
    }

    /// Keeps the rows whose keys do not occur in another table, or contain a NULL. The arguments are those of
    /// `semi_join`.
    #[pyo3(signature = (other, on, *, placement="auto"))]
    fn anti_join(
        &self,
        other: &Bound<'_, PyAny>,
        on: &Bound<'_, PyAny>,
        placement: &str,
    ) -> PyResult<PyScan> {
        self.joined(other, on, placement, true)
    }

    /// Returns these columns only. If all of them are aggregates, the result is one row.
    ///
    /// >>> pool.scan("sales").select(col("price").sum()).to_arrow().to_pylist()
    /// [{'price': 14.5}]
    #[pyo3(signature = (*columns, **named))]
    fn select(&self, columns: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<PyScan> {
        let py = columns.py();
        let list = expressions(columns, named)?;
        if list.is_empty() {
            return Err(errors::invalid(py, "select needs at least one column"));
        }
        if list.iter().all(|one| matches!(one.what, What::Aggregate(_))) {
            return self.aggregated(py, Vec::new(), list);
        }
        check_names(py, list.iter().map(|one| &one.name))?;
        let list = values(py, list, "a select with columns")?;
        self.step(py, |query| query.select(list))
    }

    /// Adds these columns. They replace columns of the same name.
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

    /// Groups by these keys: the result has one row for each combination that occurs. Call `agg` on it to set the
    /// aggregates.
    #[pyo3(signature = (*keys, **named))]
    fn group_by(&self, keys: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<PyGroupBy> {
        let py = keys.py();
        let keys = expressions(keys, named)?;
        if keys.is_empty() {
            return Err(errors::invalid(
                py,
                "group_by needs at least one key; select(...) of aggregates returns one row",
            ));
        }
        Ok(PyGroupBy { scan: self.clone(), keys })
    }

    /// Removes duplicate rows.
    fn distinct(&self, py: Python<'_>) -> PyResult<PyScan> {
        self.step(py, Query::distinct)
    }

    /// Sorts all rows, in the client. If `limit` follows, only the first rows are kept, at the nodes too. NULL comes
    /// first unless `nulls_last`. NaN comes after all numbers, or before them if its sign bit is set.
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

    /// Returns the `k` rows with the greatest values of these columns, the greatest first and NULL last; with `reverse`
    /// those with the least.
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

    /// Keeps at most this many rows: the first ones after `sort`, otherwise any.
    fn limit(&self, py: Python<'_>, rows: u64) -> PyResult<PyScan> {
        match &self.order {
            None => self.step(py, |query| query.limit(rows)),
            // Memory nodes do not keep so many rows of a top-k, so the client sorts all rows instead.
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

    /// Runs the query and returns its number of rows, without keeping them.
    ///
    /// Raises what `collect` raises.
    #[pyo3(signature = (*, placement="auto"))]
    fn count(&self, py: Python<'_>, placement: &str) -> PyResult<u64> {
        self.usable(py)?;
        let count = [("len".to_owned(), Agg::Rows)];
        // A query can group only once. After a grouping, top-k or limit the rows are collected and counted.
        let plan = match self.query.clone().group_by([], count).plan() {
            Ok(plan) if self.order.is_none() => plan,
            _ => return Ok(self.collect(py, placement)?.num_rows()),
        };
        let placement = placement_of(py, placement)?;
        let answer = py.detach(|| self.table.open_for(&plan)?.run(&plan, placement));
        let answer = answer.map_err(|error| errors::of(py, &error))?;
        let batches = answer.batches;
        let column = batches.first().map(|batch| Arc::clone(batch.column(0)));
        let counted =
            column.as_ref().and_then(|column| column.as_any().downcast_ref::<arrow_array::Int64Array>());
        Ok(counted.map_or(0, |counted| counted.value(0).cast_unsigned()))
    }

    /// Runs the query: at the nodes ("ship"), here over fetched columns ("fetch"), both at once ("split"), or wherever
    /// it is estimated to be fastest ("auto"). `report` of the result says what was chosen. The rows are the same in
    /// each case. Groups are sorted by their keys, null first; other rows are in the order of the table.
    ///
    /// Raises LostError, ClosedError (the table was dropped or replaced), UnreachableError, InvalidError (a value that
    /// does not fit its type, a pattern that is no regular expression).
    ///
    /// >>> rows = pool.scan("sales").distinct().collect(placement="ship")
    /// >>> len(rows), rows.report["placement"]
    /// (3, 'ship')
    #[pyo3(signature = (*, placement="auto"))]
    fn collect(&self, py: Python<'_>, placement: &str) -> PyResult<PyRows> {
        let placement = placement_of(py, placement)?;
        let plan = self.plan(py)?;
        self.run(py, &plan, placement)
    }

    /// Returns the rows as a stream, some row groups at a time, so that they need not all be in memory at once. The
    /// result of a grouping, sort or join comes as a whole. Rows and order are those of `collect`. An error is raised
    /// when the rows are read.
    #[pyo3(signature = (*, placement="auto"))]
    fn stream(&self, py: Python<'_>, placement: &str) -> PyResult<PyStream> {
        let placement = placement_of(py, placement)?;
        let plan = self.plan(py)?;
        Ok(PyStream::new(self.clone(), plan, placement))
    }

    /// Exports the names and types of the columns to any library that reads Arrow, such as `pyarrow.schema`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema_capsule_of(py, &self.arrow_schema())
    }

    /// Runs the query and returns its rows as a `pyarrow.Table`. Raises the errors of `collect`.
    #[pyo3(signature = (*, placement="auto"))]
    fn to_arrow<'py>(&self, py: Python<'py>, placement: &str) -> PyResult<Bound<'py, PyAny>> {
        PyRows::to_arrow(&Bound::new(py, self.collect(py, placement)?)?)
    }

    /// Runs the query as `collect` does, for any library that reads Arrow, and for `Pool.put_table`, which makes a
    /// table of it.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.collect(py, "auto")?.__arrow_c_stream__(py, requested_schema)
    }

    /// Describes what the query would read, where each step would run, and the estimates for each `placement`, as text
    /// or with `format="json"` as JSON. Reads no rows.
    ///
    /// >>> query = pool.scan("sales").filter(col("price") > 5).select("item")
    /// >>> print(query.explain().splitlines()[2])
    /// reads 2 of 3 columns: item, price
    #[pyo3(signature = (*, format="text"))]
    fn explain(&self, py: Python<'_>, format: &str) -> PyResult<String> {
        let plan = self.plan(py)?;
        let opened = py.detach(|| self.table.open_for(&plan)).map_err(|error| errors::of(py, &error))?;
        let mut explanation = opened.explain(&plan);
        if let Some((by, rows)) = &self.order {
            let key = |by: &By| {
                let order = if by.is_descending { " descending" } else { "" };
                format!("{}{order}{}", by.column, if by.nulls_first { " (NULL first)" } else { "" })
            };
            let rows = rows.map_or("sort all rows".to_owned(), |rows| format!("top {rows} rows"));
            let by: Vec<String> = by.iter().map(key).collect();
            explanation.finish.push(format!("{rows} by {}", by.join(", ")));
        }
        match format {
            "text" => Ok(explanation.to_string()),
            "json" => {
                let told = PyDict::new(py);
                told.set_item("table", &explanation.table)?;
                told.set_item("columns", &explanation.columns)?;
                told.set_item("columns_total", explanation.columns_total)?;
                told.set_item("files_total", explanation.files_total)?;
                told.set_item("files_skipped", explanation.files_skipped)?;
                told.set_item("row_groups", explanation.row_groups)?;
                told.set_item("row_groups_total", explanation.row_groups_total)?;
                told.set_item("row_groups_skipped", explanation.row_groups_total - explanation.row_groups)?;
                told.set_item("row_groups_of_earlier_columns", explanation.row_groups_of_earlier_columns)?;
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
                told.set_item("expected", expected(py, &explanation.estimates)?)?;
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
