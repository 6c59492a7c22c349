//! Between which values a column of a row group is: what lets a reader pass the group over.

use super::BOUND_BYTES_MAX;
use super::column_type::{Scalar, put_scalar, take_scalar};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow_schema::{DataType, TimeUnit};
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};

const MIN_CUT: u8 = 1 << 1;
const MAX_CUT: u8 = 1 << 2;
const HAS_NAN: u8 = 1 << 3;
const KNOWN: u8 = 1;

/// The smallest and the largest value, nulls and NaN left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// No value is less. If it was cut off, it is the beginning of the smallest one, which is a bound all the same.
    pub min: Scalar,
    /// No value is greater; if it was cut off, no value is greater than every one that begins so.
    pub max: Scalar,
    /// Whether `min` is only the beginning of the smallest value.
    pub is_min_cut: bool,
    /// Whether `max` is only the beginning of the largest value.
    pub is_max_cut: bool,
    /// Whether there are NaN besides, which are between no bounds.
    pub has_nan: bool,
}

impl Statistics {
    pub(super) fn put(of_column: Option<&Statistics>, of: &DataType, out: &mut Vec<u8>) {
        let Some(known) = of_column else { return out.push(0) };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let cut = flag(known.is_min_cut, MIN_CUT) | flag(known.is_max_cut, MAX_CUT);
        out.push(KNOWN | cut | flag(known.has_nan, HAS_NAN));
        put_scalar(of, &known.min, out);
        put_scalar(of, &known.max, out);
    }

    pub(super) fn take(of: &DataType, from: &mut Cursor<'_>) -> Result<Option<Statistics>, WireError> {
        let flags = u8::take(from)?;
        if flags == 0 {
            return Ok(None);
        }
        if flags & KNOWN == 0 || flags & !(KNOWN | MIN_CUT | MAX_CUT | HAS_NAN) != 0 {
            return Err(WireError::Value { what: "the flags of statistics", found: flags.into() });
        }
        Ok(Some(Statistics {
            min: take_scalar(of, from)?,
            max: take_scalar(of, from)?,
            is_min_cut: flags & MIN_CUT != 0,
            is_max_cut: flags & MAX_CUT != 0,
            has_nan: flags & HAS_NAN != 0,
        }))
    }

    fn exact((min, max): (Scalar, Scalar)) -> Statistics {
        Statistics { min, max, is_min_cut: false, is_max_cut: false, has_nan: false }
    }

    /// Of text or binary values.
    pub(super) fn of_bytes<'a>(values: impl Iterator<Item = &'a [u8]>, is_text: bool) -> Option<Statistics> {
        let (min, max) = values.fold(None, |bounds, value| match bounds {
            None => Some((value, value)),
            Some((min, max)) => Some((value.min(min), value.max(max))),
        })?;
        let cut = |value: &[u8]| {
            let mut bytes = value.len().min(BOUND_BYTES_MAX);
            // Not within a character: continuation bytes begin with the bits 10.
            while is_text && bytes < value.len() && value[bytes] & 0xc0 == 0x80 {
                bytes -= 1;
            }
            Scalar::Bytes(value[..bytes].to_vec())
        };
        let is_long = |value: &[u8]| value.len() > BOUND_BYTES_MAX;
        let exact = Statistics::exact((cut(min), cut(max)));
        Some(Statistics { is_min_cut: is_long(min), is_max_cut: is_long(max), ..exact })
    }

    /// Of a column of fixed width, in parts.
    pub(super) fn of_fixed(of: &DataType, parts: &[ArrayRef]) -> Option<Statistics> {
        let signed = |(min, max): (i64, i64)| Statistics::exact((Scalar::Signed(min), Scalar::Signed(max)));
        let unsigned =
            |(min, max): (u64, u64)| Statistics::exact((Scalar::Unsigned(min), Scalar::Unsigned(max)));
        match of {
            DataType::Boolean => {
                let values = || parts.iter().flat_map(|part| part.as_boolean().iter().flatten());
                let bounds = (values().min()?, values().max()?);
                Some(Statistics::exact((Scalar::Boolean(bounds.0), Scalar::Boolean(bounds.1))))
            }
            DataType::Int8 => bounds::<Int8Type, _>(parts, i64::from).map(signed),
            DataType::Int16 => bounds::<Int16Type, _>(parts, i64::from).map(signed),
            DataType::Int32 => bounds::<Int32Type, _>(parts, i64::from).map(signed),
            DataType::Date32 => bounds::<Date32Type, _>(parts, i64::from).map(signed),
            DataType::Int64 => bounds::<Int64Type, _>(parts, |value| value).map(signed),
            DataType::Timestamp(unit, _) => match unit {
                TimeUnit::Second => bounds::<TimestampSecondType, _>(parts, |value| value),
                TimeUnit::Millisecond => bounds::<TimestampMillisecondType, _>(parts, |value| value),
                TimeUnit::Microsecond => bounds::<TimestampMicrosecondType, _>(parts, |value| value),
                TimeUnit::Nanosecond => bounds::<TimestampNanosecondType, _>(parts, |value| value),
            }
            .map(signed),
            DataType::UInt8 => bounds::<UInt8Type, _>(parts, u64::from).map(unsigned),
            DataType::UInt16 => bounds::<UInt16Type, _>(parts, u64::from).map(unsigned),
            DataType::UInt32 => bounds::<UInt32Type, _>(parts, u64::from).map(unsigned),
            DataType::UInt64 => bounds::<UInt64Type, _>(parts, |value| value).map(unsigned),
            DataType::Float32 => floats::<Float32Type>(parts, f64::from),
            DataType::Float64 => floats::<Float64Type>(parts, |value| value),
            DataType::Decimal128(..) => bounds::<Decimal128Type, _>(parts, |value| value)
                .map(|(min, max)| Statistics::exact((Scalar::Decimal(min), Scalar::Decimal(max)))),
            DataType::FixedSizeBinary(_) => {
                let values = parts.iter().flat_map(|part| part.as_fixed_size_binary().iter().flatten());
                Statistics::of_bytes(values, false)
            }
            _ => None,
        }
    }
}

/// The values of a column that are there, each given to `each`.
fn each_value<T: ArrowPrimitiveType>(parts: &[ArrayRef], mut each: impl FnMut(T::Native)) {
    for part in parts {
        let part = part.as_primitive::<T>();
        match part.nulls() {
            None => part.values().iter().copied().for_each(&mut each),
            Some(_) => part.iter().flatten().for_each(&mut each),
        }
    }
}

fn bounds<T: ArrowPrimitiveType, W>(parts: &[ArrayRef], widen: impl Fn(T::Native) -> W) -> Option<(W, W)>
where
    T::Native: Ord,
{
    let mut bounds: Option<(T::Native, T::Native)> = None;
    each_value::<T>(parts, |value| {
        let (min, max) = bounds.get_or_insert((value, value));
        *min = value.min(*min);
        *max = value.max(*max);
    });
    bounds.map(|(min, max)| (widen(min), widen(max)))
}

fn floats<T: ArrowPrimitiveType>(parts: &[ArrayRef], widen: impl Fn(T::Native) -> f64) -> Option<Statistics> {
    let (mut bounds, mut has_nan) = (None, false);
    each_value::<T>(parts, |value| {
        let value = widen(value);
        if value.is_nan() {
            has_nan = true;
            return;
        }
        let (min, max) = bounds.get_or_insert((value, value));
        *min = value.min(*min);
        *max = value.max(*max);
    });
    let (min, max) = bounds?;
    Some(Statistics { has_nan, ..Statistics::exact((Scalar::Float(min), Scalar::Float(max))) })
}
