//! Rates of links and costs of programs, learned from what was run, in bounded memory.
//!
//! The idea: a driver who takes a route each day knows how long it takes, whatever a map says. For a new address in a
//! known town the driver still knows the roads, but not how long the errand at the end takes. In the same way each run
//! is noted under two keys. The exact key names the program, its columns and its table. The shape is the program
//! without its literals. Another literal costs as much for each byte read, so nanoseconds for each byte are used from
//! either key. It outputs another number of rows, so the size of the output is used from the exact key only.
//!
//! Each rate is an [`Average`] of the runs seen. Until the first run, an assumed value of [`prior`] stands in for it.
//!
//! One run may be slow only because somebody else used the machine. If the planner believed it, it would never choose
//! that placement again, and would never see that it was wrong. So the first value of a link or a placement counts half
//! beside the prior. A placement that is not run is trusted a little less each time that another one is. Running every
//! placement now and then would find the same, but costs more than it wins.
//!
//! Memory is bounded by [`PIPELINES_MAX`] and [`LINKS_MAX`]. The least recently used entry is evicted.

use crate::average::Average;
use crate::calls::{RanAt, SeenCalls};
use crate::estimate::{ClientCpus, Cost, LinkCost, StepEstimate, StepInput, estimate};
use crate::output_size::OutputSize;
use crate::placement::Way;
use crate::prior;
use crate::recent::RecentTimes;
use std::collections::BTreeMap;

/// Most programs that are remembered, and most functions. A program takes one entry under its exact key and one under
/// its shape. The least recently used entry is evicted.
pub const PIPELINES_MAX: usize = 512;
/// Most nodes whose links are remembered; the least recently used is evicted.
pub const LINKS_MAX: usize = 256;
/// Largest correction of an estimate, as a factor: learned factors are between 1/16 and 16.
const FACTOR_MAX: f64 = 16.0;
/// Least rows of a scan, as a share of the rows of the scan from which the size of the output was estimated before,
/// for the new scan to replace that estimate. A smaller scan says less about the number of groups.
const ROWS_MIN: f64 = 0.5;
/// Largest share of a node's time that is taken to be used by other clients, 0 to 1.
const LOAD_MAX: f64 = 0.8;

/// Keys under which a program is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Hash of the program, its columns and its table.
    pub exact: u64,
    /// Hash of the program without its literals.
    pub shape: u64,
}

/// Returns a hash of all parts: FNV-1a, 64 bits. A collision makes an estimate worse and has no other effect.
pub fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let byte = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    // The length before each part keeps ("ab", "c") apart from ("a", "bc").
    let part = |hash: u64, part: &[u8]| (part.len() as u64).to_le_bytes().iter().chain(part).fold(hash, byte);
    parts.into_iter().fold(OFFSET, part)
}

/// Bytes, and the time to process or transfer them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Number of bytes.
    pub bytes: u64,
    /// Nanoseconds for all of the bytes.
    pub ns: u64,
}

impl Measured {
    /// Returns the nanoseconds for each byte. Returns 0 for no bytes, which [`Average`] ignores.
    fn byte_ns(self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.ns as f64 / self.bytes as f64 }
    }
}

/// Output of one scan, and the input that it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Left {
    /// Bytes that the scan read.
    pub read_bytes: f64,
    /// Rows that the scan read.
    pub rows: f64,
    /// Bytes that the scan output.
    pub left_bytes: f64,
}

/// Measured times of a step, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Placement, and nanoseconds until all results were at the client but not merged. `None` if the part was too small
    /// to measure.
    pub whole: Option<(Way, f64)>,
    /// Bytes that nodes processed, and the time.
    pub node: Measured,
    /// Bytes that the client processed, and the time.
    pub client: Measured,
    /// Bytes of results that the client decoded, and the time.
    pub unpacked: Measured,
    /// Output of one scan; `None` if it says nothing about the program.
    pub left: Option<Left>,
}

/// Expected cost of a program, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedCost {
    /// Cost of the program: learned values where something was measured, the caller's assumed ones (priors) elsewhere.
    pub cost: Cost,
    /// True if both the time for each byte and the size of the output were seen for this program.
    pub is_sure: bool,
}

/// How a node is reached, which decides the prior rates of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Shared memory.
    Memory,
    /// A socket to the same host.
    Loopback,
    /// A socket to another host.
    Network,
}

/// Learned rates of the link to one node.
#[derive(Clone, Copy, Debug, Default)]
struct SeenLink {
    /// Nanoseconds for each byte of columns that came over the link.
    columns: Average,
    /// Nanoseconds for each byte of results that came over the link.
    results: Average,
    /// Nanoseconds for each byte that was read only to measure the link.
    probed: Average,
    /// Nanoseconds of a round trip.
    round_trip: Average,
    /// 1 + the share of the node's time that others use: an [`Average`] takes only values above 0.
    load: Average,
    /// Value of [`Learned::uses`] when this entry was last used.
    used: u64,
    /// Nanoseconds to fetch each byte of a function's window.
    window: Average,
}

/// Learned costs of the programs of one key. Averages are empty until something was measured.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Nanoseconds at a node for each byte read.
    node: Average,
    /// Nanoseconds at the client for each byte read.
    client: Average,
    /// Nanoseconds at the client to decode each byte of results.
    unpack: Average,
    /// Nanoseconds at the client to merge each byte of partial results.
    merge: Average,
    /// Bytes of output for each byte read.
    ratio: Average,
    /// Rows that a scan read, and the size of outputs that was estimated from that scan. `None` before the first scan.
    left: Option<(f64, OutputSize)>,
    /// Measured time over estimated time of each placement, by the index of [`Way`].
    factors: [Average; 3],
    /// Value of [`Learned::uses`] when this entry was last used.
    used: u64,
}

impl Seen {
    /// Returns the geometric mean of [`Seen::factors`] (measured over estimated time) over the placements that were
    /// run; `None` if none was run.
    fn common(&self) -> Option<f64> {
        let seen: Vec<f64> = self.factors.iter().filter_map(|factor| factor.get()).collect();
        let logs: f64 = seen.iter().map(|factor| factor.ln()).sum();
        (!seen.is_empty()).then(|| (logs / seen.len() as f64).exp())
    }
}

/// Costs of a function, and how long its latest calls took.
#[derive(Clone, Debug, Default)]
struct SeenFunction {
    costs: SeenCalls,
    /// Times of the latest calls at nodes over a whole window, from the request to the output.
    shipped: RecentTimes,
    /// Times of the latest calls at nodes over a part of a table, each scaled to the whole table.
    part: RecentTimes,
    /// Value of [`Learned::uses`] at the last use of this entry.
    used: u64,
}

/// Store of learned rates, one for each session.
///
/// The methods are of two kinds. `note` and the methods that begin with `note_` learn from a run; the caller measures
/// the times. `link`, `brought_ns`, `calls` and `known` look up what was learned, and fall back to priors. To choose a
/// placement, callers build a [`StepInput`] from [`link`](Learned::link), get a [`Cost`] from
/// [`known`](Learned::known), and pass both to [`estimate`]. There is no lock inside: the caller holds one.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    /// Rates of links, by the id of the node.
    links: BTreeMap<u64, SeenLink>,
    /// Costs of programs, by exact keys and by shapes.
    pipelines: BTreeMap<u64, Seen>,
    /// Costs of functions, by the hash of the function.
    calls: BTreeMap<u64, SeenFunction>,
    /// Number of times that an entry was learned for. It dates the entries, so that the least recently used is found.
    uses: u64,
}

/// Returns the entry of a key, which is used now. If the key is new and the map is full, evicts the least recently used
/// entry. `uses` counts the uses of all maps, and `used` finds its value at the last use of an entry.
fn slot<'m, T: Default>(
    map: &'m mut BTreeMap<u64, T>,
    key: u64,
    max: usize,
    uses: &mut u64,
    used: fn(&mut T) -> &mut u64,
) -> &'m mut T {
    if !map.contains_key(&key) && map.len() >= max {
        let oldest = map.iter_mut().map(|(key, value)| (*used(value), *key)).min();
        oldest.map(|(_, key)| map.remove(&key));
    }
    *uses += 1;
    let entry = map.entry(key).or_default();
    *used(entry) = *uses;
    entry
}

impl Learned {
    fn seen_link(&mut self, node: u64) -> &mut SeenLink {
        slot(&mut self.links, node, LINKS_MAX, &mut self.uses, |link| &mut link.used)
    }

    fn seen(&mut self, key: u64) -> &mut Seen {
        slot(&mut self.pipelines, key, PIPELINES_MAX, &mut self.uses, |seen| &mut seen.used)
    }

    fn seen_function(&mut self, key: u64) -> &mut SeenFunction {
        slot(&mut self.calls, key, PIPELINES_MAX, &mut self.uses, |seen| &mut seen.used)
    }

    /// Returns the expected rates of the link to a node.
    pub fn link(&self, node: u64, distance: Distance) -> LinkCost {
        let SeenLink { columns, results, probed, round_trip, load, .. } =
            self.links.get(&node).copied().unwrap_or_default();
        let is_memory = distance == Distance::Memory;
        let (rate, cpu_ns) = match distance {
            Distance::Memory => (prior::MEMORY_RATE, prior::MEMORY_CPU_NS),
            Distance::Loopback => (prior::LOOPBACK_RATE, prior::TCP_CPU_NS),
            Distance::Network => (prior::LINK_RATE, prior::TCP_CPU_NS),
        };
        // Columns and results share one wire over a socket, so one rate stands in for the other. In shared memory they
        // take different paths.
        let other = |of: Average| if is_memory { None } else { of.get() };
        let column_ns = columns.get().or(other(results)).or(probed.get()).unwrap_or(1e9 / rate);
        let result_ns = results.get().or(other(columns)).or(probed.get()).unwrap_or(1e9 / rate);
        LinkCost {
            column_ns,
            result_ns,
            round_trip_ns: round_trip.get().unwrap_or(prior::ROUND_TRIP_NS),
            cpu_ns,
            is_memory,
            load: load.get().map_or(0.0, |load| load - 1.0),
            is_measured: [columns, results, probed].iter().any(|seen| seen.seen() > 0),
        }
    }

    /// Learns from columns that came over a link while it carried nothing else.
    pub fn note_columns(&mut self, node: u64, distance: Distance, took: Measured) {
        let before = self.link(node, distance).column_ns;
        let columns = &mut self.seen_link(node).columns;
        // The prior counts as a first value, so that one late transfer does not decide alone.
        if columns.seen() == 0 {
            *columns = Average::with_prior(before);
        }
        columns.note(took.byte_ns());
    }

    /// Learns from results that kept a link busy.
    pub fn note_results(&mut self, node: u64, distance: Distance, took: Measured) {
        let before = self.link(node, distance).result_ns;
        let results = &mut self.seen_link(node).results;
        if results.seen() == 0 {
            *results = Average::with_prior(before);
        }
        results.note(took.byte_ns());
    }

    /// Learns from bytes that were read only to measure the link.
    pub fn note_probe(&mut self, node: u64, took: Measured) {
        self.seen_link(node).probed.note(took.byte_ns());
    }

    /// Learns from a request that a node answers at once. `ns` is its round trip.
    pub fn note_round_trip(&mut self, node: u64, ns: u64) {
        self.seen_link(node).round_trip.note(ns as f64);
    }

    /// Learns the share of a node's time that others used.
    pub fn note_load(&mut self, node: u64, load: f64) {
        let seen = &mut self.seen_link(node).load;
        // A load of 0 counts as a first value, so that one late scan does not decide alone.
        if seen.seen() == 0 {
            *seen = Average::with_prior(1.0);
        }
        seen.note(1.0 + load.clamp(0.0, LOAD_MAX));
    }

    /// Learns how many nanoseconds it took to fetch each byte of a function's window.
    pub fn note_brought(&mut self, node: u64, byte_ns: f64) {
        self.seen_link(node).window.note(byte_ns);
    }

    /// Returns the nanoseconds to fetch a byte of a window from a node; `None` if that was never seen.
    pub fn brought_ns(&self, node: u64) -> Option<f64> {
        self.links.get(&node).and_then(|link| link.window.get())
    }

    /// Returns what was learned of a function's calls.
    pub fn calls(&self, function: u64) -> SeenCalls {
        self.calls.get(&function).map(|seen| seen.costs).unwrap_or_default()
    }

    /// Learns from a call of a function: where it ran, its run time over its whole window in ns (measured or
    /// extrapolated), and the bytes of its output.
    pub fn note_call(&mut self, function: u64, ran_at: RanAt, ran_ns: u64, output_bytes: u64) {
        self.seen_function(function).costs.note(ran_at, ran_ns as f64, output_bytes as f64);
    }

    /// Learns how long a call of a function at nodes took, in ns.
    pub fn note_shipped(&mut self, function: u64, took_ns: u64) {
        self.seen_function(function).shipped.note(took_ns);
    }

    /// Returns the time in ns that 95 of 100 calls of a function at nodes do not exceed. `None` after few calls.
    pub fn shipped_p95_ns(&self, function: u64) -> Option<u64> {
        self.calls.get(&function)?.shipped.p95()
    }

    /// Learns how long a call over a part of a table took at a node, in ns and scaled to the whole table.
    pub fn note_part(&mut self, function: u64, whole_ns: u64) {
        self.seen_function(function).part.note(whole_ns);
    }

    /// Returns the time in ns that 95 of 100 calls over parts of a table do not exceed, scaled to the whole table.
    /// `None` after few calls.
    pub fn part_p95_ns(&self, function: u64) -> Option<u64> {
        self.calls.get(&function)?.part.p95()
    }

    /// Returns the expected cost of a program. `prior` fills in whatever was not learned.
    pub fn known(&self, key: ProgramKey, prior: &Cost) -> ExpectedCost {
        let of = |key| self.pipelines.get(&key).copied().unwrap_or_default();
        let (exact, shape): (Seen, Seen) = (of(key.exact), of(key.shape));
        let first = |field: fn(&Seen) -> Average| field(&exact).get().or(field(&shape).get());
        let (node, client) = (first(|seen| seen.node), first(|seen| seen.client));
        let leaves = match (prior.leaves, exact.left) {
            (OutputSize::Share(_), _) => exact.ratio.get().map(OutputSize::Share),
            (_, left) => left.map(|(_, leaves)| leaves),
        };
        // Node and client run the same program, so the rate of one stands in for an unknown rate of the other.
        let node_ns = node.or(client).unwrap_or(prior.node_ns);
        let client_ns = client.or(node).unwrap_or(prior.client_ns);
        let factor = |way: Way| {
            let of = |seen: &Seen| seen.factors[way.index()].get();
            // The estimate of a placement that was never run is probably wrong by a factor near those of the
            // placements that were. The square root takes half of that factor's logarithm, because that is not
            // certain.
            of(&exact).or(of(&shape)).or_else(|| Some(exact.common()?.sqrt()))
        };
        let is_fixed = matches!(prior.leaves, OutputSize::Fixed(_));
        ExpectedCost {
            cost: Cost {
                node_ns,
                client_ns,
                unpack_ns: first(|seen| seen.unpack).unwrap_or(prior.unpack_ns),
                merge_ns: first(|seen| seen.merge).unwrap_or(prior.merge_ns),
                leaves: leaves.unwrap_or(prior.leaves),
                factors: Way::ALL.map(|way| factor(way).unwrap_or(prior.factors[way.index()])),
            },
            is_sure: (node.is_some() || client.is_some()) && (leaves.is_some() || is_fixed),
        }
    }

    /// Learns from a run of a step. `prior` is the cost that was assumed of its program before anything was known.
    pub fn note(
        &mut self,
        key: ProgramKey,
        prior: &Cost,
        step: &StepInput,
        machine: ClientCpus,
        actual: &Measurements,
    ) {
        for of in [key.exact, key.shape] {
            let seen = self.seen(of);
            seen.node.note(actual.node.byte_ns());
            seen.client.note(actual.client.byte_ns());
            seen.unpack.note(actual.unpacked.byte_ns());
            // A side may have been slow only while it was measured. If the other side alone runs now, trust that old
            // value a little less; otherwise the slow side would never be tried again.
            match (actual.node.bytes, actual.client.bytes) {
                (0, 1..) => seen.node.doubt(actual.client.byte_ns()),
                (1.., 0) => seen.client.doubt(actual.node.byte_ns()),
                _ => {}
            }
        }
        if let Some(left) = actual.left {
            self.note_left(key, prior, left);
        }
        let Some((way, ns)) = actual.whole else { return };
        let plain = Cost { factors: [1.0; 3], ..self.known(key, prior).cost };
        let StepEstimate { ns: expected, merge_ns, .. } = estimate(step, &plain, machine).of(way);
        let factor = (ns / (expected - merge_ns).max(1.0)).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        let before = self.known(key, prior).cost.factors[way.index()];
        for of in [key.exact, key.shape] {
            let factors = &mut self.seen(of).factors;
            for other in Way::ALL {
                let average = &mut factors[other.index()];
                match other == way {
                    true if average.seen() == 0 => {
                        *average = Average::with_prior(before);
                        average.note(factor);
                    }
                    true => average.note(factor),
                    // A placement that was slow once by chance must become attractive again.
                    false => average.doubt(factor),
                }
            }
        }
    }

    /// Learns the size of a program's output from the bytes and rows that one scan read and the bytes that it output.
    pub fn note_left(&mut self, key: ProgramKey, prior: &Cost, left: Left) {
        let Left { read_bytes, rows, left_bytes } = left;
        if read_bytes <= 0.0 {
            return;
        }
        let seen = self.seen(key.exact);
        // An output of 0 bytes counts as 1e-9 of the input, because the logarithm of 0 has no average.
        seen.ratio.note((left_bytes / read_bytes).max(1e-9));
        if seen.left.is_none_or(|(before, _)| rows >= before * ROWS_MIN) {
            seen.left = Some((rows, prior.leaves.seen(read_bytes, rows, left_bytes)));
        }
    }

    /// Learns how long merging partial results took.
    pub fn note_merge(&mut self, key: ProgramKey, took: Measured) {
        for of in [key.exact, key.shape] {
            self.seen(of).merge.note(took.byte_ns());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Share;

    const KEY: ProgramKey = ProgramKey { exact: 1, shape: 2 };
    const OTHER_LITERAL: ProgramKey = ProgramKey { exact: 3, shape: 2 };
    const MACHINE: ClientCpus = ClientCpus { cpus: 8.0, is_shared: false };

    fn prior() -> Cost {
        let leaves = OutputSize::Share(0.25);
        Cost { node_ns: 0.1, client_ns: 0.1, unpack_ns: 0.1, merge_ns: 0.1, leaves, factors: [1.0; 3] }
    }

    fn step(learned: &Learned) -> StepInput {
        let link = learned.link(7, Distance::Network);
        let share = Share { bytes: 1e8, rows: 1e6, groups: 25.0, link };
        StepInput { shares: vec![share], fetched_bytes: 0.0, sent_bytes: 0.0 }
    }

    /// Returns a measurement of `ns` nanoseconds for a million bytes.
    fn took(ns: u64) -> Measured {
        Measured { bytes: 1_000_000, ns }
    }

    /// Returns a run at a node: nanoseconds for each byte, and output over input.
    fn shipped(ns: f64, ratio: f64) -> Measurements {
        let left = Left { read_bytes: 1e6, rows: 1e4, left_bytes: 1e6 * ratio };
        Measurements { node: took((1e6 * ns) as u64), left: Some(left), ..Measurements::default() }
    }

    #[test]
    fn nothing_is_sure_before_it_was_seen() {
        let mut learned = Learned::default();
        assert_eq!(learned.known(KEY, &prior()), ExpectedCost { cost: prior(), is_sure: false });
        let step = step(&learned);
        learned.note(KEY, &prior(), &step, MACHINE, &shipped(3.0, 0.5));
        let ExpectedCost { cost, is_sure } = learned.known(KEY, &prior());
        assert!(is_sure);
        assert!((cost.node_ns - 3.0).abs() < 1e-9 && (cost.client_ns - 3.0).abs() < 1e-9);
        assert!(matches!(cost.leaves, OutputSize::Share(share) if (share - 0.5).abs() < 1e-9));
    }

    #[test]
    fn same_shape_costs_as_much_for_a_byte_and_leaves_something_else() {
        let mut learned = Learned::default();
        let step = step(&learned);
        learned.note(KEY, &prior(), &step, MACHINE, &shipped(3.0, 0.5));
        let ExpectedCost { cost, is_sure } = learned.known(OTHER_LITERAL, &prior());
        assert!(!is_sure);
        assert!((cost.node_ns - 3.0).abs() < 1e-9 && cost.leaves == OutputSize::Share(0.25));
        // The size of an output that is always one row needs no run.
        let one_row = Cost { leaves: OutputSize::Fixed(16.0), ..prior() };
        assert!(learned.known(OTHER_LITERAL, &one_row).is_sure);
    }

    #[test]
    fn what_a_way_took_corrects_the_next_estimates_of_it() {
        let mut learned = Learned::default();
        let step = step(&learned);
        let of =
            |learned: &Learned, way| estimate(&step, &learned.known(KEY, &prior()).cost, MACHINE).of(way);
        let seen = shipped(0.1, 0.25);
        learned.note(KEY, &prior(), &step, MACHINE, &seen);
        let (before, fetch) = (of(&learned, Way::Ship), of(&learned, Way::Fetch));
        let twice = 2.0 * (before.ns - before.merge_ns);
        let seen = Measurements { whole: Some((Way::Ship, twice)), ..seen };
        learned.note(KEY, &prior(), &step, MACHINE, &seen);
        let (once, other) = (of(&learned, Way::Ship), of(&learned, Way::Fetch));
        assert!(once.ns > 1.3 * before.ns && once.ns < 1.5 * before.ns, "it may have been bad luck");
        // Fetching was never run. It is expected to be held up as well, but by less.
        assert!(other.ns > fetch.ns && other.ns < 1.3 * fetch.ns);
        (0..10).for_each(|_| learned.note(KEY, &prior(), &step, MACHINE, &seen));
        let after = of(&learned, Way::Ship);
        assert!(((after.ns - after.merge_ns) / twice - 1.0).abs() < 0.02, "{after:?} {twice}");
    }

    #[test]
    fn way_that_turns_out_slow_is_left_for_another() {
        let mut learned = Learned::default();
        let step = step(&learned);
        let seen = shipped(0.1, 0.1);
        learned.note(KEY, &prior(), &step, MACHINE, &seen);
        let choice = |learned: &Learned| estimate(&step, &learned.known(KEY, &prior()).cost, MACHINE);
        let first = choice(&learned);
        assert_eq!(first.choice, Way::Ship);
        let slow = Measurements { whole: Some((Way::Ship, 20.0 * first.of(Way::Ship).ns)), ..seen };
        (0..3).for_each(|_| learned.note(KEY, &prior(), &step, MACHINE, &slow));
        assert_ne!(choice(&learned).choice, Way::Ship);
    }

    #[test]
    fn bad_luck_once_changes_nothing_and_a_few_times_not_for_ever() {
        let mut learned = Learned::default();
        let step = step(&learned);
        let seen = shipped(3.0, 0.5);
        learned.note(KEY, &prior(), &step, MACHINE, &seen);
        let found = |learned: &Learned| estimate(&step, &learned.known(KEY, &prior()).cost, MACHINE);
        let first = found(&learned);
        assert_eq!(first.choice, Way::Split);
        let late = Measurements { whole: Some((Way::Split, 16.0 * first.of(Way::Split).ns)), ..seen };
        learned.note(KEY, &prior(), &step, MACHINE, &late);
        assert_eq!(found(&learned).choice, Way::Split, "{}", found(&learned).why());
        (0..2).for_each(|_| learned.note(KEY, &prior(), &step, MACHINE, &late));
        let other = found(&learned).choice;
        assert_ne!(other, Way::Split, "{}", found(&learned).why());
        let fine = Measurements { whole: Some((other, first.of(other).ns)), ..seen };
        let again = (0..1_000).position(|_| {
            learned.note(KEY, &prior(), &step, MACHINE, &fine);
            found(&learned).choice == Way::Split
        });
        assert!(again.is_some_and(|runs| runs > 10), "{again:?}: {}", found(&learned).why());
    }

    #[test]
    fn side_that_was_slow_once_is_asked_again() {
        let mut learned = Learned::default();
        let mut node_ns = |actual: Measurements| {
            let step = step(&learned);
            learned.note(KEY, &prior(), &step, MACHINE, &actual);
            learned.known(KEY, &prior()).cost.node_ns
        };
        let here = |ns| Measurements { client: took(ns), ..Measurements::default() };
        let slow = node_ns(Measurements { node: took(8_000_000), ..here(1_000_000) });
        let doubted = (0..20).map(|_| node_ns(here(1_000_000))).last().expect("runs");
        assert!(slow > 7.9 && doubted < 2.0, "{slow} {doubted}");
        // A rate that was seen many times is trusted for longer.
        let again =
            (0..5).map(|_| node_ns(Measurements { node: took(8_000_000), ..Measurements::default() }));
        let seen = again.last().expect("runs");
        assert!(seen > 5.0, "{seen}");
        let believed = (0..20).map(|_| node_ns(here(1_000_000))).last().expect("runs");
        assert!(believed > 0.8 * seen, "{believed} of {seen}");
    }

    #[test]
    fn link_is_as_fast_as_it_was_seen_to_be() {
        let mut learned = Learned::default();
        let before = learned.link(7, Distance::Network);
        assert!(!before.is_measured);
        learned.note_probe(7, took(8_000_000));
        assert!((learned.link(7, Distance::Network).column_ns - 8.0).abs() < 1e-9);
        assert_eq!(learned.link(8, Distance::Network), before);
        for _ in 0..20 {
            learned.note_results(7, Distance::Network, took(9_000_000));
        }
        assert!((8.9..9.1).contains(&learned.link(7, Distance::Network).column_ns), "one wire carries both");
        for _ in 0..20 {
            learned.note_columns(7, Distance::Network, took(10_000_000));
        }
        let LinkCost { column_ns, result_ns, is_measured, .. } = learned.link(7, Distance::Network);
        assert!((9.9..10.1).contains(&column_ns) && (8.9..9.1).contains(&result_ns) && is_measured);
    }

    #[test]
    fn load_of_a_node_comes_and_goes() {
        let mut learned = Learned::default();
        learned.note_load(7, 0.5);
        assert!((0.1..0.4).contains(&learned.link(7, Distance::Network).load), "it was seen once");
        (0..30).for_each(|_| learned.note_load(7, 0.5));
        assert!((0.49..0.51).contains(&learned.link(7, Distance::Network).load));
        (0..30).for_each(|_| learned.note_load(7, 0.0));
        assert!(learned.link(7, Distance::Network).load < 0.01);
    }

    #[test]
    fn store_is_bounded_and_forgets_what_was_not_used_for_longest() {
        let mut learned = Learned::default();
        let step = step(&learned);
        let key = |number: u64| ProgramKey { exact: 2 * number, shape: 2 * number + 1 };
        let note = |learned: &mut Learned, number| {
            learned.note(key(number), &prior(), &step, MACHINE, &shipped(3.0, 0.5));
            learned.note_round_trip(number, 1_000);
        };
        for number in 0..2 * PIPELINES_MAX as u64 {
            note(&mut learned, number);
            note(&mut learned, 0);
        }
        assert_eq!((learned.pipelines.len(), learned.links.len()), (PIPELINES_MAX, LINKS_MAX));
        let is_known = |number| learned.known(key(number), &prior()).is_sure;
        assert!(is_known(0) && is_known(2 * PIPELINES_MAX as u64 - 1) && !is_known(5));
    }

    #[test]
    fn fingerprints_keep_parts_apart() {
        let of = |parts: &[&[u8]]| fingerprint(parts.iter().copied());
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
    }
}
