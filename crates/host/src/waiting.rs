//! Waiting: spinning or parking, whichever was cheaper for recent waits.
//!
//! The idea: you wait for a kettle. If it is nearly boiling you stay and watch. If it takes long you leave, and coming
//! back costs time. How long it takes is not known, but it is often as long as last time. Watching is spinning: it uses
//! a CPU. Leaving is parking: the wake-up of a parked thread costs 30 to 80 us between the CPUs of a virtual machine.
//!
//! Let `B` be the time of a wake-up and an answer. Spinning for up to `B` and then parking never costs more than twice
//! the best possible choice (Karlin et al. 1990): a wait shorter than `B` costs only itself, a longer one costs `2 B`.
//! But if all waits are long, each of them costs that. Parking at once always costs `B`. [`Rule`] therefore keeps two
//! means over recent waits that were spun: the share shorter than `B` (`hits`), and `min(wait, B)` (`spun`). It goes on
//! spinning while that is the cheaper: `spun + (1 - hits) B < B`. Otherwise it parks, and tries to spin now and then.
//!
//! - Short waits (a busy conversation): the thread spins and no wait has a wake-up.
//! - Long waits (an idle one): the thread parks at once and uses no CPU, but for rare trials.
//! - In the worst case one wait costs `2 B` more than the best choice. Over many waits of one kind the cost is that of
//!   the better choice, but for the few waits that it takes to learn which one that is.
//!
//! Why not a simpler rule:
//!
//! - *A fixed time to spin* does not fit: wake-ups differ tenfold between machines.
//! - *Learning from parked waits too* would mislead. If both sides share a CPU (or one is left between them, beside
//!   busy neighbours), the answer comes as soon as one parks, and never while one spins. Only a wait that was spun
//!   shows if spinning pays.
//! - *Never trying again* would keep two parked sides parked: each waits long because the other parks. Trials spin up
//!   to `2 B`, for enough waits that the other side learns to spin, and then this one. Trials that fail are made ever
//!   more rarely, until they take a hundredth of the time. They come sooner when waits have become short.
//! - *As many spinners as there are waits* would keep the other side from answering. A process has fewer spinners than
//!   CPUs. It has none while its conversations need more CPUs than there are: one for each conversation, and two if its
//!   peer is on this host.
//! - *`sched_yield`* costs a whole tick under load.
//!
//! The time spent spinning is counted ([`spun_ns`]).

use farpool_wire::MonoNs;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::Timespec;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bounds of the measured wake-up time in ns. A machine that is busy during the measurement may seem to need less than
/// later, because its CPUs do not fall idle.
const WAKE_NS_MIN: u64 = 20_000;
const WAKE_NS_MAX: u64 = 100_000;
/// Time of an answer over a socket, in ns. It is added to the wake-up time: a thread whose peer has just parked must
/// wait for the peer's wake-up *and* its answer. Otherwise one park would cause the next, for ever.
const ANSWER_NS: u64 = 20_000;

/// Choice of how this process waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Waiting {
    /// Spinning or parking, as [`Rule`] decides.
    #[default]
    Adaptive,
    /// Spinning until the answer has come. For measurements only: it leaves no CPU to others.
    Spin,
    /// Parking at once.
    Park,
}

impl Waiting {
    /// Every choice with its word.
    pub const ALL: [(&'static str, Waiting); 3] =
        [("adaptive", Waiting::Adaptive), ("spin", Waiting::Spin), ("park", Waiting::Park)];

    /// Returns the choice of a word. `None` if the word is not known.
    pub fn of_word(word: &str) -> Option<Waiting> {
        Self::ALL.iter().find(|(known, _)| *known == word).map(|(_, waiting)| *waiting)
    }

    /// Returns the word of the choice.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, waiting)| *waiting == self).map_or("", |(word, _)| word)
    }
}

static WAITING: AtomicU8 = AtomicU8::new(Waiting::Adaptive as u8);

/// Sets the choice for the whole process, from the next wait on.
pub fn choose(waiting: Waiting) {
    WAITING.store(waiting as u8, Ordering::Relaxed);
}

/// Returns the choice of the process.
pub fn chosen() -> Waiting {
    match WAITING.load(Ordering::Relaxed) {
        1 => Waiting::Spin,
        2 => Waiting::Park,
        _ => Waiting::Adaptive,
    }
}

static SPUN_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the nanoseconds that this process has spun.
pub fn spun_ns() -> u64 {
    SPUN_NS.load(Ordering::Relaxed)
}

/// Returns how long spinning is worthwhile on this machine, in ns: the time of a wake-up, measured once (which takes
/// some milliseconds), and of an answer. 0 on one CPU, where spinning only keeps the other side from answering.
pub fn spin_budget_ns() -> u64 {
    static BUDGET: OnceLock<u64> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        if cpus() < 2 {
            return 0;
        }
        measured_wake_ns().unwrap_or(0).clamp(WAKE_NS_MIN, WAKE_NS_MAX) + ANSWER_NS
    })
}

/// Measures the median one-way wake-up between two threads on different CPUs that had time to fall idle.
///
/// The threads are pinned. Otherwise the kernel puts a pair that wait for each other on one CPU, where a wake-up costs
/// a tenth as much. A time measured there would be too short for a peer on another CPU.
fn measured_wake_ns() -> Option<u64> {
    const ROUNDS: usize = 15;
    const IDLE: Duration = Duration::from_micros(200);
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (near_cpu, far_cpu) = (cpus.next()?, cpus.next()?);
    let pin = |cpu| {
        let mut only = CpuSet::new();
        only.set(cpu);
        // If pinning is not permitted, the measurement is only less exact.
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

/// Returns how many CPUs this process may keep busy, by the limits of its control groups at the first call.
pub fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// CPUs that recent conversations of the process need together, including those of peers on this host.
static NEEDED_CPUS: AtomicUsize = AtomicUsize::new(0);

/// CPUs that a conversation needs. Given back on drop.
#[derive(Debug)]
struct Need(usize);

impl Need {
    fn of(needed: usize) -> Need {
        NEEDED_CPUS.fetch_add(needed, Ordering::Relaxed);
        Need(needed)
    }
}

impl Drop for Need {
    fn drop(&mut self) {
        NEEDED_CPUS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Reports whether there are CPUs for all conversations. If not, a spinning thread would keep another from running for
/// which others wait.
fn is_room() -> bool {
    NEEDED_CPUS.load(Ordering::Relaxed) <= cpus()
}

static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// Permission to spin, of which a process has a limited number. Given back on drop.
#[derive(Debug)]
struct Seat;

impl Seat {
    fn take() -> Option<Seat> {
        let seats = if chosen() == Waiting::Spin { usize::MAX } else { cpus() - 1 };
        let one_more = |taken: usize| (taken < seats).then(|| taken + 1);
        SPINNERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Statistics of the waits of one side of a conversation, and the choice that follows for the next wait. Has no clock:
/// times are passed in.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Cost of parking in ns, a wake-up and an answer; 0 if spinning is never worthwhile.
    park_ns: u64,
    /// Share of the spun waits that were over within `park_ns`, in 65536ths.
    hits: u64,
    /// Mean of the spun waits in ns, each counted as `park_ns` at most.
    spun: u64,
    is_spinning: bool,
    /// Number of waits left in the present trial, a series of waits that are spun to see if that pays now. 0 if there
    /// is none.
    trial: u32,
    /// Number of waits until the next trial.
    until_trial: u32,
    /// Number of waits between two trials.
    put_off: u32,
    /// Share of the waits parked at once that would probably have been short without the wake-up, in 65536ths.
    short: u64,
    /// True if that share was low at some time since the last trial.
    were_long: bool,
}

/// The whole, as a share in 65536ths.
const ONE: u64 = 65_536;
/// Weight of a new wait in the means: a sixteenth.
const GAIN: u64 = 16;
/// Waits of a trial. One side needs about twelve to change its choice, and both sides must, one after the other.
const TRIAL_WAITS: u32 = 40;
/// Bounds of the number of waits between two trials.
const PUT_OFF_MIN: u32 = 32;
const PUT_OFF_MAX: u32 = 8_192;
/// Divisor of the time until the next trial, once waits have become short.
const FORWARD: u32 = 16;

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Duration in ns from its beginning until the answer was here. Includes the wake-up if the wait was parked.
    pub ns: u64,
    /// Part of the duration that was spun, in ns.
    pub spun_ns: u64,
    /// True if the wait ended parked.
    pub is_parked: bool,
}

fn mean(of_late: u64, new: u64) -> u64 {
    (of_late * (GAIN - 1) + new) / GAIN
}

impl Rule {
    /// Makes the rule of a side that has not waited yet. `park_ns` is the cost of parking in ns, a wake-up and an
    /// answer; 0 means that spinning is never worthwhile.
    pub fn new(park_ns: u64) -> Rule {
        Rule {
            park_ns,
            hits: ONE,
            spun: 0,
            is_spinning: park_ns > 0,
            trial: 0,
            until_trial: PUT_OFF_MIN,
            put_off: PUT_OFF_MIN,
            short: 0,
            were_long: false,
        }
    }

    /// Returns how long to spin before parking, in ns.
    pub fn spin_ns(&self) -> u64 {
        match self.trial {
            0 if self.is_spinning => self.park_ns,
            0 => 0,
            _ => 2 * self.park_ns,
        }
    }

    /// Learns from a wait that is over.
    pub fn learn(&mut self, waited: Waited) {
        if self.park_ns == 0 {
            return;
        }
        if waited.is_parked && waited.spun_ns < self.park_ns {
            self.learn_parked(waited.ns);
        } else {
            self.learn_spun(if waited.is_parked { u64::MAX } else { waited.ns });
        }
    }

    /// Learns from a wait that was spun: for `ns`, or for at least `park_ns` without success.
    fn learn_spun(&mut self, ns: u64) {
        self.hits = mean(self.hits, if ns <= self.park_ns { ONE } else { 0 });
        self.spun = mean(self.spun, ns.min(self.park_ns));
        let pays = self.spun * ONE < self.park_ns * self.hits;
        self.trial = self.trial.saturating_sub(1);
        if self.trial > 0 {
            return;
        }
        if pays {
            // While spinning pays, the first trial after a later switch to parking is set to come soon.
            self.put_off = if self.is_spinning { PUT_OFF_MIN } else { self.put_off };
        } else {
            self.put_off = (2 * self.put_off).min(PUT_OFF_MAX);
            (self.until_trial, self.short, self.were_long) = (self.put_off, ONE / 2, false);
        }
        self.is_spinning = pays;
    }

    /// Learns from a wait that was parked at once. It would have been shorter without the wake-up. It is not known if
    /// spinning would have ended it as soon: on a CPU that both sides share it would not.
    fn learn_parked(&mut self, ns: u64) {
        if self.is_spinning {
            return;
        }
        let is_short = ns < 2 * self.park_ns;
        self.short = mean(self.short, if is_short { ONE } else { 0 });
        self.were_long |= self.short < ONE / 4;
        if self.were_long && self.short > ONE / 4 * 3 {
            self.were_long = false;
            self.until_trial = self.until_trial.saturating_sub(self.put_off - self.put_off / FORWARD);
        }
        self.until_trial = self.until_trial.saturating_sub(1);
        if self.until_trial == 0 {
            self.trial = TRIAL_WAITS;
        }
    }
}

/// Next step of a wait while nothing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStep {
    /// Look again at once.
    Look,
    /// Park until the kernel wakes the thread.
    Park,
    /// Park for so many ns at most, then ask for the next step.
    ParkFor(u64),
}

impl WaitStep {
    /// Returns how long to park at most, if `left` is the time to the deadline.
    pub fn within(self, left: Timespec) -> Timespec {
        match self {
            WaitStep::ParkFor(ns) => left.min(timespec(ns)),
            WaitStep::Look | WaitStep::Park => left,
        }
    }
}

/// Wait in ns after which the conversation counts as paused. Longer than the tick of the scheduler: an earlier timer
/// costs microseconds to set in a virtual machine.
const PAUSE_NS: u64 = 20_000_000;

/// Side of a conversation that waits for the other side.
#[derive(Debug)]
pub struct Waiter {
    rule: Option<Rule>,
    open: Option<Open>,
    /// CPUs of this host that the conversation needs while it goes on.
    needs: usize,
    need: Option<Need>,
}

/// Wait that goes on.
#[derive(Debug)]
struct Open {
    since: Instant,
    spin_ns: u64,
    seat: Option<Seat>,
    /// Time that was spun in ns. Set when spinning has ended.
    spun_ns: u64,
    is_parked: bool,
}

impl Waiter {
    /// Makes a waiter for a peer on another host.
    pub const fn across_hosts() -> Waiter {
        Waiter { rule: None, open: None, needs: 1, need: None }
    }

    /// Makes a waiter for a peer on this host, which needs one of its CPUs too.
    pub const fn within_host() -> Waiter {
        Waiter { rule: None, open: None, needs: 2, need: None }
    }

    /// Turns spinning off for this waiter.
    pub fn never_spin(&mut self) {
        self.rule = Some(Rule::new(0));
    }

    /// Returns the next step while nothing has come.
    pub fn step(&mut self) -> WaitStep {
        let waiting = chosen();
        let rule = self.rule.get_or_insert_with(|| Rule::new(spin_budget_ns()));
        let open = self.open.get_or_insert_with(|| {
            let (needs, need) = (self.needs, &mut self.need);
            need.get_or_insert_with(|| Need::of(needs));
            let spin_ns = match waiting {
                Waiting::Adaptive => rule.spin_ns(),
                // Waiters that never spin do not spin in this mode either.
                Waiting::Spin if rule.park_ns > 0 => u64::MAX,
                Waiting::Spin => 0,
                Waiting::Park => 0,
            };
            let seat = if spin_ns == 0 { None } else { Seat::take() };
            Open { since: Instant::now(), spin_ns, seat, spun_ns: 0, is_parked: false }
        });
        if open.seat.is_some() {
            std::hint::spin_loop();
            let is_time = (open.since.elapsed().as_nanos() as u64) < open.spin_ns;
            if is_time && (waiting == Waiting::Spin || is_room()) {
                return WaitStep::Look;
            }
            open.stop_spinning();
        }
        open.is_parked = true;
        if self.need.is_some() {
            let waited_ns = open.since.elapsed().as_nanos() as u64;
            if waited_ns < PAUSE_NS {
                return WaitStep::ParkFor(PAUSE_NS - waited_ns);
            }
            self.need = None;
        }
        WaitStep::Park
    }

    /// Frees the CPUs that the conversation needs, because it pauses. Without this call that happens after 20 ms.
    pub fn rest(&mut self) {
        self.need = None;
    }

    /// Ends the wait, because the answer has come.
    pub fn heard(&mut self) {
        if let (Some(mut open), Some(rule)) = (self.open.take(), &mut self.rule) {
            let ns = open.since.elapsed().as_nanos() as u64;
            open.stop_spinning();
            // A wait that was not parked was spun, even without permission to spin.
            let spun_ns = if open.is_parked { open.spun_ns } else { ns };
            rule.learn(Waited { ns, spun_ns, is_parked: open.is_parked });
        }
    }
}

impl Open {
    fn stop_spinning(&mut self) {
        if self.seat.take().is_some() {
            self.spun_ns = self.since.elapsed().as_nanos() as u64;
            SPUN_NS.fetch_add(self.spun_ns, Ordering::Relaxed);
        }
    }
}

/// Returns the time until `deadline` as a poll timeout. `None` if it has passed.
pub fn time_left(deadline: MonoNs, now: MonoNs) -> Option<Timespec> {
    deadline.0.checked_sub(now.0).filter(|left| *left > 0).map(timespec)
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
