//! Columns of row groups, out of the regions that they lie in: by themselves or in rows, sealed or leased, encrypted or
//! not.
//!
//! The idea: values of fixed width are used where they are, if nobody can change them; all else is copied. The right to
//! a region is looked at before anything is made of it, and once more behind that.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use farpool_node::dispatch::admit;
use farpool_node::{Inside, Memory, copy_out};
use farpool_operators::Type;
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_operators::run::data_type;
use farpool_sealing::{BufferPlace, SealKey, TAG_BYTES, TableSeals};
use farpool_transport::Intent;
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
use farpool_wire::{Code, Refusal};
use std::sync::Arc;

/// Rows of a row group.
pub(crate) const GROUP_ROWS_MAX: u32 = 65_536;
/// Bytes of the columns of a row group that a program reads, and of any batch it makes of them.
pub(crate) const GROUP_BYTES_MAX: u64 = SCAN_GROUP_BYTES_MAX as u64;

/// The row groups of a scan, as its client has described them.
pub(crate) struct RowGroups {
    regions: Vec<ScanRegion>,
    groups: Vec<ScanGroup>,
    /// Types of the columns that are made of them.
    schema: SchemaRef,
    /// `None`: their table is not encrypted.
    opening: Option<Opening>,
}

/// How the buffers of an encrypted table are opened.
struct Opening {
    seals: TableSeals,
    /// Which columns of the table are read.
    columns: Vec<u16>,
}

/// Whether these may be read, now.
pub(crate) fn admit_regions<M: Memory>(memory: &M, regions: &[ScanRegion]) -> Result<(), Refusal> {
    for region in regions {
        let ScanRegion { region, epoch, handle } = region.clone();
        let span = Span { region, bytes: 0, offset: 0, epoch, handle };
        admit(&span, Intent::Read, &memory.enter(region)?.fence())?;
    }
    Ok(())
}

impl RowGroups {
    /// Puts together what a client has described. Refused unless each may be of columns of these types.
    pub(crate) fn new(
        regions: Vec<ScanRegion>,
        groups: Vec<ScanGroup>,
        opening: Option<ScanOpening>,
        input: &[Type],
    ) -> Result<RowGroups, Refusal> {
        if let Some(wrong) = groups.iter().position(|group| !fits(group, regions.len(), input)) {
            return Err(Refusal::new(Code::BadColumns, wrong as u64));
        }
        let opening = opening.map(|of| Opening {
            seals: TableSeals::new(&SealKey::new(of.key.0), of.salt),
            columns: of.columns.into_vec(),
        });
        if opening.as_ref().is_some_and(|opening| opening.columns.len() != input.len()) {
            return Err(Refusal::new(Code::BadColumns, 0));
        }
        let fields = input.iter().map(|of| Field::new("", data_type(*of), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Ok(RowGroups { regions, groups, schema, opening })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// One of them.
    pub(crate) fn get(&self, index: u32) -> Option<&ScanGroup> {
        self.groups.get(index as usize)
    }

    /// Whether the regions of all of them may be read, now.
    pub(crate) fn admit<M: Memory>(&self, memory: &M) -> Result<(), Refusal> {
        admit_regions(memory, &self.regions)
    }

    /// Makes the columns of a row group. Values of fixed width are used where they are, if nobody can change them; all
    /// else is copied out of the region: it is checked before it is used, and must not change in between.
    ///
    /// `spare` has the copies that were made for an earlier row group, and gets those of this one.
    pub(crate) fn columns<M: Memory>(
        &self,
        memory: &M,
        index: u32,
        group: &ScanGroup,
        spare: &mut Vec<Buffer>,
    ) -> Result<RecordBatch, Refusal> {
        let unused = std::mem::take(spare).into_iter();
        let mut reading = Reading { memory, groups: self, index, group, made: Vec::new(), unused };
        let columns = match are_rows(group) {
            Some(true) => reading.columns_of_rows()?,
            _ => reading.columns_by_themselves()?,
        };
        let bad = reading.bad();
        *spare = reading.made;
        let options = RecordBatchOptions::new().with_row_count(Some(group.rows as usize));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(|_| bad)
    }
}

/// A row group while its columns are made.
struct Reading<'r, M> {
    memory: &'r M,
    groups: &'r RowGroups,
    index: u32,
    group: &'r ScanGroup,
    /// Copies of what lies in regions.
    made: Vec<Buffer>,
    /// Copies for an earlier row group, to be copied over.
    unused: std::vec::IntoIter<Buffer>,
}

/// A buffer of a row group.
struct BufferAt {
    /// Where it lies, with its tag if it is sealed.
    span: Span,
    /// What it was sealed for.
    place: BufferPlace,
    /// Whether it is used where it is, if nobody can change it.
    in_place: bool,
}

impl<M: Memory> Reading<'_, M> {
    fn bad(&self) -> Refusal {
        Refusal::new(Code::BadColumns, self.index.into())
    }

    /// Where a buffer lies, with its tag if it is sealed.
    fn span(&self, buffer: &ScanBuffer) -> Option<Span> {
        let region = self.groups.regions.get(self.group.region as usize)?;
        let tag = if self.groups.opening.is_some() { TAG_BYTES as u32 } else { 0 };
        Some(Span {
            region: region.region,
            bytes: buffer.bytes.checked_add(tag)?,
            offset: self.group.offset.checked_add(buffer.offset.into())?,
            epoch: region.epoch,
            handle: region.handle,
        })
    }

    fn columns_by_themselves(&mut self) -> Result<Vec<ArrayRef>, Refusal> {
        let (groups, group, bad) = (self.groups, self.group, self.bad());
        let mut bytes = 0;
        let mut columns = Vec::with_capacity(group.columns.len());
        for (number, (column, field)) in group.columns.iter().zip(groups.schema.fields()).enumerate() {
            let is_fixed = is_fixed(field.data_type()) && column.layout == ColumnLayout::Plain;
            let table_column = match &groups.opening {
                Some(opening) => opening.columns.get(number).copied().ok_or(bad)?,
                None => 0,
            };
            let mut buffers = Vec::with_capacity(column.buffers.len());
            for (number, buffer) in column.buffers.iter().enumerate() {
                let is_values = is_fixed && number + 1 == column.buffers.len();
                let span = self.span(buffer).ok_or(bad)?;
                let (position, buffer) = (group.position, number as u8);
                let place = BufferPlace { position, column: table_column, buffer };
                buffers.push(self.buffer(&BufferAt { span, place, in_place: is_values })?);
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
    fn columns_of_rows(&mut self) -> Result<Vec<ArrayRef>, Refusal> {
        let (groups, group, bad) = (self.groups, self.group, self.bad());
        let place = |(column, field): (&ScanColumn, _)| match &column.buffers[..] {
            [rows, place] => Some((rows.clone(), (field, place.offset as usize), place.bytes as usize)),
            _ => None,
        };
        let fields = groups.schema.fields().iter().map(|field| field.data_type());
        let places: Option<Vec<_>> = group.columns.iter().zip(fields).map(place).collect();
        let places = places.ok_or(bad)?;
        let Some((rows, _, row_bytes)) = places.first().cloned() else { return Err(bad) };
        let span = self.span(&rows).ok_or(bad)?;
        // Sealed once, for all columns.
        let place = BufferPlace { position: group.position, column: 0, buffer: 0 };
        let bytes = self.buffer(&BufferAt { span, place, in_place: true })?;
        let columns: Vec<_> = places.into_iter().map(|(_, column, _)| column).collect();
        columns_of_rows(&columns, row_bytes, group.rows as usize, &bytes, GROUP_BYTES_MAX as usize)
            .map_err(|_| bad)
    }

    /// Bytes of a region: where they are, if that is asked for and nobody can change them, or a copy; of an encrypted
    /// table opened, as what was sealed for that place.
    fn buffer(&mut self, at: &BufferAt) -> Result<Buffer, Refusal> {
        let (memory, span) = (self.memory, &at.span);
        let bytes = span.bytes as usize;
        // Looked at before anything is made for it.
        admit(span, Intent::Read, &memory.enter(span.region)?.fence())?;
        let may_stay = at.in_place || self.groups.opening.is_some();
        let sealed = if may_stay { memory.sealed(span.region, span.offset, bytes) } else { None };
        // Again: what is there now may be another's.
        admit(span, Intent::Read, &memory.enter(span.region)?.fence())?;
        let made = match (&self.groups.opening, sealed) {
            (None, Some(sealed)) => return Ok(Buffer::from(bytes::Bytes::from_owner(sealed))),
            (None, None) => {
                let mut copy = room(self.unused.next(), bytes);
                copy_out(memory, span, copy.as_slice_mut())?;
                copy
            }
            (Some(Opening { seals, .. }), sealed) => {
                let opened_bytes = bytes.saturating_sub(TAG_BYTES);
                let mut room = room(self.unused.next(), if sealed.is_some() { opened_bytes } else { bytes });
                let opened = match &sealed {
                    // On the way from where it is.
                    Some(sealed) => seals.open_into(at.place, sealed.as_ref(), room.as_slice_mut()),
                    None => {
                        copy_out(memory, span, room.as_slice_mut())?;
                        seals.open(at.place, room.as_slice_mut())
                    }
                };
                opened.map_err(|_| Refusal::new(Code::NotOpened, self.index.into()))?;
                room.truncate(opened_bytes);
                room
            }
        };
        let made = Buffer::from(made);
        self.made.push(made.clone());
        Ok(made)
    }
}

/// Whether a row group may be of such columns: counts and sizes, not yet where it lies.
fn fits(group: &ScanGroup, regions: usize, input: &[Type]) -> bool {
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
