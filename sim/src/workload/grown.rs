//! Far tables that change: clients append to tables at once, go back to earlier snapshots, and compare every row of the
//! snapshots that they have open.
//!
//! The idea: each append has a number of its own, which all of its rows have. A book keeps which appends were begun, and
//! as which snapshot each was acknowledged. Whichever snapshot a client reads, every append that was acknowledged up to
//! it is there once, as a whole, and no later one is; an append of which nobody knows the end may be there. A snapshot
//! that is read again has the same rows.

use super::{Client, MS, violated};
use crate::kernel::{rest, world};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use farpool_files::{Error, ErrorKind, Pool};
use farpool_tables::{FarTable, PutOptions, TABLE_PREFIX, append_rows, open_table, put_table, roll_back};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most rows of an append.
const ROWS_MAX: u64 = 40;
/// Most snapshots that a client has open.
const OPEN_MAX: usize = 4;

/// Append that was begun.
#[derive(Clone, Copy, Debug)]
struct Append {
    rows: u64,
    /// Snapshot as which it was acknowledged.
    snapshot: Option<u64>,
}

/// Changes of one table.
#[derive(Debug, Default)]
struct Changes {
    appends: BTreeMap<i64, Append>,
    /// Snapshots that were acknowledged as going back to an earlier one, and which.
    rollbacks: BTreeMap<u64, u64>,
    /// Number of times that the table may have gone back: that is under way, or nobody knows how it ended.
    unsure: u64,
    /// Rows of each snapshot that was read.
    seen: BTreeMap<u64, BTreeMap<i64, u64>>,
}

/// Changes of all tables that grow, by name.
#[derive(Debug, Default)]
pub(crate) struct GrownBook {
    tables: BTreeMap<String, Changes>,
    /// Number of the table of each tenant that clients use now. A table that is lost gets a successor.
    generations: BTreeMap<String, u64>,
    next: i64,
}

impl Changes {
    /// Reports whether a snapshot has the rows of another one that was acknowledged: it is that one or came later, and no
    /// snapshot in between went back behind it.
    fn has(&self, snapshot: u64, of: u64) -> bool {
        let mut at = snapshot;
        while at > of {
            match self.rollbacks.range(of + 1..=at).next_back() {
                Some((_, back)) => at = *back,
                None => return true,
            }
        }
        at == of
    }

    /// Returns what is wrong with the rows of a snapshot: how many there are of each append.
    fn wrong(&self, snapshot: u64, found: &BTreeMap<i64, u64>) -> Option<String> {
        for (number, count) in found {
            match self.appends.get(number) {
                None => return Some(format!("{count} rows of append {number}, which never was")),
                Some(append) if append.rows != *count => {
                    return Some(format!("{count} of {} rows of append {number}", append.rows));
                }
                Some(Append { snapshot: Some(of), .. }) if self.unsure == 0 && !self.has(snapshot, *of) => {
                    return Some(format!("rows of append {number}, which is in snapshot {of}"));
                }
                _ => {}
            }
        }
        let is_missing = |(number, append): &(&i64, &Append)| {
            append.snapshot.is_some_and(|of| self.has(snapshot, of)) && !found.contains_key(*number)
        };
        let missing = self.appends.iter().find(is_missing).filter(|_| self.unsure == 0);
        missing.map(|(number, append)| format!("no rows of append {number}: {append:?}"))
    }
}

/// Returns how many rows a table has of each append.
fn rows_of(table: &FarTable) -> Result<BTreeMap<i64, u64>, Error> {
    let mut found = BTreeMap::new();
    for batch in table.read(None, None)? {
        let batch = batch?;
        let column = batch.column(0).as_any().downcast_ref::<Int64Array>().expect("the type of the column");
        for number in column.values() {
            *found.entry(*number).or_insert(0) += 1;
        }
    }
    Ok(found)
}

fn batch_of(numbers: Vec<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(numbers));
    RecordBatch::try_from_iter([("append", column)]).expect("one column")
}

/// Reads a snapshot, and compares it with the book.
fn compare(table: &FarTable) -> Result<(), Error> {
    let found = rows_of(table)?;
    let snapshot = table.snapshot().unwrap_or(0);
    let name = table.name().to_owned();
    let wrong = world(|world| {
        world.oracle.checks += 1;
        let changes = world.parties.grown.tables.entry(name.clone()).or_default();
        let before = changes.seen.entry(snapshot).or_insert_with(|| found.clone()).clone();
        match before == found {
            true => changes.wrong(snapshot, &found),
            false => Some(format!("other rows than it had before: {before:?}, {found:?}")),
        }
    });
    if let Some(wrong) = wrong {
        violated("I9", format!("snapshot {snapshot} of table {name:?}: {wrong}"));
    }
    Ok(())
}

impl Client {
    fn grown_name(&self) -> String {
        world(|world| {
            let tenant = world.plan.tenant_of(self.index).to_string();
            let generation = world.parties.grown.generations.get(&tenant).copied().unwrap_or(0);
            format!("{tenant}/grown-{generation}")
        })
    }

    /// Appends to the table of the client's tenant, which it makes if there is none.
    pub(super) fn grow_table(&mut self) {
        let name = self.grown_name();
        let rows = self.random.range(1, ROWS_MAX);
        let number = world(|world| {
            let book = &mut world.parties.grown;
            book.next += 1;
            let append = Append { rows, snapshot: None };
            book.tables.entry(name.clone()).or_default().appends.insert(book.next, append);
            book.next
        });
        let batch = batch_of(vec![number; rows as usize]);
        let options = PutOptions::default();
        let result =
            append_rows(&self.pool(), &name, batch.schema(), [Ok::<_, Error>(batch.clone())], &options);
        if let Ok(committed) = &result {
            world(|world| {
                let changes = world.parties.grown.tables.entry(name.clone()).or_default();
                if let Some(append) = changes.appends.get_mut(&number) {
                    append.snapshot = Some(committed.snapshot);
                }
            });
        }
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let empty = batch_of(Vec::new());
            let made =
                put_table(&self.pool(), &name, empty.schema(), [Ok::<_, Error>(empty.clone())], &options);
            self.outcome("make a table", made);
        }
        self.outcome("append to a table", result.map(drop));
    }

    /// Goes back to an earlier snapshot of the table of the client's tenant.
    pub(super) fn roll_back_table(&mut self) {
        let name = self.grown_name();
        let Some(latest) =
            self.grown.iter().filter(|table| table.name() == name).filter_map(FarTable::snapshot).max()
        else {
            return;
        };
        let back = self.random.range(1, latest);
        world(|world| world.parties.grown.tables.entry(name.clone()).or_default().unsure += 1);
        let result = roll_back(&self.pool(), &name, back, &PutOptions::default());
        world(|world| {
            let changes = world.parties.grown.tables.entry(name.clone()).or_default();
            match &result {
                Ok(committed) => _ = changes.rollbacks.insert(committed.snapshot, back),
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
                Err(_) => return,
            }
            changes.unsure -= 1;
        });
        self.outcome("roll a table back", result.map(drop));
    }

    /// Opens the latest snapshot, or reads one that is open.
    pub(super) fn read_grown(&mut self) {
        if self.grown.is_empty() || self.random.one_in(3) {
            let name = self.grown_name();
            let opened = open_table(&self.pool(), &name, None);
            if let Some(table) = self.outcome("open a changed table", opened) {
                self.grown.truncate(OPEN_MAX - 1);
                self.grown.insert(0, table);
            }
        }
        if self.grown.is_empty() {
            return;
        }
        let which = self.random.below(self.grown.len() as u64) as usize;
        let result = compare(&self.grown[which]);
        let is_gone =
            result.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Lost | ErrorKind::Closed));
        self.outcome("read a changed table", result);
        if is_gone {
            let table = self.grown.remove(which);
            // A table that has lost bytes gets a successor, now and then.
            if self.random.one_in(4) && table.name() == self.grown_name() {
                world(|world| {
                    let tenant = world.plan.tenant_of(self.index).to_string();
                    *world.parties.grown.generations.entry(tenant).or_default() += 1;
                });
            }
        }
    }

    /// Proves I9: the table of the client's tenant has what was acknowledged, if it can be read.
    pub(super) fn prove_grown(&mut self, pool: &Pool) -> Result<(), Error> {
        rest(10 * MS);
        match open_table(pool, &self.grown_name(), None).and_then(|table| compare(&table)) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost) => Ok(()),
            other => other,
        }
    }

    /// Returns the files of all tables of the client's tenant that grew.
    pub(super) fn grown_files(&self) -> Vec<String> {
        world(|world| {
            let prefix = format!("{}/", world.plan.tenant_of(self.index));
            let names = world.parties.grown.tables.keys().filter(|name| name.starts_with(&prefix));
            names.map(|name| format!("{TABLE_PREFIX}{name}")).collect()
        })
    }
}
