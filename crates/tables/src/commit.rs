//! Changes of tables with snapshots: rows are written into files first, then a commit gives the table a root that names
//! them.
//!
//! The idea: files with rows do not depend on what the table has, so they are written once. If another commit comes
//! first, only the pages of the manifest and the root are written again, over the snapshot that it made. So appends of
//! many writers all land. A change of rows that the other commit has changed as well is a conflict.

use crate::changing::FileChange;
use crate::column_type::stored_schema;
use crate::layout::{EncodedGroup, RowGroupEncoder, TableLayout};
use crate::manifest::{self, DataFile, Entries, Removed, Root, Walked};
use crate::names::{file_name, has_table};
use crate::put::{FileWriter, PutOptions, check_same_rows, encoder, there_is_one};
use crate::row_checksum::RowChecksum;
use crate::snapshot::{
    Found, PageReader, PageWriter, TableSnapshot, bounded_by_default, bounds_of, find_table, table_snapshot,
    write_root,
};
use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, Fields, Schema, SchemaRef};
use farpool_files::beneath::{
    ChangedTable, TableCommit, UnlistedPart, list_snapshots, open_snapshot, session_of_pool,
};
use farpool_files::{Error, ErrorKind, IfTaken, Pool, Recipe};
use farpool_host::HostEvent;
use farpool_wire::control::{NO_PART, PartAt, Replaces};
use farpool_wire::{CommitId, Name, SessionId, TableId};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

/// Bytes of row groups after which a file of a table is full.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Row groups after which a file of a table is full.
const FILE_GROUPS_MAX: usize = 4_096;
/// Times that a commit is based on another snapshot, because others came first, at most.
pub(crate) const REBASES_MAX: u32 = 1_000;

/// Snapshot that a commit has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Rows that the commit has added.
    pub rows: u64,
}

/// Snapshot in the history of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Session that made it.
    pub session: SessionId,
    /// Time of the commit by the broker's clock, in ms since 1970.
    pub at_ms: u64,
    /// True if the snapshot can be read: it has not ended.
    pub is_kept: bool,
    /// What was done, in a few words.
    pub summary: String,
}

/// Files with rows that a commit adds.
#[derive(Default)]
pub(crate) struct NewFiles {
    parts: Vec<UnlistedPart>,
    files: Vec<DataFile>,
    rows: u64,
    /// Number of the next part of the commit. Pages of a try that failed may have been published ahead, so their numbers
    /// are not used again.
    pub(crate) next: u32,
}

impl NewFiles {
    /// Begins the commit that adds them.
    pub(crate) fn commit(&mut self, pool: &Pool) -> Result<TableCommit, Error> {
        let commit = TableCommit::begin(pool)?;
        self.files.iter_mut().for_each(|file| file.at.commit = commit.id());
        Ok(commit)
    }
}

/// Writer of rows into as many files as they need.
pub(crate) struct RowsWriter<'a> {
    encoder: RowGroupEncoder,
    checksum: RowChecksum,
    files: FilesWriter<'a>,
}

struct FilesWriter<'a> {
    pool: &'a Pool,
    /// Name with which a single file can be published.
    name: String,
    options: &'a PutOptions,
    schema: SchemaRef,
    bounded: Vec<u16>,
    file: Option<FileWriter>,
    new: NewFiles,
}

impl<'a> RowsWriter<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        name: &str,
        options: &'a PutOptions,
        layout: TableLayout,
        schema: SchemaRef,
        bounded: Vec<u16>,
    ) -> Result<RowsWriter<'a>, Error> {
        let encoder = encoder(schema, pool.region_bytes()?, layout, options.key.is_some())?;
        let (name, schema) = (file_name(name)?, Arc::clone(encoder.schema()));
        let (file, new) = (None, NewFiles::default());
        let files = FilesWriter { pool, name, options, schema, bounded, file, new };
        Ok(RowsWriter { encoder, checksum: RowChecksum::default(), files })
    }

    pub(crate) fn write<E: Display>(
        &mut self,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    ) -> Result<(), Error> {
        let RowsWriter { encoder, checksum, files } = self;
        for batch in batches {
            let failed =
                |error| Error::new(ErrorKind::Invalid, format!("reading the next batch failed: {error}"));
            let batch = batch.map_err(failed)?;
            if files.options.made_by.is_some() {
                checksum.add(&batch);
            }
            encoder.push(&batch, |group| files.add(group))?;
        }
        encoder.finish(|group| files.add(group))
    }

    /// Returns the recipe by which the rows can be made again, if they have one.
    ///
    /// Errors: they are put in place of a lost table, and are not its rows.
    fn recipe(&self) -> Result<Option<Recipe>, Error> {
        let Some(made_by) = &self.files.options.made_by else { return Ok(None) };
        let (kind, body) = (made_by.kind.clone(), made_by.body.clone());
        let recipe = Recipe { kind, rows: self.checksum.rows, checksum: self.checksum.value(), body };
        check_same_rows(made_by.lost.as_ref().map(|(_, recipe)| recipe), &recipe)?;
        Ok(Some(recipe))
    }

    /// Ends the last file. If there are no rows, there is a file without any, or none.
    pub(crate) fn end(mut self, has_file: bool) -> Result<NewFiles, Error> {
        if has_file && self.files.new.files.is_empty() {
            self.files.begin_file()?;
        }
        self.files.end_file()?;
        Ok(self.files.new)
    }
}

impl FilesWriter<'_> {
    fn begin_file(&mut self) -> Result<&mut FileWriter, Error> {
        let PutOptions { protection, key, .. } = self.options;
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let file = FileWriter::create(self.pool, self.name.clone(), *protection, key.as_ref())?;
                Ok(none.insert(file))
            }
        }
    }

    fn add(&mut self, group: EncodedGroup) -> Result<(), Error> {
        let is_full =
            |file: &FileWriter| file.bytes() >= FILE_BYTES_MAX || file.group_count() >= FILE_GROUPS_MAX;
        if self.file.as_ref().is_some_and(is_full) {
            self.end_file()?;
        }
        self.begin_file()?.add(group)
    }

    fn end_file(&mut self) -> Result<(), Error> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let written = file.finish(Arc::clone(&self.schema))?;
        let index = self.new.next;
        self.new.next += 1;
        self.new.files.push(DataFile {
            at: PartAt { commit: CommitId(0), index },
            added: 0,
            rows: written.rows,
            bytes: written.bytes,
            groups: written.groups.len() as u32,
            left_out: Vec::new(),
            salt: written.salt,
            bounds: bounds_of(&written.groups, &self.bounded),
        });
        self.new.rows += written.rows;
        self.new.parts.push(UnlistedPart { index, file: written.file });
        Ok(())
    }
}

/// Makes a far table from record batches that have all the columns of `schema`. Metadata of the schema is not kept.
/// If an item of `batches` is an error, nothing has changed. A table that fits into one file has no snapshots until it is
/// changed, unless it replaces one that has.
///
/// Errors: [`ErrorKind::Exists`] if there is a table of this name ([`PutOptions::replace`] replaces it);
/// [`ErrorKind::Invalid`] if far tables do not support the type of a column, if an item of `batches` is an error, if
/// a batch does not fit the schema, if a row is larger than a region, if the layout is rows and a column has nulls or
/// values of variable width, if the pool cannot give the protection, or if a table that is put in place of a lost one
/// has other rows; [`ErrorKind::Exhausted`] if the pool has no room.
pub fn put_table<E: Display>(
    pool: &Pool,
    name: &str,
    schema: SchemaRef,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    options: &PutOptions,
) -> Result<(), Error> {
    let put = || -> Result<(), Error> {
        let file = file_name(name)?;
        // Checks the types before any memory is requested.
        let stored = Arc::new(stored_schema(&schema)?);
        let lost = options.made_by.as_ref().and_then(|made_by| made_by.lost.as_ref());
        if !options.replace && lost.is_none() && has_table(pool, name)? {
            return Err(there_is_one());
        }
        let bounded = bounded_by_default(&stored);
        let mut writer = RowsWriter::new(pool, name, options, options.layout, schema, bounded)?;
        writer.write(batches)?;
        let recipe = writer.recipe()?;
        let mut new = writer.end(true)?;
        let of_name = match open_snapshot(session_of_pool(pool), &file, 0) {
            Ok(opened) => Some(opened.at.table).filter(|table| *table != TableId(0)),
            Err(_) => None,
        };
        if new.files.len() == 1
            && (of_name.is_none() || !options.replace && lost.is_none())
            && let Some(part) = new.parts.pop()
        {
            if let Some(recipe) = &recipe {
                part.file.set_recipe(recipe)?;
            }
            let if_taken = match (lost, options.replace) {
                (Some((file, _)), _) => IfTaken::ReplaceOnly(*file),
                (None, true) => IfTaken::Replace,
                (None, false) => IfTaken::Refuse,
            };
            return part.file.publish(if_taken).map_err(|error| match error.kind() {
                // Another client has published the name since the check at the start.
                ErrorKind::Exists => there_is_one(),
                _ => error,
            });
        }
        replace_rows(pool, name, options, &stored, recipe.as_ref(), &mut new)
    };
    put().map_err(|error| error.during(format_args!("putting far table {name:?}")))
}

/// Gives a table files with rows in place of those that it has.
fn replace_rows(
    pool: &Pool,
    name: &str,
    options: &PutOptions,
    schema: &SchemaRef,
    recipe: Option<&Recipe>,
    new: &mut NewFiles,
) -> Result<(), Error> {
    let key = options.key.as_ref();
    let lost = options.made_by.as_ref().and_then(|made_by| made_by.lost.as_ref());
    let mut commit = new.commit(pool)?;
    for rebases in 0..REBASES_MAX {
        let mut removed = Removed::default();
        let (mut table, mut snapshot, mut replaces) = (TableId(commit.id().0), 0, Replaces::Nothing);
        match find_table(pool, name, key) {
            Ok(_) if !options.replace && lost.is_none() => return Err(there_is_one()),
            Ok(Found::Snapshot(before)) => {
                (table, snapshot) = (before.root.table, before.snapshot());
                replaces = Replaces::Only(before.root_id());
                let mut add = |walked: Walked<'_>| match walked {
                    Walked::File(file) => removed.push(file.at, file.added),
                    Walked::Page(page) => removed.push(page.at, page.added),
                };
                manifest::walk(&before.root.entries, &mut before.pages(), &mut add)?;
            }
            Ok(Found::OneFile(file, ..)) => replaces = Replaces::Only(file),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => match lost {
                Some((file, _)) => replaces = Replaces::Only(*file),
                None => return Err(error),
            },
        }
        let root = Root {
            table,
            snapshot,
            schema: Arc::clone(schema),
            layout: options.layout,
            bounded: bounded_by_default(schema),
            entries: Entries::Files(Vec::new()),
        };
        let base = Base { pool, name, replaces, former: NO_PART, root, options, recipe };
        let summary = if snapshot > 0 { "replace with" } else { "create with" };
        match base.commit(&mut commit, new, removed, None, summary) {
            Err(error) if error.kind() == ErrorKind::Conflict => base.wait(rebases)?,
            other => return other.map(drop),
        }
    }
    Err(changed_too_often())
}

/// Adds rows behind those of a table.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if its columns are others, or if it
/// has no snapshots.
pub fn append_rows<E: Display>(
    pool: &Pool,
    name: &str,
    schema: SchemaRef,
    batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    options: &PutOptions,
) -> Result<Committed, Error> {
    let append = || {
        let key = options.key.as_ref();
        let first = find_table(pool, name, key)?;
        let (has, layout, bounded) = match &first {
            Found::Snapshot(of) => (of.schema(), of.layout(), of.root.bounded.clone()),
            Found::OneFile(_, schema, layout, _) => (schema, *layout, bounded_by_default(schema)),
        };
        let schema = as_columns(has, &schema)?;
        let mut writer = RowsWriter::new(pool, name, options, layout, schema, bounded)?;
        writer.write(batches)?;
        let mut new = writer.end(false)?;
        let mut commit = new.commit(pool)?;
        let mut next = Some(first);
        for rebases in 0..REBASES_MAX {
            let before = match next.take() {
                Some(before) => before,
                None => find_table(pool, name, key)?,
            };
            let (former, file, root);
            match before {
                Found::Snapshot(before) => {
                    (former, file, root) = (NO_PART, before.root_id(), before.root.clone());
                }
                // The file becomes the first part of the table.
                Found::OneFile(id, schema, layout, data) => {
                    (former, file) = (new.next, id);
                    new.next += 1;
                    let at = PartAt { commit: commit.id(), index: former };
                    let bounded = bounded_by_default(&schema);
                    let entries = Entries::Files(vec![DataFile { at, ..data }]);
                    let table = TableId(commit.id().0);
                    root = Root { table, snapshot: 0, schema, layout, bounded, entries };
                }
            }
            let replaces = Replaces::Only(file);
            let base = Base { pool, name, replaces, former, root, options, recipe: None };
            match base.commit(&mut commit, &mut new, Removed::default(), None, "append") {
                Err(error) if error.kind() == ErrorKind::Conflict => base.wait(rebases)?,
                other => return other,
            }
        }
        Err(changed_too_often())
    };
    append().map_err(|error: Error| error.during(format_args!("appending to far table {name:?}")))
}

pub(crate) fn changed_too_often() -> Error {
    Error::new(ErrorKind::Conflict, format!("others changed the table {REBASES_MAX} times meanwhile"))
}

/// Returns the columns of rows that are to be added to a table, in the types in which they are given. Those that have no
/// nulls in the table must have none in the rows.
///
/// Errors: the columns are others.
pub(crate) fn as_columns(has: &SchemaRef, given: &SchemaRef) -> Result<SchemaRef, Error> {
    let stored = stored_schema(given)?;
    let shown = |fields: &Fields| {
        let shown = fields.iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        shown.collect::<Vec<_>>().join(", ")
    };
    let is_same = |(has, given): (&FieldRef, &FieldRef)| {
        has.name() == given.name() && has.data_type() == given.data_type()
    };
    if has.fields().len() != stored.fields().len() || !has.fields().iter().zip(stored.fields()).all(is_same) {
        let message = format!(
            "the columns of the table are ({}), and those of the rows are ({})",
            shown(has.fields()),
            shown(stored.fields())
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let fields = has.fields().iter().zip(given.fields());
    let fields = fields.map(|(has, given)| given.as_ref().clone().with_nullable(has.is_nullable()));
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// Goes back to an earlier snapshot of a table: a new snapshot has its rows.
///
/// Errors: [`ErrorKind::NotFound`] if the snapshot has ended; [`ErrorKind::Conflict`] if the table was changed
/// meanwhile.
pub fn roll_back(pool: &Pool, name: &str, snapshot: u64, options: &PutOptions) -> Result<Committed, Error> {
    let back = || {
        let key = options.key.as_ref();
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
        let mut commit = TableCommit::begin(pool)?;
        let root = Root { snapshot: before.snapshot() + 1, ..wanted.root.clone() };
        let file = write_root(pool, &root, key, options.protection)?;
        let summary = format!("roll back to {snapshot}");
        let change = ChangedTable {
            name: table_file(name)?,
            table: root.table,
            replaces: Replaces::Only(before.root_id()),
            former: NO_PART,
            root: &file,
            parts: &[],
            removed: removed.ranges(),
            restores: snapshot,
            restored: restored.ranges(),
        };
        let made = commit.send(summary.as_bytes(), &[change])?;
        Ok(Committed { snapshot: made.first().map_or(0, |made| made.snapshot), rows: 0 })
    };
    back().map_err(|error: Error| error.during(format_args!("rolling back far table {name:?}")))
}

/// Returns the snapshots of a table, the latest first, with those that have ended and are still known.
pub fn history(pool: &Pool, name: &str) -> Result<Vec<HistoryEntry>, Error> {
    let list = || {
        let (file, mut before, mut entries) = (file_name(name)?, 0, Vec::new());
        loop {
            let page = list_snapshots(pool, &file, before)?;
            entries.extend(page.snapshots.iter().map(|info| HistoryEntry {
                snapshot: info.snapshot,
                session: info.session,
                at_ms: info.at_ms,
                is_kept: info.is_kept,
                summary: String::from_utf8_lossy(&info.summary).into_owned(),
            }));
            match page.snapshots.last().filter(|_| page.more) {
                Some(last) => before = last.snapshot,
                None => return Ok(entries),
            }
        }
    };
    list().map_err(|error: Error| error.during(format_args!("listing the snapshots of far table {name:?}")))
}

fn table_file(name: &str) -> Result<Name, Error> {
    Name::new(file_name(name)?).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
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
        mut removed: Removed,
        changes: Option<&BTreeMap<PartAt, FileChange>>,
        summary: &str,
    ) -> Result<Committed, Error> {
        let snapshot = self.root.snapshot + 1;
        let mut pages = PageWriter {
            reader: PageReader::of(self.pool, &self.root, self.options.key.as_ref()),
            pool: self.pool,
            commit: commit.id(),
            snapshot,
            next: new.next,
            protection: self.options.protection,
            written: Vec::new(),
            known: BTreeMap::new(),
        };
        let files = new.files.iter().map(|file| DataFile { added: snapshot, ..file.clone() }).collect();
        let before = match changes {
            Some(changes) => manifest::rewrite(&self.root.entries, &mut pages, &mut removed, &mut |file| {
                changes.get(&file.at).map_or_else(|| Some(file.clone()), |change| change.of(file))
            })?,
            None => self.root.entries.clone(),
        };
        let entries = manifest::append(&before, files, &mut pages, &mut removed)?;
        new.next = pages.next;
        let mut written = std::mem::take(&mut pages.written);
        // Pages that this commit has written, and written anew.
        let own = removed.take_own(commit.id());
        written.retain(|page| !own.contains(&page.index));
        self.send(commit, new, written, entries, removed, summary)
    }

    fn send(
        &self,
        commit: &mut TableCommit,
        new: &mut NewFiles,
        pages: Vec<UnlistedPart>,
        entries: Entries,
        removed: Removed,
        summary: &str,
    ) -> Result<Committed, Error> {
        let root = Root { snapshot: self.root.snapshot + 1, entries, ..self.root.clone() };
        let file = write_root(self.pool, &root, self.options.key.as_ref(), self.options.protection)?;
        if let Some(recipe) = self.recipe {
            file.set_recipe(recipe)?;
        }
        let of_rows = new.parts.len();
        new.parts.extend(pages);
        let change = ChangedTable {
            name: table_file(self.name)?,
            table: root.table,
            replaces: self.replaces,
            former: self.former,
            root: &file,
            parts: &new.parts,
            removed: removed.ranges(),
            restores: 0,
            restored: Vec::new(),
        };
        let summary = format!("{summary} {} rows", new.rows);
        let sent = commit.send(summary.as_bytes(), &[change]);
        // Pages are of this snapshot alone.
        new.parts.truncate(of_rows);
        let made = sent?;
        Ok(Committed { snapshot: made.first().map_or(0, |made| made.snapshot), rows: new.rows })
    }

    /// Waits a moment before the next try, so that many writers do not hinder each other.
    pub(crate) fn wait(&self, rebases: u32) -> Result<(), Error> {
        let session = session_of_pool(self.pool);
        let mut random = [0; 8];
        let failed = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
        session.host().random(&mut random).map_err(failed)?;
        let ms = u64::from_le_bytes(random) % ((1 << rebases.min(6)) + 1);
        session.host().wait(&HostEvent::default(), 0, session.deadline(ms));
        Ok(())
    }
}
