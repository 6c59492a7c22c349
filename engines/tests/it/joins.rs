//! Joins whose build side does not fit into the memory limit: with temporary files in far memory they return the same
//! rows as without a limit.

use crate::plans::lines;
use crate::pools::{Cluster, soon};
use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionConfig;
use farpool::{EmbeddedOptions, Pool};
use farpool_datafusion::{FarSession, FarTempFiles, Options, Spilled, builder, runtime, spills};
use std::sync::Arc;

pub const MIB: usize = 1 << 20;

/// Deterministic random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Distribution of the keys of a side.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// All keys are equally frequent.
    Even { keys: u64 },
    /// Half of the rows have the same key.
    Heavy { keys: u64 },
}

/// Makes rows with an integer, a text and a decimal as keys, some of them NULL, and the number of the row.
pub fn rows(random: &mut Random, rows: u64, keys: Keys, batch_rows: u64) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    for start in (0..rows.max(1)).step_by(batch_rows as usize) {
        let numbers = start..rows.min(start + batch_rows);
        let draw = |random: &mut Random| {
            let key = match keys {
                Keys::Even { keys } => random.below(keys),
                Keys::Heavy { keys } => random.below(keys) * random.below(2),
            };
            (random.below(50) > 0).then_some(key as i64 - 3)
        };
        let drawn: Vec<Option<i64>> = numbers.clone().map(|_| draw(random)).collect();
        let text = |key: &Option<i64>| key.map(|key| format!("key number {key} and more"));
        let decimals: Decimal128Array = drawn.iter().map(|key| key.map(i128::from)).collect();
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("k", Arc::new(Int64Array::from(drawn.clone())) as ArrayRef, true),
            ("t", Arc::new(drawn.iter().map(text).collect::<StringArray>()), true),
            ("d", Arc::new(decimals.with_precision_and_scale(20, 2).expect("a decimal")), true),
            ("n", Arc::new(Int64Array::from_iter_values(numbers.map(|row| row as i64))), true),
        ]);
        batches.push(batch.expect("a batch"));
    }
    batches
}

pub fn pool(memory: usize) -> Pool {
    let mut options = EmbeddedOptions::new(memory as u64);
    options.region_bytes = Some(MIB as u64);
    Pool::embedded(options).expect("an embedded pool")
}

/// DataFusion session with two tables, `r` and `s`, which are the sides of a join. The tables are in memory of this
/// process, in several partitions. The session may have a memory limit. Its temporary files are in the pool.
pub struct Tables {
    session: FarSession,
    pub files: FarTempFiles,
}

impl Tables {
    pub fn new(
        pool: &Pool,
        memory: Option<usize>,
        partitions: usize,
        sides: &[Vec<RecordBatch>; 2],
    ) -> Tables {
        let files = FarTempFiles::new(pool, None).expect("threads");
        let runtime = runtime(memory, Some(Arc::new(files.clone()))).expect("a runtime");
        let config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(1024);
        let state = builder(config, Options::default()).with_runtime_env(runtime).with_default_features();
        let session = FarSession::over(pool, state.build());
        for (name, batches) in ["r", "s"].iter().zip(sides) {
            let mut parts: Vec<Vec<RecordBatch>> = vec![Vec::new(); partitions];
            batches.iter().enumerate().for_each(|(at, batch)| parts[at % partitions].push(batch.clone()));
            let table = MemTable::try_new(batches[0].schema(), parts).expect("a table");
            // The tables are in this process's memory, and not far tables, so that only the join is tested.
            let name = format!("datafusion.public.{name}");
            let catalog = Arc::new(datafusion::catalog::MemoryCatalogProvider::new());
            if session.context().catalog("datafusion").is_none() {
                use datafusion::catalog::CatalogProvider;
                let schema = Arc::new(datafusion::catalog::MemorySchemaProvider::new());
                catalog.register_schema("public", schema).expect("a schema");
                session.context().register_catalog("datafusion", catalog);
            }
            session.context().register_table(name.as_str(), Arc::new(table)).expect("registered");
        }
        Tables { session, files }
    }

    pub async fn run(&self, sql: &str) -> Result<(Vec<String>, Arc<dyn ExecutionPlan>), DataFusionError> {
        let context = self.session.context();
        for statement in ["SET datafusion.catalog.default_catalog = 'datafusion'"] {
            context.sql(statement).await?.collect().await?;
        }
        let rows = context.sql(sql).await?;
        let (plan, task) = (rows.clone().create_physical_plan().await?, Arc::new(rows.task_ctx()));
        let batches = collect(Arc::clone(&plan), task).await?;
        Ok((lines(&batches), plan))
    }

    pub async fn batches(&self, sql: &str) -> Vec<RecordBatch> {
        self.rows("SET datafusion.catalog.default_catalog = 'datafusion'").await;
        self.session.context().sql(sql).await.expect(sql).collect().await.expect(sql)
    }

    pub async fn rows(&self, sql: &str) -> Vec<String> {
        let done = self.run(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {}", error.strip_backtrace())).0
    }
}

/// Returns queries of all join types for which DataFusion has a hash join.
fn queries(on: &str, condition: &str) -> Vec<String> {
    let condition = if condition.is_empty() { String::new() } else { format!(" AND {condition}") };
    let joins = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
        .map(|join| format!("SELECT r.k, r.n, s.k AS sk, s.n AS sn, s.t FROM r {join} s ON {on}{condition}"));
    let halves = ["EXISTS", "NOT EXISTS"]
        .map(|word| format!("SELECT r.n, r.d FROM r WHERE {word} (SELECT 1 FROM s WHERE {on}{condition})"));
    let others = ["LEFT SEMI JOIN", "LEFT ANTI JOIN", "RIGHT SEMI JOIN", "RIGHT ANTI JOIN"].map(|join| {
        let side = if join.starts_with('L') { "r" } else { "s" };
        format!("SELECT {side}.n, {side}.t FROM r {join} s ON {on}{condition}")
    });
    let mark =
        format!("SELECT r.n FROM r WHERE r.n % 7 = 3 OR EXISTS (SELECT 1 FROM s WHERE {on}{condition})");
    joins.into_iter().chain(halves).chain(others).chain([mark]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_join_has_the_same_rows_when_its_build_side_does_not_fit() {
    let pool = pool(256 * MIB);
    let shapes = [
        ("r.k = s.k", "", Keys::Even { keys: 40_000 }),
        ("r.k = s.k", "r.n % 5 < s.n % 7", Keys::Even { keys: 9_000 }),
        ("r.t = s.t AND r.d = s.d", "", Keys::Even { keys: 40_000 }),
        ("r.t = s.t", "r.n < s.n + 1000", Keys::Even { keys: 20_000 }),
    ];
    for (case, (on, condition, keys)) in shapes.into_iter().enumerate() {
        let mut random = Random(case as u64);
        let sides = [rows(&mut random, 30_000, keys, 1_000), rows(&mut random, 50_000, keys, 3_000)];
        for partitions in [1, 3] {
            let wanted = Tables::new(&pool, None, partitions, &sides);
            let tight = Tables::new(&pool, Some(MIB), partitions, &sides);
            for sql in queries(on, condition) {
                let before = tight.files.spilled();
                let (found, expected) = (tight.rows(&sql).await, wanted.rows(&sql).await);
                assert!(
                    found == expected,
                    "{partitions}: {sql}: {} rows, not {}",
                    found.len(),
                    expected.len()
                );
                let spilled = tight.files.spilled().since(before);
                assert!(spilled.far_bytes > 0 && spilled.disk_bytes == 0, "{partitions}: {sql}: {spilled:?}");
            }
            assert_eq!(
                wanted.files.spilled(),
                Spilled::default(),
                "with memory enough nothing is put anywhere"
            );
        }
    }
    assert_eq!(pool.list_private("datafusion/").len(), 0, "temporary files are deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_half_of_all_rows_is_joined_in_passes() {
    let pool = pool(256 * MIB);
    let mut random = Random(77);
    let heavy = rows(&mut random, 40_000, Keys::Heavy { keys: 30_000 }, 2_000);
    let few = rows(&mut random, 60, Keys::Heavy { keys: 30_000 }, 20);
    for sides in [[heavy.clone(), few.clone()], [few, heavy]] {
        let wanted = Tables::new(&pool, None, 2, &sides);
        let tight = Tables::new(&pool, Some(MIB), 2, &sides);
        for sql in queries("r.k = s.k", "") {
            let (found, expected) = (tight.rows(&sql).await, wanted.rows(&sql).await);
            assert!(found == expected, "{sql}: {} rows, not {}", found.len(), expected.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_ends_a_join_that_spills() {
    let pool = pool(256 * MIB);
    let mut random = Random(5);
    let keys = Keys::Even { keys: 30_000 };
    let sides = [rows(&mut random, 30_000, keys, 1_000), rows(&mut random, 50_000, keys, 3_000)];
    let tight = Tables::new(&pool, Some(MIB), 2, &sides);
    let found = tight.rows("SELECT r.n, s.n FROM r JOIN s ON r.k = s.k LIMIT 100").await;
    assert_eq!(found.len(), 100);
    assert_eq!(pool.list_private("datafusion/").len(), 0, "temporary files are deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn join_that_fails_for_want_of_memory_completes_from_far_memory() {
    let pool = pool(256 * MIB);
    let mut random = Random(11);
    let keys = Keys::Even { keys: 100_000 };
    let sides = [rows(&mut random, 100_000, keys, 8_000), rows(&mut random, 200_000, keys, 8_000)];
    let tables = Tables::new(&pool, Some(2 * MIB), 2, &sides);
    let sql = "SELECT count(*), sum(r.n + s.n) FROM r JOIN s ON r.k = s.k";
    tables.rows("SET farpool.spill_joins = false").await;
    let error = tables.run(sql).await.expect_err("a build side of several MiB in 2 MiB");
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    tables.rows("SET farpool.spill_joins = true").await;
    let (found, plan) = tables.run(sql).await.expect("rows");
    assert_eq!(found, Tables::new(&pool, None, 2, &sides).rows(sql).await);
    let spilled = spills(&plan);
    let join =
        spilled.iter().find(|spill| spill["operator"] == "FarHashJoinExec").expect("a join that spilled");
    assert!(join["bytes"].as_u64() > Some(0) && join["rows"].as_u64() > Some(0), "{join}");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_differ_are_joined_by_the_kernel_with_the_same_rows() {
    let pool = pool(256 * MIB);
    let batches = |rows: i64, key: fn(i64) -> Option<i64>| -> Vec<RecordBatch> {
        let batch = |start: i64| {
            let rows = start..rows.min(start + 8_000);
            let keys = Int64Array::from_iter(rows.clone().map(key));
            let days = Date32Array::from_iter(rows.clone().map(|row| key(row).map(|key| (key % 90) as i32)));
            RecordBatch::try_from_iter_with_nullable([
                ("k", Arc::new(keys) as ArrayRef, true),
                ("day", Arc::new(days), true),
                ("n", Arc::new(Int64Array::from_iter_values(rows)), true),
            ])
            .expect("a batch")
        };
        (0..rows).step_by(8_000).map(batch).collect()
    };
    // Keys are unique. Some rows of both sides have no partner, and some keys are NULL.
    let build = batches(500_000, |row| (row % 50 > 0).then_some(row * 3 - 100_000));
    let probe = batches(700_000, |row| (row % 70 > 0).then_some(row * 7 % 2_000_003 - 200_000));
    let sides = [build, probe];
    let wanted = Tables::new(&pool, None, 1, &sides);
    let tight = Tables::new(&pool, Some(16 * MIB), 1, &sides);
    for sql in [
        "SELECT r.n, s.n AS sn, s.k FROM r JOIN s ON r.k = s.k",
        "SELECT count(*) FROM r JOIN s ON r.k = s.k",
    ] {
        let (found, plan) = tight.run(sql).await.expect("rows");
        assert!(found == wanted.rows(sql).await, "{sql}: {} rows", found.len());
        let mut parts = 0;
        let mut open = vec![&plan];
        while let Some(plan) = open.pop() {
            let metrics = plan.metrics().unwrap_or_default();
            parts += metrics.sum_by_name("parts_joined_by_words").map_or(0, |parts| parts.as_usize());
            open.extend(plan.children());
        }
        assert!(parts > 1, "{sql}: {parts} parts by the kernel");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_that_is_full_leaves_the_rest_to_the_disk() {
    let pool = pool(2 * MIB);
    let mut random = Random(21);
    let keys = Keys::Even { keys: 50_000 };
    let sides = [rows(&mut random, 50_000, keys, 4_000), rows(&mut random, 90_000, keys, 4_000)];
    let tables = Tables::new(&pool, Some(2 * MIB), 2, &sides);
    let sql = "SELECT r.n, s.n, s.t FROM r LEFT JOIN s ON r.t = s.t";
    assert_eq!(tables.rows(sql).await, Tables::new(&pool, None, 2, &sides).rows(sql).await);
    let spilled = tables.files.spilled();
    assert!(spilled.far_bytes > 0 && spilled.disk_bytes > 0, "{spilled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_lost_under_a_join_that_spilled_is_an_error_by_name_or_no_loss() {
    let mut cluster = Cluster::start("64MiB");
    let mut random = Random(31);
    let keys = Keys::Even { keys: 150_000 };
    let sides = [rows(&mut random, 150_000, keys, 8_000), rows(&mut random, 150_000, keys, 8_000)];
    let tables = Tables::new(&cluster.pool, Some(2 * MIB), 2, &sides);
    let sql = "SELECT r.n, s.n FROM r JOIN s ON r.t = s.t";
    let wanted = Tables::new(&cluster.pool, None, 2, &sides).rows(sql).await;
    assert_eq!(tables.rows(sql).await, wanted);
    let before = tables.files.spilled();
    let lost = soon(async {
        let running = tables.run(sql);
        let losing = async {
            // The node is killed once 1 MiB has been spilled.
            while tables.files.spilled().since(before).far_bytes < MIB as u64 {
                tokio::task::yield_now().await;
            }
            cluster.lose_two();
        };
        futures::join!(running, losing).0
    })
    .await;
    match lost {
        Ok((found, _)) => assert!(found == wanted, "{} rows, not {}", found.len(), wanted.len()),
        Err(error) => assert!(error.strip_backtrace().contains("two"), "{}", error.strip_backtrace()),
    }
}
