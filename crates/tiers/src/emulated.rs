//! Two tiers on a machine that has one: real work on real memory, held up until its tickets are due.
//!
//! The idea: workers are threads that drive the same state machines as the virtual clock ([`Flow`]), with time that
//! passes. The tiers' rates are given, and must be so low that the machine itself is no limit: a tenth of the paper's, say.
//! Then order, volume and overlap of traffic, and with them ratios of strategies, are those of such a machine; what it
//! cannot show are rates, caches, prefetchers and address translation. Whatever it prints is called "emulated".

use crate::flow::{Flow, Queues, Step};
use crate::meter::{Meter, Picos};
use crate::stage::{Backend, Stage, StageReport, Work};
use farpool_place::traffic::{NoRate, Rates};
use rustix::thread::CpuSet;
use std::time::{Duration, Instant};

/// Tiers that are held back to such rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emulated {
    rates: Rates,
    workers: usize,
    window: usize,
    latency_ns: [f64; 2],
}

/// Morsels that a worker has under way unless said otherwise: more would leave the caches before their turn.
const WINDOW: usize = 4;
/// Whoever waits longer than this sleeps for some of it: the CPU may be wanted.
const SPIN_MAX: Duration = Duration::from_micros(300);
/// A sleep ends up to so much late.
const LATE: Duration = Duration::from_micros(150);

impl Emulated {
    /// With so many workers, each on a CPU of its own if there are as many. Refuses what is no rate.
    pub fn new(rates: Rates, workers: usize) -> Result<Emulated, NoRate> {
        rates.check()?;
        Ok(Emulated { rates, workers: workers.clamp(1, 256), window: WINDOW, latency_ns: [0.0; 2] })
    }

    /// Lines take so many nanoseconds more than they do, by side.
    pub fn with_latency(mut self, near_ns: f64, far_ns: f64) -> Emulated {
        self.latency_ns = [near_ns, far_ns];
        self
    }

    /// So many morsels under way for each worker.
    pub fn with_window(mut self, window: usize) -> Emulated {
        self.window = window.max(1);
        self
    }
}

impl Backend for Emulated {
    fn label(&self) -> &'static str {
        "emulated"
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self, stage: &Stage, work: &dyn Work) -> StageReport {
        let meter = Meter::new(&self.rates, self.latency_ns);
        let queues = Queues::new(stage);
        let begun = Instant::now();
        let drive = |worker: usize| {
            stay_on(worker, self.workers);
            let mut flow = Flow::new(&meter, &queues, self.window);
            loop {
                match flow.step(picos(begun)) {
                    Step::WaitUntil(due) => wait_until(begun, due),
                    Step::Work(morsel) => work.run(worker, &morsel),
                    Step::Done => return flow.drained_seconds(),
                }
            }
        };
        let drive = &drive;
        let drained: Vec<[f64; 2]> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.workers).map(|worker| scope.spawn(move || drive(worker))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        StageReport {
            name: stage.name,
            seconds: begun.elapsed().as_secs_f64(),
            traffic: meter.traffic(),
            drained_seconds: drained
                .iter()
                .fold([0.0; 2], |most, of| [most[0].max(of[0]), most[1].max(of[1])]),
        }
    }
}

fn picos(since: Instant) -> Picos {
    // Half a year fits.
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_mul(1_000)
}

fn wait_until(begun: Instant, due: Picos) {
    let due = begun + Duration::from_nanos(due.div_ceil(1_000));
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

/// Keeps this thread on a CPU of its own if there are enough: two that share one would hold each other up.
pub(crate) fn stay_on(worker: usize, workers: usize) {
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
