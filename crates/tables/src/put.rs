//! Writing a file of a table: row groups, then the footer.

use crate::FOOTER_BYTES_MAX;
use crate::compaction::Compaction;
use crate::footer::{Footer, Form, RowGroup, Trailer};
use crate::layout::{EncodedGroup, GroupRows, RowGroupEncoder, TableLayout};
use arrow_schema::SchemaRef;
use farpool_encryption::{BufferPlace, KEY_BYTES, SALT_BYTES, TAG_BYTES, TableCipher, TableKey};
use farpool_files::beneath::{Unlisted, session_of_pool};
use farpool_files::{Error, ErrorKind, Pool, Protection, Recipe};
use farpool_wire::{FileId, mutant};
use std::fmt;
use std::sync::Arc;

/// Options of [`put_table`](crate::put_table). By default a table is stored column by column, is not encrypted, and does not replace
/// another table.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Layout of the rows.
    pub layout: TableLayout,
    /// Key that encrypts the table; only clients that have it can read the rows. The names and types of the columns
    /// and the numbers of rows and nulls stay readable without it.
    pub key: Option<TableKey>,
    /// True to replace a table of this name, if there is one. The replacement is one step, after all of the new table
    /// is written; until then readers see the old one. If false, a name in use is refused.
    pub replace: bool,
    /// Protection against the loss of a node: none, a mirror, which needs nodes on two hosts, or parity
    /// ([`Protection::Rs`]). Each row group is in one region of a node, and its copy in one region of a node on another
    /// host. Default: a mirror where the pool has two hosts and is not embedded.
    pub protection: Option<Protection>,
    /// How the table is made, kept with its name for the case that all of its copies are lost.
    pub made_by: Option<MadeBy>,
    /// Compaction after an append: small files become one.
    pub compaction: Compaction,
    /// Columns, by name, whose values divide a table that is made into partitions: each of its files has rows of one
    /// partition, so that a query opens the files of the partitions alone that it asks for. At most 1,024 in one
    /// commit. Rows that are added later are divided in the same way.
    pub partition_by: Vec<String>,
    /// Columns, by name, by which each file of a table that is made is sorted, ascending and NULL first. So are the
    /// files of rows that are added later. At most 8 columns with those of `partition_by`.
    pub sort_by: Vec<String>,
    /// Threads that encode rows, besides the one that reads them and writes to the pool; 1: that one encodes as well.
    /// Default, 0: as many as this process may use CPUs. At most 256.
    pub threads: usize,
    /// Function that is told what has been written.
    pub progress: Option<Progress>,
}

/// Rows that a put or an append has written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of rows.
    pub rows: u64,
    /// Bytes that they take in the pool, without copies and parity.
    pub bytes: u64,
}

/// Function that is told what a put or an append has written: by its thread, at most ten times a second, and once when
/// all rows are written. If it returns an error, the put ends with that.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(Written) -> Result<(), Error> + Send + Sync>);

impl Progress {
    /// Wraps a function.
    pub fn new(tell: impl Fn(Written) -> Result<(), Error> + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(tell))
    }

    pub(crate) fn tell(&self, written: Written) -> Result<(), Error> {
        (self.0)(written)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// How a table is made: the part of its [`Recipe`] that its maker knows. [`put_table`](crate::put_table) adds the rows and their
/// checksum.
#[derive(Clone, Debug, Default)]
pub struct MadeBy {
    /// Kind of the recipe.
    pub kind: String,
    /// Body of the recipe. It must hold no credentials.
    pub body: Vec<u8>,
    /// Lost file in whose place the table is put, and its recipe: the table must have the same rows, in any order.
    pub lost: Option<(FileId, Recipe)>,
}

pub(crate) fn there_is_one() -> Error {
    let message = "a far table of this name exists; choose another name, or set `replace`";
    Error::new(ErrorKind::Exists, message.to_owned())
}

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

/// Encryption of one table: its cipher, its salt, and the value that identifies the key.
pub(crate) struct TableEncryption {
    cipher: TableCipher,
    salt: [u8; SALT_BYTES],
    check: [u8; KEY_BYTES],
}

impl TableEncryption {
    /// Makes the encryption of one table, with a random salt.
    fn of(pool: &Pool, key: &TableKey) -> Result<TableEncryption, Error> {
        let mut salt = [0; SALT_BYTES];
        let no_random = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
        session_of_pool(pool).host().random(&mut salt).map_err(no_random)?;
        if mutant!(SaltReused) {
            salt = [7; SALT_BYTES];
        }
        let (key, check) = key.of_table(&salt);
        Ok(TableEncryption { cipher: TableCipher::new(&key, salt), salt, check })
    }

    /// Encrypts all buffers of a row group and stores their tags. `position` is the table row of its first row.
    pub(crate) fn encrypt(&self, encoded: &mut EncodedGroup, position: u64) {
        // The columns share one buffer in the row layout, which each column lists.
        let columns = if encoded.group.rows_buffer().is_some() { 1 } else { encoded.group.columns.len() };
        for (column, chunk) in (0u16..).zip(&encoded.group.columns[..columns]) {
            for (buffer, at) in (0u8..).zip(&chunk.buffers) {
                let bytes = &mut encoded.bytes[at.offset as usize..][..at.bytes as usize + TAG_BYTES];
                let (bytes, tag) = bytes.split_at_mut(at.bytes as usize);
                tag.copy_from_slice(&self.cipher.encrypt(BufferPlace { position, column, buffer }, bytes));
            }
        }
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
