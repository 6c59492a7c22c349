//! `farpool.Function`, `farpool.Called`, and `Pool.run`.

use crate::file::PyFile;
use crate::scan::placement_of;
use crate::table::PyTable;
use crate::{errors, units};
use farpool::Pool;
use farpool::function::{CallOptions, Called, CallerOptions, Function, FunctionVersion};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};
use std::path::PathBuf;
use std::time::Duration;

/// Name of the program in which a session runs functions on this machine. Other programs search for it beside the
/// running executable. That does not work here: the interpreter of a virtual environment is often a link into another
/// folder.
const SANDBOX: &str = "farpool-sandbox";
/// Environment variable with the path of the sandbox program. It takes precedence over the program that was installed.
const SANDBOX_VARIABLE: &str = "FARPOOL_SANDBOX";
/// Path of the sandbox program that was installed with this package, looked up once.
static INSTALLED: PyOnceLock<Option<PathBuf>> = PyOnceLock::new();

/// Returns the path of the sandbox program that was installed with this package. `None` if the environment variable
/// names one, or if the package was installed without a list of its files. The program is then searched for as other
/// programs do it.
pub(crate) fn installed_sandbox(py: Python<'_>) -> Option<PathBuf> {
    if std::env::var_os(SANDBOX_VARIABLE).is_some() {
        return None;
    }
    let find = || {
        let files = py.import("importlib.metadata")?.call_method1("files", ("farpool",))?;
        for file in files.try_iter()? {
            let file = file?;
            if file.getattr("name")?.extract::<String>()? == SANDBOX {
                return Ok(Some(file.call_method0("locate")?.extract::<PathBuf>()?));
            }
        }
        PyResult::Ok(None::<PathBuf>)
    };
    INSTALLED.get_or_init(py, || find().ok().flatten().filter(|file| file.is_file())).clone()
}

/// A function that can be run beside far memory.
#[pyclass(name = "Function", module = "farpool", frozen)]
pub(crate) struct PyFunction(pub(crate) Function);

#[pymethods]
impl PyFunction {
    /// Makes a function of a WebAssembly module and the name of one of its exports.
    #[staticmethod]
    fn wasm(py: Python<'_>, module: Vec<u8>, entry: &str) -> PyResult<PyFunction> {
        Function::wasm(module, entry).map(PyFunction).map_err(|error| errors::of(py, &error))
    }

    /// Names a function that nodes were built with. All nodes have `walk`, `checksum` and `find`.
    #[staticmethod]
    fn resident(py: Python<'_>, name: &str) -> PyResult<PyFunction> {
        Function::resident(name).map(PyFunction).map_err(|error| errors::of(py, &error))
    }

    /// Makes a function of a shared object, the name of one of its symbols, and the Ed25519 public key and signature
    /// that authorise it.
    #[staticmethod]
    fn native(
        py: Python<'_>,
        object: Vec<u8>,
        entry: &str,
        key: [u8; 32],
        signature: [u8; 64],
    ) -> PyResult<PyFunction> {
        let function = Function::native(object, entry, key, signature);
        function.map(PyFunction).map_err(|error| errors::of(py, &error))
    }

    /// Form of the function: `resident`, `wasm` or `native`.
    #[getter]
    fn form(&self) -> &'static str {
        self.0.form().word()
    }

    /// Name of the export or symbol that is called, or of the resident function.
    #[getter]
    fn entry(&self) -> &str {
        self.0.entry()
    }

    /// SHA-256 of the function's bytes.
    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.digest())
    }

    fn __repr__(&self) -> String {
        format!("<farpool.Function {} {:?}>", self.0.form().word(), self.0.entry())
    }
}

/// Result of a call of a function.
#[pyclass(name = "Called", module = "farpool", frozen)]
pub(crate) struct PyCalled(Called);

#[pymethods]
impl PyCalled {
    /// Output of the function.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.output)
    }

    /// Returns the output as a NumPy array of this type, which shares the bytes of `output`.
    fn numpy<'py>(&self, py: Python<'py>, dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?.call_method1("frombuffer", (self.output(py), dtype))
    }

    /// Returns the output as a `pyarrow.Table`. It must be an Arrow IPC stream.
    fn arrow<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("pyarrow.ipc")?.call_method1("open_stream", (self.output(py),))?.call_method0("read_all")
    }

    /// Seconds for which the function itself ran.
    #[getter]
    fn ran(&self) -> f64 {
        self.0.ran.as_secs_f64()
    }

    /// Number of times that the call moved to another node.
    #[getter]
    fn hops(&self) -> u32 {
        self.0.hops
    }

    /// Trace id of the call, which the nodes where it ran write to their logs.
    #[getter]
    fn trace(&self) -> String {
        self.0.trace.to_string()
    }

    /// Number of 64 KiB blocks that were not where the function ran and had to be loaded.
    #[getter]
    fn supplied(&self) -> u32 {
        self.0.supplied
    }

    /// Name of the node where the call ended; None for this machine.
    #[getter]
    fn node(&self) -> Option<&str> {
        self.0.node.as_deref()
    }

    fn __repr__(&self) -> String {
        let at = self.0.node.as_deref().unwrap_or("this machine");
        let (bytes, at) = (self.0.output.len(), farpool::shown(at));
        format!("<farpool.Called: {bytes} bytes from {at}, ran {:?}>", self.0.ran)
    }
}

/// Arguments of a call, as Python passed them.
pub(crate) struct Asked<'a> {
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) placement: &'a str,
    pub(crate) deadline: &'a str,
    pub(crate) output_size: Option<&'a Bound<'a, PyAny>>,
    pub(crate) fresh: bool,
}

/// Returns the function that a call names: the argument itself, or the function stored in the pool under that name.
fn find(py: Python<'_>, pool: &Pool, function: &Bound<'_, PyAny>) -> PyResult<Function> {
    if let Ok(function) = function.cast::<PyFunction>() {
        return Ok(function.get().0.clone());
    }
    let name: String = function
        .extract()
        .map_err(|_| errors::invalid(py, "function must be a farpool.Function or the name of one"))?;
    let found = match name.strip_prefix("resident:") {
        Some(resident) => Function::resident(resident),
        None => py.detach(|| pool.function(&name)),
    };
    found.map_err(|error| errors::of(py, &error))
}

/// Implements `Pool.run`: returns one `Called` if `on` is a file, and a list of them if it is a table.
pub(crate) fn run<'py>(
    py: Python<'py>,
    pool: &Pool,
    function: &Bound<'py, PyAny>,
    on: &Bound<'py, PyAny>,
    args: &[u8],
    asked: Asked<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let function = find(py, pool, function)?;
    let placement = placement_of(py, asked.placement)?;
    let deadline = Duration::from_millis(units::millis(py, "deadline", asked.deadline)?);
    let call = CallOptions { placement, fresh: asked.fresh, deadline, ..CallOptions::default() };
    let mut options = CallerOptions::default();
    if let Some(size) = asked.output_size {
        options.output_bytes = u32::try_from(units::bytes("output_size", size)?).unwrap_or(u32::MAX);
    }
    let of = |error: farpool::Error| errors::of(py, &error);
    if let Ok(table) = on.cast::<PyTable>() {
        let table = table.get().usable(py)?;
        let names = asked.columns.unwrap_or_default();
        let columns: Vec<&str> = names.iter().map(String::as_str).collect();
        let caller = table.caller(&columns, options).map_err(of)?;
        let called = py.detach(|| caller.call_each(&function, args, call)).map_err(of)?;
        let called: Vec<PyCalled> = called.into_iter().map(PyCalled).collect();
        return Ok(called.into_pyobject(py)?.into_any());
    }
    if asked.columns.is_some() {
        return Err(errors::invalid(py, "columns can be given for a far table only; a far file has none"));
    }
    let caller = match on.cast::<PyFile>() {
        Ok(file) => file.get().usable(py)?.caller(options),
        Err(_) => {
            let name: String = on.extract().map_err(|_| {
                errors::invalid(py, "functions run on a farpool.Table, a farpool.File or a file's name")
            })?;
            py.detach(|| pool.open(&name)?.caller(options))
        }
    };
    let caller = caller.map_err(of)?;
    let called = py.detach(|| caller.call(&function, args, call)).map_err(of)?;
    Ok(Bound::new(py, PyCalled(called))?.into_any())
}

/// Returns versions of a function as `FunctionVersion`s.
pub(crate) fn listed(py: Python<'_>, versions: Vec<FunctionVersion>) -> PyResult<Bound<'_, PyList>> {
    let info = py.import("farpool._farpool")?.getattr("FunctionVersion")?;
    let datetime = py.import("datetime")?;
    let utc = datetime.getattr("timezone")?.getattr("utc")?;
    let from_timestamp = datetime.getattr("datetime")?.getattr("fromtimestamp")?;
    let list = PyList::empty(py);
    for version in versions {
        let stored = from_timestamp.call1((version.stored_s, &utc))?;
        let digest = PyBytes::new(py, &version.digest);
        let (form, bytes) = (version.form.word(), version.bytes);
        let fields =
            (version.version, stored, version.owner, form, version.entry, digest, bytes, version.tags);
        list.append(info.call1(fields)?)?;
    }
    Ok(list)
}
