//! Projections that a scan takes over: columns renamed, swapped, repeated and computed, under ORDER BY, DISTINCT, GROUP
//! BY and LIMIT. The rows and their order must be those of DataFusion alone.

use crate::beside::{Beside, Rows, assert_none};
use crate::joins::Random;
use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use std::sync::Arc;

const ROWS: i64 = 70_000;
/// Number of generated statements. Each depends on nothing but its number, so a failure can be repeated.
const STATEMENTS: u64 = 150;
/// Names of the table's columns. Subqueries rename columns to one another's names.
const NAMES: [&str; 4] = ["g", "h", "word", "price"];

fn table() -> RecordBatch {
    let rows = || 0..ROWS;
    let word = |row: i64| (row % 11 != 3).then(|| format!("word {}", row % 5));
    let price = |row: i64| (row % 13 != 4).then_some((row % 7) as f64 / 4.0);
    RecordBatch::try_from_iter_with_nullable([
        ("g", Arc::new(Int64Array::from_iter_values(rows().map(|row| row % 6))) as ArrayRef, true),
        (
            "h",
            Arc::new(rows().map(|row| (row % 9 != 1).then_some(row / 20_000)).collect::<Int64Array>()),
            true,
        ),
        ("word", Arc::new(rows().map(word).collect::<StringArray>()), true),
        ("price", Arc::new(rows().map(price).collect::<Float64Array>()), true),
    ])
    .expect("a batch")
}

/// Returns a random element of the list.
fn any_of<T: Clone>(random: &mut Random, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize].clone()
}

fn shuffled(random: &mut Random, mut list: Vec<String>) -> Vec<String> {
    (1..list.len()).rev().for_each(|at| list.swap(at, random.below(at as u64 + 1) as usize));
    list
}

/// Column of a subquery.
#[derive(Clone)]
struct Named {
    name: String,
    is_float: bool,
}

/// Returns a random list of columns of a relation, under distinct names. Some names are those of other columns of the
/// table, so that columns swap names.
fn projected(random: &mut Random, from: &[Named], level: u64) -> (Vec<String>, Vec<Named>) {
    let names = NAMES.iter().map(|name| (*name).to_owned()).chain([format!("x{level}"), format!("y{level}")]);
    let names = shuffled(random, names.collect());
    let count = 1 + random.below(5);
    let mut list = Vec::new();
    let mut left = Vec::new();
    for name in names.into_iter().take(count as usize) {
        let of = any_of(random, from);
        let source = match random.below(6) {
            0 if of.is_float => format!("{} + 1.5", of.name),
            _ => of.name.clone(),
        };
        list.push(format!("{source} AS {name}"));
        left.push(Named { name, is_float: of.is_float });
    }
    (list, left)
}

fn order(random: &mut Random, names: Vec<String>) -> String {
    let by = |random: &mut Random, name: &String| {
        format!("{name}{}", any_of(random, &["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]))
    };
    let names = shuffled(random, names);
    let by: Vec<String> = names.iter().map(|name| by(random, name)).collect();
    format!(" ORDER BY {}", by.join(", "))
}

/// Returns a statement, and the order in which its rows are compared.
fn statement(number: u64) -> (String, Rows) {
    let random = &mut Random(number);
    let mut columns: Vec<Named> =
        NAMES.iter().map(|name| Named { name: (*name).to_owned(), is_float: *name == "price" }).collect();
    let mut from = "t".to_owned();
    for level in 0..random.below(3) {
        let (list, left) = projected(random, &columns, level);
        let filter = match random.below(3) {
            0 => format!(" WHERE {} IS NOT NULL", any_of(random, &columns).name),
            _ => String::new(),
        };
        from = format!("(SELECT {} FROM {from}{filter}) AS s{level}", list.join(", "));
        columns = left;
    }
    let (list, left) = projected(random, &columns, 9);
    let outputs: Vec<String> = left.iter().map(|column| column.name.clone()).collect();
    let limit = match random.below(2) {
        0 => format!(" LIMIT {}", any_of(random, &[1, 7, 500])),
        _ => String::new(),
    };
    match random.below(4) {
        // The rows are ordered by all columns, so rows in a tie are equal.
        0 => {
            let order = order(random, outputs);
            (format!("SELECT DISTINCT {} FROM {from}{order}{limit}", list.join(", ")), Rows::AsTheyCome)
        }
        // The rows are ordered by the columns that the subquery renamed.
        1 => {
            let sources = list.iter().filter_map(|one| one.rsplit_once(" AS "));
            // DataFusion does not recognise a computed expression in ORDER BY under DISTINCT, so those are left out.
            let sources: Vec<_> =
                sources.map(|(of, _)| of.to_owned()).filter(|of| !of.contains('+')).collect();
            let order = if sources.is_empty() { String::new() } else { order(random, sources) };
            (format!("SELECT DISTINCT {} FROM {from}{order}", list.join(", ")), Rows::InAnyOrder)
        }
        2 => {
            let keys = shuffled(random, outputs.clone());
            let keys = &keys[..1 + random.below(keys.len() as u64) as usize];
            let order = order(random, keys.to_vec());
            let shown = keys.join(", ");
            let inner = format!("(SELECT {} FROM {from}) AS inside", list.join(", "));
            let of = any_of(random, &outputs);
            let sql =
                format!("SELECT {shown}, count(*), max({of}) FROM {inner} GROUP BY {shown}{order}{limit}");
            (sql, Rows::AsTheyCome)
        }
        _ => {
            // Each row occurs thousands of times, so the limit may return any of the equal rows.
            let order = order(random, outputs);
            (format!("SELECT {} FROM {from}{order} LIMIT 2000", list.join(", ")), Rows::AsTheyCome)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn distinct_rows_under_another_name_are_ordered_by_the_old_one() {
    let table = table();
    let beside = Beside::of(&[("t", &table)]);
    let mut faults = Vec::new();
    for sql in [
        "SELECT DISTINCT g AS f FROM t ORDER BY g",
        "SELECT DISTINCT g AS f, h AS g FROM t ORDER BY f, g",
        "SELECT DISTINCT h AS g, g AS h FROM t ORDER BY h, g LIMIT 5",
        "SELECT DISTINCT g AS a, g AS b FROM t ORDER BY g DESC",
        "SELECT g AS f, count(*) FROM t GROUP BY g ORDER BY g",
        "SELECT f FROM (SELECT DISTINCT g AS f FROM t) AS s ORDER BY f DESC LIMIT 3",
    ] {
        faults.extend(beside.faults(sql, Rows::AsTheyCome).await);
    }
    assert_none(&faults);
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_projections_leave_the_rows_of_datafusion_in_its_order() {
    let table = table();
    let beside = Beside::of(&[("t", &table)]);
    let mut faults = Vec::new();
    for number in 0..STATEMENTS {
        let (sql, order) = statement(number);
        let found = beside.faults(&sql, order).await;
        faults.extend(found.into_iter().map(|fault| format!("statement {number}: {fault}")));
    }
    assert_none(&faults);
}
