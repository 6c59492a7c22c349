//! Clock of nodes, brokers and clients. It is monotonic and includes the time a machine was suspended, so that a laptop
//! does not wake up and trust leases that have run out.

use farpool_wire::MonoNs;
use rustix::time::{ClockId, clock_gettime};

/// Reports whether a service such as chrony keeps the wall clock in step with others. `None` if the kernel does
/// not tell.
#[allow(unsafe_code)]
pub fn is_synchronized() -> Option<bool> {
    // SAFETY: all fields of the struct are integers, for which zeros are values.
    let mut told: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the struct that it is given. With no mode set it changes nothing.
    let state = unsafe { libc::adjtimex(&mut told) };
    (state >= 0).then_some(state != libc::TIME_ERROR && told.status & libc::STA_UNSYNC == 0)
}

/// Returns the time of `CLOCK_BOOTTIME`.
pub fn now() -> MonoNs {
    let time = clock_gettime(ClockId::Boottime);
    // Both parts are non-negative on this clock.
    MonoNs((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}
