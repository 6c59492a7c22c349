//! Clock that makes real work wait until its bytes would have arrived on emulated tiers.
//!
//! The idea: picture a shop that lends its goods at the pace of a slower supplier. The goods are on the shelf, but each
//! is handed over only at the minute at which the supplier would have delivered it. Customers then queue as they would
//! at the supplier.
//!
//! A [`StageClock`] has the delivery times ([`Meter`]) and the instant from which they count. If a link is idle, a
//! request is due after its own transfer time. If a link is busy, it is due after all requests before it. A worker
//! waits until the due time, then works on memory that was there all along. On real tiers the rates are infinite, so
//! nothing is ever waited for; the same code runs and still counts bytes.
//!
//! Delaying each morsel by a fixed time would be simpler. It would not show that workers compete for a link, which is
//! the effect under test.

use crate::meter::{Meter, Picos};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait that only spins. A longer wait sleeps for most of it, to leave the CPU to others.
const SPIN_MAX: Duration = Duration::from_micros(300);
/// Time by which a sleep may end late. This last part of a wait is spun instead of slept.
const LATE: Duration = Duration::from_micros(150);

/// Clock of a stage that has begun, and its delivery times.
pub struct StageClock {
    /// Links of both tiers, which say when requested bytes are delivered.
    pub(crate) meter: Arc<Meter>,
    /// Morsels whose bytes a worker requests ahead, for each queue.
    pub(crate) in_flight_max: usize,
    /// Instant at which the stage began: time 0 of `meter`.
    begun: Instant,
}

impl StageClock {
    pub(crate) fn new(meter: Meter, in_flight_max: usize) -> StageClock {
        StageClock { meter: Arc::new(meter), in_flight_max, begun: Instant::now() }
    }

    /// Returns the seconds since the stage began.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub(crate) fn picos(&self) -> Picos {
        // A `u64` of picoseconds holds half a year.
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
