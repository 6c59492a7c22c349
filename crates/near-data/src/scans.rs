//! Scans: programs that clients run beside their columns.
//!
//! A scan is a list of row groups, a program, and a cursor that takes groups from the front. The client may claim
//! groups from the back meanwhile and process them itself, until both meet. A step of a scan answers one request: it
//! runs the program over row groups until there is a result, or enough was read. It runs on the connection's thread and
//! under admission control. Columns are read from their region like any data. Before a result leaves the node, the
//! rights to all regions are checked once more (invariants I2 and I8). Clients request steps ahead; each request is a
//! credit for one reply.
//!
//! A program that crashes or exceeds a limit is stopped, and is not run again for a while (*quarantine*).

use crate::NearData;
use crate::columns::{GROUP_BYTES_MAX, GROUP_ROWS_MAX, RowGroups, admit_regions, group_bytes};
use crate::lookups::Charge;
use arrow_buffer::Buffer;
use farpool_encryption::{ChunkCipher, EncryptionKey};
use farpool_host::{Event, Level};
use farpool_lock::Mutex;
use farpool_node::{ClientKey, Memory, fresh_handle};
use farpool_operators::packed::{BatchPacker, Packed};
use farpool_operators::{Bounds, Prepared, Program, ProgramError, Run, Stopped};
use farpool_transport::Peer;
use farpool_wire::control::*;
use farpool_wire::{Code, Handle, MonoNs, Payload, Refusal, Reply, TraceId};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Limits of the scans that are open at a time: those of all clients, and those of one. Further scans are refused.
const SCANS_MAX: usize = 64;
const CLIENT_SCANS_MAX: usize = 16;
/// Limits of the compiled programs that are kept for later scans: their number and their bytes.
const PROGRAMS_MAX: usize = 64;
const PROGRAM_BYTES_MAX: usize = 128 << 20;
/// Limit of the bytes of the programs of open scans.
const OPEN_PROGRAM_BYTES_MAX: usize = 256 << 20;
/// Limit of the quarantined programs. The oldest is forgotten first.
const QUARANTINED_MAX: usize = 256;
/// Milliseconds for which a stopped program is not run again.
const QUARANTINE_MS: u64 = 600_000;
/// Milliseconds without a request after which a scan ends.
const IDLE_MS: u64 = 60_000;
/// Limit of the bytes of groups, or of top rows, that a scan holds. Further groups are output early, as partial
/// results.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Limit of the work of a program over one row group: some tenths of a second. [`Bounds::steps_max`] says what counts
/// as a step, such as one instruction for one row. A program that exceeds the limit is stopped and quarantined, and its
/// scan ends with `ProgramStopped`.
const GROUP_STEPS_MAX: u64 = 1 << 28;
/// Most bytes of a chunk, which is one reply with results. Results of this size are packed, sent and unpacked while
/// they are in the CPU cache.
const CHUNK_BYTES: usize = 256 << 10;
/// Nanoseconds after which a step of a scan takes no further row group, because requests of others wait to be
/// admitted.
const STEP_NS: u64 = 5_000_000;
/// Bytes after which a step without results replies all the same, so that the client knows that the node is alive.
const STEP_BYTES: u64 = 1 << 20;

const _: () = assert!(CHUNK_BYTES <= farpool_wire::limits::CHUNK_BYTES_MAX);

/// Scans of a node, and the programs they run.
#[derive(Default)]
pub(crate) struct Scans {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Scans by their ids.
    open: BTreeMap<u128, Arc<Scan>>,
    /// Compiled programs that are kept for later scans. The most recently used is at the back.
    ready: VecDeque<Arc<Prepared>>,
    /// Programs that were stopped, encoded, each with the time until which it is not run.
    quarantined: VecDeque<(Vec<u8>, MonoNs)>,
}

struct Scan {
    connection: u64,
    /// Query that the scan is a part of.
    trace: TraceId,
    begun: MonoNs,
    client: ClientKey,
    prepared: Arc<Prepared>,
    program: Vec<u8>,
    groups: RowGroups,
    /// Cipher of the replies. `None` if they are not encrypted.
    answers: Option<ChunkCipher>,
    cursor: Mutex<Cursor>,
    work: Mutex<Work>,
    /// Memory charged for the lookups while the scan uses them.
    _charges: Vec<Arc<Charge>>,
}

/// Row groups that nobody has taken yet.
struct Cursor {
    /// Index of the next row group that the node takes from the front.
    next: u32,
    /// Index behind the last row group that the client has not claimed.
    end: u32,
    /// Time of the last request.
    used: MonoNs,
}

/// State of a scan between its steps.
struct Work {
    /// Running program. `None` once it has finished.
    run: Option<Run>,
    packer: BatchPacker,
    /// Number of row groups, from the front, over which the program was run.
    done: u32,
    /// Number of encrypted replies made so far.
    chunks: u64,
    /// Buffers of an earlier row group, for reuse.
    spare: Vec<Buffer>,
}

impl Table {
    /// Ends quarantines that are over. Removes the scans that nobody uses and returns them.
    fn tidy(&mut self, now: MonoNs) -> Vec<Arc<Scan>> {
        self.quarantined.retain(|(_, until)| now < *until);
        self.take(|scan| now >= scan.cursor.lock().used.plus_ms(IDLE_MS))
    }

    /// Removes the scans for which `is_over` is true and returns them.
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

    /// Returns the compiled form of a program, if it is kept ready or if an open scan runs it.
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

    /// Checks that this client may open one more scan.
    fn has_room(&self, client: &ClientKey) -> Result<(), Refusal> {
        let limited = |limit: usize| Refusal::new(Code::LimitReached, limit as u64);
        if self.open.len() >= SCANS_MAX {
            return Err(limited(SCANS_MAX));
        }
        let of_client = self.open.values().filter(|scan| scan.client == *client).count();
        if of_client >= CLIENT_SCANS_MAX { Err(limited(CLIENT_SCANS_MAX)) } else { Ok(()) }
    }

    /// Checks that the program fits the memory limit beside those of the open scans.
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
    /// Takes the next row group from the front. `None` if none is left.
    fn take_front(&self) -> Option<u32> {
        let mut cursor = self.cursor.lock();
        let taken = (cursor.next < cursor.end).then_some(cursor.next)?;
        cursor.next += 1;
        Some(taken)
    }
}

impl<M: Memory> NearData<M> {
    pub(crate) fn open_scan(&self, peer: &Peer, asked: OpenScan) -> Result<Reply, Refusal> {
        let now = self.host.now();
        let regions = asked.regions.into_vec();
        let groups = asked.groups.into_vec();
        admit_regions(&*self.memory, &regions)?;
        self.tidy_scans();
        let client = ClientKey::of(peer);
        // Checked before patterns are compiled for the scan.
        self.scans.table.lock().has_room(&client)?;
        let bytes = asked.program.into_vec();
        let (prepared, is_known) = self.prepared(&bytes)?;
        let input = prepared.program().input();
        let ScanSeals { opening, answers } = asked.seals;
        let groups = RowGroups::new(regions, groups, opening.into_vec().pop(), input)?;
        let answers = answers.first().map(|key| ChunkCipher::new(&EncryptionKey::new(key.0)));
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
        let work = Work {
            run: Some(run),
            packer: BatchPacker::new(CHUNK_BYTES),
            done: 0,
            chunks: 0,
            spare: Vec::new(),
        };
        let cursor = Cursor { next: 0, end: groups.count(), used: now };
        let (cursor, work) = (Mutex::new(cursor), Mutex::new(work));
        let id = fresh_handle(&*self.host)?;
        let scan = Scan {
            connection: peer.connection,
            trace: peer.trace,
            begun: now,
            client,
            prepared,
            program: bytes,
            groups,
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

    /// Returns the compiled program, and true if it was compiled before.
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
        // Compiling patterns takes a while, so no lock is held.
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

    /// Ends scans and lookups that nobody uses.
    pub(crate) fn tidy_scans(&self) {
        let now = self.host.now();
        let over = self.scans.table.lock().tidy(now);
        // Dropped without the lock, because freeing takes a while.
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
        // Dropped without the lock, because freeing takes a while.
        drop(over);
    }

    /// Ends the scans of a connection.
    pub(crate) fn end_scans(&self, connection: u64) {
        let over = self.scans.table.lock().take(|scan| scan.connection == connection);
        drop(over);
    }

    /// Runs one step of a scan. Only the connection that opened the scan may ask: requests of two connections would
    /// only wait for each other.
    pub(crate) fn next_chunk(&self, connection: u64, id: Handle) -> Result<Reply, Refusal> {
        let scan = self.scan(id)?;
        if scan.connection != connection {
            return Err(Refusal::new(Code::NoSuchScan, 0));
        }
        let begun = self.host.now();
        let mut work = scan.work.lock();
        // A panic of the program ends the scan, not the node.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.step(&scan, &mut work)));
        let chunk = match stepped {
            Ok(Ok((read_bytes, leaving))) => {
                let is_last = work.run.is_none() && work.packer.is_empty();
                // The thread of the connection fills in how long the request waited to be admitted.
                let (done, busy_ns, waited_ns) = (work.done, 0, 0);
                let batches = Payload::default();
                let chunk = Chunk { is_last, done, read_bytes, busy_ns, waited_ns, batches };
                let batches = match &scan.answers {
                    Some(cipher) => {
                        let mut batches = leaving.into_vec();
                        cipher.encrypt(work.chunks, &chunk.authenticated_head(), &mut batches);
                        work.chunks += 1;
                        Payload::new(batches)
                    }
                    None => Payload::of(leaving.into_buffers().into_iter().map(shared).collect()),
                };
                let busy_ns = self.host.now().0.saturating_sub(begun.0);
                batches.map(|batches| Chunk { busy_ns, batches, ..chunk })
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
            if self.host.logs(Level::Debug) {
                let ms = self.host.now().ms_since(scan.begun);
                let message = format!("finished a scan of {} row groups in {ms} ms", work.done);
                self.host.log(&Event::debug("scan_finished", message).trace(scan.trace));
            }
        }
        Ok(Reply::NextChunk(chunk))
    }

    fn end_with(&self, id: Handle, refusal: Refusal) -> Result<Reply, Refusal> {
        self.forget(id);
        Err(refusal)
    }

    fn quarantine(&self, scan: &Scan, why: &str) {
        let crc = crc32c::crc32c(&scan.program);
        let message = format!("program {crc:08x} is refused for some minutes, because {why}");
        self.host.log(&Event::warn("program_quarantined", message).trace(scan.trace));
        self.scans.table.lock().quarantine(&scan.program, self.host.now());
    }

    /// Runs the program until it has results or is finished, or until enough was read for one step. Returns the bytes
    /// read and the results.
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
                    // Final results belong to the scan, not to a row group.
                    work.packer.push(0, &batch).map_err(|_| End::too_large())?;
                }
                break;
            };
            let Some(group) = scan.groups.get(index) else { break };
            let batch = scan.groups.columns(&*self.memory, index, group, &mut work.spare)?;
            // Counted as at least 1 byte, because a program that reads nothing takes time as well.
            read_bytes += group_bytes(group).max(1);
            run.refill();
            for leaving in run.push(&batch, group.position)? {
                work.packer.push(index, &leaving).map_err(|_| End::too_large())?;
            }
            work.done = index + 1;
        }
        let leaving = work.packer.pop().unwrap_or_default();
        if !leaving.is_empty() {
            // A client that has lost its right to a region gets no result derived from it. Groups may contain data of
            // all regions.
            scan.groups.admit(&*self.memory)?;
        }
        Ok((read_bytes, leaving))
    }
}

/// Returns the bytes of a batch without copying them.
fn shared(buffer: Buffer) -> bytes::Bytes {
    struct SharedBuffer(Buffer);
    impl AsRef<[u8]> for SharedBuffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    bytes::Bytes::from_owner(SharedBuffer(buffer))
}

/// Reason why a step ended the scan.
enum End {
    Refused(Refusal),
    Stopped(Stopped),
}

impl End {
    /// Returns the error for a row that is larger than a chunk may be.
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
