//! Exceptions of the package. Each is an `OSError`, because engines expect errors of files to be one. Some also derive
//! from a builtin class, so that for example `except FileNotFoundError` works.

use farpool::ErrorKind;
use pyo3::exceptions::{PyFileExistsError, PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

struct Kinds {
    lost: Py<PyType>,
    exhausted: Py<PyType>,
    lease: Py<PyType>,
    not_found: Py<PyType>,
    exists: Py<PyType>,
    fork: Py<PyType>,
    invalid: Py<PyType>,
    closed: Py<PyType>,
    tampered: Py<PyType>,
    unreachable: Py<PyType>,
    refused: Py<PyType>,
    function: Py<PyType>,
    conflict: Py<PyType>,
    error: Py<PyType>,
}

static KINDS: PyOnceLock<Kinds> = PyOnceLock::new();

fn new_type<'py>(
    module: &Bound<'py, PyModule>,
    name: &str,
    doc: &str,
    bases: &[Bound<'py, PyType>],
) -> PyResult<Py<PyType>> {
    let py = module.py();
    let members = PyDict::new(py);
    members.set_item("__module__", "farpool")?;
    members.set_item("__doc__", doc)?;
    let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, members))?;
    let made: Bound<'py, PyType> = made.cast_into::<PyType>()?;
    module.add(name, &made)?;
    Ok(made.unbind())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base_doc =
        "Base of all errors of this package. The text says what was refused, by whom, and what to do.";
    let error = new_type(module, "Error", base_doc, &[py.get_type::<PyOSError>()])?;
    let kind = |name: &str, doc: &str, also: Option<Bound<'_, PyType>>| {
        let mut bases = vec![error.bind(py).clone()];
        bases.extend(also);
        new_type(module, name, doc, &bases)
    };
    let kinds = Kinds {
        lost: kind("LostError", "Bytes were lost with the named memory node. Write them again.", None)?,
        exhausted: kind("ExhaustedError", "The pool does not have that many free bytes.", None)?,
        lease: kind("LeaseError", "The bytes cannot be read: the last write to them failed.", None)?,
        not_found: kind(
            "NotFoundError",
            "No file of this name.",
            Some(py.get_type::<PyFileNotFoundError>()),
        )?,
        exists: kind("ExistsError", "The name is taken.", Some(py.get_type::<PyFileExistsError>()))?,
        fork: kind("ForkError", "Made before a fork, used in the child: connect again there.", None)?,
        invalid: kind(
            "InvalidError",
            "An argument is wrong; the text names its value and what is permitted.",
            Some(py.get_type::<PyValueError>()),
        )?,
        closed: kind("ClosedError", "The pool or file was closed or deleted.", None)?,
        tampered: kind(
            "TamperedError",
            "A node returned other bytes than were written to an encrypted file.",
            None,
        )?,
        unreachable: kind("UnreachableError", "Broker or node did not answer in time.", None)?,
        refused: kind(
            "RefusedError",
            "The address is on another machine and neither certificates nor `plaintext` were given; or a peer refused.",
            None,
        )?,
        conflict: kind(
            "ConflictError",
            "Another commit has changed the table meanwhile. Nothing was changed.",
            None,
        )?,
        function: kind("FunctionError", "A shipped function failed; the text says how and where.", None)?,
        error,
    };
    // Setting the types fails only if they were set before, and the module is initialised once in a process.
    let _ = KINDS.set(py, kinds);
    Ok(())
}

fn raise(py: Python<'_>, pick: impl FnOnce(&Kinds) -> &Py<PyType>, text: String) -> PyErr {
    match KINDS.get(py) {
        Some(kinds) => PyErr::from_type(pick(kinds).bind(py).clone(), text),
        None => PyOSError::new_err(text),
    }
}

pub(crate) fn invalid(py: Python<'_>, text: impl Into<String>) -> PyErr {
    raise(py, |kinds| &kinds.invalid, text.into())
}

pub(crate) fn closed(py: Python<'_>, text: impl Into<String>) -> PyErr {
    raise(py, |kinds| &kinds.closed, text.into())
}

pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let text =
        "this object was made before a fork, in the parent process: call farpool.connect() in this process";
    raise(py, |kinds| &kinds.fork, text.to_owned())
}

pub(crate) fn of(py: Python<'_>, error: &farpool::Error) -> PyErr {
    let pick = |kinds: &'_ Kinds| -> Py<PyType> {
        let kind = match error.kind() {
            ErrorKind::Lost => &kinds.lost,
            ErrorKind::Exhausted => &kinds.exhausted,
            ErrorKind::Poisoned => &kinds.lease,
            ErrorKind::NotFound => &kinds.not_found,
            ErrorKind::Exists => &kinds.exists,
            ErrorKind::Forked => &kinds.fork,
            ErrorKind::Invalid | ErrorKind::ReadOnly => &kinds.invalid,
            ErrorKind::Closed => &kinds.closed,
            ErrorKind::Tampered => &kinds.tampered,
            ErrorKind::Unreachable => &kinds.unreachable,
            ErrorKind::Refused => &kinds.refused,
            ErrorKind::Stopped => &kinds.function,
            ErrorKind::Conflict => &kinds.conflict,
            _ => &kinds.error,
        };
        kind.clone_ref(py)
    };
    match KINDS.get(py) {
        Some(kinds) => PyErr::from_type(pick(kinds).into_bound(py), error.to_string()),
        None => PyOSError::new_err(error.to_string()),
    }
}
