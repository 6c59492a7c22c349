//! Compaction of tables: many small files become few, beside readers and writers, and files in which no row passes are
//! not opened.

use crate::published_files::nothing_held;
use crate::table_snapshots::{another, schema};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int8Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use farpool::operators::{Query, col};
use farpool::table::{ColumnChange, Compaction, GroupChange, MadeBy, PutOptions, TABLE_PREFIX};
use farpool::{EmbeddedOptions, Error, ErrorKind, FarTable, Placement, Pool, TableKey, TransportChoice};
use std::convert::Infallible;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn pool(transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(256 * MIB);
    options.node_count = 2;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

/// Returns rows whose ids are a range.
fn rows(ids: std::ops::Range<i64>) -> RecordBatch {
    let words = StringArray::from_iter(ids.clone().map(|id| (id % 7 != 0).then(|| format!("word {id}"))));
    RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from_iter_values(ids)), Arc::new(words)])
        .expect("a batch")
}

fn off() -> PutOptions {
    PutOptions { compaction: Compaction::Off, ..PutOptions::default() }
}

fn append(pool: &Pool, name: &str, batch: RecordBatch, options: &PutOptions) -> u64 {
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.append_to_table(name, batch.schema(), batches, options).expect("appended").snapshot
}

/// Makes a table of so many appends of ten rows.
fn grown(pool: &Pool, name: &str, appends: i64, options: &PutOptions) {
    pool.put_table_with(name, schema(), [Ok::<_, Infallible>(rows(0..0))], options).expect("put");
    (0..appends).for_each(|number| _ = append(pool, name, rows(10 * number..10 * number + 10), options));
}

fn ids_of(batches: impl IntoIterator<Item = RecordBatch>) -> Vec<i64> {
    let of = |batch: RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
    batches.into_iter().flat_map(of).collect()
}

fn ids(table: &FarTable) -> Vec<i64> {
    ids_of(table.read(None, None).expect("a reader").map(|batch| batch.expect("rows")))
}

fn range(ids: std::ops::Range<i64>) -> Vec<i64> {
    ids.collect()
}

fn files(pool: &Pool, name: &str, key: Option<&TableKey>) -> usize {
    pool.table_snapshot(name, 0, key).expect("opened").files().expect("listed").len()
}

#[test]
fn small_files_become_one_and_readers_of_earlier_snapshots_go_on() {
    for (transport, key) in
        [(TransportChoice::Shm, None), (TransportChoice::Tcp, Some(TableKey::new([3; 16])))]
    {
        let pool = pool(transport);
        let options = PutOptions { key: key.clone(), ..off() };
        grown(&pool, "t", 300, &options);
        let reader = another(&pool);
        let open = |pool: &Pool| match &key {
            Some(key) => pool.table_with_key("t", key).expect("opened"),
            None => pool.table("t").expect("opened"),
        };
        let before = open(&reader);
        assert!(files(&pool, "t", key.as_ref()) >= 300);
        let made = pool.compact_table("t", &options).expect("compacted").expect("there was something to do");
        assert_eq!(files(&pool, "t", key.as_ref()), 1);
        let after = open(&reader);
        assert_eq!(after.snapshot(), Some(made.snapshot));
        assert_eq!(after.row_groups().len(), 1, "row groups that are small are merged");
        assert!(ids(&after) == range(0..3_000) && ids(&before) == range(0..3_000), "{transport:?}");
        assert_eq!(pool.compact_table("t", &options).expect("compacted"), None, "nothing is left to do");
        assert_eq!(append(&pool, "t", rows(3_000..3_010), &options), made.snapshot + 1);
        let history = pool.table_history("t").expect("listed");
        assert!(history.iter().any(|entry| entry.summary == "compact 3000 rows"), "{history:?}");
        drop((before, after));
        pool.drop_table("t").expect("dropped");
        nothing_held(&pool);
    }
}

#[test]
fn small_appends_leave_few_files_unless_compaction_is_off() {
    let pool = pool(TransportChoice::Shm);
    let automatic = PutOptions::default();
    grown(&pool, "t", 400, &automatic);
    assert!(files(&pool, "t", None) < 100, "{} files", files(&pool, "t", None));
    assert!(ids(&pool.table("t").expect("opened")) == range(0..4_000));
    grown(&pool, "u", 200, &off());
    assert!(files(&pool, "u", None) >= 200);
}

#[test]
fn appends_and_deletes_land_beside_compactions() {
    let pool = pool(TransportChoice::Shm);
    grown(&pool, "t", 150, &off());
    std::thread::scope(|scope| {
        let compacting = another(&pool);
        scope.spawn(move || {
            for _ in 0..60 {
                match compacting.compact_table("t", &off()) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                }
            }
        });
        for writer in 1..=3i64 {
            let pool = another(&pool);
            scope.spawn(move || {
                for number in 0..30 {
                    let from = 100_000 * writer + 10 * number;
                    append(&pool, "t", rows(from..from + 10), &PutOptions::default());
                }
            });
        }
        let deleting = another(&pool);
        scope.spawn(move || {
            // A compaction may come first, again and again, but no more often than it changes something.
            let is_done = (0..500).any(|_| match delete(&deleting, "t", 500, 600) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    false
                }
            });
            assert!(is_done, "rows could not be deleted in 500 tries");
        });
    });
    let mut found = ids(&pool.table("t").expect("opened"));
    found.sort_unstable();
    let mut expected: Vec<i64> = (0..500).chain(600..1_500).collect();
    (1..=3).for_each(|writer| expected.extend(100_000 * writer..100_000 * writer + 300));
    assert!(found == expected, "each row is there once");
    pool.drop_table("t").expect("dropped");
}

/// Deletes the rows whose ids are in a range.
fn delete(pool: &Pool, name: &str, from: i64, to: i64) -> Result<(), Error> {
    let changed = pool.change_table(name, &off(), "delete", None, |group| {
        let run = |query: Query| -> Result<Vec<RecordBatch>, Error> {
            Ok(group.run(&query.plan().expect("a plan"), Placement::Fetch)?.batches)
        };
        let gone = run(group.query()?.filter(col("id").gt_eq(from).and(col("id").lt(to))))?;
        match gone.iter().map(RecordBatch::num_rows).sum::<usize>() {
            0 => Ok(GroupChange::Unchanged),
            _ => {
                run(group.query()?.filter(col("id").lt(from).or(col("id").gt_eq(to)))).map(GroupChange::Rows)
            }
        }
    });
    changed.map(drop)
}

#[test]
fn rows_that_were_deleted_stay_so_when_their_files_become_one() {
    let pool = pool(TransportChoice::Shm);
    grown(&pool, "t", 20, &off());
    delete(&pool, "t", 0, 5).expect("deleted");
    let before = pool.table("t").expect("opened");
    pool.compact_table("t", &off()).expect("compacted").expect("there was something to do");
    let mut found = ids(&pool.table("t").expect("opened"));
    found.sort_unstable();
    assert!(found == range(5..200));
    assert_eq!(before.rows(), 195);
}

#[test]
fn recipe_is_kept_with_the_same_rows_and_given_up_with_others() {
    let pool = pool(TransportChoice::Tcp);
    grown(&pool, "t", 3, &off());
    let made_by = Some(MadeBy { kind: "test".to_owned(), body: vec![1, 2, 3], lost: None });
    let options = PutOptions { replace: true, made_by, ..off() };
    pool.put_table_with("t", schema(), [Ok::<_, Infallible>(rows(0..100))], &options).expect("replaced");
    let file = format!("{TABLE_PREFIX}t");
    let recipe = pool.recipe(&file).expect("asked").expect("it has one");
    assert_eq!((recipe.rows, &recipe.body), (100, &vec![1, 2, 3]));
    // One file is left as it is, and so is its recipe.
    assert_eq!(pool.compact_table("t", &off()).expect("compacted"), None);
    assert_eq!(pool.recipe(&file).expect("asked"), Some(recipe));
    append(&pool, "t", rows(100..110), &off());
    assert_eq!(pool.recipe(&file).expect("asked"), None, "other rows are not made by it");
}

#[test]
fn files_in_which_no_row_passes_are_not_opened() {
    for key in [None, Some(TableKey::new([5; 16]))] {
        let pool = pool(TransportChoice::Tcp);
        let options = PutOptions { key: key.clone(), ..off() };
        grown(&pool, "t", 200, &options);
        let table = pool.table_on_demand("t", None, key.as_ref()).expect("found");
        assert_eq!((table.rows(), table.may_skip_files()), (2_000, true));
        let query = || table.query().expect("a query");
        let queries = [
            (query().filter(col("id").gt_eq(1_500).and(col("id").lt(1_510))), 1),
            (query().filter(col("id").eq(77)), 1),
            (query().filter(col("id").lt(0)), 0),
            // This text lies between those of four files, in the order of texts.
            (query().filter(col("word").eq("word 1234").and(col("id").gt(0))), 4),
        ];
        for (query, most) in queries {
            let plan = query.plan().expect("a plan");
            let opened = table.open_for(&plan).expect("opened");
            let files = opened.files_opened();
            assert!(files.total - files.skipped() <= most, "{files:?} for {most}");
            for placement in [Placement::Fetch, Placement::Ship] {
                let some = opened.run(&plan, placement).expect("an answer");
                let all = table.open_all().expect("opened").run(&plan, placement).expect("an answer");
                assert_eq!(ids_of(some.batches), ids_of(all.batches));
                assert_eq!(some.report.files_skipped, files.skipped());
                assert_eq!((all.report.files, all.report.files_skipped), (files.total, 0));
            }
            let told = opened.explain(&plan).to_string();
            let expected = format!("{} skipped by their bounds", files.skipped());
            assert!(told.contains(&expected), "{told}");
        }
        let whole = table.open_all().expect("opened");
        assert!(ids(&whole) == range(0..2_000));
    }
}

#[test]
fn table_that_was_found_is_opened_as_it_was_then() {
    let pool = pool(TransportChoice::Shm);
    grown(&pool, "t", 30, &off());
    let table = pool.table_on_demand("t", None, None).expect("found");
    append(&pool, "t", rows(300..310), &off());
    pool.compact_table("t", &off()).expect("compacted");
    assert!(ids(&table.open_all().expect("opened")) == range(0..300));
    let earlier = pool.table_on_demand("t", Some(10), None).expect("found");
    assert!(ids(&earlier.open_all().expect("opened")) == range(0..100));
    pool.drop_table("t").expect("dropped");
    let missing = pool.table_on_demand("t", None, None).map(drop).expect_err("it is gone");
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
}

/// Returns the ids of each file of a table, in the order of its rows.
fn ids_of_files(pool: &Pool, name: &str, key: Option<&TableKey>) -> Vec<Vec<i64>> {
    let snapshot = pool.table_snapshot(name, 0, key).expect("opened");
    let files = snapshot.files().expect("listed");
    let of = |number: usize| ids(&snapshot.open(&files[number..=number]).expect("opened"));
    (0..files.len()).map(of).collect()
}

#[test]
fn each_file_has_rows_of_one_partition_in_order_and_other_partitions_are_not_opened() {
    let pool = pool(TransportChoice::Shm);
    let shop = |id: i64| format!("shop {}", id % 4);
    let batch = |ids: std::ops::Range<i64>| {
        let ids: Vec<i64> = ids.rev().collect();
        let shops = StringArray::from_iter_values(ids.iter().copied().map(shop));
        RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from(ids)) as ArrayRef),
            ("shop", Arc::new(shops)),
        ])
        .expect("a batch")
    };
    let options = PutOptions {
        partition_by: vec!["shop".to_owned()],
        sort_by: vec!["id".to_owned()],
        compaction: Compaction::Off,
        ..PutOptions::default()
    };
    let first = batch(0..1_000);
    let batches = [Ok::<_, Infallible>(first.clone())];
    pool.put_table_with("t", first.schema(), batches, &options).expect("put");
    append(&pool, "t", batch(1_000..2_000), &off());
    append(&pool, "t", batch(2_000..2_002), &off());
    let check = |count: usize| {
        let files = ids_of_files(&pool, "t", None);
        assert_eq!(files.len(), count);
        for ids in &files {
            assert!(ids.is_sorted() && ids.iter().all(|id| id % 4 == ids[0] % 4), "{ids:?}");
        }
        let mut all: Vec<i64> = files.into_iter().flatten().collect();
        all.sort_unstable();
        assert!(all == range(0..2_002));
    };
    check(10);
    pool.compact_table("t", &off()).expect("compacted").expect("there was something to do");
    check(4);
    let table = pool.table_on_demand("t", None, None).expect("found");
    let plan = table.query().expect("a query").filter(col("shop").eq("shop 3")).plan().expect("a plan");
    let opened = table.open_for(&plan).expect("opened");
    assert_eq!((opened.files_opened().skipped(), opened.rows()), (3, 500));
    let replaced = PutOptions { replace: true, partition_by: vec!["id".to_owned()], ..off() };
    let batches = [Ok::<_, Infallible>(batch(0..1_025))];
    let error = pool.put_table_with("t", first.schema(), batches, &replaced).expect_err("too many");
    assert!(error.to_string().contains("more than 1024 partitions"), "{error}");
    assert_eq!(pool.table("t").expect("opened").rows(), 2_002, "nothing has changed");
}

#[test]
fn partitions_stay_apart_while_their_columns_change() {
    for key in [None, Some(TableKey::new([5; 16]))] {
        let pool = pool(TransportChoice::Tcp);
        let options = PutOptions { key: key.clone(), ..off() };
        let column = |ids: &std::ops::Range<i64>| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(ids.clone().rev()))
        };
        let narrow = |ids: std::ops::Range<i64>| {
            let parts = Int8Array::from_iter_values(ids.clone().rev().map(|id| (id % 3) as i8));
            let columns = [("id", column(&ids)), ("part", Arc::new(parts) as ArrayRef)];
            RecordBatch::try_from_iter(columns).expect("a batch")
        };
        let wide = |ids: std::ops::Range<i64>| {
            let parts = Int32Array::from_iter_values(ids.clone().rev().map(|id| (id % 3) as i32));
            let more = Int8Array::from_iter_values(ids.clone().map(|_| 7));
            let columns =
                [("id", column(&ids)), ("third", Arc::new(parts) as ArrayRef), ("more", Arc::new(more) as _)];
            RecordBatch::try_from_iter(columns).expect("a batch")
        };
        let arranged = PutOptions {
            partition_by: vec!["part".to_owned()],
            sort_by: vec!["id".to_owned()],
            ..options.clone()
        };
        let batches = [Ok::<_, Infallible>(narrow(0..300))];
        pool.put_table_with("t", narrow(0..0).schema(), batches, &arranged).expect("put");
        append(&pool, "t", narrow(300..600), &options);
        let changes = [
            ColumnChange::Widen { name: "part".to_owned(), to: DataType::Int32 },
            ColumnChange::Rename { name: "part".to_owned(), to: "third".to_owned() },
            ColumnChange::Add { name: "more".to_owned(), of: DataType::Int8 },
        ];
        pool.alter_table("t", &changes, &options).expect("altered");
        append(&pool, "t", wide(600..900), &options);
        let check = |count: usize| {
            let files = ids_of_files(&pool, "t", key.as_ref());
            assert_eq!(files.len(), count);
            for ids in &files {
                assert!(ids.is_sorted() && ids.iter().all(|id| id % 3 == ids[0] % 3), "{ids:?}");
            }
            let mut all: Vec<i64> = files.into_iter().flatten().collect();
            all.sort_unstable();
            assert!(all == range(0..900));
        };
        let skipped_and_rows = || {
            let table = pool.table_on_demand("t", None, key.as_ref()).expect("found");
            let plan = table.query().expect("a query").filter(col("third").eq(1)).plan().expect("a plan");
            let opened = table.open_for(&plan).expect("opened");
            (opened.files_opened().skipped(), opened.rows())
        };
        check(9);
        assert_eq!(skipped_and_rows(), (6, 300), "files of before are known by their values as well");
        pool.compact_table("t", &options).expect("compacted").expect("there was something to do");
        check(3);
        assert_eq!(skipped_and_rows(), (2, 300));
        let changes = [ColumnChange::Drop { name: "third".to_owned() }];
        pool.alter_table("t", &changes, &options).expect("altered");
        pool.compact_table("t", &options).expect("compacted").expect("there was something to do");
        assert!(
            ids_of_files(&pool, "t", key.as_ref()) == [range(0..900)],
            "nothing divides the rows any more"
        );
    }
}
