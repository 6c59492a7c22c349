//! Real tiers: memory is where it is, so work is simply done.
//!
//! The idea: the same morsels in the same order as elsewhere, without tickets; time is what the machine takes. With two
//! queues, workers take turns between near and far, and take from the other one when one is dry.

use crate::emulated::stay_on;
use crate::flow::Queues;
use crate::stage::{Backend, Stage, StageReport, Work};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Tiers of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numa {
    workers: usize,
}

impl Numa {
    /// With so many workers, each on a CPU of its own if there are as many.
    pub fn new(workers: usize) -> Numa {
        Numa { workers: workers.clamp(1, 1_024) }
    }
}

impl Backend for Numa {
    fn label(&self) -> &'static str {
        "numa"
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self, stage: &Stage, work: &dyn Work) -> StageReport {
        let queues = Queues::new(stage);
        let begun = Instant::now();
        let drained = [AtomicU64::new(0), AtomicU64::new(0)];
        let drive = |worker: usize| {
            stay_on(worker, self.workers);
            let mut turn = worker;
            let mut dry = 0;
            while dry < queues.count() {
                let Some(morsel) = queues.take(turn % queues.count()) else {
                    (turn, dry) = (turn + 1, dry + 1);
                    continue;
                };
                (turn, dry) = (turn + 1, 0);
                work.run(worker, &morsel);
                let now = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                drained[morsel.from.index()].fetch_max(now, Ordering::Relaxed);
            }
        };
        let drive = &drive;
        std::thread::scope(|scope| {
            (0..self.workers).for_each(|worker| {
                scope.spawn(move || drive(worker));
            });
        });
        StageReport {
            name: stage.name,
            seconds: begun.elapsed().as_secs_f64(),
            traffic: stage.traffic(),
            drained_seconds: [0, 1].map(|side: usize| drained[side].load(Ordering::Relaxed) as f64 / 1e9),
        }
    }
}
