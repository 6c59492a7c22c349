//! Tables that change: each change is a snapshot, readers keep the one that they opened, appends of many writers all
//! land, and memory comes back once nobody needs it.

use crate::published_files::nothing_held;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use farpool::operators::{By, Query, col};
use farpool::table::{GroupChange, PutOptions};
use farpool::{
    EmbeddedOptions, Error, ErrorKind, FarTable, Placement, Pool, PoolOptions, TableKey, TransportChoice,
};
use std::convert::Infallible;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Shm];

fn pool(transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(128 * MIB);
    options.node_count = 2;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

fn another(pool: &Pool) -> Pool {
    Pool::connect_with(pool.url(), PoolOptions::default()).expect("another session")
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("word", DataType::Utf8, true),
    ]))
}

/// Returns rows whose ids are a range.
fn rows(ids: std::ops::Range<i64>) -> RecordBatch {
    let words =
        StringArray::from_iter(ids.clone().map(|id| (id % 7 != 0).then(|| format!("word {}", id % 100))));
    RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from_iter_values(ids)), Arc::new(words)])
        .expect("a batch")
}

fn append_with(pool: &Pool, name: &str, batch: RecordBatch, options: &PutOptions) -> Result<u64, Error> {
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.append_to_table(name, batch.schema(), batches, options).map(|committed| committed.snapshot)
}

fn append(pool: &Pool, name: &str, batch: RecordBatch) -> u64 {
    append_with(pool, name, batch, &PutOptions::default()).expect("appended")
}

/// Returns the ids of a table in their order, after comparing the words.
fn ids(table: &FarTable) -> Vec<i64> {
    let mut ids = Vec::new();
    for batch in table.read(None, None).expect("a reader") {
        let batch = batch.expect("rows");
        let of_batch = batch.column(0).as_primitive::<Int64Type>().values();
        for (id, word) in of_batch.iter().zip(batch.column(1).as_string::<i32>()) {
            assert_eq!(word, (id % 7 != 0).then(|| format!("word {}", id % 100)).as_deref());
        }
        ids.extend_from_slice(of_batch);
    }
    ids
}

fn range(ids: std::ops::Range<i64>) -> Vec<i64> {
    ids.collect()
}

#[test]
fn appended_rows_come_behind_the_others_and_readers_keep_their_snapshot() {
    for transport in TRANSPORTS {
        let writer = pool(transport);
        let reader = another(&writer);
        writer.put_table("t", schema(), [rows(0..100_000)]).expect("put");
        let first = reader.table("t").expect("opened");
        assert_eq!(first.snapshot(), None, "it was not changed yet");
        assert_eq!(append(&writer, "t", rows(100_000..100_010)), 1);
        let second = reader.table("t").expect("opened");
        assert_eq!(append(&reader, "t", rows(100_010..300_000)), 2);
        let third = reader.table("t").expect("opened");
        assert_eq!((second.snapshot(), third.snapshot()), (Some(1), Some(2)));
        for _ in 0..2 {
            assert!(ids(&first) == range(0..100_000), "{transport:?}");
            assert!(ids(&second) == range(0..100_010), "{transport:?}");
            assert!(ids(&third) == range(0..300_000), "{transport:?}");
        }
        let at_one = reader.table_snapshot("t", 1, None).expect("it is kept");
        assert_eq!((at_one.totals().rows, at_one.totals().files), (100_010, 2));
        assert!(ids(&at_one.open_all().expect("opened")) == range(0..100_010));
        let listed = reader.tables().expect("listed");
        assert_eq!(listed.len(), 1, "parts and snapshots are hidden: {listed:?}");
        drop((first, second, third, at_one));
        writer.drop_table("t").expect("dropped");
        assert_eq!(reader.table("t").err().map(|error| error.kind()), Some(ErrorKind::NotFound));
        nothing_held(&reader);
    }
}

#[test]
fn queries_over_a_changed_table_are_equal_in_all_placements() {
    for key in [None, Some(TableKey::new([7; 16]))] {
        let pool = pool(TransportChoice::Tcp);
        let options = PutOptions { key: key.clone(), ..PutOptions::default() };
        let batches = [Ok::<_, Infallible>(rows(0..150_000))];
        pool.put_table_with("t", schema(), batches, &options).expect("put");
        for part in 0..20 {
            let from = 150_000 + part * 5_000;
            append_with(&pool, "t", rows(from..from + 5_000), &options).expect("appended");
        }
        let table = match &key {
            Some(key) => pool.table_with_key("t", key),
            None => pool.table("t"),
        };
        let table = table.expect("opened");
        assert_eq!(table.rows(), 250_000);
        let query = || table.query().expect("a query");
        let queries: [(&str, Query); 3] = [
            ("rows", query().filter(col("word").eq("word 17"))),
            ("top", query().top([By::descending("word"), By::descending("id")], 50)),
            // Of rows that are equal the first ones of the table are taken.
            ("ties", query().top([By::descending("word")], 1_000)),
        ];
        for (what, query) in queries {
            let plan = query.plan().expect("a plan");
            let mut answers = Vec::new();
            for placement in [Placement::Fetch, Placement::Ship, Placement::Split, Placement::Auto] {
                let answer = table.run(&plan, placement).expect("an answer");
                assert!(answer.report.refusals.is_empty(), "{what}: {}", answer.report);
                let ids = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                answers.push(answer.batches.iter().flat_map(ids).collect::<Vec<_>>());
            }
            assert!(
                answers.iter().all(|answer| *answer == answers[0]),
                "{what} (encrypted: {})",
                key.is_some()
            );
            assert!(!answers[0].is_empty(), "{what}");
        }
    }
}

#[test]
fn appends_of_many_writers_all_land_once() {
    let pool = pool(TransportChoice::Shm);
    pool.put_table("t", schema(), [rows(0..10)]).expect("put");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let pool = another(&pool);
            scope.spawn(move || {
                for number in 0..25 {
                    let from = 1_000 * (writer + 1) + 10 * number;
                    append(&pool, "t", rows(from..from + 10));
                }
            });
        }
    });
    let table = pool.table("t").expect("opened");
    assert_eq!(table.snapshot(), Some(200));
    let mut found = ids(&table);
    found.sort_unstable();
    let mut expected = range(0..10);
    (1..=8).for_each(|writer| expected.extend(1_000 * writer..1_000 * writer + 250));
    assert!(found == expected, "each row is there once");
    assert_eq!(pool.table_history("t").expect("listed").len(), 200);
}

#[test]
fn table_goes_back_to_an_earlier_snapshot() {
    let pool = pool(TransportChoice::Tcp);
    pool.put_table("t", schema(), [rows(0..1_000)]).expect("put");
    for number in 1..=200 {
        append(&pool, "t", rows(1_000 * number..1_000 * (number + 1)));
    }
    let options = PutOptions::default();
    assert_eq!(pool.roll_back_table("t", 150, &options).expect("rolled back").snapshot, 201);
    assert!(ids(&pool.table("t").expect("opened")) == range(0..151_000));
    append(&pool, "t", rows(151_000..152_000));
    assert!(ids(&pool.table("t").expect("opened")) == range(0..152_000));
    let before = pool.table_snapshot("t", 200, None).expect("it is kept");
    assert!(ids(&before.open_all().expect("opened")) == range(0..201_000));
    let replaced = PutOptions { replace: true, ..PutOptions::default() };
    let batches = [Ok::<_, Infallible>(rows(5..9))];
    pool.put_table_with("t", schema(), batches, &replaced).expect("replaced");
    let table = pool.table("t").expect("opened");
    assert_eq!((ids(&table), table.snapshot()), (range(5..9), Some(203)));
    assert_eq!(pool.roll_back_table("t", 202, &options).expect("rolled back").snapshot, 204);
    assert!(ids(&pool.table("t").expect("opened")) == range(0..152_000));
    let error = pool.roll_back_table("t", 999, &options).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("snapshot 999"), "{error}");
    drop((table, before));
    pool.drop_table("t").expect("dropped");
    nothing_held(&pool);
}

#[test]
fn rows_with_other_columns_are_refused_and_nothing_changes() {
    let pool = pool(TransportChoice::Tcp);
    pool.put_table("t", schema(), [rows(0..10)]).expect("put");
    append(&pool, "t", rows(10..20));
    let other = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let batch = RecordBatch::try_new(other, vec![Arc::new(Int64Array::from(vec![1]))]).expect("a batch");
    let error = append_with(&pool, "t", batch, &PutOptions::default()).expect_err("other columns");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("(id Int64, word Utf8)"), "{error}");
    let missing = append_with(&pool, "u", rows(0..1), &PutOptions::default()).expect_err("no table");
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert_eq!(ids(&pool.table("t").expect("opened")), range(0..20));
    assert_eq!(pool.table("t").expect("opened").snapshot(), Some(1));
}

/// Deletes the rows whose ids are in a range, one row group after the other.
fn delete(pool: &Pool, name: &str, from: i64, to: i64, options: &PutOptions) -> Result<Option<u64>, Error> {
    let changed = pool.change_table(name, options, "delete", |group| {
        let count = |query: Query| -> Result<Vec<RecordBatch>, Error> {
            Ok(group.run(&query.plan().expect("a plan"), Placement::Fetch)?.batches)
        };
        let is_gone = || col("id").gt_eq(from).and(col("id").lt(to));
        let gone = count(group.query()?.filter(is_gone()))?;
        match gone.iter().map(RecordBatch::num_rows).sum::<usize>() {
            0 => Ok(GroupChange::Unchanged),
            _ => {
                let left = count(group.query()?.filter(col("id").lt(from).or(col("id").gt_eq(to))))?;
                Ok(GroupChange::Rows(left))
            }
        }
    })?;
    Ok(changed.map(|committed| committed.snapshot))
}

#[test]
fn rows_that_change_are_written_anew_by_row_group_and_the_others_stay() {
    for key in [None, Some(TableKey::new([9; 16]))] {
        let pool = pool(TransportChoice::Tcp);
        let options = PutOptions { key: key.clone(), ..PutOptions::default() };
        let open = || match &key {
            Some(key) => pool.table_with_key("t", key).expect("opened"),
            None => pool.table("t").expect("opened"),
        };
        let sorted = |table: &FarTable| {
            let mut ids = ids(table);
            ids.sort_unstable();
            ids
        };
        pool.put_table_with("t", schema(), [Ok::<_, Infallible>(rows(0..200_000))], &options).expect("put");
        let first = open();
        assert_eq!(delete(&pool, "t", 300_000, 400_000, &options).expect("nothing to do"), None);
        assert_eq!(delete(&pool, "t", 70_000, 70_010, &options).expect("deleted"), Some(1));
        let second = open();
        let without =
            |from: i64, to: i64| (0..200_000).filter(|id| *id < from || *id >= to).collect::<Vec<_>>();
        assert!(sorted(&second) == without(70_000, 70_010));
        assert!(ids(&first) == range(0..200_000), "readers keep what they have opened");
        append_with(&pool, "t", rows(200_000..200_010), &options).expect("appended");
        assert_eq!(delete(&pool, "t", 0, 190_000, &options).expect("deleted"), Some(3));
        assert!(sorted(&open()) == range(190_000..200_010));
        assert!(sorted(&second) == without(70_000, 70_010));
        let plan =
            open().query().expect("a query").top([By::descending("word")], 500).plan().expect("a plan");
        let found = |placement| {
            let answer = open().run(&plan, placement).expect("an answer");
            assert!(answer.report.refusals.is_empty(), "{}", answer.report);
            let ids = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            answer.batches.iter().flat_map(ids).collect::<Vec<_>>()
        };
        assert_eq!(found(Placement::Ship), found(Placement::Fetch));
        assert_eq!(delete(&pool, "t", 0, 1_000_000, &options).expect("deleted"), Some(4));
        assert_eq!((sorted(&open()), open().rows()), (Vec::new(), 0));
    }
}

#[test]
fn two_changes_of_the_same_rows_are_a_conflict_and_of_others_both_land() {
    let pool = pool(TransportChoice::Tcp);
    let options = PutOptions::default();
    pool.put_table("t", schema(), [rows(0..200_000)]).expect("put");
    append(&pool, "t", rows(200_000..200_001));
    let other = another(&pool);
    let during = |from: i64| {
        let mut is_first = true;
        let changed = pool.change_table("t", &options, "change", |group| {
            if std::mem::take(&mut is_first) {
                delete(&other, "t", from, from + 10, &options).expect("the other one comes first");
            }
            let ids = ids(group);
            match ids.contains(&1_000) {
                true => Ok(GroupChange::Rows(vec![rows(0..1_000), rows(1_001..65_536)])),
                false => Ok(GroupChange::Unchanged),
            }
        });
        changed.map(|committed| committed.map(|committed| committed.snapshot))
    };
    let error = during(5).expect_err("the same row group");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("snapshot 2"), "{error}");
    assert_eq!(pool.table("t").expect("opened").rows(), 199_991);
    assert_eq!(during(150_000).expect("another row group"), Some(4));
    assert_eq!(pool.table("t").expect("opened").rows(), 199_991 - 10 + 9);
}
