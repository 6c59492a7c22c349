//! Putting a table: row group after row group into one far file, then the footer, then the name.

use super::column_type::stored_schema;
use super::footer::{Footer, RowGroup, Trailer};
use super::layout::{EncodedGroup, Packer};
use super::{FOOTER_BYTES_MAX, ROW_GROUPS_MAX, TABLE_PREFIX};
use crate::error::{Error, ErrorKind};
use crate::file::FarFile;
use crate::options::Protection;
use crate::pool::Pool;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_wire::{FileClass, Name};
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

/// How the rows of a table lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableLayout {
    /// Each column by itself, as Arrow has it: a query reads the columns it needs and no others.
    #[default]
    Columns,
    /// One behind the other, each of the same width, as in row stores and in the paper on Farview: no text, no nulls.
    /// A query beside them reads the cache lines that its columns lie in; whoever fetches them fetches all.
    Rows,
}

/// How a table is put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// How its rows lie.
    pub layout: TableLayout,
}

/// The name of a table's file.
pub(super) fn file_name(table: &str) -> Result<String, Error> {
    let name = format!("{TABLE_PREFIX}{table}");
    let max = farpool_wire::limits::NAME_BYTES_MAX - TABLE_PREFIX.len();
    if table.is_empty() || Name::new(name.clone()).is_err() {
        let message = format!("far table name {table:?}: 1 to {max} bytes without control characters");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(name)
}

/// A file that is deleted unless it was published: nobody else knows of it.
struct Unpublished(FarFile);

impl Drop for Unpublished {
    fn drop(&mut self) {
        if !self.0.is_published() {
            self.0.delete();
        }
    }
}

impl Pool {
    /// Makes a far table of this name out of batches, which have all the columns of `schema`. It takes the place of
    /// a table of that name in one step, once all of it is there; until then that one is read as before. Metadata
    /// of the schema is not kept.
    ///
    /// Errors: [`ErrorKind::Invalid`] if a column is of a type that far tables do not have, if a batch does not fit
    /// the schema, or if a row is larger than a region; [`ErrorKind::Exhausted`] if the pool has no room.
    pub fn put_table(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<(), Error> {
        self.try_put_table(name, schema, batches.into_iter().map(Ok::<_, Infallible>))
    }

    /// The same, of batches that may fail to come: then it is [`ErrorKind::Invalid`], and nothing has changed.
    pub fn try_put_table<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    ) -> Result<(), Error> {
        self.put_table_with(name, schema, batches, &PutOptions::default())
    }

    /// The same, with options. Rows of fixed width refuse columns of any width and nulls with [`ErrorKind::Invalid`].
    pub fn put_table_with<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<(), Error> {
        let put = || -> Result<(), Error> {
            let file_name = file_name(name)?;
            // Before anybody is asked for memory.
            stored_schema(&schema)?;
            let regions = self.status()?.nodes.iter().map(|node| node.info.region_bytes).min();
            let region_bytes =
                regions.ok_or_else(|| Error::new(ErrorKind::Exhausted, "the pool has no memory nodes"))?;
            let mut packer = Packer::new(schema, region_bytes)?;
            if options.layout == TableLayout::Rows {
                packer = packer.in_rows()?;
            }
            let mut writer = Writer {
                file: Unpublished(self.unlisted_pinned(file_name)?),
                groups: Vec::new(),
                may_widen: true,
            };
            for batch in batches {
                let failed = |error| {
                    let message = format!("the next batch did not come: {error}");
                    Error::new(ErrorKind::Invalid, message)
                };
                packer.push(&batch.map_err(failed)?, |group| writer.add(group))?;
            }
            packer.finish(|group| writer.add(group))?;
            writer.end(Arc::clone(packer.schema()))
        };
        put().map_err(|error| error.during(format_args!("putting far table {name:?}")))
    }

    /// A new pinned file that no name leads to until it is published.
    fn unlisted_pinned(&self, name: String) -> Result<FarFile, Error> {
        FarFile::create(self.session(), name, FileClass::Pinned, self.next_number(), Protection::None, None)
    }
}

struct Writer {
    file: Unpublished,
    groups: Vec<RowGroup>,
    /// Whether there may be a node that has no region of this table yet.
    may_widen: bool,
}

impl Writer {
    fn add(&mut self, encoded: EncodedGroup) -> Result<(), Error> {
        if self.groups.len() == ROW_GROUPS_MAX {
            let message = format!("more than {ROW_GROUPS_MAX} row groups");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let file = &self.file.0;
        let session = &file.inner.session;
        let bytes = encoded.bytes.len() as u64;
        let (held, free) = session.held_by(file.group());
        // A table takes whole regions, so a small one should not take one at every node.
        if self.may_widen && held > 0 && (held - free) * 4 >= held {
            self.may_widen = session.widen(file.group(), bytes);
        }
        let offset = file.inner.grow_in_one_region(bytes)?;
        file.write_at(offset, &encoded.bytes)?;
        self.groups.push(RowGroup { offset, ..encoded.group });
        Ok(())
    }

    fn end(self, schema: SchemaRef) -> Result<(), Error> {
        let file = &self.file.0;
        let mut bytes = Vec::new();
        Footer { schema, groups: self.groups }.put(&mut bytes);
        if bytes.len() > FOOTER_BYTES_MAX {
            let message =
                format!("a footer of {} bytes; up to {FOOTER_BYTES_MAX} are permitted", bytes.len());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let footer_offset = file.length();
        let footer_crc = crc32c::crc32c(&bytes);
        Trailer { footer_offset, footer_bytes: bytes.len() as u32, footer_crc }.put(&mut bytes);
        file.write_at(footer_offset, &bytes)?;
        file.publish(true)
    }
}
