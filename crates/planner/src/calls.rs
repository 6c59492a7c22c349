//! Where a shipped function is called: at the node that has its window, or here, over bytes that are fetched first.
//!
//! The idea: a function is pure, so both give the same, and only time decides. Shipped, a call takes a round trip, its
//! run, and its output's way. Fetched, it takes the window's way, unless that is here already, and its run; so what is
//! called often over one window is worth fetching once, and [`expected_calls`](Call::expected_calls) spreads that. Over
//! the row groups of a table it can do both at once, so shared that nodes and this machine end together. How long a
//! function runs and how much it leaves is learnt of its hash. What was never called is shipped: a small question to
//! ask.
//!
//! A function that follows pointers could instead have each page fetched as it comes to it. [`break_even_accesses`]
//! says from how many of them on shipping it pays (paper 001, table 2); where the far memory is memory of this machine,
//! no number of them is enough for latency's sake alone.

use crate::average::Average;
use crate::estimate::Link;

/// What is known of a call before it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// Bytes of its window.
    pub window_bytes: f64,
    /// Whether they are here.
    pub is_fetched: bool,
    /// Calls over the same window among which fetching it is shared.
    pub expected_calls: f64,
    /// The way to the node.
    pub link: Link,
    /// Nanoseconds for each byte that is brought here into a window, if that was seen.
    pub brought_ns: Option<f64>,
    /// What was seen of the function.
    pub seen: SeenCalls,
}

/// Where a call ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanAt {
    /// At a node.
    Node,
    /// On this machine.
    Here,
}

/// What was seen of a function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeenCalls {
    at_nodes: Average,
    here: Average,
    output: Average,
    /// Calls that were made in all.
    pub calls: u64,
    pub(crate) used: u64,
}

impl SeenCalls {
    /// Learns from a call: where it ran, for how many nanoseconds over the whole window, and the bytes it left.
    pub(crate) fn note(&mut self, ran_at: RanAt, ran_ns: f64, output_bytes: f64) {
        let of = match ran_at {
            RanAt::Node => &mut self.at_nodes,
            RanAt::Here => &mut self.here,
        };
        of.note(ran_ns.max(1.0));
        // An empty output is an output.
        self.output.note(output_bytes.max(1.0));
        self.calls += 1;
    }

    /// How long it runs, there or here; it is the same function, so one tells of the other.
    fn ran_ns(&self, ran_at: RanAt) -> f64 {
        let (one, other) = match ran_at {
            RanAt::Node => (self.at_nodes, self.here),
            RanAt::Here => (self.here, self.at_nodes),
        };
        one.get().or(other.get()).unwrap_or(0.0)
    }

    /// Bytes that it leaves.
    fn output_bytes(&self) -> f64 {
        self.output.get().unwrap_or(0.0)
    }
}

/// What a call would take either way, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallEstimate {
    /// At the node.
    pub ship_ns: f64,
    /// Here.
    pub fetch_ns: f64,
    /// Whether the function was seen before.
    pub is_sure: bool,
}

impl CallEstimate {
    /// Whether it is called here.
    pub fn is_fetch(&self) -> bool {
        self.fetch_ns < self.ship_ns
    }
}

/// What calls over the row groups of a table would take, each over those that lie where it runs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EachEstimate {
    /// At the nodes, all at once.
    pub ship_ns: f64,
    /// Here, over all of them.
    pub fetch_ns: f64,
    /// At the nodes and here, so shared that both end together.
    pub split_ns: f64,
    /// The part that runs here then.
    pub here: f64,
    /// Whether the function was seen before.
    pub is_sure: bool,
}

/// For each byte of a window, besides its way: it comes into fresh memory. 0.6 was found on a virtual machine.
const LAND_NS: f64 = 0.5;
/// A call in two places instead of one: another lane and thread, and bytes that come in many small pieces. 2 to 4 ms
/// were found.
const BOTH_NS: f64 = 2.5e6;
/// A call within this machine: a ring, and a process that wakes.
const HERE_NS: f64 = 5e3;

impl Call {
    /// What it would take.
    pub fn estimate(&self) -> CallEstimate {
        let Call { window_bytes, is_fetched, expected_calls, link, brought_ns, seen } = *self;
        let crowd = 1.0 / (1.0 - link.load.clamp(0.0, 0.9));
        let ship_ns = self.overhead_ns() + seen.ran_ns(RanAt::Node) * crowd;
        let byte_ns = brought_ns.unwrap_or(link.column_ns + LAND_NS);
        let fetch_once = if is_fetched { 0.0 } else { link.round_trip_ns + window_bytes * byte_ns };
        let fetch_ns = HERE_NS + fetch_once / expected_calls.max(1.0) + seen.ran_ns(RanAt::Here);
        CallEstimate { ship_ns, fetch_ns, is_sure: seen.calls > 0 }
    }

    /// What calls over the row groups would take, if the node that has most has this part of them.
    pub fn estimate_each(&self, most: f64) -> EachEstimate {
        let CallEstimate { ship_ns, fetch_ns, is_sure } = self.estimate();
        let run_ns = ship_ns - self.overhead_ns();
        // What stays the same however few row groups there are; the rest falls with them.
        let shipped = self.overhead_ns() + run_ns * most;
        let (node_ns, here_ns) = (run_ns * most, fetch_ns - HERE_NS);
        let sum_ns = node_ns + here_ns;
        let here = if sum_ns > 0.0 { (shipped - HERE_NS) / sum_ns } else { 0.0 }.clamp(0.0, 1.0);
        let split_ns = BOTH_NS + (shipped - here * node_ns).max(HERE_NS + here * here_ns);
        EachEstimate { ship_ns: shipped, fetch_ns, split_ns, here, is_sure }
    }

    /// What a call at a node takes besides its run.
    fn overhead_ns(&self) -> f64 {
        self.link.round_trip_ns + self.seen.output_bytes() * self.link.result_ns
    }
}

/// From how many dependent accesses on a call beats fetching a page for each (paper 001, section 5.1): the whole of
/// `overhead_ns / (remote_ns - local_ns)`, rounded up. Nothing if a remote access is no slower: then it never does.
pub fn break_even_accesses(overhead_ns: f64, remote_ns: f64, local_ns: f64) -> Option<u64> {
    let gap = remote_ns - local_ns;
    (gap > 0.0 && overhead_ns.is_finite()).then(|| (overhead_ns.max(0.0) / gap).ceil().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(rate: f64, round_trip_ns: f64) -> Link {
        Link {
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
        assert!(Call { link: Link { load: 0.8, ..heavy.link }, ..heavy }.estimate().is_fetch());
    }

    #[test]
    fn row_groups_are_shared_so_that_nodes_and_this_machine_end_together() {
        // It runs for 100 ms over a window that takes 15 ms to fetch.
        let mut heavy = call(1e7);
        heavy.seen.note(RanAt::Node, 1e8, 8.0);
        let one = heavy.estimate_each(1.0);
        assert!((0.4..0.5).contains(&one.here), "{one:?}");
        assert!(one.split_ns < 0.6 * one.ship_ns && one.split_ns < 0.6 * one.fetch_ns, "{one:?}");
        // Four nodes leave less to do here.
        let four = heavy.estimate_each(0.25);
        assert!((0.15..0.25).contains(&four.here) && four.split_ns < four.ship_ns, "{four:?}");
        // What is less than its fetching stays where it is.
        let mut light = call(1e8);
        light.seen.note(RanAt::Node, 1e7, 8.0);
        let light = light.estimate_each(1.0);
        assert!(light.here < 0.15 && light.split_ns > light.ship_ns, "{light:?}");
    }

    #[test]
    fn break_even_is_that_of_the_paper() {
        // Table 2: 62, 52, 115 and 8,300 us over a gap of 148 ns between 258 and 110.
        let of = |us: f64| break_even_accesses(us * 1e3, 258.0, 110.0).unwrap();
        assert_eq!([of(62.0), of(52.0), of(115.0)], [419, 352, 778]);
        assert_eq!(of(8_300.0), 56_082);
        assert_eq!(break_even_accesses(1e3, 100.0, 100.0), None);
    }
}
