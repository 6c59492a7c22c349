//! One file on the broker's disk, in an embedded B-tree with synced commits.
//!
//! Tables: `meta` (`format`, `term`, `key`, `next_file`) and `names` (name to a published file, its fields in
//! the form of the wire). A file whose `format` is another version is refused, never converted in passing. No table is
//! ever renamed and no savepoint taken: those are the parts of redb where corruption was found.

use super::{Store, StoreError, decode_file, encode_file};
use farpool_lease::broker::{Durable, Record};
use farpool_wire::{FileId, Name, Term};
use redb::{Database, DatabaseError, ReadOnlyDatabase, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const NAMES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("names");

/// The version of what is inside the tables.
pub const STORE_FORMAT: u64 = 2;

/// See the module.
pub struct RedbStore {
    database: Database,
    path: String,
}

impl RedbStore {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> Result<RedbStore, StoreError> {
        let shown = path.display().to_string();
        let cannot = |error| StoreError(format!("the broker store {shown} cannot be opened: {error}"));
        // Opening for writing already changes a file, so one that is not ours is told apart by reading. A file
        // whose writer crashed cannot be read before it is repaired; it is checked behind the repair.
        if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
            match ReadOnlyDatabase::open(path) {
                Ok(database) => check_kind(&database, &shown)?,
                Err(DatabaseError::RepairAborted) => {}
                Err(error) => return Err(cannot(error)),
            }
        }
        let database = Database::create(path).map_err(cannot)?;
        let mut store = RedbStore { database, path: shown };
        store.check_format()?;
        Ok(store)
    }

    fn failed(&self, error: impl Into<redb::Error>) -> StoreError {
        StoreError(format!("the broker store {}: {}", self.path, error.into()))
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError(format!("the broker store {} is damaged: {what}", self.path))
    }

    fn check_format(&mut self) -> Result<(), StoreError> {
        let transaction = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut meta = transaction.open_table(META).map_err(|error| self.failed(error))?;
            transaction.open_table(NAMES).map_err(|error| self.failed(error))?;
            let found =
                meta.get("format").map_err(|error| self.failed(error))?.map(|value| value.value().to_vec());
            match found {
                None => {
                    meta.insert("format", &STORE_FORMAT.to_le_bytes()[..])
                        .map_err(|error| self.failed(error))?;
                }
                Some(found) => check_version(&found, &self.path)?,
            }
        }
        transaction.commit().map_err(|error| self.failed(error))
    }

    fn number(&self, what: &str, bytes: &[u8]) -> Result<u64, StoreError> {
        let bytes =
            bytes.try_into().map_err(|_| self.damaged(&format!("{what} is {} bytes long", bytes.len())))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// A file without tables is one whose first commit never came.
fn check_kind(database: &ReadOnlyDatabase, path: &str) -> Result<(), StoreError> {
    let foreign = |error: &dyn std::fmt::Display| {
        StoreError(format!("{path} is a redb file, but not a broker store: {error}"))
    };
    let transaction = database.begin_read().map_err(|error| foreign(&error))?;
    if transaction.list_tables().map_err(|error| foreign(&error))?.next().is_none() {
        return Ok(());
    }
    let meta = transaction.open_table(META).map_err(|error| foreign(&error))?;
    let format = meta.get("format").map_err(|error| foreign(&error))?;
    check_version(format.ok_or_else(|| foreign(&"it names no format"))?.value(), path)
}

fn check_version(format: &[u8], path: &str) -> Result<(), StoreError> {
    let shown = match <[u8; 8]>::try_from(format).map(u64::from_le_bytes) {
        Ok(STORE_FORMAT) => return Ok(()),
        Ok(other) => other.to_string(),
        Err(_) => format!("{format:02x?}"),
    };
    Err(StoreError(format!(
        "the broker store {path} has format {shown}; this version reads and writes format {STORE_FORMAT} only. \
         Use the version that wrote it, or another --store file"
    )))
}

impl Store for RedbStore {
    fn load(&self) -> Result<Durable, StoreError> {
        let transaction = self.database.begin_read().map_err(|error| self.failed(error))?;
        let meta = transaction.open_table(META).map_err(|error| self.failed(error))?;
        let mut durable = Durable::default();
        if let Some(term) = meta.get("term").map_err(|error| self.failed(error))? {
            durable.term = Term(self.number("term", term.value())?);
        }
        if let Some(file) = meta.get("next_file").map_err(|error| self.failed(error))? {
            durable.next_file = FileId(self.number("next_file", file.value())?);
        }
        if let Some(key) = meta.get("key").map_err(|error| self.failed(error))? {
            durable.key = Some(key.value().try_into().map_err(|_| self.damaged("key is not 32 bytes long"))?);
        }
        let names = transaction.open_table(NAMES).map_err(|error| self.failed(error))?;
        for entry in names.iter().map_err(|error| self.failed(error))? {
            let (name, file) = entry.map_err(|error| self.failed(error))?;
            let shown = name.value().to_owned();
            let file = decode_file(file.value())
                .map_err(|error| self.damaged(&format!("file {shown:?}: {error}")))?;
            let name = Name::new(shown).map_err(|error| self.damaged(&error.to_string()))?;
            durable.names.insert(name, file);
        }
        Ok(durable)
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        // The default durability of a redb commit is `Immediate`: synced before it returns.
        let transaction = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut meta = transaction.open_table(META).map_err(|error| self.failed(error))?;
            let mut names = transaction.open_table(NAMES).map_err(|error| self.failed(error))?;
            for record in records {
                match record {
                    Record::Term(term) => {
                        meta.insert("term", &term.0.to_le_bytes()[..]).map_err(|error| self.failed(error))?;
                    }
                    Record::Key(key) => {
                        meta.insert("key", &key[..]).map_err(|error| self.failed(error))?;
                    }
                    Record::NextFile(file) => {
                        meta.insert("next_file", &file.0.to_le_bytes()[..])
                            .map_err(|error| self.failed(error))?;
                    }
                    Record::Name(name, file) => {
                        names.insert(&**name, &encode_file(file)?[..]).map_err(|error| self.failed(error))?;
                    }
                    Record::DropName(name) => {
                        names.remove(&**name).map_err(|error| self.failed(error))?;
                    }
                }
            }
        }
        transaction.commit().map_err(|error| self.failed(error))
    }
}
