//! Figures of one measured combination (system, kind of access, depth, number of clients), and medians over the rounds
//! of a run.

use std::time::{Duration, Instant};

/// Figures of one measured combination of system, kind of access, depth and number of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Quantiles of the time of an operation, in us. They are times of a whole batch if the system gets several
    /// operations in one call.
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Throughput of all clients together, in GB/s.
    pub(crate) gb_per_s: f64,
    /// CPU time of the clients per operation, in us.
    pub(crate) client_cpu_us: f64,
    /// CPU time of the servers per operation, in us. `None` if it is unknown.
    pub(crate) server_cpu_us: Option<f64>,
    /// CPU time of clients and servers per GiB moved, in s.
    pub(crate) cpu_s_per_gib: f64,
}

/// Sorts the times. Returns their quantiles p50, p90, p99 and p99.9 in us. With few times, the higher quantiles are the
/// maximum.
pub(crate) fn quantiles(times: &mut [Duration]) -> [f64; 4] {
    times.sort_unstable();
    [0.5, 0.9, 0.99, 0.999].map(|share| {
        let last = times.len().saturating_sub(1);
        let at = (times.len() as f64 * share).ceil() as usize;
        times.get(at.saturating_sub(1).min(last)).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    })
}

/// Returns the throughput of `bytes` moved since `begun`, in GB/s (10^9 bytes).
pub(crate) fn gb_per_s(bytes: usize, begun: Instant) -> f64 {
    bytes as f64 / begun.elapsed().as_secs_f64() / 1e9
}

/// Returns the median; for an even number of values the mean of the middle two, for none 0.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

impl Figures {
    /// Returns the median of each figure over rounds. Rounds without a server CPU time do not count for its median.
    pub(crate) fn median(rounds: &[Figures]) -> Figures {
        let of = |field: fn(&Figures) -> f64| median(rounds.iter().map(field));
        let known: Vec<f64> = rounds.iter().filter_map(|figures| figures.server_cpu_us).collect();
        Figures {
            p50_us: of(|figures| figures.p50_us),
            p90_us: of(|figures| figures.p90_us),
            p99_us: of(|figures| figures.p99_us),
            p999_us: of(|figures| figures.p999_us),
            gb_per_s: of(|figures| figures.gb_per_s),
            client_cpu_us: of(|figures| figures.client_cpu_us),
            server_cpu_us: (!known.is_empty()).then(|| median(known.iter().copied())),
            cpu_s_per_gib: of(|figures| figures.cpu_s_per_gib),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_thousand_are_the_times_at_their_ranks() {
        let mut times: Vec<Duration> = (1..=1_000).rev().map(Duration::from_micros).collect();
        assert_eq!(quantiles(&mut times).map(f64::round), [500.0, 900.0, 990.0, 999.0]);
        assert_eq!(quantiles(&mut [Duration::from_micros(7)]).map(f64::round), [7.0; 4]);
        assert_eq!(quantiles(&mut []), [0.0; 4]);
    }

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }

    #[test]
    fn median_of_figures_is_taken_field_by_field() {
        let of = |p50_us, server_cpu_us| Figures { p50_us, server_cpu_us, ..Figures::default() };
        let figures = Figures::median(&[of(1.0, Some(5.0)), of(9.0, Some(1.0)), of(2.0, Some(3.0))]);
        assert_eq!((figures.p50_us, figures.server_cpu_us), (2.0, Some(3.0)));
        assert_eq!(Figures::median(&[of(1.0, None)]).server_cpu_us, None);
    }
}
