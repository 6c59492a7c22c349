//! Writing rows into files of a table, which a commit adds to it later.
//!
//! The idea: rows are cut into row groups, other threads encode these, and the thread of the writer writes those that
//! are ready. A table with partitions or an order has its rows arranged before that, and each file has rows of one
//! partition.

use crate::arrangement::Arrangement;
use crate::bounds::bounds_of;
use crate::encoders::{Given, GroupEncoders, Taken, threads_of};
use crate::file_writer::{FileWriter, check_same_rows, encoder};
use crate::layout::{EncodedGroup, GroupRows, RowGroupEncoder, TableLayout};
use crate::manifest::DataFile;
use crate::names::file_name;
use crate::options::{PutOptions, Written};
use crate::partitions::{Arranger, check_partition};
use crate::row_checksum::RowChecksum;
use crate::{BOUND_BYTES_MAX, COLUMN_NAME_BYTES_MAX, COLUMNS_MAX, FOOTER_BYTES_MAX, ROW_GROUPS_MAX};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_files::beneath::{TableCommit, UnlistedPart, session_of_pool};
use farpool_files::{Error, ErrorKind, Pool, Recipe};
use farpool_wire::control::PartAt;
use farpool_wire::{CommitId, MonoNs};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

/// Bytes of row groups, without dictionaries, after which a file of a table is full.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Row groups after which a file of a table is full.
const FILE_GROUPS_MAX: usize = 4_096;
const _: () = assert!(FILE_GROUPS_MAX <= ROW_GROUPS_MAX);
/// Columns of all row groups together after which a file of a table is full, because of its footer.
const FILE_CHUNKS_MAX: usize = 1 << 18;
/// Most bytes of a column of a row group in a footer: its encoding, its number of nulls, four buffers, and bounds.
const CHUNK_BYTES_MAX: usize = 1 + 4 + 4 * 12 + 1 + 2 * (1 + BOUND_BYTES_MAX);
/// Most bytes of a column in a footer: its name, and its type with a time zone.
const COLUMN_BYTES_MAX: usize = COLUMN_NAME_BYTES_MAX + 512;
const _: () = assert!(
    (FILE_CHUNKS_MAX + COLUMNS_MAX) * CHUNK_BYTES_MAX + FILE_GROUPS_MAX * 16 + COLUMNS_MAX * COLUMN_BYTES_MAX
        <= FOOTER_BYTES_MAX
);
/// Bytes of row groups that are written at once: as many as are there, until they are as long as this.
const WRITE_BYTES: usize = 8 << 20;
/// Time in ns between two calls of a function that is told what has been written.
const TOLD_EACH_NS: u64 = 100_000_000;

/// Files with rows that a commit adds.
#[derive(Default)]
pub(crate) struct NewFiles {
    pub(crate) parts: Vec<UnlistedPart>,
    pub(crate) files: Vec<DataFile>,
    pub(crate) rows: u64,
    /// Data files of the last page of the manifest, once a commit has these behind the others.
    pub(crate) last_page: Vec<DataFile>,
    /// Number of the next part of the commit. Pages of a try that failed may have been published ahead, so their
    /// numbers are not used again.
    pub(crate) next: u32,
}

impl NewFiles {
    /// Begins the commit that adds them.
    pub(crate) fn commit(&mut self, pool: &Pool) -> Result<TableCommit, Error> {
        let commit = TableCommit::begin(pool, None)?;
        self.are_of(commit.id());
        Ok(commit)
    }

    /// Notes which commit adds them.
    pub(crate) fn are_of(&mut self, commit: CommitId) {
        self.files.iter_mut().for_each(|file| file.at.commit = commit);
    }

    /// Adds others behind these, before the commit begins.
    pub(crate) fn join(&mut self, others: NewFiles) {
        let first = self.next;
        let moved = |index: u32| first + index;
        self.parts
            .extend(others.parts.into_iter().map(|part| UnlistedPart { index: moved(part.index), ..part }));
        self.files.extend(others.files.into_iter().map(|file| {
            let at = PartAt { index: moved(file.at.index), ..file.at };
            DataFile { at, ..file }
        }));
        self.rows += others.rows;
        self.next += others.next;
    }

    /// Drops those files of which `is_kept` returns false. They must not have been published.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&DataFile) -> bool) {
        self.files.retain(|file| is_kept(file));
        let kept: BTreeSet<u32> = self.files.iter().map(|file| file.at.index).collect();
        self.parts.retain(|part| kept.contains(&part.index));
        self.rows = self.files.iter().map(|file| file.rows).sum();
    }
}

/// Writer of rows into as many files as they need. Other threads encode them meanwhile.
pub(crate) struct RowsWriter<'a> {
    cutter: RowGroupEncoder,
    groups: GroupsWriter<'a>,
    /// Collector of the rows of a table with partitions, or an order.
    arranger: Option<Arranger>,
}

/// Writer of row groups, in the order in which they are given.
struct GroupsWriter<'a> {
    encoders: GroupEncoders,
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
    arrangement: Arrangement,
    file: Option<FileWriter>,
    /// Row groups of the file that are encoded and not written.
    waiting: Vec<EncodedGroup>,
    written: Written,
    /// When the function of the options was told what, the last time.
    told: Option<(MonoNs, Written)>,
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
        let threads = threads_of(options.threads)?;
        let cutter = encoder(schema, pool.region_bytes()?, layout, options.key.is_some())?;
        let (name, schema) = (file_name(name)?, Arc::clone(cutter.schema()));
        let files = FilesWriter {
            pool,
            name,
            options,
            schema,
            bounded,
            arrangement: Arrangement::default(),
            file: None,
            waiting: Vec::new(),
            written: Written::default(),
            told: None,
            new: NewFiles::default(),
        };
        let (form, is_summed) = (cutter.form().clone(), options.made_by.is_some());
        let encoders = GroupEncoders::new(session_of_pool(pool).host().clone(), threads, form, is_summed);
        let groups = GroupsWriter { encoders, checksum: RowChecksum::default(), files };
        Ok(RowsWriter { cutter, groups, arranger: None })
    }

    /// Writes the rows in this arrangement.
    pub(crate) fn arranged(mut self, arrangement: Arrangement) -> RowsWriter<'a> {
        self.arranger = (!arrangement.is_none()).then(|| Arranger::new(arrangement.clone()));
        self.groups.files.arrangement = arrangement;
        self
    }

    /// Collects so many times the usual bytes of rows that are arranged.
    pub(crate) fn collecting(mut self, times: usize) -> RowsWriter<'a> {
        self.arranger = self.arranger.map(|arranger| arranger.times(times));
        self
    }

    pub(crate) fn write<E: Display>(
        &mut self,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    ) -> Result<(), Error> {
        let RowsWriter { cutter, groups, arranger } = self;
        for batch in batches {
            let failed =
                |error| Error::new(ErrorKind::Invalid, format!("reading the next batch failed: {error}"));
            let batch = batch.map_err(failed)?;
            match arranger {
                Some(arranger) => {
                    // Sorting expects the same columns in all batches.
                    cutter.check(&batch)?;
                    arranger.push(batch, |rows| groups.write_file(cutter, &rows))?;
                }
                None => cutter.cut(&batch, &mut |rows| groups.give(rows))?,
            }
        }
        match arranger {
            Some(arranger) => arranger.finish(|rows| groups.write_file(cutter, &rows))?,
            None => cutter.cut_rest(&mut |rows| groups.give(rows))?,
        }
        groups.write_all()?;
        groups.files.tell(0)
    }

    /// Returns the recipe by which the rows can be made again, if they have one.
    ///
    /// Errors: they are put in place of a lost table, and are not its rows.
    pub(crate) fn recipe(&self) -> Result<Option<Recipe>, Error> {
        let GroupsWriter { files, checksum, .. } = &self.groups;
        let Some(made_by) = &files.options.made_by else { return Ok(None) };
        let (kind, body) = (made_by.kind.clone(), made_by.body.clone());
        let recipe = Recipe { kind, rows: checksum.rows, checksum: checksum.value(), body };
        check_same_rows(made_by.lost.as_ref().map(|(_, recipe)| recipe), &recipe)?;
        Ok(Some(recipe))
    }

    /// Ends the last file. Without rows there is none.
    pub(crate) fn end(self) -> Result<NewFiles, Error> {
        let mut files = self.groups.files;
        files.end_file()?;
        Ok(files.new)
    }

    /// Ends the last file. Without rows there is one without any.
    pub(crate) fn end_with_file(mut self) -> Result<NewFiles, Error> {
        if self.groups.files.new.files.is_empty() {
            self.groups.files.begin_file()?;
        }
        self.end()
    }
}

impl GroupsWriter<'_> {
    /// Has a row group encoded, and writes those that are.
    fn give(&mut self, rows: GroupRows) -> Result<(), Error> {
        if self.files.is_full() {
            self.write_all()?;
            self.files.end_file()?;
        }
        let (position, encryption) = self.files.begin_file()?.reserve(&rows);
        self.encoders.give(Given { rows, encryption, position });
        self.write_while(GroupEncoders::is_full)
    }

    /// Writes rows into a file of their own.
    fn write_file(&mut self, cutter: &mut RowGroupEncoder, rows: &[RecordBatch]) -> Result<(), Error> {
        rows.iter().try_for_each(|batch| cutter.cut(batch, &mut |rows| self.give(rows)))?;
        cutter.cut_rest(&mut |rows| self.give(rows))?;
        self.write_all()?;
        self.files.end_file()
    }

    /// Writes all row groups that were given.
    fn write_all(&mut self) -> Result<(), Error> {
        self.write_while(|encoders| !encoders.is_idle())?;
        self.write_waiting()
    }

    /// Takes row groups that are encoded, and waits for others as long as `must_wait`. What has been taken is written
    /// before it waits, and as soon as it is long enough.
    fn write_while(&mut self, must_wait: impl Fn(&GroupEncoders) -> bool) -> Result<(), Error> {
        loop {
            let taken = match self.encoders.try_take()? {
                None if !must_wait(&self.encoders) => return Ok(()),
                None if !self.files.waiting.is_empty() => {
                    self.write_waiting()?;
                    continue;
                }
                None => self.encoders.take()?,
                taken => taken,
            };
            if let Some(Taken { group, checksum }) = taken {
                self.checksum.merge(checksum);
                self.files.waiting.push(group);
                if self.files.waiting.iter().map(|group| group.bytes.len()).sum::<usize>() >= WRITE_BYTES {
                    self.write_waiting()?;
                }
            }
        }
    }

    /// Writes the row groups that were taken.
    fn write_waiting(&mut self) -> Result<(), Error> {
        for group in self.files.write_waiting()? {
            self.encoders.give_back(group.bytes);
        }
        Ok(())
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

    /// Reports whether the next row group needs another file. It depends on nothing but the rows, so the same rows are
    /// divided into the same files.
    fn is_full(&self) -> bool {
        let reserved = self.file.as_ref().map(FileWriter::reserved).unwrap_or_default();
        reserved.plain_bytes >= FILE_BYTES_MAX
            || reserved.groups >= FILE_GROUPS_MAX
            || reserved.groups * self.schema.fields().len() >= FILE_CHUNKS_MAX
    }

    /// Writes the row groups that wait, and returns them.
    fn write_waiting(&mut self) -> Result<Vec<EncodedGroup>, Error> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(waiting);
        }
        self.begin_file()?.add(&waiting)?;
        self.written.rows += waiting.iter().map(|group| u64::from(group.group.rows)).sum::<u64>();
        self.written.bytes += waiting.iter().map(|group| group.bytes.len() as u64).sum::<u64>();
        self.tell(TOLD_EACH_NS)?;
        Ok(waiting)
    }

    /// Tells the function of the options what has been written, if that is new and so much time is over since the last
    /// time.
    fn tell(&mut self, pause_ns: u64) -> Result<(), Error> {
        let Some(progress) = &self.options.progress else { return Ok(()) };
        let now = session_of_pool(self.pool).host().now();
        let is_due = |(at, before): (MonoNs, Written)| {
            now.0.saturating_sub(at.0) >= pause_ns && before != self.written
        };
        if self.told.is_none_or(is_due) {
            self.told = Some((now, self.written));
            progress.tell(self.written)?;
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), Error> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let written = file.finish(Arc::clone(&self.schema))?;
        let index = self.new.next;
        let bounds = bounds_of(&written.groups, &self.bounded);
        check_partition(&self.arrangement, &self.schema, &self.bounded, &bounds)?;
        self.new.next += 1;
        self.new.files.push(DataFile {
            at: PartAt { commit: CommitId(0), index },
            added: 0,
            rows: written.rows,
            bytes: written.bytes,
            groups: written.groups.len() as u32,
            columns: 0,
            left_out: Vec::new(),
            salt: written.salt,
            bounds,
        });
        self.new.rows += written.rows;
        self.new.parts.push(UnlistedPart { index, file: written.file });
        Ok(())
    }
}
