//! Writing a table: row groups, then the footer, then the name.

use crate::column_type::stored_schema;
use crate::footer::{Footer, RowGroup, Trailer};
use crate::layout::{EncodedGroup, RowGroupEncoder, TableLayout};
use crate::names::{file_name, has_table};
use crate::row_checksum::RowChecksum;
use crate::{FOOTER_BYTES_MAX, ROW_GROUPS_MAX};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_encryption::{BufferPlace, KEY_BYTES, SALT_BYTES, TAG_BYTES, TableCipher, TableKey};
use farpool_files::beneath::{Unlisted, session_of_pool};
use farpool_files::{Error, ErrorKind, IfTaken, Pool, Protection, Recipe};
use farpool_wire::FileId;
use std::fmt::Display;
use std::sync::Arc;

/// Options of [`put_table`]. By default a table is stored column by column, is not encrypted, and does not replace
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
}

/// How a table is made: the part of its [`Recipe`] that its maker knows. [`put_table`] adds the rows and their
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

fn there_is_one() -> Error {
    let message = "a far table of this name exists; choose another name, or set `replace`";
    Error::new(ErrorKind::Exists, message.to_owned())
}

/// Makes a far table from record batches that have all the columns of `schema`. Metadata of the schema is not kept.
/// If an item of `batches` is an error, nothing has changed.
///
/// Errors: [`ErrorKind::Exists`] if there is a table of this name ([`PutOptions::replace`] replaces it);
/// [`ErrorKind::Invalid`] if far tables do not support the type of a column, if an item of `batches` is an error, if
/// a batch does not fit the schema, if a row is larger than a region, if the layout is rows and a column has nulls or
/// values of variable width, if the pool cannot give the protection, or if a table that is put in place of a lost one
/// has other rows; [`ErrorKind::Exhausted`] if the pool has no room.
pub fn put_table<E: Display>(
    pool: &Pool,
    name: &str,
    schema: SchemaRef,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    options: &PutOptions,
) -> Result<(), Error> {
    let put = || -> Result<(), Error> {
        let file_name = file_name(name)?;
        // Checks the types before any memory is requested.
        stored_schema(&schema)?;
        let lost = options.made_by.as_ref().and_then(|made_by| made_by.lost.as_ref());
        if !options.replace && lost.is_none() && has_table(pool, name)? {
            return Err(there_is_one());
        }
        let region_bytes = pool.region_bytes()?;
        let encryption = options.key.as_ref().map(|key| TableEncryption::of(pool, key)).transpose()?;
        let mut packer = RowGroupEncoder::new(schema, region_bytes)?;
        if options.layout == TableLayout::Rows {
            packer = packer.in_rows()?;
        }
        if encryption.is_some() {
            packer = packer.leaving_tags();
        }
        let file = Unlisted::create(pool, file_name, options.protection)?;
        let mut writer = Writer { file, groups: Vec::new(), rows: 0, encryption };
        let mut checksum = RowChecksum::default();
        for batch in batches {
            let failed = |error| {
                let message = format!("reading the next batch failed: {error}");
                Error::new(ErrorKind::Invalid, message)
            };
            let batch = batch.map_err(failed)?;
            if options.made_by.is_some() {
                checksum.add(&batch);
            }
            packer.push(&batch, |group| writer.add(group))?;
        }
        packer.finish(|group| writer.add(group))?;
        if let Some(made_by) = &options.made_by {
            let (kind, body) = (made_by.kind.clone(), made_by.body.clone());
            let recipe = Recipe { kind, rows: checksum.rows, checksum: checksum.value(), body };
            check_same_rows(lost.map(|(_, recipe)| recipe), &recipe)?;
            writer.file.set_recipe(&recipe)?;
        }
        let if_taken = match (lost, options.replace) {
            (Some((file, _)), _) => IfTaken::ReplaceOnly(*file),
            (None, true) => IfTaken::Replace,
            (None, false) => IfTaken::Refuse,
        };
        writer.end(Arc::clone(packer.schema()), if_taken)
    };
    put().map_err(|error| error.during(format_args!("putting far table {name:?}")))
}

/// Checks that a table which is put in place of a lost one has its rows.
fn check_same_rows(lost: Option<&Recipe>, made: &Recipe) -> Result<(), Error> {
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
struct TableEncryption {
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
        let (key, check) = key.of_table(&salt);
        Ok(TableEncryption { cipher: TableCipher::new(&key, salt), salt, check })
    }

    /// Encrypts all buffers of a row group and stores their tags. `position` is the table row of its first row.
    fn encrypt(&self, encoded: &mut EncodedGroup, position: u64) {
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

struct Writer {
    file: Unlisted,
    groups: Vec<RowGroup>,
    /// Rows of `groups` together.
    rows: u64,
    encryption: Option<TableEncryption>,
}

impl Writer {
    fn add(&mut self, mut encoded: EncodedGroup) -> Result<(), Error> {
        if self.groups.len() == ROW_GROUPS_MAX {
            let message = format!("the table has more than {ROW_GROUPS_MAX} row groups");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let Some(encryption) = &self.encryption {
            encryption.encrypt(&mut encoded, self.rows);
        }
        self.rows += u64::from(encoded.group.rows);
        let offset = self.file.append_in_one_region(&encoded.bytes)?;
        self.groups.push(RowGroup { offset, ..encoded.group });
        Ok(())
    }

    fn end(mut self, schema: SchemaRef, if_taken: IfTaken) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut footer = Footer { schema, groups: self.groups, encryption: None };
        if let Some(TableEncryption { cipher, salt, check }) = &self.encryption {
            footer.encrypt(cipher, *salt, *check);
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
        let (footer_bytes, is_encrypted) = (bytes.len() as u32, self.encryption.is_some());
        Trailer { footer_offset, footer_bytes, footer_crc, is_encrypted }.put(&mut bytes);
        self.file.append(&bytes)?;
        self.file.publish(if_taken).map_err(|error| match error.kind() {
            // Another client has published the name since the check at the start.
            ErrorKind::Exists => there_is_one(),
            _ => error,
        })
    }
}
