//! Estimates for calls of shipped functions, which are code of a user that reads a window (a range of a far file). A
//! call runs at the node that holds the window, or at the client over fetched bytes.
//!
//! The idea: a function is pure, so both placements give the same output and only time decides. A shipped call takes a
//! round trip, its run, and the transfer of its output. A fetched call takes the transfer of the window, unless the
//! window is at the client already, and its run. A window that is used by many calls is fetched once, so
//! [`expected_calls`](Call::expected_calls) divides that cost. Over the row groups of a table, nodes and client can
//! work at the same time. The work is then divided so that both end together.
//!
//! How long a function runs and how much it outputs is learned under its hash. A function that was never called is
//! shipped, because one shipped call costs little and shows both.
//!
//! A function that follows pointers could fetch each page when it gets there. [`break_even_accesses`] returns the
//! number of accesses from which on shipping is faster (paper 001, table 2). If the far memory is memory of this
//! machine, an access takes no longer from here, and shipping never pays for latency alone.

use crate::average::Average;
use crate::estimate::LinkCost;

/// Facts about a call before it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// Bytes of the window.
    pub window_bytes: f64,
    /// True if the window is at the client already.
    pub is_fetched: bool,
    /// Calls over the same window that share the cost of fetching it. Less than 1 counts as 1.
    pub expected_calls: f64,
    /// Connection to the node.
    pub link: LinkCost,
    /// Measured nanoseconds to fetch each byte into a window; `None` if none was fetched yet.
    pub brought_ns: Option<f64>,
    /// Learned costs of the function.
    pub seen: SeenCalls,
}

/// Place where a call ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanAt {
    /// A node.
    Node,
    /// The client's machine.
    Here,
}

/// Learned costs of a function, over all its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeenCalls {
    /// Run time of a call at a node over its whole window, in ns.
    at_nodes: Average,
    /// Run time of a call at the client's machine over its whole window, in ns.
    here: Average,
    /// Bytes that a call outputs.
    output: Average,
    /// Number of calls.
    pub calls: u64,
}

impl SeenCalls {
    /// Learns from a call: where it ran, its run time over the whole window in ns, and the bytes of its output.
    pub(crate) fn note(&mut self, ran_at: RanAt, ran_ns: f64, output_bytes: f64) {
        let of = match ran_at {
            RanAt::Node => &mut self.at_nodes,
            RanAt::Here => &mut self.here,
        };
        of.note(ran_ns.max(1.0));
        // The average takes only values above 0, so an empty output counts as 1 byte.
        self.output.note(output_bytes.max(1.0));
        self.calls += 1;
    }

    /// Returns the expected run time in ns. Both places run the same function, so the time of one stands in for a time
    /// of the other that was never measured. Returns 0 if the function was never called.
    fn ran_ns(&self, ran_at: RanAt) -> f64 {
        let (one, other) = match ran_at {
            RanAt::Node => (self.at_nodes, self.here),
            RanAt::Here => (self.here, self.at_nodes),
        };
        one.get().or(other.get()).unwrap_or(0.0)
    }

    /// Returns the expected bytes of output; 0 if none was seen.
    fn output_bytes(&self) -> f64 {
        self.output.get().unwrap_or(0.0)
    }
}

/// Expected time of a call in either placement, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallEstimate {
    /// Time of a call at the node.
    pub ship_ns: f64,
    /// Time of a call at the client.
    pub fetch_ns: f64,
    /// True if the function was called before.
    pub is_sure: bool,
}

impl CallEstimate {
    /// Reports whether the call is faster at the client.
    pub fn is_fetch(&self) -> bool {
        self.fetch_ns < self.ship_ns
    }
}

/// Expected time of calls over the row groups of a table, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EachEstimate {
    /// Time of calls at the nodes, all at once.
    pub ship_ns: f64,
    /// Time of calls at the client, over all row groups.
    pub fetch_ns: f64,
    /// Time if nodes and client share the row groups and end together.
    pub split_ns: f64,
    /// Share of the row groups that the client takes in a split, 0 to 1.
    pub here: f64,
    /// True if the function was called before.
    pub is_sure: bool,
}

/// Nanoseconds to write each fetched byte into fresh memory of a window, besides its transfer. 0.6 was measured on a
/// virtual machine.
const WRITE_NS: f64 = 0.5;
/// Nanoseconds that using nodes and client together costs besides the calls: a second connection to a process that
/// runs functions, a second thread, and bytes that arrive in many small ranges. 2 to 4 ms were measured.
const BOTH_NS: f64 = 2.5e6;
/// Nanoseconds of a call within this machine: a ring in shared memory, and waking a process.
const HERE_NS: f64 = 5e3;

impl Call {
    /// Returns the expected time of the call in either placement.
    pub fn estimate(&self) -> CallEstimate {
        let Call { window_bytes, is_fetched, expected_calls, link, brought_ns, seen } = *self;
        let crowd = 1.0 / (1.0 - link.load.clamp(0.0, 0.9));
        let ship_ns = self.overhead_ns() + seen.ran_ns(RanAt::Node) * crowd;
        let byte_ns = brought_ns.unwrap_or(link.column_ns + WRITE_NS);
        let fetch_once = if is_fetched { 0.0 } else { link.round_trip_ns + window_bytes * byte_ns };
        let fetch_ns = HERE_NS + fetch_once / expected_calls.max(1.0) + seen.ran_ns(RanAt::Here);
        CallEstimate { ship_ns, fetch_ns, is_sure: seen.calls > 0 }
    }

    /// Returns the expected time of calls over the row groups of a table. `self` describes all row groups together.
    /// Nodes run their calls at the same time, so the run time at the nodes is multiplied by `most`: the share of the
    /// row groups that the node with most of them has.
    pub fn estimate_each(&self, most: f64) -> EachEstimate {
        let CallEstimate { ship_ns, fetch_ns, is_sure } = self.estimate();
        let run_ns = ship_ns - self.overhead_ns();
        // The overhead does not depend on the number of row groups; the run time does.
        let shipped = self.overhead_ns() + run_ns * most;
        let (node_ns, here_ns) = (run_ns * most, fetch_ns - HERE_NS);
        let sum_ns = node_ns + here_ns;
        let here = if sum_ns > 0.0 { (shipped - HERE_NS) / sum_ns } else { 0.0 }.clamp(0.0, 1.0);
        let split_ns = BOTH_NS + (shipped - here * node_ns).max(HERE_NS + here * here_ns);
        EachEstimate { ship_ns: shipped, fetch_ns, split_ns, here, is_sure }
    }

    /// Returns the time of a call at a node without its run, in ns.
    fn overhead_ns(&self) -> f64 {
        self.link.round_trip_ns + self.seen.output_bytes() * self.link.result_ns
    }
}

/// Returns the number of dependent accesses to far memory from which on a call at the node beats fetching a page for
/// each access (paper 001, section 5.1): `overhead_ns / (remote_ns - local_ns)`, rounded up. `overhead_ns` is that of
/// the call. Returns `None` if a remote access is no slower than a local one.
pub fn break_even_accesses(overhead_ns: f64, remote_ns: f64, local_ns: f64) -> Option<u64> {
    let gap = remote_ns - local_ns;
    (gap > 0.0 && overhead_ns.is_finite()).then(|| (overhead_ns.max(0.0) / gap).ceil().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(rate: f64, round_trip_ns: f64) -> LinkCost {
        LinkCost {
            column_ns: 1e9 / rate,
            result_ns: 1e9 / rate,
            round_trip_ns,
            cpu_ns: 0.0,
            is_memory: false,
            load: 0.0,
            is_measured: true,
        }
    }

    fn call(window_bytes: f64) -> Call {
        let seen = SeenCalls::default();
        let link = link(1e9, 50e3);
        Call { window_bytes, is_fetched: false, expected_calls: 1.0, link, brought_ns: None, seen }
    }

    #[test]
    fn function_that_was_never_called_is_shipped() {
        assert!(!call(1e6).estimate().is_fetch());
        assert!(!call(1e6).estimate().is_sure);
    }

    #[test]
    fn function_that_leaves_more_than_its_window_is_fetched() {
        let mut large = call(1e6);
        large.seen.note(RanAt::Node, 1e5, 1e7);
        assert!(large.estimate().is_fetch());
        let mut small = call(1e6);
        small.seen.note(RanAt::Node, 1e5, 1e3);
        assert!(!small.estimate().is_fetch());
    }

    #[test]
    fn small_window_that_is_called_often_or_is_here_is_fetched() {
        let mut often = call(1e6);
        often.seen.note(RanAt::Node, 1e3, 8.0);
        assert!(!often.estimate().is_fetch());
        assert!(Call { expected_calls: 1e3, ..often }.estimate().is_fetch());
        assert!(Call { is_fetched: true, ..often }.estimate().is_fetch());
    }

    #[test]
    fn busy_node_is_left_to_others() {
        let mut heavy = call(1e6);
        heavy.seen.note(RanAt::Node, 1e7, 8.0);
        assert!(!heavy.estimate().is_fetch());
        assert!(Call { link: LinkCost { load: 0.8, ..heavy.link }, ..heavy }.estimate().is_fetch());
    }

    #[test]
    fn row_groups_are_shared_so_that_nodes_and_this_machine_end_together() {
        // A run of 100 ms over a window that takes 15 ms to fetch.
        let mut heavy = call(1e7);
        heavy.seen.note(RanAt::Node, 1e8, 8.0);
        let one = heavy.estimate_each(1.0);
        assert!((0.4..0.5).contains(&one.here), "{one:?}");
        assert!(one.split_ns < 0.6 * one.ship_ns && one.split_ns < 0.6 * one.fetch_ns, "{one:?}");
        // The client takes less if there are four nodes.
        let four = heavy.estimate_each(0.25);
        assert!((0.15..0.25).contains(&four.here) && four.split_ns < four.ship_ns, "{four:?}");
        // A run that takes less than fetching its window stays at the node.
        let mut light = call(1e8);
        light.seen.note(RanAt::Node, 1e7, 8.0);
        let light = light.estimate_each(1.0);
        assert!(light.here < 0.15 && light.split_ns > light.ship_ns, "{light:?}");
    }

    #[test]
    fn break_even_is_that_of_the_paper() {
        // Table 2 of paper 001: overheads of 62, 52, 115 and 8,300 us, and a gap of 148 ns between 258 and 110.
        let of = |us: f64| break_even_accesses(us * 1e3, 258.0, 110.0).unwrap();
        assert_eq!([of(62.0), of(52.0), of(115.0)], [419, 352, 778]);
        assert_eq!(of(8_300.0), 56_082);
        assert_eq!(break_even_accesses(1e3, 100.0, 100.0), None);
    }
}
