//! Estimate of the bytes that a program outputs for the bytes it reads.
//!
//! The idea: collect stickers from cereal boxes. The first boxes are all new stickers, later ones are mostly doubles,
//! and at the end the album is full. A grouping works alike: each row brings a group, new or known, and only groups are
//! output. So the output of many rows cannot be computed from a sample by a straight line. A line would be too high by
//! as much as the table is larger than the sample.
//!
//! If all `G` groups are equally likely, `rows` rows meet `G (1 - exp(-rows / G))` of them. From a sample that equation
//! is solved for `G`, and `G` gives the output of any number of rows. If each sampled row was a group of its own, `G`
//! is taken as unbounded and the output grows with the rows. If the sample met all groups, more rows add none.
//!
//! Filters and fixed-size results need none of this: their output is a share of the input, or a constant.

/// Output of a program as a function of its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutputSize {
    /// Filter: bytes of output for each byte read.
    Share(f64),
    /// Grouping: one output row for each group that the input contains.
    Groups {
        /// Bytes of a group in the output.
        row_bytes: f64,
        /// Number of groups in the whole table.
        groups: f64,
    },
    /// Fixed size in bytes for any input, such as an aggregate of all rows.
    Fixed(f64),
}

/// Number of groups that stands for "each row is its own group".
const GROUPS_MAX: f64 = 1e15;

impl OutputSize {
    /// Returns the bytes of output for this many bytes and rows of input.
    pub fn of(self, bytes: f64, rows: f64) -> f64 {
        match self {
            OutputSize::Share(share) => bytes * share,
            OutputSize::Groups { row_bytes, groups } => row_bytes * met(groups, rows),
            OutputSize::Fixed(fixed) if bytes > 0.0 => fixed,
            OutputSize::Fixed(_) => 0.0,
        }
    }

    /// Returns the same kind of output, fitted to one observation: `bytes` bytes and `rows` rows of input gave `left`
    /// bytes.
    pub fn seen(self, bytes: f64, rows: f64, left: f64) -> OutputSize {
        match self {
            OutputSize::Share(_) => OutputSize::Share(left / bytes.max(1.0)),
            OutputSize::Groups { row_bytes, .. } => {
                OutputSize::Groups { row_bytes, groups: groups_of(rows, left / row_bytes.max(1.0)) }
            }
            OutputSize::Fixed(_) => OutputSize::Fixed(left),
        }
    }
}

/// Returns the expected number of different groups in `rows` rows, if all of `groups` groups are equally likely.
fn met(groups: f64, rows: f64) -> f64 {
    if groups <= 0.0 || rows <= 0.0 {
        return 0.0;
    }
    // `groups * (1 - exp(-rows / groups))`. `exp_m1` keeps it exact if there are few rows and very many groups.
    -groups * (-rows / groups).exp_m1()
}

/// Returns the number of groups at which `rows` rows would contain `met_groups` different ones. Bisects on a
/// logarithmic scale.
fn groups_of(rows: f64, met_groups: f64) -> f64 {
    let (mut least, mut most) = (met_groups.max(1.0), GROUPS_MAX);
    if met(most, rows) <= met_groups {
        return most;
    }
    for _ in 0..100 {
        let middle = (least * most).sqrt();
        if met(middle, rows) < met_groups { least = middle } else { most = middle }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn few_rows_tell_of_the_groups_of_many() {
        let unknown = OutputSize::Groups { row_bytes: 24.0, groups: 1.0 };
        for groups in [16.0, 4_096.0, 65_536.0, 1e6] {
            let left = OutputSize::Groups { row_bytes: 24.0, groups }.of(2e6, 131_072.0);
            let seen = unknown.seen(2e6, 131_072.0, left);
            let (found, truth) = (seen.of(3.2e7, 2e6), 24.0 * met(groups, 2e6));
            assert!((found / truth - 1.0).abs() < 0.01, "{groups}: {found} and not {truth}");
        }
    }

    #[test]
    fn rows_that_are_a_group_each_stay_so() {
        let seen = OutputSize::Groups { row_bytes: 8.0, groups: 1.0 }.seen(8e5, 1e5, 8e5);
        assert!(seen.of(8e7, 1e7) > 0.99 * 8e7);
    }

    #[test]
    fn nothing_leaves_of_nothing() {
        for leaves in [
            OutputSize::Share(0.5),
            OutputSize::Groups { row_bytes: 8.0, groups: 9.0 },
            OutputSize::Fixed(100.0),
        ] {
            assert_eq!(leaves.of(0.0, 0.0), 0.0);
        }
    }

    proptest! {
        #[test]
        fn what_was_seen_is_what_is_expected_of_as_much(
            bytes in 1e3..1e12f64, rows in 1.0..1e9f64, share in 0.001..1.0f64,
        ) {
            let left = rows * share * 16.0;
            let groups = OutputSize::Groups { row_bytes: 16.0, groups: 1.0 };
            for leaves in [OutputSize::Share(1.0), OutputSize::Fixed(1.0), groups] {
                let again = leaves.seen(bytes, rows, left).of(bytes, rows);
                // Outputs of less than two groups, 32 bytes, are not estimated as closely.
                prop_assert!((again / left - 1.0).abs() < 0.02 || left < 32.0, "{leaves:?}: {again} and not {left}");
            }
        }
    }
}
