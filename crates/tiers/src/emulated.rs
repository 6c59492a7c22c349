//! Backend for two tiers on a machine that has one: real work, delayed until its bytes would have arrived.
//!
//! The idea: workers are threads that drive the same state machines as the virtual clock (`worker_state.rs`), in real
//! time. The rates of the tiers are given. They must be so low that the machine itself is no limit, for example a tenth
//! of those of paper 002. Order, volume and overlap of the traffic, and ratios between strategies, are then those of a
//! machine with two tiers. Rates, caches, prefetchers and address translation are not. Results of this backend are
//! labelled "emulated".

use crate::drive;
use crate::meter::Meter;
use crate::pace::StageClock;
use crate::plan::traffic::{NoRate, Rates};
use crate::stage::{Backend, RealTime, Stage, StageReport, Work};

/// Backend whose two tiers have given rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emulated {
    rates: Rates,
    workers: usize,
    /// Morsels whose bytes a worker requests ahead, for each queue.
    in_flight_max: usize,
    /// Latency of random accesses to single cache lines in ns, by tier (near, far).
    latency_ns: [f64; 2],
}

/// Default number of morsels (parts of a stage) whose bytes a worker requests ahead. More would leave the caches before
/// the worker comes to them.
const IN_FLIGHT_MAX: usize = 4;
impl Emulated {
    /// Returns a backend with 1 to 256 workers. Each is pinned to a CPU if there are as many. Fails if a rate is not
    /// finite and above 0.
    pub fn new(rates: Rates, workers: usize) -> Result<Emulated, NoRate> {
        rates.check()?;
        Ok(Emulated {
            rates,
            workers: workers.clamp(1, 256),
            in_flight_max: IN_FLIGHT_MAX,
            latency_ns: [0.0; 2],
        })
    }

    /// Sets the latency of random accesses to single cache lines on either tier, in ns. It comes in addition to the
    /// time for the bytes of the lines.
    pub fn with_latency(mut self, near_ns: f64, far_ns: f64) -> Emulated {
        self.latency_ns = [near_ns, far_ns];
        self
    }

    /// Sets the number of morsels whose bytes each worker requests ahead.
    pub fn with_in_flight_max(mut self, in_flight_max: usize) -> Emulated {
        self.in_flight_max = in_flight_max.max(1);
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
        drive::run(&self.begin(), stage, self.workers, work)
    }
}

impl RealTime for Emulated {
    fn begin(&self) -> StageClock {
        StageClock::new(Meter::new(&self.rates, self.latency_ns), self.in_flight_max)
    }
}
