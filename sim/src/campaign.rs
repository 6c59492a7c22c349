//! Many worlds, on as many threads as asked for, until the budget is used up or something is found.

use crate::profile::Profile;
use crate::run::{Outcome, run_world};
use crate::tally::Tally;
use farpool_lock::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What to run, and for how long. The first limit that is reached ends it.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The first world's seed; the next ones follow.
    pub first_seed: u64,
    /// How hard.
    pub profile: Profile,
    /// So many worlds.
    pub worlds: Option<u64>,
    /// So many simulated hours.
    pub hours: Option<f64>,
    /// So much real time.
    pub time: Option<Duration>,
    /// Worlds at a time.
    pub threads: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Worlds that came to their end.
    pub worlds: u64,
    /// All of them together.
    pub tally: Tally,
    /// Real time.
    pub took: Duration,
    /// The first world in which something was found.
    pub found: Option<Outcome>,
    /// A world that came to a standstill: a lock is held where it must not be.
    pub stuck: Option<u64>,
}

/// A world that takes longer than this in real time does not end.
const STUCK: Duration = Duration::from_secs(300);

/// How far a campaign is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Worlds that came to their end.
    pub worlds: u64,
    /// Simulated hours.
    pub hours: f64,
    /// Faults.
    pub faults: u64,
    /// Of the budget, 0 to 1.
    pub share: f64,
}

/// Runs worlds. `show` is told now and then how far it is.
pub fn run(budget: &Budget, mut show: impl FnMut(Progress)) -> Report {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let busy: Vec<Mutex<Option<(u64, Instant)>>> = (0..budget.threads).map(|_| Mutex::new(None)).collect();
    let mut report = Report::default();
    let (ended, ends) = channel::<Outcome>();
    std::thread::scope(|scope| {
        for slot in &busy {
            let (ended, next, stop) = (ended.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if budget.worlds.is_some_and(|worlds| index >= worlds) {
                        break;
                    }
                    let seed = budget.first_seed.wrapping_add(index);
                    set(slot, Some((seed, Instant::now())));
                    let outcome = run_world(seed, budget.profile);
                    set(slot, None);
                    if ended.send(outcome).is_err() {
                        break;
                    }
                }
            });
        }
        drop(ended);
        loop {
            match ends.recv_timeout(Duration::from_millis(200)) {
                Ok(outcome) => {
                    report.worlds += 1;
                    report.tally.add(&outcome.tally);
                    if outcome.violation.is_some() && report.found.is_none() {
                        report.found = Some(outcome);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let share = budget.share_used(&report, start.elapsed());
            if report.found.is_some() || share >= 1.0 {
                stop.store(true, Ordering::Relaxed);
            }
            let hours = report.tally.hours();
            show(Progress { worlds: report.worlds, hours, faults: report.tally.fault_count(), share });
            let stuck = busy.iter().filter_map(|slot| *slot.lock());
            if let Some((seed, _)) = stuck.into_iter().find(|(_, since)| since.elapsed() > STUCK) {
                report.stuck = Some(seed);
                break;
            }
        }
        report.took = start.elapsed();
        if report.stuck.is_some() {
            // Its thread will never end, and the scope would wait for it.
            finish_stuck(&report, budget);
        }
    });
    report.took = start.elapsed();
    report
}

fn set(slot: &Mutex<Option<(u64, Instant)>>, value: Option<(u64, Instant)>) {
    *slot.lock() = value;
}

fn finish_stuck(report: &Report, budget: &Budget) -> ! {
    if let Some(seed) = report.stuck {
        let profile = budget.profile.word();
        eprintln!(
            "seed {seed} does not end: a lock is held across a wait. Replay it and look at its stack:\n  \
             cargo xtask sim --seed {seed} --profile {profile} --trace"
        );
    }
    std::process::exit(1);
}

impl Budget {
    fn share_used(&self, report: &Report, elapsed: Duration) -> f64 {
        let worlds = self.worlds.map_or(0.0, |worlds| report.worlds as f64 / worlds.max(1) as f64);
        let hours = self.hours.map_or(0.0, |hours| report.tally.hours() / hours);
        let time = self.time.map_or(0.0, |time| elapsed.as_secs_f64() / time.as_secs_f64());
        worlds.max(hours).max(time)
    }
}
