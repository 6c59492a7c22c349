//! Snapshots of tables: reading and writing their manifests, and opening their files.
//!
//! The idea: a manifest is in small files, the root and its pages, and each ends like every file of a table.

use crate::arrangement::Arrangement;
use crate::bounds::{bounded_by_default, bounds_of};
use crate::far_table::FarTable;
use crate::footer::RowGroup;
use crate::layout::TableLayout;
use crate::manifest::{self, DataFile, Entries, PageRef, Pages, Root, Salt, Totals, Walked};
use crate::manifest_file::{decode_page, decode_root, encode_page, encode_root, needs_key};
use crate::names::file_name;
use crate::opened_files::{OpenedFile, no_table, open_file, open_files, read_end, read_ends};
use crate::schema_mapping::{FieldIds, FileColumns};
use arrow_schema::SchemaRef;
use farpool_encryption::{SALT_BYTES, TableKey};
use farpool_files::beneath::{
    OpenedSnapshot, Session, Unlisted, UnlistedPart, open_parts, open_snapshot, session_of_pool,
};
use farpool_files::{Error, ErrorKind, Pool, Protection};
use farpool_wire::control::PartAt;
use farpool_wire::{CommitId, FileId, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Snapshot of a table: its columns and its files. It does not end as long as this lives.
pub struct TableSnapshot {
    name: Arc<str>,
    pool: Pool,
    key: Option<TableKey>,
    opened: Arc<OpenedSnapshot>,
    /// Root of the manifest. Without the key of an encrypted table it has no entries.
    pub(crate) root: Root,
    totals: Totals,
    /// True if the table is encrypted, and there is no key.
    is_locked: bool,
}

/// Table as a commit finds it.
pub(crate) enum Found {
    /// It has snapshots.
    Snapshot(TableSnapshot),
    /// It is one file: its id, columns, layout, and how a manifest describes it, but for its part.
    OneFile(FileId, SchemaRef, TableLayout, manifest::DataFile),
}

/// Opens a table to change it.
pub(crate) fn find_table(pool: &Pool, name: &str, key: Option<&TableKey>) -> Result<Found, Error> {
    let opened = open_snapshot(session_of_pool(pool), &file_name(name)?, 0)?;
    if opened.at.table != TableId(0) {
        return TableSnapshot::of(pool, name, opened, key).map(Found::Snapshot);
    }
    let (schema, file) = open_file(opened.root.clone(), key)?;
    if file.is_encrypted && file.decryption.is_none() {
        return Err(needs_key());
    }
    let layout = match file.groups.first().and_then(RowGroup::rows_buffer) {
        Some(_) => TableLayout::Rows,
        None => TableLayout::Columns,
    };
    let data = DataFile {
        at: PartAt { commit: CommitId(0), index: 0 },
        added: 1,
        rows: file.groups.iter().map(|group| u64::from(group.rows)).sum(),
        bytes: file.file.length(),
        groups: file.groups.len() as u32,
        columns: 0,
        left_out: Vec::new(),
        salt: file.decryption.as_ref().map_or([0; SALT_BYTES], |decryption| decryption.salt),
        bounds: bounds_of(&file.groups, &bounded_by_default(&schema)),
    };
    Ok(Found::OneFile(opened.root_id, schema, layout, data))
}

impl Found {
    /// Returns the id of the file that has the name of the table.
    pub(crate) fn root_id(&self) -> FileId {
        match self {
            Found::Snapshot(of) => of.root_id(),
            Found::OneFile(file, ..) => *file,
        }
    }

    /// Returns the root of the snapshot; of a table of one file that of its first change, before the file is a part.
    pub(crate) fn root(&self) -> Root {
        match self {
            Found::Snapshot(of) => of.root.clone(),
            Found::OneFile(_, schema, layout, _) => root_of_one_file(Arc::clone(schema), *layout),
        }
    }
}

/// Returns the root on which the first change of a table of one file is based, without an id and without the file.
pub(crate) fn root_of_one_file(schema: SchemaRef, layout: TableLayout) -> Root {
    Root {
        table: TableId(0),
        snapshot: 0,
        field_ids: FieldIds::of_new_table(schema.fields().len()),
        bounded: bounded_by_default(&schema),
        arrangement: Arrangement::default(),
        schema,
        layout,
        entries: Entries::Files(Vec::new()),
    }
}

/// Opens a snapshot of a table with snapshots; 0: the latest.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table, or the snapshot has ended; [`ErrorKind::Invalid`] if the
/// table is one file, or if the key is wrong.
pub fn table_snapshot(
    pool: &Pool,
    name: &str,
    snapshot: u64,
    key: Option<&TableKey>,
) -> Result<TableSnapshot, Error> {
    let open = || described_snapshot(pool, name, snapshot, key)?.unlocked();
    open().map_err(|error: Error| error.during(format_args!("opening far table {name:?}")))
}

/// Finds a snapshot as [`table_snapshot`] does. An encrypted one can be described without its key.
pub(crate) fn described_snapshot(
    pool: &Pool,
    name: &str,
    snapshot: u64,
    key: Option<&TableKey>,
) -> Result<TableSnapshot, Error> {
    let opened = open_snapshot(session_of_pool(pool), &file_name(name)?, snapshot)?;
    if opened.at.table == TableId(0) {
        let message = "the table is one file, without snapshots; it has them once it is changed";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    TableSnapshot::described(pool, name, opened, key)
}

impl TableSnapshot {
    fn of(
        pool: &Pool,
        name: &str,
        opened: OpenedSnapshot,
        key: Option<&TableKey>,
    ) -> Result<TableSnapshot, Error> {
        TableSnapshot::described(pool, name, opened, key)?.unlocked()
    }

    fn unlocked(self) -> Result<TableSnapshot, Error> {
        if self.is_locked { Err(needs_key()) } else { Ok(self) }
    }

    fn described(
        pool: &Pool,
        name: &str,
        opened: OpenedSnapshot,
        key: Option<&TableKey>,
    ) -> Result<TableSnapshot, Error> {
        let read = read_end(&opened.root).and_then(|(trailer, bytes)| decode_root(trailer, &bytes, key));
        let (root, totals, is_locked) = read.map_err(|error| opened.cause_of(error))?;
        if (root.table, root.snapshot) != (opened.at.table, opened.at.snapshot) {
            return Err(no_table("its root is that of another snapshot".to_owned()));
        }
        let (name, pool, opened) = (name.into(), pool.clone(), Arc::new(opened));
        Ok(TableSnapshot { name, pool, key: key.cloned(), opened, root, totals, is_locked })
    }

    /// Opens all data files, as a table.
    pub fn open_all(&self) -> Result<FarTable, Error> {
        self.open(&self.files()?)
    }

    /// Returns the number of the snapshot.
    pub fn snapshot(&self) -> u64 {
        self.root.snapshot
    }

    /// Returns the number of the latest snapshot when this one was opened.
    pub fn latest(&self) -> u64 {
        self.opened.latest
    }

    /// Returns the columns in their stored types.
    pub fn schema(&self) -> &SchemaRef {
        &self.root.schema
    }

    /// Returns the sums over all files.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Reports whether it can only be described: it is encrypted, and there is no key.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Returns the columns whose values divide the rows into partitions.
    pub fn partition_by(&self) -> Vec<&str> {
        self.names_of(&self.root.arrangement.partition_by)
    }

    /// Returns the columns by which the rows of each file are sorted.
    pub fn sort_by(&self) -> Vec<&str> {
        self.names_of(&self.root.arrangement.sort_by)
    }

    fn names_of(&self, columns: &[u16]) -> Vec<&str> {
        let fields = self.root.schema.fields();
        columns
            .iter()
            .filter_map(|column| fields.get(usize::from(*column)))
            .map(|field| field.name().as_str())
            .collect()
    }

    /// Returns the id of the root.
    pub(crate) fn root_id(&self) -> FileId {
        self.opened.root_id
    }

    /// Returns a reader of the pages.
    pub(crate) fn pages(&self) -> PageReader<'_> {
        PageReader::of(&self.pool, &self.root, self.key.as_ref())
    }

    /// Returns the data files, in the order of their rows.
    ///
    /// Errors: [`ErrorKind::Closed`] if the snapshot has ended meanwhile; [`ErrorKind::Lost`] if bytes are lost.
    pub fn files(&self) -> Result<Vec<DataFile>, Error> {
        if self.is_locked {
            return Err(needs_key());
        }
        self.opened.check()?;
        let mut files = Vec::new();
        let mut add = |walked: Walked<'_>| {
            if let Walked::File(file) = walked {
                files.push(file.clone());
            }
        };
        let walked = manifest::walk(&self.root.entries, &mut self.pages(), &mut add);
        walked.map_err(|error| self.opened.cause_of(error))?;
        Ok(files)
    }

    /// Finds the columns of the table in a data file with these columns. `None` if they are not those that the manifest
    /// names.
    fn columns_of(&self, file: &DataFile, has: &SchemaRef) -> Option<FileColumns> {
        FileColumns::find(&self.root.schema, &self.root.field_ids, file.columns, has)
    }

    /// Opens some of the data files, as a table of their rows.
    ///
    /// Errors: [`ErrorKind::Closed`] if the snapshot has ended meanwhile; [`ErrorKind::Lost`] if bytes are lost.
    pub fn open(&self, files: &[DataFile]) -> Result<FarTable, Error> {
        self.opened.check()?;
        self.open_held(files).map_err(|error| self.opened.cause_of(error))
    }

    fn open_held(&self, files: &[DataFile]) -> Result<FarTable, Error> {
        let session = session_of_pool(&self.pool);
        let at: Vec<PartAt> = files.iter().map(|file| file.at).collect();
        let mut opened: Vec<OpenedFile> = Vec::with_capacity(files.len());
        // Most files have the columns of the one before them.
        let mut last: Option<(u16, SchemaRef, Arc<FileColumns>)> = None;
        let with_footers = open_files(session, self.root.table, &at, self.key.as_ref())?;
        for ((schema, mut file), known) in with_footers.into_iter().zip(files) {
            let salt = file.decryption.as_ref().map(|decryption| decryption.salt);
            file.left_out.clone_from(&known.left_out);
            let kept = (0u32..)
                .zip(&file.groups)
                .filter(|(number, _)| known.left_out.binary_search(number).is_err());
            let rows: u64 = kept.map(|(_, group)| u64::from(group.rows)).sum();
            let has_groups = file.groups.len() == known.groups as usize + known.left_out.len();
            let is_known = rows == known.rows && has_groups && salt.is_none_or(|salt| salt == known.salt);
            let columns = match &last {
                Some((list, of, columns)) if (*list, of) == (known.columns, &schema) => {
                    Some(Arc::clone(columns))
                }
                _ => self.columns_of(known, &schema).map(Arc::new),
            };
            let Some(columns) = columns.filter(|_| is_known) else {
                return Err(no_table("a file of it is not the one that its manifest names".to_owned()));
            };
            last = Some((known.columns, schema, Arc::clone(&columns)));
            let in_table = |group| columns.in_table(group, &self.root.schema);
            file.groups = file.groups.into_iter().map(in_table).collect();
            file.columns = columns;
            opened.push(file);
        }
        let table =
            FarTable::of_files(&self.name, Arc::clone(session), Arc::clone(&self.root.schema), opened)?;
        Ok(table.holding(Arc::clone(&self.opened)))
    }
}

/// Reader of the pages of a manifest.
pub(crate) struct PageReader<'a> {
    session: &'a Arc<Session>,
    key: Option<&'a TableKey>,
    root: &'a Root,
    /// Pages that were read with all others beside them. A manifest names each once.
    seen: BTreeSet<PartAt>,
}

impl<'a> PageReader<'a> {
    pub(crate) fn of(pool: &'a Pool, root: &'a Root, key: Option<&'a TableKey>) -> PageReader<'a> {
        PageReader { session: session_of_pool(pool), key, root, seen: BTreeSet::new() }
    }

    fn page(&self, page: &PageRef) -> Result<Entries, Error> {
        let missing = || no_table("a page of it is missing".to_owned());
        self.pages(std::slice::from_ref(page))?.pop().ok_or_else(missing)
    }

    /// Reads pages, all at once.
    fn pages(&self, pages: &[PageRef]) -> Result<Vec<Entries>, Error> {
        let parts: Vec<PartAt> = pages.iter().map(|page| page.at).collect();
        let files = open_parts(self.session, self.root.table, &parts)?;
        let ends = read_ends(self.session, &files)?;
        let read = pages.iter().zip(ends);
        read.map(|(page, (trailer, bytes))| decode_page(self.root, page, trailer, &bytes, self.key)).collect()
    }
}

impl Pages for PageReader<'_> {
    type Error = Error;

    fn read(&mut self, page: &PageRef) -> Result<Entries, Error> {
        self.page(page)
    }

    fn read_all(&mut self, pages: &[PageRef]) -> Result<Vec<Entries>, Error> {
        // A few pages that name each other again and again would stand for any number of files.
        if !pages.iter().all(|page| self.seen.insert(page.at)) {
            return Err(no_table("a page of it is named twice".to_owned()));
        }
        self.pages(pages)
    }

    fn write(&mut self, _: Entries) -> Result<PageRef, Error> {
        Err(Error::new(ErrorKind::ReadOnly, "a snapshot cannot be changed"))
    }
}

/// Reader and writer of the pages of a manifest that a commit changes.
pub(crate) struct PageWriter<'a> {
    pub(crate) reader: PageReader<'a>,
    pub(crate) pool: &'a Pool,
    pub(crate) commit: CommitId,
    /// Snapshot that the commit makes.
    pub(crate) snapshot: u64,
    /// Number of the next part of the commit.
    pub(crate) next: u32,
    pub(crate) protection: Option<Protection>,
    /// Pages that were written.
    pub(crate) written: Vec<UnlistedPart>,
    /// Entries of pages that were read or written.
    pub(crate) known: BTreeMap<PartAt, Entries>,
}

impl Pages for PageWriter<'_> {
    type Error = Error;

    fn read(&mut self, page: &PageRef) -> Result<Entries, Error> {
        if let Some(known) = self.known.get(&page.at) {
            return Ok(known.clone());
        }
        let entries = self.reader.page(page)?;
        self.known.insert(page.at, entries.clone());
        Ok(entries)
    }

    fn read_all(&mut self, pages: &[PageRef]) -> Result<Vec<Entries>, Error> {
        let unknown = pages.iter().filter(|page| !self.known.contains_key(&page.at));
        let unknown: Vec<PageRef> = unknown.cloned().collect();
        let read = self.reader.pages(&unknown)?;
        self.known.extend(unknown.iter().map(|page| page.at).zip(read));
        pages.iter().map(|page| self.read(page)).collect()
    }

    fn write(&mut self, entries: Entries) -> Result<PageRef, Error> {
        let at = PartAt { commit: self.commit, index: self.next };
        self.next += 1;
        let PageReader { key, root, .. } = self.reader;
        let lock = lock(self.pool, key)?;
        let bytes = encode_page(root, at, &entries, lock);
        let file = write_file(self.pool, self.protection, &bytes)?;
        self.written.push(UnlistedPart { index: at.index, file });
        let (height, totals) = (entries.height(), entries.totals());
        self.known.insert(at, entries);
        let salt = lock.map_or([0; SALT_BYTES], |(_, salt)| salt);
        Ok(PageRef { at, added: self.snapshot, salt, height, totals })
    }
}

/// Writes the root of a snapshot.
pub(crate) fn write_root(
    pool: &Pool,
    root: &Root,
    key: Option<&TableKey>,
    protection: Option<Protection>,
) -> Result<Unlisted, Error> {
    write_file(pool, protection, &encode_root(root, lock(pool, key)?))
}

/// Draws the salt of a file of an encrypted manifest.
fn lock<'k>(pool: &Pool, key: Option<&'k TableKey>) -> Result<Option<(&'k TableKey, Salt)>, Error> {
    let Some(key) = key else { return Ok(None) };
    let mut salt = [0; SALT_BYTES];
    let no_random = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
    session_of_pool(pool).host().random(&mut salt).map_err(no_random)?;
    Ok(Some((key, salt)))
}

/// Writes a file of a manifest. It gets its name from the commit.
fn write_file(pool: &Pool, protection: Option<Protection>, bytes: &[u8]) -> Result<Unlisted, Error> {
    let mut file = Unlisted::create(pool, "manifest".to_owned(), protection)?;
    file.append(bytes)?;
    file.complete();
    Ok(file)
}
