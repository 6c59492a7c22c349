//! Backend for real tiers: work is done without delays.
//!
//! The idea: morsels (parts of a stage) come in the same order as on other backends, and all bytes count as arrived at
//! once. The time is what the machine takes. If there is a queue for each tier, a worker takes from both in turns, and
//! from the other one when one is empty.

use crate::drive;
use crate::meter::Meter;
use crate::pace::StageClock;
use crate::plan::traffic::Rates;
use crate::stage::{Backend, RealTime, Stage, StageReport, Work};
use crate::topology::NumaNode;
use rustix::thread::CpuSet;

/// Backend that works on the real memory tiers of this machine, without delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numa {
    workers: usize,
}

impl Numa {
    /// Returns a backend with 1 to 256 workers. Each is pinned to a CPU if there are as many.
    pub fn new(workers: usize) -> Numa {
        Numa { workers: workers.clamp(1, 256) }
    }

    /// Returns a backend with a worker for each CPU of the near node. Restricts this thread, and threads that it starts
    /// later, to these CPUs: from CPUs of another node, near memory would be far.
    pub fn beside(near: &NumaNode) -> Numa {
        let mut cpus = CpuSet::new();
        let known = near.cpus.iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU);
        known.for_each(|cpu| cpus.set(cpu));
        // Threads stay unpinned if pinning is not permitted.
        let _ = rustix::thread::sched_setaffinity(None, &cpus);
        Numa::new(near.cpus.len())
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
        drive::run(&self.begin(), stage, self.workers, work)
    }
}

impl RealTime for Numa {
    fn begin(&self) -> StageClock {
        let no_limit = Rates::shared(f64::INFINITY, f64::INFINITY, f64::INFINITY);
        // One morsel at a time, because no request is delayed.
        StageClock::new(Meter::new(&no_limit, [0.0; 2]), 1)
    }
}
