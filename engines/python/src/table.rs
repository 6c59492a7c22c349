//! `farpool.Table`.

use crate::scan::PyScan;
use crate::{arrow, errors, forks, units};
use arrow_array::ffi_stream::ArrowArrayStreamReader;
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use farpool::table::{ColumnChange, HistoryEntry, Progress, TableLayout, TableReader, Written};
use farpool::{ErrorKind, FarTable, PUTS_MAX};
use farpool_lock::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use std::sync::Arc;

/// A far table, opened for reading.
#[pyclass(name = "Table", module = "farpool", frozen)]
pub(crate) struct PyTable {
    table: FarTable,
    forks: u64,
}

/// Calls `put` with the batches of an object. Data that has a length can be read again, as tables can, so it is put
/// again if nodes fail meanwhile. Readers of batches cannot. An exception of the function that is told how far the put
/// is becomes that of the put.
pub(crate) fn put<T>(
    data: &Bound<'_, PyAny>,
    told: &Told,
    put: impl Fn(ArrowArrayStreamReader) -> PyResult<Result<T, farpool::Error>>,
) -> PyResult<T> {
    let py = data.py();
    let mut left = if data.hasattr("__len__")? { PUTS_MAX } else { 1 };
    loop {
        left -= 1;
        let result = put(arrow::stream_of(data)?)?;
        match told.check(result)? {
            Err(error) if error.is_worth_putting_again() && left > 0 => {}
            other => return other.map_err(|error| errors::of(py, &error)),
        }
    }
}

/// Python function that is told how far a change of a table is, if there is one, and the exception that ends the
/// change: the function's, or that of a signal such as Ctrl-C.
#[derive(Clone, Default)]
pub(crate) struct Told {
    function: Option<Arc<Py<PyAny>>>,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Told {
    /// Checks the argument `progress`.
    pub(crate) fn new(function: Option<&Bound<'_, PyAny>>) -> PyResult<Told> {
        let Some(function) = function else { return Ok(Told::default()) };
        if !function.is_callable() {
            let text =
                format!("progress is {function}; it must be callable with two numbers, of rows and bytes");
            return Err(errors::invalid(function.py(), text));
        }
        Ok(Told { function: Some(Arc::new(function.clone().unbind())), raised: Arc::default() })
    }

    /// Returns what a change has returned, unless an exception has ended it.
    pub(crate) fn check<T>(&self, returned: T) -> PyResult<T> {
        match self.raised.lock().take() {
            Some(raised) => Err(raised),
            None => Ok(returned),
        }
    }

    /// Returns the option of a change that calls the function. The thread of the change has released the GIL.
    pub(crate) fn progress(&self) -> Progress {
        let told = self.clone();
        Progress::new(move |written: Written| {
            let called = Python::attach(|py| {
                py.check_signals()?;
                let call =
                    |function: &Arc<Py<PyAny>>| function.call1(py, (written.rows, written.bytes)).map(drop);
                told.function.as_ref().map_or(Ok(()), call)
            });
            called.map_err(|error| {
                let text = error.to_string();
                *told.raised.lock() = Some(error);
                farpool::Error::new(ErrorKind::Invalid, text)
            })
        })
    }
}

/// Converts the argument `layout`.
pub(crate) fn layout(py: Python<'_>, layout: &str) -> PyResult<TableLayout> {
    match layout {
        "columns" => Ok(TableLayout::Columns),
        "rows" => Ok(TableLayout::Rows),
        other => {
            let text = format!("layout is {other:?}: \"columns\" and \"rows\" are permitted");
            Err(errors::invalid(py, text))
        }
    }
}

/// Adds the types `TableInfo`, `TableChange` and `SnapshotInfo` to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let kwargs = PyDict::new(py);
    kwargs.set_item("module", "farpool")?;
    let new = py.import("collections")?.getattr("namedtuple")?;
    module.add("TableInfo", new.call(("TableInfo", ["name", "size", "lost"]), Some(&kwargs))?)?;
    let fields = ["kind", "snapshot", "time", "session", "summary"];
    module.add("TableChange", new.call(("TableChange", fields), Some(&kwargs))?)?;
    let fields = ["snapshot", "time", "session", "kept", "summary"];
    module.add("SnapshotInfo", new.call(("SnapshotInfo", fields), Some(&kwargs))?)
}

/// Converts the history of a table into a list of `SnapshotInfo`.
pub(crate) fn history(py: Python<'_>, entries: Vec<HistoryEntry>) -> PyResult<Bound<'_, PyList>> {
    let info = py.import("farpool._farpool")?.getattr("SnapshotInfo")?;
    let list = PyList::empty(py);
    for HistoryEntry { snapshot, session, at_ms, is_kept, summary } in entries {
        list.append(info.call1((snapshot, utc(py, at_ms)?, session.0, is_kept, summary))?)?;
    }
    Ok(list)
}

/// Converts a time in ms since 1970 into a `datetime` in UTC.
pub(crate) fn utc(py: Python<'_>, at_ms: u64) -> PyResult<Bound<'_, PyAny>> {
    let datetime = py.import("datetime")?;
    let zone = datetime.getattr("timezone")?.getattr("utc")?;
    datetime.getattr("datetime")?.call_method1("fromtimestamp", (at_ms as f64 / 1e3, zone))
}

/// Converts the changes of `Pool.alter_table`, in the order in which they are made: names are those before the changes,
/// but for new ones.
pub(crate) fn column_changes(
    add: Option<&Bound<'_, PyDict>>,
    drop: Vec<String>,
    rename: Option<&Bound<'_, PyDict>>,
    widen: Option<&Bound<'_, PyDict>>,
    allow_nulls: Vec<String>,
) -> PyResult<Vec<ColumnChange>> {
    let mut changes = Vec::new();
    for (name, to) in widen.into_iter().flatten() {
        changes.push(ColumnChange::Widen { name: name.extract()?, to: arrow::type_of(&to)? });
    }
    changes.extend(allow_nulls.into_iter().map(|name| ColumnChange::AllowNulls { name }));
    changes.extend(drop.into_iter().map(|name| ColumnChange::Drop { name }));
    for (name, to) in rename.into_iter().flatten() {
        changes.push(ColumnChange::Rename { name: name.extract()?, to: to.extract()? });
    }
    for (name, of) in add.into_iter().flatten() {
        changes.push(ColumnChange::Add { name: name.extract()?, of: arrow::type_of(&of)? });
    }
    Ok(changes)
}

/// Batches of a table, as they are fetched.
struct Fetched(TableReader);

impl Iterator for Fetched {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map_err(|error| ArrowError::ExternalError(Box::new(error))))
    }
}

impl RecordBatchReader for Fetched {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.0.schema())
    }
}

impl PyTable {
    pub(crate) fn new(table: FarTable) -> PyTable {
        PyTable { table, forks: forks() }
    }

    pub(crate) fn usable(&self, py: Python<'_>) -> PyResult<&FarTable> {
        if self.forks != forks() { Err(errors::forked(py)) } else { Ok(&self.table) }
    }

    /// Returns the indices of columns by their names.
    fn places(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<Option<Vec<usize>>> {
        let schema = self.table.schema();
        let place = |name: String| {
            schema.index_of(&name).map_err(|_| {
                let all: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                let table = self.table.name();
                errors::invalid(py, format!("far table {table:?} has no column {name:?}; it has {all:?}"))
            })
        };
        names.map(|names| names.into_iter().map(place).collect()).transpose()
    }
}

#[pymethods]
impl PyTable {
    /// Name of the table.
    #[getter]
    fn name(&self) -> &str {
        self.table.name()
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> u64 {
        self.table.rows()
    }

    /// Bytes that the table takes in the pool.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.usable(py)?.bytes())
    }

    /// Number of the snapshot that was opened. None if the table was not changed since it was made.
    #[getter]
    fn snapshot(&self) -> Option<u64> {
        self.table.snapshot()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<&str> {
        self.table.schema().fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// True if the table can be read only with a key.
    #[getter]
    fn encrypted(&self) -> bool {
        self.table.is_encrypted()
    }

    /// Protection of the table against the loss of a node: `none`, `mirror` or `rs(DATA,PARITY)`.
    #[getter]
    fn protection(&self) -> String {
        self.table.protection().to_string()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let size = self.usable(py).map_or("closed".to_owned(), |table| units::_size_text(table.bytes()));
        format!("<farpool.Table {:?}, {} rows, {size}>", self.table.name(), self.table.rows())
    }

    /// Fetches all columns, or only these, as a `pyarrow.Table`.
    ///
    /// Raises LostError, ClosedError (it was dropped or replaced), UnreachableError, InvalidError (no such column).
    ///
    /// >>> pool.table("sales").to_arrow(["year"]).to_pydict()
    /// {'year': [2024, 2025, 2026]}
    #[pyo3(signature = (columns=None))]
    fn to_arrow<'py>(&self, py: Python<'py>, columns: Option<Vec<String>>) -> PyResult<Bound<'py, PyAny>> {
        let places = self.places(py, columns)?;
        let table = self.usable(py)?;
        let read = || -> Result<(SchemaRef, Vec<RecordBatch>), farpool::Error> {
            let reader = table.read(places.as_deref(), None)?;
            Ok((Arc::clone(reader.schema()), reader.collect::<Result<_, _>>()?))
        };
        let (schema, batches) = py.detach(read).map_err(|error| errors::of(py, &error))?;
        let batches = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
        let stream = Bound::new(py, PyStream { batches: Mutex::new(Some(Box::new(batches))) })?;
        py.import("pyarrow")?.getattr("table")?.call1((stream,))
    }

    /// Returns a query over the table, to be refined step by step.
    ///
    /// Raises InvalidError (it has columns of a type that queries do not support).
    fn scan(&self, py: Python<'_>) -> PyResult<PyScan> {
        PyScan::new(self.usable(py)?.clone().into()).map_err(|error| errors::of(py, &error))
    }

    /// Exports the rows to any library that reads Arrow. Batches are fetched ahead of the reader.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let reader = self.usable(py)?.read(None, None).map_err(|error| errors::of(py, &error))?;
        arrow::capsule_of(py, requested_schema, Box::new(Fetched(reader)))
    }
}

/// Batches to be read by pyarrow, once.
#[pyclass(frozen)]
struct PyStream {
    batches: Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
}

#[pymethods]
impl PyStream {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = self.batches.lock().take();
        let none = || Box::new(RecordBatchIterator::new([], Arc::new(Schema::empty())));
        arrow::capsule_of(py, requested_schema, batches.unwrap_or_else(|| none()))
    }
}
