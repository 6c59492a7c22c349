//! Opening a table by its name: all of its files, or only those that a query reads.
//!
//! The idea: the manifest tells the bounds of some columns over each file, so a file in which no row can pass the
//! filters of a query is not opened at all.

use crate::far_table::{FarTable, FilesOpened};
use crate::manifest::DataFile;
use crate::manifest_file::needs_key;
use crate::names::file_name;
use crate::opened_files::{opened_file, read_end};
use crate::skipping::{FileBounds, file_may_pass};
use crate::snapshot::{TableSnapshot, described_snapshot};
use crate::statistics::Statistics;
use arrow_schema::SchemaRef;
use farpool_encryption::TableKey;
use farpool_files::beneath::session_of;
use farpool_files::{Error, ErrorKind, Pool};
use farpool_lock::Mutex;
use farpool_operators::{KeySet, Plan, Program, Query};
use std::sync::Arc;

/// Opens a far table. An encrypted table is opened with the key that it was written with; without the key it can be
/// described but not read.
///
/// Errors: [`ErrorKind::NotFound`] if there is no table of this name; [`ErrorKind::Lost`] if its bytes are lost;
/// [`ErrorKind::Invalid`] if the file of this name is not a far table, if the key is another one, or if a key is
/// given and the table is not encrypted; [`ErrorKind::Refused`] if the footer was changed after it was encrypted.
pub fn open_table(pool: &Pool, name: &str, key: Option<&TableKey>) -> Result<FarTable, Error> {
    let open = || match open_latest(pool, name, key)? {
        Latest::OneFile(table) => Ok(table),
        Latest::Snapshot(snapshot) => snapshot.open_all(),
    };
    open().map_err(|error: Error| error.during(format_args!("opening far table {name:?}")))
}

/// Table as its name has it now.
enum Latest {
    /// It is one file, which is open.
    OneFile(FarTable),
    Snapshot(TableSnapshot),
}

/// Opens a table without the files of a snapshot.
fn open_latest(pool: &Pool, name: &str, key: Option<&TableKey>) -> Result<Latest, Error> {
    let file = pool.open(&file_name(name)?)?;
    let session = Arc::clone(session_of(&file));
    let (trailer, bytes) = read_end(&file)?;
    if trailer.form.is_manifest() {
        return described_snapshot(pool, name, 0, key).map(Latest::Snapshot);
    }
    let (schema, opened) = opened_file(file, trailer, &bytes, key)?;
    FarTable::of_files(name, session, schema, vec![opened]).map(Latest::OneFile)
}

/// Far table whose files are opened once it is known which of them a query reads. Clones are cheap.
///
/// It describes the table from its manifest. A table without snapshots is one file, which is open from the start.
#[derive(Clone)]
pub struct TableOnDemand {
    name: Arc<str>,
    kind: Kind,
    encrypts_answers: bool,
}

#[derive(Clone)]
enum Kind {
    Open(FarTable),
    Snapshot(Arc<Unopened>),
}

/// Snapshot, its files, and those that were opened last.
struct Unopened {
    snapshot: TableSnapshot,
    files: Vec<DataFile>,
    /// Table of no file, for what depends on its columns alone.
    empty: FarTable,
    last: Mutex<Option<FarTable>>,
}

/// Finds a far table whose files are opened once a query is known. `snapshot` chooses an earlier one. Without its key,
/// an encrypted table can be described but not read.
///
/// Errors: those of [`open_table`](crate::open_table) and [`table_snapshot`](crate::table_snapshot).
pub fn table_on_demand(
    pool: &Pool,
    name: &str,
    snapshot: Option<u64>,
    key: Option<&TableKey>,
) -> Result<TableOnDemand, Error> {
    let open = || {
        let found = match snapshot {
            Some(snapshot) => described_snapshot(pool, name, snapshot, key)?,
            None => match open_latest(pool, name, key)? {
                Latest::OneFile(table) => return Ok(TableOnDemand::from(table)),
                Latest::Snapshot(found) => found,
            },
        };
        let files = if found.is_locked() { Vec::new() } else { found.files()? };
        let empty = found.open_some(&files, &[])?;
        let unopened = Unopened { snapshot: found, files, empty, last: Mutex::new(None) };
        let kind = Kind::Snapshot(Arc::new(unopened));
        Ok(TableOnDemand { name: name.into(), kind, encrypts_answers: false })
    };
    open().map_err(|error: Error| error.during(format_args!("opening far table {name:?}")))
}

impl From<FarTable> for TableOnDemand {
    fn from(table: FarTable) -> TableOnDemand {
        TableOnDemand { name: table.name().into(), encrypts_answers: false, kind: Kind::Open(table) }
    }
}

impl std::fmt::Debug for TableOnDemand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableOnDemand")
            .field("name", &self.name)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

impl TableOnDemand {
    /// Returns the name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the columns in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        match &self.kind {
            Kind::Open(table) => table.schema(),
            Kind::Snapshot(unopened) => unopened.snapshot.schema(),
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        match &self.kind {
            Kind::Open(table) => table.rows(),
            Kind::Snapshot(unopened) => unopened.snapshot.totals().rows,
        }
    }

    /// Returns the size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Open(table) => table.bytes(),
            Kind::Snapshot(unopened) => unopened.snapshot.totals().bytes,
        }
    }

    /// Returns the table if it is open from the start: it has no snapshots.
    pub fn opened(&self) -> Option<&FarTable> {
        match &self.kind {
            Kind::Open(table) => Some(table),
            Kind::Snapshot(_) => None,
        }
    }

    /// Returns the snapshot. `None` if the table has none.
    pub fn snapshot(&self) -> Option<&TableSnapshot> {
        match &self.kind {
            Kind::Open(_) => None,
            Kind::Snapshot(unopened) => Some(&unopened.snapshot),
        }
    }

    /// Reports whether opening it for a query may leave files out.
    pub fn may_skip_files(&self) -> bool {
        matches!(&self.kind, Kind::Snapshot(unopened) if unopened.files.len() > 1)
    }

    /// Returns bounds of a column over all rows, if the manifest keeps them, and if they are those of values that the
    /// table has: no row groups were left out since the files were written. `None` for a table that is open.
    pub fn bounds(&self, column: usize) -> Option<(Statistics, bool)> {
        let Kind::Snapshot(unopened) = &self.kind else { return None };
        let place = unopened.snapshot.root.bounded.iter().position(|of| usize::from(*of) == column)?;
        let bounds = unopened.files.iter().map(|file| file.bounds.get(place).and_then(Option::as_ref));
        let is_exact = unopened.files.iter().all(|file| file.left_out.is_empty());
        Statistics::over(bounds).map(|bounds| (bounds, is_exact))
    }

    /// Makes nodes encrypt the results of scans, as [`FarTable::encrypting_answers`] does.
    pub fn encrypting_answers(self) -> TableOnDemand {
        TableOnDemand { encrypts_answers: true, ..self }
    }

    /// Returns a query over all columns of the table, for the caller to narrow.
    ///
    /// Errors: those of [`FarTable::query`].
    pub fn query(&self) -> Result<Query, Error> {
        match &self.kind {
            Kind::Open(table) => table.query(),
            Kind::Snapshot(unopened) => unopened.empty.query(),
        }
    }

    /// Opens the files that a query has to read.
    pub fn open_for(&self, plan: &Plan) -> Result<FarTable, Error> {
        self.open_passing(&plan.near, &plan.key_sets)
    }

    /// Opens all files.
    pub fn open_all(&self) -> Result<FarTable, Error> {
        self.open(|_| true)
    }

    /// Opens the files in which some row may pass the filters of a program over all columns of the table.
    pub fn open_passing(&self, near: &Program, key_sets: &[Arc<KeySet>]) -> Result<FarTable, Error> {
        let (schema, bounded) = match &self.kind {
            Kind::Open(_) => return self.open_all(),
            Kind::Snapshot(unopened) => (unopened.snapshot.schema(), &unopened.snapshot.root.bounded[..]),
        };
        self.open(|file| {
            let bounds = FileBounds { schema, bounded, bounds: &file.bounds };
            file.rows > 0 && file_may_pass(near, key_sets, bounds)
        })
    }

    fn open(&self, is_wanted: impl Fn(&DataFile) -> bool) -> Result<FarTable, Error> {
        let table = match &self.kind {
            Kind::Open(table) => table.clone(),
            Kind::Snapshot(unopened) => unopened.open(is_wanted)?,
        };
        Ok(if self.encrypts_answers { table.encrypting_answers() } else { table })
    }
}

impl Unopened {
    fn open(&self, is_wanted: impl Fn(&DataFile) -> bool) -> Result<FarTable, Error> {
        if self.snapshot.is_locked() {
            return Err(needs_key().during(format_args!("opening far table {:?}", self.empty.name())));
        }
        let wanted = (0u32..).zip(&self.files).filter(|(_, file)| is_wanted(file)).map(|(number, _)| number);
        let wanted: Vec<u32> = wanted.collect();
        let is_all = wanted.len() == self.files.len();
        let is_same = |table: &&FarTable| match &table.files_opened().numbers {
            None => is_all,
            Some(numbers) => numbers[..] == wanted[..],
        };
        if let Some(same) = self.last.lock().as_ref().filter(is_same) {
            return Ok(same.clone());
        }
        let opened = self.snapshot.open_some(&self.files, &wanted);
        let opened = opened
            .map_err(|error| error.during(format_args!("opening far table {:?}", self.empty.name())))?;
        let before = self.last.lock().replace(opened.clone());
        // Many files may be closed here, without the lock.
        drop(before);
        Ok(opened)
    }
}

impl TableSnapshot {
    /// Opens some of the data files, by their numbers among all of the snapshot, in order.
    ///
    /// Errors: [`ErrorKind::Invalid`] if there is no file of a number, or the numbers are not in ascending order.
    pub fn open_some(&self, all: &[DataFile], numbers: &[u32]) -> Result<FarTable, Error> {
        let mut chosen = Vec::with_capacity(numbers.len());
        for number in numbers {
            chosen.push(all.get(*number as usize).cloned().ok_or_else(|| {
                let message = format!("the snapshot has no file {number}; it has {}", all.len());
                Error::new(ErrorKind::Invalid, message)
            })?);
        }
        if !numbers.is_sorted_by(|one, next| one < next) {
            return Err(Error::new(ErrorKind::Invalid, "the files are not in ascending order"));
        }
        let table = self.open(&chosen)?;
        let is_all = numbers.len() == all.len();
        let opened = FilesOpened { total: all.len(), numbers: (!is_all).then(|| numbers.into()) };
        Ok(table.with_files_opened(opened))
    }
}
