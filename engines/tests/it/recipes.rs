//! Tables that are made again by their recipes after all of their copies were lost, by sessions that did not make them.

use crate::plans::{lines, sales};
use crate::pools::{Cluster, FARPOOL, command, soon};
use arrow::array::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::ParquetReadOptions;
use farpool::{ErrorKind, Protection};
use farpool_datafusion::{FarSession, Options};
use farpool_tests::programs::output;
use std::fs::{File, FileTimes};
use std::path::Path;

const MEMORY: &str = "128MiB";
const QUERY: &str = "SELECT shop, count(*) AS n, sum(exact) AS sum FROM sold WHERE item < 700 GROUP BY shop";

fn write(path: &Path, batch: &RecordBatch) {
    let file = File::create(path).expect("a file");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
    writer.write(batch).expect("written");
    writer.close().expect("closed");
}

fn session(cluster: &Cluster) -> FarSession {
    FarSession::new(&cluster.connect(Protection::None), Options::default()).expect("a session")
}

async fn run(session: &FarSession, sql: &str) -> Result<Vec<String>, String> {
    let run = async {
        let plan = session.context().state().create_logical_plan(sql).await?;
        session.execute(plan).await?.collect().await
    };
    soon(run).await.map(|batches| lines(&batches)).map_err(|error| error.strip_backtrace())
}

/// A cluster with a table of Parquet rows under a name that only the session which makes the table knows, and one made
/// from it. Returns the rows of the latter.
async fn made(folder: &Path) -> (Cluster, Vec<String>) {
    let cluster = Cluster::start(MEMORY);
    let file = folder.join("sold.parquet");
    write(&file, &sales());
    let maker = session(&cluster);
    let path = file.to_string_lossy().into_owned();
    maker.context().register_parquet("raw", path, ParquetReadOptions::default()).await.expect("registered");
    run(&maker, "SET farpool.table_protection = 'none'").await.expect("set");
    run(&maker, "CREATE TABLE sold AS SELECT shop, item, exact FROM raw WHERE item < 900")
        .await
        .expect("made");
    run(&maker, "SET farpool.partition_by = 'shop'").await.expect("set");
    run(&maker, &format!("CREATE TABLE sums AS {QUERY}")).await.expect("made");
    let rows = run(&maker, "SELECT * FROM sums ORDER BY shop").await.expect("rows");
    assert!(rows.len() > 10);
    (cluster, rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_tables_and_the_tables_that_they_are_made_from_are_made_again_by_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, wanted) = made(folder.path()).await;
    let opened_before = cluster.pool.table("sums").expect("opened");
    let recipe = cluster.pool.recipe("tables/sums").expect("an answer").expect("a recipe");
    assert_eq!((recipe.kind.as_str(), recipe.rows), ("query", wanted.len() as u64));
    let mut describe = command(FARPOOL);
    let told = output(describe.args(["table", "describe", "sums", "--pool", cluster.pool.url()]));
    assert!(String::from_utf8_lossy(&told.stdout).contains(" | recipe: query\n"), "{told:?}");
    for round in 0..2 {
        cluster.lose_all(MEMORY);
        let found = run(&session(&cluster), "SELECT * FROM sums ORDER BY shop").await;
        assert_eq!(found.as_ref(), Ok(&wanted), "round {round}");
        let kept = cluster.pool.recipe("tables/sums").expect("an answer").expect("a recipe");
        assert_eq!(kept, recipe, "it can be made again");
        let again = run(&session(&cluster), &format!("{QUERY} ORDER BY shop")).await;
        assert_eq!(again, Ok(wanted.clone()), "its source is there as well");
        let made = cluster.pool.table_on_demand("sums", None, None).expect("opened");
        assert_eq!(made.snapshot().expect("a manifest").partition_by(), ["shop"]);
    }
    let told =
        opened_before.read(None, None).map(drop).expect_err("another table is in its place").to_string();
    assert!(told.contains("snapshot 1 of table \"sums\" has ended"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_need_a_lost_table_at_the_same_time_get_one_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, wanted) = made(folder.path()).await;
    cluster.lose_all(MEMORY);
    let sessions: Vec<FarSession> = (0..4).map(|_| session(&cluster)).collect();
    let asked = sessions.iter().map(|session| run(session, "SELECT * FROM sums ORDER BY shop"));
    for found in futures::future::join_all(asked).await {
        assert_eq!(found, Ok(wanted.clone()));
    }
    let bytes: u64 = cluster.pool.list("tables/").expect("a list").iter().map(|file| file.bytes).sum();
    let named =
        |status: farpool::StatusReport| status.nodes.iter().map(|node| node.counts.named).sum::<u32>();
    let regions = bytes.div_ceil(16 << 20).max(1) as u32 + 2;
    assert!(named(cluster.pool.status().expect("a status")) <= regions, "nothing was made twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn recipe_whose_source_has_changed_is_refused_with_the_file_and_the_table_stays_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, wanted) = made(folder.path()).await;
    cluster.lose_all(MEMORY);
    let file = folder.path().join("sold.parquet");
    let changed = File::open(&file).and_then(|file| file.metadata()?.modified()).expect("a time");
    write(&file, &sales().slice(0, 1_000));
    let why = run(&session(&cluster), "SELECT * FROM sold").await.expect_err("another source");
    assert!(why.contains("has changed: file") && why.contains("sold.parquet"), "{why}");
    assert!(why.contains("bytes, and has"), "{why}");
    let why = run(&session(&cluster), "SELECT * FROM sums").await.expect_err("a source that is lost");
    assert!(why.contains("sold.parquet"), "{why}");
    write(&file, &sales());
    let why = run(&session(&cluster), "SELECT * FROM sold").await.expect_err("written again");
    assert!(why.contains("was written again"), "{why}");
    let times = FileTimes::new().set_modified(changed);
    File::options().write(true).open(&file).and_then(|file| file.set_times(times)).expect("set");
    let found = run(&session(&cluster), "SELECT * FROM sums ORDER BY shop").await;
    assert_eq!(found, Ok(wanted), "the source is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn query_that_gives_other_rows_each_time_is_found_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, _) = made(folder.path()).await;
    let maker = session(&cluster);
    run(&maker, "CREATE TABLE some AS SELECT shop, random() AS chance FROM sums").await.expect("made");
    let has = cluster.pool.recipe("tables/some").expect("an answer").is_some();
    cluster.lose_all(MEMORY);
    let why = run(&session(&cluster), "SELECT * FROM some").await.expect_err("other rows");
    match has {
        true => assert!(why.contains("which are not those of the lost one"), "{why}"),
        false => assert!(why.contains("lost"), "{why}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_knows_no_recipes_says_which_one_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, _) = made(folder.path()).await;
    cluster.lose_all(MEMORY);
    let error = cluster.connect(Protection::None).table("sums").expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("its recipe of kind \"query\""), "{error}");
    let maker = session(&cluster);
    run(&maker, "SET farpool.recipes = false").await.expect("set");
    run(&maker, "CREATE TABLE bare AS SELECT 1 AS n").await.expect("made");
    assert_eq!(cluster.pool.recipe("tables/bare").expect("an answer"), None);
    assert_eq!(cluster.pool.recipe("tables/none").expect_err("none").kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn table_that_would_have_to_be_there_to_be_made_again_has_no_recipe() {
    let cluster = Cluster::start(MEMORY);
    let session = session(&cluster);
    let has_recipe =
        |table: &str| cluster.pool.recipe(&format!("tables/{table}")).expect("an answer").is_some();
    run(&session, "CREATE TABLE one AS SELECT 1 AS a").await.expect("made");
    run(&session, "CREATE TABLE two AS SELECT a + 1 AS a FROM one").await.expect("made");
    run(&session, "CREATE TABLE three AS SELECT a FROM two").await.expect("made");
    assert!(has_recipe("two") && has_recipe("three"));
    run(&session, "CREATE OR REPLACE TABLE one AS SELECT a + 1 AS a FROM one").await.expect("made");
    assert!(!has_recipe("one"), "it reads itself");
    run(&session, "CREATE OR REPLACE TABLE two AS SELECT a FROM three").await.expect("made");
    assert!(!has_recipe("two"), "it reads what is made from it");
    run(&session, "CREATE OR REPLACE TABLE one AS SELECT a FROM three").await.expect("made");
    assert!(has_recipe("one") && has_recipe("three"));
}
