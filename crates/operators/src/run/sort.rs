//! Sorting of complete results.

use super::batch::{batch_of, unexpected};
use super::bounds::Stopped;
use crate::program::SortKey;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_row::{RowConverter, SortField};
use arrow_schema::SortOptions;

/// Rows of a batch that is returned. Batches stay small because offsets of text have 32 bits, and any rows may meet
/// in one batch.
const BATCH_ROWS: usize = 8_192;

/// Sorts the rows of batches of one schema. Equal rows keep their order. At most `rows_max` rows are returned.
///
/// # Errors
/// A key that is no column, or a column of a type that cannot be sorted.
pub fn sorted(
    batches: &[RecordBatch],
    keys: &[SortKey],
    rows_max: usize,
) -> Result<Vec<RecordBatch>, Stopped> {
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let mut fields = Vec::new();
    for key in keys {
        let columns = first.num_columns();
        let column = first.columns().get(usize::from(key.column));
        let column = column.ok_or_else(|| {
            Stopped::Columns(format!("column {} does not exist: there are {columns} columns", key.column))
        })?;
        let options = SortOptions { descending: key.is_descending, nulls_first: key.nulls_first };
        fields.push(SortField::new_with_options(column.data_type().clone(), options));
    }
    let converter = RowConverter::new(fields).map_err(unexpected)?;
    let mut rows = converter.empty_rows(0, 0);
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (index, batch) in batches.iter().enumerate() {
        let columns: Vec<ArrayRef> =
            keys.iter().map(|key| batch.column(usize::from(key.column)).clone()).collect();
        converter.append(&mut rows, &columns).map_err(unexpected)?;
        places.extend((0..batch.num_rows()).map(|row| (index, row)));
    }
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|one, other| rows.row(*one).cmp(&rows.row(*other)));
    order.truncate(rows_max);
    let part = |part: &[usize]| {
        let picked: Vec<(usize, usize)> = part.iter().map(|row| places[*row]).collect();
        let column = |index: usize| {
            let columns: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(index).as_ref()).collect();
            arrow_select::interleave::interleave(&columns, &picked).map_err(unexpected)
        };
        let columns = (0..first.num_columns()).map(column).collect::<Result<Vec<_>, _>>()?;
        let batch = batch_of(columns, picked.len())?;
        RecordBatch::try_new(first.schema(), batch.columns().to_vec()).map_err(unexpected)
    };
    order.chunks(BATCH_ROWS).map(part).collect()
}
