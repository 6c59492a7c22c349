//! Clock of one simulated machine, with offset, drift, steps and pauses. The clocks of two machines do not agree.

use farpool_wire::MonoNs;

/// Ticks of a clock without drift in each [`RATE_TRUE`] ns of true time. So a clock of this rate shows true time.
pub(crate) const RATE_TRUE: u64 = 4096;

/// Clock of a simulated machine. At the true time `true_base`, in ns, it showed `host_base`; since then it has advanced
/// by `rate` ticks for each [`RATE_TRUE`] nanoseconds. While it is stopped it shows `host_base`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    true_base: u64,
    host_base: u64,
    rate: u64,
    stopped: bool,
}

impl Clock {
    /// Makes a clock that shows `shows` at the true time `now`. `rate` is 0.9 to 1.1 times [`RATE_TRUE`].
    pub(crate) fn new(now: u64, shows: u64, rate: u64) -> Clock {
        Clock { true_base: now, host_base: shows, rate, stopped: false }
    }

    /// Returns what the clock shows at a true time.
    pub(crate) fn at(&self, now: u64) -> MonoNs {
        if self.stopped {
            return MonoNs(self.host_base);
        }
        // A world lasts for hours, so the product stays far below the limit of u64.
        MonoNs(self.host_base + (now - self.true_base) * self.rate / RATE_TRUE)
    }

    /// Returns the first true time at which the clock shows `host` or more, if its rate does not change until then.
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

    /// Moves the clock forward by a step.
    pub(crate) fn step(&mut self, now: u64, by_ns: u64) {
        self.rebase(now);
        self.host_base += by_ns;
    }

    /// Changes the rate from now on.
    pub(crate) fn set_rate(&mut self, now: u64, rate: u64) {
        self.rebase(now);
        self.rate = rate;
    }

    /// Stops the clock, or starts it again.
    pub(crate) fn set_stopped(&mut self, now: u64, stopped: bool) {
        self.rebase(now);
        self.stopped = stopped;
    }
}
