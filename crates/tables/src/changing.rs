//! Changes of rows: row groups in which something changes are written anew, and their files leave the old ones out.
//!
//! The idea: a row group is the unit of change, as it is of reads. What was written anew comes behind the other rows. If
//! another commit has changed the same row groups meanwhile, the change is a conflict; if not, it holds for the snapshot
//! that the other one made as well.

use crate::FarTable;
use crate::commit::{Base, Committed, NewFiles, REBASES_MAX, RowsWriter, as_columns, changed_too_often};
use crate::manifest::{DataFile, Entries, Removed, Root};
use crate::put::PutOptions;
use crate::snapshot::{Found, bounded_by_default, find_table, table_snapshot};
use arrow_array::RecordBatch;
use farpool_files::beneath::TableCommit;
use farpool_files::{Error, ErrorKind, Pool};
use farpool_wire::TableId;
use farpool_wire::control::{NO_PART, PartAt, Replaces};
use std::collections::BTreeMap;

/// What becomes of a row group.
#[derive(Clone, Debug)]
pub enum GroupChange {
    /// It stays as it is.
    Unchanged,
    /// These rows take its place; perhaps none.
    Rows(Vec<RecordBatch>),
}

/// Row groups that a data file loses, and their rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileChange {
    left_out: Vec<u32>,
    rows: u64,
}

impl FileChange {
    /// Returns the file without these row groups. `None` if none is left.
    pub(crate) fn of(&self, file: &DataFile) -> Option<DataFile> {
        let mut left_out = [&file.left_out[..], &self.left_out].concat();
        left_out.sort_unstable();
        let (rows, groups) = (file.rows - self.rows, file.groups - self.left_out.len() as u32);
        (groups > 0).then(|| DataFile { rows, groups, left_out, ..file.clone() })
    }

    /// Reports whether a file still has all of these row groups.
    fn fits(&self, file: &DataFile) -> bool {
        let has = |group: &u32| file.left_out.binary_search(group).is_err();
        self.left_out.iter().all(has)
    }
}

/// Changes rows of a table: `change` is called with the table of each row group alone, and says what becomes of it. The
/// table with its row groups that `change` sees is the latest snapshot.
///
/// Returns the snapshot that was made, and how many row groups were written anew. `None` if nothing changes.
///
/// Errors: those of `change`; [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Conflict`] if another
/// commit has changed the same row groups meanwhile.
pub fn change_rows(
    pool: &Pool,
    name: &str,
    options: &PutOptions,
    summary: &str,
    mut change: impl FnMut(&FarTable) -> Result<GroupChange, Error>,
) -> Result<Option<Committed>, Error> {
    let mut run = || {
        let mut base = Changing::find(pool, name, options)?;
        let mut changes: BTreeMap<usize, FileChange> = BTreeMap::new();
        let mut batches = Vec::new();
        for (number, file) in base.files.iter().enumerate() {
            let table = base.table_of(pool, name, options, number)?;
            let kept = (0u32..).filter(|group| file.left_out.binary_search(group).is_err());
            for (index, group) in (0..table.row_groups().len()).zip(kept) {
                let Some(alone) = table.only(index) else { continue };
                if let GroupChange::Rows(rows) = change(&alone)? {
                    let of_file = changes.entry(number).or_default();
                    of_file.left_out.push(group);
                    of_file.rows += u64::from(table.row_groups()[index].rows);
                    batches.extend(rows);
                }
            }
        }
        if changes.is_empty() {
            return Ok(None);
        }
        let given = batches.first().map_or_else(|| base.root.schema.clone(), RecordBatch::schema);
        let schema = as_columns(&base.root.schema, &given)?;
        let (layout, bounded) = (base.root.layout, base.root.bounded.clone());
        let mut writer = RowsWriter::new(pool, name, options, layout, schema, bounded)?;
        writer.write(batches.into_iter().map(Ok::<_, Error>))?;
        let mut new = writer.end(false)?;
        let mut commit = new.commit(pool)?;
        for rebases in 0..REBASES_MAX {
            match base.commit(pool, name, options, &mut commit, &mut new, &changes, summary) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                other => return other.map(Some),
            }
            base.wait(pool, name, options, rebases)?;
            base = base.again(pool, name, options, &changes)?;
        }
        Err(changed_too_often())
    };
    run().map_err(|error: Error| error.during(format_args!("changing far table {name:?}")))
}

/// Snapshot whose rows change.
struct Changing {
    /// Root that is replaced.
    replaces: Replaces,
    root: Root,
    /// Data files of the snapshot. The one of a table without snapshots has no part yet.
    files: Vec<DataFile>,
    is_one_file: bool,
}

impl Changing {
    fn find(pool: &Pool, name: &str, options: &PutOptions) -> Result<Changing, Error> {
        match find_table(pool, name, options.key.as_ref())? {
            Found::Snapshot(of) => Ok(Changing {
                replaces: Replaces::Only(of.root_id()),
                files: of.files()?,
                root: of.root.clone(),
                is_one_file: false,
            }),
            Found::OneFile(file, schema, layout, data) => Ok(Changing {
                replaces: Replaces::Only(file),
                root: Root {
                    table: TableId(0),
                    snapshot: 0,
                    bounded: bounded_by_default(&schema),
                    schema,
                    layout,
                    entries: Entries::Files(Vec::new()),
                },
                files: vec![data],
                is_one_file: true,
            }),
        }
    }

    fn table_of(
        &self,
        pool: &Pool,
        name: &str,
        options: &PutOptions,
        number: usize,
    ) -> Result<FarTable, Error> {
        let key = options.key.as_ref();
        match self.is_one_file {
            true => crate::open_table(pool, name, key),
            false => table_snapshot(pool, name, self.root.snapshot, key)?.open(&self.files[number..=number]),
        }
    }

    fn base<'a>(&self, pool: &'a Pool, name: &'a str, options: &'a PutOptions) -> Base<'a> {
        let (replaces, root) = (self.replaces, self.root.clone());
        Base { pool, name, replaces, former: NO_PART, root, options, recipe: None }
    }

    fn wait(&self, pool: &Pool, name: &str, options: &PutOptions, rebases: u32) -> Result<(), Error> {
        self.base(pool, name, options).wait(rebases)
    }

    #[allow(clippy::too_many_arguments)] // what a commit is
    fn commit(
        &self,
        pool: &Pool,
        name: &str,
        options: &PutOptions,
        commit: &mut TableCommit,
        new: &mut NewFiles,
        changes: &BTreeMap<usize, FileChange>,
        summary: &str,
    ) -> Result<Committed, Error> {
        let mut base = self.base(pool, name, options);
        let mut of_parts: BTreeMap<PartAt, FileChange> = BTreeMap::new();
        for (number, change) in changes {
            let mut at = self.files[*number].at;
            if self.is_one_file {
                // The file becomes the first part of the table.
                (base.former, at) = (new.next, PartAt { commit: commit.id(), index: new.next });
                new.next += 1;
                base.root.table = TableId(commit.id().0);
                base.root.entries = Entries::Files(vec![DataFile { at, ..self.files[*number].clone() }]);
            }
            of_parts.insert(at, change.clone());
        }
        base.commit(commit, new, Removed::default(), Some(&of_parts), summary)
    }

    /// Finds the table again, after another commit.
    ///
    /// Errors: [`ErrorKind::Conflict`] if that has changed the same row groups.
    fn again(
        &self,
        pool: &Pool,
        name: &str,
        options: &PutOptions,
        changes: &BTreeMap<usize, FileChange>,
    ) -> Result<Changing, Error> {
        let next = Changing::find(pool, name, options)?;
        let conflict = || {
            let snapshot = next.root.snapshot;
            let message =
                format!("another commit, up to snapshot {snapshot}, has changed the same rows: try again");
            Error::new(ErrorKind::Conflict, message)
        };
        if self.is_one_file {
            // Which part it became is not known.
            return Err(conflict());
        }
        let mut files = self.files.clone();
        for (number, change) in changes {
            let before = &self.files[*number];
            let now = next.files.iter().find(|file| file.at == before.at && change.fits(file));
            files[*number] = now.ok_or_else(conflict)?.clone();
        }
        Ok(Changing { files, ..next })
    }
}
