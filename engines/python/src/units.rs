//! Sizes and times that Python passes, in the grammar of all interfaces.

use crate::errors;
use farpool::units;
use pyo3::prelude::*;

/// Converts a number, or text with a unit, to bytes.
pub(crate) fn bytes(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(number) = value.extract::<u64>() {
        return Ok(number);
    }
    // A number that is negative or has a fraction is no size either.
    let text = value.extract::<String>().unwrap_or_else(|_| value.to_string());
    units::bytes(&text).map_err(|wrong| errors::invalid(value.py(), format!("{what}: {wrong}")))
}

/// Converts text such as `250ms` or `5s` to milliseconds.
pub(crate) fn millis(py: Python<'_>, what: &str, text: &str) -> PyResult<u64> {
    let millis = units::millis(text).map_err(|wrong| errors::invalid(py, format!("{what}: {wrong}")))?;
    Ok(millis.into())
}

/// Converts `value` to bytes, as every parameter of type `Size` does. `what` names the parameter in the error.
#[pyfunction]
pub(crate) fn _size_bytes(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    bytes(what, value)
}

/// Returns `text` with the control characters that a terminal would interpret escaped, except line feeds.
#[pyfunction]
pub(crate) fn _shown(text: &str) -> String {
    farpool::shown_lines(text).to_string()
}

/// Returns the least limit in bytes of this process's control groups, such as a pod, and the least available bytes of
/// one. `None` if none limits it more than its host does.
#[pyfunction]
pub(crate) fn _group_memory() -> Option<(u64, u64)> {
    farpool::UsableMemory::find().group_limit().map(|group| (group.total_bytes, group.available_bytes))
}

/// Formats bytes for a message: three digits and a unit, such as `1.5 GiB`.
#[pyfunction]
pub(crate) fn _size_text(bytes: u64) -> String {
    units::show_bytes(bytes)
}
