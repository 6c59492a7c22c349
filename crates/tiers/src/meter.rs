//! Times at which bytes that are requested now would have arrived, at given rates of the tiers. Such a time is called a
//! due time.
//!
//! The idea: each link has a clock, the time until which it is busy. A request advances the clock by the time for its
//! bytes, in one atomic step, and returns the new time. An idle link does not save bandwidth up: a request begins at
//! the current time at the earliest.
//!
//! A tier has two such links, which count reads and writes as its rates require ([`TierRates::costs`]); one is enough
//! if both would count alike. One more link stands for the limit of both tiers together.
//!
//! `Emulated` uses these times with a real clock, [`Virtual`](crate::Virtual) with a virtual one.

use crate::plan::traffic::{ByteCost, Rates, TierRates, TierSide, Traffic};
use std::sync::atomic::{AtomicU64, Ordering};

/// Picoseconds since a stage began. They are fine enough for single lines, and a `u64` lasts half a year.
pub(crate) type Picos = u64;
pub(crate) const PICOS_PER_SECOND: f64 = 1e12;

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// Link with a rate, and the time until which it is busy.
// Each link has cache lines of its own, because all workers write it.
#[repr(align(128))]
struct Link {
    /// Time in ps until which the link is busy.
    taken_until: AtomicU64,
    /// Time in ps that a byte takes, by direction.
    picos_per_byte: ByteCost,
}

impl Link {
    fn new(cost: ByteCost) -> Link {
        let ByteCost { read, written } = cost;
        let picos_per_byte = ByteCost { read: read * PICOS_PER_SECOND, written: written * PICOS_PER_SECOND };
        Link { taken_until: AtomicU64::new(0), picos_per_byte }
    }

    /// Reserves the link for these bytes and returns the time at which they have arrived.
    fn issue(&self, now: Picos, way: Way, bytes: u64) -> Picos {
        let of_byte = match way {
            Way::Read => self.picos_per_byte.read,
            Way::Write => self.picos_per_byte.written,
        };
        let takes = (bytes as f64 * of_byte) as u64;
        let mut taken = self.taken_until.load(Ordering::Relaxed);
        loop {
            let due = taken.max(now).saturating_add(takes);
            match self.taken_until.compare_exchange_weak(taken, due, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return due,
                Err(newer) => taken = newer,
            }
        }
    }
}

/// Links of one tier. A transfer takes as long as on the slower of them.
struct TierLinks {
    /// Link with the first of the tier's two costs ([`TierRates::costs`]).
    first: Link,
    /// Link with the second cost; `None` if it would equal the first.
    second: Option<Link>,
    /// Latency of a random access to a cache line.
    latency: Picos,
    /// Bytes requested so far, by direction.
    bytes: [AtomicU64; 2],
}

impl TierLinks {
    fn new(rates: TierRates, latency_ns: f64) -> TierLinks {
        let [first, second] = rates.costs();
        let differ = |one: f64, other: f64| (one - other).abs() > 1e-9 * one.max(other);
        let is_second = differ(first.read, second.read) || differ(first.written, second.written);
        TierLinks {
            first: Link::new(first),
            second: is_second.then(|| Link::new(second)),
            latency: (latency_ns * 1e3) as u64,
            bytes: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    fn issue(&self, now: Picos, way: Way, bytes: u64) -> Picos {
        let second = self.second.as_ref().map_or(now, |link| link.issue(now, way, bytes));
        self.first.issue(now, way, bytes).max(second)
    }
}

/// Links of both tiers.
pub(crate) struct Meter {
    /// Links of each tier (near, far).
    tiers: [TierLinks; 2],
    /// Link with the rate of both tiers together.
    together: Link,
    /// State of the random generator; `None` without noise.
    noise: Option<AtomicU64>,
}

impl Meter {
    /// Returns links that are free at time 0. `latency_ns` is the latency of random accesses to single cache lines, by
    /// tier (near, far).
    pub(crate) fn new(rates: &Rates, latency_ns: [f64; 2]) -> Meter {
        let tier = |side: TierSide, rates| TierLinks::new(rates, latency_ns[side.index()]);
        Meter {
            tiers: [tier(TierSide::Near, rates.near), tier(TierSide::Far, rates.far)],
            together: Link::new(ByteCost { read: 1.0 / rates.together, written: 1.0 / rates.together }),
            noise: None,
        }
    }

    /// Makes each transfer time random: exponentially distributed, with the same mean. Equal seeds give equal times.
    pub(crate) fn with_noise(mut self, seed: u64) -> Meter {
        self.noise = Some(AtomicU64::new(seed));
        self
    }

    /// Returns the factor by which the time of the next transfer is multiplied; its mean is 1.
    fn disturbance(&self) -> f64 {
        let Some(state) = &self.noise else { return 1.0 };
        // Linear congruential generator with Knuth's constants. Its upper bits are random enough here.
        let next = |state: u64| {
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
        };
        let seen = state.load(Ordering::Relaxed);
        state.store(next(seen), Ordering::Relaxed);
        let uniform = ((next(seen) >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        -uniform.ln()
    }

    /// Returns the time at which bytes of a sequential access have arrived. Prefetchers request them ahead, so no
    /// latency is added.
    pub(crate) fn stream(&self, now: Picos, side: TierSide, way: Way, bytes: u64) -> Picos {
        if bytes == 0 {
            return now;
        }
        let tier = &self.tiers[side.index()];
        tier.bytes[usize::from(way == Way::Write)].fetch_add(bytes, Ordering::Relaxed);
        let bytes = (bytes as f64 * self.disturbance()) as u64;
        tier.issue(now, way, bytes).max(self.together.issue(now, way, bytes))
    }

    /// Returns the time at which the last of `lines` cache lines has arrived, if all are requested together.
    pub(crate) fn lines(&self, now: Picos, side: TierSide, lines: u64, line_bytes: u64) -> Picos {
        if lines == 0 {
            return now;
        }
        self.stream(now, side, Way::Read, lines * line_bytes) + self.tiers[side.index()].latency
    }

    /// Reports whether a random access to a cache line has a latency, beside the time of its bytes, on either tier.
    pub(crate) fn is_latent(&self) -> bool {
        self.tiers.iter().any(|tier| tier.latency > 0)
    }

    /// Returns all bytes requested so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for side in TierSide::ALL {
            let [read, written] = &self.tiers[side.index()].bytes;
            traffic.of_mut(side).read = read.load(Ordering::Relaxed) as f64;
            traffic.of_mut(side).written = written.load(Ordering::Relaxed) as f64;
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates::shared(4e9, 2e9, 5e9);

    #[test]
    fn bytes_come_behind_those_that_were_asked_for_before() {
        let meter = Meter::new(&RATES, [0.0; 2]);
        assert_eq!(meter.stream(0, TierSide::Far, Way::Read, 2_000), 1_000_000);
        assert_eq!(meter.stream(0, TierSide::Far, Way::Write, 2_000), 2_000_000);
        assert_eq!(meter.traffic().far.total(), 4_000.0);
    }

    #[test]
    fn idle_link_saves_nothing_up() {
        let meter = Meter::new(&RATES, [0.0; 2]);
        meter.stream(0, TierSide::Far, Way::Read, 2_000);
        assert_eq!(meter.stream(9_000_000, TierSide::Far, Way::Read, 2_000), 10_000_000);
    }

    #[test]
    fn both_tiers_together_are_held_up_by_what_the_machine_moves() {
        let meter = Meter::new(&RATES, [0.0; 2]);
        meter.stream(0, TierSide::Far, Way::Read, 20_000);
        let near = meter.stream(0, TierSide::Near, Way::Read, 40_000);
        assert_eq!(near, 12_000_000, "60,000 bytes at 5 GB/s");
    }

    #[test]
    fn rate_of_its_own_leaves_the_other_way_free() {
        let far = TierRates { read: 1e9, write: 1e9, both: 2e9 };
        let meter = Meter::new(&Rates { far, ..RATES }, [0.0; 2]);
        assert_eq!(meter.stream(0, TierSide::Far, Way::Read, 1_000), 1_000_000);
        assert_eq!(meter.stream(0, TierSide::Far, Way::Write, 1_000), 1_000_000);
    }

    #[test]
    fn lines_wait_for_the_latency_of_their_tier() {
        let meter = Meter::new(&RATES, [0.0, 150.0]);
        assert_eq!(meter.lines(0, TierSide::Far, 1, 64), 32_000 + 150_000);
        assert_eq!(meter.lines(0, TierSide::Near, 0, 64), 0);
    }
}
