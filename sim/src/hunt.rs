//! The hunt for deliberate mistakes: does the simulator find each of [`Mutant`], and how soon?
//!
//! A world counts as a catch only if the very same world, without the mistake, comes to a good end. So what is
//! caught is the mistake, and not something that is wrong anyway.

use crate::profile::Profile;
use crate::run::run_world;
use farpool_lock::Mutex;
use farpool_wire::mutants::{Mutant, choose};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One search that ended with a catch.
#[derive(Clone, Debug)]
pub struct Catch {
    /// Worlds that it took.
    pub worlds: u64,
    /// Real time that it took on one CPU.
    pub took: Duration,
    /// The seed of the world in which it was caught.
    pub seed: u64,
    /// The check that noticed.
    pub invariant: String,
}

/// What came of the hunt for one mistake.
#[derive(Clone, Debug)]
pub struct Hunted {
    /// Which.
    pub mutant: Mutant,
    /// One for each try that succeeded.
    pub catches: Vec<Catch>,
    /// Tries in all.
    pub tries: u32,
}

/// Hunts for mistakes on so many threads; each try ends after `limit` at the latest.
pub fn hunt(
    mutants: &[Mutant],
    tries: u32,
    limit: Duration,
    profile: Profile,
    threads: usize,
    show: impl Fn(&Hunted) + Sync,
) -> Vec<Hunted> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hunted = hunt_one(*mutant, tries, limit, profile);
                    show(&hunted);
                    found.lock().push(hunted);
                }
            });
        }
    });
    let mut found = found.into_inner();
    found.sort_by_key(|hunted| hunted.mutant);
    found
}

fn hunt_one(mutant: Mutant, tries: u32, limit: Duration, profile: Profile) -> Hunted {
    let mut hunted = Hunted { mutant, catches: Vec::new(), tries };
    for attempt in 0..u64::from(tries) {
        // Far from one another, so that no try profits from another's worlds.
        let first = 1 + attempt * 1_000_000;
        let begun = Instant::now();
        for worlds in 1.. {
            let seed = first + worlds;
            choose(Some(mutant));
            let outcome = run_world(seed, profile);
            choose(None);
            if let Some((violation, _)) = outcome.violation
                && run_world(seed, profile).violation.is_none()
            {
                let invariant = violation.invariant.to_string();
                hunted.catches.push(Catch { worlds, took: begun.elapsed(), seed, invariant });
                break;
            }
            if begun.elapsed() > limit {
                break;
            }
        }
    }
    hunted
}
