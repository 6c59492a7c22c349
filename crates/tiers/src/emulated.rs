//! Two tiers on a machine that has one: real work on real memory, held up until its tickets are due.
//!
//! The idea: workers are threads that drive the same state machines as the virtual clock (`flow.rs`), with time that
//! passes. The tiers' rates are given, and must be so low that the machine itself is no limit: a tenth of the paper's,
//! say. Then order, volume and overlap of traffic, and with them ratios of strategies, are those of such a machine;
//! what it cannot show are rates, caches, prefetchers and address translation. Whatever it prints is called "emulated".

use crate::drive;
use crate::meter::Meter;
use crate::pace::Pace;
use crate::plan::traffic::{NoRate, Rates};
use crate::stage::{Backend, RealTime, Stage, StageReport, Work};

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
        drive::run(&self.begin(), stage, self.workers, work)
    }
}

impl RealTime for Emulated {
    fn begin(&self) -> Pace {
        Pace::new(Meter::new(&self.rates, self.latency_ns), self.window)
    }
}
