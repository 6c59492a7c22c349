//! Scans: programs that clients have run beside their columns.
//!
//! The idea: a scan is a list of row groups, a program, and a cursor that takes groups from the front. Its client may
//! claim groups from the back meanwhile, to see to them itself, until both meet. A step runs the program over one row
//! group, on the thread of the connection that asked for it and in its turn: columns are copied out of their region
//! like any read, the program runs over the copy, and before anything leaves the right to all of it is looked at once
//! more (invariants I2 and I8). Clients ask for steps ahead; each is a credit for one chunk.
//!
//! A program that crashes, or comes to a bound, is stopped and not run again for a while; the node lives on.

use crate::NearData;
use crate::lookups::Charge;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use farpool_node::dispatch::{Intent, admit};
use farpool_node::{Inside, Key, Memory, copy_out, fresh_handle};
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_operators::packed::{Packed, Packer};
use farpool_operators::run::data_type;
use farpool_operators::{Bounds, Prepared, Program, ProgramError, Run, Stopped, Type};
use farpool_sealing::{BufferPlace, ChunkSeals, SealKey, TAG_BYTES, TableSeals};
use farpool_transport::Peer;
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
use farpool_wire::{Code, Handle, MonoNs, Payload, Refusal, Reply};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Scans that are open at a time, of all clients and of one.
const SCANS_MAX: usize = 64;
const CLIENT_SCANS_MAX: usize = 16;
/// Programs that are kept ready, and the bytes that they take together.
const PROGRAMS_MAX: usize = 64;
const PROGRAM_BYTES_MAX: usize = 128 << 20;
/// Bytes of the programs of open scans.
const OPEN_PROGRAM_BYTES_MAX: usize = 256 << 20;
/// Programs that are known to have been stopped.
const QUARANTINED_MAX: usize = 256;
/// A stopped program is not run again for this long.
const QUARANTINE_MS: u64 = 600_000;
/// A scan that nobody has asked anything of for this long is over.
const IDLE_MS: u64 = 60_000;
/// Rows of a row group.
const GROUP_ROWS_MAX: u32 = 65_536;
/// Bytes of the columns of a row group that a program reads, and of any batch it makes of them.
const GROUP_BYTES_MAX: u64 = SCAN_GROUP_BYTES_MAX as u64;
/// Bytes of groups, or of rows of a top, that a scan holds; groups beyond leave as partial ones.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Steps of a program over one row group, as [`Bounds`] counts them: some tenths of a second.
const GROUP_STEPS_MAX: u64 = 1 << 28;
/// Bytes of a chunk: what leaves is packed, sent and unpacked while it is in the cache.
const CHUNK_BYTES: usize = 256 << 10;
/// A step goes on with no other row group once it has taken so long: others wait for its turn to end.
const STEP_NS: u64 = 5_000_000;
/// A step that has read so much and has nothing to send yet says so, for the client to know that it lives.
const STEP_BYTES: u64 = 1 << 20;

const _: () = assert!(CHUNK_BYTES <= farpool_wire::limits::CHUNK_BYTES_MAX);

/// The scans of a node, and the programs they run.
#[derive(Default)]
pub(crate) struct Scans {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By their names.
    open: BTreeMap<u128, Arc<Scan>>,
    /// The one that was used last is at the back.
    ready: VecDeque<Arc<Prepared>>,
    /// Encoded programs, and until when they are not run.
    quarantined: VecDeque<(Vec<u8>, MonoNs)>,
}

struct Scan {
    connection: u64,
    client: Key,
    prepared: Arc<Prepared>,
    program: Vec<u8>,
    schema: SchemaRef,
    regions: Vec<ScanRegion>,
    groups: Vec<ScanGroup>,
    /// Of an encrypted table: what opens its buffers, and which columns of it are read.
    opening: Option<(TableSeals, Vec<u16>)>,
    /// What chunks are sealed with, if they are.
    answers: Option<ChunkSeals>,
    cursor: Mutex<Cursor>,
    work: Mutex<Work>,
    /// For the lookups, as long as they are used.
    _charges: Vec<Arc<Charge>>,
}

/// Row groups that nobody has taken yet.
struct Cursor {
    next: u32,
    end: u32,
    /// When the scan was last asked for something.
    used: MonoNs,
}

/// What a scan holds between its steps.
struct Work {
    /// Until it is over.
    run: Option<Run>,
    packer: Packer,
    /// Row groups that the program was run over.
    done: u32,
    /// Chunks that were made.
    chunks: u64,
    /// Copies of columns, to be copied over.
    spare: Vec<Buffer>,
}

impl Table {
    /// Ends scans that nobody uses.
    fn tidy(&mut self, now: MonoNs) -> Vec<Arc<Scan>> {
        self.quarantined.retain(|(_, until)| now < *until);
        self.take(|scan| now >= scan.cursor.lock().used.plus_ms(IDLE_MS))
    }

    /// Takes scans out, for which it is true.
    fn take(&mut self, is_over: impl Fn(&Scan) -> bool) -> Vec<Arc<Scan>> {
        self.open.extract_if(.., |_, scan| is_over(scan)).map(|(_, scan)| scan).collect()
    }

    fn quarantine(&mut self, program: &[u8], now: MonoNs) {
        self.ready.retain(|ready| ready.program().encode().is_ok_and(|known| known != program));
        if self.quarantined.len() == QUARANTINED_MAX {
            self.quarantined.pop_front();
        }
        self.quarantined.push_back((program.to_vec(), now.plus_ms(QUARANTINE_MS)));
    }

    /// A program that is kept ready, or that an open scan runs.
    fn ready(&mut self, program: &Program) -> Option<Arc<Prepared>> {
        let is_it = |ready: &Arc<Prepared>| **ready.program() == *program;
        let Some(at) = self.ready.iter().position(is_it) else {
            return self.open.values().map(|scan| &scan.prepared).find(|prepared| is_it(prepared)).cloned();
        };
        let ready = self.ready.remove(at)?;
        self.ready.push_back(Arc::clone(&ready));
        Some(ready)
    }

    fn keep_ready(&mut self, prepared: Arc<Prepared>) {
        self.ready.push_back(prepared);
        let held = |ready: &VecDeque<Arc<Prepared>>| ready.iter().map(|one| one.held_bytes()).sum::<usize>();
        while self.ready.len() > PROGRAMS_MAX || held(&self.ready) > PROGRAM_BYTES_MAX {
            self.ready.pop_front();
        }
    }

    /// Whether one more scan of this client may be opened.
    fn has_room(&self, client: &Key) -> Result<(), Refusal> {
        let limited = |limit: usize| Refusal::new(Code::LimitReached, limit as u64);
        if self.open.len() >= SCANS_MAX {
            return Err(limited(SCANS_MAX));
        }
        let of_client = self.open.values().filter(|scan| scan.client == *client).count();
        if of_client >= CLIENT_SCANS_MAX { Err(limited(CLIENT_SCANS_MAX)) } else { Ok(()) }
    }

    /// Whether a scan may run this program beside those of the open ones.
    fn has_room_for(&self, prepared: &Arc<Prepared>) -> Result<(), Refusal> {
        // Scans of one program share it.
        let programs = self.open.values().map(|scan| &scan.prepared).chain([prepared]);
        let programs: BTreeMap<*const Prepared, usize> =
            programs.map(|one| (Arc::as_ptr(one), one.held_bytes())).collect();
        match programs.values().sum::<usize>() <= OPEN_PROGRAM_BYTES_MAX {
            true => Ok(()),
            false => Err(Refusal::new(Code::LimitReached, OPEN_PROGRAM_BYTES_MAX as u64)),
        }
    }
}

impl Scan {
    /// The next row group from the front.
    fn take_front(&self) -> Option<u32> {
        let mut cursor = self.cursor.lock();
        let taken = (cursor.next < cursor.end).then_some(cursor.next)?;
        cursor.next += 1;
        Some(taken)
    }

    /// Where a buffer lies, with its tag if it is sealed.
    fn span(&self, group: &ScanGroup, buffer: &ScanBuffer) -> Option<Span> {
        let region = self.regions.get(group.region as usize)?;
        let tag = if self.opening.is_some() { TAG_BYTES as u32 } else { 0 };
        Some(Span {
            region: region.region,
            bytes: buffer.bytes.checked_add(tag)?,
            offset: group.offset.checked_add(buffer.offset.into())?,
            epoch: region.epoch,
            handle: region.handle,
        })
    }
}

/// Whether a row group may be of such columns: counts and sizes, not yet where it lies.
fn fits(group: &ScanGroup, regions: usize, input: &[Type]) -> bool {
    let buffers = |(column, of): (&ScanColumn, &Type)| {
        let is_text = matches!(of, Type::Text | Type::Bytes);
        let wanted = match (column.layout, is_text) {
            (ColumnLayout::Plain, false) => 1,
            (ColumnLayout::Plain, true) => 2,
            (ColumnLayout::Dictionary, true) => 3,
            // All of them, and where in each this column is.
            (ColumnLayout::Rows, false) => 2,
            (ColumnLayout::Dictionary, false) | (ColumnLayout::Rows, true) => return false,
        };
        column.null_count <= group.rows && column.buffers.len() == wanted + usize::from(column.null_count > 0)
    };
    (group.region as usize) < regions
        && (1..=GROUP_ROWS_MAX).contains(&group.rows)
        && group.columns.len() == input.len()
        && group.columns.iter().zip(input).all(buffers)
        && are_rows(group).is_some_and(|are_rows| !are_rows || input.iter().all(|of| *of != Type::Boolean))
        && group_bytes(group) <= GROUP_BYTES_MAX
}

/// Whether its columns lie in rows: all in the same, or none. Nothing if only some do.
fn are_rows(group: &ScanGroup) -> Option<bool> {
    let first = group.columns.first().and_then(rows_of);
    let is_alike = |column: &ScanColumn| {
        (column.layout == ColumnLayout::Rows) == first.is_some() && rows_of(column) == first
    };
    group.columns.iter().all(is_alike).then_some(first.is_some())
}

/// The rows that a column lies in, and the bytes of each.
fn rows_of(column: &ScanColumn) -> Option<(&ScanBuffer, u32)> {
    match &column.buffers[..] {
        [rows, place] if column.layout == ColumnLayout::Rows && column.null_count == 0 => {
            Some((rows, place.bytes))
        }
        _ => None,
    }
}

impl<M: Memory> NearData<M> {
    pub(crate) fn open_scan(&self, peer: &Peer, asked: OpenScan) -> Result<Reply, Refusal> {
        let now = self.host.now();
        let regions = asked.regions.into_vec();
        let groups = asked.groups.into_vec();
        self.admit_regions(&regions)?;
        self.tidy_scans();
        let client = Key::of(peer);
        // Before patterns are compiled for it.
        self.scans.table.lock().has_room(&client)?;
        let bytes = asked.program.into_vec();
        let (prepared, is_known) = self.prepared(&bytes)?;
        let input = prepared.program().input();
        if let Some(wrong) = groups.iter().position(|group| !fits(group, regions.len(), input)) {
            return Err(Refusal::new(Code::BadColumns, wrong as u64));
        }
        let (opening, answers) = keys(asked.seals);
        if opening.as_ref().is_some_and(|(_, columns)| columns.len() != input.len()) {
            return Err(Refusal::new(Code::BadColumns, 0));
        }
        let fields = input.iter().map(|of| Field::new("", data_type(*of), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let bounds = Bounds {
            seed: fresh_handle(&*self.host)?.0 as u64,
            batch_rows_max: GROUP_ROWS_MAX as usize,
            batch_bytes_max: GROUP_BYTES_MAX as usize,
            held_bytes_max: HELD_BYTES_MAX,
            steps_max: GROUP_STEPS_MAX,
        };
        let (lookups, charges) = self.lookups_of(&asked.lookups)?;
        let run = Run::new(Arc::clone(&prepared), lookups, bounds);
        let run = run.map_err(|flaw| Refusal::new(Code::BadProgram, flaw.operator as u64))?;
        let work =
            Work { run: Some(run), packer: Packer::new(CHUNK_BYTES), done: 0, chunks: 0, spare: Vec::new() };
        let cursor = Cursor { next: 0, end: groups.len() as u32, used: now };
        let (cursor, work) = (Mutex::new(cursor), Mutex::new(work));
        let id = fresh_handle(&*self.host)?;
        let scan = Scan {
            connection: peer.connection,
            client,
            prepared,
            program: bytes,
            schema,
            regions,
            groups,
            opening,
            answers,
            cursor,
            work,
            _charges: charges,
        };
        let mut table = self.scans.table.lock();
        table.has_room(&scan.client)?;
        table.has_room_for(&scan.prepared)?;
        table.open.insert(id.0, Arc::new(scan));
        Ok(Reply::OpenScan(ScanOpened { scan: id, is_known }))
    }

    /// The program, made ready now or before; and whether it was before.
    fn prepared(&self, bytes: &[u8]) -> Result<(Arc<Prepared>, bool), Refusal> {
        let now = self.host.now();
        let is_stopped = |(program, until): &(Vec<u8>, MonoNs)| program == bytes && now < *until;
        if self.scans.table.lock().quarantined.iter().any(is_stopped) {
            return Err(Refusal::new(Code::Quarantined, 0));
        }
        let bad = |operator: usize| Refusal::new(Code::BadProgram, operator as u64);
        let program = Program::decode(bytes).map_err(|error| match error {
            ProgramError::Malformed(_) => Refusal::new(Code::BadProgram, u64::MAX),
            ProgramError::Flawed(flaw) => bad(flaw.operator),
        })?;
        if let Some(ready) = self.scans.table.lock().ready(&program) {
            return Ok((ready, true));
        }
        // Patterns take a while, and nobody else is to wait for it.
        let prepared = Prepared::new(Arc::new(program)).map_err(|flaw| bad(flaw.operator))?;
        let prepared = Arc::new(prepared);
        self.scans.table.lock().keep_ready(Arc::clone(&prepared));
        Ok((prepared, false))
    }

    fn scan(&self, id: Handle) -> Result<Arc<Scan>, Refusal> {
        let now = self.host.now();
        let none = Refusal::new(Code::NoSuchScan, 0);
        let scan = self.scans.table.lock().open.get(&id.0).cloned().ok_or(none)?;
        let mut cursor = scan.cursor.lock();
        if now >= cursor.used.plus_ms(IDLE_MS) {
            return Err(none);
        }
        cursor.used = now;
        drop(cursor);
        Ok(scan)
    }

    /// Ends scans, and lookups, that nobody uses.
    pub(crate) fn tidy_scans(&self) {
        let now = self.host.now();
        let over = self.scans.table.lock().tidy(now);
        // Without the lock: what they hold takes a while to go.
        drop(over);
        self.lookups.tidy(now);
    }

    pub(crate) fn claim_groups(&self, asked: &ClaimGroups) -> Result<Reply, Refusal> {
        let scan = self.scan(asked.scan)?;
        let mut cursor = scan.cursor.lock();
        let count = asked.groups.min(cursor.end - cursor.next);
        cursor.end -= count;
        Ok(Reply::ClaimGroups(Claimed { first: cursor.end, count }))
    }

    pub(crate) fn close_scan(&self, id: Handle) -> Result<Reply, Refusal> {
        self.forget(id);
        Ok(Reply::CloseScan(Done {}))
    }

    fn forget(&self, id: Handle) {
        let over = self.scans.table.lock().open.remove(&id.0);
        // Without the lock: what it holds takes a while to go.
        drop(over);
    }

    /// Ends the scans of a connection.
    pub(crate) fn end_scans(&self, connection: u64) {
        let over = self.scans.table.lock().take(|scan| scan.connection == connection);
        drop(over);
    }

    /// One step of a scan, over the connection that opened it: others would only wait for one another.
    pub(crate) fn next_chunk(&self, connection: u64, id: Handle) -> Result<Reply, Refusal> {
        let scan = self.scan(id)?;
        if scan.connection != connection {
            return Err(Refusal::new(Code::NoSuchScan, 0));
        }
        let begun = self.host.now();
        let mut work = scan.work.lock();
        // What a program does wrong ends it, not the node.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.step(&scan, &mut work)));
        let chunk = match stepped {
            Ok(Ok((read_bytes, leaving))) => {
                let is_last = work.run.is_none() && work.packer.is_empty();
                let batches = match &scan.answers {
                    Some(seals) => {
                        let mut batches = leaving.into_vec();
                        seals.seal(work.chunks, &Chunk::sealed_head(is_last, work.done), &mut batches);
                        work.chunks += 1;
                        Payload::new(batches)
                    }
                    None => Payload::of(leaving.into_pieces().into_iter().map(piece).collect()),
                };
                let busy_ns = self.host.now().0.saturating_sub(begun.0);
                // How long it waited is known to the connection.
                let (done, waited_ns) = (work.done, 0);
                let chunk = |batches| Chunk { is_last, done, read_bytes, busy_ns, waited_ns, batches };
                batches.map(chunk)
            }
            Ok(Err(End::Refused(refusal))) => return self.end_with(id, refusal),
            Ok(Err(End::Stopped(why))) => {
                if matches!(why, Stopped::TooLarge { .. }) {
                    self.quarantine(&scan, &why.to_string());
                }
                return self.end_with(id, Refusal::new(Code::ProgramStopped, work.done.into()));
            }
            Err(_) => {
                self.quarantine(&scan, "it crashed");
                return self.end_with(id, Refusal::new(Code::ProgramStopped, work.done.into()));
            }
        };
        let Ok(chunk) = chunk else {
            return self.end_with(id, Refusal::new(Code::ProgramStopped, work.done.into()));
        };
        if chunk.is_last {
            self.forget(id);
        }
        Ok(Reply::NextChunk(chunk))
    }

    fn end_with(&self, id: Handle, refusal: Refusal) -> Result<Reply, Refusal> {
        self.forget(id);
        Err(refusal)
    }

    fn quarantine(&self, scan: &Scan, why: &str) {
        let crc = crc32c::crc32c(&scan.program);
        self.host.say(&format!("farpool node: program {crc:08x} is not run again for now: {why}"));
        self.scans.table.lock().quarantine(&scan.program, self.host.now());
    }

    /// Runs the program until something leaves, it is over, or enough has been read for one step. Bytes that were read,
    /// and what leaves.
    fn step(&self, scan: &Scan, work: &mut Work) -> Result<(u64, Packed), End> {
        let mut read_bytes = 0;
        let until = self.host.now().0.saturating_add(STEP_NS);
        while work.packer.is_empty()
            && read_bytes < STEP_BYTES
            && (read_bytes == 0 || self.host.now().0 < until)
        {
            let Some(run) = &mut work.run else { break };
            let Some(index) = (if run.is_done() { None } else { scan.take_front() }) else {
                let Some(run) = work.run.take() else { break };
                for batch in run.finish()? {
                    // Partial results are of the scan, not of a row group.
                    work.packer.push(0, &batch).map_err(|_| End::too_large())?;
                }
                break;
            };
            let Some(group) = scan.groups.get(index as usize) else { break };
            let batch = self.columns(scan, index, group, &mut work.spare)?;
            // At least one, as a program that reads nothing takes time as well.
            read_bytes += group_bytes(group).max(1);
            run.refill();
            for leaving in run.push(&batch, group.position)? {
                work.packer.push(index, &leaving).map_err(|_| End::too_large())?;
            }
            work.done = index + 1;
        }
        let leaving = work.packer.pop().unwrap_or_default();
        if !leaving.is_empty() {
            // Whoever has lost the right to a region gets nothing that comes of it. Groups hold something of all.
            self.admit_regions(&scan.regions)?;
        }
        Ok((read_bytes, leaving))
    }

    /// Whether these may be read, now.
    fn admit_regions(&self, regions: &[ScanRegion]) -> Result<(), Refusal> {
        for region in regions {
            let ScanRegion { region, epoch, handle } = region.clone();
            let span = Span { region, bytes: 0, offset: 0, epoch, handle };
            admit(&span, Intent::Read, &self.memory.enter(region)?.fence())?;
        }
        Ok(())
    }

    /// The columns of a row group. Values of fixed width are used where they are, if nobody can change them; all else is
    /// copied out of the region: it is checked before it is used, and must not change in between.
    fn columns(
        &self,
        scan: &Scan,
        index: u32,
        group: &ScanGroup,
        spare: &mut Vec<Buffer>,
    ) -> Result<RecordBatch, End> {
        let bad = Refusal::new(Code::BadColumns, index.into());
        let mut copies = Copies { made: Vec::new(), unused: std::mem::take(spare).into_iter() };
        let columns = match are_rows(group) {
            Some(true) => self.columns_of_rows(scan, index, group, &mut copies)?,
            _ => self.columns_by_themselves(scan, index, group, &mut copies)?,
        };
        *spare = copies.made;
        let options = RecordBatchOptions::new().with_row_count(Some(group.rows as usize));
        RecordBatch::try_new_with_options(Arc::clone(&scan.schema), columns, &options).map_err(|_| bad.into())
    }

    fn columns_by_themselves(
        &self,
        scan: &Scan,
        index: u32,
        group: &ScanGroup,
        copies: &mut Copies,
    ) -> Result<Vec<ArrayRef>, End> {
        let bad = Refusal::new(Code::BadColumns, index.into());
        let first = BufferPlace { position: group.position, column: 0, buffer: 0 };
        let mut bytes = 0;
        let mut columns = Vec::with_capacity(group.columns.len());
        for (number, (column, field)) in group.columns.iter().zip(scan.schema.fields()).enumerate() {
            let is_fixed = is_fixed(field.data_type()) && column.layout == ColumnLayout::Plain;
            let table_column = match &scan.opening {
                Some((_, columns)) => columns.get(number).copied().ok_or(bad)?,
                None => 0,
            };
            let mut buffers = Vec::with_capacity(column.buffers.len());
            for (place, at) in column.buffers.iter().enumerate() {
                let is_values = is_fixed && place + 1 == column.buffers.len();
                let span = scan.span(group, at).ok_or(bad)?;
                let place = BufferPlace { column: table_column, buffer: place as u8, ..first };
                buffers.push(self.buffer((scan, index), (&span, place), is_values, copies)?);
            }
            let (rows, nulls) = (group.rows as usize, column.null_count as usize);
            let left = (GROUP_BYTES_MAX as usize).saturating_sub(bytes);
            let array = column_of(field.data_type(), column.layout, rows, nulls, buffers, left);
            let array = array.map_err(|_| bad)?;
            // Dictionaries take more than they took in their region.
            if column.layout == ColumnLayout::Dictionary {
                bytes += array.get_buffer_memory_size();
            }
            columns.push(array);
        }
        Ok(columns)
    }

    /// Columns out of the rows that they lie in, of which no cache lines are read but theirs if the rows need no copy.
    fn columns_of_rows(
        &self,
        scan: &Scan,
        index: u32,
        group: &ScanGroup,
        copies: &mut Copies,
    ) -> Result<Vec<ArrayRef>, End> {
        let bad = Refusal::new(Code::BadColumns, index.into());
        let place = |(column, field): (&ScanColumn, _)| match &column.buffers[..] {
            [rows, place] => Some((rows.clone(), (field, place.offset as usize), place.bytes as usize)),
            _ => None,
        };
        let fields = scan.schema.fields().iter().map(|field| field.data_type());
        let places: Option<Vec<_>> = group.columns.iter().zip(fields).map(place).collect();
        let places = places.ok_or(bad)?;
        let Some((rows, _, row_bytes)) = places.first().cloned() else { return Err(bad.into()) };
        let span = scan.span(group, &rows).ok_or(bad)?;
        // Sealed once, for all columns.
        let place = BufferPlace { position: group.position, column: 0, buffer: 0 };
        let bytes = self.buffer((scan, index), (&span, place), true, copies)?;
        let columns: Vec<_> = places.into_iter().map(|(_, column, _)| column).collect();
        columns_of_rows(&columns, row_bytes, group.rows as usize, &bytes, GROUP_BYTES_MAX as usize)
            .map_err(|_| bad.into())
    }

    /// Bytes of a region: where they are, if that is asked for and nobody can change them, or a copy; of an encrypted
    /// table opened, as what was sealed for that place.
    fn buffer(
        &self,
        (scan, index): (&Scan, u32),
        (span, place): (&Span, BufferPlace),
        in_place: bool,
        copies: &mut Copies,
    ) -> Result<Buffer, End> {
        let bytes = span.bytes as usize;
        // Looked at before anything is made for it.
        admit(span, Intent::Read, &self.memory.enter(span.region)?.fence())?;
        let may_stay = in_place || scan.opening.is_some();
        let sealed = if may_stay { self.memory.sealed(span.region, span.offset, bytes) } else { None };
        // Again: what is there now may be another's.
        admit(span, Intent::Read, &self.memory.enter(span.region)?.fence())?;
        let made = match (&scan.opening, sealed) {
            (None, Some(sealed)) => return Ok(Buffer::from(bytes::Bytes::from_owner(sealed))),
            (None, None) => {
                let mut copy = room(copies.unused.next(), bytes);
                copy_out(&*self.memory, span, copy.as_slice_mut())?;
                copy
            }
            (Some((seals, _)), sealed) => {
                let opened_bytes = bytes.saturating_sub(TAG_BYTES);
                let mut room =
                    room(copies.unused.next(), if sealed.is_some() { opened_bytes } else { bytes });
                let opened = match &sealed {
                    // On the way from where it is.
                    Some(sealed) => seals.open_into(place, sealed.as_ref(), room.as_slice_mut()),
                    None => {
                        copy_out(&*self.memory, span, room.as_slice_mut())?;
                        seals.open(place, room.as_slice_mut())
                    }
                };
                opened.map_err(|_| Refusal::new(Code::NotOpened, index.into()))?;
                room.truncate(opened_bytes);
                room
            }
        };
        let made = Buffer::from(made);
        copies.made.push(made.clone());
        Ok(made)
    }
}

/// Copies of what lies in regions.
struct Copies {
    made: Vec<Buffer>,
    /// Of an earlier row group, to be copied over.
    unused: std::vec::IntoIter<Buffer>,
}

/// The keys of a scan, made ready.
fn keys(asked: ScanSeals) -> (Option<(TableSeals, Vec<u16>)>, Option<ChunkSeals>) {
    let opening = |of: ScanOpening| {
        let seals = TableSeals::new(&SealKey::new(of.key.0), of.salt);
        (seals, of.columns.into_vec())
    };
    let answers = asked.answers.first().map(|key| ChunkSeals::new(&SealKey::new(key.0)));
    (asked.opening.into_vec().pop().map(opening), answers)
}

/// Whether values are of whole bytes, any of which are a value.
fn is_fixed(of: &DataType) -> bool {
    of.primitive_width().is_some() || matches!(of, DataType::FixedSizeBinary(_))
}

/// Bytes of a row group that are read.
fn group_bytes(group: &ScanGroup) -> u64 {
    let of = |column: &ScanColumn| column.buffers.iter().map(|buffer| u64::from(buffer.bytes)).sum::<u64>();
    match are_rows(group) {
        // The same ones for all columns.
        Some(true) => {
            group.columns.first().and_then(|first| first.buffers.first()).map_or(0, |rows| rows.bytes.into())
        }
        _ => group.columns.iter().map(of).sum(),
    }
}

/// Room for so many bytes, in a copy that nobody uses any more if there is one: fresh memory costs as much as copying.
fn room(unused: Option<Buffer>, bytes: usize) -> MutableBuffer {
    match unused.map(Buffer::into_mutable) {
        // One that is far too large is let go, or they would all become as large as the largest.
        Some(Ok(mut room)) if room.capacity() <= bytes.saturating_mul(2).max(4_096) => {
            room.resize(bytes, 0);
            room
        }
        _ => MutableBuffer::from_len_zeroed(bytes),
    }
}

/// Bytes of a chunk, where they are.
fn piece(buffer: Buffer) -> bytes::Bytes {
    struct Piece(Buffer);
    impl AsRef<[u8]> for Piece {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    bytes::Bytes::from_owner(Piece(buffer))
}

/// Why a step ended the scan.
enum End {
    Refused(Refusal),
    Stopped(Stopped),
}

impl End {
    /// A row that no chunk has room for.
    fn too_large() -> End {
        End::Refused(Refusal::new(Code::LimitReached, CHUNK_BYTES as u64))
    }
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> End {
        End::Refused(refusal)
    }
}

impl From<Stopped> for End {
    fn from(stopped: Stopped) -> End {
        End::Stopped(stopped)
    }
}
