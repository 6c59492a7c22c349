//! Reads and writes of encrypted files. Whole pages are encrypted before they leave this process and decrypted when
//! they come back. The reasons are in docs/decisions/0008-encrypted-scratch.md.

use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, ReadRange, WriteRange, WriteRun};
use crate::node_batches::{Missed, NodeBatches, failure, span};
use crate::node_links::LeasedRegion;
use crate::plan::{
    Allocation, ExtentCopy, FileMap, PAGE_BYTES, PageError, PageKey, PagePlace, PageTag, PageTags, RangeSet,
    Segment, Snapshot, pages_around,
};
use crate::session::Session;
use crate::session_core::{Effort, TransferPatience};
use farpool_transport::{ReadOp, WriteOp};
use std::borrow::Cow;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = PAGE_BYTES as u64;

/// Ciphertext of a write for one copy of an extent.
pub(crate) struct EncryptedSegment<'p> {
    pub(crate) segment: &'p Segment<Arc<LeasedRegion>>,
    /// Ciphertext of the segment.
    pub(crate) bytes: Vec<u8>,
    /// Nonces and tags that will decrypt it.
    pub(crate) tags: Vec<Option<PageTag>>,
}

/// Returns the location that the first page of a segment is encrypted for.
fn place(region: &LeasedRegion, offset: u64) -> PagePlace {
    PagePlace {
        incarnation: region.node.info.incarnation,
        region: region.region,
        epoch: region.epoch,
        // A region has fewer than 2^32 pages.
        page: (offset / PAGE) as u32,
    }
}

fn of_page_error(error: PageError, region: &LeasedRegion) -> Error {
    match error {
        PageError::Tampered { .. } | PageError::NeverEncrypted { .. } => {
            let name = &region.node.info.name;
            Error::new(
                ErrorKind::Tampered,
                format!("node {name} returned bytes that differ from those written: {error}"),
            )
            .at_node(name)
        }
        other => Error::new(ErrorKind::Refused, other.to_string()),
    }
}

/// Read of whole pages during which writes may begin. Nonces and tags are those of when the read began, so it returns
/// the pages as they were then, or fails.
pub(crate) struct EncryptedRead {
    /// Segments in order, without gaps.
    pub(crate) segments: Vec<Segment<Arc<LeasedRegion>>>,
    tags: Vec<Vec<Option<PageTag>>>,
    /// Value of [`FileMap::version`] for these pages when the read began. It changes when a write to one of them
    /// begins.
    version: u64,
}

/// Reason why received pages could not be decrypted.
pub(crate) enum DecryptError {
    /// A write began meanwhile.
    Overtaken,
    /// The node answered with other bytes than were written.
    Tampered(Error),
}

impl EncryptedRead {
    /// Prepares to read segments that follow each other without gaps and that nobody is writing now. `None` if a copy
    /// has left the file's map.
    pub(crate) fn of(
        map: &FileMap<Arc<LeasedRegion>>,
        segments: &[Segment<Arc<LeasedRegion>>],
    ) -> Option<EncryptedRead> {
        let segments: Vec<_> = segments.iter().map(around).collect();
        let tags = segments.iter().map(|segment| map.load_tags(segment)).collect::<Option<_>>()?;
        let version = map.version(&(segments.first()?.file.start..segments.last()?.file.end));
        Some(EncryptedRead { segments, tags, version })
    }

    /// Returns the range of the file that the pages cover.
    pub(crate) fn file(&self) -> Range<u64> {
        let first = self.segments.first().map_or(0, |segment| segment.file.start);
        first..self.segments.last().map_or(first, |segment| segment.file.end)
    }
}

/// Buffers that want bytes of the pages of one read operation.
struct Wanted<'i> {
    parts: Vec<(Range<u64>, &'i mut [u8])>,
    /// Buffer in which the pages are decrypted. Empty if a single part wants all of them; its own buffer is used then.
    room: Vec<u8>,
}

impl Wanted<'_> {
    fn room(&mut self) -> &mut [u8] {
        match &mut self.parts[..] {
            [(_, into)] if self.room.is_empty() => into,
            _ => &mut self.room,
        }
    }

    /// Copies to each part its bytes of the decrypted pages.
    fn hand_out(self, pages: &Range<u64>) {
        for (part, into) in self.parts.into_iter().filter(|_| !self.room.is_empty()) {
            into.copy_from_slice(&self.room[within(&part, pages)]);
        }
    }
}

impl FileInner {
    /// Decrypts the bytes of a read, before its range lock is released.
    pub(crate) fn decrypt_read(&self, read: &EncryptedRead, bytes: &mut [u8]) -> Result<(), DecryptError> {
        let Some(key) = &self.key else { return Ok(()) };
        let mut rest = bytes;
        for (segment, tags) in read.segments.iter().zip(&read.tags) {
            let (pages, behind) = rest.split_at_mut((segment.file.end - segment.file.start) as usize);
            rest = behind;
            if let Err(error) = key.decrypt(place(&segment.region, segment.offset), tags, pages) {
                // A write that began since may have reached the node first. Then the node is not to blame.
                if self.state().map.version(&read.file()) != read.version {
                    return Err(DecryptError::Overtaken);
                }
                return Err(DecryptError::Tampered(self.session.bar_tampering(segment, error)));
            }
        }
        Ok(())
    }

    /// Encrypts the pages that runs of writes produce, once for each copy that gets them. `sent` lists the copies of
    /// each run.
    pub(crate) fn encrypt_pages<'p>(
        &self,
        key: &PageKey,
        runs: &[WriteRun<'_>],
        sent: &[Vec<&'p Segment<Arc<LeasedRegion>>>],
    ) -> Result<Vec<EncryptedSegment<'p>>, Error> {
        let plain = self.plain_pages(runs)?;
        let mut encrypted = Vec::with_capacity(sent.iter().map(Vec::len).sum());
        for ((run, plain), segments) in runs.iter().zip(&plain).zip(sent) {
            for &segment in segments {
                let file = within(&segment.file, &run.file);
                let mut bytes = vec![0; file.len()];
                let mut tags = vec![None; file.len() / PAGE_BYTES];
                key.encrypt(place(&segment.region, segment.offset), &plain[file], &mut bytes, &mut tags)
                    .map_err(|error| of_page_error(error, &segment.region))?;
                encrypted.push(EncryptedSegment { segment, bytes, tags });
            }
        }
        Ok(encrypted)
    }

    /// Returns the plaintext of whole pages as it will be after the write. Pages that are written only in part are
    /// fetched first, for all runs at once.
    fn plain_pages<'r>(&self, runs: &[WriteRun<'r>]) -> Result<Vec<Cow<'r, [u8]>>, Error> {
        let prepared = |run: &WriteRun<'r>| match run.ranges.last() {
            // This range covers the whole run and is written last, so nothing else of the run survives.
            Some(last) if last.file() == run.file => Cow::Borrowed(last.from),
            _ => Cow::Owned(vec![0; (run.file.end - run.file.start) as usize]),
        };
        let mut plain: Vec<Cow<'r, [u8]>> = runs.iter().map(prepared).collect();
        let mut kept = Vec::new();
        for (run, plain) in runs.iter().zip(&mut plain) {
            let Cow::Owned(plain) = plain else { continue };
            let mut written = RangeSet::default();
            run.ranges.iter().for_each(|range| written.insert(range.file()));
            let (mut rest, mut at) = (&mut plain[..], run.file.start);
            for covered in written.overlaps(run.file.clone()).chain(iter::once(run.file.end..run.file.end)) {
                let (into, behind) = rest.split_at_mut((covered.start - at) as usize);
                if !into.is_empty() {
                    kept.push(ReadRange { offset: at, into });
                }
                rest = &mut behind[(covered.end - covered.start) as usize..];
                at = covered.end;
            }
        }
        if !kept.is_empty() {
            self.fetch(&mut kept.iter_mut().collect::<Vec<_>>(), Effort::Usual)?;
        }
        for (run, plain) in runs.iter().zip(&mut plain) {
            let Cow::Owned(plain) = plain else { continue };
            for range in run.ranges {
                plain[within(&range.file(), &run.file)].copy_from_slice(range.from);
            }
        }
        Ok(plain)
    }

    /// Reads segments of an encrypted file, each with the whole pages around it. Returns the regions whose bytes did
    /// not come, with the reasons. Pages of one node are decrypted while other nodes still answer.
    pub(crate) fn fetch_encrypted(
        &self,
        key: &PageKey,
        segments: Vec<(&Segment<Arc<LeasedRegion>>, &mut [u8])>,
        patience: TransferPatience,
    ) -> Vec<Missed> {
        let (pages, mut wanted) = together(segments);
        // The range lock of this read keeps the pages from being encrypted again meanwhile.
        let tags: Vec<_> = {
            let state = self.state();
            pages.iter().map(|segment| state.map.load_tags(segment)).collect()
        };
        let mut decrypted: Vec<Result<(), Error>> = vec![Ok(()); pages.len()];
        let mut by_node = NodeBatches::default();
        for (segment, wanted) in pages.iter().zip(&mut wanted) {
            by_node.add(&segment.region, ReadOp { span: span(segment), into: wanted.room() });
        }
        let timeout_ms = self.session.base.transfer_timeout_ms(patience, by_node.bytes());
        let outcomes = by_node.read_and(&self.session, timeout_ms, |node, ops| {
            let all = pages.iter().zip(&tags).zip(&mut decrypted);
            let answered = all.filter(|((segment, _), _)| Arc::ptr_eq(&segment.region.node, node));
            for (((segment, tags), decrypted), op) in answered.zip(ops) {
                *decrypted = match tags {
                    Some(tags) => self.session.decrypt_pages(key, segment, tags, op.into),
                    // A write elsewhere in the extent missed this copy, which was then dropped from the map.
                    None => Err(Error::lost(&node.info, "its copy has left the file")),
                };
            }
        });
        let mut missed = Vec::new();
        for ((segment, wanted), decrypted) in pages.iter().zip(wanted).zip(decrypted) {
            let failed = failure(&outcomes, &segment.region).cloned().or(decrypted.err());
            match failed {
                None => wanted.hand_out(&segment.file),
                Some(error) => missed.push((Arc::clone(&segment.region), error)),
            }
        }
        missed
    }

    /// Copies the written bytes of an extent to another location, encrypted again for it.
    pub(crate) fn copy_encrypted(
        &self,
        key: &PageKey,
        snapshot: &Snapshot<Arc<LeasedRegion>>,
        source: Option<&ExtentCopy<Arc<LeasedRegion>>>,
        allocation: &Allocation<Arc<LeasedRegion>>,
    ) -> Result<PageTags, Error> {
        let session = &*self.session;
        let mut tags = PageTags::new(allocation.bytes);
        for (file, runs) in by_pages(&snapshot.written) {
            let within = file.start - snapshot.range.start;
            let mut plain = vec![0; (file.end - file.start) as usize];
            let first = (within / PAGE) as u32;
            match (source, &self.disk) {
                (Some(copy), _) => {
                    let from = Segment {
                        copy: copy.id,
                        region: Arc::clone(&copy.allocation.region),
                        offset: copy.allocation.offset + within,
                        file: file.clone(),
                    };
                    let mut read = NodeBatches::default();
                    read.add(&from.region, ReadOp { span: span(&from), into: &mut plain });
                    if let Some(error) =
                        failure(&read.read(session, session.options().request_timeout_ms), &from.region)
                    {
                        return Err(error.clone());
                    }
                    let mut run_tags = vec![None; plain.len() / PAGE_BYTES];
                    copy.tags.load(first, &mut run_tags);
                    session.decrypt_pages(key, &from, &run_tags, &mut plain)?;
                }
                (None, Some(disk)) => {
                    for run in runs {
                        let into = (run.start - file.start) as usize..(run.end - file.start) as usize;
                        session.behind.read(disk, run.start, &mut plain[into])?;
                    }
                }
                (None, None) => return Err(Error::new(ErrorKind::Lost, "no copy is left to copy from")),
            }
            let mut bytes = vec![0; plain.len()];
            let mut run_tags = vec![None; plain.len() / PAGE_BYTES];
            key.encrypt(
                place(&allocation.region, allocation.offset + within),
                &plain,
                &mut bytes,
                &mut run_tags,
            )
            .map_err(|error| of_page_error(error, &allocation.region))?;
            let to = Segment {
                copy: Default::default(),
                region: Arc::clone(&allocation.region),
                offset: allocation.offset + within,
                file,
            };
            let mut write = NodeBatches::default();
            write.add(&to.region, WriteOp { span: span(&to), from: &bytes });
            if let Some(error) = failure(&write.write(session, &|_, _| true), &to.region) {
                return Err(error.clone());
            }
            tags.store(first, &run_tags);
        }
        Ok(tags)
    }
}

impl Session {
    /// Decrypts the pages of a segment. A node that answered with other bytes than were written is not used any more.
    fn decrypt_pages(
        &self,
        key: &PageKey,
        segment: &Segment<Arc<LeasedRegion>>,
        tags: &[Option<PageTag>],
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        key.decrypt(place(&segment.region, segment.offset), tags, bytes)
            .map_err(|error| self.bar_tampering(segment, error))
    }

    /// Bars a node whose pages could not be decrypted though nobody was writing them. Returns the error.
    fn bar_tampering(&self, segment: &Segment<Arc<LeasedRegion>>, error: PageError) -> Error {
        if matches!(error, PageError::Tampered { .. }) {
            segment.region.node.bar("it returned bytes that differ from those written");
            self.leases.lose_regions(&segment.region.node);
        }
        of_page_error(error, &segment.region)
    }
}

/// Groups byte runs, sorted by their starts, with the whole pages around them. Runs that share a page are in one group,
/// because a page is encrypted as a whole.
fn by_pages(runs: &[Range<u64>]) -> Vec<(Range<u64>, Vec<Range<u64>>)> {
    let mut pages: Vec<(Range<u64>, Vec<Range<u64>>)> = Vec::new();
    for run in runs {
        let around = pages_around(run.clone());
        match pages.last_mut() {
            Some((pages, together)) if around.start < pages.end => {
                pages.end = pages.end.max(around.end);
                together.push(run.clone());
            }
            _ => pages.push((around, vec![run.clone()])),
        }
    }
    pages
}

/// Groups the ranges of a batch into runs of whole pages, in file order. Ranges that share a page are in one run, in
/// the order in which they must be written.
pub(crate) fn page_runs<'r>(ranges: &'r mut [WriteRange<'r>]) -> Vec<WriteRun<'r>> {
    let mut files: Vec<Range<u64>> = ranges.iter().map(WriteRange::file).collect();
    files.sort_unstable_by_key(|file| file.start);
    let pages = by_pages(&files);
    let run_of = |range: &WriteRange<'_>| pages.partition_point(|(pages, _)| pages.end <= range.offset);
    ranges.sort_by_key(run_of);
    let same_run = ranges.chunk_by(|one, other| run_of(one) == run_of(other));
    pages.iter().zip(same_run).map(|((file, _), ranges)| WriteRun { file: file.clone(), ranges }).collect()
}

/// Merges segments that follow one another in the same pages, so that these are read once.
fn together<'i>(
    segments: Vec<(&Segment<Arc<LeasedRegion>>, &'i mut [u8])>,
) -> (Vec<Segment<Arc<LeasedRegion>>>, Vec<Wanted<'i>>) {
    let mut pages: Vec<Segment<Arc<LeasedRegion>>> = Vec::with_capacity(segments.len());
    let mut wanted: Vec<Wanted<'i>> = Vec::with_capacity(segments.len());
    for (segment, into) in segments {
        let whole = around(segment);
        match pages.last_mut().zip(wanted.last_mut()) {
            Some((last, wanted)) if last.copy == whole.copy && last.file.contains(&whole.file.start) => {
                last.file.end = last.file.end.max(whole.file.end);
                wanted.parts.push((segment.file.clone(), into));
            }
            _ => {
                pages.push(whole);
                wanted.push(Wanted { parts: vec![(segment.file.clone(), into)], room: Vec::new() });
            }
        }
    }
    for (segment, wanted) in pages.iter().zip(&mut wanted) {
        if !matches!(&wanted.parts[..], [(part, _)] if *part == segment.file) {
            wanted.room = vec![0; (segment.file.end - segment.file.start) as usize];
        }
    }
    (pages, wanted)
}

/// Returns where `part` lies in a range that contains it.
pub(crate) fn within(part: &Range<u64>, of: &Range<u64>) -> Range<usize> {
    (part.start - of.start) as usize..(part.end - of.start) as usize
}

/// Extends a segment to the whole of its first and last page. Extents begin and end at pages.
fn around(segment: &Segment<Arc<LeasedRegion>>) -> Segment<Arc<LeasedRegion>> {
    let file = pages_around(segment.file.clone());
    Segment { offset: segment.offset - (segment.file.start - file.start), file, ..segment.clone() }
}
