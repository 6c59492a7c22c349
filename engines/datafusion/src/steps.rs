//! Execution of a scan: steps of a few row groups each, which the partitions take from one queue.
//!
//! The idea: each step is a query of its own over its row groups. That has three uses. The memory of a scan is bounded.
//! A dynamic filter that changes while the scan runs excludes rows of all later steps. And the planner chooses the
//! placement of each step anew, from the times that the last steps took. While DataFusion works on the batches of one
//! step, the next steps already run.
//!
//! A scan with a limit begins with one row group and stops early. Groupings and top-k need all rows at once, so they
//! are a single step.

use crate::pipeline::Narrowing;
use crate::source::FarSource;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::kernels::cmp::eq;
use datafusion::arrow::compute::{CastOptions, cast_with_options, nullif};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_plan::metrics::{Count, MetricBuilder, Time};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use farpool::Placement;
use farpool::table::Report;
use farpool_lock::Mutex;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of row groups of the first step. It is small, so that the planner soon knows the cost of the scan.
const FIRST: usize = 2;
/// Number of row groups of a step, at most. Each step has twice as many as the one before, from [`FIRST`] up to this.
const STEP: usize = 16;
/// Limit for the bytes of columns that a step reads. A single row group that is larger is still a step.
const STEP_BYTES: u64 = 32 << 20;
/// Bytes of columns that a step reads, at least, for each byte of join keys that it sends (unless fewer are left). Each
/// step sends all keys again, so a step with many keys is made larger.
const KEYS_SHARE: u64 = 100;
/// Percentage of rows found in the join keys above which the scan stops looking rows up. The lookup costs time at the
/// nodes, and the join drops the other rows anyway.
const FOUND_MAX: u64 = 75;
/// Number of steps in flight for each partition, beside the step whose batches are being consumed.
const AHEAD: usize = 2;

/// Queue of the steps of one execution, shared by its partitions.
#[derive(Debug)]
pub(crate) struct Steps {
    source: FarSource,
    placement: Placement,
    left: Mutex<Left>,
    /// Number of rows still to return. [`u64::MAX`] for a scan without a limit.
    wanted: AtomicU64,
    /// True if no more steps are taken: after an error, or after the single step of a grouping or top-k.
    is_over: AtomicBool,
    /// True once looking rows up in join keys has turned out to exclude too few of them, so that it is not done any
    /// more.
    finds_most: AtomicBool,
}

#[derive(Debug)]
struct Left {
    /// Row groups that no step has taken yet.
    groups: VecDeque<usize>,
    /// Number of row groups of the next step.
    step: usize,
    /// Watchers that tell whether a dynamic filter has changed, and the conditions as of the last change. `None` before
    /// the first step.
    tracking: Option<(Vec<DynamicFilterTracking>, Arc<Narrowing>)>,
}

/// Step taken from the queue.
struct Step {
    groups: Vec<usize>,
    narrowing: Arc<Narrowing>,
}

/// Metrics of a partition, for EXPLAIN ANALYZE.
#[derive(Clone)]
struct Counters {
    shipped: Count,
    fetched: Count,
    skipped: Count,
    result_bytes: Count,
    fetched_bytes: Count,
    lookup_bytes: Count,
    rows: Count,
    node_time: Time,
    client_time: Time,
    elapsed: Time,
}

impl Steps {
    pub(crate) fn new(source: FarSource, placement: Placement) -> Steps {
        let groups = source.groups().iter().copied().collect();
        let wanted = AtomicU64::new(source.limit().unwrap_or(u64::MAX));
        let step = if source.limit().is_some() { 1 } else { FIRST };
        let left = Mutex::new(Left { groups, step, tracking: None });
        let (is_over, finds_most) = Default::default();
        Steps { source, placement, left, wanted, is_over, finds_most }
    }

    /// Takes the next step; `None` if there is none.
    fn next(&self) -> Option<Step> {
        let mut left = self.left.lock();
        let mut narrowing = left.narrowing(&self.source);
        if !narrowing.joins.is_empty() && self.finds_most.load(Ordering::Relaxed) {
            narrowing = Arc::new(Narrowing { filters: narrowing.filters.clone(), joins: Vec::new() });
        }
        if self.is_over.load(Ordering::Acquire) || self.wanted.load(Ordering::Acquire) == 0 {
            left.groups.clear();
        }
        // Groupings and top-k are a single step. It is taken even if there are no row groups, because an aggregate of
        // zero rows yields a row.
        if !self.source.is_rows() {
            if self.is_over.swap(true, Ordering::AcqRel) {
                return None;
            }
            return Some(Step { groups: left.groups.drain(..).collect(), narrowing });
        }
        let table = self.source.table();
        let bytes_max = STEP_BYTES.max(narrowing.key_bytes() * KEYS_SHARE);
        let count_max = if narrowing.key_bytes() * KEYS_SHARE > STEP_BYTES { usize::MAX } else { left.step };
        let (mut groups, mut bytes) = (Vec::new(), 0);
        while let Some(group) = left.groups.front().copied() {
            bytes += table.row_groups().get(group).map_or(0, |group| u64::from(group.bytes));
            if groups.len() == count_max || (bytes > bytes_max && !groups.is_empty()) {
                break;
            }
            groups.push(group);
            left.groups.pop_front();
        }
        left.step = (left.step * 2).min(STEP);
        (!groups.is_empty()).then_some(Step { groups, narrowing })
    }

    /// Streams the rows of those steps that this partition takes from the queue.
    pub(crate) fn stream(self: Arc<Self>, partition: usize) -> SendableRecordBatchStream {
        let schema = Arc::clone(self.source.schema());
        let counters = Counters::new(&self.source, partition);
        let steps = Arc::clone(&self);
        let begun = stream::iter(std::iter::from_fn(move || steps.next()));
        let batches = begun.map(move |step| {
            let (steps, counters) = (Arc::clone(&self), counters.clone());
            let run = tokio::task::spawn_blocking(move || steps.run(step, &counters));
            async move { run.await.map_err(|error| exec_datafusion_err!("a step of a scan ended: {error}"))? }
        });
        let batches =
            batches.buffered(AHEAD).map_ok(|batches| stream::iter(batches.into_iter().map(Ok))).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    /// Runs a step. Blocks the thread.
    fn run(&self, step: Step, counters: &Counters) -> Result<Vec<RecordBatch>> {
        let Step { groups, narrowing } = step;
        let run = || {
            let plan = self.source.plan(&narrowing).or_else(|_| self.source.plan(&Narrowing::default()));
            let plan = plan.map_err(DataFusionError::Execution)?;
            self.source.table().run_groups(&plan, self.placement, &groups).map_err(crate::external)
        };
        let answer = run().inspect_err(|_| self.is_over.store(true, Ordering::Release))?;
        counters.add(&answer.report);
        self.source.outcome().add(&answer.report);
        if !narrowing.joins.is_empty() && self.source.is_rows() && self.source.limit().is_none() {
            let read = (groups.len() - answer.report.skipped.min(groups.len())) as u64;
            let rows = |group: &usize| {
                self.source.table().row_groups().get(*group).map_or(0, |group| u64::from(group.rows))
            };
            let rows = groups.iter().map(rows).sum::<u64>() * read / groups.len().max(1) as u64;
            let found: u64 = answer.batches.iter().map(|batch| batch.num_rows() as u64).sum();
            if found * 100 > rows * FOUND_MAX {
                self.finds_most.store(true, Ordering::Relaxed);
            }
        }
        let mut batches = Vec::new();
        for batch in answer.batches {
            let wanted = batch.num_rows() as u64;
            let take = |left: u64| Some(left.saturating_sub(wanted));
            let left = match self.source.limit() {
                None => u64::MAX,
                Some(_) => {
                    self.wanted.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).unwrap_or_default()
                }
            };
            let batch = if left < wanted { batch.slice(0, left as usize) } else { batch };
            counters.rows.add(batch.num_rows());
            if batch.num_rows() > 0 {
                batches.push(as_schema(&batch, self.source.schema(), &self.source.counts_of_means())?);
            }
        }
        Ok(batches)
    }
}

impl Left {
    /// Returns the conditions of the dynamic filters, which are translated again if one of the filters has changed.
    fn narrowing(&mut self, source: &FarSource) -> Arc<Narrowing> {
        let filters = source.dynamic_filters();
        if let Some((tracking, known)) = &mut self.tracking {
            // `any` would stop at the first change, but each watcher must be asked.
            let changed = tracking.iter_mut().filter_map(DynamicFilterTracking::watcher);
            if changed.map(|watcher| watcher.changed()).fold(false, |any, one| any | one) {
                *known = Arc::new(source.narrowing());
            }
            return Arc::clone(known);
        }
        let tracking = filters.iter().map(DynamicFilterTracking::classify).collect();
        let known = Arc::new(source.narrowing());
        self.tracking = Some((tracking, Arc::clone(&known)));
        known
    }
}

/// Converts a batch to the types that DataFusion expects: sums of near-data programs are wider, and their timestamps
/// lack the name of the time zone. In the columns `counts_of_means` (the count part of means) a count of 0 becomes
/// NULL, as in DataFusion's own partial means, because the final mean would divide by 0.
fn as_schema(batch: &RecordBatch, schema: &SchemaRef, counts_of_means: &[usize]) -> Result<RecordBatch> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let column = |(place, column): (usize, &ArrayRef)| -> Result<ArrayRef> {
        let column = match counts_of_means.contains(&place) {
            true => nullif(column, &eq(column, &Int64Array::new_scalar(0))?)?,
            false => Arc::clone(column),
        };
        match schema.fields().get(place) {
            Some(field) if column.data_type() != field.data_type() => {
                Ok(cast_with_options(&column, field.data_type(), &options)?)
            }
            _ => Ok(column),
        }
    };
    let columns = batch.columns().iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)?)
}

impl Counters {
    fn new(source: &FarSource, partition: usize) -> Counters {
        let counter = |name: &'static str| MetricBuilder::new(source.metrics()).counter(name, partition);
        let time = |name: &'static str| MetricBuilder::new(source.metrics()).subset_time(name, partition);
        Counters {
            shipped: counter("row_groups_shipped"),
            fetched: counter("row_groups_fetched"),
            skipped: counter("row_groups_skipped"),
            result_bytes: counter("result_bytes"),
            fetched_bytes: counter("fetched_bytes"),
            lookup_bytes: counter("lookup_bytes"),
            rows: MetricBuilder::new(source.metrics()).output_rows(partition),
            node_time: time("node_time"),
            client_time: time("client_time"),
            elapsed: time("step_time"),
        }
    }

    fn add(&self, report: &Report) {
        self.shipped.add(report.shipped);
        self.fetched.add(report.fetched);
        self.skipped.add(report.skipped);
        self.result_bytes.add(report.result_bytes as usize);
        self.fetched_bytes.add(report.fetched_bytes as usize);
        self.lookup_bytes.add(report.lookup_bytes as usize);
        self.node_time.add_duration(report.node_time);
        self.client_time.add_duration(report.client_time);
        self.elapsed.add_duration(report.elapsed);
    }
}
