//! Changes of tables with snapshots: rows are written into files first, then a commit gives the table a root that names
//! them.
//!
//! The idea: files with rows do not depend on what the table has, so they are written once. If another commit comes
//! first, only the pages of the manifest and the root are written again, over the snapshot that it made. So appends of
//! many writers all land. A change of rows that the other commit has changed as well is a conflict.

use crate::column_type::stored_schema;
use crate::conflicts::with_whom;
use crate::file_change::FileChange;
use crate::manifest::{self, DataFile, Entries, Removed, Root, Walked};
use crate::names::file_name;
use crate::options::PutOptions;
use crate::schema_mapping::FieldIds;
use crate::snapshot::{PageReader, PageWriter, TableSnapshot, table_snapshot, write_root};
use crate::writing::NewFiles;
use arrow_schema::{FieldRef, Fields, Schema, SchemaRef};
use farpool_files::beneath::{ChangedTable, TableCommit, Unlisted, session_of_pool};
use farpool_files::{Error, ErrorKind, Pool, Recipe};
use farpool_host::HostEvent;
use farpool_wire::control::{NO_PART, PartAt, PartRange, Replaces};
use farpool_wire::{CommitId, Name, TableId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Times that a commit is based on another snapshot, because others came first, at most.
pub(crate) const REBASES_MAX: u32 = 1_000;
/// Longest time in ms that a commit waits before it is tried again.
const WAIT_MS_MAX: u64 = 64;

/// Snapshot that a commit has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Rows that the commit has added.
    pub rows: u64,
}

pub(crate) fn changed_too_often() -> Error {
    Error::new(ErrorKind::Conflict, format!("others changed the table {REBASES_MAX} times meanwhile"))
}

/// Returns the columns of rows that are to be added to a table, in the types in which they are given. Those that have
/// no nulls in the table must have none in the rows.
///
/// Errors: the columns are others.
pub(crate) fn as_columns(has: &SchemaRef, given: &SchemaRef) -> Result<SchemaRef, Error> {
    let stored = stored_schema(given)?;
    let is_same = |(has, given): (&FieldRef, &FieldRef)| {
        has.name() == given.name() && has.data_type() == given.data_type()
    };
    if has.fields().len() != stored.fields().len() || !has.fields().iter().zip(stored.fields()).all(is_same) {
        let message = format!(
            "the columns of the table are ({}), and those of the rows are ({})",
            named(has.fields()),
            named(stored.fields())
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let fields = has.fields().iter().zip(given.fields());
    let fields = fields.map(|(has, given)| given.as_ref().clone().with_nullable(has.is_nullable()));
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// Returns the names and types of columns.
pub(crate) fn named(fields: &Fields) -> String {
    let named = fields.iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    named.collect::<Vec<_>>().join(", ")
}

/// Reports whether a table has the columns that it had when rows were written for it. `written` is the root of then.
pub(crate) fn has_columns_of(written: &Root, now: &Root) -> bool {
    // A column that was dropped and added again is another one.
    written.schema == now.schema && written.field_ids.of_columns() == now.field_ids.of_columns()
}

/// Reports whether a table can have rows that were written for it: it has the columns of then, and the same layout,
/// bounds, partitions and order.
pub(crate) fn has_form_of(written: &Root, now: &Root) -> bool {
    has_columns_of(written, now)
        && written.layout == now.layout
        && written.bounded == now.bounded
        && written.arrangement == now.arrangement
}

/// Goes back to an earlier snapshot of a table: a new snapshot has its rows.
///
/// Errors: [`ErrorKind::NotFound`] if the snapshot has ended; [`ErrorKind::Conflict`] if the table was changed
/// meanwhile.
pub fn roll_back(pool: &Pool, name: &str, snapshot: u64, options: &PutOptions) -> Result<Committed, Error> {
    let back = || {
        let key = options.key.as_ref();
        if snapshot == 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "there is no snapshot 0: the first one of a table is 1",
            ));
        }
        let (before, wanted) =
            (table_snapshot(pool, name, 0, key)?, table_snapshot(pool, name, snapshot, key)?);
        let parts = |of: &TableSnapshot| {
            let mut parts = BTreeMap::new();
            let mut add = |walked: Walked<'_>| {
                match walked {
                    Walked::File(file) => parts.insert(file.at, file.added),
                    Walked::Page(page) => parts.insert(page.at, page.added),
                };
            };
            manifest::walk(&of.root.entries, &mut of.pages(), &mut add)?;
            Ok::<_, Error>(parts)
        };
        let (has, gets) = (parts(&before)?, parts(&wanted)?);
        let (mut removed, mut restored) = (Removed::default(), Removed::default());
        has.iter()
            .filter(|(at, _)| !gets.contains_key(*at))
            .for_each(|(at, added)| removed.push(*at, *added));
        gets.iter()
            .filter(|(at, _)| !has.contains_key(*at))
            .for_each(|(at, added)| restored.push(*at, *added));
        let mut commit = TableCommit::begin(pool, None)?;
        // Ids of columns that were added since are not used again.
        let next = wanted.root.field_ids.next.max(before.root.field_ids.next);
        let field_ids = FieldIds { next, ..wanted.root.field_ids.clone() };
        let root = Root { snapshot: before.snapshot() + 1, field_ids, ..wanted.root.clone() };
        let file = write_root(pool, &root, key, options.protection)?;
        let summary = format!("roll back to {snapshot}");
        let change = ChangedTable {
            name: table_file(name)?,
            table: root.table,
            snapshot: root.snapshot,
            replaces: Replaces::Only(before.root_id()),
            former: NO_PART,
            root: &file,
            parts: &[],
            removed: removed.ranges(),
            restores: snapshot,
            restored: restored.ranges(),
        };
        let made = commit
            .send(summary.as_bytes(), &[change])
            .map_err(|error| with_whom(pool, name, before.snapshot(), error))?
            .made;
        Ok(Committed { snapshot: made.first().map_or(0, |made| made.snapshot), rows: 0 })
    };
    back().map_err(|error: Error| error.during(format_args!("rolling back far table {name:?}")))
}

fn table_file(name: &str) -> Result<Name, Error> {
    Name::new(file_name(name)?).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

/// Snapshot of a table whose root and pages were written, for the commit that makes it.
pub(crate) struct Prepared {
    name: Name,
    table: TableId,
    snapshot: u64,
    replaces: Replaces,
    former: u32,
    root: Unlisted,
    removed: Vec<PartRange>,
    /// Number of those new parts that have rows. The others are pages of this snapshot alone.
    of_rows: usize,
}

impl Prepared {
    /// Returns the change of the table. `new` has the files that it was prepared with.
    pub(crate) fn change<'a>(&'a self, new: &'a NewFiles) -> ChangedTable<'a> {
        ChangedTable {
            name: self.name.clone(),
            table: self.table,
            snapshot: self.snapshot,
            replaces: self.replaces,
            former: self.former,
            root: &self.root,
            parts: &new.parts,
            removed: self.removed.clone(),
            restores: 0,
            restored: Vec::new(),
        }
    }

    /// Takes the pages from the new parts again: another try needs others.
    pub(crate) fn end(self, new: &mut NewFiles) {
        new.parts.truncate(self.of_rows);
    }

    /// Sends a commit of this change alone.
    fn send(self, commit: &mut TableCommit, new: &mut NewFiles, summary: &str) -> Result<Committed, Error> {
        let sent = commit.send(summary.as_bytes(), &[self.change(new)]);
        self.end(new);
        let made = sent?.made;
        Ok(Committed { snapshot: made.first().map_or(0, |made| made.snapshot), rows: new.rows })
    }
}

/// Snapshot on which a commit is based.
pub(crate) struct Base<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) name: &'a str,
    pub(crate) replaces: Replaces,
    /// Number of the part that becomes of a table of one file.
    pub(crate) former: u32,
    /// Root of that snapshot; snapshot 0 if the table is new.
    pub(crate) root: Root,
    pub(crate) options: &'a PutOptions,
    /// How the table can be made again.
    pub(crate) recipe: Option<&'a Recipe>,
}

impl Base<'_> {
    /// Commits files behind those of the snapshot, some of which change, or in place of them if `removed` has those.
    pub(crate) fn commit(
        &self,
        commit: &mut TableCommit,
        new: &mut NewFiles,
        removed: Removed,
        changes: Option<&BTreeMap<PartAt, FileChange>>,
        summary: &str,
    ) -> Result<Committed, Error> {
        let prepared = self.prepare(commit.id(), new, removed, changes)?;
        prepared.send(commit, new, summary)
    }

    /// Commits the entries that `change` makes of those of the snapshot and of the new files.
    pub(crate) fn commit_entries(
        &self,
        commit: &mut TableCommit,
        new: &mut NewFiles,
        removed: Removed,
        summary: &str,
        change: impl FnOnce(Vec<DataFile>, &mut PageWriter<'_>, &mut Removed) -> Result<Entries, Error>,
    ) -> Result<Committed, Error> {
        let prepared = self.prepare_entries(commit.id(), new, removed, change)?;
        prepared.send(commit, new, summary)
    }

    /// Writes the pages and the root of the snapshot that a commit makes: `new` files come behind those of the snapshot
    /// before, some of which change, or in place of them if `removed` has those.
    pub(crate) fn prepare(
        &self,
        commit: CommitId,
        new: &mut NewFiles,
        removed: Removed,
        changes: Option<&BTreeMap<PartAt, FileChange>>,
    ) -> Result<Prepared, Error> {
        let mut last_page = Vec::new();
        let prepared = self.prepare_entries(commit, new, removed, |files, pages, removed| {
            let before = match changes {
                Some(changes) => manifest::rewrite(&self.root.entries, pages, removed, &mut |file| {
                    changes.get(&file.at).map_or_else(|| Some(file.clone()), |change| change.of(file))
                })?,
                None => self.root.entries.clone(),
            };
            let entries = manifest::append(&before, files, pages, removed)?;
            (_, last_page) = manifest::last_files(&entries, pages)?;
            Ok(entries)
        })?;
        new.last_page = last_page;
        Ok(prepared)
    }

    /// Writes the pages and the root of a snapshot with the entries that `change` makes of those of the snapshot before
    /// and of the new files.
    fn prepare_entries(
        &self,
        commit: CommitId,
        new: &mut NewFiles,
        mut removed: Removed,
        change: impl FnOnce(Vec<DataFile>, &mut PageWriter<'_>, &mut Removed) -> Result<Entries, Error>,
    ) -> Result<Prepared, Error> {
        let snapshot = self.root.snapshot + 1;
        let mut pages = PageWriter {
            reader: PageReader::of(self.pool, &self.root, self.options.key.as_ref()),
            pool: self.pool,
            commit,
            snapshot,
            next: new.next,
            protection: self.options.protection,
            written: Vec::new(),
            known: BTreeMap::new(),
        };
        let columns = self.root.field_ids.own;
        let added = |file: &DataFile| DataFile { added: snapshot, columns, ..file.clone() };
        let files = new.files.iter().map(added).collect();
        let entries = change(files, &mut pages, &mut removed)?;
        new.next = pages.next;
        let mut written = std::mem::take(&mut pages.written);
        // Pages that this commit has written, and written anew.
        let own = removed.take_own(commit);
        written.retain(|page| !own.contains(&page.index));
        let root = Root { snapshot, entries, ..self.root.clone() };
        let file = write_root(self.pool, &root, self.options.key.as_ref(), self.options.protection)?;
        if let Some(recipe) = self.recipe {
            file.set_recipe(recipe)?;
        }
        let of_rows = new.parts.len();
        new.parts.extend(written);
        let (table, replaces, former) = (root.table, self.replaces, self.former);
        let (name, removed) = (table_file(self.name)?, removed.ranges());
        Ok(Prepared { name, table, snapshot, replaces, former, root: file, removed, of_rows })
    }

    /// Waits a moment before the next try.
    pub(crate) fn wait(&self, rebases: u32) -> Result<(), Error> {
        wait(self.pool, rebases)
    }
}

/// Waits a moment before a commit is tried again, so that many writers do not hinder each other.
pub(crate) fn wait(pool: &Pool, rebases: u32) -> Result<(), Error> {
    let session = session_of_pool(pool);
    let mut random = [0; 8];
    let failed = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
    session.host().random(&mut random).map_err(failed)?;
    let ms = u64::from_le_bytes(random) % (WAIT_MS_MAX.min(1 << rebases.min(6)) + 1);
    session.host().wait(&HostEvent::default(), 0, session.deadline(ms));
    Ok(())
}
