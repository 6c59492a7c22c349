//! Tests of puts on several threads: they write the same tables as one thread, tell how far they are, and leave nothing
//! behind when they fail.

use crate::published_files::nothing_held;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow_schema::SchemaRef;
use farpool::table::{Progress, PutOptions, TABLE_PREFIX, Written};
use farpool::{EmbeddedOptions, Error, ErrorKind, Pool, Protection, TableKey, TransportChoice};
use farpool_lock::Mutex;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Makes a pool of two nodes. Its regions are so small that a few MiB are many row groups.
fn pool(transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(512 * MIB);
    options.node_count = 2;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

/// Returns rows from `first` on, of some 100 bytes each: some repeat texts, some have none, and their lengths differ.
fn rows(first: i64, count: usize, spread: i64) -> RecordBatch {
    let ids = || (first..).take(count);
    let text = |id: i64| (id % 11 != 3).then(|| format!("text {}", id % spread));
    let long = |id: i64| format!("{id} {}", "x".repeat((id % 199) as usize));
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids()))),
        ("some", Arc::new(Int64Array::from_iter(ids().map(|id| (id % 7 != 0).then_some(id * id))))),
        ("text", Arc::new(StringArray::from_iter(ids().map(text)))),
        ("long", Arc::new(StringViewArray::from_iter_values(ids().map(long)))),
    ];
    let fields = columns.map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(fields).expect("a batch")
}

/// Returns batches of these lengths.
fn batches(lengths: &[usize], spread: i64) -> Vec<RecordBatch> {
    let mut first = 0;
    let batch = |count: &usize| {
        let batch = rows(first, *count, spread);
        first += *count as i64;
        batch
    };
    lengths.iter().map(batch).collect()
}

fn put(pool: &Pool, name: &str, batches: &[RecordBatch], options: &PutOptions) -> Result<(), Error> {
    let schema: SchemaRef = batches[0].schema();
    pool.put_table_with(name, schema, batches.iter().cloned().map(Ok::<_, Error>), options)
}

/// Returns the ids of the rows of a table in order, and their texts.
fn read(pool: &Pool, name: &str, key: Option<&TableKey>) -> Vec<RecordBatch> {
    let table = match key {
        Some(key) => pool.table_with_key(name, key),
        None => pool.table(name),
    };
    let reader = table.expect("a table").read(None, None).expect("a reader");
    reader.collect::<Result<_, _>>().expect("batches")
}

/// Returns the bytes of the one file of a table.
fn file_bytes(pool: &Pool, name: &str) -> Vec<u8> {
    let file = pool.open(&format!("{TABLE_PREFIX}{name}")).expect("opened");
    let mut bytes = vec![0; file.length() as usize];
    file.read_at(0, &mut bytes).expect("read");
    bytes
}

#[test]
fn any_batches_become_the_same_table_on_one_thread_and_on_several() {
    let key = TableKey::try_from(&[7u8; 16][..]).expect("16 bytes");
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let pool = pool(transport);
        let lengths = proptest::collection::vec(prop_oneof![0..300usize, 5_000..30_000usize], 1..7);
        let cases = (lengths, 1..100_000i64, 2..9usize, any::<bool>());
        let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&cases, |(lengths, spread, threads, is_encrypted)| {
            let batches = batches(&lengths, spread);
            let key = is_encrypted.then(|| key.clone());
            let one = PutOptions {
                key: key.clone(),
                replace: true,
                protection: Some(Protection::None),
                threads: 1,
                ..PutOptions::default()
            };
            put(&pool, "one", &batches, &one).expect("put");
            put(&pool, "several", &batches, &PutOptions { threads, ..one }).expect("put");
            let (expected, found) = (read(&pool, "one", key.as_ref()), read(&pool, "several", key.as_ref()));
            // The row groups have the same rows as well.
            prop_assert_eq!(&found, &expected);
            let ids = found.iter().flat_map(|batch| {
                let ids = batch.column(0).as_any().downcast_ref::<Int64Array>().expect("numbers");
                ids.values().to_vec()
            });
            prop_assert!(ids.eq(0..lengths.iter().sum::<usize>() as i64));
            if !is_encrypted {
                prop_assert!(file_bytes(&pool, "one") == file_bytes(&pool, "several"));
            }
            Ok(())
        });
        checked.unwrap_or_else(|failed| panic!("{transport:?}: {failed}"));
        for name in ["one", "several"] {
            pool.drop_table(name).expect("dropped");
        }
        nothing_held(&pool);
    }
}

#[test]
fn put_tells_of_all_rows_in_the_end_and_of_ever_more_until_then() {
    let pool = pool(TransportChoice::Tcp);
    let batches = batches(&[40_000; 5], 100);
    for threads in [1, 4] {
        let told: Arc<Mutex<Vec<Written>>> = Arc::default();
        let all = Arc::clone(&told);
        let progress = Progress::new(move |written| {
            all.lock().push(written);
            Ok(())
        });
        let options =
            PutOptions { replace: true, threads, progress: Some(progress), ..PutOptions::default() };
        put(&pool, "t", &batches, &options).expect("put");
        let told = told.lock();
        assert!(told.is_sorted_by(|one, next| one.rows < next.rows && one.bytes < next.bytes), "{told:?}");
        let table = pool.table("t").expect("a table");
        let bytes: u64 = table.row_groups().iter().map(|group| u64::from(group.bytes)).sum();
        let last = told.last().expect("told once at least");
        assert_eq!(last.rows, 200_000);
        assert!(last.bytes >= bytes && last.bytes <= table.bytes(), "{last:?}");
    }
}

#[test]
fn put_that_fails_in_the_middle_leaves_nothing() {
    let pool = pool(TransportChoice::Shm);
    let batches = batches(&[30_000; 6], 100);
    let stop = || Error::new(ErrorKind::Closed, "enough");
    for threads in [1, 2, 8] {
        let options = PutOptions { threads, ..PutOptions::default() };
        // The source of the batches fails.
        let source = batches.iter().cloned().map(Ok).chain([Err("the source is gone")]);
        let error = pool.put_table_with("t", batches[0].schema(), source, &options).expect_err("it fails");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("the source is gone"), "{error}");
        // A batch does not fit the others.
        let odd = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
        let mixed = batches.iter().cloned().chain(odd).map(Ok::<_, Error>);
        let error =
            pool.put_table_with("t", batches[0].schema(), mixed, &options).expect_err("other columns");
        assert!(error.to_string().contains("1 columns, but the table has 4"), "{error}");
        // Whoever watches it has seen enough.
        let progress = Some(Progress::new(move |_| Err(stop())));
        let error = put(&pool, "t", &batches, &PutOptions { progress, ..options }).expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("enough"), "{error}");
        assert!(pool.tables().expect("a list").is_empty());
        nothing_held(&pool);
    }
    // A panic of the source is that of the put.
    let options = PutOptions { threads: 2, ..PutOptions::default() };
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let source = batches.iter().cloned().chain(std::iter::once_with(|| panic!("the source panics")));
        pool.put_table_with("t", batches[0].schema(), source.map(Ok::<_, Error>), &options)
    }));
    assert!(panics.is_err());
    nothing_held(&pool);
}

#[test]
fn table_that_does_not_fit_the_pool_ends_its_put_and_leaves_nothing() {
    let mut options = EmbeddedOptions::new(8 * MIB);
    options.region_bytes = Some(MIB);
    let pool = Pool::embedded(options).expect("an embedded pool");
    let batches = batches(&[30_000; 6], 100);
    for threads in [1, 4] {
        let options = PutOptions { threads, ..PutOptions::default() };
        let error = put(&pool, "t", &batches, &options).expect_err("it does not fit");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        nothing_held(&pool);
    }
}

#[test]
fn threads_beyond_what_is_permitted_are_refused() {
    let pool = pool(TransportChoice::Tcp);
    let options = PutOptions { threads: 257, ..PutOptions::default() };
    let error = put(&pool, "t", &batches(&[1], 1), &options).expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("threads is 257; 1 to 256 are permitted"), "{error}");
}
