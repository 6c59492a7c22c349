//! Far tables, and the same rows in memory for DataFusion alone. Both must give the same results.

use crate::plans::place;
use crate::{PLACEMENTS, canonical};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use farpool::{EmbeddedOptions, Pool};
use farpool_datafusion::{FarSession, GroupsEach, Options};
use std::sync::Arc;

/// Number of partitions (parallel streams) of a scan, and of a table in memory.
const PARTITIONS: usize = 3;

/// Order in which rows are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Any order: rows are sorted by their text first.
    InAnyOrder,
    /// Order in which the query returns them.
    AsTheyCome,
}

/// Session over far tables, and a DataFusion context with the same rows in memory.
pub struct Beside {
    pub pool: Pool,
    far: FarSession,
    near: SessionContext,
}

impl Beside {
    /// Puts these tables into a new pool by their names. Each scan has a partition for each row group, up to three.
    pub fn of(tables: &[(&str, &RecordBatch)]) -> Beside {
        let mut options = EmbeddedOptions::new(256 << 20);
        options.node_count = 2;
        // The timeout is long, because a busy machine may not run a node's threads for a while.
        options.pool.request_timeout_ms = 120_000;
        let pool = Pool::embedded(options).expect("an embedded pool");
        let config = SessionConfig::new().with_target_partitions(PARTITIONS);
        let far = config.clone().with_extension(Arc::new(GroupsEach(1)));
        let far = farpool_datafusion::builder(far, Options::default()).with_default_features().build();
        let far = FarSession::over(&pool, far);
        let near = SessionContext::new_with_config(config);
        for (name, batch) in tables {
            pool.put_table(name, batch.schema(), [(*batch).clone()]).expect("put");
            let rows = batch.num_rows().div_ceil(PARTITIONS);
            let part = |part: usize| {
                let start = batch.num_rows().min(part * rows);
                vec![batch.slice(start, rows.min(batch.num_rows() - start))]
            };
            let table = MemTable::try_new(batch.schema(), (0..PARTITIONS).map(part).collect());
            near.register_table(*name, Arc::new(table.expect("a table"))).expect("registered");
        }
        Beside { pool, far, near }
    }

    /// Runs a query in all placements. Returns a line for each whose rows differ from DataFusion's.
    pub async fn faults(&self, sql: &str, order: Rows) -> Vec<String> {
        let wanted = match answer(&self.near, sql, order).await {
            Ok(wanted) => wanted,
            Err(error) => return vec![format!("{sql}: in memory: {error}")],
        };
        self.faults_beside(sql, order, &wanted).await
    }

    /// Runs a query in all placements. Returns a line for each whose rows, as text, differ from `wanted`.
    pub async fn faults_beside(&self, sql: &str, order: Rows, wanted: &[String]) -> Vec<String> {
        let mut faults = Vec::new();
        for placement in PLACEMENTS {
            place(&self.far, placement).await;
            let fault = match answer(self.far.context(), sql, order).await {
                Ok(found) => difference(&found, wanted),
                Err(error) => Some(error),
            };
            faults.extend(fault.map(|fault| format!("{sql}: {placement}: {fault}")));
        }
        faults
    }

    /// Returns the rows of DataFusion alone, sorted by their text.
    pub async fn wanted(&self, sql: &str) -> Vec<String> {
        answer(&self.near, sql, Rows::InAnyOrder).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

async fn answer(context: &SessionContext, sql: &str, order: Rows) -> Result<Vec<String>, String> {
    let said = |error: datafusion::error::DataFusionError| error.strip_backtrace();
    let batches = context.sql(sql).await.map_err(said)?.collect().await.map_err(said)?;
    lines(&batches, order)
}

/// Returns rows as text. A float's text is followed by its bits, so that NaNs and zeros are distinguished.
pub fn lines(batches: &[RecordBatch], order: Rows) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for batch in batches {
        let rows = canonical::rows(std::slice::from_ref(batch))?;
        for (row, mut texts) in rows.into_iter().enumerate() {
            for (text, column) in texts.iter_mut().zip(batch.columns()) {
                let bits = match column.data_type() {
                    DataType::Float32 => u64::from(column.as_primitive::<Float32Type>().value(row).to_bits()),
                    DataType::Float64 => column.as_primitive::<Float64Type>().value(row).to_bits(),
                    _ => continue,
                };
                if column.is_valid(row) {
                    *text = format!("{text} ({bits:#x})");
                }
            }
            lines.push(texts.join("|"));
        }
    }
    if order == Rows::InAnyOrder {
        lines.sort_unstable();
    }
    Ok(lines)
}

/// Describes the first row that differs. `None` if the rows are equal.
pub fn difference(found: &[String], wanted: &[String]) -> Option<String> {
    if found.len() != wanted.len() {
        return Some(format!("{} rows, not {}", found.len(), wanted.len()));
    }
    let mut pairs = found.iter().zip(wanted).enumerate();
    let (row, (found, wanted)) = pairs.find(|(_, (found, wanted))| found != wanted)?;
    Some(format!("row {row}: {found}, not {wanted}"))
}

/// Fails if there are faults (lines that describe wrong answers). Shows the first of them and their number.
pub fn assert_none(faults: &[String]) {
    let shown = &faults[..faults.len().min(12)];
    assert!(faults.is_empty(), "{} faults, of which the first:\n{}", faults.len(), shown.join("\n"));
}
