//! TPC-H, and queries over the table `hits`, on far tables. They are made from the Parquet files over which DuckDB gave
//! the expected answers, and queried in every placement.
//!
//! The idea: exact values must be equal to DuckDB's, and inexact ones as close as their types permit. Sums of floats
//! may differ by the order of additions. Where one engine returns a decimal and the other a float, the decimal may have
//! been truncated after its last digit.

use crate::pools::{embedded, files, put, reference, session_in, stem};
use crate::{PLACEMENTS, canonical};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::prelude::DataFrame;
use farpool_datafusion::{FarSession, FarTempFiles, Options};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Largest permitted relative difference of two sums of floats, which differ by rounding if they were added in
/// different orders.
const TOLERANCE: f64 = 1e-9;

/// Rows of an answer as text, and the exactness with which the values of each column are compared.
pub struct Answer {
    pub rows: Vec<Vec<String>>,
    pub columns: Vec<Exactness>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exactness {
    Float,
    /// Decimal. Integers have scale 0.
    Decimal {
        scale: i8,
    },
    Text,
}

impl Answer {
    pub fn of(schema: &Schema, batches: &[RecordBatch]) -> Result<Answer, String> {
        let exactness = |of: &DataType| match of {
            DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => {
                Exactness::Decimal { scale: *scale }
            }
            of if of.is_integer() => Exactness::Decimal { scale: 0 },
            of if of.is_floating() => Exactness::Float,
            _ => Exactness::Text,
        };
        let columns = schema.fields().iter().map(|field| exactness(field.data_type())).collect();
        Ok(Answer { rows: canonical::rows(batches)?, columns })
    }

    /// Describes the first difference from the wanted answer. `None` if the answers agree.
    pub fn difference(&self, wanted: &Answer) -> Option<String> {
        let shape = |of: &Answer| (of.rows.len(), of.columns.len());
        if shape(self) != shape(wanted) {
            return Some(format!("{:?} rows and columns, not {:?}", shape(self), shape(wanted)));
        }
        for (row, (found, wanted_row)) in self.rows.iter().zip(&wanted.rows).enumerate() {
            for column in 0..self.columns.len() {
                let (one, other) = (&found[column], &wanted_row[column]);
                let cell = |text, exactness| Cell { text, exactness };
                if !is_alike(cell(one, self.columns[column]), cell(other, wanted.columns[column])) {
                    return Some(format!("row {row}, column {column}: {one}, not {other}"));
                }
            }
        }
        None
    }
}

/// Value as text, and the exactness of its column.
struct Cell<'a> {
    text: &'a str,
    exactness: Exactness,
}

fn is_alike(one: Cell<'_>, other: Cell<'_>) -> bool {
    if one.text == other.text {
        return true;
    }
    if one.text == canonical::NULL || other.text == canonical::NULL {
        return false;
    }
    let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    let (a, b) = (number(one.text), number(other.text));
    let near = TOLERANCE * a.abs().max(b.abs());
    match (one.exactness, other.exactness) {
        (Exactness::Float, Exactness::Float) => (a - b).abs() <= near,
        (Exactness::Float, Exactness::Decimal { scale })
        | (Exactness::Decimal { scale }, Exactness::Float) => {
            (a - b).abs() <= near.max(10f64.powi(-i32::from(scale)))
        }
        (Exactness::Decimal { .. }, Exactness::Decimal { .. }) => {
            without_zeros(one.text) == without_zeros(other.text)
        }
        _ => false,
    }
}

/// Removes trailing zeros after the decimal point.
fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

fn wanted(path: &Path) -> Answer {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).expect("a Parquet file");
    let schema = builder.schema().clone();
    let batches = builder.build().expect("a reader").collect::<Result<Vec<_>, _>>().expect("rows");
    Answer::of(&schema, &batches).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

async fn answer(session: &FarSession, sql: &str) -> Result<Answer, String> {
    answer_of(session.context().sql(sql).await.map_err(|error| error.to_string())?).await
}

pub async fn answer_of(frame: DataFrame) -> Result<Answer, String> {
    let schema = frame.schema().as_arrow().clone();
    let batches = frame.collect().await.map_err(|error| error.to_string())?;
    Answer::of(&schema, &batches)
}

/// Queries in a part of the reference folder, which `reference.py` made, with DuckDB's answers.
pub struct Queries {
    part: &'static str,
    folder: PathBuf,
    queries: Vec<PathBuf>,
}

impl Queries {
    pub fn of(part: &'static str, queries_min: usize) -> Queries {
        let folder = reference(part);
        let queries = files(&folder.join("queries"), "sql");
        assert!(queries.len() >= queries_min, "{} queries; there are {queries_min}", queries.len());
        Queries { part, folder, queries }
    }

    /// Returns the tables that the queries read.
    pub fn tables(&self) -> Vec<PathBuf> {
        files(&self.folder.join("data"), "parquet")
    }

    /// Runs all queries in a session. Returns a line for each wrong answer.
    pub async fn compare(&self, session: &FarSession, how: &str) -> Vec<String> {
        self.compare_each(how, async |_, sql| answer(session, sql).await).await
    }

    /// Asks for the answer to each query by its name and text. Returns a line for each wrong answer.
    pub async fn compare_each(
        &self,
        how: &str,
        mut ask: impl AsyncFnMut(&str, &str) -> Result<Answer, String>,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        for query in &self.queries {
            let name = stem(query);
            let sql = std::fs::read_to_string(query).expect("a query");
            let wanted = wanted(&self.folder.join("answers").join(format!("{name}.parquet")));
            let fault = match ask(&name, &sql).await {
                Ok(found) => found.difference(&wanted),
                Err(error) => Some(error),
            };
            faults.extend(fault.map(|fault| format!("{} {name}, {how}: {fault}", self.part)));
        }
        faults
    }
}

/// Compares every query of a part of the reference folder in every placement. Fails with all wrong answers.
fn compare_all(part: &'static str, queries_min: usize) {
    let queries = Queries::of(part, queries_min);
    let tables = queries.tables();
    let pool = embedded(&tables);
    put(&pool, &tables);
    let runtime = Runtime::new().expect("a runtime");
    let mut faults = Vec::new();
    for placement in PLACEMENTS {
        let session = session_in(&pool, placement, &runtime);
        faults.extend(runtime.block_on(queries.compare(&session, placement)));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn tpch_has_the_answers_of_duckdb_in_all_placements() {
    compare_all("tpch", 22);
}

/// Memory limit in bytes. It is too small for the build sides of most joins; the table `orders` alone takes more.
const LITTLE_MEMORY: usize = 6 << 20;

#[test]
fn tpch_has_the_answers_of_duckdb_in_little_memory() {
    let queries = Queries::of("tpch", 22);
    let tables = queries.tables();
    let pool = embedded(&tables);
    put(&pool, &tables);
    let files = FarTempFiles::new(&pool, None).expect("threads");
    let runtime = farpool_datafusion::runtime(Some(LITTLE_MEMORY), Some(Arc::new(files.clone())));
    let session =
        FarSession::within(&pool, Options::default(), runtime.expect("a runtime")).expect("a session");
    let faults = Runtime::new().expect("a runtime").block_on(async {
        // The default reservation of a sort for its merge is larger than the memory limit.
        let set = session.context().sql("SET datafusion.execution.sort_spill_reservation_bytes = 65536");
        set.await.expect("a setting").collect().await.expect("set");
        queries.compare(&session, "in 6 MiB").await
    });
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let spilled = files.spilled();
    assert!(spilled.far_bytes > LITTLE_MEMORY as u64 && spilled.disk_bytes == 0, "{spilled:?}");
}

#[test]
fn queries_over_hits_have_the_answers_of_duckdb_in_all_placements() {
    compare_all("hits", 30);
}

#[test]
fn answers_are_compared_as_exactly_as_their_types_permit() {
    let float = |text| Cell { text, exactness: Exactness::Float };
    let text = |text| Cell { text, exactness: Exactness::Text };
    let decimal = |text, scale| Cell { text, exactness: Exactness::Decimal { scale } };
    assert!(is_alike(float("1.5"), float("1.5000000001")));
    assert!(!is_alike(float("1.5"), float("1.50000001")));
    assert!(!is_alike(float("0"), float("1e-300")));
    assert!(is_alike(decimal("25.505793", 6), float("25.5057936")));
    assert!(!is_alike(decimal("25.505792", 6), float("25.5057936")));
    assert!(is_alike(decimal("12.30", 2), decimal("12.3", 1)));
    assert!(is_alike(decimal("12.00", 2), decimal("12", 0)));
    assert!(!is_alike(decimal("120", 0), decimal("12", 0)));
    assert!(!is_alike(decimal("12.31", 2), decimal("12.30", 2)));
    assert!(!is_alike(float("NULL"), float("0")));
    assert!(!is_alike(text("a"), text("A")));
    assert!(is_alike(float("NaN"), float("NaN")));
    assert!(!is_alike(float("NaN"), float("1")));
}
