//! Real time for stages: what holds work back until its tickets are due.
//!
//! The idea: a [`Pace`] is tickets and the time since which they count. Where tiers are real, tickets cost nothing, so
//! the same code runs there without waiting, and still counts what is moved.

use crate::meter::{Meter, Picos};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whoever waits longer than this sleeps for some of it: the CPU may be wanted.
const SPIN_MAX: Duration = Duration::from_micros(300);
/// A sleep ends up to so much late.
const LATE: Duration = Duration::from_micros(150);

/// A stage that has begun.
pub struct Pace {
    pub(crate) meter: Arc<Meter>,
    /// Morsels under way of each worker and queue.
    pub(crate) window: usize,
    begun: Instant,
}

impl Pace {
    pub(crate) fn new(meter: Meter, window: usize) -> Pace {
        Pace { meter: Arc::new(meter), window, begun: Instant::now() }
    }

    /// How long it is since then.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub(crate) fn picos(&self) -> Picos {
        // Half a year fits.
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_mul(1_000)
    }

    pub(crate) fn wait_until(&self, due: Picos) {
        let due = self.begun + Duration::from_nanos(due.div_ceil(1_000));
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if left > SPIN_MAX {
                std::thread::sleep(left - LATE);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}
