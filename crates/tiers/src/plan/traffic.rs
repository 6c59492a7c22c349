//! Bytes moved on two memory tiers, and the time that they take.
//!
//! The idea: an operator that is bound by memory bandwidth takes as long as its busiest link. With `c` bytes on the far
//! tier and `d` on the near one that is `T(c, d) = max(c / B_C, d / B_D, (c + d) / A)`. `B_C` and `B_D` are the rates
//! of one tier by itself. `A` is the rate at which the machine moves bytes of both tiers at once, which is less than
//! their sum.
//!
//! Reads and writes of one tier share one bus (DDR) or have wires of their own (CXL). The rate of copying, compared
//! with the rates of reading alone and writing alone, shows which of the two it is.
//!
//! Both tiers belong to one machine: DRAM, and the memory behind a CXL link or on another NUMA node.

use std::fmt;

/// Memory tier: near or far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierSide {
    /// The faster tier, of which there is less.
    Near,
    /// The slower tier, where data lies at first.
    Far,
}

impl TierSide {
    /// Both tiers, in the order of their index.
    pub const ALL: [TierSide; 2] = [TierSide::Near, TierSide::Far];

    /// Returns `near` or `far`.
    pub fn name(self) -> &'static str {
        match self {
            TierSide::Near => "near",
            TierSide::Far => "far",
        }
    }

    /// Returns the index of the tier in arrays by side: 0 for near, 1 for far.
    pub fn index(self) -> usize {
        match self {
            TierSide::Near => 0,
            TierSide::Far => 1,
        }
    }
}

impl fmt::Display for TierSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes moved over the link of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkBytes {
    /// Bytes from the memory to the CPU.
    pub read: f64,
    /// Bytes from the CPU to the memory.
    pub written: f64,
}

impl LinkBytes {
    /// Returns the sum of both directions.
    pub fn total(self) -> f64 {
        self.read + self.written
    }

    fn plus(self, other: LinkBytes, times: f64) -> LinkBytes {
        LinkBytes { read: self.read + other.read * times, written: self.written + other.written * times }
    }
}

/// Bytes moved on both tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes on the near tier; `d` in the formula.
    pub near: LinkBytes,
    /// Bytes on the far tier; `c` in the formula.
    pub far: LinkBytes,
}

impl Traffic {
    /// Returns the bytes moved on one tier.
    pub fn of(&self, side: TierSide) -> LinkBytes {
        match side {
            TierSide::Near => self.near,
            TierSide::Far => self.far,
        }
    }

    /// Returns the bytes moved on one tier, to change them.
    pub fn of_mut(&mut self, side: TierSide) -> &mut LinkBytes {
        match side {
            TierSide::Near => &mut self.near,
            TierSide::Far => &mut self.far,
        }
    }

    /// Returns the sum over both tiers and directions.
    pub fn total(&self) -> f64 {
        self.near.total() + self.far.total()
    }

    /// Returns `self + times * other`.
    pub fn plus(self, other: Traffic, times: f64) -> Traffic {
        Traffic { near: self.near.plus(other.near, times), far: self.far.plus(other.far, times) }
    }
}

/// Rates of one tier in bytes a second, with all CPUs at work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierRates {
    /// Rate if the tier is only read.
    pub read: f64,
    /// Rate if the tier is only written.
    pub write: f64,
    /// Rate if as many bytes are read as written; both count. `B_D` (near) or `B_C` (far) in the formula.
    pub both: f64,
}

/// Seconds that one byte takes on a link, by direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByteCost {
    /// Seconds to read a byte.
    pub read: f64,
    /// Seconds to write a byte.
    pub written: f64,
}

impl ByteCost {
    fn seconds(self, bytes: LinkBytes) -> f64 {
        self.read * bytes.read + self.written * bytes.written
    }
}

impl TierRates {
    /// Returns the rates of a tier whose reads and writes share one bus: it moves as much in one direction as in both.
    pub const fn shared(rate: f64) -> TierRates {
        TierRates { read: rate, write: rate, both: rate }
    }

    /// Returns two linear costs; a tier takes as long as the greater of them. Their maximum is the least convex
    /// function that is exact for reading alone, writing alone and copying. For a tier with separate wires, that
    /// maximum is the time of the slower direction; for one bus it is the sum of both times. Copying counts as no
    /// slower than that sum, even if it was measured to be.
    pub fn costs(&self) -> [ByteCost; 2] {
        let (read, written) = (1.0 / self.read, 1.0 / self.write);
        let copied = 2.0 / self.both;
        [
            ByteCost { read, written: (copied - read).clamp(0.0, written) },
            ByteCost { read: (copied - written).clamp(0.0, read), written },
        ]
    }
}

/// Rates of two tiers, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Rates of the near tier; `B_D` in the formula.
    pub near: TierRates,
    /// Rates of the far tier; `B_C` in the formula.
    pub far: TierRates,
    /// Rate of both tiers used at once; `A` in the formula.
    pub together: f64,
}

/// Number of linear terms whose maximum is [`Rates::seconds`].
pub(crate) const TERMS: usize = 5;

impl Rates {
    /// Machine of paper 002, section 4.1: DDR5 at 30.01 GB/s, CXL memory at 20.95 GB/s, 47.50 GB/s together.
    pub const PAPER: Rates =
        Rates { near: TierRates::shared(30.01e9), far: TierRates::shared(20.95e9), together: 47.50e9 };

    /// Returns the rates of two tiers whose reads and writes each share one bus.
    pub const fn shared(near: f64, far: f64, together: f64) -> Rates {
        Rates { near: TierRates::shared(near), far: TierRates::shared(far), together }
    }

    /// Returns an error for the first rate that is not a finite number above 0.
    pub fn check(&self) -> Result<(), NoRate> {
        let Rates { near, far, together } = *self;
        let all = [
            ("near read", near.read),
            ("near write", near.write),
            ("near", near.both),
            ("far read", far.read),
            ("far write", far.write),
            ("far", far.both),
            ("together", together),
        ];
        let wrong = all.into_iter().find(|(_, rate)| !rate.is_finite() || *rate <= 0.0);
        wrong.map_or(Ok(()), |(what, rate)| Err(NoRate { what, rate }))
    }

    /// Returns the near share of data at which reading both tiers takes the same time: alpha in paper 002, which rounds
    /// it to 3:2.
    pub fn even_share(&self) -> f64 {
        self.near.both / (self.near.both + self.far.both)
    }

    /// Returns `T(c, d)`: the least time in seconds to move this traffic.
    pub fn seconds(&self, traffic: &Traffic) -> f64 {
        self.terms(traffic).into_iter().fold(0.0, f64::max)
    }

    /// Returns the terms whose maximum is [`seconds`](Self::seconds). Each is linear in the traffic.
    pub(crate) fn terms(&self, traffic: &Traffic) -> [f64; TERMS] {
        let [far_first, far_second] = self.far.costs().map(|cost| cost.seconds(traffic.far));
        let [near_first, near_second] = self.near.costs().map(|cost| cost.seconds(traffic.near));
        [far_first, far_second, near_first, near_second, traffic.total() / self.together]
    }
}

/// Error: a rate is not a finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoRate {
    /// Name of the rate, such as `far write`.
    pub what: &'static str,
    /// Value that was given, in bytes a second.
    pub rate: f64,
}

impl fmt::Display for NoRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} rate is {} B/s; it must be finite and above 0", self.what, self.rate)
    }
}

impl std::error::Error for NoRate {}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(far: f64, near: f64) -> Traffic {
        Traffic {
            far: LinkBytes { read: far, written: 0.0 },
            near: LinkBytes { read: near / 2.0, written: near / 2.0 },
        }
    }

    #[test]
    fn busiest_link_says_how_long() {
        let seconds = |far, near| Rates::PAPER.seconds(&traffic(far, near)) * 1e9;
        assert!((seconds(20.95, 1.0) - 1.0).abs() < 1e-9, "the far one");
        assert!((seconds(1.0, 30.01) - 1.0).abs() < 1e-9, "the near one");
        assert!((seconds(19.0, 28.5) - 1.0).abs() < 1e-9, "both together");
    }

    fn far_seconds(far: TierRates, read: f64, written: f64) -> f64 {
        let rates = Rates { near: TierRates::shared(30.0), far, together: 500.0 };
        rates.seconds(&Traffic { far: LinkBytes { read, written }, ..Traffic::default() })
    }

    #[test]
    fn reads_and_writes_hold_each_other_up_as_much_as_copying_shows() {
        let own_wires = TierRates { read: 10.0, write: 10.0, both: 20.0 };
        assert_eq!(far_seconds(own_wires, 20.0, 0.0), 2.0);
        assert_eq!(far_seconds(own_wires, 10.0, 10.0), 1.0);
        let one_bus = TierRates { read: 40.0, write: 20.0, both: 80.0 / 3.0 };
        for (read, written, seconds) in
            [(40.0, 0.0, 1.0), (0.0, 20.0, 1.0), (40.0, 20.0, 2.0), (80.0, 20.0, 3.0)]
        {
            assert!((far_seconds(one_bus, read, written) - seconds).abs() < 1e-12, "{read} {written}");
        }
    }

    #[test]
    fn what_was_measured_is_met_and_no_copy_is_slower_than_one_after_the_other() {
        let rates = TierRates { read: 35.0, write: 23.0, both: 31.0 };
        assert!((far_seconds(rates, 35.0, 0.0) - 1.0).abs() < 1e-12);
        assert!((far_seconds(rates, 0.0, 23.0) - 1.0).abs() < 1e-12);
        assert!((far_seconds(rates, 15.5, 15.5) - 1.0).abs() < 1e-12);
        let disturbed = TierRates { both: 5.0, ..rates };
        assert!((far_seconds(disturbed, 35.0, 23.0) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_rate_is_named() {
        let mut rates = Rates::PAPER;
        assert_eq!(rates.check(), Ok(()));
        rates.far.write = 0.0;
        let text = rates.check().unwrap_err().to_string();
        assert_eq!(text, "the far write rate is 0 B/s; it must be finite and above 0");
        rates.far.write = f64::NAN;
        assert!(rates.check().is_err());
    }
}
