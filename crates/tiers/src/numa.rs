//! Real tiers: memory is where it is, so work is simply done.
//!
//! The idea: the same morsels in the same order as elsewhere, with tickets that are due at once; time is what the
//! machine takes. With two queues, workers take turns between near and far, and take from the other one when one is
//! dry.

use crate::drive;
use crate::meter::Meter;
use crate::pace::Pace;
use crate::plan::traffic::Rates;
use crate::stage::{Backend, RealTime, Stage, StageReport, Work};
use crate::topology::Node;
use rustix::thread::CpuSet;

/// Tiers of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numa {
    workers: usize,
}

impl Numa {
    /// With so many workers, each on a CPU of its own if there are as many.
    pub fn new(workers: usize) -> Numa {
        Numa { workers: workers.clamp(1, 256) }
    }

    /// With a worker for each CPU of the near node. This thread, and those that it starts from now on, keep to these:
    /// on CPUs of another node, near would be far.
    pub fn beside(near: &Node) -> Numa {
        let mut cpus = CpuSet::new();
        let known = near.cpus.iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU);
        known.for_each(|cpu| cpus.set(cpu));
        // Where this is not permitted, threads go where they like.
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
    fn begin(&self) -> Pace {
        let no_limit = Rates::shared(f64::INFINITY, f64::INFINITY, f64::INFINITY);
        // One morsel at a time: nothing is to be had by asking early.
        Pace::new(Meter::new(&no_limit, [0.0; 2]), 1)
    }
}
