//! Waiting: spin for what a park would cost anyway, then park.
//!
//! A blocked thread costs its wake-up (30 to 80 us on a virtual machine); a spinning one costs a CPU that
//! somebody else may need. Spinning for as long as the wake-up takes and then parking is never worse than
//! twice the best choice, whatever the answer's latency is. Two things make it better than that here:
//! a waiter whose last spins were in vain skips the next ones (doubling, up to 64), and no process ever has
//! more spinners than it has CPUs to spare.
//!
//! Never: `sched_yield`, which costs a whole tick under load.

use farpool_wire::MonoNs;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const BUDGET_NS_MIN: u64 = 2_000;
const BUDGET_NS_MAX: u64 = 100_000;
const SKIPS_MAX: u32 = 64;

/// What a park and wake-up costs on this machine, measured once (some milliseconds); 0 on one CPU, where
/// spinning only keeps the other side from answering.
pub fn spin_budget_ns() -> u64 {
    static BUDGET: OnceLock<u64> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 { 0 } else { measured_wake_ns().unwrap_or(0).clamp(BUDGET_NS_MIN, BUDGET_NS_MAX) }
    })
}

/// Median one-way wake-up between two threads on different CPUs that had time to fall idle.
///
/// The threads are pinned: left alone, the kernel puts a pair that blocks on each other on one CPU, where a
/// wake-up costs a tenth of what it costs between two, and a budget learnt there never outlasts an answer.
fn measured_wake_ns() -> Option<u64> {
    const ROUNDS: usize = 15;
    const IDLE: Duration = Duration::from_micros(200);
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (near_cpu, far_cpu) = (cpus.next()?, cpus.next()?);
    let pin = |cpu| {
        let mut only = CpuSet::new();
        only.set(cpu);
        // Where it is not permitted, the measurement is only less exact.
        let _ = sched_setaffinity(None, &only);
    };
    let (mut near, mut far) = UnixStream::pair().ok()?;
    let echo = std::thread::spawn(move || {
        pin(far_cpu);
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let asking = std::thread::spawn(move || {
        pin(near_cpu);
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            std::thread::sleep(IDLE);
            let start = Instant::now();
            near.write_all(&[1]).ok()?;
            near.read_exact(&mut [0]).ok()?;
            rounds.push(start.elapsed().as_nanos() as u64 / 2);
        }
        rounds.sort_unstable();
        rounds.get(ROUNDS / 2).copied()
    });
    let measured = asking.join().ok()?;
    echo.join().ok()?;
    measured
}

static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// A seat among the process's spinners; given back on drop.
struct Seat;

impl Seat {
    fn take() -> Option<Seat> {
        static SEATS: OnceLock<usize> = OnceLock::new();
        let seats = *SEATS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from) - 1);
        let one_more = |taken: usize| (taken < seats).then(|| taken + 1);
        SPINNERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One side of a conversation that waits for the other, and remembers how that went.
#[derive(Debug, Default)]
pub struct Waiter {
    failed_streak: u32,
    skips_left: u32,
}

impl Waiter {
    /// Spins until `ready` says so or the budget is used up. Whether it became ready.
    pub fn spin(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        let budget = spin_budget_ns();
        if budget == 0 {
            return false;
        }
        if self.skips_left > 0 {
            self.skips_left -= 1;
            return false;
        }
        let Some(_seat) = Seat::take() else { return false };
        let start = Instant::now();
        loop {
            if ready() {
                self.failed_streak = 0;
                return true;
            }
            if start.elapsed().as_nanos() as u64 >= budget {
                self.failed_streak = (self.failed_streak + 1).min(16);
                if self.failed_streak >= 2 {
                    self.skips_left = (1 << self.failed_streak.min(10)).min(SKIPS_MAX);
                }
                return false;
            }
            std::hint::spin_loop();
        }
    }
}

/// Time left until `deadline` as a poll timeout; nothing if it has passed.
pub(crate) fn time_left(deadline: MonoNs, now: MonoNs) -> Option<rustix::time::Timespec> {
    let left = deadline.0.checked_sub(now.0).filter(|left| *left > 0)?;
    Some(rustix::time::Timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    })
}
