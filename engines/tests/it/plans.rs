//! Tests which steps of a query are pushed down and which stay in DataFusion, and why. The rows must be the same.

use crate::PLACEMENTS;
use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::prelude::col;
use farpool::table::PutOptions;
use farpool::{EmbeddedOptions, Pool, TableKey};
use farpool_datafusion::{FarSession, Options};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;

/// Rows of the table: seven row groups and part of an eighth.
const ROWS: i64 = 470_000;

/// Makes a table of ascending and of repeating integers, texts with NULLs, floats with NaN, decimals and days.
pub fn sales() -> RecordBatch {
    let rows = || 0..ROWS;
    let shop: StringArray = rows().map(|row| (row % 7 != 0).then(|| format!("shop {}", row % 23))).collect();
    let price: Float64Array = rows()
        .map(|row| match row % 101 {
            3 => None,
            5 => Some(f64::NAN),
            _ => Some((row % 250) as f64 / 4.0),
        })
        .collect();
    let exact = Decimal128Array::from_iter_values(rows().map(|row| i128::from(row % 9_000) - 4_500));
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(rows())) as ArrayRef),
        ("item", Arc::new(Int64Array::from_iter_values(rows().map(|row| row * 7_919 % 1_000)))),
        ("shop", Arc::new(shop)),
        ("price", Arc::new(price)),
        ("exact", Arc::new(exact.with_precision_and_scale(15, 2).expect("fits"))),
        ("day", Arc::new(Date32Array::from_iter_values(rows().map(|row| (row / 1_000) as i32)))),
    ])
    .expect("a batch")
}

pub struct Bench {
    pub pool: Pool,
    pub far: FarSession,
    /// Session with the same rows in memory, in which DataFusion executes all steps.
    near: FarSession,
}

pub fn bench() -> Bench {
    let mut options = EmbeddedOptions::new(512 << 20);
    options.node_count = 2;
    let pool = Pool::embedded(options).expect("an embedded pool");
    let batch = sales();
    pool.put_table("sales", batch.schema(), [batch.clone()]).expect("put");
    let far = FarSession::new(&pool, Options::default()).expect("a session");
    // This session uses another pool, which is empty, so that no far table has the name of a table in memory.
    let empty = Pool::embedded(EmbeddedOptions::new(64 << 20)).expect("an embedded pool");
    let near = FarSession::new(&empty, Options::default()).expect("a session");
    let few = RecordBatch::try_from_iter([
        ("item", Arc::new(Int64Array::from_iter_values([7, 19, 500, 2_000])) as ArrayRef),
        ("name", Arc::new(StringArray::from_iter_values(["a", "b", "c", "d"]))),
    ])
    .expect("a batch");
    let many = RecordBatch::try_from_iter([(
        "id",
        Arc::new(Int64Array::from_iter_values((0..30_000).map(|key| key * 3))) as ArrayRef,
    )])
    .expect("a batch");
    let local = |batch: RecordBatch| {
        let half = batch.num_rows() / 2;
        let parts = vec![vec![batch.slice(0, half)], vec![batch.slice(half, batch.num_rows() - half)]];
        Arc::new(MemTable::try_new(batch.schema(), parts).expect("a table"))
    };
    for session in [&far, &near] {
        session.context().register_table("few", local(few.clone())).expect("registered");
        session.context().register_table("many", local(many.clone())).expect("registered");
    }
    near.context().register_table("sales", local(batch)).expect("registered");
    Bench { pool, far, near }
}

/// Returns the rows as sorted text, and the reports of the query's scans.
async fn run(session: &FarSession, sql: &str) -> Result<(Vec<String>, Vec<Value>), String> {
    let said = |error: datafusion::error::DataFusionError| error.strip_backtrace();
    let frame = session.context().sql(sql).await.map_err(said)?;
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.map_err(said)?;
    let batches = collect(Arc::clone(&plan), task).await.map_err(said)?;
    Ok((lines(&batches), farpool_datafusion::scans(&plan)))
}

pub fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options).expect("a type with text"))
            .collect();
        lines.extend((0..batch.num_rows()).map(|row| {
            columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|")
        }));
    }
    lines.sort_unstable();
    lines
}

pub async fn place(session: &FarSession, placement: &str) {
    let set = session.context().sql(&format!("SET farpool.placement = '{placement}'")).await;
    set.expect("a placement").collect().await.expect("set");
}

pub fn texts(scan: &Value, what: &str) -> Vec<String> {
    let list = scan[what].as_array().expect("a list");
    list.iter().map(|text| text.as_str().expect("text").to_owned()).collect()
}

/// Runs a query in all placements, and compares the rows of each with those of DataFusion alone. Returns the report of
/// the scan of `sales` in the last one.
async fn shown(bench: &Bench, sql: &str) -> Value {
    let (wanted, _) = run(&bench.near, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut last = Value::Null;
    for placement in PLACEMENTS {
        place(&bench.far, placement).await;
        let (found, scans) = run(&bench.far, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(found, wanted, "{placement}: {sql}");
        last = scans.into_iter().find(|scan| scan["table"] == "sales").expect("a scan of sales");
    }
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_mean_the_same_there_are_shipped() {
    let bench = bench();
    for condition in [
        "item = 7",
        "7 > item",
        "item BETWEEN 3 AND 9 AND price < 10.5",
        "price = 'NaN'::double OR price IS NULL",
        "shop LIKE 'shop 1%'",
        "shop ILIKE '%P 2_'",
        "shop NOT LIKE '%1%' AND id < 100000",
        "shop ~ '^shop (3|4)$'",
        "starts_with(shop, 'shop 2')",
        "shop IN ('shop 3', 'shop 4', 'none') OR item IN (1, 2)",
        "item NOT IN (1, 2, 3) AND item < 10",
        "shop IS NOT NULL AND NOT (item < 990)",
        "exact > 10.5",
        "exact * 2 < -80",
        "exact - 1 >= 43.99",
        "day = DATE '1970-03-01'",
        "day >= DATE '1971-01-01' AND day < DATE '1971-02-01'",
        "price + 1.5 > 60",
        "id >= 469990",
        "id < 0",
    ] {
        let scan =
            shown(&bench, &format!("SELECT count(*), sum(id), min(shop) FROM sales WHERE {condition}")).await;
        assert_eq!(texts(&scan, "not_shipped"), [""; 0], "{condition}");
        let steps = texts(&scan, "beside_the_data");
        assert!(steps.iter().any(|step| step.contains("filter")), "{condition}: {steps:?}");
        assert!(steps.iter().any(|step| step.starts_with("aggregate")), "{condition}: {steps:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_are_not_known_there_stay_and_the_scan_says_why() {
    let bench = bench();
    for (condition, why) in [
        ("item * 2 = 14", "item"),
        ("CASE WHEN item = 7 THEN id ELSE 1 END = 7", "CASE"),
        ("upper(shop) = 'SHOP 3'", "upper"),
        ("length(shop) = 7", "length"),
    ] {
        let scan = shown(&bench, &format!("SELECT id FROM sales WHERE id < 90000 AND {condition}")).await;
        let stays = texts(&scan, "not_shipped");
        assert!(stays.iter().any(|line| line.contains(why)), "{condition}: {stays:?}");
        // Other parts of the condition are pushed down all the same.
        assert!(texts(&scan, "beside_the_data").iter().any(|step| step.contains("filter")), "{condition}");
    }
}

fn is_grouping(step: &str) -> bool {
    ["aggregate", "group by", "distinct"].iter().any(|name| step.starts_with(name))
}

#[tokio::test(flavor = "multi_thread")]
async fn groupings_are_shipped_and_few_rows_leave() {
    let bench = bench();
    for sql in [
        "SELECT shop, count(*), count(price), sum(id), min(day), max(exact) FROM sales GROUP BY shop",
        "SELECT shop, item % 3 AS rest, sum(exact) FROM sales GROUP BY shop, rest",
        "SELECT avg(exact), avg(id), avg(item) FROM sales WHERE item < 300",
        "SELECT DISTINCT shop, day FROM sales WHERE day < DATE '1970-02-01'",
        "SELECT count(DISTINCT item) FROM sales",
        "SELECT sum(exact * (1 - exact)) FROM sales",
        "SELECT count(*) FROM sales WHERE item = 3",
        "SELECT item, count(*) FROM sales GROUP BY item HAVING count(*) > 470",
        "SELECT sum(id) FROM sales WHERE id < 0",
    ] {
        let scan = shown(&bench, sql).await;
        let steps = texts(&scan, "beside_the_data");
        match sql.contains('%') {
            // Integer arithmetic stays in DataFusion, and so does a grouping by the result of it.
            true => assert!(!texts(&scan, "not_shipped").is_empty(), "{sql}: {steps:?}"),
            false => assert!(steps.iter().any(|step| is_grouping(step)), "{sql}: {steps:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregates_that_are_not_known_there_stay_and_the_scan_says_why() {
    let bench = bench();
    for (sql, why) in [
        ("SELECT shop, count(DISTINCT item), count(DISTINCT day) FROM sales GROUP BY shop", "DISTINCT"),
        ("SELECT stddev(id) FROM sales WHERE item = 3", "stddev"),
        ("SELECT sum(id) FILTER (WHERE item = 3) FROM sales", "FILTER clause"),
    ] {
        let scan = shown(&bench, sql).await;
        let stays = texts(&scan, "not_shipped");
        assert!(stays.iter().any(|line| line.contains(why)), "{sql}: {stays:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_rows_in_an_order_are_shipped() {
    let bench = bench();
    for sql in [
        "SELECT id, price FROM sales WHERE price IS NOT NULL ORDER BY price DESC, id LIMIT 10",
        "SELECT id, shop FROM sales ORDER BY shop NULLS FIRST, id DESC LIMIT 1000",
        "SELECT id FROM sales ORDER BY id LIMIT 5 OFFSET 400000",
    ] {
        let scan = shown(&bench, sql).await;
        let steps = texts(&scan, "beside_the_data");
        let is_top = steps.iter().any(|step| step.contains("top") || step.contains("first"));
        assert!(is_top || sql.contains("OFFSET 400000"), "{sql}: {steps:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_reads_as_much_as_it_needs() {
    let bench = bench();
    place(&bench.far, "ship").await;
    let (rows, scans) =
        run(&bench.far, "SELECT id FROM sales WHERE item < 500 LIMIT 100").await.expect("rows");
    assert_eq!(rows.len(), 100);
    let shipped = scans[0]["actual"]["row_groups_shipped"].as_u64().expect("a count");
    assert!(shipped < 8, "{shipped} row groups for a hundred rows");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_partner_in_a_small_table_do_not_leave() {
    let bench = bench();
    let sql = "SELECT name, count(*), sum(id) FROM sales JOIN few USING (item) GROUP BY name";
    shown(&bench, sql).await;
    place(&bench.far, "ship").await;
    let (_, scans) = run(&bench.far, sql).await.expect("rows");
    let (narrowed, whole) = (scans[0]["actual"]["result_bytes"].as_u64().expect("bytes"), ROWS as u64 * 8);
    assert!(narrowed < whole / 20, "{narrowed} bytes of results of {whole}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_partner_among_many_keys_do_not_leave() {
    let bench = bench();
    for sql in [
        "SELECT count(*), sum(exact) FROM many JOIN sales USING (id)",
        "SELECT count(*) FROM sales WHERE id IN (SELECT id FROM many)",
        "SELECT count(*) FROM sales WHERE id NOT IN (SELECT id FROM many)",
        "SELECT count(*), count(sales.id) FROM many LEFT JOIN sales ON many.id = sales.id + 0",
        "SELECT count(*), count(sales.id) FROM many FULL JOIN sales USING (id)",
    ] {
        shown(&bench, sql).await;
    }
    place(&bench.far, "ship").await;
    let (_, scans) =
        run(&bench.far, "SELECT sum(exact) FROM many JOIN sales USING (id)").await.expect("rows");
    let actual = &scans[0]["actual"];
    let looked_up = actual["lookup_bytes"].as_u64().expect("bytes");
    assert!(looked_up > 100_000, "{actual}");
    assert!(actual["row_groups_skipped"].as_u64().expect("a count") > 4, "keys end at 90,000: {actual}");
}

#[tokio::test(flavor = "multi_thread")]
async fn filter_of_a_top_above_narrows_the_scan_while_it_runs() {
    let bench = bench();
    // The sort key is computed in DataFusion, so the top-k itself cannot be pushed down.
    let sql = "SELECT sales.id FROM sales JOIN few ON sales.item = few.item + 0 ORDER BY sales.id LIMIT 3";
    shown(&bench, sql).await;
    place(&bench.far, "ship").await;
    let (_, scans) = run(&bench.far, sql).await.expect("rows");
    assert!(!texts(&scans[0], "dynamic_filters").is_empty(), "{:?}", scans[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_that_is_run_twice_answers_the_same() {
    let bench = bench();
    let frame =
        bench.far.context().sql("SELECT sum(exact) FROM many JOIN sales USING (id)").await.expect("a plan");
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.expect("a plan");
    let first = collect(Arc::clone(&plan), Arc::clone(&task)).await.expect("rows");
    let again = reset_plan_states(plan).expect("fresh");
    assert_eq!(lines(&collect(again, task).await.expect("rows")), lines(&first));
}

#[tokio::test(flavor = "multi_thread")]
async fn table_that_was_replaced_under_a_prepared_plan_leaves_its_old_rows_or_an_error_by_name() {
    let bench = bench();
    let frame = bench.far.context().sql("SELECT sum(id) FROM sales WHERE item < 9").await.expect("a plan");
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.expect("a plan");
    let wanted = lines(&collect(Arc::clone(&plan), Arc::clone(&task)).await.expect("rows"));
    let other =
        RecordBatch::try_from_iter([("id", Arc::new(StringArray::from_iter_values(["x"])) as ArrayRef)]);
    let other = other.expect("a batch");
    let options = PutOptions { replace: true, ..PutOptions::default() };
    let batches = [Ok::<_, Infallible>(other.clone())];
    bench.pool.put_table_with("sales", other.schema(), batches, &options).expect("put");
    for placement in PLACEMENTS {
        place(&bench.far, placement).await;
        let plan = reset_plan_states(Arc::clone(&plan)).expect("fresh");
        match collect(plan, Arc::clone(&task)).await {
            Ok(batches) => assert_eq!(lines(&batches), wanted, "{placement}"),
            Err(error) => assert!(error.to_string().contains("sales"), "{placement}: {error}"),
        }
    }
    let error = run(&bench.far, "SELECT sum(item) FROM sales").await.expect_err("no such column any more");
    assert!(error.contains("item"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_put_and_dropped_by_statements() {
    let bench = bench();
    let run = async |sql: &str| {
        let state = bench.far.context().state();
        let plan = state.create_logical_plan(sql).await?;
        bench.far.execute(plan).await?.collect().await
    };
    run("CREATE TABLE cheap AS SELECT item, price FROM sales WHERE price < 2").await.expect("put");
    assert!(bench.pool.table("cheap").expect("a far table").rows() > 0);
    let again = run("CREATE TABLE cheap AS SELECT 1 AS one").await.expect_err("it is there").to_string();
    assert!(again.contains("cheap"), "{again}");
    run("CREATE TABLE IF NOT EXISTS cheap AS SELECT 1 / 0 AS one").await.expect("it is there");
    run("CREATE OR REPLACE TABLE cheap AS SELECT 1 AS one").await.expect("put");
    assert_eq!(lines(&run("SELECT * FROM cheap").await.expect("rows")), ["1"]);
    // A table of this session must not hide a far table, which all sessions see.
    for sql in [
        "CREATE VIEW cheap AS SELECT 2 AS two",
        "CREATE OR REPLACE VIEW cheap AS SELECT 2 AS two",
        "CREATE EXTERNAL TABLE cheap STORED AS PARQUET LOCATION '/nowhere.parquet'",
        "CREATE OR REPLACE EXTERNAL TABLE cheap (a INT) STORED AS CSV LOCATION '/nowhere.csv'",
    ] {
        let why = run(sql).await.expect_err(sql).strip_backtrace();
        assert!(why.contains("far table") && why.contains("cheap"), "{sql}: {why}");
    }
    let one = RecordBatch::try_from_iter([("one", Arc::new(Int64Array::from(vec![2])) as ArrayRef)]);
    let why = bench.far.context().register_batch("cheap", one.expect("a batch")).expect_err("it is there");
    assert!(why.strip_backtrace().contains("far table cheap"), "{why}");
    assert_eq!(lines(&run("SELECT * FROM cheap").await.expect("rows")), ["1"]);
    run("DROP TABLE cheap").await.expect("dropped");
    assert!(bench.pool.table("cheap").is_err());
    let why = run("CREATE TABLE later").await.expect_err("a table without columns").strip_backtrace();
    assert!(why.contains("later") && why.contains("0 columns"), "{why}");
    assert!(bench.pool.table("later").is_err(), "{why}");
    for sql in ["CREATE TABLE later (a INT)", "CREATE OR REPLACE TABLE later (a INT, b TEXT)"] {
        assert_eq!(lines(&run(sql).await.expect(sql)), [""; 0], "{sql}");
        assert_eq!(bench.pool.table("later").expect("a table").rows(), 0);
    }
    run("DROP TABLE later").await.expect("dropped");
    run("CREATE TABLE later AS SELECT * FROM sales WHERE id < 0").await.expect("a table without rows");
    assert_eq!(bench.pool.table("later").expect("a table").rows(), 0);
}

/// The partitions run beside each other, and their rows come in no order of their own.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_ordered_partitions_are_put_in_their_order() {
    const PARTITIONS: i64 = 4;
    const ROWS: i64 = 100_000;
    let bench = bench();
    let part = |first: i64| {
        let numbers = (0..ROWS / PARTITIONS).map(|row| first + PARTITIONS * row);
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let whole = RecordBatch::try_from_iter([("n", column)]).expect("a batch");
        (0..whole.num_rows()).step_by(1_000).map(|from| whole.slice(from, 1_000)).collect::<Vec<_>>()
    };
    let parts: Vec<_> = (0..PARTITIONS).map(part).collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).expect("a table");
    let table = table.with_sort_order(vec![vec![col("n").sort(true, false)]]);
    bench.far.context().register_table("parts", Arc::new(table)).expect("registered");
    let state = bench.far.context().state();
    let plan =
        state.create_logical_plan("CREATE TABLE ordered AS SELECT n FROM parts").await.expect("a plan");
    bench.far.execute(plan).await.expect("put");
    assert_eq!(bench.far.written(), None, "the statement has ended");
    let reader = bench.pool.table("ordered").expect("a table").read(None, None).expect("a reader");
    let mut next = 0;
    for batch in reader {
        let batch = batch.expect("rows");
        let numbers = batch.column(0).as_any().downcast_ref::<Int64Array>().expect("numbers");
        assert!(numbers.values().iter().copied().eq(next..next + batch.num_rows() as i64));
        next += batch.num_rows() as i64;
    }
    assert_eq!(next, ROWS);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_said_by_name() {
    let bench = bench();
    for (sql, said) in [
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT nothing FROM sales", "nothing"),
        (
            "SET farpool.placement = 'nowhere'",
            "\"nowhere\" is not a placement: auto, fetch, ship and split are permitted",
        ),
        ("SET farpool.place = 'ship'", "unknown setting farpool.place;"),
    ] {
        let error = match bench.far.context().sql(sql).await {
            Err(error) => error,
            Ok(frame) => frame.collect().await.expect_err(sql),
        };
        assert!(error.to_string().contains(said), "{sql}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_table_without_its_key_is_refused_by_name() {
    let bench = bench();
    let batch = sales().slice(0, 1_000);
    let key = TableKey::new([7; 16]);
    let options = PutOptions { key: Some(key), ..PutOptions::default() };
    let batches = [Ok::<_, Infallible>(batch.clone())];
    bench.pool.put_table_with("secret", batch.schema(), batches, &options).expect("put");
    let error = run(&bench.far, "SELECT * FROM secret").await.expect_err("no key");
    assert!(error.contains("secret") && error.contains("key"), "{error}");
}
