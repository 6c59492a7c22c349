//! `farpool.Stream`: the rows of a query, as they arrive.
//!
//! The idea: a query without grouping or sort can be run on some row groups at a time, so its result needs memory for
//! two such steps and not for the whole table. A thread runs the next step while the reader takes the rows of the last
//! one. If the reader is slow, the thread waits, and no more than one step is ahead. If the reader stops, the query
//! ends with the current step. A query that needs all rows before it returns one (a grouping or a top-k) is a single
//! step.
//!
//! Never in this module: a use of the interpreter in that thread, or an early end of the rows without an error.

use crate::report::told;
use crate::scan::PyScan;
use crate::{arrow, errors};
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use farpool::Placement;
use farpool::operators::Operator;
use farpool::operators::Plan;
use farpool::table::Report;
use farpool_lock::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Number of row groups of the first step. It is small, so that the first rows arrive soon, and little work is wasted
/// if the reader wants only a few.
const FIRST_GROUPS: usize = 2;
/// Number of row groups of a step, at most. Each step has twice as many as the one before, from [`FIRST_GROUPS`] up to
/// this.
const STEP_GROUPS: usize = 16;

/// Merged report and number of rows of all steps so far.
#[derive(Debug, Default)]
pub(crate) struct Done {
    report: Option<Report>,
    rows: u64,
}

impl Done {
    fn add(&mut self, report: &Report, rows: u64) {
        match &mut self.report {
            Some(all) => all.add(report),
            None => self.report = Some(report.clone()),
        }
        self.rows += rows;
    }
}

/// Message from the thread that runs the steps.
enum Sent {
    Batches(Vec<RecordBatch>),
    Failed(ArrowError),
    End,
}

/// Division of a query into steps.
enum Course {
    /// A single step.
    Whole,
    /// Several steps, until this many rows were returned. `None` for all rows.
    Steps(Option<u64>),
}

fn course(plan: &Plan, is_ordered: bool) -> Course {
    let near = plan.near.operators();
    // The keys of semi-joins are sent with each run, so a query with keys is one step.
    if is_ordered || !plan.key_sets.is_empty() {
        return Course::Whole;
    }
    match near.last() {
        Some(Operator::Group { .. } | Operator::Top { .. }) => Course::Whole,
        // An operation that the client applies after the limit may drop rows, so the limit cannot be applied to each
        // step alone.
        Some(Operator::Limit(_)) if !plan.finish.operators().is_empty() => Course::Whole,
        Some(Operator::Limit(rows)) => Course::Steps(Some(*rows)),
        _ => Course::Steps(None),
    }
}

/// Runs the steps of a query one after another, on a thread of its own, while the reader takes rows.
fn run(scan: &PyScan, plan: &Plan, placement: Placement, done: &Mutex<Done>, sender: &SyncSender<Sent>) {
    let note = |report: &Report, batches: &[RecordBatch]| {
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        done.lock().add(report, rows);
    };
    let failed = |error: farpool::Error| Sent::Failed(ArrowError::ExternalError(Box::new(error)));
    let mut left = match course(plan, scan.is_ordered()) {
        Course::Whole => {
            let sent = match scan.answer(plan, placement) {
                Ok((answer, batches)) => {
                    note(&answer.report, &batches);
                    Sent::Batches(batches)
                }
                Err(error) => Sent::Failed(ArrowError::ExternalError(error)),
            };
            let is_whole = matches!(sent, Sent::Batches(_));
            if sender.send(sent).is_ok() && is_whole {
                let _ = sender.send(Sent::End);
            }
            return;
        }
        Course::Steps(rows) => rows,
    };
    let table = match scan.open_for(plan) {
        Ok(table) => table,
        Err(error) => {
            let _ = sender.send(failed(error));
            return;
        }
    };
    let groups: Vec<usize> = (0..table.row_groups().len()).collect();
    let (mut from, mut count) = (0, FIRST_GROUPS);
    // A table without row groups still gets one step, which returns no rows.
    while from < groups.len().max(1) {
        let step = &groups[from..groups.len().min(from + count)];
        let mut answer = match table.run_groups(plan, placement, step) {
            Ok(answer) => answer,
            Err(error) => {
                let _ = sender.send(failed(error));
                return;
            }
        };
        if let Some(left) = &mut left {
            for batch in &mut answer.batches {
                let rows = usize::try_from(*left).unwrap_or(usize::MAX).min(batch.num_rows());
                *batch = batch.slice(0, rows);
                *left -= rows as u64;
            }
        }
        note(&answer.report, &answer.batches);
        if sender.send(Sent::Batches(answer.batches)).is_err() {
            // The reader was dropped, so no more rows are needed.
            return;
        }
        if left == Some(0) {
            break;
        }
        from += count;
        count = (count * 2).min(STEP_GROUPS);
    }
    let _ = sender.send(Sent::End);
}

/// Batches of the steps, as a reader.
struct Steps {
    schema: SchemaRef,
    ready: VecDeque<RecordBatch>,
    receiver: Option<Receiver<Sent>>,
}

impl Iterator for Steps {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            match self.receiver.as_ref()?.recv() {
                Ok(Sent::Batches(batches)) => {
                    self.ready.extend(batches.into_iter().filter(|batch| batch.num_rows() > 0));
                }
                Ok(Sent::End) => self.receiver = None,
                Ok(Sent::Failed(error)) => {
                    self.receiver = None;
                    return Some(Err(error));
                }
                // The thread panicked. That must not look like the end of the rows.
                Err(_) => {
                    self.receiver = None;
                    let text = "internal: the thread of the query ended before all rows were read";
                    return Some(Err(ArrowError::ExternalError(text.into())));
                }
            }
        }
    }
}

impl RecordBatchReader for Steps {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Rows of a query, as they arrive. They can be read once, by any library that reads Arrow streams. The query starts
/// with the first read, and runs some row groups ahead of the reader.
#[pyclass(name = "Stream", module = "farpool", frozen)]
pub(crate) struct PyStream {
    schema: SchemaRef,
    /// Query to run. `None` once its rows are being read.
    query: Mutex<Option<(PyScan, Plan, Placement)>>,
    done: Arc<Mutex<Done>>,
}

impl PyStream {
    pub(crate) fn new(scan: PyScan, plan: Plan, placement: Placement) -> PyStream {
        PyStream {
            schema: scan.arrow_schema(),
            query: Mutex::new(Some((scan, plan, placement))),
            done: Arc::new(Mutex::new(Done::default())),
        }
    }
}

#[pymethods]
impl PyStream {
    /// Report of the steps so far: row groups, bytes and times.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let done = self.done.lock();
        told(py, done.report.as_ref(), done.rows)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema_capsule_of(py, &self.schema)
    }

    /// Exports the rows to any library that reads Arrow, once. Raises InvalidError the second time.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let taken = self.query.lock().take();
        let Some((scan, plan, placement)) = taken else {
            return Err(errors::invalid(
                py,
                "the rows of this stream were already read; call stream() again",
            ));
        };
        scan.usable(py)?;
        // A capacity of 0 makes the thread run one step ahead of the reader, and no more.
        let (sender, receiver) = sync_channel(0);
        let done = Arc::clone(&self.done);
        std::thread::Builder::new()
            .name("farpool-steps".to_owned())
            .spawn(move || run(&scan, &plan, placement, &done, &sender))?;
        let steps =
            Steps { schema: Arc::clone(&self.schema), ready: VecDeque::new(), receiver: Some(receiver) };
        arrow::capsule_of(py, requested_schema, Box::new(steps))
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        format!("<farpool.Stream of {}>", farpool::shown(&names.join(", ")))
    }
}
