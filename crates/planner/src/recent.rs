//! Times of the latest calls of a function, and how long nearly all of them took.

/// Number of times that are kept. The oldest gives way to a new one.
const KEPT: usize = 32;
/// Number of times from which on [`RecentTimes::p95`] is known.
const KEPT_MIN: usize = 16;

/// Times of the latest calls, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RecentTimes {
    ns: [u64; KEPT],
    /// Number of times noted so far.
    noted: u64,
    /// Time that 95 of 100 of them do not exceed.
    p95: Option<u64>,
}

impl RecentTimes {
    /// Notes a time. The time that few exceed is computed here, because it is asked for more often.
    pub(crate) fn note(&mut self, ns: u64) {
        self.ns[(self.noted % KEPT as u64) as usize] = ns;
        self.noted += 1;
        let kept = self.noted.min(KEPT as u64) as usize;
        let mut sorted = self.ns;
        let sorted = &mut sorted[..kept];
        sorted.sort_unstable();
        self.p95 = (kept >= KEPT_MIN).then(|| sorted[(kept * 95).div_ceil(100) - 1]);
    }

    /// Returns the time that 95 of 100 calls do not exceed. `None` after few calls.
    pub(crate) fn p95(&self) -> Option<u64> {
        self.p95
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_few_calls_exceed_is_known_after_16_calls_and_follows_the_latest() {
        let mut times = RecentTimes::default();
        for ns in 1..KEPT_MIN as u64 {
            times.note(ns);
            assert_eq!(times.p95(), None, "{ns} calls");
        }
        times.note(1_000);
        assert_eq!(times.p95(), Some(1_000), "one of 16 is more than 5 of 100");
        (0..16).for_each(|_| times.note(20));
        assert_eq!(times.p95(), Some(20), "one of 32 is less than 5 of 100");
        (0..KEPT).for_each(|_| times.note(7));
        assert_eq!(times.p95(), Some(7), "older times are forgotten");
    }
}
