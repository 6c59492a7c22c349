//! Far tables that change: clients append to tables at once, change and remove rows, replace and drop tables, go back
//! to earlier snapshots, and compare every row of the snapshots that they have open.
//!
//! The idea: [`SnapshotBook`](crate::snapshots::SnapshotBook) knows from the broker's disk what each snapshot has. A
//! client that reads one finds exactly that, as often as it reads it, or an error which says that the snapshot has
//! ended or that bytes are lost. What it is told of its own changes is true: what was acknowledged is on the disk, and
//! what was refused is not.

use super::{Client, MS, violated};
use crate::faults::Chore;
use crate::kernel::{rest, world};
use crate::parties::Phase;
use crate::profile::{Profile, Theme};
use crate::snapshots::{Made, Rows, rows_of};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use farpool_files::{Error, ErrorKind, Pool, Protection};
use farpool_tables::{
    Committed, Compaction, FarTable, GroupChange, MadeBy, PutOptions, TABLE_PREFIX, TableKey,
    TableTransaction, append_rows, change_rows, compact, drop_table, open_table, put_table, roll_back,
    table_snapshot,
};
use farpool_wire::control::SnapshotAt;
use std::sync::Arc;

/// Most snapshots that a client has open.
const OPEN_MAX: usize = 6;
/// Kind of the recipes of tables: the body is the number of the operation. Nobody makes them again.
const RECIPES: &str = "operation";

/// Snapshot that a client has open.
pub(crate) struct OpenSnapshot {
    table: FarTable,
    /// Time in ns at which the client began to open it.
    from: u64,
    /// Time in ns until which the client keeps it open.
    until: u64,
}

/// Returns the snapshot that a table is.
fn snapshot_of(table: &FarTable) -> Option<SnapshotAt> {
    Some(SnapshotAt { table: table.id()?, snapshot: table.snapshot()? })
}

/// Returns how many rows a table has of each value.
fn read_rows(table: &FarTable) -> Result<Rows, Error> {
    let mut found = Rows::new();
    for batch in table.read(None, None)? {
        for value in values_of(&batch?) {
            *found.entry(value).or_insert(0) += 1;
        }
    }
    Ok(found)
}

fn values_of(batch: &RecordBatch) -> Vec<i64> {
    let column = batch.column(0).as_any().downcast_ref::<Int64Array>().expect("the type of the column");
    column.values().to_vec()
}

fn batch_of(values: Vec<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(values));
    RecordBatch::try_from_iter([("operation", column)]).expect("one column")
}

/// Returns the rows that an operation adds.
fn batch_of_operation(operation: u64) -> RecordBatch {
    batch_of(vec![operation as i64; operation as usize])
}

/// Reads a snapshot, and compares it with what the disk says that it has.
fn compare(table: &FarTable) -> Result<(), Error> {
    let found = read_rows(table)?;
    let at = snapshot_of(table);
    let expected = world(|world| {
        world.oracle.checks += 1;
        world.tally.bytes_compared += 8 * table.rows();
        at.map(|at| world.parties.snapshots.rows(at))
    });
    let wrong = match expected {
        Some(Some(expected)) if *expected == found => None,
        Some(Some(expected)) => Some(format!("{found:?} instead of {expected:?}")),
        Some(None) => Some("no commit on the disk has made it".to_owned()),
        // A table of one file has what one operation has put.
        None => {
            let operation = found.keys().next().map_or(0, |value| *value as u64);
            (found != rows_of(operation)).then(|| format!("{found:?}, as one file"))
        }
    };
    if let Some(wrong) = wrong {
        violated("I11", format!("{at:?} of table {:?}: {wrong}", table.name()));
    }
    Ok(())
}

/// Says what is wrong with an error that a reader got, if anything is: a reader of a snapshot gets its rows, or is told
/// that it has ended or that bytes are lost. `at` is the snapshot; `None`: the latest one of the name. `from` is the
/// time in ns at which the reader began.
pub(super) fn judge(error: &Error, name: &str, at: Option<SnapshotAt>, from: u64) {
    let wrong = world(|world| {
        world.oracle.checks += 1;
        let book = &world.parties.snapshots;
        let is_there = at.map_or_else(|| book.has_table(name), |at| book.is_kept(at));
        // The name may have got another table meanwhile, and a deposed broker may not know of it.
        let is_same = is_there && book.changed(name) < from;
        let was_there = is_same && !world.had_deposed_broker(from);
        let is_still = world.plan.profile == Profile::Still
            && !world.plan.drains
            && world.parties.phase == Phase::Faulty
            && was_there;
        match error.kind() {
            ErrorKind::Invalid => is_same,
            ErrorKind::Tampered | ErrorKind::Poisoned | ErrorKind::Conflict => true,
            ErrorKind::Refused => error.to_string().contains("manifest"),
            ErrorKind::NotFound => was_there,
            ErrorKind::Lost | ErrorKind::Closed => is_still,
            _ => false,
        }
    });
    if wrong {
        violated("I11", format!("reading {at:?} of table {name:?}: {error}"));
    }
}

impl Client {
    fn grown_name(&self) -> String {
        self.grown_names()[0].clone()
    }

    /// Returns the names of the two tables of the client's tenant that change.
    fn grown_names(&self) -> [String; 2] {
        world(|world| {
            let tenant = world.plan.tenant_of(self.index).to_string();
            let generation = world.parties.grown_generations.get(&tenant).copied().unwrap_or(0);
            ["grown", "second"].map(|kind| format!("{tenant}/{kind}-{generation}"))
        })
    }

    /// Returns the key of a table: one of the two tables of each tenant is encrypted.
    fn key_of(name: &str) -> Option<TableKey> {
        let number: u64 = name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let is_encrypted = (number + u64::from(name.contains("/second-"))) % 2 == 1;
        is_encrypted.then(|| TableKey::new([number as u8; 16]))
    }

    fn options_of(&mut self, name: &str) -> PutOptions {
        let protection = self.random.one_in(4).then_some(Protection::None);
        // Manifests get pages in worlds with many appends and no compaction.
        let compaction = if self.random.one_in(2) { Compaction::Auto } else { Compaction::Off };
        PutOptions { key: Self::key_of(name), protection, compaction, ..PutOptions::default() }
    }

    /// Draws an operation on the tables that change.
    pub(super) fn change_tables(&mut self) {
        match self.random.below(100) {
            0..26 => self.grow_table(),
            26..32 => self.grow_both(),
            32..66 => self.read_grown(),
            66..72 => self.roll_back_table(),
            72..80 => self.change_values(),
            80..84 => self.replace_table(),
            84 => self.drop_grown(),
            85..88 => self.compact_table(),
            88..94 => self.commit_parts(),
            _ => self.read_parts(),
        }
    }

    /// Cuts the client's connections to brokers a moment later, by chance: the answer to its next commit may be lost.
    pub(super) fn perhaps_lose_an_answer(&mut self) {
        let machine = world(|world| {
            let may = world.plan.profile != Profile::Still
                && world.parties.phase == Phase::Faulty
                && !matches!(world.plan.theme, Theme::OneNode(_));
            may.then(|| world.process(self.process).machine)
        });
        let Some(machine) = machine.filter(|_| self.random.one_in(4)) else { return };
        let after = self.random.skewed(100_000, 40 * MS);
        world(|world| world.chore_in(after, Chore::CutFromBrokers(machine)));
    }

    fn next_operation(&self, name: &str) -> u64 {
        world(|world| world.parties.snapshots.next_operation(&file_of(name)))
    }

    /// Compares what a client was told of an operation with the disk.
    fn check_told(&self, name: &str, operation: u64, result: Result<Option<Committed>, &Error>) {
        let made = world(|world| {
            world.oracle.checks += 1;
            world.parties.snapshots.made(&file_of(name), operation)
        });
        let is_wrong = match (result, made) {
            (Ok(Some(committed)), Some(Made::Snapshot(at))) => at.snapshot != committed.snapshot,
            (Ok(Some(_)), _) | (Ok(None), None) => true,
            (Ok(None), Some(_)) => false,
            (Err(error), made) => {
                made.is_some() && matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound)
            }
        };
        if is_wrong {
            let what = format!("operation {operation} on table {name:?}: {result:?}, and it is {made:?}");
            violated("I11", what);
        }
    }

    /// Appends to the table of the client's tenant, a few times in a row. Makes the table if there is none.
    fn grow_table(&mut self) {
        let appends_max = world(|world| world.plan.appends_max);
        let appends = if self.random.one_in(8) { appends_max } else { self.random.range(1, 3) };
        for _ in 0..appends {
            let name = self.grown_name();
            let operation = self.next_operation(&name);
            let (batch, options) = (batch_of_operation(operation), self.options_of(&name));
            self.perhaps_lose_an_answer();
            let batches = [Ok::<_, Error>(batch.clone())];
            let result = append_rows(&self.pool(), &name, batch.schema(), batches, &options);
            self.check_told(&name, operation, result.as_ref().map(|committed| Some(*committed)));
            let is_missing = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            if self.outcome("append to a table", result).is_none() {
                if is_missing {
                    self.put_grown(&name, false);
                }
                return;
            }
        }
    }

    /// Appends to both tables of the client's tenant in one transaction. Makes one of them if there is none.
    fn grow_both(&mut self) {
        let names = self.grown_names();
        let options = [self.options_of(&names[0]), self.options_of(&names[1])];
        let operations = [self.next_operation(&names[0]), self.next_operation(&names[1])];
        let mut transaction = TableTransaction::begin(&self.pool());
        let mut append = |((name, operation), options): ((&String, u64), &PutOptions)| {
            let batch = batch_of_operation(operation);
            transaction.append(name, batch.schema(), [Ok::<_, Error>(batch)], options)
        };
        let appended = names.iter().zip(operations).zip(&options).try_for_each(&mut append);
        self.perhaps_lose_an_answer();
        let result = appended.and_then(|()| transaction.commit());
        let mut made = [false; 2];
        for (index, (name, operation)) in names.iter().zip(operations).enumerate() {
            let told = result.as_ref().map(|made| made.tables.get(index).map(|(_, committed)| *committed));
            self.check_told(name, operation, told);
            made[index] = world(|world| world.parties.snapshots.made(&file_of(name), operation).is_some());
        }
        if made[0] != made[1] {
            violated(
                "I11",
                format!("operations {operations:?} on tables {names:?} were half made: {made:?}"),
            );
        }
        let is_missing = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if self.outcome("append to two tables", result).is_none() && is_missing {
            for name in names {
                if world(|world| !world.parties.snapshots.has_table(&file_of(&name))) {
                    self.put_grown(&name, false);
                }
            }
        }
    }

    /// Puts the table, in place of another one if `replace` says so.
    fn put_grown(&mut self, name: &str, replace: bool) {
        let operation = self.next_operation(name);
        let batch = batch_of_operation(operation);
        let made_by = MadeBy { kind: RECIPES.to_owned(), body: operation.to_le_bytes().to_vec(), lost: None };
        let options = PutOptions { replace, made_by: Some(made_by), ..self.options_of(name) };
        self.perhaps_lose_an_answer();
        let batches = [Ok::<_, Error>(batch.clone())];
        let result = put_table(&self.pool(), name, batch.schema(), batches, &options);
        if result.is_ok() {
            self.check_told(name, operation, Ok(None));
        }
        self.outcome(if replace { "replace a table" } else { "make a table" }, result);
    }

    fn replace_table(&mut self) {
        let name = self.grown_name();
        self.put_grown(&name, true);
    }

    /// Makes the files of the table fewer, beside readers and other changes. That changes no row.
    fn compact_table(&mut self) {
        let name = self.grown_name();
        let options = self.options_of(&name);
        self.perhaps_lose_an_answer();
        let result = compact(&self.pool(), &name, &options);
        self.outcome("compact a table", result.map(drop));
    }

    fn drop_grown(&mut self) {
        let name = self.grown_name();
        self.outcome("drop a changed table", drop_table(&self.pool(), &name));
    }

    /// Goes back to an earlier snapshot of the table of the client's tenant.
    fn roll_back_table(&mut self) {
        let name = self.grown_name();
        let Some(latest) = world(|world| world.parties.snapshots.latest(&file_of(&name))) else { return };
        let back = latest.snapshot - self.random.skewed(1, latest.snapshot).min(latest.snapshot - 1);
        let options = self.options_of(&name);
        self.perhaps_lose_an_answer();
        let result = roll_back(&self.pool(), &name, back, &options);
        if let Ok(committed) = &result {
            let is_made = world(|world| {
                world.oracle.checks += 1;
                world.parties.snapshots.went_back(&file_of(&name), committed.snapshot, back)
            });
            if !is_made {
                violated("I11", format!("{name:?} did not go back to {back}: {committed:?}"));
            }
        }
        self.outcome("roll a table back", result.map(drop));
    }

    /// Removes all rows of one value, or gives them another.
    fn change_values(&mut self) {
        let name = self.grown_name();
        let latest = world(|world| {
            let book = &world.parties.snapshots;
            book.latest(&file_of(&name)).and_then(|at| book.rows(at))
        });
        let values: Vec<i64> = latest.iter().flat_map(|rows| rows.keys().copied()).collect();
        if values.is_empty() {
            return;
        }
        let value = *self.random.pick(&values);
        let operation = self.next_operation(&name);
        let is_update = self.random.one_in(2);
        let summary = format!("{} {value} as {operation}", if is_update { "update" } else { "delete" });
        let options = self.options_of(&name);
        self.perhaps_lose_an_answer();
        let result = change_rows(&self.pool(), &name, &options, &summary, None, |group| {
            let mut batches = Vec::new();
            let mut changes = false;
            for batch in group.read(None, None)? {
                let values = values_of(&batch?);
                changes |= values.contains(&value);
                let changed = values.into_iter().filter_map(|has| match has == value {
                    true => is_update.then_some(operation as i64),
                    false => Some(has),
                });
                let changed: Vec<i64> = changed.collect();
                if !changed.is_empty() {
                    batches.push(batch_of(changed));
                }
            }
            Ok(if changes { GroupChange::Rows(batches) } else { GroupChange::Unchanged })
        });
        match &result {
            Ok(Some(committed)) => self.check_told(&name, operation, Ok(Some(*committed))),
            Ok(None) => {}
            Err(error) => self.check_told(&name, operation, Err(error)),
        }
        self.outcome("change rows of a table", result.map(drop));
    }

    /// Opens a snapshot, the latest one or an earlier one. Returns it if there is one.
    fn open_grown(&mut self) -> Option<OpenSnapshot> {
        let (name, from) = (self.random.pick(&self.grown_names()).clone(), self.now());
        let key = Self::key_of(&name);
        let latest = world(|world| world.parties.snapshots.latest(&file_of(&name)));
        let earlier = latest.filter(|_| self.random.one_in(3)).map(|at| {
            let snapshot = at.snapshot - self.random.skewed(1, 20).min(at.snapshot - 1);
            SnapshotAt { snapshot, ..at }
        });
        let pool = self.pool();
        let opened = match earlier {
            Some(at) => table_snapshot(&pool, &name, at.snapshot, key.as_ref())
                .and_then(|snapshot| snapshot.open_all()),
            None => open_table(&pool, &name, key.as_ref()),
        };
        if let Err(error) = &opened {
            judge(error, &file_of(&name), earlier, from);
        }
        let table = self.outcome("open a changed table", opened)?;
        let ns = match self.random.one_in(3) {
            true => self.random.skewed(MS, world(|world| 20 * world.plan.life_ns())),
            false => world(|world| world.plan.think_ns),
        };
        Some(OpenSnapshot { table, from, until: from + ns })
    }

    /// Reads a snapshot that is open, or another one.
    fn read_grown(&mut self) {
        let now = self.now();
        self.grown.retain(|open| open.until > now);
        if self.grown.len() < OPEN_MAX && (self.grown.is_empty() || self.random.one_in(2)) {
            let opened = self.open_grown();
            self.grown.extend(opened);
        }
        if self.grown.is_empty() {
            return;
        }
        let which = self.random.below(self.grown.len() as u64) as usize;
        let open = self.grown.swap_remove(which);
        let name = open.table.name().to_owned();
        let result = compare(&open.table);
        if let Err(error) = &result {
            let at = snapshot_of(&open.table);
            // A table of one file ends when its name gets another file, which may have been before this reading.
            judge(error, &file_of(&name), at, if at.is_some() { now } else { open.from });
        }
        let is_lost = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost);
        if self.outcome("read a changed table", result).is_some() {
            self.grown.push(open);
        } else if is_lost && self.random.one_in(4) && self.grown_names().contains(&name) {
            // A table that has lost bytes gets a successor, now and then.
            world(|world| {
                let tenant = world.plan.tenant_of(self.index).to_string();
                *world.parties.grown_generations.entry(tenant).or_default() += 1;
            });
        }
    }

    /// Proves I11: the tables of the client's tenant have what was committed, if the nodes with their bytes live.
    pub(super) fn prove_grown(&mut self, pool: &Pool) -> Result<(), Error> {
        rest(10 * MS);
        self.grown_names().iter().try_for_each(|name| {
            let (key, from) = (Self::key_of(name), self.now());
            let Err(error) = open_table(pool, name, key.as_ref()).and_then(|table| compare(&table)) else {
                return Ok(());
            };
            judge(&error, &file_of(name), None, from);
            let is_there = world(|world| {
                let latest = world.parties.snapshots.latest(&file_of(name));
                let is_there = world.parties.snapshots.has_table(&file_of(name));
                is_there && world.is_table_whole(&file_of(name), latest)
            });
            if is_there { Err(error) } else { Ok(()) }
        })
    }

    /// Proves that snapshots do not stay once nobody holds them and their time is over.
    pub(super) fn prove_snapshots_end(&mut self, _: &Pool) -> Result<(), Error> {
        let kept = world(|world| {
            world.oracle.checks += 1;
            world.parties.snapshots.kept_beside()
        });
        match kept.iter().find(|(_, count)| **count > 0) {
            None => Ok(()),
            Some((name, count)) => {
                Err(Error::not_rebuilt(format!("{count} snapshots of {name:?} stay, which nobody holds")))
            }
        }
    }

    /// Returns the files of all tables of the client's tenant that changed.
    pub(super) fn changed_files(&self) -> Vec<String> {
        world(|world| {
            let prefix = format!("{TABLE_PREFIX}{}/", world.plan.tenant_of(self.index));
            let names = world.parties.snapshots.names().into_iter();
            names.filter(|name| name.starts_with(&prefix)).collect()
        })
    }
}

fn file_of(name: &str) -> String {
    format!("{TABLE_PREFIX}{name}")
}
