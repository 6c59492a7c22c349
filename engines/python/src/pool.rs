//! `farpool.Pool`.

use crate::{errors, forks};
use farpool::{FarTable, IfTaken, Pool, Protection, TableKey};
use farpool_lock::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyWeakrefMethods, PyWeakrefReference};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

mod methods;

/// A session with a pool. Closing it gives back all memory that no published file holds.
#[pyclass(name = "Pool", module = "farpool", frozen, weakref)]
pub(crate) struct PyPool {
    /// Session. It is never dropped automatically, because in a forked child it is the session of the parent process.
    pool: ManuallyDrop<Pool>,
    /// Functions passed to `rebuild_with`. They are kept here and not in the session, so that Python's garbage
    /// collector sees the reference cycle if a function holds its own pool.
    rebuilders: Mutex<Vec<Py<PyAny>>>,
    local_folder: PathBuf,
    http_address: Option<SocketAddr>,
    is_closed: AtomicBool,
    forks: u64,
}

impl Drop for PyPool {
    fn drop(&mut self) {
        if self.forks == forks() {
            self.pool.close();
        }
        // The session is closed, or belongs to the parent process. So the memory that it leaks by not being dropped
        // does not matter.
    }
}

/// Converts the argument `protection`.
pub(crate) fn protection(py: Python<'_>, word: Option<&str>) -> PyResult<Option<Protection>> {
    word.map(str::parse).transpose().map_err(|error| errors::of(py, &error))
}

impl PyPool {
    pub(crate) fn new(pool: Pool, local_folder: PathBuf, http_address: Option<SocketAddr>) -> PyPool {
        PyPool {
            pool: ManuallyDrop::new(pool),
            rebuilders: Mutex::default(),
            local_folder,
            http_address,
            is_closed: AtomicBool::new(false),
            forks: forks(),
        }
    }

    /// Runs a call of the library without the GIL.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Pool) -> Result<T, farpool::Error> + Send,
    ) -> PyResult<T> {
        if self.forks != forks() {
            return Err(errors::forked(py));
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(errors::closed(py, "the pool is closed"));
        }
        let pool = &*self.pool;
        py.detach(|| call(pool)).map_err(|error| errors::of(py, &error))
    }

    /// Returns the state of the pool.
    fn status_now<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (report, files) = self.run(py, |pool| Ok((pool.status()?, pool.list("")?)))?;
        let (mut donated_bytes, mut leased_bytes) = (0, 0);
        let nodes = PyList::empty(py);
        for node in report.nodes.iter().filter(|node| node.alive) {
            let size = |regions: u32| u64::from(regions) * node.info.region_bytes;
            let counts = &node.counts;
            let held = size(counts.leased) + size(counts.named);
            let donated = held + size(counts.free) + size(counts.cleaning);
            donated_bytes += donated;
            leased_bytes += held;
            let entry = PyDict::new(py);
            entry.set_item("name", &*node.info.name)?;
            entry.set_item("address", &*node.info.address)?;
            entry.set_item("host_label", &*node.info.host_label)?;
            entry.set_item("donated_bytes", donated)?;
            entry.set_item("leased_bytes", held)?;
            entry.set_item("free_bytes", size(counts.free))?;
            entry.set_item("away_bytes", size(counts.away))?;
            nodes.append(entry)?;
        }
        let published = PyList::empty(py);
        for file in files.iter().filter(|file| file.is_published) {
            let entry = PyDict::new(py);
            entry.set_item("name", &file.name)?;
            entry.set_item("size", file.bytes)?;
            entry.set_item("file_class", file.class.word())?;
            entry.set_item("lost", file.is_lost)?;
            published.append(entry)?;
        }
        let status = PyDict::new(py);
        status.set_item("url", self.pool.url())?;
        status.set_item("nodes", nodes)?;
        status.set_item("term", report.term.0)?;
        status.set_item("sessions", report.sessions)?;
        status.set_item("files", published)?;
        status.set_item("donated_bytes", donated_bytes)?;
        status.set_item("leased_bytes", leased_bytes)?;
        Ok(status)
    }
}

/// Converts the key of encrypted tables.
pub(crate) fn table_key(py: Python<'_>, key: Option<&[u8]>) -> PyResult<Option<TableKey>> {
    let key = key.map(TableKey::try_from).transpose();
    key.map_err(|wrong| errors::invalid(py, format!("key is {wrong}")))
}

/// Checks the argument `snapshot`.
fn numbered(snapshot: Option<u64>) -> Result<Option<u64>, farpool::Error> {
    match snapshot {
        Some(0) => {
            let message = "snapshot is 0: snapshots are counted from 1; None opens the latest";
            Err(farpool::Error::new(farpool::ErrorKind::Invalid, message))
        }
        snapshot => Ok(snapshot),
    }
}

fn opened(
    pool: &Pool,
    name: &str,
    key: Option<&TableKey>,
    encrypt_answers: bool,
    snapshot: Option<u64>,
) -> Result<FarTable, farpool::Error> {
    let table = match (numbered(snapshot)?, key) {
        (Some(snapshot), key) => pool.table_snapshot(name, snapshot, key)?.open_all(),
        (None, Some(key)) => pool.table_with_key(name, key),
        (None, None) => pool.table(name),
    }?;
    Ok(if encrypt_answers { table.encrypting_answers() } else { table })
}

/// Converts the argument `replace`.
fn if_taken(replace: bool) -> IfTaken {
    if replace { IfTaken::Replace } else { IfTaken::Refuse }
}

/// Calls a function passed to `rebuild_with`, with the pool that it was passed to.
fn call_rebuilder(py: Python<'_>, pool: &Py<PyWeakrefReference>, place: usize, name: &str) -> PyResult<()> {
    let pool = pool.bind(py).upgrade_as::<PyPool>()?;
    let pool = pool.ok_or_else(|| errors::closed(py, "the pool is closed"))?;
    let function = pool.get().rebuilders.lock().get(place).map(|function| function.clone_ref(py));
    let function = function.ok_or_else(|| errors::closed(py, "the pool is closed"))?;
    function.call1(py, (pool, name)).map(drop)
}
