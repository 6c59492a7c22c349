//! Data messages: one range, or a table of ranges, and their bytes.

use crate::codec::{Cursor, Field, WireError};
use crate::frame::Opcode;
use crate::ids::*;
use crate::limits::*;

/// Range of one region and the right to it: 40 bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Region of the node.
    pub region: RegionIndex,
    /// Bytes of the range.
    pub bytes: u32,
    /// First byte of the range, counted from the region's start.
    pub offset: u64,
    /// Epoch that the right belongs to.
    pub epoch: Epoch,
    /// Right to the region: a write handle reads and writes, a read handle reads.
    pub handle: Handle,
}

/// Bytes of a [`Span`] on the wire.
pub const SPAN_BYTES: usize = 40;

impl Field for Span {
    const BYTES_MIN: usize = SPAN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.region.put(out);
        self.bytes.put(out);
        self.offset.put(out);
        self.epoch.put(out);
        self.handle.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(Span {
            region: RegionIndex::take(from)?,
            bytes: u32::take(from)?,
            offset: u64::take(from)?,
            epoch: Epoch::take(from)?,
            handle: Handle::take(from)?,
        })
    }
}

fn check_io_bytes(spans: &[Span]) -> Result<u64, WireError> {
    let total = spans.iter().map(|span| u64::from(span.bytes)).sum();
    if total > IO_BYTES_MAX as u64 {
        return Err(WireError::TooMany {
            what: "bytes of one data frame",
            found: total,
            max: IO_BYTES_MAX as u64,
        });
    }
    Ok(total)
}

/// Number of operations in the body of a data request. The opcode decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// One operation: the body begins with its span.
    One,
    /// Any number of operations: the body begins with their number and all of their spans.
    Batch,
}

impl Operations {
    /// Returns the number of operations in a data request of this opcode.
    pub fn of(opcode: Opcode) -> Operations {
        match opcode {
            Opcode::ReadBatch | Opcode::WriteBatch => Operations::Batch,
            _ => Operations::One,
        }
    }
}

/// Appends the body of a `Read` or `ReadBatch`.
pub fn put_spans(spans: &[Span], operations: Operations, out: &mut Vec<u8>) {
    if operations == Operations::Batch {
        (spans.len() as u64).put(out);
    }
    for span in spans {
        span.put(out);
    }
}

fn take_spans(
    from: &mut Cursor<'_>,
    operations: Operations,
    spans: &mut Vec<Span>,
) -> Result<u64, WireError> {
    spans.clear();
    let count = match operations {
        Operations::One => 1,
        Operations::Batch => u64::take(from)?,
    };
    if count == 0 || count > BATCH_OPS_MAX as u64 {
        return Err(WireError::TooMany {
            what: "operations of a batch",
            found: count,
            max: BATCH_OPS_MAX as u64,
        });
    }
    for _ in 0..count {
        spans.push(Span::take(from)?);
    }
    check_io_bytes(spans)
}

/// Reads the body of a `Read` or `ReadBatch` into `spans`, and drops what `spans` held. Returns the number of bytes
/// asked for.
pub fn decode_read(body: &[u8], operations: Operations, spans: &mut Vec<Span>) -> Result<u64, WireError> {
    let mut from = Cursor::new(body);
    let total = take_spans(&mut from, operations, spans)?;
    from.finish()?;
    Ok(total)
}

/// Reads the body of a `Write` or `WriteBatch`: the spans, and their bytes one after another.
pub fn decode_write<'a>(
    body: &'a [u8],
    operations: Operations,
    spans: &mut Vec<Span>,
) -> Result<&'a [u8], WireError> {
    let mut from = Cursor::new(body);
    let total = take_spans(&mut from, operations, spans)?;
    let payload = from.rest();
    if payload.len() as u64 != total {
        return Err(WireError::Value { what: "the payload length of a write", found: payload.len() as u64 });
    }
    Ok(payload)
}

/// Reads the table of a `Write` or `WriteBatch` whose bytes are still arriving into `spans`, and drops what `spans`
/// held. Returns the offset of those bytes in the body; `None` while the table is not complete.
pub fn decode_write_table(
    begun: &[u8],
    operations: Operations,
    body_bytes: usize,
    spans: &mut Vec<Span>,
) -> Result<Option<usize>, WireError> {
    let count = match begun.first_chunk::<8>() {
        _ if operations == Operations::One => 1,
        Some(count) => u64::from_le_bytes(*count).min(BATCH_OPS_MAX as u64 + 1) as usize,
        None => return Ok(None),
    };
    // It cannot overflow, because `count` was capped. A count above the limit is refused by `take_spans`, which reads
    // it first.
    let count_bytes = if operations == Operations::Batch { 8 } else { 0 };
    let table = count_bytes + if count > BATCH_OPS_MAX { 0 } else { count * SPAN_BYTES };
    let Some(table_bytes) = begun.get(..table) else { return Ok(None) };
    let total = take_spans(&mut Cursor::new(table_bytes), operations, spans)?;
    match body_bytes.checked_sub(table) {
        Some(payload) if payload as u64 == total => Ok(Some(table)),
        _ => Err(WireError::Value { what: "the payload length of a write", found: body_bytes as u64 }),
    }
}

/// Returns the ranges without their first `skip` bytes in all: for each range its index and what remains of it.
/// Leaves out ranges of which nothing remains.
pub fn spans_behind(spans: &[Span], skip: u64) -> impl Iterator<Item = (usize, Span)> + '_ {
    let mut left = skip;
    spans.iter().enumerate().filter_map(move |(index, span)| {
        let gone = left.min(span.bytes.into()) as u32;
        left -= u64::from(gone);
        let is_over = gone == span.bytes;
        // A range beyond the last possible offset is refused when its bounds are checked.
        let offset = span.offset.saturating_add(gone.into());
        (!is_over).then_some((index, Span { bytes: span.bytes - gone, offset, ..*span }))
    })
}

/// Reads the body of the reply to a refused batch: the index of the first operation that was refused. A read batch is
/// answered whole or not at all. Of a write batch, the operations before this index were done.
pub fn decode_refused_index(body: &[u8]) -> Result<u32, WireError> {
    let mut from = Cursor::new(body);
    let index = u32::take(&mut from)?;
    from.finish()?;
    Ok(index)
}
