//! Clock of nodes, brokers and clients. It is monotonic and includes the time a machine was suspended, so that a laptop
//! does not wake up and trust leases that have run out.

use farpool_wire::MonoNs;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_BOOTTIME`.
pub fn now() -> MonoNs {
    let time = clock_gettime(ClockId::Boottime);
    // Both parts are non-negative on this clock.
    MonoNs((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}
