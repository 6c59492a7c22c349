//! Names of far tables, and the names of their files.

use crate::TABLE_PREFIX;
use farpool_files::{Error, ErrorKind, Pool};
use farpool_wire::Name;

/// Returns the name of a table's file.
pub(crate) fn file_name(table: &str) -> Result<String, Error> {
    let name = format!("{TABLE_PREFIX}{table}");
    let max = farpool_wire::limits::NAME_BYTES_MAX - TABLE_PREFIX.len();
    if table.is_empty() || Name::new(name.clone()).is_err() {
        let message =
            format!("invalid far table name {table:?}; use 1 to {max} bytes without control characters");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(name)
}

/// Reports whether a far table of this name exists, even if its bytes are lost.
///
/// Errors: [`ErrorKind::Invalid`] if the name cannot be the name of a table.
pub fn has_table(pool: &Pool, name: &str) -> Result<bool, Error> {
    let file = file_name(name)?;
    Ok(pool.list(&file)?.iter().any(|info| info.is_published && info.name == file))
}

/// Returns the error of a table that is not to replace the one of its name.
pub(crate) fn there_is_one() -> Error {
    let message = "a far table of this name exists; choose another name, or set `replace`";
    Error::new(ErrorKind::Exists, message.to_owned())
}

/// Drops a far table: removes its name and frees its memory.
pub fn drop_table(pool: &Pool, name: &str) -> Result<(), Error> {
    pool.delete(&file_name(name)?).map_err(|error| error.during(format_args!("dropping far table {name:?}")))
}
