//! Stages in real time: what holds work back until its tickets are due, and threads that drive workers.
//!
//! The idea: a [`Pace`] is tickets and the time since which they count. Where tiers are real, tickets cost nothing, so
//! the same code runs there without waiting, and still counts what is moved.

use crate::flow::{Flow, Queues, Step};
use crate::meter::{Meter, Picos};
use crate::stage::{Stage, StageReport, Work};
use rustix::thread::CpuSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whoever waits longer than this sleeps for some of it: the CPU may be wanted.
const SPIN_MAX: Duration = Duration::from_micros(300);
/// A sleep ends up to so much late.
const LATE: Duration = Duration::from_micros(150);

/// A stage that has begun.
pub struct Pace {
    pub(crate) meter: Arc<Meter>,
    /// Morsels under way of each worker and queue.
    pub(crate) window: usize,
    begun: Instant,
}

impl Pace {
    pub(crate) fn new(meter: Meter, window: usize) -> Pace {
        Pace { meter: Arc::new(meter), window, begun: Instant::now() }
    }

    pub(crate) fn flow(&self, queues: &Arc<Queues>) -> Flow {
        Flow::new(Arc::clone(&self.meter), Arc::clone(queues), self.window)
    }

    /// The next work of a worker, when it is time; nothing when it is done.
    pub(crate) fn work(&self, flow: &mut Flow) -> Option<crate::stage::Morsel> {
        loop {
            match flow.step(self.picos()) {
                Step::WaitUntil(due) => self.wait_until(due),
                Step::Work(morsel) => return Some(morsel),
                Step::Done => return None,
            }
        }
    }

    /// What it came to, until now.
    pub(crate) fn report(&self, name: &'static str, drained_seconds: [f64; 2]) -> StageReport {
        let seconds = self.begun.elapsed().as_secs_f64();
        StageReport { name, seconds, traffic: self.meter.traffic(), drained_seconds }
    }

    /// Has so many threads do all morsels of a stage.
    pub(crate) fn run(&self, stage: &Stage, workers: usize, work: &dyn Work) -> StageReport {
        let queues = Arc::new(Queues::new(stage));
        let drive = |worker: usize| {
            stay_on(worker, workers);
            let mut flow = self.flow(&queues);
            while let Some(morsel) = self.work(&mut flow) {
                work.run(worker, &morsel);
            }
            flow.drained_seconds()
        };
        let drive = &drive;
        let drained: Vec<[f64; 2]> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || drive(worker))).collect();
            // A thread that panicked has said so already.
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        self.report(stage.name, latest(drained))
    }

    fn picos(&self) -> Picos {
        // Half a year fits.
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_mul(1_000)
    }

    fn wait_until(&self, due: Picos) {
        let due = self.begun + Duration::from_nanos(due.div_ceil(1_000));
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if left > SPIN_MAX {
                std::thread::sleep(left - LATE);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// By side, of all workers.
pub(crate) fn latest(drained: impl IntoIterator<Item = [f64; 2]>) -> [f64; 2] {
    drained.into_iter().fold([0.0; 2], |most, of| [most[0].max(of[0]), most[1].max(of[1])])
}

/// Keeps this thread on a CPU of its own if there are enough: two that share one would hold each other up.
fn stay_on(worker: usize, workers: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpus: Vec<usize> = cpus.collect();
    if let Some(cpu) = cpus.get(worker)
        && cpus.len() >= workers
    {
        let mut own = CpuSet::new();
        own.set(*cpu);
        // Where this is not permitted, threads go where they like.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}
