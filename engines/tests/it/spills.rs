//! Operators whose rows do not fit into the memory limit and spill: with temporary files in far memory they return the
//! same rows as without a limit.

use crate::joins::{Keys, MIB, Random, Tables, pool, rows};
use crate::plans::lines;
use datafusion::arrow::compute::SortOptions;
use datafusion::common::{JoinType, NullEquality};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_plan::joins::SortMergeJoinExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use farpool_datafusion::{FarTempFiles, Spilled, runtime, spills};
use std::sync::Arc;

/// Operator to test, the statements that prepare the session for it, and a query in which it spills.
struct Case {
    operator: &'static str,
    before: &'static [&'static str],
    sql: &'static str,
}

// DataFusion's default reservation of a sort for its merge is larger than the memory limit of these tests.
const SMALL_MERGES: &[&str] = &["SET datafusion.execution.sort_spill_reservation_bytes = 65536"];

/// Operators of DataFusion that spill. Hash joins are tested in `joins`. Repartitionings and nested-loop joins never
/// spill.
const CASES: &[Case] = &[
    Case {
        operator: "SortExec",
        before: SMALL_MERGES,
        // `place` shows the order of the sort, although rows are compared in any order.
        sql: "SELECT row_number() OVER (ORDER BY t DESC, n) AS place, k, d, n FROM s",
    },
    Case {
        operator: "AggregateExec",
        before: SMALL_MERGES,
        sql: "SELECT t, d, count(*), sum(n), min(k), max(n), avg(n) FROM s GROUP BY t, d",
    },
    Case { operator: "AggregateExec", before: SMALL_MERGES, sql: "SELECT DISTINCT n, t FROM s" },
    Case {
        operator: "AggregateExec",
        before: SMALL_MERGES,
        sql: "SELECT n % 3, count(DISTINCT t) FROM s GROUP BY n % 3",
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn every_operator_that_spills_has_the_rows_of_memory_enough() {
    let pool = pool(256 * MIB);
    for (number, case) in CASES.iter().enumerate() {
        let mut random = Random(number as u64);
        let sides = [0, 200_000].map(|count| rows(&mut random, count, Keys::Even { keys: 150_000 }, 2_000));
        // Several partitions of a sort would compete for the memory of their merges, which cannot be spilled.
        let partitions: &[usize] = if case.operator == "SortExec" { &[1] } else { &[1, 3] };
        for &partitions in partitions {
            let wanted = Tables::new(&pool, None, partitions, &sides);
            let tight = Tables::new(&pool, Some(2 * partitions * MIB), partitions, &sides);
            for statement in case.before {
                wanted.rows(statement).await;
                tight.rows(statement).await;
            }
            let at = format!("{}, {partitions} partitions: {}", case.operator, case.sql);
            let (found, plan) = tight.run(case.sql).await.unwrap_or_else(|error| {
                panic!("{at}: {}", error.strip_backtrace());
            });
            let expected = wanted.rows(case.sql).await;
            assert!(found == expected, "{at}: {} rows, not {}", found.len(), expected.len());
            let operators = spills(&plan);
            assert!(operators.iter().any(|spill| spill["operator"] == case.operator), "{at}: {operators:?}");
            let spilled = tight.files.spilled();
            assert!(spilled.far_bytes > 0 && spilled.disk_bytes == 0, "{at}: {spilled:?}");
            assert_eq!(wanted.files.spilled(), Spilled::default(), "{at}");
        }
    }
    assert_eq!(pool.list_private("datafusion/").len(), 0, "temporary files are deleted");
}

// The plan of this join is built by hand. In one planned from SQL, sorts and repartitionings would compete with the
// join for memory, and it would sometimes get none.
#[tokio::test(flavor = "multi_thread")]
async fn join_by_merging_has_the_rows_of_memory_enough_where_the_rows_of_one_key_do_not_fit() {
    let pool = pool(64 * MIB);
    let mut random = Random(3);
    let keys = Keys::Heavy { keys: 20_000 };
    let sides = [rows(&mut random, 20, keys, 20), rows(&mut random, 60_000, keys, 2_000)];
    let tables = Tables::new(&pool, None, 1, &sides);
    let mut inputs = Vec::new();
    for side in ["r", "s"] {
        let sorted = tables.batches(&format!("SELECT * FROM {side} ORDER BY k, n")).await;
        let schema = sorted[0].schema();
        inputs.push(MemorySourceConfig::try_new_exec(&[sorted], schema, None).expect("a plan"));
    }
    let files = FarTempFiles::new(&pool, None).expect("threads");
    for kind in [
        JoinType::Inner,
        JoinType::Left,
        JoinType::Right,
        JoinType::Full,
        JoinType::LeftSemi,
        JoinType::LeftAnti,
        JoinType::RightSemi,
        JoinType::RightAnti,
    ] {
        // The side with many rows of one key is once the buffered side of the join and once the streamed one.
        for [left, right] in [[&inputs[0], &inputs[1]], [&inputs[1], &inputs[0]]] {
            let mut found = Vec::new();
            for memory in [None, Some(MIB)] {
                let on = vec![(col("k", &left.schema()).expect("k"), col("k", &right.schema()).expect("k"))];
                let (left, right) = (Arc::clone(left), Arc::clone(right));
                let options = vec![SortOptions { descending: false, nulls_first: false }];
                let equality = NullEquality::NullEqualsNothing;
                let join = SortMergeJoinExec::try_new(left, right, on, None, kind, options, equality);
                let join: Arc<dyn ExecutionPlan> = Arc::new(join.expect("a join"));
                let runtime = runtime(memory, Some(Arc::new(files.clone()))).expect("a runtime");
                let task = Arc::new(TaskContext::default().with_runtime(runtime));
                let before = files.spilled();
                let batches = collect(Arc::clone(&join), task).await;
                found.push(lines(&batches.unwrap_or_else(|error| panic!("{kind}, {memory:?}: {error}"))));
                let spilled = files.spilled().since(before);
                assert!(memory.is_some() || spilled == Spilled::default(), "{kind}: {spilled:?}");
            }
            assert!(found[0] == found[1], "{kind}: {} rows, not {}", found[1].len(), found[0].len());
        }
    }
    let spilled = files.spilled();
    assert!(spilled.far_bytes > 2 * MIB as u64 && spilled.disk_bytes == 0, "{spilled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn join_without_equal_keys_that_does_not_fit_is_an_error_that_says_so_and_never_other_rows() {
    let pool = pool(64 * MIB);
    let mut random = Random(9);
    let sides = [10_000, 12_000].map(|count| rows(&mut random, count, Keys::Even { keys: 9_000 }, 1_000));
    for partitions in [1, 3] {
        let wanted = Tables::new(&pool, None, partitions, &sides);
        let enough = Tables::new(&pool, Some(16 * MIB), partitions, &sides);
        let tight = Tables::new(&pool, Some(MIB / 4), partitions, &sides);
        for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
            let sql =
                format!("SELECT r.n, s.n AS sn, s.t, r.t AS rt FROM r {join} s ON r.n - s.n BETWEEN 3 AND 4");
            assert!(enough.rows(&sql).await == wanted.rows(&sql).await, "{partitions}: {sql}");
            let error = tight.run(&sql).await.expect_err(&sql).strip_backtrace();
            assert!(error.contains("a join without equality conditions"), "{partitions}: {sql}: {error}");
        }
    }
}
