//! Pages of a manifest in memory, encoded as they are in far files, and counts of what is read and written.

use farpool_encryption::SALT_BYTES;
use farpool_tables::Trailer;
use farpool_tables::manifest::{Entries, PageRef, Pages, Removed, Root};
use farpool_wire::codec::Cursor;
use farpool_wire::control::PartAt;
use farpool_wire::{CommitId, WireError};
use std::collections::{BTreeMap, VecDeque};

/// Pages that were read and written since the counts were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) read: u64,
    pub(super) written: u64,
    /// Bytes of the files of pages that were written.
    pub(super) written_bytes: u64,
}

/// Pages of the snapshots that are kept.
pub(super) struct MemoryPages {
    /// Root that says how bounds are encoded.
    root: Root,
    pages: BTreeMap<PartAt, Vec<u8>>,
    /// Parts that snapshots removed, the oldest first. A page is dropped once so many more snapshots have followed.
    removed: VecDeque<(u64, Vec<PartAt>)>,
    snapshots_kept: u64,
    snapshot: u64,
    /// Number of the next part of the commit.
    next: u32,
    counts: Counts,
}

/// Returns the length of a file of the manifest.
fn file_bytes(body: usize) -> u64 {
    (body + Trailer::BYTES) as u64
}

impl MemoryPages {
    pub(super) fn new(root: Root, snapshots_kept: u64) -> MemoryPages {
        let (pages, removed, counts) = (BTreeMap::new(), VecDeque::new(), Counts::default());
        MemoryPages { root, pages, removed, snapshots_kept, snapshot: 0, next: 0, counts }
    }

    /// Begins the commit of the next snapshot, whose parts have these numbers from `next` on. Returns the snapshot.
    pub(super) fn begin(&mut self, next: u32) -> u64 {
        self.snapshot += 1;
        self.next = next;
        self.snapshot
    }

    /// Returns the bytes of a root with these entries, as a file.
    pub(super) fn root_bytes(&self, entries: &Entries) -> u64 {
        let root = Root { snapshot: self.snapshot, entries: entries.clone(), ..self.root.clone() };
        let mut bytes = Vec::new();
        root.put_head(&mut bytes);
        root.entries.put(&root.bounded_columns(), &mut bytes);
        file_bytes(bytes.len())
    }

    /// Ends the commit. Drops pages that no snapshot has any more, and those that the commit itself has replaced.
    pub(super) fn end(&mut self, removed: Removed) {
        let commit = CommitId(self.snapshot);
        let (mut own, mut earlier) = (Vec::new(), Vec::new());
        for range in removed.ranges() {
            let parts = (range.first..=range.last).map(|index| PartAt { commit: range.commit, index });
            if range.commit == commit { own.extend(parts) } else { earlier.extend(parts) }
        }
        own.iter().for_each(|part| drop(self.pages.remove(part)));
        self.removed.push_back((self.snapshot, earlier));
        while self.removed.front().is_some_and(|(of, _)| of + self.snapshots_kept < self.snapshot) {
            let parts = self.removed.pop_front().map(|(_, parts)| parts).unwrap_or_default();
            parts.iter().for_each(|part| drop(self.pages.remove(part)));
        }
    }

    /// Gives the commit up: what it has written is dropped.
    pub(super) fn give_up(&mut self) {
        let commit = CommitId(self.snapshot);
        self.pages.retain(|at, _| at.commit != commit);
        self.snapshot -= 1;
    }

    /// Returns the bytes of the file of a page. 0 if it is not kept.
    pub(super) fn bytes_of(&self, at: PartAt) -> u64 {
        self.pages.get(&at).map_or(0, |page| file_bytes(page.len()))
    }

    /// Returns the counts, and sets them to zero.
    pub(super) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Returns the number of the pages that are kept, and the bytes of their files.
    pub(super) fn kept(&self) -> (u64, u64) {
        let bytes = self.pages.values().map(|page| file_bytes(page.len())).sum();
        (self.pages.len() as u64, bytes)
    }
}

impl Pages for MemoryPages {
    type Error = WireError;

    fn read(&mut self, page: &PageRef) -> Result<Entries, WireError> {
        let missing = WireError::Value { what: "a page that is not kept", found: page.at.index.into() };
        let bytes = self.pages.get(&page.at).ok_or(missing)?;
        self.counts.read += 1;
        let mut from = Cursor::new(bytes);
        let entries = Entries::take(&self.root.bounded_columns(), &mut from)?;
        from.finish()?;
        Ok(entries)
    }

    fn write(&mut self, entries: Entries) -> Result<PageRef, WireError> {
        let at = PartAt { commit: CommitId(self.snapshot), index: self.next };
        self.next += 1;
        let mut bytes = Vec::new();
        entries.put(&self.root.bounded_columns(), &mut bytes);
        self.counts.written += 1;
        self.counts.written_bytes += file_bytes(bytes.len());
        self.pages.insert(at, bytes);
        let (height, totals) = (entries.height(), entries.totals());
        Ok(PageRef { at, added: self.snapshot, salt: [0; SALT_BYTES], height, totals })
    }
}
