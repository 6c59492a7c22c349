//! Floats: NaNs of both signs with any bits, and both zeros. All placements follow DataFusion's rules and return the
//! same bits. `spec/pipeline.md` specifies that under *Floats*.

use crate::beside::{Beside, Rows, assert_none, lines};
use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use std::sync::Arc;

const ROWS: i64 = 140_000;
/// Number of groups. Each has a few of the values that [`values`] returns.
const GROUPS: i64 = 19;

/// Returns values that engines treat differently, and some ordinary ones.
fn values() -> Vec<Option<f64>> {
    let bits = |bits| Some(f64::from_bits(bits));
    vec![
        Some(0.0),
        Some(-0.0),
        Some(f64::NAN.copysign(1.0)),
        Some(f64::NAN.copysign(-1.0)),
        // Quiet NaNs with bits that a CPU does not produce.
        bits(0x7ff8_0000_2000_0000),
        bits(0xfff8_0000_2000_0000),
        Some(f64::INFINITY),
        Some(f64::NEG_INFINITY),
        Some(1.5),
        Some(-1.5),
        Some(1e-40),
        None,
    ]
}

/// Returns the value of a row. Group n has 1 to 5 different values, from number n of the list on.
fn value(row: i64) -> Option<f64> {
    let values = values();
    let (group, turn) = (row % GROUPS, row / GROUPS);
    values[((group + turn % (1 + group % 5)) % values.len() as i64) as usize]
}

/// Converts to f32, and keeps the upper bits of a NaN.
fn narrow(value: f64) -> f32 {
    let bits = value.to_bits();
    match value.is_nan() {
        true => f32::from_bits(((bits >> 63) << 31 | 0x7f80_0000 | (bits >> 29 & 0x7f_ffff)) as u32),
        false => value as f32,
    }
}

fn table() -> RecordBatch {
    let rows = || 0..ROWS;
    let wide: Float64Array = rows().map(value).collect();
    // The rows of this column are shifted against the other column, so that many pairs of values occur.
    let thin: Float32Array = rows().map(|row| value(row * 3 + 1).map(narrow)).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(rows())) as ArrayRef, true),
        ("k", Arc::new(Int64Array::from_iter_values(rows().map(|row| row % GROUPS))), true),
        ("f", Arc::new(wide), true),
        ("n", Arc::new(thin), true),
    ])
    .expect("a batch")
}

/// Makes a table with each value once, to join with.
fn few() -> RecordBatch {
    let wide: Float64Array = values().into_iter().collect();
    let thin: Float32Array = values().into_iter().map(|value| value.map(narrow)).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("f", Arc::new(wide) as ArrayRef, true),
        ("n", Arc::new(thin) as ArrayRef, true),
    ])
    .expect("a batch")
}

fn beside() -> Beside {
    Beside::of(&[("t", &table()), ("few", &few())])
}

/// Literals to compare floats with.
const LITERALS: [&str; 7] =
    ["0.0", "-0.0", "1.5", "-1.5", "'NaN'::double", "-('NaN'::double)", "'-Infinity'::double"];

#[tokio::test(flavor = "multi_thread")]
async fn keys_extremes_and_orders_are_those_of_datafusion() {
    let beside = beside();
    let mut faults = Vec::new();
    for sql in [
        "SELECT min(f), max(f), min(n), max(n) FROM t",
        "SELECT min(f), max(f) FROM t WHERE k = 1",
        "SELECT min(f), max(f) FROM t WHERE k IN (2, 3)",
        "SELECT min(f + 1.5), max(f * 2.0) FROM t WHERE k < 3",
        "SELECT DISTINCT f FROM t",
        "SELECT DISTINCT n FROM t",
        "SELECT DISTINCT f, n FROM t",
        "SELECT DISTINCT k, f FROM t",
        "SELECT f, count(*), min(id), max(id) FROM t GROUP BY f",
        "SELECT n, k, count(f) FROM t GROUP BY n, k",
        "SELECT f, n, sum(id) FROM t GROUP BY f, n HAVING count(*) > 10",
        "SELECT count(DISTINCT f), count(DISTINCT n) FROM t",
        "SELECT count(DISTINCT f) FROM t",
        "SELECT k, sum(f) FROM t WHERE f = 'NaN'::double OR f = 1.5 GROUP BY k",
        "SELECT k, sum(f), avg(f) FROM t WHERE f = -('NaN'::double) OR f = -1.5 GROUP BY k",
    ] {
        faults.extend(beside.faults(sql, Rows::InAnyOrder).await);
    }
    for sql in [
        "SELECT f, id FROM t ORDER BY f, id LIMIT 9000",
        "SELECT f, id FROM t ORDER BY f DESC, id LIMIT 9000",
        "SELECT n, id FROM t ORDER BY n NULLS FIRST, id DESC LIMIT 30000",
        "SELECT n, id FROM t ORDER BY n DESC NULLS LAST, id LIMIT 30000",
        "SELECT f, n FROM t ORDER BY f, n",
        "SELECT f FROM t WHERE k < 2 ORDER BY f LIMIT 7",
        "SELECT f FROM t WHERE k < 2 ORDER BY f DESC LIMIT 7",
        "SELECT k + 1, f FROM t WHERE k < 2 ORDER BY f, k + 1 LIMIT 5",
        "SELECT DISTINCT f FROM t ORDER BY f",
        "SELECT DISTINCT n AS f, f AS n FROM t ORDER BY n DESC, f",
    ] {
        faults.extend(beside.faults(sql, Rows::AsTheyCome).await);
    }
    assert_none(&faults);
}

#[tokio::test(flavor = "multi_thread")]
async fn comparisons_and_joins_are_those_of_datafusion() {
    let beside = beside();
    let mut faults = Vec::new();
    for column in ["f", "n"] {
        for sign in ["=", "<>", "<", "<=", ">", ">="] {
            for literal in LITERALS {
                let sql = format!("SELECT count(*), sum(id) FROM t WHERE {column} {sign} {literal}");
                faults.extend(beside.faults(&sql, Rows::InAnyOrder).await);
            }
        }
    }
    for condition in [
        "f IN (0.0, 1.5, 2.5, 3.5, 4.5)",
        "f NOT IN (-0.0, 1.5, 2.5, 3.5, 4.5)",
        "f IN ('NaN'::double, 1.5, 2.5, 3.5, 4.5)",
        "f IN (1.5, 2.5)",
        "f BETWEEN -1.5 AND 0.0",
        "NOT (f BETWEEN 0.0 AND 1.5)",
        "f = n::double",
        "f < n::double",
        "f IN (SELECT f FROM few)",
        "n IN (SELECT n FROM few WHERE n <= 0)",
        "f NOT IN (SELECT f FROM few WHERE f > 0)",
    ] {
        let sql = format!("SELECT count(*), sum(id) FROM t WHERE {condition}");
        faults.extend(beside.faults(&sql, Rows::InAnyOrder).await);
    }
    for sql in [
        "SELECT few.f, count(*), sum(id) FROM few JOIN t ON few.f = t.f GROUP BY few.f",
        "SELECT few.n, t.f, count(*) FROM few JOIN t ON few.f = t.f AND few.n = t.n GROUP BY few.n, t.f",
        "SELECT count(*), count(few.f) FROM t LEFT JOIN few ON few.n = t.n",
    ] {
        faults.extend(beside.faults(sql, Rows::InAnyOrder).await);
    }
    assert_none(&faults);
}

/// The expected values are computed here. Those of DataFusion depend on the order of the rows, because it compares by
/// `<`, where NaN is neither less nor greater than other values.
#[tokio::test(flavor = "multi_thread")]
async fn extremes_of_groups_are_those_of_the_total_order() {
    let beside = beside();
    let group = |group: i64| {
        let mut values: Vec<f64> = (0..ROWS).filter(|row| row % GROUPS == group).filter_map(value).collect();
        values.sort_by(f64::total_cmp);
        let ends = |values: &[f64]| (values.first().copied(), values.last().copied());
        ends(&values)
    };
    let groups: Vec<_> = (0..GROUPS).map(group).collect();
    let batch = RecordBatch::try_from_iter([
        ("k", Arc::new(Int64Array::from_iter_values(0..GROUPS)) as ArrayRef),
        ("least", Arc::new(groups.iter().map(|(least, _)| *least).collect::<Float64Array>())),
        ("most", Arc::new(groups.iter().map(|(_, most)| *most).collect::<Float64Array>())),
    ])
    .expect("a batch");
    let wanted = lines(&[batch], Rows::InAnyOrder).expect("texts");
    let mut faults = Vec::new();
    for sql in [
        "SELECT k, min(f), max(f) FROM t GROUP BY k",
        // DataFusion computes this key itself, so the scan cannot group by it and DataFusion does the grouping too.
        "SELECT k % 19, min(f), max(f) FROM t GROUP BY k % 19",
    ] {
        faults.extend(beside.faults_beside(sql, Rows::InAnyOrder, &wanted).await);
    }
    assert_none(&faults);
}
