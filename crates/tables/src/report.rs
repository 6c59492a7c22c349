//! What was done for a query: what stayed with the nodes, what was fetched, and what it took.

use crate::estimates::Estimates;
use crate::joining::SemiJoin;
use farpool_planner::{Placement, Way};
use std::fmt;
use std::time::Duration;

/// What was done for a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was asked for.
    pub placement: Placement,
    /// What was done.
    pub chosen: Way,
    /// What each way was expected to take, over all row groups that were read, when the choice was made.
    pub estimates: Option<Estimates>,
    /// Row groups that were shipped first, to see what the query takes.
    pub tried: usize,
    /// Whether what these showed changed the choice.
    pub is_corrected: bool,
    /// Row groups of the table.
    pub row_groups: usize,
    /// Row groups that a node ran the program over.
    pub shipped: usize,
    /// Row groups that were fetched.
    pub fetched: usize,
    /// Row groups in which no row can be of use, by their statistics.
    pub skipped: usize,
    /// Bytes of results that nodes sent.
    pub result_bytes: u64,
    /// Bytes of keys and filters that nodes were sent for semi-joins.
    pub lookup_bytes: u64,
    /// How the semi-joins over the table's rows were done, in order.
    pub semi_joins: Vec<SemiJoin>,
    /// Bytes of columns that were fetched.
    pub fetched_bytes: u64,
    /// Bytes of columns that nodes read.
    pub node_bytes: u64,
    /// Time that nodes were at it, all together.
    pub node_time: Duration,
    /// Time that the program ran here, without waiting.
    pub client_time: Duration,
    /// From the call to the result.
    pub elapsed: Duration,
    /// Why nodes did not do what they were asked for, by node. It was done here.
    pub refusals: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn new(placement: Placement, row_groups: usize) -> Report {
        Report {
            placement,
            chosen: placement.way().unwrap_or(Way::Ship),
            estimates: None,
            tried: 0,
            is_corrected: false,
            row_groups,
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

    /// Adds that of a further step of the same query. Of what cannot be added, the last step's stays.
    pub fn add(&mut self, step: &Report) {
        (self.placement, self.chosen) = (step.placement, step.chosen);
        match (&mut self.estimates, &step.estimates) {
            (Some(all), Some(more)) => all.add(more),
            (all, more) => all.clone_from(more),
        }
        self.tried += step.tried;
        self.is_corrected |= step.is_corrected;
        self.row_groups = self.row_groups.max(step.row_groups);
        self.shipped += step.shipped;
        self.fetched += step.fetched;
        self.skipped += step.skipped;
        // What nodes say of themselves may be anything.
        self.result_bytes = self.result_bytes.saturating_add(step.result_bytes);
        self.lookup_bytes = self.lookup_bytes.saturating_add(step.lookup_bytes);
        self.semi_joins.clone_from(&step.semi_joins);
        self.fetched_bytes = self.fetched_bytes.saturating_add(step.fetched_bytes);
        self.node_bytes = self.node_bytes.saturating_add(step.node_bytes);
        self.node_time = self.node_time.saturating_add(step.node_time);
        self.client_time = self.client_time.saturating_add(step.client_time);
        self.elapsed = self.elapsed.saturating_add(step.elapsed);
        for refusal in &step.refusals {
            // One that each step meets is told once.
            if !self.refusals.contains(refusal) {
                self.refusals.push(refusal.clone());
            }
        }
    }

    /// Bytes of columns, results, keys and filters that went over links.
    pub fn link_bytes(&self) -> u64 {
        self.result_bytes + self.fetched_bytes + self.lookup_bytes
    }
}

/// In a line, one more for what was expected, and one for each semi-join and each refusal.
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
             {} bytes of results and {} of columns over links; {:.1?} at nodes, {:.1?} here, {:.1?} in all",
            self.result_bytes, self.fetched_bytes, self.node_time, self.client_time, self.elapsed
        )?;
        if let Some(estimates) = &self.estimates {
            write!(f, "\nexpected: {estimates}")?;
        }
        if self.tried > 0 {
            let what =
                if self.is_corrected { "which changed the choice" } else { "which confirmed the choice" };
            write!(f, "\ntried: {} row groups first, {what}", self.tried)?;
        }
        self.semi_joins.iter().try_for_each(|join| write!(f, "\nsemi-join with {join}"))?;
        self.refusals.iter().try_for_each(|(node, why)| write!(f, "\nnot at {node}: {why}"))
    }
}
