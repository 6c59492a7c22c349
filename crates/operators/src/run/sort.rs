//! Sorting of complete results.

use super::batch::{batch_of, unexpected};
use super::bounds::Stopped;
use crate::program::SortKey;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_row::{RowConverter, Rows, SortField};
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
    let Some(sorting) = Sorting::of(batches, keys)? else { return Ok(Vec::new()) };
    let rows = sorting.order.len().min(rows_max);
    sorting.batches(&sorting.order[..rows])
}

/// Rows with the same values of some columns.
#[derive(Clone, Debug)]
pub struct SameValues {
    /// Bytes that tell these values from others of columns of the same types.
    pub key: Box<[u8]>,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

/// Sorts the rows of batches of one schema by columns, the least values and NULL first, and divides them where the
/// values of the first `same` of these columns change. Equal rows keep their order.
///
/// # Errors
/// A column that does not exist, or of a type that cannot be sorted.
pub fn sorted_by_values(
    batches: &[RecordBatch],
    columns: &[u16],
    same: usize,
) -> Result<Vec<SameValues>, Stopped> {
    let key = |column: &u16| SortKey { column: *column, is_descending: false, nulls_first: true };
    let keys: Vec<SortKey> = columns.iter().map(key).collect();
    let Some(sorting) = Sorting::of(batches, &keys)? else { return Ok(Vec::new()) };
    let by_values = match &keys[..same.min(keys.len())] {
        [] => None,
        keys => Sorting::of(batches, keys)?,
    };
    let key = |row: usize| by_values.as_ref().map_or(&[][..], |all| all.rows.row(row).data());
    let parts = sorting.order.chunk_by(|one, next| key(*one) == key(*next));
    let part = |rows: &[usize]| {
        let key = rows.first().map_or(&[][..], |row| key(*row)).into();
        Ok(SameValues { key, batches: sorting.batches(rows)? })
    };
    parts.map(part).collect()
}

/// Order of the rows of batches.
struct Sorting<'b> {
    source: &'b [RecordBatch],
    /// Keys of the rows, in the order of the batches.
    rows: Rows,
    /// Batch of each row, and its number there.
    places: Vec<(usize, usize)>,
    /// Numbers of the rows in their new order.
    order: Vec<usize>,
}

impl Sorting<'_> {
    /// Sorts the rows. `None` if there is no batch.
    fn of<'b>(batches: &'b [RecordBatch], keys: &[SortKey]) -> Result<Option<Sorting<'b>>, Stopped> {
        let Some(first) = batches.first() else { return Ok(None) };
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
        Ok(Some(Sorting { source: batches, rows, places, order }))
    }

    /// Returns rows, given by their numbers.
    fn batches(&self, rows: &[usize]) -> Result<Vec<RecordBatch>, Stopped> {
        let Some(first) = self.source.first() else { return Ok(Vec::new()) };
        let part = |part: &[usize]| {
            let picked: Vec<(usize, usize)> = part.iter().map(|row| self.places[*row]).collect();
            let column = |index: usize| {
                let columns: Vec<&dyn Array> =
                    self.source.iter().map(|batch| batch.column(index).as_ref()).collect();
                arrow_select::interleave::interleave(&columns, &picked).map_err(unexpected)
            };
            let columns = (0..first.num_columns()).map(column).collect::<Result<Vec<_>, _>>()?;
            let batch = batch_of(columns, picked.len())?;
            RecordBatch::try_new(first.schema(), batch.columns().to_vec()).map_err(unexpected)
        };
        rows.chunks(BATCH_ROWS).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};
    use std::sync::Arc;

    #[test]
    fn rows_are_divided_where_the_first_columns_change_and_sorted_by_all() {
        let batch = |words: Vec<Option<&str>>, ids: Vec<i64>| {
            let columns: [(&str, ArrayRef); 2] =
                [("word", Arc::new(StringArray::from(words))), ("id", Arc::new(Int64Array::from(ids)))];
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
                .expect("a batch")
        };
        let batches = [
            batch(vec![Some("b"), None, Some("a")], vec![3, 2, 9]),
            batch(vec![Some("a"), Some("b"), Some("b")], vec![5, 3, 1]),
        ];
        let parts = sorted_by_values(&batches, &[0, 1], 1).expect("sorted");
        let ids = |part: &SameValues| -> Vec<i64> {
            let of = |batch: &RecordBatch| batch.column(1).as_primitive::<Int64Type>().values().to_vec();
            part.batches.iter().flat_map(of).collect()
        };
        assert_eq!(parts.iter().map(ids).collect::<Vec<_>>(), [vec![2], vec![5, 9], vec![1, 3, 3]]);
        assert!(parts[0].key != parts[1].key && parts[1].key != parts[2].key);
        let again = sorted_by_values(&batches[1..], &[0], 1).expect("sorted");
        assert_eq!(again[0].key, parts[1].key, "the key of the same values is the same in other batches");
        let whole = sorted_by_values(&batches, &[1], 0).expect("sorted");
        assert_eq!(whole.iter().map(ids).collect::<Vec<_>>(), [vec![1, 2, 3, 3, 5, 9]]);
        assert!(sorted_by_values(&[], &[0], 1).expect("nothing").is_empty());
        assert!(sorted_by_values(&batches, &[2], 0).is_err());
    }
}
