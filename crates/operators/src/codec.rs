//! Encoding and decoding of programs (`spec/pipeline.md`). Each program has exactly one encoding.
//!
//! The bytes may come from an attacker. Every count is compared with its limit and with the bytes that are left
//! before memory is allocated for it, and there is no recursion.

use crate::expression::{Binary, Comparison, Flaw, Instruction};
use crate::limits::*;
use crate::program::{Aggregate, AggregateFunction, JoinLookup, Operator, Program, SortKey};
use crate::types::{Scalar, TimeUnit, Type, Value};
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
use std::fmt;

/// Version of the encoding: the first byte of a program. Programs of other versions are refused.
pub const PROGRAM_VERSION: u8 = 1;

/// Reason why bytes are not a program that may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// The bytes are not well-formed.
    Malformed(WireError),
    /// The bytes are well-formed, but the program breaks a rule.
    Flawed(Flaw),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::Malformed(error) => write!(f, "not a program: {error}"),
            ProgramError::Flawed(flaw) => write!(f, "a program that cannot run: {flaw}"),
        }
    }
}

impl std::error::Error for ProgramError {}

impl Program {
    /// Encodes the program. It is a flaw if that takes more than [`PROGRAM_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, Flaw> {
        let mut out = vec![PROGRAM_VERSION];
        put_list::<u16, _>(self.input(), &mut out);
        put_list::<u8, _>(self.operators(), &mut out);
        if out.len() > PROGRAM_BYTES_MAX {
            let what = format!("a program of {} bytes: at most {PROGRAM_BYTES_MAX} are permitted", out.len());
            return Err(Flaw { operator: 0, what });
        }
        Ok(out)
    }

    /// Decodes and checks a program.
    pub fn decode(bytes: &[u8]) -> Result<Program, ProgramError> {
        let (input, operators) = take_program(bytes).map_err(ProgramError::Malformed)?;
        Program::check(input, operators).map_err(ProgramError::Flawed)
    }
}

fn take_program(bytes: &[u8]) -> Result<(Vec<Type>, Vec<Operator>), WireError> {
    if bytes.len() > PROGRAM_BYTES_MAX {
        return Err(too_many("bytes of a program", bytes.len(), PROGRAM_BYTES_MAX));
    }
    let mut from = Cursor::new(bytes);
    match u8::take(&mut from)? {
        PROGRAM_VERSION => {}
        found => return Err(unknown("the version of a program", found)),
    }
    let input = take_list::<u16, _>(&mut from, "columns", COLUMNS_MAX)?;
    let operators = take_list::<u8, _>(&mut from, "operators", OPERATORS_MAX)?;
    from.finish()?;
    Ok((input, operators))
}

fn too_many(what: &'static str, found: usize, max: usize) -> WireError {
    WireError::TooMany { what, found: found as u64, max: max as u64 }
}

fn unknown(what: &'static str, found: u8) -> WireError {
    WireError::Value { what, found: found.into() }
}

/// Integer type of a count. Lists are checked to be short enough for it before they are encoded.
trait Count: Field + TryFrom<usize> {
    const MAX: Self;
    fn to_usize(self) -> usize;
}

impl Count for u8 {
    const MAX: u8 = u8::MAX;
    fn to_usize(self) -> usize {
        self.into()
    }
}

impl Count for u16 {
    const MAX: u16 = u16::MAX;
    fn to_usize(self) -> usize {
        self.into()
    }
}

/// Encodes a count and the items. Programs are checked before they are encoded: no list exceeds its limit, and every
/// limit fits its count.
fn put_list<C: Count, T: Field>(items: &[T], out: &mut Vec<u8>) {
    debug_assert!(items.len() <= C::MAX.to_usize());
    C::try_from(items.len()).unwrap_or(C::MAX).put(out);
    items.iter().for_each(|item| item.put(out));
}

fn take_list<C: Count, T: Field>(
    from: &mut Cursor<'_>,
    what: &'static str,
    max: usize,
) -> Result<Vec<T>, WireError> {
    let count = C::take(from)?.to_usize();
    if count > max {
        return Err(too_many(what, count, max));
    }
    let needed = count * T::BYTES_MIN;
    if needed > from.left() {
        return Err(WireError::Truncated { needed, left: from.left() });
    }
    (0..count).map(|_| T::take(from)).collect()
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    (bytes.len() as u16).put(out);
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(from: &mut Cursor<'a>, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
    let count = usize::from(u16::take(from)?);
    if count > max { Err(too_many(what, count, max)) } else { from.bytes(count) }
}

fn take_pattern(from: &mut Cursor<'_>) -> Result<String, WireError> {
    let bytes = take_bytes(from, "bytes of a pattern", PATTERN_BYTES_MAX)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Text { what: "a pattern" })
}

/// Encodes an enumeration without content as one byte: the position of the value in the list.
macro_rules! words {
    ($type:ty, $what:literal, [$($value:path),* $(,)?]) => {
        impl Field for $type {
            const BYTES_MIN: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                const ALL: &[$type] = &[$($value),*];
                // Not reached: every value is in the list, and a round trip is tested for each.
                out.push(ALL.iter().position(|value| value == self).unwrap_or(usize::from(u8::MAX)) as u8);
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
                const ALL: &[$type] = &[$($value),*];
                let found = u8::take(from)?;
                ALL.get(usize::from(found)).copied().ok_or(unknown($what, found))
            }
        }
    };
}

words!(
    TimeUnit,
    "a unit of time",
    [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond]
);
words!(
    Comparison,
    "a comparison",
    [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ]
);
words!(
    Binary,
    "an arithmetic operation",
    [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide, Binary::Remainder]
);
words!(
    AggregateFunction,
    "an aggregate",
    [AggregateFunction::Count, AggregateFunction::Sum, AggregateFunction::Min, AggregateFunction::Max]
);
words!(JoinLookup, "a lookup", [JoinLookup::Bloom, JoinLookup::Keys]);

/// Types that are encoded without parameters, such as a scale or a width. The code of each is its position.
const PLAIN: [Type; 14] = [
    Type::Boolean,
    Type::Int8,
    Type::Int16,
    Type::Int32,
    Type::Int64,
    Type::UInt8,
    Type::UInt16,
    Type::UInt32,
    Type::UInt64,
    Type::Float32,
    Type::Float64,
    Type::Date,
    Type::Text,
    Type::Bytes,
];
const DECIMAL: u8 = 32;
const TIMESTAMP: u8 = 33;
const FIXED_BYTES: u8 = 34;

impl Field for Type {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Type::Decimal { precision, scale } => out.extend([DECIMAL, *precision, *scale]),
            Type::Timestamp { unit, is_zoned } => {
                out.push(TIMESTAMP);
                unit.put(out);
                is_zoned.put(out);
            }
            Type::FixedBytes(bytes) => {
                out.push(FIXED_BYTES);
                bytes.put(out);
            }
            plain => {
                out.push(PLAIN.iter().position(|one| one == plain).unwrap_or(usize::from(u8::MAX)) as u8);
            }
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(match u8::take(from)? {
            DECIMAL => Type::Decimal { precision: u8::take(from)?, scale: u8::take(from)? },
            TIMESTAMP => Type::Timestamp { unit: TimeUnit::take(from)?, is_zoned: bool::take(from)? },
            FIXED_BYTES => Type::FixedBytes(u32::take(from)?),
            found => *PLAIN.get(usize::from(found)).ok_or(unknown("a type", found))?,
        })
    }
}

/// Returns the number of bytes in which a value of an integer type, date, timestamp or decimal is encoded; `None` for
/// other types.
fn integer_bytes(of: Type) -> Option<usize> {
    of.width().filter(|_| !matches!(of, Type::Float32 | Type::Float64 | Type::FixedBytes(_)))
}

impl Field for Scalar {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        self.of.put(out);
        self.value.is_some().put(out);
        match &self.value {
            None => {}
            Some(Value::Boolean(value)) => value.put(out),
            Some(Value::Integer(value)) => {
                let width = integer_bytes(self.of).unwrap_or(0);
                out.extend_from_slice(&value.to_le_bytes()[..width]);
            }
            Some(Value::Float(bits)) => {
                let width = self.of.width().unwrap_or(0);
                out.extend_from_slice(&bits.to_le_bytes()[..width]);
            }
            Some(Value::Bytes(bytes)) => put_bytes(bytes, out),
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let of = Type::take(from)?;
        if !bool::take(from)? {
            return Ok(Scalar::null(of));
        }
        let value = match of {
            Type::Boolean => Value::Boolean(bool::take(from)?),
            Type::Float32 => Value::Float(u32::take(from)?.into()),
            Type::Float64 => Value::Float(u64::take(from)?),
            Type::Text | Type::Bytes | Type::FixedBytes(_) => {
                Value::Bytes(take_bytes(from, "bytes of a literal", LITERAL_BYTES_MAX)?.to_vec())
            }
            _ => Value::Integer(take_integer(from, of)?),
        };
        Ok(Scalar { of, value: Some(value) })
    }
}

fn take_integer(from: &mut Cursor<'_>, of: Type) -> Result<i128, WireError> {
    let is_unsigned = matches!(of, Type::UInt8 | Type::UInt16 | Type::UInt32 | Type::UInt64);
    let bytes = from.bytes(integer_bytes(of).unwrap_or(0))?;
    let is_negative = !is_unsigned && bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut whole = if is_negative { [0xff; 16] } else { [0; 16] };
    for (into, byte) in whole.iter_mut().zip(bytes) {
        *into = *byte;
    }
    Ok(i128::from_le_bytes(whole))
}

impl Field for Instruction {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Instruction::Column(column) => {
                out.push(1);
                column.put(out);
            }
            Instruction::Literal(scalar) => {
                out.push(2);
                scalar.put(out);
            }
            Instruction::Compare(comparison) => {
                out.push(3);
                comparison.put(out);
            }
            Instruction::InList(values) => {
                out.push(4);
                put_list::<u16, _>(values, out);
            }
            Instruction::IsNull => out.push(5),
            Instruction::And => out.push(6),
            Instruction::Or => out.push(7),
            Instruction::Not => out.push(8),
            Instruction::Like { pattern, escape, ignores_case } => {
                out.push(9);
                put_bytes(pattern.as_bytes(), out);
                // The check of the program has refused an escape character of 0.
                escape.map_or(0, u32::from).put(out);
                ignores_case.put(out);
            }
            Instruction::Matches { pattern } => {
                out.push(10);
                put_bytes(pattern.as_bytes(), out);
            }
            Instruction::Binary(binary) => {
                out.push(11);
                binary.put(out);
            }
            Instruction::Negate => out.push(12),
            Instruction::Cast(to) => {
                out.push(13);
                to.put(out);
            }
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(match u8::take(from)? {
            1 => Instruction::Column(u16::take(from)?),
            2 => Instruction::Literal(Scalar::take(from)?),
            3 => Instruction::Compare(Comparison::take(from)?),
            4 => Instruction::InList(take_list::<u16, _>(from, "values of a list", LIST_VALUES_MAX)?),
            5 => Instruction::IsNull,
            6 => Instruction::And,
            7 => Instruction::Or,
            8 => Instruction::Not,
            9 => {
                let pattern = take_pattern(from)?;
                let escape = match u32::take(from)? {
                    0 => None,
                    found => Some(
                        char::from_u32(found)
                            .ok_or(WireError::Value { what: "an escape character", found: found.into() })?,
                    ),
                };
                Instruction::Like { pattern, escape, ignores_case: bool::take(from)? }
            }
            10 => Instruction::Matches { pattern: take_pattern(from)? },
            11 => Instruction::Binary(Binary::take(from)?),
            12 => Instruction::Negate,
            13 => Instruction::Cast(Type::take(from)?),
            found => return Err(unknown("an instruction", found)),
        })
    }
}

/// Instructions of one expression.
struct Instructions(Vec<Instruction>);

fn put_instructions(instructions: &[Instruction], out: &mut Vec<u8>) {
    put_list::<u16, _>(instructions, out);
}

impl Field for Instructions {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        put_instructions(&self.0, out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        take_list::<u16, _>(from, "instructions", INSTRUCTIONS_MAX).map(Instructions)
    }
}

impl Field for Aggregate {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        self.function.put(out);
        self.column.is_some().put(out);
        if let Some(column) = self.column {
            column.put(out);
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let function = AggregateFunction::take(from)?;
        let column = if bool::take(from)? { Some(u16::take(from)?) } else { None };
        Ok(Aggregate { function, column })
    }
}

impl Field for SortKey {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        self.column.put(out);
        self.is_descending.put(out);
        self.nulls_first.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let column = u16::take(from)?;
        Ok(SortKey { column, is_descending: bool::take(from)?, nulls_first: bool::take(from)? })
    }
}

impl Field for Operator {
    const BYTES_MIN: usize = 3;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Operator::Filter(instructions) => {
                out.push(1);
                put_instructions(instructions, out);
            }
            Operator::Project(expressions) => {
                out.push(2);
                debug_assert!(expressions.len() <= COLUMNS_MAX);
                (expressions.len() as u16).put(out);
                expressions.iter().for_each(|instructions| put_instructions(instructions, out));
            }
            Operator::SemiJoin { keys, lookup, number, is_anti } => {
                out.push(3);
                put_list::<u8, _>(keys, out);
                lookup.put(out);
                number.put(out);
                is_anti.put(out);
            }
            Operator::Group { keys, aggregates, groups } => {
                out.push(4);
                put_list::<u8, _>(keys, out);
                put_list::<u8, _>(aggregates, out);
                groups.put(out);
            }
            Operator::Top { keys, rows } => {
                out.push(5);
                put_list::<u8, _>(keys, out);
                rows.put(out);
            }
            Operator::Limit(rows) => {
                out.push(6);
                rows.put(out);
            }
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(match u8::take(from)? {
            1 => Operator::Filter(Instructions::take(from)?.0),
            2 => {
                let expressions: Vec<Instructions> = take_list::<u16, _>(from, "columns", COLUMNS_MAX)?;
                Operator::Project(expressions.into_iter().map(|instructions| instructions.0).collect())
            }
            3 => Operator::SemiJoin {
                keys: take_list::<u8, _>(from, "keys", KEYS_MAX)?,
                lookup: JoinLookup::take(from)?,
                number: u8::take(from)?,
                is_anti: bool::take(from)?,
            },
            4 => Operator::Group {
                keys: take_list::<u8, _>(from, "keys", KEYS_MAX)?,
                aggregates: take_list::<u8, _>(from, "aggregates", AGGREGATES_MAX)?,
                groups: u32::take(from)?,
            },
            5 => Operator::Top { keys: take_list::<u8, _>(from, "keys", KEYS_MAX)?, rows: u32::take(from)? },
            6 => Operator::Limit(u64::take(from)?),
            found => return Err(unknown("an operator", found)),
        })
    }
}
