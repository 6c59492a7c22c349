//! Far files: bytes at offsets, stored in regions of a session or of a published name.
//!
//! The state of a file has one lock, which is held to plan and never while bytes move.
//! [`RangeLocks`](crate::plan::RangeLocks) decides which operations may run at the same time. An operation is planned
//! and started under one hold of the lock. Operations that free or reuse extents (truncate, delete, publish, repair)
//! wait until nothing else runs in them.

use crate::disk_copy::DiskCopy;
use crate::error::{Error, ErrorKind};
use crate::leases::Patience;
use crate::mapped_runs::Direct;
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::options::{IfTaken, Protection};
use crate::plan::{
    Allocation, ExtentCopy, FileMap, Group, PageKey, RangeLockId, RangeLockKind, RangeLocks, StripeAhead,
    Stripes,
};
use crate::recipe::Recipe;
use crate::session::Session;
use crate::stats::add;
use farpool_host::HostEvent;
use farpool_lock::{Mutex, MutexGuard};
use farpool_wire::control::Places;
use farpool_wire::limits::{RECIPE_BYTES_MAX, REGION_BYTES_MIN};
use farpool_wire::{Bytes, FileClass, FileId, Incarnation, MonoNs, RegionIndex, mutant};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Range of a file to read.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Buffer for the bytes. The range must lie within the file; a read fills the whole buffer or is an error.
    pub into: &'a mut [u8],
}

/// Range of a file to write.
#[derive(Clone, Copy, Debug)]
pub struct WriteRange<'a> {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Bytes to write.
    pub from: &'a [u8],
}

impl WriteRange<'_> {
    /// Returns the range in the file. Its end was checked to be within the longest file.
    pub(crate) fn file(&self) -> Range<u64> {
        self.offset..self.offset + self.from.len() as u64
    }
}

/// Range of a file that succeeds or fails as one write, and the user's ranges in it, in order.
pub(crate) struct WriteRun<'r> {
    pub(crate) file: Range<u64>,
    pub(crate) ranges: &'r [WriteRange<'r>],
}

/// Phase of a file's life.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    Writable,
    /// No more writes are accepted. The regions are being sealed (made immutable) one after another.
    Sealing,
    /// All regions are sealed. The file has no name yet, because it was not published yet or publishing failed.
    Sealed(Places),
    /// The file was published: a name owns its regions at the nodes, whether this session lives or not.
    Published(FileId),
    Deleted,
}

pub(crate) struct FileState {
    pub(crate) phase: Phase,
    pub(crate) map: FileMap<Arc<LeasedRegion>>,
    /// Stripes of a file with parity, once it was added.
    pub(crate) stripes: Option<Arc<Stripes>>,
    /// Stripes whose parity has been written, before the file is sealed.
    pub(crate) ahead: Vec<StripeAhead<Arc<LeasedRegion>>>,
    range_locks: RangeLocks,
    /// Locations of dropped copies that operations begun earlier may still read or write.
    leaving: Vec<RetiredCopy>,
    /// Number of operations that wait for others to end.
    waiting: u32,
}

/// Location of a dropped copy. It is reused when all operations that began before `since` have ended.
struct RetiredCopy {
    allocation: Allocation<Arc<LeasedRegion>>,
    since: RangeLockId,
}

pub(crate) struct FileInner {
    pub(crate) session: Arc<Session>,
    name: Mutex<String>,
    pub(crate) class: FileClass,
    pub(crate) group: Group,
    protection: Protection,
    /// True if the file has too few parts for the code of its protection, and gets a mirror.
    pub(crate) is_mirrored_instead: AtomicBool,
    /// True if a file that gets parity may need a region at one more host.
    may_spread: AtomicBool,
    /// Effort that its writes make to get memory.
    pub(crate) patience: Patience,
    /// Key of an encrypted file. Its bytes leave this process only encrypted.
    pub(crate) key: Option<Arc<PageKey>>,
    /// Copy on the local disk, for local protection.
    pub(crate) disk: Option<Arc<DiskCopy>>,
    state: Mutex<FileState>,
    /// Value of [`FileMap::layout`], which changes when bytes move or go, for readers without the lock. Stored before
    /// the lock is released.
    layout: AtomicU64,
    /// List of the bytes that are mapped in this process, for reads and writes without a request.
    pub(crate) direct: Direct,
    /// Event that is signalled when an operation ends and others wait.
    ended: HostEvent,
    /// Recipe with which the file is published, encoded. Empty if it has none.
    pub(crate) recipe: OnceLock<Bytes<RECIPE_BYTES_MAX>>,
    /// Ranges that nodes have copied into segments.
    pub(crate) copied: Mutex<CopiedRanges>,
}

/// Ranges in segments, by their regions and first bytes: the number of bytes, and their CRC32C.
pub(crate) type CopiedRanges = BTreeMap<(Incarnation, RegionIndex, u32), (u32, u32)>;

/// Handle of a far file. Handles are cheap to clone, and one may be used by many threads at once.
#[derive(Clone)]
pub struct FarFile {
    pub(crate) inner: Arc<FileInner>,
}

/// Longest file in bytes. A larger offset is taken for a mistake.
const FILE_BYTES_MAX: u64 = 1 << 50;
/// Bytes at the beginning of a file that will be published which lie in regions that such files share: as many as fit
/// into a segment of any node.
pub(crate) const SHARED_BYTES_MAX: u64 = REGION_BYTES_MIN / 4;
/// Time in ms after which a waiting operation looks again, even without a signal.
const WAIT_MS: u64 = 1_000;

impl FarFile {
    pub(crate) fn create(
        session: Arc<Session>,
        name: String,
        class: FileClass,
        number: u64,
        protection: Protection,
        key: Option<Arc<PageKey>>,
        patience: Patience,
    ) -> Result<FarFile, Error> {
        // A file that may be published gets regions of its own, because sealing (making immutable) works on whole
        // regions. Its first bytes lie in regions that such files share, from which nodes copy them.
        let group = if class == FileClass::Pinned { Group::File(number) } else { Group::Class(class) };
        let disk = match protection {
            Protection::Local => {
                Some(Arc::new(DiskCopy::create(&**session.host(), &session.options().local_folder)?))
            }
            _ => None,
        };
        let file = FileInner {
            group,
            protection,
            key,
            disk,
            patience,
            ..FileInner::new(session, name, class, Phase::Writable, FileMap::default())
        };
        let file = FarFile { inner: Arc::new(file) };
        file.inner.session.repair.keep(&file.inner);
        Ok(file)
    }

    pub(crate) fn published(
        session: Arc<Session>,
        name: String,
        class: FileClass,
        file: FileId,
        protection: Protection,
        map: FileMap<Arc<LeasedRegion>>,
        stripes: Option<Arc<Stripes>>,
    ) -> FarFile {
        let inner = FileInner::new(session, name, class, Phase::Published(file), map);
        let inner = FileInner { protection, ..inner };
        inner.state().stripes = stripes;
        let inner = Arc::new(inner);
        if protection != Protection::None {
            inner.session.repair.keep(&inner);
        }
        FarFile { inner }
    }

    pub(crate) fn same_file(&self, other: &FarFile) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the name of the file.
    pub fn name(&self) -> String {
        self.inner.name()
    }

    pub(crate) fn set_name(&self, name: String) {
        *self.inner.name.lock() = name;
    }

    /// Returns the class of the file.
    pub fn class(&self) -> FileClass {
        self.inner.class
    }

    /// Reports whether the file is encrypted: its bytes leave this process only as ciphertext, so donors can neither
    /// read them nor alter them unnoticed.
    pub fn is_encrypted(&self) -> bool {
        self.inner.key.is_some()
    }

    /// Returns the protection against the loss of a node. A file that was too short for its code when it was published
    /// has a mirror.
    pub fn protection(&self) -> Protection {
        self.inner.protection()
    }

    /// Returns the number of copies in far memory of the bytes that have fewest. A lost node may still be counted.
    pub fn copies(&self) -> usize {
        self.inner.state().map.extents().map(|(_, copies)| copies.len()).min().unwrap_or(0)
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.inner.state().map.length()
    }

    /// Reads at `offset` until the buffer is full or the file ends. Returns the number of bytes read. Bytes that were
    /// never written are zero.
    ///
    /// Errors: [`ErrorKind::Lost`] if no copy of some of them is left, [`ErrorKind::Poisoned`] if the last
    /// write to some of them failed, [`ErrorKind::Closed`], [`ErrorKind::Unreachable`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        // The fast path covers only written bytes, which lie before the end.
        if self.inner.read_mapped(&mut [ReadRange { offset, into: &mut *into }]) {
            return Ok(into.len());
        }
        let left = self.length().saturating_sub(offset);
        let count = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let into = &mut into[..count];
        self.read_batch(&mut [ReadRange { offset, into }])?;
        Ok(count)
    }

    /// Reads several ranges, each of which must lie within the file.
    pub fn read_batch(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), Error> {
        let inner = &*self.inner;
        if inner.read_mapped(ranges) {
            return Ok(());
        }
        let result = inner.read_ranges(ranges);
        inner.refresh_mapped_runs();
        let counters = inner.session.counters();
        match &result {
            Ok(()) => {
                counters.count_read(ranges.len(), ranges.iter().map(|range| range.into.len() as u64).sum());
            }
            Err(_) => add(&counters.failed_ops, 1),
        }
        result.map_err(|error| {
            let described = describe(ranges.iter().map(|range| (range.offset, range.into.len())));
            error.during(format_args!("reading {described} of far file {:?}", self.name()))
        })
    }

    /// Writes all of `from` at `offset`. The file grows if necessary; bytes between its old end and `offset` read as
    /// zeros.
    ///
    /// Errors: [`ErrorKind::Exhausted`] if the pool is full, [`ErrorKind::Lost`], [`ErrorKind::ReadOnly`] on a
    /// published file, [`ErrorKind::Unreachable`]. After an error the range cannot be read until it is written again;
    /// the rest of the file is unchanged.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.write_batch(&[WriteRange { offset, from }])
    }

    /// Writes several ranges, in order.
    pub fn write_batch(&self, ranges: &[WriteRange<'_>]) -> Result<(), Error> {
        self.write_unless(ranges, &|_| false)
            .inspect_err(|_| add(&self.inner.session.counters().failed_ops, 1))
    }

    /// Writes several ranges, in order. If a node is silent, the write fails at once where `can_move` returns true for
    /// the node, even if no other node has what was written.
    pub(crate) fn write_unless(
        &self,
        ranges: &[WriteRange<'_>],
        can_move: &dyn Fn(&NodeLinks) -> bool,
    ) -> Result<(), Error> {
        let inner = &*self.inner;
        if inner.write_mapped(ranges) {
            return Ok(());
        }
        inner.write_ranges(ranges, can_move).map_err(|error| {
            let described = describe(ranges.iter().map(|range| (range.offset, range.from.len())));
            error.during(format_args!("writing {described} of far file {:?}", self.name()))
        })?;
        let bytes = ranges.iter().map(|range| range.from.len() as u64).sum();
        inner.session.counters().count_write(inner.class, ranges.len(), bytes);
        Ok(())
    }

    /// Sets the length. Cuts the end off, or adds zeros that take no memory.
    pub fn truncate(&self, length: u64) -> Result<(), Error> {
        check_end(length)?;
        let inner = &*self.inner;
        let _lock = inner.begin_change(0..u64::MAX);
        let freed = {
            let mut state = inner.state();
            inner.check_writable(&state.phase)?;
            state.map.set_length(length)
        };
        inner.session.leases.give_back(freed);
        if let Some(disk) = &inner.disk {
            // The disk must be truncated before anybody can write there again.
            disk.truncate(length);
        }
        Ok(())
    }

    /// Frees the memory of the file. Every handle fails with [`ErrorKind::Closed`] from now on.
    pub(crate) fn delete(&self) {
        let inner = &*self.inner;
        let phase = inner.change(0..u64::MAX, |state| {
            let mut freed = state.map.clear();
            freed.extend(std::mem::take(&mut state.ahead).into_iter().flat_map(StripeAhead::into_parity));
            let phase = std::mem::replace(&mut state.phase, Phase::Deleted);
            Ok((phase, freed))
        });
        match phase {
            // A published file stays with its name. Other sessions may be reading it.
            Ok((Phase::Published(_) | Phase::Deleted, _)) | Err(_) => {}
            Ok((Phase::Writable, freed)) => inner.session.leases.give_back(freed),
            Ok((Phase::Sealing | Phase::Sealed(_), freed)) => {
                inner.session.leases.unnamed.fetch_sub(1, Ordering::AcqRel);
                // The file has no name, and can get none any more.
                let (sealed, leased): (Vec<_>, Vec<_>) =
                    freed.into_iter().partition(|allocation| !allocation.region.is_leased);
                inner.session.leases.give_back(leased);
                let (copies, sealed): (Vec<_>, Vec<_>) =
                    sealed.into_iter().partition(|allocation| allocation.region.is_segment());
                inner.session.leases.give_up_copies(copies);
                let regions: Vec<_> = sealed.into_iter().map(|allocation| allocation.region).collect();
                inner.session.leases.release(&regions, inner.session.options().request_timeout_ms);
            }
        }
        inner.forget_mapped();
        if let Some(disk) = &inner.disk {
            inner.session.behind.forget(disk);
            disk.truncate(0);
        }
    }

    pub(crate) fn is_published(&self) -> bool {
        matches!(self.inner.state().phase, Phase::Published(_))
    }

    pub(crate) fn group(&self) -> Group {
        self.inner.group
    }

    /// Sets the recipe with which the file is published. The first one counts.
    ///
    /// Errors: it is too long.
    pub fn set_recipe(&self, recipe: &Recipe) -> Result<(), Error> {
        let recipe = recipe.encode()?;
        self.inner.recipe.get_or_init(|| recipe);
        Ok(())
    }

    /// Publishes the file, as [`crate::Pool::publish`] says.
    pub(crate) fn publish(&self, if_taken: IfTaken) -> Result<(), Error> {
        self.inner.publish(self.inner.class, if_taken)
    }
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the far file was deleted")
}

pub(crate) fn check_end(end: u64) -> Result<(), Error> {
    if end > FILE_BYTES_MAX {
        let message =
            format!("the file would end at byte {end}; a far file can have at most {FILE_BYTES_MAX} bytes");
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

/// Returns the smallest range that covers all of the ranges.
pub(crate) fn hull(ranges: impl Iterator<Item = (u64, usize)>) -> Range<u64> {
    let (start, end) = ranges.fold((u64::MAX, 0), |(start, end), (offset, bytes)| {
        (offset.min(start), offset.saturating_add(bytes as u64).max(end))
    });
    start.min(end)..end
}

/// Operation under way, which holds its range lock until this is dropped.
pub(crate) struct RangeLock<F: Deref<Target = FileInner>> {
    file: F,
    id: RangeLockId,
}

impl<F: Deref<Target = FileInner>> RangeLock<F> {
    /// Wraps the range lock `id` of an operation that has begun.
    pub(crate) fn of(file: F, id: RangeLockId) -> RangeLock<F> {
        RangeLock { file, id }
    }
}

impl<F: Deref<Target = FileInner>> Drop for RangeLock<F> {
    fn drop(&mut self) {
        let mut state = self.file.state();
        state.range_locks.end(self.id);
        let left = state.left();
        if state.waiting > 0 {
            self.file.ended.signal();
        }
        drop(state);
        if !left.is_empty() {
            self.file.session.leases.give_back(left);
        }
    }
}

/// Guard of the lock of a file's state. When it is dropped, the layout number, which changes when bytes move or go, is
/// stored for readers without the lock if it changed. That happens before the lock is released, and so before moved or
/// freed bytes can be reused.
pub(crate) struct StateGuard<'f> {
    state: MutexGuard<'f, FileState>,
    layout: &'f AtomicU64,
}

impl Deref for StateGuard<'_> {
    type Target = FileState;
    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let layout = self.state.map.layout();
        if self.layout.load(Ordering::Relaxed) != layout {
            self.layout.store(layout, Ordering::SeqCst);
        }
    }
}

impl FileState {
    /// Begins to read a range if no other operation conflicts.
    pub(crate) fn try_read(&mut self, range: &Range<u64>) -> Option<RangeLockId> {
        self.range_locks.begin(RangeLockKind::Read, range.clone())
    }

    /// Begins to read a range if nobody is writing there. Writes may begin while it goes on.
    pub(crate) fn try_read_whole(&mut self, range: &Range<u64>) -> Option<RangeLockId> {
        let whole = self.range_locks.begin(RangeLockKind::ReadWhole, range.clone())?;
        self.range_locks.end(whole);
        self.try_read(range)
    }

    /// Begins to write a range if no other operation conflicts and the layout number of the file's map is still
    /// `layout`.
    pub(crate) fn try_write(&mut self, range: &Range<u64>, layout: u64) -> Option<RangeLockId> {
        if self.phase != Phase::Writable || self.map.layout() != layout {
            return None;
        }
        let id = self.range_locks.begin(RangeLockKind::Write, range.clone())?;
        self.map.begin_write(range);
        Some(id)
    }

    /// Notes that a copy has left the file's map. Its location is reused once no operation can be using it.
    pub(crate) fn leave(&mut self, copy: ExtentCopy<Arc<LeasedRegion>>) {
        let since = if mutant!(PlaceReusedAtOnce) { RangeLockId::default() } else { self.range_locks.mark() };
        self.leaving.push(RetiredCopy { allocation: copy.allocation, since });
    }

    /// Takes the locations that can be reused now.
    fn left(&mut self) -> Vec<Allocation<Arc<LeasedRegion>>> {
        let range_locks = &self.range_locks;
        let (leaving, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|leaving| range_locks.has_older(leaving.since));
        self.leaving = leaving;
        left.into_iter().map(|leaving| leaving.allocation).collect()
    }
}

impl FileInner {
    /// Makes a file without protection.
    fn new(
        session: Arc<Session>,
        name: String,
        class: FileClass,
        phase: Phase,
        map: FileMap<Arc<LeasedRegion>>,
    ) -> FileInner {
        FileInner {
            session,
            name: Mutex::new(name),
            class,
            group: Group::Class(class),
            protection: Protection::None,
            is_mirrored_instead: AtomicBool::new(false),
            may_spread: AtomicBool::new(true),
            key: None,
            patience: Patience::Full,
            disk: None,
            state: Mutex::new(FileState {
                phase,
                map,
                stripes: None,
                ahead: Vec::new(),
                range_locks: RangeLocks::default(),
                leaving: Vec::new(),
                waiting: 0,
            }),
            layout: AtomicU64::new(0),
            direct: Direct::default(),
            ended: HostEvent::default(),
            recipe: OnceLock::new(),
            copied: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().clone()
    }

    pub(crate) fn protection(&self) -> Protection {
        match self.protection {
            Protection::Rs { .. } if self.is_mirrored_instead.load(Ordering::Relaxed) => Protection::Mirror,
            protection => protection,
        }
    }

    /// Leases a region of at least `bytes` bytes on another host, if the file is to get parity and lies on fewer hosts
    /// than its code has parts. Nothing changes if there is none.
    pub(crate) fn spread(&self, bytes: u64) {
        let Protection::Rs { data, .. } = self.protection() else { return };
        if !self.may_spread.load(Ordering::Relaxed) {
            return;
        }
        let leases = &self.session.leases;
        let hosts = leases.hosts_with(self.group);
        // The first region is leased with the first bytes.
        if hosts >= usize::from(data) || hosts > 0 && !leases.widen(self.group, bytes) {
            self.may_spread.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the group in whose regions the bytes before `end` are put: that of all small files which will be
    /// published, while this one is small.
    pub(crate) fn group_before(&self, end: u64) -> Group {
        let is_small = self.class == FileClass::Pinned && end <= SHARED_BYTES_MAX && self.key.is_none();
        match is_small && !self.session.leases.has_no_segments() {
            true => Group::Class(FileClass::Pinned),
            false => self.group,
        }
    }

    pub(crate) fn state(&self) -> StateGuard<'_> {
        let state = self.state.lock();
        StateGuard { state, layout: &self.layout }
    }

    /// Returns the layout number, which changes when bytes move or go, as of the last release of the lock.
    pub(crate) fn layout(&self) -> u64 {
        self.layout.load(Ordering::SeqCst)
    }

    pub(crate) fn check_writable(&self, phase: &Phase) -> Result<(), Error> {
        self.session.check_open()?;
        match phase {
            Phase::Writable => Ok(()),
            Phase::Sealing | Phase::Sealed(_) | Phase::Published(_) => {
                Err(Error::new(ErrorKind::ReadOnly, "the file is published: it can only be read"))
            }
            Phase::Deleted => Err(closed()),
        }
    }

    pub(crate) fn check_readable(&self, phase: &Phase) -> Result<(), Error> {
        self.session.check_open()?;
        if *phase == Phase::Deleted { Err(closed()) } else { Ok(()) }
    }

    /// Waits until an operation has ended since the event count was `heard`, or until `until`.
    fn wait(&self, mut state: StateGuard<'_>, heard: u64, until: MonoNs) {
        state.waiting += 1;
        drop(state);
        self.session.host().wait(&self.ended, heard, until.min(self.session.deadline(WAIT_MS)));
        self.state().waiting -= 1;
    }

    /// Begins an operation as soon as nothing conflicts, and plans it under the same hold of the lock. If the plan
    /// fails, the operation has not begun.
    pub(crate) fn begin<T>(
        &self,
        kind: RangeLockKind,
        range: &Range<u64>,
        plan: impl FnOnce(&mut FileState) -> Result<T, Error>,
    ) -> Result<(RangeLock<&FileInner>, T), Error> {
        loop {
            let heard = self.ended.heard();
            let mut state = self.state();
            if let Some(id) = state.range_locks.begin(kind, range.clone()) {
                let planned = plan(&mut state);
                drop(state);
                let lock = RangeLock { file: self, id };
                return Ok((lock, planned?));
            }
            self.wait(state, heard, MonoNs(u64::MAX));
        }
    }

    /// Waits until nothing runs in a range, and keeps all other operations out until the returned value is dropped.
    pub(crate) fn begin_change(&self, range: Range<u64>) -> RangeLock<&FileInner> {
        loop {
            if let Some(lock) = self.begin_change_until(range.clone(), MonoNs(u64::MAX)) {
                return lock;
            }
        }
    }

    /// Does the same as `begin_change`, but gives up at `until`. The wait may be for a read whose answer nobody takes,
    /// and while it lasts no other operation can begin in the range.
    pub(crate) fn begin_change_until(
        &self,
        range: Range<u64>,
        until: MonoNs,
    ) -> Option<RangeLock<&FileInner>> {
        let lock = RangeLock { file: self, id: self.state().range_locks.request_change(range) };
        loop {
            let heard = self.ended.heard();
            let mut state = self.state();
            if state.range_locks.begin_change(lock.id) {
                return Some(lock);
            }
            if self.session.host().now() > until {
                return None;
            }
            self.wait(state, heard, until);
        }
    }

    /// Applies a change while nothing runs in a range.
    pub(crate) fn change<T>(
        &self,
        range: Range<u64>,
        change: impl FnOnce(&mut FileState) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _lock = self.begin_change(range);
        change(&mut self.state())
    }
}
