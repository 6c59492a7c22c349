//! Inner joins by keys that fit a word, of a build side that has each key once: farpool's own kernel.
//!
//! The idea: most joins look numbers up in a table that has each once. Such a row finds one row at most, so what comes
//! out of a batch is no larger than it, and the whole batch is looked up at once, asking memory ahead. Whatever is not
//! so is DataFusion's to join.

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{DataFusionError, JoinType, NullEquality, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use farpool_join::columns::Lookup;
use farpool_join::{HugePages, JoinError, Settings};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Build sides of fewer rows are not worth the memory that the kernel asks for at least: some chunks of 2 MiB.
const ROWS_MIN: usize = 1 << 15;

/// How parts of a join are joined by the kernel.
#[derive(Debug)]
pub(crate) struct Words {
    pages: HugePages,
    settings: Settings,
    build_keys: Vec<PhysicalExprRef>,
    probe_keys: Vec<PhysicalExprRef>,
    /// Columns that come out: of the build side, then of the probe side.
    columns: Vec<usize>,
    build_columns: usize,
    schema: SchemaRef,
}

impl Words {
    /// Nothing if it is no such join, as far as its plan says.
    pub(crate) fn new(join: &HashJoinExec) -> Option<Words> {
        let left = join.left().schema();
        let is_word = |key: &PhysicalExprRef| {
            // The order of zeros and of NaNs is DataFusion's own, so it does not join floating-point numbers as we do.
            key.data_type(&left)
                .is_ok_and(|of| of.is_integer() || of.is_temporal() || of == DataType::Boolean)
        };
        let is_plain = *join.join_type() == JoinType::Inner
            && join.filter().is_none()
            && join.null_equality() == NullEquality::NullEqualsNothing
            && join.on().iter().all(|(build, _)| is_word(build));
        let all = join.join_schema().fields().len();
        is_plain.then(|| Words {
            pages: HugePages::new(),
            // Keys are somebody else's.
            settings: Settings::new(1, RandomState::new().hash_one(0)),
            build_keys: join.on().iter().map(|(build, _)| Arc::clone(build)).collect(),
            probe_keys: join.on().iter().map(|(_, probe)| Arc::clone(probe)).collect(),
            columns: join.projection.as_ref().map_or_else(|| (0..all).collect(), |columns| columns.to_vec()),
            build_columns: left.fields().len(),
            schema: join.schema(),
        })
    }

    /// The rows of a build side, to be looked up in. Nothing if they are few, or keys of some are the same.
    pub(crate) fn lookup(&self, build: &RecordBatch) -> Result<Option<Lookup<'_>>> {
        if build.num_rows() < ROWS_MIN {
            return Ok(None);
        }
        Lookup::new(&self.settings, &self.pages, &keys(&self.build_keys, build)?).map_err(refused)
    }

    /// What rows of the probe side find there.
    pub(crate) fn join(
        &self,
        lookup: &Lookup<'_>,
        build: &RecordBatch,
        probe: &RecordBatch,
    ) -> Result<RecordBatch> {
        let pairs = lookup.pairs(&keys(&self.probe_keys, probe)?).map_err(refused)?;
        let (builds, probes) = pairs.into_parts();
        // If each found one, in their order, they are what there was.
        let are_all =
            probes.len() == probe.num_rows() && (0..).eq(probes.values().iter().copied().take(probes.len()));
        let columns = self.columns.iter().map(|column| match column.checked_sub(self.build_columns) {
            None => Ok(take(build.column(*column), &builds, None)?),
            Some(column) if are_all => Ok(Arc::clone(probe.column(column))),
            Some(column) => Ok(take(probe.column(column), &probes, None)?),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(builds.len()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

fn refused(error: JoinError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn keys(keys: &[PhysicalExprRef], batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
    keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
}
