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
//! of their digests (16 bytes), `names/NAME` a published file in the form of the wire. The digest of a value is the
//! first 16 bytes of the SHA-256 of it.

use super::{StoreError, decode_file, encode_file};
use farpool_lease::broker::{Durable, StateChange};
use farpool_wire::{FileId, Name, Term};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Key of the value that holds the sum over all others.
pub const SUM: &str = "meta/sum";
/// Prefix of the keys of published files.
pub const NAMES: &str = "names/";
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

/// Digests of all values in a store, from which the next commit computes the new sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Number of the last commit.
    commit: u64,
    digests: BTreeMap<String, u128>,
    sum: u128,
}

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

    /// Returns the changes that a commit of these records makes.
    ///
    /// Errors: a file has more extents than can be stored.
    pub fn changes(&self, records: &[StateChange]) -> Result<Changes, StoreError> {
        let commit = self.commit + 1;
        // If several records have the same key, the last one wins.
        let mut values: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
        for record in records {
            let (key, payload) = match record {
                StateChange::Term(term) => (TERM.to_owned(), Some(term.0.to_le_bytes().to_vec())),
                StateChange::Key(key) => (KEY.to_owned(), Some(key.to_vec())),
                StateChange::NextFile(file) => (NEXT_FILE.to_owned(), Some(file.0.to_le_bytes().to_vec())),
                StateChange::Name(name, file) => (format!("{NAMES}{}", &**name), Some(encode_file(file)?)),
                StateChange::DropName(name) => (format!("{NAMES}{}", &**name), None),
            };
            let value = payload.map(|payload| encode(&key, commit, &payload));
            values.insert(key, value);
        }
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
        Ok(Changes { values, commit, sum })
    }

    /// Notes that changes, which were made from this ledger, have been stored.
    pub fn kept(&mut self, changes: &Changes) {
        for (key, value) in changes.values.iter().filter(|(key, _)| *key != SUM) {
            match value {
                Some(value) => self.digests.insert(key.clone(), digest(value)),
                None => self.digests.remove(key),
            };
        }
        (self.commit, self.sum) = (changes.commit, changes.sum);
    }
}

/// Store that is being read, value by value.
#[derive(Debug, Default)]
pub struct Reading {
    durable: Durable,
    ledger: Ledger,
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
        let digest = digest(bytes);
        self.ledger.sum = self.ledger.sum.wrapping_add(digest);
        self.ledger.digests.insert(key.to_owned(), digest);
        self.durable.apply(record(key, value.payload).map_err(|why| wrong(&why))?);
        Ok(())
    }

    /// Returns everything that was read. Fails with the reason if something is missing.
    pub fn finish(self) -> Result<(Durable, Ledger), String> {
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
        Ok((self.durable, self.ledger))
    }
}

/// Decodes the record of a key and its payload.
fn record(key: &str, payload: &[u8]) -> Result<StateChange, String> {
    let length = || format!("has {} bytes", payload.len());
    let number = || payload.try_into().map(u64::from_le_bytes).map_err(|_| length());
    Ok(match key {
        TERM => StateChange::Term(Term(number()?)),
        NEXT_FILE => StateChange::NextFile(FileId(number()?)),
        KEY => StateChange::Key(payload.try_into().map_err(|_| length())?),
        _ => {
            let name = key.strip_prefix(NAMES).ok_or("is not known")?;
            let name = Name::new(name).map_err(|error| error.to_string())?;
            StateChange::Name(name, decode_file(payload).map_err(|error| error.to_string())?)
        }
    })
}

/// Undamaged records found in a damaged store: for each key the one of the latest commit.
#[derive(Debug, Default)]
pub struct Found {
    latest: BTreeMap<String, (u64, StateChange)>,
}

impl Found {
    /// Finds the undamaged values in `bytes`, at any offset.
    pub fn in_bytes(bytes: &[u8]) -> Found {
        let mut found = Found::default();
        let mut left = bytes;
        while let Some(at) = left.windows(MAGIC.len()).position(|window| window == MAGIC) {
            left = &left[at..];
            match value(left) {
                Some(value) => {
                    if let Ok(record) = record(value.key, value.payload) {
                        let latest = found.latest.get(value.key).map_or(0, |(commit, _)| *commit);
                        if value.commit >= latest {
                            found.latest.insert(value.key.to_owned(), (value.commit, record));
                        }
                    }
                    left = &left[value.bytes.len()..];
                }
                None => left = &left[1..],
            }
        }
        found
    }

    /// Returns the records of a new store. There may be a name among them that was dropped, replaced or renamed. The
    /// nodes have given its regions another epoch or another name by now, so no bytes can be read through it.
    ///
    /// The term is at least `now_ms` (ms since 1970), which is greater than any term that was used before, even if the
    /// record of the last one was lost.
    pub fn records(self, now_ms: u64) -> Vec<StateChange> {
        let mut next_file = 0;
        let mut term = now_ms;
        let mut kept: BTreeMap<FileId, (u64, Name)> = BTreeMap::new();
        let mut names = BTreeMap::new();
        let mut records = Vec::new();
        for (commit, record) in self.latest.into_values() {
            match record {
                StateChange::Term(found) => term = term.max(found.0),
                StateChange::NextFile(found) => next_file = next_file.max(found.0),
                StateChange::Key(_) => records.push(record),
                StateChange::Name(name, file) => {
                    next_file = next_file.max(file.file.0.saturating_add(1));
                    // A file that was found under several names keeps the latest.
                    let latest = kept.entry(file.file).or_insert_with(|| (commit, name.clone()));
                    if commit >= latest.0 {
                        *latest = (commit, name.clone());
                    }
                    names.insert(name, file);
                }
                StateChange::DropName(_) => {}
            }
        }
        names.retain(|name, file| kept.get(&file.file).is_some_and(|(_, latest)| latest == name));
        records.extend([StateChange::Term(Term(term)), StateChange::NextFile(FileId(next_file))]);
        records.extend(names.into_iter().map(|(name, file)| StateChange::Name(name, file)));
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn file(id: u64) -> farpool_lease::broker::NamedFile {
        farpool_lease::broker::NamedFile {
            file: FileId(id),
            class: farpool_wire::FileClass::Pinned,
            tenant: name("tenant"),
            extents: Vec::new(),
            leased_by_admin: Default::default(),
        }
    }

    /// Returns the contents of a store after these commits, and its ledger.
    fn store(commits: &[&[StateChange]]) -> (BTreeMap<String, Vec<u8>>, Ledger) {
        let (mut values, mut ledger) = (BTreeMap::new(), Ledger::default());
        for records in commits {
            let changes = ledger.changes(records).expect("fits");
            for (key, value) in &changes.values {
                match value {
                    Some(value) => values.insert(key.clone(), value.clone()),
                    None => values.remove(key),
                };
            }
            ledger.kept(&changes);
        }
        (values, ledger)
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
        swapped.insert("names/b".to_owned(), values["names/c"].clone());
        assert!(read(&swapped).expect_err("swapped").contains("is that of \"names/c\""));
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
                if key == "names/other" {
                    *bytes.last_mut().expect("not empty") ^= 1;
                }
            }
        }
        bytes.extend_from_slice(&encode("names/torn", 9, &[0; 100])[..50]);
        let mut found = Durable::default();
        Found::in_bytes(&bytes).records(1_000).into_iter().for_each(|record| found.apply(record));
        assert_eq!(found.key, Some([7; 32]));
        assert!(found.term >= Term(1_000) && found.next_file >= FileId(3));
        assert_eq!(found.names, BTreeMap::from([(name("new"), file(1))]));
    }
}
