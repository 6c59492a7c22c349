//! Report of a query that has run: where its row groups were run, what crossed links, and what it took.

use crate::FarTable;
use crate::estimates::Estimates;
use crate::joining::SemiJoin;
use farpool_planner::{Placement, Way};
use farpool_wire::TraceId;
use std::fmt;
use std::time::Duration;

/// Report of a query that has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Trace id, which the nodes that took part have in their logs.
    pub trace: TraceId,
    /// Placement that was asked for.
    pub placement: Placement,
    /// Placement that was used: `placement` itself, or the choice made for [`Placement::Auto`].
    pub chosen: Way,
    /// Estimates for all row groups that were read, from when the choice was made. They are in every answer.
    pub estimates: Option<Estimates>,
    /// Number of row groups in the trial: they were shipped first, to measure the query.
    pub tried: usize,
    /// True if the trial changed the choice.
    pub is_corrected: bool,
    /// Number of files of the table.
    pub files: usize,
    /// Number of files that were not opened, because by their bounds no row passes.
    pub files_skipped: usize,
    /// Number of row groups of the table's open files.
    pub row_groups: usize,
    /// Number of row groups that a node ran the program over.
    pub shipped: usize,
    /// Number of row groups that the client fetched.
    pub fetched: usize,
    /// Number of row groups that were skipped, because by their statistics no row passes.
    pub skipped: usize,
    /// Bytes of results that nodes sent.
    pub result_bytes: u64,
    /// Bytes of keys and filters that were sent to nodes for semi-joins.
    pub lookup_bytes: u64,
    /// How the semi-joins over the table's rows were done, in order.
    pub semi_joins: Vec<SemiJoin>,
    /// Bytes of columns that the client fetched.
    pub fetched_bytes: u64,
    /// Bytes of columns that nodes read.
    pub node_bytes: u64,
    /// Time that nodes worked, summed over the nodes.
    pub node_time: Duration,
    /// Time that the client ran the program, without waiting.
    pub client_time: Duration,
    /// Time from the call to the result.
    pub elapsed: Duration,
    /// Names of nodes that refused their part, with the reasons. The client did these parts itself.
    pub refusals: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn new(placement: Placement, table: &FarTable) -> Report {
        Report {
            trace: TraceId::NONE,
            placement,
            chosen: placement.way().unwrap_or(Way::Ship),
            estimates: None,
            tried: 0,
            is_corrected: false,
            files: table.files_opened().total,
            files_skipped: table.files_opened().skipped(),
            row_groups: table.row_groups().len(),
            shipped: 0,
            fetched: 0,
            skipped: 0,
            result_bytes: 0,
            lookup_bytes: 0,
            semi_joins: Vec::new(),
            fetched_bytes: 0,
            node_bytes: 0,
            node_time: Duration::ZERO,
            client_time: Duration::ZERO,
            elapsed: Duration::ZERO,
            refusals: Vec::new(),
        }
    }

    /// Adds the report of a further step of the same query. What cannot be added is taken from `step`.
    pub fn add(&mut self, step: &Report) {
        (self.placement, self.chosen) = (step.placement, step.chosen);
        match (&mut self.estimates, &step.estimates) {
            (Some(all), Some(more)) => all.add(more),
            (all, more) => all.clone_from(more),
        }
        self.tried += step.tried;
        self.is_corrected |= step.is_corrected;
        self.files = self.files.max(step.files);
        self.files_skipped = self.files_skipped.max(step.files_skipped);
        self.row_groups = self.row_groups.max(step.row_groups);
        self.shipped += step.shipped;
        self.fetched += step.fetched;
        self.skipped += step.skipped;
        // The numbers come from nodes and can be anything, so sums saturate.
        self.result_bytes = self.result_bytes.saturating_add(step.result_bytes);
        self.lookup_bytes = self.lookup_bytes.saturating_add(step.lookup_bytes);
        self.semi_joins.clone_from(&step.semi_joins);
        self.fetched_bytes = self.fetched_bytes.saturating_add(step.fetched_bytes);
        self.node_bytes = self.node_bytes.saturating_add(step.node_bytes);
        self.node_time = self.node_time.saturating_add(step.node_time);
        self.client_time = self.client_time.saturating_add(step.client_time);
        self.elapsed = self.elapsed.saturating_add(step.elapsed);
        for refusal in &step.refusals {
            // A refusal that every step meets is reported once.
            if !self.refusals.contains(refusal) {
                self.refusals.push(refusal.clone());
            }
        }
    }

    /// Returns the bytes of columns, results, keys and filters that crossed links.
    pub fn link_bytes(&self) -> u64 {
        self.result_bytes + self.fetched_bytes + self.lookup_bytes
    }
}

/// Formats one line, a second one for the estimates, and one for each semi-join and each refusal.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { placement, row_groups, shipped, fetched, skipped, .. } = self;
        match placement {
            Placement::Auto => write!(f, "{placement}, {}", self.chosen)?,
            _ => write!(f, "{placement}")?,
        }
        write!(
            f,
            ": of {row_groups} row groups {shipped} shipped, {fetched} fetched, {skipped} skipped; \
             {} bytes of results and {} of columns over links; {:.1?} at nodes, {:.1?} on the client, {:.1?} elapsed; \
             trace {}",
            self.result_bytes, self.fetched_bytes, self.node_time, self.client_time, self.elapsed, self.trace
        )?;
        if self.files_skipped > 0 {
            write!(f, "\nskipped: {} of {} files by their bounds", self.files_skipped, self.files)?;
        }
        if let Some(estimates) = &self.estimates {
            write!(f, "\nexpected: {estimates}")?;
        }
        if self.tried > 0 {
            let what =
                if self.is_corrected { "which changed the choice" } else { "which confirmed the choice" };
            write!(f, "\ntried: {} row groups first, {what}", self.tried)?;
        }
        self.semi_joins.iter().try_for_each(|join| write!(f, "\nsemi-join with {join}"))?;
        self.refusals.iter().try_for_each(|(node, why)| write!(f, "\nnot run at node {node}: {why}"))
    }
}
