//! Model of paper 002 ("Hash Joins Meet CXL"), section 3.2: one object, a share of which is moved near before it is
//! read.
//!
//! `r` is the rate of a phase over far data, `p = k r` the rate of moving data near, and `q = f(x) r` the rate of the
//! phase after the share `x` was moved. Moving and running together cost `x / p + 1 / q` (equation 3). The paper takes
//! `f(x) = m x + 1` and measures `k` and `m`. Here both follow from bytes: `k` is the far bytes that the phase moves
//! for each byte of its input.

/// The two parameters that the paper measures for a machine and an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// Rate of moving data, divided by the rate of the phase over far data: `p / r`.
    pub k: f64,
    /// Slope of `f`, by which the phase gets faster: it is `1 + m x` times as fast after the share `x` was moved.
    pub m: f64,
}

/// Parameters of partitioned hash joins, measured: table 1 of the paper.
pub const PAPER_PARTITIONED: Linear = Linear { k: 2.3534, m: 1.0977 };
/// Parameters of non-partitioned hash joins. The paper prints `x*` = 0.5104 for these, from which `m` follows.
pub const PAPER_NON_PARTITIONED: Linear = Linear { k: 3.7879, m: 0.3746 };

impl Linear {
    /// Returns the parameters that follow from times in any unit. `in_far` is the time of the phase over far data,
    /// `move_all` that of moving all data near, and `with_moved(x)` that of the phase with the share `x` moved. `m` is
    /// the least-squares slope of `f(x) - 1` at twelve shares up to `alpha`.
    pub fn of_times(in_far: f64, move_all: f64, with_moved: impl Fn(f64) -> f64, alpha: f64) -> Linear {
        let shares = (1..=SLOPE_POINTS).map(|at| alpha * f64::from(at) / f64::from(SLOPE_POINTS));
        let (mut above, mut below) = (0.0, 0.0);
        for x in shares {
            above += x * (in_far / with_moved(x) - 1.0);
            below += x * x;
        }
        Linear { k: in_far / move_all, m: above / below }
    }

    /// Returns `g(x) = (k m x + k) / (m x^2 + x + k)`: the speedup of moving `x` and then running (equation 4).
    pub fn gain(&self, x: f64) -> f64 {
        let Linear { k, m } = *self;
        (k * m * x + k) / (m * x * x + x + k)
    }

    /// Returns `x* = (sqrt(m k) - 1) / m`, where `g` is greatest (from equation 5), limited to 0..=`alpha`.
    pub fn best_share(&self, alpha: f64) -> f64 {
        let Linear { k, m } = *self;
        if m * k <= 1.0 {
            return 0.0;
        }
        (((m * k).sqrt() - 1.0) / m).min(alpha)
    }

    /// Returns `phi(m, k)`: `g(x*)` if `alpha` does not limit `x*` (equation 6).
    pub fn best_gain(&self) -> f64 {
        best_gain(self.m * self.k)
    }
}

/// Returns `phi` as a function of `lambda = m k`: `lambda / (2 sqrt(lambda) - 1)`, or 1 if moving gains nothing
/// (equation 6, figure 6).
pub fn best_gain(lambda: f64) -> f64 {
    if lambda < 1.0 { 1.0 } else { lambda / (2.0 * lambda.sqrt() - 1.0) }
}

const SLOPE_POINTS: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_share_is_where_the_gain_is_greatest() {
        for model in [PAPER_PARTITIONED, PAPER_NON_PARTITIONED, Linear { k: 4.0, m: 0.9 }] {
            let best = model.best_share(1.0);
            let tried = (0..=1_000).map(|x| model.gain(f64::from(x) / 1e3)).fold(0.0, f64::max);
            assert!(model.gain(best) >= tried - 1e-12, "{model:?}");
            assert!((model.gain(best) - model.best_gain()).abs() < 1e-12, "{model:?}");
        }
    }

    #[test]
    fn nothing_is_moved_where_nothing_is_won() {
        let model = Linear { k: 1.5, m: 0.5 };
        assert_eq!((model.best_share(0.6), model.best_gain()), (0.0, 1.0));
        assert_eq!(Linear { k: 90.0, m: 3.0 }.best_share(0.6), 0.6, "no more than alpha");
    }

    #[test]
    fn table_1_is_what_its_k_and_m_say_but_for_its_last_digits() {
        // Table 1 of the paper prints these shares and gains: 0.5528 and 1.1703; 0.5104 and 1.0214.
        let partitioned = PAPER_PARTITIONED;
        assert!((partitioned.best_share(0.6) - 0.5532).abs() < 1e-4);
        assert!((partitioned.best_gain() - 1.1665).abs() < 1e-4);
        let other = PAPER_NON_PARTITIONED;
        assert!((other.best_share(0.6) - 0.5104).abs() < 1e-3 && (other.best_gain() - 1.0264).abs() < 1e-3);
    }
}
