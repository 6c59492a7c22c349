//! Top: the first rows in an order.
//!
//! The idea: the sort keys of a row become comparable bytes, followed by the position of the row in the table. So no
//! two rows are equal, and the result does not depend on the order in which rows arrive. Twice the wanted number of
//! rows is collected, then the worse half is dropped. A row that sorts behind the last kept one is ignored at once.

use super::batch::*;
use super::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use crate::program::SortKey;
use crate::types::Type;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow_buffer::BooleanBuffer;
use arrow_row::{RowConverter, SortField};
use arrow_schema::SortOptions;
use std::sync::Arc;

/// First rows in an order, of the rows that were pushed so far.
pub(super) struct Top {
    keys: Vec<usize>,
    converter: RowConverter,
    rows_max: usize,
    bytes_max: usize,
    /// Candidate rows: their columns, and the positions in the table as the last column.
    batches: Vec<Vec<ArrayRef>>,
    /// Key, number of the batch, and row in the batch, for each candidate.
    candidates: Vec<(Box<[u8]>, usize, usize)>,
    /// Key of the last row that is wanted. `None` until enough rows have come.
    last: Option<Box<[u8]>>,
    types: Vec<Type>,
}

impl Top {
    pub(super) fn new(
        keys: &[SortKey],
        types: &[Type],
        rows: usize,
        bytes_max: usize,
    ) -> Result<Top, Stopped> {
        let field = |key: &SortKey| {
            let options = SortOptions { descending: key.is_descending, nulls_first: key.nulls_first };
            SortField::new_with_options(data_type(types[usize::from(key.column)]), options)
        };
        let position = SortField::new(data_type(Type::UInt64));
        let converter =
            RowConverter::new(keys.iter().map(field).chain([position]).collect()).map_err(unexpected)?;
        Ok(Top {
            keys: keys.iter().map(|key| usize::from(key.column)).collect(),
            converter,
            rows_max: rows,
            bytes_max: bytes_max.min(BATCH_BYTES_MAX),
            batches: Vec::new(),
            candidates: Vec::new(),
            last: None,
            types: types.to_vec(),
        })
    }

    /// Takes rows, with their positions in the table.
    pub(super) fn push(&mut self, columns: &[ArrayRef], positions: &UInt64Array) -> Result<(), Stopped> {
        let rows = positions.len();
        let mut columns =
            columns.iter().map(|column| plain(column, self.bytes_max)).collect::<Result<Vec<_>, _>>()?;
        columns.push(Arc::new(positions.clone()));
        let key_columns = self.keys.iter().copied().chain([columns.len() - 1]);
        let key_columns: Vec<ArrayRef> = key_columns.map(|column| columns[column].clone()).collect();
        let keys = self.converter.convert_columns(&key_columns).map_err(unexpected)?;
        let is_ahead = BooleanBuffer::collect_bool(rows, |row| match &self.last {
            Some(last) => keys.row(row).data() < &**last,
            None => true,
        });
        // Rows are copied, so that their whole batch can be freed. `take` copies always; a filter that keeps all rows
        // would share the batch.
        let ahead = UInt32Array::from_iter_values(is_ahead.set_indices().map(|row| row as u32));
        let copied = |column: &ArrayRef| arrow_select::take::take(column, &ahead, None).map_err(unexpected);
        let columns: Vec<ArrayRef> = columns.iter().map(copied).collect::<Result<_, _>>()?;
        let batch = self.batches.len();
        for (index, row) in is_ahead.set_indices().enumerate() {
            self.candidates.push((keys.row(row).data().into(), batch, index));
        }
        self.batches.push(columns);
        if self.candidates.len() >= self.rows_max.saturating_mul(2) || self.batches.len() > 256 {
            self.shrink()?;
        }
        if self.bytes() > self.bytes_max {
            self.shrink()?;
        }
        bounded("bytes of the first rows", self.bytes() as u64, self.bytes_max as u64)
    }

    /// Returns the first rows, in order, with their positions as the last column.
    pub(super) fn finish(&mut self) -> Result<RecordBatch, Stopped> {
        self.shrink()?;
        self.candidates.sort_unstable();
        let columns = self.picked()?;
        batch_of(columns, self.candidates.len())
    }

    fn bytes(&self) -> usize {
        let rows: usize = self.batches.iter().flatten().map(bytes_of).sum();
        rows + self.candidates.iter().map(|(key, ..)| key.len() + 32).sum::<usize>()
    }

    /// Drops all candidates but the first rows.
    fn shrink(&mut self) -> Result<(), Stopped> {
        if self.candidates.len() > self.rows_max {
            self.candidates.select_nth_unstable(self.rows_max - 1);
            self.candidates.truncate(self.rows_max);
            self.last = self.candidates.last().map(|(key, ..)| key.clone());
        }
        let columns = self.picked()?;
        for (index, (_, batch, row)) in self.candidates.iter_mut().enumerate() {
            (*batch, *row) = (0, index);
        }
        self.batches = vec![columns];
        Ok(())
    }

    /// Returns the columns of the candidates, in the order of `candidates`.
    fn picked(&self) -> Result<Vec<ArrayRef>, Stopped> {
        let rows: Vec<(usize, usize)> =
            self.candidates.iter().map(|(_, batch, row)| (*batch, *row)).collect();
        let types = self.types.iter().copied().chain([Type::UInt64]);
        let column = |(index, of): (usize, Type)| {
            let columns: Vec<&dyn Array> = self.batches.iter().map(|batch| batch[index].as_ref()).collect();
            match columns.is_empty() {
                true => Ok(arrow_array::new_empty_array(&data_type(of))),
                false => arrow_select::interleave::interleave(&columns, &rows).map_err(unexpected),
            }
        };
        types.enumerate().map(column).collect()
    }
}
