//! Making the partial results of all runs of a program whole.

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

/// Partial results of any number of runs, in any order.
pub struct Merge {
    /// The columns of what runs leave, hidden ones included.
    types: Vec<Type>,
    held: Held,
}

enum Held {
    Rows(Vec<RecordBatch>),
    Limit(Vec<RecordBatch>, u64),
    Groups(Grouping),
    Top(Top),
}

impl Merge {
    /// Of runs of this program. The seed is random and its own.
    ///
    /// # Errors
    /// None for a program that has been checked.
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

    /// Takes a batch that a run has left.
    ///
    /// # Errors
    /// A batch of other columns, or sums and rows beyond all bounds: whoever sent it was not running the program.
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
                    _ => return Err(Stopped::Columns("first rows without their positions".to_owned())),
                };
                top.push(columns, positions.as_primitive::<UInt64Type>())?;
            }
        }
        Ok(())
    }

    /// The result. Groups come in the order of their keys, NULL first; rows of a top in theirs; other rows as they
    /// arrived.
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
