//! Hunt for deliberate mistakes: reports whether the simulator finds each [`Mutant`], and how soon.
//!
//! A world counts as a catch only if the same world without the mistake ends well. Otherwise the hunt could have
//! found something that is wrong anyway.

use crate::profile::Profile;
use crate::run::run_world;
use farpool_lock::Mutex;
use farpool_wire::mutants::{Mutant, choose};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Try that found its mistake.
#[derive(Clone, Debug)]
pub struct Catch {
    /// Number of worlds that were run, including the one in which the mistake was caught.
    pub worlds: u64,
    /// Real time that the worlds took on one CPU.
    pub took: Duration,
    /// Seed of the world in which the mistake was caught.
    pub seed: u64,
    /// Name of the invariant that the mistake broke.
    pub invariant: String,
}

/// Results of the hunt for one mistake.
#[derive(Clone, Debug)]
pub struct Hunted {
    /// The mistake.
    pub mutant: Mutant,
    /// Catches, one for each try that succeeded.
    pub catches: Vec<Catch>,
    /// Number of tries.
    pub tries: u32,
}

/// Hunts for mistakes on several threads, `tries` times for each. Each try ends after `limit` of real time at the
/// latest.
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
        // Seeds of the tries are far apart, so that no two tries run the same world.
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
