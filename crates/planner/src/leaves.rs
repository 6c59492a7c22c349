//! What a program leaves of what it reads.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leaves {
    /// So many bytes for each byte that is read.
    Share(f64),
    /// A row of so many bytes for each group that is met, of so many groups in all.
    Groups {
        /// Bytes of a group as it leaves.
        row_bytes: f64,
        /// Groups in all.
        groups: f64,
    },
    /// So many bytes, whatever is read.
    Fixed(f64),
}

/// Groups of rows each of which seems to be one of its own.
const GROUPS_MAX: f64 = 1e15;

impl Leaves {
    /// Bytes that leave of so many bytes and rows.
    pub fn of(self, bytes: f64, rows: f64) -> f64 {
        match self {
            Leaves::Share(share) => bytes * share,
            Leaves::Groups { row_bytes, groups } => row_bytes * met(groups, rows),
            Leaves::Fixed(fixed) if bytes > 0.0 => fixed,
            Leaves::Fixed(_) => 0.0,
        }
    }

    /// The same kind, such that these bytes leave of so many bytes and rows.
    pub fn seen(self, bytes: f64, rows: f64, left: f64) -> Leaves {
        match self {
            Leaves::Share(_) => Leaves::Share(left / bytes.max(1.0)),
            Leaves::Groups { row_bytes, .. } => {
                Leaves::Groups { row_bytes, groups: groups_of(rows, left / row_bytes.max(1.0)) }
            }
            Leaves::Fixed(_) => Leaves::Fixed(left),
        }
    }
}

/// Of so many equally likely groups, how many so many rows meet.
fn met(groups: f64, rows: f64) -> f64 {
    if groups <= 0.0 || rows <= 0.0 {
        return 0.0;
    }
    // `groups * (1 - exp(-rows / groups))`, exactly so for few rows of very many groups as well.
    -groups * (-rows / groups).exp_m1()
}

/// How many groups there are, if so many rows met `met_groups`.
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
        let unknown = Leaves::Groups { row_bytes: 24.0, groups: 1.0 };
        for groups in [16.0, 4_096.0, 65_536.0, 1e6] {
            let left = Leaves::Groups { row_bytes: 24.0, groups }.of(2e6, 131_072.0);
            let seen = unknown.seen(2e6, 131_072.0, left);
            let (found, truth) = (seen.of(3.2e7, 2e6), 24.0 * met(groups, 2e6));
            assert!((found / truth - 1.0).abs() < 0.01, "{groups}: {found} and not {truth}");
        }
    }

    #[test]
    fn rows_that_are_a_group_each_stay_so() {
        let seen = Leaves::Groups { row_bytes: 8.0, groups: 1.0 }.seen(8e5, 1e5, 8e5);
        assert!(seen.of(8e7, 1e7) > 0.99 * 8e7);
    }

    #[test]
    fn nothing_leaves_of_nothing() {
        for leaves in
            [Leaves::Share(0.5), Leaves::Groups { row_bytes: 8.0, groups: 9.0 }, Leaves::Fixed(100.0)]
        {
            assert_eq!(leaves.of(0.0, 0.0), 0.0);
        }
    }

    proptest! {
        #[test]
        fn what_was_seen_is_what_is_expected_of_as_much(
            bytes in 1e3..1e12f64, rows in 1.0..1e9f64, share in 0.001..1.0f64,
        ) {
            let left = rows * share * 16.0;
            for leaves in [Leaves::Share(1.0), Leaves::Fixed(1.0), Leaves::Groups { row_bytes: 16.0, groups: 1.0 }] {
                let again = leaves.seen(bytes, rows, left).of(bytes, rows);
                // Less than one group, or a group for each row, is not told from that.
                prop_assert!((again / left - 1.0).abs() < 0.02 || left < 32.0, "{leaves:?}: {again} and not {left}");
            }
        }
    }
}
