//! A far table as its readers see it: its schema, its row groups, and its rows, which a thread prefetches.

use crate::TABLE_PREFIX;
use crate::column_type::RowLayout;
use crate::encryption::{ScanKeys, TableDecryption};
use crate::footer::{BufferAt, Footer, RowGroup, Trailer, WrongKey};
use crate::layout::TableLayout;
use crate::names::file_name;
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_schema::{Schema, SchemaRef};
use farpool_encryption::{BufferPlace, TAG_BYTES, TableKey};
use farpool_files::beneath::{Became, Session, became, in_one_region, session_of};
use farpool_files::{Error, ErrorKind, FarFile, FileInfo, Pool, Protection, ReadRange};
use farpool_host::HostEvent;
use farpool_lock::Mutex;
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_planner::Measured;
use farpool_transport::recv_buffers::RecvBuffer;
use farpool_wire::TraceId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes at the end of a file that are read first. They contain most footers as a whole.
const TAIL_BYTES: u64 = 64 << 10;
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
    pub(crate) file: FarFile,
    footer: Arc<Footer>,
    /// Key of the table if it is encrypted and was opened with its key.
    pub(crate) decryption: Option<Arc<TableDecryption>>,
    /// True if nodes encrypt the results that they send.
    pub(crate) encrypt_answers: bool,
    /// Trace id of its queries. With [`TraceId::NONE`] each query draws its own.
    pub(crate) trace: TraceId,
}

/// Opens a far table. An encrypted table is opened with the key that it was written with; without the key it can be
/// described but not read.
///
/// Errors: [`ErrorKind::NotFound`] if there is no table of this name; [`ErrorKind::Lost`] if its bytes are lost;
/// [`ErrorKind::Invalid`] if the file of this name is not a far table, if the key is another one, or if a key is
/// given and the table is not encrypted; [`ErrorKind::Refused`] if the footer was changed after it was encrypted.
pub fn open_table(pool: &Pool, name: &str, key: Option<&TableKey>) -> Result<FarTable, Error> {
    let open = || {
        let file = pool.open(&file_name(name)?)?;
        let mut footer = read_footer(&file)?;
        let decryption = key.map(|key| decrypted(&mut footer, key)).transpose()?;
        let (footer, decryption) = (Arc::new(footer), decryption.map(Arc::new));
        let (name, encrypt_answers, trace) = (name.into(), false, TraceId::NONE);
        Ok(FarTable { name, file, footer, decryption, encrypt_answers, trace })
    };
    open().map_err(|error: Error| error.during(format_args!("opening far table {name:?}")))
}

/// Returns the published far tables, ordered by name.
pub fn tables(pool: &Pool) -> Result<Vec<TableInfo>, Error> {
    let describe = |info: FileInfo| {
        let name = info.name.strip_prefix(TABLE_PREFIX)?.to_owned();
        info.is_published.then_some(TableInfo { name, bytes: info.bytes, is_lost: info.is_lost })
    };
    Ok(pool.list(TABLE_PREFIX)?.into_iter().filter_map(describe).collect())
}

/// Decrypts the statistics of a footer with the owner's key.
fn decrypted(footer: &mut Footer, key: &TableKey) -> Result<TableDecryption, Error> {
    let error = |kind, why: &str| Error::new(kind, why.to_owned());
    let salt = footer.encryption.as_ref().map(|encryption| encryption.salt);
    let decrypted = footer.decrypt(key).map_err(|wrong| match wrong {
        WrongKey::Other => {
            error(ErrorKind::Invalid, "the key is wrong: the table was encrypted with another one")
        }
        WrongKey::Changed => error(ErrorKind::Refused, "its footer was changed since it was encrypted"),
    })?;
    let not_encrypted = || error(ErrorKind::Invalid, "a key was given, but the table is not encrypted");
    let ((cipher, key), salt) = decrypted.zip(salt).ok_or_else(not_encrypted)?;
    Ok(TableDecryption { key, salt, cipher })
}

fn read_footer(file: &FarFile) -> Result<Footer, Error> {
    let no_table =
        |why: String| Error::new(ErrorKind::Invalid, format!("the file is not a far table: {why}"));
    let length = file.length();
    let tail_at = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; (length - tail_at) as usize];
    file.read_batch(&mut [ReadRange { offset: tail_at, into: &mut tail }])?;
    let Some((before, trailer)) = tail.split_last_chunk::<{ Trailer::BYTES }>() else {
        return Err(no_table(format!("it has {length} bytes; a trailer has {}", Trailer::BYTES)));
    };
    let trailer = Trailer::take(trailer, length).map_err(no_table)?;
    let mut longer = Vec::new();
    let bytes = match before.len().checked_sub(trailer.footer_bytes as usize) {
        Some(start) => &before[start..],
        None => {
            longer.resize(trailer.footer_bytes as usize, 0);
            file.read_batch(&mut [ReadRange { offset: trailer.footer_offset, into: &mut longer }])?;
            &longer
        }
    };
    if crc32c::crc32c(bytes) != trailer.footer_crc {
        return Err(no_table("the checksum of its footer does not match".to_owned()));
    }
    let take = if trailer.is_encrypted { Footer::take_encrypted } else { Footer::take };
    take(bytes, trailer.footer_offset).map_err(|error| no_table(format!("its footer is invalid: {error}")))
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
    /// Returns the name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the columns of the table, in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        &self.footer.schema
    }

    /// Returns the row groups: their rows and statistics, the offset of each group in the file, and the offsets of its
    /// buffers in the group.
    pub fn row_groups(&self) -> &[RowGroup] {
        &self.footer.groups
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.footer.rows()
    }

    /// Returns the layout of the rows.
    pub fn layout(&self) -> TableLayout {
        match self.footer.groups.first().and_then(RowGroup::rows_buffer) {
            Some(_) => TableLayout::Rows,
            None => TableLayout::Columns,
        }
    }

    /// Reports whether the table is encrypted, so that only clients with its key can read it.
    pub fn is_encrypted(&self) -> bool {
        self.footer.encryption.is_some()
    }

    /// Returns the protection against the loss of a node. A table with fewer parts than the code that was asked for has
    /// a mirror.
    pub fn protection(&self) -> Protection {
        self.file.protection()
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

    /// Checks that the table can be read: an encrypted table needs its key.
    pub(crate) fn check_key(&self) -> Result<(), Error> {
        if self.is_encrypted() && self.decryption.is_none() {
            let message = format!("far table {:?} is encrypted, and no key was given to open it", self.name);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Returns the keys that scans of these columns need.
    pub(crate) fn scan_keys(&self, columns: &[usize]) -> ScanKeys {
        let columns = || columns.iter().map(|column| *column as u16).collect();
        let table = self.decryption.as_ref().map(|decryption| (Arc::clone(decryption), columns()));
        ScanKeys { table, encrypt_answers: self.encrypt_answers }
    }

    /// Returns the number of the first row of each row group.
    pub(crate) fn positions(&self) -> Vec<u64> {
        let mut next = 0;
        let first = |group: &RowGroup| {
            let first = next;
            next += u64::from(group.rows);
            first
        };
        self.footer.groups.iter().map(first).collect()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        session_of(&self.file)
    }

    /// Returns the file of the table.
    pub(crate) fn file(&self) -> &FarFile {
        &self.file
    }

    /// Returns the size of the table's file in bytes.
    pub fn bytes(&self) -> u64 {
        self.file.length()
    }

    /// Returns where a row group lies in memory. `None` if there is no such group, or if no single region holds it:
    /// writing a table puts each group in one region, but draining a node may scatter it.
    pub fn place(&self, group: usize) -> Option<GroupLocation> {
        let group = self.footer.groups.get(group)?;
        let (region, offset) = in_one_region(&self.file, group.offset..group.end().max(group.offset + 1))?;
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
        self.check_key()?;
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
            positions: self.positions(),
            schema: Arc::clone(&schema),
            shared: Arc::clone(&shared),
        };
        let host = self.session().host();
        host.spawn("farpool-table", Box::new(move || fetch.run()))
            .map_err(|error| Error::new(ErrorKind::Refused, format!("cannot start a thread: {error}")))?;
        Ok(TableReader { table: self.clone(), schema, shared })
    }

    /// Adds the table's name to the error of a read. If the table was dropped or replaced meanwhile, returns that as
    /// the error instead.
    fn cause_of(&self, error: Error) -> Error {
        let error = error.during(format_args!("reading far table {:?}", self.name));
        if error.kind() != ErrorKind::Lost {
            return error;
        }
        let became = match became(&self.file) {
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
    /// Number of the first row of each row group of the table.
    positions: Vec<u64>,
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
        let tag_bytes = if table.decryption.is_some() { TAG_BYTES } else { 0 };
        let mut taken: Vec<(usize, &RowGroup, Vec<RecvBuffer>)> = Vec::new();
        let mut bytes = 0;
        while let Some(index) = self.groups.front()
            && taken.len() < WAITING_MAX
        {
            let group = &table.footer.groups[*index];
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
        table.file.read_batch(&mut ranges)?;
        let (moved, moved_ns) = &self.shared.moved;
        moved.fetch_add(ranges.iter().map(|range| range.into.len() as u64).sum(), Ordering::Relaxed);
        moved_ns.fetch_add(host.now().0.saturating_sub(begun.0), Ordering::Relaxed);
        Ok(taken.into_iter().map(|(index, group, buffers)| self.batch(index, group, buffers)).collect())
    }

    fn batch(&self, index: usize, group: &RowGroup, buffers: Vec<RecvBuffer>) -> Result<RecordBatch, Error> {
        let damaged = |column: Option<&str>, why: String| {
            let (name, column) =
                (&self.table.name, column.map_or_else(String::new, |name| format!("column {name:?} in ")));
            let message =
                format!("far table {name:?}: {column}the row group at byte {}: {why}", group.offset);
            Error::new(ErrorKind::Refused, message)
        };
        let position = self.positions[index];
        let fields = self.columns.iter().zip(self.schema.fields());
        let rows = group.rows as usize;
        let mut arrays = Vec::with_capacity(self.columns.len());
        let mut buffers = buffers.into_iter();
        if let (Some(at), Some(places)) = (group.rows_buffer(), RowLayout::of(self.table.schema())) {
            if let Some(bytes) = buffers.next() {
                let place = BufferPlace { position, column: 0, buffer: 0 };
                let bytes = self.checked(bytes, &at, place).map_err(|why| damaged(None, why))?;
                let wanted: Vec<_> =
                    fields.map(|(column, field)| (field.data_type(), places.starts[*column])).collect();
                arrays = columns_of_rows(&wanted, places.row_bytes, rows, &bytes, usize::MAX)
                    .map_err(|why| damaged(None, why))?;
            }
        } else {
            for (column, field) in fields {
                let chunk = &group.columns[*column];
                let damaged = |why: String| damaged(Some(field.name()), why);
                let mut of_chunk: Vec<Buffer> = Vec::with_capacity(chunk.buffers.len());
                for ((buffer, at), landed) in (0u8..).zip(&chunk.buffers).zip(buffers.by_ref()) {
                    let place = BufferPlace { position, column: *column as u16, buffer };
                    of_chunk.push(self.checked(landed, at, place).map_err(damaged)?);
                }
                let nulls = chunk.null_count as usize;
                let column = column_of(field.data_type(), chunk.encoding, rows, nulls, of_chunk, usize::MAX);
                arrays.push(column.map_err(damaged)?);
            }
        }
        // A batch without columns still has its number of rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
            .map_err(|error| Error::new(ErrorKind::Refused, error.to_string()))
    }

    /// Decrypts a buffer that has arrived, or compares its checksum. Returns an error if it is not as it was written.
    fn checked(&self, mut landed: RecvBuffer, at: &BufferAt, place: BufferPlace) -> Result<Buffer, String> {
        match &self.table.decryption {
            Some(decryption) => {
                decryption.cipher.decrypt(place, landed.as_mut()).map_err(|error| error.to_string())?
            }
            None if crc32c::crc32c(landed.as_ref()) == at.crc => {}
            None => return Err("the checksum of its bytes does not match".to_owned()),
        }
        let landed = Buffer::from(bytes::Bytes::from_owner(landed));
        Ok(landed.slice_with_length(0, at.bytes as usize))
    }
}
