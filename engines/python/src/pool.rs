//! `farpool.Pool`, `connect` and `embedded`.

use crate::file::PyFile;
use crate::function::{self, Asked, PyFunction};
use crate::scan::PyScan;
use crate::table::{self, PyTable};
use crate::{certificates, errors, forks, units};
use arrow_array::RecordBatchReader;
use farpool::monitoring::{Access, Endpoint};
use farpool::table::{PutOptions, TableLayout};
use farpool::{
    CreateOptions, EmbeddedOptions, FarTable, FileClass, IfTaken, POOL_VARIABLE, Pool, PoolOptions,
    Protection, TableKey, TransportChoice,
};
use farpool_lock::Mutex;
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyDict, PyList, PyWeakrefMethods, PyWeakrefReference};
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

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

fn transport(py: Python<'_>, word: &str) -> PyResult<TransportChoice> {
    word.parse().map_err(|error| errors::of(py, &error))
}

fn protection(py: Python<'_>, word: Option<&str>) -> PyResult<Option<Protection>> {
    word.map(str::parse).transpose().map_err(|error| errors::of(py, &error))
}

fn local_folder(folder: Option<PathBuf>) -> PathBuf {
    folder.unwrap_or_else(|| PoolOptions::default().local_folder)
}

/// Starts a session with the pool at `url`, such as "farpool://127.0.0.1:7700".
///
/// If `url` is missing, the environment names the pool (`FARPOOL_POOL`) and, unless arguments do, its certificates
/// (`FARPOOL_CERTS`, `FARPOOL_TENANT` and so on, as for the command). `transport="auto"` uses shared memory to nodes on
/// this machine and TCP to all others. `reserve` bytes are leased before this returns.
///
/// Connections to other machines are encrypted, and both sides prove their identity by certificates. Pass `ca`, `cert`
/// and `key` (PEM files); or pass `certs`, a folder made by `farpool certs init`, which uses the administrator's
/// certificate or that of `tenant`. Without certificates, brokers and nodes on other machines are refused, unless you
/// set `plaintext`. Then everybody on the network may read and change what is stored.
///
/// `protection` is the default for scratch files: "mirror" (copies on two nodes of different host labels), "local" (a
/// copy in `local_folder`, by default the system's folder for temporary files) or "none". If it is not given: "mirror"
/// if the pool has nodes of two host labels, otherwise "local". With `encrypted`, scratch
/// files are encrypted and authenticated before they leave this process: memory nodes can neither read them nor change
/// them unnoticed. Local copies are not encrypted.
///
/// If `http` is an address, such as "127.0.0.1:9710" (port 0 picks a free one), metrics and state of the session are
/// served there over HTTP until it is closed. Requests need the token of the file `http_token`, if one is given;
/// addresses of other machines need one.
///
/// Raises UnreachableError, RefusedError (on another machine without certificates, or one side does not trust the
/// other), InvalidError (url, transport, timeout, protection, certificates, http), ExhaustedError (reserve).
///
/// >>> with farpool.connect("farpool://127.0.0.1:7700") as pool:     # doctest: +SKIP
/// ...     pool.reserve("1GiB")
#[pyfunction]
#[pyo3(signature = (
    url=None, *, transport="auto", timeout="5s", reserve=None, ca=None, cert=None, key=None, certs=None,
    tenant=None, plaintext=false, protection=None, local_folder=None, encrypted=false, http=None, http_token=None
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn connect(
    py: Python<'_>,
    url: Option<&str>,
    transport: &str,
    timeout: &str,
    reserve: Option<&Bound<'_, PyAny>>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    certs: Option<PathBuf>,
    tenant: Option<&str>,
    plaintext: bool,
    protection: Option<&str>,
    local_folder: Option<PathBuf>,
    encrypted: bool,
    http: Option<&str>,
    http_token: Option<PathBuf>,
) -> PyResult<PyPool> {
    let options = PoolOptions {
        tls: certificates::tls(py, [ca, cert, key], certs, tenant)?,
        transport: self::transport(py, transport)?,
        request_timeout_ms: units::millis(py, "timeout", timeout)?,
        reserve_bytes: reserve.map_or(Ok(0), |reserve| units::bytes("reserve", reserve))?,
        plaintext,
        protection: self::protection(py, protection)?,
        local_folder: self::local_folder(local_folder),
        encrypt_scratch: encrypted,
        sandbox: function::installed_sandbox(py),
        ..PoolOptions::default()
    };
    let local_folder = options.local_folder.clone();
    let endpoint = http.map(|address| endpoint(py, address, http_token)).transpose()?;
    let opened = match url {
        Some(url) => py.detach(|| Pool::connect_with(url, options)),
        None if std::env::var_os(POOL_VARIABLE).is_none_or(|url| url.is_empty()) => {
            let message = format!(
                "no url was given and {POOL_VARIABLE} is not set: give the address of a pool, such as \
                 'farpool://127.0.0.1:7700', or start a pool in this process with farpool.embedded()"
            );
            return Err(errors::invalid(py, message));
        }
        None => py.detach(|| Pool::connect_from_environment(options)),
    };
    let pool = opened.map_err(|error| errors::of(py, &error))?;
    let served = endpoint.map(|endpoint| pool.serve_http(endpoint)).transpose()?;
    Ok(PyPool::new(pool, local_folder, served))
}

/// Binds the address at which a session is served over HTTP.
fn endpoint(py: Python<'_>, asked: &str, token: Option<PathBuf>) -> PyResult<Endpoint> {
    let wrong = |why: String| errors::invalid(py, format!("http {asked:?}: {why}"));
    let found = asked.to_socket_addrs().map_err(|error| wrong(format!("{error}; write HOST:PORT")))?;
    let address = found.into_iter().next().ok_or_else(|| wrong("it resolves to no address".into()))?;
    let mut access = Access::default();
    if let Some(path) = token {
        let loaded = access.with_token_file(&path);
        access = loaded.map_err(|error| errors::invalid(py, format!("http_token {error}")))?;
    }
    Endpoint::bind(address, access, None).map_err(|error| wrong(error.to_string()))
}

/// Starts a broker and `nodes` memory nodes inside this process, with `memory` bytes in total.
///
/// Use it for tests and to try things out: the memory is that of this process, and stays in the pool when the machine
/// runs short of it. The nodes end with this process and share one host, so `protection` is "none" unless given (see
/// `connect`).
///
/// >>> with farpool.embedded("128MiB", nodes=2) as small:
/// ...     [node["donated_bytes"] >> 20 for node in small.status()["nodes"]]
/// [64, 64]
#[pyfunction]
#[pyo3(signature = (
    memory=None, *, nodes=1, region_size=None, transport="auto", protection=None, local_folder=None
))]
pub(crate) fn embedded(
    py: Python<'_>,
    memory: Option<&Bound<'_, PyAny>>,
    nodes: u32,
    region_size: Option<&Bound<'_, PyAny>>,
    transport: &str,
    protection: Option<&str>,
    local_folder: Option<PathBuf>,
) -> PyResult<PyPool> {
    let pool = PoolOptions {
        transport: self::transport(py, transport)?,
        protection: self::protection(py, protection)?,
        local_folder: self::local_folder(local_folder),
        sandbox: function::installed_sandbox(py),
        ..PoolOptions::default()
    };
    let options = EmbeddedOptions {
        node_count: nodes,
        region_bytes: region_size.map(|value| units::bytes("region_size", value)).transpose()?,
        pool,
        ..EmbeddedOptions::new(memory.map_or(Ok(1 << 30), |memory| units::bytes("memory", memory))?)
    };
    let local_folder = options.pool.local_folder.clone();
    let opened = py.detach(|| Pool::embedded(options));
    opened.map(|pool| PyPool::new(pool, local_folder, None)).map_err(|error| errors::of(py, &error))
}

impl PyPool {
    fn new(pool: Pool, local_folder: PathBuf, http_address: Option<SocketAddr>) -> PyPool {
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
}

/// Converts the key of encrypted tables.
fn table_key(py: Python<'_>, key: Option<&[u8]>) -> PyResult<Option<TableKey>> {
    let key = key.map(TableKey::try_from).transpose();
    key.map_err(|wrong| errors::invalid(py, format!("key is {wrong}")))
}

fn opened(
    pool: &Pool,
    name: &str,
    key: Option<&TableKey>,
    encrypt_answers: bool,
) -> Result<FarTable, farpool::Error> {
    let table = key.map_or_else(|| pool.table(name), |key| pool.table_with_key(name, key))?;
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

#[pymethods]
impl PyPool {
    /// Address of the pool: `farpool://host:port` of its broker.
    #[getter]
    fn url(&self) -> String {
        self.pool.url().to_owned()
    }

    /// Folder for local copies of scratch files.
    #[getter]
    fn local_folder(&self) -> String {
        self.local_folder.display().to_string()
    }

    /// Address at which this session is served over HTTP. None without `http`.
    #[getter]
    fn http_address(&self) -> Option<String> {
        self.http_address.map(|address| address.to_string())
    }

    /// True if `close` was called.
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

    /// Ends the session. Its unpublished files are deleted, and their `File` objects raise ClosedError.
    fn close(&self, py: Python<'_>) {
        if self.forks == forks() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let pool = &*self.pool;
            py.detach(|| pool.close());
        }
    }

    /// Makes an empty file, which only this session sees until it is published.
    ///
    /// It takes no far memory yet, and does not look whether the name is taken, so it may hide a published file of the
    /// same name from this session. With `size_hint`, this many bytes may be leased ahead. The `protection` of scratch
    /// files is by default the session's (see `connect`); that of pinned files is "none", "rs(4,2)" or the like, or
    /// "mirror", which is the default where the pool has two hosts. Raises ExistsError if this session has a file of
    /// this name, InvalidError (also if no file can be made in the folder for local copies).
    ///
    /// >>> with pool.create("runs/0", size_hint="1MiB") as file:
    /// ...     file.write_at(0, b"more than this machine can hold")
    /// 31
    #[pyo3(signature = (name, *, file_class="scratch", size_hint=None, protection=None))]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        file_class: &str,
        size_hint: Option<&Bound<'_, PyAny>>,
        protection: Option<&str>,
    ) -> PyResult<PyFile> {
        let class = FileClass::from_word(file_class).ok_or_else(|| {
            errors::invalid(
                py,
                format!("file_class is {file_class:?}; 'scratch', 'cache' or 'pinned' is permitted"),
            )
        })?;
        let options = CreateOptions {
            size_hint: size_hint.map_or(Ok(0), |size_hint| units::bytes("size_hint", size_hint))?,
            protection: self::protection(py, protection)?,
            ..CreateOptions::default()
        };
        self.run(py, |pool| pool.create(name, class, options)).map(PyFile::new)
    }

    /// Opens a file of this session, or a published file for reading. Raises NotFoundError.
    ///
    /// >>> with pool.open("runs/0") as file:
    /// ...     file.read_at(5, 4)
    /// b'than'
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<PyFile> {
        self.run(py, |pool| pool.open(name)).map(PyFile::new)
    }

    /// Reports whether this session has a file of this name, or the pool a published one.
    ///
    /// >>> pool.exists("runs/0"), pool.exists("runs/9")
    /// (True, False)
    fn exists(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.run(py, |pool| pool.exists(name))
    }

    /// Deletes a file and gives its memory back. Raises NotFoundError, UnreachableError (published file).
    ///
    /// >>> pool.create("left over").close()
    /// >>> pool.delete("left over")
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.delete(name))
    }

    /// Renames a file. Raises NotFoundError, ExistsError (this session or, for a published file, the pool has a file of
    /// the new name).
    ///
    /// >>> pool.create("draft").close()
    /// >>> pool.rename("draft", "final")
    /// >>> pool.exists("final")
    /// True
    fn rename(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        self.run(py, |pool| pool.rename(old, new))
    }

    /// Publishes a file of this session under its name: any session may open it, and nobody can write to it any more.
    ///
    /// Raises NotFoundError, ExistsError (without `replace`), LostError, UnreachableError.
    ///
    /// >>> with pool.create("answers", file_class="pinned") as file:
    /// ...     file.write_at(0, b"42")
    /// 2
    /// >>> pool.publish("answers")
    #[pyo3(signature = (name, *, replace=false))]
    fn publish(&self, py: Python<'_>, name: &str, replace: bool) -> PyResult<()> {
        self.run(py, |pool| pool.publish(name, if_taken(replace)))
    }

    /// Sets a function that rebuilds published files whose names start with `prefix`, after a node lost their bytes.
    /// `function(pool, name)` must publish, with `replace`, a file of that name with exactly the same bytes.
    ///
    /// It is called in the thread that opens such a file or reads it by an earlier `File`, and that thread waits for
    /// it. If it raises an exception, the text becomes part of that thread's LostError. If two prefixes match, the
    /// later call wins.
    fn rebuild_with(slf: &Bound<'_, Self>, prefix: &str, function: Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if !function.is_callable() {
            let text = format!("function is {function}; it must be callable with a pool and a name");
            return Err(errors::invalid(py, text));
        }
        let pool = PyWeakrefReference::new(slf)?.unbind();
        let place = {
            let mut rebuilders = slf.get().rebuilders.lock();
            rebuilders.push(function.unbind());
            rebuilders.len() - 1
        };
        // The thread that needs the file has released the GIL while it waits.
        let rebuild = move |_: &Pool, name: &str| {
            Python::attach(|py| call_rebuilder(py, &pool, place, name))
                .map_err(|error| farpool::Error::not_rebuilt(error.to_string()))
        };
        slf.get().run(py, |pool| {
            pool.rebuild_with(prefix, rebuild);
            Ok(())
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the lock is taken, a thread is using the functions, so they are not garbage.
        match self.rebuilders.try_lock() {
            Some(rebuilders) => rebuilders.iter().try_for_each(|function| visit.call(function)),
            None => Ok(()),
        }
    }

    fn __clear__(&self) {
        let functions = std::mem::take(&mut *self.rebuilders.lock());
        drop(functions);
    }

    /// Returns the files of this session and the published files whose names start with `prefix`.
    ///
    /// >>> pool.list("answers")
    /// [FileInfo(name='answers', size=2, file_class='pinned', published=True)]
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

    /// Makes a far table of any object that has `__arrow_c_stream__`: tables of pyarrow, Polars, pandas and DuckDB, and
    /// readers of batches. It also takes a dataset or Parquet file of pyarrow, or a path that pyarrow can read
    /// (.parquet, .csv, .arrow, .feather, folders of .parquet). With `replace` it atomically replaces a table of that
    /// name once it is complete; until then the old table can be read.
    ///
    /// The values of a row lie together with `layout="rows"`, and all rows have the same width: no text, no nulls. With
    /// a `key` of 16 bytes the table is encrypted: nobody can read it without the key, and changes are detected. The
    /// names and types of columns, and the numbers of rows and nulls, are not encrypted.
    ///
    /// Where the pool has two hosts, each row group has copies on two of them, unless `protection` is "none". With
    /// `protection="rs(4,2)"` the row groups get parity on other hosts in place of copies. A scan goes on when a host
    /// is lost. If bytes are lost before they have a copy, data that has a length is put again.
    ///
    /// Raises ExistsError (there is a table of this name, and no `replace`), InvalidError (a type that far tables do
    /// not have, a row larger than a region, a file that cannot be read, a key of another length, a pool with one host
    /// and a mirror), ExhaustedError.
    ///
    /// >>> import pyarrow
    /// >>> items = pyarrow.table({"item": ["cup", "jug", "cup"], "year": [2024, 2025, 2026], "price": [2.5, 9.0, 3.0]})
    /// >>> pool.put_table("sales", items)
    #[pyo3(signature = (name, data, *, replace=false, layout="columns", key=None, protection=None))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn put_table(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        replace: bool,
        layout: &str,
        key: Option<&[u8]>,
        protection: Option<&str>,
    ) -> PyResult<()> {
        let layout = match layout {
            "columns" => TableLayout::Columns,
            "rows" => TableLayout::Rows,
            other => {
                let text = format!("layout is {other:?}: \"columns\" and \"rows\" are permitted");
                return Err(errors::invalid(py, text));
            }
        };
        let protection = self::protection(py, protection)?;
        let options = PutOptions { layout, key: table_key(py, key)?, replace, protection, made_by: None };
        table::put(data, |batches| {
            self.run(py, |pool| Ok(pool.put_table_with(name, batches.schema(), batches, &options)))
        })
    }

    /// Opens a far table. An encrypted one can be read only with its `key`. With `encrypt_answers`, nodes also encrypt
    /// the results of queries, even if the connection is encrypted, under a key for each scan.
    ///
    /// Raises NotFoundError, LostError, InvalidError (the file of this name is no table, or the key is wrong or
    /// missing), RefusedError (the table was modified).
    ///
    /// >>> table = pool.table("sales")
    /// >>> table.num_rows, table.column_names
    /// (3, ['item', 'year', 'price'])
    #[pyo3(signature = (name, *, key=None, encrypt_answers=false))]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&[u8]>,
        encrypt_answers: bool,
    ) -> PyResult<PyTable> {
        let key = table_key(py, key)?;
        self.run(py, |pool| opened(pool, name, key.as_ref(), encrypt_answers)).map(PyTable::new)
    }

    /// Returns a query over a far table, to be refined step by step. It reads nothing yet. `key` and `encrypt_answers`
    /// are those of `table`.
    ///
    /// Raises the errors of `table`, and InvalidError (it has columns of a type that queries do not support, or is
    /// encrypted and no key is given).
    ///
    /// >>> from farpool import col
    /// >>> pool.scan("sales").filter(col("price") > 2.7).select("item", "year").to_arrow().to_pylist()
    /// [{'item': 'jug', 'year': 2025}, {'item': 'cup', 'year': 2026}]
    #[pyo3(signature = (name, *, key=None, encrypt_answers=false))]
    fn scan(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&[u8]>,
        encrypt_answers: bool,
    ) -> PyResult<PyScan> {
        let key = table_key(py, key)?;
        self.run(py, |pool| PyScan::new(opened(pool, name, key.as_ref(), encrypt_answers)?))
    }

    /// Returns the far tables of the pool.
    ///
    /// >>> [table.name for table in pool.tables()]
    /// ['sales']
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = self.run(py, Pool::tables)?;
        let info = py.import("farpool._farpool")?.getattr("TableInfo")?;
        let list = PyList::empty(py);
        for table in found {
            list.append(info.call1((table.name, table.bytes, table.is_lost))?)?;
        }
        Ok(list)
    }

    /// Runs a function where the bytes of a published file, or the columns of a far table, are stored.
    ///
    /// `function` is a `Function`, the name of one stored in the pool, or "resident:NAME". `on` is a File, the name of
    /// one, or a Table. For a table it runs once at every node that has row groups of it, and sees `columns` in this
    /// order. `place` is "ship" (at the node that holds the bytes), "fetch" (here, over fetched bytes) or "auto"
    /// (whichever was faster so far). Resident and native functions run at nodes only.
    ///
    /// Returns a `Called`, or a list of them for a table. A call is not retried when its node dies, unless
    /// `rebuild_with` defines how to rebuild the file.
    ///
    /// Raises FunctionError (the function failed), RefusedError (the function cannot be used, or nodes do not run
    /// functions), LostError (bytes of the window were lost, for example because their node died), UnreachableError
    /// (the node does not answer), NotFoundError, InvalidError.
    ///
    /// >>> import struct
    /// >>> called = pool.run("resident:checksum", on="answers", args=struct.pack("<QQ", 0, 2))
    /// >>> len(called.output)
    /// 4
    #[pyo3(name = "run", signature = (
        function, on, args=b"".to_vec(), *, columns=None, placement="auto", deadline="10s", output_size=None, fresh=false
    ))]
    #[allow(clippy::too_many_arguments)]
    fn run_function<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        on: &Bound<'py, PyAny>,
        args: Vec<u8>,
        columns: Option<Vec<String>>,
        placement: &str,
        deadline: &str,
        output_size: Option<&Bound<'py, PyAny>>,
        fresh: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = Asked { columns, placement, deadline, output_size, fresh };
        // Checks first that the pool is open and of this process, before errors in the arguments are reported.
        self.run(py, |_| Ok(()))?;
        function::run(py, &self.pool, function, on, &args, asked)
    }

    /// Stores a function under a name, for all sessions. Returns the number of its version. With `replace`, a function
    /// of this name gets another version, unless its newest is the same. `protection`: "none", "mirror" (the default on
    /// two hosts), "rs(DATA,PARITY)". Raises ExistsError, InvalidError, ExhaustedError.
    #[pyo3(signature = (name, function, *, replace=false, protection=None))]
    fn put_function(
        &self,
        py: Python<'_>,
        name: &str,
        function: &PyFunction,
        replace: bool,
        protection: Option<&str>,
    ) -> PyResult<u32> {
        let (if_taken, protection) = (if_taken(replace), self::protection(py, protection)?);
        Ok(self.run(py, |pool| pool.put_function(name, &function.0, if_taken, protection))?.version)
    }

    /// Lets a tag name a version of a stored function, "NAME@VERSION" or "NAME" for the newest, and no other one.
    /// Returns the number of the version. Raises NotFoundError, InvalidError.
    fn tag_function(&self, py: Python<'_>, name: &str, tag: &str) -> PyResult<u32> {
        self.run(py, |pool| pool.tag_function(name, tag))
    }

    /// Returns the versions of a stored function, the newest first. Raises NotFoundError, LostError, InvalidError.
    fn function_versions<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        function::listed(py, self.run(py, |pool| pool.function_versions(name))?)
    }

    /// Returns a function stored in the pool: the newest version of "NAME", or "NAME@VERSION" or "NAME@TAG". Raises
    /// NotFoundError, LostError, InvalidError.
    fn function(&self, py: Python<'_>, name: &str) -> PyResult<PyFunction> {
        self.run(py, |pool| pool.function(name)).map(PyFunction)
    }

    /// Returns the names of the functions stored in the pool.
    fn functions(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let found = self.run(py, Pool::functions)?;
        Ok(found.into_iter().map(|info| info.name).collect())
    }

    /// Drops a function ("NAME"), a version of it with its tags ("NAME@VERSION") or a tag ("NAME@TAG") from the pool.
    /// Raises NotFoundError, InvalidError (the only version).
    fn drop_function(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.drop_function(name))
    }

    /// Drops a far table. Raises NotFoundError.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.drop_table(name))
    }

    /// Leases this many bytes ahead of use, so that writing them needs no broker. Raises ExhaustedError.
    ///
    /// >>> pool.reserve("1MiB")
    fn reserve(&self, py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = units::bytes("nbytes", nbytes)?;
        self.run(py, |pool| pool.reserve(bytes))
    }

    /// Returns the counters of this session and what it holds. Contacts no other process.
    ///
    /// >>> pool.stats()["bytes_written"] > 0
    /// True
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

    /// Returns the state of the pool, as the broker knows it. Raises UnreachableError.
    ///
    /// >>> sorted(file["name"] for file in pool.status()["files"])[0]
    /// 'answers'
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
