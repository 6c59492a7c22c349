//! Search for undamaged records in a damaged store, and the records of a new store that are made of them.
//!
//! The idea: a value says what it is, and its checksum shows whether it is whole. So it is found at any offset, without
//! the program that manages the file.

use super::{MAGIC, NAMES, Record, decode_file, record, value};
use farpool_lease::broker::StateChange;
use farpool_wire::{FileId, Name, Term};
use std::collections::BTreeMap;

/// Undamaged records found in a damaged store: for each key the one of the latest commit.
#[derive(Debug, Default)]
pub struct Found {
    /// Commit and payload of each key.
    latest: BTreeMap<String, (u64, Vec<u8>)>,
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
                    let latest = found.latest.get(value.key).map_or(0, |(commit, _)| *commit);
                    if value.commit >= latest && record(value.key, value.payload).is_ok() {
                        found.latest.insert(value.key.to_owned(), (value.commit, value.payload.to_vec()));
                    }
                    left = &left[value.bytes.len()..];
                }
                None => left = &left[1..],
            }
        }
        found
    }

    /// Returns the change of a key, with the pages that belong to it. `None` if it is a page, or if one is missing.
    fn change(&self, key: &str, payload: &[u8]) -> Option<StateChange> {
        match record(key, payload).ok()? {
            Record::Change(change) => Some(change),
            Record::Paged(name, pages) => {
                let page = |key: &str| self.latest.get(key).map(|(_, payload)| &payload[..]);
                let file = decode_file(&pages.join(&name, page)?).ok()?;
                Some(StateChange::Name(name, file))
            }
            Record::Page => None,
        }
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
        for (key, (commit, payload)) in &self.latest {
            let Some(record) = self.change(key, payload) else { continue };
            let commit = *commit;
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
                    // The keys of the format before this one come later, but have the older version of a name.
                    if !(key.starts_with(NAMES) && names.contains_key(&name)) {
                        names.insert(name, file);
                    }
                }
                StateChange::Commit(..) => records.push(record),
                // An open commit may have been made since, and then its parts must stay.
                StateChange::OpenCommit(..) | StateChange::CloseCommit(..) => {}
                StateChange::DropName(_) | StateChange::DropCommit(_) => {}
            }
        }
        names.retain(|name, file| kept.get(&file.file).is_some_and(|(_, latest)| latest == name));
        records.extend([StateChange::Term(Term(term)), StateChange::NextFile(FileId(next_file))]);
        records.extend(names.into_iter().map(|(name, file)| StateChange::Name(name, file)));
        records
    }
}
