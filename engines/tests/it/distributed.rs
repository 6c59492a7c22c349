//! Queries that are divided among two worker processes. They must return the rows of a single session, and tasks go to
//! the worker near their row groups. Workers are also killed and stopped, which costs no row, and sent plans that they
//! must refuse.

use crate::answers::Queries;
use crate::plans::{lines, sales};
use crate::pools::{Cluster, FARPOOL_SQL, PATIENCE, Process, command, memory_of_each, put, soon};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt, WorkerResolver};
use farpool::table::PutOptions;
use farpool_datafusion::{FarSession, Options};
use farpool_distributed::{WorkerAddress, Workers};
use farpool_tests::programs::{output, reserved_address};
use farpool_transport::Exposure;
use futures::StreamExt;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Rows of the second table, which make several row groups.
const ITEMS: i64 = 300_000;

const NODES: [&str; 2] = ["one", "two"];

/// Two nodes, a worker near each of them, a session that divides queries among both workers and one that uses none.
struct Bench {
    cluster: Cluster,
    processes: Vec<Process>,
    workers: Arc<Workers>,
    far: FarSession,
    near: FarSession,
}

/// Returns the trace ids of the events of a kind in a log, each once, in the order of their first occurrence.
fn traces(log: &Path, kind: &str) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("the log");
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut traces: Vec<String> = Vec::new();
    for event in events.filter(|event| event["event"] == *kind) {
        let trace = event["trace"].as_str().unwrap_or("none").to_owned();
        if !traces.contains(&trace) {
            traces.push(trace);
        }
    }
    traces
}

/// The id goes from the session to both workers, and with their scans to both nodes.
#[tokio::test(flavor = "multi_thread")]
async fn trace_of_a_query_is_in_the_logs_of_its_workers_and_of_the_nodes_that_they_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start_logging("256MiB", folder.path());
    let sales = sales();
    cluster.pool.put_table("sales", sales.schema(), [sales]).expect("put");
    let logs = |of: &str| NODES.map(|node| folder.path().join(format!("{of}{node}")));
    let worker = |node: &str, log: &Path| {
        let args = ["worker", "--listen", "127.0.0.1:0", "--pool", cluster.pool.url(), "--near", node];
        Process::start_logging(FARPOOL_SQL, &args, log)
    };
    let [one, two] = logs("worker-");
    let processes = [worker("one", &one), worker("two", &two)];
    let known = processes.iter().map(|process| process.ready.parse().expect("an address")).collect();
    let workers = Workers::new(known, Exposure::default()).expect("workers");
    let session =
        farpool_distributed::session(&cluster.pool, Options::default(), &workers).expect("a session");
    assert_eq!(soon(workers.refresh()).await, [], "both answer");
    rows(&session, "SET farpool.placement = 'ship'").await.expect("set");
    for query in 1..=2 {
        soon(rows(&session, "SELECT shop, sum(exact) FROM sales GROUP BY shop")).await.expect("rows");
        let told = traces(&one, "scan_received");
        assert_eq!(told.len(), query, "each query has an id of its own: {told:?}");
        assert!(!told.contains(&"none".to_owned()), "{told:?}");
        assert_eq!(traces(&two, "scan_received"), told, "both workers are told the same");
    }
    let told = traces(&one, "scan_received");
    let begun = Instant::now();
    // A node writes its line when the scan has ended, which may be after the answer.
    while !logs("").iter().all(|log| traces(log, "scan_finished") == told) {
        assert!(
            begun.elapsed() < PATIENCE,
            "{:?}, not {told:?}",
            logs("").map(|log| traces(&log, "scan_finished"))
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn worker(cluster: &Cluster, node: &str, listen: &str) -> Process {
    let args = ["worker", "--listen", listen, "--pool", cluster.pool.url(), "--near", node];
    Process::start(FARPOOL_SQL, &args)
}

impl Bench {
    fn start(memory: &str) -> Bench {
        let cluster = Cluster::start(memory);
        let processes: Vec<Process> =
            NODES.iter().map(|node| worker(&cluster, node, &reserved_address().to_string())).collect();
        let known: Vec<WorkerAddress> =
            processes.iter().map(|process| process.ready.parse().expect("an address")).collect();
        let workers = Workers::new(known, Exposure::default()).expect("workers");
        let far =
            farpool_distributed::session(&cluster.pool, Options::default(), &workers).expect("a session");
        let near = FarSession::new(&cluster.pool, Options::default()).expect("a session");
        Bench { cluster, processes, workers, far, near }
    }

    /// Starts a bench with tables whose row groups lie on both nodes.
    fn with_tables() -> Bench {
        let bench = Bench::start("256MiB");
        let items = RecordBatch::try_from_iter([
            (
                "item",
                Arc::new(Int64Array::from_iter_values((0..ITEMS).map(|row| row * 7 % ITEMS))) as ArrayRef,
            ),
            (
                "name",
                Arc::new(StringArray::from_iter_values((0..ITEMS).map(|row| format!("name {}", row % 97)))),
            ),
        ])
        .expect("a batch");
        for (name, batch) in [("sales", sales()), ("items", items)] {
            bench.cluster.pool.put_table(name, batch.schema(), [batch]).expect("put");
        }
        bench
    }

    /// Returns the URL of a worker as it appears in errors.
    fn url(&self, worker: usize) -> &str {
        &self.processes[worker].ready
    }
}

async fn rows(session: &FarSession, sql: &str) -> Result<Vec<String>> {
    Ok(lines(&session.context().sql(sql).await?.collect().await?))
}

/// Queries that are divided among the workers.
const DIVIDED: [&str; 14] = [
    "SELECT count(*) FROM sales WHERE item < 900",
    "SELECT count(*), sum(item), min(day), max(price), avg(exact) FROM sales WHERE item < 500",
    "SELECT shop, count(*), sum(exact), avg(exact), min(id), max(day) FROM sales GROUP BY shop",
    "SELECT item % 7 AS rest, count(DISTINCT shop), count(*) FROM sales GROUP BY item % 7",
    "SELECT DISTINCT shop, item % 5 FROM sales",
    "SELECT id, shop FROM sales WHERE item = 77 AND shop LIKE 'shop 1%'",
    "SELECT id, item FROM sales ORDER BY item DESC, id LIMIT 17",
    "SELECT s.id, few.name FROM sales s JOIN (SELECT item, name FROM items ORDER BY item DESC LIMIT 5) few ON s.id = few.item",
    "SELECT i.name, count(*), sum(s.exact) FROM sales s JOIN items i ON s.id = i.item WHERE s.item < 300 GROUP BY i.name",
    "SELECT s.shop, count(*) FROM sales s LEFT JOIN items i ON s.id = i.item AND i.name = 'name 5' WHERE i.item IS NULL GROUP BY s.shop",
    "SELECT count(*) FROM sales WHERE id IN (SELECT item FROM items WHERE name = 'name 3')",
    "SELECT count(*) FROM sales WHERE exact > (SELECT avg(exact) FROM sales)",
    "SELECT shop, n FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop UNION ALL SELECT name, count(*) FROM items GROUP BY name) ORDER BY n DESC, shop LIMIT 9",
    "SELECT shop, id, row_number() OVER (PARTITION BY shop ORDER BY id DESC) AS place FROM sales WHERE item = 5",
];

#[tokio::test(flavor = "multi_thread")]
async fn queries_over_two_workers_have_the_rows_of_one_session() {
    let bench = Bench::with_tables();
    for placement in crate::PLACEMENTS {
        for session in [&bench.far, &bench.near] {
            rows(session, &format!("SET farpool.placement = '{placement}'")).await.expect("set");
        }
        for sql in DIVIDED {
            assert_eq!(soon(bench.workers.refresh()).await, [], "both answer");
            let wanted = rows(&bench.near, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let found = soon(rows(&bench.far, sql)).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            assert_eq!(found, wanted, "{placement}: {sql}");
            let took_part: BTreeSet<_> =
                bench.workers.assigned().into_iter().map(|task| task.worker).collect();
            assert_eq!(took_part.len(), 2, "{placement}: both work on {sql}");
        }
        // Any 100,000 rows are correct, because the query has no order.
        let some = soon(rows(&bench.far, "SELECT id FROM sales WHERE item > 3 LIMIT 100000")).await;
        let ids: BTreeSet<String> = some.expect("rows").into_iter().collect();
        assert_eq!(ids.len(), 100_000, "{placement}: as many rows as the limit, each once");
        let joined =
            "SELECT count(*) FROM (SELECT id FROM sales LIMIT 70000) s JOIN items i ON s.id = i.item";
        let some = soon(rows(&bench.far, joined)).await.expect("rows");
        let many: i64 = some[0].parse().expect("a number");
        assert!(many <= 70_000, "{placement}: {many} partners of 70000 rows");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_to_the_worker_near_their_row_groups() {
    let bench = Bench::with_tables();
    soon(bench.workers.refresh()).await;
    soon(rows(&bench.far, "SELECT shop, count(*), sum(exact) FROM sales GROUP BY shop")).await.expect("rows");
    let table = bench.cluster.pool.table("sales").expect("there");
    let place = |group: &usize| table.place(*group).expect("one piece").node;
    let all: BTreeSet<String> = (0..table.row_groups().len()).map(|group| place(&group)).collect();
    assert_eq!(all.len(), 2, "row groups lie at both nodes");
    let mut seen = BTreeMap::new();
    for task in bench.workers.assigned() {
        let here = ["one", "two"][usize::from(task.worker.as_str().trim_end_matches('/') == bench.url(1))];
        assert_eq!(task.near, task.groups.len(), "all of {task:?} is near");
        for group in task.groups {
            assert_eq!(place(&group), here, "row group {group} is read at {}", task.worker);
            *seen.entry(group).or_insert(0) += 1;
        }
    }
    let once: BTreeMap<usize, i32> = (0..table.row_groups().len()).map(|group| (group, 1)).collect();
    assert_eq!(seen, once, "each row group is read once");
}

#[tokio::test(flavor = "multi_thread")]
async fn tpch_over_two_workers_has_the_answers_of_duckdb() {
    let queries = Queries::of("tpch", 22);
    let bench = Bench::start(&memory_of_each(&queries.tables()));
    put(&bench.cluster.pool, &queries.tables());
    soon(bench.workers.refresh()).await;
    let faults = soon(queries.compare(&bench.far, "two workers")).await;
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let tables: BTreeSet<String> = bench.workers.assigned().into_iter().map(|task| task.table).collect();
    assert!(tables.contains("lineitem") && tables.contains("orders"), "divided: {tables:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_between_queries_costs_no_query_and_is_then_left_out() {
    let mut bench = Bench::with_tables();
    let sql = "SELECT shop, count(*), sum(exact) FROM sales GROUP BY shop";
    let wanted = rows(&bench.near, sql).await.expect("rows");
    soon(bench.workers.refresh()).await;
    assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), wanted);
    assert_eq!(bench.workers.failed_over(), 0);

    bench.processes[0].kill();
    assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), wanted, "the other one runs all tasks");
    assert!(bench.workers.failed_over() > 0);

    let left_out = soon(bench.workers.refresh()).await;
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert_eq!(left_out[0].worker.as_str().trim_end_matches('/'), bench.url(0));
    for sql in DIVIDED {
        let wanted = rows(&bench.near, sql).await.expect("rows");
        assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), wanted, "one worker: {sql}");
    }

    // Queries run in this process when no worker is left.
    bench.processes[1].kill();
    assert_eq!(soon(bench.workers.refresh()).await.len(), 2);
    assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), wanted);
    assert_eq!(bench.workers.assigned(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_while_a_query_runs_costs_no_row() {
    let mut bench = Bench::with_tables();
    let queries = [
        "SELECT * FROM sales",
        "SELECT s.id, s.shop, i.name FROM sales s JOIN items i ON s.id = i.item",
        "SELECT id, price, exact FROM sales ORDER BY exact, id",
    ];
    for round in 0..9 {
        let sql = queries[round % queries.len()];
        let wanted = rows(&bench.near, sql).await.expect("rows");
        assert_eq!(soon(bench.workers.refresh()).await, [], "both answer");
        // The worker is killed before the first batch, after it, or after some.
        let (victim, batches) = (round % 2, round / queries.len() * 2);
        let outcome = soon(async {
            let mut stream = bench.far.context().sql(sql).await?.execute_stream().await?;
            let mut taken = Vec::new();
            for _ in 0..batches {
                taken.extend(stream.next().await.transpose()?);
            }
            bench.processes[victim].kill();
            while let Some(batch) = stream.next().await {
                taken.push(batch?);
            }
            Ok::<_, datafusion::error::DataFusionError>(lines(&taken))
        })
        .await;
        let found = outcome.unwrap_or_else(|error| panic!("round {round}: {}", error.strip_backtrace()));
        assert!(found == wanted, "round {round}: {} rows, not {}", found.len(), wanted.len());
        // The worker that is left runs the whole query.
        assert_eq!(soon(bench.workers.refresh()).await.len(), 1);
        assert!(soon(rows(&bench.far, sql)).await.expect("rows") == wanted, "round {round}: alone");
        let listen = bench.url(victim).rsplit('/').next().expect("an address");
        bench.processes[victim] = worker(&bench.cluster, NODES[victim], listen);
    }
    assert!(bench.workers.failed_over() > 0, "no query was caught at work");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stands_still_costs_no_query() {
    let bench = Bench::with_tables();
    let sql = "SELECT shop, count(*), sum(exact) FROM sales GROUP BY shop";
    soon(bench.workers.refresh()).await;
    soon(rows(&bench.far, sql)).await.expect("rows");
    let signal = |signal: &str| {
        let sent = output(Command::new("kill").args([signal, &bench.processes[1].id().to_string()]));
        assert!(sent.status.success());
    };
    signal("-STOP");
    let outcome = soon(rows(&bench.far, sql)).await;
    let left_out = soon(bench.workers.refresh()).await;
    let alone = soon(rows(&bench.far, sql)).await;
    signal("-CONT");
    assert_eq!(outcome.expect("rows"), rows(&bench.near, sql).await.expect("rows"));
    assert!(bench.workers.failed_over() > 0, "it did nothing");
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert_eq!(alone.expect("rows"), rows(&bench.near, sql).await.expect("rows"));
    assert_eq!(soon(bench.workers.refresh()).await, [], "it is back");
    assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), rows(&bench.near, sql).await.expect("rows"));
}

/// The worker is stopped most of the time, but answers all probes.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_worker_that_is_far_slower_than_the_others_are_run_by_another_one_too() {
    let bench = Bench::with_tables();
    let sql = "SELECT id, shop FROM sales WHERE item > 3";
    let wanted = soon(rows(&bench.near, sql)).await.expect("rows");
    soon(bench.workers.refresh()).await;
    assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), wanted);
    let pid = Pid::from_raw(bench.processes[1].id() as i32).expect("a process");
    let (end, is_over) = mpsc::channel::<()>();
    let stopping = std::thread::spawn(move || {
        let is_over_within =
            |ms| is_over.recv_timeout(Duration::from_millis(ms)) != Err(RecvTimeoutError::Timeout);
        loop {
            kill_process(pid, Signal::STOP).expect("the worker runs");
            let ends = is_over_within(200);
            kill_process(pid, Signal::CONT).expect("the worker runs");
            if ends || is_over_within(1) {
                break;
            }
        }
    });
    let begun = Instant::now();
    // A worker that is stopped for too long on a busy machine counts as lost: its tasks are not hedged then.
    while bench.workers.hedged() == 0 {
        assert!(begun.elapsed() < PATIENCE, "no task was hedged");
        assert!(soon(rows(&bench.far, sql)).await.expect("rows") == wanted);
    }
    drop(end);
    stopping.join().expect("the worker ran all the time");
}

/// Counts the tasks that a worker has begun, by its log.
fn tasks(log: &Path) -> usize {
    events(log, "task_begun")
}

fn events(log: &Path, kind: &str) -> usize {
    let text = std::fs::read_to_string(log).expect("the log");
    text.lines().filter(|line| line.contains(&format!("{kind:?}"))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_tasks_of_a_lost_worker_run_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start("256MiB");
    let sales = sales();
    cluster.pool.put_table("sales", sales.schema(), [sales]).expect("put");
    let logs = NODES.map(|node| folder.path().join(node));
    let start = |node: usize| {
        let args = ["worker", "--listen", "127.0.0.1:0", "--pool", cluster.pool.url(), "--near", NODES[node]];
        Process::start_logging(FARPOOL_SQL, &args, &logs[node])
    };
    let [one, two] = [start(0), start(1)];
    let known = [&one, &two].map(|process| process.ready.parse().expect("an address")).to_vec();
    let workers = Workers::new(known, Exposure::default()).expect("workers");
    let session =
        farpool_distributed::session(&cluster.pool, Options::default(), &workers).expect("a session");
    assert_eq!(soon(workers.refresh()).await, [], "both answer");
    let sql = "SELECT shop, count(*), sum(exact) FROM sales GROUP BY shop";
    let wanted = soon(rows(&session, sql)).await.expect("rows");
    // A task may take so long on a busy machine that both run it.
    let hedged =
        || workers.hedged() as usize + logs.iter().map(|log| events(log, "task_hedged")).sum::<usize>();
    let each = tasks(&logs[0]);
    assert!(each > 0);
    assert!(tasks(&logs[1]).abs_diff(each) <= hedged(), "each runs a task of each stage");
    drop(one);
    assert_eq!(soon(rows(&session, sql)).await.expect("rows"), wanted);
    let (begun, wanted) = (tasks(&logs[1]), each + 2 * each);
    assert!(
        begun.abs_diff(wanted) <= hedged(),
        "its own tasks, and those of the other one, each once: {begun}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_replaced_since_the_plan_is_refused_by_name() {
    let bench = Bench::with_tables();
    soon(bench.workers.refresh()).await;
    let frame =
        bench.far.context().sql("SELECT shop, count(*) FROM sales GROUP BY shop").await.expect("a query");
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.expect("a plan");
    let (pool, fewer) = (&bench.cluster.pool, sales().slice(0, 400_000));
    let options = PutOptions { replace: true, ..PutOptions::default() };
    pool.put_table_with("sales", fewer.schema(), [Ok::<_, Infallible>(fewer)], &options).expect("put");
    let why = soon(collect(plan, task)).await.expect_err("another table").strip_backtrace();
    assert!(why.contains("far table sales was replaced after the query was planned"), "{why}");
    let fresh = soon(rows(&bench.far, "SELECT count(*) FROM sales")).await.expect("rows");
    assert_eq!(fresh, ["400000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_reads_local_tables_stays_in_its_process() {
    let bench = Bench::with_tables();
    soon(bench.workers.refresh()).await;
    let few =
        RecordBatch::try_from_iter([("item", Arc::new(Int64Array::from_iter_values([7, 19])) as ArrayRef)]);
    let few = few.expect("a batch");
    let local = Arc::new(MemTable::try_new(few.schema(), vec![vec![few]]).expect("a table"));
    for session in [&bench.far, &bench.near] {
        session.context().register_table("few", Arc::clone(&local) as _).expect("registered");
    }
    let sql = "SELECT count(*), sum(exact) FROM sales JOIN few USING (item)";
    let wanted = rows(&bench.near, sql).await.expect("rows");
    assert_eq!(soon(rows(&bench.far, sql)).await.expect("rows"), wanted);
    assert_eq!(bench.workers.assigned(), []);
}

/// The test acts as a foreign session, which sends arbitrary plans to a worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_refuses_plans_that_read_its_files() {
    struct Both(Vec<WorkerAddress>);
    impl WorkerResolver for Both {
        fn get_urls(&self) -> Result<Vec<url::Url>> {
            Ok(self.0.iter().map(|worker| worker.url.clone()).collect())
        }
    }
    let bench = Bench::start("64MiB");
    let folder = tempfile::tempdir().expect("a folder");
    let batch = sales().slice(0, 1_000);
    for file in ["a.parquet", "b.parquet", "c.parquet"] {
        let file = File::create(folder.path().join(file)).expect("a file");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
        writer.write(&batch).expect("written");
        writer.close().expect("closed");
    }
    let known = bench.processes.iter().map(|process| process.ready.parse().expect("an address")).collect();
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_distributed_planner()
        .with_distributed_worker_resolver(Both(known))
        .with_distributed_file_scan_config_bytes_per_partition(1)
        .expect("a number")
        .build();
    let context = SessionContext::new_with_state(state);
    let path = folder.path().to_string_lossy().into_owned();
    context.register_parquet("local", path, ParquetReadOptions::default()).await.expect("registered");
    let frame = context.sql("SELECT shop, count(*) FROM local GROUP BY shop").await.expect("a query");
    let why = soon(frame.collect()).await.expect_err("refused").strip_backtrace();
    assert!(why.contains("is refused: workers only read far tables"), "{why}");
}

#[test]
fn a_worker_listens_beyond_this_machine_only_if_told_to() {
    let cluster = Cluster::start("64MiB");
    let args = ["worker", "--listen", "0.0.0.0:0", "--pool", cluster.pool.url()];
    let refused = output(command(FARPOOL_SQL).args(args));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("0.0.0.0") && said.contains("--insecure-listen"), "{said}");
    assert!(refused.stdout.is_empty(), "it never was ready");
    let args = ["--pool", cluster.pool.url(), "--workers", "http://192.0.2.1:7800", "-c", "SELECT 1"];
    let far = output(command(FARPOOL_SQL).args(args));
    let said = String::from_utf8_lossy(&far.stderr).into_owned();
    assert_eq!(far.status.code(), Some(1), "{said}");
    assert!(said.contains("--insecure-workers"), "{said}");
}

#[test]
fn the_command_divides_queries_and_goes_on_without_a_lost_worker() {
    let mut bench = Bench::with_tables();
    let run = |bench: &Bench| {
        let pool = bench.cluster.pool.url();
        let workers = ["--workers", bench.url(0), "--workers", bench.url(1)];
        let what = [
            "--explain",
            "--json",
            "--quiet",
            "--format",
            "csv",
            "-c",
            "SELECT count(*) AS n FROM sales WHERE item >= 0",
        ];
        let output = output(command(FARPOOL_SQL).args(["--pool", pool]).args(workers).args(what));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (said, told) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{told}");
        assert_eq!(said.trim(), "n\n470000");
        told
    };
    let told = run(&bench);
    let json: serde_json::Value = serde_json::from_str(&told).expect("one object");
    let tasks = json["tasks"].as_array().expect("a list");
    assert_eq!(tasks.len(), 2, "{told}");
    assert!(tasks.iter().all(|task| task["row_groups"] == task["row_groups_near"]), "{told}");
    bench.processes[0].kill();
    let told = run(&bench);
    assert!(told.contains(bench.url(0)) && told.contains("is left out"), "{told}");
}
