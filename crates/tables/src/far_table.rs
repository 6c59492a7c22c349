//! A far table as its reader sees it: what it says of itself, and its rows, fetched ahead of whoever takes them.

use crate::TABLE_PREFIX;
use crate::column_type::RowPlaces;
use crate::footer::{BufferAt, Footer, RowGroup, Trailer, WrongKey};
use crate::layout::TableLayout;
use crate::names::file_name;
use crate::sealed::{ScanKeys, TableSeal};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_schema::{Schema, SchemaRef};
use farpool_files::beneath::{Became, Session, became, in_one_region, session_of};
use farpool_files::{Error, ErrorKind, FarFile, FileInfo, Pool, ReadRange};
use farpool_host::Bell;
use farpool_lock::Mutex;
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_planner::Took;
use farpool_sealing::{BufferPlace, TAG_BYTES, TableKey};
use farpool_transport::landing::Landing;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Read with the trailer: all of most footers.
const TAIL_BYTES: u64 = 64 << 10;
/// So many bytes of row groups are asked for at once, but for a group that has more: enough to keep several nodes
/// at work.
const FETCH_BYTES: u64 = 8 << 20;
/// So many batches wait for whoever takes them, at most, before more are fetched.
const WAITING_MAX: usize = 4;

/// What is told of a table in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Bytes of its file.
    pub bytes: u64,
    /// Whether a node that held some of it is gone.
    pub is_lost: bool,
}

/// Where a row group lies: all of it, without a gap, in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// The name of the memory node.
    pub node: String,
    /// The place of the region among those of its node, counted from 0.
    pub region: u32,
    /// First byte in the region.
    pub offset: u64,
}

/// A table, opened. Clones are cheap and may be read from many threads at once.
///
/// It stays the table that was opened: if another takes its name, or it is dropped, reading it is an error.
#[derive(Clone)]
pub struct FarTable {
    name: Arc<str>,
    pub(crate) file: FarFile,
    footer: Arc<Footer>,
    /// Of an encrypted table that was opened with its key.
    pub(crate) seal: Option<Arc<TableSeal>>,
    pub(crate) seal_answers: bool,
}

/// Opens a far table, with the key that it was put with if it is encrypted and is to be read.
///
/// Errors: [`ErrorKind::NotFound`] if there is none of this name, [`ErrorKind::Lost`] if its bytes are gone,
/// [`ErrorKind::Invalid`] if a file has its name and is no far table, or if it has another key, or is not encrypted;
/// [`ErrorKind::Refused`] if what it says of itself was changed.
pub fn open_table(pool: &Pool, name: &str, key: Option<&TableKey>) -> Result<FarTable, Error> {
    let open = || {
        let file = pool.open(&file_name(name)?)?;
        let mut footer = read_footer(&file)?;
        let seal = key.map(|key| opened(&mut footer, key)).transpose()?;
        let (footer, seal) = (Arc::new(footer), seal.map(Arc::new));
        Ok(FarTable { name: name.into(), file, footer, seal, seal_answers: false })
    };
    open().map_err(|error: Error| error.during(format_args!("opening far table {name:?}")))
}

/// Returns the published far tables, in the order of their names.
pub fn tables(pool: &Pool) -> Result<Vec<TableInfo>, Error> {
    let describe = |info: FileInfo| {
        let name = info.name.strip_prefix(TABLE_PREFIX)?.to_owned();
        info.is_published.then_some(TableInfo { name, bytes: info.bytes, is_lost: info.is_lost })
    };
    Ok(pool.list(TABLE_PREFIX)?.into_iter().filter_map(describe).collect())
}

/// Opens what a table says of itself with a key.
fn opened(footer: &mut Footer, key: &TableKey) -> Result<TableSeal, Error> {
    let error = |kind, why: &str| Error::new(kind, why.to_owned());
    let salt = footer.seal.as_ref().map(|seal| seal.salt);
    let opened = footer.open(key).map_err(|wrong| match wrong {
        WrongKey::Other => error(ErrorKind::Invalid, "this is not the key that it is encrypted with"),
        WrongKey::Changed => error(ErrorKind::Refused, "its footer was changed since it was encrypted"),
    })?;
    let not_encrypted = || error(ErrorKind::Invalid, "it is not encrypted, and a key was given");
    let ((seals, key), salt) = opened.zip(salt).ok_or_else(not_encrypted)?;
    Ok(TableSeal { key, salt, seals })
}

fn read_footer(file: &FarFile) -> Result<Footer, Error> {
    let no_table = |why: String| Error::new(ErrorKind::Invalid, format!("the file is no far table: {why}"));
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
    let take = if trailer.is_sealed { Footer::take_sealed } else { Footer::take };
    take(bytes, trailer.footer_offset).map_err(|error| no_table(format!("its footer: {error}")))
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
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its columns, in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        &self.footer.schema
    }

    /// Its row groups: rows, statistics, and where in the file each buffer lies.
    pub fn row_groups(&self) -> &[RowGroup] {
        &self.footer.groups
    }

    /// Its rows.
    pub fn rows(&self) -> u64 {
        self.footer.rows()
    }

    /// How its rows lie.
    pub fn layout(&self) -> TableLayout {
        match self.footer.groups.first().and_then(RowGroup::rows_buffer) {
            Some(_) => TableLayout::Rows,
            None => TableLayout::Columns,
        }
    }

    /// Whether only those can read it who have its key.
    pub fn is_encrypted(&self) -> bool {
        self.footer.seal.is_some()
    }

    /// Has nodes seal what scans leave, under a key for each scan; they do not unless this is said. It protects
    /// nothing that the way of the answers does not protect already: keys go no other way (see ADR 0018).
    pub fn sealing_answers(self) -> FarTable {
        FarTable { seal_answers: true, ..self }
    }

    /// That it can be read.
    pub(crate) fn check_key(&self) -> Result<(), Error> {
        if self.is_encrypted() && self.seal.is_none() {
            let message = format!("far table {:?} is encrypted, and no key was given to open it", self.name);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// The keys that its scans need which read these columns.
    pub(crate) fn scan_keys(&self, columns: &[usize]) -> ScanKeys {
        let columns = || columns.iter().map(|column| *column as u16).collect();
        let table = self.seal.as_ref().map(|seal| (Arc::clone(seal), columns()));
        ScanKeys { table, seal_answers: self.seal_answers }
    }

    /// Of each row group, which row of the table its first one is.
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

    /// Its file.
    pub(crate) fn file(&self) -> &FarFile {
        &self.file
    }

    /// Bytes of its file.
    pub fn bytes(&self) -> u64 {
        self.file.length()
    }

    /// Where a row group lies in memory; nothing if there is no such group, or it does not lie in one piece: putting
    /// a table takes care that it does, and emptying a node may scatter it.
    pub fn place(&self, group: usize) -> Option<GroupPlace> {
        let group = self.footer.groups.get(group)?;
        let (region, offset) = in_one_region(&self.file, group.offset..group.end().max(group.offset + 1))?;
        Some(GroupPlace { node: region.node.info.name.to_string(), region: region.region.0, offset })
    }

    /// Its rows, a batch for each row group: of the columns and of the row groups asked for, by their places and in
    /// the order asked for; of all, if nothing is said. Only what is asked for is fetched, on a thread that keeps
    /// ahead of whoever takes the batches.
    ///
    /// Errors: [`ErrorKind::Invalid`] if there is no such column or row group, or it is encrypted and was opened
    /// without a key. What fails later is the iterator's last item: [`ErrorKind::Lost`] if the table's bytes are gone,
    /// [`ErrorKind::Closed`] if it was dropped or replaced.
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
            .map_err(|error| Error::new(ErrorKind::Refused, format!("starting a thread: {error}")))?;
        Ok(TableReader { table: self.clone(), schema, shared })
    }

    /// The error of a read, and if the name has another file now, that.
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

/// Batches on their way from the thread that fetches them.
#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Bytes that came, and nanoseconds that they were on their way.
    moved: (AtomicU64, AtomicU64),
    changed: Bell,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<Result<RecordBatch, Error>>,
    /// Nothing more will come.
    is_complete: bool,
    /// Nobody will take what comes.
    is_unwanted: bool,
}

/// Whoever waits looks again after this long, should nobody call.
const WAIT_MS: u64 = 1_000;

/// The batches of a table, as they come.
pub struct TableReader {
    table: FarTable,
    schema: SchemaRef,
    shared: Arc<Shared>,
}

impl TableReader {
    /// The columns that were asked for.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the bytes that came so far, and how long they were on their way.
    pub(crate) fn moved(&self) -> Took {
        let (bytes, ns) = &self.shared.moved;
        Took { bytes: bytes.load(Ordering::Relaxed), ns: ns.load(Ordering::Relaxed) }
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
                    self.shared.changed.ring();
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
    /// Does not wait for the thread, which ends once what it has asked for is there: it may be building the table anew
    /// by a function that waits for whoever drops this.
    fn drop(&mut self) {
        self.shared.waiting.lock().is_unwanted = true;
        self.shared.changed.ring();
    }
}

/// What the fetching thread does.
struct Fetch {
    table: FarTable,
    columns: Vec<usize>,
    groups: VecDeque<usize>,
    /// Of each row group of the table, which row its first one is.
    positions: Vec<u64>,
    schema: SchemaRef,
    shared: Arc<Shared>,
}

/// Says that nothing more will come, however the thread ends.
struct Completion(Arc<Shared>);

impl Drop for Completion {
    fn drop(&mut self) {
        self.0.waiting.lock().is_complete = true;
        self.0.changed.ring();
    }
}

impl Fetch {
    fn run(mut self) {
        let _completion = Completion(Arc::clone(&self.shared));
        while !self.groups.is_empty() && self.wait_for_room() {
            let batches = self.next().unwrap_or_else(|error| vec![Err(self.table.cause_of(error))]);
            let has_failed = batches.iter().any(Result::is_err);
            self.shared.waiting.lock().batches.extend(batches);
            self.shared.changed.ring();
            if has_failed {
                return;
            }
        }
    }

    /// Whether anybody still wants batches, once there is room for them.
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

    /// Fetches the next row groups, all at once.
    fn next(&mut self) -> Result<Vec<Result<RecordBatch, Error>>, Error> {
        let table = self.table.clone();
        let tag_bytes = if table.seal.is_some() { TAG_BYTES } else { 0 };
        let mut taken: Vec<(usize, &RowGroup, Vec<Landing>)> = Vec::new();
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
            taken.push((*index, group, sizes().map(Landing::new).collect()));
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

    fn batch(&self, index: usize, group: &RowGroup, buffers: Vec<Landing>) -> Result<RecordBatch, Error> {
        let damaged = |column: Option<&str>, why: String| {
            let (name, column) =
                (&self.table.name, column.map_or_else(String::new, |name| format!("column {name:?} at ")));
            let message = format!("far table {name:?}: {column}row group {}: {why}", group.offset);
            Error::new(ErrorKind::Refused, message)
        };
        let position = self.positions[index];
        let fields = self.columns.iter().zip(self.schema.fields());
        let rows = group.rows as usize;
        let mut arrays = Vec::with_capacity(self.columns.len());
        let mut buffers = buffers.into_iter();
        if let (Some(at), Some(places)) = (group.rows_buffer(), RowPlaces::of(self.table.schema())) {
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
        // Of no columns, the rows are still counted.
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
            .map_err(|error| Error::new(ErrorKind::Refused, error.to_string()))
    }

    /// A buffer that has come, if it is as it was put.
    fn checked(&self, mut landed: Landing, at: &BufferAt, place: BufferPlace) -> Result<Buffer, String> {
        match &self.table.seal {
            Some(seal) => seal.seals.open(place, landed.as_mut()).map_err(|error| error.to_string())?,
            None if crc32c::crc32c(landed.as_ref()) == at.crc => {}
            None => return Err("the checksum of its bytes does not match".to_owned()),
        }
        let landed = Buffer::from(bytes::Bytes::from_owner(landed));
        Ok(landed.slice_with_length(0, at.bytes as usize))
    }
}
