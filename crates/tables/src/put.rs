//! Putting a table: its rows are written, then its name is given to the one file that they take, or to a manifest.

use crate::arrangement::Arrangement;
use crate::column_type::stored_schema;
use crate::names::{file_name, has_table, there_is_one};
use crate::options::PutOptions;
use crate::transaction::{Staged, commit_all};
use crate::writing::RowsWriter;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_files::beneath::{TableCommit, open_snapshot, session_of_pool};
use farpool_files::{Error, ErrorKind, IfTaken, Pool};
use farpool_wire::TableId;
use std::fmt::Display;
use std::sync::Arc;

/// Makes a far table from record batches that have all the columns of `schema`. Metadata of the schema is not kept.
/// If an item of `batches` is an error, nothing has changed. A table that fits into one file has no snapshots until it
/// is changed, unless it replaces one that has.
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
        let file = file_name(name)?;
        // Checks the types before any memory is requested.
        let stored = Arc::new(stored_schema(&schema)?);
        let lost = options.made_by.as_ref().and_then(|made_by| made_by.lost.as_ref());
        if !options.replace && lost.is_none() && has_table(pool, name)? {
            return Err(there_is_one());
        }
        let arrangement = Arrangement::of(&options.partition_by, &options.sort_by, &stored)?;
        let bounded = arrangement.bounded(&stored);
        let mut writer = RowsWriter::new(pool, name, options, options.layout, schema, bounded)?
            .arranged(arrangement.clone());
        writer.write(batches)?;
        let recipe = writer.recipe()?;
        // A table with an arrangement has a manifest, which tells it.
        let mut new = if arrangement.is_none() { writer.end_with_file()? } else { writer.end()? };
        let of_name = match open_snapshot(session_of_pool(pool), &file, 0) {
            Ok(opened) => Some(opened.at.table).filter(|table| *table != TableId(0)),
            // There is none, its bytes are lost, or the broker is of a version without snapshots.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost | ErrorKind::Refused) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        if new.files.len() == 1
            && arrangement.is_none()
            && (of_name.is_none() || !options.replace && lost.is_none())
            && let Some(part) = new.parts.pop()
        {
            if let Some(recipe) = &recipe {
                part.file.set_recipe(recipe)?;
            }
            let if_taken = match (lost, options.replace) {
                (Some((file, _)), _) => IfTaken::ReplaceOnly(*file),
                (None, true) => IfTaken::Replace,
                (None, false) => IfTaken::Refuse,
            };
            return part.file.publish(if_taken).map_err(|error| match error.kind() {
                // Another client has published the name since the check at the start.
                ErrorKind::Exists => there_is_one(),
                _ => error,
            });
        }
        let staged = Staged::replacing(name, options, stored, arrangement, new, recipe);
        commit_all(pool, TableCommit::begin(pool, None)?, &mut [staged]).map(drop)
    };
    put().map_err(|error| error.during(format_args!("putting far table {name:?}")))
}
