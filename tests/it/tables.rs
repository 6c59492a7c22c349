//! Tests of far tables: rows come back as they were put, each row group lies in one region, and other files are
//! refused as tables.

use crate::protected_files::Cluster;
use crate::published_files::nothing_held;
use arrow_array::builder::*;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use farpool::operators::{Agg, Literal, Scalar, Type, Value, col, lit};
use farpool::table::{Encoding, PutOptions, TABLE_PREFIX};
use farpool::{
    CreateOptions, EmbeddedOptions, Error, ErrorKind, FarTable, FileClass, IfTaken, Placement, Pool,
    PoolOptions, Protection, TransportChoice,
};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GROUP_ROWS: usize = 65_536;

fn pool_of(nodes: u32, region_mib: u64, transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(64 * MIB * u64::from(nodes));
    options.node_count = nodes;
    options.region_bytes = Some(region_mib * MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

fn another(pool: &Pool, transport: TransportChoice) -> Pool {
    let options = PoolOptions { transport, ..PoolOptions::default() };
    Pool::connect_with(pool.url(), options).expect("another session")
}

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let field = |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, array)| array).collect())
        .expect("a batch")
}

fn put(pool: &Pool, name: &str, batches: &[RecordBatch]) {
    try_put(pool, name, batches[0].schema(), batches.iter().cloned().map(Ok)).expect("put");
}

/// Puts a table, and replaces a table of the same name. Returns an error instead of panicking.
fn try_put(
    pool: &Pool,
    name: &str,
    schema: SchemaRef,
    batches: impl IntoIterator<Item = Result<RecordBatch, &'static str>>,
) -> Result<(), Error> {
    let options = PutOptions { replace: true, protection: Some(Protection::None), ..PutOptions::default() };
    pool.put_table_with(name, schema, batches, &options)
}

/// Returns the rows of all batches, each row as text.
fn rows(batches: impl IntoIterator<Item = RecordBatch>) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            rows.push(batch.columns().iter().map(|column| format!("{:?};", column.slice(row, 1))).collect());
        }
    }
    rows
}

fn read(table: &FarTable) -> Vec<RecordBatch> {
    table.read(None, None).expect("a reader").collect::<Result<_, _>>().expect("batches")
}

/// Asserts that two lists of batches have the same rows, however they are split into batches.
fn assert_same(found: &[RecordBatch], expected: &[RecordBatch]) {
    let count = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(count(found), count(expected));
    let mut at = (0, 0);
    for batch in expected {
        let mut from = 0;
        while from < batch.num_rows() {
            let other = &found[at.0];
            let rows = (batch.num_rows() - from).min(other.num_rows() - at.1);
            assert_eq!(other.slice(at.1, rows).columns(), batch.slice(from, rows).columns());
            from += rows;
            at = if at.1 + rows == other.num_rows() { (at.0 + 1, 0) } else { (at.0, at.1 + rows) };
        }
    }
}

fn kind<T>(result: Result<T, Error>) -> (ErrorKind, String) {
    let error = result.err().expect("an error");
    (error.kind(), error.to_string())
}

/// Returns a batch with a column of every type that tables can have, with or without nulls.
fn every_type(rows: usize, has_nulls: bool) -> RecordBatch {
    let is_set = |row: usize| !has_nulls || row % 3 != 1;
    let nulls = || has_nulls.then(|| (0..rows).map(is_set).collect::<NullBuffer>());
    fn numbers<T: ArrowPrimitiveType>(
        rows: usize,
        nulls: Option<NullBuffer>,
        of: impl Fn(usize) -> T::Native,
    ) -> PrimitiveArray<T> {
        PrimitiveArray::<T>::new((0..rows).map(of).collect::<Vec<_>>().into(), nulls)
    }
    let text = |row: usize| {
        is_set(row).then(|| if row.is_multiple_of(5) { String::new() } else { format!("größe {row}") })
    };
    let texts: Vec<Option<String>> = (0..rows).map(text).collect();
    let bytes = texts.iter().map(|text| text.as_ref().map(String::as_bytes));
    let mut fixed = FixedSizeBinaryBuilder::new(5);
    for row in 0..rows {
        match is_set(row) {
            true => fixed.append_value([row as u8; 5]).expect("five bytes"),
            false => fixed.append_null(),
        }
    }
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        (
            "boolean",
            Arc::new(BooleanArray::from_iter(
                (0..rows).map(|row| is_set(row).then_some(row.is_multiple_of(2))),
            )),
        ),
        ("int8", Arc::new(numbers::<Int8Type>(rows, nulls(), |row| row as i8))),
        ("int16", Arc::new(numbers::<Int16Type>(rows, nulls(), |row| row as i16))),
        ("int32", Arc::new(numbers::<Int32Type>(rows, nulls(), |row| -(row as i32)))),
        ("int64", Arc::new(numbers::<Int64Type>(rows, nulls(), |row| row as i64 - 7))),
        ("uint8", Arc::new(numbers::<UInt8Type>(rows, nulls(), |row| row as u8))),
        ("uint16", Arc::new(numbers::<UInt16Type>(rows, nulls(), |row| row as u16))),
        ("uint32", Arc::new(numbers::<UInt32Type>(rows, nulls(), |row| row as u32))),
        ("uint64", Arc::new(numbers::<UInt64Type>(rows, nulls(), |row| u64::MAX - row as u64))),
        ("float32", Arc::new(numbers::<Float32Type>(rows, nulls(), |row| row as f32 / 3.0))),
        ("float64", Arc::new(numbers::<Float64Type>(rows, nulls(), |row| -(row as f64)))),
        ("date32", Arc::new(numbers::<Date32Type>(rows, nulls(), |row| row as i32))),
        ("seconds", Arc::new(numbers::<TimestampSecondType>(rows, nulls(), |row| row as i64))),
        ("milliseconds", Arc::new(numbers::<TimestampMillisecondType>(rows, nulls(), |row| row as i64))),
        (
            "microseconds",
            Arc::new(
                numbers::<TimestampMicrosecondType>(rows, nulls(), |row| row as i64)
                    .with_timezone("Europe/Zurich"),
            ),
        ),
        ("nanoseconds", Arc::new(numbers::<TimestampNanosecondType>(rows, nulls(), |row| row as i64))),
        ("utf8", Arc::new(StringArray::from_iter(texts.iter().map(Option::as_deref)))),
        (
            "few",
            Arc::new(StringArray::from_iter(
                (0..rows).map(|row| is_set(row).then_some(["N", "R", "AIR"][row % 3])),
            )),
        ),
        ("binary", Arc::new(BinaryArray::from_iter(bytes))),
        ("fixed", Arc::new(fixed.finish())),
    ];
    let decimal = numbers::<Decimal128Type>(rows, nulls(), |row| (row as i128 - 50) << 40);
    let decimal = decimal.with_precision_and_scale(30, 4).expect("a decimal");
    columns.push(("decimal", Arc::new(decimal)));
    table(columns)
}

#[test]
fn table_of_every_type_comes_back_over_tcp_and_shared_memory() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let pool = pool_of(2, 16, transport);
        let reader = another(&pool, transport);
        for (name, has_nulls) in [("full", false), ("with nulls", true)] {
            let batch = every_type(1_000, has_nulls);
            put(&pool, name, std::slice::from_ref(&batch));
            let table = reader.table(name).expect("a table");
            assert_eq!(**table.schema(), *batch.schema());
            assert_eq!(table.rows(), 1_000);
            assert_same(&read(&table), &[batch]);
        }
        let names: Vec<String> =
            reader.tables().expect("a list").into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["full", "with nulls"]);
    }
}

#[test]
fn table_of_any_number_of_rows_comes_back_in_row_groups() {
    let pool = pool_of(2, 16, TransportChoice::Tcp);
    let all = every_type(GROUP_ROWS + 1, true);
    for (count, groups) in [(0, 0), (1, 1), (GROUP_ROWS, 1), (GROUP_ROWS + 1, 2)] {
        let batch = all.slice(0, count);
        put(&pool, "t", std::slice::from_ref(&batch));
        let table = pool.table("t").expect("a table");
        assert_eq!((table.rows(), table.row_groups().len()), (count as u64, groups));
        assert_same(&read(&table), &[batch]);
    }
    // Slices of columns at odd offsets, whose lengths do not fit the row groups of 65,536 rows.
    let batches: Vec<RecordBatch> =
        [(3, 1), (5, 0), (7, 40_001), (13, 50_000)].map(|(from, count)| all.slice(from, count)).to_vec();
    put(&pool, "t", &batches);
    assert_same(&read(&pool.table("t").expect("a table")), &batches);
}

#[test]
fn only_columns_and_row_groups_asked_for_are_fetched() {
    let pool = pool_of(2, 4, TransportChoice::Tcp);
    let numbers = Int64Array::from_iter_values(0..200_000);
    let wide = StringArray::from_iter_values((0..200_000).map(|row| format!("a text of some bytes {row}")));
    put(&pool, "t", &[table(vec![("wide", Arc::new(wide)), ("number", Arc::new(numbers))])]);
    let table = pool.table("t").expect("a table");
    let before = pool.stats().bytes_read;
    let found: Vec<RecordBatch> =
        table.read(Some(&[1]), Some(&[2, 0])).expect("a reader").collect::<Result<_, _>>().expect("batches");
    assert_eq!(pool.stats().bytes_read - before, 2 * 8 * GROUP_ROWS as u64);
    let first = |batch: &RecordBatch| {
        batch.column(0).as_any().downcast_ref::<Int64Array>().expect("numbers").value(0)
    };
    assert_eq!(found.iter().map(first).collect::<Vec<_>>(), [2 * GROUP_ROWS as i64, 0]);
    // A scan of no columns still returns the number of rows.
    let counted = table.read(Some(&[]), None).expect("a reader").map(|batch| batch.expect("rows").num_rows());
    assert_eq!(counted.sum::<usize>(), 200_000);
    assert_eq!(kind(table.read(Some(&[2]), None).map(drop)).0, ErrorKind::Invalid);
    assert_eq!(kind(table.read(None, Some(&[4])).map(drop)).0, ErrorKind::Invalid);
}

#[test]
fn row_group_lies_in_one_region_and_groups_on_all_nodes() {
    let pool = pool_of(3, 2, TransportChoice::Tcp);
    let numbers = Int64Array::from_iter_values(0..20 * GROUP_ROWS as i64);
    let batch = table(vec![("a", Arc::new(numbers.clone())), ("b", Arc::new(numbers))]);
    put(&pool, "t", std::slice::from_ref(&batch));
    let table = pool.table("t").expect("a table");
    let places: Vec<_> = (0..20).map(|group| table.place(group).expect("in one piece")).collect();
    assert!(places.iter().all(|place| place.offset.is_multiple_of(65_536)));
    for node in ["embedded-1", "embedded-2", "embedded-3"] {
        let count = places.iter().filter(|place| place.node == node).count();
        assert!(count >= 4, "{count} of 20 on {node}");
    }
    for group in table.row_groups() {
        let buffers = group.columns.iter().flat_map(|column| &column.buffers);
        assert!(buffers.clone().all(|buffer| (group.offset + u64::from(buffer.offset)).is_multiple_of(64)));
    }
    assert_same(&read(&table), &[batch]);
}

#[test]
fn row_groups_have_fewer_rows_where_regions_are_small() {
    let pool = pool_of(2, 1, TransportChoice::Tcp);
    let numbers = || Arc::new(Int64Array::from_iter_values(0..100_000)) as ArrayRef;
    let batch = table(["a", "b", "c", "d", "e"].map(|name| (name, numbers())).to_vec());
    put(&pool, "t", std::slice::from_ref(&batch));
    let far = pool.table("t").expect("a table");
    assert!(
        far.row_groups().iter().all(|group| u64::from(group.bytes) <= MIB && group.rows < GROUP_ROWS as u32)
    );
    assert!((0..far.row_groups().len()).all(|group| far.place(group).is_some()));
    assert_same(&read(&far), &[batch]);
    let giant = "x".repeat(2 * MIB as usize);
    let giant = table(vec![("s", Arc::new(StringArray::from(vec![giant.as_str()])))]);
    let (kind, message) = kind(try_put(&pool, "t", giant.schema(), [Ok(giant)]));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.contains("a row has 2097"), "{message}");
    assert_eq!(pool.table("t").expect("the one before").rows(), 100_000);
}

#[test]
fn repeated_texts_are_kept_once_and_statistics_bound_the_values() {
    let pool = pool_of(1, 16, TransportChoice::Tcp);
    let few = StringArray::from_iter_values((0..10_000).map(|row| format!("a mode of shipping {}", row % 7)));
    let many = StringArray::from_iter_values((0..10_000).map(|row| format!("{}{row}", "ä".repeat(40))));
    let float = Float64Array::from_iter_values(
        (0..10_000).map(|row| if row == 5 { f64::NAN } else { f64::from(row) }),
    );
    let batch = table(vec![("few", Arc::new(few)), ("many", Arc::new(many)), ("float", Arc::new(float))]);
    put(&pool, "t", std::slice::from_ref(&batch));
    let far = pool.table("t").expect("a table");
    let columns = &far.row_groups()[0].columns;
    assert_eq!((columns[0].encoding, columns[1].encoding), (Encoding::Dictionary, Encoding::Plain));
    let bounds = |index: usize| columns[index].statistics.clone().expect("statistics");
    let bytes = |text: &str| Value::Bytes(text.as_bytes().to_vec());
    assert_eq!(
        (bounds(0).min, bounds(0).max),
        (bytes("a mode of shipping 0"), bytes("a mode of shipping 6"))
    );
    assert_eq!(bounds(1).max, bytes(&"ä".repeat(32)));
    assert!(bounds(1).is_min_truncated && bounds(1).is_max_truncated && !bounds(0).is_max_truncated);
    assert_eq!((bounds(2).min, bounds(2).max), (Value::Float(0), Value::Float(9_999f64.to_bits())));
    assert!(bounds(2).has_nan);
    assert_eq!(rows(read(&far)), rows([batch]));
}

#[test]
fn large_text_is_kept_as_text() {
    let pool = pool_of(1, 16, TransportChoice::Tcp);
    let large = LargeStringArray::from(vec![Some("a"), None, Some("")]);
    put(&pool, "t", &[table(vec![("s", Arc::new(large))])]);
    let far = pool.table("t").expect("a table");
    assert_eq!(far.schema().field(0).data_type(), &DataType::Utf8);
    assert_same(
        &read(&far),
        &[table(vec![("s", Arc::new(StringArray::from(vec![Some("a"), None, Some("")])))])],
    );
}

fn number(value: i64) -> RecordBatch {
    table(vec![("n", Arc::new(Int64Array::from(vec![value])))])
}

/// Reads a table that was replaced or dropped, again and again. It returns its rows until the nodes free them, and then
/// an error whose text contains `why`.
fn until_gone(table: &FarTable, expected: &RecordBatch, why: &str) {
    for _ in 0..500 {
        match table.read(None, None).expect("a reader").next().expect("an item") {
            Ok(batch) => assert_eq!(batch, *expected),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Closed);
                assert!(error.to_string().contains(why), "{error}");
                return;
            }
        }
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    panic!("it can still be read");
}

#[test]
fn table_is_replaced_and_dropped_and_its_readers_are_told() {
    let pool = pool_of(2, 1, TransportChoice::Tcp);
    let reader = another(&pool, TransportChoice::Tcp);
    put(&pool, "t", &[number(1)]);
    let first = reader.table("t").expect("a table");
    put(&reader, "t", &[number(2)]);
    until_gone(&first, &number(1), "was replaced");
    let second = pool.table("t").expect("a table");
    assert_same(&read(&second), &[number(2)]);
    reader.drop_table("t").expect("dropped");
    until_gone(&second, &number(2), "was dropped");
    assert_eq!(kind(pool.table("t")).0, ErrorKind::NotFound);
    assert_eq!(kind(pool.drop_table("t")).0, ErrorKind::NotFound);
    assert!(pool.tables().expect("a list").is_empty());
    assert!(pool.list("").expect("a list").is_empty());
    nothing_held(&pool);
}

#[test]
fn table_that_there_is_stays_unless_it_is_to_be_replaced() {
    let pool = pool_of(1, 1, TransportChoice::Tcp);
    put(&pool, "t", &[number(1)]);
    let used = pool.stats().used_bytes;
    let never = std::iter::from_fn(|| panic!("a batch is asked for"));
    let (found, message) = kind(pool.put_table("t", number(2).schema(), never));
    assert_eq!(found, ErrorKind::Exists);
    assert!(message.contains("\"t\"") && message.contains("another name"), "{message}");
    // Another session puts a table of the same name while this one is still producing its batches.
    let other = another(&pool, TransportChoice::Tcp);
    let late = std::iter::once_with(|| {
        put(&other, "late", &[number(3)]);
        number(4)
    });
    let (found, message) = kind(pool.put_table("late", number(4).schema(), late));
    assert_eq!(found, ErrorKind::Exists);
    assert!(message.contains("\"late\"") && message.contains("another name"), "{message}");
    assert_same(&read(&pool.table("t").expect("the one before")), &[number(1)]);
    assert_same(&read(&pool.table("late").expect("the other one's")), &[number(3)]);
    other.drop_table("late").expect("dropped");
    assert_eq!(pool.stats().used_bytes, used);
}

#[test]
fn what_cannot_be_kept_is_refused_with_its_column_and_type() {
    let pool = pool_of(1, 1, TransportChoice::Tcp);
    let schema = |of: DataType| -> SchemaRef { Arc::new(Schema::new(vec![Field::new("odd", of, true)])) };
    for of in [
        DataType::Float16,
        DataType::Date64,
        DataType::Duration(TimeUnit::Second),
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Int64)),
        DataType::FixedSizeBinary(0),
    ] {
        let (kind, message) = kind(pool.put_table("t", schema(of.clone()), []));
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(message.contains("\"odd\"") && message.contains(&of.to_string()), "{message}");
    }
    assert_eq!(kind(pool.put_table("t", Arc::new(Schema::empty()), [])).0, ErrorKind::Invalid);
    // The batches have another schema.
    assert_eq!(kind(pool.put_table("t", schema(DataType::Utf8), [number(1)])).0, ErrorKind::Invalid);
    let strict = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let null = table(vec![("n", Arc::new(Int64Array::from(vec![None])))]);
    assert!(kind(pool.put_table("t", strict, [null])).1.contains("not nullable"));
    for name in ["", "a\nb", &"x".repeat(249)] {
        assert_eq!(kind(pool.put_table(name, number(1).schema(), [])).0, ErrorKind::Invalid);
        assert_eq!(kind(pool.table(name)).0, ErrorKind::Invalid);
    }
    assert_eq!(kind(pool.table("nowhere")).0, ErrorKind::NotFound);
    assert!(pool.list("").expect("a list").is_empty());
}

#[test]
fn file_that_is_no_table_is_refused_with_the_reason() {
    let pool = pool_of(1, 1, TransportChoice::Tcp);
    put(&pool, "good", &[number(1)]);
    let good = pool.open(&format!("{TABLE_PREFIX}good")).expect("opened");
    let mut bytes = vec![0; good.length() as usize];
    good.read_at(0, &mut bytes).expect("a read");
    let footer = bytes.len() - 40;
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (content, why) in [
        (vec![1; 10], "a trailer has 32"),
        (vec![0; 100], "no trailer of a far table"),
        (flipped(bytes.len() - 30), "checksum of its trailer"),
        (flipped(footer), "checksum of its footer"),
        (bytes[1..].to_vec(), "its trailer does not match its length"),
    ] {
        let name = format!("{TABLE_PREFIX}bad");
        let file = pool.create(&name, FileClass::Pinned, CreateOptions::default()).expect("created");
        file.write_at(0, &content).expect("a write");
        pool.publish(&name, IfTaken::Replace).expect("published");
        let (kind, message) = kind(pool.table("bad"));
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(message.contains("is not a far table") && message.contains(why), "{message}");
    }
    // One byte of a column was flipped, so that it does not match its checksum.
    let name = format!("{TABLE_PREFIX}damaged");
    let file = pool.create(&name, FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, &flipped(0)).expect("a write");
    pool.publish(&name, IfTaken::Refuse).expect("published");
    let damaged = pool.table("damaged").expect("its footer is good");
    let (kind, message) = kind(damaged.read(None, None).expect("a reader").next().expect("an item"));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(message.contains("checksum"), "{message}");
}

#[test]
fn lost_table_says_so_and_is_put_again_by_whoever_knows_how() {
    let mut cluster = Cluster::new(2);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    let batch = table(vec![("n", Arc::new(Int64Array::from_iter_values(0..4 * GROUP_ROWS as i64)))]);
    put(&pool, "t", std::slice::from_ref(&batch));
    let far = pool.table("t").expect("a table");
    let of_first = (0..4).filter(|group| far.place(*group).is_some_and(|place| place.node == "n1")).count();
    assert!((1..4).contains(&of_first), "{of_first} of 4 row groups on one node");
    cluster.lose_node(0);
    let lost = far.read(None, None).expect("a reader").find_map(Result::err).expect("an error");
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lost.to_string().contains("far table \"t\"") && lost.to_string().contains("n1"), "{lost}");
    let again = batch.clone();
    pool.rebuild_with(TABLE_PREFIX, move |pool, file| {
        let name = file.strip_prefix(TABLE_PREFIX).expect("a table");
        try_put(pool, name, again.schema(), [Ok(again.clone())])
    });
    assert_same(&read(&far), std::slice::from_ref(&batch));
    assert_same(&read(&pool.table("t").expect("built anew")), &[batch]);
}

#[test]
fn table_that_could_not_be_put_leaves_nothing() {
    let pool = pool_of(1, 1, TransportChoice::Tcp);
    put(&pool, "t", &[number(1)]);
    let used = pool.stats().used_bytes;
    let failing = [Ok(number(2)), Err("no more batches")];
    let (kind, message) = kind(try_put(&pool, "t", number(1).schema(), failing));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.contains("no more batches"), "{message}");
    assert_eq!(pool.stats().used_bytes, used);
    assert_same(&read(&pool.table("t").expect("the one before")), &[number(1)]);
}

#[test]
fn query_reads_only_row_groups_that_may_have_its_rows() {
    let pool = pool_of(2, 16, TransportChoice::Tcp);
    let days = Date32Array::from_iter_values((0..300_000).map(|row| row / 1_000));
    let prices = Int64Array::from_iter_values(0..300_000);
    put(&pool, "t", &[table(vec![("day", Arc::new(days)), ("price", Arc::new(prices))])]);
    let far = pool.table("t").expect("a table");
    let day = |value: i128| Literal::Scalar(Scalar { of: Type::Date, value: Some(Value::Integer(value)) });
    let of_days = col("day").between(lit(day(200)), lit(day(201)));
    let query = far.query().expect("a query").filter(of_days);
    let plan = query.group_by([], [("sum".to_owned(), Agg::Sum(col("price")))]).plan().expect("a plan");
    let before = pool.stats();
    let found = far.run(&plan, Placement::Fetch).expect("a result").batches;
    let sum = found[0].column(0).as_primitive::<Decimal128Type>().value(0);
    assert_eq!(sum, (200_000..202_000).sum());
    let after = pool.stats();
    assert_eq!(after.row_groups_read - before.row_groups_read, 1);
    assert_eq!(after.row_groups_skipped - before.row_groups_skipped, 4);
    assert_eq!(after.bytes_read - before.bytes_read, 65_536 * (4 + 8));
}
