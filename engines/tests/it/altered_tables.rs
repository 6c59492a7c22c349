//! `ALTER TABLE` of far tables: what the statement changes, which forms it refuses, and that queries over the table
//! answer alike wherever they run.

use crate::PLACEMENTS;
use crate::plans::lines;
use crate::pools::soon;
use farpool::{EmbeddedOptions, Pool};
use farpool_datafusion::{FarSession, Options, parse_sql};

fn session(pool: &Pool, placement: &str) -> FarSession {
    let placement = placement.parse().expect("a placement");
    let options = Options { placement, ..Options::default() };
    FarSession::new(pool, options).expect("a session")
}

/// Runs statements. Returns the lines of the last one.
async fn run(session: &FarSession, sql: &str) -> Result<Vec<String>, String> {
    let run = async {
        let mut rows = Vec::new();
        for statement in parse_sql(sql)? {
            rows = session.run(statement).await?.collect().await?;
        }
        Ok(rows)
    };
    let rows: datafusion::common::Result<Vec<_>> = soon(run).await;
    rows.map(|batches| lines(&batches)).map_err(|error| error.strip_backtrace())
}

#[tokio::test(flavor = "multi_thread")]
async fn altered_table_has_null_in_new_columns_and_its_values_in_wider_ones_in_all_placements() {
    let pool = Pool::embedded(EmbeddedOptions::new(256 << 20)).expect("an embedded pool");
    let all = PLACEMENTS.map(|placement| session(&pool, placement));
    let maker = &all[0];
    let made = run(
        maker,
        "CREATE TABLE t AS SELECT value AS id, CAST(value % 100 AS TINYINT) AS n, CAST(value % 7 AS SMALLINT) AS gone, \
         CAST('2026-01-02' AS DATE) AS day FROM generate_series(1, 100000);
         ALTER TABLE t ADD COLUMN word VARCHAR, ADD COLUMN price DECIMAL(9, 2) NULL;
         ALTER TABLE t DROP COLUMN gone;
         ALTER TABLE t RENAME COLUMN id TO \"Number\";
         ALTER TABLE t ALTER COLUMN n TYPE BIGINT, ALTER COLUMN day SET DATA TYPE TIMESTAMP(0);
         ALTER TABLE t ALTER COLUMN day DROP NOT NULL;
         INSERT INTO t SELECT 100001, 5000000000, '2027-01-01 10:00:00', 'new', 1.25;
         INSERT INTO t (\"Number\", n) VALUES (100002, -1);
         DELETE FROM t WHERE n = 17;
         UPDATE t SET word = 'old' WHERE \"Number\" = 1",
    );
    assert_eq!(made.await, Ok(vec!["1".to_owned()]), "one row was updated");
    let queries: [(&str, &[&str]); 6] = [
        (
            "SELECT count(*), sum(n), max(n), min(day) FROM t",
            &["99002|5004932999|5000000000|2026-01-02T00:00:00"],
        ),
        ("SELECT count(word), min(word), max(price) FROM t", &["2|new|1.25"]),
        ("SELECT \"Number\", n FROM t WHERE n < 0 OR n > 1000", &["100001|5000000000", "100002|-1"]),
        ("SELECT count(*) FROM t WHERE word IS NULL AND day IS NOT NULL", &["98999"]),
        ("SELECT \"Number\", word FROM t WHERE word IS NOT NULL", &["100001|new", "1|old"]),
        ("SELECT max(gone), count(*) FROM t AS OF SNAPSHOT 1", &["6|100000"]),
    ];
    for (query, expected) in queries {
        let expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
        for (session, placement) in all.iter().zip(PLACEMENTS) {
            let found = run(session, query).await;
            assert_eq!(found.as_ref(), Ok(&expected), "{placement}: {query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn form_of_alter_table_that_far_tables_do_not_have_is_refused() {
    let pool = Pool::embedded(EmbeddedOptions::new(64 << 20)).expect("an embedded pool");
    let session = session(&pool, "auto");
    run(&session, "CREATE TABLE t AS SELECT 1 AS a, 2 AS b; CREATE VIEW v AS SELECT 1 AS a")
        .await
        .expect("made");
    let refused = [
        ("ALTER TABLE t ADD COLUMN c INT NOT NULL", "NOT NULL is not permitted"),
        ("ALTER TABLE t ADD COLUMN c INT DEFAULT 5", "DEFAULT 5 is not permitted"),
        ("ALTER TABLE t ADD COLUMN IF NOT EXISTS c INT", "permitted are ADD COLUMN"),
        ("ALTER TABLE t RENAME TO u", "permitted are ADD COLUMN"),
        ("ALTER TABLE t ALTER COLUMN a SET NOT NULL", "permitted are ADD COLUMN"),
        ("ALTER TABLE t ALTER COLUMN a TYPE INT", "Int64 cannot be widened to Int32"),
        ("ALTER TABLE t DROP COLUMN c", "no column \"c\"; the columns are a, b"),
        ("ALTER TABLE t RENAME COLUMN A TO b", "a column \"b\" already"),
        ("ALTER TABLE u DROP COLUMN a", "there is no far table u"),
        ("ALTER TABLE v DROP COLUMN a", "there is no far table v"),
    ];
    for (sql, expected) in refused {
        let told = run(&session, sql).await.expect_err(sql);
        assert!(told.contains(expected), "{sql}: {told}");
    }
    assert_eq!(run(&session, "ALTER TABLE IF EXISTS u DROP COLUMN a").await, Ok(Vec::new()));
    assert_eq!(run(&session, "SELECT * FROM t").await, Ok(vec!["1|2".to_owned()]));
}
