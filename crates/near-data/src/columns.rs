//! Columns of row groups, out of the regions that they lie in: by themselves or in rows, sealed or leased, encrypted or
//! not.
//!
//! The idea: values of fixed width are used where they are, if nobody can change them; all else is copied. The right to a
//! region is looked at before anything is made of it, and once more behind that.

use crate::NearData;
use crate::scans::{End, Scan};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::DataType;
use farpool_node::dispatch::{Intent, admit};
use farpool_node::{Inside, Memory, copy_out};
use farpool_operators::Type;
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_sealing::{BufferPlace, ChunkSeals, SealKey, TAG_BYTES, TableSeals};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
use farpool_wire::{Code, Refusal};
use std::sync::Arc;

/// Rows of a row group.
pub(crate) const GROUP_ROWS_MAX: u32 = 65_536;
/// Bytes of the columns of a row group that a program reads, and of any batch it makes of them.
pub(crate) const GROUP_BYTES_MAX: u64 = SCAN_GROUP_BYTES_MAX as u64;

impl Scan {
    /// Where a buffer lies, with its tag if it is sealed.
    fn span(&self, group: &ScanGroup, buffer: &ScanBuffer) -> Option<Span> {
        let region = self.regions.get(group.region as usize)?;
        let tag = if self.opening.is_some() { TAG_BYTES as u32 } else { 0 };
        Some(Span {
            region: region.region,
            bytes: buffer.bytes.checked_add(tag)?,
            offset: group.offset.checked_add(buffer.offset.into())?,
            epoch: region.epoch,
            handle: region.handle,
        })
    }
}

/// Whether a row group may be of such columns: counts and sizes, not yet where it lies.
pub(crate) fn fits(group: &ScanGroup, regions: usize, input: &[Type]) -> bool {
    let buffers = |(column, of): (&ScanColumn, &Type)| {
        let is_text = matches!(of, Type::Text | Type::Bytes);
        let wanted = match (column.layout, is_text) {
            (ColumnLayout::Plain, false) => 1,
            (ColumnLayout::Plain, true) => 2,
            (ColumnLayout::Dictionary, true) => 3,
            // All of them, and where in each this column is.
            (ColumnLayout::Rows, false) => 2,
            (ColumnLayout::Dictionary, false) | (ColumnLayout::Rows, true) => return false,
        };
        column.null_count <= group.rows && column.buffers.len() == wanted + usize::from(column.null_count > 0)
    };
    (group.region as usize) < regions
        && (1..=GROUP_ROWS_MAX).contains(&group.rows)
        && group.columns.len() == input.len()
        && group.columns.iter().zip(input).all(buffers)
        && are_rows(group).is_some_and(|are_rows| !are_rows || input.iter().all(|of| *of != Type::Boolean))
        && group_bytes(group) <= GROUP_BYTES_MAX
}

/// Whether its columns lie in rows: all in the same, or none. Nothing if only some do.
fn are_rows(group: &ScanGroup) -> Option<bool> {
    let first = group.columns.first().and_then(rows_of);
    let is_alike = |column: &ScanColumn| {
        (column.layout == ColumnLayout::Rows) == first.is_some() && rows_of(column) == first
    };
    group.columns.iter().all(is_alike).then_some(first.is_some())
}

/// The rows that a column lies in, and the bytes of each.
fn rows_of(column: &ScanColumn) -> Option<(&ScanBuffer, u32)> {
    match &column.buffers[..] {
        [rows, place] if column.layout == ColumnLayout::Rows && column.null_count == 0 => {
            Some((rows, place.bytes))
        }
        _ => None,
    }
}

impl<M: Memory> NearData<M> {
    /// Whether these may be read, now.
    pub(crate) fn admit_regions(&self, regions: &[ScanRegion]) -> Result<(), Refusal> {
        for region in regions {
            let ScanRegion { region, epoch, handle } = region.clone();
            let span = Span { region, bytes: 0, offset: 0, epoch, handle };
            admit(&span, Intent::Read, &self.memory.enter(region)?.fence())?;
        }
        Ok(())
    }

    /// The columns of a row group. Values of fixed width are used where they are, if nobody can change them; all else is
    /// copied out of the region: it is checked before it is used, and must not change in between.
    pub(crate) fn columns(
        &self,
        scan: &Scan,
        index: u32,
        group: &ScanGroup,
        spare: &mut Vec<Buffer>,
    ) -> Result<RecordBatch, End> {
        let bad = Refusal::new(Code::BadColumns, index.into());
        let mut copies = Copies { made: Vec::new(), unused: std::mem::take(spare).into_iter() };
        let columns = match are_rows(group) {
            Some(true) => self.columns_of_rows(scan, index, group, &mut copies)?,
            _ => self.columns_by_themselves(scan, index, group, &mut copies)?,
        };
        *spare = copies.made;
        let options = RecordBatchOptions::new().with_row_count(Some(group.rows as usize));
        RecordBatch::try_new_with_options(Arc::clone(&scan.schema), columns, &options).map_err(|_| bad.into())
    }

    fn columns_by_themselves(
        &self,
        scan: &Scan,
        index: u32,
        group: &ScanGroup,
        copies: &mut Copies,
    ) -> Result<Vec<ArrayRef>, End> {
        let bad = Refusal::new(Code::BadColumns, index.into());
        let first = BufferPlace { position: group.position, column: 0, buffer: 0 };
        let mut bytes = 0;
        let mut columns = Vec::with_capacity(group.columns.len());
        for (number, (column, field)) in group.columns.iter().zip(scan.schema.fields()).enumerate() {
            let is_fixed = is_fixed(field.data_type()) && column.layout == ColumnLayout::Plain;
            let table_column = match &scan.opening {
                Some((_, columns)) => columns.get(number).copied().ok_or(bad)?,
                None => 0,
            };
            let mut buffers = Vec::with_capacity(column.buffers.len());
            for (place, at) in column.buffers.iter().enumerate() {
                let is_values = is_fixed && place + 1 == column.buffers.len();
                let span = scan.span(group, at).ok_or(bad)?;
                let place = BufferPlace { column: table_column, buffer: place as u8, ..first };
                buffers.push(self.buffer((scan, index), (&span, place), is_values, copies)?);
            }
            let (rows, nulls) = (group.rows as usize, column.null_count as usize);
            let left = (GROUP_BYTES_MAX as usize).saturating_sub(bytes);
            let array = column_of(field.data_type(), column.layout, rows, nulls, buffers, left);
            let array = array.map_err(|_| bad)?;
            // Dictionaries take more than they took in their region.
            if column.layout == ColumnLayout::Dictionary {
                bytes += array.get_buffer_memory_size();
            }
            columns.push(array);
        }
        Ok(columns)
    }

    /// Columns out of the rows that they lie in, of which no cache lines are read but theirs if the rows need no copy.
    fn columns_of_rows(
        &self,
        scan: &Scan,
        index: u32,
        group: &ScanGroup,
        copies: &mut Copies,
    ) -> Result<Vec<ArrayRef>, End> {
        let bad = Refusal::new(Code::BadColumns, index.into());
        let place = |(column, field): (&ScanColumn, _)| match &column.buffers[..] {
            [rows, place] => Some((rows.clone(), (field, place.offset as usize), place.bytes as usize)),
            _ => None,
        };
        let fields = scan.schema.fields().iter().map(|field| field.data_type());
        let places: Option<Vec<_>> = group.columns.iter().zip(fields).map(place).collect();
        let places = places.ok_or(bad)?;
        let Some((rows, _, row_bytes)) = places.first().cloned() else { return Err(bad.into()) };
        let span = scan.span(group, &rows).ok_or(bad)?;
        // Sealed once, for all columns.
        let place = BufferPlace { position: group.position, column: 0, buffer: 0 };
        let bytes = self.buffer((scan, index), (&span, place), true, copies)?;
        let columns: Vec<_> = places.into_iter().map(|(_, column, _)| column).collect();
        columns_of_rows(&columns, row_bytes, group.rows as usize, &bytes, GROUP_BYTES_MAX as usize)
            .map_err(|_| bad.into())
    }

    /// Bytes of a region: where they are, if that is asked for and nobody can change them, or a copy; of an encrypted
    /// table opened, as what was sealed for that place.
    fn buffer(
        &self,
        (scan, index): (&Scan, u32),
        (span, place): (&Span, BufferPlace),
        in_place: bool,
        copies: &mut Copies,
    ) -> Result<Buffer, End> {
        let bytes = span.bytes as usize;
        // Looked at before anything is made for it.
        admit(span, Intent::Read, &self.memory.enter(span.region)?.fence())?;
        let may_stay = in_place || scan.opening.is_some();
        let sealed = if may_stay { self.memory.sealed(span.region, span.offset, bytes) } else { None };
        // Again: what is there now may be another's.
        admit(span, Intent::Read, &self.memory.enter(span.region)?.fence())?;
        let made = match (&scan.opening, sealed) {
            (None, Some(sealed)) => return Ok(Buffer::from(bytes::Bytes::from_owner(sealed))),
            (None, None) => {
                let mut copy = room(copies.unused.next(), bytes);
                copy_out(&*self.memory, span, copy.as_slice_mut())?;
                copy
            }
            (Some((seals, _)), sealed) => {
                let opened_bytes = bytes.saturating_sub(TAG_BYTES);
                let mut room =
                    room(copies.unused.next(), if sealed.is_some() { opened_bytes } else { bytes });
                let opened = match &sealed {
                    // On the way from where it is.
                    Some(sealed) => seals.open_into(place, sealed.as_ref(), room.as_slice_mut()),
                    None => {
                        copy_out(&*self.memory, span, room.as_slice_mut())?;
                        seals.open(place, room.as_slice_mut())
                    }
                };
                opened.map_err(|_| Refusal::new(Code::NotOpened, index.into()))?;
                room.truncate(opened_bytes);
                room
            }
        };
        let made = Buffer::from(made);
        copies.made.push(made.clone());
        Ok(made)
    }
}

/// Copies of what lies in regions.
struct Copies {
    made: Vec<Buffer>,
    /// Of an earlier row group, to be copied over.
    unused: std::vec::IntoIter<Buffer>,
}

/// The keys of a scan, made ready.
pub(crate) fn keys(asked: ScanSeals) -> (Option<(TableSeals, Vec<u16>)>, Option<ChunkSeals>) {
    let opening = |of: ScanOpening| {
        let seals = TableSeals::new(&SealKey::new(of.key.0), of.salt);
        (seals, of.columns.into_vec())
    };
    let answers = asked.answers.first().map(|key| ChunkSeals::new(&SealKey::new(key.0)));
    (asked.opening.into_vec().pop().map(opening), answers)
}

/// Whether values are of whole bytes, any of which are a value.
fn is_fixed(of: &DataType) -> bool {
    of.primitive_width().is_some() || matches!(of, DataType::FixedSizeBinary(_))
}

/// Bytes of a row group that are read.
pub(crate) fn group_bytes(group: &ScanGroup) -> u64 {
    let of = |column: &ScanColumn| column.buffers.iter().map(|buffer| u64::from(buffer.bytes)).sum::<u64>();
    match are_rows(group) {
        // The same ones for all columns.
        Some(true) => {
            group.columns.first().and_then(|first| first.buffers.first()).map_or(0, |rows| rows.bytes.into())
        }
        _ => group.columns.iter().map(of).sum(),
    }
}

/// Room for so many bytes, in a copy that nobody uses any more if there is one: fresh memory costs as much as copying.
fn room(unused: Option<Buffer>, bytes: usize) -> MutableBuffer {
    match unused.map(Buffer::into_mutable) {
        // One that is far too large is let go, or they would all become as large as the largest.
        Some(Ok(mut room)) if room.capacity() <= bytes.saturating_mul(2).max(4_096) => {
            room.resize(bytes, 0);
            room
        }
        _ => MutableBuffer::from_len_zeroed(bytes),
    }
}
