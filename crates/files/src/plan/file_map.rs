//! `FileMap`: where the bytes of a file are, how many copies there are, and which bytes can be read.
//!
//! The idea: extents are reused by the files of a session without being wiped. The bytes of an extent mean nothing
//! until this file has written them. The map therefore keeps the ranges that were never written, which read as zeros,
//! and the ranges whose last write failed, which cannot be read until they are written again.
//!
//! An extent has up to two copies in far memory. It may have none if a local disk holds its bytes. Every listed copy is
//! *in sync*: a copy that missed a write is dropped from the map before that write is acknowledged, and never returns.
//! Any listed copy may therefore answer a read.
//!
//! Invariants: I3 (only bytes that this file wrote are planned to be read), I7 (only copies in sync are read).

use super::page_encryption::{PAGE_BYTES, PageTag, PageTags};
use super::range_set::RangeSet;
use super::{Allocation, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
use farpool_wire::mutant;
use std::ops::Range;

/// Id of a copy of an extent. Unique for the life of the map, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(u64);

/// Map of one file, over regions identified by `R`.
#[derive(Clone, Debug)]
pub struct FileMap<R> {
    extents: Vec<Extent<R>>,
    length: u64,
    unwritten: RangeSet,
    poisoned: RangeSet,
    next_copy: u64,
    /// Version of the extent that was written last.
    version: u64,
    /// Value of [`FileMap::layout`]: changes when bytes cannot be read any more from where they were.
    layout: u64,
}

/// Run of bytes that were written and can be read, with one copy of it.
#[derive(Clone, Debug)]
pub struct Readable<R> {
    /// Range of the file.
    pub file: Range<u64>,
    /// The copy, beginning at the first byte of the range.
    pub allocation: Allocation<R>,
    /// True if this is the only copy and it may be written.
    pub is_only: bool,
}

/// Copy of an extent.
#[derive(Clone, Debug)]
pub struct ExtentCopy<R> {
    /// Id of the copy.
    pub id: CopyId,
    /// Location of the copy.
    pub allocation: Allocation<R>,
    /// True if a write whose result is unknown may still arrive here. The copy is then not written any more, and its
    /// location is not used again.
    pub is_quarantined: bool,
    /// Nonces and tags of its pages, if the file is encrypted.
    pub tags: PageTags,
}

#[derive(Clone, Debug)]
struct Extent<R> {
    start: u64,
    bytes: u32,
    copies: Vec<ExtentCopy<R>>,
    /// Version, changed when a write begins. No extent of this file has had the same version before.
    version: u64,
}

impl<R> Extent<R> {
    fn end(&self) -> u64 {
        self.start + u64::from(self.bytes)
    }

    fn is_hit(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.end()
    }
}

/// Segment of a file inside one copy of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment<R> {
    /// Copy that holds the segment.
    pub copy: CopyId,
    /// Region that the copy lies in.
    pub region: R,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Range of the file.
    pub file: Range<u64>,
}

/// Plan to read a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPlan<R> {
    /// Part of the range whose last write failed. The range cannot be read.
    Poisoned(Range<u64>),
    /// The range is read from these places; every other byte of it is zero.
    Fetch {
        /// One segment for each run of written bytes that has a readable copy, in order.
        segments: Vec<Segment<R>>,
        /// Written bytes that no copy in far memory has, in order.
        bare: Vec<Range<u64>>,
    },
}

/// State of an extent when the making of a new copy began.
#[derive(Clone, Debug)]
pub struct Snapshot<R> {
    /// Range of the extent in the file.
    pub range: Range<u64>,
    /// Parts of the range that were written and can be read.
    pub written: Vec<Range<u64>>,
    /// Copies of the extent.
    pub copies: Vec<ExtentCopy<R>>,
    version: u64,
}

impl<R: Clone> Default for FileMap<R> {
    fn default() -> Self {
        FileMap {
            extents: Vec::new(),
            length: 0,
            unwritten: RangeSet::default(),
            poisoned: RangeSet::default(),
            next_copy: 1,
            version: 0,
            layout: 0,
        }
    }
}

impl<R: Clone> FileMap<R> {
    /// Makes the map of a published file, of the length and the copies of each extent: all extents are written.
    pub fn sealed(extents: impl IntoIterator<Item = (u32, Vec<Allocation<R>>)>) -> Self {
        let mut map = FileMap::default();
        for (bytes, copies) in extents {
            map.push(bytes, copies);
        }
        map.length = map.allocated();
        map.unwritten = RangeSet::default();
        map
    }

    /// Ends the file at `length`. What the map has behind it is parity.
    pub fn end_at(&mut self, length: u64) {
        self.length = length;
    }

    /// Returns the length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns how many bytes have an extent. May be more or less than the length.
    pub fn allocated(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// Returns the size of the next extent to allocate so that `end` bytes have one. `None` if they have. Extents
    /// double with the file up to their maximum, so a small file takes little memory and a large one has few extents.
    pub fn next_extent_bytes(&self, end: u64) -> Option<u32> {
        let allocated = self.allocated();
        if end <= allocated {
            return None;
        }
        let wanted = (end - allocated).max(allocated).next_power_of_two();
        Some(wanted.clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX) as u32)
    }

    /// Adds an extent at the end with one copy for each of `allocations`. There are none if a local disk is to hold it.
    pub fn push(&mut self, bytes: u32, allocations: Vec<Allocation<R>>) {
        let start = self.allocated();
        let copies = allocations.into_iter().map(|allocation| self.copy(allocation)).collect();
        self.version += 1;
        let extent = Extent { start, bytes, copies, version: self.version };
        self.unwritten.insert(start..extent.end());
        self.extents.push(extent);
    }

    fn copy(&mut self, allocation: Allocation<R>) -> ExtentCopy<R> {
        let id = CopyId(self.next_copy);
        self.next_copy += 1;
        let tags = PageTags::new(allocation.bytes);
        ExtentCopy { id, allocation, is_quarantined: false, tags }
    }

    /// Returns the layout number of the map. It changes whenever bytes cannot be read any more from where they were,
    /// because they moved or are gone. Conclusions drawn from the map before may then be wrong.
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// Replaces this map by another.
    pub fn replace(&mut self, map: FileMap<R>) {
        *self = FileMap { layout: self.layout + 1, ..map };
    }

    /// Returns all bytes that can be read, in order, each run with one copy. `rank` is as in [`Self::plan_read`].
    pub fn readable(&self, rank: impl Fn(&R) -> Option<u32>) -> Vec<Readable<R>> {
        let mut all = Vec::with_capacity(self.extents.len());
        for extent in &self.extents {
            for file in self.readable_in(extent.start..extent.end().min(self.length)) {
                if let Some(copy) = best(extent, &rank) {
                    let allocation = Allocation {
                        region: copy.allocation.region.clone(),
                        offset: copy.allocation.offset + (file.start - extent.start),
                        bytes: (file.end - file.start) as u32,
                    };
                    let is_only = extent.copies.len() == 1 && !copy.is_quarantined;
                    all.push(Readable { file, allocation, is_only });
                }
            }
        }
        all
    }

    /// Returns the parts of an allocated range that were written and can be read.
    fn readable_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut readable = Vec::new();
        for written in self.written(range) {
            let mut at = written.start;
            for poisoned in self.poisoned.overlaps(written.clone()) {
                if at < poisoned.start {
                    readable.push(at..poisoned.start);
                }
                at = poisoned.end;
            }
            if at < written.end {
                readable.push(at..written.end);
            }
        }
        readable
    }

    fn hit_mut(&mut self, range: &Range<u64>) -> &mut [Extent<R>] {
        let first = self.extents.partition_point(|extent| extent.end() <= range.start);
        let end = self.extents.partition_point(|extent| extent.start < range.end);
        &mut self.extents[first..end.max(first)]
    }

    fn hit(&self, range: &Range<u64>) -> &[Extent<R>] {
        let first = self.extents.partition_point(|extent| extent.end() <= range.start);
        let end = self.extents.partition_point(|extent| extent.start < range.end);
        &self.extents[first..end.max(first)]
    }

    /// Returns all copies of an allocated range. A write must go to each of them.
    pub fn copies_of(&self, range: Range<u64>) -> Vec<Segment<R>> {
        let hit = self.hit(&range).iter();
        hit.flat_map(|extent| extent.copies.iter().map(|copy| segment(extent, copy, &range))).collect()
    }

    /// Notes that a write of this range begins. Copies that are being made of its extents become out of date.
    pub fn begin_write(&mut self, range: &Range<u64>) {
        self.version += 1;
        let version = self.version;
        self.hit_mut(range).iter_mut().for_each(|extent| extent.version = version);
    }

    /// Returns a number that grows whenever a write to an extent of this range begins.
    pub fn version(&self, range: &Range<u64>) -> u64 {
        self.hit(range).iter().map(|extent| extent.version).max().unwrap_or(0)
    }

    /// Plans to read a range within the file's length. `rank` says how good a region is to read from: lower is better,
    /// and `None` means that it must not be used.
    pub fn plan_read(&self, range: Range<u64>, rank: impl Fn(&R) -> Option<u32>) -> ReadPlan<R> {
        if let Some(part) = self.poisoned.overlaps(range.clone()).next() {
            return ReadPlan::Poisoned(part);
        }
        let end = range.end.min(self.allocated());
        let (mut segments, mut bare) = (Vec::new(), Vec::new());
        for written in self.written(range.start..end) {
            for extent in self.hit(&written) {
                match best(extent, &rank) {
                    Some(copy) => segments.push(segment(extent, copy, &written)),
                    None => bare.push(clipped(extent, &written)),
                }
            }
        }
        ReadPlan::Fetch { segments, bare }
    }

    /// Returns the parts of an allocated range that were written.
    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if mutant!(UnwrittenRead) {
            return if range.is_empty() { Vec::new() } else { vec![range] };
        }
        let mut written = Vec::new();
        let mut at = range.start;
        for hole in self.unwritten.overlaps(range.start..range.end.max(range.start)) {
            if at < hole.start {
                written.push(at..hole.start);
            }
            at = hole.end;
        }
        if at < range.end {
            written.push(at..range.end);
        }
        written
    }

    /// Notes that a write of this range succeeded.
    pub fn wrote(&mut self, range: Range<u64>) {
        self.length = self.length.max(range.end);
        if !self.unwritten.is_empty() {
            self.unwritten.remove(range.clone());
        }
        if !self.poisoned.is_empty() {
            self.poisoned.remove(range);
        }
    }

    /// Notes that a range behind the end of the file was written, which the length does not include.
    pub fn wrote_behind(&mut self, range: Range<u64>) {
        self.unwritten.remove(range);
    }

    /// Removes the extents from `start` on, which lie behind the end of the file. Returns them.
    pub fn cut_off(&mut self, start: u64) -> Vec<Allocation<R>> {
        let mut freed = Vec::new();
        while self.extents.last().is_some_and(|extent| extent.start >= start) {
            freed.extend(self.extents.pop().into_iter().flat_map(locations));
        }
        self.unwritten.remove(start..u64::MAX);
        freed
    }

    /// Notes that a write of this range failed: it is unknown how much of it was stored. The length does not change
    /// (see [`Self::extend`]). Copies for which `may_arrive_late` is true are not written any more, because the
    /// connection broke before the answer and the write may still arrive.
    pub fn poison(&mut self, range: Range<u64>, may_arrive_late: impl Fn(CopyId) -> bool) {
        self.layout += 1;
        for extent in self.hit_mut(&range) {
            for copy in &mut extent.copies {
                copy.is_quarantined |= may_arrive_late(copy.id);
            }
        }
        if mutant!(NotPoisoned) {
            self.unwritten.remove(range);
            return;
        }
        self.poisoned.insert(range);
    }

    /// Notes that the file reaches at least to `end`.
    pub fn extend(&mut self, end: u64) {
        self.length = self.length.max(end);
    }

    /// Reports whether a write to this range would go to a copy that must not be written.
    pub fn is_quarantined(&self, range: Range<u64>) -> bool {
        self.hit(&range).iter().any(|extent| extent.copies.iter().any(|copy| copy.is_quarantined))
    }

    /// Removes a copy that is not in sync (has missed a write), or not wanted. `None` if it is not in the map any more.
    pub fn drop_copy(&mut self, id: CopyId) -> Option<ExtentCopy<R>> {
        let has = |extent: &&mut Extent<R>| extent.copies.iter().any(|copy| copy.id == id);
        let extent = self.extents.iter_mut().find(has)?;
        let index = extent.copies.iter().position(|copy| copy.id == id)?;
        self.layout += 1;
        Some(extent.copies.remove(index))
    }

    /// Removes every copy whose region is lost.
    pub fn drop_lost(&mut self, is_lost: impl Fn(&R) -> bool) {
        self.layout += 1;
        for extent in &mut self.extents {
            extent.copies.retain(|copy| !is_lost(&copy.allocation.region));
        }
    }

    /// Returns the start of the first extent at or after `from` for which `needs_work` is true.
    pub fn find_extent(&self, from: u64, needs_work: impl Fn(&[ExtentCopy<R>]) -> bool) -> Option<u64> {
        let first = self.extents.partition_point(|extent| extent.start < from);
        self.extents[first..].iter().find(|extent| needs_work(&extent.copies)).map(|extent| extent.start)
    }

    /// Returns the state of the extent that starts at `start`, for making another copy of it. `None` if there is no
    /// such extent any more.
    pub fn snapshot(&self, start: u64) -> Option<Snapshot<R>> {
        let index = self.extents.binary_search_by_key(&start, |extent| extent.start).ok()?;
        let extent = &self.extents[index];
        let range = extent.start..extent.end();
        let readable = self.readable_in(range.clone());
        Some(Snapshot { range, written: readable, copies: extent.copies.clone(), version: extent.version })
    }

    /// Adds a copy that was made from a snapshot. If the extent was written or truncated since, or has other copies, as
    /// when another repair was faster, the error returns the location of the copy.
    pub fn attach(
        &mut self,
        snapshot: &Snapshot<R>,
        allocation: Allocation<R>,
        tags: PageTags,
    ) -> Result<CopyId, Allocation<R>> {
        let copy = ExtentCopy { tags, ..self.copy(allocation) };
        let same = |extent: &&mut Extent<R>| {
            extent.start == snapshot.range.start
                && extent.end() == snapshot.range.end
                && (extent.version == snapshot.version || mutant!(StaleCopyTaken))
                && extent.copies.iter().map(|copy| copy.id).eq(snapshot.copies.iter().map(|copy| copy.id))
        };
        match self.extents.iter_mut().find(same) {
            Some(extent) => {
                let id = copy.id;
                extent.copies.push(copy);
                // A mapped write that took the old copy for the only one must not go on writing to that one alone.
                self.layout += 1;
                Ok(id)
            }
            None => Err(copy.allocation),
        }
    }

    /// Replaces regions by others with the same bytes.
    pub fn replace_regions(&mut self, replaced: impl Fn(&R) -> Option<R>) {
        self.layout += 1;
        for copy in self.extents.iter_mut().flat_map(|extent| &mut extent.copies) {
            if let Some(region) = replaced(&copy.allocation.region) {
                copy.allocation.region = region;
            }
        }
    }

    /// Replaces places by others with the same bytes. Returns those that were replaced.
    pub fn replace_places(
        &mut self,
        replaced: impl Fn(&Allocation<R>) -> Option<Allocation<R>>,
    ) -> Vec<Allocation<R>> {
        self.layout += 1;
        let mut left = Vec::new();
        for copy in self.extents.iter_mut().flat_map(|extent| &mut extent.copies) {
            if let Some(place) = replaced(&copy.allocation) {
                left.push(std::mem::replace(&mut copy.allocation, place));
            }
        }
        left
    }

    /// Returns the nonces and tags of the pages of a segment, which begins and ends with a page. `None` if its copy is
    /// not in the map any more.
    pub fn load_tags(&self, segment: &Segment<R>) -> Option<Vec<Option<PageTag>>> {
        let extent = self.hit(&segment.file).first()?;
        let copy = extent.copies.iter().find(|copy| copy.id == segment.copy)?;
        let mut tags = vec![None; (segment.file.end - segment.file.start) as usize / PAGE_BYTES];
        copy.tags.load(page_of(extent, segment), &mut tags);
        Some(tags)
    }

    /// Stores new nonces and tags for the pages of a segment.
    pub fn store_tags(&mut self, segment: &Segment<R>, tags: &[Option<PageTag>]) {
        for extent in self.extents.iter_mut().filter(|extent| extent.is_hit(&segment.file)) {
            let first = page_of(extent, segment);
            if let Some(copy) = extent.copies.iter_mut().find(|copy| copy.id == segment.copy) {
                copy.tags.store(first, tags);
            }
        }
    }

    /// Returns the ranges below the length that were never written.
    pub fn holes(&self) -> Vec<Range<u64>> {
        let mut holes: Vec<_> = self.unwritten.overlaps(0..self.length).collect();
        if self.length > self.allocated() {
            holes.push(self.allocated()..self.length);
        }
        holes
    }

    /// Reports whether any range cannot be read.
    pub fn is_poisoned(&self) -> bool {
        !self.poisoned.is_empty()
    }

    /// Sets the length. What is cut off is gone, and what is added reads as zeros. Returns the extents that are not
    /// needed any more.
    pub fn set_length(&mut self, length: u64) -> Vec<Allocation<R>> {
        let mut freed = Vec::new();
        if length < self.length {
            self.layout += 1;
            while self.extents.last().is_some_and(|extent| extent.start >= length) {
                freed.extend(self.extents.pop().into_iter().flat_map(locations));
            }
            let allocated = self.allocated();
            self.unwritten.remove(allocated..u64::MAX);
            self.poisoned.remove(length..u64::MAX);
            // The rest of the last extent holds old bytes. They must not reappear if the file grows again.
            let rest = length.min(allocated)..allocated;
            self.begin_write(&rest);
            if !mutant!(TruncatedBytesBack) {
                self.unwritten.insert(rest);
            }
        }
        self.length = length;
        freed
    }

    /// Returns the copies of every extent, in file order.
    pub fn extents(&self) -> impl Iterator<Item = (Range<u64>, &[ExtentCopy<R>])> {
        self.extents.iter().map(|extent| (extent.start..extent.end(), &extent.copies[..]))
    }

    /// Empties the map. Returns the extents that may be reused.
    pub fn clear(&mut self) -> Vec<Allocation<R>> {
        let extents = std::mem::take(&mut self.extents);
        self.replace(FileMap::default());
        extents.into_iter().flat_map(locations).collect()
    }
}

/// Returns the copy to read from. Equally good copies alternate from extent to extent, so that both nodes serve.
fn best<R>(extent: &Extent<R>, rank: impl Fn(&R) -> Option<u32>) -> Option<&ExtentCopy<R>> {
    let turn = (extent.start / EXTENT_BYTES_MAX) as usize;
    (0..extent.copies.len())
        .map(|index| &extent.copies[(index + turn) % extent.copies.len()])
        .filter_map(|copy| Some((rank(&copy.allocation.region)?, copy)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, copy)| copy)
}

/// Returns the page of an extent at which a segment of it begins.
fn page_of<R>(extent: &Extent<R>, segment: &Segment<R>) -> u32 {
    ((segment.file.start - extent.start) / PAGE_BYTES as u64) as u32
}

/// Returns the locations of an extent.
fn locations<R>(extent: Extent<R>) -> impl Iterator<Item = Allocation<R>> {
    extent.copies.into_iter().map(|copy| copy.allocation)
}

fn clipped<R>(extent: &Extent<R>, range: &Range<u64>) -> Range<u64> {
    range.start.max(extent.start)..range.end.min(extent.end())
}

fn segment<R: Clone>(extent: &Extent<R>, copy: &ExtentCopy<R>, range: &Range<u64>) -> Segment<R> {
    let file = clipped(extent, range);
    let offset = copy.allocation.offset + (file.start - extent.start);
    Segment { copy: copy.id, region: copy.allocation.region.clone(), offset, file }
}
