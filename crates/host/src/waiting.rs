//! Waiting: spin or park, whichever has been the cheaper for the waits of late.
//!
//! A parked thread comes back late: its wake-up costs 30 to 80 us between the CPUs of a virtual machine. A spinning
//! one burns a CPU that somebody else may need. Call the wake-up (and the time of an answer) `B`. To spin for up to
//! `B` and then park costs the wait itself if it is shorter than `B`, and `2 B` on top of nothing gained if it is
//! longer: never more than twice the best that hindsight could do (Karlin et al. 1990), but every time, if all waits
//! are long. To park at once costs `B` always. So [`Rule`] keeps, over the waits of late that were spun, the share of
//! those shorter than `B` (`hits`) and the mean of `min(wait, B)` (`spun`), and goes on spinning if that was the
//! cheaper: `spun + (1 - hits) B < B`. Else it parks, and tries to spin now and then.
//!
//! * One wait costs at most `2 B` more than the best choice; waits of one kind cost no more than the better of the
//!   two ways, but for the few that it takes to learn which that is.
//! * Two sides that both park wait long *because* the other parks: neither would ever learn better. So trials are of
//!   waits of up to `2 B`, and of enough of them for the other to learn that it pays to spin, and then for itself. They
//!   are put off ever longer as long as they lead nowhere, down to a hundredth of the time, and are brought forward
//!   when waits have become short.
//! * Only a wait that was spun tells whether spinning pays. Where both sides share a CPU (or have one left between
//!   them, beside busy neighbours), an answer comes as soon as one parks, and never while one spins.
//! * No process has more spinners than CPUs to spare: on one CPU spinning only keeps the other side from answering.
//!   And none has any while its conversations need more CPUs than there are, each one, or two if its peer is on this
//!   host: a spinner would keep somebody from running whom others wait for.
//! * Never `sched_yield`, which costs a whole tick under load.
//!
//! What is spun is counted ([`spun_ns`]).

use farpool_wire::MonoNs;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::Timespec;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a wake-up may have cost, where it was measured. A machine that is busy at that moment may seem to need less
/// than it does later: its CPUs do not fall idle.
const WAKE_NS_MIN: u64 = 20_000;
const WAKE_NS_MAX: u64 = 100_000;
/// What an answer over a socket takes. Added to the wake-up: whoever waits for somebody that has just been parked must
/// outlast the other's wake-up *and* its answer, or one park brings on the next for ever.
const ANSWER_NS: u64 = 20_000;

/// How this process waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Waiting {
    /// As the module says.
    #[default]
    Adaptive,
    /// Spins until what is waited for has come. For measurements: it leaves nothing to others.
    Spin,
    /// Parks at once.
    Park,
}

impl Waiting {
    /// Every way, with the word it is called by.
    pub const ALL: [(&'static str, Waiting); 3] =
        [("adaptive", Waiting::Adaptive), ("spin", Waiting::Spin), ("park", Waiting::Park)];

    /// The way of this word.
    pub fn of_word(word: &str) -> Option<Waiting> {
        Self::ALL.iter().find(|(known, _)| *known == word).map(|(_, waiting)| *waiting)
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, waiting)| *waiting == self).map_or("", |(word, _)| word)
    }
}

static WAITING: AtomicU8 = AtomicU8::new(Waiting::Adaptive as u8);

/// Chooses for the whole process, from the next wait on.
pub fn choose(waiting: Waiting) {
    WAITING.store(waiting as u8, Ordering::Relaxed);
}

/// What was chosen.
pub fn chosen() -> Waiting {
    match WAITING.load(Ordering::Relaxed) {
        1 => Waiting::Spin,
        2 => Waiting::Park,
        _ => Waiting::Adaptive,
    }
}

static SPUN_NS: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds that this process has spun.
pub fn spun_ns() -> u64 {
    SPUN_NS.load(Ordering::Relaxed)
}

/// For how long a wait is worth spinning on this machine: what a wake-up costs, measured once (some milliseconds), and
/// an answer. 0 on one CPU, where spinning only keeps the other side from answering.
pub fn spin_budget_ns() -> u64 {
    static BUDGET: OnceLock<u64> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        if cpus() < 2 {
            return 0;
        }
        measured_wake_ns().unwrap_or(0).clamp(WAKE_NS_MIN, WAKE_NS_MAX) + ANSWER_NS
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

/// Returns how many CPUs this process may keep busy, by what its control groups permitted when this was first asked.
pub fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// CPUs that the process's conversations of late need between them, those of peers on this host included.
static NEEDED_CPUS: AtomicUsize = AtomicUsize::new(0);

/// A conversation that goes on, and the CPUs it needs; given back on drop.
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

/// Whether there are CPUs for all of them. If not, whoever spins keeps somebody from running whom others wait for.
fn is_room() -> bool {
    NEEDED_CPUS.load(Ordering::Relaxed) <= cpus()
}

static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// A seat among the process's spinners; given back on drop.
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

/// What is known of the waits of one side of a conversation, and what follows for the next: see the module. No
/// clock: times are told.
#[derive(Clone, Debug)]
pub struct Rule {
    park_ns: u64,
    /// Of the waits that were spun: the share of those that were over within a wake-up, in 65536ths.
    hits: u64,
    /// Their mean, each at most a wake-up, in nanoseconds.
    spun: u64,
    is_spinning: bool,
    /// Waits left of a trial.
    trial: u32,
    /// Waits until the next trial.
    until_trial: u32,
    /// How long trials are put off, in waits.
    put_off: u32,
    /// Of the waits that were parked at once: the share that seems to have been short but for the wake-up.
    short: u64,
    /// Whether few of them were, since the last trial.
    were_long: bool,
}

const ONE: u64 = 65_536;
/// A wait counts for a sixteenth.
const GAIN: u64 = 16;
/// A side needs some twelve waits to turn round, and both have to, one after the other.
const TRIAL_WAITS: u32 = 40;
const PUT_OFF_MIN: u32 = 32;
const PUT_OFF_MAX: u32 = 8_192;
/// Waits that become short bring a trial forward, to this share of the time that it was put off.
const FORWARD: u32 = 16;

/// How a wait went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// From its beginning until what was waited for was here, in nanoseconds; with the wake-up, if it was parked.
    pub ns: u64,
    /// How much of it was spun.
    pub spun_ns: u64,
    /// Whether it ended parked.
    pub is_parked: bool,
}

fn mean(of_late: u64, new: u64) -> u64 {
    (of_late * (GAIN - 1) + new) / GAIN
}

impl Rule {
    /// A side that knows nothing yet, where a wake-up costs so much; 0: spinning is never worth it.
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

    /// For how long to spin before parking.
    pub fn spin_ns(&self) -> u64 {
        match self.trial {
            0 if self.is_spinning => self.park_ns,
            0 => 0,
            _ => 2 * self.park_ns,
        }
    }

    /// A wait is over.
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

    /// It was spun: for so long, or in vain for at least a wake-up.
    fn learn_spun(&mut self, ns: u64) {
        self.hits = mean(self.hits, if ns <= self.park_ns { ONE } else { 0 });
        self.spun = mean(self.spun, ns.min(self.park_ns));
        let pays = self.spun * ONE < self.park_ns * self.hits;
        self.trial = self.trial.saturating_sub(1);
        if self.trial > 0 {
            return;
        }
        if pays {
            // So long as it goes well, the next trial comes soon.
            self.put_off = if self.is_spinning { PUT_OFF_MIN } else { self.put_off };
        } else {
            self.put_off = (2 * self.put_off).min(PUT_OFF_MAX);
            (self.until_trial, self.short, self.were_long) = (self.put_off, ONE / 2, false);
        }
        self.is_spinning = pays;
    }

    /// It was parked at once. Without the wake-up it would have been shorter; whether spinning would have ended it as
    /// soon is not known: on a CPU that both share it would not.
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

/// What to do while nothing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again at once.
    Look,
    /// Let the kernel say when.
    Park,
    /// Likewise, but for so many nanoseconds at most; then ask again.
    ParkFor(u64),
}

impl Step {
    /// How long to park at most, with so much time left.
    pub fn within(self, left: Timespec) -> Timespec {
        match self {
            Step::ParkFor(ns) => left.min(timespec(ns)),
            Step::Look | Step::Park => left,
        }
    }
}

/// Who has waited for this long takes no part in what goes on. Longer than the scheduler's tick: a timer that must go
/// off before that costs microseconds to set in a virtual machine.
const PAUSE_NS: u64 = 20_000_000;

/// One side of a conversation that waits for the other.
#[derive(Debug)]
pub struct Waiter {
    rule: Option<Rule>,
    open: Option<Open>,
    /// CPUs of this host that the conversation needs while it goes on.
    needs: usize,
    need: Option<Need>,
}

/// A wait that goes on.
#[derive(Debug)]
struct Open {
    since: Instant,
    spin_ns: u64,
    seat: Option<Seat>,
    /// Once spinning is over.
    spun_ns: u64,
    is_parked: bool,
}

impl Waiter {
    /// Waits for somebody on another host.
    pub const fn across_hosts() -> Waiter {
        Waiter { rule: None, open: None, needs: 1, need: None }
    }

    /// Waits for somebody on this host, who needs a CPU of it as well.
    pub const fn within_host() -> Waiter {
        Waiter { rule: None, open: None, needs: 2, need: None }
    }

    /// From now on does not spin.
    pub fn never_spin(&mut self) {
        self.rule = Some(Rule::new(0));
    }

    /// Nothing has come: what to do about it.
    pub fn step(&mut self) -> Step {
        let waiting = chosen();
        let rule = self.rule.get_or_insert_with(|| Rule::new(spin_budget_ns()));
        let open = self.open.get_or_insert_with(|| {
            let (needs, need) = (self.needs, &mut self.need);
            need.get_or_insert_with(|| Need::of(needs));
            let spin_ns = match waiting {
                Waiting::Adaptive => rule.spin_ns(),
                // Some never spin, whatever is chosen for the rest.
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
                return Step::Look;
            }
            open.stop_spinning();
        }
        open.is_parked = true;
        if self.need.is_some() {
            let waited_ns = open.since.elapsed().as_nanos() as u64;
            if waited_ns < PAUSE_NS {
                return Step::ParkFor(PAUSE_NS - waited_ns);
            }
            self.need = None;
        }
        Step::Park
    }

    /// The conversation pauses: what it needs is free for others. Without being told, it is noticed after a while.
    pub fn rest(&mut self) {
        self.need = None;
    }

    /// What was waited for has come.
    pub fn heard(&mut self) {
        if let (Some(mut open), Some(rule)) = (self.open.take(), &mut self.rule) {
            let ns = open.since.elapsed().as_nanos() as u64;
            open.stop_spinning();
            // What was not parked was spun, seat or not.
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

/// Time left until `deadline` as a poll timeout; nothing if it has passed.
pub fn time_left(deadline: MonoNs, now: MonoNs) -> Option<Timespec> {
    deadline.0.checked_sub(now.0).filter(|left| *left > 0).map(timespec)
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
