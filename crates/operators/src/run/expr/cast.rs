//! Casts. Lost digits are rounded to the nearest, halves away from zero. A value that does not fit is an error.

use super::arithmetic::{DECIMAL_END, bits};
use crate::run::batch::{data_type, from_i64, ordered_values};
use crate::types::{Arithmetic, TimeUnit, Type};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::NullBuffer;
use std::sync::Arc;

/// Intermediate form of numbers and times in a cast.
enum Wide {
    /// Integers, or decimals in units of their last digit.
    Whole(Vec<i128>),
    Float(Vec<f64>),
}

/// Casts a column to another type. An error names a value that does not fit.
pub(super) fn cast(column: &ArrayRef, from: Type, to: Type) -> Result<ArrayRef, String> {
    if from == to {
        return Ok(column.clone());
    }
    if let (Type::Text, Type::Bytes) = (from, to) {
        return Ok(Arc::new(BinaryArray::from(column.as_string::<i32>().clone())));
    }
    if let Type::Text = to {
        return Ok(to_text(column, from));
    }
    if let Type::Text = from {
        return from_text(column.as_string::<i32>(), to);
    }
    if let (Type::Decimal { .. }, Type::Decimal { .. }) = (from, to)
        && let Some(longer) = longer(column, from, to)
    {
        return Ok(longer);
    }
    let nulls = column.nulls();
    let misfit = |value: &dyn std::fmt::Display| format!("{value} of {from} as {to}");
    match (wide(column, from), to) {
        (Wide::Float(values), Type::Float64) => {
            Ok(Arc::new(Float64Array::new(values.into(), nulls.cloned())))
        }
        (Wide::Float(values), Type::Float32) => {
            let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            Ok(Arc::new(Float32Array::new(values.into(), nulls.cloned())))
        }
        (Wide::Whole(values), Type::Float32 | Type::Float64) => {
            let divisor = divisor(from);
            let values = values.into_iter().map(|value| value as f64 / divisor);
            Ok(match to {
                Type::Float32 => Arc::new(Float32Array::new(
                    values.map(|value| value as f32).collect::<Vec<_>>().into(),
                    nulls.cloned(),
                )),
                _ => Arc::new(Float64Array::new(values.collect::<Vec<_>>().into(), nulls.cloned())),
            })
        }
        (Wide::Float(values), Type::Boolean) => {
            whole(values.into_iter().map(|value| Ok(i128::from(value != 0.0))), to, nulls)
        }
        (Wide::Float(values), _) => {
            let factor = 10f64.powi(i32::from(scale(to)));
            let rows = values.into_iter().enumerate().map(|(row, value)| {
                let found = (value * factor).round();
                // No type holds greater numbers, and `as` would return the nearest value.
                let fits = found > -1.7e38 && found < 1.7e38;
                match fits {
                    true => fitting(found as i128, to).ok_or_else(|| misfit(&value)),
                    false if is_null(nulls, row) => Ok(0),
                    false => Err(misfit(&value)),
                }
                .or_else(|what| if is_null(nulls, row) { Ok(0) } else { Err(what) })
            });
            whole(rows, to, nulls)
        }
        (Wide::Whole(values), _) => {
            let rows = values.into_iter().enumerate().map(|(row, value)| {
                let found = rescaled(value, from, to).and_then(|value| fitting(value, to));
                match found {
                    Some(value) => Ok(value),
                    None if is_null(nulls, row) => Ok(0),
                    None => Err(misfit(&value)),
                }
            });
            whole(rows, to, nulls)
        }
    }
}

/// Casts decimals to at least as many digits behind the point. `None` if a value could exceed the target type, which
/// is rare.
fn longer(column: &ArrayRef, from: Type, to: Type) -> Option<ArrayRef> {
    let column = column.as_primitive::<Decimal128Type>();
    let factor = 10i128.checked_pow(u32::from(scale(to).checked_sub(scale(from))?))?;
    let most = 1i128.checked_shl(bits(column.values())).filter(|most| *most > 0)?;
    fitting(most.checked_mul(factor)?, to)?;
    let values = match factor {
        1 => column.values().clone(),
        _ => column.values().iter().map(|value| value.wrapping_mul(factor)).collect(),
    };
    Some(Arc::new(Decimal128Array::new(values, column.nulls().cloned()).with_data_type(data_type(to))))
}

fn is_null(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_some_and(|nulls| nulls.is_null(row))
}

fn scale(of: Type) -> u8 {
    match of {
        Type::Decimal { scale, .. } => scale,
        _ => 0,
    }
}

fn wide(column: &ArrayRef, from: Type) -> Wide {
    match from {
        Type::Float32 => Wide::Float(
            column.as_primitive::<Float32Type>().values().iter().map(|value| f64::from(*value)).collect(),
        ),
        Type::Float64 => Wide::Float(column.as_primitive::<Float64Type>().values().to_vec()),
        Type::Decimal { .. } => Wide::Whole(column.as_primitive::<Decimal128Type>().values().to_vec()),
        Type::UInt64 => Wide::Whole(
            column.as_primitive::<UInt64Type>().values().iter().map(|value| i128::from(*value)).collect(),
        ),
        _ => Wide::Whole(ordered_values(column).into_iter().map(i128::from).collect()),
    }
}

/// Returns the units of a date or timestamp per day.
fn per_day(of: Type) -> i128 {
    let seconds = 86_400;
    match of {
        Type::Timestamp { unit: TimeUnit::Second, .. } => seconds,
        Type::Timestamp { unit: TimeUnit::Millisecond, .. } => seconds * 1_000,
        Type::Timestamp { unit: TimeUnit::Microsecond, .. } => seconds * 1_000_000,
        Type::Timestamp { unit: TimeUnit::Nanosecond, .. } => seconds * 1_000_000_000,
        _ => 1,
    }
}

/// Returns the divisor that turns units of the last digit into the value.
fn divisor(of: Type) -> f64 {
    10f64.powi(i32::from(scale(of)))
}

/// Converts a whole number or decimal, in units of its last digit, to the float that a cast makes of it. A greater
/// number never gives a smaller float.
pub fn as_float(value: i128, from: Type) -> f64 {
    value as f64 / divisor(from)
}

/// Converts a whole number, time or decimal to units of another type, as a cast does. A greater number never gives a
/// smaller one, unless the other type is boolean. `None` if 128 bits are too few. The result may still not fit the
/// type.
pub fn rescaled(value: i128, from: Type, to: Type) -> Option<i128> {
    let is_time = |of| matches!(of, Type::Date | Type::Timestamp { .. });
    if is_time(from) {
        let (old, new) = (per_day(from), per_day(to));
        return match new >= old {
            true => value.checked_mul(new / old),
            // A moment belongs to the day, or second, that has begun.
            false => Some(value.div_euclid(old / new)),
        };
    }
    if to == Type::Boolean {
        return Some(i128::from(value != 0));
    }
    let (old, new) = (u32::from(scale(from)), u32::from(scale(to)));
    match new >= old {
        true => value.checked_mul(10i128.pow(new - old)),
        false => {
            let unit = 10i128.pow(old - new);
            let (quotient, rest) = (value / unit, value % unit);
            let is_up = rest.unsigned_abs() >= (unit.unsigned_abs()).div_ceil(2);
            Some(if is_up { quotient + value.signum() } else { quotient })
        }
    }
}

/// Returns the value if the type, a whole number, time or decimal, can hold it.
pub(in crate::run) fn fitting(value: i128, to: Type) -> Option<i128> {
    let (least, most) = match to {
        Type::Boolean => (0, 1),
        Type::Int8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        Type::Int16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        Type::Int32 | Type::Date => (i128::from(i32::MIN), i128::from(i32::MAX)),
        Type::UInt8 => (0, i128::from(u8::MAX)),
        Type::UInt16 => (0, i128::from(u16::MAX)),
        Type::UInt32 => (0, i128::from(u32::MAX)),
        Type::UInt64 => (0, i128::from(u64::MAX)),
        Type::Decimal { precision, .. } => {
            let end = 10i128.checked_pow(u32::from(precision)).unwrap_or(DECIMAL_END);
            (1 - end, end - 1)
        }
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    (least..=most).contains(&value).then_some(value)
}

/// Makes a column of whole numbers that fit.
fn whole(
    values: impl Iterator<Item = Result<i128, String>>,
    to: Type,
    nulls: Option<&NullBuffer>,
) -> Result<ArrayRef, String> {
    let nulls = nulls.cloned();
    match to {
        Type::Decimal { .. } => {
            let values: Vec<i128> = values.collect::<Result<_, _>>()?;
            Ok(Arc::new(Decimal128Array::new(values.into(), nulls).with_data_type(data_type(to))))
        }
        Type::UInt64 => {
            let values: Vec<u64> = values.map(|value| Ok(value? as u64)).collect::<Result<_, String>>()?;
            Ok(Arc::new(UInt64Array::new(values.into(), nulls)))
        }
        _ => {
            let values: Vec<i64> = values.map(|value| Ok(value? as i64)).collect::<Result<_, String>>()?;
            Ok(from_i64(to, values, nulls))
        }
    }
}

fn to_text(column: &ArrayRef, from: Type) -> ArrayRef {
    let values = match wide(column, from) {
        Wide::Whole(values) => values,
        Wide::Float(values) => vec![0; values.len()],
    };
    let text = |(row, value): (usize, i128)| match column.is_null(row) {
        true => None,
        false if from == Type::Date => Some(date_text(value)),
        false => Some(value.to_string()),
    };
    Arc::new(values.into_iter().enumerate().map(text).collect::<StringArray>())
}

/// Returns year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar.
fn civil(day: i128) -> (i128, i128, i128) {
    // Years begin in March here, so that the leap day comes last. There are 719,468 days from 0000-03-01 to
    // 1970-01-01.
    let day = day + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i128::from(month <= 2), month, day)
}

/// Reverses [`civil`], for a month of 1 to 12.
fn day_of(year: i128, month: i128, day: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let day = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year * 365 + year / 4 - year / 100 + day - 719_468
}

/// Formats a number of days since 1970-01-01 as `YYYY-MM-DD`.
pub(crate) fn date_text(day: i128) -> String {
    let (year, month, day) = civil(day);
    let sign = if year < 0 { "-" } else { "" };
    format!("{sign}{:04}-{month:02}-{day:02}", year.unsigned_abs())
}

/// Parses `YYYY-MM-DD`. The year has 2 to 7 digits and may have a sign.
fn parsed_date(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let mut parts = digits.split('-').map(|part| {
        let is_digits = (2..=7).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_digits { part.parse::<i128>().ok() } else { None }
    });
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let number = day_of(sign * year, month.clamp(1, 12), day);
    // A day that the month does not have is converted back to another date.
    (parts.next().is_none() && civil(number) == (sign * year, month, day)).then_some(number)
}

/// Parses digits with a point and a sign as a decimal in units of its last digit, rounded.
fn parsed_decimal(text: &str, digits: u8) -> Option<i128> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let (before, behind) = rest.split_once('.').unwrap_or((rest, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if before.len() + behind.len() == 0 || !is_digits(before) || !is_digits(behind) {
        return None;
    }
    let kept = usize::from(digits);
    let mut value: i128 = 0;
    let padding = std::iter::repeat_n(b'0', kept.saturating_sub(behind.len()));
    for digit in before.bytes().chain(behind.bytes().take(kept)).chain(padding) {
        value = value.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    let is_up = behind.as_bytes().get(kept).is_some_and(|digit| *digit >= b'5');
    Some(sign * (value.checked_add(i128::from(is_up))?))
}

fn from_text(texts: &StringArray, to: Type) -> Result<ArrayRef, String> {
    let each = |row: usize| if texts.is_null(row) { None } else { Some(texts.value(row)) };
    let misfit = |text: &str| {
        let shown: String = text.chars().take(64).collect();
        format!("{shown:?} as {to}")
    };
    let nulls = texts.nulls();
    if to.arithmetic() == Some(Arithmetic::Float) {
        let float = |row| match each(row) {
            None => Ok(0.0),
            Some(text) => text.parse::<f64>().map_err(|_| misfit(text)),
        };
        if to == Type::Float32 {
            let float = |row| match each(row) {
                None => Ok(0.0),
                Some(text) => text.parse::<f32>().map_err(|_| misfit(text)),
            };
            let values: Vec<f32> = (0..texts.len()).map(float).collect::<Result<_, String>>()?;
            return Ok(Arc::new(Float32Array::new(values.into(), nulls.cloned())));
        }
        let values: Vec<f64> = (0..texts.len()).map(float).collect::<Result<_, String>>()?;
        return Ok(Arc::new(Float64Array::new(values.into(), nulls.cloned())));
    }
    let parsed = |text: &str| match to {
        Type::Boolean if text.eq_ignore_ascii_case("true") => Some(1),
        Type::Boolean if text.eq_ignore_ascii_case("false") => Some(0),
        Type::Boolean => None,
        Type::Date => parsed_date(text),
        Type::Decimal { scale, .. } => parsed_decimal(text, scale),
        _ => text.parse::<i128>().ok(),
    };
    let rows = (0..texts.len()).map(|row| match each(row) {
        None => Ok(0),
        Some(text) => parsed(text).and_then(|value| fitting(value, to)).ok_or_else(|| misfit(text)),
    });
    whole(rows, to, nulls)
}
