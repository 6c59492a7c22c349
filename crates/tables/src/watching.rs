//! Changes of a far table, told as they are made.
//!
//! The idea: the broker tells which file the name of a table has, and whether it is the root of a snapshot. The history
//! of the table has the rest, also of snapshots that came in between. Rows are not read.

use crate::history::{HistoryEntry, history_after};
use crate::names::file_name;
use farpool_files::beneath::{NameFeed, session_of_pool};
use farpool_files::{Error, ErrorKind, Pool};
use farpool_wire::control::{NameNow, SnapshotAt};
use farpool_wire::{FileId, TableId};
use std::collections::VecDeque;
use std::sync::Arc;

/// State of a table as the broker tells it: another one for each change, also if the table is one file that was
/// replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableVersion {
    file: FileId,
    root_of: SnapshotAt,
}

impl TableVersion {
    /// Reports whether there is a table. The default has none.
    pub fn exists(&self) -> bool {
        self.file != FileId(0)
    }

    /// Returns the number of the latest snapshot. `None` if the table is one file, without snapshots, or is not there.
    pub fn snapshot(&self) -> Option<u64> {
        (self.root_of.table != TableId(0)).then_some(self.root_of.snapshot)
    }
}

impl From<NameNow> for TableVersion {
    fn from(now: NameNow) -> TableVersion {
        TableVersion { file: now.file, root_of: now.root_of }
    }
}

/// Waits until a table has another version than the known one, for up to `timeout_ms`. The default version is that of a
/// table which does not exist, so with it the present version is returned, once there is a table. `None` if the time is
/// over.
///
/// Errors: [`ErrorKind::Invalid`] if the name cannot be the name of a table; those of [`TableWatch::next_within`], but
/// for [`ErrorKind::NotFound`].
pub fn await_table(
    pool: &Pool,
    name: &str,
    known: TableVersion,
    timeout_ms: u64,
) -> Result<Option<TableVersion>, Error> {
    let wait = || {
        let file = file_name(name)?;
        let mut feed = NameFeed::new(session_of_pool(pool), &[(file.as_str(), known.file)])?;
        let changed = feed.next_within(timeout_ms)?;
        Ok(changed.first().map(|changed| changed.now.into()))
    };
    wait().map_err(|error: Error| error.during(format_args!("waiting for a change of far table {name:?}")))
}

/// Change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// A commit has made a snapshot.
    Snapshot(HistoryEntry),
    /// The table is another file, without snapshots: it was put, replaced, or made again after its bytes were lost.
    File,
    /// There is no table of this name any more.
    Dropped,
}

/// Changes of a table from the moment on at which this was made. It has a connection to the broker, over which it is
/// told of them.
pub struct TableWatch {
    pool: Pool,
    name: Arc<str>,
    feed: NameFeed,
    /// Last snapshot that was told, or with which this began; of table 0 if there is none.
    told: SnapshotAt,
    /// Changes that are told next.
    next: VecDeque<TableChange>,
    /// File that the table has, if the changes that have led to it are not among them yet.
    unlisted: Option<NameNow>,
}

/// Begins to watch a table.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table; those of [`await_table`].
pub fn watch_table(pool: &Pool, name: &str) -> Result<TableWatch, Error> {
    let begin = || {
        let file = file_name(name)?;
        let mut feed = NameFeed::new(session_of_pool(pool), &[(file.as_str(), FileId(0))])?;
        // The feed tells at once of a table that is there already.
        let Some(changed) = feed.next_within(0)?.into_iter().next() else {
            return Err(Error::new(ErrorKind::NotFound, "there is no table of this name"));
        };
        let (pool, name, told) = (pool.clone(), name.into(), changed.now.root_of);
        Ok(TableWatch { pool, name, feed, told, next: VecDeque::new(), unlisted: None })
    };
    begin().map_err(|error: Error| error.during(format_args!("watching far table {name:?}")))
}

impl TableWatch {
    /// Returns the name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next change, for up to `timeout_ms`; `None` if the time is over. Each snapshot is told once, in
    /// order, but for those that the history of the table has no more. Of several files that replace each other it may
    /// tell the last only.
    ///
    /// Errors: [`ErrorKind::Closed`] if the session ends; [`ErrorKind::Unreachable`] if no broker can be reached for as
    /// long as the session is patient with brokers; [`ErrorKind::Exhausted`] if too many requests of this session, or
    /// of all, wait at the broker.
    pub fn next_within(&mut self, timeout_ms: u64) -> Result<Option<TableChange>, Error> {
        self.wait(timeout_ms)
            .map_err(|error| error.during(format_args!("watching far table {:?}", self.name)))
    }

    fn wait(&mut self, timeout_ms: u64) -> Result<Option<TableChange>, Error> {
        let session = Arc::clone(session_of_pool(&self.pool));
        let until = session.deadline(timeout_ms);
        loop {
            if let Some(now) = self.unlisted {
                self.note(now)?;
                self.unlisted = None;
            }
            if let Some(next) = self.next.pop_front() {
                return Ok(Some(next));
            }
            let changed = self.feed.next_within(until.ms_since(session.host().now()))?;
            let Some(changed) = changed.first() else { return Ok(None) };
            self.unlisted = Some(changed.now);
        }
    }

    /// Takes the changes that have led to the file which the table has now.
    fn note(&mut self, now: NameNow) -> Result<(), Error> {
        if now.root_of.table == TableId(0) {
            self.told = SnapshotAt::default();
            self.next.push_back(match now.file {
                FileId(0) => TableChange::Dropped,
                _ => TableChange::File,
            });
            return Ok(());
        }
        let (table, entries) = match history_after(&self.pool, &self.name, self.told) {
            // It was dropped meanwhile, which is told next.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        // Commits that were made meanwhile are among them, and are not told again.
        let known = if table == self.told.table { self.told.snapshot } else { 0 };
        let snapshot = entries.first().map_or(known, |latest| latest.snapshot);
        self.told = SnapshotAt { table, snapshot };
        self.next.extend(entries.into_iter().rev().map(TableChange::Snapshot));
        Ok(())
    }
}
