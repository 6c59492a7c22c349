//! Statements that change far tables: they do to a table what they do to a list of its rows, read no more than may
//! change, and leave everything as it was if they fail.

use crate::canonical;
use crate::joins::Random;
use crate::pools::soon;
use arrow::array::{Array, AsArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt64Type};
use farpool::table::PutOptions;
use farpool::{EmbeddedOptions, Pool, PoolOptions, TableKey};
use farpool_datafusion::{FarSession, Options};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Number of rows of a table of several row groups.
const ROWS: i64 = 140_000;

/// Row of the model: `id`, `part`, `word`.
type Row = (i64, Option<i32>, Option<String>);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("part", DataType::Int32, true),
        Field::new("word", DataType::Utf8, true),
    ]))
}

fn row(id: i64) -> Row {
    (id, (id % 5 != 0).then_some((id % 11) as i32), (id % 7 != 0).then(|| format!("word {}", id % 13)))
}

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: [Arc<dyn Array>; 3] = [
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.1))),
        Arc::new(StringArray::from_iter(rows.iter().map(|row| row.2.as_deref()))),
    ];
    RecordBatch::try_new(schema(), columns.to_vec()).expect("a batch")
}

fn pool() -> Pool {
    let mut options = EmbeddedOptions::new(256 << 20);
    options.node_count = 2;
    options.region_bytes = Some(4 << 20);
    Pool::embedded(options).expect("an embedded pool")
}

fn session(pool: &Pool) -> FarSession {
    FarSession::new(pool, Options::default()).expect("a session")
}

async fn rows(session: &FarSession, sql: &str) -> Result<Vec<RecordBatch>, String> {
    let said = |error: datafusion::error::DataFusionError| error.strip_backtrace();
    soon(async { session.sql(sql).await.map_err(said)?.collect().await.map_err(said) }).await
}

/// Runs a statement. Returns how many rows it says that it has changed.
async fn run(session: &FarSession, sql: &str) -> Result<u64, String> {
    let batches = rows(session, sql).await?;
    let count = batches.first().expect("a row").column(0);
    Ok(count.as_primitive_opt::<UInt64Type>().expect("a count").value(0))
}

/// Returns the rows of a query as text, sorted.
async fn texts(session: &FarSession, sql: &str) -> Vec<String> {
    let batches = rows(session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let rows = canonical::rows(&batches).expect("types with a text");
    let mut texts: Vec<String> = rows.into_iter().map(|row| row.join("|")).collect();
    texts.sort_unstable();
    texts
}

fn texts_of(rows: &[Row]) -> Vec<String> {
    let rows = canonical::rows(&[batch(rows)]).expect("types with a text");
    let mut texts: Vec<String> = rows.into_iter().map(|row| row.join("|")).collect();
    texts.sort_unstable();
    texts
}

/// Condition on a row: `None` if it is NULL.
type Condition = Box<dyn Fn(&Row) -> Option<bool>>;

/// Condition in SQL, and for a row of the model. `None`: it is unknown.
fn condition(random: &mut Random) -> (String, Condition) {
    let at = random.below(ROWS as u64) as i64;
    let part = random.below(12) as i32;
    match random.below(8) {
        0 => (format!("id BETWEEN {at} AND {}", at + 500), {
            Box::new(move |row| Some((at..=at + 500).contains(&row.0)))
        }),
        1 => (format!("part = {part}"), Box::new(move |row| row.1.map(|of| of == part))),
        2 => (format!("NOT part = {part} AND id < {at}"), {
            Box::new(move |row| match row.1.map(|of| of != part) {
                None if row.0 >= at => Some(false),
                other => other.map(|other| other && row.0 < at),
            })
        }),
        3 => ("part IS NULL AND word IS NULL".to_owned(), {
            Box::new(|row| Some(row.1.is_none() && row.2.is_none()))
        }),
        4 => (format!("word = 'word {part}' OR id = {at}"), {
            Box::new(move |row| match row.2.as_ref().map(|word| *word == format!("word {part}")) {
                Some(true) => Some(true),
                other => {
                    if row.0 == at {
                        Some(true)
                    } else {
                        other.map(|_| false)
                    }
                }
            })
        }),
        5 => (format!("part IN (SELECT part FROM others WHERE part < {part})"), {
            Box::new(move |row| row.1.map(|of| of < part.min(6)))
        }),
        // The other table has a NULL, so it is true for no row.
        6 => ("part NOT IN (SELECT part FROM others)".to_owned(), {
            Box::new(|row| row.1.and_then(|of| (of < 6).then_some(false)))
        }),
        _ => (format!("id + (SELECT max(part) FROM others) > {}", ROWS - 1_000 + i64::from(part)), {
            Box::new(move |row| Some(row.0 + 5 > ROWS - 1_000 + i64::from(part)))
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_do_to_a_table_what_they_do_to_a_list_of_rows() {
    for seed in 0..3 {
        let mut random = Random(seed);
        let pool = pool();
        let session = session(&pool);
        let mut model: Vec<Row> = (0..ROWS).map(row).collect();
        pool.put_table("t", schema(), [batch(&model)]).expect("put");
        let parts: Vec<Row> = (0..6).map(|part| (0, Some(part), None)).chain([(0, None, None)]).collect();
        pool.put_table("others", schema(), [batch(&parts)]).expect("put");
        for _ in 0..12 {
            let (sql, is_true) = condition(&mut random);
            let is_true = |row: &Row| is_true(row) == Some(true);
            let wanted = model.iter().filter(|row| is_true(row)).count() as u64;
            let statement = match random.below(3) {
                kind if kind == 0 || kind == 1 && sql.contains("SELECT") => {
                    model.retain(|row| !is_true(row));
                    format!("DELETE FROM t WHERE {sql}")
                }
                2 => {
                    for row in model.iter_mut().filter(|row| is_true(row)) {
                        (row.1, row.2) = (row.1.map(|part| part + 1), Some(format!("now {}", row.0 % 3)));
                    }
                    let word = "concat('now ', CAST(id % 3 AS VARCHAR))";
                    format!("UPDATE t SET word = {word}, part = part + 1 WHERE {sql}")
                }
                _ => {
                    let more: Vec<Row> = model.iter().filter(|row| is_true(row)).cloned().collect();
                    model.extend(more);
                    format!("INSERT INTO t SELECT * FROM t WHERE {sql}")
                }
            };
            assert_eq!(run(&session, &statement).await, Ok(wanted), "seed {seed}: {statement}");
            assert!(texts(&session, "SELECT * FROM t").await == texts_of(&model), "seed {seed}: {statement}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_an_insert_does_not_name_are_null_unless_they_must_not_be() {
    let pool = pool();
    let session = session(&pool);
    pool.put_table("t", schema(), [batch(&[row(1)])]).expect("put");
    assert_eq!(run(&session, "INSERT INTO t (word, id) VALUES ('a', 7), ('b', 8)").await, Ok(2));
    assert_eq!(
        texts(&session, "SELECT * FROM t WHERE id > 6").await,
        ["7|NULL|a", "8|NULL|b"],
        "the others are NULL"
    );
    let error = run(&session, "INSERT INTO t (word) VALUES ('a')").await.expect_err("no id");
    assert!(error.contains("\"id\"") && error.contains("null"), "{error}");
    let error = run(&session, "UPDATE t SET id = NULL WHERE id = 7").await.expect_err("no id");
    assert!(error.contains("id") && error.contains("null"), "{error}");
    assert_eq!(texts(&session, "SELECT count(*) FROM t").await, ["3"]);
    assert_eq!(pool.table("t").expect("opened").snapshot(), Some(1), "nothing has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_reads_only_row_groups_that_may_change() {
    let pool = pool();
    let session = session(&pool);
    let many: Vec<Row> = (0..ROWS).map(row).collect();
    pool.put_table("t", schema(), [batch(&many)]).expect("put");
    let groups = pool.table("t").expect("opened").row_groups().len() as u64;
    assert!(groups > 1);
    for part in 0..10 {
        let rows = (0..3).map(|id| format!("({}, 1, 'x')", 1_000_000 * (part + 1) + id));
        let sql = format!("INSERT INTO t VALUES {}", rows.collect::<Vec<_>>().join(", "));
        assert_eq!(run(&session, &sql).await, Ok(3));
    }
    let before = pool.stats();
    assert_eq!(run(&session, "DELETE FROM t WHERE id = 3000001").await, Ok(1));
    let after = pool.stats();
    assert_eq!(after.row_groups_read - before.row_groups_read, 1, "that of the file with the row");
    assert_eq!(after.row_groups_skipped - before.row_groups_skipped, groups + 9);
    let history = pool.table_history("t").expect("listed");
    assert_eq!(history[0].summary, "delete 1 rows");
    // Row groups that did not change are in the files that had them before.
    let before = pool.table_snapshot("t", 10, None).expect("kept").files().expect("listed");
    let now = pool.table_snapshot("t", 11, None).expect("kept").files().expect("listed");
    assert_eq!(now.iter().filter(|file| before.contains(file)).count(), 10);
    assert_eq!(run(&session, "DELETE FROM t WHERE id >= 1000000").await, Ok(29));
    let left = pool.table_snapshot("t", 12, None).expect("kept");
    assert_eq!(
        (left.totals().files, left.totals().rows),
        (1, ROWS as u64),
        "files without row groups are gone"
    );
    assert_eq!(run(&session, "TRUNCATE TABLE t").await, Ok(ROWS as u64));
    assert_eq!(texts(&session, "SELECT count(*) FROM t").await, ["0"]);
    assert_eq!(texts(&session, "SELECT count(*) FROM t AS OF SNAPSHOT 12").await, [ROWS.to_string()]);
    let sql = "INSERT INTO t SELECT * FROM t AS OF SNAPSHOT 12 WHERE t.id < 10";
    assert_eq!(run(&session, sql).await, Ok(10));
    assert_eq!(texts(&session, "SELECT max(id) FROM t").await, ["9"]);
    assert_eq!(run(&session, "DELETE FROM t").await, Ok(10));
    assert_eq!(run(&session, "DELETE FROM t").await, Ok(0));
    assert_eq!(pool.table("t").expect("opened").snapshot(), Some(15), "the last one has changed nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_by_name_and_nothing_changes() {
    let pool = pool();
    let session = session(&pool);
    let before: Vec<Row> = (0..1_000).map(row).collect();
    pool.put_table("t", schema(), [batch(&before)]).expect("put");
    pool.put_table("others", schema(), [batch(&before[..10])]).expect("put");
    for (sql, why) in [
        ("DELETE FROM t WHERE id IN (SELECT id FROM t WHERE id > 5)", "reads t, which the statement changes"),
        (
            "DELETE FROM t WHERE EXISTS (SELECT 1 FROM others WHERE others.id = t.id)",
            "refers to columns of the changed",
        ),
        ("UPDATE t SET part = others.part FROM others WHERE t.id = others.id", "FROM is not supported"),
        ("UPDATE t SET part = (SELECT part FROM others)", "more than one row"),
        ("UPDATE t SET part = 3000000000", "Cast error"),
        ("UPDATE t SET nothing = 1", "nothing"),
        ("DELETE FROM t WHERE 1 / (id - 3) > 0", "ivide by zero"),
        ("DELETE FROM t LIMIT 1", "LIMIT"),
        ("INSERT INTO t SELECT id FROM others", "olumn count"),
        ("REPLACE INTO t SELECT * FROM others", "no keys"),
        ("SELECT * FROM t AS OF SNAPSHOT 1", "snapshot 1 has ended, or never was"),
        ("SELECT * FROM t AS OF SNAPSHOT 0", "1 or more"),
        ("SELECT * FROM missing AS OF SNAPSHOT 1", "missing AS OF SNAPSHOT 1"),
    ] {
        let error = rows(&session, sql).await.expect_err(sql);
        assert!(error.contains(why), "{sql}: {error}");
    }
    assert_eq!(texts(&session, "SELECT * FROM t").await, texts_of(&before));
    assert_eq!(pool.table("t").expect("opened").snapshot(), None);
    assert_eq!(run(&session, "DELETE FROM t WHERE id = 1").await, Ok(1));
    for sql in ["DELETE FROM ?", "INSERT INTO ? VALUES (1, 1, 'a')", "TRUNCATE TABLE ?"] {
        let sql = &sql.replace('?', "\"t AS OF SNAPSHOT 1\"");
        let error = rows(&session, sql).await.expect_err(sql);
        assert!(error.contains("earlier snapshot"), "{sql}: {error}");
    }
}

/// A shell drops the future of a statement when the user presses Ctrl-C. The rows that it had so far were then
/// committed.
#[test]
fn statement_that_is_given_up_adds_no_rows() {
    let pool = pool();
    pool.put_table("t", schema(), [batch(&[row(1)])]).expect("put");
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(soon(async {
        let session = session(&pool);
        let begun = async {
            while session.written().is_none_or(|written| written.rows == 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let endless =
            "INSERT INTO t SELECT value, NULL AS part, NULL AS word FROM generate_series(1, 1000000000000)";
        tokio::select! {
            ended = session.sql(endless) => panic!("it ended: {:?}", ended.err()),
            () = begun => {}
        }
    }));
    // The runtime waits for the thread that writes.
    drop(runtime);
    assert_eq!(pool.table("t").expect("opened").rows(), 1);
    assert!(pool.table_history("t").expect("listed").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_table_has_the_new_rows_and_its_snapshots_those_before() {
    let pool = pool();
    let session = session(&pool);
    rows(&session, "CREATE TABLE t AS SELECT 1 AS a, 'x' AS b").await.expect("made");
    assert_eq!(run(&session, "INSERT INTO t VALUES (2, 'y')").await, Ok(1));
    rows(&session, "CREATE OR REPLACE TABLE t AS SELECT a + 10 AS a FROM t").await.expect("replaced");
    assert_eq!(texts(&session, "SELECT * FROM t").await, ["11", "12"]);
    assert_eq!(texts(&session, "SELECT b FROM t AS OF SNAPSHOT 1").await, ["x", "y"]);
    let other = Pool::connect_with(pool.url(), PoolOptions::default()).expect("another session");
    let history = other.table_history("t").expect("listed");
    let said: Vec<&str> = history.iter().map(|entry| entry.summary.as_str()).collect();
    assert_eq!(said, ["replace with 2 rows", "append 1 rows"]);
    assert_eq!(other.roll_back_table("t", 1, &Default::default()).expect("rolled back").snapshot, 3);
    assert_eq!(texts(&session, "SELECT * FROM t ORDER BY a").await, ["1|x", "2|y"]);
    let found = other.table("t").expect("opened").read(None, None).expect("a reader");
    let ids: Vec<i64> = found
        .flat_map(|batch| batch.expect("rows").column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert_eq!(ids, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_is_never_a_table_of_another_name_and_is_not_dropped() {
    let pool = pool();
    let session = session(&pool);
    rows(&session, "CREATE TABLE o AS SELECT 1 AS x").await.expect("made");
    run(&session, "INSERT INTO o VALUES (2)").await.expect("added");
    run(&session, "INSERT INTO o VALUES (3)").await.expect("added");
    for other in ["o@1", "AS OF SNAPSHOT 1"] {
        rows(&session, &format!("CREATE TABLE \"{other}\" AS SELECT 666 AS x")).await.expect("made");
    }
    assert_eq!(texts(&session, "SELECT * FROM o AS OF SNAPSHOT 1").await, ["1", "2"]);
    let error = rows(&session, "CREATE TABLE \"o AS OF SNAPSHOT 1\" AS SELECT 666 AS x").await;
    assert!(error.is_err_and(|error| error.contains("choose another name")));
    let error = rows(&session, "DROP TABLE \"o AS OF SNAPSHOT 1\"").await;
    assert!(error.is_err_and(|error| error.contains("cannot be dropped")));
    assert_eq!(texts(&session, "SELECT * FROM o AS OF SNAPSHOT 1").await, ["1", "2"]);
    let error = rows(&session, "SELECT * FROM none AS OF SNAPSHOT 1").await;
    assert!(error.is_err_and(|error| error.contains("none AS OF SNAPSHOT 1' not found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_tables_are_listed_with_their_columns_and_their_rows_need_the_key() {
    let pool = pool();
    let session = session(&pool);
    let key = Some(TableKey::new([7; 16]));
    let options = PutOptions { key, ..PutOptions::default() };
    let some: Vec<Row> = (0..10).map(row).collect();
    for name in ["one_file", "changed"] {
        let batches = [Ok::<_, Infallible>(batch(&some))];
        pool.put_table_with(name, schema(), batches, &options).expect("put");
    }
    let batches = [Ok::<_, Infallible>(batch(&some))];
    pool.append_to_table("changed", schema(), batches, &options).expect("appended");
    for name in ["one_file", "changed"] {
        let sql = format!("SELECT column_name FROM information_schema.columns WHERE table_name = '{name}'");
        assert_eq!(texts(&session, &sql).await, ["id", "part", "word"]);
        let error = rows(&session, &format!("SELECT * FROM {name}")).await.expect_err("no key");
        assert!(error.contains(name) && error.contains("key"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_far_tables_do_not_support_are_refused() {
    let pool = pool();
    let session = session(&pool);
    for (column, why) in
        [("INT PRIMARY KEY", "UNIQUE"), ("INT UNIQUE", "UNIQUE"), ("INT DEFAULT 5", "DEFAULT")]
    {
        let error = rows(&session, &format!("CREATE TABLE t (a {column})")).await.expect_err(column);
        assert!(error.contains(why), "{column}: {error}");
    }
    assert!(!pool.has_table("t").expect("asked"));
    rows(&session, "CREATE TABLE t (a INT, b INT)").await.expect("made");
    for (sql, why) in [
        ("UPDATE t SET a = 1, b = 2, a = 3", "column a more than once"),
        ("EXPLAIN DELETE FROM t WHERE a = 1", "explain a SELECT"),
        ("EXPLAIN ANALYZE INSERT INTO t VALUES (1, 2)", "explain a SELECT"),
    ] {
        let error = rows(&session, sql).await.expect_err(sql);
        assert!(error.contains(why), "{sql}: {error}");
    }
    assert_eq!(texts(&session, "SELECT * FROM t").await, [""; 0]);
}
