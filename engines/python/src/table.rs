//! `farpool.Table`.

use crate::scan::PyScan;
use crate::{arrow, errors, forks, units};
use arrow_array::ffi_stream::ArrowArrayStreamReader;
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use farpool::table::TableReader;
use farpool::{FarTable, PUTS_MAX};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::sync::Arc;

/// A far table, opened for reading.
#[pyclass(name = "Table", module = "farpool", frozen)]
pub(crate) struct PyTable {
    table: FarTable,
    forks: u64,
}

/// Calls `put` with the batches of an object. Data that has a length can be read again, as tables can, so it is put
/// again if nodes fail meanwhile. Readers of batches cannot.
pub(crate) fn put(
    data: &Bound<'_, PyAny>,
    put: impl Fn(ArrowArrayStreamReader) -> PyResult<Result<(), farpool::Error>>,
) -> PyResult<()> {
    let py = data.py();
    let mut left = if data.hasattr("__len__")? { PUTS_MAX } else { 1 };
    loop {
        left -= 1;
        match put(arrow::stream_of(data)?)? {
            Err(error) if error.is_worth_putting_again() && left > 0 => {}
            other => return other.map_err(|error| errors::of(py, &error)),
        }
    }
}

/// Returns the type `TableInfo(name, size, lost)`.
pub(crate) fn table_info_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let kwargs = PyDict::new(py);
    kwargs.set_item("module", "farpool")?;
    py.import("collections")?
        .getattr("namedtuple")?
        .call(("TableInfo", ["name", "size", "lost"]), Some(&kwargs))
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
        let stream = Bound::new(py, PyStream { batches: farpool_lock::Mutex::new(Some(Box::new(batches))) })?;
        py.import("pyarrow")?.getattr("table")?.call1((stream,))
    }

    /// Returns a query over the table, to be refined step by step.
    ///
    /// Raises InvalidError (it has columns of a type that queries do not support).
    fn scan(&self, py: Python<'_>) -> PyResult<PyScan> {
        PyScan::new(self.usable(py)?.clone()).map_err(|error| errors::of(py, &error))
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
    batches: farpool_lock::Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
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
