//! Columns that change: which column of a table is which column of its data files.
//!
//! The idea: a column has an id for its whole life, whatever its name, its type and its place are. A data file keeps
//! the columns that it was written with, and the manifest keeps the ids of these. A reader finds a column of the table
//! in a file by its id. A column that the file does not have was added later, and is NULL in all of its rows. A column
//! whose type was narrower is widened when it is read.
//!
//! This module is pure: no I/O.

use crate::COLUMNS_MAX;
use crate::column_type::{RowLayout, check_count, put_type, take_type};
use crate::footer::{ColumnChunk, Encoding, RowGroup};
use crate::statistics::Statistics;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef, TimeUnit};
use farpool_files::{Error, ErrorKind};
use farpool_operators::Value;
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most lists of columns that the data files of a table have.
pub const COLUMN_LISTS_MAX: usize = 1_024;
/// Fewest bytes of an encoded list: its length, and one id.
const LIST_BYTES_MIN: usize = 2 + 4;
/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// Ids of the columns of a table, and of the columns that its data files were written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldIds {
    /// Id of the next column that is added. An id is never used again.
    pub next: u32,
    /// Lists of ids, each in the order of the columns of the files that were written with it. A data file names its
    /// list by its number.
    pub lists: Vec<Vec<u32>>,
    /// Number of the list that has the columns of the table.
    pub own: u16,
}

impl FieldIds {
    /// Returns the ids of a table whose columns have not changed yet.
    pub fn of_new_table(columns: usize) -> FieldIds {
        let next = u32::try_from(columns).unwrap_or(u32::MAX);
        FieldIds { next, lists: vec![(0..next).collect()], own: 0 }
    }

    /// Returns the id of each column of the table, in their order.
    pub fn of_columns(&self) -> &[u32] {
        self.lists.get(usize::from(self.own)).map_or(&[], Vec::as_slice)
    }

    /// Returns the ids of a table that has these columns from now on, in a list that it has already or in a new one.
    /// `used` is that of [`Self::with_new_list`].
    ///
    /// Errors: those of [`Self::with_new_list`].
    pub(crate) fn with_columns(
        &self,
        ids: Vec<u32>,
        used: impl FnOnce() -> Result<BTreeSet<u16>, Error>,
    ) -> Result<FieldIds, Error> {
        if self.of_columns() == ids {
            return Ok(self.clone());
        }
        // A list that has the ids of one before it was made because a type was widened. Files of earlier lists may have
        // the narrower one.
        let was_widened = |since: usize| {
            (since + 1..self.lists.len()).any(|later| self.lists[..later].contains(&self.lists[later]))
        };
        match self.lists.iter().rposition(|list| *list == ids).filter(|known| !was_widened(*known)) {
            Some(known) => Ok(FieldIds { own: known as u16, ..self.clone() }),
            None => self.with_new_list(ids, used),
        }
    }

    /// Returns the ids of a table that has these columns from now on, in a list of their own. `used` returns the
    /// numbers of the lists that data files name, and is called only if there is no room for another list.
    ///
    /// Errors: those of `used`; all lists are used.
    pub(crate) fn with_new_list(
        &self,
        ids: Vec<u32>,
        used: impl FnOnce() -> Result<BTreeSet<u16>, Error>,
    ) -> Result<FieldIds, Error> {
        let mut lists = self.lists.clone();
        let own = match lists.len() < COLUMN_LISTS_MAX {
            true => {
                lists.push(ids);
                lists.len() - 1
            }
            false => {
                let used = used()?;
                let free = (0u16..).zip(&mut lists).find(|(number, _)| !used.contains(number));
                let (number, list) = free.ok_or_else(|| {
                    let message = format!(
                        "the files of the table were written with {COLUMN_LISTS_MAX} different lists of columns, and \
                         more are not permitted: compact the table first"
                    );
                    Error::new(ErrorKind::Invalid, message)
                })?;
                *list = ids;
                number.into()
            }
        };
        Ok(FieldIds { next: self.next, lists, own: own as u16 })
    }

    /// Appends the encoded ids.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.next.put(out);
        self.own.put(out);
        (self.lists.len() as u16).put(out);
        for list in &self.lists {
            (list.len() as u16).put(out);
            list.iter().for_each(|id| id.put(out));
        }
    }

    /// Decodes the ids of a table with so many columns.
    pub(crate) fn take(columns: usize, from: &mut Cursor<'_>) -> Result<FieldIds, WireError> {
        let (next, own) = (u32::take(from)?, u16::take(from)?);
        let count = usize::from(u16::take(from)?);
        if count > COLUMN_LISTS_MAX {
            let (found, max) = (count as u64, COLUMN_LISTS_MAX as u64);
            return Err(WireError::TooMany { what: "lists of columns", found, max });
        }
        check_count("lists of columns", count, LIST_BYTES_MIN, from)?;
        let mut lists = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::from(u16::take(from)?);
            if !(1..=COLUMNS_MAX).contains(&length) {
                return Err(WireError::Value { what: "columns of a list", found: length as u64 });
            }
            check_count("columns of a list", length, 4, from)?;
            let ids = (0..length).map(|_| u32::take(from)).collect::<Result<Vec<_>, _>>()?;
            let mut seen = BTreeSet::new();
            if let Some(wrong) = ids.iter().find(|id| **id >= next || !seen.insert(**id)) {
                return Err(WireError::Value { what: "the id of a column", found: (*wrong).into() });
            }
            lists.push(ids);
        }
        match lists.get(usize::from(own)) {
            Some(list) if list.len() == columns => Ok(FieldIds { next, lists, own }),
            _ => Err(WireError::Value { what: "the list of a table's columns", found: own.into() }),
        }
    }
}

/// Place of a column of the table in a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFile {
    /// It is this column, of the same type.
    Same(usize),
    /// It is this column, of a narrower type.
    Narrower(usize),
    /// It was added after the file was written: all of its rows have NULL.
    Nowhere,
}

/// Columns of a data file, as those of the table.
#[derive(Debug)]
pub(crate) struct FileColumns {
    /// Columns of the file, as they were when it was written.
    schema: SchemaRef,
    /// Positions of these in a row. `None` if they cannot lie in rows.
    rows: Option<RowLayout>,
    /// Place of each column of the table.
    of_table: Vec<InFile>,
    /// True if the file has the columns of the table, in their order, and no others.
    is_same: bool,
}

impl FileColumns {
    /// Returns those of a file that has the columns of the table.
    pub(crate) fn same(schema: &SchemaRef) -> FileColumns {
        let of_table = (0..schema.fields().len()).map(InFile::Same).collect();
        FileColumns { schema: Arc::clone(schema), rows: RowLayout::of(schema), of_table, is_same: true }
    }

    /// Finds the columns of a table in a file that was written with a list of ids. `None` if it cannot be a file of the
    /// table: the list has not the columns of the file, or a column is of another type or has nulls.
    pub(crate) fn find(table: &Schema, ids: &FieldIds, list: u16, file: &SchemaRef) -> Option<FileColumns> {
        let in_file = ids.lists.get(usize::from(list))?;
        if in_file.len() != file.fields().len() {
            return None;
        }
        let places: BTreeMap<u32, usize> = in_file.iter().copied().zip(0..).collect();
        let find = |(id, field): (&u32, &FieldRef)| {
            let Some(place) = places.get(id) else {
                return field.is_nullable().then_some(InFile::Nowhere);
            };
            let written = file.field(*place);
            let (from, to) = (written.data_type(), field.data_type());
            match () {
                () if written.is_nullable() && !field.is_nullable() => None,
                () if from == to => Some(InFile::Same(*place)),
                () if is_widening(from, to) => Some(InFile::Narrower(*place)),
                () => None,
            }
        };
        let of_table = ids.of_columns().iter().zip(table.fields()).map(find).collect::<Option<Vec<_>>>()?;
        let is_same = of_table.len() == in_file.len()
            && of_table.iter().enumerate().all(|(place, found)| *found == InFile::Same(place));
        Some(FileColumns { schema: Arc::clone(file), rows: RowLayout::of(file), of_table, is_same })
    }

    /// Returns the place of a column of the table.
    pub(crate) fn place(&self, column: usize) -> InFile {
        self.of_table.get(column).copied().unwrap_or(InFile::Nowhere)
    }

    /// Returns the column of the file that has a column of the table without a conversion.
    pub(crate) fn same_place(&self, column: usize) -> Option<usize> {
        match self.place(column) {
            InFile::Same(place) => Some(place),
            InFile::Narrower(_) | InFile::Nowhere => None,
        }
    }

    /// Returns the type of a column of the file.
    pub(crate) fn type_in_file(&self, place: usize) -> &DataType {
        self.schema.field(place).data_type()
    }

    /// Returns the positions of the columns of the file in its rows.
    pub(crate) fn rows(&self) -> Option<&RowLayout> {
        self.rows.as_ref()
    }

    /// Returns a row group of the file with the columns of the table. The bounds of those that are widened are widened
    /// too. Those that the file does not have take no bytes, but in rows, where all columns share one buffer.
    pub(crate) fn in_table(&self, group: RowGroup, table: &Schema) -> RowGroup {
        if self.is_same {
            return group;
        }
        let rows_buffer = group.rows_buffer();
        let chunk = |(found, field): (&InFile, &FieldRef)| match found {
            InFile::Same(place) => group.columns[*place].clone(),
            InFile::Narrower(place) => {
                let chunk = group.columns[*place].clone();
                let (from, to) = (self.type_in_file(*place), field.data_type());
                let statistics = chunk.statistics.map(|known| widened_bounds(known, from, to));
                ColumnChunk { statistics, ..chunk }
            }
            InFile::Nowhere => ColumnChunk {
                encoding: if rows_buffer.is_some() { Encoding::Rows } else { Encoding::Plain },
                null_count: group.rows,
                buffers: rows_buffer.into_iter().collect(),
                statistics: None,
            },
        };
        let columns = self.of_table.iter().zip(table.fields()).map(chunk).collect();
        RowGroup { columns, ..group }
    }
}

/// Reports whether each value of a type is exactly one of another type, which columns can be widened to.
fn is_widening(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Float32, DataType::Float64) => true,
        (DataType::Decimal128(from, scale), DataType::Decimal128(to, same)) => scale == same && from < to,
        // A day is beyond the range of finer units in some years that dates have.
        (DataType::Date32, DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, None)) => true,
        _ => {
            let is_signed = from.is_signed_integer() && to.is_signed_integer();
            let is_unsigned = from.is_unsigned_integer() && to.is_unsigned_integer();
            (is_signed || is_unsigned) && from.primitive_width() < to.primitive_width()
        }
    }
}

/// Checks that a column can be widened to another type. Returns an error that says why it cannot.
pub(crate) fn check_widening(from: &DataType, to: &DataType) -> Result<(), String> {
    match (from, to) {
        _ if is_widening(from, to) => Ok(()),
        _ if from == to => Err(format!("it is of type {to} already")),
        (DataType::Date32, DataType::Timestamp(..)) => Err(format!(
            "type Date32 cannot be widened to {to}, which does not have the midnight of each date; Timestamp(s) and \
             Timestamp(ms), without a time zone, have"
        )),
        (DataType::Decimal128(..), DataType::Decimal128(..)) => Err(format!(
            "type {from} cannot be widened to {to}; the precision may grow, up to 38, and the scale stays as it is"
        )),
        _ => Err(format!(
            "type {from} cannot be widened to {to}; permitted are integers and floats with more bits (both signed or \
             both unsigned), decimals of a higher precision, and dates to Timestamp(s) or Timestamp(ms)"
        )),
    }
}

/// Returns the number of units of time of a day.
fn per_day(unit: TimeUnit) -> i64 {
    DAY_S
        * match unit {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        }
}

/// Returns the bounds of a column that is widened.
fn widened_bounds(known: Statistics, from: &DataType, to: &DataType) -> Statistics {
    let value = |value: Value| match (from, to, value) {
        (DataType::Float32, DataType::Float64, Value::Float(bits)) => {
            Value::Float(f64::from(f32::from_bits(bits as u32)).to_bits())
        }
        (DataType::Date32, DataType::Timestamp(unit, _), Value::Integer(days)) => {
            Value::Integer(days.saturating_mul(per_day(*unit).into()))
        }
        // Whole numbers and decimals of the same scale are kept as they are in the widest type.
        (_, _, same) => same,
    };
    Statistics { min: value(known.min), max: value(known.max), ..known }
}

/// Widens a column.
///
/// Errors: it cannot be widened to this type.
pub(crate) fn widened(array: ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    use DataType::*;
    Ok(match (array.data_type(), to) {
        (from, to) if from == to => array,
        (Int8, Int16) => converted::<Int8Type, Int16Type>(&array),
        (Int8, Int32) => converted::<Int8Type, Int32Type>(&array),
        (Int8, Int64) => converted::<Int8Type, Int64Type>(&array),
        (Int16, Int32) => converted::<Int16Type, Int32Type>(&array),
        (Int16, Int64) => converted::<Int16Type, Int64Type>(&array),
        (Int32, Int64) => converted::<Int32Type, Int64Type>(&array),
        (UInt8, UInt16) => converted::<UInt8Type, UInt16Type>(&array),
        (UInt8, UInt32) => converted::<UInt8Type, UInt32Type>(&array),
        (UInt8, UInt64) => converted::<UInt8Type, UInt64Type>(&array),
        (UInt16, UInt32) => converted::<UInt16Type, UInt32Type>(&array),
        (UInt16, UInt64) => converted::<UInt16Type, UInt64Type>(&array),
        (UInt32, UInt64) => converted::<UInt32Type, UInt64Type>(&array),
        (Float32, Float64) => converted::<Float32Type, Float64Type>(&array),
        (Date32, Timestamp(TimeUnit::Second, None)) => {
            let midnight = |day: i32| i64::from(day) * per_day(TimeUnit::Second);
            Arc::new(array.as_primitive::<Date32Type>().unary::<_, TimestampSecondType>(midnight))
        }
        (Date32, Timestamp(TimeUnit::Millisecond, None)) => {
            let midnight = |day: i32| i64::from(day) * per_day(TimeUnit::Millisecond);
            Arc::new(array.as_primitive::<Date32Type>().unary::<_, TimestampMillisecondType>(midnight))
        }
        (Decimal128(_, has), Decimal128(precision, scale)) if has == scale => {
            let decimals = array.as_primitive::<Decimal128Type>().clone();
            let widened = decimals.with_precision_and_scale(*precision, *scale);
            Arc::new(widened.map_err(|error| error.to_string())?)
        }
        (from, to) => return Err(format!("type {from} cannot be read as {to}")),
    })
}

fn converted<F: ArrowPrimitiveType, T: ArrowPrimitiveType>(array: &ArrayRef) -> ArrayRef
where
    T::Native: From<F::Native>,
{
    Arc::new(array.as_primitive::<F>().unary::<_, T>(T::Native::from))
}

/// Columns whose bounds a manifest keeps for each data file: their ids and types.
///
/// A page has those of the table at the time when it was written, because it is not written anew when columns change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundedColumns(Vec<(u32, DataType)>);

impl BoundedColumns {
    /// Returns those of some columns of a table, given by their numbers.
    pub(crate) fn of(schema: &Schema, ids: &FieldIds, columns: &[u16]) -> BoundedColumns {
        let column = |column: &u16| {
            let place = usize::from(*column);
            Some((*ids.of_columns().get(place)?, schema.fields().get(place)?.data_type().clone()))
        };
        BoundedColumns(columns.iter().filter_map(column).collect())
    }

    /// Appends the encoded columns.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u8).put(out);
        for (id, of) in &self.0 {
            id.put(out);
            put_type(of, out);
        }
    }

    /// Decodes columns, of which there are at most `max`.
    pub(crate) fn take(max: usize, from: &mut Cursor<'_>) -> Result<BoundedColumns, WireError> {
        let count = u8::take(from)?;
        if usize::from(count) > max {
            let (found, max) = (count.into(), max as u64);
            return Err(WireError::TooMany { what: "columns with bounds", found, max });
        }
        let column = |_| Ok((u32::take(from)?, take_type(from)?));
        Ok(BoundedColumns((0..count).map(column).collect::<Result<_, WireError>>()?))
    }

    /// Appends encoded bounds, one for each column.
    pub(crate) fn put_bounds(&self, bounds: &[Option<Statistics>], out: &mut Vec<u8>) {
        for (place, (_, of)) in self.0.iter().enumerate() {
            Statistics::put(bounds.get(place).and_then(Option::as_ref), of, out);
        }
    }

    /// Decodes bounds, one for each column.
    pub(crate) fn take_bounds(&self, from: &mut Cursor<'_>) -> Result<Vec<Option<Statistics>>, WireError> {
        self.0.iter().map(|(_, of)| Statistics::take(of, from)).collect()
    }

    /// Returns the bounds of these columns, from those of the columns that were bounded before. What was not bounded,
    /// or was of a type that cannot be widened to this one, has no bounds.
    pub(crate) fn converted(
        &self,
        before: &BoundedColumns,
        bounds: &[Option<Statistics>],
    ) -> Vec<Option<Statistics>> {
        let convert = |(id, to): &(u32, DataType)| {
            let (place, (_, from)) = before.0.iter().enumerate().find(|(_, (of, _))| of == id)?;
            let known = bounds.get(place)?.clone()?;
            (from == to || is_widening(from, to)).then(|| widened_bounds(known, from, to))
        };
        self.0.iter().map(convert).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::footer::BufferAt;
    use arrow_array::*;
    use arrow_schema::Field as ArrowField;
    use proptest::prelude::*;

    fn schema(columns: &[(&str, DataType, bool)]) -> SchemaRef {
        let field = |(name, of, is_nullable): &(&str, DataType, bool)| {
            ArrowField::new(*name, of.clone(), *is_nullable)
        };
        Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
    }

    fn bounds(min: Value, max: Value) -> Statistics {
        Statistics { min, max, is_min_truncated: false, is_max_truncated: false, has_nan: false }
    }

    /// Columns of each type that can be widened, with the least and greatest values of the type.
    fn narrow() -> Vec<ArrayRef> {
        let decimals = Decimal128Array::from(vec![Some(-999), None, Some(999)]);
        vec![
            Arc::new(Int8Array::from(vec![Some(i8::MIN), None, Some(i8::MAX)])),
            Arc::new(Int16Array::from(vec![Some(i16::MIN), None, Some(i16::MAX)])),
            Arc::new(Int32Array::from(vec![Some(i32::MIN), None, Some(i32::MAX)])),
            Arc::new(UInt8Array::from(vec![Some(0), None, Some(u8::MAX)])),
            Arc::new(UInt16Array::from(vec![Some(0), None, Some(u16::MAX)])),
            Arc::new(UInt32Array::from(vec![Some(0), None, Some(u32::MAX)])),
            Arc::new(Float32Array::from(vec![Some(f32::MIN), None, Some(f32::MAX)])),
            Arc::new(Date32Array::from(vec![Some(i32::MIN), None, Some(i32::MAX)])),
            Arc::new(decimals.with_precision_and_scale(3, 1).expect("fits")),
        ]
    }

    fn types() -> Vec<DataType> {
        let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
        let mut types = vec![
            DataType::Boolean,
            DataType::Int8,
            DataType::Int16,
            DataType::Int32,
            DataType::Int64,
            DataType::UInt8,
            DataType::UInt16,
            DataType::UInt32,
            DataType::UInt64,
            DataType::Float32,
            DataType::Float64,
            DataType::Date32,
            DataType::Utf8,
            DataType::Binary,
            DataType::FixedSizeBinary(4),
            DataType::Decimal128(3, 1),
            DataType::Decimal128(38, 1),
            DataType::Decimal128(38, 2),
            DataType::Timestamp(TimeUnit::Second, Some("UTC".into())),
        ];
        types.extend(units.map(|unit| DataType::Timestamp(unit, None)));
        types
    }

    #[test]
    fn what_can_be_widened_is_read_with_the_bounds_of_its_values_and_nothing_else_is() {
        let mut widenings = 0;
        for array in narrow() {
            let from = array.data_type().clone();
            let known = Statistics::of_fixed(&from, &[Arc::clone(&array)]).expect("values");
            for to in types() {
                let read = widened(Arc::clone(&array), &to);
                let is_permitted = check_widening(&from, &to).is_ok();
                if from == to {
                    assert!(!is_permitted && read.is_ok_and(|read| read.as_ref() == array.as_ref()));
                    continue;
                }
                assert_eq!(is_permitted, read.is_ok(), "{from} to {to}");
                if is_permitted {
                    let read = read.expect("a wider type");
                    assert_eq!((read.data_type(), read.null_count(), read.is_null(1)), (&to, 1, true));
                    let of_read = Statistics::of_fixed(&to, &[read]).expect("values");
                    assert_eq!(widened_bounds(known.clone(), &from, &to), of_read, "{from} to {to}");
                    widenings += 1;
                }
            }
        }
        assert_eq!(widenings, (3 + 2 + 1) * 2 + 1 + 2 + 1);
    }

    #[test]
    fn column_is_found_in_a_file_by_its_id_and_is_null_where_the_file_has_none() {
        let file = schema(&[
            ("a", DataType::Int8, false),
            ("b", DataType::Utf8, true),
            ("c", DataType::Date32, true),
        ]);
        let table = schema(&[
            ("new", DataType::Float64, true),
            ("was c", DataType::Date32, true),
            ("a", DataType::Int32, true),
        ]);
        let ids = FieldIds { next: 4, lists: vec![vec![0, 1, 2], vec![3, 2, 0]], own: 1 };
        let found = FileColumns::find(&table, &ids, 0, &file).expect("a file of the table");
        assert_eq!(found.of_table, [InFile::Nowhere, InFile::Same(2), InFile::Narrower(0)]);
        assert_eq!((0..3).map(|column| found.same_place(column)).collect::<Vec<_>>(), [None, Some(2), None]);
        assert!(FileColumns::find(&table, &ids, 1, &table).is_some_and(|same| same.is_same));
        let own = FileColumns::find(&table, &ids, 1, &file);
        assert!(own.is_none(), "its columns are of other types");
        assert!(FileColumns::find(&table, &ids, 2, &file).is_none(), "there is no such list");
        let less = schema(&[("a", DataType::Int8, false), ("b", DataType::Utf8, true)]);
        assert!(FileColumns::find(&table, &ids, 0, &less).is_none(), "the list has more columns");
        let strict = schema(&[
            ("new", DataType::Float64, false),
            ("was c", DataType::Date32, true),
            ("a", DataType::Int32, true),
        ]);
        assert!(FileColumns::find(&strict, &ids, 0, &file).is_none(), "a column without nulls is missing");
        let chunk = |number: u32, statistics| ColumnChunk {
            encoding: Encoding::Plain,
            null_count: 0,
            buffers: vec![BufferAt { offset: 64 * number, bytes: 5, crc: number }],
            statistics,
        };
        let of_a = bounds(Value::Integer(-3), Value::Integer(4));
        let columns = vec![chunk(1, Some(of_a.clone())), chunk(2, None), chunk(3, None)];
        let group = RowGroup { offset: 65_536, bytes: 300, rows: 5, columns };
        let mapped = found.in_table(group.clone(), &table);
        assert_eq!((mapped.offset, mapped.bytes, mapped.rows), (65_536, 300, 5));
        let missing =
            ColumnChunk { encoding: Encoding::Plain, null_count: 5, buffers: Vec::new(), statistics: None };
        assert_eq!(mapped.columns, [missing, chunk(3, None), chunk(1, Some(of_a))]);
        assert_eq!(mapped.buffers(&[0, 2]).count(), 1, "what is missing takes no bytes");
    }

    #[test]
    fn rows_that_lie_in_rows_are_one_buffer_whichever_columns_the_table_has() {
        let file = schema(&[("a", DataType::Int8, false), ("b", DataType::Int16, false)]);
        let table = schema(&[("new", DataType::Utf8, true), ("b", DataType::Int64, false)]);
        let ids = FieldIds { next: 3, lists: vec![vec![0, 1], vec![2, 1]], own: 1 };
        let found = FileColumns::find(&table, &ids, 0, &file).expect("a file of the table");
        let all = BufferAt { offset: 0, bytes: 40, crc: 7 };
        let chunk =
            ColumnChunk { encoding: Encoding::Rows, null_count: 0, buffers: vec![all], statistics: None };
        let group = RowGroup { offset: 0, bytes: 40, rows: 5, columns: vec![chunk.clone(), chunk] };
        let mapped = found.in_table(group, &table);
        assert_eq!(mapped.rows_buffer(), Some(all));
        for columns in [&[0][..], &[1], &[1, 0]] {
            assert_eq!(mapped.buffers(columns).collect::<Vec<_>>(), [&all]);
        }
        assert_eq!(mapped.columns.iter().map(|chunk| chunk.null_count).collect::<Vec<_>>(), [5, 0]);
    }

    #[test]
    fn bounds_of_a_page_become_those_of_the_columns_that_the_table_has_now() {
        let (id, name, day) = ((4, DataType::Int8), (1, DataType::Utf8), (9, DataType::Date32));
        let written = BoundedColumns(vec![id, name, day]);
        let known = vec![
            Some(bounds(Value::Integer(-5), Value::Integer(7))),
            Some(bounds(Value::Bytes(b"a".to_vec()), Value::Bytes(b"z".to_vec()))),
            Some(bounds(Value::Integer(-1), Value::Integer(2))),
        ];
        let mut bytes = Vec::new();
        written.put(&mut bytes);
        written.put_bounds(&known, &mut bytes);
        let mut from = Cursor::new(&bytes);
        let read = BoundedColumns::take(8, &mut from).expect("columns");
        assert_eq!((&read, read.take_bounds(&mut from).expect("bounds")), (&written, known.clone()));
        from.finish().expect("nothing is left over");
        assert!(BoundedColumns::take(2, &mut Cursor::new(&bytes)).is_err(), "more than are permitted");
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        let now = BoundedColumns(vec![
            (9, seconds),
            (4, DataType::Int64),
            (7, DataType::Int8),
            (1, DataType::Binary),
        ]);
        let expected =
            [Some(bounds(Value::Integer(-86_400), Value::Integer(172_800))), known[0].clone(), None, None];
        assert_eq!(now.converted(&written, &known), expected);
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_ids_are_an_error_and_ids_are_read_as_they_were_written(
            lists in proptest::collection::vec(proptest::collection::btree_set(0u32..50, 1..20), 1..10),
            own in any::<prop::sample::Index>(),
            flipped in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let lists: Vec<Vec<u32>> = lists.into_iter().map(|list| list.into_iter().rev().collect()).collect();
            let own = own.index(lists.len());
            let columns = lists[own].len();
            let ids = FieldIds { next: 50, lists, own: own as u16 };
            let mut bytes = Vec::new();
            ids.put(&mut bytes);
            let mut from = Cursor::new(&bytes);
            prop_assert_eq!(FieldIds::take(columns, &mut from).expect("ids"), ids.clone());
            from.finish().expect("nothing is left over");
            prop_assert!(FieldIds::take(columns + 1, &mut Cursor::new(&bytes)).is_err());
            prop_assert!(FieldIds::take(columns, &mut Cursor::new(&bytes[..bytes.len() - 1])).is_err());
            let flipped = flipped.index(bytes.len());
            bytes[flipped] ^= 1 << bit;
            if let Ok(other) = FieldIds::take(columns, &mut Cursor::new(&bytes)) {
                prop_assert_eq!(other.of_columns().len(), columns);
                let is_known = |list: &Vec<u32>| {
                    let distinct: BTreeSet<&u32> = list.iter().collect();
                    distinct.len() == list.len() && list.iter().all(|id| *id < other.next)
                };
                prop_assert!(other.lists.iter().all(is_known));
            }
        }
    }

    #[test]
    fn list_that_no_file_names_makes_room_for_another() {
        let ids = FieldIds::of_new_table(1);
        let full = (1..COLUMN_LISTS_MAX as u32).fold(ids, |ids, next| {
            ids.with_columns(vec![next], || panic!("there is room")).expect("there is room")
        });
        assert_eq!(
            (full.lists.len(), full.of_columns()),
            (COLUMN_LISTS_MAX, &[COLUMN_LISTS_MAX as u32 - 1][..])
        );
        let known = full.with_columns(vec![7], || panic!("it is known")).expect("it is known");
        assert_eq!((known.own, known.lists.len()), (7, COLUMN_LISTS_MAX));
        let but_two = |number: &u16| *number != 3 && *number != 5;
        let other = full.with_columns(vec![1, 0], || Ok((0..=u16::MAX).filter(but_two).collect()));
        let other = other.expect("one is free");
        assert_eq!((other.own, other.of_columns()), (3, &[1, 0][..]));
        let error = full.with_columns(vec![1, 0], || Ok((0..=u16::MAX).collect())).expect_err("none is free");
        assert!(error.to_string().contains("1024 different lists"), "{error}");
    }
}
