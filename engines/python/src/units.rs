//! Parses the sizes and times that Python passes, and formats sizes for people.

use crate::errors;
use pyo3::prelude::*;

/// Converts a number, or text with a unit, to bytes.
pub(crate) fn bytes(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = value.py();
    let permitted = "a whole number of bytes, or one with KiB, MiB, GiB or TiB such as '64MiB', is permitted";
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

/// Converts text such as `250ms` or `5s` to milliseconds.
pub(crate) fn millis(py: Python<'_>, what: &str, text: &str) -> PyResult<u64> {
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
            format!("{what} is {text:?}; a number with ms, s or m is permitted, such as '250ms' or '5s'"),
        ));
    }
    Ok(millis as u64)
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

/// Formats bytes for a message: three digits and a unit, such as `1.5 GiB`.
#[pyfunction]
pub(crate) fn _size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0 && value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}
