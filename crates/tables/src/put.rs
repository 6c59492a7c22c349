//! Putting a table: row group after row group into one far file, then the footer, then the name.

use crate::column_type::stored_schema;
use crate::footer::{Footer, RowGroup, Trailer};
use crate::layout::{EncodedGroup, Packer, TableLayout};
use crate::names::{file_name, has_table};
use crate::{FOOTER_BYTES_MAX, ROW_GROUPS_MAX};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_files::beneath::{Unlisted, session_of_pool};
use farpool_files::{Error, ErrorKind, IfTaken, Pool};
use farpool_sealing::{BufferPlace, KEY_BYTES, SALT_BYTES, TAG_BYTES, TableKey, TableSeals};
use std::fmt::Display;
use std::sync::Arc;

/// How a table is put. The default is columns, unencrypted, under a name that no table has.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// How its rows lie.
    pub layout: TableLayout,
    /// Encrypts the table, so that only those who have this key can read it. Names and types of its columns, and how
    /// many rows and nulls it has, can be read without.
    pub key: Option<TableKey>,
    /// Takes the place of a table of this name, if there is one, in one step, once all of the new one is there; until
    /// then the old one is read as before. Otherwise such a name is refused.
    pub replace: bool,
}

fn there_is_one() -> Error {
    let message = "there is one of this name; choose another name, or ask for it to be replaced";
    Error::new(ErrorKind::Exists, message.to_owned())
}

/// Makes a far table of this name out of batches, which have all the columns of `schema`. Metadata of the schema is
/// not kept. If a batch fails to come, nothing has changed.
///
/// Errors: [`ErrorKind::Exists`] if there is a table of this name ([`PutOptions::replace`] replaces it);
/// [`ErrorKind::Invalid`] if a column is of a type that far tables do not have, if a batch does not come or does not
/// fit the schema, if a row is larger than a region, or if rows of fixed width are to have columns of any width or
/// nulls; [`ErrorKind::Exhausted`] if the pool has no room.
pub fn put_table<E: Display>(
    pool: &Pool,
    name: &str,
    schema: SchemaRef,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    options: &PutOptions,
) -> Result<(), Error> {
    let put = || -> Result<(), Error> {
        let file_name = file_name(name)?;
        // Before anybody is asked for memory.
        stored_schema(&schema)?;
        if !options.replace && has_table(pool, name)? {
            return Err(there_is_one());
        }
        let regions = pool.status()?.nodes.iter().map(|node| node.info.region_bytes).min();
        let region_bytes =
            regions.ok_or_else(|| Error::new(ErrorKind::Exhausted, "the pool has no memory nodes"))?;
        let seal = options.key.as_ref().map(|key| Sealing::of(pool, key)).transpose()?;
        let mut packer = Packer::new(schema, region_bytes)?;
        if options.layout == TableLayout::Rows {
            packer = packer.in_rows()?;
        }
        if seal.is_some() {
            packer = packer.leaving_tags();
        }
        let mut writer =
            Writer { file: Unlisted::create(pool, file_name)?, groups: Vec::new(), rows: 0, seal };
        for batch in batches {
            let failed = |error| {
                let message = format!("the next batch did not come: {error}");
                Error::new(ErrorKind::Invalid, message)
            };
            packer.push(&batch.map_err(failed)?, |group| writer.add(group))?;
        }
        packer.finish(|group| writer.add(group))?;
        let if_taken = if options.replace { IfTaken::Replace } else { IfTaken::Refuse };
        writer.end(Arc::clone(packer.schema()), if_taken)
    };
    put().map_err(|error| error.during(format_args!("putting far table {name:?}")))
}

/// What seals a table.
struct Sealing {
    seals: TableSeals,
    salt: [u8; SALT_BYTES],
    check: [u8; KEY_BYTES],
}

impl Sealing {
    /// Of one table, under a salt of its own.
    fn of(pool: &Pool, key: &TableKey) -> Result<Sealing, Error> {
        let mut salt = [0; SALT_BYTES];
        let no_random = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
        session_of_pool(pool).host().random(&mut salt).map_err(no_random)?;
        let (key, check) = key.of_table(&salt);
        Ok(Sealing { seals: TableSeals::new(&key, salt), salt, check })
    }

    /// Seals all buffers of a row group that begins at this row.
    fn seal(&self, encoded: &mut EncodedGroup, position: u64) {
        // Rows are one buffer, listed for each column.
        let columns = if encoded.group.rows_buffer().is_some() { 1 } else { encoded.group.columns.len() };
        for (column, chunk) in (0u16..).zip(&encoded.group.columns[..columns]) {
            for (buffer, at) in (0u8..).zip(&chunk.buffers) {
                let bytes = &mut encoded.bytes[at.offset as usize..][..at.bytes as usize + TAG_BYTES];
                let (bytes, tag) = bytes.split_at_mut(at.bytes as usize);
                tag.copy_from_slice(&self.seals.seal(BufferPlace { position, column, buffer }, bytes));
            }
        }
    }
}

struct Writer {
    file: Unlisted,
    groups: Vec<RowGroup>,
    /// Of these groups.
    rows: u64,
    seal: Option<Sealing>,
}

impl Writer {
    fn add(&mut self, mut encoded: EncodedGroup) -> Result<(), Error> {
        if self.groups.len() == ROW_GROUPS_MAX {
            let message = format!("more than {ROW_GROUPS_MAX} row groups");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let Some(seal) = &self.seal {
            seal.seal(&mut encoded, self.rows);
        }
        self.rows += u64::from(encoded.group.rows);
        let offset = self.file.append_in_one_region(&encoded.bytes)?;
        self.groups.push(RowGroup { offset, ..encoded.group });
        Ok(())
    }

    fn end(self, schema: SchemaRef, if_taken: IfTaken) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut footer = Footer { schema, groups: self.groups, seal: None };
        if let Some(Sealing { seals, salt, check }) = &self.seal {
            footer.seal(seals, *salt, *check);
        }
        footer.put(&mut bytes);
        if bytes.len() > FOOTER_BYTES_MAX {
            let message =
                format!("a footer of {} bytes; up to {FOOTER_BYTES_MAX} are permitted", bytes.len());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let footer_offset = self.file.length();
        let footer_crc = crc32c::crc32c(&bytes);
        let (footer_bytes, is_sealed) = (bytes.len() as u32, self.seal.is_some());
        Trailer { footer_offset, footer_bytes, footer_crc, is_sealed }.put(&mut bytes);
        self.file.append(&bytes)?;
        self.file.publish(if_taken).map_err(|error| match error.kind() {
            // Somebody was quicker.
            ErrorKind::Exists => there_is_one(),
            _ => error,
        })
    }
}
