//! Tests of what lasts a fraction of a second: of leases, of turns. Whoever holds a lease on a busy machine may lose it
//! because nothing ran for so long, and a test that sees this has learnt nothing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

/// Leases that last so long are not lost by being late, and turns that take so long are not missed.
const LONGEST: Duration = Duration::from_secs(240);
/// A thread that sleeps for this wakes up so much later as this machine is late.
const NAP: Duration = Duration::from_millis(2);

/// Runs a test with leases or turns of `shortest`; if it fails while this machine was late for them, again with longer
/// ones.
pub fn on_time(shortest: Duration, test: impl Fn(Duration)) {
    let mut lasts = shortest;
    loop {
        let watch = Watch::start();
        let result = catch_unwind(AssertUnwindSafe(|| test(lasts)));
        let late = watch.worst();
        match result {
            Ok(()) => return,
            Err(why) if late < lasts / 10 || lasts >= LONGEST => resume_unwind(why),
            Err(_) => println!("this machine was late by {late:?}: again, with {:?}", 4 * lasts),
        }
        lasts *= 4;
    }
}

/// Watches how late this machine is.
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

    /// Ends; returns by how much at most a thread has woken up late.
    pub fn worst(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only looks")
    }
}
