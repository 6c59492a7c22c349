//! Workers in real time: what each does next, when it is time for that, and threads that drive them.

use crate::flow::{Flow, Queues, Step, latest};
use crate::pace::Pace;
use crate::stage::{Morsel, Stage, StageReport, Work};
use rustix::thread::CpuSet;
use std::sync::Arc;

impl Pace {
    pub(crate) fn flow(&self, queues: &Arc<Queues>) -> Flow {
        Flow::new(Arc::clone(&self.meter), Arc::clone(queues), self.window)
    }

    /// The next work of a worker, when it is time; nothing when it is done.
    pub(crate) fn work(&self, flow: &mut Flow) -> Option<Morsel> {
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
        let seconds = self.seconds();
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
