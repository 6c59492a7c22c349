//! Encoding of row groups: record batches of any size become the bytes of row groups.

use crate::column_type::{RowLayout, stored_schema};
use crate::footer::{BufferAt, ColumnChunk, Encoding, RowGroup, bitmap_bytes};
use crate::statistics::Statistics;
use crate::{BUFFER_ALIGN, GROUP_ALIGN, GROUP_ROWS_MAX};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::{DataType, FieldRef, SchemaRef};
use farpool_encryption::TAG_BYTES;
use farpool_files::{Error, ErrorKind};
use farpool_operators::columns::value_bytes as fixed_bytes;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
use std::collections::HashMap;
use std::sync::Arc;

/// Layout of the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableLayout {
    /// Each column is stored by itself, as in Arrow. A query reads only the columns that it needs.
    #[default]
    Columns,
    /// Rows of fixed width follow each other, as in row stores and in the paper on Farview. Text and nulls are not
    /// possible. A query at the node reads the cache lines of its columns; a client that fetches rows fetches all
    /// columns.
    Rows,
}

/// An encoded row group, ready to be written.
#[derive(Debug)]
pub struct EncodedGroup {
    /// Description of the group for the footer, with offset 0.
    pub group: RowGroup,
    /// Bytes of the group, with zeros up to a multiple of [`GROUP_ALIGN`].
    pub bytes: Vec<u8>,
}

/// Encoder that packs batches into row groups. Call [`RowGroupEncoder::push`] for each batch, then
/// [`RowGroupEncoder::finish`]; both hand over row groups as they become full.
#[derive(Debug)]
pub struct RowGroupEncoder {
    /// Columns of the batches, in the types in which they are given.
    given: SchemaRef,
    /// Columns in the types that the table stores.
    schema: SchemaRef,
    /// Positions of columns in the row layout; `None` in the column layout.
    places: Option<RowLayout>,
    /// Most bytes of a row group.
    bytes_max: usize,
    /// Bytes left free behind each buffer for its tag; 0 if the table is not encrypted.
    tag_bytes: usize,
    /// Batches that are not in a row group yet, of `rows` rows together.
    batches: Vec<RecordBatch>,
    rows: usize,
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl RowGroupEncoder {
    /// Makes a packer for batches of this schema. A row group has at most `bytes_max` bytes, the size of a region.
    pub fn new(schema: SchemaRef, bytes_max: u64) -> Result<RowGroupEncoder, Error> {
        let stored = Arc::new(stored_schema(&schema)?);
        // Offsets of text have 31 bits, so no row group has 2 GiB or more.
        let bytes_max = bytes_max.min(i32::MAX as u64) as usize / GROUP_ALIGN * GROUP_ALIGN;
        let (places, batches) = (None, Vec::new());
        Ok(RowGroupEncoder {
            given: schema,
            schema: stored,
            places,
            bytes_max,
            tag_bytes: 0,
            batches,
            rows: 0,
        })
    }

    /// Switches to the row layout: rows of fixed width that follow each other.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the values of a column have variable width.
    pub fn in_rows(mut self) -> Result<RowGroupEncoder, Error> {
        self.places = RowLayout::of(&self.schema);
        // A scan of the row layout reads all of a row group.
        self.bytes_max = self.bytes_max.min(SCAN_GROUP_BYTES_MAX - GROUP_ALIGN);
        let is_fixed = |of: &DataType| fixed_bytes(of).is_some();
        match self.schema.fields().iter().find(|field| !is_fixed(field.data_type())) {
            None => Ok(self),
            Some(field) => {
                let (name, of) = (field.name(), field.data_type());
                Err(invalid(format!(
                    "column {name:?} is of type {of}; the row layout stores only numbers, dates, times and binary \
                     of fixed width"
                )))
            }
        }
    }

    /// Leaves room behind each buffer for the tag of its encryption. Checksums are 0 then.
    pub fn leaving_tags(self) -> RowGroupEncoder {
        RowGroupEncoder { tag_bytes: TAG_BYTES, ..self }
    }

    /// Returns the columns in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Adds a batch, and calls `ready` with each row group that is full.
    pub fn push(
        &mut self,
        batch: &RecordBatch,
        mut ready: impl FnMut(EncodedGroup) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check(batch)?;
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = (batch.num_rows() - from).min(GROUP_ROWS_MAX - self.rows);
            self.batches.push(batch.slice(from, rows));
            self.rows += rows;
            from += rows;
            if self.rows == GROUP_ROWS_MAX {
                self.finish(&mut ready)?;
            }
        }
        Ok(())
    }

    /// Calls `ready` with the last row group, if any rows are left.
    pub fn finish(&mut self, mut ready: impl FnMut(EncodedGroup) -> Result<(), Error>) -> Result<(), Error> {
        self.rows = 0;
        let batches = std::mem::take(&mut self.batches);
        if batches.is_empty() { Ok(()) } else { self.encode(batches, &mut ready) }
    }

    fn check(&self, batch: &RecordBatch) -> Result<(), Error> {
        if batch.num_columns() != self.given.fields().len() {
            let (found, expected) = (batch.num_columns(), self.given.fields().len());
            return Err(invalid(format!("a batch has {found} columns, but the table has {expected}")));
        }
        for (field, column) in self.given.fields().iter().zip(batch.columns()) {
            let (name, of) = (field.name(), field.data_type());
            if column.data_type() != of {
                let found = column.data_type();
                return Err(invalid(format!(
                    "column {name:?} is of type {found} in a batch, but of type {of} in the table"
                )));
            }
            let is_nullable = field.is_nullable() && self.places.is_none();
            if !is_nullable && column.logical_null_count() > 0 {
                let why =
                    if field.is_nullable() { "the row layout stores no nulls" } else { "it is not nullable" };
                return Err(invalid(format!("column {name:?} has nulls in a batch, but {why}")));
            }
        }
        Ok(())
    }

    /// Encodes rows as one row group, or as several if one would be larger than a region.
    fn encode(
        &self,
        batches: Vec<RecordBatch>,
        ready: &mut impl FnMut(EncodedGroup) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let columns: Vec<Vec<ArrayRef>> = (0..self.schema.fields().len())
            .map(|index| batches.iter().map(|batch| Arc::clone(batch.column(index))).collect())
            .collect();
        let sizes = self.schema.fields().iter().zip(&columns);
        let bytes: usize = match &self.places {
            Some(places) => rows.saturating_mul(places.row_bytes) + self.tag_bytes,
            None => {
                sizes.map(|(field, arrays)| bytes_of(field.data_type(), arrays, rows, self.tag_bytes)).sum()
            }
        };
        if bytes <= self.bytes_max {
            return ready(self.encode_group(&columns, rows, bytes));
        }
        if rows == 1 {
            return Err(invalid(format!(
                "a row has {bytes} bytes; it must fit into one region, and the smallest region of the pool has room \
                 for {}",
                self.bytes_max
            )));
        }
        let (mut first, mut second, mut left) = (Vec::new(), Vec::new(), rows / 2);
        for batch in batches {
            let taken = batch.num_rows().min(left);
            left -= taken;
            if taken > 0 {
                first.push(batch.slice(0, taken));
            }
            if taken < batch.num_rows() {
                second.push(batch.slice(taken, batch.num_rows() - taken));
            }
        }
        self.encode(first, ready)?;
        self.encode(second, ready)
    }

    fn encode_group(&self, columns: &[Vec<ArrayRef>], rows: usize, bytes: usize) -> EncodedGroup {
        let bytes = Vec::with_capacity(bytes.next_multiple_of(GROUP_ALIGN));
        let mut out = Out { bytes, tag_bytes: self.tag_bytes };
        let fields = self.schema.fields().iter().zip(columns);
        let columns = match &self.places {
            Some(places) => encode_rows(fields, rows, places, &mut out),
            None => fields
                .map(|(field, arrays)| encode_column(field.data_type(), arrays, rows, &mut out))
                .collect(),
        };
        let mut out = out.bytes;
        let group = RowGroup { offset: 0, bytes: out.len() as u32, rows: rows as u32, columns };
        out.resize(out.len().next_multiple_of(GROUP_ALIGN).max(GROUP_ALIGN), 0);
        EncodedGroup { group, bytes: out }
    }
}

/// Returns the bytes of a column without a dictionary, including the alignment of its buffers.
fn bytes_of(of: &DataType, arrays: &[ArrayRef], rows: usize, tag_bytes: usize) -> usize {
    let aligned = |bytes: usize| bytes.saturating_add(tag_bytes).next_multiple_of(BUFFER_ALIGN);
    let validity = if arrays.iter().any(|array| array.logical_null_count() > 0) {
        aligned(bitmap_bytes(rows))
    } else {
        0
    };
    let values = match of {
        DataType::Boolean => aligned(bitmap_bytes(rows)),
        DataType::Utf8 | DataType::Binary => aligned((rows + 1) * 4) + aligned(value_bytes(arrays)),
        of => aligned(rows.saturating_mul(fixed_bytes(of).unwrap_or(0))),
    };
    validity + values
}

/// Returns the total bytes of text or binary values.
fn value_bytes(arrays: &[ArrayRef]) -> usize {
    values(arrays).flatten().map(<[u8]>::len).sum()
}

/// Iterates over text or binary values; NULL is `None`.
fn values(arrays: &[ArrayRef]) -> impl Iterator<Item = Option<&[u8]>> {
    fn of(array: &ArrayRef) -> Box<dyn Iterator<Item = Option<&[u8]>> + '_> {
        match array.data_type() {
            DataType::Utf8 => Box::new(array.as_string::<i32>().iter().map(|value| value.map(str::as_bytes))),
            DataType::LargeUtf8 => {
                Box::new(array.as_string::<i64>().iter().map(|value| value.map(str::as_bytes)))
            }
            DataType::Utf8View => {
                Box::new(array.as_string_view().iter().map(|value| value.map(str::as_bytes)))
            }
            DataType::LargeBinary => Box::new(array.as_binary::<i64>().iter()),
            DataType::BinaryView => Box::new(array.as_binary_view().iter()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let values: Vec<Option<&[u8]>> = of(dictionary.values()).collect();
                if values.is_empty() {
                    return Box::new(std::iter::repeat_n(None, array.len()));
                }
                let keys = dictionary.normalized_keys();
                let value =
                    move |(row, key)| if array.is_null(row) { None } else { values.get(key).copied()? };
                Box::new(keys.into_iter().enumerate().map(value))
            }
            _ => Box::new(array.as_binary::<i32>().iter()),
        }
    }
    arrays.iter().flat_map(of)
}

/// Bytes of a row group while it is encoded.
struct Out {
    bytes: Vec<u8>,
    tag_bytes: usize,
}

fn put_buffer(out: &mut Out, fill: impl FnOnce(&mut Vec<u8>)) -> BufferAt {
    let Out { bytes: out, tag_bytes } = out;
    out.resize(out.len().next_multiple_of(BUFFER_ALIGN), 0);
    let start = out.len();
    fill(out);
    let bytes = &out[start..];
    let crc = if *tag_bytes == 0 { crc32c::crc32c(bytes) } else { 0 };
    let at = BufferAt { offset: start as u32, bytes: bytes.len() as u32, crc };
    out.resize(out.len() + *tag_bytes, 0);
    at
}

fn encode_column(of: &DataType, arrays: &[ArrayRef], rows: usize, out: &mut Out) -> ColumnChunk {
    // Counts logical nulls: a dictionary may have NULL among its values.
    let null_count: usize = arrays.iter().map(|array| array.logical_null_count()).sum();
    let mut buffers = Vec::with_capacity(4);
    if null_count > 0 {
        let mut bits = BooleanBufferBuilder::new(rows);
        for array in arrays {
            match array.logical_nulls() {
                Some(nulls) => bits.append_buffer(nulls.inner()),
                None => bits.append_n(array.len(), true),
            }
        }
        buffers.push(put_buffer(out, |out| out.extend_from_slice(bits.as_slice())));
    }
    let (encoding, statistics) = match of {
        DataType::Utf8 | DataType::Binary => encode_bytes(of, arrays, rows, out, &mut buffers),
        DataType::Boolean => {
            let mut bits = BooleanBufferBuilder::new(rows);
            arrays.iter().for_each(|array| bits.append_buffer(array.as_boolean().values()));
            buffers.push(put_buffer(out, |out| out.extend_from_slice(bits.as_slice())));
            (Encoding::Plain, Statistics::of_fixed(of, arrays))
        }
        of => {
            let width = fixed_bytes(of).unwrap_or(0);
            buffers.push(put_buffer(out, |out| {
                arrays
                    .iter()
                    .for_each(|array| fixed_values(array, width, |values| out.extend_from_slice(values)));
            }));
            (Encoding::Plain, Statistics::of_fixed(of, arrays))
        }
    };
    ColumnChunk { encoding, null_count: null_count as u32, buffers, statistics }
}

/// Calls `take` with the bytes of the values of fixed width in one array of a column.
fn fixed_values(array: &ArrayRef, width: usize, mut take: impl FnMut(&[u8])) {
    let data = array.to_data();
    let bytes = data.buffers().first().map_or(&[][..], |buffer| buffer.as_slice());
    take(&bytes[data.offset() * width..][..data.len() * width]);
}

fn encode_rows<'c>(
    columns: impl Iterator<Item = (&'c FieldRef, &'c Vec<ArrayRef>)> + Clone,
    rows: usize,
    places: &RowLayout,
    out: &mut Out,
) -> Vec<ColumnChunk> {
    let row_bytes = places.row_bytes;
    let buffer = put_buffer(out, |out| {
        let start = out.len();
        out.resize(start + rows * row_bytes, 0);
        for ((field, arrays), place) in columns.clone().zip(&places.starts) {
            let width = fixed_bytes(field.data_type()).unwrap_or(0);
            let mut into =
                out[start..].chunks_exact_mut(row_bytes).map(|row| &mut row[*place..*place + width]);
            for array in arrays {
                fixed_values(array, width, |values| {
                    values
                        .chunks_exact(width)
                        .zip(&mut into)
                        .for_each(|(value, into)| into.copy_from_slice(value));
                });
            }
        }
    });
    let chunk = |(field, arrays): (&FieldRef, &Vec<ArrayRef>)| ColumnChunk {
        encoding: Encoding::Rows,
        null_count: 0,
        buffers: vec![buffer],
        statistics: Statistics::of_fixed(field.data_type(), arrays),
    };
    columns.map(chunk).collect()
}

fn encode_bytes(
    of: &DataType,
    arrays: &[ArrayRef],
    rows: usize,
    out: &mut Out,
    buffers: &mut Vec<BufferAt>,
) -> (Encoding, Option<Statistics>) {
    let plain_bytes = (rows + 1) * 4 + value_bytes(arrays);
    let mut put = |out: &mut Out, values: &mut dyn Iterator<Item = &[u8]>| {
        let mut end = 0u32;
        let mut ends = end.to_le_bytes().to_vec();
        let mut all = Vec::new();
        for value in values {
            all.extend_from_slice(value);
            end += value.len() as u32;
            ends.extend_from_slice(&end.to_le_bytes());
        }
        buffers.push(put_buffer(out, |out| out.extend_from_slice(&ends)));
        buffers.push(put_buffer(out, |out| out.extend_from_slice(&all)));
    };
    match dictionary(arrays, rows, plain_bytes) {
        Some((keys, distinct)) => {
            let mut bytes = Vec::with_capacity(keys.len() * 2);
            keys.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
            let keys = put_buffer(out, |out| out.extend_from_slice(&bytes));
            put(out, &mut distinct.iter().copied());
            let place = buffers.len() - 2;
            buffers.insert(place, keys);
            (Encoding::Dictionary, Statistics::of_bytes(of, distinct.into_iter()))
        }
        None => {
            put(out, &mut values(arrays).map(Option::unwrap_or_default));
            (Encoding::Plain, Statistics::of_bytes(of, values(arrays).flatten()))
        }
    }
}

/// Builds a dictionary: the key of each row, and the distinct values. `None` if there are no values, or as soon as
/// the dictionary would take more than half the bytes of the plain values.
fn dictionary(arrays: &[ArrayRef], rows: usize, plain_bytes: usize) -> Option<(Vec<u16>, Vec<&[u8]>)> {
    let mut bytes = rows * 2 + 4;
    let mut known: HashMap<&[u8], u16> = HashMap::new();
    let (mut keys, mut distinct) = (Vec::new(), Vec::new());
    for value in values(arrays) {
        let Some(value) = value else {
            keys.push(0);
            continue;
        };
        let key = match known.get(value) {
            Some(key) => *key,
            None => {
                bytes += 4 + value.len();
                if bytes * 2 > plain_bytes {
                    return None;
                }
                // The number of values is at most the number of rows, 65,536, so each has a `u16`.
                let key = distinct.len() as u16;
                known.insert(value, key);
                distinct.push(value);
                key
            }
        };
        keys.push(key);
    }
    if distinct.is_empty() { None } else { Some((keys, distinct)) }
}
