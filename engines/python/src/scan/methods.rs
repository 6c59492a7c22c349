//! What a scan can do in Python.

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
    /// once, in `placement` as `collect` says. `on` is a column of both, a list of such or of pairs (mine, theirs), or a
    /// dict {mine: theirs}. NULL is like nothing. Keys of other types are compared as this scan's where that loses
    /// nothing. What the keys are is sent to the nodes of this scan's table, unless it is fetched.
    ///
    /// Raises InvalidError (no such column, types that do not compare), and what `collect` raises if `other` is a scan.
    #[pyo3(signature = (other, on, *, placement="auto"))]
    fn semi_join(
        &self,
        other: &Bound<'_, PyAny>,
        on: &Bound<'_, PyAny>,
        placement: &str,
    ) -> PyResult<PyScan> {
        self.joined(other, on, placement, false)
    }

    /// Rows whose keys are those of no row of another table, or have a NULL among them. As `semi_join` otherwise.
    #[pyo3(signature = (other, on, *, placement="auto"))]
    fn anti_join(
        &self,
        other: &Bound<'_, PyAny>,
        on: &Bound<'_, PyAny>,
        placement: &str,
    ) -> PyResult<PyScan> {
        self.joined(other, on, placement, true)
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
    #[pyo3(signature = (*, placement="auto"))]
    fn count(&self, py: Python<'_>, placement: &str) -> PyResult<u64> {
        self.usable(py)?;
        let count = [("len".to_owned(), Agg::Rows)];
        // A query groups once: behind a grouping, top or limit its rows are there to be counted.
        let plan = match self.query.clone().group_by([], count).plan() {
            Ok(plan) if self.order.is_none() => plan,
            _ => return Ok(self.collect(py, placement)?.num_rows()),
        };
        let placement = placement_of(py, placement)?;
        let answer =
            py.detach(|| self.table.run(&plan, placement)).map_err(|error| errors::of(py, &error))?;
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
    /// >>> rows = pool.scan("sales").distinct().collect(placement="ship")
    /// >>> len(rows), rows.report["placement"]
    /// (3, 'ship')
    #[pyo3(signature = (*, placement="auto"))]
    fn collect(&self, py: Python<'_>, placement: &str) -> PyResult<PyRows> {
        let placement = placement_of(py, placement)?;
        let plan = self.plan(py)?;
        self.run(py, &plan, placement)
    }

    /// Its rows as they come: some row groups at a time, so that they need not all be here at once. What groups, sorts,
    /// or joins comes as a whole. Rows are those of `collect`, in its order; what it raises, whoever takes the rows
    /// raises.
    #[pyo3(signature = (*, placement="auto"))]
    fn stream(&self, py: Python<'_>, placement: &str) -> PyResult<PyStream> {
        let placement = placement_of(py, placement)?;
        let plan = self.plan(py)?;
        Ok(PyStream::new(self.clone(), plan, placement))
    }

    /// The names and types of its columns, for any library that reads Arrow, such as `pyarrow.schema`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema_capsule_of(py, &self.arrow_schema())
    }

    /// Runs it, and gives its rows as a `pyarrow.Table`. Raises what `collect` raises.
    #[pyo3(signature = (*, placement="auto"))]
    fn to_arrow<'py>(&self, py: Python<'py>, placement: &str) -> PyResult<Bound<'py, PyAny>> {
        PyRows::to_arrow(&Bound::new(py, self.collect(py, placement)?)?)
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

    /// What it would read, where each step would run, and what each placement is expected to take, in words, or with
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
