//! Smallest and largest value of a column in a row group, by which a reader can skip the row group.

use crate::BOUND_BYTES_MAX;
use crate::column_type::{put_value, take_value};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow_schema::{DataType, TimeUnit};
use farpool_operators::Value;
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};

const MIN_TRUNCATED: u8 = 1 << 1;
const MAX_TRUNCATED: u8 = 1 << 2;
const HAS_NAN: u8 = 1 << 3;
const KNOWN: u8 = 1;

/// Bounds of the values of a column in a row group. NULL and NaN do not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// Lower bound: no value is less. If `is_min_truncated`, it is a prefix of the smallest value, which is a bound
    /// too.
    pub min: Value,
    /// Upper bound: no value is greater. If `is_max_truncated`, it is a prefix of the largest value, and no value is
    /// greater than every value with this prefix.
    pub max: Value,
    /// True if `min` is only a prefix of the smallest value.
    pub is_min_truncated: bool,
    /// True if `max` is only a prefix of the largest value.
    pub is_max_truncated: bool,
    /// True if the column also has NaN, which no bounds cover.
    pub has_nan: bool,
}

/// Compares two values of a column. `None` for floats.
fn order(one: &Value, other: &Value) -> Option<std::cmp::Ordering> {
    match (one, other) {
        (Value::Boolean(one), Value::Boolean(other)) => Some(one.cmp(other)),
        (Value::Integer(one), Value::Integer(other)) => Some(one.cmp(other)),
        (Value::Bytes(one), Value::Bytes(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

impl Statistics {
    pub(crate) fn put(of_column: Option<&Statistics>, of: &DataType, out: &mut Vec<u8>) {
        let Some(known) = of_column else { return out.push(0) };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let truncated =
            flag(known.is_min_truncated, MIN_TRUNCATED) | flag(known.is_max_truncated, MAX_TRUNCATED);
        out.push(KNOWN | truncated | flag(known.has_nan, HAS_NAN));
        put_value(of, &known.min, out);
        put_value(of, &known.max, out);
    }

    pub(crate) fn take(of: &DataType, from: &mut Cursor<'_>) -> Result<Option<Statistics>, WireError> {
        let flags = u8::take(from)?;
        if flags == 0 {
            return Ok(None);
        }
        if flags & KNOWN == 0 || flags & !(KNOWN | MIN_TRUNCATED | MAX_TRUNCATED | HAS_NAN) != 0 {
            return Err(WireError::Value { what: "the flags of statistics", found: flags.into() });
        }
        Ok(Some(Statistics {
            min: take_value(of, from)?,
            max: take_value(of, from)?,
            is_min_truncated: flags & MIN_TRUNCATED != 0,
            is_max_truncated: flags & MAX_TRUNCATED != 0,
            has_nan: flags & HAS_NAN != 0,
        }))
    }

    /// Returns bounds of all values of which these are bounds. `None` if one is not known. Floats are not compared.
    pub(crate) fn over<'a>(all: impl IntoIterator<Item = Option<&'a Statistics>>) -> Option<Statistics> {
        let mut all = all.into_iter();
        let mut over = all.next()??.clone();
        for one in all {
            let one = one?;
            let min = order(&one.min, &over.min)?;
            if min.is_lt() {
                (over.min, over.is_min_truncated) = (one.min.clone(), one.is_min_truncated);
            }
            over.is_min_truncated |= min.is_eq() && one.is_min_truncated;
            let max = order(&one.max, &over.max)?;
            if max.is_gt() {
                (over.max, over.is_max_truncated) = (one.max.clone(), one.is_max_truncated);
            }
            over.is_max_truncated |= max.is_eq() && one.is_max_truncated;
            over.has_nan |= one.has_nan;
        }
        Some(over)
    }

    fn exact(min: Value, max: Value) -> Statistics {
        Statistics { min, max, is_min_truncated: false, is_max_truncated: false, has_nan: false }
    }

    /// Returns the statistics of text or binary values; `None` if there are no values.
    pub(crate) fn of_bytes<'a>(of: &DataType, values: impl Iterator<Item = &'a [u8]>) -> Option<Statistics> {
        let is_text = *of == DataType::Utf8;
        let mut values = values.map(|value| (first_bytes(value), value));
        let first = values.next()?;
        let (mut min, mut max) = (first, first);
        for value in values {
            // Most values are neither, which their first bytes show.
            if value.0 <= min.0 {
                min = min.min(value);
            }
            if value.0 >= max.0 {
                max = max.max(value);
            }
        }
        let ((_, min), (_, max)) = (min, max);
        let truncated = |value: &[u8]| {
            let mut bytes = value.len().min(BOUND_BYTES_MAX);
            // Truncates at a character boundary: continuation bytes of UTF-8 begin with the bits 10.
            while is_text && bytes < value.len() && value[bytes] & 0xc0 == 0x80 {
                bytes -= 1;
            }
            Value::Bytes(value[..bytes].to_vec())
        };
        let is_long = |value: &[u8]| value.len() > BOUND_BYTES_MAX;
        let exact = Statistics::exact(truncated(min), truncated(max));
        Some(Statistics { is_min_truncated: is_long(min), is_max_truncated: is_long(max), ..exact })
    }

    /// Returns the statistics of a column of fixed width, given as several arrays.
    pub(crate) fn of_fixed(of: &DataType, arrays: &[ArrayRef]) -> Option<Statistics> {
        let whole = |(min, max): (i128, i128)| Statistics::exact(Value::Integer(min), Value::Integer(max));
        match of {
            DataType::Boolean => {
                let values = || arrays.iter().flat_map(|array| array.as_boolean().iter().flatten());
                Some(Statistics::exact(Value::Boolean(values().min()?), Value::Boolean(values().max()?)))
            }
            DataType::Int8 => bounds::<Int8Type>(arrays).map(whole),
            DataType::Int16 => bounds::<Int16Type>(arrays).map(whole),
            DataType::Int32 => bounds::<Int32Type>(arrays).map(whole),
            DataType::Date32 => bounds::<Date32Type>(arrays).map(whole),
            DataType::Int64 => bounds::<Int64Type>(arrays).map(whole),
            DataType::Timestamp(unit, _) => match unit {
                TimeUnit::Second => bounds::<TimestampSecondType>(arrays),
                TimeUnit::Millisecond => bounds::<TimestampMillisecondType>(arrays),
                TimeUnit::Microsecond => bounds::<TimestampMicrosecondType>(arrays),
                TimeUnit::Nanosecond => bounds::<TimestampNanosecondType>(arrays),
            }
            .map(whole),
            DataType::UInt8 => bounds::<UInt8Type>(arrays).map(whole),
            DataType::UInt16 => bounds::<UInt16Type>(arrays).map(whole),
            DataType::UInt32 => bounds::<UInt32Type>(arrays).map(whole),
            DataType::UInt64 => bounds::<UInt64Type>(arrays).map(whole),
            DataType::Float32 => floats::<Float32Type>(arrays, f32::is_nan, |value| value.to_bits().into()),
            DataType::Float64 => floats::<Float64Type>(arrays, f64::is_nan, f64::to_bits),
            DataType::Decimal128(..) => bounds::<Decimal128Type>(arrays).map(whole),
            DataType::FixedSizeBinary(_) => {
                let values = arrays.iter().flat_map(|array| array.as_fixed_size_binary().iter().flatten());
                Statistics::of_bytes(of, values)
            }
            _ => None,
        }
    }
}

/// Returns a number whose order is that of the values, where it differs.
fn first_bytes(value: &[u8]) -> u64 {
    match value.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..value.len()].copy_from_slice(value);
            u64::from_be_bytes(first)
        }
    }
}

/// Calls `each` with the values of a column that are not NULL, in as few slices as possible.
fn each_slice<T: ArrowPrimitiveType>(arrays: &[ArrayRef], mut each: impl FnMut(&[T::Native])) {
    for array in arrays {
        let array = array.as_primitive::<T>();
        match array.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => each(array.values()),
            Some(nulls) => nulls.valid_slices().for_each(|(from, to)| each(&array.values()[from..to])),
        }
    }
}

fn bounds<T: ArrowPrimitiveType>(arrays: &[ArrayRef]) -> Option<(i128, i128)>
where
    T::Native: Ord + Into<i128>,
{
    let mut bounds: Option<(T::Native, T::Native)> = None;
    each_slice::<T>(arrays, |values| {
        let Some(first) = values.first() else { return };
        let before = bounds.unwrap_or((*first, *first));
        bounds = Some(values.iter().fold(before, |(min, max), value| (min.min(*value), max.max(*value))));
    });
    bounds.map(|(min, max)| (min.into(), max.into()))
}

fn floats<T: ArrowPrimitiveType>(
    arrays: &[ArrayRef],
    is_nan: impl Fn(T::Native) -> bool,
    bits: impl Fn(T::Native) -> u64,
) -> Option<Statistics>
where
    T::Native: PartialOrd,
{
    let mut bounds: Option<(T::Native, T::Native)> = None;
    let mut has_nan = false;
    each_slice::<T>(arrays, |values| {
        has_nan |= values.iter().any(|value| is_nan(*value));
        let Some(first) = values.iter().find(|value| !is_nan(**value)) else { return };
        // NaN is neither less nor greater than another value.
        let smaller = |one: T::Native, other: T::Native| if other < one { other } else { one };
        let greater = |one: T::Native, other: T::Native| if other > one { other } else { one };
        let before = bounds.unwrap_or((*first, *first));
        let both = |(min, max): (T::Native, T::Native), value: &T::Native| {
            (smaller(min, *value), greater(max, *value))
        };
        bounds = Some(values.iter().fold(before, both));
    });
    let (min, max) = bounds?;
    Some(Statistics { has_nan, ..Statistics::exact(Value::Float(bits(min)), Value::Float(bits(max))) })
}
