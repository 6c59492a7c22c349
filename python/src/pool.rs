//! `farpool.Pool`, `connect` and `embedded`.

use crate::errors;
use crate::file::PyFile;
use crate::forks;
use farpool::{CreateOptions, EmbeddedOptions, FileClass, Pool, PoolOptions, TransportChoice};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

/// A session with a pool. Closing it gives back every byte that is not published.
#[pyclass(name = "Pool", module = "farpool", frozen)]
pub(crate) struct PyPool {
    /// Dropped by hand: in a forked child it is another process's session.
    pool: ManuallyDrop<Pool>,
    is_closed: AtomicBool,
    forks: u64,
}

impl Drop for PyPool {
    fn drop(&mut self) {
        if self.forks == forks() {
            self.pool.close();
        }
        // The session behind it is closed or not ours, so nothing is lost by leaving the rest to the process.
    }
}

/// `FileInfo(name, size, file_class, published)`.
pub(crate) fn file_info_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let kwargs = PyDict::new(py);
    kwargs.set_item("module", "farpool")?;
    let fields = ["name", "size", "file_class", "published"];
    py.import("collections")?.getattr("namedtuple")?.call(("FileInfo", fields), Some(&kwargs))
}

/// Bytes as a number, or as text with a unit.
fn size(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = value.py();
    let permitted = "0 or more bytes, or text such as '64MiB', is permitted";
    let wrong = || errors::invalid(py, format!("{what} is {value}; {permitted}"));
    if let Ok(number) = value.extract::<u64>() {
        return Ok(number);
    }
    let text: String = value.extract().map_err(|_| wrong())?;
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(wrong)
}

fn millis(py: Python<'_>, what: &str, text: &str) -> PyResult<u64> {
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let factor = match unit.trim() {
        "ms" => 1.0,
        "s" => 1_000.0,
        "m" => 60_000.0,
        _ => f64::NAN,
    };
    let millis = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
    if millis.is_nan() || millis < 0.0 {
        return Err(errors::invalid(
            py,
            format!("{what} is {text:?}; a time such as '250ms' or '5s' is permitted"),
        ));
    }
    Ok(millis as u64)
}

fn transport(py: Python<'_>, word: &str) -> PyResult<TransportChoice> {
    word.parse().map_err(|error| errors::of(py, &error))
}

/// Starts a session with the pool at `url`, such as "farpool://127.0.0.1:7700".
///
/// Without a URL, it is an embedded pool of this process. `auto` takes shared memory to nodes on
/// this machine and TCP to all others. `reserve` bytes are leased before this returns. Without
/// `plaintext`, brokers and nodes beyond this machine are refused: nothing is encrypted yet.
///
/// Raises UnreachableError, InvalidError (url, transport, timeout), ExhaustedError (reserve).
#[pyfunction]
#[pyo3(signature = (url=None, *, transport="auto", timeout="5s", reserve=None, plaintext=false))]
pub(crate) fn connect(
    py: Python<'_>,
    url: Option<&str>,
    transport: &str,
    timeout: &str,
    reserve: Option<&Bound<'_, PyAny>>,
    plaintext: bool,
) -> PyResult<PyPool> {
    let options = PoolOptions {
        transport: self::transport(py, transport)?,
        request_timeout_ms: millis(py, "timeout", timeout)?,
        reserve_bytes: reserve.map_or(Ok(0), |reserve| size("reserve", reserve))?,
        plaintext,
        ..PoolOptions::default()
    };
    let opened = match url {
        Some(url) => py.detach(|| Pool::connect_with(url, options)),
        None => {
            py.detach(|| Pool::embedded(EmbeddedOptions { pool: options, ..EmbeddedOptions::new(1 << 30) }))
        }
    };
    opened.map(PyPool::new).map_err(|error| errors::of(py, &error))
}

/// Starts a broker and `nodes` memory nodes inside this process, `memory` bytes in all.
///
/// For tests and for trying things out: it lends this process its own memory.
#[pyfunction]
#[pyo3(signature = (memory=None, *, nodes=1, region_size=None, transport="auto"))]
pub(crate) fn embedded(
    py: Python<'_>,
    memory: Option<&Bound<'_, PyAny>>,
    nodes: u32,
    region_size: Option<&Bound<'_, PyAny>>,
    transport: &str,
) -> PyResult<PyPool> {
    let options = EmbeddedOptions {
        node_count: nodes,
        region_bytes: region_size.map(|value| size("region_size", value)).transpose()?,
        pool: PoolOptions { transport: self::transport(py, transport)?, ..PoolOptions::default() },
        ..EmbeddedOptions::new(memory.map_or(Ok(1 << 30), |memory| size("memory", memory))?)
    };
    py.detach(|| Pool::embedded(options)).map(PyPool::new).map_err(|error| errors::of(py, &error))
}

impl PyPool {
    fn new(pool: Pool) -> PyPool {
        PyPool { pool: ManuallyDrop::new(pool), is_closed: AtomicBool::new(false), forks: forks() }
    }

    /// Runs a library call without the GIL.
    fn run<T: Send>(
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
}

#[pymethods]
impl PyPool {
    /// Where the pool is: `farpool://host:port` of its broker.
    #[getter]
    fn url(&self) -> String {
        self.pool.url().to_owned()
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<farpool.Pool {}{state}>", self.pool.url())
    }

    /// Ends the session. Its unpublished files are gone; their `File` objects raise ClosedError.
    fn close(&self, py: Python<'_>) {
        if self.forks == forks() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let pool = &*self.pool;
            py.detach(|| pool.close());
        }
    }

    /// Makes an empty file, seen by this session alone until it is published.
    ///
    /// Takes no far memory yet and asks nobody, so it may hide a published file of the same name from this
    /// session; `size_hint` bytes may be leased ahead.
    /// Raises ExistsError if this session has a file of this name, InvalidError.
    #[pyo3(signature = (name, *, file_class="scratch", size_hint=0))]
    fn create(&self, py: Python<'_>, name: &str, file_class: &str, size_hint: u64) -> PyResult<PyFile> {
        let class = FileClass::from_word(file_class).ok_or_else(|| {
            errors::invalid(
                py,
                format!("file_class is {file_class:?}; 'scratch', 'cache' or 'pinned' is permitted"),
            )
        })?;
        self.run(py, |pool| pool.create(name, class, CreateOptions { size_hint })).map(PyFile::new)
    }

    /// Opens a file of this session, or a published one (for reading). Raises NotFoundError.
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<PyFile> {
        self.run(py, |pool| pool.open(name)).map(PyFile::new)
    }

    /// Whether this session has, or the pool has published, a file of this name.
    fn exists(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.run(py, |pool| pool.exists(name))
    }

    /// Removes a file and gives its bytes back. Raises NotFoundError, UnreachableError (published).
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.delete(name))
    }

    /// Gives a file another name. Raises NotFoundError, ExistsError (this session or, for a published
    /// file, the pool has one of that name).
    fn rename(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        self.run(py, |pool| pool.rename(old, new))
    }

    /// Seals a file of this session and gives it to its name: any session may open it, nobody may write it.
    ///
    /// Raises NotFoundError, ExistsError (without `replace`), LostError, UnreachableError.
    #[pyo3(signature = (name, *, replace=false))]
    fn publish(&self, py: Python<'_>, name: &str, replace: bool) -> PyResult<()> {
        self.run(py, |pool| pool.publish(name, replace))
    }

    /// The files of this session and the published ones whose names start with `prefix`.
    #[pyo3(signature = (prefix=""))]
    fn list<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyList>> {
        let found = self.run(py, |pool| pool.list(prefix))?;
        let info = py.import("farpool._farpool")?.getattr("FileInfo")?;
        let list = PyList::empty(py);
        for file in found {
            list.append(info.call1((file.name, file.bytes, file.class.word(), file.is_published))?)?;
        }
        Ok(list)
    }

    /// Leases this much ahead of use, so that writing it needs no broker. Raises ExhaustedError.
    fn reserve(&self, py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = size("nbytes", nbytes)?;
        self.run(py, |pool| pool.reserve(bytes))
    }

    /// Counters of this session, and what it holds. Asks nobody.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.forks != forks() {
            return Err(errors::forked(py));
        }
        let stats = PyDict::new(py);
        for (name, value) in self.pool.stats().named() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// Asks the broker. Raises UnreachableError.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
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
            entry.set_item("donated_bytes", donated)?;
            entry.set_item("leased_bytes", held)?;
            entry.set_item("free_bytes", size(counts.free))?;
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
        status.set_item("sessions", report.sessions)?;
        status.set_item("files", published)?;
        status.set_item("donated_bytes", donated_bytes)?;
        status.set_item("leased_bytes", leased_bytes)?;
        Ok(status)
    }
}
