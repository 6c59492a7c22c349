//! Every aggregate that can be pushed down, over no rows, over groups of NULLs only, and over groups with some values.
//! The results must be those of DataFusion alone, in every placement, by SQL and by queries of the library.

use crate::beside::{Beside, Rows, assert_none, difference, lines};
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use farpool::Placement;
use farpool::operators::query::{Agg, Expr, col, lit};
use std::sync::Arc;

/// Number of rows: two full row groups (of 65,536 rows) and part of a third.
const ROWS: i64 = 140_000;
/// Columns that have sums.
const NUMBERS: [&str; 6] = ["tiny", "whole", "positive", "exact", "narrow", "wide"];
const OTHERS: [&str; 5] = ["flag", "day", "moment", "word", "raw"];

/// Number of groups. They differ in the rows that have a value: no row of group 0, every other row of group 1, all rows
/// of group 2, a single row of group 3, some rows of group 4, all in the last row group, and all rows of group 5, whose
/// key is NULL.
const GROUPS: i64 = 6;

fn has_value(row: i64) -> bool {
    match row % GROUPS {
        0 => false,
        1 => row % 4 == 1,
        3 => row == 3,
        4 => row > 132_000,
        _ => true,
    }
}

/// Makes a table whose sums are exact in any order.
fn facts() -> RecordBatch {
    let values = |make: fn(i64) -> i64| (0..ROWS).map(move |row| has_value(row).then(|| make(row)));
    let exact: Decimal128Array = values(|row| row % 9_000 - 4_500).map(|one| one.map(i128::from)).collect();
    let key: Int64Array = (0..ROWS).map(|row| (row % GROUPS < 5).then_some(row % GROUPS)).collect();
    let narrow: Float32Array = values(|row| row % 250).map(|one| one.map(|one| one as f32 / 4.0)).collect();
    let wide: Float64Array = values(|row| row % 999).map(|one| one.map(|one| one as f64 / 8.0)).collect();
    let words: Vec<Option<String>> =
        values(|row| row % 77).map(|one| one.map(|one| format!("w {one}"))).collect();
    let flag: BooleanArray = values(|row| row % 2).map(|one| one.map(|one| one == 1)).collect();
    let column = |name, column: ArrayRef| (name, column, true);
    RecordBatch::try_from_iter_with_nullable([
        column("id", Arc::new(Int64Array::from_iter_values(0..ROWS))),
        column("key", Arc::new(key)),
        column(
            "name",
            Arc::new((0..ROWS).map(|row| Some(format!("n {}", row % 3))).collect::<StringArray>()),
        ),
        column(
            "tiny",
            Arc::new(values(|row| row % 100).map(|one| one.map(|one| one as i8)).collect::<Int8Array>()),
        ),
        column("whole", Arc::new(values(|row| row - 70_000).collect::<Int64Array>())),
        column(
            "positive",
            Arc::new(values(|row| row).map(|one| one.map(|one| one as u64)).collect::<UInt64Array>()),
        ),
        column("exact", Arc::new(exact.with_precision_and_scale(15, 2).expect("fits"))),
        column("narrow", Arc::new(narrow)),
        column("wide", Arc::new(wide)),
        column("flag", Arc::new(flag)),
        column(
            "day",
            Arc::new(values(|row| row / 100).map(|one| one.map(|one| one as i32)).collect::<Date32Array>()),
        ),
        column("moment", Arc::new(values(|row| row * 1_000).collect::<TimestampMicrosecondArray>())),
        column("word", Arc::new(words.iter().map(Option::as_deref).collect::<StringArray>())),
        column(
            "raw",
            Arc::new(words.iter().map(|word| word.as_deref().map(str::as_bytes)).collect::<BinaryArray>()),
        ),
    ])
    .expect("a batch")
}

/// Returns tables and filters. Each filter is given as SQL and as a condition for queries of the library.
fn sources() -> [(&'static str, &'static str, Option<Expr>); 4] {
    [
        ("facts", "", None),
        ("facts", " WHERE key = 0", Some(col("key").eq(lit(0)))),
        ("facts", " WHERE id < 0", Some(col("id").lt(lit(0)))),
        ("empty", "", None),
    ]
}

const KEYS: [&[&str]; 3] = [&[], &["key"], &["key", "name"]];

fn beside() -> Beside {
    let facts = facts();
    Beside::of(&[("facts", &facts), ("empty", &facts.slice(0, 0))])
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_aggregates_are_those_of_datafusion_over_nothing_and_over_null() {
    let beside = beside();
    let mut faults = Vec::new();
    for (table, filter, _) in sources() {
        for keys in KEYS {
            let group =
                if keys.is_empty() { String::new() } else { format!(" GROUP BY {}", keys.join(", ")) };
            for column in NUMBERS.into_iter().chain(OTHERS) {
                let all = ["count(*)", "count(#)", "min(#)", "max(#)"];
                let sums: &[&str] = if NUMBERS.contains(&column) { &["sum(#)", "avg(#)"] } else { &[] };
                let together = [&all, sums].concat().join(", ");
                // These aggregates run alone as well. If others are computed beside them, DataFusion may derive their
                // results from those of the others.
                let distinct: &[&str] = if keys.len() == 2 { &[] } else { &["count(DISTINCT #)"] };
                let alone = distinct.iter().chain(sums.get(1)).copied();
                for list in alone.chain([together.as_str()]) {
                    let outputs: Vec<&str> = keys.iter().copied().chain([list]).collect();
                    let sql = format!("SELECT {} FROM {table}{filter}{group}", outputs.join(", "));
                    faults.extend(beside.faults(&sql.replace('#', column), Rows::InAnyOrder).await);
                }
            }
        }
    }
    assert_none(&faults);
    let mean_of_nothing = beside.wanted("SELECT avg(exact) FROM facts WHERE key = 0 GROUP BY key").await;
    assert_eq!(mean_of_nothing, ["NULL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregates_of_queries_of_the_library_are_those_of_sql_over_nothing_and_over_null() {
    let beside = beside();
    let mut faults = Vec::new();
    for (table, filter, condition) in sources() {
        let far = beside.pool.table(table).expect("a table");
        for keys in KEYS {
            for column in NUMBERS.into_iter().chain(OTHERS) {
                let of = || col(column);
                let mut list = vec![
                    ("rows".to_owned(), Agg::Rows),
                    ("count".to_owned(), Agg::Count(of())),
                    ("min".to_owned(), Agg::Min(of())),
                    ("max".to_owned(), Agg::Max(of())),
                ];
                let mut same = format!("count(*), count({column}), min({column}), max({column})");
                if NUMBERS.contains(&column) {
                    list.push(("sum".to_owned(), Agg::Sum(of())));
                    list.push(("mean".to_owned(), Agg::Avg(of())));
                    // The library's sums of integers are decimals, and its means are floats.
                    let exact = ["tiny", "whole", "positive"].contains(&column);
                    let sum = format!("sum({column})");
                    let sum = if exact { format!("CAST({sum} AS DECIMAL(38, 0))") } else { sum };
                    same +=
                        &format!(", {sum}, CAST(sum({column}) AS DOUBLE) / CAST(count({column}) AS DOUBLE)");
                }
                let outputs = keys.iter().copied().chain([same.as_str()]).collect::<Vec<_>>().join(", ");
                let group =
                    if keys.is_empty() { String::new() } else { format!(" GROUP BY {}", keys.join(", ")) };
                let sql = format!("SELECT {outputs} FROM {table}{filter}{group}");
                let wanted = beside.wanted(&sql).await;
                let query = far.query().expect("a query");
                let query = match &condition {
                    Some(condition) => query.filter(condition.clone()),
                    None => query,
                };
                let keys = keys.iter().map(|key| ((*key).to_owned(), col(*key)));
                let plan = query.group_by(keys, list).plan().expect("a plan");
                for placement in [Placement::Auto, Placement::Fetch, Placement::Ship, Placement::Split] {
                    let found = far.run(&plan, placement).expect("rows");
                    let found = lines(&found.batches, Rows::InAnyOrder).expect("texts");
                    let fault = difference(&found, &wanted);
                    faults.extend(fault.map(|fault| format!("{sql}: {}: {fault}", placement.name())));
                }
            }
        }
    }
    assert_none(&faults);
}
