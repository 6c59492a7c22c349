//! Exact solver of small linear programs, by the simplex method.
//!
//! The idea: imagine a room with slanted walls, whose lowest point you want. The lowest point of such a room is always
//! a corner. The simplex method walks from corner to corner, each time to a better one, until no neighbour is better.
//! It needs a corner to begin with.
//!
//! The program is `min cost z` under `rows z >= bounds` and `z >= 0`, with no cost below 0. Finding a first corner of
//! it is work of its own. Its dual, `max bounds y` under `rows' y <= cost` and `y >= 0`, has the corner `y = 0` at
//! once, because no cost is negative. The dual is solved here, and the `z` of the answer are then in the last row of
//! the tableau.
//!
//! If no bound is above 0, the first corner is the answer. If corners tie, a plain simplex may walk in a circle;
//! Bland's rule (take the first column and row that qualify) prevents that.
//!
//! Ten variables and a hundred rows take some tens of microseconds. Trying all shares on a grid is simpler, but slow
//! beyond three objects.

/// Numbers smaller than this count as 0. Callers scale their numbers to about 1.
const EPSILON: f64 = 1e-11;
/// Most pivots. Bland's rule terminates in exact arithmetic; this bound is for rounding errors.
const PIVOTS_MAX: usize = 20_000;

/// Constraint `row z >= bound`.
pub(crate) struct Row {
    pub(crate) row: Vec<f64>,
    pub(crate) bound: f64,
}

/// Returns the `z` of least cost, or `None` if no `z` meets all rows. No cost may be below 0.
pub(crate) fn least(cost: &[f64], rows: &[Row]) -> Option<Vec<f64>> {
    let (variables, free) = (cost.len(), rows.len());
    // The tableau has a line for each variable of the program, which is a constraint of its dual. Its columns are the
    // variables of the dual, then the slacks, then the bound.
    let width = free + variables + 1;
    let mut lines: Vec<Vec<f64>> = (0..variables)
        .map(|variable| {
            let mut line = vec![0.0; width];
            rows.iter().zip(&mut line).for_each(|(row, cell)| *cell = row.row[variable]);
            line[free + variable] = 1.0;
            line[width - 1] = cost[variable];
            line
        })
        .collect();
    let mut basis: Vec<usize> = (free..free + variables).collect();
    let mut goal = vec![0.0; width];
    rows.iter().zip(&mut goal).for_each(|(row, cell)| *cell = -row.bound);
    for _ in 0..PIVOTS_MAX {
        // Bland's rule: the first column that improves, and the line that allows the least step. Of equal lines, the
        // one whose basis variable has the lowest number.
        let Some(entering) = (0..width - 1).find(|column| goal[*column] < -EPSILON) else {
            return Some(goal[free..free + variables].to_vec());
        };
        let mut leaving: Option<(usize, f64)> = None;
        for (at, line) in lines.iter().enumerate() {
            if line[entering] <= EPSILON {
                continue;
            }
            let allowed = line[width - 1] / line[entering];
            let is_less = leaving.is_none_or(|(best, least)| {
                allowed < least - EPSILON || (allowed < least + EPSILON && basis[at] < basis[best])
            });
            if is_less {
                leaving = Some((at, allowed));
            }
        }
        let (at, _) = leaving?;
        basis[at] = entering;
        let pivot = lines[at][entering];
        lines[at].iter_mut().for_each(|cell| *cell /= pivot);
        let chosen = lines[at].clone();
        let others = lines.iter_mut().enumerate().filter(|(other, _)| *other != at).map(|(_, line)| line);
        for line in others.chain([&mut goal]) {
            let times = line[entering];
            if times != 0.0 {
                line.iter_mut().zip(&chosen).for_each(|(cell, of)| *cell -= times * of);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(row: &[f64], bound: f64) -> Row {
        Row { row: row.to_vec(), bound }
    }

    #[test]
    fn least_cost_lies_where_two_rows_meet() {
        // x + 2y >= 4, 3x + y >= 6: they meet at (1.6, 1.2).
        let found = least(&[1.0, 1.0], &[row(&[1.0, 2.0], 4.0), row(&[3.0, 1.0], 6.0)]).unwrap();
        assert!((found[0] - 1.6).abs() < 1e-9 && (found[1] - 1.2).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn rows_that_cannot_be_met_have_no_answer() {
        assert_eq!(least(&[1.0], &[row(&[1.0], 2.0), row(&[-1.0], -1.0)]), None);
    }

    #[test]
    fn without_need_nothing_is_spent() {
        assert_eq!(least(&[1.0, 0.0], &[row(&[-1.0, -1.0], -5.0)]), Some(vec![0.0, 0.0]));
    }
}
