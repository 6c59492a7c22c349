//! Footer and trailer of a far table: the columns, and the offset, size and statistics of the buffers of each row
//! group.
//!
//! Invariant I10: these bytes come from nodes. Every count is checked against the bytes that are left before anything
//! is allocated, and every offset against the range that it must lie in.

use crate::column_type::{RowLayout, check_count, put_columns, take_columns};
use crate::statistics::Statistics;
use crate::*;
use arrow_schema::{DataType, Schema, SchemaRef};
use farpool_encryption::{EncryptionKey, KEY_BYTES, SALT_BYTES, TAG_BYTES, TableCipher, TableKey};
use farpool_operators::columns::value_bytes;
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
pub use farpool_wire::control::ColumnLayout as Encoding;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"FPTABLE1";
/// Fewest bytes that each of these takes in a footer: a row group, and a column of a row group (a Boolean one).
const GROUP_BYTES_MIN: usize = 8 + 4 + 4;
const COLUMN_CHUNK_BYTES_MIN: usize = 1 + 4 + BufferAt::BYTES;

/// Kind of a file of a table. The numbers are those of its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Form {
    /// Rows.
    Rows = 1,
    /// Encrypted rows.
    EncryptedRows = 2,
    /// Root of a table with snapshots, or a page of its manifest.
    Manifest = 3,
    /// The same of an encrypted table.
    EncryptedManifest = 4,
}

impl Form {
    /// Returns the form with this number. `None` if there is none.
    fn of(number: u16) -> Option<Form> {
        let all = [Form::Rows, Form::EncryptedRows, Form::Manifest, Form::EncryptedManifest];
        all.into_iter().find(|form| *form as u16 == number)
    }

    /// Reports whether a manifest is in the file, and not rows.
    pub fn is_manifest(self) -> bool {
        matches!(self, Form::Manifest | Form::EncryptedManifest)
    }

    /// Reports whether the file is encrypted.
    pub fn is_encrypted(self) -> bool {
        matches!(self, Form::EncryptedRows | Form::EncryptedManifest)
    }
}

/// The last bytes of a table's file, which locate the footer. A manifest is its own footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Offset of the footer in the file. The footer ends where the trailer begins.
    pub footer_offset: u64,
    /// Size of the footer in bytes.
    pub footer_bytes: u32,
    /// CRC32C of the footer.
    pub footer_crc: u32,
    /// Kind of the file.
    pub form: Form,
}

/// Position and checksum of a buffer of a column in a row group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferAt {
    /// Offset from the start of the row group, in bytes; a multiple of [`BUFFER_ALIGN`].
    pub offset: u32,
    /// Size in bytes, without padding, and without the tag that follows it in an encrypted table.
    pub bytes: u32,
    /// CRC32C of the buffer; 0 if the table is encrypted.
    pub crc: u32,
}

/// A column in a row group.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnChunk {
    /// Encoding of its values.
    pub encoding: Encoding,
    /// Number of NULL values.
    pub null_count: u32,
    /// Buffers in this order: validity bitmap if there are nulls; keys of a dictionary; offsets of text or binary;
    /// values. In the row layout there is one buffer, the same for each column.
    pub buffers: Vec<BufferAt>,
    /// Smallest and largest value. `None` if there is no value, if all values are NaN, or if the table is encrypted
    /// and was opened without its key.
    pub statistics: Option<Statistics>,
}

/// Row group: 1 to [`GROUP_ROWS_MAX`] rows, whose buffers were written to one region.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGroup {
    /// Offset in the file, in bytes; a multiple of [`GROUP_ALIGN`].
    pub offset: u64,
    /// Bytes from the start of the row group to the end of its last buffer.
    pub bytes: u32,
    /// Number of rows.
    pub rows: u32,
    /// Columns, in the order of the schema.
    pub columns: Vec<ColumnChunk>,
}

/// Footer of a table: its schema and its row groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Footer {
    /// Columns in their stored types, without metadata.
    pub schema: SchemaRef,
    /// Row groups, in the order of their rows and of their offsets.
    pub groups: Vec<RowGroup>,
    /// Salt, key check and encrypted statistics; `None` if the table is not encrypted.
    pub encryption: Option<FooterEncryption>,
}

/// Additional fields of the footer of an encrypted table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterEncryption {
    /// Random salt, which no other table has.
    pub salt: [u8; SALT_BYTES],
    /// Value derived from the key, by which a wrong key is recognised.
    pub check: [u8; KEY_BYTES],
    /// Encrypted statistics of all columns of all row groups, followed by the tag, which authenticates the whole
    /// footer.
    pub statistics: Vec<u8>,
}

/// Reason why a key does not decrypt a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrongKey {
    /// The key is not this table's.
    Other,
    /// The key is right, but the footer was changed after it was encrypted.
    Changed,
}

impl Trailer {
    /// Size of a trailer in bytes.
    pub const BYTES: usize = 32;

    /// Appends the encoded trailer.
    pub fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.footer_offset.put(out);
        self.footer_bytes.put(out);
        self.footer_crc.put(out);
        (self.form as u16).put(out);
        0u16.put(out);
        crc32c::crc32c(&out[start..]).put(out);
        MAGIC.put(out);
    }

    /// Decodes the trailer of a file of this length. The error is a text that says what is wrong with it.
    pub fn take(bytes: &[u8; Trailer::BYTES], file_bytes: u64) -> Result<Trailer, String> {
        let (fields, magic) = bytes.split_at(24);
        if magic != MAGIC {
            return Err("it has no trailer of a far table".to_owned());
        }
        let mut from = Cursor::new(fields);
        let mut take = || -> Result<(u64, u32, u32, u16, u16, u32), WireError> {
            let (footer_offset, footer_bytes) = (u64::take(&mut from)?, u32::take(&mut from)?);
            let (footer_crc, version) = (u32::take(&mut from)?, u16::take(&mut from)?);
            let (reserved, crc) = (u16::take(&mut from)?, u32::take(&mut from)?);
            Ok((footer_offset, footer_bytes, footer_crc, version, reserved, crc))
        };
        let (footer_offset, footer_bytes, footer_crc, version, reserved, crc) =
            take().map_err(|error| error.to_string())?;
        if crc != crc32c::crc32c(&fields[..20]) {
            return Err("the checksum of its trailer does not match".to_owned());
        }
        let Some(form) = Form::of(version).filter(|_| reserved == 0) else {
            let (first, last) = (Form::Rows as u16, Form::EncryptedManifest as u16);
            return Err(format!(
                "it is a far table of version {version}; this program reads versions {first} to {last}"
            ));
        };
        let trailer = Trailer { footer_offset, footer_bytes, footer_crc, form };
        if trailer.footer_bytes as usize > FOOTER_BYTES_MAX {
            let bytes = trailer.footer_bytes;
            return Err(format!("its footer has {bytes} bytes; at most {FOOTER_BYTES_MAX} are permitted"));
        }
        let end = trailer.footer_offset.checked_add(u64::from(trailer.footer_bytes) + Trailer::BYTES as u64);
        if end != Some(file_bytes) {
            return Err(format!("its trailer does not match its length of {file_bytes} bytes"));
        }
        Ok(trailer)
    }
}

impl BufferAt {
    /// Fewest bytes that a buffer takes in a footer.
    const BYTES: usize = 8;

    fn put(&self, is_encrypted: bool, out: &mut Vec<u8>) {
        self.offset.put(out);
        self.bytes.put(out);
        if !is_encrypted {
            self.crc.put(out);
        }
    }

    fn take(from: &mut Cursor<'_>, is_encrypted: bool) -> Result<BufferAt, WireError> {
        let (offset, bytes) = (u32::take(from)?, u32::take(from)?);
        Ok(BufferAt { offset, bytes, crc: if is_encrypted { 0 } else { u32::take(from)? } })
    }

    /// Returns the offset behind the buffer and its tag.
    fn end(&self, is_encrypted: bool) -> u64 {
        let tag = if is_encrypted { TAG_BYTES as u64 } else { 0 };
        u64::from(self.offset) + u64::from(self.bytes) + tag
    }
}

/// Returns the bytes of a bitmap for this many rows.
pub(crate) fn bitmap_bytes(rows: usize) -> usize {
    rows.div_ceil(8)
}

impl ColumnChunk {
    /// Returns the number of buffers that a column of this type has.
    fn buffer_count(of: &DataType, encoding: Encoding, has_nulls: bool) -> usize {
        let values = match (encoding, of) {
            (Encoding::Dictionary, _) => 3,
            (Encoding::Plain, DataType::Utf8 | DataType::Binary) => 2,
            (Encoding::Plain | Encoding::Rows, _) => 1,
        };
        values + usize::from(has_nulls)
    }

    fn put(&self, of: &DataType, is_encrypted: bool, out: &mut Vec<u8>) {
        out.push(match self.encoding {
            Encoding::Plain => 0,
            Encoding::Dictionary => 1,
            Encoding::Rows => 2,
        });
        self.null_count.put(out);
        self.buffers.iter().for_each(|buffer| buffer.put(is_encrypted, out));
        if !is_encrypted {
            Statistics::put(self.statistics.as_ref(), of, out);
        }
    }

    fn take(
        from: &mut Cursor<'_>,
        of: &DataType,
        rows: usize,
        is_encrypted: bool,
    ) -> Result<ColumnChunk, WireError> {
        let encoding = match (u8::take(from)?, of) {
            (0, _) => Encoding::Plain,
            (1, DataType::Utf8 | DataType::Binary) => Encoding::Dictionary,
            (2, of) if value_bytes(of).is_some() => Encoding::Rows,
            (found, _) => {
                return Err(WireError::Value { what: "the encoding of a column", found: found.into() });
            }
        };
        let null_count = u32::take(from)?;
        if null_count as usize > rows {
            let (found, max) = (null_count.into(), rows as u64);
            return Err(WireError::TooMany { what: "nulls of a column", found, max });
        }
        let count = ColumnChunk::buffer_count(of, encoding, null_count > 0);
        let buffers =
            (0..count).map(|_| BufferAt::take(from, is_encrypted)).collect::<Result<Vec<_>, _>>()?;
        let statistics = if is_encrypted { None } else { Statistics::take(of, from)? };
        let chunk = ColumnChunk { encoding, null_count, buffers, statistics };
        chunk.check_sizes(of, rows)?;
        Ok(chunk)
    }

    /// Checks the sizes of the buffers. All are determined by the number of rows, but for those of text, binary and
    /// dictionary values.
    fn check_sizes(&self, of: &DataType, rows: usize) -> Result<(), WireError> {
        let mut buffers = self.buffers.iter();
        let mut check = |expected: Option<usize>| match buffers.next() {
            Some(buffer) if expected.is_none_or(|expected| buffer.bytes as usize == expected) => {
                Ok(buffer.bytes)
            }
            other => {
                let found = other.map_or(0, |buffer| buffer.bytes).into();
                Err(WireError::Value { what: "bytes of a column's buffer", found })
            }
        };
        if self.null_count > 0 {
            check(Some(bitmap_bytes(rows)))?;
        }
        match (self.encoding, of) {
            (Encoding::Dictionary, _) => {
                check(Some(rows * 2))?;
                let offsets = check(None)?;
                if offsets % 4 != 0 || !(2..=GROUP_ROWS_MAX as u32 + 1).contains(&(offsets / 4)) {
                    let what = "bytes of a dictionary's offsets";
                    return Err(WireError::Value { what, found: offsets.into() });
                }
                check(None)?;
            }
            (Encoding::Plain, DataType::Utf8 | DataType::Binary) => {
                check(Some((rows + 1) * 4))?;
                check(None)?;
            }
            (Encoding::Plain, DataType::Boolean) => {
                check(Some(bitmap_bytes(rows)))?;
            }
            (Encoding::Plain, of) => {
                check(Some(rows * value_bytes(of).unwrap_or(0)))?;
            }
            // The size is that of all columns together, which are not known here; [`RowGroup::take`] checks it.
            (Encoding::Rows, _) if self.null_count == 0 => {
                check(None)?;
            }
            (Encoding::Rows, _) => {
                let found = self.null_count.into();
                return Err(WireError::Value { what: "nulls of a column in rows", found });
            }
        }
        Ok(())
    }
}

impl RowGroup {
    /// Returns the offset in the file behind the row group.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.bytes)
    }

    fn put(&self, schema: &Schema, is_encrypted: bool, out: &mut Vec<u8>) {
        self.offset.put(out);
        self.bytes.put(out);
        self.rows.put(out);
        for (column, field) in self.columns.iter().zip(schema.fields()) {
            column.put(field.data_type(), is_encrypted, out);
        }
    }

    /// Decodes a row group. It must lie in `from_offset..end_max` of the file.
    fn take(
        from: &mut Cursor<'_>,
        schema: &Schema,
        from_offset: u64,
        end_max: u64,
        is_encrypted: bool,
    ) -> Result<RowGroup, WireError> {
        let (offset, bytes, rows) = (u64::take(from)?, u32::take(from)?, u32::take(from)?);
        let is_placed = offset.is_multiple_of(GROUP_ALIGN as u64)
            && offset >= from_offset
            && offset.checked_add(bytes.into()).is_some_and(|end| end <= end_max);
        if !is_placed {
            return Err(WireError::Value { what: "the offset of a row group", found: offset });
        }
        if !(1..=GROUP_ROWS_MAX as u32).contains(&rows) {
            return Err(WireError::Value { what: "rows of a row group", found: rows.into() });
        }
        check_count("columns of a row group", schema.fields().len(), COLUMN_CHUNK_BYTES_MIN, from)?;
        let mut columns: Vec<ColumnChunk> = Vec::with_capacity(schema.fields().len());
        let mut end = 0;
        for field in schema.fields() {
            let column = ColumnChunk::take(from, field.data_type(), rows as usize, is_encrypted)?;
            if column.null_count > 0 && !field.is_nullable() {
                let found = column.null_count.into();
                return Err(WireError::Value { what: "nulls of a column that is not nullable", found });
            }
            if let Some(first) = columns.first()
                && (column.encoding == Encoding::Rows) != (first.encoding == Encoding::Rows)
            {
                let found = columns.len() as u64;
                return Err(WireError::Value { what: "the encoding of a column beside rows", found });
            }
            if column.encoding == Encoding::Rows
                && columns.first().is_some_and(|first: &ColumnChunk| first.buffers == column.buffers)
            {
                // All columns share one buffer in the row layout.
                columns.push(column);
                continue;
            }
            for buffer in &column.buffers {
                let is_placed = (buffer.offset as usize).is_multiple_of(BUFFER_ALIGN)
                    && u64::from(buffer.offset) >= end
                    && buffer.end(is_encrypted) <= bytes.into();
                if !is_placed {
                    return Err(WireError::Value {
                        what: "the offset of a buffer",
                        found: buffer.offset.into(),
                    });
                }
                end = buffer.end(is_encrypted);
            }
            columns.push(column);
        }
        let group = RowGroup { offset, bytes, rows, columns };
        match group.rows_buffer() {
            Some(buffer) => {
                let row_bytes = RowLayout::of(schema).map_or(0, |places| places.row_bytes);
                let is_theirs = (rows as usize).checked_mul(row_bytes) == Some(buffer.bytes as usize);
                let is_one = group.columns.iter().all(|column| column.buffers == [buffer]);
                let wrong = WireError::Value { what: "bytes of rows", found: buffer.bytes.into() };
                if is_theirs && is_one { Ok(group) } else { Err(wrong) }
            }
            None => Ok(group),
        }
    }

    /// Returns the buffer with all rows if the group has the row layout, otherwise `None`.
    pub(crate) fn rows_buffer(&self) -> Option<BufferAt> {
        let first = self.columns.first().filter(|first| first.encoding == Encoding::Rows)?;
        first.buffers.first().copied()
    }

    /// Returns the buffers that hold these columns, each once.
    pub(crate) fn buffers<'g>(&'g self, columns: &'g [usize]) -> impl Iterator<Item = &'g BufferAt> {
        // All columns share one buffer in the row layout.
        let columns = if self.rows_buffer().is_some() { &columns[..columns.len().min(1)] } else { columns };
        columns.iter().filter_map(|column| self.columns.get(*column)).flat_map(|chunk| &chunk.buffers)
    }
}

impl Footer {
    /// Returns the number of rows of the table.
    pub fn rows(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.rows)).sum()
    }

    /// Appends the encoded footer. An encrypted table stores the encrypted statistics of its [`FooterEncryption`].
    pub fn put(&self, out: &mut Vec<u8>) {
        self.put_plain(out);
        if let Some(encryption) = &self.encryption {
            (encryption.statistics.len() as u32).put(out);
            out.extend_from_slice(&encryption.statistics);
        }
    }

    /// Appends the part of the footer that is not encrypted.
    fn put_plain(&self, out: &mut Vec<u8>) {
        let is_encrypted = self.encryption.is_some();
        if let Some(encryption) = &self.encryption {
            encryption.salt.put(out);
            encryption.check.put(out);
        }
        put_columns(&self.schema, out);
        (self.groups.len() as u32).put(out);
        self.groups.iter().for_each(|group| group.put(&self.schema, is_encrypted, out));
    }

    /// Turns the footer into that of an encrypted table: encrypts the statistics, and adds the salt and the check of
    /// the key.
    pub fn encrypt(&mut self, cipher: &TableCipher, salt: [u8; SALT_BYTES], check: [u8; KEY_BYTES]) {
        let mut statistics = Vec::new();
        for group in &self.groups {
            for (column, field) in group.columns.iter().zip(self.schema.fields()) {
                Statistics::put(column.statistics.as_ref(), field.data_type(), &mut statistics);
            }
        }
        self.encryption = Some(FooterEncryption { salt, check, statistics: Vec::new() });
        let mut plain = Vec::new();
        self.put_plain(&mut plain);
        cipher.encrypt_statistics(&plain, &mut statistics);
        if let Some(encryption) = &mut self.encryption {
            encryption.statistics = statistics;
        }
    }

    /// Decrypts the statistics, which also proves that no byte of the footer was changed. Returns what decrypts the
    /// buffers, and the key of the table; `None` if the table is not encrypted.
    pub fn decrypt(&mut self, key: &TableKey) -> Result<Option<(TableCipher, EncryptionKey)>, WrongKey> {
        let Some(encryption) = &self.encryption else { return Ok(None) };
        let (key, check) = key.of_table(&encryption.salt);
        if check != encryption.check {
            return Err(WrongKey::Other);
        }
        let cipher = TableCipher::new(&key, encryption.salt);
        let mut plain = Vec::new();
        self.put_plain(&mut plain);
        let mut statistics = encryption.statistics.clone();
        cipher.decrypt_statistics(&plain, &mut statistics).map_err(|_| WrongKey::Changed)?;
        self.take_statistics(&statistics).map_err(|_| WrongKey::Changed)?;
        Ok(Some((cipher, key)))
    }

    /// Decodes the decrypted statistics of an encrypted table.
    pub fn take_statistics(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let mut from = Cursor::new(bytes);
        for group in &mut self.groups {
            for (column, field) in group.columns.iter_mut().zip(self.schema.fields()) {
                column.statistics = Statistics::take(field.data_type(), &mut from)?;
            }
        }
        from.finish()
    }

    /// Decodes the footer of a table that is not encrypted; the trailer says whether it is. The footer lies at
    /// `footer_offset` of its file, and all row groups must lie before it.
    pub fn take(bytes: &[u8], footer_offset: u64) -> Result<Footer, WireError> {
        Footer::take_form(bytes, footer_offset, false)
    }

    /// Decodes the footer of an encrypted table, otherwise like [`Footer::take`].
    pub fn take_encrypted(bytes: &[u8], footer_offset: u64) -> Result<Footer, WireError> {
        Footer::take_form(bytes, footer_offset, true)
    }

    fn take_form(bytes: &[u8], footer_offset: u64, is_encrypted: bool) -> Result<Footer, WireError> {
        let mut from = Cursor::new(bytes);
        let from = &mut from;
        let key = match is_encrypted {
            true => Some((<[u8; SALT_BYTES]>::take(from)?, <[u8; KEY_BYTES]>::take(from)?)),
            false => None,
        };
        let schema = Arc::new(take_columns(from)?);
        let columns = schema.fields().len();
        let count = u32::take(from)? as usize;
        if count > ROW_GROUPS_MAX {
            let (found, max) = (count as u64, ROW_GROUPS_MAX as u64);
            return Err(WireError::TooMany { what: "row groups of a table", found, max });
        }
        check_count(
            "row groups of a table",
            count,
            GROUP_BYTES_MIN + columns * COLUMN_CHUNK_BYTES_MIN,
            from,
        )?;
        let mut groups: Vec<RowGroup> = Vec::with_capacity(count);
        for _ in 0..count {
            let behind = groups.last().map_or(0, RowGroup::end);
            groups.push(RowGroup::take(from, &schema, behind, footer_offset, is_encrypted)?);
        }
        let encryption = match key {
            Some((salt, check)) => {
                let count = u32::take(from)? as usize;
                Some(FooterEncryption { salt, check, statistics: from.bytes(count)?.to_vec() })
            }
            None => None,
        };
        match from.left() {
            0 => Ok(Footer { schema, groups, encryption }),
            left => Err(WireError::Trailing { left }),
        }
    }
}
