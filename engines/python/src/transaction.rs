//! `farpool.Transaction`.

use crate::pool::{PyPool, protection, table_key};
use crate::table::Told;
use crate::{errors, forks, table};
use arrow_array::RecordBatchReader;
use farpool::Pool;
use farpool::table::{PutOptions, TableTransaction};
use farpool_lock::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::mem::ManuallyDrop;

/// Changes of far tables that are made together, at the end of a `with` block.
#[pyclass(name = "Transaction", module = "farpool", frozen)]
pub(crate) struct PyTransaction {
    pool: Py<PyPool>,
    /// State. Whoever has it may wait for the GIL, so it is taken without that. It is never dropped automatically,
    /// because in a forked child its files are those of the parent process.
    state: ManuallyDrop<Mutex<State>>,
    forks: u64,
}

impl Drop for PyTransaction {
    fn drop(&mut self) {
        if self.forks == forks() {
            *self.state.lock() = State::Ended;
        }
    }
}

enum State {
    /// It was not committed yet.
    Open(TableTransaction),
    /// Snapshots that it has made, by table. True if an earlier run of the program has made them.
    Made(Vec<(String, u64)>, bool),
    /// It was given up, or its commit has failed.
    Ended,
}

/// Begins a transaction, perhaps with an id.
pub(crate) fn begun(pool: &Pool, commit_id: Option<&str>) -> Result<TableTransaction, farpool::Error> {
    match commit_id {
        Some(text) => pool.transaction().with_id(text),
        None => Ok(pool.transaction()),
    }
}

impl PyTransaction {
    pub(crate) fn new(pool: Py<PyPool>, begun: TableTransaction) -> PyTransaction {
        let state = ManuallyDrop::new(Mutex::new(State::Open(begun)));
        PyTransaction { pool, state, forks: forks() }
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.forks != forks() { Err(errors::forked(py)) } else { Ok(()) }
    }

    /// Changes the transaction without the GIL.
    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut TableTransaction) -> Result<(), farpool::Error> + Send,
    ) -> PyResult<Result<(), farpool::Error>> {
        self.pool.get().run(py, |_| match &mut *self.state.lock() {
            State::Open(open) => Ok(change(open)),
            _ => Err(farpool::Error::new(farpool::ErrorKind::Closed, "the transaction has ended")),
        })
    }
}

#[pymethods]
impl PyTransaction {
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, *_rest))]
    fn __exit__(&self, py: Python<'_>, kind: &Bound<'_, PyAny>, _rest: &Bound<'_, PyAny>) -> PyResult<()> {
        match kind.is_none() {
            true => self.commit(py),
            false if self.forks == forks() => {
                py.detach(|| *self.state.lock() = State::Ended);
                Ok(())
            }
            false => Ok(()),
        }
    }

    /// Adds rows behind those of a far table. `data`, `key` and `protection` are those of `Pool.append`. If `expected`
    /// is given, the transaction is committed only if the table has this snapshot then; 0: it was not changed since it
    /// was made.
    ///
    /// Raises the errors of `Pool.append`, ConflictError (the table has another snapshot), InvalidError (the
    /// transaction changes this table already, or 8 others), ClosedError (it has ended).
    #[pyo3(signature = (name, data, *, expected=None, key=None, protection=None))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn append(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        expected: Option<u64>,
        key: Option<&[u8]>,
        protection: Option<&str>,
    ) -> PyResult<()> {
        let protection = self::protection(py, protection)?;
        let (told, key) = (Told::default(), table_key(py, key)?);
        let options =
            PutOptions { key, protection, progress: Some(told.progress()), ..PutOptions::default() };
        table::put(data, &told, |batches| {
            self.change(py, |open| {
                if let Some(expected) = expected {
                    open.expect(name, expected);
                }
                open.append(name, batches.schema(), batches, &options)
            })
        })
    }

    /// Makes a far table, or replaces one of this name. `data`, `layout`, `key` and `protection` are those of
    /// `Pool.put_table`, and `expected` is that of `append`; 0: there is no table of this name, or it was not changed.
    ///
    /// Raises the errors of `Pool.put_table` and `append`.
    #[pyo3(signature = (
        name, data, *, replace=false, expected=None, layout="columns", key=None, protection=None
    ))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn put_table(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        replace: bool,
        expected: Option<u64>,
        layout: &str,
        key: Option<&[u8]>,
        protection: Option<&str>,
    ) -> PyResult<()> {
        let (layout, protection) = (table::layout(py, layout)?, self::protection(py, protection)?);
        let (told, key) = (Told::default(), table_key(py, key)?);
        let progress = Some(told.progress());
        let options = PutOptions { layout, key, replace, protection, progress, ..PutOptions::default() };
        table::put(data, &told, |batches| {
            self.change(py, |open| {
                if let Some(expected) = expected {
                    open.expect(name, expected);
                }
                open.put(name, batches.schema(), batches, &options)
            })
        })
    }

    /// Changes all tables, or none of them. A `with` block ends with it.
    ///
    /// Raises ConflictError (a table has another snapshot than the expected one, or other columns now), InvalidError
    /// (no table changes), ClosedError (the transaction has ended).
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.pool.get().run(py, |_| {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Ended) {
                State::Open(open) => {
                    let made = open.commit()?;
                    let snapshots = made.tables.into_iter().map(|(name, made)| (name, made.snapshot));
                    *state = State::Made(snapshots.collect(), made.was_made_before);
                    Ok(())
                }
                ended => {
                    *state = ended;
                    Err(farpool::Error::new(farpool::ErrorKind::Closed, "the transaction has ended"))
                }
            }
        })
    }

    /// Numbers of the snapshots that the transaction has made, by table. Empty before its commit.
    #[getter]
    fn snapshots<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        let made = py.detach(|| match &*self.state.lock() {
            State::Made(made, _) => made.clone(),
            _ => Vec::new(),
        });
        let snapshots = PyDict::new(py);
        made.into_iter().try_for_each(|(name, snapshot)| snapshots.set_item(name, snapshot))?;
        Ok(snapshots)
    }

    /// True if a transaction of the same `commit_id` was committed before, so that this one has changed nothing.
    #[getter]
    fn was_made_before(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(py.detach(|| matches!(&*self.state.lock(), State::Made(_, true))))
    }
}
