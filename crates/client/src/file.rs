//! Far files: bytes at offsets, striped over the regions of a session or of a published name.
//!
//! Two locks with two meanings. `map` is held to plan (which extents, what is unwritten) and while the file
//! grows. `bytes` is held shared while bytes move and exclusively by what recycles extents (truncate, delete, publish), so that no
//! copy ever runs into an extent that has become another file's.

use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
use crate::plan::{EXTENT_BYTES_MAX, FileMap, Group, Piece, ReadPlan};
use crate::session::{Session, answer_of};
use crate::stats::add;
use farpool_transport::{Link, LinkError, ReadOp, WriteOp};
use farpool_wire::control::{NamedExtent, Publish};
use farpool_wire::data::Span;
use farpool_wire::{Code, FileClass, List, Name, Reply, Request};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Bytes to read at an offset.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// First byte in the file.
    pub offset: u64,
    /// Filled whole, or the read is an error: a range must lie within the file.
    pub into: &'a mut [u8],
}

/// Bytes to write at an offset.
#[derive(Clone, Copy, Debug)]
pub struct WriteRange<'a> {
    /// First byte in the file.
    pub offset: u64,
    /// What to write.
    pub from: &'a [u8],
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Writable,
    /// No more writing; not yet (or not successfully) given to a name.
    Sealed(Vec<NamedExtent>),
    Published,
    Deleted,
}

pub(crate) struct FileInner {
    session: Arc<Session>,
    name: Mutex<String>,
    class: FileClass,
    group: Group,
    map: Mutex<FileMap<Arc<LeasedRegion>>>,
    bytes: RwLock<State>,
}

/// A handle on a far file. Handles are cheap, may be cloned and used from many threads at once.
#[derive(Clone)]
pub struct FarFile {
    inner: Arc<FileInner>,
}

/// The most a file may grow to: offsets beyond are taken for mistakes.
const FILE_BYTES_MAX: u64 = 1 << 50;

impl FarFile {
    pub(crate) fn create(session: Arc<Session>, name: String, class: FileClass, number: u64) -> FarFile {
        // A file that may be published has regions of its own: sealing takes whole regions.
        let group = if class == FileClass::Pinned { Group::File(number) } else { Group::Class(class) };
        let (map, bytes) = (Mutex::default(), RwLock::new(State::Writable));
        FarFile { inner: Arc::new(FileInner { session, name: Mutex::new(name), class, group, map, bytes }) }
    }

    pub(crate) fn published(
        session: Arc<Session>,
        name: String,
        class: FileClass,
        map: FileMap<Arc<LeasedRegion>>,
    ) -> FarFile {
        let group = Group::Class(class);
        let (map, bytes) = (Mutex::new(map), RwLock::new(State::Published));
        FarFile { inner: Arc::new(FileInner { session, name: Mutex::new(name), class, group, map, bytes }) }
    }

    pub(crate) fn same_file(&self, other: &FarFile) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.inner.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_name(&self, name: String) {
        *self.inner.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Its class.
    pub fn class(&self) -> FileClass {
        self.inner.class
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.inner.map().length()
    }

    /// Reads at `offset` until the buffer is full or the file ends. Returns the bytes read; those never
    /// written are zero.
    ///
    /// Errors: [`ErrorKind::Lost`] if a node that held some of them is gone, [`ErrorKind::Poisoned`] if the
    /// last write to some of them failed, [`ErrorKind::Closed`], [`ErrorKind::Unreachable`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let left = self.length().saturating_sub(offset);
        let count = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let into = &mut into[..count];
        self.read_batch(&mut [ReadRange { offset, into }])?;
        Ok(count)
    }

    /// Reads several ranges, each of which must lie within the file.
    pub fn read_batch(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), Error> {
        let inner = &*self.inner;
        let result = inner.read_ranges(ranges);
        let counters = &inner.session.counters;
        match &result {
            Ok(()) => {
                add(&counters.read_ops, ranges.len() as u64);
                add(&counters.bytes_read, ranges.iter().map(|range| range.into.len() as u64).sum());
            }
            Err(_) => add(&counters.failed_ops, 1),
        }
        result.map_err(|error| {
            let described = describe(ranges.iter().map(|range| (range.offset, range.into.len())));
            error.during(format_args!("reading {described} of far file {:?}", self.name()))
        })
    }

    /// Writes all of `from` at `offset`; the file grows if need be, and bytes between its end and `offset`
    /// read as zeros.
    ///
    /// Errors: [`ErrorKind::Exhausted`] if the pool is full, [`ErrorKind::Lost`], [`ErrorKind::ReadOnly`] on
    /// a published file, [`ErrorKind::Unreachable`]. After an error the range cannot be read until it is
    /// written anew; the rest of the file is as it was.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.write_batch(&[WriteRange { offset, from }])
    }

    /// Writes several ranges, in order.
    pub fn write_batch(&self, ranges: &[WriteRange<'_>]) -> Result<(), Error> {
        let inner = &*self.inner;
        let result = inner.write_ranges(ranges);
        let counters = &inner.session.counters;
        match &result {
            Ok(()) => {
                add(&counters.write_ops, ranges.len() as u64);
                add(&counters.bytes_written, ranges.iter().map(|range| range.from.len() as u64).sum());
            }
            Err(_) => add(&counters.failed_ops, 1),
        }
        result.map_err(|error| {
            let described = describe(ranges.iter().map(|range| (range.offset, range.from.len())));
            error.during(format_args!("writing {described} of far file {:?}", self.name()))
        })
    }

    /// Sets the length: cuts the end off, or adds zeros without taking memory for them.
    pub fn truncate(&self, length: u64) -> Result<(), Error> {
        check_end(length)?;
        let inner = &*self.inner;
        let state = inner.bytes.write().unwrap_or_else(PoisonError::into_inner);
        inner.check_writable(&state)?;
        let freed = inner.map().set_length(length);
        inner.session.give_back(freed);
        Ok(())
    }

    /// Frees its memory. Every handle answers [`ErrorKind::Closed`] from now on.
    pub(crate) fn delete(&self) {
        let inner = &*self.inner;
        let mut state = inner.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let freed = inner.map().clear();
        if *state == State::Writable {
            inner.session.give_back(freed);
        }
        *state = State::Deleted;
    }

    pub(crate) fn is_published(&self) -> bool {
        matches!(*self.inner.bytes.read().unwrap_or_else(PoisonError::into_inner), State::Published)
    }

    pub(crate) fn group(&self) -> Group {
        self.inner.group
    }

    /// Seals the file and gives it to its name: one transaction of the broker's catalog. Any number of
    /// clients may then open and read it; it outlives this session.
    pub(crate) fn publish(&self, replace: bool) -> Result<(), Error> {
        let inner = &*self.inner;
        let shown = self.name();
        let name =
            Name::new(shown.clone()).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        if inner.class != FileClass::Pinned {
            let message =
                format!("far file {shown:?} is of class {}; only pinned files are published", inner.class);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut state = inner.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let extents = match &*state {
            State::Writable => inner.seal()?,
            State::Sealed(extents) => extents.clone(),
            State::Published => {
                return Err(Error::new(ErrorKind::ReadOnly, format!("{shown:?} is published")));
            }
            State::Deleted => return Err(closed()),
        };
        // From here on the bytes are sealed, whatever the broker says; the transaction may be tried again.
        *state = State::Sealed(extents.clone());
        let extents = List::new(extents)
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("too fragmented to publish: {error}")))?;
        let proof = inner.session.proof();
        let publish = Publish {
            session: proof.session,
            secret: proof.secret,
            name,
            class: inner.class,
            replace,
            extents,
        };
        answer_of!(inner.session.ask(&Request::Publish(publish))?, Publish)?;
        *state = State::Published;
        Ok(())
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the far file was deleted")
}

fn check_end(end: u64) -> Result<(), Error> {
    if end > FILE_BYTES_MAX {
        let message = format!("a far file would reach byte {end}; {FILE_BYTES_MAX} is the most permitted");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn describe(ranges: impl Iterator<Item = (u64, usize)>) -> String {
    let ranges: Vec<_> = ranges.collect();
    match ranges[..] {
        [(offset, bytes)] => format!("{bytes} bytes at {offset}"),
        _ => format!("{} ranges", ranges.len()),
    }
}

/// Whether a write that failed so may still be carried out in this region later.
fn may_arrive_late(error: &Error, region: &LeasedRegion) -> bool {
    error.kind() == ErrorKind::Unreachable && error.node() == Some(&*region.node.info.name)
}

impl FileInner {
    fn map(&self) -> MutexGuard<'_, FileMap<Arc<LeasedRegion>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_writable(&self, state: &State) -> Result<(), Error> {
        self.session.check_open()?;
        match state {
            State::Writable => Ok(()),
            State::Sealed(_) | State::Published => {
                Err(Error::new(ErrorKind::ReadOnly, "the file is published: it can only be read"))
            }
            State::Deleted => Err(closed()),
        }
    }

    fn enter(&self) -> Result<RwLockReadGuard<'_, State>, Error> {
        self.session.check_open()?;
        let state = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Deleted {
            return Err(closed());
        }
        Ok(state)
    }

    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), Error> {
        let _state = self.enter()?;
        // Nothing is read anywhere, also behind the end.
        let mut ranges: Vec<&mut ReadRange<'_>> =
            ranges.iter_mut().filter(|range| !range.into.is_empty()).collect();
        let mut plans = Vec::with_capacity(ranges.len());
        {
            let map = self.map();
            for range in ranges.iter() {
                let file = range.offset..range.offset.saturating_add(range.into.len() as u64);
                if file.end > map.length() {
                    let message = format!("the range ends at {}, the file at {}", file.end, map.length());
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                match map.plan_read(file) {
                    ReadPlan::Poisoned(part) => {
                        let message =
                            format!("bytes {} to {} were last written without success", part.start, part.end);
                        return Err(Error::new(ErrorKind::Poisoned, message));
                    }
                    ReadPlan::Fetch(pieces) => plans.push(pieces),
                }
            }
        }
        let mut by_node = ByNode::default();
        for (range, pieces) in ranges.iter_mut().zip(&plans) {
            let mut rest = &mut *range.into;
            let mut at = range.offset;
            for piece in pieces {
                // What lies between the pieces was never written.
                let (gap, behind) = rest.split_at_mut((piece.file.start - at) as usize);
                gap.fill(0);
                let (into, behind) = behind.split_at_mut((piece.file.end - piece.file.start) as usize);
                rest = behind;
                at = piece.file.end;
                by_node.add(&piece.region, ReadOp { span: span(piece), into });
            }
            rest.fill(0);
        }
        by_node.each(&self.session, Repeat::Harmless, |link, ops, deadline| link.read(ops, deadline))
    }

    fn write_ranges(&self, ranges: &[WriteRange<'_>]) -> Result<(), Error> {
        let state = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        self.check_writable(&state)?;
        // Writing nothing behind the end does not move it.
        let ranges: Vec<&WriteRange<'_>> = ranges.iter().filter(|range| !range.from.is_empty()).collect();
        let mut plans = Vec::with_capacity(ranges.len());
        {
            let mut map = self.map();
            for range in &ranges {
                let file = range.offset..range.offset.saturating_add(range.from.len() as u64);
                check_end(file.end)?;
                if map.is_quarantined(file.clone()) {
                    let message = "an earlier write there broke off and may still arrive: write a new file";
                    return Err(Error::new(ErrorKind::Poisoned, message));
                }
                let missing = file.end.saturating_sub(map.allocated());
                if missing > EXTENT_BYTES_MAX {
                    self.session.make_room(self.group, missing)?;
                }
                while let Some(bytes) = map.next_extent_bytes(file.end) {
                    map.push(self.session.cut(self.group, bytes)?);
                }
                plans.push(map.pieces(file));
            }
        }
        let mut by_node = ByNode::default();
        for (range, pieces) in ranges.iter().zip(&plans) {
            for piece in pieces {
                let from =
                    (piece.file.start - range.offset) as usize..(piece.file.end - range.offset) as usize;
                by_node.add(&piece.region, WriteOp { span: span(piece), from: &range.from[from] });
            }
        }
        let result =
            by_node.each(&self.session, Repeat::Harmful, |link, ops, deadline| link.write(ops, deadline));
        let mut map = self.map();
        for range in &ranges {
            let file = range.offset..range.offset + range.from.len() as u64;
            match &result {
                Ok(()) => map.wrote(file),
                Err(error) => map.poison(file, |region| may_arrive_late(error, region)),
            }
        }
        result
    }

    /// Writes what was never written, seals every region, and describes the file by its sealed extents.
    fn seal(&self) -> Result<Vec<NamedExtent>, Error> {
        let (holes, length, poisoned) = {
            let map = self.map();
            (map.holes(), map.length(), map.is_poisoned())
        };
        if poisoned || length == 0 {
            let why = if poisoned { "a write to it failed" } else { "it is empty" };
            return Err(Error::new(ErrorKind::Invalid, format!("the file cannot be published: {why}")));
        }
        if holes.iter().any(|hole| self.map().is_quarantined(hole.clone())) {
            let message =
                "the file cannot be published: an earlier write to it broke off and may still arrive";
            return Err(Error::new(ErrorKind::Poisoned, message));
        }
        self.fill_holes(&holes)?;
        let sealed = self.session.seal(self.group)?;
        let mut map = self.map();
        let mut cuts = Vec::new();
        for cut in map.cuts() {
            let Some(region) = sealed.get(&cut.region.id) else {
                return Err(Error::lost(&cut.region.node.info.name, "it was lost while the file was sealed"));
            };
            cuts.push(crate::plan::Cut { region: Arc::clone(region), offset: cut.offset, bytes: cut.bytes });
        }
        let mut extents = Vec::with_capacity(cuts.len());
        let mut left = length;
        for cut in &cuts {
            let bytes = left.min(cut.bytes.into());
            left -= bytes;
            if bytes > 0 {
                extents.push(NamedExtent {
                    node: cut.region.node.info.node,
                    incarnation: cut.region.node.info.incarnation,
                    region: cut.region.region,
                    epoch: cut.region.epoch,
                    handle: cut.region.handle,
                    region_offset: cut.offset,
                    bytes,
                });
            }
        }
        *map = FileMap::sealed(cuts);
        map.set_length(length);
        Ok(extents)
    }

    fn fill_holes(&self, holes: &[Range<u64>]) -> Result<(), Error> {
        let zeros = vec![0; EXTENT_BYTES_MAX as usize];
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end {
                let count = (hole.end - at).min(zeros.len() as u64);
                let mut map = self.map();
                while let Some(bytes) = map.next_extent_bytes(at + count) {
                    map.push(self.session.cut(self.group, bytes)?);
                }
                let pieces = map.pieces(at..at + count);
                drop(map);
                let mut by_node = ByNode::default();
                for piece in &pieces {
                    let bytes = (piece.file.end - piece.file.start) as usize;
                    by_node.add(&piece.region, WriteOp { span: span(piece), from: &zeros[..bytes] });
                }
                let filled = by_node
                    .each(&self.session, Repeat::Harmful, |link, ops, deadline| link.write(ops, deadline));
                if let Err(error) = filled {
                    self.map().poison(at..at + count, |region| may_arrive_late(&error, region));
                    return Err(error);
                }
                self.map().wrote(at..at + count);
                at += count;
            }
        }
        Ok(())
    }
}

fn span(piece: &Piece<Arc<LeasedRegion>>) -> Span {
    Span {
        region: piece.region.region,
        // An extent, and so a piece of one, is at most EXTENT_BYTES_MAX long.
        bytes: (piece.file.end - piece.file.start) as u32,
        offset: piece.offset,
        epoch: piece.region.epoch,
        handle: piece.region.handle,
    }
}

/// Operations sorted by the node they go to, in order within each.
struct ByNode<'r, Op> {
    nodes: Vec<(&'r Arc<LeasedRegion>, Vec<Op>)>,
}

impl<Op> Default for ByNode<'_, Op> {
    fn default() -> Self {
        ByNode { nodes: Vec::new() }
    }
}

impl<'r, Op> ByNode<'r, Op> {
    fn add(&mut self, region: &'r Arc<LeasedRegion>, op: Op) {
        match self.nodes.iter_mut().find(|(of, _)| Arc::ptr_eq(&of.node, &region.node)) {
            Some((_, ops)) => ops.push(op),
            None => self.nodes.push((region, vec![op])),
        }
    }

    /// Has one conversation with each node, under leases that were checked to hold.
    fn each(
        self,
        session: &Session,
        repeat: Repeat,
        talk: impl Fn(&mut dyn Link, &mut [Op], farpool_wire::MonoNs) -> Result<(), LinkError>,
    ) -> Result<(), Error> {
        for (region, mut ops) in self.nodes {
            session.check_lease(region)?;
            let deadline = NodeLinks::deadline(session.options.request_timeout_ms);
            let talked =
                region.node.converse(deadline, repeat, |link| match talk(link, &mut ops, deadline) {
                    // In its grace the lease has lost nothing yet: renew it over this very link and go on.
                    Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::LeaseExpired => {
                        link.call(&Request::Renew(session.proof()), deadline)?;
                        talk(link, &mut ops, deadline)
                    }
                    other => other,
                });
            talked.map_err(|error| {
                if error.kind() == ErrorKind::Lost && region.is_leased {
                    // Refused as a stranger: the node has forgotten us (or started anew), and says so here.
                    let _ = session.renew(&region.node);
                }
                if region.node.is_lost() {
                    session.lose_regions(&region.node);
                }
                // What went while we talked is better named as lost than as a refusal or a broken connection.
                region.check_usable().err().unwrap_or(error)
            })?;
        }
        Ok(())
    }
}

/// Builds the map of a published file.
pub(crate) fn sealed_map(
    session: &Session,
    opened: &farpool_wire::control::Opened,
) -> Result<FileMap<Arc<LeasedRegion>>, Error> {
    let mut cuts = Vec::with_capacity(opened.extents.len());
    let mut regions: BTreeMap<(u64, u32), Arc<LeasedRegion>> = BTreeMap::new();
    let mut length = 0;
    for extent in opened.extents.iter() {
        let Some(info) = opened.nodes.iter().find(|info| info.node == extent.node) else {
            return Err(Error::new(
                ErrorKind::Refused,
                "the broker named an extent on a node it did not name",
            ));
        };
        let node = session.links(info)?;
        let region = regions.entry((extent.node.0, extent.region.0)).or_insert_with(|| {
            Arc::new(LeasedRegion {
                id: u64::MAX,
                node,
                region: extent.region,
                epoch: extent.epoch,
                handle: extent.handle,
                is_leased: false,
                is_taken: false.into(),
            })
        });
        let bytes = u32::try_from(extent.bytes).map_err(|_| {
            Error::new(ErrorKind::Refused, format!("the broker named an extent of {} bytes", extent.bytes))
        })?;
        cuts.push(crate::plan::Cut { region: Arc::clone(region), offset: extent.region_offset, bytes });
        length += extent.bytes;
    }
    let mut map = FileMap::sealed(cuts);
    map.set_length(length);
    Ok(map)
}

pub(crate) fn opened(reply: Reply) -> Result<farpool_wire::control::Opened, Error> {
    answer_of!(reply, OpenName)
}
