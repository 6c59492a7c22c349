//! Reports and estimates of queries as Python dictionaries.

use farpool::Way;
use farpool::table::{Estimates, Report};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;

/// Returns the report of a query as a dictionary. `None` for a query that has not run yet makes all numbers zero.
pub(crate) fn told<'py>(py: Python<'py>, report: Option<&Report>, rows: u64) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("placement", report.map(|report| report.placement.name()))?;
    told.set_item("chosen", report.map(|report| report.chosen.name()))?;
    if let Some(estimates) = report.and_then(|report| report.estimates.as_ref()) {
        told.set_item("why", &estimates.why)?;
        told.set_item("sure", estimates.is_sure)?;
        told.set_item("expected", expected(py, estimates)?)?;
    }
    let number = |of: fn(&Report) -> u64| report.map_or(0, of);
    let seconds = |of: fn(&Report) -> Duration| report.map_or(0.0, |report| of(report).as_secs_f64());
    told.set_item("tried", number(|report| report.tried as u64))?;
    told.set_item("corrected", report.is_some_and(|report| report.is_corrected))?;
    told.set_item("files", number(|report| report.files as u64))?;
    told.set_item("files_skipped", number(|report| report.files_skipped as u64))?;
    told.set_item("row_groups", number(|report| report.row_groups as u64))?;
    told.set_item("shipped", number(|report| report.shipped as u64))?;
    told.set_item("fetched", number(|report| report.fetched as u64))?;
    told.set_item("skipped", number(|report| report.skipped as u64))?;
    told.set_item("rows", rows)?;
    told.set_item("result_bytes", number(|report| report.result_bytes))?;
    told.set_item("fetched_bytes", number(|report| report.fetched_bytes))?;
    told.set_item("lookup_bytes", number(|report| report.lookup_bytes))?;
    told.set_item("link_bytes", number(Report::link_bytes))?;
    told.set_item("node_bytes", number(|report| report.node_bytes))?;
    told.set_item("node_seconds", seconds(|report| report.node_time))?;
    told.set_item("client_seconds", seconds(|report| report.client_time))?;
    told.set_item("seconds", seconds(|report| report.elapsed))?;
    told.set_item("trace", report.map(|report| report.trace.to_string()))?;
    told.set_item("refusals", report.map(|report| report.refusals.clone()).unwrap_or_default())?;
    Ok(told)
}

/// Returns the estimates for each placement as a dictionary.
pub(crate) fn expected<'py>(py: Python<'py>, estimates: &Estimates) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    for way in Way::ALL {
        let estimate = estimates.of(way);
        let of = PyDict::new(py);
        of.set_item("seconds", estimate.time.as_secs_f64())?;
        of.set_item("link_bytes", estimate.link_bytes)?;
        of.set_item("node_seconds", estimate.node_time.as_secs_f64())?;
        of.set_item("client_seconds", estimate.client_time.as_secs_f64())?;
        told.set_item(way.name(), of)?;
    }
    Ok(told)
}
