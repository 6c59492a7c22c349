//! Near share that corrects itself while an operator runs.
//!
//! The idea: workers take morsels (parts of the work) from two queues, near and far, and request as many of each ahead
//! as they may. Each tier is busy until its queue is empty. If one queue is empty first, the other tier had too many
//! morsels.
//!
//! Given the near share `w` and the rates `N` (near) and `F` (far), the queues last `w / N` and `(1 - w) / F`. They
//! last equally long at `ln(w / (1 - w)) = ln(N / F)`. On that logarithmic scale the share moves by the logarithm of
//! the ratio of the two times. If nothing else uses the tiers, the share is right after one measurement. Other traffic
//! on either tier makes a step shorter than it should be, never longer.
//!
//! This balances one phase only. If moving a share costs time in another phase, the plan must limit the share from
//! above ([`Balance::within`]).

/// Near share of the data that is placed next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Logarithm of the odds of the share: `ln(w / (1 - w))`.
    log_odds: f64,
    /// Number of measurements so far.
    seen: u32,
    /// Least permitted share.
    least: f64,
    /// Greatest permitted share.
    most: f64,
}

/// Least share of either tier. Each queue needs some morsels for its time to be measured.
const SHARE_MIN: f64 = 1.0 / 64.0;
/// Largest ratio of the times of both queues that counts. A larger ratio comes from other users of the machine, and
/// counts as this one.
const RATIO_MAX: f64 = 4.0;
/// Least weight of a measured pair of times, 0 to 1. The first pair has weight 1, the second 1/2, and later ones this.
const WEIGHT_MIN: f64 = 0.4;

impl Balance {
    /// Returns a balance that begins with the share of a plan. Shares are limited to 1/64..=63/64; NaN counts as 1/2.
    pub fn new(expected_share: f64) -> Balance {
        Balance::within(expected_share, SHARE_MIN, 1.0 - SHARE_MIN)
    }

    /// Returns a balance whose share stays within these bounds.
    pub fn within(expected_share: f64, least: f64, most: f64) -> Balance {
        let least = least.clamp(SHARE_MIN, 1.0 - SHARE_MIN);
        let most = most.clamp(least, 1.0 - SHARE_MIN);
        let share = if expected_share.is_nan() { 0.5 } else { expected_share };
        Balance { log_odds: log_odds(share.clamp(least, most)), seen: 0, least, most }
    }

    /// Returns the near share of the data that is placed next.
    pub fn share(&self) -> f64 {
        let odds = self.log_odds.exp();
        (odds / (1.0 + odds)).clamp(self.least, self.most)
    }

    /// Corrects the share by the times, in any unit, after which the near and the far queue were empty. Both queues
    /// must have begun at the same time. Changes nothing unless both times are finite and above 0.
    pub fn drained(&mut self, near: f64, far: f64) {
        let is_time = |time: f64| time.is_finite() && time > 0.0;
        if !is_time(near) || !is_time(far) {
            return;
        }
        let off = (far / near).ln().clamp(-RATIO_MAX.ln(), RATIO_MAX.ln());
        let weight = (1.0 / f64::from(self.seen + 1)).max(WEIGHT_MIN);
        self.seen = self.seen.saturating_add(1);
        let moved = self.log_odds + off * weight;
        self.log_odds = moved.clamp(log_odds(self.least), log_odds(self.most));
    }
}

fn log_odds(share: f64) -> f64 {
    (share / (1.0 - share)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn share_comes_to_where_both_queues_drain_together(
            prior in 0.0f64..=1.0, near in 1.0f64..8.0, far in 1.0f64..8.0, fixed in 0.0f64..0.3,
        ) {
            // Other traffic takes a fixed time of each tier.
            let mut balance = Balance::new(prior);
            let times = |w: f64| (w / near + fixed / near, (1.0 - w) / far + fixed / far);
            for _ in 0..400 {
                let (of_near, of_far) = times(balance.share());
                balance.drained(of_near, of_far);
            }
            let (of_near, of_far) = times(balance.share());
            let is_held = balance.share() < 0.02 || balance.share() > 0.98;
            prop_assert!(is_held || (of_near / of_far - 1.0).abs() < 0.02, "{balance:?} {of_near} {of_far}");
        }
    }

    #[test]
    fn first_measurement_corrects_a_prior_that_is_wrong_by_a_factor_of_two() {
        let mut balance = Balance::new(1.0 / 3.0);
        balance.drained(1.0 / 3.0, 2.0 / 3.0);
        assert!((balance.share() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_time_says_nothing_and_bounds_are_kept() {
        let mut balance = Balance::within(0.9, 0.2, 0.55);
        assert!((balance.share() - 0.55).abs() < 1e-12);
        for (near, far) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0)] {
            balance.drained(near, far);
        }
        assert!((balance.share() - 0.55).abs() < 1e-12);
        (0..50).for_each(|_| balance.drained(9.0, 1.0));
        assert!((balance.share() - 0.2).abs() < 1e-12);
        assert!((Balance::new(f64::NAN).share() - 0.5).abs() < 1e-12);
    }
}
