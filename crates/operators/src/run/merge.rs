//! Merging of the partial results of all runs of a program.

use super::batch::{batch_of, columns_of};
use super::bounds::{BATCH_BYTES_MAX, Stopped};
use super::group::Grouping;
use super::input_of;
use super::top::Top;
use crate::program::{Operator, Program};
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};

/// Merge of partial results of any number of runs, in any order. Call [`Merge::push`] for each batch, then
/// [`Merge::finish`].
pub struct Merge {
    /// Types of the columns that runs produce: those of the result, then hidden ones with what sums need to merge
    /// exactly.
    types: Vec<Type>,
    held: Held,
}

/// Merged rows so far, by the program's last operator. `Limit` has the number of rows that are still wanted.
enum Held {
    Rows(Vec<RecordBatch>),
    Limit(Vec<RecordBatch>, u64),
    Groups(Grouping),
    Top(Top),
}

impl Merge {
    /// Starts a merge of runs of this program. The seed must be random, and not the seed of a run.
    ///
    /// # Errors
    /// None for a checked program.
    pub fn new(program: &Program, seed: u64) -> Result<Merge, Stopped> {
        let mut types = program.output().to_vec();
        let last = program.operators().len().saturating_sub(1);
        let held = match program.operators().last() {
            Some(Operator::Group { keys, aggregates, .. }) => {
                let input = input_of(program, last);
                let keys: Vec<usize> = keys.iter().map(|key| usize::from(*key)).collect();
                let groups = Grouping::merging(keys, aggregates, input, seed)?;
                types.extend(groups.hidden());
                Held::Groups(groups)
            }
            Some(Operator::Top { keys, rows }) => {
                let top = Top::new(keys, &types, *rows as usize, BATCH_BYTES_MAX)?;
                types.push(Type::UInt64);
                Held::Top(top)
            }
            Some(Operator::Limit(rows)) => Held::Limit(Vec::new(), *rows),
            _ => Held::Rows(Vec::new()),
        };
        Ok(Merge { types, held })
    }

    /// Takes a batch that a run has produced.
    ///
    /// # Errors
    /// A batch of other columns, or sums or rows that no run of the program can produce.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), Stopped> {
        let columns = columns_of(batch, &self.types)?;
        match &mut self.held {
            Held::Rows(batches) => batches.push(batch_of(columns, batch.num_rows())?),
            Held::Limit(batches, left) => {
                let count = batch.num_rows().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                if count > 0 {
                    batches.push(batch_of(columns, batch.num_rows())?.slice(0, count));
                }
            }
            Held::Groups(groups) => groups.merge(&columns)?,
            Held::Top(top) => {
                let (positions, columns) = match columns.split_last() {
                    Some((positions, columns)) if positions.null_count() == 0 => (positions, columns),
                    _ => {
                        return Err(Stopped::Columns(
                            "the rows of a top-k came without their positions in the table".to_owned(),
                        ));
                    }
                };
                top.push(columns, positions.as_primitive::<UInt64Type>())?;
            }
        }
        Ok(())
    }

    /// Returns the result. Groups come in the order of their keys, NULL first. Rows of a top come in its order, other
    /// rows in the order in which their batches were pushed.
    ///
    /// # Errors
    /// A sum that does not fit its type.
    pub fn finish(self) -> Result<Vec<RecordBatch>, Stopped> {
        match self.held {
            Held::Rows(batches) | Held::Limit(batches, _) => Ok(batches),
            Held::Groups(groups) => groups.finish(),
            Held::Top(mut top) => {
                let rows = top.finish()?;
                let columns = rows.columns().split_last().map_or(&[][..], |(_, columns)| columns);
                Ok(vec![batch_of(columns.to_vec(), rows.num_rows())?])
            }
        }
    }
}
