//! Store in one file on the broker's disk: an embedded B-tree with synced commits.
//!
//! The idea: redb trusts its file. One flipped byte may produce another name, another file, or a panic. A file is
//! therefore verified as a whole before it is used: the front page ([`StoreFile`]), redb's own checksums of all pages,
//! and the checksum of each record with the sum over all of them ([`Reading`]). That happens on a view that does not
//! change the file. A panic inside redb is caught and becomes an error. Commits have two phases: with one phase, redb
//! could mistake a damaged page for a commit that a crash interrupted, and roll it back.
//!
//! All of [`super::records`] are in one table, `records`. A file of another format is refused and never converted
//! silently. No table is ever renamed and no savepoint made, because those are the parts of redb in which corruption
//! was found.

use super::file::{Behind, StoreFile, Unusable, other_format, replace};
use super::records::{Found, Ledger, Reading, Step};
use super::{Store, StoreError};
use farpool_lease::broker::{Durable, StateChange};
use redb::{Builder, Database, ReadOnlyDatabase, ReadableDatabase, ReadableTable, TableDefinition};
use std::cell::Cell;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};

const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");

/// Store in a redb file.
pub struct RedbStore {
    /// Database of the file. `None` while the store is being dropped.
    database: Option<Database>,
    file: StoreFile,
    ledger: Ledger,
    path: String,
}

/// New store that was made from the undamaged records of a damaged one.
pub struct Rebuilt {
    /// The new store.
    pub store: RedbStore,
    /// Path at which the damaged file is kept.
    pub aside: PathBuf,
    /// Number of names that were recovered.
    pub names: usize,
    /// Description of the damage.
    pub why: String,
}

impl RedbStore {
    /// Opens the file, or creates it.
    ///
    /// Errors: the file is not a store of this format, is in use, or is damaged. It is not changed then.
    pub fn open(path: &Path) -> Result<RedbStore, StoreError> {
        let shown = path.display();
        let file = StoreFile::open(path, &|behind| begin(behind, &[]));
        let opened = file.and_then(|file| {
            let ledger = verify(&file)?.1;
            RedbStore::over(file, ledger, path)
        });
        opened.map_err(|unusable| match unusable {
            Unusable::Damaged(why) => StoreError(damaged(path, &why)),
            other => StoreError(format!("the broker store {shown} cannot be opened: {}", words(other, path))),
        })
    }

    /// Makes a new store from the undamaged records of a damaged one. The damaged file is kept under another name.
    ///
    /// Errors: the file is not a store of this format, is in use, or is not damaged.
    pub fn rebuild(path: &Path) -> Result<Rebuilt, StoreError> {
        let shown = path.display();
        let refused = |why: String| StoreError(format!("the broker store {shown} cannot be rebuilt: {why}"));
        let unusable = |unusable| refused(words(unusable, path));
        if !path.exists() {
            return Err(refused("there is no such file".to_owned()));
        }
        let file = StoreFile::open(path, &|behind| begin(behind, &[])).map_err(unusable)?;
        let why = match verify(&file) {
            Ok(_) => {
                return Err(refused(
                    "it is not damaged; start the broker without --rebuild-store".to_owned(),
                ));
            }
            Err(Unusable::Damaged(why)) => why,
            Err(other) => {
                // The message needs the file to be opened once more, so its lock must be released.
                drop(file);
                return Err(unusable(other));
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let io = |error: std::io::Error| refused(error.to_string());
        let records = Found::in_bytes(&file.bytes().map_err(io)?).records(now);
        let names = records.iter().filter(|record| matches!(record, StateChange::Name(..))).count();
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".damaged-{now}"));
        let aside = PathBuf::from(aside);
        std::fs::hard_link(path, &aside).map_err(io)?;
        replace(path, &|behind| begin(behind, &records)).map_err(unusable)?;
        drop(file);
        Ok(Rebuilt { store: RedbStore::open(path)?, aside, names, why })
    }

    fn over(file: StoreFile, ledger: Ledger, path: &Path) -> Result<RedbStore, Unusable> {
        // A crash may have come after redb's commit and before the front page was updated.
        file.note_commit(ledger.commit())?;
        file.raise_format()?;
        let database = guarded(|| Builder::new().create_with_backend(file.behind()).map_err(of_redb))?;
        Ok(RedbStore { database: Some(database), file, ledger, path: path.display().to_string() })
    }

    fn database(&self) -> Result<&Database, Unusable> {
        self.database.as_ref().ok_or_else(|| Unusable::Other("it is closed".to_owned()))
    }

    fn failed(&self, unusable: Unusable) -> StoreError {
        let path = Path::new(&self.path);
        match unusable {
            Unusable::Damaged(why) => StoreError(damaged(path, &why)),
            other => StoreError(format!("the broker store {}: {}", self.path, words(other, path))),
        }
    }
}

/// Returns the reason why a file cannot be used.
fn words(unusable: Unusable, path: &Path) -> String {
    match unusable {
        Unusable::Other(why) | Unusable::Damaged(why) => why,
        Unusable::PlainRedb => match former_format(path) {
            Some(format) => other_format(&format.to_string()),
            None => "it is a redb file, but not a broker store of a known format".to_owned(),
        },
    }
}

/// Returns the format of a store that is older than format 3. Older stores note it in the table `meta`.
fn former_format(path: &Path) -> Option<u64> {
    const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    let format = guarded(|| {
        let database = ReadOnlyDatabase::open(path).map_err(of_redb)?;
        let meta = database.begin_read().map_err(of_redb)?.open_table(META).map_err(of_redb)?;
        let format = meta.get("format").map_err(of_redb)?;
        Ok(format.and_then(|format| format.value().try_into().ok()).map(u64::from_le_bytes))
    });
    format.ok().flatten()
}

fn damaged(path: &Path, why: &str) -> String {
    format!(
        "the broker store {} is damaged ({why}): restore it from a backup, or start the broker with --rebuild-store, \
         which keeps the names whose records are undamaged and loses the others",
        path.display()
    )
}

/// Converts an error of redb.
fn of_redb(error: impl Into<redb::Error>) -> Unusable {
    match error.into() {
        // A damaged file may point to offsets outside of it.
        redb::Error::Io(error)
            if !matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidInput) =>
        {
            Unusable::Other(error.to_string())
        }
        error => Unusable::Damaged(error.to_string()),
    }
}

/// Makes a new store with these records, in one commit or more.
/// Returns the number of the last commit.
fn begin(behind: Behind, records: &[StateChange]) -> Result<u64, Unusable> {
    guarded(|| {
        let database = Builder::new().create_with_backend(behind).map_err(of_redb)?;
        let mut ledger = Ledger::default();
        steps(&ledger, records)?.iter().try_for_each(|step| commit(&database, &mut ledger, step))?;
        database.close().map_err(of_redb)?;
        Ok(ledger.commit())
    })
}

/// Returns the steps in which records are committed.
fn steps(ledger: &Ledger, records: &[StateChange]) -> Result<Vec<Step>, Unusable> {
    ledger.steps(records).map_err(|error| Unusable::Other(error.to_string()))
}

/// Commits a step and updates the ledger.
fn commit(database: &Database, ledger: &mut Ledger, step: &Step) -> Result<(), Unusable> {
    let changes = ledger.changes(step);
    // The default durability of a redb commit is `Immediate`: synced before it returns.
    let mut transaction = database.begin_write().map_err(of_redb)?;
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(RECORDS).map_err(of_redb)?;
        for (key, value) in &changes.values {
            match value {
                Some(value) => table.insert(&**key, &value[..]).map(drop),
                None => table.remove(&**key).map(drop),
            }
            .map_err(of_redb)?;
        }
    }
    transaction.commit().map_err(of_redb)?;
    ledger.kept(&changes);
    Ok(())
}

/// Reads all records and verifies their checksums.
fn read(database: &Database) -> Result<(Durable, Ledger), Unusable> {
    let transaction = database.begin_read().map_err(of_redb)?;
    let table = transaction.open_table(RECORDS).map_err(of_redb)?;
    let mut reading = Reading::default();
    for entry in table.iter().map_err(of_redb)? {
        let (key, value) = entry.map_err(of_redb)?;
        reading.take(key.value(), value.value()).map_err(Unusable::Damaged)?;
    }
    reading.finish().map_err(Unusable::Damaged)
}

/// Verifies the whole file without changing it, and returns its contents.
fn verify(file: &StoreFile) -> Result<(Durable, Ledger), Unusable> {
    let noted = file.last_commit()?;
    let view = file.view()?;
    let (durable, ledger) = guarded(|| {
        let database =
            Builder::new().set_check_integrity_on_open(true).create_with_backend(view).map_err(of_redb)?;
        read(&database)
    })?;
    let has = ledger.commit();
    // Redb may have one commit after a crash that was not noted on the front page. It never has one less.
    if has != noted && has != noted + 1 {
        return Err(Unusable::Damaged(format!("it has commit {has} where commit {noted} was the last")));
    }
    Ok((durable, ledger))
}

thread_local! {
    /// True while a panic on this thread is reported as an error.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of redb that may panic over a damaged file. A panic is returned as damage.
fn guarded<T>(what: impl FnOnce() -> Result<T, Unusable>) -> Result<T, Unusable> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                others(panic);
            }
        }));
    });
    IS_GUARDED.set(true);
    let done = catch_unwind(AssertUnwindSafe(what));
    IS_GUARDED.set(false);
    done.unwrap_or_else(|panic| {
        let why =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Unusable::Damaged(format!("redb panicked: {}", why.unwrap_or("no message"))))
    })
}

impl Store for RedbStore {
    fn load(&self) -> Result<Durable, StoreError> {
        let read = self.database().and_then(|database| guarded(|| read(database)));
        let (durable, ledger) = read.map_err(|unusable| self.failed(unusable))?;
        match ledger == self.ledger {
            true => Ok(durable),
            false => {
                Err(self
                    .failed(Unusable::Damaged("its records are not those that were committed".to_owned())))
            }
        }
    }

    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError> {
        let mut ledger = std::mem::take(&mut self.ledger);
        let done = self.database().and_then(|database| {
            for step in steps(&ledger, records)? {
                guarded(|| commit(database, &mut ledger, &step))?;
                self.file.note_commit(ledger.commit())?;
            }
            Ok(())
        });
        self.ledger = ledger;
        done.map_err(|unusable| self.failed(unusable))
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // All commits are durable. Redb still writes when it closes, and may panic over damage then.
        let database = self.database.take();
        let _ = guarded(|| {
            drop(database);
            Ok(())
        });
    }
}
