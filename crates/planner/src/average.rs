//! Average of measured times that follows changes and resists outliers.
//!
//! The idea: a measured time is often too long, because somebody else used the machine, and rarely too short. A plain
//! mean would follow every such outlier. So logarithms are averaged, and a value that is far off counts as at most
//! [`FAR_MAX`] times the average. If the machine has changed for good, each new value has a weight of at least
//! [`NEWEST_MIN`], and the average follows within some values.

/// Least weight of a new value, 0 to 1. The weight of the n-th value is 1/n until that is less.
const NEWEST_MIN: f64 = 0.3;
/// Largest distance of a new value from the average, as a factor either way. A value further off counts as this far
/// off.
const FAR_MAX: f64 = 4.0;
/// Weight, 0 to 1, that [`Average::doubt`] gives its value if the average has one value. It is divided by the square
/// of the number of values.
const DOUBT: f64 = 0.2;

/// Average of values above 0; empty until the first value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Average {
    /// Mean of the natural logarithms of the values, with newer values weighted more.
    log: f64,
    /// Number of values so far.
    seen: u32,
}

impl Average {
    /// Returns an average that has `value` as its first value.
    pub(crate) fn with_prior(value: f64) -> Average {
        let mut average = Average::default();
        average.note(value);
        average
    }

    /// Adds a value. Ignores values that are not finite and above 0.
    pub(crate) fn note(&mut self, value: f64) {
        if !value.is_finite() || value <= 0.0 {
            return;
        }
        let log = value.ln();
        if self.seen == 0 {
            self.log = log;
        } else {
            let off = (log - self.log).clamp(-FAR_MAX.ln(), FAR_MAX.ln());
            self.log += off * (1.0 / f64::from(self.seen + 1)).max(NEWEST_MIN);
        }
        self.seen = self.seen.saturating_add(1);
    }

    /// Moves the average a little towards `value`, without counting it as a value: the less the more values there are.
    pub(crate) fn doubt(&mut self, value: f64) {
        if self.seen > 0 && value.is_finite() && value > 0.0 {
            let seen = f64::from(self.seen);
            self.log += (value.ln() - self.log) * DOUBT / (seen * seen);
        }
    }

    pub(crate) fn get(self) -> Option<f64> {
        (self.seen > 0).then(|| self.log.exp())
    }

    pub(crate) fn seen(self) -> u32 {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(average: Average, value: f64) -> bool {
        average.get().is_some_and(|found| (found / value - 1.0).abs() < 0.01)
    }

    #[test]
    fn average_follows_what_changed_for_good_and_not_what_happened_once() {
        let mut average = Average::default();
        assert_eq!(average.get(), None);
        (0..10).for_each(|_| average.note(10.0));
        average.note(1e9);
        assert!(average.get().is_some_and(|value| value < 16.0), "one that is far off");
        (0..30).for_each(|_| average.note(100.0));
        assert!(near(average, 100.0));
    }

    #[test]
    fn what_is_no_positive_number_says_nothing() {
        let mut average = Average::default();
        [f64::NAN, f64::INFINITY, 0.0, -1.0].into_iter().for_each(|value| average.note(value));
        assert_eq!((average.get(), average.seen()), (None, 0));
    }

    #[test]
    fn belief_counts_as_much_as_what_is_seen_first() {
        let mut average = Average::with_prior(1.0);
        average.note(4.0);
        assert!(near(average, 2.0));
    }

    #[test]
    fn what_was_seen_often_is_doubted_less() {
        let doubted = |seen: u32| {
            let mut average = Average::default();
            (0..seen).for_each(|_| average.note(4.0));
            (0..10).for_each(|_| average.doubt(1.0));
            average.get().unwrap_or(0.0)
        };
        assert!(doubted(1) < 2.0 && doubted(3) > 3.0, "{} {}", doubted(1), doubted(3));
    }
}
