//! Rate limit for messages about failures of a mounted folder.

use farpool_lock::Mutex;
use std::time::{Duration, Instant};

/// Interval in which at most one message is passed on.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Complaints {
    say: Box<dyn Fn(&str) + Send + Sync>,
    /// Time of the latest message that was passed on, and the number of messages suppressed since then.
    last: Mutex<Option<(Instant, u64)>>,
}

impl Complaints {
    pub(crate) fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Complaints {
        Complaints { say: Box::new(say), last: Mutex::new(None) }
    }

    pub(crate) fn tell(&self, what: &str) {
        let mut last = self.last.lock();
        let kept_back = match &mut *last {
            Some((said, kept_back)) if said.elapsed() < PAUSE => {
                *kept_back += 1;
                return;
            }
            Some((_, kept_back)) => *kept_back,
            None => 0,
        };
        *last = Some((Instant::now(), 0));
        match kept_back {
            0 => (self.say)(what),
            more => (self.say)(&format!("{what} (and {more} more failures since the last message)")),
        }
    }
}
