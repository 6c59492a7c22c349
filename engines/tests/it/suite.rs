//! The SQL suite over far tables: every statement of `suite/*.slt`, in every placement.

use crate::pools::{Cluster, embedded, files, put, put_changed, reference, session_in, stem};
use crate::{PLACEMENTS, canonical};
use farpool::Pool;
use farpool_datafusion::FarSession;
use sqllogictest::{DB, DBOutput, DefaultColumnType, Normalizer, Record, Runner, strict_column_validator};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Least number of queries in all files of the suite. Fewer mean that files are missing.
const QUERIES_MIN: usize = 500;
/// Number of faults that are shown, at most.
const SHOWN_MAX: usize = 20;

#[derive(Debug)]
struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

struct FarTables {
    session: FarSession,
    runtime: Arc<Runtime>,
}

impl DB for FarTables {
    type Error = Failed;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failed> {
        let (schema, batches) = self
            .runtime
            .block_on(async {
                let frame = self.session.context().sql(sql).await?;
                let schema = frame.schema().as_arrow().clone();
                Ok::<_, datafusion::error::DataFusionError>((schema, frame.collect().await?))
            })
            .map_err(|error| Failed(error.to_string()))?;
        let rows = canonical::rows(&batches).map_err(Failed)?;
        Ok(DBOutput::Rows { types: canonical::letters(&schema), rows })
    }
}

/// Compares rows exactly. The default comparison of sqllogictest would treat several blanks as one.
fn is_answer(_: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    actual.len() == expected.len() && actual.iter().zip(expected).all(|(row, line)| row.join("\t") == *line)
}

/// Runs all files of the suite in this placement, and fails with the faults of all of them.
fn run_suite(pool: &Pool, placement: &str) {
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let session = session_in(pool, placement, &runtime);

    let mut runner =
        Runner::new(|| async { Ok(FarTables { session: session.clone(), runtime: Arc::clone(&runtime) }) });
    runner.with_validator(is_answer);
    runner.with_column_validator(strict_column_validator);
    let (mut queries, mut faults) = (0, Vec::new());
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("suite"), "slt") {
        let records = sqllogictest::parse_file::<DefaultColumnType>(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for record in records {
            queries += usize::from(matches!(record, Record::Query { .. }));
            if let Err(error) = runner.run(record) {
                faults.push(format!("{}: {error}", stem(&path)));
            }
        }
    }
    let shown = faults.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(faults.is_empty(), "{placement}: {} of {queries} queries, among them\n{shown}", faults.len());
    assert!(queries >= QUERIES_MIN, "{queries} queries; there are at least {QUERIES_MIN}");
}

fn run_embedded(placement: &str, put: impl Fn(&Pool, &[PathBuf])) {
    assert!(PLACEMENTS.contains(&placement));
    let tables = files(&reference("suite"), "arrow");
    let pool = embedded(&tables);
    put(&pool, &tables);
    run_suite(&pool, placement);
}

// One test for each placement, so that a report names the placement.

#[test]
fn suite_has_the_answers_of_duckdb_where_the_planner_chooses() {
    run_embedded("auto", put);
}

#[test]
fn suite_has_the_answers_of_duckdb_where_all_is_fetched() {
    run_embedded("fetch", put);
}

#[test]
fn suite_has_the_answers_of_duckdb_where_all_is_shipped() {
    run_embedded("ship", put);
}

#[test]
fn suite_has_the_answers_of_duckdb_where_all_is_split() {
    run_embedded("split", put);
}

#[test]
fn suite_has_the_answers_of_duckdb_over_tables_that_were_changed() {
    run_embedded("auto", put_changed);
}

#[test]
fn suite_has_the_answers_of_duckdb_over_tcp_to_two_processes() {
    let tables = files(&reference("suite"), "arrow");
    let cluster = Cluster::start("768MiB");
    put(&cluster.pool, &tables);
    run_suite(&cluster.pool, "auto");
}
