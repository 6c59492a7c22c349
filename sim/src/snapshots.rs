//! History of tables that change: which operation of a client made each snapshot, and what the snapshot has.
//!
//! The idea: the broker's disk decides. Every operation on a table has a number of its own, which the summary of its
//! commit shows, and all rows that it adds have that number as their value. So the records that reach the disk, in
//! their order, say what each snapshot has, however many answers were lost: an operation is there once or never. What
//! clients read and are told is compared with that.
//!
//! This module is pure.

use farpool_lease::broker::{NamedFile, StateChange};
use farpool_wire::TableId;
use farpool_wire::control::{SNAPSHOTS, SnapshotAt, TABLES};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Rows of a table: how many there are of each value.
pub(crate) type Rows = BTreeMap<i64, u64>;

/// Change of the snapshots of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Another snapshot has followed this one.
    Replaced(SnapshotAt),
    /// The snapshot has ended.
    Ended(SnapshotAt),
    /// The table was dropped.
    Dropped(TableId),
}

/// Holder of the name of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// One file, without snapshots, which this operation has put.
    File(u64),
    Table(TableId),
}

/// Effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It has put the table as one file.
    File,
    /// It has made this snapshot.
    Snapshot(SnapshotAt),
}

/// Snapshots of all tables, as the records on the broker's disk make them.
#[derive(Debug, Default)]
pub(crate) struct SnapshotBook {
    named: BTreeMap<String, Named>,
    /// Times in ns at which names last got another table, or none.
    changed: BTreeMap<String, u64>,
    /// Names of all tables, those that were dropped too.
    tables: BTreeMap<TableId, String>,
    rows: BTreeMap<SnapshotAt, Arc<Rows>>,
    /// Snapshots that have not ended.
    kept: BTreeSet<SnapshotAt>,
    /// Operations that were made, by the name of the table.
    made: BTreeMap<(String, u64), Made>,
    /// Snapshots that went back to an earlier one, and to which.
    back: BTreeMap<SnapshotAt, u64>,
    /// Last number of an operation on the table of each name.
    operations: BTreeMap<String, u64>,
}

impl SnapshotBook {
    /// Returns the number of the next operation on the table of a name. It is the number of rows that it adds as well.
    pub(crate) fn next_operation(&mut self, name: &str) -> u64 {
        let last = self.operations.entry(name.to_owned()).or_default();
        *last += 1;
        *last
    }

    /// Returns what became of an operation. `None` if it was not made.
    pub(crate) fn made(&self, name: &str, operation: u64) -> Option<Made> {
        self.made.get(&(name.to_owned(), operation)).copied()
    }

    /// Reports whether a snapshot of this number, of a table of this name, went back to another.
    pub(crate) fn went_back(&self, name: &str, snapshot: u64, to: u64) -> bool {
        let is_it = |at: &SnapshotAt| {
            at.snapshot == snapshot && self.tables.get(&at.table).is_some_and(|of| of == name)
        };
        self.back.iter().any(|(at, back)| is_it(at) && *back == to)
    }

    /// Returns the rows of a snapshot. `None` if no record has made it.
    pub(crate) fn rows(&self, at: SnapshotAt) -> Option<Arc<Rows>> {
        self.rows.get(&at).cloned()
    }

    /// Reports whether a snapshot has not ended.
    pub(crate) fn is_kept(&self, at: SnapshotAt) -> bool {
        self.kept.contains(&at)
    }

    /// Returns the latest snapshot of the table that has a name. `None` if there is none, or the table is one file.
    pub(crate) fn latest(&self, name: &str) -> Option<SnapshotAt> {
        let Some(Named::Table(table)) = self.named.get(name) else { return None };
        let all =
            SnapshotAt { table: *table, snapshot: 0 }..=SnapshotAt { table: *table, snapshot: u64::MAX };
        self.kept.range(all).next_back().copied()
    }

    /// Returns the time in ns at which a name last got another table, or lost it.
    pub(crate) fn changed(&self, name: &str) -> u64 {
        self.changed.get(name).copied().unwrap_or(0)
    }

    /// Reports whether a name belongs to a table.
    pub(crate) fn has_table(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Returns the names of all tables that ever were.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.tables.values().chain(self.named.keys()).cloned().collect()
    }

    /// Returns the tables that have names, and how many of their snapshots are kept beside the latest.
    pub(crate) fn kept_beside(&self) -> BTreeMap<String, usize> {
        let of = |named: &Named| match named {
            Named::File(_) => 0,
            Named::Table(table) => {
                let is_of = |at: &&SnapshotAt| at.table == *table;
                self.kept.iter().filter(is_of).count().saturating_sub(1)
            }
        };
        self.named.iter().map(|(name, named)| (name.clone(), of(named))).collect()
    }

    /// Takes a record that has reached the disk at the time `now`, in ns. `before` is the file that its name had.
    ///
    /// Errors: what is wrong, if an operation was made twice.
    pub(crate) fn recorded(
        &mut self,
        now: u64,
        record: &StateChange,
        before: Option<&NamedFile>,
    ) -> Result<Option<Turn>, String> {
        match record {
            StateChange::Name(name, file) if name.starts_with(TABLES) => {
                // Its copies have moved.
                if before.is_some_and(|before| before.file == file.file) {
                    return Ok(None);
                }
                let name = name.to_string();
                let has = match file.root_of {
                    Some(at) => Named::Table(at.table),
                    None => Named::File(operation_of(file)),
                };
                let former = self.named.insert(name.clone(), has);
                if former != Some(has) {
                    self.changed.insert(name.clone(), now);
                }
                match (has, file.root_of) {
                    (Named::Table(table), Some(SnapshotAt { snapshot: 1, .. })) => {
                        self.tables.insert(table, name.clone());
                        let rows = match former {
                            Some(Named::File(operation)) => rows_of(operation),
                            _ => Rows::new(),
                        };
                        self.rows.insert(SnapshotAt { table, snapshot: 0 }, Arc::new(rows));
                    }
                    (Named::File(operation), _) if operation > 0 => {
                        self.note_made(&name, operation, Made::File)?;
                    }
                    _ => {}
                }
                Ok(former.filter(|former| *former != has).and_then(|former| self.forget(former)))
            }
            StateChange::DropName(name) if name.starts_with(TABLES) => {
                self.changed.insert(name.to_string(), now);
                let former = self.named.remove(&**name);
                Ok(former.and_then(|former| self.forget(former)))
            }
            StateChange::DropName(name) if name.starts_with(SNAPSHOTS) => {
                let at = before.and_then(|before| before.root_of).filter(|at| self.kept.remove(at));
                Ok(at.map(Turn::Ended))
            }
            StateChange::Commit(at, record) => {
                let summary = String::from_utf8_lossy(&record.summary).into_owned();
                self.committed(*at, &summary)?;
                let replaced = SnapshotAt { snapshot: at.snapshot - 1, ..*at };
                Ok((at.snapshot > 1).then_some(Turn::Replaced(replaced)))
            }
            _ => Ok(None),
        }
    }

    fn forget(&mut self, former: Named) -> Option<Turn> {
        let Named::Table(table) = former else { return None };
        self.kept.retain(|at| at.table != table);
        Some(Turn::Dropped(table))
    }

    fn note_made(&mut self, name: &str, operation: u64, made: Made) -> Result<(), String> {
        match self.made.insert((name.to_owned(), operation), made) {
            None => Ok(()),
            Some(before) => {
                Err(format!("operation {operation} on table {name:?} was made twice: {before:?}, {made:?}"))
            }
        }
    }

    /// Takes a commit that has made a snapshot.
    fn committed(&mut self, at: SnapshotAt, summary: &str) -> Result<(), String> {
        self.kept.insert(at);
        let before = SnapshotAt { snapshot: at.snapshot - 1, ..at };
        let before = self.rows.get(&before).cloned().unwrap_or_default();
        let mut rows = Rows::clone(&before);
        let of_table = |name: &String| {
            let named = format!("{}: ", name.strip_prefix(TABLES)?);
            summary.split(", ").find_map(|part| part.strip_prefix(&named))
        };
        // The summary of a commit that changes several tables names each of them.
        let summary = self.tables.get(&at.table).and_then(of_table).unwrap_or(summary);
        let words: Vec<&str> = summary.split(' ').collect();
        let number = |word: &str| word.trim_end_matches(',').parse::<u64>().unwrap_or(0);
        let operation = match words[..] {
            ["append", count, "rows"] => {
                rows.extend(rows_of(number(count)));
                number(count)
            }
            ["create" | "replace", "with", count, "rows"] => {
                rows = rows_of(number(count));
                number(count)
            }
            ["delete", value, "as", operation, ..] => {
                rows.remove(&(number(value) as i64));
                number(operation)
            }
            ["update", value, "as", operation, ..] => {
                if let Some(count) = rows.remove(&(number(value) as i64)) {
                    rows.insert(number(operation) as i64, count);
                }
                number(operation)
            }
            ["roll", "back", "to", snapshot] => {
                let to = number(snapshot);
                self.back.insert(at, to);
                let to = SnapshotAt { snapshot: to, ..at };
                rows = self.rows.get(&to).map(|rows| Rows::clone(rows)).unwrap_or_default();
                0
            }
            _ => 0,
        };
        self.rows.insert(at, Arc::new(rows));
        match self.tables.get(&at.table).cloned() {
            Some(name) if operation > 0 => self.note_made(&name, operation, Made::Snapshot(at)),
            _ => Ok(()),
        }
    }
}

/// Returns the rows that an operation adds.
pub(crate) fn rows_of(operation: u64) -> Rows {
    if operation == 0 { Rows::new() } else { Rows::from([(operation as i64, operation)]) }
}

/// Returns the operation that has put a table of one file, which is at the end of its recipe. 0 if it has none.
fn operation_of(file: &NamedFile) -> u64 {
    file.recipe.last_chunk().map_or(0, |last| u64::from_le_bytes(*last))
}
