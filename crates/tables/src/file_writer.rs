//! Writing a file of a table: row groups, then the footer.

use crate::FOOTER_BYTES_MAX;
use crate::encryption::TableEncryption;
use crate::footer::{Footer, Form, RowGroup, Trailer};
use crate::layout::{EncodedGroup, GroupRows, RowGroupEncoder, TableLayout};
use arrow_schema::SchemaRef;
use farpool_encryption::{SALT_BYTES, TableKey};
use farpool_files::beneath::Unlisted;
use farpool_files::{Error, ErrorKind, Pool, Protection, Recipe};
use std::sync::Arc;

/// Makes an encoder of row groups for batches of this schema.
pub(crate) fn encoder(
    schema: SchemaRef,
    region_bytes: u64,
    layout: TableLayout,
    is_encrypted: bool,
) -> Result<RowGroupEncoder, Error> {
    let mut encoder = RowGroupEncoder::new(schema, region_bytes)?;
    if layout == TableLayout::Rows {
        encoder = encoder.in_rows()?;
    }
    Ok(if is_encrypted { encoder.leaving_tags() } else { encoder })
}

/// Checks that a table which is put in place of a lost one has its rows.
pub(crate) fn check_same_rows(lost: Option<&Recipe>, made: &Recipe) -> Result<(), Error> {
    match lost {
        Some(lost) if (lost.rows, lost.checksum) != (made.rows, made.checksum) => {
            let message = format!(
                "the table that was made again has {} rows, which are not those of the lost one ({} rows): its sources \
                 have changed, or its query does not always give the same rows; put it anew to use what it gives now",
                made.rows, lost.rows
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// Row groups that have places in a file.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reserved {
    pub(crate) groups: usize,
    pub(crate) rows: u64,
    /// Bytes that they have without dictionaries.
    pub(crate) plain_bytes: u64,
}

/// Writer of a file with rows. Row groups get their places in it in order before they are encoded, and are written in
/// this order.
pub(crate) struct FileWriter {
    file: Unlisted,
    /// Row groups that have places.
    reserved: Reserved,
    /// Row groups that are written.
    groups: Vec<RowGroup>,
    /// Rows of `groups` together.
    rows: u64,
    encryption: Option<Arc<TableEncryption>>,
}

/// File with rows that was written.
pub(crate) struct WrittenFile {
    pub(crate) file: Unlisted,
    pub(crate) groups: Vec<RowGroup>,
    pub(crate) rows: u64,
    /// Length of the file in bytes.
    pub(crate) bytes: u64,
    /// Salt of the file; zeros if it is not encrypted.
    pub(crate) salt: [u8; SALT_BYTES],
}

impl FileWriter {
    /// Creates a file that can be published as `name`.
    pub(crate) fn create(
        pool: &Pool,
        name: String,
        protection: Option<Protection>,
        key: Option<&TableKey>,
    ) -> Result<FileWriter, Error> {
        let encryption = key.map(|key| TableEncryption::of(pool, key)).transpose()?.map(Arc::new);
        let file = Unlisted::create(pool, name, protection)?;
        Ok(FileWriter { file, reserved: Reserved::default(), groups: Vec::new(), rows: 0, encryption })
    }

    /// Returns the row groups that have places.
    pub(crate) fn reserved(&self) -> Reserved {
        self.reserved
    }

    /// Gives the next row group its place: the row of the file with which it begins. Returns what encrypts it as well,
    /// if the table is encrypted.
    pub(crate) fn reserve(&mut self, rows: &GroupRows) -> (u64, Option<Arc<TableEncryption>>) {
        let position = self.reserved.rows;
        self.reserved.groups += 1;
        self.reserved.rows += rows.rows as u64;
        self.reserved.plain_bytes += rows.plain_bytes as u64;
        (position, self.encryption.clone())
    }

    /// Writes the next row groups, all at once.
    pub(crate) fn add(&mut self, encoded: &[EncodedGroup]) -> Result<(), Error> {
        let runs: Vec<&[u8]> = encoded.iter().map(|encoded| &encoded.bytes[..]).collect();
        let offsets = self.file.append_each_in_one_region(&runs)?;
        for (EncodedGroup { group, .. }, offset) in encoded.iter().zip(offsets) {
            self.rows += u64::from(group.rows);
            self.groups.push(RowGroup { offset, ..group.clone() });
        }
        Ok(())
    }

    /// Writes the footer.
    pub(crate) fn finish(mut self, schema: SchemaRef) -> Result<WrittenFile, Error> {
        let mut bytes = Vec::new();
        let mut footer = Footer { schema, groups: self.groups, encryption: None };
        let mut salt = [0; SALT_BYTES];
        if let Some(encryption) = &self.encryption {
            salt = encryption.salt;
            footer.encrypt(&encryption.cipher, encryption.salt, encryption.check);
        }
        footer.put(&mut bytes);
        if bytes.len() > FOOTER_BYTES_MAX {
            let message = format!(
                "the footer has {} bytes; at most {FOOTER_BYTES_MAX} are permitted: store fewer rows or columns",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let footer_offset = self.file.end();
        let footer_crc = crc32c::crc32c(&bytes);
        let form = if self.encryption.is_some() { Form::EncryptedRows } else { Form::Rows };
        Trailer { footer_offset, footer_bytes: bytes.len() as u32, footer_crc, form }.put(&mut bytes);
        self.file.append(&bytes)?;
        self.file.complete();
        let bytes = footer_offset + bytes.len() as u64;
        Ok(WrittenFile { file: self.file, groups: footer.groups, rows: self.rows, bytes, salt })
    }
}
