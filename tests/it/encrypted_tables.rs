//! Tests of encrypted far tables: queries return the same rows wherever they run. They fail with another key, or after
//! a change of any byte of the table's file.

use crate::protected_files::Cluster;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Float64Array, Int64Array, RecordBatch, StringArray};
use farpool::operators::{Agg, Query, col};
use farpool::table::{PutOptions, TABLE_PREFIX};
use farpool::{
    CreateOptions, EmbeddedOptions, Error, ErrorKind, FarTable, FileClass, IfTaken, Placement, Pool,
};
use farpool::{Protection, TableKey, TransportChoice};
use std::convert::Infallible;
use std::sync::Arc;

const ROWS: i64 = 150_000;
const KEY: [u8; 16] = *b"sixteen bytes..!";

fn key() -> TableKey {
    TableKey::new(KEY)
}

/// Returns a batch of four columns: numbers, texts with few and with many distinct values, and floats with nulls.
fn batch() -> RecordBatch {
    let numbers = 0..ROWS;
    let shop: StringArray =
        numbers.clone().map(|n| (n % 7 != 0).then(|| format!("shop {}", n % 5))).collect();
    let note: StringArray = numbers.clone().map(|n| Some(format!("note {n}"))).collect();
    let price: Float64Array = numbers.clone().map(|n| (n % 11 != 3).then_some((n % 250) as f64)).collect();
    let item = Int64Array::from_iter_values(numbers.map(|n| n * 7_919 % 1_000));
    RecordBatch::try_from_iter([
        ("shop", Arc::new(shop) as _),
        ("item", Arc::new(item) as _),
        ("price", Arc::new(price) as _),
        ("note", Arc::new(note) as _),
    ])
    .expect("a batch")
}

fn put(pool: &Pool, name: &str, key: Option<TableKey>) {
    let batch = batch();
    let batches = [Ok::<_, Infallible>(batch.clone())];
    let protection = Some(Protection::None);
    let options = PutOptions { key, replace: true, protection, ..PutOptions::default() };
    pool.put_table_with(name, batch.schema(), batches, &options).expect("put");
}

fn pools() -> Vec<Pool> {
    let open = |transport| {
        let mut options = EmbeddedOptions::new(256 << 20);
        options.node_count = 2;
        options.pool.transport = transport;
        Pool::embedded(options).expect("an embedded pool")
    };
    [TransportChoice::Tcp, TransportChoice::Shm].map(open).into()
}

fn grouping(table: &FarTable) -> farpool::operators::Plan {
    let query = table.query().expect("known types");
    let query = query.filter(col("item").lt(500)).group_by(
        [("shop".to_owned(), col("shop"))],
        [("total".to_owned(), Agg::Sum(col("price"))), ("rows".to_owned(), Agg::Rows)],
    );
    query.plan().expect("a plan")
}

fn kind<T>(result: Result<T, Error>) -> (ErrorKind, String) {
    let error = result.err().expect("an error");
    (error.kind(), error.to_string())
}

#[test]
fn encrypted_table_has_the_same_rows_fetched_shipped_split_and_with_encrypted_answers() {
    for pool in pools() {
        put(&pool, "plain", None);
        put(&pool, "secret", Some(key()));
        let plain = pool.table("plain").expect("a table");
        let encrypted = pool.table_with_key("secret", &key()).expect("its key");
        assert!(encrypted.is_encrypted() && !plain.is_encrypted());
        assert_eq!(
            encrypted.row_groups()[0].columns[1].statistics,
            plain.row_groups()[0].columns[1].statistics
        );
        let rows: fn(Query) -> Query = |query| query.filter(col("item").eq(7));
        let rows = |table: &FarTable| rows(table.query().expect("known types")).plan().expect("a plan");
        for plan in [grouping(&plain), rows(&plain)] {
            let expected = plain.run(&plan, Placement::Fetch).expect("a result").batches;
            for table in [encrypted.clone(), encrypted.clone().encrypting_answers()] {
                for placement in Placement::FIXED {
                    let answer = table.run(&plan, placement).expect("a result");
                    assert_eq!(answer.batches, expected, "{placement}: {}", answer.report);
                    assert_eq!(answer.report.refusals, vec![], "{placement}");
                    let shipped = answer.report.shipped;
                    assert!(
                        placement != Placement::Ship || shipped == table.row_groups().len(),
                        "{}",
                        answer.report
                    );
                }
            }
        }
        let read: Result<Vec<_>, _> = encrypted.read(None, None).expect("a reader").collect();
        let (read, batch) = (read.expect("batches"), batch());
        let mut from = 0;
        for part in read {
            assert_eq!(part.columns(), batch.slice(from, part.num_rows()).columns());
            from += part.num_rows();
        }
        assert_eq!(from, batch.num_rows());
    }
}

#[test]
fn answers_of_a_table_that_is_not_encrypted_can_be_encrypted_too() {
    for pool in pools() {
        put(&pool, "plain", None);
        let table = pool.table("plain").expect("a table").encrypting_answers();
        let plan = grouping(&table);
        let fetched = table.run(&plan, Placement::Fetch).expect("a result").batches;
        let shipped = table.run(&plan, Placement::Ship).expect("a result");
        assert_eq!(shipped.batches, fetched);
        assert_eq!((shipped.report.fetched, shipped.report.refusals), (0, vec![]));
    }
}

#[test]
fn wrong_and_missing_keys_name_the_table_and_nothing_is_read() {
    let pool = &pools()[0];
    put(pool, "secret", Some(key()));
    put(pool, "plain", None);
    let (wrong, message) = kind(pool.table_with_key("secret", &TableKey::new([0; 16])));
    assert_eq!(wrong, ErrorKind::Invalid);
    assert!(message.contains("\"secret\"") && message.contains("the key is wrong"), "{message}");
    assert!(!message.contains("sixteen"), "{message}");
    let (wrong, message) = kind(pool.table_with_key("plain", &key()));
    assert!(wrong == ErrorKind::Invalid && message.contains("not encrypted"), "{message}");
    // The schema and the number of rows are visible without the key. Values, and statistics of them, are not.
    let closed = pool.table("secret").expect("what it says of itself");
    assert_eq!((closed.rows(), closed.schema().fields().len()), (ROWS as u64, 4));
    let statistics = |group: &farpool::table::RowGroup| group.columns.iter().any(|c| c.statistics.is_some());
    assert!(!closed.row_groups().iter().any(statistics));
    for failed in [kind(closed.read(None, None)), kind(closed.query())] {
        assert!(failed.0 == ErrorKind::Invalid && failed.1.contains("\"secret\" is encrypted"), "{failed:?}");
    }
    let open = pool.table("plain").expect("a table");
    let (refused, message) = kind(closed.run(&grouping(&open), Placement::Ship));
    assert!(refused == ErrorKind::Invalid && message.contains("is encrypted"), "{message}");
}

/// Returns the bytes of a table's file.
fn bytes_of(pool: &Pool, name: &str) -> Vec<u8> {
    let file = pool.open(&format!("{TABLE_PREFIX}{name}")).expect("opened");
    let mut bytes = vec![0; file.length() as usize];
    file.read_at(0, &mut bytes).expect("a read");
    bytes
}

fn publish(pool: &Pool, name: &str, bytes: &[u8]) {
    let name = format!("{TABLE_PREFIX}{name}");
    let file = pool.create(&name, FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, bytes).expect("a write");
    pool.publish(&name, IfTaken::Replace).expect("published");
}

#[test]
fn no_value_or_bound_lies_in_an_encrypted_file() {
    let pool = &pools()[0];
    put(pool, "plain", None);
    put(pool, "secret", Some(key()));
    let holds = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    for value in [&b"shop 4"[..], b"note 99999", &991i64.to_le_bytes(), &249f64.to_le_bytes()] {
        assert!(holds(&bytes_of(pool, "plain"), value), "{value:?}");
        assert!(!holds(&bytes_of(pool, "secret"), value), "{value:?}");
    }
    // When the same table is put again with the same key, none of its ciphertext is the same.
    let before = bytes_of(pool, "secret");
    put(pool, "secret", Some(key()));
    let group = pool.table("secret").expect("a table").row_groups()[0].clone();
    let buffer = group.columns[1].buffers[0];
    let range = buffer.offset as usize..(buffer.offset + buffer.bytes) as usize;
    assert_ne!(before[range.clone()], bytes_of(pool, "secret")[range]);
}

#[test]
fn changed_and_swapped_buffers_and_footers_are_refused_in_all_modes() {
    for pool in pools() {
        put(&pool, "secret", Some(key()));
        let table = pool.table_with_key("secret", &key()).expect("its key");
        let bytes = bytes_of(&pool, "secret");
        let at = |group: usize, column: usize| {
            let group = &table.row_groups()[group];
            let buffer = *group.columns[column].buffers.last().expect("one");
            let start = (group.offset + u64::from(buffer.offset)) as usize;
            start..start + buffer.bytes as usize + 16
        };
        let flipped = |place: usize| {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x10;
            bytes
        };
        let item = at(0, 1);
        let mut swapped = bytes.clone();
        swapped[item.clone()].copy_from_slice(&bytes[at(1, 1)]);
        for changed in
            [flipped(item.start), flipped(item.end - 1), flipped(item.start + 200_000), swapped.clone()]
        {
            publish(&pool, "changed", &changed);
            let changed = pool.table_with_key("changed", &key()).expect("its footer is as it was");
            let sum = changed
                .query()
                .expect("known types")
                .group_by([], [("total".to_owned(), Agg::Sum(col("item")))]);
            let sum = sum.plan().expect("a plan");
            for placement in Placement::FIXED {
                let (refused, message) = kind(changed.run(&sum, placement));
                assert_eq!(refused, ErrorKind::Refused, "{placement}: {message}");
                assert!(
                    message.contains("\"changed\"")
                        && message.contains("were not encrypted for this position with this key")
                );
            }
        }
        // The footer is changed too, with correct checksums: it says that the first row group has one more null.
        let mut bytes = bytes.clone();
        let trailer = bytes.len() - 32;
        let start = u64::from_le_bytes(bytes[trailer..][..8].try_into().expect("8 bytes")) as usize;
        bytes[start + 40] ^= 1;
        let crc = crc32c(&bytes[start..trailer]);
        bytes[trailer + 12..][..4].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c(&bytes[trailer..][..20]);
        bytes[trailer + 20..][..4].copy_from_slice(&crc.to_le_bytes());
        publish(&pool, "changed", &bytes);
        let (_, message) = kind(pool.table_with_key("changed", &key()));
        assert!(message.contains("footer"), "{message}");
    }
}

/// Computes the checksum CRC32C bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1)))
    })
}

#[test]
fn lost_node_leaves_an_error_and_never_a_wrong_answer_and_the_table_is_put_again() {
    let mut cluster = Cluster::new(2);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    put(&pool, "secret", Some(key()));
    let table = pool.table_with_key("secret", &key()).expect("its key");
    let plan = grouping(&table);
    let expected = table.run(&plan, Placement::Fetch).expect("a result").batches;
    cluster.lose_node(0);
    for placement in Placement::FIXED {
        let (lost, message) = kind(table.run(&plan, placement));
        assert_eq!(lost, ErrorKind::Lost, "{message}");
    }
    let again = batch();
    pool.rebuild_with(TABLE_PREFIX, move |pool, file| {
        let name = file.strip_prefix(TABLE_PREFIX).expect("a table");
        let batches = [Ok::<_, Infallible>(again.clone())];
        pool.put_table_with(
            name,
            again.schema(),
            batches,
            &PutOptions { key: Some(key()), replace: true, ..PutOptions::default() },
        )
    });
    // The table of this name was replaced by one with another salt. A reader that opened the old one must get an error.
    let (_, message) = kind(table.run(&plan, Placement::Split));
    assert!(message.contains("secret"), "{message}");
    let table = pool.table_with_key("secret", &key()).expect("built anew");
    for placement in Placement::FIXED {
        assert_eq!(table.run(&plan, placement).expect("a result").batches, expected, "{placement}");
    }
    let rows = expected[0].column(2).as_primitive::<Int64Type>().values().iter().sum::<i64>();
    assert_eq!(rows, ROWS / 2);
}
