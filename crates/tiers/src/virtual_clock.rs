//! Backend that computes how long stages take, without doing any work. It is deterministic.
//!
//! The idea: each worker is the state machine that real threads drive too (`worker_state.rs`). The worker with the
//! earliest due time is stepped next, at that time. Of equal times, the worker with the lowest number is first. Nothing
//! is moved and no real time passes.

use crate::meter::{Meter, PICOS_PER_SECOND, Picos};
use crate::plan::traffic::{NoRate, Rates};
use crate::stage::{Backend, Stage, StageReport, Work};
use crate::worker_state::{Queues, Step, WorkerState, latest};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Two tiers and workers that exist only as rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Virtual {
    rates: Rates,
    workers: usize,
    /// Morsels whose bytes a worker requests ahead, for each queue.
    in_flight_max: usize,
    /// Latency of random accesses to single cache lines in ns, by tier (near, far).
    latency_ns: [f64; 2],
    /// CPU time in ns for each byte that a morsel reads.
    cpu_ns_per_byte: f64,
    /// Seed of random transfer times; `None` if they are exact.
    noise: Option<u64>,
}

/// Default number of workers, enough to keep both tiers busy.
const WORKERS: usize = 2;
/// Default number of morsels (parts of a stage) whose bytes a worker requests ahead, for each queue.
const IN_FLIGHT_MAX: usize = 8;
/// Most workers. Each one takes memory.
const WORKERS_MAX: usize = 4_096;

impl Virtual {
    /// Returns a machine with two workers, each of which requests the bytes of eight morsels ahead. Fails if a rate is
    /// not finite and above 0.
    pub fn new(rates: Rates) -> Result<Virtual, NoRate> {
        rates.check()?;
        let latency_ns = [0.0; 2];
        Ok(Virtual {
            rates,
            workers: WORKERS,
            in_flight_max: IN_FLIGHT_MAX,
            latency_ns,
            cpu_ns_per_byte: 0.0,
            noise: None,
        })
    }

    /// Sets the number of workers, limited to 1..=4,096, and the number of morsels whose bytes each requests ahead.
    pub fn with_workers(mut self, workers: usize, in_flight_max: usize) -> Virtual {
        (self.workers, self.in_flight_max) = (workers.clamp(1, WORKERS_MAX), in_flight_max.max(1));
        self
    }

    /// Sets the latency of random accesses to single cache lines on either tier, in ns. It comes in addition to the
    /// time for the bytes of the lines.
    pub fn with_latency(mut self, near_ns: f64, far_ns: f64) -> Virtual {
        self.latency_ns = [near_ns, far_ns];
        self
    }

    /// Makes each transfer time random: exponentially distributed, with the same mean. This imitates a machine that
    /// others use. Equal seeds give equal runs.
    pub fn with_noise(mut self, seed: u64) -> Virtual {
        self.noise = Some(seed);
        self
    }

    /// Sets the CPU time of a morsel's work, in ns for each byte that it reads.
    pub fn with_cpu(mut self, ns_per_byte: f64) -> Virtual {
        self.cpu_ns_per_byte = ns_per_byte;
        self
    }
}

impl Backend for Virtual {
    fn label(&self) -> &'static str {
        "virtual"
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self, stage: &Stage, _work: &dyn Work) -> StageReport {
        let meter = Meter::new(&self.rates, self.latency_ns);
        let meter = match self.noise {
            Some(seed) => meter.with_noise(seed),
            None => meter,
        };
        let (meter, queues) = (Arc::new(meter), Arc::new(Queues::new(stage)));
        let mut flows: Vec<WorkerState> = (0..self.workers)
            .map(|_| WorkerState::new(Arc::clone(&meter), Arc::clone(&queues), self.in_flight_max))
            .collect();
        let mut waiting: BinaryHeap<Reverse<(Picos, usize)>> =
            (0..self.workers).map(|worker| Reverse((0, worker))).collect();
        let mut end: Picos = 0;
        while let Some(Reverse((now, worker))) = waiting.pop() {
            match flows[worker].step(now) {
                Step::WaitUntil(due) => waiting.push(Reverse((due.max(now), worker))),
                Step::Work(morsel) => {
                    let read = morsel.read_bytes[0] + morsel.read_bytes[1];
                    let takes = read as f64 * self.cpu_ns_per_byte * 1e3;
                    waiting.push(Reverse((now.saturating_add(takes as u64), worker)));
                }
                Step::Done => end = end.max(now),
            }
        }
        StageReport {
            name: stage.name,
            seconds: end as f64 / PICOS_PER_SECOND,
            traffic: meter.traffic(),
            drained_seconds: latest(flows.iter().map(WorkerState::drained_seconds)),
        }
    }
}
