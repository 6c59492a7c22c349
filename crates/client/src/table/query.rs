//! Queries over a far table: its columns are fetched, and the program that could run beside them runs here.
//!
//! The idea: only columns that the query reads are fetched. The result is the same, row for row, as if each row group
//! had been worked on elsewhere and the partial results merged, for that is what is done.

use super::FarTable;
use crate::error::{Error, ErrorKind};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};
use farpool_operators::run::{Bounds, Merge, Prepared, Run, data_type, type_of};
use farpool_operators::{Plan, Program, Query};
use std::fmt::Display;
use std::sync::Arc;

/// As an error of this library.
fn refused(why: impl Display) -> Error {
    Error::new(ErrorKind::Invalid, why.to_string())
}

/// A batch that has rows, be it without columns.
fn batch_of(
    columns: Vec<arrow_array::ArrayRef>,
    schema: Arc<Schema>,
    rows: usize,
) -> Result<RecordBatch, Error> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options).map_err(refused)
}

impl FarTable {
    /// A query over all of its columns, to be narrowed.
    ///
    /// Errors: [`ErrorKind::Invalid`] if it has columns of a type that queries do not know.
    pub fn query(&self) -> Result<Query, Error> {
        let named = |field: &Arc<Field>| match type_of(field.data_type()) {
            Some(of) => Ok((field.name().clone(), of)),
            None => Err(refused(format_args!(
                "column {:?} of far table {:?}: queries over {} are not known",
                field.name(),
                self.name(),
                field.data_type()
            ))),
        };
        Ok(Query::over(self.schema().fields().iter().map(named).collect::<Result<_, _>>()?))
    }

    /// Runs a query here, over columns that are fetched for it. Groups come in the order of their keys, NULL first; of
    /// other rows the order is that of the table.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the plan is of another table, its patterns are no regular expressions, or a
    /// value does not fit its type; those of [`FarTable::read`].
    pub fn run(&self, plan: &Plan) -> Result<Vec<RecordBatch>, Error> {
        let during = |error: Error| error.during(format_args!("querying far table {:?}", self.name()));
        if self.query()?.plan().map_err(refused)?.near.input() != plan.near.input() {
            return Err(during(refused("the query was planned over other columns")));
        }
        let (near, places) = plan.near.narrowed();
        let merged = self.run_near(near, &places).map_err(during)?;
        let finish = self.over(plan.finish.clone(), merged.into_iter().map(Ok)).map_err(during)?;
        let field = |(name, of): &(String, farpool_operators::Type)| Field::new(name, data_type(*of), true);
        let schema = Arc::new(Schema::new(plan.columns.iter().map(field).collect::<Vec<_>>()));
        let named = |batch: RecordBatch| {
            let rows = batch.num_rows();
            batch_of(batch.columns().to_vec(), Arc::clone(&schema), rows)
        };
        finish.into_iter().map(named).collect()
    }

    fn run_near(&self, near: Program, places: &[usize]) -> Result<Vec<RecordBatch>, Error> {
        if places.is_empty() {
            // What counts rows needs none of their bytes.
            let schema = Arc::new(Schema::empty());
            let groups = self.row_groups().iter().map(|group| group.rows as usize);
            return self.over(near, groups.map(|rows| batch_of(Vec::new(), Arc::clone(&schema), rows)));
        }
        self.over(near, self.read(Some(places), None)?)
    }

    /// Runs a program over batches, and makes its partial results whole.
    fn over(
        &self,
        program: Program,
        batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    ) -> Result<Vec<RecordBatch>, Error> {
        let mut seed = [0; 8];
        self.file.inner.session.host.random(&mut seed).map_err(refused)?;
        let seed = u64::from_le_bytes(seed);
        let mut merge = Merge::new(&program, seed).map_err(refused)?;
        let prepared = Prepared::new(Arc::new(program), Vec::new()).map_err(refused)?;
        let bounds = Bounds { seed, batch_rows_max: usize::MAX, ..Bounds::default() };
        let mut run = Run::new(Arc::new(prepared), bounds).map_err(refused)?;
        let mut position = 0;
        for batch in batches {
            let batch = batch?;
            for partial in run.push(&batch, position).map_err(refused)? {
                merge.push(&partial).map_err(refused)?;
            }
            if run.is_done() {
                break;
            }
            position += batch.num_rows() as u64;
        }
        for partial in run.finish().map_err(refused)? {
            merge.push(&partial).map_err(refused)?;
        }
        merge.finish().map_err(refused)
    }
}
