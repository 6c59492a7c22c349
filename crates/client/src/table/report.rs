//! What was done for a query: what stayed with the nodes, what was fetched, and what it took.

use super::joining::SemiJoin;
use std::fmt;
use std::time::Duration;

/// Where the program of a query runs over a table's row groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Here, over columns that are fetched.
    Fetch,
    /// At the nodes that hold them; what cannot be done there is fetched.
    Ship,
    /// At both: nodes begin from the front of their row groups, and fetching from the back, until they meet.
    Split,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Fetch, Mode::Ship, Mode::Split];

    /// As it is written in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fetch => "fetch",
            Mode::Ship => "ship",
            Mode::Split => "split",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was done for a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was asked for.
    pub mode: Mode,
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
    pub(super) fn new(mode: Mode, row_groups: usize) -> Report {
        Report {
            mode,
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

    /// Bytes of columns, results, keys and filters that went over links.
    pub fn link_bytes(&self) -> u64 {
        self.result_bytes + self.fetched_bytes + self.lookup_bytes
    }
}

/// In a line, and one more for each semi-join and each refusal.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { mode, row_groups, shipped, fetched, skipped, .. } = self;
        write!(
            f,
            "{mode}: of {row_groups} row groups {shipped} shipped, {fetched} fetched, {skipped} skipped; \
             {} bytes of results and {} of columns over links; {:.1?} at nodes, {:.1?} here, {:.1?} in all",
            self.result_bytes, self.fetched_bytes, self.node_time, self.client_time, self.elapsed
        )?;
        self.semi_joins.iter().try_for_each(|join| write!(f, "\nsemi-join with {join}"))?;
        self.refusals.iter().try_for_each(|(node, why)| write!(f, "\nnot at {node}: {why}"))
    }
}
