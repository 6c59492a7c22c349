//! Inner joins by integer keys that are unique on the build side, run by farpool's own kernel.
//!
//! The idea: most joins look up numbers in a table that has each number once. Each probe row then finds at most one
//! build row, so joining a batch yields no more rows than the batch has. The kernel looks up a whole batch at once and
//! prefetches memory. DataFusion runs all other joins.

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{DataFusionError, JoinType, NullEquality, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use farpool_join::columns::BuildLookup;
use farpool_join::{HugePages, JoinError, Settings};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Smallest build side in rows for which the kernel is used. For fewer rows it is not worth the memory that it takes
/// (some chunks of 2 MiB).
const ROWS_MIN: usize = 1 << 15;

/// Kernel of a join, with its keys and output columns.
#[derive(Debug)]
pub(crate) struct WordJoin {
    pages: HugePages,
    settings: Settings,
    build_keys: Vec<PhysicalExprRef>,
    probe_keys: Vec<PhysicalExprRef>,
    /// Indices of the output columns: those of the build side's columns first, then those of the probe side's.
    columns: Vec<usize>,
    build_columns: usize,
    schema: SchemaRef,
}

impl WordJoin {
    /// Makes the kernel of a join. Returns `None` if the plan shows that the kernel cannot do this join.
    pub(crate) fn new(join: &HashJoinExec) -> Option<WordJoin> {
        let left = join.left().schema();
        let is_word = |key: &PhysicalExprRef| {
            // Floats are left out: DataFusion compares zeros and NaNs in its own way.
            key.data_type(&left)
                .is_ok_and(|of| of.is_integer() || of.is_temporal() || of == DataType::Boolean)
        };
        let is_plain = *join.join_type() == JoinType::Inner
            && join.filter().is_none()
            && join.null_equality() == NullEquality::NullEqualsNothing
            && join.on().iter().all(|(build, _)| is_word(build));
        let all = join.join_schema().fields().len();
        is_plain.then(|| WordJoin {
            pages: HugePages::new(),
            // The seed is random because the keys may be chosen by an adversary.
            settings: Settings::new(1, RandomState::new().hash_one(0)),
            build_keys: join.on().iter().map(|(build, _)| Arc::clone(build)).collect(),
            probe_keys: join.on().iter().map(|(_, probe)| Arc::clone(probe)).collect(),
            columns: join.projection.as_ref().map_or_else(|| (0..all).collect(), |columns| columns.to_vec()),
            build_columns: left.fields().len(),
            schema: join.schema(),
        })
    }

    /// Builds a hash table of the build side. Returns `None` if the side has fewer rows than `ROWS_MIN`, or a key
    /// twice.
    pub(crate) fn lookup(&self, build: &RecordBatch) -> Result<Option<BuildLookup<'_>>> {
        if build.num_rows() < ROWS_MIN {
            return Ok(None);
        }
        BuildLookup::new(&self.settings, &self.pages, &keys(&self.build_keys, build)?).map_err(refused)
    }

    /// Looks up a batch of the probe side, and returns the joined rows.
    pub(crate) fn join(
        &self,
        lookup: &BuildLookup<'_>,
        build: &RecordBatch,
        probe: &RecordBatch,
    ) -> Result<RecordBatch> {
        let pairs = lookup.pairs(&keys(&self.probe_keys, probe)?).map_err(refused)?;
        let (builds, probes) = pairs.into_parts();
        // If each probe row found one partner, in order, the probe side's columns can be used as they are.
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
