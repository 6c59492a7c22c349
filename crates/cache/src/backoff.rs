//! Back-off of the cache from far memory that is slow or has no room.

use std::time::{Duration, Instant};

/// First and longest back-off. Each is twice as long as the one before, until a request succeeds in time.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// State of the back-off.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Time until which far memory is not asked; `None` if the last request succeeded in time.
    until: Option<Instant>,
    /// Length of the next back-off; `None` if it is the first one.
    next: Option<Duration>,
}

impl Backoff {
    /// Reports whether far memory may be asked.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Records whether a request succeeded in time. If not, a new back-off begins, unless one is under way.
    pub(crate) fn heard(&mut self, in_time: bool, now: Instant) {
        if in_time {
            *self = Backoff::default();
        } else if self.is_over(now) {
            let (first, longest) = BACKOFF;
            let backoff = self.next.unwrap_or(first);
            self.until = Some(now + backoff);
            self.next = Some((backoff * 2).min(longest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_until_a_block_comes_in_time_and_begin_short_again() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        let (first, longest) = BACKOFF;
        let mut wanted = first;
        for _ in 0..10 {
            assert!(backoff.is_over(now));
            backoff.heard(false, now);
            // This request was in flight already when the back-off began. Its failure changes nothing.
            backoff.heard(false, now);
            assert!(!backoff.is_over(now + wanted - Duration::from_millis(1)));
            now += wanted;
            wanted = (wanted * 2).min(longest);
        }
        backoff.heard(true, now);
        backoff.heard(false, now);
        assert!(backoff.is_over(now + first));
    }
}
