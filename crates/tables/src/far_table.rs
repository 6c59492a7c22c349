//! A far table as its readers see it: its schema, its row groups, and its rows, which a thread prefetches.

use crate::TABLE_PREFIX;
use crate::decoding::ArrivedGroup;
use crate::encryption::{ScanKeys, TableDecryption};
use crate::footer::RowGroup;
use crate::layout::TableLayout;
use crate::opened_files::OpenedFile;
use crate::schema_mapping::FileColumns;
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Schema, SchemaRef};
use farpool_encryption::TAG_BYTES;
use farpool_files::beneath::{Became, OpenedSnapshot, Session, became, in_one_region};
use farpool_files::{Error, ErrorKind, FarFile, FileInfo, Pool, Protection, ReadRange};
use farpool_host::HostEvent;
use farpool_lock::Mutex;
use farpool_planner::Measured;
use farpool_transport::recv_buffers::RecvBuffer;
use farpool_wire::{TableId, TraceId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of row groups that are requested at once, unless one row group is larger. It is enough to keep several nodes
/// busy.
const FETCH_BYTES: u64 = 8 << 20;
/// Number of batches that wait for the reader before fetching pauses.
const WAITING_MAX: usize = 4;

/// Entry of a list of far tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Name of the table.
    pub name: String,
    /// Size of the table's file in bytes.
    pub bytes: u64,
    /// True if some of its bytes are lost with a node.
    pub is_lost: bool,
}

/// Memory of a row group that lies as a whole in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLocation {
    /// Name of the memory node.
    pub node: String,
    /// Number of the region at its node, counted from 0.
    pub region: u32,
    /// Offset of the row group in the region, in bytes.
    pub offset: u64,
}

/// An open far table. Clones are cheap and may be read from many threads at once.
///
/// Methods are of four kinds. `name`, `schema`, `row_groups`, `rows`, `layout` and `bytes` describe the table from
/// the footer that was read when it was opened; they send no request. `read` fetches rows: it starts a thread that
/// fetches ahead of the returned iterator. `query` begins a plan; `explain` and `estimate` say what the plan would
/// do, and `run` and `run_groups` run it. `caller` runs functions over the table. Methods may be called in any order. A
/// table holds no lock of its own while it is idle: the footer is immutable, and each read or query has its own state.
///
/// A handle keeps the table that was opened: if the table is dropped or another one replaces it, reads are errors.
#[derive(Clone)]
pub struct FarTable {
    name: Arc<str>,
    session: Arc<Session>,
    schema: SchemaRef,
    layout: TableLayout,
    is_encrypted: bool,
    files: Arc<[DataFile]>,
    /// Row groups of all files, in the order of their rows.
    groups: Arc<[RowGroup]>,
    /// Number in its file of the first row of each row group. Encryption counts rows within files.
    rows_before: Arc<[u64]>,
    /// Snapshot that has the files, which does not end as long as this lives. `None` for a table of one file.
    snapshot: Option<Arc<OpenedSnapshot>>,
    /// Which files of the snapshot are open.
    opened: FilesOpened,
    /// True if nodes encrypt the results that they send.
    pub(crate) encrypt_answers: bool,
    /// Trace id of its queries. With [`TraceId::NONE`] each query draws its own.
    pub(crate) trace: TraceId,
}

/// File with rows of a table, open.
pub(crate) struct DataFile {
    pub(crate) file: FarFile,
    /// Number of its first row group in the table.
    first_group: usize,
    /// Its columns, as those of the table.
    pub(crate) columns: Arc<FileColumns>,
    /// Key of the file if it is encrypted and was opened with the key of the table.
    pub(crate) decryption: Option<Arc<TableDecryption>>,
}

/// Returns the published far tables, ordered by name.
pub fn tables(pool: &Pool) -> Result<Vec<TableInfo>, Error> {
    let describe = |info: FileInfo| {
        let name = info.name.strip_prefix(TABLE_PREFIX)?.to_owned();
        info.is_published.then_some(TableInfo { name, bytes: info.bytes, is_lost: info.is_lost })
    };
    Ok(pool.list(TABLE_PREFIX)?.into_iter().filter_map(describe).collect())
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

impl std::fmt::Debug for FarTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarTable")
            .field("name", &self.name)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

impl FarTable {
    /// Makes a table of files whose rows follow each other.
    pub(crate) fn of_files(
        name: &str,
        session: Arc<Session>,
        schema: SchemaRef,
        opened: Vec<OpenedFile>,
    ) -> Result<FarTable, Error> {
        let is_encrypted = opened.iter().any(|opened| opened.is_encrypted);
        let (mut files, mut groups) = (Vec::with_capacity(opened.len()), Vec::new());
        let mut rows_before = Vec::new();
        for OpenedFile { file, groups: of_file, columns, left_out, decryption, .. } in opened {
            let (first_group, decryption) = (groups.len(), decryption.map(Arc::new));
            files.push(DataFile { file, first_group, columns, decryption });
            let mut before = 0;
            for (number, group) in (0u32..).zip(of_file) {
                let rows = u64::from(group.rows);
                if left_out.binary_search(&number).is_err() {
                    rows_before.push(before);
                    groups.push(group);
                }
                before += rows;
            }
        }
        let is_in_rows = |group: &RowGroup| group.rows_buffer().is_some();
        let layout = match !groups.is_empty() && groups.iter().all(is_in_rows) {
            true => TableLayout::Rows,
            false => TableLayout::Columns,
        };
        let (name, encrypt_answers, trace) = (name.into(), false, TraceId::NONE);
        let (snapshot, opened) = (None, FilesOpened::all(files.len()));
        let (files, groups, rows_before) = (files.into(), groups.into(), rows_before.into());
        Ok(FarTable {
            name,
            session,
            schema,
            layout,
            is_encrypted,
            files,
            groups,
            rows_before,
            snapshot,
            opened,
            encrypt_answers,
            trace,
        })
    }

    /// Holds the snapshot that has the files.
    pub(crate) fn holding(self, snapshot: Arc<OpenedSnapshot>) -> FarTable {
        FarTable { snapshot: Some(snapshot), ..self }
    }

    pub(crate) fn with_files_opened(self, opened: FilesOpened) -> FarTable {
        FarTable { opened, ..self }
    }

    /// Returns which files of its snapshot the table has open. The rows and row groups of the others are not counted.
    pub fn files_opened(&self) -> &FilesOpened {
        &self.opened
    }

    /// Returns the id of the table. `None` if the table is one file, without snapshots.
    pub fn id(&self) -> Option<TableId> {
        self.snapshot.as_ref().map(|opened| opened.at.table)
    }

    /// Returns the number of the snapshot that was opened. `None` if the table is one file, without snapshots.
    pub fn snapshot(&self) -> Option<u64> {
        self.snapshot.as_ref().map(|opened| opened.at.snapshot)
    }

    /// Returns the file of a row group.
    pub(crate) fn file_of(&self, group: usize) -> Option<&DataFile> {
        let after = self.files.partition_point(|file| file.first_group <= group);
        self.files.get(after.checked_sub(1)?).filter(|_| group < self.groups.len())
    }

    /// Returns the name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the columns of the table, in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the row groups: their rows and statistics, the offset of each group in its file, and the offsets of its
    /// buffers in the group.
    pub fn row_groups(&self) -> &[RowGroup] {
        &self.groups
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.rows)).sum()
    }

    /// Returns the layout of the rows: rows if all of them lie so.
    pub fn layout(&self) -> TableLayout {
        self.layout
    }

    /// Reports whether the table is encrypted, so that only clients with its key can read it.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the protection against the loss of a node. A table with fewer parts than the code that was asked for has
    /// a mirror.
    pub fn protection(&self) -> Protection {
        let protections = self.files.iter().map(|file| file.file.protection());
        // The weakest counts: losing one file loses rows.
        protections.min_by_key(|protection| protection.hosts_min()).unwrap_or(Protection::None)
    }

    /// Makes nodes encrypt the results of scans, with a key for each scan. By default they do not. It adds no
    /// protection over the link's own, because keys are sent only over protected links (ADR 0018).
    pub fn encrypting_answers(self) -> FarTable {
        FarTable { encrypt_answers: true, ..self }
    }

    /// Makes all queries of this handle a part of the query with this trace id. By default each draws its own. Nodes
    /// write it to their logs, and [`Report::trace`](crate::Report::trace) has it.
    pub fn traced(self, trace: TraceId) -> FarTable {
        FarTable { trace, ..self }
    }

    /// Returns the trace id that [`Self::traced`] gave. [`TraceId::NONE`] if each query draws its own.
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// Returns the trace id of a new query.
    pub(crate) fn trace_of_query(&self) -> Result<TraceId, Error> {
        if self.trace == TraceId::NONE { self.session().draw_trace() } else { Ok(self.trace) }
    }

    /// Checks that the table can be read: its snapshot has not ended, as far as is known, and an encrypted table needs
    /// its key.
    pub(crate) fn check_readable(&self) -> Result<(), Error> {
        if let Some(opened) = &self.snapshot {
            opened.check()?;
        }
        if self.is_encrypted() && self.files.iter().any(|file| file.decryption.is_none()) {
            let message = format!("far table {:?} is encrypted, and no key was given to open it", self.name);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Returns the keys that scans need.
    pub(crate) fn scan_keys(&self) -> ScanKeys {
        ScanKeys { is_encrypted: self.is_encrypted, encrypt_answers: self.encrypt_answers }
    }

    /// Reports whether the file of a row group has these columns in the types of the table. Others are made when a row
    /// group is read, so no node can run a program over them.
    pub(crate) fn has_in_file(&self, group: usize, columns: &[usize]) -> bool {
        self.file_of(group)
            .is_some_and(|file| columns.iter().all(|column| file.columns.same_place(*column).is_some()))
    }

    /// Returns the number of the first row of each row group.
    pub(crate) fn positions(&self) -> Vec<u64> {
        let mut next = 0;
        let first = |group: &RowGroup| {
            let first = next;
            next += u64::from(group.rows);
            first
        };
        self.groups.iter().map(first).collect()
    }

    /// Returns the number in its file of the first row of a row group. Encryption counts rows within files.
    pub(crate) fn position_in_file(&self, group: usize) -> u64 {
        self.rows_before.get(group).copied().unwrap_or(0)
    }

    /// Returns the table of one row group alone. `None` if there is no such group.
    pub(crate) fn only(&self, group: usize) -> Option<FarTable> {
        let DataFile { file, columns, decryption, .. } = self.file_of(group)?;
        let (file, columns, decryption) = (file.clone(), Arc::clone(columns), decryption.clone());
        let file = DataFile { file, first_group: 0, columns, decryption };
        Some(FarTable {
            files: Arc::new([file]),
            groups: Arc::new([self.groups.get(group)?.clone()]),
            rows_before: Arc::new([self.position_in_file(group)]),
            ..self.clone()
        })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the one file of the table. `None` if it has several, or none.
    pub(crate) fn only_file(&self) -> Option<&FarFile> {
        self.files.first().filter(|_| self.files.len() == 1).map(|file| &file.file)
    }

    /// Returns the size of the table's files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.file.length()).sum()
    }

    /// Returns where a row group lies in memory. `None` if there is no such group, or if no single region holds it:
    /// writing a table puts each group in one region, but draining a node may scatter it.
    pub fn place(&self, group: usize) -> Option<GroupLocation> {
        let (file, group) = (&self.file_of(group)?.file, self.groups.get(group)?);
        let (region, offset) = in_one_region(file, group.offset..group.end().max(group.offset + 1))?;
        Some(GroupLocation { node: region.node.info.name.to_string(), region: region.region.0, offset })
    }

    /// Returns an iterator over the rows: a batch for each row group, with the columns and row groups asked for, in
    /// the order asked for. `None` asks for all. Only these bytes are fetched, by a thread that keeps ahead of the
    /// iterator.
    ///
    /// Errors: [`ErrorKind::Invalid`] if there is no such column or row group, or if the table is encrypted and was
    /// opened without a key. A later error is the iterator's last item: [`ErrorKind::Lost`] if bytes of the table are
    /// lost, [`ErrorKind::Closed`] if the table was dropped or replaced.
    pub fn read(&self, columns: Option<&[usize]>, groups: Option<&[usize]>) -> Result<TableReader, Error> {
        let chosen = |asked: Option<&[usize]>, count: usize, what: &str| match asked {
            None => Ok((0..count).collect::<Vec<_>>()),
            Some(asked) => match asked.iter().find(|index| **index >= count) {
                None => Ok(asked.to_vec()),
                Some(index) => {
                    let message = format!("far table {:?} has no {what} {index}; it has {count}", self.name);
                    Err(Error::new(ErrorKind::Invalid, message))
                }
            },
        };
        self.check_readable()?;
        let columns = chosen(columns, self.schema().fields().len(), "column")?;
        let groups = chosen(groups, self.row_groups().len(), "row group")?;
        let fields: Vec<_> =
            columns.iter().map(|index| Arc::clone(&self.schema().fields()[*index])).collect();
        let schema = Arc::new(Schema::new(fields));
        let shared = Arc::new(Shared::default());
        let fetch = Fetch {
            table: self.clone(),
            columns,
            groups: groups.into(),
            schema: Arc::clone(&schema),
            shared: Arc::clone(&shared),
        };
        let host = self.session().host();
        host.spawn("farpool-table", Box::new(move || fetch.run()))
            .map_err(|error| Error::new(ErrorKind::Refused, format!("cannot start a thread: {error}")))?;
        Ok(TableReader { table: self.clone(), schema, shared })
    }

    /// Returns the cause of an error: that the snapshot of the table has ended, if it has.
    pub(crate) fn cause_in_snapshot(&self, error: Error) -> Error {
        match &self.snapshot {
            Some(opened) => opened.cause_of(error),
            None => error,
        }
    }

    /// Adds the table's name to the error of a read. If the table was dropped or replaced meanwhile, returns that as
    /// the error instead.
    fn cause_of(&self, error: Error) -> Error {
        let error = error.during(format_args!("reading far table {:?}", self.name));
        if error.kind() != ErrorKind::Lost {
            return error;
        }
        if self.snapshot.is_some() {
            return self.cause_in_snapshot(error);
        }
        let became = match self.only_file().and_then(became) {
            Some(Became::Replaced) => "was replaced",
            Some(Became::Dropped) => "was dropped",
            None => return error,
        };
        Error::new(ErrorKind::Closed, format!("far table {:?} {became} after it was opened", self.name))
    }
}

/// Batches that the fetching thread passes to the reader.
#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Bytes that have arrived, and the time that they took in ns.
    moved: (AtomicU64, AtomicU64),
    changed: HostEvent,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<Result<RecordBatch, Error>>,
    /// True if the fetching thread has ended.
    is_complete: bool,
    /// True if the reader was dropped.
    is_unwanted: bool,
}

/// Time in ms after which a waiting thread looks again even if it was not woken.
const WAIT_MS: u64 = 1_000;

/// Iterator over the batches of a table, one for each row group.
pub struct TableReader {
    table: FarTable,
    schema: SchemaRef,
    shared: Arc<Shared>,
}

impl TableReader {
    /// Returns the columns that were asked for.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the bytes that have arrived so far, and the time that they took.
    pub(crate) fn moved(&self) -> Measured {
        let (bytes, ns) = &self.shared.moved;
        Measured { bytes: bytes.load(Ordering::Relaxed), ns: ns.load(Ordering::Relaxed) }
    }
}

impl Iterator for TableReader {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let session = self.table.session();
        loop {
            let heard = self.shared.changed.heard();
            {
                let mut waiting = self.shared.waiting.lock();
                if let Some(batch) = waiting.batches.pop_front() {
                    drop(waiting);
                    self.shared.changed.signal();
                    return Some(batch);
                }
                if waiting.is_complete {
                    return None;
                }
            }
            session.host().wait(&self.shared.changed, heard, session.deadline(WAIT_MS));
        }
    }
}

impl Drop for TableReader {
    /// Does not wait for the fetching thread, which ends when its requests are answered. Waiting could block for
    /// ever: the thread may be recreating lost bytes with a function that itself waits for whoever drops this reader.
    fn drop(&mut self) {
        self.shared.waiting.lock().is_unwanted = true;
        self.shared.changed.signal();
    }
}

/// State of the fetching thread.
struct Fetch {
    table: FarTable,
    columns: Vec<usize>,
    groups: VecDeque<usize>,
    schema: SchemaRef,
    shared: Arc<Shared>,
}

/// Guard that marks the batches as complete when it is dropped, so also if the thread panics.
struct Completion(Arc<Shared>);

impl Drop for Completion {
    fn drop(&mut self) {
        self.0.waiting.lock().is_complete = true;
        self.0.changed.signal();
    }
}

impl Fetch {
    fn run(mut self) {
        let _completion = Completion(Arc::clone(&self.shared));
        while !self.groups.is_empty() && self.wait_for_room() {
            let batches = self.next().unwrap_or_else(|error| vec![Err(self.table.cause_of(error))]);
            let has_failed = batches.iter().any(Result::is_err);
            self.shared.waiting.lock().batches.extend(batches);
            self.shared.changed.signal();
            if has_failed {
                return;
            }
        }
    }

    /// Waits until there is room for more batches. Reports whether the reader still exists.
    fn wait_for_room(&self) -> bool {
        let session = self.table.session();
        loop {
            let heard = self.shared.changed.heard();
            {
                let waiting = self.shared.waiting.lock();
                if waiting.is_unwanted || waiting.batches.len() < WAITING_MAX {
                    return !waiting.is_unwanted;
                }
            }
            session.host().wait(&self.shared.changed, heard, session.deadline(WAIT_MS));
        }
    }

    /// Fetches the next row groups with one batch of reads.
    fn next(&mut self) -> Result<Vec<Result<RecordBatch, Error>>, Error> {
        let table = self.table.clone();
        table.check_readable()?;
        let tag_bytes = if table.is_encrypted { TAG_BYTES } else { 0 };
        let mut taken: Vec<(usize, &RowGroup, Vec<RecvBuffer>)> = Vec::new();
        let mut bytes = 0;
        let mut of: Option<&DataFile> = None;
        while let Some(index) = self.groups.front()
            && taken.len() < WAITING_MAX
        {
            let group = &table.groups[*index];
            // One batch of reads is about one file.
            let file = table.file_of(*index);
            if file.zip(of).is_some_and(|(file, of)| !std::ptr::eq(file, of)) {
                break;
            }
            of = file;
            let sizes = || group.buffers(&self.columns).map(|buffer| buffer.bytes as usize + tag_bytes);
            bytes += sizes().sum::<usize>() as u64;
            if bytes > FETCH_BYTES && !taken.is_empty() {
                break;
            }
            taken.push((*index, group, sizes().map(RecvBuffer::new).collect()));
            self.groups.pop_front();
        }
        let mut ranges = Vec::new();
        for (_, group, buffers) in &mut taken {
            for (at, into) in group.buffers(&self.columns).zip(buffers.iter_mut()) {
                let offset = group.offset + u64::from(at.offset);
                ranges.push(ReadRange { offset, into: into.as_mut() });
            }
        }
        ranges.retain(|range| !range.into.is_empty());
        let host = table.session().host();
        let begun = host.now();
        if let Some(of) = of {
            of.file.read_batch(&mut ranges)?;
        }
        let (moved, moved_ns) = &self.shared.moved;
        moved.fetch_add(ranges.iter().map(|range| range.into.len() as u64).sum(), Ordering::Relaxed);
        moved_ns.fetch_add(host.now().0.saturating_sub(begun.0), Ordering::Relaxed);
        Ok(taken.into_iter().map(|(index, group, buffers)| self.batch(index, group, buffers)).collect())
    }

    fn batch(&self, index: usize, group: &RowGroup, buffers: Vec<RecvBuffer>) -> Result<RecordBatch, Error> {
        let damaged = |column: Option<usize>, why: String| {
            let column = column.map_or_else(String::new, |place| {
                format!("column {:?} in ", self.schema.field(place).name())
            });
            let message = format!(
                "far table {:?}: {column}the row group at byte {}: {why}",
                self.table.name, group.offset
            );
            Error::new(ErrorKind::Refused, message)
        };
        let file = self.table.file_of(index);
        let file = file.ok_or_else(|| damaged(None, "its file is missing".to_owned()))?;
        let (position, decryption) = (self.table.position_in_file(index), file.decryption.as_deref());
        let arrived = ArrivedGroup { group, file: &file.columns, position, decryption };
        let types = self.schema.fields().iter().map(|field| field.data_type());
        let wanted: Vec<_> = self.columns.iter().copied().zip(types).collect();
        let arrays = arrived.columns(&wanted, buffers).map_err(|(column, why)| damaged(column, why))?;
        // A batch without columns still has its number of rows.
        let options = RecordBatchOptions::new().with_row_count(Some(group.rows as usize));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
            .map_err(|error| Error::new(ErrorKind::Refused, error.to_string()))
    }
}
