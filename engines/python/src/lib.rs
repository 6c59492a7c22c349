//! The compiled half of the Python wheel: the crate `farpool` as Python classes.
//!
//! The GIL is released around every call that may wait or copy. Python buffers are read and written in place. An object
//! that was made before a fork raises an error in the child, which has neither its threads nor its connections.
//!
//! Never in this crate: a decision. It converts arguments, results and errors between Python and the library.
#![deny(unsafe_code)]

mod arrow;
mod buffers;
mod certificates;
mod errors;
mod expression;
mod file;
mod function;
mod literal;
mod opening;
mod pool;
mod relay;
mod report;
mod scan;
mod stream;
mod table;
mod transaction;
mod units;
mod watch;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the process that imported the module and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Called by Python in the child after each fork (`os.register_at_fork`).
#[pyfunction]
fn _after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[pymodule]
fn _farpool(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    errors::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for (name, kind) in listed_types(py)? {
        module.add(name, kind)?;
    }
    module.add_class::<pool::PyPool>()?;
    module.add_class::<transaction::PyTransaction>()?;
    table::register(module)?;
    module.add_class::<file::PyFile>()?;
    module.add_class::<function::PyFunction>()?;
    module.add_class::<function::PyCalled>()?;
    module.add_class::<table::PyTable>()?;
    module.add_class::<watch::PyWatch>()?;
    module.add_class::<expression::PyExpr>()?;
    module.add_class::<scan::PyScan>()?;
    module.add_class::<scan::PyGroupBy>()?;
    module.add_class::<scan::PyRows>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_function(wrap_pyfunction!(expression::col, module)?)?;
    module.add_function(wrap_pyfunction!(expression::lit, module)?)?;
    module.add_function(wrap_pyfunction!(expression::len, module)?)?;
    module.add_function(wrap_pyfunction!(opening::connect, module)?)?;
    module.add_function(wrap_pyfunction!(opening::embedded, module)?)?;
    module.add_class::<relay::PyRelay>()?;
    module.add_function(wrap_pyfunction!(relay::_relay_to, module)?)?;
    module.add_function(wrap_pyfunction!(relay::_relay_from, module)?)?;
    module.add_function(wrap_pyfunction!(relay::_has_certificates, module)?)?;
    module.add_function(wrap_pyfunction!(units::_group_memory, module)?)?;
    module.add_function(wrap_pyfunction!(units::_shown, module)?)?;
    module.add_function(wrap_pyfunction!(units::_size_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(units::_size_text, module)?)?;
    let kwargs = pyo3::types::PyDict::new(py);
    kwargs.set_item("after_in_child", wrap_pyfunction!(_after_fork_in_child, module)?)?;
    py.import("os")?.getattr("register_at_fork")?.call((), Some(&kwargs))?;
    Ok(())
}

/// Returns the types of what the module lists, by name.
fn listed_types(py: Python<'_>) -> PyResult<[(&'static str, Bound<'_, PyAny>); 2]> {
    let kwargs = PyDict::new(py);
    kwargs.set_item("module", "farpool")?;
    let make = py.import("collections")?.getattr("namedtuple")?;
    let named = |name: &'static str, fields: &[&str]| {
        PyResult::Ok((name, make.call((name, fields.to_vec()), Some(&kwargs))?))
    };
    let version = ["version", "stored", "owner", "form", "entry", "digest", "size", "tags"];
    Ok([
        named("FileInfo", &["name", "size", "file_class", "published"])?,
        named("FunctionVersion", &version)?,
    ])
}
