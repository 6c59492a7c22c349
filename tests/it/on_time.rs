//! Support for tests of leases and intervals of fractions of a second. On a busy machine a client may lose its lease
//! because it got no CPU time. Then the test has proved nothing and is repeated with a longer lease.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

/// Longest lease or interval to retry with. Even a very busy machine is not late by that much.
const LONGEST: Duration = Duration::from_secs(240);
/// Duration of each sleep by which a watch measures how late this machine wakes up a thread.
const NAP: Duration = Duration::from_millis(2);

/// Runs a test with leases or intervals of `shortest`. If it fails, and this machine woke a thread late by a tenth of
/// that or more meanwhile, retries with four times as much, up to `LONGEST`.
pub fn on_time(shortest: Duration, test: impl Fn(Duration)) {
    let mut lasts = shortest;
    loop {
        let watch = Watch::start();
        let result = catch_unwind(AssertUnwindSafe(|| test(lasts)));
        let late = watch.worst();
        match result {
            Ok(()) => return,
            Err(why) if late < lasts / 10 || lasts >= LONGEST => resume_unwind(why),
            Err(_) => println!("this machine was late by {late:?}: retrying with {:?}", 4 * lasts),
        }
        lasts *= 4;
    }
}

/// Thread that measures how late this machine wakes up threads.
pub struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Watch {
    pub fn start() -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&is_over);
        let thread = spawn(move || {
            let mut worst = Duration::ZERO;
            while !watched.load(Ordering::Relaxed) {
                let begun = Instant::now();
                park_timeout(NAP);
                worst = worst.max(begun.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Watch { is_over, thread }
    }

    /// Stops the measuring thread. Returns the longest delay of a wake-up.
    pub fn worst(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only looks")
    }
}
