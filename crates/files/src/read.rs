//! Reading a far file from any copy that answers.
//!
//! Invariant I7: a read returns bytes that the file holds, from a copy that has all writes, or an error.

use crate::encrypted_pages::EncryptedRead;
use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, FileState, Phase, RangeLock, ReadRange, hull};
use crate::leases::Waits;
use crate::node_batches::{Missed, NodeBatches, failure, span};
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::options::Protection;
use crate::plan::{FileMap, RangeLockKind, ReadPlan, Segment, pages_around};
use crate::published::Looked;
use crate::session_core::{Effort, TransferPatience};
use farpool_transport::ReadOp;
use std::ops::Range;
use std::sync::Arc;

/// Times that one read of a published file looks up where its bytes have moved, at most.
const REOPENS_MAX: u32 = 3;

/// Read under way that a single node answers.
pub(crate) struct NodeRead {
    pub(crate) lock: RangeLock<Arc<FileInner>>,
    /// Segments to read, in order, without gaps. For an encrypted file these are parts of its pages.
    pub(crate) segments: Vec<Segment<Arc<LeasedRegion>>>,
    /// Pages to read of an encrypted file, with their nonces and tags.
    pub(crate) encrypted: Option<EncryptedRead>,
    /// How long to wait for the node.
    pub(crate) patience: TransferPatience,
}

impl NodeRead {
    /// Returns how many bytes the node is asked for.
    pub(crate) fn bytes(&self) -> usize {
        let segments = self.encrypted.as_ref().map_or(&self.segments, |encrypted| &encrypted.segments);
        segments.iter().map(|segment| (segment.file.end - segment.file.start) as usize).sum()
    }
}

/// Reports whether an error concerns one node only, so that another copy may answer.
fn is_worth_another_copy(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable | ErrorKind::Tampered)
}

/// Reports whether bytes that could not be read may be at other nodes than this session knows.
pub(crate) fn is_elsewhere(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable)
}

/// Lets nodes be asked again that did not answer in a short time. They may be busy, and answer if they get more.
fn forgive(failed: &mut Vec<Missed>, hurried: &mut Vec<Arc<NodeLinks>>) {
    let hurried = std::mem::take(hurried);
    failed.retain(|(region, _)| !hurried.iter().any(|node| Arc::ptr_eq(node, &region.node)));
}

/// Segments to fetch from nodes, and ranges that only the local disk has, or that have to be computed.
type Plan = (Vec<Segment<Arc<LeasedRegion>>>, Vec<Range<u64>>);

impl FileInner {
    pub(crate) fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), Error> {
        // An empty range reads nothing, even behind the end of the file.
        let mut ranges: Vec<&mut ReadRange<'_>> =
            ranges.iter_mut().filter(|range| !range.into.is_empty()).collect();
        let hull = hull(ranges.iter().map(|range| (range.offset, range.into.len())));
        let check = |state: &mut FileState| {
            self.check_readable(&state.phase)?;
            if hull.end > state.map.length() && hull.start < hull.end {
                let message = format!(
                    "the range ends at byte {}, beyond the end of the file at {}",
                    hull.end,
                    state.map.length()
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            Ok(matches!(state.phase, Phase::Published(_)))
        };
        // A page can only be decrypted with its latest nonce and tag, so no write may run beside this read.
        let (kind, around) = match self.key {
            Some(_) => (RangeLockKind::ReadWhole, pages_around(hull.clone())),
            None => (RangeLockKind::Read, hull.clone()),
        };
        let (mut lock, is_published) = self.begin(kind, &around, check)?;
        let mut reopened = 0;
        let mut effort = match is_published && self.protection() != Protection::None {
            true => Effort::Rushed,
            false => Effort::Usual,
        };
        loop {
            match self.fetch(&mut ranges, effort) {
                Err(error) if effort == Effort::Rushed && is_elsewhere(&error) => {
                    drop(lock);
                    // Those that have the bytes get more time if there are no others.
                    effort = match self.look_for_copies(Waits::WhileItIsThere) {
                        Looked::Found => Effort::Usual,
                        Looked::InVain | Looked::IsGone => Effort::Patient,
                    };
                    (lock, _) = self.begin(kind, &around, check)?;
                }
                Err(error) if is_published && is_elsewhere(&error) && reopened < REOPENS_MAX => {
                    // The bytes may have moved to other nodes, or been rebuilt, under the same name.
                    reopened += 1;
                    drop(lock);
                    match error.kind() {
                        ErrorKind::Lost => self.reopen(&error)?,
                        _ if self.look_for_copies(Waits::Long) == Looked::Found => {}
                        _ => return Err(error),
                    }
                    effort = Effort::Usual;
                    (lock, _) = self.begin(kind, &around, check)?;
                }
                other => return other,
            }
        }
    }

    /// Begins a read that a single node can answer without waiting. `None` if the range needs more than that;
    /// [`Self::read_ranges`] then has to be used.
    ///
    /// The read does not hold off writers, because the caller may write before it takes the answer. Pages of an
    /// encrypted file are therefore decrypted as they were when the read began, and no write may be under way at that
    /// moment.
    pub(crate) fn begin_node_read(self: &Arc<Self>, range: Range<u64>) -> Option<NodeRead> {
        if range.is_empty() {
            return None;
        }
        let now = self.session.host().now();
        let rank =
            |region: &Arc<LeasedRegion>| (region.is_ours(now) && !region.node.is_suspect()).then_some(0);
        let mut state = self.state();
        self.check_readable(&state.phase).ok()?;
        if range.end > state.map.length() {
            return None;
        }
        let ReadPlan::Fetch { segments, bare } = state.map.plan_read(range.clone(), rank) else {
            return None;
        };
        let first = segments.first()?;
        let is_one_node =
            segments.iter().all(|segment| Arc::ptr_eq(&segment.region.node, &first.region.node));
        let bytes: u64 = segments.iter().map(|segment| segment.file.end - segment.file.start).sum();
        if !is_one_node || !bare.is_empty() || bytes < range.end - range.start {
            return None;
        }
        let (id, encrypted) = match self.key {
            Some(_) => {
                let read = EncryptedRead::of(&state.map, &segments)?;
                (state.try_read_whole(&read.file())?, Some(read))
            }
            None => (state.try_read(&range)?, None),
        };
        drop(state);
        let patience = match self.has_others(segments.iter(), &[]) {
            true => TransferPatience::Brief,
            false => TransferPatience::Full,
        };
        Some(NodeRead { lock: RangeLock::of(Arc::clone(self), id), segments, encrypted, patience })
    }

    /// Reads the ranges, from any copies that answer.
    pub(crate) fn fetch(&self, ranges: &mut [&mut ReadRange<'_>], effort: Effort) -> Result<(), Error> {
        let rushes = effort == Effort::Rushed;
        let mut failed: Vec<Missed> = Vec::new();
        let stripes = self.state().stripes.clone();
        // If there is a local disk or parity, a node that did not answer last time is left out at first.
        let mut asks_suspects = self.disk.is_none() && stripes.is_none();
        let mut patience = match effort {
            Effort::Rushed | Effort::Usual => TransferPatience::Brief,
            Effort::Patient => TransferPatience::Full,
        };
        let mut hurried: Vec<Arc<NodeLinks>> = Vec::new();
        loop {
            let plans = match self.plan_reads(ranges, &failed, asks_suspects) {
                Ok(plans) => plans,
                Err(_) if !hurried.is_empty() && !rushes => {
                    patience = TransferPatience::Full;
                    forgive(&mut failed, &mut hurried);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut from_nodes: Vec<(&Segment<Arc<LeasedRegion>>, &mut [u8])> = Vec::new();
            let mut from_elsewhere: Vec<(u64, &mut [u8])> = Vec::new();
            for (range, (segments, bare)) in ranges.iter_mut().zip(&plans) {
                let mut rest = &mut *range.into;
                let mut at = range.offset;
                let mut segments = segments.iter().peekable();
                let mut bare = bare.iter().peekable();
                loop {
                    let next_segment = segments.peek().map_or(u64::MAX, |segment| segment.file.start);
                    let next_bare = bare.peek().map_or(u64::MAX, |bare| bare.start);
                    let next = if next_segment < next_bare {
                        segments.next().map(|segment| (segment.file.clone(), Some(segment)))
                    } else {
                        bare.next().map(|bare| (bare.clone(), None))
                    };
                    let Some((file, segment)) = next else { break };
                    // The bytes between were never written, so they are zero.
                    let (gap, behind) = rest.split_at_mut((file.start - at) as usize);
                    gap.fill(0);
                    let (into, behind) = behind.split_at_mut((file.end - file.start) as usize);
                    rest = behind;
                    at = file.end;
                    match segment {
                        Some(segment) => from_nodes.push((segment, into)),
                        None => from_elsewhere.push((file.start, into)),
                    }
                }
                rest.fill(0);
            }
            let asked = from_nodes.iter().map(|(segment, _)| *segment);
            let this_time = match rushes || self.has_others(asked, &failed) {
                true => patience,
                false => TransferPatience::Full,
            };
            let missed = match &self.key {
                Some(key) => self.fetch_encrypted(key, from_nodes, this_time),
                None => self.fetch_plain(from_nodes, this_time),
            };
            if let Some((_, error)) = missed.iter().find(|(_, error)| !is_worth_another_copy(error)) {
                return Err(error.clone());
            }
            if missed.is_empty() {
                let got = match &stripes {
                    Some(stripes) => self.compute(stripes, from_elsewhere, &mut failed, patience),
                    None => self.fetch_from_disk(from_elsewhere),
                };
                match got {
                    // The bytes are nowhere else. A node that did not answer last time may have them.
                    Err(_) if !asks_suspects && !rushes => {
                        asks_suspects = true;
                        patience = TransferPatience::Full;
                        if stripes.is_some() {
                            // Those that did not answer while bytes were computed get more time as well.
                            let late =
                                failed.iter().filter(|(_, error)| error.kind() == ErrorKind::Unreachable);
                            hurried.extend(late.map(|(region, _)| Arc::clone(&region.node)));
                        }
                        forgive(&mut failed, &mut hurried);
                    }
                    other => return other,
                }
            }
            if this_time == TransferPatience::Brief {
                let late = missed.iter().filter(|(_, error)| error.kind() == ErrorKind::Unreachable);
                hurried.extend(late.map(|(region, _)| Arc::clone(&region.node)));
            }
            failed.extend(missed);
        }
    }

    /// Reports whether other nodes, or the disk, can answer for each node that these segments are read from.
    fn has_others<'s>(
        &self,
        segments: impl Iterator<Item = &'s Segment<Arc<LeasedRegion>>>,
        failed: &[Missed],
    ) -> bool {
        let mut asked = segments.peekable();
        if self.disk.is_some() || asked.peek().is_none() {
            return self.disk.is_some();
        }
        let state = self.state();
        if state.stripes.is_some() {
            return true;
        }
        let has_other = |segment: &Segment<Arc<LeasedRegion>>| {
            let is_good = |other: &Segment<Arc<LeasedRegion>>| {
                let node = &other.region.node;
                let has_failed = failed.iter().any(|(region, _)| Arc::ptr_eq(&region.node, node));
                !Arc::ptr_eq(node, &segment.region.node) && !has_failed && other.region.check_usable().is_ok()
            };
            let copies = state.map.copies_of(segment.file.clone());
            // The copies of an extent follow each other.
            copies.chunk_by(|one, next| one.file == next.file).all(|copies| copies.iter().any(is_good))
        };
        asked.all(has_other)
    }

    /// Reads segments of an unencrypted file. Returns the regions whose bytes did not come, with the reasons.
    pub(crate) fn fetch_plain(
        &self,
        segments: Vec<(&Segment<Arc<LeasedRegion>>, &mut [u8])>,
        patience: TransferPatience,
    ) -> Vec<Missed> {
        let mut by_node = NodeBatches::default();
        let mut asked = Vec::with_capacity(segments.len());
        for (segment, into) in segments {
            asked.push(&segment.region);
            by_node.add(&segment.region, ReadOp { span: span(segment), into });
        }
        let timeout_ms = self.session.base.transfer_timeout_ms(patience, by_node.bytes());
        let outcomes = by_node.read(&self.session, timeout_ms);
        let missed =
            |region: &Arc<LeasedRegion>| Some((Arc::clone(region), failure(&outcomes, region)?.clone()));
        asked.into_iter().filter_map(missed).collect()
    }

    fn fetch_from_disk(&self, ranges: Vec<(u64, &mut [u8])>) -> Result<(), Error> {
        for (offset, into) in ranges {
            // Ranges are left for the disk only if the file has one.
            if let Some(disk) = &self.disk {
                self.session.behind.read(disk, offset, into)?;
            }
        }
        Ok(())
    }

    /// Plans each range: segments to fetch, and ranges that only the disk has, or that have to be computed. Nodes that
    /// failed during this read are not asked again.
    ///
    /// Errors: the range is poisoned (its last write failed), or nobody has some of its bytes.
    fn plan_reads(
        &self,
        ranges: &[&mut ReadRange<'_>],
        failed: &[Missed],
        asks_suspects: bool,
    ) -> Result<Vec<Plan>, Error> {
        let rank = |region: &Arc<LeasedRegion>| {
            let has_failed = failed.iter().any(|(other, _)| Arc::ptr_eq(&other.node, &region.node));
            let is_suspect = region.node.is_suspect();
            let is_asked = !has_failed && region.check_usable().is_ok() && (asks_suspects || !is_suspect);
            is_asked.then_some(u32::from(is_suspect))
        };
        let state = self.state();
        let mut plans = Vec::with_capacity(ranges.len());
        for range in ranges.iter() {
            let file = range.offset..range.offset.saturating_add(range.into.len() as u64);
            match state.map.plan_read(file, rank) {
                ReadPlan::Poisoned(part) => {
                    let message = format!(
                        "the last write to bytes {} to {} failed; write them again",
                        part.start, part.end
                    );
                    return Err(Error::new(ErrorKind::Poisoned, message));
                }
                ReadPlan::Fetch { segments, bare } => {
                    if let (Some(missing), None, None) = (bare.first(), &self.disk, &state.stripes) {
                        return Err(self.nobody_has(&state.map, missing.clone(), failed));
                    }
                    plans.push((segments, bare));
                }
            }
        }
        Ok(plans)
    }

    /// Returns the error for a range that no copy can answer.
    fn nobody_has(&self, map: &FileMap<Arc<LeasedRegion>>, range: Range<u64>, failed: &[Missed]) -> Error {
        let copies = map.copies_of(range.clone());
        let answered = |segment: &&Segment<Arc<LeasedRegion>>| {
            failed.iter().any(|(other, _)| Arc::ptr_eq(&other.node, &segment.region.node))
        };
        if let Some(segment) = copies.iter().find(answered)
            && let Some((_, error)) =
                failed.iter().find(|(other, _)| Arc::ptr_eq(&other.node, &segment.region.node))
        {
            return error.clone();
        }
        let lost = copies.iter().find_map(|segment| segment.region.check_usable().err());
        lost.unwrap_or_else(|| {
            let message = format!("no copy of bytes {} to {} is left", range.start, range.end);
            Error::new(ErrorKind::Lost, message)
        })
    }
}
