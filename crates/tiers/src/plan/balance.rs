//! A share that corrects itself while an operator runs.
//!
//! The idea: workers take from two queues of morsels, near and far, and have as many of either under way as they can,
//! so that both tiers are busy until their queue is drained. If one drains first, the other tier has had too much: with
//! the share `w` near, rates `N` and `F` drain the queues after `w / N` and `(1 - w) / F`, and are even at
//! `ln(w / (1 - w)) = ln(N / F)`. So the share moves, on that scale, by the logarithm of what the times differ by, and
//! would be right after one piece of work if nothing else used the tiers. What else is moved on either tier, wherever
//! the morsels lie, only makes a step shorter than it should be, never longer.
//!
//! It evens out one phase. Where a share also costs something in another phase (moving it there), that is the plan's
//! business: bound the share from above by what the plan says.

/// The near share of what is placed next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// `ln(w / (1 - w))`.
    log_odds: f64,
    seen: u32,
    least: f64,
    most: f64,
}

/// Either queue always has some, so that there is something to see.
const SHARE_MIN: f64 = 1.0 / 64.0;
/// Times that differ by more than so many times count as so many: somebody else was at the machine.
const RATIO_MAX: f64 = 4.0;
/// How much of what is seen is believed: all of the first, and never less than this.
const WEIGHT_MIN: f64 = 0.4;

impl Balance {
    /// From what a plan expects, whatever that is: shares beyond 1/64 and 63/64 are taken as these, NaN as a half.
    pub fn new(expected_share: f64) -> Balance {
        Balance::within(expected_share, SHARE_MIN, 1.0 - SHARE_MIN)
    }

    /// The same for a share that may not leave these bounds.
    pub fn within(expected_share: f64, least: f64, most: f64) -> Balance {
        let least = least.clamp(SHARE_MIN, 1.0 - SHARE_MIN);
        let most = most.clamp(least, 1.0 - SHARE_MIN);
        let share = if expected_share.is_nan() { 0.5 } else { expected_share };
        Balance { log_odds: log_odds(share.clamp(least, most)), seen: 0, least, most }
    }

    /// What of the next piece of work should lie near.
    pub fn share(&self) -> f64 {
        let odds = self.log_odds.exp();
        (odds / (1.0 + odds)).clamp(self.least, self.most)
    }

    /// A piece of work was done whose queues began together and were drained after so long, in any unit. Times that are
    /// no positive numbers say nothing.
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
            // Traffic besides: some of either tier's time is taken whatever the share is.
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
    fn first_piece_corrects_a_prior_that_is_wrong_by_a_factor_of_two() {
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
