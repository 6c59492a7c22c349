//! Memory pressure: decides how much memory a node may keep, from samples of its host's memory. Pure.
//!
//! The host always keeps a reserve. If the available memory will fall below the reserve soon, judged by how fast it
//! falls, the node returns all of the shortfall at once. If there has been memory above the reserve for a while, the
//! node takes some back: little by little, and never more than half of what is left. Tasks that wait for memory
//! (pressure stall information) show hosts whose reserve is too small, or that depend on their file cache. (Sources:
//! `docs/decisions/0030-memory-pressure.md`.)
//!
//! Never here: a clock, a file, or the choice of the regions to return.

pub use farpool_host::BoundedMemory;
use farpool_wire::MonoNs;

/// Time in ns over which a fall of the available memory is extrapolated: half a second. It covers several samples and
/// the time it takes to return memory, so that returning begins before the reserve is used.
const AHEAD_NS: u64 = 500_000_000;
/// Percentage of a space (limited memory: the host's or a control group's). If less of it is available, that is an
/// emergency, in which the node returns all memory.
const EMERGENCY_SHARE: u64 = 3;
/// Share of the time. If all tasks waited for memory for more than this, and little is left, that is an emergency.
const FULL_SHARE: f64 = 0.2;
/// Share of the time. If some tasks waited for memory for more than this, and little is left, the node returns memory.
const SOME_SHARE: f64 = 0.1;
/// Least time in ns over which the waiting of tasks for memory is measured.
const STALL_INTERVAL_NS: u64 = 1_000_000_000;
/// Divisor: at least 1/64 of a space is returned if tasks wait for memory and little is left.
const STALL_STEP: u64 = 64;
/// Time in ns without shortage after which the node takes memory back from the host.
const QUIET_NS: u64 = 60_000_000_000;
/// Interval in ns between two steps of taking memory back from the host.
const GROW_EVERY_NS: u64 = 1_000_000_000;
/// Divisor: at most 1/64 of a space is taken back from the host per step.
const GROW_STEP: u64 = 64;
/// Least default reserve in bytes: what stays available to others. The default is a tenth of a space, at least this,
/// and at most a quarter of the space.
const RESERVE_BYTES: u64 = 2 << 30;

/// Returns the reserve of a space that is used if none is configured.
pub fn default_reserve(space: &BoundedMemory) -> u64 {
    (space.total_bytes / 10).max(RESERVE_BYTES).min(space.total_bytes / 4)
}

/// Sample of the host's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// All spaces that limit this process, in the same order in each sample.
    pub spaces: Vec<BoundedMemory>,
    /// Microseconds that some, and all, of the host's tasks have waited for memory since its start. `None` if the host
    /// does not report it.
    pub stalled_us: Option<(u64, u64)>,
}

/// Decision after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing changes.
    Hold,
    /// This many bytes must be returned, in addition to those that are being returned already.
    GiveBack {
        /// Bytes to return.
        bytes: u64,
        /// True if there is no time to ask holders first.
        is_emergency: bool,
    },
    /// This many bytes may be taken back.
    Take {
        /// Bytes to take back.
        bytes: u64,
    },
}

/// The previous sample.
#[derive(Clone, Debug)]
struct Before {
    at: MonoNs,
    spaces: Vec<BoundedMemory>,
}

/// State of the decisions about memory pressure.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// Reserve in bytes that was configured; `None` for the default of each space.
    reserve_bytes: Option<u64>,
    before: Option<Before>,
    /// Last times that tasks had waited for memory in sum (some, all; in µs), and when they were read.
    stalled: Option<(MonoNs, (u64, u64))>,
    /// Time since which no space has been short; `None` while one is.
    quiet_since: Option<MonoNs>,
    /// Time at which memory was last taken back.
    grown: MonoNs,
}

impl Pressure {
    /// Makes the initial state, with this reserve or the default one.
    pub fn new(reserve_bytes: Option<u64>) -> Pressure {
        Pressure { reserve_bytes, before: None, stalled: None, quiet_since: None, grown: MonoNs(0) }
    }

    /// Forgets the previous sample, so that memory consumed since then is not extrapolated.
    pub fn forget_fall(&mut self) {
        self.before = None;
    }

    /// Returns the bytes that stay available in a space.
    pub fn reserve_of(&self, space: &BoundedMemory) -> u64 {
        self.reserve_bytes.unwrap_or_else(|| default_reserve(space))
    }

    /// Decides after a sample. `going_bytes` are being returned already.
    pub fn look(&mut self, now: MonoNs, sample: &Sample, going_bytes: u64) -> Verdict {
        let before = self.before.replace(Before { at: now, spaces: sample.spaces.clone() });
        let (some, full) = self.stalls(now, sample);
        let (mut need, mut spare, mut is_emergency) = (0, u64::MAX, false);
        for (index, space) in sample.spaces.iter().enumerate() {
            let was = before.as_ref().and_then(|before| Some((before.at, *before.spaces.get(index)?)));
            let ahead = was.map_or(0, |(at, was)| falls(now.0.saturating_sub(at.0), was, *space));
            let reserve = self.reserve_of(space);
            let left = space.available_bytes.saturating_sub(ahead);
            need = need.max(reserve.saturating_sub(left));
            // A host whose tasks wait for memory has less than it needs, whatever it reports as available. If it has
            // much left, they wait because of some other limit.
            if left < reserve.saturating_mul(2) {
                is_emergency |= full > FULL_SHARE;
                if some > SOME_SHARE {
                    need = need.max(space.total_bytes / STALL_STEP);
                }
            }
            is_emergency |=
                space.available_bytes.saturating_mul(100) < space.total_bytes.saturating_mul(EMERGENCY_SHARE);
            spare = spare.min(left.saturating_sub(reserve) / 2).min(space.total_bytes / GROW_STEP);
        }
        if need > 0 || is_emergency {
            self.quiet_since = None;
            // Nobody knows how much is enough in an emergency, so everything is returned.
            let all = if is_emergency { u64::MAX } else { need.saturating_sub(going_bytes) };
            return if all == 0 { Verdict::Hold } else { Verdict::GiveBack { bytes: all, is_emergency } };
        }
        let quiet_since = *self.quiet_since.get_or_insert(now);
        let is_quiet = now.0.saturating_sub(quiet_since.0) >= QUIET_NS;
        if !is_quiet
            || now.0.saturating_sub(self.grown.0) < GROW_EVERY_NS
            || sample.spaces.is_empty()
            || spare == 0
        {
            return Verdict::Hold;
        }
        self.grown = now;
        Verdict::Take { bytes: spare }
    }

    /// Returns the shares of the recent time during which some, and all, tasks waited for memory.
    fn stalls(&mut self, now: MonoNs, sample: &Sample) -> (f64, f64) {
        let Some(stalled) = sample.stalled_us else { return (0.0, 0.0) };
        let Some((at, was)) = self.stalled else {
            self.stalled = Some((now, stalled));
            return (0.0, 0.0);
        };
        let passed_ns = now.0.saturating_sub(at.0);
        if passed_ns < STALL_INTERVAL_NS {
            return (0.0, 0.0);
        }
        self.stalled = Some((now, stalled));
        let share = |now_us: u64, was_us: u64| now_us.saturating_sub(was_us) as f64 * 1e3 / passed_ns as f64;
        (share(stalled.0, was.0), share(stalled.1, was.1))
    }
}

/// Returns by how many bytes a space will have fallen after [`AHEAD_NS`], if it continues to fall as it did.
fn falls(passed_ns: u64, was: BoundedMemory, is: BoundedMemory) -> u64 {
    let fallen = was.available_bytes.saturating_sub(is.available_bytes);
    match passed_ns {
        0 => 0,
        passed_ns => (u128::from(fallen) * u128::from(AHEAD_NS) / u128::from(passed_ns))
            .min(is.total_bytes.into()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;
    const MS: u64 = 1_000_000;

    fn sample(available_bytes: u64) -> Sample {
        Sample { spaces: vec![BoundedMemory { total_bytes: 64 * GIB, available_bytes }], stalled_us: None }
    }

    /// Returns the decisions after samples that are 100 ms apart.
    fn looks(pressure: &mut Pressure, available: impl IntoIterator<Item = u64>) -> Vec<Verdict> {
        let each = available.into_iter().enumerate();
        each.map(|(index, bytes)| pressure.look(MonoNs(index as u64 * 100 * MS), &sample(bytes), 0)).collect()
    }

    #[test]
    fn what_is_short_of_the_reserve_is_given_back_at_once_and_once() {
        let mut pressure = Pressure::new(Some(4 * GIB));
        let found = pressure.look(MonoNs(0), &sample(3 * GIB), 0);
        assert_eq!(found, Verdict::GiveBack { bytes: GIB, is_emergency: false });
        assert_eq!(pressure.look(MonoNs(100 * MS), &sample(3 * GIB), GIB), Verdict::Hold, "it is on its way");
    }

    #[test]
    fn memory_that_falls_fast_is_met_before_the_reserve_is_touched() {
        let mut pressure = Pressure::new(Some(4 * GIB));
        // Available memory falls by 5 GiB per second: 2.5 GiB in half a second.
        let found = looks(&mut pressure, [7 * GIB, 7 * GIB - GIB / 2, 6 * GIB]);
        assert_eq!(found[0], Verdict::Hold);
        assert!(matches!(found[2], Verdict::GiveBack { bytes, .. } if bytes == GIB / 2), "{found:?}");
    }

    #[test]
    fn memory_comes_back_slowly_and_only_after_a_quiet_minute() {
        let mut pressure = Pressure::new(Some(4 * GIB));
        let found = looks(&mut pressure, std::iter::once(3 * GIB).chain(std::iter::repeat_n(20 * GIB, 700)));
        let first = found.iter().position(|verdict| matches!(verdict, Verdict::Take { .. }));
        assert_eq!(first, Some(601), "a minute of looks behind the one that was short");
        let taken = found.iter().filter(|verdict| **verdict == Verdict::Take { bytes: GIB }).count();
        assert_eq!(taken, 10, "once a second");
    }

    #[test]
    fn host_that_is_nearly_full_or_waits_all_the_time_is_an_emergency() {
        let mut pressure = Pressure::new(None);
        let all = Verdict::GiveBack { bytes: u64::MAX, is_emergency: true };
        assert_eq!(pressure.look(MonoNs(0), &sample(GIB), 7), all);
        let mut pressure = Pressure::new(None);
        let waits = |us| Sample { stalled_us: Some((us, us)), ..sample(10 * GIB) };
        assert_eq!(pressure.look(MonoNs(0), &waits(0), 0), Verdict::Hold);
        assert_eq!(pressure.look(MonoNs(2_000 * MS), &waits(500_000), 0), all);
    }

    #[test]
    fn host_that_waits_now_and_then_gets_some_if_it_is_short() {
        let look = |available| {
            let mut pressure = Pressure::new(Some(4 * GIB));
            let waits = |us| Sample { stalled_us: Some((us, 0)), ..sample(available) };
            pressure.look(MonoNs(0), &waits(0), 0);
            pressure.look(MonoNs(2_000 * MS), &waits(300_000), 0)
        };
        assert_eq!(look(6 * GIB), Verdict::GiveBack { bytes: GIB, is_emergency: false });
        assert_eq!(look(40 * GIB), Verdict::Hold, "it waits for something else");
    }

    proptest! {
        #[test]
        fn nothing_is_taken_from_a_host_that_has_little_and_none_given_to_one_that_has_much(
            available in proptest::collection::vec(0..=64 * GIB, 1..200),
            step_ns in 1..10_000_000_000u64,
            reserve in proptest::option::of(0..80 * GIB),
            going in 0..64 * GIB,
        ) {
            let mut pressure = Pressure::new(reserve);
            for (index, bytes) in available.iter().enumerate() {
                let space = sample(*bytes).spaces[0];
                let reserve = reserve.unwrap_or_else(|| default_reserve(&space));
                match pressure.look(MonoNs(index as u64 * step_ns), &sample(*bytes), going) {
                    Verdict::Hold => {}
                    Verdict::Take { bytes: taken } => prop_assert!(taken <= (bytes - reserve) / 2 && taken > 0),
                    Verdict::GiveBack { bytes: given, is_emergency: false } => {
                        prop_assert!(given > 0 && given <= reserve);
                    }
                    Verdict::GiveBack { bytes: given, is_emergency: true } => {
                        prop_assert!(given == u64::MAX && bytes * 100 < 64 * GIB * 3);
                    }
                }
            }
        }
    }
}
