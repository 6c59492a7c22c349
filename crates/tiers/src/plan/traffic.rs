//! Bytes on two memory tiers, and how long they take.
//!
//! The idea: an operator over memory that is bound by bandwidth takes as long as its busiest link. With `c` bytes on
//! the far tier and `d` on the near one that is `T(c, d) = max(c / B_C, d / B_D, (c + d) / A)`: either tier by itself,
//! or what the machine moves from both at once, which is less than their sum. Reads and writes of one tier may share
//! wires (DDR) or have some of their own (CXL): what copying takes beside reading and writing alone says which.
//!
//! What is near and far here are tiers of one machine: DRAM, and the memory behind a CXL or another node's link.

use std::fmt;

/// One of two memory tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The faster one, of which there is less.
    Near,
    /// The slower one, where data lies to begin with.
    Far,
}

impl Side {
    /// Both.
    pub const ALL: [Side; 2] = [Side::Near, Side::Far];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Side::Near => "near",
            Side::Far => "far",
        }
    }

    /// For arrays by side.
    pub fn index(self) -> usize {
        match self {
            Side::Near => 0,
            Side::Far => 1,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is moved over one link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bytes {
    /// Towards the CPU.
    pub read: f64,
    /// Towards the memory.
    pub written: f64,
}

impl Bytes {
    /// Both ways.
    pub fn total(self) -> f64 {
        self.read + self.written
    }

    fn plus(self, other: Bytes, times: f64) -> Bytes {
        Bytes { read: self.read + other.read * times, written: self.written + other.written * times }
    }
}

/// What is moved on both tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// On the near tier: `d`.
    pub near: Bytes,
    /// On the far tier: `c`.
    pub far: Bytes,
}

impl Traffic {
    /// What is moved on one tier.
    pub fn of(&self, side: Side) -> Bytes {
        match side {
            Side::Near => self.near,
            Side::Far => self.far,
        }
    }

    /// The same to be changed.
    pub fn of_mut(&mut self, side: Side) -> &mut Bytes {
        match side {
            Side::Near => &mut self.near,
            Side::Far => &mut self.far,
        }
    }

    /// On both tiers, both ways.
    pub fn total(&self) -> f64 {
        self.near.total() + self.far.total()
    }

    /// This and so many times the other.
    pub fn plus(self, other: Traffic, times: f64) -> Traffic {
        Traffic { near: self.near.plus(other.near, times), far: self.far.plus(other.far, times) }
    }
}

/// Bytes a second of one tier, all CPUs together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lanes {
    /// When it is only read.
    pub read: f64,
    /// When it is only written.
    pub write: f64,
    /// When as much is read as is written, both counted: `B`.
    pub both: f64,
}

/// Seconds of one byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByteCost {
    /// That is read.
    pub read: f64,
    /// That is written.
    pub written: f64,
}

impl ByteCost {
    fn seconds(self, bytes: Bytes) -> f64 {
        self.read * bytes.read + self.written * bytes.written
    }
}

impl Lanes {
    /// A tier that moves as much in either direction as in both.
    pub const fn shared(rate: f64) -> Lanes {
        Lanes { read: rate, write: rate, both: rate }
    }

    /// Two sums, of which the greater one is how long the tier takes: the least convex function that is right for
    /// reading alone, writing alone and copying. Lanes that are wires of their own make it the greater of the two ways,
    /// one bus for both their sum; copying counts as no slower than that.
    pub fn costs(&self) -> [ByteCost; 2] {
        let (read, written) = (1.0 / self.read, 1.0 / self.write);
        let copied = 2.0 / self.both;
        [
            ByteCost { read, written: (copied - read).clamp(0.0, written) },
            ByteCost { read: (copied - written).clamp(0.0, read), written },
        ]
    }
}

/// Bytes a second of two tiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of the near tier: `B_D`.
    pub near: Lanes,
    /// Of the far tier: `B_C`.
    pub far: Lanes,
    /// Of both at once: `A`.
    pub together: f64,
}

/// Terms of which [`Rates::seconds`] is the greatest.
pub(crate) const TERMS: usize = 5;

impl Rates {
    /// The machine of paper 002, section 4.1: DDR5 at 30.01 GB/s, CXL memory at 20.95, 47.50 together.
    pub const PAPER: Rates =
        Rates { near: Lanes::shared(30.01e9), far: Lanes::shared(20.95e9), together: 47.50e9 };

    /// Tiers that move as much in either direction as in both.
    pub const fn shared(near: f64, far: f64, together: f64) -> Rates {
        Rates { near: Lanes::shared(near), far: Lanes::shared(far), together }
    }

    /// Refuses what cannot be a rate.
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

    /// The share of data on the near tier at which both tiers are read for the same time: the paper's alpha, which it
    /// rounds to 3:2.
    pub fn even_share(&self) -> f64 {
        self.near.both / (self.near.both + self.far.both)
    }

    /// `T(c, d)`: the least time in which both tiers move so much, in seconds.
    pub fn seconds(&self, traffic: &Traffic) -> f64 {
        self.terms(traffic).into_iter().fold(0.0, f64::max)
    }

    /// What [`seconds`](Self::seconds) is the greatest of. Each is linear in the traffic.
    pub(crate) fn terms(&self, traffic: &Traffic) -> [f64; TERMS] {
        let [far_first, far_second] = self.far.costs().map(|cost| cost.seconds(traffic.far));
        let [near_first, near_second] = self.near.costs().map(|cost| cost.seconds(traffic.near));
        [far_first, far_second, near_first, near_second, traffic.total() / self.together]
    }
}

/// What was given as a rate is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoRate {
    /// Which of them.
    pub what: &'static str,
    /// What was given.
    pub rate: f64,
}

impl fmt::Display for NoRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} rate is {} B/s; more than 0 is permitted", self.what, self.rate)
    }
}

impl std::error::Error for NoRate {}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(far: f64, near: f64) -> Traffic {
        Traffic {
            far: Bytes { read: far, written: 0.0 },
            near: Bytes { read: near / 2.0, written: near / 2.0 },
        }
    }

    #[test]
    fn busiest_link_says_how_long() {
        let seconds = |far, near| Rates::PAPER.seconds(&traffic(far, near)) * 1e9;
        assert!((seconds(20.95, 1.0) - 1.0).abs() < 1e-9, "the far one");
        assert!((seconds(1.0, 30.01) - 1.0).abs() < 1e-9, "the near one");
        assert!((seconds(19.0, 28.5) - 1.0).abs() < 1e-9, "both together");
    }

    fn far_seconds(far: Lanes, read: f64, written: f64) -> f64 {
        let rates = Rates { near: Lanes::shared(30.0), far, together: 500.0 };
        rates.seconds(&Traffic { far: Bytes { read, written }, ..Traffic::default() })
    }

    #[test]
    fn reads_and_writes_hold_each_other_up_as_much_as_copying_shows() {
        let own_wires = Lanes { read: 10.0, write: 10.0, both: 20.0 };
        assert_eq!(far_seconds(own_wires, 20.0, 0.0), 2.0);
        assert_eq!(far_seconds(own_wires, 10.0, 10.0), 1.0);
        let one_bus = Lanes { read: 40.0, write: 20.0, both: 80.0 / 3.0 };
        for (read, written, seconds) in
            [(40.0, 0.0, 1.0), (0.0, 20.0, 1.0), (40.0, 20.0, 2.0), (80.0, 20.0, 3.0)]
        {
            assert!((far_seconds(one_bus, read, written) - seconds).abs() < 1e-12, "{read} {written}");
        }
    }

    #[test]
    fn what_was_measured_is_met_and_no_copy_is_slower_than_one_after_the_other() {
        let lanes = Lanes { read: 35.0, write: 23.0, both: 31.0 };
        assert!((far_seconds(lanes, 35.0, 0.0) - 1.0).abs() < 1e-12);
        assert!((far_seconds(lanes, 0.0, 23.0) - 1.0).abs() < 1e-12);
        assert!((far_seconds(lanes, 15.5, 15.5) - 1.0).abs() < 1e-12);
        let disturbed = Lanes { both: 5.0, ..lanes };
        assert!((far_seconds(disturbed, 35.0, 23.0) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_rate_is_named() {
        let mut rates = Rates::PAPER;
        assert_eq!(rates.check(), Ok(()));
        rates.far.write = 0.0;
        let text = rates.check().unwrap_err().to_string();
        assert_eq!(text, "the far write rate is 0 B/s; more than 0 is permitted");
        rates.far.write = f64::NAN;
        assert!(rates.check().is_err());
    }
}
