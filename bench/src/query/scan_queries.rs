//! Table and queries of `farpool bench scan`. The expected answers are computed while the rows of the table are made.

use super::wide_table::{self, Batches, Expected, Row};
use crate::exit::Failure;
use crate::harness::mixing::mix;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_array::{ArrayRef, RecordBatch};
use farpool::FarTable;
use farpool::operators::{Agg, Plan, col};

const COLUMNS: [&str; 8] = ["a", "b", "g16", "g1000", "g64000", "g1000000", "c", "d"];
const GROUPS: [u64; 4] = [16, 1_000, 64_000, 1_000_000];
/// Number of rows in a thousand that each selection keeps.
const KEPT: [u64; 6] = [1_000, 500, 250, 100, 50, 10];
pub(crate) const TABLE: &str = "bench-scan";

/// Returns a row of the table.
fn row(number: u64) -> Row {
    let random = mix(number);
    let group = |groups: u64| (mix(random ^ groups) % groups) as i64;
    let [first, second, third, fourth] = GROUPS.map(group);
    [
        (random % 1_000) as i64,
        (random >> 33) as i64,
        first,
        second,
        third,
        fourth,
        number as i64,
        !number as i64,
    ]
}

pub(crate) enum Kind {
    Select(u64),
    Distinct(usize),
    GroupBy(usize),
}

pub(crate) type Query = wide_table::Query<Kind>;

impl Query {
    pub(crate) fn all() -> Vec<Query> {
        let select =
            KEPT.map(|kept| Query::new(format!("select-{}%", kept as f64 / 10.0), Kind::Select(kept)));
        let distinct =
            [0, 1, 2, 3].map(|at| Query::new(format!("distinct-{}", GROUPS[at]), Kind::Distinct(at)));
        let group = [0, 1, 2, 3].map(|at| Query::new(format!("group-by-{}", GROUPS[at]), Kind::GroupBy(at)));
        select.into_iter().chain(distinct).chain(group).collect()
    }

    pub(crate) fn plan(&self, over: &FarTable) -> Result<Plan, Failure> {
        let query = over.query()?;
        let key = |at: usize| (COLUMNS[2 + at].to_owned(), col(COLUMNS[2 + at]));
        let query = match self.kind {
            Kind::Select(kept) => query.filter(col("a").lt(kept as i64)),
            Kind::Distinct(at) => query.group_by([key(at)], []),
            Kind::GroupBy(at) => query.group_by([key(at)], [("sum".to_owned(), Agg::Sum(col("b")))]),
        };
        query.plan().map_err(|error| Failure::Failed(error.to_string()))
    }

    pub(crate) fn check(&self, batches: &[RecordBatch]) -> Result<(), Failure> {
        let mut found = Expected::default();
        for batch in batches {
            found.rows += batch.num_rows() as u64;
            found.sum += match self.kind {
                // Every column is summed, so every selected value is checked.
                Kind::Select(_) => (0..COLUMNS.len()).map(|at| sum(batch.column(at))).sum(),
                Kind::Distinct(_) => sum(batch.column(0)),
                Kind::GroupBy(_) => batch.column(1).as_primitive::<Decimal128Type>().values().iter().sum(),
            };
        }
        self.expected.check(found, &self.name)
    }
}

fn sum(column: &ArrayRef) -> i128 {
    column.as_primitive::<Int64Type>().values().iter().map(|value| i128::from(*value)).sum()
}

/// Creates the batches of the table. While they are read, the expected answer of each query is computed from the rows.
pub(crate) fn batches(queries: &mut [Query], rows: u64) -> Batches<impl FnMut(u64, &Row)> {
    let mut made = GROUPS.map(|groups| vec![false; groups as usize]);
    Batches::new(COLUMNS, row, rows, move |_, row| {
        for Query { kind, expected, .. } in queries.iter_mut() {
            match *kind {
                Kind::Select(kept) if row[0] < kept as i64 => {
                    expected.add(row.iter().map(|value| i128::from(*value)).sum());
                }
                Kind::GroupBy(at) if !made[at][row[2 + at] as usize] => expected.add(i128::from(row[1])),
                Kind::GroupBy(_) => expected.sum += i128::from(row[1]),
                Kind::Distinct(at) if !made[at][row[2 + at] as usize] => {
                    expected.add(i128::from(row[2 + at]));
                }
                Kind::Select(_) | Kind::Distinct(_) => {}
            }
        }
        made.iter_mut().zip(&row[2..]).for_each(|(made, group)| made[*group as usize] = true);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::wide_table::{rows_expected, rows_made};

    #[test]
    fn selection_distinct_and_group_by_expect_what_the_made_rows_hold() {
        let mut queries = Query::all();
        let rows = 200_000;
        assert_eq!(rows_made(batches(&mut queries, rows)), rows);
        let of = |name: &str| rows_expected(&queries, name);
        assert_eq!((of("select-100%"), of("distinct-16"), of("group-by-1000")), (rows, 16, 1_000));
        let one_percent = (0..rows).filter(|number| row(*number)[0] < 10).count() as u64;
        assert_eq!(of("select-1%"), one_percent);
    }
}
