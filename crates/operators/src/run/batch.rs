//! Conversion between Arrow's types and those of programs, and the rows that pass from one operator to the next.

use super::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use crate::types::{Scalar, TimeUnit, Type, Value};
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema, TimeUnit as ArrowUnit};
use std::sync::Arc;

/// Returns the Arrow type of a column of a program's output. A timestamp with a zone is in UTC.
pub fn data_type(of: Type) -> DataType {
    match of {
        Type::Boolean => DataType::Boolean,
        Type::Int8 => DataType::Int8,
        Type::Int16 => DataType::Int16,
        Type::Int32 => DataType::Int32,
        Type::Int64 => DataType::Int64,
        Type::UInt8 => DataType::UInt8,
        Type::UInt16 => DataType::UInt16,
        Type::UInt32 => DataType::UInt32,
        Type::UInt64 => DataType::UInt64,
        Type::Float32 => DataType::Float32,
        Type::Float64 => DataType::Float64,
        Type::Decimal { precision, scale } => DataType::Decimal128(precision, scale as i8),
        Type::Date => DataType::Date32,
        Type::Timestamp { unit, is_zoned } => {
            let unit = match unit {
                TimeUnit::Second => ArrowUnit::Second,
                TimeUnit::Millisecond => ArrowUnit::Millisecond,
                TimeUnit::Microsecond => ArrowUnit::Microsecond,
                TimeUnit::Nanosecond => ArrowUnit::Nanosecond,
            };
            DataType::Timestamp(unit, is_zoned.then(|| "UTC".into()))
        }
        Type::Text => DataType::Utf8,
        Type::Bytes => DataType::Binary,
        Type::FixedBytes(bytes) => DataType::FixedSizeBinary(bytes as i32),
    }
}

/// Returns the type of an Arrow column, or `None` if operators do not know it. A dictionary of text or bytes, with
/// keys of 16 or 32 bits without sign, has the type text or bytes.
pub fn type_of(data_type: &DataType) -> Option<Type> {
    Some(match data_type {
        DataType::Boolean => Type::Boolean,
        DataType::Int8 => Type::Int8,
        DataType::Int16 => Type::Int16,
        DataType::Int32 => Type::Int32,
        DataType::Int64 => Type::Int64,
        DataType::UInt8 => Type::UInt8,
        DataType::UInt16 => Type::UInt16,
        DataType::UInt32 => Type::UInt32,
        DataType::UInt64 => Type::UInt64,
        DataType::Float32 => Type::Float32,
        DataType::Float64 => Type::Float64,
        DataType::Decimal128(precision, scale) => {
            Type::Decimal { precision: *precision, scale: u8::try_from(*scale).ok()? }
        }
        DataType::Date32 => Type::Date,
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                ArrowUnit::Second => TimeUnit::Second,
                ArrowUnit::Millisecond => TimeUnit::Millisecond,
                ArrowUnit::Microsecond => TimeUnit::Microsecond,
                ArrowUnit::Nanosecond => TimeUnit::Nanosecond,
            };
            Type::Timestamp { unit, is_zoned: zone.is_some() }
        }
        DataType::Utf8 => Type::Text,
        DataType::Binary => Type::Bytes,
        DataType::FixedSizeBinary(bytes) => Type::FixedBytes(u32::try_from(*bytes).ok()?),
        DataType::Dictionary(numbers, values) => match (numbers.as_ref(), values.as_ref()) {
            (DataType::UInt16 | DataType::UInt32, DataType::Utf8) => Type::Text,
            (DataType::UInt16 | DataType::UInt32, DataType::Binary) => Type::Bytes,
            _ => return None,
        },
        _ => return None,
    })
}

/// Rows between two operators.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) columns: Vec<ArrayRef>,
    pub(super) count: usize,
    /// Row number in the table of each row. `None` if no later operator needs it.
    pub(super) positions: Option<UInt64Array>,
}

/// Returns the columns of a batch after checking that they have these types.
pub(super) fn columns_of(batch: &RecordBatch, types: &[Type]) -> Result<Vec<ArrayRef>, Stopped> {
    if batch.num_columns() != types.len() {
        let what = format!("a batch of {} columns: {} are needed", batch.num_columns(), types.len());
        return Err(Stopped::Columns(what));
    }
    for (index, (column, wanted)) in batch.columns().iter().zip(types).enumerate() {
        if type_of(column.data_type()) != Some(*wanted) {
            let what = format!("column {index} is of type {}: {wanted} is needed", column.data_type());
            return Err(Stopped::Columns(what));
        }
    }
    // Programs know no time zones: a zone only says how the client shows an instant.
    let unzoned = |(column, of): (&ArrayRef, &Type)| match (column.data_type(), of) {
        (DataType::Timestamp(..), Type::Timestamp { .. }) => with_type(column, *of),
        _ => column.clone(),
    };
    Ok(batch.columns().iter().zip(types).map(unzoned).collect())
}

/// Returns the same values with another type of the same layout.
pub(super) fn with_type(column: &ArrayRef, of: Type) -> ArrayRef {
    let wanted = data_type(of);
    match column.data_type() {
        DataType::Timestamp(..) => {
            let values = ordered_values(column);
            from_i64(of, values, column.nulls().cloned())
        }
        found if *found == wanted => column.clone(),
        DataType::Decimal128(..) => {
            Arc::new(column.as_primitive::<Decimal128Type>().clone().with_data_type(wanted))
        }
        _ => column.clone(),
    }
}

/// Returns the bytes that the rows of a column take. A slice does not count the rest of its buffers.
pub(super) fn bytes_of(column: &ArrayRef) -> usize {
    let rows = column.len();
    match column.data_type() {
        DataType::Utf8 => text_bytes(column.as_string::<i32>().value_offsets()) + rows * 4,
        DataType::Binary => text_bytes(column.as_binary::<i32>().value_offsets()) + rows * 4,
        DataType::FixedSizeBinary(width) => rows * *width as usize,
        DataType::Dictionary(..) => bytes_of(column.as_any_dictionary().values()) + rows * 4,
        DataType::Boolean => rows.div_ceil(8),
        other => rows * other.primitive_width().unwrap_or(16),
    }
}

fn text_bytes(offsets: &[i32]) -> usize {
    match offsets {
        [first, .., last] => last.abs_diff(*first) as usize,
        _ => 0,
    }
}

/// Expands a dictionary column. The size of the result is checked against the limit before anything is copied.
pub(super) fn plain(column: &ArrayRef, bytes_max: usize) -> Result<ArrayRef, Stopped> {
    if !matches!(column.data_type(), DataType::Dictionary(..)) {
        return Ok(column.clone());
    }
    let dictionary = column.as_any_dictionary();
    let values = dictionary.values();
    let lengths: Vec<u64> = match values.data_type() {
        DataType::Utf8 => lengths(values.as_string::<i32>().value_offsets()),
        _ => lengths(values.as_binary::<i32>().value_offsets()),
    };
    let total = match lengths.is_empty() {
        // Every row is NULL then, and its key may name no value.
        true => 0,
        false => dictionary.normalized_keys().iter().map(|key| lengths[*key]).sum(),
    };
    bounded("bytes of a column", total, bytes_max.min(BATCH_BYTES_MAX) as u64)?;
    arrow_select::take::take(values.as_ref(), dictionary.keys(), None).map_err(unexpected)
}

fn lengths(offsets: &[i32]) -> Vec<u64> {
    offsets.windows(2).map(|pair| u64::from(pair[1].abs_diff(pair[0]))).collect()
}

/// Converts an error of an Arrow kernel. It is not expected, because earlier checks have ruled such errors out.
pub(super) fn unexpected(error: arrow_schema::ArrowError) -> Stopped {
    Stopped::Columns(error.to_string())
}

/// Makes a batch of columns that are named by their numbers.
pub(super) fn batch_of(columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, Stopped> {
    let field =
        |(index, column): (usize, &ArrayRef)| Field::new(index.to_string(), column.data_type().clone(), true);
    let schema = Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).map_err(unexpected)
}

/// Returns a column with the same value in `rows` rows.
pub(super) fn repeated(scalar: &Scalar, rows: usize) -> ArrayRef {
    let Some(value) = &scalar.value else { return new_null_array(&data_type(scalar.of), rows) };
    match (scalar.of, value) {
        (Type::Boolean, Value::Boolean(value)) => Arc::new(BooleanArray::from(vec![*value; rows])),
        (Type::Float32, Value::Float(bits)) => {
            Arc::new(Float32Array::from_value(f32::from_bits(*bits as u32), rows))
        }
        (Type::Float64, Value::Float(bits)) => {
            Arc::new(Float64Array::from_value(f64::from_bits(*bits), rows))
        }
        (Type::Decimal { .. }, Value::Integer(value)) => {
            Arc::new(Decimal128Array::from_value(*value, rows).with_data_type(data_type(scalar.of)))
        }
        (Type::UInt64, Value::Integer(value)) => Arc::new(UInt64Array::from_value(*value as u64, rows)),
        (of, Value::Integer(value)) => from_i64(of, vec![*value as i64; rows], None),
        (Type::Text, Value::Bytes(bytes)) => {
            let text = String::from_utf8_lossy(bytes);
            let mut builder = StringBuilder::with_capacity(rows, rows * bytes.len());
            (0..rows).for_each(|_| builder.append_value(&text));
            Arc::new(builder.finish())
        }
        (Type::FixedBytes(width), Value::Bytes(bytes)) => {
            let mut builder = FixedSizeBinaryBuilder::with_capacity(rows, width as i32);
            for _ in 0..rows {
                // Never an error: the length was checked with the program.
                let _ = builder.append_value(bytes);
            }
            Arc::new(builder.finish())
        }
        (_, Value::Bytes(bytes)) => {
            let mut builder = BinaryBuilder::with_capacity(rows, rows * bytes.len());
            (0..rows).for_each(|_| builder.append_value(bytes));
            Arc::new(builder.finish())
        }
        // Not reached: `Scalar::is_valid` has refused all other pairs.
        _ => new_null_array(&data_type(scalar.of), rows),
    }
}

/// Integer of -0.0 in [`ordered_f64`]. The integer of 0.0 is 0.
const ORDERED_NEGATIVE_ZERO: i64 = -1;

/// Returns an integer for a float. The integers have the total order of IEEE 754.
#[inline]
fn ordered_f64(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// Widens a float to 64 bits. The order stays the same. NaN keeps its sign and its bits, which a cast does not
/// guarantee.
#[inline]
pub fn widened(value: f32) -> f64 {
    if !value.is_nan() {
        return f64::from(value);
    }
    let bits = u64::from(value.to_bits());
    f64::from_bits((bits >> 31) << 63 | 0x7ff << 52 | (bits & 0x7f_ffff) << 29)
}

/// Reverses [`widened`].
#[inline]
pub(super) fn narrowed(value: f64) -> f32 {
    if !value.is_nan() {
        return value as f32;
    }
    let bits = value.to_bits();
    f32::from_bits(((bits >> 63) << 31 | 0x7f80_0000 | (bits >> 29 & 0x7f_ffff)) as u32)
}

/// Reports whether [`ordered_values`] supports a type: booleans and types of fixed width up to 8 bytes.
pub(super) fn is_ordered(of: Type) -> bool {
    of == Type::Boolean || of.width().is_some_and(|width| width <= 8 && !matches!(of, Type::FixedBytes(_)))
}

/// Maps values of up to 8 bytes to integers of the same order. Floats have the total order of IEEE 754, so each keeps
/// its bits. The integer of a NULL has no meaning.
pub(super) fn ordered_values(column: &ArrayRef) -> Vec<i64> {
    fn wide<T: ArrowPrimitiveType>(column: &ArrayRef, map: impl Fn(T::Native) -> i64) -> Vec<i64> {
        column.as_primitive::<T>().values().iter().map(|value| map(*value)).collect()
    }
    match column.data_type() {
        DataType::Boolean => column.as_boolean().values().iter().map(i64::from).collect(),
        DataType::Int8 => wide::<Int8Type>(column, i64::from),
        DataType::Int16 => wide::<Int16Type>(column, i64::from),
        DataType::Int32 => wide::<Int32Type>(column, i64::from),
        DataType::Int64 => wide::<Int64Type>(column, |value| value),
        DataType::UInt8 => wide::<UInt8Type>(column, i64::from),
        DataType::UInt16 => wide::<UInt16Type>(column, i64::from),
        DataType::UInt32 => wide::<UInt32Type>(column, i64::from),
        DataType::UInt64 => wide::<UInt64Type>(column, |value| (value ^ (1 << 63)) as i64),
        DataType::Float32 => wide::<Float32Type>(column, |value| ordered_f64(widened(value))),
        DataType::Float64 => wide::<Float64Type>(column, ordered_f64),
        DataType::Date32 => wide::<Date32Type>(column, i64::from),
        DataType::Timestamp(unit, _) => match unit {
            ArrowUnit::Second => wide::<TimestampSecondType>(column, |value| value),
            ArrowUnit::Millisecond => wide::<TimestampMillisecondType>(column, |value| value),
            ArrowUnit::Microsecond => wide::<TimestampMicrosecondType>(column, |value| value),
            ArrowUnit::Nanosecond => wide::<TimestampNanosecondType>(column, |value| value),
        },
        // Not reached: `is_ordered` excludes all other types.
        _ => vec![0; column.len()],
    }
}

/// Maps keys and compared values to integers like [`ordered_values`], except that -0.0 becomes 0.0.
pub(super) fn key_values(column: &ArrayRef) -> Vec<i64> {
    let mut values = ordered_values(column);
    if matches!(column.data_type(), DataType::Float32 | DataType::Float64) {
        let zero = |value: &mut i64| *value = if *value == ORDERED_NEGATIVE_ZERO { 0 } else { *value };
        values.iter_mut().for_each(zero);
    }
    values
}

/// Reverses [`ordered_values`] and [`key_values`].
pub(super) fn from_ordered(of: Type, values: Vec<i64>, nulls: Option<arrow_buffer::NullBuffer>) -> ArrayRef {
    let float = |value: i64| f64::from_bits((value ^ (((value >> 63) as u64) >> 1) as i64) as u64);
    match of {
        Type::UInt64 => {
            let values: Vec<u64> = values.into_iter().map(|value| value as u64 ^ (1 << 63)).collect();
            Arc::new(UInt64Array::new(values.into(), nulls))
        }
        Type::Float32 => {
            let values: Vec<f32> = values.into_iter().map(|value| narrowed(float(value))).collect();
            Arc::new(Float32Array::new(values.into(), nulls))
        }
        Type::Float64 => {
            let values: Vec<f64> = values.into_iter().map(float).collect();
            Arc::new(Float64Array::new(values.into(), nulls))
        }
        _ => from_i64(of, values, nulls),
    }
}

/// Makes a column of a type whose values fit an `i64`: all that [`is_ordered`] supports but floats and UInt64.
pub(super) fn from_i64(of: Type, values: Vec<i64>, nulls: Option<arrow_buffer::NullBuffer>) -> ArrayRef {
    fn narrow<T: ArrowPrimitiveType>(
        values: Vec<i64>,
        nulls: Option<arrow_buffer::NullBuffer>,
        map: impl Fn(i64) -> T::Native,
    ) -> PrimitiveArray<T> {
        PrimitiveArray::new(values.into_iter().map(map).collect::<Vec<_>>().into(), nulls)
    }
    match of {
        Type::Boolean => {
            Arc::new(BooleanArray::new(values.into_iter().map(|value| value != 0).collect(), nulls))
        }
        Type::Int8 => Arc::new(narrow::<Int8Type>(values, nulls, |value| value as i8)),
        Type::Int16 => Arc::new(narrow::<Int16Type>(values, nulls, |value| value as i16)),
        Type::Int32 => Arc::new(narrow::<Int32Type>(values, nulls, |value| value as i32)),
        Type::UInt8 => Arc::new(narrow::<UInt8Type>(values, nulls, |value| value as u8)),
        Type::UInt16 => Arc::new(narrow::<UInt16Type>(values, nulls, |value| value as u16)),
        Type::UInt32 => Arc::new(narrow::<UInt32Type>(values, nulls, |value| value as u32)),
        Type::Date => Arc::new(narrow::<Date32Type>(values, nulls, |value| value as i32)),
        Type::Timestamp { unit, .. } => {
            let wanted = data_type(of);
            let values = values.into();
            match unit {
                TimeUnit::Second => Arc::new(TimestampSecondArray::new(values, nulls).with_data_type(wanted)),
                TimeUnit::Millisecond => {
                    Arc::new(TimestampMillisecondArray::new(values, nulls).with_data_type(wanted))
                }
                TimeUnit::Microsecond => {
                    Arc::new(TimestampMicrosecondArray::new(values, nulls).with_data_type(wanted))
                }
                TimeUnit::Nanosecond => {
                    Arc::new(TimestampNanosecondArray::new(values, nulls).with_data_type(wanted))
                }
            }
        }
        _ => Arc::new(Int64Array::new(values.into(), nulls)),
    }
}

/// Returns the column with 0.0 for each -0.0, for keys and comparisons. Arrow's kernels compare floats in the total
/// order of IEEE 754, which is right but for the zeros.
pub(super) fn with_one_zero(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float32 => {
            let column = column.as_primitive::<Float32Type>();
            let zero = |value: f32| if value.to_bits() << 1 == 0 { 0.0 } else { value };
            Arc::new(column.unary::<_, Float32Type>(zero))
        }
        DataType::Float64 => {
            let column = column.as_primitive::<Float64Type>();
            let zero = |value: f64| if value.to_bits() << 1 == 0 { 0.0 } else { value };
            Arc::new(column.unary::<_, Float64Type>(zero))
        }
        _ => column.clone(),
    }
}
