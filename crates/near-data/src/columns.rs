//! Columns of row groups, read from their regions: column by column or as rows, immutable or leased, encrypted or not.
//!
//! Values of fixed width are used in place if nobody can change them; all others are copied. The right to a region is
//! checked before anything is made of its bytes, and once more afterwards.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use farpool_encryption::{BufferPlace, EncryptionKey, TAG_BYTES, TableCipher};
use farpool_node::admit::admit;
use farpool_node::{Inside, Memory, copy_out};
use farpool_operators::Type;
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_operators::run::data_type;
use farpool_transport::Intent;
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
use farpool_wire::{Code, Refusal};
use std::sync::Arc;

/// Limit of the rows of a row group.
pub(crate) const GROUP_ROWS_MAX: u32 = 65_536;
/// Limit of the bytes of a row group's columns that a program reads, and of any batch it makes of them.
pub(crate) const GROUP_BYTES_MAX: u64 = SCAN_GROUP_BYTES_MAX as u64;

/// Row groups of a scan, as its client described them.
pub(crate) struct RowGroups {
    regions: Vec<ScanRegion>,
    groups: Vec<ScanGroup>,
    /// Types of the columns.
    schema: SchemaRef,
    /// Decryption of the table. `None` if it is not encrypted.
    decryption: Option<Decryption>,
}

/// Decryption of the buffers of an encrypted table.
struct Decryption {
    cipher: TableCipher,
    /// Numbers of the table's columns that are read.
    columns: Vec<u16>,
}

/// Checks that these regions may be read now.
pub(crate) fn admit_regions<M: Memory>(memory: &M, regions: &[ScanRegion]) -> Result<(), Refusal> {
    for region in regions {
        let ScanRegion { region, epoch, handle } = region.clone();
        let span = Span { region, bytes: 0, offset: 0, epoch, handle };
        admit(&span, Intent::Read, &memory.enter(region)?.fence())?;
    }
    Ok(())
}

impl RowGroups {
    /// Checks the client's description against the column types and keeps it.
    pub(crate) fn new(
        regions: Vec<ScanRegion>,
        groups: Vec<ScanGroup>,
        opening: Option<ScanOpening>,
        input: &[Type],
    ) -> Result<RowGroups, Refusal> {
        if let Some(wrong) = groups.iter().position(|group| !fits(group, regions.len(), input)) {
            return Err(Refusal::new(Code::BadColumns, wrong as u64));
        }
        let decryption = opening.map(|of| Decryption {
            cipher: TableCipher::new(&EncryptionKey::new(of.key.0), of.salt),
            columns: of.columns.into_vec(),
        });
        if decryption.as_ref().is_some_and(|decryption| decryption.columns.len() != input.len()) {
            return Err(Refusal::new(Code::BadColumns, 0));
        }
        let fields = input.iter().map(|of| Field::new("", data_type(*of), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Ok(RowGroups { regions, groups, schema, decryption })
    }

    /// Returns the number of row groups.
    pub(crate) fn count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// Returns one row group.
    pub(crate) fn get(&self, index: u32) -> Option<&ScanGroup> {
        self.groups.get(index as usize)
    }

    /// Checks that the regions of all row groups may be read now.
    pub(crate) fn admit<M: Memory>(&self, memory: &M) -> Result<(), Refusal> {
        admit_regions(memory, &self.regions)
    }

    /// Makes the columns of a row group. Values of fixed width are used in place if nobody can change them. All others
    /// are copied, because they are checked before use and must not change in between.
    ///
    /// `spare` holds buffers of an earlier row group for reuse, and receives those of this one.
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

/// State while the columns of a row group are made.
struct Reading<'r, M> {
    memory: &'r M,
    groups: &'r RowGroups,
    index: u32,
    group: &'r ScanGroup,
    /// Buffers with copies of bytes of regions.
    made: Vec<Buffer>,
    /// Buffers of an earlier row group, for reuse.
    unused: std::vec::IntoIter<Buffer>,
}

/// A buffer of a row group.
struct BufferAt {
    /// Range of the buffer, with its authentication tag if it is encrypted.
    span: Span,
    /// Position in the table for which the buffer was encrypted. Decryption fails for another one.
    place: BufferPlace,
    /// True if the buffer is used without a copy when nobody can change its region.
    in_place: bool,
}

impl<M: Memory> Reading<'_, M> {
    fn bad(&self) -> Refusal {
        Refusal::new(Code::BadColumns, self.index.into())
    }

    /// Returns the range of a buffer, with its authentication tag if it is encrypted.
    fn span(&self, buffer: &ScanBuffer) -> Option<Span> {
        let region = self.groups.regions.get(self.group.region as usize)?;
        let tag = if self.groups.decryption.is_some() { TAG_BYTES as u32 } else { 0 };
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
            let table_column = match &groups.decryption {
                Some(decryption) => decryption.columns.get(number).copied().ok_or(bad)?,
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
            // Dictionaries take more memory than they took in their region.
            if column.layout == ColumnLayout::Dictionary {
                bytes += array.get_buffer_memory_size();
            }
            columns.push(array);
        }
        Ok(columns)
    }

    /// Makes columns out of rows. If the rows need no copy, only the cache lines of these columns are read.
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
        // The rows are encrypted once, for all columns.
        let place = BufferPlace { position: group.position, column: 0, buffer: 0 };
        let bytes = self.buffer(&BufferAt { span, place, in_place: true })?;
        let columns: Vec<_> = places.into_iter().map(|(_, column, _)| column).collect();
        columns_of_rows(&columns, row_bytes, group.rows as usize, &bytes, GROUP_BYTES_MAX as usize)
            .map_err(|_| bad)
    }

    /// Returns the bytes of a buffer: in place if that is wanted and nobody can change them, else a copy. Bytes of an
    /// encrypted table are decrypted.
    fn buffer(&mut self, at: &BufferAt) -> Result<Buffer, Refusal> {
        let (memory, span) = (self.memory, &at.span);
        let bytes = span.bytes as usize;
        // Checked before anything is allocated.
        admit(span, Intent::Read, &memory.enter(span.region)?.fence())?;
        let may_stay = at.in_place || self.groups.decryption.is_some();
        let sealed = if may_stay { memory.sealed(span.region, span.offset, bytes) } else { None };
        // Checked again: the bytes may belong to a new epoch by now.
        admit(span, Intent::Read, &memory.enter(span.region)?.fence())?;
        let made = match (&self.groups.decryption, sealed) {
            (None, Some(sealed)) => return Ok(Buffer::from(bytes::Bytes::from_owner(sealed))),
            (None, None) => {
                let mut copy = room(self.unused.next(), bytes);
                copy_out(memory, span, copy.as_slice_mut())?;
                copy
            }
            (Some(Decryption { cipher, .. }), sealed) => {
                let plain_bytes = bytes.saturating_sub(TAG_BYTES);
                let mut room = room(self.unused.next(), if sealed.is_some() { plain_bytes } else { bytes });
                let decrypted = match &sealed {
                    // Decrypted straight from the region.
                    Some(sealed) => cipher.decrypt_into(at.place, sealed.as_ref(), room.as_slice_mut()),
                    None => {
                        copy_out(memory, span, room.as_slice_mut())?;
                        cipher.decrypt(at.place, room.as_slice_mut())
                    }
                };
                decrypted.map_err(|_| Refusal::new(Code::NotOpened, self.index.into()))?;
                room.truncate(plain_bytes);
                room
            }
        };
        let made = Buffer::from(made);
        self.made.push(made.clone());
        Ok(made)
    }
}

/// Reports whether a row group's counts and sizes fit these column types. Its position in the region is checked later.
fn fits(group: &ScanGroup, regions: usize, input: &[Type]) -> bool {
    let buffers = |(column, of): (&ScanColumn, &Type)| {
        let is_text = matches!(of, Type::Text | Type::Bytes);
        let wanted = match (column.layout, is_text) {
            (ColumnLayout::Plain, false) => 1,
            (ColumnLayout::Plain, true) => 2,
            (ColumnLayout::Dictionary, true) => 3,
            // Two buffers describe the column: the rows, and its position in each row.
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

/// Reports whether all columns lie in the same rows (true) or none does (false). `None` if they differ.
fn are_rows(group: &ScanGroup) -> Option<bool> {
    let first = group.columns.first().and_then(rows_of);
    let is_alike = |column: &ScanColumn| {
        (column.layout == ColumnLayout::Rows) == first.is_some() && rows_of(column) == first
    };
    group.columns.iter().all(is_alike).then_some(first.is_some())
}

/// Returns the rows that contain a column, and the bytes of each row. `None` if the column does not lie in rows.
fn rows_of(column: &ScanColumn) -> Option<(&ScanBuffer, u32)> {
    match &column.buffers[..] {
        [rows, place] if column.layout == ColumnLayout::Rows && column.null_count == 0 => {
            Some((rows, place.bytes))
        }
        _ => None,
    }
}

/// Reports whether values of a type have a fixed width in whole bytes, and every byte pattern is a valid value.
fn is_fixed(of: &DataType) -> bool {
    of.primitive_width().is_some() || matches!(of, DataType::FixedSizeBinary(_))
}

/// Returns the bytes of a row group that are read.
pub(crate) fn group_bytes(group: &ScanGroup) -> u64 {
    let of = |column: &ScanColumn| column.buffers.iter().map(|buffer| u64::from(buffer.bytes)).sum::<u64>();
    match are_rows(group) {
        // All columns share the same rows.
        Some(true) => {
            group.columns.first().and_then(|first| first.buffers.first()).map_or(0, |rows| rows.bytes.into())
        }
        _ => group.columns.iter().map(of).sum(),
    }
}

/// Returns a buffer of `bytes` bytes, reusing `unused` if possible: fresh memory costs as much as copying.
fn room(unused: Option<Buffer>, bytes: usize) -> MutableBuffer {
    match unused.map(Buffer::into_mutable) {
        // A buffer that is far too large is freed; otherwise all would become as large as the largest.
        Some(Ok(mut room)) if room.capacity() <= bytes.saturating_mul(2).max(4_096) => {
            room.resize(bytes, 0);
            room
        }
        _ => MutableBuffer::from_len_zeroed(bytes),
    }
}
