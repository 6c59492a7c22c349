//! The waiting rule on simulated time: waits of every kind, and two sides that wait for each other.

use farpool_host::waiting::{Rule, Waited};
use proptest::prelude::*;

const PARK_NS: u64 = 40_000;

/// Lets the rule decide about a wait and learn from it. Returns the cost in ns (time spun, and a wake-up if it ended
/// parked), and whether it ended parked.
fn wait(rule: &mut Rule, waited_ns: u64) -> (u64, bool) {
    wait_waking(rule, waited_ns, PARK_NS)
}

/// Does the same where a wake-up costs `wake_ns`, which may differ from the value that the rule was made with.
fn wait_waking(rule: &mut Rule, waited_ns: u64, wake_ns: u64) -> (u64, bool) {
    let spin_ns = rule.spin_ns();
    let is_parked = waited_ns > spin_ns;
    let ns = if is_parked { waited_ns + wake_ns } else { waited_ns };
    rule.learn(Waited { ns, spun_ns: waited_ns.min(spin_ns), is_parked });
    (if is_parked { spin_ns + wake_ns } else { waited_ns }, is_parked)
}

/// Client that asks and server that answers. Times in ns.
struct Pair {
    client: Rule,
    server: Rule,
    /// Cost of a wake-up.
    wake_ns: u64,
    now: u64,
    served_at: u64,
    parks: u32,
    spun_ns: u64,
}

impl Pair {
    fn new() -> Pair {
        Pair::waking(PARK_NS)
    }

    fn waking(wake_ns: u64) -> Pair {
        let rule = || Rule::new(PARK_NS);
        Pair { client: rule(), server: rule(), wake_ns, now: 0, served_at: 0, parks: 0, spun_ns: 0 }
    }

    fn ask(&mut self, think_ns: u64, service_ns: u64) {
        self.now += think_ns;
        let (cost, server_parks) = wait_waking(&mut self.server, self.now - self.served_at, self.wake_ns);
        let wake_ns = if server_parks { self.wake_ns } else { 0 };
        self.spun_ns += cost - wake_ns;
        self.served_at = self.now + wake_ns + service_ns;
        let (cost, client_parks) = wait_waking(&mut self.client, self.served_at - self.now, self.wake_ns);
        let wake_ns = if client_parks { self.wake_ns } else { 0 };
        self.spun_ns += cost - wake_ns;
        self.now = self.served_at + wake_ns;
        self.parks += u32::from(server_parks) + u32::from(client_parks);
    }

    fn parks_of(&mut self, rounds: u32, think_ns: u64, service_ns: u64) -> u32 {
        let before = self.parks;
        (0..rounds).for_each(|_| self.ask(think_ns, service_ns));
        self.parks - before
    }
}

#[test]
fn two_sides_that_answer_fast_do_not_park() {
    let mut pair = Pair::new();
    assert!(pair.parks_of(1_000, 2_000, 10_000) <= 10);
}

#[test]
fn two_sides_that_learnt_to_park_find_out_of_it_when_both_are_fast_again() {
    let mut pair = Pair::new();
    pair.parks_of(20_000, 5_000_000, 3_000_000);
    // Trials are as rare as they can be by now.
    pair.parks_of(5_000, 2_000, 10_000);
    assert!(pair.parks_of(1_000, 2_000, 10_000) <= 10);
}

#[test]
fn two_parked_sides_find_out_of_it_where_a_wake_up_costs_more_than_was_measured() {
    for wake_ns in [PARK_NS / 2, PARK_NS, PARK_NS * 3 / 2] {
        let mut pair = Pair::waking(wake_ns);
        pair.parks_of(20_000, 5_000_000, 3_000_000);
        pair.parks_of(5_000, 2_000, 20_000);
        assert!(pair.parks_of(1_000, 2_000, 20_000) <= 10, "a wake-up of {wake_ns} ns");
    }
}

/// Two sides on one CPU: no answer comes while one spins, and after parking it comes soon.
#[test]
fn two_sides_on_one_cpu_hardly_spin() {
    let mut rule = Rule::new(PARK_NS);
    let mut spun_of = |waits: u32| -> u64 {
        (0..waits)
            .map(|_| {
                let spun_ns = rule.spin_ns();
                rule.learn(Waited { ns: spun_ns + 10_000, spun_ns, is_parked: true });
                spun_ns
            })
            .sum()
    };
    spun_of(10_000);
    let share = spun_of(100_000) as f64 / (100_000.0 * 10_000.0);
    assert!(share < 0.05, "spun {share} of the time that the waits take");
}

#[test]
fn whoever_waits_long_hardly_spins() {
    for (think_ns, service_ns) in [(1_000, 1_000_000), (1_000_000, 1_000), (100_000_000, 10_000)] {
        let mut pair = Pair::new();
        pair.parks_of(1_000, think_ns, service_ns);
        let (spun, start) = (pair.spun_ns, pair.now);
        pair.parks_of(20_000, think_ns, service_ns);
        let share = (pair.spun_ns - spun) as f64 / (pair.now - start) as f64;
        // The side whose waits are short may spin: a thousandth of the time here.
        assert!(share < 0.02, "think {think_ns} ns, service {service_ns} ns: spun {share}");
    }
}

#[test]
fn nobody_spins_where_that_is_never_worth_it() {
    let mut rule = Rule::new(0);
    for waited_ns in [0, 1, 1_000, 1_000_000] {
        assert_eq!(rule.spin_ns(), 0);
        rule.learn(Waited { ns: waited_ns, spun_ns: 0, is_parked: true });
    }
}

proptest! {
    #[test]
    fn no_wait_costs_more_than_two_wake_ups_on_top_of_the_best(
        waits in proptest::collection::vec(0u64..400_000, 1..2_000),
    ) {
        let mut rule = Rule::new(PARK_NS);
        for waited_ns in waits {
            let (cost, _) = wait(&mut rule, waited_ns);
            prop_assert!(cost <= waited_ns.min(PARK_NS) + 2 * PARK_NS);
        }
    }

    /// Waits of two lengths in any mixture cost little more than the better of always spinning and always parking.
    #[test]
    fn waits_of_one_kind_cost_little_more_than_the_better_way(
        (short, long, share, seed) in (0u64..60_000, 0u64..400_000, 0u64..=100, any::<u64>()),
    ) {
        const WAITS: u64 = 20_000;
        let mut rule = Rule::new(PARK_NS);
        let mut random = seed | 1;
        let (mut cost, mut spinning) = (0, 0);
        for _ in 0..WAITS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let waited_ns = if random % 100 < share { short } else { long };
            cost += wait(&mut rule, waited_ns).0;
            spinning += if waited_ns <= PARK_NS { waited_ns } else { 2 * PARK_NS };
        }
        let best = spinning.min(WAITS * PARK_NS);
        // The rule learns from about eight waits. Mixtures near the balance may mislead it, at little cost.
        prop_assert!(cost as f64 <= 1.35 * best as f64 + 100.0 * PARK_NS as f64, "{cost} over {best}");
    }
}
