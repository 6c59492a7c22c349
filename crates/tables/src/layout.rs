//! Encoding of row groups: record batches of any size become the bytes of row groups.
//!
//! The idea: batches are cut into the rows of row groups first, which costs next to nothing, in order and by one
//! thread. How a row group is encoded depends on its own rows alone, so any number of threads can do that.

use crate::column_type::{RowLayout, stored_schema};
use crate::footer::{BufferAt, ColumnChunk, Encoding, RowGroup, bitmap_bytes};
use crate::statistics::Statistics;
use crate::texts::{self, Dictionary};
use crate::{BUFFER_ALIGN, GROUP_ALIGN, GROUP_ROWS_MAX};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::{DataType, FieldRef, SchemaRef};
use farpool_encryption::TAG_BYTES;
use farpool_files::{Error, ErrorKind};
use farpool_operators::columns::value_bytes as fixed_bytes;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
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

/// Rows that become one row group.
#[derive(Debug)]
pub(crate) struct GroupRows {
    /// Slices of the batches in which they were given.
    pub(crate) batches: Vec<RecordBatch>,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Bytes of the row group without dictionaries: it has no more.
    pub(crate) plain_bytes: usize,
}

/// How the row groups of a table are laid out.
#[derive(Clone, Debug)]
pub(crate) struct GroupForm {
    /// Columns in the types that the table stores.
    schema: SchemaRef,
    /// Positions of columns in the row layout; `None` in the column layout.
    places: Option<RowLayout>,
    /// Most bytes of a row group.
    bytes_max: usize,
    /// Bytes left free behind each buffer for its tag; 0 if the table is not encrypted.
    tag_bytes: usize,
}

/// Encoder that packs batches into row groups. Call [`RowGroupEncoder::push`] for each batch, then
/// [`RowGroupEncoder::finish`]; both hand over row groups as they become full.
#[derive(Debug)]
pub struct RowGroupEncoder {
    /// Columns of the batches, in the types in which they are given.
    given: SchemaRef,
    form: GroupForm,
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
        let form = GroupForm { schema: stored, places: None, bytes_max, tag_bytes: 0 };
        Ok(RowGroupEncoder { given: schema, form, batches: Vec::new(), rows: 0 })
    }

    /// Switches to the row layout: rows of fixed width that follow each other.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the values of a column have variable width.
    pub fn in_rows(mut self) -> Result<RowGroupEncoder, Error> {
        let form = &mut self.form;
        form.places = RowLayout::of(&form.schema);
        // A scan of the row layout reads all of a row group.
        form.bytes_max = form.bytes_max.min(SCAN_GROUP_BYTES_MAX - GROUP_ALIGN);
        let is_fixed = |of: &DataType| fixed_bytes(of).is_some();
        match form.schema.fields().iter().find(|field| !is_fixed(field.data_type())) {
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
        let form = GroupForm { tag_bytes: TAG_BYTES, ..self.form };
        RowGroupEncoder { form, ..self }
    }

    /// Returns the columns in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        &self.form.schema
    }

    /// Returns how the row groups are laid out.
    pub(crate) fn form(&self) -> &GroupForm {
        &self.form
    }

    /// Adds a batch, and calls `ready` with each row group that is full.
    pub fn push(
        &mut self,
        batch: &RecordBatch,
        mut ready: impl FnMut(EncodedGroup) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let form = self.form.clone();
        self.cut(batch, &mut |rows| ready(form.encode(&rows, Vec::new())))
    }

    /// Calls `ready` with the last row group, if any rows are left.
    pub fn finish(&mut self, mut ready: impl FnMut(EncodedGroup) -> Result<(), Error>) -> Result<(), Error> {
        let form = self.form.clone();
        self.cut_rest(&mut |rows| ready(form.encode(&rows, Vec::new())))
    }

    /// Adds a batch, and calls `ready` with the rows of each row group that is full.
    pub(crate) fn cut(
        &mut self,
        batch: &RecordBatch,
        ready: &mut dyn FnMut(GroupRows) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check(batch)?;
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = (batch.num_rows() - from).min(GROUP_ROWS_MAX - self.rows);
            self.batches.push(batch.slice(from, rows));
            self.rows += rows;
            from += rows;
            if self.rows == GROUP_ROWS_MAX {
                self.cut_rest(ready)?;
            }
        }
        Ok(())
    }

    /// Calls `ready` with the rows of the last row group, if any are left.
    pub(crate) fn cut_rest(
        &mut self,
        ready: &mut dyn FnMut(GroupRows) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.rows = 0;
        let batches = std::mem::take(&mut self.batches);
        if batches.is_empty() { Ok(()) } else { self.form.divide(batches, ready) }
    }

    /// Checks that a batch has the columns that were announced, and no nulls where they have none.
    pub(crate) fn check(&self, batch: &RecordBatch) -> Result<(), Error> {
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
            let is_nullable = field.is_nullable() && self.form.places.is_none();
            if !is_nullable && column.logical_null_count() > 0 {
                let why =
                    if field.is_nullable() { "the row layout stores no nulls" } else { "it is not nullable" };
                return Err(invalid(format!("column {name:?} has nulls in a batch, but {why}")));
            }
        }
        Ok(())
    }
}

impl GroupForm {
    /// Makes rows one row group, or several if one would be larger than a region.
    fn divide(
        &self,
        batches: Vec<RecordBatch>,
        ready: &mut dyn FnMut(GroupRows) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let plain_bytes: usize = match &self.places {
            Some(places) => rows.saturating_mul(places.row_bytes) + self.tag_bytes,
            None => {
                let columns = self.columns(&batches);
                let sizes = self.schema.fields().iter().zip(&columns);
                sizes.map(|(field, arrays)| bytes_of(field.data_type(), arrays, rows, self.tag_bytes)).sum()
            }
        };
        if plain_bytes <= self.bytes_max {
            return ready(GroupRows { batches, rows, plain_bytes });
        }
        if rows == 1 {
            return Err(invalid(format!(
                "a row has {plain_bytes} bytes; it must fit into one region, and the smallest region of the pool has \
                 room for {}",
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
        self.divide(first, ready)?;
        self.divide(second, ready)
    }

    /// Returns the arrays of each column.
    fn columns(&self, batches: &[RecordBatch]) -> Vec<Vec<ArrayRef>> {
        let column = |index| batches.iter().map(|batch| Arc::clone(batch.column(index))).collect();
        (0..self.schema.fields().len()).map(column).collect()
    }

    /// Encodes rows as a row group, in the memory of `into`. Fresh memory costs about as much as encoding.
    pub(crate) fn encode(&self, of: &GroupRows, mut into: Vec<u8>) -> EncodedGroup {
        into.clear();
        into.reserve(of.plain_bytes.next_multiple_of(GROUP_ALIGN));
        let mut out = Out { bytes: into, tag_bytes: self.tag_bytes };
        let arrays = self.columns(&of.batches);
        let fields = self.schema.fields().iter().zip(&arrays);
        let columns = match &self.places {
            Some(places) => encode_rows(fields, of.rows, places, &mut out),
            None => fields
                .map(|(field, arrays)| encode_column(field.data_type(), arrays, of.rows, &mut out))
                .collect(),
        };
        let mut out = out.bytes;
        let group = RowGroup { offset: 0, bytes: out.len() as u32, rows: of.rows as u32, columns };
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
        DataType::Utf8 | DataType::Binary => aligned((rows + 1) * 4) + aligned(texts::bytes(arrays)),
        of => aligned(rows.saturating_mul(fixed_bytes(of).unwrap_or(0))),
    };
    validity + values
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
    let values = texts::values(arrays);
    let plain_bytes = (rows + 1) * 4 + values.iter().flatten().map(|value| value.len()).sum::<usize>();
    match Dictionary::of(&values, plain_bytes) {
        Some(Dictionary { keys, distinct }) => {
            buffers.push(put_buffer(out, |out| put_all(out, &keys, |key| key.to_le_bytes())));
            buffers.push(put_ends(out, distinct.iter().map(|value| value.len())));
            buffers
                .push(put_buffer(out, |out| distinct.iter().for_each(|value| out.extend_from_slice(value))));
            (Encoding::Dictionary, Statistics::of_bytes(of, distinct.into_iter()))
        }
        None => {
            buffers.push(put_ends(out, values.iter().map(|value| value.map_or(0, <[u8]>::len))));
            buffers.push(put_buffer(out, |out| match whole(arrays) {
                Some(parts) => parts.into_iter().for_each(|part| out.extend_from_slice(part)),
                None => values.iter().flatten().for_each(|value| out.extend_from_slice(value)),
            }));
            (Encoding::Plain, Statistics::of_bytes(of, values.into_iter().flatten()))
        }
    }
}

/// Returns the bytes of all values of a column, if those of each array lie one behind the other.
fn whole(arrays: &[ArrayRef]) -> Option<Vec<&[u8]>> {
    arrays.iter().map(texts::contiguous).collect()
}

/// Appends the bytes of each value.
fn put_all<T, const BYTES: usize>(out: &mut Vec<u8>, values: &[T], bytes: impl Fn(&T) -> [u8; BYTES]) {
    let start = out.len();
    out.resize(start + values.len() * BYTES, 0);
    let (into, _) = out[start..].as_chunks_mut::<BYTES>();
    into.iter_mut().zip(values).for_each(|(into, value)| *into = bytes(value));
}

/// Puts a buffer of offsets: 0, and where each value ends.
fn put_ends(out: &mut Out, lengths: impl ExactSizeIterator<Item = usize>) -> BufferAt {
    put_buffer(out, |out| {
        let start = out.len();
        out.resize(start + (lengths.len() + 1) * 4, 0);
        let (into, _) = out[start + 4..].as_chunks_mut::<4>();
        let mut end = 0u32;
        for (into, bytes) in into.iter_mut().zip(lengths) {
            end += bytes as u32;
            *into = end.to_le_bytes();
        }
    })
}
