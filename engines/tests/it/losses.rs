//! Nodes lost during scans, and peers of another version: the result is all rows or an error that names the cause, and
//! nothing hangs.

use crate::PLACEMENTS;
use crate::joins::{Keys, MIB, Random, Tables, rows as rows_of};
use crate::plans::lines;
use crate::pools::{Cluster, FARPOOL_SQL, PATIENCE, command, soon};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::error::DataFusionError;
use farpool::Protection;
use farpool::table::{PutOptions, TABLE_PREFIX};
use farpool_datafusion::{FarSession, Options};
use farpool_tests::programs::output;
use farpool_wire::limits::{HEADER_BYTES, VERSION_MAX};
use farpool_wire::{Code, Header, Opcode, Refusal};
use futures::StreamExt;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GROUP_ROWS: i64 = 65_536;
/// Number of row groups of the table: enough that no scan has read all of them when its first rows arrive.
const GROUPS: i64 = 160;

fn numbers() -> Vec<RecordBatch> {
    let batch = |group: i64| {
        let ids = group * GROUP_ROWS..(group + 1) * GROUP_ROWS;
        let parts = ids.clone().map(|id| id * 7_919 % 1_000);
        RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef),
            ("part", Arc::new(Int64Array::from_iter_values(parts))),
        ])
        .expect("a batch")
    };
    (0..GROUPS).map(batch).collect()
}

fn put(cluster: &Cluster) {
    let batches = numbers();
    cluster.pool.put_table("numbers", batches[0].schema(), batches).expect("put");
}

async fn rows(session: &FarSession, sql: &str) -> Result<Vec<String>, DataFusionError> {
    Ok(lines(&session.context().sql(sql).await?.collect().await?))
}

/// Runs a query, and kills node "two" after the query's first rows. Returns all rows.
async fn rows_of_loss(
    cluster: &mut Cluster,
    session: &FarSession,
    sql: &str,
) -> Result<Vec<String>, DataFusionError> {
    let mut stream = session.context().sql(sql).await?.execute_stream().await?;
    let mut taken = Vec::from_iter(stream.next().await.transpose()?);
    cluster.lose_two();
    while let Some(batch) = stream.next().await {
        taken.push(batch?);
    }
    Ok(lines(&taken))
}

/// The first query returns half of all rows, from the start of the scan on. The second returns a few groups, once the
/// scan has ended.
const QUERIES: [&str; 2] = [
    "SELECT id, part FROM numbers WHERE part < 500",
    "SELECT part, count(*), sum(id) FROM numbers WHERE part < 300 GROUP BY part",
];

#[tokio::test(flavor = "multi_thread")]
async fn node_lost_while_a_scan_runs_is_an_error_by_name_or_no_loss() {
    let mut caught = 0;
    for placement in PLACEMENTS {
        let mut cluster = Cluster::start("256MiB");
        put(&cluster);
        let session = FarSession::new(&cluster.pool, Options::default()).expect("a session");
        rows(&session, &format!("SET farpool.placement = '{placement}'")).await.expect("set");
        let wanted = rows(&session, QUERIES[0]).await.expect("rows");
        match soon(rows_of_loss(&mut cluster, &session, QUERIES[0])).await {
            Ok(found) => assert!(found == wanted, "{placement}: {} rows, not {}", found.len(), wanted.len()),
            Err(error) => {
                let why = error.strip_backtrace();
                assert!(why.contains("far table \"numbers\"") && why.contains("two"), "{placement}: {why}");
                caught += 1;
            }
        }
        // Later queries over the same table fail too.
        for sql in QUERIES {
            let why =
                soon(rows(&session, sql)).await.expect_err("half of the table is gone").strip_backtrace();
            assert!(why.contains("far table \"numbers\"") && why.contains("two"), "{placement}: {why}");
        }
        assert_eq!(rows(&session, "SELECT 1").await.expect("a row"), ["1"], "the session goes on");
    }
    assert!(caught > 0, "no scan was caught at work");
}

#[tokio::test(flavor = "multi_thread")]
async fn query_over_a_table_with_a_mirror_has_all_its_rows_when_a_node_is_lost_while_it_runs() {
    for placement in PLACEMENTS {
        let mut cluster = Cluster::start_on_two_hosts("512MiB");
        put(&cluster);
        let session = FarSession::new(&cluster.pool, Options::default()).expect("a session");
        rows(&session, &format!("SET farpool.placement = '{placement}'")).await.expect("set");
        let wanted = [
            rows(&session, QUERIES[0]).await.expect("rows"),
            rows(&session, QUERIES[1]).await.expect("rows"),
        ];
        rows(&session, "SET farpool.table_protection = 'mirror'").await.expect("set");
        rows(&session, "SET farpool.table_protection = 'local'").await.expect_err("not for tables");
        let sql = "CREATE OR REPLACE TABLE numbers AS SELECT id + 0 AS id, part + 0 AS part FROM numbers";
        let plan = session.context().state().create_logical_plan(sql).await.expect("a plan");
        session.execute(plan).await.expect("put").collect().await.expect("put");
        let found = soon(rows_of_loss(&mut cluster, &session, QUERIES[0])).await;
        let found = found.unwrap_or_else(|error| panic!("{placement}: {error}"));
        assert!(sorted(found) == sorted(wanted[0].clone()), "{placement}: other rows");
        for (sql, wanted) in QUERIES.iter().zip(&wanted) {
            let found =
                soon(rows(&session, sql)).await.unwrap_or_else(|error| panic!("{placement}: {error}"));
            assert!(sorted(found) == sorted(wanted.clone()), "{placement}: other rows of {sql}");
        }
    }
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn table_that_is_put_again_when_it_is_lost_has_all_its_rows() {
    for placement in PLACEMENTS {
        let mut cluster = Cluster::start("512MiB");
        put(&cluster);
        cluster.pool.rebuild_with(TABLE_PREFIX, |pool, file| {
            let batches = numbers();
            let name = file.strip_prefix(TABLE_PREFIX).expect("a table");
            let options = PutOptions { replace: true, ..PutOptions::default() };
            let schema = batches[0].schema();
            pool.put_table_with(name, schema, batches.into_iter().map(Ok::<_, Infallible>), &options)
        });
        let session = FarSession::new(&cluster.pool, Options::default()).expect("a session");
        rows(&session, &format!("SET farpool.placement = '{placement}'")).await.expect("set");
        let wanted = [
            rows(&session, QUERIES[0]).await.expect("rows"),
            rows(&session, QUERIES[1]).await.expect("rows"),
        ];
        match soon(rows_of_loss(&mut cluster, &session, QUERIES[0])).await {
            Ok(found) => assert!(found == wanted[0], "{placement}: {} rows", found.len()),
            Err(error) => {
                let why = error.strip_backtrace();
                assert!(why.contains("numbers"), "{placement}: {why}");
            }
        }
        for (sql, wanted) in QUERIES.iter().zip(&wanted) {
            let found =
                soon(rows(&session, sql)).await.unwrap_or_else(|error| panic!("{placement}: {error}"));
            assert!(found == *wanted, "{placement}: {} rows of {sql}", found.len());
        }
    }
}

/// Process that is killed during a query that spills.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    NodeTwo,
    Broker,
}

#[tokio::test(flavor = "multi_thread")]
async fn query_whose_spill_loses_a_node_or_the_broker_has_what_its_protection_promises() {
    const SORT: &str = "SELECT row_number() OVER (ORDER BY t DESC, n) AS place, k, n FROM s";
    let mut random = Random(11);
    let sides = [0, 300_000].map(|count| rows_of(&mut random, count, Keys::Even { keys: 150_000 }, 2_000));
    for (protection, victim) in [
        (Protection::Local, Victim::NodeTwo),
        (Protection::None, Victim::NodeTwo),
        (Protection::Local, Victim::Broker),
        (Protection::None, Victim::Broker),
    ] {
        let at = format!("{protection:?}, {victim:?}");
        let mut cluster = Cluster::start("256MiB");
        let pool = cluster.connect(protection);
        let wanted = Tables::new(&pool, None, 1, &sides).rows(SORT).await;
        let tight = Tables::new(&pool, Some(4 * MIB), 1, &sides);
        tight.rows("SET datafusion.execution.sort_spill_reservation_bytes = 65536").await;
        let files = tight.files.clone();
        let killer = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            while files.spilled().far_bytes == 0 {
                assert!(begun.elapsed() < PATIENCE, "something is spilled within {PATIENCE:?}");
                std::thread::park_timeout(Duration::from_millis(1));
            }
            match victim {
                Victim::NodeTwo => cluster.lose_two(),
                Victim::Broker => cluster.lose_broker(),
            }
            cluster
        });
        let found = soon(tight.run(SORT)).await;
        let cluster = killer.await.expect("it was killed while the query ran");
        match found {
            Ok((found, _)) => assert!(found == wanted, "{at}: {} rows, not {}", found.len(), wanted.len()),
            Err(error) => {
                let why = error.strip_backtrace();
                // A local copy needs no node, and memory that is leased already needs no broker; only new leases do.
                assert!((protection, victim) != (Protection::Local, Victim::NodeTwo), "{at}: {why}");
                assert!(
                    why.contains("two") || why.contains("broker") || why.contains("lease"),
                    "{at}: {why}"
                );
            }
        }
        assert_eq!(tight.rows("SELECT 1").await, ["1"], "{at}: the session goes on");
        drop(cluster);
    }
}

#[test]
fn peer_of_another_version_is_refused_by_both_numbers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("farpool://{}", listener.local_addr().expect("an address"));
    let newer = std::thread::spawn(move || {
        // Each connection is answered with a version of the protocol that does not exist yet, until the command exits.
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut header = [0; HEADER_BYTES];
            if stream.read_exact(&mut header).is_err() {
                return;
            }
            let asked = Header::decode(&header).expect("a greeting");
            let mut body = vec![0; asked.body_bytes as usize];
            stream.read_exact(&mut body).expect("its body");
            assert_eq!(asked.opcode, Opcode::Hello);
            let refusal = Refusal::new(Code::VersionMismatch, u64::from(VERSION_MAX) + 1);
            stream.write_all(&asked.reply(&[], Some(refusal)).encode()).expect("a reply");
        }
    });
    let asked = output(command(FARPOOL_SQL).args(["--pool", &url, "-c", "SELECT 1"]));
    drop(std::net::TcpStream::connect(url.strip_prefix("farpool://").expect("an address")));
    newer.join().expect("no greeting was another");
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(!asked.status.success(), "{said}");
    let (theirs, ours) = ((VERSION_MAX + 1).to_string(), VERSION_MAX.to_string());
    assert!(said.contains("version") && said.contains(&theirs) && said.contains(&ours), "{said}");
}
