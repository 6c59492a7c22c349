//! Changes of rows: row groups in which something changes are written anew, and their files leave the old ones out.
//!
//! The idea: a row group is the unit of change, as it is of reads. One after the other is read, and what was written
//! anew comes behind the other rows. If another commit has changed the same row groups meanwhile, the change is a
//! conflict; if not, it holds for the snapshot that the other one made as well.

use crate::commit::{Base, Committed, REBASES_MAX, changed_too_often, has_columns_of, has_form_of};
use crate::conflicts::{changed, commits_since};
use crate::far_table::FarTable;
use crate::file_change::FileChange;
use crate::manifest::{DataFile, Entries, Removed, Root};
use crate::opening::open_table;
use crate::options::PutOptions;
use crate::skipping::{FileBounds, file_may_pass};
use crate::snapshot::{Found, TableSnapshot, find_table, root_of_one_file, table_snapshot};
use crate::writing::{NewFiles, RowsWriter};
use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, Schema, SchemaRef};
use farpool_files::beneath::{TableCommit, id_of, open_parts, session_of_pool};
use farpool_files::{Error, ErrorKind, Pool};
use farpool_operators::run::type_of;
use farpool_operators::{Plan, Type};
use farpool_wire::FileId;
use farpool_wire::control::{NO_PART, PartAt, Replaces};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Change of a row group.
#[derive(Clone, Debug)]
pub enum GroupChange {
    /// It stays as it is.
    Unchanged,
    /// These rows take its place; perhaps none. They have the columns of the table, in their stored types.
    Rows(Vec<RecordBatch>),
}

/// Changes rows of a table: `change` is called with the table of each row group alone, and says what becomes of it. The
/// row groups are those of the latest snapshot; with `passing`, only those in which a row may pass the filters of that
/// plan, and other files are not opened. The plan gives all columns of the table. Rows are written as `change` returns
/// them. `summary` is a verb for the history.
///
/// Returns the snapshot that was made, and how many rows were written anew. `None` if nothing changes.
///
/// Errors: those of `change`; [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if rows have
/// not its columns; [`ErrorKind::Conflict`] if another commit has changed the same row groups meanwhile, or the plan is
/// for other columns.
pub fn change_rows(
    pool: &Pool,
    name: &str,
    options: &PutOptions,
    summary: &str,
    passing: Option<&Plan>,
    mut change: impl FnMut(&FarTable) -> Result<GroupChange, Error>,
) -> Result<Option<Committed>, Error> {
    let mut run = || {
        let asked = Asked { pool, name, options, summary };
        let found = asked.find()?;
        check_plan(&found.root.schema, passing)?;
        let mut changes: BTreeMap<usize, FileChange> = BTreeMap::new();
        let mut groups = Groups { asked: &asked, found: &found, passing, next: 0, open: VecDeque::new() };
        let mut failed = None;
        let mut ready: VecDeque<RecordBatch> = VecDeque::new();
        let mut next = || -> Result<Option<RecordBatch>, Error> {
            while ready.is_empty() {
                let Some(group) = groups.next()? else { return Ok(None) };
                let GroupChange::Rows(rows) = change(&group.alone)? else { continue };
                let of_file = changes.entry(group.file).or_default();
                of_file.left_out.push(group.number);
                of_file.rows += group.alone.rows();
                ready.extend(rows);
            }
            ready.pop_front().map(|batch| as_stored(&found.root.schema, &batch)).transpose()
        };
        let batches = std::iter::from_fn(|| match next() {
            Ok(batch) => batch.map(Ok::<_, Error>),
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        let (layout, bounded) = (found.root.layout, found.root.bounded.clone());
        let schema = Arc::clone(&found.root.schema);
        let mut writer = RowsWriter::new(pool, name, options, layout, schema, bounded)?
            .arranged(found.root.arrangement.clone());
        writer.write(batches)?;
        if let Some(error) = failed {
            return Err(error);
        }
        match changes.is_empty() {
            true => Ok(None),
            false => asked.commit(found, writer.end()?, &changes).map(Some),
        }
    };
    run().map_err(|error: Error| error.during(format_args!("changing far table {name:?}")))
}

/// Removes all rows of a table, without reading them. Rows that others append meanwhile stay.
///
/// Returns the snapshot that was made, and how many rows the one before had. `None` if it had none.
///
/// Errors: those of [`change_rows`].
pub(crate) fn remove_all_rows(
    pool: &Pool,
    name: &str,
    options: &PutOptions,
    summary: &str,
) -> Result<Option<(Committed, u64)>, Error> {
    let run = || {
        let asked = Asked { pool, name, options, summary };
        let found = asked.find()?;
        let rows = found.files.iter().map(|file| file.rows).sum();
        let changes: BTreeMap<usize, FileChange> =
            found.files.iter().map(FileChange::of_all).enumerate().collect();
        match rows {
            0 => Ok(None),
            _ => Ok(Some((asked.commit(found, NewFiles::default(), &changes)?, rows))),
        }
    };
    run().map_err(|error: Error| error.during(format_args!("changing far table {name:?}")))
}

/// Checks that a plan was made for a table with these columns, and gives all of them.
fn check_plan(schema: &Schema, passing: Option<&Plan>) -> Result<(), Error> {
    let column = |field: &FieldRef| Some((field.name().clone(), type_of(field.data_type())?));
    let columns: Option<Vec<(String, Type)>> = schema.fields().iter().map(column).collect();
    // Columns of one type may have changed their places.
    let is_for = |plan: &Plan, columns: &[(String, Type)]| {
        plan.columns == columns && plan.near.input().iter().eq(columns.iter().map(|(_, of)| of))
    };
    match passing.is_none_or(|plan| columns.is_some_and(|columns| is_for(plan, &columns))) {
        true => Ok(()),
        false => {
            let message = "the table has other columns since the change was planned; try again";
            Err(Error::new(ErrorKind::Conflict, message))
        }
    }
}

/// Returns rows as a batch of the table's schema, which says where nulls are permitted.
fn as_stored(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch, Error> {
    let invalid = |error: arrow_schema::ArrowError| {
        Error::new(ErrorKind::Invalid, format!("rows do not fit the columns of the table: {error}"))
    };
    RecordBatch::try_new(Arc::clone(schema), batch.columns().to_vec()).map_err(invalid)
}

/// Row group that may change.
struct Group {
    /// Number of its file in the snapshot.
    file: usize,
    /// Number in its file.
    number: u32,
    /// Table of this row group alone.
    alone: FarTable,
}

/// Row groups of a snapshot that may change, one file after the other.
struct Groups<'a> {
    asked: &'a Asked<'a>,
    found: &'a Changing,
    passing: Option<&'a Plan>,
    /// Number of the next file.
    next: usize,
    /// Row groups of the file that is open.
    open: VecDeque<Group>,
}

impl Groups<'_> {
    fn next(&mut self) -> Result<Option<Group>, Error> {
        while self.open.is_empty() {
            let number = self.next;
            let Some(file) = self.found.files.get(number) else { return Ok(None) };
            self.next += 1;
            let Root { schema, bounded, .. } = &self.found.root;
            let bounds = FileBounds { schema, bounded, bounds: &file.bounds };
            if self.passing.is_some_and(|plan| !file_may_pass(&plan.near, &plan.key_sets, bounds)) {
                session_of_pool(self.asked.pool).count_row_groups(0, file.groups as usize);
                continue;
            }
            let table = match &self.found.of {
                Of::Snapshot(snapshot) => snapshot.open(std::slice::from_ref(file))?,
                Of::OneFile(table) => table.clone(),
            };
            let all: Vec<usize> = (0..table.row_groups().len()).collect();
            let chosen = match self.passing {
                Some(plan) => table.groups_for(plan, &all),
                None => all,
            };
            let has = |group: &u32| file.left_out.binary_search(group).is_err();
            let numbers: Vec<u32> = (0u32..).filter(has).take(table.row_groups().len()).collect();
            let group = |index: &usize| {
                Some(Group { file: number, number: *numbers.get(*index)?, alone: table.only(*index)? })
            };
            self.open = chosen.iter().filter_map(group).collect();
        }
        Ok(self.open.pop_front())
    }
}

/// Change that somebody has asked for.
struct Asked<'a> {
    pool: &'a Pool,
    name: &'a str,
    options: &'a PutOptions,
    summary: &'a str,
}

/// Snapshot whose rows change.
struct Changing {
    /// Root that is replaced, or the one file of the table.
    replaces: FileId,
    root: Root,
    /// Data files of the snapshot. The one of a table without snapshots has no part yet.
    files: Vec<DataFile>,
    of: Of,
}

/// Table that changes, held as long as this lives.
enum Of {
    Snapshot(TableSnapshot),
    OneFile(FarTable),
}

impl Changing {
    fn is_one_file(&self) -> bool {
        matches!(self.of, Of::OneFile(_))
    }
}

impl Asked<'_> {
    fn find(&self) -> Result<Changing, Error> {
        let Asked { pool, name, options, .. } = self;
        for _ in 0..REBASES_MAX {
            match find_table(pool, name, options.key.as_ref())? {
                Found::Snapshot(of) => {
                    let (replaces, files, root) = (of.root_id(), of.files()?, of.root.clone());
                    return Ok(Changing { replaces, root, files, of: Of::Snapshot(of) });
                }
                Found::OneFile(file, schema, layout, data) => {
                    let table = open_table(pool, name, options.key.as_ref())?;
                    if table.only_file().and_then(id_of) != Some(file) {
                        // It was replaced, or changed, in between.
                        continue;
                    }
                    let (of, root) = (Of::OneFile(table), root_of_one_file(schema, layout));
                    return Ok(Changing { replaces: file, root, files: vec![data], of });
                }
            }
        }
        Err(changed_too_often())
    }

    /// Commits new files, and the loss of row groups, over the snapshot or those that others make meanwhile.
    fn commit(
        &self,
        mut found: Changing,
        mut new: NewFiles,
        changes: &BTreeMap<usize, FileChange>,
    ) -> Result<Committed, Error> {
        let mut commit = new.commit(self.pool)?;
        let mut wanted: BTreeMap<PartAt, FileChange> = BTreeMap::new();
        for (number, change) in changes {
            let file = found.files.get(*number).ok_or_else(changed_too_often)?;
            wanted.insert(file.at, change.clone());
        }
        let lost: u64 = changes.values().map(|change| change.rows).sum();
        let summary = match lost.saturating_sub(new.rows) {
            0 => format!("{}, {} rows written anew", self.summary, new.rows),
            gone => format!("{} {gone} rows", self.summary),
        };
        for rebases in 0..REBASES_MAX {
            let base = self.base(&found, &commit, &mut new, &mut wanted);
            let of_files = Some(&wanted).filter(|_| base.former != NO_PART || !found.is_one_file());
            match base.commit(&mut commit, &mut new, Removed::default(), of_files, &summary) {
                Err(error) if error.kind() == ErrorKind::Conflict => base.wait(rebases)?,
                other => return other,
            }
            found = self.again(&found, &mut wanted)?;
        }
        Err(changed_too_often())
    }

    fn base<'a>(
        &'a self,
        found: &Changing,
        commit: &TableCommit,
        new: &mut NewFiles,
        wanted: &mut BTreeMap<PartAt, FileChange>,
    ) -> Base<'a> {
        let Asked { pool, name, options, .. } = *self;
        let (replaces, mut root, mut former) = (Replaces::Only(found.replaces), found.root.clone(), NO_PART);
        if let (true, Some(file)) = (found.is_one_file(), found.files.first()) {
            root.table = commit.new_table(0);
            let change = wanted.values().next().cloned().unwrap_or_default();
            // The file becomes the first part of the table, if something is left of it.
            if change.of(file).is_some() {
                former = new.next;
                new.next += 1;
                let at = PartAt { commit: commit.id(), index: former };
                *wanted = BTreeMap::from([(at, change)]);
                root.entries = Entries::Files(vec![DataFile { at, ..file.clone() }]);
            }
        }
        Base { pool, name, replaces, former, root, options, recipe: None }
    }

    /// Finds the table again, after another commit.
    ///
    /// Errors: [`ErrorKind::Conflict`] if that has changed the same row groups, or the columns.
    fn again(&self, before: &Changing, wanted: &mut BTreeMap<PartAt, FileChange>) -> Result<Changing, Error> {
        let next = self.find()?;
        if before.is_one_file() {
            if next.replaces == before.replaces {
                return Ok(next);
            }
            let change = wanted.values().next().cloned().unwrap_or_default();
            let part = match self.part_of(before, &next)? {
                Some(part) => part,
                None => return Err(self.conflict(before, &next, wanted)),
            };
            *wanted = BTreeMap::from([(part, change)]);
        }
        match has_form_of(&before.root, &next.root) && fit(wanted, &next.files) {
            true => Ok(next),
            false => Err(self.conflict(before, &next, wanted)),
        }
    }

    /// Finds the part that the one file of a table has become. `None` if the table has it no more.
    fn part_of(&self, before: &Changing, next: &Changing) -> Result<Option<PartAt>, Error> {
        let Some(file) = before.files.first().filter(|_| !next.is_one_file()) else { return Ok(None) };
        // Its length and salt stay as they are, and no snapshot before the first one had it.
        let may_be = |one: &&DataFile| (one.bytes, one.salt, one.added) == (file.bytes, file.salt, 1);
        for one in next.files.iter().filter(may_be) {
            let opened = open_parts(session_of_pool(self.pool), next.root.table, &[one.at])?;
            if opened.first().and_then(id_of) == Some(before.replaces) {
                return Ok(Some(one.at));
            }
        }
        Ok(None)
    }

    /// Returns the error of a change that another commit stands against, with the first one that does.
    fn conflict(&self, before: &Changing, next: &Changing, wanted: &BTreeMap<PartAt, FileChange>) -> Error {
        let since = before.root.snapshot;
        let key = self.options.key.as_ref();
        let entries = commits_since(self.pool, self.name, since).unwrap_or_default();
        let stands_against = |snapshot: u64| {
            let of = table_snapshot(self.pool, self.name, snapshot, key).ok()?;
            Some(!has_columns_of(&before.root, &of.root) || !fit(wanted, &of.files().ok()?))
        };
        let is_first = |snapshot: u64| match before.is_one_file() || snapshot == next.root.snapshot {
            true => true,
            false => stands_against(snapshot).unwrap_or(false),
        };
        match entries.iter().find(|entry| is_first(entry.snapshot)) {
            Some(entry) => changed(format_args!("snapshot {since}"), entry),
            None => Error::new(ErrorKind::Conflict, "the table was replaced meanwhile; try again"),
        }
    }
}

/// Reports whether files still have all row groups that they are to lose.
fn fit(wanted: &BTreeMap<PartAt, FileChange>, files: &[DataFile]) -> bool {
    let by_part: BTreeMap<PartAt, &DataFile> = files.iter().map(|file| (file.at, file)).collect();
    wanted.iter().all(|(at, change)| by_part.get(at).is_some_and(|file| change.fits(file)))
}
