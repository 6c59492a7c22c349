//! Compaction: small files of a table become one, beside its readers and writers.
//!
//! The idea: each append adds a file, and each file costs a reader some requests. A compaction reads the rows of files
//! that follow each other, writes them into one, and commits that in their place: a snapshot with the same rows.
//! Readers of earlier snapshots keep the files that they have. If another commit comes first, the files that it has
//! changed are left out, and the others become one in the snapshot that it made; appends do not disturb at all. Only
//! clients that have the key compact an encrypted table.
//!
//! Which files become one is decided in [`choice`].

mod choice;

use crate::commit::{Base, Committed, REBASES_MAX, changed_too_often, has_form_of};
use crate::manifest::{self, DataFile, Removed, Root};
use crate::names::file_name;
use crate::options::{Compaction, PutOptions};
use crate::partitions::partition_of;
use crate::snapshot::{Found, TableSnapshot, find_table};
use crate::writing::{NewFiles, RowsWriter};
use choice::{Candidate, Effort, TARGET_BYTES, choose};
use farpool_files::beneath::TableCommit;
use farpool_files::{Error, ErrorKind, Pool, Recipe};
use farpool_wire::control::{NO_PART, PartAt, Replaces};
use farpool_wire::limits::COMMIT_PARTS_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Small files in the last page of the manifest of which an append leaves no more.
const SMALL_FILES_MAX: usize = 64;
/// Appends that may pass, once there are more, until one of them compacts again. The others leave it to that one.
const APPENDS_BETWEEN: usize = 16;
/// Bytes of the files that one commit makes fewer, unless one list has more.
const COMMIT_BYTES_MAX: u64 = 512 << 20;
/// Files that one commit makes fewer, at most.
const COMMIT_FILES_MAX: usize = 4_096;
/// Rows of one list that are collected if they are sorted, as a multiple of what a writer collects.
const COLLECTED_TIMES: usize = 4;
/// Commits of one compaction, at least, if there is so much to do.
const ROUNDS_MIN: u64 = 16;

/// Part of a table that is compacted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    /// Files of the last page of the manifest.
    LastPage,
}

/// Makes the files of a table fewer: small ones that follow each other become one, and those of which most row groups
/// were deleted, or that have not the columns of the table, are written anew. It takes several commits if there is much
/// to do. Returns the last one; `None` if there was nothing to do, as in a table without snapshots.
///
/// Others may read and change the table meanwhile. `options` has the key of an encrypted table, and the protection of
/// the new files.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if the key is wrong or missing;
/// [`ErrorKind::Lost`] if rows are lost; [`ErrorKind::Exhausted`] if the pool has no room for the files beside those
/// that they replace.
pub fn compact(pool: &Pool, name: &str, options: &PutOptions) -> Result<Option<Committed>, Error> {
    let run = || {
        let job = Job::of(pool, name, options);
        let Some(found) = job.snapshot()? else { return Ok(None) };
        let totals = found.totals();
        drop(found);
        // Files that come meanwhile would keep it going for ever.
        let rounds =
            ROUNDS_MIN + 2 * (totals.bytes / COMMIT_BYTES_MAX + totals.files / COMMIT_FILES_MAX as u64);
        let mut last = None;
        for _ in 0..rounds {
            match job.step(Part::All)? {
                Step::Nothing => break,
                // Other changes of the same files came first, so the choice is made again.
                Step::InVain => {}
                Step::Made(made) => last = Some(made),
            }
        }
        Ok(last)
    };
    run().map_err(|error: Error| error.during(format_args!("compacting far table {name:?}")))
}

/// Compacts the last page of a manifest after an append, if it is due. The append is done, so an error is not one of
/// it: a later append or [`compact`] tries again.
pub(crate) fn after_append(pool: &Pool, name: &str, options: &PutOptions, new: &NewFiles) {
    let is_small = |file: &&DataFile| candidate(file, 0).is_small(TARGET_BYTES);
    let after = new.last_page.iter().filter(is_small).count();
    let before = after.saturating_sub(new.files.len());
    let is_due = options.compaction == Compaction::Auto
        && after > SMALL_FILES_MAX
        && (before <= SMALL_FILES_MAX || before / APPENDS_BETWEEN != after / APPENDS_BETWEEN);
    if is_due {
        let _ = Job::of(pool, name, options).step(Part::LastPage);
    }
}

fn candidate(file: &DataFile, partition: usize) -> Candidate {
    let left_out = file.left_out.len() as u32;
    let (rows, bytes, groups, is_outdated) = (file.rows, file.bytes, file.groups, false);
    Candidate { rows, bytes, groups, left_out, partition, is_outdated }
}

/// Outcome of one commit of a compaction.
enum Step {
    Nothing,
    /// Others have changed all of the files meanwhile.
    InVain,
    Made(Committed),
}

/// Files that become one, and what they became.
struct Merged {
    /// Files as they were when their rows were read.
    files: Vec<DataFile>,
    /// Numbers of the new parts, perhaps none.
    parts: BTreeSet<u32>,
}

/// Reports whether a file has the row groups that it had.
fn is_as_it_was(before: &DataFile, now: &DataFile) -> bool {
    (before.rows, &before.left_out) == (now.rows, &now.left_out)
}

/// Takes as many lists as one commit makes fewer files of: at least one.
fn bounded(mut lists: Vec<Vec<usize>>, candidates: &[Candidate]) -> Vec<Vec<usize>> {
    let (mut bytes, mut count) = (0u64, 0);
    let mut is_in = |list: &Vec<usize>| {
        let of = list.iter().filter_map(|number| candidates.get(*number));
        bytes = bytes.saturating_add(of.map(|file| file.bytes).sum());
        count += list.len();
        bytes <= COMMIT_BYTES_MAX && count <= COMMIT_FILES_MAX
    };
    let taken = lists.iter().take_while(|list| is_in(list)).count();
    lists.truncate(taken.max(1));
    lists
}

/// Compaction of one table.
struct Job<'a> {
    pool: &'a Pool,
    name: &'a str,
    options: PutOptions,
}

impl<'a> Job<'a> {
    /// The rows are those that the table has, so nobody is told of them, and they get no other recipe.
    fn of(pool: &'a Pool, name: &'a str, options: &PutOptions) -> Job<'a> {
        Job { pool, name, options: PutOptions { progress: None, made_by: None, ..options.clone() } }
    }

    /// Makes as many files fewer as one commit does.
    fn step(&self, part: Part) -> Result<Step, Error> {
        let Some(mut found) = self.snapshot()? else { return Ok(Step::Nothing) };
        let (_, files) = files_of(&found, part)?;
        let own = found.root.field_ids.own;
        let is_outdated = |file: &DataFile| file.columns != own;
        let mut partitions: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let numbered = |file: &DataFile| {
            let next = partitions.len();
            let partition = partitions.entry(partition_of(&found.root, file)).or_insert(next);
            Candidate { is_outdated: is_outdated(file), ..candidate(file, *partition) }
        };
        let candidates: Vec<Candidate> = files.iter().map(numbered).collect();
        let effort = if part == Part::All { Effort::Whole } else { Effort::Amortised };
        let lists = bounded(choose(&candidates, TARGET_BYTES, effort), &candidates);
        if lists.is_empty() {
            return Ok(Step::Nothing);
        }
        let (mut new, mut merged) = (NewFiles::default(), Vec::new());
        for list in lists {
            let of: Vec<DataFile> = list.iter().filter_map(|number| files.get(*number).cloned()).collect();
            let first = new.next;
            let made = self.merge(&found, &of)?;
            // Rows that take as many files again are left as they are, unless some were deleted or have other columns.
            let is_worth_it = |file: &DataFile| !file.left_out.is_empty() || is_outdated(file);
            if made.files.len() < of.len() || of.iter().any(is_worth_it) {
                new.join(made);
                merged.push(Merged { files: of, parts: (first..new.next).collect() });
            }
        }
        if merged.is_empty() {
            return Ok(Step::Nothing);
        }
        let mut commit = new.commit(self.pool)?;
        let written = found.root.clone();
        for rebases in 0..REBASES_MAX {
            let (before, files) = files_of(&found, part)?;
            let places: BTreeMap<PartAt, (u64, &DataFile)> =
                (before..).zip(&files).map(|(number, file)| (file.at, (number, file))).collect();
            let is_there =
                |file: &DataFile| places.get(&file.at).is_some_and(|(_, now)| is_as_it_was(file, now));
            // Rows that were read in other columns would not be those of the table.
            let has_columns = has_form_of(&written, &found.root);
            let count = merged.len();
            merged.retain(|merged| has_columns && merged.files.iter().all(is_there));
            // Parts that were published ahead cannot be left out of the commit.
            let is_fixed = new.next as usize > COMMIT_PARTS_MAX;
            if merged.is_empty() || (merged.len() < count && is_fixed) {
                return Ok(Step::InVain);
            }
            new.retain(|file| merged.iter().any(|merged| merged.parts.contains(&file.at.index)));
            let place = |file: &DataFile| places.get(&file.at).map(|(number, _)| *number);
            match self.replace(&found, &mut commit, &mut new, &merged, &place) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                other => return other.map(Step::Made),
            }
            self.base(&found, None).wait(rebases)?;
            let Some(next) = self.snapshot()? else { return Ok(Step::InVain) };
            found = next;
        }
        Err(changed_too_often())
    }

    /// Opens the latest snapshot. `None` if the table has no snapshots.
    fn snapshot(&self) -> Result<Option<TableSnapshot>, Error> {
        match find_table(self.pool, self.name, self.options.key.as_ref())? {
            Found::Snapshot(found) => Ok(Some(found)),
            Found::OneFile(..) => Ok(None),
        }
    }

    /// Writes the rows of files anew.
    fn merge(&self, found: &TableSnapshot, files: &[DataFile]) -> Result<NewFiles, Error> {
        let rows = found.open(files)?.read(None, None)?;
        let Root { schema, layout, bounded, arrangement, .. } = found.root.clone();
        // The rows of a file may take more memory than they do in the file.
        let mut writer = RowsWriter::new(self.pool, self.name, &self.options, layout, schema, bounded)?
            .arranged(arrangement)
            .collecting(COLLECTED_TIMES);
        let mut failed = None;
        let read = rows.map_while(|batch| batch.map_err(|error| failed = Some(error)).ok());
        writer.write(read.map(Ok::<_, Error>))?;
        match failed {
            Some(error) => Err(error),
            None => writer.end(),
        }
    }

    fn base<'b>(&'b self, found: &TableSnapshot, recipe: Option<&'b Recipe>) -> Base<'b> {
        let (replaces, root) = (Replaces::Only(found.root_id()), found.root.clone());
        let (pool, name, options) = (self.pool, self.name, &self.options);
        Base { pool, name, replaces, former: NO_PART, root, options, recipe }
    }

    /// Commits new files, each in the place of the first one of those that it replaces.
    fn replace(
        &self,
        found: &TableSnapshot,
        commit: &mut TableCommit,
        new: &mut NewFiles,
        merged: &[Merged],
        place: &impl Fn(&DataFile) -> Option<u64>,
    ) -> Result<Committed, Error> {
        // The rows are the same, so they are made again in the same way. If the recipe is that of another root by now,
        // the commit is a conflict.
        let recipe = self.pool.recipe(&file_name(self.name)?)?;
        let base = self.base(found, recipe.as_ref());
        let summary = format!("compact {} rows", new.rows);
        base.commit_entries(commit, new, Removed::default(), &summary, |files, pages, removed| {
            let mut edits: BTreeMap<u64, Vec<DataFile>> = BTreeMap::new();
            for Merged { files: before, parts } in merged {
                let of_list = files.iter().filter(|file| parts.contains(&file.at.index)).cloned();
                let mut with: Vec<DataFile> = of_list.collect();
                for file in before {
                    let number = place(file).ok_or_else(changed_too_often)?;
                    edits.insert(number, std::mem::take(&mut with));
                }
            }
            manifest::replace(&base.root.entries, &edits, pages, removed)
        })
    }
}

/// Returns the files of a part of a table, and how many come before them.
fn files_of(of: &TableSnapshot, part: Part) -> Result<(u64, Vec<DataFile>), Error> {
    match part {
        Part::All => Ok((0, of.files()?)),
        Part::LastPage => manifest::last_files(&of.root.entries, &mut of.pages()),
    }
}
