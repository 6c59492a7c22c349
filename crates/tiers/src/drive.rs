//! Workers in real time: what each does next, when it is time for that, and threads that drive them.

use crate::flow::{Flow, Queues, Step, latest};
use crate::pace::Pace;
use crate::stage::{Morsel, Stage, StageReport, Work};
use rustix::thread::CpuSet;
use std::sync::Arc;

/// A worker that takes morsels of these queues.
pub(crate) fn paced(pace: &Pace, queues: &Arc<Queues>) -> Flow {
    Flow::new(Arc::clone(&pace.meter), Arc::clone(queues), pace.window)
}

/// The next work of a worker, when it is time; nothing when it is done.
pub(crate) fn next_work(pace: &Pace, flow: &mut Flow) -> Option<Morsel> {
    loop {
        match flow.step(pace.picos()) {
            Step::WaitUntil(due) => pace.wait_until(due),
            Step::Work(morsel) => return Some(morsel),
            Step::Done => return None,
        }
    }
}

/// What it came to, until now.
pub(crate) fn report(pace: &Pace, name: &'static str, drained_seconds: [f64; 2]) -> StageReport {
    StageReport { name, seconds: pace.seconds(), traffic: pace.meter.traffic(), drained_seconds }
}

/// Has so many threads do all morsels of a stage.
pub(crate) fn run(pace: &Pace, stage: &Stage, workers: usize, work: &dyn Work) -> StageReport {
    let queues = Arc::new(Queues::new(stage));
    let drive = |worker: usize| {
        stay_on(worker, workers);
        let mut flow = paced(pace, &queues);
        while let Some(morsel) = next_work(pace, &mut flow) {
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
    report(pace, stage.name, latest(drained))
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
