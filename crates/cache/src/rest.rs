//! Back-off of the cache from far memory that is slow or has no room.

use std::time::{Duration, Instant};

/// First and longest back-off. Each is twice as long as the one before, until a request succeeds in time.
const RESTS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// State of the back-off.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    until: Option<Instant>,
    next: Option<Duration>,
}

impl Rest {
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Records whether a request succeeded in time.
    pub(crate) fn heard(&mut self, in_time: bool, now: Instant) {
        if in_time {
            *self = Rest::default();
        } else if self.is_over(now) {
            let (first, longest) = RESTS;
            let rest = self.next.unwrap_or(first);
            self.until = Some(now + rest);
            self.next = Some((rest * 2).min(longest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_until_a_block_comes_in_time_and_begin_short_again() {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        let (first, longest) = RESTS;
        let mut wanted = first;
        for _ in 0..10 {
            assert!(rest.is_over(now));
            rest.heard(false, now);
            // The failure of a request that was in flight already changes nothing.
            rest.heard(false, now);
            assert!(!rest.is_over(now + wanted - Duration::from_millis(1)));
            now += wanted;
            wanted = (wanted * 2).min(longest);
        }
        rest.heard(true, now);
        rest.heard(false, now);
        assert!(rest.is_over(now + first));
    }
}
