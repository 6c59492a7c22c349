//! Transactions: rows are added to tables, or take the place of theirs, in one commit.
//!
//! The idea: rows are written as they are given, and belong to nobody until the commit. That names all tables, each
//! with the root that it replaces, so either all of them change or none. If somebody else has changed one of them
//! first, its root is written again over theirs, unless the transaction expects one snapshot alone.

use crate::arrangement::Arrangement;
use crate::column_type::stored_schema;
use crate::commit::{
    Base, Committed, Prepared, REBASES_MAX, as_columns, changed_too_often, has_columns_of, has_form_of,
    named, wait,
};
use crate::compaction;
use crate::conflicts::{changed, commits_since, shown};
use crate::manifest::{self, DataFile, Entries, Removed, Root, Walked};
use crate::names::{file_name, has_table, there_is_one};
use crate::options::PutOptions;
use crate::row_checksum::{hash, mix};
use crate::schema_mapping::FieldIds;
use crate::snapshot::{Found, find_table};
use crate::writing::{NewFiles, RowsWriter};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_files::beneath::{
    CommitMade, NameFeed, TableCommit, list_snapshots, open_snapshot, session_of_pool,
};
use farpool_files::{Error, ErrorKind, Pool, Recipe};
use farpool_wire::control::{NO_PART, PartAt, Replaces};
use farpool_wire::limits::{COMMIT_TABLES_MAX, SUMMARY_BYTES_MAX};
use farpool_wire::{CommitId, FileId, TableId};
use std::fmt::Display;
use std::sync::Arc;

/// Changes of up to 8 tables that are made together: all of them, or none.
///
/// Rows are written to the pool when they are given to [`Self::append`] or [`Self::put`], and can be read after
/// [`Self::commit`]. A transaction that is dropped before changes nothing.
pub struct TableTransaction {
    pool: Pool,
    /// Text that the id of the commit is drawn from. `None`: it is random.
    text: Option<String>,
    /// Names of the tables, in the order of their changes.
    names: Vec<String>,
    /// Changes of the tables. None if the transaction was committed before.
    staged: Vec<Staged>,
    /// Snapshots that tables must have, by name.
    expected: Vec<(String, u64)>,
    was_made_before: bool,
}

/// Snapshots that a transaction has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionMade {
    /// Name and snapshot of each table, in the order of the changes.
    pub tables: Vec<(String, Committed)>,
    /// True if a transaction of the same id was committed before: this one has changed nothing. The snapshots are those
    /// of the earlier one, without numbers of rows.
    pub was_made_before: bool,
}

impl TableTransaction {
    /// Begins a transaction.
    pub fn begin(pool: &Pool) -> TableTransaction {
        TableTransaction {
            pool: pool.clone(),
            text: None,
            names: Vec::new(),
            staged: Vec::new(),
            expected: Vec::new(),
            was_made_before: false,
        }
    }

    /// Gives the transaction an id: a text that no other transaction over the same first table has. If a transaction of
    /// this id was committed before, this one changes nothing, so the rows of a program that is run again are there
    /// once. The id is known as long as the snapshot that it made is kept, and for 10 minutes at least.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the text is empty, or if there is a change already.
    pub fn with_id(mut self, text: &str) -> Result<TableTransaction, Error> {
        if text.is_empty() || !self.names.is_empty() {
            let message =
                format!("commit id {text:?}: a text that is not empty is needed, before the first change");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.text = Some(text.to_owned());
        Ok(self)
    }

    /// Has the commit succeed only if this is the latest snapshot of a table then; 0: the table is new, or was not
    /// changed since it was made. It is called before the change of the table, which is refused with
    /// [`ErrorKind::Conflict`] if the table has another snapshot already. A compaction makes a snapshot as well, also
    /// the one that may follow an append ([`PutOptions::compaction`]).
    pub fn expect(&mut self, name: &str, snapshot: u64) {
        self.expected.retain(|(other, _)| other != name);
        self.expected.push((name.to_owned(), snapshot));
    }

    /// Adds rows behind those of a table.
    ///
    /// Errors: [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if its columns are others, if
    /// the transaction changes it already, or if it changes 8 tables; [`ErrorKind::Conflict`] if the table has not the
    /// snapshot that is expected.
    pub fn append<E: Display>(
        &mut self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<(), Error> {
        let stage = |this: &mut TableTransaction| {
            if this.begin_change(name)? {
                let only = this.only(name)?;
                let staged = Staged::appending(&this.pool, name, schema, batches, options)?;
                this.staged.push(Staged { only, ..staged });
            }
            this.names.push(name.to_owned());
            Ok(())
        };
        stage(self).map_err(|error: Error| error.during(format_args!("appending to far table {name:?}")))
    }

    /// Makes a table of rows. With [`PutOptions::replace`] they take the place of those of a table of this name, which
    /// has their columns then.
    ///
    /// Errors: [`ErrorKind::Exists`] if there is a table, which is not to be replaced; those of [`Self::append`] and
    /// [`put_table`](crate::put_table).
    pub fn put<E: Display>(
        &mut self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<(), Error> {
        let stage = |this: &mut TableTransaction| {
            if this.begin_change(name)? {
                let only = this.only(name)?;
                if !options.replace && has_table(&this.pool, name)? {
                    return Err(there_is_one());
                }
                let stored = Arc::new(stored_schema(&schema)?);
                let arrangement = Arrangement::of(&options.partition_by, &options.sort_by, &stored)?;
                let bounded = arrangement.bounded(&stored);
                let mut writer = RowsWriter::new(&this.pool, name, options, options.layout, schema, bounded)?
                    .arranged(arrangement.clone());
                writer.write(batches)?;
                let recipe = writer.recipe()?;
                let new = writer.end()?;
                let staged = Staged::replacing(name, options, stored, arrangement, new, recipe);
                this.staged.push(Staged { only, ..staged });
            }
            this.names.push(name.to_owned());
            Ok(())
        };
        stage(self).map_err(|error: Error| error.during(format_args!("putting far table {name:?}")))
    }

    /// Checks that a table may change. Returns false if the transaction was committed before, so that nothing changes.
    fn begin_change(&mut self, name: &str) -> Result<bool, Error> {
        let refused = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        if self.names.iter().any(|other| other == name) {
            return refused(
                "the transaction changes this table already; give it all rows at once".to_owned(),
            );
        }
        if self.names.len() == COMMIT_TABLES_MAX {
            return refused(format!(
                "the transaction changes {COMMIT_TABLES_MAX} tables already, which is the most"
            ));
        }
        if self.names.is_empty()
            && let Some(id) = self.id(name)
        {
            // Most programs are run again soon, so the commit is on the first page.
            self.was_made_before = find_commit(&self.pool, name, id, 1)?.is_some();
        }
        Ok(!self.was_made_before)
    }

    /// Returns the id of a commit whose first change is of this table. `None` if no text was given for it.
    fn id(&self, first: &str) -> Option<CommitId> {
        let text = self.text.as_ref()?;
        Some(CommitId(mix(hash(text.as_bytes()), hash(first.as_bytes())).max(1)))
    }

    /// Returns the snapshot that a table must have, and its root.
    fn only(&self, name: &str) -> Result<Option<Only>, Error> {
        let Some((_, snapshot)) = self.expected.iter().find(|(expected, _)| expected == name) else {
            return Ok(None);
        };
        let (latest, root) = match open_snapshot(session_of_pool(&self.pool), &file_name(name)?, 0) {
            Ok(opened) => (opened.at.snapshot, Some(opened.root_id)),
            Err(error) if error.kind() == ErrorKind::NotFound => (0, None),
            Err(error) => return Err(error),
        };
        match latest == *snapshot {
            true => Ok(Some(Only { snapshot: *snapshot, root })),
            false => Err(not_at(&self.pool, name, *snapshot, Some(latest))),
        }
    }

    /// Changes all tables, or none of them.
    ///
    /// Errors: [`ErrorKind::Conflict`] if a table has not the snapshot that is expected, or other columns since its
    /// rows were given; [`ErrorKind::Invalid`] if no table changes, or if a snapshot is expected of a table that does
    /// not.
    pub fn commit(self) -> Result<TransactionMade, Error> {
        let names: Vec<String> = self.names.iter().map(|name| format!("{name:?}")).collect();
        let during = |error: Error| error.during(format_args!("changing far table {}", names.join(" and ")));
        self.committed().map_err(during)
    }

    fn committed(mut self) -> Result<TransactionMade, Error> {
        let refused = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        let Some(first) = self.names.first() else {
            return refused("the transaction changes no table".to_owned());
        };
        if let Some((name, snapshot)) = self.expected.iter().find(|(name, _)| !self.names.contains(name)) {
            return refused(format!(
                "snapshot {snapshot} is expected of far table {name:?}, which the transaction does not change"
            ));
        }
        let id = self.id(first);
        let commit = TableCommit::begin(&self.pool, id)?;
        let Some(id) = id else {
            let made = commit_all(&self.pool, commit, &mut self.staged)?;
            return Ok(self.made(made));
        };
        if !self.was_made_before {
            match commit_all(&self.pool, commit, &mut self.staged) {
                Ok(made) => return Ok(self.made(made)),
                // An earlier run may have made the commit, longer ago than the first page of the history tells.
                Err(error) => match self.find(id) {
                    Ok(Some(_)) => {}
                    _ => return Err(error),
                },
            }
        }
        match self.find(id)? {
            Some(snapshots) => Ok(self.made(Made { snapshots, was_made_before: true })),
            None => {
                let message = "a transaction of this id was committed before: to other tables, or to some that \
                               have been dropped since";
                Err(Error::new(ErrorKind::Closed, message))
            }
        }
    }

    /// Finds the snapshots that an earlier commit of this id has made.
    fn find(&self, id: CommitId) -> Result<Option<Vec<Committed>>, Error> {
        let found = self.names.iter().map(|name| find_commit(&self.pool, name, id, usize::MAX));
        let found: Option<Vec<u64>> = found.collect::<Result<_, _>>()?;
        Ok(found.map(|found| found.into_iter().map(|snapshot| Committed { snapshot, rows: 0 }).collect()))
    }

    fn made(self, made: Made) -> TransactionMade {
        let Made { snapshots, was_made_before } = made;
        TransactionMade { tables: self.names.into_iter().zip(snapshots).collect(), was_made_before }
    }
}

/// Returns the snapshot of a table that a commit of this id has made. Looks through `pages` of its history at most.
fn find_commit(pool: &Pool, name: &str, id: CommitId, pages: usize) -> Result<Option<u64>, Error> {
    let (file, mut before) = (file_name(name)?, 0);
    for _ in 0..pages {
        let page = match list_snapshots(pool, &file, before) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            page => page?,
        };
        if let Some(found) = page.snapshots.iter().find(|info| info.commit == id) {
            return Ok(Some(found.snapshot));
        }
        match page.snapshots.last().filter(|_| page.more) {
            Some(last) => before = last.snapshot,
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Returns the error of a commit that expects another snapshot. `latest`: `None` if there is no table.
fn not_at(pool: &Pool, name: &str, expected: u64, latest: Option<u64>) -> Error {
    let Some(latest) = latest else {
        let message = format!("snapshot {expected} is expected, and there is no table of this name any more");
        return Error::new(ErrorKind::Conflict, message);
    };
    // If the broker does not answer any more, the numbers say enough.
    let last = commits_since(pool, name, expected).ok().and_then(|mut entries| entries.pop());
    let by = last.map_or(String::new(), |last| format!(": {}", shown(&last)));
    let message = match (expected, latest) {
        (0, 0) => "the table was made by somebody else meanwhile".to_owned(),
        _ => format!("the table is at snapshot {latest}, and {expected} is expected{by}"),
    };
    Error::new(ErrorKind::Conflict, message)
}

/// Snapshot that a table must have when it is changed.
struct Only {
    snapshot: u64,
    /// Root of the snapshot, or the one file of the table. `None`: there is no table.
    root: Option<FileId>,
}

/// Change of a table whose rows are written.
pub(crate) struct Staged {
    name: String,
    options: PutOptions,
    /// Root of the table for which the rows were written, without data files.
    written: Root,
    new: NewFiles,
    kind: Kind,
    recipe: Option<Recipe>,
    /// Table as it was before the rows were written, for the first try.
    first: Option<Found>,
    only: Option<Only>,
}

/// Where the rows of a change come.
#[derive(Clone, Copy)]
enum Kind {
    /// They come behind those of the table.
    Append,
    /// They take the place of those of the table, if there is one.
    Replace,
}

/// Snapshots that [`commit_all`] has made.
pub(crate) struct Made {
    /// Snapshots, in the order of the changes.
    pub(crate) snapshots: Vec<Committed>,
    /// True if a commit of the same id has made them before.
    was_made_before: bool,
}

/// Change that is ready for the commit.
struct Ready {
    prepared: Prepared,
    summary: String,
    /// Table that it is based on, which is held as long.
    _found: Option<Found>,
}

impl Staged {
    /// Puts files in the place of those of a table.
    pub(crate) fn replacing(
        name: &str,
        options: &PutOptions,
        schema: SchemaRef,
        arrangement: Arrangement,
        new: NewFiles,
        recipe: Option<Recipe>,
    ) -> Staged {
        let written = Root {
            table: TableId(0),
            snapshot: 0,
            field_ids: FieldIds::of_new_table(schema.fields().len()),
            layout: options.layout,
            bounded: arrangement.bounded(&schema),
            arrangement,
            schema,
            entries: Entries::Files(Vec::new()),
        };
        Staged::of(name, options, written, new, Kind::Replace, recipe)
    }

    fn of(
        name: &str,
        options: &PutOptions,
        written: Root,
        new: NewFiles,
        kind: Kind,
        recipe: Option<Recipe>,
    ) -> Staged {
        Staged {
            name: name.to_owned(),
            options: options.clone(),
            written,
            new,
            kind,
            recipe,
            first: None,
            only: None,
        }
    }

    /// Writes rows that come behind those of a table.
    fn appending<E: Display>(
        pool: &Pool,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<Staged, Error> {
        let first = find_table(pool, name, options.key.as_ref())?;
        let written = Root { entries: Entries::Files(Vec::new()), ..first.root() };
        let given = as_columns(&written.schema, &schema)?;
        let mut writer =
            RowsWriter::new(pool, name, options, written.layout, given, written.bounded.clone())?
                .arranged(written.arrangement.clone());
        writer.write(batches)?;
        let new = writer.end()?;
        let staged = Staged::of(name, options, written, new, Kind::Append, None);
        Ok(Staged { first: Some(first), ..staged })
    }

    /// Writes the root of the snapshot that the change makes, over the latest one. `number` is that of the change in
    /// its commit.
    fn prepare(&mut self, pool: &Pool, commit: &TableCommit, number: u64) -> Result<Ready, Error> {
        let find = |staged: &Staged| find_table(pool, &staged.name, staged.options.key.as_ref());
        let mut found = match self.first.take() {
            Some(found) => Ok(found),
            None => find(self),
        };
        self.check_only(pool, &found)?;
        let mut lost_root = None;
        if matches!(self.kind, Kind::Replace) && self.options.replace && found.as_ref().is_err_and(is_loss) {
            lost_root = file_of(pool, &self.name)?;
            // The root that was not found may have been another one.
            found = find(self);
        }
        let Staged { name, options, written, new, kind, recipe, .. } = self;
        new.are_of(commit.id());
        let lost = options.made_by.as_ref().and_then(|made_by| made_by.lost.as_ref());
        // Somebody else may have put another table in the place of the lost one.
        let is_lost = |found: &Found| lost.is_some_and(|(file, _)| *file == found.root_id());
        let (mut removed, mut former) = (Removed::default(), NO_PART);
        let empty = |table, snapshot| Root { table, snapshot, ..written.clone() };
        let fresh = commit.new_table(number);
        if let (Kind::Append, Ok(found)) = (*kind, &found) {
            let now = found.root();
            if !has_form_of(written, &now) {
                return Err(other_columns(pool, name, written, &now));
            }
        }
        let (verb, replaces, root) = match (*kind, &found) {
            (Kind::Append, Ok(Found::Snapshot(before))) => {
                ("append", Replaces::Only(before.root_id()), before.root.clone())
            }
            (Kind::Append, Ok(Found::OneFile(file, _, _, data))) => {
                // The file becomes the first part of the table.
                former = new.next;
                new.next += 1;
                let at = PartAt { commit: commit.id(), index: former };
                let entries = Entries::Files(vec![DataFile { at, ..data.clone() }]);
                ("append", Replaces::Only(*file), Root { entries, ..empty(fresh, 0) })
            }
            (Kind::Replace, Ok(found)) if !options.replace && !is_lost(found) => return Err(there_is_one()),
            (Kind::Replace, Ok(Found::Snapshot(before))) => {
                let mut add = |walked: Walked<'_>| match walked {
                    Walked::File(file) => removed.push(file.at, file.added),
                    Walked::Page(page) => removed.push(page.at, page.added),
                };
                let root = match manifest::walk(&before.root.entries, &mut before.pages(), &mut add) {
                    Ok(()) => empty(before.root.table, before.snapshot()),
                    // Nobody knows all of its files any more. A new table takes its place, without its snapshots.
                    Err(error) if is_loss(&error) => {
                        removed = Removed::default();
                        empty(fresh, 0)
                    }
                    Err(error) => return Err(error),
                };
                ("replace with", Replaces::Only(before.root_id()), root)
            }
            (Kind::Replace, Ok(Found::OneFile(file, ..))) => {
                ("replace with", Replaces::Only(*file), empty(fresh, 0))
            }
            (Kind::Replace, Err(error)) if error.kind() == ErrorKind::NotFound => {
                ("create with", Replaces::Nothing, empty(fresh, 0))
            }
            (Kind::Append, Err(error)) => return Err(error.clone()),
            (Kind::Replace, Err(error)) => {
                match lost.map(|(file, _)| *file).or(lost_root.filter(|_| is_loss(error))) {
                    Some(file) => ("create with", Replaces::Only(file), empty(fresh, 0)),
                    None => return Err(error.clone()),
                }
            }
        };
        let base = Base { pool, name, replaces, former, root, options, recipe: recipe.as_ref() };
        let prepared = base.prepare(commit.id(), new, removed, None)?;
        let summary = format!("{verb} {} rows", new.rows);
        Ok(Ready { prepared, summary, _found: found.ok() })
    }

    /// Checks that the table has the snapshot that is expected, if one is.
    fn check_only(&self, pool: &Pool, found: &Result<Found, Error>) -> Result<(), Error> {
        let Some(Only { snapshot, root }) = &self.only else { return Ok(()) };
        let (latest, has) = match found {
            Ok(Found::Snapshot(of)) => (Some(of.snapshot()), Some(of.root_id())),
            Ok(Found::OneFile(file, ..)) => (Some(0), Some(*file)),
            Err(error) if error.kind() == ErrorKind::NotFound => (None, None),
            Err(error) => return Err(error.clone()),
        };
        match has == *root {
            true => Ok(()),
            false => Err(not_at(pool, &self.name, *snapshot, latest)),
        }
    }
}

/// Returns the file that the name of a table has, which may be lost.
fn file_of(pool: &Pool, name: &str) -> Result<Option<FileId>, Error> {
    let mut feed = NameFeed::new(session_of_pool(pool), &[(&file_name(name)?, FileId(0))])?;
    Ok(feed.next_within(0)?.first().map(|change| change.now.file))
}

/// Reports whether an error tells that bytes were lost.
fn is_loss(error: &Error) -> bool {
    error.kind() == ErrorKind::Lost
}

/// Returns the error of rows that were written for another root than the table has now.
fn other_columns(pool: &Pool, name: &str, written: &Root, now: &Root) -> Error {
    let since = match has_columns_of(written, now) {
        true => "the rows were written; its layout, partitions or order are others now".to_owned(),
        false => format!(
            "the rows were written in the columns ({}); now they are ({})",
            named(written.schema.fields()),
            named(now.schema.fields())
        ),
    };
    let last = commits_since(pool, name, 0).ok().and_then(|mut entries| entries.pop());
    match last.filter(|last| last.snapshot == now.snapshot) {
        Some(last) => changed(since, &last),
        None => Error::new(ErrorKind::Conflict, format!("the table has changed since {since}; try again")),
    }
}

/// Commits changes of tables, all of them or none. Tries again over the snapshots of others that come first.
pub(crate) fn commit_all(pool: &Pool, mut commit: TableCommit, staged: &mut [Staged]) -> Result<Made, Error> {
    for rebases in 0..REBASES_MAX {
        match try_all(pool, &mut commit, staged) {
            Ok(Some(made)) => {
                if !made.was_made_before {
                    compact_behind(pool, staged);
                }
                return Ok(made);
            }
            Ok(None) => wait(pool, rebases)?,
            Err(error) => return Err(error),
        }
    }
    Err(changed_too_often())
}

/// Makes the files of tables that were appended to fewer, where it is due.
fn compact_behind(pool: &Pool, staged: &[Staged]) {
    for Staged { name, options, new, .. } in
        staged.iter().filter(|staged| matches!(staged.kind, Kind::Append))
    {
        compaction::after_append(pool, name, options, new);
    }
}

/// Tries once. `None` if others came first.
fn try_all(pool: &Pool, commit: &mut TableCommit, staged: &mut [Staged]) -> Result<Option<Made>, Error> {
    let is_alone = staged.len() == 1;
    let mut ready = Vec::with_capacity(staged.len());
    for (number, one) in (0..).zip(staged.iter_mut()) {
        ready.push(one.prepare(pool, commit, number).map_err(|error| match is_alone {
            true => error,
            false => error.during(format_args!("far table {:?}", one.name)),
        })?);
    }
    let changes: Vec<_> =
        ready.iter().zip(staged.iter()).map(|(ready, staged)| ready.prepared.change(&staged.new)).collect();
    let sent = commit.send(summary(&ready, staged).as_bytes(), &changes);
    drop(changes);
    for (ready, staged) in ready.into_iter().zip(staged.iter_mut()) {
        ready.prepared.end(&mut staged.new);
    }
    let CommitMade { made, was_made_before } = match sent {
        Err(error) if error.kind() == ErrorKind::Conflict => return Ok(None),
        sent => sent?,
    };
    let rows = |staged: &Staged| if was_made_before { 0 } else { staged.new.rows };
    let snapshots = made.iter().zip(staged.iter());
    let snapshots = snapshots.map(|(made, staged)| Committed { snapshot: made.snapshot, rows: rows(staged) });
    Ok(Some(Made { snapshots: snapshots.collect(), was_made_before }))
}

/// Describes a commit: what it does, and to which tables if there are several.
fn summary(ready: &[Ready], staged: &[Staged]) -> String {
    let mut summary = match ready {
        [alone] => alone.summary.clone(),
        several => {
            let each = several.iter().zip(staged);
            let each = each.map(|(ready, staged)| format!("{}: {}", staged.name, ready.summary));
            each.collect::<Vec<_>>().join(", ")
        }
    };
    summary.truncate(summary.floor_char_boundary(SUMMARY_BYTES_MAX));
    summary
}

/// Adds rows behind those of a table.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if its columns are others;
/// [`ErrorKind::Conflict`] if another commit has given it other columns meanwhile.
pub fn append_rows<E: Display>(
    pool: &Pool,
    name: &str,
    schema: SchemaRef,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    options: &PutOptions,
) -> Result<Committed, Error> {
    let append = || {
        let staged = Staged::appending(pool, name, schema, batches, options)?;
        let made = commit_all(pool, TableCommit::begin(pool, None)?, &mut [staged])?;
        made.snapshots.into_iter().next().ok_or_else(changed_too_often)
    };
    append().map_err(|error: Error| error.during(format_args!("appending to far table {name:?}")))
}
