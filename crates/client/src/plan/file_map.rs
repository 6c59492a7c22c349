//! `FileMap`: which extent holds which bytes of a file, and which bytes mean anything.
//!
//! The idea: extents are recycled between the files of a session without being wiped, so an extent's bytes
//! mean nothing until this file has written them. The map therefore keeps the ranges not yet written, which
//! read as zeros, and those whose last write failed, which cannot be read at all until written anew.
//!
//! Invariant I3: no byte is ever planned to be read that this file did not write.

use super::range_set::RangeSet;
use super::{Cut, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
use std::ops::Range;

/// The map of one file over regions named by `R`.
#[derive(Clone, Debug)]
pub struct FileMap<R> {
    extents: Vec<Extent<R>>,
    length: u64,
    unwritten: RangeSet,
    poisoned: RangeSet,
}

#[derive(Clone, Debug)]
struct Extent<R> {
    start: u64,
    cut: Cut<R>,
    /// A write whose fate is unknown may still arrive here: neither written nor recycled until the region's
    /// lease ends.
    quarantined: bool,
}

impl<R> Extent<R> {
    fn end(&self) -> u64 {
        self.start + u64::from(self.cut.bytes)
    }
}

/// A run of file bytes inside one extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<R> {
    /// Which region.
    pub region: R,
    /// First byte in the region.
    pub offset: u64,
    /// The file bytes.
    pub file: Range<u64>,
}

/// How to read a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPlan<R> {
    /// Part of it was last written without success: this part.
    Poisoned(Range<u64>),
    /// Fetch the pieces; every other byte of the range is zero.
    Fetch(Vec<Piece<R>>),
}

impl<R: Clone> Default for FileMap<R> {
    fn default() -> Self {
        FileMap {
            extents: Vec::new(),
            length: 0,
            unwritten: RangeSet::default(),
            poisoned: RangeSet::default(),
        }
    }
}

impl<R: Clone> FileMap<R> {
    /// A map over extents that are all written: a published file.
    pub fn sealed(cuts: Vec<Cut<R>>) -> Self {
        let mut map = FileMap::default();
        for cut in cuts {
            map.push(cut);
        }
        map.length = map.allocated();
        map.unwritten = RangeSet::default();
        map
    }

    /// Bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that extents are cut for; may be more or less than the length.
    pub fn allocated(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// The next extent to cut so that `end` bytes have a place; nothing if they have. Extents double with
    /// the file up to their maximum: a small file takes little, a large one few.
    pub fn next_extent_bytes(&self, end: u64) -> Option<u32> {
        let allocated = self.allocated();
        if end <= allocated {
            return None;
        }
        let wanted = (end - allocated).max(allocated).next_power_of_two();
        Some(wanted.clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX) as u32)
    }

    /// Adds an extent at the end.
    pub fn push(&mut self, cut: Cut<R>) {
        let start = self.allocated();
        let extent = Extent { start, cut, quarantined: false };
        self.unwritten.insert(start..extent.end());
        self.extents.push(extent);
    }

    /// The pieces of an allocated range, in order.
    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece<R>> {
        let first = self.extents.partition_point(|extent| extent.end() <= range.start);
        let mut pieces = Vec::new();
        for extent in &self.extents[first..] {
            let file = range.start.max(extent.start)..range.end.min(extent.end());
            if file.is_empty() {
                break;
            }
            let offset = extent.cut.offset + (file.start - extent.start);
            pieces.push(Piece { region: extent.cut.region.clone(), offset, file });
        }
        pieces
    }

    /// How to read a range that lies within the file's length.
    pub fn plan_read(&self, range: Range<u64>) -> ReadPlan<R> {
        if let Some(part) = self.poisoned.overlaps(range.clone()).next() {
            return ReadPlan::Poisoned(part);
        }
        let end = range.end.min(self.allocated());
        let mut written = Vec::new();
        let mut at = range.start;
        for hole in self.unwritten.overlaps(range.start..end.max(range.start)) {
            if at < hole.start {
                written.extend(self.pieces(at..hole.start));
            }
            at = hole.end;
        }
        if at < end {
            written.extend(self.pieces(at..end));
        }
        ReadPlan::Fetch(written)
    }

    /// A write of this range succeeded.
    pub fn wrote(&mut self, range: Range<u64>) {
        self.length = self.length.max(range.end);
        if !self.unwritten.is_empty() {
            self.unwritten.remove(range.clone());
        }
        if !self.poisoned.is_empty() {
            self.poisoned.remove(range);
        }
    }

    /// A write of this range failed: nobody knows how much of it is there. Extents in whose region it may even
    /// arrive later (the connection broke before the answer) are put out of use.
    pub fn poison(&mut self, range: Range<u64>, may_arrive_late: impl Fn(&R) -> bool) {
        self.length = self.length.max(range.end);
        for extent in &mut self.extents {
            let is_hit = extent.start < range.end && range.start < extent.end();
            if is_hit && may_arrive_late(&extent.cut.region) {
                extent.quarantined = true;
            }
        }
        self.poisoned.insert(range);
    }

    /// Whether a write to this range would go to an extent that is out of use.
    pub fn is_quarantined(&self, range: Range<u64>) -> bool {
        self.extents
            .iter()
            .any(|extent| extent.quarantined && extent.start < range.end && range.start < extent.end())
    }

    /// Ranges below the length that were never written.
    pub fn holes(&self) -> Vec<Range<u64>> {
        let mut holes: Vec<_> = self.unwritten.overlaps(0..self.length).collect();
        if self.length > self.allocated() {
            holes.push(self.allocated()..self.length);
        }
        holes
    }

    /// Whether any range cannot be read.
    pub fn is_poisoned(&self) -> bool {
        !self.poisoned.is_empty()
    }

    /// Sets the length; what is cut off is gone, what is added reads as zeros. Returns extents not needed
    /// any more.
    pub fn set_length(&mut self, length: u64) -> Vec<Cut<R>> {
        let mut freed = Vec::new();
        if length < self.length {
            while self.extents.last().is_some_and(|extent| extent.start >= length) {
                freed
                    .extend(self.extents.pop().filter(|extent| !extent.quarantined).map(|extent| extent.cut));
            }
            let allocated = self.allocated();
            self.unwritten.remove(allocated..u64::MAX);
            self.poisoned.remove(length..u64::MAX);
            // What stays of the last extent holds old bytes: growing again must not bring them back.
            self.unwritten.insert(length.min(allocated)..allocated);
        }
        self.length = length;
        freed
    }

    /// Every extent in file order.
    pub fn cuts(&self) -> impl Iterator<Item = &Cut<R>> {
        self.extents.iter().map(|extent| &extent.cut)
    }

    /// Empties the map. Returns the extents that may be used again.
    pub fn clear(&mut self) -> Vec<Cut<R>> {
        let extents = std::mem::take(self).extents;
        extents.into_iter().filter(|extent| !extent.quarantined).map(|extent| extent.cut).collect()
    }
}
