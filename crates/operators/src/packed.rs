//! Packing of batches of rows into bytes, for the output of programs. `spec/pipeline.md` describes the same format.
//!
//! The idea: buffers travel as Arrow has them in memory, each at a multiple of 64 bytes, so that the receiver uses
//! them where they are. A header before them has their types and lengths.

use crate::columns::column_of;
use crate::limits::{AGGREGATES_MAX, COLUMNS_MAX};
use crate::run::{data_type, type_of};
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{DataType, Field as ArrowField, Schema};
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::ColumnLayout;
use std::collections::VecDeque;
use std::sync::Arc;

/// Alignment in bytes: every buffer begins at a multiple of it.
const ALIGN: usize = 64;
/// Most columns of a batch: those of a program, and one hidden column for each of its aggregates.
const PACKED_COLUMNS_MAX: usize = COLUMNS_MAX + AGGREGATES_MAX;
/// Most rows of a batch.
const PACKED_ROWS_MAX: u32 = 1 << 24;

/// Error: a single row takes more bytes than a chunk (one message of results), so it cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTooLarge {
    /// Bytes of the packed row.
    pub bytes: usize,
}

/// Packs a batch into a chunk of its own, whatever its size. The batch must have no dictionaries.
pub fn pack(batch: &RecordBatch) -> Vec<u8> {
    let mut chunk = Packed::default();
    put_batch(0, batch, &mut chunk);
    chunk.into_vec()
}

/// Bytes below which buffers are copied together, because each separate buffer costs the sender something. Larger
/// ones are sent from where they are.
const SHARED_BYTES_MIN: usize = 4 << 10;

/// Packed chunk as a list of byte buffers. The larger ones are the buffers of the columns themselves, not copies.
#[derive(Debug, Default)]
pub struct Packed {
    /// Buffers in the order in which they are sent.
    buffers: Vec<Buffer>,
    /// Bytes that come after all of `buffers`.
    last: Vec<u8>,
    /// Bytes of `buffers` and `last` together.
    bytes: usize,
}

impl Packed {
    /// Returns the byte buffers, none of which is empty.
    pub fn into_buffers(mut self) -> Vec<Buffer> {
        self.end_buffer();
        self.buffers
    }

    /// Reports whether the chunk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the bytes of the chunk as one vector.
    pub fn into_vec(mut self) -> Vec<u8> {
        match self.buffers.is_empty() {
            true => self.last,
            false => {
                let mut all = Vec::with_capacity(self.bytes);
                self.buffers.iter().for_each(|buffer| all.extend_from_slice(buffer));
                all.append(&mut self.last);
                all
            }
        }
    }

    fn end_buffer(&mut self) {
        if !self.last.is_empty() {
            self.buffers.push(Buffer::from_vec(std::mem::take(&mut self.last)));
        }
    }

    /// Appends to the bytes after all of `buffers`.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.last.len();
        write(&mut self.last);
        self.bytes += self.last.len() - before;
    }

    /// Appends zeros up to the next position where a buffer may begin.
    fn pad(&mut self) {
        let missing = padded(self.bytes) - self.bytes;
        self.write(|out| out.resize(out.len() + missing, 0));
    }

    fn put(&mut self, buffer: Buffer) {
        self.pad();
        if buffer.len() < SHARED_BYTES_MIN {
            return self.write(|out| out.extend_from_slice(&buffer));
        }
        self.bytes += buffer.len();
        self.end_buffer();
        self.buffers.push(buffer);
    }
}

/// Packer of batches into chunks, which are messages of results.
#[derive(Debug)]
pub struct BatchPacker {
    /// Most bytes of one chunk.
    chunk_bytes: usize,
    /// Chunks that were not taken yet, the oldest first. The last one may get further batches.
    chunks: VecDeque<Packed>,
}

impl BatchPacker {
    /// Makes a packer for chunks of at most `chunk_bytes` bytes.
    pub fn new(chunk_bytes: usize) -> BatchPacker {
        BatchPacker { chunk_bytes, chunks: VecDeque::new() }
    }

    /// Reports whether no chunk is ready.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Takes the oldest chunk.
    pub fn pop(&mut self) -> Option<Packed> {
        self.chunks.pop_front()
    }

    /// Appends the rows of a batch that belong to row group `group` of a scan. If one chunk has no room for them,
    /// they are split.
    pub fn push(&mut self, group: u32, batch: &RecordBatch) -> Result<(), RowTooLarge> {
        let mut parts = vec![batch.clone()];
        while let Some(part) = parts.pop() {
            if part.num_rows() == 0 {
                continue;
            }
            let bytes = packed_bytes(&part);
            if bytes > self.chunk_bytes || part.num_rows() > PACKED_ROWS_MAX as usize {
                let rows = part.num_rows();
                if rows == 1 {
                    return Err(RowTooLarge { bytes });
                }
                // Splits off the rows that are likely to fit. The later rows go below the earlier ones, because
                // batches are taken from the end.
                let fitting = (rows as u64 * self.chunk_bytes as u64 / bytes as u64) as usize;
                let first = fitting.clamp(1, rows - 1) / ALIGN * ALIGN;
                let first = if first == 0 { fitting.clamp(1, rows - 1) } else { first };
                parts.push(part.slice(first, rows - first));
                parts.push(part.slice(0, first));
                continue;
            }
            let chunk_bytes = self.chunk_bytes;
            match self.chunks.back_mut() {
                Some(chunk) if chunk.bytes + bytes <= chunk_bytes => put_batch(group, &part, chunk),
                _ => {
                    let mut chunk = Packed::default();
                    put_batch(group, &part, &mut chunk);
                    self.chunks.push_back(chunk);
                }
            }
        }
        Ok(())
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Returns the bytes that a batch takes at most. The batch must have no dictionaries.
pub fn packed_bytes(batch: &RecordBatch) -> usize {
    let rows = batch.num_rows();
    let of_column = |column: &ArrayRef| {
        let validity = if column.null_count() > 0 { padded(rows.div_ceil(8)) } else { 0 };
        let values = match column.data_type() {
            DataType::Boolean => padded(rows.div_ceil(8)),
            DataType::Utf8 => padded((rows + 1) * 4) + padded(text_range(column).len()),
            DataType::Binary => padded((rows + 1) * 4) + padded(text_range(column).len()),
            other => padded(rows.saturating_mul(width(other))),
        };
        // The header of a column: at most 5 bytes for the type, 4 for the number of NULLs, and 4 for each of three
        // lengths of buffers.
        5 + 4 + 3 * 4 + validity + values
    };
    padded(12) + ALIGN + batch.columns().iter().map(of_column).sum::<usize>()
}

/// Returns the bytes of a value of fixed width.
fn width(of: &DataType) -> usize {
    match of {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or(0),
        other => other.primitive_width().unwrap_or(0),
    }
}

/// Returns the range of bytes in the buffer of values that the rows of a column of text or bytes use.
fn text_range(column: &ArrayRef) -> std::ops::Range<usize> {
    let offsets = match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value_offsets(),
        _ => column.as_binary::<i32>().value_offsets(),
    };
    match offsets {
        [first, .., last] => *first as usize..*last as usize,
        _ => 0..0,
    }
}

fn put_batch(group: u32, batch: &RecordBatch, chunk: &mut Packed) {
    chunk.write(|out| {
        group.put(out);
        (batch.num_rows() as u32).put(out);
        (batch.num_columns() as u32).put(out);
        for column in batch.columns() {
            // Not reached: the output of a program has only types that programs know.
            type_of(column.data_type()).unwrap_or(Type::Boolean).put(out);
            (column.null_count() as u32).put(out);
            for bytes in buffer_bytes(column) {
                (bytes as u32).put(out);
            }
        }
    });
    for column in batch.columns() {
        put_buffers(column, chunk);
    }
    chunk.pad();
}

/// Returns the lengths of the buffers of a column.
fn buffer_bytes(column: &ArrayRef) -> Vec<usize> {
    let rows = column.len();
    let mut lengths = Vec::with_capacity(3);
    if column.null_count() > 0 {
        lengths.push(rows.div_ceil(8));
    }
    match column.data_type() {
        DataType::Boolean => lengths.push(rows.div_ceil(8)),
        DataType::Utf8 | DataType::Binary => {
            lengths.push((rows + 1) * 4);
            lengths.push(text_range(column).len());
        }
        other => lengths.push(rows * width(other)),
    }
    lengths
}

fn put_buffers(column: &ArrayRef, chunk: &mut Packed) {
    let rows = column.len();
    if let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) {
        chunk.put(nulls.inner().sliced().slice_with_length(0, rows.div_ceil(8)));
    }
    match column.data_type() {
        DataType::Boolean => {
            chunk.put(column.as_boolean().values().sliced().slice_with_length(0, rows.div_ceil(8)));
        }
        DataType::Utf8 | DataType::Binary => {
            let (offsets, values) = match column.data_type() {
                DataType::Utf8 => {
                    let text = column.as_string::<i32>();
                    (text.offsets(), text.values())
                }
                _ => {
                    let binary = column.as_binary::<i32>();
                    (binary.offsets(), binary.values())
                }
            };
            chunk.put(match offsets.first() {
                Some(0) => offsets.inner().inner().clone(),
                first => {
                    let first = first.copied().unwrap_or(0);
                    offsets.iter().map(|offset| offset - first).collect::<ScalarBuffer<i32>>().into_inner()
                }
            });
            let range = text_range(column);
            chunk.put(values.slice_with_length(range.start, range.len()));
        }
        other => {
            let width = width(other);
            let data = column.to_data();
            if let Some(values) = data.buffers().first() {
                chunk.put(values.slice_with_length(data.offset() * width, rows * width));
            }
        }
    }
}

/// Unpacks the batches of a chunk, at most `batches_max`, each with the number of its row group in the scan. The
/// batches share the memory of the chunk.
///
/// # Errors
/// Bytes that are not batches, or too many batches.
pub fn unpack_few(chunk: Buffer, batches_max: usize) -> Result<Vec<(u32, RecordBatch)>, WireError> {
    let mut batches = Vec::new();
    let mut at = 0;
    while at < chunk.len() {
        if batches.len() == batches_max {
            let (found, max) = (batches_max as u64 + 1, batches_max as u64);
            return Err(WireError::TooMany { what: "batches of a chunk", found, max });
        }
        let (batch, end) = take_batch(&chunk, at)?;
        batches.push(batch);
        at = end;
    }
    Ok(batches)
}

/// Unpacks all batches of a chunk, each with the number of its row group in the scan. The batches share the memory of
/// the chunk.
///
/// # Errors
/// Bytes that are not batches.
pub fn unpack(chunk: Buffer) -> Result<Vec<(u32, RecordBatch)>, WireError> {
    unpack_few(chunk, usize::MAX)
}

/// Header of a column of a packed batch. `lengths` has the bytes of each buffer.
struct ColumnHeader {
    of: Type,
    null_count: u32,
    lengths: Vec<usize>,
}

/// Reads the batch that begins at byte `start` of a chunk. Also returns the position where the next one begins.
pub(crate) fn take_batch(chunk: &Buffer, start: usize) -> Result<((u32, RecordBatch), usize), WireError> {
    let mut from = Cursor::new(&chunk.as_slice()[start..]);
    let (group, rows, count) = (u32::take(&mut from)?, u32::take(&mut from)?, u32::take(&mut from)?);
    let too_many =
        |what, found: u32, max: usize| WireError::TooMany { what, found: found.into(), max: max as u64 };
    if count as usize > PACKED_COLUMNS_MAX {
        return Err(too_many("columns of a batch", count, PACKED_COLUMNS_MAX));
    }
    if rows > PACKED_ROWS_MAX {
        return Err(too_many("rows of a batch", rows, PACKED_ROWS_MAX as usize));
    }
    let mut announced = Vec::new();
    for _ in 0..count {
        let (of, null_count) = (Type::take(&mut from)?, u32::take(&mut from)?);
        if !of.is_valid() {
            return Err(WireError::Value { what: "the type of a column", found: announced.len() as u64 });
        }
        let lengths =
            usize::from(null_count > 0) + if matches!(of, Type::Text | Type::Bytes) { 2 } else { 1 };
        let lengths = (0..lengths).map(|_| u32::take(&mut from).map(|bytes| bytes as usize));
        announced.push(ColumnHeader { of, null_count, lengths: lengths.collect::<Result<_, _>>()? });
    }
    let mut at = chunk.len() - from.left();
    let mut columns = Vec::with_capacity(announced.len());
    let mut fields = Vec::with_capacity(announced.len());
    for (index, ColumnHeader { of, null_count, lengths }) in announced.into_iter().enumerate() {
        let mut buffers = Vec::with_capacity(lengths.len());
        for bytes in lengths {
            at = padded(at);
            // An empty buffer is checked too: its padding can end beyond the chunk.
            if at.saturating_add(bytes) > chunk.len() {
                let left = chunk.len().saturating_sub(at);
                return Err(WireError::Truncated { needed: bytes, left });
            }
            buffers.push(chunk.slice_with_length(at, bytes));
            at += bytes;
        }
        let of = data_type(of);
        let column = column_of(&of, ColumnLayout::Plain, rows as usize, null_count as usize, buffers, 0)
            .map_err(|_| WireError::Value { what: "a column of a batch", found: index as u64 })?;
        fields.push(ArrowField::new(index.to_string(), of, true));
        columns.push(column);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|_| WireError::Value { what: "the rows of a batch", found: rows.into() })?;
    Ok(((group, batch), padded(at)))
}
