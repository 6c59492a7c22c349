//! The clock of one machine: offset, drift, steps, standstills. None of them agrees with another.

use farpool_wire::MonoNs;

/// A clock that ticks right.
pub(crate) const RATE_TRUE: u64 = 4096;

/// Counts from `host_base` since `true_base`, `rate` ticks for each [`RATE_TRUE`] nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    true_base: u64,
    host_base: u64,
    rate: u64,
    stopped: bool,
}

impl Clock {
    /// A clock that shows `shows` at the true time `now`. `rate` from 0.9 to 1.1 of [`RATE_TRUE`].
    pub(crate) fn new(now: u64, shows: u64, rate: u64) -> Clock {
        Clock { true_base: now, host_base: shows, rate, stopped: false }
    }

    /// What it shows at a true time.
    pub(crate) fn at(&self, now: u64) -> MonoNs {
        if self.stopped {
            return MonoNs(self.host_base);
        }
        // A world lasts for hours, so this stays far below the limit.
        MonoNs(self.host_base + (now - self.true_base) * self.rate / RATE_TRUE)
    }

    /// The first true time at which it shows `host` or more, if it goes on as it does.
    pub(crate) fn when(&self, host: MonoNs) -> u64 {
        let ahead = host.0.saturating_sub(self.host_base);
        if ahead > 1 << 50 {
            return u64::MAX;
        }
        if self.stopped && ahead > 0 {
            return u64::MAX;
        }
        self.true_base + (ahead * RATE_TRUE).div_ceil(self.rate)
    }

    fn rebase(&mut self, now: u64) {
        self.host_base = self.at(now).0;
        self.true_base = now;
    }

    /// It jumps forward.
    pub(crate) fn step(&mut self, now: u64, by_ns: u64) {
        self.rebase(now);
        self.host_base += by_ns;
    }

    /// It goes at another rate from now on.
    pub(crate) fn set_rate(&mut self, now: u64, rate: u64) {
        self.rebase(now);
        self.rate = rate;
    }

    /// It stands still, or goes on.
    pub(crate) fn set_stopped(&mut self, now: u64, stopped: bool) {
        self.rebase(now);
        self.stopped = stopped;
    }
}
