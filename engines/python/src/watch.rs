//! `Pool.watch`: the changes of a far table, as the broker tells them.

use crate::table::utc;
use crate::{errors, forks};
use farpool::table::{HistoryEntry, TableChange, TableWatch};
use farpool_lock::Mutex;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// Time after which a waiting thread looks for signals, such as that of Ctrl-C, in ms. Nobody is asked anything then.
const LOOK_MS: u64 = 100;

/// Changes of a far table. Iterating over it waits for the next one.
#[pyclass(name = "Watch", module = "farpool", frozen)]
pub(crate) struct PyWatch {
    /// `None` once it was closed. It is never dropped automatically, because in a forked child its connection is that
    /// of the parent process, and another thread may have locked it.
    watch: ManuallyDrop<Mutex<Option<TableWatch>>>,
    timeout: Option<Duration>,
    forks: u64,
}

impl PyWatch {
    pub(crate) fn new(watch: TableWatch, timeout_ms: Option<u64>) -> PyWatch {
        let timeout = timeout_ms.map(Duration::from_millis);
        PyWatch { watch: ManuallyDrop::new(Mutex::new(Some(watch))), timeout, forks: forks() }
    }

    /// Waits for the next change for a part of the time. `None` if it is closed.
    fn wait(&self, ms: u64) -> Result<Option<Option<TableChange>>, farpool::Error> {
        self.watch.lock().as_mut().map(|watch| watch.next_within(ms)).transpose()
    }
}

impl Drop for PyWatch {
    fn drop(&mut self) {
        if self.forks == forks() {
            drop(self.watch.lock().take());
        }
    }
}

#[pymethods]
impl PyWatch {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Waits for the next change. Ends the iteration if none has come in time, or if this was closed.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let begun = Instant::now();
        loop {
            if self.forks != forks() {
                return Err(errors::forked(py));
            }
            let left = self.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let ms = left.map_or(LOOK_MS, |left| LOOK_MS.min(left.as_millis() as u64));
            match py.detach(|| self.wait(ms)).map_err(|error| errors::of(py, &error))? {
                Some(Some(change)) => return changed(py, change).map(Some),
                Some(None) if left.is_none_or(|left| !left.is_zero()) => py.check_signals()?,
                Some(None) | None => return Ok(None),
            }
        }
    }

    /// Ends the iteration, also that of another thread which waits.
    fn close(&self, py: Python<'_>) {
        if self.forks == forks() {
            py.detach(|| drop(self.watch.lock().take()));
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

/// Converts a change into a `TableChange`.
fn changed(py: Python<'_>, change: TableChange) -> PyResult<Bound<'_, PyAny>> {
    let new = py.import("farpool._farpool")?.getattr("TableChange")?;
    match change {
        TableChange::Snapshot(HistoryEntry { snapshot, session, at_ms, summary, .. }) => {
            new.call1(("snapshot", snapshot, utc(py, at_ms)?, session.0, summary))
        }
        TableChange::File => new.call1(("file", py.None(), py.None(), py.None(), "")),
        TableChange::Dropped => new.call1(("dropped", py.None(), py.None(), py.None(), "")),
    }
}
