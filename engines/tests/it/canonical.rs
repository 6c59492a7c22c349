//! Canonical text form of values, by which the answers of different engines are compared.
//!
//! The idea: two values are the same if their text is the same. `suite/canonical.py` writes the same form, and
//! `suite/README.md` specifies it.

use arrow::array::{Array, ArrayAccessor, ArrayIter, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, TimeUnit};
use arrow::datatypes::{
    Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use sqllogictest::DefaultColumnType;
use std::fmt::Write;
use std::ops::RangeInclusive;

/// Text of NULL.
pub const NULL: &str = "NULL";
const EMPTY: &str = "(empty)";
/// Exponents of ten for which a float is written without an exponent.
const PLAIN_EXPONENTS: RangeInclusive<i32> = -5..=15;
const SECONDS_OF_A_DAY: i64 = 86_400;

/// Returns the rows of all batches as texts. The error names a type that has no text form.
pub fn rows(batches: &[RecordBatch]) -> Result<Vec<Vec<String>>, String> {
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter().map(column).collect::<Result<Vec<_>, _>>()?;
        rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|of| of[row].clone()).collect()));
    }
    Ok(rows)
}

/// Returns the type letter of sqllogictest for each column.
pub fn letters(schema: &Schema) -> Vec<DefaultColumnType> {
    schema.fields().iter().map(|field| letter(field.data_type())).collect()
}

fn letter(of: &DataType) -> DefaultColumnType {
    match of {
        DataType::Decimal128(_, 0) | DataType::Decimal256(_, 0) => DefaultColumnType::Integer,
        of if of.is_integer() => DefaultColumnType::Integer,
        of if of.is_numeric() => DefaultColumnType::FloatingPoint,
        _ => DefaultColumnType::Text,
    }
}

fn each<A: ArrayAccessor>(
    array: A,
    write: impl Fn(A::Item) -> Result<String, String>,
) -> Result<Vec<String>, String> {
    ArrayIter::new(array).map(|value| value.map_or_else(|| Ok(NULL.to_owned()), &write)).collect()
}

fn column(array: &ArrayRef) -> Result<Vec<String>, String> {
    macro_rules! digits {
        ($of:ty) => {
            each(array.as_primitive::<$of>(), |value| Ok(value.to_string()))
        };
    }
    macro_rules! moments {
        ($of:ty, $per_second:expr, $zone:expr) => {
            each(array.as_primitive::<$of>(), |value| timestamp_text(value, $per_second, $zone.is_some()))
        };
    }
    match array.data_type() {
        DataType::Null => Ok(vec![NULL.to_owned(); array.len()]),
        DataType::Boolean => each(array.as_boolean(), |value| Ok(value.to_string())),
        DataType::Int8 => digits!(Int8Type),
        DataType::Int16 => digits!(Int16Type),
        DataType::Int32 => digits!(Int32Type),
        DataType::Int64 => digits!(Int64Type),
        DataType::UInt8 => digits!(UInt8Type),
        DataType::UInt16 => digits!(UInt16Type),
        DataType::UInt32 => digits!(UInt32Type),
        DataType::UInt64 => digits!(UInt64Type),
        // An f32 is not widened to f64, whose shortest text has more digits.
        DataType::Float32 => {
            each(array.as_primitive::<Float32Type>(), |value| float_text(&format!("{value:e}")))
        }
        DataType::Float64 => {
            each(array.as_primitive::<Float64Type>(), |value| float_text(&format!("{value:e}")))
        }
        DataType::Decimal128(_, scale) => {
            each(array.as_primitive::<Decimal128Type>(), |value| decimal_text(&value.to_string(), *scale))
        }
        DataType::Decimal256(_, scale) => {
            each(array.as_primitive::<Decimal256Type>(), |value| decimal_text(&value.to_string(), *scale))
        }
        DataType::Date32 => each(array.as_primitive::<Date32Type>(), |value| date_text(i64::from(value))),
        DataType::Timestamp(TimeUnit::Second, zone) => moments!(TimestampSecondType, 1, zone),
        DataType::Timestamp(TimeUnit::Millisecond, zone) => moments!(TimestampMillisecondType, 1_000, zone),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            moments!(TimestampMicrosecondType, 1_000_000, zone)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            moments!(TimestampNanosecondType, 1_000_000_000, zone)
        }
        DataType::Utf8 => each(array.as_string::<i32>(), |value| Ok(text_text(value))),
        DataType::LargeUtf8 => each(array.as_string::<i64>(), |value| Ok(text_text(value))),
        DataType::Utf8View => each(array.as_string_view(), |value| Ok(text_text(value))),
        DataType::Binary => each(array.as_binary::<i32>(), |value| Ok(bytes_text(value))),
        DataType::LargeBinary => each(array.as_binary::<i64>(), |value| Ok(bytes_text(value))),
        DataType::BinaryView => each(array.as_binary_view(), |value| Ok(bytes_text(value))),
        DataType::FixedSizeBinary(_) => each(array.as_fixed_size_binary(), |value| Ok(bytes_text(value))),
        DataType::Dictionary(_, values) => column(&cast(array, values).map_err(|error| error.to_string())?),
        other => Err(format!("no text form for a value of type {other}")),
    }
}

/// Formats a float from its shortest exact digits, as Rust's `{:e}` writes them.
fn float_text(shortest: &str) -> Result<String, String> {
    let (sign, number) = match shortest.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", shortest),
    };
    match number {
        "NaN" => return Ok("NaN".to_owned()),
        "inf" => return Ok(format!("{sign}Infinity")),
        _ => {}
    }
    let unexpected = || format!("{shortest:?} is no floating-point number");
    let (mantissa, power) = number.split_once('e').ok_or_else(unexpected)?;
    let power: i32 = power.parse().map_err(|_| unexpected())?;
    // There is one digit before the point. It is 0 only for the number 0.
    let digits: String = mantissa.chars().filter(|char| *char != '.').collect();
    if digits == "0" {
        return Ok(format!("{sign}0"));
    }
    let (first, rest) = digits.split_at(1);
    if !PLAIN_EXPONENTS.contains(&power) {
        let point = if rest.is_empty() { "" } else { "." };
        return Ok(format!("{sign}{first}{point}{rest}e{power}"));
    }
    if power < 0 {
        let zeros = "0".repeat((-power - 1) as usize);
        return Ok(format!("{sign}0.{zeros}{digits}"));
    }
    let whole = power as usize + 1;
    if whole >= digits.len() {
        return Ok(format!("{sign}{digits}{}", "0".repeat(whole - digits.len())));
    }
    let (whole, fraction) = digits.split_at(whole);
    Ok(format!("{sign}{whole}.{fraction}"))
}

fn decimal_text(unscaled: &str, scale: i8) -> Result<String, String> {
    let scale = usize::try_from(scale).map_err(|_| format!("no text form for decimals of scale {scale}"))?;
    let (sign, digits) = match unscaled.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", unscaled),
    };
    if scale == 0 {
        return Ok(unscaled.to_owned());
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    Ok(format!("{sign}{whole}.{fraction}"))
}

/// Formats a day since 1970-01-01 as year, month and day of the Gregorian calendar.
///
/// It counts in eras of 400 years that begin on the first of March, so that the leap day comes last.
fn date_text(days: i64) -> Result<String, String> {
    let since = days + 719_468;
    let era = since.div_euclid(146_097);
    let day_of_era = since.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    if !(1..=9999).contains(&year) {
        return Err(format!("no text form for the year {year}: 1 to 9999 are permitted"));
    }
    Ok(format!("{year:04}-{month:02}-{day:02}"))
}

fn timestamp_text(value: i64, per_second: i64, has_zone: bool) -> Result<String, String> {
    let (seconds, part) = (value.div_euclid(per_second), value.rem_euclid(per_second));
    let (day, second) = (seconds.div_euclid(SECONDS_OF_A_DAY), seconds.rem_euclid(SECONDS_OF_A_DAY));
    let mut text = date_text(day)?;
    let _ = write!(text, " {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    if part > 0 {
        let width = per_second.ilog10() as usize;
        let fraction = format!("{part:0width$}");
        let _ = write!(text, ".{}", fraction.trim_end_matches('0'));
    }
    if has_zone {
        text.push('Z');
    }
    Ok(text)
}

/// Makes invisible characters of a text visible.
fn text_text(text: &str) -> String {
    if text.is_empty() {
        return EMPTY.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for (at, char) in text.char_indices() {
        let is_at_an_end = at == 0 || at + char.len_utf8() == text.len();
        match char {
            '\\' => shown.push_str("\\\\"),
            '\0'..='\x1f' | '\x7f' => {
                let _ = write!(shown, "\\x{:02x}", u32::from(char));
            }
            ' ' if is_at_an_end => shown.push_str("\\x20"),
            char => shown.push(char),
        }
    }
    shown
}

fn bytes_text(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn numbers_are_written_with_the_fewest_digits_that_keep_them() {
    let written = |value: f64| float_text(&format!("{value:e}")).expect("a number");
    for (value, wanted) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (0.1, "0.1"),
        (-1234.5, "-1234.5"),
        (100.0, "100"),
        (1e15, "1000000000000000"),
        (1e16, "1e16"),
        (0.00001, "0.00001"),
        (0.0000015, "1.5e-6"),
        (5e-324, "5e-324"),
        (f64::MAX, "1.7976931348623157e308"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        assert_eq!(written(value), wanted);
    }
    assert_eq!(float_text(&format!("{:e}", 0.1_f32)).expect("a number"), "0.1");
}

#[test]
fn decimals_days_moments_and_texts_are_written_as_specified() {
    assert_eq!(decimal_text("-5", 2), Ok("-0.05".to_owned()));
    assert_eq!(decimal_text("1230", 2), Ok("12.30".to_owned()));
    assert_eq!(decimal_text("7", 0), Ok("7".to_owned()));
    assert!(decimal_text("7", -1).is_err());
    for (days, wanted) in [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (11_016, "2000-02-29"),
        (-25_509, "1900-02-28"),
        (-25_508, "1900-03-01"),
        (-719_162, "0001-01-01"),
        (2_932_896, "9999-12-31"),
    ] {
        assert_eq!(date_text(days), Ok(wanted.to_owned()));
    }
    assert!(date_text(2_932_897).is_err());
    assert_eq!(timestamp_text(-1, 1_000_000, false), Ok("1969-12-31 23:59:59.999999".to_owned()));
    assert_eq!(timestamp_text(1_500, 1_000, true), Ok("1970-01-01 00:00:01.5Z".to_owned()));
    assert_eq!(timestamp_text(1, 1, false), Ok("1970-01-01 00:00:01".to_owned()));
    assert_eq!(text_text(""), "(empty)");
    assert_eq!(text_text(" "), "\\x20");
    assert_eq!(text_text(" a\tb\\ é "), "\\x20a\\x09b\\\\ é\\x20");
    assert_eq!(bytes_text(&[2, 0xfd]), "0x02fd");
}
