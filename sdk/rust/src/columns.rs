//! Columns of a far table: the table of columns that a call record has, and the values in the window.

use crate::value::read;
use crate::{Failure, Value, Window};

const HEAD_BYTES: usize = 8;
const COLUMN_BYTES: usize = 16;
const GROUP_BYTES: usize = 16;
const CHUNK_BYTES: usize = 80;

/// Type of a column, with the numbers of `spec/table.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Type {
    Boolean = 1,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float32,
    Float64,
    Decimal128,
    Date32,
    Timestamp,
    Utf8,
    Binary,
    FixedSizeBinary,
}

impl Type {
    const ALL: [Type; 17] = [
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
        Type::Decimal128,
        Type::Date32,
        Type::Timestamp,
        Type::Utf8,
        Type::Binary,
        Type::FixedSizeBinary,
    ];

    fn is_text(self) -> bool {
        matches!(self, Type::Utf8 | Type::Binary)
    }

    /// Reports whether [`Values::number`] returns the values of this type.
    pub fn is_number(self) -> bool {
        (Type::Int8 as u8..=Type::Float64 as u8).contains(&(self as u8))
            || matches!(self, Type::Date32 | Type::Timestamp)
    }
}

/// Description of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Type of the values.
    pub kind: Type,
    /// Number of digits, for Decimal128.
    pub precision: u8,
    /// Number of digits after the decimal point, for Decimal128.
    pub scale: i8,
    /// Unit of a Timestamp: 0 s, 1 ms, 2 us, 3 ns.
    pub unit: u8,
    /// Bytes of a value; 0 for Boolean, Utf8 and Binary.
    pub width: u32,
}

/// Columns of a far table, in those of its row groups that this call was given.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    window: Window<'a>,
    table: &'a [u8],
    column_count: usize,
    group_count: usize,
}

impl<'a> Columns<'a> {
    /// Reads the header of a table of columns; `None` if its length does not match its counts.
    pub(crate) fn new(window: Window<'a>, table: &'a [u8]) -> Option<Self> {
        let [column_count, group_count] = [read::<u32>(table, 0)? as usize, read::<u32>(table, 4)? as usize];
        let group_bytes = column_count.checked_mul(CHUNK_BYTES)?.checked_add(GROUP_BYTES)?;
        let bytes =
            group_count.checked_mul(group_bytes)?.checked_add(HEAD_BYTES + column_count * COLUMN_BYTES)?;
        (bytes == table.len()).then_some(Columns { window, table, column_count, group_count })
    }

    /// Returns the number of columns.
    pub fn len(&self) -> usize {
        self.column_count
    }

    /// Reports whether the far table has no columns.
    pub fn is_empty(&self) -> bool {
        self.column_count == 0
    }

    /// Returns the description of a column; `None` if there is no column of this number, or if this crate does not
    /// know its type.
    pub fn column(&self, index: usize) -> Option<Column> {
        let column = (index < self.column_count).then(|| &self.table[HEAD_BYTES + index * COLUMN_BYTES..])?;
        let kind = *Type::ALL.get(usize::from(column[0]).checked_sub(1)?)?;
        Some(Column {
            kind,
            precision: column[1],
            scale: column[2] as i8,
            unit: column[3],
            width: read(column, 4)?,
        })
    }

    /// Returns the row groups, in order.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = Group<'a>> + use<'a> {
        let columns = *self;
        let bytes = GROUP_BYTES + columns.column_count * CHUNK_BYTES;
        let first = HEAD_BYTES + columns.column_count * COLUMN_BYTES;
        (0..columns.group_count)
            .map(move |index| Group { columns, group: &columns.table[first + index * bytes..][..bytes] })
    }
}

/// Row group of a far table.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    columns: Columns<'a>,
    group: &'a [u8],
}

impl<'a> Group<'a> {
    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        read(self.group, 0).unwrap_or_default()
    }

    /// Returns the number, within the table, of the group's first row.
    pub fn first_row(&self) -> u64 {
        read(self.group, 8).unwrap_or_default()
    }

    /// Returns the values of a column. Fails with [`Failure::NO_COLUMN`] if there is no such column, and with
    /// [`Failure::BAD_DATA`] if its buffers are too short for the rows or outside the window.
    pub fn values(&self, index: usize) -> Result<Values<'a>, Failure> {
        let column = self.columns.column(index).ok_or(Failure::NO_COLUMN)?;
        let chunk = &self.group[GROUP_BYTES + index * CHUNK_BYTES..][..CHUNK_BYTES];
        let word = |at| read::<u64>(chunk, at).unwrap_or_default();
        let buffer = |index: usize| self.columns.window.bytes(word(16 + 16 * index), word(24 + 16 * index));
        let rows = usize::try_from(self.rows()).map_err(|_| Failure::BAD_DATA)?;
        let validity = if word(8) > 0 { Some(buffer(0)?) } else { None };
        let bit_bytes = rows.div_ceil(8);
        let (data, holds) = match (chunk[0], column.kind) {
            (0, kind) if kind.is_text() => {
                let (offsets, bytes) = (buffer(1)?, buffer(2)?);
                (Data::Text { keys: None, offsets, bytes }, offsets.len() / 4 > rows)
            }
            (1, kind) if kind.is_text() => {
                let (keys, offsets, bytes) = (buffer(1)?, buffer(2)?, buffer(3)?);
                (Data::Text { keys: Some(keys), offsets, bytes }, keys.len() / 2 >= rows)
            }
            (0, Type::Boolean) => (Data::Bits(buffer(1)?), buffer(1)?.len() >= bit_bytes),
            (0, kind) if !kind.is_text() => {
                let (bytes, width) = (buffer(1)?, column.width as usize);
                let holds = width > 0 && bytes.len() / width >= rows;
                (Data::Fixed { bytes, first: 0, stride: width, width }, holds)
            }
            (2, kind) if !kind.is_text() && kind != Type::Boolean => {
                let (bytes, width) = (buffer(1)?, column.width as usize);
                let [first, stride] =
                    [word(48), word(56)].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
                let inside = first.checked_add(width).is_some_and(|end| end <= stride);
                let holds = width > 0 && inside && bytes.len() / stride >= rows;
                (Data::Fixed { bytes, first, stride, width }, holds)
            }
            _ => return Err(Failure::BAD_DATA),
        };
        if !holds || validity.is_some_and(|bits| bits.len() < bit_bytes) {
            return Err(Failure::BAD_DATA);
        }
        Ok(Values { kind: column.kind, rows, validity, data })
    }
}

#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    Fixed { bytes: &'a [u8], first: usize, stride: usize, width: usize },
    Bits(&'a [u8]),
    Text { keys: Option<&'a [u8]>, offsets: &'a [u8], bytes: &'a [u8] },
}

/// Values of one column in one row group. Row numbers count from the first row of the group. Methods return `None`
/// for a row that is null or does not exist, and for a column of another type.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    kind: Type,
    rows: usize,
    validity: Option<&'a [u8]>,
    data: Data<'a>,
}

impl<'a> Values<'a> {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Reports whether a row exists and is not null.
    pub fn is_valid(&self, row: usize) -> bool {
        row < self.rows && self.validity.is_none_or(|bits| bit(bits, row))
    }

    /// Returns the bytes of a value of fixed width.
    pub fn bytes(&self, row: usize) -> Option<&'a [u8]> {
        let Data::Fixed { bytes, first, stride, width } = self.data else { return None };
        self.is_valid(row).then(|| &bytes[row * stride + first..][..width])
    }

    /// Returns all values without copying them; `None` if the column has nulls, or if its values are not adjacent, as
    /// wide as `T` and aligned for it.
    pub fn slice_of<T: Value>(&self) -> Option<&'a [T]> {
        let Data::Fixed { bytes, first: 0, stride, .. } = self.data else { return None };
        if self.validity.is_some() || stride != size_of::<T>() {
            return None;
        }
        crate::value::slice_of(&bytes[..self.rows * stride])
    }

    /// Returns a value of a Boolean column.
    pub fn boolean(&self, row: usize) -> Option<bool> {
        let Data::Bits(bits) = self.data else { return None };
        self.is_valid(row).then(|| bit(bits, row))
    }

    /// Returns a value of an integer, Date32 or Timestamp column. A UInt64 value above `i64::MAX` comes out negative,
    /// with the same bits.
    pub fn integer(&self, row: usize) -> Option<i64> {
        let value = self.bytes(row)?;
        Some(match self.kind {
            Type::Int8 => read::<i8>(value, 0)?.into(),
            Type::Int16 => read::<i16>(value, 0)?.into(),
            Type::Int32 | Type::Date32 => read::<i32>(value, 0)?.into(),
            Type::UInt8 => read::<u8>(value, 0)?.into(),
            Type::UInt16 => read::<u16>(value, 0)?.into(),
            Type::UInt32 => read::<u32>(value, 0)?.into(),
            Type::Int64 | Type::UInt64 | Type::Timestamp => read(value, 0)?,
            _ => return None,
        })
    }

    /// Returns a value of a Float32 or Float64 column, or of any type that [`Values::integer`] reads.
    pub fn number(&self, row: usize) -> Option<f64> {
        match self.kind {
            Type::Float32 => read::<f32>(self.bytes(row)?, 0).map(f64::from),
            Type::Float64 => read(self.bytes(row)?, 0),
            Type::UInt64 => self.integer(row).map(|value| value as u64 as f64),
            _ => self.integer(row).map(|value| value as f64),
        }
    }

    /// Returns the bytes of a Utf8 or Binary value. Fails with [`Failure::BAD_DATA`] if the column's keys or offsets
    /// are out of range.
    pub fn text(&self, row: usize) -> Result<Option<&'a [u8]>, Failure> {
        let Data::Text { keys, offsets, bytes } = self.data else { return Ok(None) };
        if !self.is_valid(row) {
            return Ok(None);
        }
        let found = (|| {
            let index = keys.map_or(Some(row), |keys| read::<u16>(keys, row * 2).map(usize::from))?;
            let [from, to] = [read::<u32>(offsets, index * 4)?, read::<u32>(offsets, index * 4 + 4)?];
            bytes.get(from as usize..to as usize)
        })();
        found.map(Some).ok_or(Failure::BAD_DATA)
    }
}

fn bit(bits: &[u8], at: usize) -> bool {
    bits[at / 8] >> (at % 8) & 1 == 1
}
