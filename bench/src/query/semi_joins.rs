//! Semi-joins in `farpool bench operators`: rows are kept if their integer is in a set of keys. The lookup is exact or
//! by a Bloom filter. Both are compared with a filter by two columns that keeps as many rows.

use super::operands::{Tables, program, values};
use crate::exit::Failure;
use crate::harness::mixing::mix;
use crate::harness::statistics::median;
use crate::signals::Stop;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::Schema;
use farpool::operators::run::{KeySet, LookupTable};
use farpool::operators::{Bounds, JoinLookup, Operator, Prepared, Program, Run, Type};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Sizes of the measured key sets.
const KEYS: [u64; 3] = [1_000, 64_000, 1_000_000];
/// Exclusive upper bound for both columns of the filter that semi-joins are compared with. It selects half of the rows.
/// The joined column has twice as many different numbers as there are keys, so a semi-join selects half of them too.
const HALF: i64 = 7_071;
/// Factor that spreads numbers over 64 bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Throughputs by round, in millions of rows per second: of the filter by two columns (`select`), the semi-join by keys
/// (`exact`) and the semi-join by a Bloom filter (`filter`).
#[derive(Default)]
struct Found {
    select: Vec<f64>,
    exact: Vec<f64>,
    filter: Vec<f64>,
}

/// Measurements with all sets of keys.
pub(crate) struct Joins {
    cases: Vec<Case>,
}

struct Case {
    keys: u64,
    is_spread: bool,
    /// Throughputs with these keys.
    found: Found,
}

impl Joins {
    /// Measures all sets of keys, each with consecutive numbers and with numbers that are far apart.
    pub(crate) fn measure(
        tables: &Tables,
        rounds: usize,
        stop: &mut Stop,
        bar: &ProgressBar,
    ) -> Result<Joins, Failure> {
        let mut cases = Vec::new();
        for keys in KEYS {
            for is_spread in [false, true] {
                cases.push(Case { keys, is_spread, found: measure(tables, keys, is_spread, rounds, stop)? });
                bar.inc(1);
            }
        }
        Ok(Joins { cases })
    }

    /// Number of key sets that are measured.
    pub(crate) const CASES: usize = KEYS.len() * 2;

    /// Returns a row for each set of keys, as text and as JSON.
    pub(crate) fn lines(&self) -> Vec<(Vec<String>, Value)> {
        let middle = |found: &[f64]| median(found.iter().copied());
        let line = |Case { keys, is_spread, found }: &Case| {
            let of_select =
                |own: &[f64]| median(own.iter().zip(&found.select).map(|(own, select)| own / select));
            let (exact, filter) = (middle(&found.exact), middle(&found.filter));
            let lie = if *is_spread { "far apart" } else { "side by side" };
            let row = vec![
                keys.to_string(),
                lie.to_owned(),
                format!("{:.0}", middle(&found.select)),
                format!("{exact:.0}"),
                format!("{:.2}", of_select(&found.exact)),
                format!("{filter:.0}"),
                format!("{:.2}", of_select(&found.filter)),
            ];
            let value = json!({
                "operator": "semi-join", "keys": keys, "lie": lie, "select_mrows_per_s": middle(&found.select),
                "mrows_per_s": exact, "of_select": of_select(&found.exact), "filter_mrows_per_s": filter,
                "filter_of_select": of_select(&found.filter),
            });
            (row, value)
        };
        self.cases.iter().map(line).collect()
    }
}

/// Returns the number at an index of the joined column's value set. The numbers at even indices are the keys.
fn number(at: u64, is_spread: bool) -> i64 {
    if is_spread { at.wrapping_mul(SPREAD) as i64 } else { at as i64 }
}

fn measure(
    tables: &Tables,
    keys: u64,
    is_spread: bool,
    rounds: usize,
    stop: &mut Stop,
) -> Result<Found, Failure> {
    let mut row = 0;
    let mut kept = 0;
    let mut joined = Vec::new();
    for group in tables.groups() {
        let numbers: Int64Array = (0..group.num_rows())
            .map(|_| {
                let at = mix(row ^ SPREAD) % (2 * keys);
                row += 1;
                kept += usize::from(at.is_multiple_of(2));
                Some(number(at, is_spread))
            })
            .collect();
        let mut columns = group.columns().to_vec();
        columns[0] = Arc::new(numbers);
        joined.push(RecordBatch::try_new(group.schema(), columns).map_err(Failure::failed)?);
    }
    let column: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..keys).map(|at| number(at * 2, is_spread))));
    let other = RecordBatch::try_from_iter([("key", column)]).map_err(Failure::failed)?;
    let schema: &Schema = &other.schema();
    let set =
        KeySet::new(&[(0, Type::Int64)], schema, std::slice::from_ref(&other)).map_err(Failure::failed)?;
    let exact = set.table(mix(keys)).map_err(Failure::failed)?;
    let filter = Arc::new(LookupTable::Bloom(set.filter().map_err(Failure::failed)?));
    let (exact_rows, filter_rows) =
        (join(&joined, JoinLookup::Keys, &exact)?, join(&joined, JoinLookup::Bloom, &filter)?);
    if exact_rows != kept || filter_rows < kept || filter_rows > kept + joined.len() * (1 << 16) / 50 {
        return Err(Failure::Failed(format!(
            "WRONG ROWS of a semi-join by {keys} keys: {exact_rows} by them and {filter_rows} by a filter instead of {kept}"
        )));
    }
    let mut found = Found::default();
    let rate = |begun: Instant| row as f64 / begun.elapsed().as_secs_f64() / 1e6;
    for _ in 0..rounds {
        let begun = Instant::now();
        program(tables, HALF, &mut |values| {
            black_box(values);
        })?;
        found.select.push(rate(begun));
        let begun = Instant::now();
        join(&joined, JoinLookup::Keys, &exact)?;
        found.exact.push(rate(begun));
        let begun = Instant::now();
        join(&joined, JoinLookup::Bloom, &filter)?;
        found.filter.push(rate(begun));
        stop.check()?;
    }
    Ok(found)
}

/// Runs the semi-join of column 0 with the table. Returns the number of selected rows.
fn join(groups: &[RecordBatch], lookup: JoinLookup, table: &Arc<LookupTable>) -> Result<usize, Failure> {
    let join = Operator::SemiJoin { keys: vec![0], lookup, number: 0, is_anti: false };
    let program = Program::check(vec![Type::Int64; 8], vec![join]).map_err(Failure::failed)?;
    let prepared = Arc::new(Prepared::new(Arc::new(program)).map_err(Failure::failed)?);
    let mut run = Run::new(prepared, vec![Arc::clone(table)], Bounds::default()).map_err(Failure::failed)?;
    let mut kept = 0;
    for group in groups {
        for batch in run.push(group, 0).map_err(Failure::failed)? {
            kept += batch.num_rows();
            (0..8).for_each(|column| {
                black_box(values(&batch, column));
            });
        }
    }
    Ok(kept)
}
