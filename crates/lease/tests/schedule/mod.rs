//! Random schedules that replay from one number.
//!
//! `FARPOOL_SEED=n` runs schedule n alone; `FARPOOL_SCHEDULES=n` runs schedules 1 to n.

use std::collections::BTreeMap;

/// Source of every choice of a schedule; the generator is SplitMix64.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true in this percentage of cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items; `None` if there are none.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(items[self.below(items.len() as u64) as usize].clone()) }
    }

    /// Returns at most `count` of the items, each once.
    pub fn pick_some<T: Clone>(&mut self, items: &[T], count: u64) -> Vec<T> {
        let mut left = items.to_vec();
        let mut picked = Vec::new();
        for _ in 0..count.min(left.len() as u64) {
            picked.push(left.swap_remove(self.below(left.len() as u64) as usize));
        }
        picked
    }
}

/// Number of times that each kind of event happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Counts one more event of this kind.
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

struct Replay<'a> {
    test: &'a str,
    seed: u64,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Replay { test, seed } = self;
            eprintln!("replay: FARPOOL_SEED={seed} cargo test --release -p farpool-lease --test {test}");
        }
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// Runs one schedule.
pub fn run_one<R>(test: &str, seed: u64, schedule: &impl Fn(&mut Random, &mut Tally) -> R) -> (R, Tally) {
    let _replay = Replay { test, seed };
    let mut tally = Tally::default();
    let end = schedule(&mut Random(seed), &mut tally);
    (end, tally)
}

/// Runs many schedules and prints what happened in them. Fails unless each event of `expected` happened: a
/// schedule that never meets a fault proves nothing about it.
pub fn run<R>(test: &str, count: u64, expected: &[&str], schedule: impl Fn(&mut Random, &mut Tally) -> R) {
    if let Some(seed) = number_from_env("FARPOOL_SEED") {
        println!("{test}: schedule {seed}: {:?}", run_one(test, seed, &schedule).1.0);
        return;
    }
    let count = number_from_env("FARPOOL_SCHEDULES").unwrap_or(count);
    let mut total = Tally::default();
    for seed in 1..=count {
        for (what, times) in run_one(test, seed, &schedule).1.0 {
            *total.0.entry(what).or_default() += times;
        }
    }
    println!("{test}: {count} schedules: {:?}", total.0);
    let missing: Vec<_> = expected.iter().filter(|what| !total.0.contains_key(**what)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}
