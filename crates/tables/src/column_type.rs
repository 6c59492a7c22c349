//! Types of columns: which types a table can store, and the stored bytes of types and of single values.

use crate::{BOUND_BYTES_MAX, COLUMN_NAME_BYTES_MAX, COLUMNS_MAX, FIXED_BYTES_MAX, ZONE_BYTES_MAX};
use arrow_schema::{DataType, Field as ArrowField, Schema, TimeUnit};
use farpool_files::{Error, ErrorKind};
use farpool_operators::Value;
use farpool_operators::columns::value_bytes;
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
use std::collections::HashSet;

const DECIMAL_DIGITS_MAX: u8 = 38;
/// Fewest bytes of an encoded column: an empty name, a type, whether it may have nulls.
const COLUMN_BYTES_MIN: usize = 4;

/// Returns the schema as a table stores it: with stored types and without metadata.
///
/// Errors: [`ErrorKind::Invalid`] with the name of the column that cannot be stored, and the reason.
pub fn stored_schema(schema: &Schema) -> Result<Schema, Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let count = schema.fields().len();
    if !(1..=COLUMNS_MAX).contains(&count) {
        return invalid(format!("the table has {count} columns; 1 to {COLUMNS_MAX} are permitted"));
    }
    let (mut fields, mut names) = (Vec::with_capacity(count), HashSet::new());
    for field in schema.fields() {
        let name = field.name();
        if name.is_empty() {
            return invalid("a column has no name: give it one".to_owned());
        }
        if !names.insert(name) {
            return invalid(format!("two columns are named {name:?}: rename one of them"));
        }
        if name.len() > COLUMN_NAME_BYTES_MAX {
            let bytes = name.len();
            return invalid(format!(
                "a column name has {bytes} bytes; at most {COLUMN_NAME_BYTES_MAX} are permitted"
            ));
        }
        match stored_type(field.data_type()) {
            Ok(stored) => fields.push(ArrowField::new(name, stored, field.is_nullable())),
            Err(why) => return invalid(format!("column {name:?} is of type {}: {why}", field.data_type())),
        }
    }
    Ok(Schema::new(fields))
}

/// Returns the type that stores a column of type `given`, or the reason why no type does.
fn stored_type(given: &DataType) -> Result<DataType, String> {
    match given {
        DataType::LargeUtf8 | DataType::Utf8View => Ok(DataType::Utf8),
        DataType::LargeBinary | DataType::BinaryView => Ok(DataType::Binary),
        // A dictionary in the given batches is dropped: each row group decides by itself whether to have one.
        DataType::Dictionary(_, values)
            if matches!(stored_type(values)?, DataType::Utf8 | DataType::Binary) =>
        {
            stored_type(values)
        }
        DataType::FixedSizeBinary(width) if !(1..=FIXED_BYTES_MAX as i32).contains(width) => {
            Err(format!("1 to {FIXED_BYTES_MAX} bytes are permitted"))
        }
        DataType::Timestamp(_, Some(zone)) if !(1..=ZONE_BYTES_MAX).contains(&zone.len()) => {
            Err(format!("a time zone of 1 to {ZONE_BYTES_MAX} bytes is permitted"))
        }
        DataType::Decimal128(precision, scale) if !is_decimal(*precision, *scale) => Err(format!(
            "a precision of 1 to {DECIMAL_DIGITS_MAX} and a scale of at most the precision are permitted"
        )),
        kept if type_code(kept).is_some() => Ok(kept.clone()),
        _ => Err(
            "supported types are Boolean, Int8 to Int64, UInt8 to UInt64, Float32, Float64, Decimal128, Date32, \
                  Timestamp, Utf8, Binary (both also Large, View and Dictionary) and FixedSizeBinary"
                .to_owned(),
        ),
    }
}

fn is_decimal(precision: u8, scale: i8) -> bool {
    let scale = i16::from(scale);
    (1..=DECIMAL_DIGITS_MAX).contains(&precision)
        && (-i16::from(DECIMAL_DIGITS_MAX)..=i16::from(precision)).contains(&scale)
}

/// Returns the number that identifies a type in a footer; `None` if tables cannot store it.
pub(crate) fn type_code(of: &DataType) -> Option<u8> {
    Some(match of {
        DataType::Boolean => 1,
        DataType::Int8 => 2,
        DataType::Int16 => 3,
        DataType::Int32 => 4,
        DataType::Int64 => 5,
        DataType::UInt8 => 6,
        DataType::UInt16 => 7,
        DataType::UInt32 => 8,
        DataType::UInt64 => 9,
        DataType::Float32 => 10,
        DataType::Float64 => 11,
        DataType::Decimal128(..) => 12,
        DataType::Date32 => 13,
        DataType::Timestamp(..) => 14,
        DataType::Utf8 => 15,
        DataType::Binary => 16,
        DataType::FixedSizeBinary(_) => 17,
        _ => return None,
    })
}

/// Positions of columns within a row of fixed width, in which the columns follow each other without gaps.
#[derive(Clone, Debug)]
pub(crate) struct RowLayout {
    /// Offset of each column in the row, in bytes.
    pub(crate) starts: Vec<usize>,
    /// Bytes of a row, a multiple of 8.
    pub(crate) row_bytes: usize,
}

impl RowLayout {
    /// Returns the positions; `None` if a column is Boolean or has values of variable width.
    pub(crate) fn of(schema: &Schema) -> Option<RowLayout> {
        let mut end = 0;
        let mut start = |field: &ArrowField| {
            let start = end;
            end += value_bytes(field.data_type())?;
            Some(start)
        };
        let starts = schema.fields().iter().map(|field| start(field)).collect::<Option<Vec<_>>>()?;
        Some(RowLayout { starts, row_bytes: end.next_multiple_of(8) })
    }
}

pub(crate) fn put_text(text: &str, out: &mut Vec<u8>) {
    (text.len() as u16).put(out);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn take_text(from: &mut Cursor<'_>, what: &'static str, max: usize) -> Result<String, WireError> {
    let bytes = usize::from(u16::take(from)?);
    if bytes > max {
        return Err(WireError::TooMany { what, found: bytes as u64, max: max as u64 });
    }
    String::from_utf8(from.bytes(bytes)?.to_vec()).map_err(|_| WireError::Text { what })
}

/// Appends the columns of a table: their number, and of each its name, its type, and whether it may have nulls.
pub(crate) fn put_columns(schema: &Schema, out: &mut Vec<u8>) {
    (schema.fields().len() as u16).put(out);
    for field in schema.fields() {
        put_text(field.name(), out);
        put_type(field.data_type(), out);
        field.is_nullable().put(out);
    }
}

/// Decodes the columns of a table.
pub(crate) fn take_columns(from: &mut Cursor<'_>) -> Result<Schema, WireError> {
    let columns = usize::from(u16::take(from)?);
    if !(1..=COLUMNS_MAX).contains(&columns) {
        return Err(WireError::Value { what: "columns of a table", found: columns as u64 });
    }
    check_count("columns of a table", columns, COLUMN_BYTES_MIN, from)?;
    let mut fields = Vec::with_capacity(columns);
    for _ in 0..columns {
        let name = take_text(from, "the name of a column", COLUMN_NAME_BYTES_MAX)?;
        let of = take_type(from)?;
        fields.push(ArrowField::new(name, of, bool::take(from)?));
    }
    Ok(Schema::new(fields))
}

/// Checks that `count` items of at least `each` bytes fit the bytes that are left.
pub(crate) fn check_count(
    what: &'static str,
    count: usize,
    each: usize,
    from: &Cursor<'_>,
) -> Result<(), WireError> {
    match count.checked_mul(each) {
        Some(bytes) if bytes <= from.left() => Ok(()),
        _ => Err(WireError::TooMany { what, found: count as u64, max: (from.left() / each) as u64 }),
    }
}

/// Appends the encoding of a stored type.
pub(crate) fn put_type(of: &DataType, out: &mut Vec<u8>) {
    type_code(of).unwrap_or(0).put(out);
    match of {
        DataType::Decimal128(precision, scale) => out.extend([*precision, scale.cast_unsigned()]),
        DataType::Timestamp(unit, zone) => {
            out.push(match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 1,
                TimeUnit::Microsecond => 2,
                TimeUnit::Nanosecond => 3,
            });
            put_text(zone.as_deref().unwrap_or(""), out);
        }
        DataType::FixedSizeBinary(width) => width.cast_unsigned().put(out),
        _ => {}
    }
}

/// Decodes a stored type.
pub(crate) fn take_type(from: &mut Cursor<'_>) -> Result<DataType, WireError> {
    Ok(match u8::take(from)? {
        1 => DataType::Boolean,
        2 => DataType::Int8,
        3 => DataType::Int16,
        4 => DataType::Int32,
        5 => DataType::Int64,
        6 => DataType::UInt8,
        7 => DataType::UInt16,
        8 => DataType::UInt32,
        9 => DataType::UInt64,
        10 => DataType::Float32,
        11 => DataType::Float64,
        12 => {
            let (precision, scale) = (u8::take(from)?, u8::take(from)?.cast_signed());
            if !is_decimal(precision, scale) {
                return Err(WireError::Value { what: "the precision of a decimal", found: precision.into() });
            }
            DataType::Decimal128(precision, scale)
        }
        13 => DataType::Date32,
        14 => {
            let unit = match u8::take(from)? {
                0 => TimeUnit::Second,
                1 => TimeUnit::Millisecond,
                2 => TimeUnit::Microsecond,
                3 => TimeUnit::Nanosecond,
                found => return Err(WireError::Value { what: "a unit of time", found: found.into() }),
            };
            let zone = take_text(from, "a time zone", ZONE_BYTES_MAX)?;
            DataType::Timestamp(unit, (!zone.is_empty()).then(|| zone.into()))
        }
        15 => DataType::Utf8,
        16 => DataType::Binary,
        17 => {
            let width = u32::take(from)?;
            if !(1..=FIXED_BYTES_MAX as u32).contains(&width) {
                return Err(WireError::Value { what: "bytes of a fixed-size value", found: width.into() });
            }
            DataType::FixedSizeBinary(width.cast_signed())
        }
        found => return Err(WireError::Value { what: "a column type", found: found.into() }),
    })
}

/// Appends a value of a column of this type. Numbers take as many bytes as the type has. Text has its length before
/// it.
pub(crate) fn put_value(of: &DataType, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Boolean(value) => value.put(out),
        Value::Integer(value) => {
            out.extend_from_slice(&value.to_le_bytes()[..value_bytes(of).unwrap_or(16).min(16)])
        }
        Value::Float(bits) => {
            out.extend_from_slice(&bits.to_le_bytes()[..value_bytes(of).unwrap_or(8).min(8)])
        }
        Value::Bytes(bytes) => {
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
}

/// Decodes a value of a column of this type.
pub(crate) fn take_value(of: &DataType, from: &mut Cursor<'_>) -> Result<Value, WireError> {
    Ok(match of {
        DataType::Boolean => Value::Boolean(bool::take(from)?),
        DataType::Int8 => Value::Integer(u8::take(from)?.cast_signed().into()),
        DataType::Int16 => Value::Integer(u16::take(from)?.cast_signed().into()),
        DataType::Int32 | DataType::Date32 => Value::Integer(u32::take(from)?.cast_signed().into()),
        DataType::UInt8 => Value::Integer(u8::take(from)?.into()),
        DataType::UInt16 => Value::Integer(u16::take(from)?.into()),
        DataType::UInt32 => Value::Integer(u32::take(from)?.into()),
        DataType::UInt64 => Value::Integer(u64::take(from)?.into()),
        DataType::Float32 => {
            let bits = u32::take(from)?;
            float(f32::from_bits(bits).is_nan(), bits.into())?
        }
        DataType::Float64 => {
            let bits = u64::take(from)?;
            float(f64::from_bits(bits).is_nan(), bits)?
        }
        DataType::Decimal128(..) => Value::Integer(u128::take(from)?.cast_signed()),
        DataType::Utf8 | DataType::Binary | DataType::FixedSizeBinary(_) => {
            let bytes = usize::from(u8::take(from)?);
            if bytes > BOUND_BYTES_MAX {
                let max = BOUND_BYTES_MAX as u64;
                return Err(WireError::TooMany {
                    what: "bytes of a minimum or maximum",
                    found: bytes as u64,
                    max,
                });
            }
            Value::Bytes(from.bytes(bytes)?.to_vec())
        }
        // The remaining types are Int64 and timestamps.
        _ => Value::Integer(u64::take(from)?.cast_signed().into()),
    })
}

/// Makes a float of its bits. NaN is refused, because no bound is NaN.
fn float(is_nan: bool, bits: u64) -> Result<Value, WireError> {
    match is_nan {
        true => Err(WireError::Value { what: "a minimum or maximum", found: bits }),
        false => Ok(Value::Float(bits)),
    }
}
