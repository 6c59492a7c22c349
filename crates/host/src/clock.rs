//! The one clock of nodes, brokers and clients: monotonic, and counting the time a machine sleeps, so that a
//! suspended laptop does not wake up with leases it believes in.

use farpool_wire::MonoNs;
use rustix::time::{ClockId, clock_gettime};

/// Now, on `CLOCK_BOOTTIME`.
pub fn now() -> MonoNs {
    let time = clock_gettime(ClockId::Boottime);
    // Both parts are non-negative on this clock.
    MonoNs((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}
