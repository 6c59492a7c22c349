//! Tables that change: each change is a snapshot, readers keep the one that they opened, appends of many writers all
//! land, and memory comes back once nobody needs it.

use crate::programs::eventually;
use crate::protected_files::Cluster;
use crate::published_files::nothing_held;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use farpool::operators::{By, Query, col};
use farpool::table::{Compaction, GroupChange, PutOptions, RowsChanged};
use farpool::{
    EmbeddedOptions, Error, ErrorKind, FarTable, Placement, Pool, PoolOptions, Protection, TableKey,
    TransportChoice,
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

pub(crate) fn another(pool: &Pool) -> Pool {
    Pool::connect_with(pool.url(), PoolOptions::default()).expect("another session")
}

pub(crate) fn schema() -> SchemaRef {
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

/// Appends rows in one snapshot, and none for a compaction.
fn append(pool: &Pool, name: &str, batch: RecordBatch) -> u64 {
    let options = PutOptions { compaction: Compaction::Off, ..PutOptions::default() };
    append_with(pool, name, batch, &options).expect("appended")
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
            // Rows that are equal are taken from the beginning of the table.
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

/// Deletes the rows whose ids are in a range.
fn delete(pool: &Pool, name: &str, from: i64, to: i64, options: &PutOptions) -> Result<Option<u64>, Error> {
    let within = col("id").gt_eq(from).and(col("id").lt(to));
    Ok(pool.delete_rows(name, Some(&within), options)?.snapshot)
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
        let changed = pool.change_table("t", &options, "change", None, |group| {
            if std::mem::take(&mut is_first) {
                delete(&other, "t", from, from + 10, &options).expect("the other one comes first");
            }
            let ids = ids(group);
            match ids.contains(&1_000) {
                true => Ok(GroupChange::Rows(vec![rows(0..1_000), rows(1_001..group.rows() as i64)])),
                false => Ok(GroupChange::Unchanged),
            }
        });
        changed.map(|committed| committed.map(|committed| committed.snapshot))
    };
    let error = during(5).expect_err("the same row group");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let other = pool.table_history("t").expect("listed")[0].session;
    let whom = format!("snapshot 2, which session {other} made (delete 10 rows)");
    assert!(error.to_string().contains(&whom), "{error}");
    assert_eq!(pool.table("t").expect("opened").rows(), 199_991);
    assert_eq!(during(150_000).expect("another row group"), Some(4));
    assert_eq!(pool.table("t").expect("opened").rows(), 199_991 - 10 - 1);
}

/// Runs `other` while the first row of a table is being deleted. Returns the snapshot that this makes.
fn change_during(pool: &Pool, other: impl FnOnce()) -> Result<u64, Error> {
    let mut other = Some(other);
    let changed = pool.change_table("t", &PutOptions::default(), "change", None, |group| {
        if let Some(other) = other.take() {
            other();
        }
        let mut has_first = false;
        for batch in group.read(None, None)? {
            has_first |= batch?.column(0).as_primitive::<Int64Type>().values().contains(&0);
        }
        match has_first {
            true => Ok(GroupChange::Rows(vec![rows(1..group.rows() as i64)])),
            false => Ok(GroupChange::Unchanged),
        }
    });
    changed.map(|committed| committed.expect("something has changed").snapshot)
}

#[test]
fn first_changes_of_a_table_of_one_file_are_conflicts_only_where_they_change_the_same_rows() {
    /// Name of the case, action of somebody else, snapshot that the change makes then, and rows without the change.
    type Case = (&'static str, fn(&Pool), Option<u64>, u64);
    fn delete_some(pool: &Pool, from: i64, to: i64) {
        assert_eq!(delete(pool, "t", from, to, &PutOptions::default()).expect("deleted"), Some(1));
    }
    let cases: [Case; 6] = [
        ("append", |pool| assert_eq!(append(pool, "t", rows(400_000..400_001)), 1), Some(2), 140_001),
        ("other rows", |pool| delete_some(pool, 139_999, 140_000), Some(2), 139_999),
        ("the same rows", |pool| delete_some(pool, 5, 6), None, 139_999),
        (
            "all rows",
            |pool| {
                let deleted = pool.delete_rows("t", None, &PutOptions::default()).expect("deleted");
                assert_eq!(deleted, RowsChanged { rows: 140_000, snapshot: Some(1) });
            },
            None,
            0,
        ),
        (
            "replaced by a table of one file",
            |pool| {
                let options = PutOptions { replace: true, ..PutOptions::default() };
                let batches = [Ok::<_, Infallible>(rows(0..140_000))];
                pool.put_table_with("t", schema(), batches, &options).expect("replaced");
            },
            None,
            140_000,
        ),
        (
            "two appends and a rollback",
            |pool| {
                append(pool, "t", rows(400_000..400_001));
                append(pool, "t", rows(500_000..500_001));
                assert_eq!(pool.roll_back_table("t", 1, &PutOptions::default()).expect("back").snapshot, 3);
            },
            Some(4),
            140_001,
        ),
    ];
    for (what, other, expected, left) in cases {
        let pool = pool(TransportChoice::Tcp);
        pool.put_table("t", schema(), [rows(0..140_000)]).expect("put");
        let beside = another(&pool);
        match (change_during(&pool, || other(&beside)), expected) {
            (Ok(snapshot), Some(expected)) => assert_eq!(snapshot, expected, "{what}"),
            // The bytes of a table of one file may be gone as soon as nothing has them any more.
            (Err(error), None) => {
                assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Closed), "{what}: {error}");
            }
            (found, _) => panic!("{what}: {found:?}"),
        }
        let found = ids(&pool.table("t").expect("opened"));
        assert_eq!(found.len() as u64, left - u64::from(expected.is_some()), "{what}");
        assert_eq!(found.contains(&0), expected.is_none() && left > 0, "{what}");
        append(&pool, "t", rows(1_000_000..1_000_001));
    }
}

#[test]
fn transaction_changes_all_tables_or_none_and_only_if_they_are_as_expected() {
    for key in [None, Some(TableKey::new([5; 16]))] {
        let pool = pool(TransportChoice::Tcp);
        let options = PutOptions { key: key.clone(), ..PutOptions::default() };
        let replacing = PutOptions { replace: true, ..options.clone() };
        let count = |name: &str| match &key {
            Some(key) => pool.table_with_key(name, key).expect("opened").rows(),
            None => pool.table(name).expect("opened").rows(),
        };
        let some = |ids| [Ok::<_, Infallible>(rows(ids))];
        for name in ["a", "b"] {
            pool.put_table_with(name, schema(), some(0..10), &options).expect("put");
        }
        let mut both = pool.transaction();
        both.append("a", schema(), some(10..12), &options).expect("written");
        both.put("b", schema(), some(0..3), &replacing).expect("written");
        both.put("new", schema(), some(0..4), &options).expect("written");
        both.put("other", schema(), some(0..0), &options).expect("written");
        assert_eq!((count("a"), count("b")), (10, 10), "nothing is seen before the commit");
        assert!(!pool.has_table("new").expect("asked"));
        let made = both.commit().expect("committed");
        let snapshots: Vec<_> =
            made.tables.iter().map(|(name, made)| (&**name, made.snapshot, made.rows)).collect();
        assert_eq!(snapshots, [("a", 1, 2), ("b", 1, 3), ("new", 1, 4), ("other", 1, 0)]);
        assert_eq!((count("a"), count("b"), count("new"), count("other")), (12, 3, 4, 0));
        let summary = &pool.table_history("b").expect("listed")[0].summary;
        let said =
            "a: append 2 rows, b: replace with 3 rows, new: create with 4 rows, other: create with 0 rows";
        assert_eq!(summary, said);

        // Somebody appends meanwhile: that is no conflict, unless a snapshot is expected.
        for expected in [None, Some(2)] {
            let mut both = pool.transaction();
            if let Some(snapshot) = expected {
                both.expect("b", snapshot);
            }
            both.append("a", schema(), some(20..21), &options).expect("written");
            both.append("b", schema(), some(20..21), &options).expect("written");
            if expected.is_some() {
                append_with(&another(&pool), "b", rows(30..31), &options).expect("appended");
            }
            let before = (count("a"), count("b"));
            match both.commit() {
                Ok(_) => assert_eq!((count("a"), count("b"), expected), (before.0 + 1, before.1 + 1, None)),
                Err(error) => {
                    assert_eq!((error.kind(), expected), (ErrorKind::Conflict, Some(2)), "{error}");
                    assert_eq!((count("a"), count("b")), before, "neither has changed");
                }
            }
            if expected.is_none() {
                let mut late = pool.transaction();
                late.expect("b", 1);
                let error = late.append("b", schema(), some(0..1), &options).expect_err("it is at 2");
                assert_eq!(error.kind(), ErrorKind::Conflict);
                assert!(
                    error.to_string().contains("is at snapshot 2, and 1 is expected: snapshot 2"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn transaction_that_expects_a_snapshot_names_who_came_first() {
    let pool = pool(TransportChoice::Shm);
    let (options, some) = (PutOptions::default(), |ids| [Ok::<_, Infallible>(rows(ids))]);
    pool.put_table("a", schema(), [rows(0..10)]).expect("put");
    append(&pool, "a", rows(10..11));
    let other = another(&pool);
    let mut ours = pool.transaction();
    ours.expect("a", 1);
    ours.append("a", schema(), some(20..21), &options).expect("written");
    assert_eq!(append(&other, "a", rows(11..15)), 2);
    let session = pool.table_history("a").expect("listed")[0].session;
    let error = ours.commit().expect_err("it is at 2");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let said = format!(
        "is at snapshot 2, and 1 is expected: snapshot 2, which session {session} made (append 4 rows)"
    );
    assert!(error.to_string().contains(&said), "{error}");
    for (name, expected) in [("a", 3), ("missing", 1)] {
        let mut ours = pool.transaction();
        ours.expect(name, expected);
        let error = ours.put(name, schema(), some(0..1), &options).expect_err("another snapshot");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{name}: {error}");
    }
    let mut ours = pool.transaction();
    let error = ours.append("missing", schema(), some(0..1), &options).expect_err("no table");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    ours.append("a", schema(), some(0..1), &options).expect("the transaction goes on");
    let error = ours.append("a", schema(), some(0..1), &options).expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    ours.expect("b", 0);
    let error = ours.commit().expect_err("b does not change");
    assert!(error.to_string().contains("which the transaction does not change"), "{error}");
    let mut ours = pool.transaction();
    for number in 0..8 {
        ours.put(&format!("t{number}"), schema(), some(0..1), &options).expect("written");
    }
    let error = ours.put("t8", schema(), some(0..1), &options).expect_err("a ninth one");
    assert!(error.to_string().contains("8 tables"), "{error}");
    drop(ours);
    assert_eq!(pool.transaction().commit().map_err(|error| error.kind()), Err(ErrorKind::Invalid));
    let listed: Vec<_> = pool.tables().expect("listed").into_iter().map(|table| table.name).collect();
    assert_eq!(listed, ["a"], "what was not committed is not there");
    pool.drop_table("a").expect("dropped");
    nothing_held(&other);
}

#[test]
fn program_that_is_run_again_has_its_rows_once() {
    let pool = pool(TransportChoice::Tcp);
    let options = PutOptions::default();
    pool.put_table("a", schema(), [rows(0..10)]).expect("put");
    pool.put_table("b", schema(), [rows(0..10)]).expect("put");
    let program = |pool: &Pool, id: &str, is_late: bool| {
        let mut both = pool.transaction().with_id(id)?;
        both.append("a", schema(), [Ok::<_, Infallible>(rows(10..13))], &options)?;
        both.append("b", schema(), [Ok::<_, Infallible>(rows(10..14))], &options)?;
        if is_late {
            // Another run of the program commits in between.
            let mut other = another(pool).transaction().with_id(id)?;
            other.append("a", schema(), [Ok::<_, Infallible>(rows(10..13))], &options)?;
            other.append("b", schema(), [Ok::<_, Infallible>(rows(10..14))], &options)?;
            assert!(!other.commit()?.was_made_before);
        }
        both.commit()
    };
    let count = || (pool.table("a").expect("opened").rows(), pool.table("b").expect("opened").rows());
    let first = program(&pool, "one", false).expect("committed");
    assert!(!first.was_made_before);
    assert_eq!(count(), (13, 14));
    append(&pool, "a", rows(50..51));
    for _ in 0..2 {
        let again = program(&another(&pool), "one", false).expect("answered as done");
        assert!(again.was_made_before);
        let snapshots = |made: &farpool::table::TransactionMade| -> Vec<u64> {
            made.tables.iter().map(|(_, made)| made.snapshot).collect()
        };
        assert_eq!(snapshots(&again), snapshots(&first));
    }
    assert_eq!(count(), (14, 14));
    assert!(program(&pool, "two", true).expect("answered as done").was_made_before);
    assert_eq!(count(), (17, 18), "of two runs at a time one counts");
    assert!(!program(&pool, "three", false).expect("committed").was_made_before);
    assert_eq!(count(), (20, 22));
    assert_eq!(
        pool.transaction().with_id("").map(drop).map_err(|error| error.kind()),
        Err(ErrorKind::Invalid)
    );
    let dropped = pool.table("a").expect("opened");
    for name in ["a", "b"] {
        pool.drop_table(name).expect("dropped");
        pool.put_table(name, schema(), [rows(1000..1010)]).expect("put");
    }
    assert!(!program(&pool, "one", false).expect("committed").was_made_before, "these are other tables");
    assert_eq!(count(), (13, 14));
    // Whoever opened the table that was dropped reads nothing of the other one, although the commits have one id.
    let read = dropped.read(None, None).and_then(|batches| batches.collect::<Result<Vec<_>, _>>());
    let rows = read.map(|batches| batches.iter().map(RecordBatch::num_rows).sum::<usize>());
    assert!(rows.as_ref().map_or(true, |rows| *rows == 20), "{rows:?}");
    drop(dropped);
    for name in ["a", "b"] {
        pool.drop_table(name).expect("dropped");
    }
    nothing_held(&pool);
}

#[test]
fn rows_are_updated_where_a_condition_is_true() {
    for key in [None, Some(TableKey::new([6; 16]))] {
        let pool = pool(TransportChoice::Shm);
        let options = PutOptions { key: key.clone(), ..PutOptions::default() };
        let open = || match &key {
            Some(key) => pool.table_with_key("t", key).expect("opened"),
            None => pool.table("t").expect("opened"),
        };
        let batches = [Ok::<_, Infallible>(rows(0..100_000))];
        pool.put_table_with("t", schema(), batches, &options).expect("put");
        // The condition is not known of rows without a word.
        let values = [("id".to_owned(), col("id") + 1_000_000)];
        let changed = pool.update_rows("t", &values, Some(&col("word").not_eq("word 1")), &options);
        let with_other_word = (0..100_000).filter(|id| id % 7 != 0 && id % 100 != 1).count() as u64;
        assert_eq!(changed.expect("updated"), RowsChanged { rows: with_other_word, snapshot: Some(1) });
        let moved = |id: i64| if id % 7 != 0 && id % 100 != 1 { id + 1_000_000 } else { id };
        let found = |table: &FarTable| {
            let of = |batch: Result<RecordBatch, Error>| {
                batch.expect("rows").column(0).as_primitive::<Int64Type>().values().to_vec()
            };
            let mut ids: Vec<i64> = table.read(None, None).expect("a reader").flat_map(of).collect();
            ids.sort_unstable();
            ids
        };
        let mut expected: Vec<i64> = (0..100_000).map(moved).collect();
        expected.sort_unstable();
        assert!(found(&open()) == expected);
        let none = pool.update_rows("t", &values, Some(&col("id").lt(-1)), &options).expect("nothing to do");
        assert_eq!(none, RowsChanged { rows: 0, snapshot: None });
        for (column, value, why) in [
            ("no", col("id"), "no column"),
            ("id", col("word"), "as int64 does not fit its type"),
            ("id", col("nothing"), "no column \"nothing\""),
        ] {
            let values = [(column.to_owned(), value)];
            let error = pool.update_rows("t", &values, None, &options).expect_err(why);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        let wrong = PutOptions { key: Some(TableKey::new([1; 16])), ..PutOptions::default() };
        let error = pool.delete_rows("t", None, &wrong).expect_err("another key");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(found(&open()) == expected, "nothing has changed");
        assert_eq!(open().snapshot(), Some(1));
    }
}

#[test]
fn going_back_to_what_is_not_there_is_refused_and_nothing_changes() {
    let pool = pool(TransportChoice::Tcp);
    let options = PutOptions::default();
    pool.put_table("t", schema(), [rows(0..10)]).expect("put");
    let back = |snapshot| pool.roll_back_table("t", snapshot, &options).map(drop);
    let error = back(1).expect_err("it was not changed");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("without snapshots"), "{error}");
    append(&pool, "t", rows(10..20));
    for (snapshot, kind) in
        [(0, ErrorKind::Invalid), (2, ErrorKind::NotFound), (u64::MAX, ErrorKind::NotFound)]
    {
        let error = back(snapshot).expect_err("there is none");
        assert_eq!(error.kind(), kind, "{snapshot}: {error}");
    }
    // More than the broker keeps.
    for number in 0..110 {
        append(&pool, "t", rows(20 + number..21 + number));
    }
    let kept: Vec<u64> = pool
        .table_history("t")
        .expect("listed")
        .iter()
        .filter(|entry| entry.is_kept)
        .map(|entry| entry.snapshot)
        .collect();
    let ended = (1..=111).find(|snapshot| !kept.contains(snapshot)).expect("some have ended");
    let error = back(ended).expect_err("it has ended");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(&format!("snapshot {ended} has ended")), "{error}");
    assert_eq!(ids(&pool.table("t").expect("opened")), range(0..130));
    assert_eq!(pool.table("t").expect("opened").snapshot(), Some(111));
}

#[test]
fn lost_table_of_many_files_is_put_again_without_its_snapshots() {
    let mut losses = 0;
    for lost in 0..2 {
        let mut cluster = Cluster::new(2);
        let pool = cluster.connect(TransportChoice::Tcp, None);
        let options = PutOptions {
            replace: true,
            partition_by: vec!["id".to_owned()],
            compaction: Compaction::Off,
            protection: Some(Protection::None),
            ..PutOptions::default()
        };
        let put = |ids: std::ops::Range<i64>| {
            pool.put_table_with("t", schema(), [Ok::<_, Infallible>(rows(ids))], &options)
        };
        // More files than the root of a manifest names itself.
        put(0..150).expect("put");
        append_with(&pool, "t", rows(150..160), &options).expect("appended");
        cluster.lose_node(lost);
        let read =
            pool.table("t").and_then(|table| table.read(None, None)?.try_for_each(|batch| batch.map(drop)));
        losses += i32::from(read.is_err_and(|error| error.kind() == ErrorKind::Lost));
        put(0..3).expect("the table is put again");
        assert_eq!(ids(&pool.table("t").expect("a table")), range(0..3));
        let appending = PutOptions { partition_by: Vec::new(), ..options.clone() };
        append_with(&pool, "t", rows(3..4), &appending).expect("appended");
        assert_eq!(ids(&pool.table("t").expect("a table")), range(0..4));
        pool.drop_table("t").expect("dropped");
        eventually("all parts of both tables are dropped", || {
            let nodes = pool.status().expect("a status").nodes;
            let named: u32 = nodes.iter().filter(|node| node.alive).map(|node| node.counts.named).sum();
            if named == 0 { Ok(()) } else { Err(format!("{named} regions are named")) }
        });
    }
    assert!(losses > 0, "at least one of the nodes has bytes of the table");
}
