//! Support for tests of leases and intervals of fractions of a second. On a busy machine a client may lose its lease
//! because it got no CPU time. Then the test has proved nothing and is repeated with a longer lease.
//!
//! A machine is busy if it wakes threads late, or if threads that could run wait for a CPU most of the time. The two
//! differ: a thread that has slept is often woken at once where those that compute wait.

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
/// that or more meanwhile, or its threads waited for a CPU half of the time, retries with four times as much, up to
/// `LONGEST`.
pub fn on_time(shortest: Duration, test: impl Fn(Duration)) {
    let mut lasts = shortest;
    loop {
        let (watch, begun, waited_before) = (Watch::start(), Instant::now(), waited_for_cpus());
        let result = catch_unwind(AssertUnwindSafe(|| test(lasts)));
        let (late, waited) = (watch.worst(), waited_for_cpus().saturating_sub(waited_before));
        let is_busy = late >= lasts / 10 || waited >= begun.elapsed() / 2;
        match result {
            Ok(()) => return,
            Err(why) if !is_busy || lasts >= LONGEST => resume_unwind(why),
            Err(_) => println!(
                "this machine was late by {late:?}, and its threads waited for {waited:?}: retrying with {:?}",
                4 * lasts
            ),
        }
        lasts *= 4;
    }
}

/// Returns for how long threads of this machine have waited for a CPU since it started. Zero if that is not known.
fn waited_for_cpus() -> Duration {
    let pressure = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = pressure.lines().find(|line| line.starts_with("some "));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
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
