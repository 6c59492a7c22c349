//! Tests of queries over far tables. Each test computes the expected result itself, without the query engine.

use crate::processes::{Process, until};
use crate::programs::PATIENCE;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float64Array, Int8Array, Int16Array,
    Int64Array, RecordBatch, StringArray,
};
use farpool::operators::{Agg, By, Query, col, lit};
use farpool::table::{PutOptions, TableLayout};
use farpool::{
    EmbeddedOptions, ErrorKind, FarTable, Placement, Pool, PoolOptions, TableKey, TransportChoice, Way,
};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

const ROWS: i64 = 150_000;

/// Returns a batch of integers that overflow when they are summed, floats with nulls, and texts with few distinct
/// values.
fn sales() -> RecordBatch {
    let numbers = 0..ROWS;
    let shop: StringArray =
        numbers.clone().map(|n| (n % 7 != 0).then(|| format!("shop {}", n % 5))).collect();
    let item = Int64Array::from_iter_values(numbers.clone().map(|n| n * 7_919 % 1_000));
    let price: Float64Array = numbers.map(|n| (n % 11 != 3).then(|| (n % 250) as f64 / 4.0)).collect();
    RecordBatch::try_from_iter([
        ("shop", Arc::new(shop) as _),
        ("item", Arc::new(item) as _),
        ("price", Arc::new(price) as _),
    ])
    .expect("a batch")
}

fn tables() -> Vec<(Pool, FarTable)> {
    let put = |transport| {
        let mut options = EmbeddedOptions::new(128 << 20);
        options.node_count = 2;
        options.pool.transport = transport;
        let pool = Pool::embedded(options).expect("an embedded pool");
        let batch = sales();
        pool.put_table("sales", batch.schema(), [batch]).expect("put");
        let table = pool.table("sales").expect("a table");
        (pool, table)
    };
    [TransportChoice::Tcp, TransportChoice::Shm].map(put).into()
}

/// Returns a batch with columns of every width that rows of fixed width may have, and with times and decimals.
fn fixed() -> RecordBatch {
    let number = |row: i64| row * 7_919 % 1_000;
    let rows = 0..ROWS;
    RecordBatch::try_from_iter([
        (
            "one",
            Arc::new(Int8Array::from_iter_values(rows.clone().map(|row| (number(row) % 100) as i8))) as _,
        ),
        (
            "three",
            Arc::new(
                FixedSizeBinaryArray::try_from_iter(rows.clone().map(|row| [row as u8, 1, 2]))
                    .expect("equal"),
            ) as ArrayRef,
        ),
        ("two", Arc::new(Int16Array::from_iter_values(rows.clone().map(|row| number(row) as i16)))),
        ("item", Arc::new(Int64Array::from_iter_values(rows.clone().map(number)))),
        ("price", Arc::new(Float64Array::from_iter_values(rows.clone().map(|row| (row % 250) as f64 / 4.0)))),
        ("day", Arc::new(Date32Array::from_iter_values(rows.clone().map(|row| row as i32 % 400)))),
        (
            "exact",
            Arc::new(
                Decimal128Array::from_iter_values(rows.map(i128::from))
                    .with_precision_and_scale(20, 2)
                    .expect("fits"),
            ),
        ),
    ])
    .expect("a batch")
}

#[test]
fn tables_of_rows_answer_what_tables_of_columns_answer() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let mut options = EmbeddedOptions::new(256 << 20);
        options.node_count = 2;
        options.pool.transport = transport;
        let pool = Pool::embedded(options).expect("an embedded pool");
        let batch = fixed();
        let put = |name, layout, key: Option<TableKey>| {
            let batches = [Ok::<_, Infallible>(batch.clone())];
            let options = PutOptions { layout, key: key.clone(), ..PutOptions::default() };
            pool.put_table_with(name, batch.schema(), batches, &options).expect("put");
            let table = match &key {
                None => pool.table(name),
                Some(key) => pool.table_with_key(name, key),
            };
            let table = table.expect("a table");
            assert_eq!((table.layout(), table.is_encrypted()), (layout, key.is_some()));
            table
        };
        let columns = put("columns", TableLayout::Columns, None);
        let rows = put("rows", TableLayout::Rows, None);
        let encrypted_rows = put("encrypted rows", TableLayout::Rows, Some(TableKey::new([7; 16])));
        assert!(rows.bytes() >= ROWS as u64 * 48, "rows of 1 + 3 + 2 + 8 + 8 + 4 + 16 bytes take 48");
        assert_eq!(rows.row_groups()[0].columns[3].statistics, columns.row_groups()[0].columns[3].statistics);
        let read = |table: &FarTable, columns| {
            table.read(columns, None).expect("a reader").collect::<Result<Vec<_>, _>>()
        };
        assert_eq!(read(&rows, None).expect("rows"), read(&columns, None).expect("rows"));
        let two = Some(&[5, 1][..]);
        for rows in [&rows, &encrypted_rows] {
            assert_eq!(read(rows, two).expect("rows"), read(&columns, two).expect("rows"));
        }
        let queries: [fn(Query) -> Query; 3] = [
            |query| query.filter(col("item").lt(20)).select([named("day"), named("three"), named("exact")]),
            |query| {
                query.group_by(
                    [named("one")],
                    [("sum".to_owned(), Agg::Sum(col("price"))), ("most".to_owned(), Agg::Max(col("exact")))],
                )
            },
            |query| {
                query
                    .filter(col("two").eq(col("item")))
                    .top([By::descending("day"), By::ascending("item")], 50)
            },
        ];
        for query in queries {
            let plan = query(columns.query().expect("known types")).plan().expect("a plan");
            let answer = |table: &FarTable, placement| table.run(&plan, placement).expect("a result");
            let expected = answer(&columns, Placement::Fetch);
            assert!(expected.batches.iter().any(|batch| batch.num_rows() > 0));
            for (placement, rows) in Placement::FIXED
                .into_iter()
                .flat_map(|placement| [(placement, &rows), (placement, &encrypted_rows)])
            {
                let found = answer(rows, placement);
                assert_eq!(found.batches, expected.batches, "{}", found.report);
                assert!(
                    placement != Placement::Ship || found.report.shipped == rows.row_groups().len(),
                    "{}",
                    found.report
                );
            }
        }
    }
}

#[test]
fn rows_have_no_texts_and_no_nulls() {
    let pool = Pool::embedded(EmbeddedOptions::new(32 << 20)).expect("an embedded pool");
    let put = |batch: &RecordBatch| {
        let options = PutOptions { layout: TableLayout::Rows, ..PutOptions::default() };
        let refused =
            pool.put_table_with("t", batch.schema(), [Ok::<_, Infallible>(batch.clone())], &options);
        let error = refused.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    let text = put(&sales());
    assert!(text.contains("\"shop\" is of type Utf8"), "{text}");
    let nulls = put(&sales().project(&[1, 2]).expect("two columns"));
    assert!(nulls.contains("\"price\"") && nulls.contains("no nulls"), "{nulls}");
    assert_eq!(pool.tables().expect("a list"), []);
}

fn run(table: &FarTable, query: impl FnOnce(Query) -> Query) -> RecordBatch {
    let plan = query(table.query().expect("known types")).plan().expect("a plan");
    let answers = Placement::FIXED.map(|placement| table.run(&plan, placement).expect("a result"));
    for answer in &answers {
        assert_eq!(answer.batches.len(), 1, "{answer:?}");
        assert_eq!(answer.batches, answers[0].batches, "{}", answer.report);
    }
    answers[0].batches[0].clone()
}

fn named(name: &str) -> (String, farpool::operators::Expr) {
    (name.to_owned(), col(name))
}

#[test]
fn grouping_counts_sums_and_averages_what_a_filter_keeps() {
    let batch = sales();
    let (shops, items, prices) = (
        batch.column(0).as_string::<i32>(),
        batch.column(1).as_primitive::<Int64Type>(),
        batch.column(2).as_primitive::<Float64Type>(),
    );
    let mut expected: BTreeMap<Option<&str>, (i64, i128, f64, i64)> = BTreeMap::new();
    for row in (0..batch.num_rows()).filter(|row| items.value(*row) < 500) {
        let shop = (!shops.is_null(row)).then(|| shops.value(row));
        let group = expected.entry(shop).or_default();
        group.0 += 1;
        group.1 += i128::from(items.value(row));
        if !prices.is_null(row) {
            // The prices are multiples of 0.25, so their sums have no rounding errors in whichever order they are
            // summed.
            group.2 += prices.value(row);
            group.3 += 1;
        }
    }
    for (_pool, table) in tables() {
        let found = run(&table, |query| {
            query.filter(col("item").lt(500)).group_by(
                [named("shop")],
                [
                    ("rows".to_owned(), Agg::Rows),
                    ("items".to_owned(), Agg::Sum(col("item"))),
                    ("mean".to_owned(), Agg::Avg(col("price"))),
                ],
            )
        });
        let names: Vec<String> = found.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["shop", "rows", "items", "mean"]);
        assert_eq!(found.num_rows(), expected.len());
        let shops = found.column(0).as_string::<i32>();
        for (row, (shop, (rows, items, sum, count))) in expected.iter().enumerate() {
            assert_eq!((!shops.is_null(row)).then(|| shops.value(row)), *shop);
            assert_eq!(found.column(1).as_primitive::<Int64Type>().value(row), *rows);
            assert_eq!(found.column(2).as_primitive::<Decimal128Type>().value(row), *items);
            assert_eq!(found.column(3).as_primitive::<Float64Type>().value(row), sum / *count as f64);
        }
    }
}

#[test]
fn rows_are_counted_without_reading_any_of_their_bytes() {
    for (pool, table) in tables() {
        let before = pool.stats().bytes_read;
        let found = run(&table, |query| query.group_by([], [("rows".to_owned(), Agg::Rows)]));
        assert_eq!(found.column(0).as_primitive::<Int64Type>().values(), &[ROWS]);
        assert_eq!(pool.stats().bytes_read, before);
    }
}

#[test]
fn every_row_group_is_counted_by_one_side_and_the_report_says_by_which() {
    for (_pool, table) in tables() {
        let total = || ("total".to_owned(), Agg::Sum(col("item")));
        let plan = table.query().expect("known types").group_by([named("item")], [total()]);
        let plan = plan.plan().expect("a plan");
        let groups = table.row_groups().len();
        let report = |placement| table.run(&plan, placement).expect("a result").report;
        let fetched = report(Placement::Fetch);
        assert_eq!((fetched.shipped, fetched.fetched), (0, groups));
        assert_eq!((fetched.fetched_bytes, fetched.result_bytes), (ROWS as u64 * 8, 0));
        let shipped = report(Placement::Ship);
        assert_eq!((shipped.shipped, shipped.fetched, &shipped.refusals), (groups, 0, &vec![]));
        assert_eq!((shipped.node_bytes, shipped.fetched_bytes), (ROWS as u64 * 8, 0));
        // Each of two nodes returns a thousand groups: a key of 8 bytes, a sum of 16, and internal columns.
        assert!((24_000..100_000).contains(&shipped.result_bytes), "{shipped}");
        let split = report(Placement::Split);
        assert_eq!(split.shipped + split.fetched, groups, "{split}");
        assert_eq!(split.fetched_bytes + split.node_bytes, ROWS as u64 * 8, "{split}");
    }
}

#[test]
fn top_of_a_grouping_is_that_of_the_whole_table() {
    for (_pool, table) in tables() {
        let found = run(&table, |query| {
            let total = || ("total".to_owned(), Agg::Sum(col("price")));
            query
                .group_by([named("item")], [total()])
                .top([By::descending("total"), By::ascending("item")], 3)
        });
        assert_eq!(found.num_rows(), 3);
        let totals = found.column(1).as_primitive::<Float64Type>();
        assert!(totals.value(0) >= totals.value(1) && totals.value(1) >= totals.value(2));
    }
}

#[test]
fn rows_of_a_selection_come_in_the_order_of_the_table() {
    for (_pool, table) in tables() {
        let plan = table
            .query()
            .expect("known types")
            .filter(col("item").eq(7))
            .select([("twice".to_owned(), col("item") * lit(2)), named("shop")]);
        let plan = plan.plan().expect("a plan");
        let batch = sales();
        let shops = batch.column(0).as_string::<i32>();
        let kept = (0..ROWS).filter(|n| n * 7_919 % 1_000 == 7);
        let expected: Vec<_> =
            kept.map(|row| (14, shops.is_valid(row as usize).then(|| shops.value(row as usize)))).collect();
        for placement in Placement::FIXED {
            let answer = table.run(&plan, placement).expect("a result");
            let rows = answer.batches.iter().flat_map(|batch| {
                let twice = batch.column(0).as_primitive::<Int64Type>().values();
                twice.iter().copied().zip(batch.column(1).as_string::<i32>().iter())
            });
            assert_eq!(rows.collect::<Vec<_>>(), expected, "{}", answer.report);
        }
    }
}

#[test]
fn plan_of_another_table_and_values_that_do_not_fit_are_refused() {
    for (_pool, table) in tables() {
        let other = Query::over(vec![("x".to_owned(), farpool::operators::Type::Int8)]);
        let other = other.plan().expect("a plan");
        let query = table.query().expect("known types").select([("x".to_owned(), col("item") + i64::MAX)]);
        let query = query.plan().expect("a plan");
        for placement in Placement::FIXED {
            let error = table.run(&other, placement).expect_err("another table's");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("made for a table with other columns"), "{error}");
            let error = table.run(&query, placement).expect_err("an overflow");
            assert!(error.to_string().contains("does not fit"), "{placement}: {error}");
        }
    }
}

/// Puts a table of integers in 40 row groups: enough that a plan which never ran is tried on a few of them first.
fn many_groups(pool: &Pool) -> FarTable {
    const GROUPS: i64 = 40;
    let batch = |group: i64| {
        let numbers = group * 65_536..(group + 1) * 65_536;
        let key = Int64Array::from_iter_values(numbers.clone().map(|n| n * 7_919 % 1_000));
        let value = Int64Array::from_iter_values(numbers);
        RecordBatch::try_from_iter([
            ("key", Arc::new(key) as ArrayRef),
            ("value", Arc::new(value) as ArrayRef),
        ])
        .expect("a batch")
    };
    pool.put_table("numbers", batch(0).schema(), (0..GROUPS).map(batch)).expect("put");
    pool.table("numbers").expect("a table")
}

#[test]
fn choice_is_left_to_the_planner_and_the_rows_are_the_same() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let mut options = EmbeddedOptions::new(256 << 20);
        options.node_count = 2;
        options.pool.transport = transport;
        let pool = Pool::embedded(options).expect("an embedded pool");
        let table = many_groups(&pool);
        let keys = sales().project(&[1]).expect("a column").slice(0, 3);
        let queries: [fn(Query, RecordBatch) -> Query; 4] = [
            |query, _| query.filter(col("key").lt(30)),
            |query, _| query.group_by([named("key")], [("sum".to_owned(), Agg::Sum(col("value")))]),
            |query, _| query.top([By::descending("key"), By::ascending("value")], 10),
            |query, keys| {
                let on = vec![("key".to_owned(), "item".to_owned())];
                query.semi_join(on, &keys.schema(), std::slice::from_ref(&keys))
            },
        ];
        for query in queries {
            let plan = query(table.query().expect("known types"), keys.clone()).plan().expect("a plan");
            let groups = table.row_groups().len();
            let first = table.run(&plan, Placement::Auto).expect("a result");
            let fetched = table.run(&plan, Placement::Fetch).expect("a result");
            assert_eq!(first.batches, fetched.batches, "{}", first.report);
            let report = &first.report;
            assert_eq!(report.shipped + report.fetched, groups, "{report}");
            assert!(report.tried >= 2 && report.tried <= groups / 4, "{report}");
            assert!(Way::ALL.contains(&report.chosen), "{report}");
            let again = table.run(&plan, Placement::Auto).expect("a result");
            assert_eq!(again.batches, fetched.batches, "{}", again.report);
            assert_eq!(again.report.tried, 0, "it is known by now: {}", again.report);
            assert!(again.report.estimates.as_ref().is_some_and(|estimates| estimates.is_sure));
        }
    }
}

#[test]
fn steps_of_what_is_known_are_not_tried_and_their_estimates_add_up() {
    let pool = Pool::embedded(EmbeddedOptions::new(128 << 20)).expect("an embedded pool");
    let table = many_groups(&pool);
    let plan = table.query().expect("known types").filter(col("key").lt(500)).plan().expect("a plan");
    let all: Vec<usize> = (0..table.row_groups().len()).collect();
    assert!(!table.estimate(&plan, &all).is_sure);
    let mut rows = 0;
    let mut sum: Option<farpool::table::Estimates> = None;
    for (number, step) in all.chunks(4).enumerate() {
        let answer = table.run_groups(&plan, Placement::Auto, step).expect("a result");
        rows += answer.batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        let report = answer.report;
        assert_eq!(report.tried, 0, "{report}");
        let estimates = report.estimates.expect("estimates");
        assert_eq!(estimates.is_sure, number > 0, "the first tells of the others: {estimates}");
        match &mut sum {
            Some(sum) => sum.add(&estimates),
            none => *none = Some(estimates),
        }
    }
    let whole = table.run(&plan, Placement::Fetch).expect("a result");
    assert_eq!(rows, whole.batches.iter().map(RecordBatch::num_rows).sum::<usize>());
    let sum = sum.expect("steps");
    assert_eq!(sum.fetch.link_bytes, 40 * 65_536 * 16);
    assert!(sum.ship.link_bytes > 0 && sum.split.time > std::time::Duration::ZERO);
    // A plan with another literal may have another result size, so the estimate from the first plan is not certain for
    // it.
    let other = table.query().expect("known types").filter(col("key").lt(7)).plan().expect("a plan");
    assert!(!table.estimate(&other, &all).is_sure);
    assert!(table.estimate(&plan, &all).is_sure);
    let told = table.explain(&plan).to_string();
    assert!(told.contains("expected: fetch ") && told.contains(", measured; best "), "{told}");
}

#[test]
fn what_was_seen_of_one_column_is_not_believed_of_another() {
    let pool = Pool::embedded(EmbeddedOptions::new(128 << 20)).expect("an embedded pool");
    let table = many_groups(&pool);
    let distinct = |column: &str| {
        let query = table.query().expect("known types").select([named(column)]).distinct();
        query.plan().expect("a plan")
    };
    let all: Vec<usize> = (0..table.row_groups().len()).collect();
    let few = table.run(&distinct("key"), Placement::Auto).expect("a result");
    assert!(table.estimate(&distinct("key"), &all).is_sure);
    assert!(!table.estimate(&distinct("value"), &all).is_sure, "it has other values");
    let many = table.run(&distinct("value"), Placement::Auto).expect("a result").report;
    assert!(many.tried > 0, "{many}");
    let (few, many) = (few.report.estimates.expect("estimates"), many.estimates.expect("estimates"));
    assert!(few.ship.link_bytes < 100_000, "a thousand values: {few}");
    assert!(many.ship.link_bytes > 10_000_000, "a value for each row: {many}");
}

#[test]
fn placements_are_read_by_their_names() {
    for placement in Placement::FIXED.into_iter().chain([Placement::Auto]) {
        assert_eq!(placement.name().parse::<Placement>().expect("a placement"), placement);
    }
    let error = "near".parse::<Placement>().expect_err("no placement");
    assert_eq!(error.to_string(), "\"near\" is not a placement: auto, fetch, ship and split are permitted");
}

#[test]
fn query_that_is_to_be_shipped_is_shipped_to_a_node_that_did_not_answer_a_moment_ago() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--store", "memory"]);
    let node = Process::start(&["node", "--name", "one", "--memory", "64MiB", "--broker", &broker.ready]);
    // The session renews its leases every ten seconds, so renewals discover too late that the node answers again.
    let options =
        PoolOptions { transport: TransportChoice::Tcp, request_timeout_ms: 2_000, ..PoolOptions::default() };
    let pool = Pool::connect_with(&broker.ready, options).expect("a session");
    until(&pool, PATIENCE, "a node", |status| status.nodes.len() == 1);
    let batch = sales();
    pool.put_table("sales", batch.schema(), [batch]).expect("put");
    let table = pool.table("sales").expect("a table");
    let plan = table.query().expect("known types").filter(col("item").lt(500)).plan().expect("a plan");
    node.stop();
    table.run(&plan, Placement::Fetch).map(|_| ()).expect_err("the node does not answer");
    node.signal(rustix::process::Signal::CONT);
    let report = table.run(&plan, Placement::Ship).expect("a result").report;
    assert_eq!((report.shipped, report.fetched), (table.row_groups().len(), 0), "{report}");
}
