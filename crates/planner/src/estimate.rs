//! Estimates of the time that fetching, shipping and splitting a step would take.
//!
//! The idea: think of clearing a warehouse. One crew packs goods at the warehouse and sends small parcels. Another crew
//! has crates carried home and packs there. Both crews work at the same time, so the job is done when the busiest of
//! them is done: packers there, packers at home, or the road.
//!
//! Here a share `f` of the bytes is processed at the nodes, and the rest is fetched. Each resource has work in
//! proportion: the nodes `f N`, the link `f R + (1 - f) S`, the client `(1 - f) C`, where `N`, `R`, `S` and `C` are the
//! times for all of the bytes. The step takes `max(f N, f R + (1 - f) S, (1 - f) C, ...)`. Shipping is `f = 1` and
//! fetching is `f = 0`. A split takes the `f` at which that maximum is least.
//!
//! If there is little data, the maximum is near 0 and start-up costs decide: a thread, scans to open, round trips. If a
//! node is busy for others, `N` grows and a split moves work to the client. If nodes and client run on the same CPUs, a
//! split wins nothing once the CPUs are full. That is why CPU time is a resource of its own.
//!
//! Adding up the times of all resources would be simpler. It would say that a split never pays, because it ignores that
//! they work at the same time.

use crate::output_size::OutputSize;
use crate::placement::Way;
use crate::prior;
use std::fmt;

/// Connection to a node: its cost for each byte, and the load of the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    /// Nanoseconds to transfer a byte of columns.
    pub column_ns: f64,
    /// Nanoseconds to transfer a byte of results.
    pub result_ns: f64,
    /// Round trip, in ns.
    pub round_trip_ns: f64,
    /// CPU nanoseconds of both ends together for each byte transferred.
    pub cpu_ns: f64,
    /// True if the node's memory is shared memory of this machine. Fetching is then a copy, and results do not compete
    /// with columns for a wire.
    pub is_memory: bool,
    /// Share of the node's time that other clients use, 0 to 1.
    pub load: f64,
    /// True if the transfer rate was measured; false if it is a prior.
    pub is_measured: bool,
}

/// Data of a step that one node holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Bytes that the step reads.
    pub bytes: f64,
    /// Rows that the step reads.
    pub rows: f64,
    /// Row groups: the units that a node or the client claims one at a time.
    pub groups: f64,
    /// Connection to the node.
    pub link: LinkCost,
}

/// Input of an estimate: where the bytes of a step are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInput {
    /// Data at the nodes, one entry for each node.
    pub shares: Vec<Share>,
    /// Bytes that must be fetched, because no node can run the program over them.
    pub fetched_bytes: f64,
    /// Bytes sent to each node before it begins, such as keys of a semi-join.
    pub sent_bytes: f64,
}

/// Cost of a program, as known so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Nanoseconds at a node for each byte read.
    pub node_ns: f64,
    /// Nanoseconds at the client for each byte read.
    pub client_ns: f64,
    /// Nanoseconds at the client to decode each byte of results from nodes.
    pub unpack_ns: f64,
    /// Nanoseconds at the client to merge each byte of partial results, after all have arrived.
    pub merge_ns: f64,
    /// Size of the program's output, as a function of its input.
    pub leaves: OutputSize,
    /// Actual time over estimated time of each placement, by the index of [`Way`]. 1 if the estimate is right.
    pub factors: [f64; 3],
}

/// CPUs of the client's machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientCpus {
    /// Number of CPUs of the client.
    pub cpus: f64,
    /// True if the nodes run on the same CPUs.
    pub is_shared: bool,
}

/// Resource that limits a step: the one that is busy for longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Start-up and final round trips: there is little data.
    Start,
    /// The program at a node.
    Node,
    /// The connection to a node.
    Link,
    /// The program or the decoding of results at the client.
    Client,
    /// CPUs that nodes and client share.
    Cpus,
    /// Merging partial results.
    Merge,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Start => "start-up",
            Limit::Node => "the node",
            Limit::Link => "the link",
            Limit::Client => "the client",
            Limit::Cpus => "the CPUs that client and nodes share",
            Limit::Merge => "merging",
        })
    }
}

/// Estimate for one placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepEstimate {
    /// Nanoseconds until the merged result is at the client.
    pub ns: f64,
    /// Nanoseconds of `ns` that merging takes.
    pub merge_ns: f64,
    /// Bytes transferred over all links.
    pub link_bytes: f64,
    /// Nanoseconds that nodes run the program, summed over nodes.
    pub node_ns: f64,
    /// Nanoseconds that the client runs the program.
    pub client_ns: f64,
    /// Share of the bytes at nodes that nodes process, 0 to 1.
    pub shipped: f64,
    /// Resource that limits the step.
    pub limit: Limit,
}

/// Estimates for all placements, and the placement to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepEstimates {
    each: [StepEstimate; 3],
    /// Placement with the least time. Shipping is preferred, or fetching if no node has any of the data: another
    /// placement must be faster by more than 3 %.
    pub choice: Way,
}

/// Share of the time that a placement must save to replace the one that was chosen so far, 0 to 1.
const TIE: f64 = 0.03;
/// Row groups that each node processes in a split before the client's first fetch shows what splitting is worth.
const SPLIT_GROUPS_MIN: f64 = 4.0;
/// Values of the shipped share that are tried to find the best split.
const POINTS: u32 = 64;

impl StepEstimates {
    /// Returns the estimate for one placement.
    pub fn of(&self, way: Way) -> StepEstimate {
        self.each[way.index()]
    }

    /// Returns the reason for the choice, as a sentence.
    pub fn why(&self) -> String {
        let chosen = self.of(self.choice);
        let others = Way::ALL.into_iter().filter(|way| *way != self.choice);
        let other = |way: Way| {
            let StepEstimate { ns, limit, .. } = self.of(way);
            format!(
                "{} would take {:.2} times as long, limited by {limit}",
                way.name(),
                ns / chosen.ns.max(1.0)
            )
        };
        let others: Vec<String> = others.map(other).collect();
        format!("{} is limited by {}; {}", self.choice.name(), chosen.limit, others.join("; "))
    }
}

/// Busiest resource, and its time in ns.
struct Load {
    ns: f64,
    limit: Limit,
}

impl StepInput {
    /// Returns the bytes that nodes can process.
    fn bytes(&self) -> f64 {
        self.shares.iter().map(|share| share.bytes).sum()
    }

    fn rows(&self) -> f64 {
        self.shares.iter().map(|share| share.rows).sum()
    }

    /// Returns the bytes of results that nodes send if they process the share `shipped`.
    fn results(&self, cost: &Cost, shipped: f64) -> f64 {
        self.shares.iter().map(|share| share.results(cost, shipped)).sum()
    }

    /// Returns the bytes of partial results to merge at the client, its own included.
    fn partial(&self, cost: &Cost, shipped: f64) -> f64 {
        let here = 1.0 - shipped;
        cost.leaves.of(self.bytes() * here + self.fetched_bytes, self.rows() * here)
            + self.results(cost, shipped)
    }

    /// Returns the busiest resource if nodes process the share `shipped`. Resources work at the same time.
    fn busiest(&self, cost: &Cost, machine: ClientCpus, shipped: f64) -> Load {
        let fetched = 1.0 - shipped;
        let (mut node, mut link, mut cpu) = (0.0f64, 0.0f64, 0.0);
        let mut results = 0.0;
        for share in &self.shares {
            let Share { bytes, link: LinkCost { column_ns, result_ns, cpu_ns, is_memory, load, .. }, .. } =
                *share;
            let leaving = share.results(cost, shipped);
            results += leaving;
            let runs = shipped * bytes * cost.node_ns;
            node = node.max(runs / (1.0 - load.clamp(0.0, 0.95)));
            let (columns, leaves) = (fetched * bytes * column_ns, leaving * result_ns);
            link = link.max(if is_memory { columns.max(leaves) } else { columns + leaves });
            // The client's CPUs do half of the work of a transfer, unless they are the nodes' CPUs as well.
            let ends = (fetched * bytes + leaving) * cpu_ns;
            cpu += if machine.is_shared { runs + ends } else { ends / 2.0 };
        }
        let here = fetched * self.bytes() * cost.client_ns;
        let unpacking = results * cost.unpack_ns;
        cpu += here + unpacking;
        let shares = self.shares.len().max(1) as f64;
        let parts = [
            (node, Limit::Node),
            (link, Limit::Link),
            (here.max(unpacking / shares), Limit::Client),
            (cpu / machine.cpus.max(1.0), Limit::Cpus),
        ];
        let greatest = parts.into_iter().max_by(|left, right| left.0.total_cmp(&right.0));
        greatest.map_or(Load { ns: 0.0, limit: Limit::Start }, |(ns, limit)| Load { ns, limit })
    }

    /// Returns the longest round trip of all nodes, in ns.
    fn round_trip_ns(&self) -> f64 {
        self.shares.iter().map(|share| share.link.round_trip_ns).fold(0.0, f64::max)
    }

    /// Returns the longest time to fetch one row group and run the program over it, in ns.
    fn one_group_ns(&self, cost: &Cost) -> f64 {
        let each = |share: &Share| {
            share.bytes / share.groups.max(1.0) * (share.link.column_ns + cost.client_ns)
                + share.link.round_trip_ns
        };
        self.shares.iter().map(each).fold(0.0, f64::max)
    }

    fn way(&self, way: Way, cost: &Cost, machine: ClientCpus) -> StepEstimate {
        let busiest = |shipped| self.busiest(cost, machine, shipped);
        let column_ns = self.shares.iter().map(|share| share.link.column_ns).fold(0.0, f64::max);
        // Bytes that no node can process are fetched last.
        let behind = self.fetched_bytes * (column_ns + cost.client_ns);
        let sent =
            || self.shares.iter().map(|share| self.sent_bytes * share.link.column_ns).fold(0.0, f64::max);
        let rtt = self.round_trip_ns();
        let (shipped, load, edges) = match way {
            Way::Fetch => {
                // Processing cannot start before the first request has arrived. Of transfer and processing of its
                // bytes, the shorter adds to the maximum.
                let first = self.bytes().min(prior::FETCH_BYTES) * column_ns.min(cost.client_ns);
                (0.0, busiest(0.0), prior::FETCH_START_NS + rtt + first + behind)
            }
            Way::Ship => (1.0, busiest(1.0), prior::SHIP_START_NS + 2.0 * rtt + sent() + behind),
            Way::Split => {
                // A split always fetches one row group, to measure how long that takes. At its end it waits for the
                // row group that is processed last, for half a row group's time on average.
                let group_ns = self.one_group_ns(cost);
                let groups: f64 = self.shares.iter().map(|share| share.groups).sum();
                let most = 1.0 - 1.0 / groups.max(1.0);
                // Nodes process some row groups before that measurement is known.
                let least = (SPLIT_GROUPS_MIN * self.shares.len() as f64 / groups.max(1.0)).min(most);
                let point = |point| least + (most - least) * f64::from(point) / f64::from(POINTS);
                let points = (0..=POINTS).map(point);
                let best = points.map(|shipped| (shipped, busiest(shipped)));
                let best = best.min_by(|left, right| left.1.ns.total_cmp(&right.1.ns));
                let (shipped, load) = best.unwrap_or_else(|| (most, busiest(most)));
                let load = if group_ns > load.ns { Load { ns: group_ns, limit: Limit::Link } } else { load };
                (shipped, load, prior::SPLIT_START_NS + 2.0 * rtt + sent() + behind + group_ns / 2.0)
            }
        };
        let factor = cost.factors[way.index()];
        let merge_ns = self.partial(cost, shipped) * cost.merge_ns;
        let limit = match load.limit {
            _ if merge_ns > load.ns && merge_ns > edges => Limit::Merge,
            _ if edges > load.ns => Limit::Start,
            limit => limit,
        };
        let fetched = self.bytes() * (1.0 - shipped) + self.fetched_bytes;
        let sent_bytes = if way == Way::Fetch { 0.0 } else { self.sent_bytes * self.shares.len() as f64 };
        StepEstimate {
            ns: (load.ns + edges) * factor + merge_ns,
            merge_ns,
            link_bytes: fetched + self.results(cost, shipped) + sent_bytes,
            node_ns: self.bytes() * shipped * cost.node_ns,
            client_ns: fetched * cost.client_ns,
            shipped,
            limit,
        }
    }
}

impl Share {
    fn results(&self, cost: &Cost, shipped: f64) -> f64 {
        cost.leaves.of(self.bytes * shipped, self.rows * shipped)
    }
}

/// Returns the estimates for all placements, and the best placement.
pub fn estimate(step: &StepInput, cost: &Cost, machine: ClientCpus) -> StepEstimates {
    let each = Way::ALL.map(|way| step.way(way, cost, machine));
    // Shipping needs the least machinery if a node has any data, so it wins ties.
    let mut choice = Way::Ship;
    if step.shares.is_empty() {
        choice = Way::Fetch;
    }
    for way in [Way::Fetch, Way::Split] {
        if each[way.index()].ns < each[choice.index()].ns * (1.0 - TIE) {
            choice = way;
        }
    }
    StepEstimates { each, choice }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: f64 = (1u64 << 30) as f64;

    fn link(gbyte_per_s: f64) -> LinkCost {
        let (column_ns, result_ns) = (1.0 / gbyte_per_s, 1.0 / gbyte_per_s);
        let (round_trip_ns, cpu_ns, is_memory, load, is_measured) = (50e3, 0.0, false, 0.0, true);
        LinkCost { column_ns, result_ns, round_trip_ns, cpu_ns, is_memory, load, is_measured }
    }

    fn step(bytes: f64, link: LinkCost) -> StepInput {
        let share = Share { bytes, rows: bytes / 64.0, groups: (bytes / 4e6).max(1.0), link };
        StepInput { shares: vec![share], fetched_bytes: 0.0, sent_bytes: 0.0 }
    }

    /// Returns a cost: both sides run the program at this rate, and its output is this share of its input.
    fn cost(gbyte_per_s: f64, share: f64) -> Cost {
        let ns = 1.0 / gbyte_per_s;
        let leaves = OutputSize::Share(share);
        Cost { node_ns: ns, client_ns: ns, unpack_ns: 0.0, merge_ns: 0.0, leaves, factors: [1.0; 3] }
    }

    const APART: ClientCpus = ClientCpus { cpus: 64.0, is_shared: false };

    fn ms(estimates: &StepEstimates, way: Way) -> f64 {
        estimates.of(way).ns / 1e6
    }

    #[test]
    fn over_a_slow_link_the_share_that_leaves_is_the_share_of_the_time() {
        for share in [0.5, 0.25, 0.1] {
            let found = estimate(&step(GIB, link(1.17)), &cost(26.0, share), APART);
            let ratio = ms(&found, Way::Ship) / ms(&found, Way::Fetch);
            assert!((ratio / share - 1.0).abs() < 0.05, "{share}: {ratio}");
            assert_eq!(found.choice, Way::Ship, "{}", found.why());
            assert_eq!(found.of(Way::Fetch).limit, Limit::Link);
        }
    }

    #[test]
    fn node_slower_than_the_link_is_helped_by_as_much_as_the_client_can() {
        // Regular expressions over 100 Gbit/s: node and client have the same rate.
        let found = estimate(&step(GIB, link(11.7)), &cost(4.9, 0.01), APART);
        assert_eq!(found.choice, Way::Split);
        let gain = ms(&found, Way::Ship) / ms(&found, Way::Split);
        assert!((1.8..2.0).contains(&gain), "{gain}");
        assert_eq!(found.of(Way::Ship).limit, Limit::Node);
    }

    #[test]
    fn split_meets_where_the_rule_says() {
        let (rate, of_link, share) = (3.3, 3.0, 0.01);
        let mut cost = cost(rate, share);
        cost.client_ns = 0.01;
        let found = estimate(&step(GIB, link(of_link)), &cost, APART);
        let expected = rate / (of_link + (1.0 - share) * rate);
        assert!((found.of(Way::Split).shipped - expected).abs() < 0.02, "{}", found.of(Way::Split).shipped);
    }

    #[test]
    fn results_that_are_more_than_their_columns_are_not_sent() {
        let found = estimate(&step(GIB, link(1.17)), &cost(10.0, 1.5), APART);
        assert_eq!(found.choice, Way::Fetch, "{}", found.why());
    }

    #[test]
    fn one_row_group_too_long_for_a_slow_link_speaks_against_splitting() {
        let found = estimate(&step(128e6, link(0.117)), &cost(10.0, 0.01), APART);
        assert_eq!(found.choice, Way::Ship);
        assert!(ms(&found, Way::Split) > 1.5 * ms(&found, Way::Ship), "{}", found.why());
    }

    #[test]
    fn node_that_others_keep_busy_is_left_alone_as_far_as_they_do() {
        let shipped = |load| {
            let link = LinkCost { load, ..link(3.0) };
            estimate(&step(GIB, link), &cost(6.0, 0.01), APART).of(Way::Split).shipped
        };
        assert!(
            shipped(0.0) > shipped(0.5) && shipped(0.5) > shipped(0.9),
            "{} {}",
            shipped(0.0),
            shipped(0.9)
        );
    }

    #[test]
    fn shared_memory_is_not_held_up_by_results_and_columns_together() {
        let memory = LinkCost { is_memory: true, ..link(6.0) };
        let machine = ClientCpus { cpus: 2.0, is_shared: true };
        let found = estimate(&step(GIB, memory), &cost(6.0, 1.0), machine);
        assert_eq!(found.choice, Way::Split, "{}", found.why());
    }

    #[test]
    fn cpus_that_both_sides_share_are_no_more_by_sharing_them() {
        let machine = ClientCpus { cpus: 1.0, is_shared: true };
        let found = estimate(&step(GIB, link(50.0)), &cost(5.0, 0.01), machine);
        assert!(ms(&found, Way::Split) > ms(&found, Way::Ship) * 0.97, "{}", found.why());
        assert_eq!(found.of(Way::Split).limit, Limit::Cpus);
    }

    #[test]
    fn several_nodes_work_at_the_same_time() {
        let one = step(GIB, link(1.17));
        let halves = StepInput { shares: vec![step(GIB / 2.0, link(1.17)).shares[0]; 2], ..one.clone() };
        let of = |step: &StepInput| ms(&estimate(step, &cost(2.0, 0.01), APART), Way::Ship);
        assert!((of(&one) / of(&halves) - 2.0).abs() < 0.05);
    }

    #[test]
    fn what_lies_with_no_node_is_fetched() {
        let step = StepInput { fetched_bytes: GIB, ..StepInput::default() };
        assert_eq!(estimate(&step, &cost(10.0, 0.1), APART).choice, Way::Fetch);
    }

    #[test]
    fn keys_that_are_sent_first_count() {
        let few = step(4e6, link(1.17));
        let many = StepInput { sent_bytes: 8e6, ..few.clone() };
        let choice = |step: &StepInput| estimate(step, &cost(10.0, 0.01), APART).choice;
        assert_eq!((choice(&few), choice(&many)), (Way::Ship, Way::Fetch));
    }

    #[test]
    fn why_names_the_choice_and_what_the_others_would_take() {
        let why = estimate(&step(GIB, link(1.17)), &cost(26.0, 0.1), APART).why();
        assert!(why.starts_with("ship is limited by the link; fetch would take 9."), "{why}");
        assert!(why.contains("split would take 1."), "{why}");
    }

    proptest! {
        /// A split is at most twice as fast as the better of the other placements.
        #[test]
        fn split_is_never_more_than_twice_as_fast_as_both(
            rate in 0.1..50.0f64, of_link in 0.05..50.0f64, share in 0.0..2.0f64, mib in 64.0..4096.0f64,
        ) {
            let found = estimate(&step(mib * 1e6, link(of_link)), &cost(rate, share), APART);
            let better = found.of(Way::Ship).ns.min(found.of(Way::Fetch).ns);
            prop_assert!(found.of(Way::Split).ns >= better / 2.0);
            prop_assert!(found.of(found.choice).ns <= better * 1.04);
        }

        #[test]
        fn nothing_takes_less_with_more_to_do(
            rate in 0.1..50.0f64, of_link in 0.05..50.0f64, share in 0.0..2.0f64, mib in 1.0..4096.0f64,
        ) {
            let of = |bytes| estimate(&step(bytes, link(of_link)), &cost(rate, share), APART);
            let (less, more) = (of(mib * 1e6), of(mib * 2e6));
            for way in [Way::Fetch, Way::Ship] {
                prop_assert!(more.of(way).ns >= less.of(way).ns, "{way:?}");
                prop_assert!(more.of(way).link_bytes >= less.of(way).link_bytes);
            }
        }

        /// Any finite input gives finite estimates.
        #[test]
        fn estimates_are_numbers(
            bytes in 0.0..1e15f64, groups in 0.0..1e6f64, load in 0.0..2.0f64, cpus in 0.0..1e3f64,
            ns in 0.0..1e3f64, is_memory: bool, is_shared: bool,
        ) {
            let link = LinkCost { is_memory, load, ..link(1.0) };
            let share = Share { bytes, rows: bytes / 8.0, groups, link };
            let step = StepInput { shares: vec![share; 2], fetched_bytes: bytes, sent_bytes: bytes };
            let leaves = OutputSize::Groups { row_bytes: 8.0, groups: bytes };
            let cost = Cost { leaves, merge_ns: ns, unpack_ns: ns, ..cost(1.0, 0.0) };
            let found = estimate(&step, &cost, ClientCpus { cpus, is_shared });
            for way in Way::ALL {
                let StepEstimate { ns, link_bytes, node_ns, client_ns, shipped, .. } = found.of(way);
                let all = [ns, link_bytes, node_ns, client_ns, shipped];
                prop_assert!(all.iter().all(|value| value.is_finite() && *value >= 0.0), "{all:?}");
            }
        }
    }
}
