//! What a column may hold, and single values of it.

use crate::limits::{DECIMAL_DIGITS_MAX, FIXED_BYTES_MAX};
use std::fmt;

/// How finely a timestamp counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimeUnit {
    /// Whole seconds.
    Second,
    /// Thousandths.
    Millisecond,
    /// Millionths.
    Microsecond,
    /// Billionths.
    Nanosecond,
}

/// The type of a column. Arrow's physical layout, the logical type as far as operators need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// Bits.
    Boolean,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// Unsigned, 8 bits.
    UInt8,
    /// Unsigned, 16 bits.
    UInt16,
    /// Unsigned, 32 bits.
    UInt32,
    /// Unsigned, 64 bits.
    UInt64,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// An integer of up to `precision` digits, `scale` of them behind the point; 128 bits.
    Decimal {
        /// Digits in all, 1 to 38.
        precision: u8,
        /// Digits behind the point, 0 to `precision`.
        scale: u8,
    },
    /// Days since 1970-01-01, 32 bits.
    Date,
    /// Units since 1970-01-01, 64 bits; UTC if it is of a time zone.
    Timestamp {
        /// What is counted.
        unit: TimeUnit,
        /// Whether it means an instant (its zone is the client's to know) or the reading of a clock.
        is_zoned: bool,
    },
    /// UTF-8, offsets of 32 bits.
    Text,
    /// Bytes, offsets of 32 bits.
    Bytes,
    /// Values of so many bytes, 1 to 4,096.
    FixedBytes(u32),
}

/// What kind of arithmetic a type knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Whole numbers, checked for overflow.
    Integer,
    /// IEEE 754.
    Float,
    /// Decimals, checked for overflow.
    Decimal,
}

impl Type {
    /// Whether its numbers are within their limits.
    pub fn is_valid(self) -> bool {
        match self {
            Type::Decimal { precision, scale } => {
                (1..=DECIMAL_DIGITS_MAX).contains(&precision) && scale <= precision
            }
            Type::FixedBytes(bytes) => (1..=FIXED_BYTES_MAX).contains(&bytes),
            _ => true,
        }
    }

    /// Bytes of a value; nothing for bits and for values of any length.
    pub fn width(self) -> Option<usize> {
        Some(match self {
            Type::Int8 | Type::UInt8 => 1,
            Type::Int16 | Type::UInt16 => 2,
            Type::Int32 | Type::UInt32 | Type::Float32 | Type::Date => 4,
            Type::Int64 | Type::UInt64 | Type::Float64 | Type::Timestamp { .. } => 8,
            Type::Decimal { .. } => 16,
            Type::FixedBytes(bytes) => bytes as usize,
            Type::Boolean | Type::Text | Type::Bytes => return None,
        })
    }

    /// Which arithmetic it knows, if any.
    pub fn arithmetic(self) -> Option<Arithmetic> {
        Some(match self {
            Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64 => Arithmetic::Integer,
            Type::UInt8 | Type::UInt16 | Type::UInt32 | Type::UInt64 => Arithmetic::Integer,
            Type::Float32 | Type::Float64 => Arithmetic::Float,
            Type::Decimal { .. } => Arithmetic::Decimal,
            _ => return None,
        })
    }

    /// Whether it is a whole number with a sign.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64)
    }

    /// Whether a value can be made of one of another type: between numbers, from and to text, and between dates
    /// and timestamps. A value that does not fit is an error of the program, as in SQL's CAST.
    pub fn casts_to(self, to: Type) -> bool {
        let is_time = |of: Type| matches!(of, Type::Date | Type::Timestamp { .. });
        let is_number = |of: Type| of.arithmetic().is_some() || of == Type::Boolean;
        self == to
            || (is_number(self) && is_number(to))
            || (is_time(self) && is_time(to))
            || (self == Type::Text && (is_number(to) || to == Type::Date))
            || (to == Type::Text && (self.arithmetic() == Some(Arithmetic::Integer) || self == Type::Date))
            || matches!((self, to), (Type::Text, Type::Bytes))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Decimal { precision, scale } => write!(f, "decimal({precision}, {scale})"),
            Type::Timestamp { unit, is_zoned } => {
                let unit = match unit {
                    TimeUnit::Second => "s",
                    TimeUnit::Millisecond => "ms",
                    TimeUnit::Microsecond => "us",
                    TimeUnit::Nanosecond => "ns",
                };
                write!(f, "timestamp({unit}{})", if *is_zoned { ", zoned" } else { "" })
            }
            Type::FixedBytes(bytes) => write!(f, "bytes({bytes})"),
            Type::Boolean => f.write_str("boolean"),
            Type::Int8 => f.write_str("int8"),
            Type::Int16 => f.write_str("int16"),
            Type::Int32 => f.write_str("int32"),
            Type::Int64 => f.write_str("int64"),
            Type::UInt8 => f.write_str("uint8"),
            Type::UInt16 => f.write_str("uint16"),
            Type::UInt32 => f.write_str("uint32"),
            Type::UInt64 => f.write_str("uint64"),
            Type::Float32 => f.write_str("float32"),
            Type::Float64 => f.write_str("float64"),
            Type::Date => f.write_str("date"),
            Type::Text => f.write_str("text"),
            Type::Bytes => f.write_str("bytes"),
        }
    }
}

/// One value, or the lack of one, of a type.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Its type.
    pub of: Type,
    /// What it is; nothing for NULL.
    pub value: Option<Value>,
}

/// The value itself, by the family of its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a boolean.
    Boolean(bool),
    /// Of whole numbers, dates, timestamps and decimals (in units of their last digit).
    Integer(i128),
    /// Of floats: bits, so that every NaN and both zeros keep theirs.
    Float(u64),
    /// Of text, UTF-8, and of bytes.
    Bytes(Vec<u8>),
}

impl Scalar {
    /// A NULL.
    pub fn null(of: Type) -> Scalar {
        Scalar { of, value: None }
    }

    /// Whether the value belongs to the type and fits it.
    pub fn is_valid(&self) -> bool {
        let Some(value) = &self.value else { return self.of.is_valid() };
        let within = |bits: u32, is_signed: bool, value: i128| {
            let (least, most) = match is_signed {
                true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                false => (0, (1i128 << bits) - 1),
            };
            (least..=most).contains(&value)
        };
        self.of.is_valid()
            && match (self.of, value) {
                (Type::Boolean, Value::Boolean(_)) | (Type::Float64, Value::Float(_)) => true,
                (Type::Float32, Value::Float(bits)) => *bits <= u64::from(u32::MAX),
                (Type::Int8, Value::Integer(value)) => within(8, true, *value),
                (Type::Int16, Value::Integer(value)) => within(16, true, *value),
                (Type::Int32 | Type::Date, Value::Integer(value)) => within(32, true, *value),
                (Type::Int64 | Type::Timestamp { .. }, Value::Integer(value)) => within(64, true, *value),
                (Type::UInt8, Value::Integer(value)) => within(8, false, *value),
                (Type::UInt16, Value::Integer(value)) => within(16, false, *value),
                (Type::UInt32, Value::Integer(value)) => within(32, false, *value),
                (Type::UInt64, Value::Integer(value)) => within(64, false, *value),
                (Type::Decimal { precision, .. }, Value::Integer(value)) => {
                    value.unsigned_abs() < 10u128.pow(u32::from(precision))
                }
                (Type::Text, Value::Bytes(bytes)) => std::str::from_utf8(bytes).is_ok(),
                (Type::Bytes, Value::Bytes(_)) => true,
                (Type::FixedBytes(width), Value::Bytes(bytes)) => bytes.len() == width as usize,
                _ => false,
            }
    }
}
