//! Encoding of records as keys and values, for every store that keeps bytes. Each value contains its key, the number of
//! its commit, and a checksum. One more value, the sum, has the number of all others and the sum of their digests.
//!
//! The idea: a file or a cluster may be damaged beneath a store. A value that was changed, or is stored under another
//! key, fails its checksum. A value that is missing, or is an old version, makes the sum wrong. A value says what it
//! is, so undamaged values can be found in a damaged file without the program that manages the file ([`Found`]).
//!
//! Never here: a guess. A value that does not verify is an error with its reason.
//!
//! A value: `FPr1`, number of the commit (8 bytes), key (2 bytes of length, then UTF-8), payload (4 bytes of length,
//! then the payload), CRC32C of all that (4 bytes); integers are little-endian. Keys and payloads: `meta/term` and
//! `meta/next_file` 8 bytes each, `meta/key` 32 bytes, `meta/sum` the number of all other values (8 bytes) and the sum
//! of their digests (16 bytes), `files/NAME` a published file. The digest of a value is the first 16 bytes of the
//! SHA-256 of it.
//!
//! The payload of a published file is 0 and the file in the form of the wire. If that would make the value longer than
//! [`RECORD_BYTES_MAX`], it is 1 and the number of pages (4 bytes) and their generation (8 bytes), and the form of the
//! wire is in the payloads of `pages/GENERATION/INDEX/NAME`. The pages are stored before the value that refers to them,
//! each in a transaction of its own, as a transaction of etcd is limited as well. Pages that no value refers to, as
//! after a crash, are deleted by the next commits, a few by each. The generation is the number of the first commit that
//! wrote a page.
//!
//! `commits/TABLE/SNAPSHOT` is a commit of a table, in the form of the wire: its id (8 bytes), session (8), time (8),
//! summary, and two lists of ranges of parts. `open/TABLE/COMMIT` is the session (8 bytes) that may make a commit.
//! Tables, snapshots and commits are 16 hexadecimal digits each.
//!
//! The format before this one had `names/NAME`, with one copy of each extent. It is read, and each file is stored in
//! the new form when it changes.

mod found;

pub use super::commits::{COMMITS, OPEN_COMMITS};
pub use found::Found;

use super::commits::{change_of, commit_key, encode_commit, open_commit_key};
use super::published::decode_extents;
use super::{StoreError, decode_file, encode_file};
use farpool_lease::broker::{Durable, NamedFile, StateChange};
use farpool_wire::{FileId, Name, Term};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Key of the value that holds the sum over all others.
pub const SUM: &str = "meta/sum";
/// Prefix of the keys of published files.
pub const FILES: &str = "files/";
/// Prefix of the keys of pages of published files.
pub const PAGES: &str = "pages/";
/// Prefix of the keys of published files, in the format before this one.
pub const NAMES: &str = "names/";
/// Most bytes of a value.
pub const RECORD_BYTES_MAX: usize = 512 << 10;
/// Most bytes of a page: those of a value without its key, which has up to 300 bytes, and its other fields.
const PAGE_BYTES_MAX: usize = RECORD_BYTES_MAX - 512;
/// Most pages that one transaction deletes. One of etcd has at most 128 operations, of which records need up to 107.
const PAGES_DELETED_MAX: usize = 16;
const TERM: &str = "meta/term";
const NEXT_FILE: &str = "meta/next_file";
const KEY: &str = "meta/key";
/// First bytes of every value.
const MAGIC: &[u8; 4] = b"FPr1";
/// Bytes of a value before its key.
const HEAD_BYTES: usize = 4 + 8 + 2;

/// Value whose checksum is right.
struct Value<'a> {
    commit: u64,
    key: &'a str,
    payload: &'a [u8],
    /// All bytes of the value.
    bytes: &'a [u8],
}

/// Decodes the value at the start of `bytes`. `None` if there is no undamaged one.
fn value(bytes: &[u8]) -> Option<Value<'_>> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (commit, rest) = rest.split_first_chunk()?;
    let (key_bytes, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*key_bytes).into())?;
    let (payload_bytes, rest) = rest.split_first_chunk()?;
    let (payload, rest) = rest.split_at_checked(u32::from_le_bytes(*payload_bytes) as usize)?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let all = &bytes[..bytes.len() - rest.len()];
    let is_whole = crc32c::crc32c(&all[..all.len() - checksum.len()]) == u32::from_le_bytes(*checksum);
    let key = std::str::from_utf8(key).ok().filter(|_| is_whole)?;
    Some(Value { commit: u64::from_le_bytes(*commit), key, payload, bytes: all })
}

fn encode(key: &str, commit: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + key.len() + 4 + payload.len() + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&commit.to_le_bytes());
    // Names have up to 255 bytes and files up to some megabytes, so both lengths fit.
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn sum_value(commit: u64, count: u64, sum: u128) -> Vec<u8> {
    encode(SUM, commit, &[&count.to_le_bytes()[..], &sum.to_le_bytes()].concat())
}

fn digest(value: &[u8]) -> u128 {
    let mut first = [0; 16];
    first.copy_from_slice(&Sha256::digest(value)[..16]);
    u128::from_le_bytes(first)
}

/// Payload of a published file's value.
enum FileRecord<'a> {
    /// The file in the form of the wire.
    Whole(&'a [u8]),
    Paged(Pages),
}

/// Pages of a published file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    generation: u64,
    count: u32,
}

impl Pages {
    fn key(self, index: u32, name: &str) -> String {
        format!("{PAGES}{:016x}/{index}/{name}", self.generation)
    }

    fn payload(self) -> Vec<u8> {
        [&[1][..], &self.count.to_le_bytes(), &self.generation.to_le_bytes()].concat()
    }

    /// Joins the pages. `None` if one is missing.
    fn join<'a>(self, name: &str, page: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Vec<u8>> {
        let pages: Option<Vec<&[u8]>> = (0..self.count).map(|index| page(&self.key(index, name))).collect();
        pages.map(|pages| pages.concat())
    }
}

impl FileRecord<'_> {
    fn of(payload: &[u8]) -> Option<FileRecord<'_>> {
        match payload.split_first()? {
            (0, whole) => Some(FileRecord::Whole(whole)),
            (1, rest) => {
                let (count, generation) = rest.split_first_chunk()?;
                Some(FileRecord::Paged(Pages {
                    count: u32::from_le_bytes(*count),
                    generation: u64::from_le_bytes(generation.try_into().ok()?),
                }))
            }
            _ => None,
        }
    }
}

/// Returns the generation and the name in the key of a page.
fn page_of(key: &str) -> Option<(u64, &str)> {
    let (generation, rest) = key.strip_prefix(PAGES)?.split_once('/')?;
    let (_, name) = rest.split_once('/')?;
    Some((u64::from_str_radix(generation, 16).ok()?, name))
}

/// Digests of all values in a store, from which the next commit computes the new sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Number of the last commit.
    commit: u64,
    digests: BTreeMap<String, u128>,
    sum: u128,
    /// Generation of the pages of each file that has pages, by name.
    paged: BTreeMap<String, u64>,
}

/// Part of what records change, which a store commits in one transaction: keys with their new payloads. `None` if the
/// key is deleted.
#[derive(Debug)]
pub struct Step(BTreeMap<String, Option<Vec<u8>>>);

/// Changes that a commit makes to a store.
#[derive(Debug)]
pub struct Changes {
    /// Keys with their new values. `None` if the key is deleted.
    pub values: BTreeMap<String, Option<Vec<u8>>>,
    commit: u64,
    sum: u128,
}

impl Ledger {
    /// Returns the number of the last commit. 0 if there was none.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Returns the encoded value that holds the sum over all others. `None` if there was no commit.
    pub fn sum(&self) -> Option<Vec<u8>> {
        (self.commit > 0).then(|| sum_value(self.commit, self.digests.len() as u64, self.sum))
    }

    /// Returns what these records change, in steps that have to be committed in this order. All but the last only add
    /// pages, so a crash between them leaves the records as they were.
    ///
    /// Errors: a file has more regions than can be stored.
    pub fn steps(&self, records: &[StateChange]) -> Result<Vec<Step>, StoreError> {
        let mut last: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
        // If several records are about the same name, the last one wins.
        let mut names: BTreeMap<&Name, Option<&NamedFile>> = BTreeMap::new();
        for record in records {
            match record {
                StateChange::Term(term) => {
                    last.insert(TERM.to_owned(), Some(term.0.to_le_bytes().to_vec()));
                }
                StateChange::Key(key) => {
                    last.insert(KEY.to_owned(), Some(key.to_vec()));
                }
                StateChange::NextFile(file) => {
                    last.insert(NEXT_FILE.to_owned(), Some(file.0.to_le_bytes().to_vec()));
                }
                StateChange::Name(name, file) => {
                    names.insert(name, Some(file));
                }
                StateChange::DropName(name) => {
                    names.insert(name, None);
                }
                StateChange::Commit(at, record) => {
                    let encoded = encode_commit(record).map_err(|error| StoreError(error.to_string()))?;
                    last.insert(commit_key(*at), Some(encoded));
                }
                StateChange::DropCommit(at) => {
                    last.insert(commit_key(*at), None);
                }
                StateChange::OpenCommit(table, commit, session) => {
                    let session = session.0.to_le_bytes().to_vec();
                    last.insert(open_commit_key(*table, *commit), Some(session));
                }
                StateChange::CloseCommit(table, commit) => {
                    last.insert(open_commit_key(*table, *commit), None);
                }
            }
        }
        let generation = self.commit + 1;
        let mut steps = Vec::new();
        let mut paged = self.paged.clone();
        for (name, file) in names {
            let (key, former) = (format!("{FILES}{}", &**name), format!("{NAMES}{}", &**name));
            paged.remove(&**name);
            if self.digests.contains_key(&former) {
                last.insert(former, None);
            }
            let Some(file) = file else {
                last.insert(key, None);
                continue;
            };
            let encoded = encode_file(file);
            if encoded.len() < PAGE_BYTES_MAX {
                last.insert(key, Some([&[0][..], &encoded].concat()));
                continue;
            }
            let pages = encoded.chunks(PAGE_BYTES_MAX);
            let head = Pages { generation, count: pages.len() as u32 };
            for (index, page) in pages.enumerate() {
                steps.push(Step([(head.key(index as u32, name), Some(page.to_vec()))].into()));
            }
            paged.insert(name.to_string(), generation);
            last.insert(key, Some(head.payload()));
        }
        let pages = self.digests.range(PAGES.to_owned()..).map(|(key, _)| key);
        let is_left = |key: &&String| {
            page_of(key).is_some_and(|(generation, name)| paged.get(name) != Some(&generation))
        };
        let left = pages.take_while(|key| key.starts_with(PAGES)).filter(is_left);
        last.extend(left.take(PAGES_DELETED_MAX).map(|key| (key.clone(), None)));
        steps.push(Step(last));
        Ok(steps)
    }

    /// Returns the changes that a commit of a step makes.
    pub fn changes(&self, step: &Step) -> Changes {
        let commit = self.commit + 1;
        let encoded = step.0.iter().map(|(key, payload)| {
            (key.clone(), payload.as_ref().map(|payload| encode(key, commit, payload)))
        });
        let mut values: BTreeMap<String, Option<Vec<u8>>> = encoded.collect();
        let mut sum = self.sum;
        let mut count = self.digests.len() as u64;
        for (key, value) in &values {
            if let Some(before) = self.digests.get(key) {
                sum = sum.wrapping_sub(*before);
                count -= 1;
            }
            if let Some(value) = value {
                sum = sum.wrapping_add(digest(value));
                count += 1;
            }
        }
        values.insert(SUM.to_owned(), Some(sum_value(commit, count, sum)));
        Changes { values, commit, sum }
    }

    /// Notes that changes, which were made from this ledger, have been stored.
    pub fn kept(&mut self, changes: &Changes) {
        for (key, value) in changes.values.iter().filter(|(key, _)| *key != SUM) {
            match value {
                Some(value) => self.note(key, value),
                None => {
                    self.digests.remove(key);
                    key.strip_prefix(FILES).map(|name| self.paged.remove(name));
                }
            }
        }
        (self.commit, self.sum) = (changes.commit, changes.sum);
    }

    /// Notes that the store has this value, which is valid.
    fn note(&mut self, key: &str, bytes: &[u8]) {
        self.digests.insert(key.to_owned(), digest(bytes));
        if let Some(name) = key.strip_prefix(FILES) {
            self.paged.remove(name);
            if let Some(FileRecord::Paged(pages)) =
                value(bytes).and_then(|value| FileRecord::of(value.payload))
            {
                self.paged.insert(name.to_owned(), pages.generation);
            }
        }
    }
}

/// Store that is being read, value by value.
#[derive(Debug, Default)]
pub struct Reading {
    durable: Durable,
    ledger: Ledger,
    /// Files whose pages are joined when all were read.
    paged: BTreeMap<Name, Pages>,
    /// Payloads of the pages, by key.
    pages: BTreeMap<String, Vec<u8>>,
    /// Number of the other values, and sum of their digests, as the value `meta/sum` of the store says; `None` until it
    /// was read.
    said: Option<(u64, u128)>,
}

impl Reading {
    /// Adds a value that the store has under a key. Fails with the reason if the value is wrong.
    pub fn take(&mut self, key: &str, bytes: &[u8]) -> Result<(), String> {
        let wrong = |why: &str| format!("the record {key:?} {why}");
        let value = value(bytes).filter(|value| value.bytes.len() == bytes.len());
        let value = value.ok_or_else(|| wrong("has a wrong checksum"))?;
        if value.key != key {
            return Err(wrong(&format!("is that of {:?}", value.key)));
        }
        if key == SUM {
            let said = value.payload.split_first_chunk().and_then(|(count, sum)| {
                Some((u64::from_le_bytes(*count), u128::from_le_bytes(sum.try_into().ok()?)))
            });
            self.said = Some(said.ok_or_else(|| wrong("is not a valid sum"))?);
            self.ledger.commit = value.commit;
            return Ok(());
        }
        self.ledger.note(key, bytes);
        self.ledger.sum = self.ledger.sum.wrapping_add(digest(bytes));
        match record(key, value.payload).map_err(|why| wrong(&why))? {
            Record::Change(change) => self.durable.apply(change),
            Record::Paged(name, pages) => drop(self.paged.insert(name, pages)),
            Record::Page => drop(self.pages.insert(key.to_owned(), value.payload.to_vec())),
        }
        Ok(())
    }

    /// Returns everything that was read. Fails with the reason if something is missing.
    pub fn finish(mut self) -> Result<(Durable, Ledger), String> {
        let read = (self.ledger.digests.len() as u64, self.ledger.sum);
        match self.said {
            None if read.0 == 0 => {}
            None => return Err("the sum over its records is missing".to_owned()),
            Some(said) if said == read => {}
            Some((said, _)) if said != read.0 => {
                return Err(format!("it has {} records; {said} were written", read.0));
            }
            Some(_) => return Err("one of its records is from before the last commit".to_owned()),
        }
        for (name, pages) in self.paged {
            let joined = pages.join(&name, |key| self.pages.get(key).map(Vec::as_slice));
            let joined = joined.ok_or_else(|| format!("a page of the file {:?} is missing", &*name))?;
            let file = decode_file(&joined);
            let file = file.map_err(|error| format!("the pages of the file {:?}: {error}", &*name))?;
            self.durable.apply(StateChange::Name(name, file));
        }
        Ok((self.durable, self.ledger))
    }
}

/// Record of a value.
enum Record {
    Change(StateChange),
    /// File that is in pages.
    Paged(Name, Pages),
    Page,
}

/// Decodes the record of a key and its payload.
fn record(key: &str, payload: &[u8]) -> Result<Record, String> {
    let length = || format!("has {} bytes", payload.len());
    let number = || payload.try_into().map(u64::from_le_bytes).map_err(|_| length());
    let name = |name: &str| Name::new(name).map_err(|error| error.to_string());
    let file = |name, file: Result<NamedFile, farpool_wire::WireError>| {
        file.map(|file| StateChange::Name(name, file)).map_err(|error| error.to_string())
    };
    Ok(Record::Change(match key {
        TERM => StateChange::Term(Term(number()?)),
        NEXT_FILE => StateChange::NextFile(FileId(number()?)),
        KEY => StateChange::Key(payload.try_into().map_err(|_| length())?),
        _ if page_of(key).is_some() => return Ok(Record::Page),
        _ => match (key.strip_prefix(FILES), key.strip_prefix(NAMES)) {
            (Some(of), _) => match FileRecord::of(payload).ok_or_else(length)? {
                FileRecord::Whole(whole) => file(name(of)?, decode_file(whole))?,
                FileRecord::Paged(pages) => return Ok(Record::Paged(name(of)?, pages)),
            },
            (_, Some(of)) => file(name(of)?, decode_extents(payload))?,
            _ => change_of(key, payload).ok_or("is not known")??,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_wire::codec::Field;
    use farpool_wire::control::{NamedRegion, PlacesBuilder};
    use farpool_wire::limits::NAMED_REGIONS_MAX;
    use farpool_wire::{Epoch, Handle, Incarnation, NodeId, RegionIndex};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn file(id: u64) -> NamedFile {
        NamedFile {
            file: FileId(id),
            class: farpool_wire::FileClass::Pinned,
            tenant: name("tenant"),
            copies_wanted: 1,
            recipe: Default::default(),
            places: Default::default(),
            root_of: None,
        }
    }

    /// Returns the contents of a store after these commits, and its ledger.
    fn store(commits: &[&[StateChange]]) -> (BTreeMap<String, Vec<u8>>, Ledger) {
        let (mut values, mut ledger) = (BTreeMap::new(), Ledger::default());
        for records in commits {
            for step in ledger.steps(records).expect("fits") {
                keep(&step, &mut values, &mut ledger);
            }
        }
        (values, ledger)
    }

    /// Commits a step.
    fn keep(step: &Step, values: &mut BTreeMap<String, Vec<u8>>, ledger: &mut Ledger) {
        let changes = ledger.changes(step);
        for (key, value) in &changes.values {
            match value {
                Some(value) => values.insert(key.clone(), value.clone()),
                None => values.remove(key),
            };
        }
        ledger.kept(&changes);
    }

    /// Returns a file whose places need several pages.
    fn large(id: u64) -> NamedFile {
        let region = |index: u32| NamedRegion {
            node: NodeId(1),
            incarnation: Incarnation(2),
            region: RegionIndex(index),
            epoch: Epoch(id),
            handle: Handle(4),
        };
        let mut adding = PlacesBuilder::default();
        for index in 0..NAMED_REGIONS_MAX as u32 / 2 {
            let copies = [(region(2 * index), 0), (region(2 * index + 1), 64)];
            adding.push(4096, copies).expect("fits");
        }
        NamedFile { copies_wanted: 2, places: adding.finish().expect("fits"), ..file(id) }
    }

    fn read(values: &BTreeMap<String, Vec<u8>>) -> Result<(Durable, Ledger), String> {
        let mut reading = Reading::default();
        values.iter().try_for_each(|(key, value)| reading.take(key, value))?;
        reading.finish()
    }

    fn three_files() -> (BTreeMap<String, Vec<u8>>, Ledger) {
        store(&[
            &[StateChange::Key([7; 32]), StateChange::Term(Term(1))],
            &[
                StateChange::NextFile(FileId(4)),
                StateChange::Name(name("a"), file(1)),
                StateChange::Name(name("b"), file(2)),
            ],
            &[StateChange::Name(name("c"), file(3)), StateChange::DropName(name("a"))],
        ])
    }

    #[test]
    fn values_that_are_whole_are_read_as_they_were_written() {
        let (values, ledger) = three_files();
        let (durable, read) = read(&values).expect("whole");
        assert_eq!(read, ledger);
        assert_eq!(ledger.sum().as_ref(), values.get(SUM));
        assert_eq!((durable.term, durable.next_file, durable.key), (Term(1), FileId(4), Some([7; 32])));
        assert_eq!(durable.names.keys().map(|name| &**name).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn every_flipped_bit_of_every_value_is_found() {
        let (values, _) = three_files();
        for (key, value) in &values {
            for bit in 0..8 * value.len() {
                let mut damaged = values.clone();
                damaged.get_mut(key).expect("there")[bit / 8] ^= 1 << (bit % 8);
                read(&damaged).expect_err("a flipped bit");
            }
        }
    }

    #[test]
    fn value_under_another_key_or_from_before_or_missing_is_found() {
        let (values, _) = three_files();
        let mut swapped = values.clone();
        swapped.insert("files/b".to_owned(), values["files/c"].clone());
        assert!(read(&swapped).expect_err("swapped").contains("is that of \"files/c\""));
        for key in values.keys() {
            let mut missing = values.clone();
            missing.remove(key);
            read(&missing).expect_err("missing");
        }
        let (before, _) = store(&[&[StateChange::Term(Term(1))], &[StateChange::Term(Term(2))]]);
        let (mut after, _) = store(&[
            &[StateChange::Term(Term(1))],
            &[StateChange::Term(Term(2))],
            &[StateChange::Term(Term(3))],
        ]);
        after.insert(TERM.to_owned(), before[TERM].clone());
        assert!(read(&after).expect_err("old").contains("before the last commit"));
    }

    #[test]
    fn what_is_whole_in_damaged_bytes_is_found_and_the_latest_name_of_a_file_is_its_name() {
        let commits: [&[StateChange]; 3] = [
            &[StateChange::Key([7; 32]), StateChange::Term(Term(5)), StateChange::NextFile(FileId(3))],
            &[StateChange::Name(name("old"), file(1)), StateChange::Name(name("other"), file(2))],
            &[StateChange::DropName(name("old")), StateChange::Name(name("new"), file(1))],
        ];
        // A damaged file may contain values of all commits, in any order, and some of them are truncated.
        let mut bytes = b"FPr1 is no value".to_vec();
        for count in (1..=commits.len()).rev() {
            for (key, value) in store(&commits[..count]).0 {
                bytes.extend_from_slice(&value);
                if key == "files/other" {
                    *bytes.last_mut().expect("not empty") ^= 1;
                }
            }
        }
        bytes.extend_from_slice(&encode("files/torn", 9, &[0; 100])[..50]);
        let mut found = Durable::default();
        Found::in_bytes(&bytes).records(1_000).into_iter().for_each(|record| found.apply(record));
        assert_eq!(found.key, Some([7; 32]));
        assert!(found.term >= Term(1_000) && found.next_file >= FileId(3));
        assert_eq!(found.names, BTreeMap::from([(name("new"), file(1))]));
    }

    #[test]
    fn large_file_is_stored_in_pages_of_limited_size_and_a_crash_between_them_leaves_what_was_there() {
        let (mut values, mut ledger) = store(&[&[StateChange::Name(name("a"), large(1))]]);
        let pages =
            |values: &BTreeMap<String, Vec<u8>>| values.keys().filter(|key| key.starts_with(PAGES)).count();
        let count = pages(&values);
        assert!(count >= 2 && values.values().all(|value| value.len() <= RECORD_BYTES_MAX));
        let steps = ledger.steps(&[StateChange::Name(name("a"), large(2))]).expect("fits");
        assert_eq!(steps.len(), count + 1);
        for (committed, step) in steps.iter().enumerate() {
            let (durable, read) = read(&values).expect("whole");
            assert_eq!(read, ledger);
            assert_eq!(durable.names, BTreeMap::from([(name("a"), large(1))]), "after {committed} steps");
            keep(step, &mut values, &mut ledger);
        }
        assert_eq!(read(&values).expect("whole").0.names, BTreeMap::from([(name("a"), large(2))]));
        assert_eq!(pages(&values), count, "the old pages are deleted");
        // Pages that a crash has left are deleted by the next commit, and all others with their file.
        let steps = ledger.steps(&[StateChange::Name(name("b"), large(3))]).expect("fits");
        keep(&steps[0], &mut values, &mut ledger);
        assert_eq!(pages(&values), count + 1);
        for (records, left) in
            [(vec![StateChange::Term(Term(4))], count), (vec![StateChange::DropName(name("a"))], 0)]
        {
            for step in ledger.steps(&records).expect("fits") {
                keep(&step, &mut values, &mut ledger);
            }
            assert_eq!(pages(&values), left);
            assert_eq!(read(&values).expect("whole").1, ledger);
        }
    }

    #[test]
    fn large_file_is_found_in_damaged_bytes_only_if_all_its_pages_are_whole() {
        let (values, _) =
            store(&[&[StateChange::Name(name("a"), large(1)), StateChange::Name(name("b"), file(2))]]);
        let found = |values: &BTreeMap<String, Vec<u8>>| {
            let mut found = Durable::default();
            let bytes = values.values().flatten().copied().collect::<Vec<u8>>();
            Found::in_bytes(&bytes).records(1).into_iter().for_each(|record| found.apply(record));
            found.names
        };
        assert_eq!(found(&values), BTreeMap::from([(name("a"), large(1)), (name("b"), file(2))]));
        for key in values.keys().filter(|key| key.starts_with(PAGES)) {
            let mut damaged = values.clone();
            damaged.get_mut(key).expect("there")[1_000] ^= 1;
            assert_eq!(found(&damaged), BTreeMap::from([(name("b"), file(2))]));
        }
    }

    #[test]
    fn file_of_the_format_before_is_read_until_it_is_stored_in_this_one() {
        let mut payload = Vec::new();
        FileId(1).put(&mut payload);
        farpool_wire::FileClass::Pinned.put(&mut payload);
        name("tenant").put(&mut payload);
        payload.extend_from_slice(&[0; 8]);
        let (mut values, mut ledger) = (BTreeMap::new(), Ledger::default());
        keep(&Step([("names/a".to_owned(), Some(payload))].into()), &mut values, &mut ledger);
        let (durable, read_ledger) = read(&values).expect("whole");
        assert_eq!((durable.names, &read_ledger), (BTreeMap::from([(name("a"), file(1))]), &ledger));
        for step in ledger.steps(&[StateChange::Name(name("a"), file(2))]).expect("fits") {
            keep(&step, &mut values, &mut ledger);
        }
        assert_eq!(values.keys().collect::<Vec<_>>(), ["files/a", SUM]);
        assert_eq!(read(&values).expect("whole").0.names, BTreeMap::from([(name("a"), file(2))]));
    }
}
