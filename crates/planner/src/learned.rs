//! What was seen of links and programs, kept within bounds.
//!
//! The idea: what is seen of a program is kept twice: under the program itself, and under its shape, which is the
//! program without its literals. Another selection by the same columns costs as much for each byte, but leaves
//! something else, so that is only known of the very same.

use crate::average::Average;
use crate::calls::{RanAt, SeenCalls};
use crate::estimate::{Cost, Link, Machine, Step, StepEstimate, estimate};
use crate::leaves::Leaves;
use crate::placement::Way;
use crate::prior;
use std::collections::BTreeMap;

/// Programs that are remembered, shapes among them; the one that was not used for longest goes.
pub const PIPELINES_MAX: usize = 512;
/// Nodes whose links are remembered.
pub const LINKS_MAX: usize = 256;
/// A link to oneself is no further off than this, and no nearer.
const FACTOR_MAX: f64 = 16.0;
/// What was seen of so small a share of the rows seen before says nothing new about groups.
const ROWS_MIN: f64 = 0.5;
/// Nobody has more of a node than this, as far as is believed.
const LOAD_MAX: f64 = 0.8;

/// By what a program is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The program, and what it runs over.
    pub exact: u64,
    /// The program without its literals.
    pub shape: u64,
}

/// A number for bytes: FNV-1a, 64 bits. Equal ones mislead an estimate, and nothing else.
pub fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let byte = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    // A length between parts, so that they do not run into one another.
    let part = |hash: u64, part: &[u8]| (part.len() as u64).to_le_bytes().iter().chain(part).fold(hash, byte);
    parts.into_iter().fold(OFFSET, part)
}

/// Bytes, and the time that something took for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds for all of them.
    pub ns: u64,
}

impl Took {
    /// Returns the nanoseconds for each byte; 0 of no bytes, which says nothing.
    fn byte_ns(self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.ns as f64 / self.bytes as f64 }
    }
}

/// What left a program, and what it was run over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Left {
    /// Bytes that it read.
    pub read_bytes: f64,
    /// Rows that it read.
    pub rows: f64,
    /// Bytes that left it.
    pub left_bytes: f64,
}

/// What a step, or a part of it, took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Actual {
    /// The way, and nanoseconds until all was here but not merged; nothing of a part too small to tell.
    pub whole: Option<(Way, f64)>,
    /// Bytes that nodes ran the program over, and nanoseconds.
    pub node: Took,
    /// Bytes that it was run over here, and nanoseconds.
    pub client: Took,
    /// Bytes of results, and nanoseconds that taking them took.
    pub unpacked: Took,
    /// What left one scan; `None` where that tells nothing.
    pub left: Option<Left>,
}

/// What a program is expected to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// See there.
    pub cost: Cost,
    /// Whether all that a choice hangs on was seen.
    pub is_sure: bool,
}

/// Where a node is, as far as rates go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// In shared memory.
    Memory,
    /// Over a socket, on this host.
    Loopback,
    /// On another host.
    Network,
}

#[derive(Clone, Copy, Debug, Default)]
struct SeenLink {
    columns: Average,
    results: Average,
    probed: Average,
    round_trip: Average,
    /// One more than the load.
    load: Average,
    used: u64,
    /// Nanoseconds for each byte of a function's window that was brought here.
    window: Average,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    node: Average,
    client: Average,
    unpack: Average,
    merge: Average,
    ratio: Average,
    /// Of so many rows.
    left: Option<(f64, Leaves)>,
    factors: [Average; 3],
    used: u64,
}

impl Seen {
    /// By how much the ways that were run are off, on average.
    fn common(&self) -> Option<f64> {
        let seen: Vec<f64> = self.factors.iter().filter_map(|factor| factor.get()).collect();
        let logs: f64 = seen.iter().map(|factor| factor.ln()).sum();
        (!seen.is_empty()).then(|| (logs / seen.len() as f64).exp())
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    links: BTreeMap<u64, SeenLink>,
    pipelines: BTreeMap<u64, Seen>,
    calls: BTreeMap<u64, SeenCalls>,
    uses: u64,
}

/// One of several; a new one takes the place of the one that was not used for longest.
fn slot<T: Default>(map: &mut BTreeMap<u64, T>, key: u64, max: usize, used: fn(&T) -> u64) -> &mut T {
    if !map.contains_key(&key) && map.len() >= max {
        let oldest = map.iter().min_by_key(|(_, value)| used(value)).map(|(key, _)| *key);
        oldest.map(|oldest| map.remove(&oldest));
    }
    map.entry(key).or_default()
}

impl Learned {
    fn seen_link(&mut self, node: u64) -> &mut SeenLink {
        self.uses += 1;
        let uses = self.uses;
        let link = slot(&mut self.links, node, LINKS_MAX, |link| link.used);
        link.used = uses;
        link
    }

    fn seen(&mut self, key: u64) -> &mut Seen {
        self.uses += 1;
        let uses = self.uses;
        let seen = slot(&mut self.pipelines, key, PIPELINES_MAX, |seen| seen.used);
        seen.used = uses;
        seen
    }

    /// The link to a node.
    pub fn link(&self, node: u64, reach: Reach) -> Link {
        let SeenLink { columns, results, probed, round_trip, load, .. } =
            self.links.get(&node).copied().unwrap_or_default();
        let is_memory = reach == Reach::Memory;
        let (rate, cpu_ns) = match reach {
            Reach::Memory => (prior::MEMORY_RATE, prior::MEMORY_CPU_NS),
            Reach::Loopback => (prior::LOOPBACK_RATE, prior::TCP_CPU_NS),
            Reach::Network => (prior::LINK_RATE, prior::TCP_CPU_NS),
        };
        // One wire carries both; in memory they go different ways.
        let other = |of: Average| if is_memory { None } else { of.get() };
        let column_ns = columns.get().or(other(results)).or(probed.get()).unwrap_or(1e9 / rate);
        let result_ns = results.get().or(other(columns)).or(probed.get()).unwrap_or(1e9 / rate);
        Link {
            column_ns,
            result_ns,
            round_trip_ns: round_trip.get().unwrap_or(prior::ROUND_TRIP_NS),
            cpu_ns,
            is_memory,
            load: load.get().map_or(0.0, |load| load - 1.0),
            is_measured: [columns, results, probed].iter().any(|seen| seen.seen() > 0),
        }
    }

    /// Columns that came over the link to a node, while it did nothing else.
    pub fn note_columns(&mut self, node: u64, reach: Reach, took: Took) {
        let before = self.link(node, reach).column_ns;
        let columns = &mut self.seen_link(node).columns;
        // One that came late is not to be all that is known.
        if columns.seen() == 0 {
            *columns = Average::believed(before);
        }
        columns.note(took.byte_ns());
    }

    /// Results that kept the link to a node busy.
    pub fn note_results(&mut self, node: u64, reach: Reach, took: Took) {
        let before = self.link(node, reach).result_ns;
        let results = &mut self.seen_link(node).results;
        if results.seen() == 0 {
            *results = Average::believed(before);
        }
        results.note(took.byte_ns());
    }

    /// Bytes that were read to see how long they take.
    pub fn note_probe(&mut self, node: u64, took: Took) {
        self.seen_link(node).probed.note(took.byte_ns());
    }

    /// A question that took a node no time.
    pub fn note_round_trip(&mut self, node: u64, ns: u64) {
        self.seen_link(node).round_trip.note(ns as f64);
    }

    /// The share of a node's time that others had.
    pub fn note_load(&mut self, node: u64, load: f64) {
        let seen = &mut self.seen_link(node).load;
        // One scan that came late is not to be all that is known.
        if seen.seen() == 0 {
            *seen = Average::believed(1.0);
        }
        seen.note(1.0 + load.clamp(0.0, LOAD_MAX));
    }

    /// Bytes of a function's window were brought here: how many nanoseconds each took.
    pub fn note_brought(&mut self, node: u64, byte_ns: f64) {
        self.seen_link(node).window.note(byte_ns);
    }

    /// What bringing a byte of a window from a node takes, if it was seen.
    pub fn brought_ns(&self, node: u64) -> Option<f64> {
        self.links.get(&node).and_then(|link| link.window.get())
    }

    /// What was seen of a function's calls.
    pub fn calls(&self, function: u64) -> SeenCalls {
        self.calls.get(&function).copied().unwrap_or_default()
    }

    /// Learns from a call of a function: where it ran, how many nanoseconds it took or would have taken over its whole
    /// window, and the bytes it left.
    pub fn note_call(&mut self, function: u64, ran_at: RanAt, ran_ns: u64, output_bytes: u64) {
        self.uses += 1;
        let uses = self.uses;
        let seen = slot(&mut self.calls, function, PIPELINES_MAX, |seen| seen.used);
        seen.used = uses;
        seen.note(ran_at, ran_ns as f64, output_bytes as f64);
    }

    /// What a program is expected to cost, if nothing is known but what `prior` says.
    pub fn known(&self, key: Key, prior: &Cost) -> Known {
        let of = |key| self.pipelines.get(&key).copied().unwrap_or_default();
        let (exact, shape): (Seen, Seen) = (of(key.exact), of(key.shape));
        let first = |field: fn(&Seen) -> Average| field(&exact).get().or(field(&shape).get());
        let (node, client) = (first(|seen| seen.node), first(|seen| seen.client));
        let leaves = match (prior.leaves, exact.left) {
            (Leaves::Share(_), _) => exact.ratio.get().map(Leaves::Share),
            (_, left) => left.map(|(_, leaves)| leaves),
        };
        // It is the same program: one side tells of the other.
        let node_ns = node.or(client).unwrap_or(prior.node_ns);
        let client_ns = client.or(node).unwrap_or(prior.client_ns);
        let factor = |way: Way| {
            let of = |seen: &Seen| seen.factors[way.index()].get();
            // What holds all ways up is likely to hold up one that was never run, too; but that is not known.
            of(&exact).or(of(&shape)).or_else(|| Some(exact.common()?.sqrt()))
        };
        let is_fixed = matches!(prior.leaves, Leaves::Fixed(_));
        Known {
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

    /// Learns from what a step took. `prior` is what was believed of its program before anything was known.
    pub fn note(&mut self, key: Key, prior: &Cost, step: &Step, machine: Machine, actual: &Actual) {
        for of in [key.exact, key.shape] {
            let seen = self.seen(of);
            seen.node.note(actual.node.byte_ns());
            seen.client.note(actual.client.byte_ns());
            seen.unpack.note(actual.unpacked.byte_ns());
            // A side that ran nothing may have been slow only when it was looked at, and then it would not be asked
            // again.
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
                        *average = Average::believed(before);
                        average.note(factor);
                    }
                    true => average.note(factor),
                    // What was bad luck is not to be believed for ever.
                    false => average.doubt(factor),
                }
            }
        }
    }

    /// Learns how much one scan left of what it read.
    pub fn note_left(&mut self, key: Key, prior: &Cost, left: Left) {
        let Left { read_bytes, rows, left_bytes } = left;
        if read_bytes <= 0.0 {
            return;
        }
        let seen = self.seen(key.exact);
        // Nothing at all is as good as very little, and very little can be averaged.
        seen.ratio.note((left_bytes / read_bytes).max(1e-9));
        if seen.left.is_none_or(|(before, _)| rows >= before * ROWS_MIN) {
            seen.left = Some((rows, prior.leaves.seen(read_bytes, rows, left_bytes)));
        }
    }

    /// Learns how long merging so many bytes of partial results took.
    pub fn note_merge(&mut self, key: Key, took: Took) {
        for of in [key.exact, key.shape] {
            self.seen(of).merge.note(took.byte_ns());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Share;

    const KEY: Key = Key { exact: 1, shape: 2 };
    const OTHER_LITERAL: Key = Key { exact: 3, shape: 2 };
    const MACHINE: Machine = Machine { cpus: 8.0, is_shared: false };

    fn prior() -> Cost {
        let leaves = Leaves::Share(0.25);
        Cost { node_ns: 0.1, client_ns: 0.1, unpack_ns: 0.1, merge_ns: 0.1, leaves, factors: [1.0; 3] }
    }

    fn step(learned: &Learned) -> Step {
        let link = learned.link(7, Reach::Network);
        let share = Share { bytes: 1e8, rows: 1e6, groups: 25.0, link };
        Step { shares: vec![share], fetched_bytes: 0.0, sent_bytes: 0.0 }
    }

    /// A million bytes took so long.
    fn took(ns: u64) -> Took {
        Took { bytes: 1_000_000, ns }
    }

    /// A node took so long for each byte, and so much left.
    fn shipped(ns: f64, ratio: f64) -> Actual {
        let left = Left { read_bytes: 1e6, rows: 1e4, left_bytes: 1e6 * ratio };
        Actual { node: took((1e6 * ns) as u64), left: Some(left), ..Actual::default() }
    }

    #[test]
    fn nothing_is_sure_before_it_was_seen() {
        let mut learned = Learned::default();
        assert_eq!(learned.known(KEY, &prior()), Known { cost: prior(), is_sure: false });
        let step = step(&learned);
        learned.note(KEY, &prior(), &step, MACHINE, &shipped(3.0, 0.5));
        let Known { cost, is_sure } = learned.known(KEY, &prior());
        assert!(is_sure);
        assert!((cost.node_ns - 3.0).abs() < 1e-9 && (cost.client_ns - 3.0).abs() < 1e-9);
        assert!(matches!(cost.leaves, Leaves::Share(share) if (share - 0.5).abs() < 1e-9));
    }

    #[test]
    fn same_shape_costs_as_much_for_a_byte_and_leaves_something_else() {
        let mut learned = Learned::default();
        let step = step(&learned);
        learned.note(KEY, &prior(), &step, MACHINE, &shipped(3.0, 0.5));
        let Known { cost, is_sure } = learned.known(OTHER_LITERAL, &prior());
        assert!(!is_sure);
        assert!((cost.node_ns - 3.0).abs() < 1e-9 && cost.leaves == Leaves::Share(0.25));
        // What leaves one row whatever is read is known all the same.
        let one_row = Cost { leaves: Leaves::Fixed(16.0), ..prior() };
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
        let seen = Actual { whole: Some((Way::Ship, twice)), ..seen };
        learned.note(KEY, &prior(), &step, MACHINE, &seen);
        let (once, other) = (of(&learned, Way::Ship), of(&learned, Way::Fetch));
        assert!(once.ns > 1.3 * before.ns && once.ns < 1.5 * before.ns, "it may have been bad luck");
        // So far as is known, what held up the one may hold up the other.
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
        let slow = Actual { whole: Some((Way::Ship, 20.0 * first.of(Way::Ship).ns)), ..seen };
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
        let late = Actual { whole: Some((Way::Split, 16.0 * first.of(Way::Split).ns)), ..seen };
        learned.note(KEY, &prior(), &step, MACHINE, &late);
        assert_eq!(found(&learned).choice, Way::Split, "{}", found(&learned).why());
        (0..2).for_each(|_| learned.note(KEY, &prior(), &step, MACHINE, &late));
        let other = found(&learned).choice;
        assert_ne!(other, Way::Split, "{}", found(&learned).why());
        let fine = Actual { whole: Some((other, first.of(other).ns)), ..seen };
        let again = (0..1_000).position(|_| {
            learned.note(KEY, &prior(), &step, MACHINE, &fine);
            found(&learned).choice == Way::Split
        });
        assert!(again.is_some_and(|runs| runs > 10), "{again:?}: {}", found(&learned).why());
    }

    #[test]
    fn side_that_was_slow_once_is_asked_again() {
        let mut learned = Learned::default();
        let mut node_ns = |actual: Actual| {
            let step = step(&learned);
            learned.note(KEY, &prior(), &step, MACHINE, &actual);
            learned.known(KEY, &prior()).cost.node_ns
        };
        let here = |ns| Actual { client: took(ns), ..Actual::default() };
        let slow = node_ns(Actual { node: took(8_000_000), ..here(1_000_000) });
        let doubted = (0..20).map(|_| node_ns(here(1_000_000))).last().expect("runs");
        assert!(slow > 7.9 && doubted < 2.0, "{slow} {doubted}");
        // What was seen again and again is believed.
        let again = (0..5).map(|_| node_ns(Actual { node: took(8_000_000), ..Actual::default() }));
        let seen = again.last().expect("runs");
        assert!(seen > 5.0, "{seen}");
        let believed = (0..20).map(|_| node_ns(here(1_000_000))).last().expect("runs");
        assert!(believed > 0.8 * seen, "{believed} of {seen}");
    }

    #[test]
    fn link_is_as_fast_as_it_was_seen_to_be() {
        let mut learned = Learned::default();
        let before = learned.link(7, Reach::Network);
        assert!(!before.is_measured);
        learned.note_probe(7, took(8_000_000));
        assert!((learned.link(7, Reach::Network).column_ns - 8.0).abs() < 1e-9);
        assert_eq!(learned.link(8, Reach::Network), before);
        for _ in 0..20 {
            learned.note_results(7, Reach::Network, took(9_000_000));
        }
        assert!((8.9..9.1).contains(&learned.link(7, Reach::Network).column_ns), "one wire carries both");
        for _ in 0..20 {
            learned.note_columns(7, Reach::Network, took(10_000_000));
        }
        let Link { column_ns, result_ns, is_measured, .. } = learned.link(7, Reach::Network);
        assert!((9.9..10.1).contains(&column_ns) && (8.9..9.1).contains(&result_ns) && is_measured);
    }

    #[test]
    fn load_of_a_node_comes_and_goes() {
        let mut learned = Learned::default();
        learned.note_load(7, 0.5);
        assert!((0.1..0.4).contains(&learned.link(7, Reach::Network).load), "it was seen once");
        (0..30).for_each(|_| learned.note_load(7, 0.5));
        assert!((0.49..0.51).contains(&learned.link(7, Reach::Network).load));
        (0..30).for_each(|_| learned.note_load(7, 0.0));
        assert!(learned.link(7, Reach::Network).load < 0.01);
    }

    #[test]
    fn store_is_bounded_and_forgets_what_was_not_used_for_longest() {
        let mut learned = Learned::default();
        let step = step(&learned);
        let key = |number: u64| Key { exact: 2 * number, shape: 2 * number + 1 };
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
