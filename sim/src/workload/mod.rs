//! Workload of a client: a seeded mixture of everything that the library offers. Each byte that comes back is
//! compared with the expected one.
//!
//! The idea: an operation may fail, because faults happen, but it must never return wrong data. The expected bytes
//! come from a model of each private file, and from [`names`](crate::names) for published ones. Once the faults are
//! over, every client must prove that the pool works again.

pub(crate) mod grown;
mod parts;
mod proving;
mod published;
mod scanned;
mod storm;

use self::grown::OpenSnapshot;
use self::parts::OpenParts;
use self::storm::Storm;
use crate::host::SimHost;
use crate::kernel::{ProcessId, rest, world};
use crate::names::Place;
use crate::parties::{Phase, brokers};
use crate::profile::{Profile, Theme};
use crate::random::Random;
use farpool_files::plan::RangeSet;
use farpool_files::{
    CreateOptions, Error, ErrorKind, FarFile, Pool, PoolOptions, Protection, ReadRange, TransportChoice,
    WriteRange,
};
use farpool_tables::FarTable;
use farpool_wire::FileClass;
use std::collections::BTreeMap;
use std::sync::Arc;

const FILES_MAX: usize = 6;
const FILE_BYTES_MAX: u64 = 3 << 20;
const MS: u64 = 1_000_000;

/// Private file, and its expected contents.
struct Known {
    file: FarFile,
    bytes: Vec<u8>,
    protection: Protection,
    /// Ranges that a failed batch of writes to an encrypted file may or may not have written: each of its runs of
    /// adjacent pages succeeds or fails by itself.
    unsure: RangeSet,
    /// Length up to which the file was written. Memory for these bytes is allocated.
    placed: u64,
    /// True if a write has failed. Part of the range of that write may be unreadable until it is rewritten.
    has_failed: bool,
}

/// Expectation of the next operation on a file, made just before the operation.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    /// True if the operation may fail only for want of memory.
    must_succeed: bool,
}

/// Published file that the client has open, and the contents that its name had while it was opened.
struct Seen {
    file: FarFile,
    name: String,
    candidates: Vec<Arc<Vec<u8>>>,
}

struct Client {
    process: ProcessId,
    index: usize,
    random: Random,
    pool: Option<Pool>,
    files: BTreeMap<String, Known>,
    seen: Vec<Seen>,
    /// Far tables that it has open, the latest first.
    tables: Vec<FarTable>,
    /// Snapshots of tables that change which it has open.
    grown: Vec<OpenSnapshot>,
    /// Snapshots of tables of raw parts which it has open.
    parts: Vec<OpenParts>,
    next_file: u64,
    has_reserved: bool,
    storm: Option<Storm>,
    /// Regions that the session had when the client last looked and that nodes keep for it. For those that it does not
    /// know any more, the node's renewals so far and the time, in ns, when that was first seen.
    leased: BTreeMap<Place, Option<(u64, u64)>>,
}

/// Runs a client's workload until the world ends.
pub(crate) fn run(process: ProcessId, index: usize) {
    let random = world(|world| world.random.fork(u64::from(process.0)));
    let mut client = Client {
        process,
        index,
        random,
        pool: None,
        files: BTreeMap::new(),
        seen: Vec::new(),
        tables: Vec::new(),
        grown: Vec::new(),
        parts: Vec::new(),
        next_file: 0,
        has_reserved: false,
        storm: None,
        leased: BTreeMap::new(),
    };
    while world(|world| world.parties.phase) < Phase::Proving {
        client.burst();
    }
    client.put_away();
    client.until_it_works(Client::prove_all_leases_are_known);
    client.until_it_works(Client::prove_names);
    client.until_it_works(Client::prove_table);
    client.until_it_works(Client::prove_grown);
    client.until_it_works(Client::prove_snapshots_end);
    world(|world| world.parties.clients[index].has_seen_names = true);
    while world(|world| world.parties.phase) < Phase::Clearing {
        rest(100 * MS);
    }
    // One client of each tenant drops the tenant's names.
    if index < world(|world| world.plan.tenants.len()) {
        client.until_it_works(Client::clear_names);
        world(|world| world.parties.names_cleared += 1);
    }
    client.until_it_works(Client::prove_writing);
    client.leave();
    world(|world| world.parties.clients[index].has_written = true);
}

/// Returns `count` bytes that contain the world's next number, so that no two calls return the same.
fn stamped(count: usize) -> Vec<u8> {
    let stamp = world(|world| {
        world.parties.next_stamp += 1;
        world.parties.next_stamp
    });
    let mut source = Random::new(stamp);
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend_from_slice(&source.draw().to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

fn violated(invariant: &'static str, what: String) {
    world(|world| world.oracle.violated(invariant, what));
}

fn first_difference(found: &[u8], expected: &[u8]) -> String {
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected).unwrap_or(0);
    let end = (at + 8).min(found.len());
    let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
    let zeros =
        found.iter().zip(expected).filter(|(found, expected)| found != expected && **found == 0).count();
    format!(
        "{wrong} of {} bytes are wrong, {zeros} of them zero; first at {at}: {:02x?} instead of {:02x?}",
        found.len(),
        &found[at..end],
        &expected[at..end.min(expected.len())]
    )
}

/// Counts an operation and its error, and returns the result if there is one. A correct node that is taken for a forger
/// is always a violation. In a world without faults so is every other error, except want of memory, names that are
/// missing, taken or invalid, and what the end of a client or the replacing of a file explains.
fn note_outcome<T>(process: ProcessId, kind: &'static str, result: Result<T, Error>) -> Option<T> {
    world(|world| {
        world.tally.operation(kind, result.is_ok());
        let code = result.as_ref().err().map_or(0, |error| error.kind() as u64 + 1);
        world.note(process, kind, [code, 0, 0]);
        let error = result.as_ref().err()?;
        *world.tally.errors.entry(format!("{kind}: {:?}", error.kind())).or_default() += 1;
        if error.kind() == ErrorKind::Tampered {
            world.oracle.violated("I3", format!("a correct node is reported as forging: {error}"));
        }
        let permitted = [
            ErrorKind::Exhausted,
            ErrorKind::NotFound,
            ErrorKind::Exists,
            ErrorKind::Invalid,
            ErrorKind::Conflict,
        ];
        let is_still = world.plan.profile == Profile::Still && !world.plan.drains;
        let is_still = is_still && world.parties.phase == Phase::Faulty;
        // The pool that a storm's tasks use was closed by the client, or the world is ending.
        let is_left =
            kind.ends_with("in a storm") && [ErrorKind::Closed, ErrorKind::Lost].contains(&error.kind());
        let is_small = permitted.contains(&error.kind()) || is_left || is_replaced(kind, error);
        if is_still && !is_small {
            world.oracle.violated("liveness", format!("{kind} failed in a world without faults: {error}"));
        }
        Some(())
    });
    result.ok()
}

impl Client {
    fn outcome<T>(&self, kind: &'static str, result: Result<T, Error>) -> Option<T> {
        note_outcome(self.process, kind, result)
    }

    fn think(&mut self) {
        let think_ns = world(|world| world.plan.think_ns);
        rest(self.random.below(2 * think_ns) + 1);
    }

    fn burst(&mut self) {
        if self.pool.is_none() && !self.connect() {
            self.think();
            return;
        }
        let count = self.random.skewed(1, 24);
        for _ in 0..count {
            if self.pool.is_none() {
                return;
            }
            self.operate();
        }
        self.check_what_was_given_back();
        self.think();
    }

    fn connect(&mut self) -> bool {
        let connected = self.try_to_connect();
        self.pool = self.outcome("connect", connected);
        self.has_reserved = false;
        self.pool.is_some()
    }

    fn try_to_connect(&mut self) -> Result<Pool, Error> {
        let options = world(|world| PoolOptions {
            transport: if world.random.one_in(4) { TransportChoice::Tcp } else { TransportChoice::Auto },
            request_timeout_ms: world.plan.request_timeout_ms,
            broker_patience_ms: world.plan.broker_patience_ms,
            renew_ms_max: world.plan.renew_ms_max,
            repair_bytes_per_second: world.plan.repair_bytes_per_second,
            plaintext: true,
            label: Some(format!("client{}", self.index)),
            ..PoolOptions::default()
        });
        let host = Arc::new(SimHost(self.process));
        let pool = Pool::connect_from(host, &format!("farpool://{}", brokers()), options)?;
        pool.make_by_recipe(published::RECIPES, published::make_again);
        Ok(pool)
    }

    fn leave(&mut self) {
        self.files.clear();
        self.seen.clear();
        self.tables.clear();
        self.grown.clear();
        self.parts.clear();
        if let Some(pool) = self.pool.take() {
            pool.close();
        }
    }

    fn operate(&mut self) {
        match self.random.below(100) {
            0..10 => self.create(),
            10..37 => self.write(),
            37..62 => self.read(),
            62 if self.random.one_in(3) => self.put_table(),
            62..64 => self.scan_table(),
            64..68 => self.change_tables(),
            68..70 => self.truncate(),
            70..75 => self.delete(),
            75..81 => self.publish(),
            81..87 => self.open_published(),
            87..94 => self.read_published(),
            94..96 => self.drop_name(),
            96 => self.rename(),
            97 => self.reserve(),
            98 if self.random.one_in(4) => self.leave(),
            98 => self.list(),
            _ if self.random.one_in(4) => self.begin_storm(),
            _ => self.think(),
        }
    }

    /// Starts tasks that write and read files of their own at once for a while, beside this client's operations. Starts
    /// none while earlier ones still run.
    fn begin_storm(&mut self) {
        if self.storm.as_ref().is_none_or(Storm::is_over) {
            let pool = self.pool();
            self.storm = storm::begin(self.process, &pool, &mut self.random);
        }
    }

    fn pool(&self) -> Pool {
        self.pool.clone().expect("only a connected client operates")
    }

    fn create(&mut self) {
        if self.files.len() >= FILES_MAX {
            return self.delete();
        }
        self.next_file += 1;
        let name = format!("own/{}", self.next_file);
        let class = if self.random.one_in(6) { FileClass::Cache } else { FileClass::Scratch };
        let size_hint = if self.random.one_in(8) { self.random.below(1 << 20) } else { 0 };
        let (protection, encrypted) = match class {
            FileClass::Scratch => {
                let all = [Protection::None, Protection::Mirror, Protection::Mirror, Protection::Local];
                (*self.random.pick(&all), self.random.one_in(6))
            }
            _ => (Protection::None, false),
        };
        let options = CreateOptions {
            size_hint,
            protection: Some(protection),
            encrypted: Some(encrypted),
            ..CreateOptions::default()
        };
        let created = self.pool().create(&name, class, options);
        if let Some(file) = self.outcome("create", created) {
            self.files.insert(
                name,
                Known {
                    file,
                    bytes: Vec::new(),
                    protection,
                    unsure: RangeSet::default(),
                    placed: 0,
                    has_failed: false,
                },
            );
        }
    }

    /// Returns the expectation that a file's protection permits of the next operation on it.
    fn promise(&self, name: &str) -> Promise {
        let theme = world(|world| world.plan.theme);
        let Some(known) = self.files.get(name) else { return Promise::default() };
        let must_succeed = match known.protection {
            Protection::None | Protection::Rs { .. } => false,
            // The copy is on the local disk of this machine. Once that was broken in this world, nothing is promised.
            Protection::Local => !world(|world| world.tally.faults.contains_key("local disk broken")),
            // Both copies exist on different nodes, and faults hit only one node of this world.
            Protection::Mirror => {
                matches!(theme, Theme::OneNode(_)) && self.pool().stats().unprotected_bytes == 0
            }
        };
        Promise { must_succeed }
    }

    /// Checks I7: an operation on a protected file does not fail because a node does.
    fn keep(&self, name: &str, promise: Promise, kind: &str, error: Option<&Error>) {
        let Some(error) = error else { return };
        world(|world| {
            world.oracle.checks += 1;
            let is_alive = world.is_alive(self.process);
            let is_old = error.kind() == ErrorKind::Poisoned && self.files[name].has_failed;
            let is_small = error.kind() == ErrorKind::Exhausted || is_old;
            // The local disk may have broken during the operation.
            let has_disk = !world.tally.faults.contains_key("local disk broken");
            let is_promised =
                promise.must_succeed && (has_disk || self.files[name].protection != Protection::Local);
            if is_promised && is_alive && !is_small {
                let known = &self.files[name];
                let (protection, encrypted) = (known.protection.to_string(), known.file.is_encrypted());
                let what = format!(
                    "{name:?} has protection {protection} (encrypted: {encrypted}), and yet: {kind}: {error}"
                );
                world.oracle.violated("I7", what);
            }
        });
    }

    fn any_file(&mut self) -> Option<String> {
        let names: Vec<&String> = self.files.keys().collect();
        if names.is_empty() { None } else { Some((*self.random.pick(&names)).clone()) }
    }

    /// Draws a range to write, as an offset and a number of bytes: mostly 8 KiB at most, now and then more than a node
    /// copies in one go.
    fn range(&mut self, length: u64) -> (u64, usize) {
        let most = if self.random.one_in(12) { 700 << 10 } else { 8 << 10 };
        let count = self.random.skewed(1, most);
        let offset = match self.random.below(4) {
            0 => length,
            1 => self.random.below(length + 1),
            2 => self.random.below(length + 1) & !4095,
            _ => self.random.below(length + (64 << 10)),
        };
        (offset.min(FILE_BYTES_MAX - count), count as usize)
    }

    fn write(&mut self) {
        let Some(name) = self.any_file() else { return self.create() };
        let length = self.files[&name].bytes.len() as u64;
        let count = if self.random.one_in(6) { self.random.range(2, 4) } else { 1 };
        let ranges: Vec<(u64, Vec<u8>)> = (0..count)
            .map(|_| {
                let (offset, bytes) = self.range(length);
                (offset, stamped(bytes))
            })
            .collect();
        let asked: Vec<WriteRange<'_>> =
            ranges.iter().map(|(offset, from)| WriteRange { offset: *offset, from }).collect();
        let mut promise = self.promise(&name);
        let last = ranges.iter().map(|(offset, from)| offset + from.len() as u64).fold(0, u64::max);
        if last > self.files[&name].placed && self.files[&name].protection == Protection::Mirror {
            // New memory for one of the two copies may be had only on the node that fails, so nothing is promised.
            promise = Promise::default();
        }
        let result = self.files[&name].file.write_batch(&asked);
        self.keep(&name, promise, "write", result.as_ref().err());
        let done = self.outcome("write", result).is_some();
        let Some(known) = self.files.get_mut(&name) else { return };
        let found = known.file.length();
        let end = ranges.iter().map(|(offset, from)| offset + from.len() as u64).fold(length, u64::max);
        if done {
            known.placed = known.placed.max(last);
            for (offset, from) in &ranges {
                let end = *offset as usize + from.len();
                if known.bytes.len() < end {
                    known.bytes.resize(end, 0);
                }
                known.bytes[*offset as usize..end].copy_from_slice(from);
                known.unsure.remove(*offset..end as u64);
            }
            if found != end {
                violated("I3", format!("{name:?} is {found} bytes long after a write up to {end}"));
            }
        } else if found == length
            || found == end
            || known.file.is_encrypted() && (length..=end).contains(&found)
        {
            // A byte of the range is now the old one, the new one, or unreadable until it is rewritten.
            known.bytes.resize(found as usize, 0);
            known.has_failed = true;
            if known.file.is_encrypted() && ranges.len() > 1 {
                for (offset, from) in &ranges {
                    known.unsure.insert(*offset..offset + from.len() as u64);
                }
            }
        } else {
            violated(
                "I3",
                format!("{name:?} of {length} bytes is {found} long after a failed write up to {end}"),
            );
        }
    }

    fn read(&mut self) {
        let Some(name) = self.any_file() else { return self.create() };
        let known = &self.files[&name];
        let length = known.bytes.len() as u64;
        if length == 0 {
            return self.write();
        }
        let count = if self.random.one_in(4) { self.random.range(2, 5) } else { 1 };
        let wanted: Vec<(usize, usize)> = (0..count)
            .map(|_| {
                let offset = self.random.below(length);
                let most = if self.random.one_in(8) { length } else { 16 << 10 };
                (offset as usize, self.random.skewed(1, most).min(length - offset) as usize)
            })
            .collect();
        let mut buffers: Vec<Vec<u8>> = wanted.iter().map(|(_, bytes)| vec![0xEE; *bytes]).collect();
        let mut ranges: Vec<ReadRange<'_>> = wanted
            .iter()
            .zip(&mut buffers)
            .map(|((offset, _), into)| ReadRange { offset: *offset as u64, into })
            .collect();
        let promise = self.promise(&name);
        let result = self.files[&name].file.read_batch(&mut ranges);
        self.keep(&name, promise, "read", result.as_ref().err());
        if self.outcome("read", result).is_none() {
            return;
        }
        let known = &self.files[&name];
        for ((offset, bytes), found) in wanted.iter().zip(&buffers) {
            let expected = &known.bytes[*offset..offset + bytes];
            let range = *offset as u64..(offset + bytes) as u64;
            if known.unsure.touches(range) {
                continue;
            }
            world(|world| {
                world.tally.bytes_compared += *bytes as u64;
                world.oracle.checks += 1;
            });
            if found != expected {
                violated("I3", format!("{name:?} at {offset}: {}", first_difference(found, expected)));
            }
        }
    }

    fn truncate(&mut self) {
        let Some(name) = self.any_file() else { return };
        let length = self.files[&name].bytes.len() as u64;
        let to = if self.random.one_in(3) {
            length + self.random.below(100 << 10)
        } else {
            self.random.below(length + 1)
        };
        let to = to.min(FILE_BYTES_MAX);
        let result = self.files[&name].file.truncate(to);
        if self.outcome("truncate", result).is_some()
            && let Some(known) = self.files.get_mut(&name)
        {
            known.bytes.resize(to as usize, 0);
            known.unsure.remove(to..u64::MAX);
            known.placed = known.placed.min(to);
        }
    }

    fn delete(&mut self) {
        let Some(name) = self.any_file() else { return };
        self.files.remove(&name);
        let result = self.pool().delete(&name);
        self.outcome("delete", result);
    }

    fn reserve(&mut self) {
        self.has_reserved = true;
        let bytes = self.random.range(1, 1 << 20);
        let result = self.pool().reserve(bytes);
        self.outcome("reserve", result);
    }

    fn list(&mut self) {
        let result = self.pool().list("");
        self.outcome("list", result);
    }

    /// Deletes the private files. Leaves the pool if the client had reserved memory, because that is how a reservation
    /// ends.
    fn put_away(&mut self) {
        while self.storm.as_ref().is_some_and(|storm| !storm.is_over()) {
            rest(100 * MS);
        }
        self.storm = None;
        let names: Vec<String> = std::mem::take(&mut self.files).into_keys().collect();
        if let Some(pool) = &self.pool {
            for name in names {
                let _ = pool.delete(&name);
            }
        }
        self.seen.clear();
        self.tables.clear();
        self.grown.clear();
        self.parts.clear();
        if self.has_reserved {
            self.leave();
        }
    }
}

/// Reports whether an operation on a published name failed because the name was published anew or dropped meanwhile.
/// That is neither a violation nor a success.
fn is_replaced(kind: &str, error: &Error) -> bool {
    let of_name = [
        "read published",
        "publish",
        "open",
        "rename",
        "drop",
        "put a table",
        "open a table",
        "append to a table",
        "change rows of a table",
        "roll a table back",
        "make a table",
        "replace a table",
        "drop a changed table",
        "compact a table",
        "open a changed table",
        "read a changed table",
        "commit parts",
        "drop parts",
        "open parts",
        "read parts",
    ];
    let kinds = [ErrorKind::Lost, ErrorKind::Exists, ErrorKind::NotFound, ErrorKind::Refused];
    match kind {
        // A table that is open is closed by its replacement, if this client has made it. A snapshot that is read or
        // changed ends after the longest life of holds; readers look whether it was kept.
        "scan a table"
        | "open a changed table"
        | "read a changed table"
        | "change rows of a table"
        | "compact a table" => kinds.contains(&error.kind()) || error.kind() == ErrorKind::Closed,
        _ => of_name.contains(&kind) && kinds.contains(&error.kind()),
    }
}
