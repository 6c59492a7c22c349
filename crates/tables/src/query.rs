//! Queries over a far table: their program runs at the nodes, on the client over fetched columns, or on both.
//!
//! The idea: think of a stack of papers that two people work through, one from the top and one from the bottom.
//! Whoever takes a paper does the same work with it, and all results are added up once at the end. A query works the
//! same way. Node and client run the same code over row groups. Each run leaves partial results, which are merged
//! exactly once (invariant I8), and each row group is run by exactly one side.
//!
//! If only one side works, the loop is simple: fetch everything, or ship everything and fetch what no node could do.
//! In a split, the node takes row groups from the front and the client claims them from the back until they meet. A
//! fast side then does more, without an estimate of either speed. If a node fails or refuses, its results are dropped
//! as a whole and the client fetches its row groups, so a failure costs time and never a row.

use crate::counts::count_scan;
use crate::estimates::Estimates;
use crate::joining::{self, JoinBy, Joining, Upload};
use crate::others::Others;
use crate::pacing::{Claim, Fetching};
use crate::placing::{Choice, Placing, Ran, ScanRan, Stage};
use crate::report::Report;
use crate::scope::Scope;
use crate::shipping::{Shipping, located, shares};
use crate::{FarTable, TableReader};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use farpool_files::beneath::{self, NodeLinks, Waits};
use farpool_files::{Error, ErrorKind};
use farpool_host::Host;
use farpool_operators::run::{Bounds, Merge, Prepared, Run, data_type, type_of};
use farpool_operators::{KeySet, Operator, Plan, Program, Query, Type};
use farpool_planner::{Measured, Placement, Way};
use farpool_wire::{MonoNs, mutant};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Makes an error of kind [`ErrorKind::Invalid`].
fn refused(why: impl Display) -> Error {
    Error::new(ErrorKind::Invalid, why.to_string())
}

/// Makes a batch of these columns. `rows` counts even if there are no columns.
fn batch_of(
    columns: Vec<arrow_array::ArrayRef>,
    schema: Arc<Schema>,
    rows: usize,
) -> Result<RecordBatch, Error> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options).map_err(refused)
}

/// Returns top rows with their positions in the table, which a node has counted from row `first_row` of the table on.
fn counted_from(first_row: u64, batch: RecordBatch) -> Result<RecordBatch, Error> {
    let mut columns = batch.columns().to_vec();
    let Some(positions) = columns.pop().filter(|_| first_row != 0) else { return Ok(batch) };
    let positions = positions
        .as_primitive_opt::<UInt64Type>()
        .ok_or_else(|| refused("the rows of a top-k came without their positions in the table"))?;
    columns.push(Arc::new(positions.unary::<_, UInt64Type>(|position| position.wrapping_add(first_row))));
    RecordBatch::try_new(batch.schema(), columns).map_err(refused)
}

impl FarTable {
    /// Returns a query over all columns of the table, for the caller to narrow.
    ///
    /// Errors: [`ErrorKind::Invalid`] if queries do not support the type of a column, or if the table is encrypted
    /// and was opened without a key.
    pub fn query(&self) -> Result<Query, Error> {
        self.check_readable()?;
        let named = |field: &Arc<Field>| match type_of(field.data_type()) {
            Some(of) => Ok((field.name().clone(), of)),
            None => Err(refused(format_args!(
                "column {:?} of far table {:?}: queries do not support type {}",
                field.name(),
                self.name(),
                field.data_type()
            ))),
        };
        Ok(Query::over(self.schema().fields().iter().map(named).collect::<Result<_, _>>()?))
    }

    /// Runs a query under this placement; [`Placement::Auto`] takes the one that is expected to be fastest. Groups come
    /// in the order of their keys, NULL first. Other rows come in the order of the table.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the plan was made for another table, if a pattern is not a regular
    /// expression, or if a value does not fit its type; those of [`FarTable::read`].
    pub fn run(&self, plan: &Plan, placement: Placement) -> Result<Answer, Error> {
        let all: Vec<usize> = (0..self.row_groups().len()).collect();
        self.run_groups(plan, placement, &all)
    }

    /// Runs a query over some of the row groups, given by their numbers in ascending order. It is for callers that
    /// process a table in steps and choose the placement anew for each step. What the plan does with all rows, such as
    /// grouping, it then does with the rows of the step.
    ///
    /// Errors: those of [`FarTable::run`]; [`ErrorKind::Invalid`] if there is no such row group.
    pub fn run_groups(&self, plan: &Plan, placement: Placement, groups: &[usize]) -> Result<Answer, Error> {
        let host = self.session().host();
        let begun = host.now();
        let columns = self.query()?;
        let during = |error: Error| error.during(format_args!("querying far table {:?}", self.name()));
        self.check(plan, columns, groups).map_err(during)?;
        let answer = self.answer(plan, placement, groups).map_err(|error| self.cause_in_snapshot(error));
        let mut answer = answer.map_err(during)?;
        count_scan(self.session(), &answer.report);
        answer.report.elapsed = Duration::from_nanos(host.now().0.saturating_sub(begun.0));
        Ok(answer)
    }

    /// Refuses a plan that was made for other columns, and row groups that the table does not have.
    fn check(&self, plan: &Plan, columns: Query, groups: &[usize]) -> Result<(), Error> {
        if columns.plan().map_err(refused)?.near.input() != plan.near.input() {
            return Err(refused("the plan was made for a table with other columns"));
        }
        let count = self.row_groups().len();
        match groups.iter().find(|group| **group >= count) {
            Some(group) => Err(refused(format_args!("there is no row group {group}; the table has {count}"))),
            None => Ok(()),
        }
    }

    /// Answers a query in five phases: find the row groups to read, choose the placement, run a trial if too little
    /// is known, run the remaining row groups, and merge all partial results once.
    fn answer(&self, plan: &Plan, placement: Placement, groups: &[usize]) -> Result<Answer, Error> {
        let scope = Scope::new(plan, self.groups_for(plan, groups));
        let skipped = groups.len() - scope.groups.len();

        let joining = Joining::of(plan, placement);
        let placing = Placing::new(self, &scope, &joining);
        let choice = placing.choose(placement, &scope.groups);

        // If no node takes part, the client looks the keys up, and no filter is needed.
        let is_local = choice.way == Way::Fetch && choice.trial.is_empty();
        let joining = if is_local { Joining::of(plan, Placement::Fetch) } else { joining };
        let mut work = Work::new(self, scope, joining, &plan.key_sets, placement)?;
        let tried = work.run_trial(&placing, choice)?;
        work.run_rest(&placing, &tried)?;

        let merged = work.merge(&plan.key_sets)?;
        placing.learn_merge(&merged.report, merged.left_rows, merged.ns);

        let Tried { way: chosen, estimates, groups: tried, is_corrected, .. } = tried;
        let estimates = Some(estimates);
        let report = Report { chosen, estimates, tried, is_corrected, skipped, ..merged.report };
        let field = |(name, of): &(String, Type)| Field::new(name, data_type(*of), true);
        let schema = Arc::new(Schema::new(plan.columns.iter().map(field).collect::<Vec<_>>()));
        let named = |batch: RecordBatch| {
            let rows = batch.num_rows();
            batch_of(batch.columns().to_vec(), Arc::clone(&schema), rows)
        };
        let batches = merged.batches.into_iter().map(named).collect::<Result<_, _>>()?;
        Ok(Answer { schema, batches, report })
    }

    /// Runs the last part of the plan over the merged rows: what needs the whole result, such as sorting.
    fn finish(
        &self,
        program: Program,
        key_sets: &[Arc<KeySet>],
        batches: Vec<RecordBatch>,
    ) -> Result<Vec<RecordBatch>, Error> {
        let mut local = Local::new(self, Arc::new(program), key_sets.to_vec())?;
        let mut position = 0;
        for batch in batches {
            local.push(0, &batch, position)?;
            position += batch.num_rows() as u64;
        }
        let (mut merge, left) = local.finish()?;
        for (_, partial) in left {
            merge.push(&partial).map_err(refused)?;
        }
        merge.finish().map_err(refused)
    }
}

/// Outcome of the trial (a few row groups that are shipped first, to measure the query), and the placement of the
/// remaining row groups.
struct Tried {
    /// Placement of the remaining row groups.
    way: Way,
    /// Estimates by which the placement was chosen.
    estimates: Estimates,
    /// Number of row groups in the trial; 0 without a trial.
    groups: usize,
    /// True if the trial has changed the choice.
    is_corrected: bool,
    /// Row groups that were not in the trial.
    rest: Vec<usize>,
}

/// Merged result of all parts of a query.
struct Merged {
    batches: Vec<RecordBatch>,
    report: Report,
    /// Rows that the client's own run of the program output, before merging.
    left_rows: u64,
    /// Time to merge, in ns.
    ns: u64,
}

/// Result of a query.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Columns of the result.
    pub schema: SchemaRef,
    /// Rows of the result.
    pub batches: Vec<RecordBatch>,
    /// Report of where the query ran and what it took.
    pub report: Report,
}

/// A program that runs on the client, over columns that it has fetched.
struct Local {
    host: Arc<dyn Host>,
    prepared: Arc<Prepared>,
    bounds: Bounds,
    key_sets: Vec<Arc<KeySet>>,
    /// The run, `None` until there are rows for it: building the hash tables of its keys takes time.
    run: Option<Run>,
    merge: Merge,
    /// Batches that the program has output, each with the row group that it came from.
    left: Vec<(usize, RecordBatch)>,
}

impl Local {
    fn new(table: &FarTable, program: Arc<Program>, key_sets: Vec<Arc<KeySet>>) -> Result<Local, Error> {
        let host = Arc::clone(table.session().host());
        let mut seed = [0; 8];
        host.random(&mut seed).map_err(refused)?;
        let seed = u64::from_le_bytes(seed);
        let merge = Merge::new(&program, seed).map_err(refused)?;
        let prepared = Arc::new(Prepared::new(program).map_err(refused)?);
        let bounds = Bounds { seed, batch_rows_max: usize::MAX, ..Bounds::default() };
        Ok(Local { host, prepared, bounds, key_sets, run: None, merge, left: Vec::new() })
    }

    /// Reports whether further rows cannot change the result.
    fn is_done(&self) -> bool {
        self.run.as_ref().is_some_and(Run::is_done)
    }

    fn push(&mut self, group: usize, batch: &RecordBatch, position: u64) -> Result<(), Error> {
        let run = match &mut self.run {
            Some(run) => run,
            None => {
                let lookups = joining::exact(self.prepared.program(), &self.key_sets, &*self.host)?;
                let run =
                    Run::new(Arc::clone(&self.prepared), lookups, self.bounds.clone()).map_err(refused)?;
                self.run.insert(run)
            }
        };
        let leaving = run.push(batch, position).map_err(refused)?;
        self.left.extend(leaving.into_iter().map(|partial| (group, partial)));
        Ok(())
    }

    fn finish(self) -> Result<(Merge, Vec<(usize, RecordBatch)>), Error> {
        let Local { prepared, bounds, key_sets, run, merge, mut left, .. } = self;
        let run = match run {
            Some(run) => run,
            // Aggregates of zero rows still produce a row. No key is looked up for it.
            None => {
                let lookups =
                    key_sets.iter().map(|_| joining::none()).collect::<Result<_, _>>().map_err(refused)?;
                Run::new(prepared, lookups, bounds).map_err(refused)?
            }
        };
        left.extend(run.finish().map_err(refused)?.into_iter().map(|partial| (0, partial)));
        Ok((merge, left))
    }
}

/// A fetch under way, of row groups that were claimed from a node.
struct Ahead {
    groups: Vec<usize>,
    batches: TableReader,
    begun: MonoNs,
    /// Number of such fetches under way when this one began, including itself.
    together: u64,
}

/// State of a query while it runs: its parts, their output, and the report.
struct Work<'t> {
    table: &'t FarTable,
    scope: Scope,
    joining: Joining,
    local: Local,
    /// Number of the first row of each row group of the table.
    positions: Vec<u64>,
    /// Batches of the complete shares, each with the row group that it came from. A share is what one scan covers: row
    /// groups of one node.
    shipped: Vec<(usize, RecordBatch)>,
    /// True if the complete shares have enough rows for the query's limit.
    is_enough: bool,
    /// Measurements of the part that is running.
    ran: Ran,
    report: Report,
}

/// Row groups of one claim (`CLAIMED_GROUPS`), and fetches of claims that are under way at once (`CLAIMS_AHEAD`).
const CLAIMED_GROUPS: u32 = 1;
const CLAIMS_AHEAD: usize = 2;
/// Time in ms after which the split loop looks again at the scans without an event: a node that makes no progress
/// sends none.
const LOOK_MS: u64 = 5;

impl<'t> Work<'t> {
    fn new(
        table: &'t FarTable,
        scope: Scope,
        joining: Joining,
        key_sets: &[Arc<KeySet>],
        placement: Placement,
    ) -> Result<Work<'t>, Error> {
        let local = Local::new(table, Arc::clone(&scope.program), key_sets.to_vec())?;
        let mut report = Report::new(placement, table);
        report.trace = table.trace_of_query()?;
        report.semi_joins = joining.joins.clone();
        let positions = table.positions();
        let (shipped, is_enough, ran) = (Vec::new(), false, Ran::default());
        Ok(Work { table, scope, joining, local, positions, shipped, is_enough, ran, report })
    }

    /// Reports whether further rows cannot change the result.
    fn is_complete(&self) -> bool {
        self.is_enough || self.local.is_done()
    }

    /// Ships the row groups of the trial, if there is one, and chooses again from the times that this took.
    fn run_trial(&mut self, placing: &Placing<'_>, choice: Choice) -> Result<Tried, Error> {
        let Choice { way, estimates, trial } = choice;
        let mut rest = self.scope.groups.clone();
        if trial.is_empty() {
            return Ok(Tried { way, estimates, groups: 0, is_corrected: false, rest });
        }
        rest.retain(|group| trial.binary_search(group).is_err());
        let groups = trial.len();
        self.run_stage(placing, Stage::Trial, Way::Ship, trial)?;
        let estimates = placing.estimates(&self.scope.groups);
        // A node that refused the trial will refuse the remaining row groups too.
        let chosen = if self.report.refusals.is_empty() { estimates.choice } else { Way::Fetch };
        Ok(Tried { way: chosen, estimates, groups, is_corrected: chosen != way, rest })
    }

    /// Runs the row groups that were not in the trial, unless further rows cannot change the result.
    fn run_rest(&mut self, placing: &Placing<'_>, tried: &Tried) -> Result<(), Error> {
        if self.is_complete() {
            return Ok(());
        }
        self.run_stage(placing, Stage::Rest, tried.way, tried.rest.clone())
    }

    /// Runs some of the row groups, which no other part runs, and passes the measurements to the planner.
    fn run_stage(
        &mut self,
        placing: &Placing<'_>,
        stage: Stage,
        way: Way,
        groups: Vec<usize>,
    ) -> Result<(), Error> {
        let host = Arc::clone(self.table.session().host());
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.report.clone();
        self.ran = Ran::default();
        let begun = host.now();
        self.run(way, groups.clone())?;
        let mut ran = std::mem::take(&mut self.ran);
        ran.elapsed_ns = host.now().0.saturating_sub(begun.0);
        let after = &self.report;
        let node_bytes = after.node_bytes.saturating_sub(before.node_bytes);
        let node_time = after.node_time.saturating_sub(before.node_time);
        ran.node = Measured { bytes: node_bytes, ns: ns(node_time) };
        let fetched = after.fetched_bytes - before.fetched_bytes;
        ran.client = Measured { bytes: fetched, ns: ns(after.client_time - before.client_time) };
        ran.result_bytes = after.result_bytes - before.result_bytes;
        // A part that a node refused does not measure the placement.
        let is_refused = after.refusals.len() != before.refusals.len();
        if !groups.is_empty() && !is_refused && !self.scope.columns.is_empty() {
            placing.learn(stage, way, &groups, &ran);
        }
        Ok(())
    }

    fn run(&mut self, way: Way, groups: Vec<usize>) -> Result<(), Error> {
        if self.scope.columns.is_empty() {
            // A program that only counts rows reads no columns.
            return self.count_rows(groups);
        }
        if way == Way::Fetch || groups.is_empty() || !self.joining.is_shipped() {
            self.ran.fetched = self.fetch(groups)?;
            return Ok(());
        }
        // The shipped program may have filters in place of keys. It reads the same columns as the client's program.
        let (Ok(program), Ok(uploads)) =
            (self.joining.plan.near.narrowed().0.encode(), self.joining.uploads())
        else {
            self.report.semi_joins.iter_mut().for_each(|join| join.by = JoinBy::Here);
            return self.fetch(groups).map(|_| ());
        };
        let uploads: Arc<[Upload]> = uploads.into();
        let (mut way, mut undone, mut failed) = (way, groups, Vec::new());
        // Each round leaves out one more node at least.
        while !undone.is_empty() {
            undone = self.ship(way, undone, &program, &uploads, &mut failed)?;
            way = Way::Ship;
            let columns = &self.scope.columns;
            let lost = undone.iter().filter(|group| located(self.table, **group, columns, &failed).is_none());
            let mut files: Vec<_> = lost.filter_map(|group| self.table.file_of(*group)).collect();
            files.dedup_by(|one, other| std::ptr::eq(*one, *other));
            for of in files {
                beneath::look_for_copies(&of.file, Waits::WhileItIsThere);
            }
        }
        Ok(())
    }

    /// Runs the program at the nodes not in `failed`, and in this process over what no single region of them holds.
    /// Returns the row groups whose node did not answer or was lost, and which other nodes have; such a node is then in
    /// `failed`.
    fn ship(
        &mut self,
        way: Way,
        groups: Vec<usize>,
        program: &[u8],
        uploads: &Arc<[Upload]>,
        failed: &mut Vec<Arc<NodeLinks>>,
    ) -> Result<Vec<usize>, Error> {
        let (shares, rest) = shares(self.table, groups.into_iter(), &self.scope.columns, failed);
        let rows_wanted = match self.scope.program.operators().last() {
            Some(Operator::Limit(rows)) => Some(*rows),
            _ => None,
        };
        let keys = self.table.scan_keys();
        let shipping = Shipping::new(program.to_vec(), shares, rows_wanted)
            .with_keys(keys)
            .with_lookups(Arc::clone(uploads));
        let shipping = Arc::new(shipping.with_trace(self.report.trace));
        let session = Arc::clone(self.table.session());
        let nodes = shipping.nodes();
        let mut tasks = Vec::new();
        // If this thread has nothing to fetch, it talks to one of the nodes itself.
        let is_free = way == Way::Ship && rest.is_empty();
        for node in nodes.iter().skip(usize::from(is_free)) {
            let (at, node, session) = (Arc::clone(&shipping), Arc::clone(node), Arc::clone(&session));
            let run = Box::new(move || at.run_at(&session, &node));
            match self.table.session().host().spawn("farpool-ship", run) {
                Ok(task) => tasks.push(task),
                Err(error) => {
                    // Stops the nodes that have begun: nobody would use their results.
                    shipping.stop();
                    tasks.into_iter().for_each(farpool_host::Task::join);
                    return Err(refused(error));
                }
            }
        }
        if let Some(node) = nodes.first().filter(|_| is_free) {
            shipping.run_at(&session, node);
        }
        let mut result = if shipping.is_stopped() { Ok(()) } else { self.fetch(rest).map(|_| ()) };
        let mut claimed = BTreeSet::new();
        if result.is_ok() && way == Way::Split {
            result = self.fetch_from_back(&shipping, &mut claimed);
        }
        if result.is_err() || self.local.is_done() {
            shipping.stop();
        }
        tasks.into_iter().for_each(farpool_host::Task::join);
        result?;
        self.commit(&shipping, &claimed, failed)
    }

    /// Runs a program that reads no column. It needs the numbers of rows alone.
    fn count_rows(&mut self, groups: Vec<usize>) -> Result<(), Error> {
        let schema = Arc::new(Schema::empty());
        for group in groups {
            let rows = self.table.row_groups()[group].rows as usize;
            let batch = batch_of(Vec::new(), Arc::clone(&schema), rows)?;
            self.local.push(group, &batch, self.positions[group])?;
        }
        Ok(())
    }

    /// Returns the bytes of a row group's columns that the query reads.
    fn column_bytes(&self, group: usize) -> u64 {
        let buffers = self.table.row_groups()[group].buffers(&self.scope.columns);
        buffers.map(|buffer| u64::from(buffer.bytes)).sum()
    }

    /// Fetches row groups and runs the program over them. Returns the bytes that arrived and the time that they took.
    fn fetch(&mut self, groups: Vec<usize>) -> Result<Measured, Error> {
        if groups.is_empty() {
            return Ok(Measured::default());
        }
        let mut batches = self.table.read(Some(&self.scope.columns), Some(&groups))?;
        self.take(groups, batches.by_ref())?;
        Ok(batches.moved())
    }

    /// Runs the program over row groups as they arrive.
    fn take(
        &mut self,
        groups: Vec<usize>,
        batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    ) -> Result<(), Error> {
        for (group, batch) in groups.into_iter().zip(batches) {
            let batch = batch?;
            let begun = self.table.session().host().now();
            self.local.push(group, &batch, self.positions[group])?;
            let busy = self.table.session().host().now().0.saturating_sub(begun.0);
            self.report.client_time += Duration::from_nanos(busy);
            self.report.fetched += 1;
            self.report.fetched_bytes += self.column_bytes(group);
            if self.local.is_done() {
                break;
            }
        }
        Ok(())
    }

    /// Claims row groups from the back of running scans while [`Pace::claim`](crate::pacing::Pace::claim) says that
    /// it pays, and fetches them.
    fn fetch_from_back(&mut self, shipping: &Shipping, claimed: &mut BTreeSet<usize>) -> Result<(), Error> {
        let session = Arc::clone(self.table.session());
        let mut taken = vec![0u32; shipping.shares.len()];
        let mut open: VecDeque<usize> = (0..shipping.shares.len()).collect();
        let mut ahead: VecDeque<Ahead> = VecDeque::new();
        let mut fetch_ns = None;
        let bytes: u64 = self.scope.groups.iter().map(|group| self.column_bytes(*group)).sum();
        let group_bytes = bytes / self.scope.groups.len().max(1) as u64;
        loop {
            let heard = shipping.changed.heard();
            // The loop takes the shares in turn, because each may have another node and link.
            let mut looked_at = 0;
            if shipping.is_stopped() || self.local.is_done() {
                return Ok(());
            }
            while ahead.len() < CLAIMS_AHEAD && looked_at < open.len() {
                let Some(share) = open.pop_front() else { break };
                looked_at += 1;
                let Some((scan, since, pace)) = shipping.open_scan(share) else {
                    if shipping.is_waiting(share) {
                        open.push_back(share);
                    }
                    continue;
                };
                let fetching = Fetching {
                    claimed: taken[share],
                    ahead: ahead.len() as u32,
                    each_ns: fetch_ns,
                    elapsed_ns: session.host().now().0.saturating_sub(since.0),
                    group_bytes,
                    is_shared: !shipping.shares[share].node.is_shared(),
                };
                let groups = match pace.claim(fetching) {
                    Claim::Now => shipping.claim(&session, share, scan, CLAIMED_GROUPS),
                    Claim::All => shipping.claim(&session, share, scan, u32::MAX),
                    Claim::Later => {
                        open.push_back(share);
                        continue;
                    }
                    Claim::Never => continue,
                };
                if !groups.is_empty() {
                    looked_at = 0;
                    open.push_back(share);
                    taken[share] += groups.len() as u32;
                    claimed.extend(groups.iter().copied());
                    shipping.is_fetching.store(true, Ordering::Relaxed);
                    let begun = session.host().now();
                    let batches = self.table.read(Some(&self.scope.columns), Some(&groups))?;
                    let together = ahead.len() as u64 + 1;
                    ahead.push_back(Ahead { groups, batches, begun, together });
                }
            }
            match ahead.pop_front() {
                Some(Ahead { groups, batches, begun, together }) => {
                    // Fetches that ran at the same time have shared this time.
                    let count = groups.len() as u64 * together;
                    self.take(groups, batches)?;
                    fetch_ns = Some(session.host().now().0.saturating_sub(begun.0) / count.max(1));
                    shipping.is_fetching.store(!ahead.is_empty(), Ordering::Relaxed);
                }
                None if !open.is_empty() => {
                    session.host().wait(&shipping.changed, heard, session.deadline(LOOK_MS));
                }
                None => return Ok(()),
            }
        }
    }

    /// Uses the results of the shares that are complete. Of the other shares, returns the row groups whose node did not
    /// answer or was lost and which other nodes have, adds these nodes to `failed`, and fetches the rest; neither if
    /// there are enough rows.
    fn commit(
        &mut self,
        shipping: &Shipping,
        claimed: &BTreeSet<usize>,
        failed: &mut Vec<Arc<NodeLinks>>,
    ) -> Result<Vec<usize>, Error> {
        let outcomes: Vec<_> = (0..shipping.shares.len()).map(|share| shipping.take_over(share)).collect();
        let is_enough = self.local.is_done() || shipping.is_enough(&outcomes);
        let (mut undone, mut unanswered) = (Vec::new(), Vec::new());
        let is_top = matches!(self.scope.program.operators().last(), Some(Operator::Top { .. }));
        for (share, outcome) in shipping.shares.iter().zip(outcomes) {
            let is_unclaimed = |group: &usize| !claimed.contains(group) || mutant!(GroupCountedTwice);
            let unclaimed = || share.groups.iter().copied().filter(is_unclaimed);
            match outcome {
                Some(Ok(shipped)) if is_enough || shipped.groups == unclaimed().count() => {
                    self.report.shipped += shipped.groups;
                    self.ran.scans.push(ScanRan {
                        node: Arc::clone(&share.node),
                        seen: shipped.seen,
                        result_bytes: shipped.chunk_bytes,
                        busy_ns: shipped.busy_ns,
                    });
                    // The numbers come from the node and can be anything, so the sums saturate.
                    let report = &mut self.report;
                    report.node_bytes = report.node_bytes.saturating_add(shipped.read_bytes);
                    report.result_bytes += shipped.chunk_bytes;
                    report.node_time = report.node_time.saturating_add(Duration::from_nanos(shipped.busy_ns));
                    let batches = shipped.batches.into_iter();
                    for (group, batch) in batches {
                        let batch = if is_top { counted_from(share.first_row, batch)? } else { batch };
                        self.shipped.push((group, batch));
                    }
                }
                Some(Err(error)) => {
                    self.report.refusals.push((share.node.info.name.to_string(), error.to_string()));
                    match error.kind() {
                        ErrorKind::Unreachable | ErrorKind::Lost if share.others != Others::None => {
                            unanswered.extend(unclaimed());
                            failed.push(Arc::clone(&share.node));
                        }
                        _ => undone.extend(unclaimed()),
                    }
                }
                // Some row groups were run by neither side: the answer to a claim was lost, or the share has no
                // outcome.
                _ => undone.extend(unclaimed()),
            }
        }
        self.report.lookup_bytes += shipping.uploaded.load(Ordering::Relaxed);
        undone.sort_unstable();
        unanswered.sort_unstable();
        self.is_enough |= is_enough;
        if is_enough {
            return Ok(Vec::new());
        }
        self.fetch(undone).map(|_| unanswered)
    }

    /// Merges the partial results of all parts once, and runs the last part of the plan over the merged rows.
    fn merge(self, key_sets: &[Arc<KeySet>]) -> Result<Merged, Error> {
        let host = self.table.session().host();
        let begun = host.now();
        let (mut merge, mut partials) = self.local.finish()?;
        let left_rows = partials.iter().map(|(_, partial)| partial.num_rows() as u64).sum();
        partials.extend(self.shipped);
        // Rows keep the order of the table. The order of partial results does not matter.
        partials.sort_by_key(|(group, _)| *group);
        for (_, partial) in partials {
            merge.push(&partial).map_err(refused)?;
        }
        let whole = merge.finish().map_err(refused)?;
        let batches = self.table.finish(self.joining.plan.finish, key_sets, whole)?;
        let ns = host.now().0.saturating_sub(begun.0);
        Ok(Merged { batches, report: self.report, left_rows, ns })
    }
}
