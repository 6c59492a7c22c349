//! Campaign: runs many worlds on several threads, until the budget is used up or a violation is found.

use crate::profile::Profile;
use crate::run::{WorldOutcome, run_world};
use crate::tally::Tally;
use farpool_lock::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Worlds to run. The campaign ends when the first limit is reached; a limit that is `None` does not apply.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Seed of the first world. The next worlds use the seeds that follow.
    pub first_seed: u64,
    /// Severity of the worlds.
    pub profile: Profile,
    /// Number of worlds.
    pub worlds: Option<u64>,
    /// Number of simulated hours, over all worlds.
    pub hours: Option<f64>,
    /// Real time that the campaign may take.
    pub time: Option<Duration>,
    /// Worlds that run at once, each on a thread of its own.
    pub threads: usize,
}

/// Result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct CampaignReport {
    /// Number of worlds that ended.
    pub worlds: u64,
    /// Counts, summed over these worlds.
    pub tally: Tally,
    /// Real time that the campaign took.
    pub took: Duration,
    /// First world with a violation; `None` if there was none.
    pub found: Option<WorldOutcome>,
    /// Seed of a world that made no progress; `None` if there was none. Usually a lock is held across a pause.
    pub stuck: Option<u64>,
}

/// Real time after which a world counts as stuck.
const STUCK: Duration = Duration::from_secs(300);

/// Progress of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct CampaignProgress {
    /// Number of worlds that ended.
    pub worlds: u64,
    /// Simulated hours.
    pub hours: f64,
    /// Number of faults.
    pub faults: u64,
    /// Used share of the budget, 0 to 1.
    pub share: f64,
}

/// Runs worlds until the budget is used up, or one fails or is stuck. Calls `show` from time to time with the
/// progress.
pub fn run(budget: &Budget, mut show: impl FnMut(CampaignProgress)) -> CampaignReport {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let busy: Vec<Mutex<Option<(u64, Instant)>>> = (0..budget.threads).map(|_| Mutex::new(None)).collect();
    let mut report = CampaignReport::default();
    let (ended, ends) = channel::<WorldOutcome>();
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
            show(CampaignProgress {
                worlds: report.worlds,
                hours,
                faults: report.tally.fault_count(),
                share,
            });
            let stuck = busy.iter().filter_map(|slot| *slot.lock());
            if let Some((seed, _)) = stuck.into_iter().find(|(_, since)| since.elapsed() > STUCK) {
                report.stuck = Some(seed);
                break;
            }
        }
        report.took = start.elapsed();
        if report.stuck.is_some() {
            // The thread of the stuck world never ends, and leaving the scope would wait for it.
            finish_stuck(&report, budget);
        }
    });
    report.took = start.elapsed();
    report
}

fn set(slot: &Mutex<Option<(u64, Instant)>>, value: Option<(u64, Instant)>) {
    *slot.lock() = value;
}

fn finish_stuck(report: &CampaignReport, budget: &Budget) -> ! {
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
    fn share_used(&self, report: &CampaignReport, elapsed: Duration) -> f64 {
        let worlds = self.worlds.map_or(0.0, |worlds| report.worlds as f64 / worlds.max(1) as f64);
        let hours = self.hours.map_or(0.0, |hours| report.tally.hours() / hours);
        let time = self.time.map_or(0.0, |time| elapsed.as_secs_f64() / time.as_secs_f64());
        worlds.max(hours).max(time)
    }
}
