//! Opening many files of a table in few rounds of requests, and only those that a query reads.
//!
//! The idea: the footers of many files are small, and each of them is a request to a node. So they are asked for
//! together, from all nodes at once. The manifest tells the bounds of some columns over each file, so a file in which
//! no row can pass the filters of a query is not opened at all.

use crate::far_table::{Latest, OpenedFile, no_table, open_latest, opened_file};
use crate::footer::Trailer;
use crate::manifest::DataFile;
use crate::skipping::{FileBounds, file_may_pass};
use crate::snapshot::{TableSnapshot, table_snapshot};
use crate::statistics::Statistics;
use crate::{FarTable, GROUP_ALIGN};
use arrow_schema::SchemaRef;
use farpool_encryption::TableKey;
use farpool_files::beneath::{Session, open_parts, queue_of, session_of};
use farpool_files::{Error, ErrorKind, FarFile, Pool, ReadRange};
use farpool_lock::Mutex;
use farpool_operators::{KeySet, Plan, Program, Query};
use farpool_wire::TableId;
use farpool_wire::control::PartAt;
use farpool_wire::limits::OPENED_PARTS_MAX;
use std::sync::Arc;

/// Bytes that are read from several files at once, at most, unless one read is larger.
const TOGETHER_BYTES_MAX: usize = 16 << 20;

/// Trailer of a file of a table, and the footer or manifest that it locates.
pub(crate) type End = (Trailer, Vec<u8>);

/// Range of a file: the offset of its first byte, and how many.
type Wanted<'f> = (&'f FarFile, u64, usize);

/// Reads a range of each of several files, from all of their nodes at once.
fn read_each(session: &Arc<Session>, wanted: &[Wanted<'_>]) -> Result<Vec<Vec<u8>>, Error> {
    if let [(file, offset, bytes)] = wanted {
        let mut into = vec![0; *bytes];
        file.read_batch(&mut [ReadRange { offset: *offset, into: &mut into }])?;
        return Ok(vec![into]);
    }
    let mut queue = queue_of(session);
    let mut read = vec![Vec::new(); wanted.len()];
    let (mut left, mut under_way) = (wanted.iter().zip(0u64..), 0);
    loop {
        while under_way < TOGETHER_BYTES_MAX
            && let Some(((file, offset, bytes), tag)) = left.next()
        {
            under_way += *bytes;
            queue.read(tag, file, *offset, vec![0; *bytes]);
        }
        let Some(done) = queue.wait() else { return Ok(read) };
        done.result?;
        under_way -= done.bytes.len();
        if let Some(into) = read.get_mut(done.tag as usize) {
            *into = done.bytes;
        }
    }
}

/// Returns where the bytes begin that are read first of a file: those behind the last row group, if they are no more
/// than 64 KiB.
fn tail_start(length: u64) -> u64 {
    let behind_groups = length.saturating_sub(1) / GROUP_ALIGN as u64 * GROUP_ALIGN as u64;
    behind_groups.min(length.saturating_sub(Trailer::BYTES as u64))
}

/// Reads the ends of files of a table, in two rounds of reads at most.
pub(crate) fn read_ends(session: &Arc<Session>, files: &[FarFile]) -> Result<Vec<End>, Error> {
    let tail = |file| {
        let length = FarFile::length(file);
        let start = tail_start(length);
        (file, start, (length - start) as usize)
    };
    let tails = read_each(session, &files.iter().map(tail).collect::<Vec<_>>())?;
    let mut ends = Vec::with_capacity(files.len());
    for (file, tail) in files.iter().zip(tails) {
        let length = file.length();
        let Some((before, trailer)) = tail.split_last_chunk::<{ Trailer::BYTES }>() else {
            return Err(no_table(format!("it has {length} bytes; a trailer has {}", Trailer::BYTES)));
        };
        let trailer = Trailer::take(trailer, length).map_err(no_table)?;
        let start = before.len().checked_sub(trailer.footer_bytes as usize);
        ends.push((file, trailer, start.map(|start| before[start..].to_vec())));
    }
    let longer = ends.iter().filter(|(.., bytes)| bytes.is_none());
    let longer =
        longer.map(|(file, trailer, _)| (*file, trailer.footer_offset, trailer.footer_bytes as usize));
    let mut longer = read_each(session, &longer.collect::<Vec<_>>())?.into_iter();
    let whole = |(_, trailer, bytes): (&FarFile, Trailer, Option<Vec<u8>>)| {
        let bytes = bytes.or_else(|| longer.next()).unwrap_or_default();
        match crc32c::crc32c(&bytes) == trailer.footer_crc {
            true => Ok((trailer, bytes)),
            false => Err(no_table("the checksum of its footer does not match".to_owned())),
        }
    };
    ends.into_iter().map(whole).collect()
}

/// Reads the end of a file of a table.
pub(crate) fn read_end(file: &FarFile) -> Result<End, Error> {
    let mut ends = read_ends(session_of(file), std::slice::from_ref(file))?;
    ends.pop().ok_or_else(|| no_table("it has no end".to_owned()))
}

/// Opens files with rows of a table, 1,024 at a time, and reads their footers. Returns their columns as well.
pub(crate) fn open_files(
    session: &Arc<Session>,
    table: TableId,
    parts: &[PartAt],
    key: Option<&TableKey>,
) -> Result<Vec<(SchemaRef, OpenedFile)>, Error> {
    let mut opened = Vec::with_capacity(parts.len());
    for parts in parts.chunks(OPENED_PARTS_MAX) {
        let files = open_parts(session, table, parts)?;
        let ends = read_ends(session, &files)?;
        for (file, (trailer, bytes)) in files.into_iter().zip(ends) {
            opened.push(opened_file(file, trailer, &bytes, key)?);
        }
    }
    Ok(opened)
}

/// Which files of its snapshot a table has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOpened {
    /// Number of files of the snapshot; 1 for a table without snapshots.
    pub total: usize,
    /// Numbers of those that are open, in order. `None`: all.
    pub numbers: Option<Arc<[u32]>>,
}

impl FilesOpened {
    pub(crate) fn all(total: usize) -> FilesOpened {
        FilesOpened { total, numbers: None }
    }

    /// Returns how many files are not open, because by their bounds no row passes the filters of the query.
    pub fn skipped(&self) -> usize {
        self.numbers.as_ref().map_or(0, |numbers| self.total.saturating_sub(numbers.len()))
    }
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

/// Finds a far table whose files are opened once a query is known. `snapshot` chooses an earlier one.
///
/// Errors: those of [`open_table`](crate::open_table) and [`table_snapshot`].
pub fn table_on_demand(
    pool: &Pool,
    name: &str,
    snapshot: Option<u64>,
    key: Option<&TableKey>,
) -> Result<TableOnDemand, Error> {
    let open = || {
        let found = match snapshot {
            Some(snapshot) => table_snapshot(pool, name, snapshot, key)?,
            None => match open_latest(pool, name, key)? {
                Latest::OneFile(table) => return Ok(TableOnDemand::from(table)),
                Latest::Snapshot(found) => found,
            },
        };
        let files = found.files()?;
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
