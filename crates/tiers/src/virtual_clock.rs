//! Stages under a clock that jumps: what tickets say they take, at once and the same in every run.
//!
//! The idea: workers are the state machines that threads drive as well (`flow.rs`). Whoever waits least is asked next,
//! at the time it waited for; of equal ones the first. No work is done, no time passes.

use crate::flow::{Flow, Queues, Step, latest};
use crate::meter::{Meter, PICOS_PER_SECOND, Picos};
use crate::plan::traffic::{NoRate, Rates};
use crate::stage::{Backend, Stage, StageReport, Work};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Tiers that are nothing but numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Virtual {
    rates: Rates,
    workers: usize,
    window: usize,
    latency_ns: [f64; 2],
    cpu_ns_per_byte: f64,
    noise: Option<u64>,
}

/// Workers of a virtual machine, and morsels that each has under way, unless said otherwise: enough to keep both tiers
/// busy.
const WORKERS: usize = 2;
const WINDOW: usize = 8;
/// More would only take memory.
const WORKERS_MAX: usize = 4_096;

impl Virtual {
    /// Two workers, each with eight morsels under way. Refuses what is no rate.
    pub fn new(rates: Rates) -> Result<Virtual, NoRate> {
        rates.check()?;
        let latency_ns = [0.0; 2];
        Ok(Virtual { rates, workers: WORKERS, window: WINDOW, latency_ns, cpu_ns_per_byte: 0.0, noise: None })
    }

    /// With so many workers, from 1 to 4,096, and so many morsels under way for each of them.
    pub fn with_workers(mut self, workers: usize, window: usize) -> Virtual {
        (self.workers, self.window) = (workers.clamp(1, WORKERS_MAX), window.max(1));
        self
    }

    /// Lines take so many nanoseconds more, by side.
    pub fn with_latency(mut self, near_ns: f64, far_ns: f64) -> Virtual {
        self.latency_ns = [near_ns, far_ns];
        self
    }

    /// Every ticket takes as long as before in the mean, but is distributed exponentially: a machine that others use.
    /// Of the same seed all runs are the same.
    pub fn with_noise(mut self, seed: u64) -> Virtual {
        self.noise = Some(seed);
        self
    }

    /// The work of a morsel takes its worker so long for each byte that it reads.
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
        let mut flows: Vec<Flow> = (0..self.workers)
            .map(|_| Flow::new(Arc::clone(&meter), Arc::clone(&queues), self.window))
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
            drained_seconds: latest(flows.iter().map(Flow::drained_seconds)),
        }
    }
}
