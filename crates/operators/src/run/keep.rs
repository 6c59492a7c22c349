//! Filtering: copies the kept rows of every column.
//!
//! The idea: the kept rows are prepared once for all columns. Columns of fixed width are gathered by our own kernels,
//! if the CPU has the instructions for them. Text and dictionaries are filtered by arrow-rs, whose filter is prepared
//! only if it is needed.

use super::batch::{Rows, unexpected};
use super::bounds::Stopped;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, UInt64Array, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::DataType;
use arrow_select::filter::{FilterBuilder, FilterPredicate};
use farpool_kernels::{Kept, PlainNumber, gather, gather_bits, has_vectors};
use std::cell::OnceCell;

/// Returns the rows for which `is_kept` is true.
pub(super) fn kept(rows: Rows, is_kept: &BooleanArray) -> Result<Rows, Stopped> {
    let bits = match is_kept.nulls() {
        Some(nulls) => is_kept.values() & nulls.inner(),
        None => is_kept.values().clone(),
    };
    let kept = Kept::new(&words(&bits), rows.count);
    let count = kept.count();
    if count == rows.count {
        return Ok(rows);
    }
    let predicate = OnceCell::new();
    let columns = rows
        .columns
        .iter()
        .map(|column| kept_of(column, &kept, &bits, &predicate))
        .collect::<Result<_, _>>()?;
    let positions = rows.positions.map(|positions| {
        let mut values = Vec::new();
        gather(&kept, positions.values(), &mut values);
        UInt64Array::from(values)
    });
    Ok(Rows { columns, count, positions })
}

fn kept_of(
    column: &ArrayRef,
    kept: &Kept,
    bits: &BooleanBuffer,
    predicate: &OnceCell<FilterPredicate>,
) -> Result<ArrayRef, Stopped> {
    let values = match column.data_type() {
        _ if !has_vectors() => None,
        DataType::Boolean => Some(bits_of(column.as_boolean().values(), kept).into_inner()),
        _ => fixed(&column.to_data(), kept),
    };
    let Some(values) = values else {
        let build = || FilterBuilder::new(&BooleanArray::new(bits.clone(), None)).optimize().build();
        return predicate.get_or_init(build).filter(column).map_err(unexpected);
    };
    let nulls = column.nulls().map(|nulls| NullBuffer::new(bits_of(nulls.inner(), kept)));
    let data =
        ArrayDataBuilder::new(column.data_type().clone()).len(kept.count()).nulls(nulls).add_buffer(values);
    Ok(make_array(data.build().map_err(unexpected)?))
}

/// Returns the kept values of a column of fixed width, or `None` for any other column.
fn fixed(column: &ArrayData, kept: &Kept) -> Option<Buffer> {
    let width = match column.data_type() {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok()?,
        other => other.primitive_width()?,
    };
    let values = column.buffers().first()?;
    let values = values.slice_with_length(column.offset() * width, column.len() * width);
    match width {
        1 => typed::<i8>(&values, kept),
        2 => typed::<i16>(&values, kept),
        4 => typed::<i32>(&values, kept),
        8 => typed::<i64>(&values, kept),
        16 => typed::<i128>(&values, kept),
        _ => None,
    }
}

fn typed<T: PlainNumber + ArrowNativeType>(values: &Buffer, kept: &Kept) -> Option<Buffer> {
    // Bytes of fixed length can begin at any address.
    if !values.as_ptr().cast::<T>().is_aligned() {
        return None;
    }
    let mut into = Vec::new();
    gather(kept, values.typed_data::<T>(), &mut into);
    Some(Buffer::from_vec(into))
}

fn bits_of(bits: &BooleanBuffer, kept: &Kept) -> BooleanBuffer {
    BooleanBuffer::new(Buffer::from_vec(gather_bits(kept, &words(bits))), 0, kept.count())
}

/// Returns bits as words. The bits may begin within a byte.
fn words(bits: &BooleanBuffer) -> Vec<u64> {
    let mut words: Vec<u64> = bits.bit_chunks().iter_padded().collect();
    words.truncate(bits.len().div_ceil(64));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::batch::{repeated, with_type};
    use crate::types::{Scalar, TimeUnit, Type, Value};
    use arrow_array::builder::FixedSizeBinaryBuilder;
    use arrow_array::{DictionaryArray, Int64Array, StringArray};
    use arrow_select::concat::concat;
    use arrow_select::nullif::nullif;
    use std::sync::Arc;

    /// Makes a column of every type, with different values as far as the type has them. A copy of each has some
    /// NULLs.
    fn columns(rows: usize) -> Vec<ArrayRef> {
        let numbered = |of: Type| {
            let one = |row: usize| match of {
                Type::Boolean => Value::Boolean(row.is_multiple_of(3)),
                Type::Float32 => Value::Float(u64::from((row as f32).to_bits())),
                Type::Float64 => Value::Float((row as f64).to_bits()),
                _ => Value::Integer(row as i128 % 100),
            };
            let parts: Vec<ArrayRef> =
                (0..rows).map(|row| repeated(&Scalar { of, value: Some(one(row)) }, 1)).collect();
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            with_type(&concat(&parts).unwrap(), of)
        };
        let mut bytes = FixedSizeBinaryBuilder::new(8);
        let mut odd = FixedSizeBinaryBuilder::new(5);
        for row in 0..rows as u64 {
            bytes.append_value(row.to_le_bytes()).unwrap();
            odd.append_value(&row.to_be_bytes()[3..]).unwrap();
        }
        let texts: Vec<String> = (0..rows).map(|row| "x".repeat(row % 7)).collect();
        let dictionary: DictionaryArray<arrow_array::types::UInt16Type> =
            texts.iter().map(String::as_str).collect();
        let is_null: BooleanArray = (0..rows).map(|row| Some(row % 5 == 1)).collect();
        let of = [
            Type::Boolean,
            Type::Int8,
            Type::UInt16,
            Type::Int32,
            Type::UInt64,
            Type::Float32,
            Type::Float64,
            Type::Decimal { precision: 20, scale: 2 },
            Type::Date,
            Type::Timestamp { unit: TimeUnit::Microsecond, is_zoned: true },
        ];
        let mut columns: Vec<ArrayRef> = of.map(numbered).into();
        columns.push(Arc::new(bytes.finish()));
        columns.push(Arc::new(odd.finish()));
        columns.push(Arc::new(StringArray::from(texts)));
        columns.push(Arc::new(dictionary));
        let with_nulls: Vec<ArrayRef> =
            columns.iter().map(|column| nullif(column, &is_null).unwrap()).collect();
        columns.extend(with_nulls);
        columns
    }

    #[test]
    fn kept_rows_are_those_of_arrow_filter_for_every_type_and_offset() {
        let whole = columns(400);
        let mask = |share: usize| -> BooleanArray {
            (0..400).map(|row| (row % 11 != 3).then_some(row * 7919 % 100 < share)).collect()
        };
        for share in [0, 3, 30, 70, 100] {
            for (offset, rows) in [(0, 400), (0, 64), (1, 130), (7, 63), (9, 0), (64, 200)] {
                let is_kept = mask(share).slice(offset, rows);
                let columns: Vec<ArrayRef> = whole.iter().map(|column| column.slice(offset, rows)).collect();
                let positions = Some(UInt64Array::from_iter_values(0..rows as u64));
                let found =
                    kept(Rows { columns: columns.clone(), count: rows, positions }, &is_kept).unwrap();
                for (found, column) in found.columns.iter().zip(&columns) {
                    let expected = arrow_select::filter::filter(column, &is_kept).unwrap();
                    assert_eq!(found, &expected, "{share} % of {rows} rows from {offset}");
                    assert_eq!(found.data_type(), column.data_type());
                }
                let kept_rows = is_kept.iter().filter(|kept| *kept == Some(true)).count();
                assert_eq!(found.count, kept_rows);
                assert_eq!(found.positions.unwrap().len(), kept_rows);
            }
        }
    }

    #[test]
    fn bytes_of_fixed_length_may_lie_unaligned() {
        let bytes: Vec<u8> = (0..=255).collect();
        let values = Buffer::from_vec(bytes).slice_with_length(1, 240);
        let column: ArrayRef = Arc::new(arrow_array::FixedSizeBinaryArray::new(8, values, None));
        let is_kept: BooleanArray = (0..30).map(|row| Some(row % 2 == 0)).collect();
        let rows = Rows { columns: vec![column.clone()], count: 30, positions: None };
        let found = kept(rows, &is_kept).unwrap();
        assert_eq!(&found.columns[0], &arrow_select::filter::filter(&column, &is_kept).unwrap());
        let numbers =
            Rows { columns: vec![Arc::new(Int64Array::from(vec![1; 30]))], count: 30, positions: None };
        assert_eq!(kept(numbers, &is_kept).unwrap().count, 15);
    }
}
