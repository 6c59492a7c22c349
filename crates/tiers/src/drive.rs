//! Driver of workers in real time: threads that take each step of a worker's state machine when it is due.

use crate::pace::StageClock;
use crate::stage::{Morsel, Stage, StageReport, Work};
use crate::worker_state::{Queues, Step, WorkerState, latest};
use rustix::thread::CpuSet;
use std::sync::Arc;

/// Returns the state machine of a worker that takes morsels from these queues.
pub(crate) fn paced(pace: &StageClock, queues: &Arc<Queues>) -> WorkerState {
    WorkerState::new(Arc::clone(&pace.meter), Arc::clone(queues), pace.in_flight_max)
}

/// Waits until the worker has a morsel to work on, and returns it; returns `None` when the worker is done.
pub(crate) fn next_work(pace: &StageClock, flow: &mut WorkerState) -> Option<Morsel> {
    loop {
        match flow.step(pace.picos()) {
            Step::WaitUntil(due) => pace.wait_until(due),
            Step::Work(morsel) => return Some(morsel),
            Step::Done => return None,
        }
    }
}

/// Returns the report of a stage up to now. `drained_seconds` is the time, since the stage began, at which the last
/// morsel was done that mostly reads from the near tier, and the same for the far tier.
pub(crate) fn report(pace: &StageClock, name: &'static str, drained_seconds: [f64; 2]) -> StageReport {
    StageReport { name, seconds: pace.seconds(), traffic: pace.meter.traffic(), drained_seconds }
}

/// Runs all morsels of a stage on `workers` threads.
pub(crate) fn run(pace: &StageClock, stage: &Stage, workers: usize, work: &dyn Work) -> StageReport {
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
        // A thread that panicked has printed its panic already.
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    report(pace, stage.name, latest(drained))
}

/// Pins this thread to a CPU of its own, if there are as many CPUs as workers. Two workers on one CPU would delay each
/// other.
fn stay_on(worker: usize, workers: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpus: Vec<usize> = cpus.collect();
    if let Some(cpu) = cpus.get(worker)
        && cpus.len() >= workers
    {
        let mut own = CpuSet::new();
        own.set(*cpu);
        // Threads stay unpinned if pinning is not permitted.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}
