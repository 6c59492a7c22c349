//! Types of columns, and single values of them.

use crate::limits::{DECIMAL_DIGITS_MAX, FIXED_BYTES_MAX};
use std::fmt;

/// Unit in which a timestamp counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimeUnit {
    /// Whole seconds.
    Second,
    /// Thousandths of a second.
    Millisecond,
    /// Millionths of a second.
    Microsecond,
    /// Billionths of a second.
    Nanosecond,
}

/// Type of a column. Values lie as in Arrow's columnar format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// True or false, one bit.
    Boolean,
    /// Signed integer of 8 bits.
    Int8,
    /// Signed integer of 16 bits.
    Int16,
    /// Signed integer of 32 bits.
    Int32,
    /// Signed integer of 64 bits.
    Int64,
    /// Unsigned integer of 8 bits.
    UInt8,
    /// Unsigned integer of 16 bits.
    UInt16,
    /// Unsigned integer of 32 bits.
    UInt32,
    /// Unsigned integer of 64 bits.
    UInt64,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// Decimal number: an integer of 128 bits in units of its last digit.
    Decimal {
        /// Digits in all, 1 to 38.
        precision: u8,
        /// Digits behind the point, 0 to `precision`.
        scale: u8,
    },
    /// Days since 1970-01-01, 32 bits.
    Date,
    /// Units since 1970-01-01, 64 bits. If it has a time zone, it counts from midnight UTC.
    Timestamp {
        /// Unit that is counted.
        unit: TimeUnit,
        /// True if the value is an instant, false if it is a clock reading. Only the client knows in which zone an
        /// instant is shown.
        is_zoned: bool,
    },
    /// UTF-8 text with offsets of 32 bits.
    Text,
    /// Bytes of any length with offsets of 32 bits.
    Bytes,
    /// Bytes of one fixed length, 1 to 4,096.
    FixedBytes(u32),
}

/// Arithmetic that a type supports.
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
    /// Reports whether the numbers in the type are within their limits.
    pub fn is_valid(self) -> bool {
        match self {
            Type::Decimal { precision, scale } => {
                (1..=DECIMAL_DIGITS_MAX).contains(&precision) && scale <= precision
            }
            Type::FixedBytes(bytes) => (1..=FIXED_BYTES_MAX).contains(&bytes),
            _ => true,
        }
    }

    /// Returns the bytes of a value, or `None` for booleans and for values of any length.
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

    /// Returns the arithmetic that the type supports, or `None` if it is no number.
    pub fn arithmetic(self) -> Option<Arithmetic> {
        Some(match self {
            Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64 => Arithmetic::Integer,
            Type::UInt8 | Type::UInt16 | Type::UInt32 | Type::UInt64 => Arithmetic::Integer,
            Type::Float32 | Type::Float64 => Arithmetic::Float,
            Type::Decimal { .. } => Arithmetic::Decimal,
            _ => return None,
        })
    }

    /// Reports whether the type is a signed whole number.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64)
    }

    /// Reports whether values can be cast to `to`: between numbers, from and to text, and between dates and
    /// timestamps. A value that does not fit is an error of the program, as in SQL's CAST.
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

/// Single value of a type, or NULL.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Type of the value.
    pub of: Type,
    /// The value. `None` is NULL.
    pub value: Option<Value>,
}

/// Value without its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Value of a boolean.
    Boolean(bool),
    /// Whole number, date, timestamp, or decimal in units of its last digit.
    Integer(i128),
    /// Bits of a float of 32 or 64 bits. As bits, every NaN and both zeros stay distinct.
    Float(u64),
    /// Text as UTF-8, or bytes.
    Bytes(Vec<u8>),
}

impl Scalar {
    /// Returns a NULL of this type.
    pub fn null(of: Type) -> Scalar {
        Scalar { of, value: None }
    }

    /// Reports whether the value belongs to the type and fits it.
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
