//! Manifest of a table with snapshots: which data files a snapshot has. It is a tree of pages, of which the root is the
//! file that has the name of the table.
//!
//! The idea: a page never changes, so snapshots share pages. A commit writes the pages on the way from what it changes
//! to the root anew: two small files for an append, however large the table is.
//!
//! This module is pure: callers read and write pages.
//!
//! Invariant I10: these bytes come from nodes. Every count is checked against the bytes that are left before anything
//! is allocated.

use crate::arrangement::Arrangement;
use crate::column_type::{put_columns, take_columns};
use crate::layout::TableLayout;
use crate::schema_mapping::{BoundedColumns, FieldIds};
use arrow_schema::SchemaRef;
use farpool_encryption::SALT_BYTES;
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::PartAt;
use farpool_wire::{TableId, WireError};
use std::sync::Arc;

mod data_file;
mod removed;
mod replacing;

pub use crate::bounds::BOUNDED_COLUMNS_MAX;
pub use data_file::DataFile;
pub use removed::Removed;
pub use replacing::{last_files, replace};

/// Most entries of a page, and of the root.
pub const PAGE_ENTRIES_MAX: usize = 128;
/// Most levels of pages below the root: a table has up to 128^5 data files.
pub const HEIGHT_MAX: u8 = 4;

/// Salt of an encrypted file of a table.
pub type Salt = [u8; SALT_BYTES];

/// Page of a manifest, as the page above knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Part.
    pub at: PartAt,
    /// First snapshot that has it.
    pub added: u64,
    /// Salt of the page; zeros if the table is not encrypted.
    pub salt: Salt,
    /// Height of the page: the number of levels of pages below it. It is that of all pages beside it, so it is not
    /// stored for each. A page that has another height is not the one that was meant, and might lead to itself.
    pub height: u8,
    /// Sums over the data files below it.
    pub totals: Totals,
}

/// Sums over data files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of data files.
    pub files: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Number of row groups.
    pub groups: u64,
}

/// Entries of a page, or of the root.
#[derive(Clone, Debug, PartialEq)]
pub enum Entries {
    /// Data files.
    Files(Vec<DataFile>),
    /// Pages, all of the same height: the number of levels below them, which is 0 for a page of data files.
    Pages(u8, Vec<PageRef>),
}

/// Root of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Root {
    /// Id of the table.
    pub table: TableId,
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Columns in their stored types.
    pub schema: SchemaRef,
    /// Ids of the columns, and of those of the data files.
    pub field_ids: FieldIds,
    /// Layout of the rows that are written from now on.
    pub layout: TableLayout,
    /// Columns whose bounds are kept, by their numbers in the schema.
    pub bounded: Vec<u16>,
    /// Partitions and order of the rows.
    pub arrangement: Arrangement,
    /// Data files, or pages with them.
    pub entries: Entries,
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Totals>>(of: I) -> Totals {
        of.fold(Totals::default(), |sum, one| Totals {
            files: sum.files.saturating_add(one.files),
            rows: sum.rows.saturating_add(one.rows),
            bytes: sum.bytes.saturating_add(one.bytes),
            groups: sum.groups.saturating_add(one.groups),
        })
    }
}

impl Entries {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        match self {
            Entries::Files(files) => files.len(),
            Entries::Pages(_, pages) => pages.len(),
        }
    }

    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of levels of pages below: 0 for data files.
    pub fn height(&self) -> u8 {
        match self {
            Entries::Files(_) => 0,
            Entries::Pages(below, _) => below.saturating_add(1),
        }
    }

    /// Returns the sums over all data files below.
    pub fn totals(&self) -> Totals {
        match self {
            Entries::Files(files) => files.iter().map(DataFile::totals).sum(),
            Entries::Pages(_, pages) => pages.iter().map(|page| page.totals).sum(),
        }
    }

    /// Appends the encoded entries.
    pub fn put(&self, columns: &BoundedColumns, out: &mut Vec<u8>) {
        match self {
            Entries::Files(files) => {
                0u8.put(out);
                (files.len() as u32).put(out);
                columns.put(out);
                files.iter().for_each(|file| file.put(columns, out));
            }
            Entries::Pages(height, pages) => {
                (height + 1).put(out);
                (pages.len() as u32).put(out);
                for PageRef { at, added, salt, totals, .. } in pages {
                    at.put(out);
                    added.put(out);
                    salt.put(out);
                    totals.files.put(out);
                    totals.rows.put(out);
                    totals.bytes.put(out);
                    totals.groups.put(out);
                }
            }
        }
    }

    /// Decodes entries. Bounds become those of `columns`, whichever were bounded when the entries were written.
    pub fn take(columns: &BoundedColumns, from: &mut Cursor<'_>) -> Result<Entries, WireError> {
        let height = u8::take(from)?;
        if height > HEIGHT_MAX {
            return Err(WireError::Value { what: "the height of a page", found: height.into() });
        }
        let count = u32::take(from)?;
        if count as usize > PAGE_ENTRIES_MAX {
            let (found, max) = (count.into(), PAGE_ENTRIES_MAX as u64);
            return Err(WireError::TooMany { what: "entries of a page", found, max });
        }
        let Some(height) = height.checked_sub(1) else {
            let written = BoundedColumns::take(BOUNDED_COLUMNS_MAX, from)?;
            let file = |_| DataFile::take(&written, columns, from);
            return Ok(Entries::Files((0..count).map(file).collect::<Result<_, _>>()?));
        };
        let page = |_| {
            Ok(PageRef {
                at: PartAt::take(from)?,
                added: u64::take(from)?,
                salt: Salt::take(from)?,
                height,
                totals: Totals {
                    files: u64::take(from)?,
                    rows: u64::take(from)?,
                    bytes: u64::take(from)?,
                    groups: u64::take(from)?,
                },
            })
        };
        Ok(Entries::Pages(height, (0..count).map(page).collect::<Result<_, WireError>>()?))
    }
}

impl Root {
    /// Returns the columns whose bounds are kept.
    pub fn bounded_columns(&self) -> BoundedColumns {
        BoundedColumns::of(&self.schema, &self.field_ids, &self.bounded)
    }

    /// Appends the encoded root without its entries.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        self.table.put(out);
        self.snapshot.put(out);
        put_columns(&self.schema, out);
        self.field_ids.put(out);
        matches!(self.layout, TableLayout::Rows).put(out);
        (self.bounded.len() as u8).put(out);
        self.bounded.iter().for_each(|column| column.put(out));
        self.arrangement.put(out);
        let Totals { files, rows, bytes, groups } = self.entries.totals();
        [files, rows, bytes, groups].iter().for_each(|total| total.put(out));
    }

    /// Decodes a root up to its entries, and its totals.
    pub fn take_head(from: &mut Cursor<'_>) -> Result<(Root, Totals), WireError> {
        let (table, snapshot) = (TableId::take(from)?, u64::take(from)?);
        let schema: SchemaRef = Arc::new(take_columns(from)?);
        let field_ids = FieldIds::take(schema.fields().len(), from)?;
        let layout = if bool::take(from)? { TableLayout::Rows } else { TableLayout::Columns };
        let count = u8::take(from)?;
        if usize::from(count) > BOUNDED_COLUMNS_MAX {
            let (found, max) = (count.into(), BOUNDED_COLUMNS_MAX as u64);
            return Err(WireError::TooMany { what: "columns with bounds", found, max });
        }
        let mut bounded = Vec::with_capacity(count.into());
        for _ in 0..count {
            let column = u16::take(from)?;
            if usize::from(column) >= schema.fields().len() {
                return Err(WireError::Value { what: "a column with bounds", found: column.into() });
            }
            bounded.push(column);
        }
        let arrangement = Arrangement::take(schema.fields().len(), &bounded, from)?;
        let totals = Totals {
            files: u64::take(from)?,
            rows: u64::take(from)?,
            bytes: u64::take(from)?,
            groups: u64::take(from)?,
        };
        let entries = Entries::Files(Vec::new());
        let root = Root { table, snapshot, schema, field_ids, layout, bounded, arrangement, entries };
        Ok((root, totals))
    }
}

/// Reader and writer of the pages of a manifest.
pub trait Pages {
    /// Error of reading or writing.
    type Error;

    /// Returns the entries of a page.
    fn read(&mut self, page: &PageRef) -> Result<Entries, Self::Error>;

    /// Returns the entries of several pages, in their order. It may read them at once.
    fn read_all(&mut self, pages: &[PageRef]) -> Result<Vec<Entries>, Self::Error> {
        pages.iter().map(|page| self.read(page)).collect()
    }

    /// Writes a page and returns what the page above keeps of it.
    fn write(&mut self, entries: Entries) -> Result<PageRef, Self::Error>;
}

/// Adds data files behind those of a manifest. Returns its new entries.
pub fn append<P: Pages>(
    entries: &Entries,
    files: Vec<DataFile>,
    pages: &mut P,
    removed: &mut Removed,
) -> Result<Entries, P::Error> {
    if files.is_empty() {
        return Ok(entries.clone());
    }
    let level = append_below(entries.clone(), files, pages, removed)?;
    under_one(level, pages)
}

/// Returns the entries above pages of one height: a level with several pages gets one above it.
fn under_one<P: Pages>(mut level: Vec<Entries>, pages: &mut P) -> Result<Entries, P::Error> {
    loop {
        if level.len() == 1
            && let Some(only) = level.pop()
        {
            return Ok(only);
        }
        let height = match level.first() {
            Some(Entries::Pages(height, _)) => height + 1,
            _ => 0,
        };
        let refs = level.into_iter().map(|entries| pages.write(entries)).collect::<Result<Vec<_>, _>>()?;
        level = chunks(refs).map(|refs| Entries::Pages(height, refs)).collect();
    }
}

/// Adds data files behind those of a page. Returns the entries of the page and of those that follow it: at least one
/// page, and all but the last are full.
fn append_below<P: Pages>(
    entries: Entries,
    files: Vec<DataFile>,
    pages: &mut P,
    removed: &mut Removed,
) -> Result<Vec<Entries>, P::Error> {
    match entries {
        Entries::Files(mut all) => {
            all.extend(files);
            Ok(chunks(all).map(Entries::Files).collect())
        }
        Entries::Pages(height, mut all) => {
            let last = match all.pop() {
                Some(last) => {
                    let entries = pages.read(&last)?;
                    removed.push(last.at, last.added);
                    entries
                }
                None if height > 0 => Entries::Pages(height - 1, Vec::new()),
                None => Entries::Files(Vec::new()),
            };
            for entries in append_below(last, files, pages, removed)? {
                all.push(pages.write(entries)?);
            }
            Ok(chunks(all).map(|refs| Entries::Pages(height, refs)).collect())
        }
    }
}

/// Divides entries into pages: at least one.
fn chunks<T>(all: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let (mut all, mut is_first) = (all.into_iter(), true);
    std::iter::from_fn(move || {
        let page: Vec<T> = all.by_ref().take(PAGE_ENTRIES_MAX).collect();
        (std::mem::take(&mut is_first) || !page.is_empty()).then_some(page)
    })
}

/// Changes data files of a manifest: `change` returns what takes the place of each, if anything. Pages without a change
/// stay. Returns the new entries.
pub fn rewrite<P: Pages>(
    entries: &Entries,
    pages: &mut P,
    removed: &mut Removed,
    change: &mut impl FnMut(&DataFile) -> Option<DataFile>,
) -> Result<Entries, P::Error> {
    match entries {
        Entries::Files(files) => {
            let mut kept = Vec::with_capacity(files.len());
            for file in files {
                let next = change(file);
                if next.as_ref().is_none_or(|next| next.at != file.at) {
                    removed.push(file.at, file.added);
                }
                kept.extend(next);
            }
            Ok(Entries::Files(kept))
        }
        Entries::Pages(height, refs) => {
            let mut kept = Vec::with_capacity(refs.len());
            for (page, before) in refs.iter().zip(pages.read_all(refs)?) {
                let after = rewrite(&before, pages, removed, change)?;
                if after == before {
                    kept.push(page.clone());
                    continue;
                }
                removed.push(page.at, page.added);
                if !after.is_empty() {
                    kept.push(pages.write(after)?);
                }
            }
            // No page is without entries.
            Ok(if kept.is_empty() { Entries::Files(Vec::new()) } else { Entries::Pages(*height, kept) })
        }
    }
}

/// Calls `each` with every page and every data file, in the order of the rows.
pub fn walk<P: Pages>(
    entries: &Entries,
    pages: &mut P,
    each: &mut impl FnMut(Walked<'_>),
) -> Result<(), P::Error> {
    match entries {
        Entries::Files(files) => files.iter().for_each(|file| each(Walked::File(file))),
        Entries::Pages(_, refs) => {
            for (page, below) in refs.iter().zip(pages.read_all(refs)?) {
                each(Walked::Page(page));
                walk(&below, pages, each)?;
            }
        }
    }
    Ok(())
}

/// Part of a manifest that [`walk`] has come to.
#[derive(Clone, Copy, Debug)]
pub enum Walked<'a> {
    /// Page. What lies below it follows.
    Page(&'a PageRef),
    /// Data file.
    File(&'a DataFile),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Statistics;
    use arrow_schema::{DataType, Field as ArrowField, Schema};
    use farpool_operators::Value;
    use farpool_wire::CommitId;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Pages in memory.
    #[derive(Default)]
    pub(super) struct InMemory {
        pages: BTreeMap<PartAt, Entries>,
        pub(super) commit: u64,
        pub(super) next: u32,
        pub(super) written: usize,
    }

    impl Pages for InMemory {
        type Error = ();

        fn read(&mut self, page: &PageRef) -> Result<Entries, ()> {
            let entries = self.pages.get(&page.at).cloned().ok_or(())?;
            assert_eq!((entries.height(), entries.totals()), (page.height, page.totals));
            Ok(entries)
        }

        fn write(&mut self, entries: Entries) -> Result<PageRef, ()> {
            assert!((1..=PAGE_ENTRIES_MAX).contains(&entries.len()), "{}", entries.len());
            let at = PartAt { commit: CommitId(self.commit), index: self.next };
            self.next += 1;
            self.written += 1;
            let (height, totals) = (entries.height(), entries.totals());
            self.pages.insert(at, entries);
            Ok(PageRef { at, added: self.commit, salt: [0; SALT_BYTES], height, totals })
        }
    }

    pub(super) fn file(commit: u64, index: u32) -> DataFile {
        DataFile {
            at: PartAt { commit: CommitId(commit), index },
            added: commit,
            rows: 10,
            bytes: 1_000,
            groups: 1,
            columns: 0,
            left_out: Vec::new(),
            salt: [0; SALT_BYTES],
            bounds: vec![None],
        }
    }

    pub(super) fn files(entries: &Entries, pages: &mut InMemory) -> Vec<PartAt> {
        let mut files = Vec::new();
        walk(entries, pages, &mut |walked| {
            if let Walked::File(file) = walked {
                files.push(file.at);
            }
        })
        .expect("the pages are there");
        files
    }

    pub(super) fn parts(entries: &Entries, pages: &mut InMemory) -> BTreeSet<PartAt> {
        let mut parts = BTreeSet::new();
        let mut add = |walked: Walked<'_>| {
            parts.insert(match walked {
                Walked::File(file) => file.at,
                Walked::Page(page) => page.at,
            });
        };
        walk(entries, pages, &mut add).expect("the pages are there");
        parts
    }

    #[test]
    fn append_writes_as_much_for_the_ten_thousandth_file_as_for_the_two_hundredth() {
        let mut pages = InMemory::default();
        let mut entries = Entries::Files(Vec::new());
        for commit in 1..=20_000 {
            (pages.commit, pages.next, pages.written) = (commit, 1, 0);
            entries = append(&entries, vec![file(commit, 0)], &mut pages, &mut Removed::default())
                .expect("in memory");
            assert!(pages.written <= 4, "{} pages for file {commit}", pages.written);
            assert!(entries.len() <= PAGE_ENTRIES_MAX);
        }
        assert_eq!(
            entries.totals(),
            Totals { files: 20_000, rows: 200_000, bytes: 20_000_000, groups: 20_000 }
        );
        let all: Vec<PartAt> = (1..=20_000).map(|commit| file(commit, 0).at).collect();
        assert_eq!(files(&entries, &mut pages), all);
    }

    /// A list of files is the model. After each change, what the manifest has, and what it had and has no more, are
    /// those of the list.
    fn agrees_with_a_list(steps: Vec<(u16, u8)>) {
        let mut pages = InMemory::default();
        let mut entries = Entries::Files(Vec::new());
        let mut model: Vec<PartAt> = Vec::new();
        for (commit, (count, kind)) in (1..).zip(steps) {
            (pages.commit, pages.next) = (commit, u32::from(count));
            let mut removed = Removed::default();
            let before = parts(&entries, &mut pages);
            if kind < 3 {
                let added: Vec<DataFile> = (0..u32::from(count)).map(|index| file(commit, index)).collect();
                model.extend(added.iter().map(|file| file.at));
                entries = append(&entries, added, &mut pages, &mut removed).expect("in memory");
            } else {
                let stays = |at: &PartAt| !(at.index + at.commit.0 as u32).is_multiple_of(u32::from(kind));
                model.retain(stays);
                let mut change = |file: &DataFile| stays(&file.at).then(|| file.clone());
                entries = rewrite(&entries, &mut pages, &mut removed, &mut change).expect("in memory");
            }
            assert_eq!(files(&entries, &mut pages), model);
            let after = parts(&entries, &mut pages);
            let gone: BTreeSet<PartAt> = before.difference(&after).copied().collect();
            let mut told = BTreeSet::new();
            for range in removed.ranges() {
                let part = |index| PartAt { commit: range.commit, index };
                told.extend((range.first..=range.last).map(part));
                assert_eq!(range.added, range.commit.0);
            }
            assert_eq!(told, gone, "what was removed");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn manifest_has_the_files_of_a_list_that_changes_in_the_same_way(
            steps in proptest::collection::vec((0u16..600, 0u8..6), 1..25)
        ) {
            agrees_with_a_list(steps);
        }

        #[test]
        fn bytes_that_are_no_root_are_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut from = Cursor::new(&bytes);
            if let Ok((root, _)) = Root::take_head(&mut from) {
                let _ = Entries::take(&root.bounded_columns(), &mut from);
            }
        }
    }

    #[test]
    fn manifest_of_which_all_files_go_has_no_page() {
        let (mut pages, mut removed) = (InMemory::default(), Removed::default());
        let all = (0..3 * PAGE_ENTRIES_MAX as u32).map(|index| file(1, index)).collect();
        let full = append(&Entries::Files(Vec::new()), all, &mut pages, &mut removed).expect("in memory");
        assert_eq!(full.height(), 1);
        let written = pages.written;
        let none = rewrite(&full, &mut pages, &mut removed, &mut |_| None).expect("in memory");
        let none = append(&none, Vec::new(), &mut pages, &mut removed).expect("in memory");
        assert_eq!((none, pages.written), (Entries::Files(Vec::new()), written));
    }

    #[test]
    fn root_and_pages_are_read_as_they_were_written() {
        let columns = vec![
            ArrowField::new("id", DataType::Int64, false),
            ArrowField::new("name", DataType::Utf8, true),
        ];
        let bounds = Statistics {
            min: Value::Integer(-5),
            max: Value::Integer(7),
            is_min_truncated: false,
            is_max_truncated: false,
            has_nan: false,
        };
        let left_out = vec![0, 2, 3];
        let data =
            DataFile { bounds: vec![Some(bounds), None], salt: [7; SALT_BYTES], left_out, ..file(3, 4) };
        let page = PageRef {
            at: PartAt { commit: CommitId(9), index: 1 },
            added: 2,
            salt: [1; SALT_BYTES],
            height: 0,
            totals: Totals { files: 5, rows: 6, bytes: 7, groups: 8 },
        };
        let high = PageRef { height: HEIGHT_MAX - 1, ..page.clone() };
        for entries in [
            Entries::Files(Vec::new()),
            Entries::Files(vec![data; PAGE_ENTRIES_MAX]),
            Entries::Pages(0, vec![page]),
            Entries::Pages(HEIGHT_MAX - 1, vec![high.clone(), high]),
        ] {
            let root = Root {
                table: TableId(11),
                snapshot: 12,
                schema: Arc::new(Schema::new(columns.clone())),
                field_ids: FieldIds { next: 9, lists: vec![vec![0, 8], vec![4, 2, 0]], own: 0 },
                layout: TableLayout::Columns,
                bounded: vec![0, 1],
                arrangement: Arrangement { partition_by: vec![1], sort_by: vec![0] },
                entries,
            };
            let mut bytes = Vec::new();
            root.put_head(&mut bytes);
            root.entries.put(&root.bounded_columns(), &mut bytes);
            let mut from = Cursor::new(&bytes);
            let (mut read, totals) = Root::take_head(&mut from).expect("a root");
            assert_eq!(totals, root.entries.totals());
            read.entries = Entries::take(&root.bounded_columns(), &mut from).expect("entries");
            from.finish().expect("nothing is left over");
            assert_eq!(read, root);
            for bytes in [&bytes[..bytes.len() - 1], &bytes[..bytes.len() / 2]] {
                let mut from = Cursor::new(bytes);
                let taken = Root::take_head(&mut from).and_then(|(root, _)| {
                    Entries::take(&root.bounded_columns(), &mut from)?;
                    Ok(())
                });
                assert!(taken.and_then(|()| from.finish()).is_err() || root.entries.is_empty());
            }
        }
    }
}
