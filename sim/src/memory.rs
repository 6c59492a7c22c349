//! Memory of a simulated node: the contract of [`farpool_region::Arena`], implemented with plain values.
//!
//! The idea: bytes are real but sparse, so a region costs only what was written to it. Wherever a real node may be
//! interrupted, other tasks may run here: before a gate is entered, in the middle of a copy, while a gate drains,
//! while memory is wiped or moved. A file that a client has mapped is an object of its own: the client can still
//! write to it after the region has moved to another file.
//!
//! This module does not decide which accesses are admitted. It reports to the oracle what the code under test cannot
//! see: a copy that ran at another epoch (generation of the region) than the one it was admitted at, an epoch that went
//! back, a region that was opened before it was wiped.

use crate::kernel::{rest, world};
use crate::pages::Pages;
use crate::profile::Theme;
use farpool_lock::{Mutex, MutexGuard};
use farpool_node::{Inside, Memory};
use farpool_region::{Fence, RegionError, SharedAccess};
use farpool_transport::shm::{Mapped, MappedBytes};
use farpool_transport::{Mappable, Shared};
use farpool_wire::control::Attached;
use farpool_wire::{Code, Epoch, Handle, Refusal, RegionIndex};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_STRIDE_BYTES: u64 = 64;
const DRAIN_NS: u64 = 50_000;

/// Memory file that a client can map.
#[derive(Debug)]
struct File {
    pages: Mutex<Pages>,
    /// Fence word of the epoch that the file belongs to: epoch * 2, plus 1 if the region is sealed; 0 once it belongs
    /// to none.
    serves: AtomicU64,
}

#[derive(Debug)]
enum Backing {
    Anonymous(Pages),
    Shared(Arc<File>, Holders),
}

/// Processes that may have a region's file, as in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    Node,
    Writer,
    Readers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateState {
    Closed,
    Open,
    Suspended,
}

#[derive(Debug)]
struct Region {
    state: GateState,
    /// Epoch, writing handle and reading handle that the region was opened with. They are kept until a close has
    /// drained the gate.
    opened: Option<(Epoch, Option<Handle>, Option<Handle>)>,
    in_flight: u32,
    dirty_bytes: u64,
    backing: Backing,
    /// Number of changes that may be made only while the gate is drained, such as wiping or moving the memory. A count
    /// that grows during a copy is a violation.
    changes: u64,
}

#[derive(Debug)]
struct Words(Vec<AtomicU64>);

/// Simulated memory of one node, see [`Memory`].
#[derive(Debug)]
pub(crate) struct SimMemory {
    region_bytes: u64,
    regions: Vec<Mutex<Region>>,
    words: Arc<Words>,
    /// Number of the next requests for fresh memory that the simulated operating system refuses.
    refusals: AtomicU64,
    /// 1 if a gate has changed since the oracle last checked.
    changed: AtomicU64,
}

/// State of a region's gate (which admits copies), for the oracle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateView {
    pub(crate) epoch: Epoch,
    pub(crate) is_open: bool,
    pub(crate) is_suspended: bool,
    pub(crate) write_handle: Option<Handle>,
}

fn violated(invariant: &'static str, what: impl FnOnce() -> String) {
    world(|world| world.oracle.violated(invariant, what()));
}

/// Pauses the running task now and then in the middle of an operation, perhaps for long, so that other tasks run.
fn interrupted() {
    interrupted_for(u64::MAX);
}

/// Does the same as [`interrupted`], for 20 ms at most. For code inside a gate, which must not stay there for long:
/// real-time threads of the node wait until it has left.
fn interrupted_inside() {
    interrupted_for(20_000_000);
}

/// Does the same as [`interrupted`] for a client between two checks of a fence word. Now and then the pause is as long
/// as a lease may live: nothing limits how long a client's machine stops it.
fn interrupted_in_mapping() {
    let ns = world(|world| {
        let plan = &world.plan;
        let may = plan.interrupts_per_million > 0 && plan.theme == Theme::Everybody;
        let most = plan.life_ns();
        if may && world.random.one_in(200) { Some(world.random.skewed(1_000_000, most)) } else { None }
    });
    match ns {
        Some(ns) => {
            world(|world| world.tally.interrupts += 1);
            rest(ns);
        }
        None => interrupted(),
    }
}

fn interrupted_for(ns_max: u64) {
    let ns = world(|world| {
        let plan = &world.plan;
        let (often, most) = (plan.interrupts_per_million, plan.interrupt_ns_max.min(ns_max));
        let is_due = world.random.happens(often) && !world.is_uninterrupted;
        if is_due { Some(world.random.skewed(1_000, most)) } else { None }
    });
    if let Some(ns) = ns {
        world(|world| world.tally.interrupts += 1);
        rest(ns);
    }
}

impl SimMemory {
    pub(crate) fn new(region_bytes: u64, region_count: u32) -> SimMemory {
        let region = || {
            Mutex::new(Region {
                state: GateState::Closed,
                opened: None,
                in_flight: 0,
                dirty_bytes: 0,
                backing: Backing::Anonymous(Pages::new(region_bytes)),
                changes: 0,
            })
        };
        SimMemory {
            region_bytes,
            regions: (0..region_count).map(|_| region()).collect(),
            words: Arc::new(Words((0..region_count).map(|_| AtomicU64::new(1)).collect())),
            refusals: AtomicU64::new(0),
            changed: AtomicU64::new(0),
        }
    }

    /// Makes the next `times` requests for fresh memory fail.
    pub(crate) fn refuse(&self, times: u64) {
        self.refusals.store(times, Ordering::Relaxed);
    }

    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(0, Ordering::Relaxed) != 0
    }

    pub(crate) fn view(&self, region: u32) -> GateView {
        let epoch = self.epoch(RegionIndex(region));
        let region = self.regions[region as usize].lock();
        let opened = region.opened.filter(|_| region.state != GateState::Closed);
        GateView {
            epoch,
            is_open: region.state == GateState::Open,
            is_suspended: region.state == GateState::Suspended,
            write_handle: opened.and_then(|(_, write, _)| write),
        }
    }

    /// Copies bytes of a region to `into` without any check of rights, for the oracle.
    pub(crate) fn peek(&self, region: u32, offset: u64, into: &mut [u8]) -> Option<()> {
        let region = self.regions.get(region as usize)?.lock();
        match &region.backing {
            Backing::Anonymous(pages) => pages.read(offset, into),
            Backing::Shared(file, _) => file.pages.lock().read(offset, into),
        }
        Some(())
    }

    fn region(&self, region: RegionIndex) -> Result<MutexGuard<'_, Region>, RegionError> {
        match self.regions.get(region.0 as usize) {
            Some(found) => Ok(found.lock()),
            None => Err(RegionError::NoSuchRegion { region, region_count: self.regions.len() as u32 }),
        }
    }

    fn closed(&self, region: RegionIndex) -> Result<MutexGuard<'_, Region>, RegionError> {
        let found = self.region(region)?;
        match found.state {
            GateState::Closed => Ok(found),
            _ => Err(RegionError::NotClosed { region, epoch: self.epoch(region) }),
        }
    }

    fn clean(&self, region: RegionIndex) -> Result<MutexGuard<'_, Region>, RegionError> {
        let found = self.closed(region)?;
        match found.dirty_bytes {
            0 => Ok(found),
            dirty_bytes => Err(RegionError::NotClean { region, dirty_bytes }),
        }
    }

    fn epoch(&self, region: RegionIndex) -> Epoch {
        Epoch(self.words.0[region.0 as usize].load(Ordering::SeqCst) >> 1)
    }

    fn set_word(&self, region: RegionIndex, word: u64) {
        self.changed.store(1, Ordering::Relaxed);
        let before = self.words.0[region.0 as usize].swap(word, Ordering::SeqCst);
        if word >> 1 < before >> 1 {
            violated("I2", || {
                format!("the fence of region {region} went from epoch {} back to {}", before >> 1, word >> 1)
            });
        }
    }

    fn fresh_memory(&self, what: &'static str) -> Result<(), RegionError> {
        let take = |left: u64| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            world(|world| world.tally.fault("memory refused"));
            let source = io::ErrorKind::OutOfMemory.into();
            return Err(RegionError::System { what, bytes: self.region_bytes, source });
        }
        Ok(())
    }

    /// Replaces the memory behind a closed gate by a fresh memory file that clients can map. Copies the pages of the
    /// first `keep_bytes` bytes to it; later bytes are zero.
    fn move_to_file(&self, region: &mut Region, keep_bytes: usize, holders: Holders) {
        let pages = match &region.backing {
            Backing::Anonymous(pages) => pages.copied(keep_bytes),
            Backing::Shared(file, _) => file.pages.lock().copied(keep_bytes),
        };
        leave_file(&region.backing);
        let file = File { pages: Mutex::new(pages), serves: AtomicU64::new(0) };
        region.backing = Backing::Shared(Arc::new(file), holders);
        region.dirty_bytes = if holders == Holders::Node { keep_bytes as u64 } else { self.region_bytes };
        region.changes += 1;
    }
}

/// Frees the pages of a memory file that the region has left. A client without a lease may still have it mapped.
fn leave_file(backing: &Backing) {
    if let Backing::Shared(file, _) = backing {
        file.pages.lock().clear();
        file.serves.store(0, Ordering::Relaxed);
    }
}

impl Memory for SimMemory {
    type Entered<'a> = Entered<'a>;

    fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    fn region_count(&self) -> u32 {
        self.regions.len() as u32
    }

    fn enter(&self, index: RegionIndex) -> Result<Entered<'_>, Refusal> {
        interrupted();
        let Ok(mut region) = self.region(index) else {
            return Err(Refusal::new(Code::NoSuchRegion, u64::from(self.region_count())));
        };
        let word = self.words.0[index.0 as usize].load(Ordering::SeqCst);
        let holders = region.opened.filter(|(epoch, ..)| epoch.0 == word >> 1);
        let fence = Fence {
            epoch: Epoch(word >> 1),
            suspended: holders.is_some() && word & 1 != 0,
            write_handle: holders.and_then(|(_, write, _)| write),
            read_handle: holders.and_then(|(_, _, read)| read),
            sealed: holders.is_some_and(|(_, write, read)| write.is_none() && read.is_some()),
            region_bytes: self.region_bytes,
        };
        let is_in = word & 1 == 0;
        if is_in {
            region.in_flight += 1;
        }
        let changes = region.changes;
        Ok(Entered { memory: self, index, is_in, fence, moved_bytes: Cell::new(0), changes })
    }

    fn open(
        &self,
        index: RegionIndex,
        epoch: Epoch,
        write: Option<Handle>,
        read: Option<Handle>,
    ) -> Result<(), RegionError> {
        let mut region = self.closed(index)?;
        let current = self.epoch(index);
        if epoch < current || epoch == Epoch(0) {
            return Err(RegionError::EpochOrder { region: index, asked: epoch, current });
        }
        let is_zero = match &region.backing {
            Backing::Anonymous(pages) => pages.is_zero(),
            Backing::Shared(file, _) => {
                let sealed = u64::from(write.is_none());
                file.serves.store(epoch.0 << 1 | sealed, Ordering::Relaxed);
                file.pages.lock().is_zero()
            }
        };
        if write.is_some() && !is_zero {
            violated("I4", || format!("region {index} was opened for its new holder without being zeroed"));
        }
        if write.is_none() && matches!(region.backing, Backing::Shared(_, Holders::Writer | Holders::Node)) {
            violated("I1", || format!("region {index} is sealed in a file that its writer may have mapped"));
        }
        region.state = GateState::Open;
        region.opened = Some((epoch, write, read));
        region.changes += 1;
        self.set_word(index, epoch.0 << 1);
        Ok(())
    }

    fn suspend(&self, index: RegionIndex) -> Result<(), RegionError> {
        self.set_suspended(index, GateState::Suspended)
    }

    fn resume(&self, index: RegionIndex) -> Result<(), RegionError> {
        self.set_suspended(index, GateState::Open)
    }

    fn close(&self, index: RegionIndex, next_epoch: Epoch) -> Result<(), RegionError> {
        let current = self.epoch(index);
        if self.region(index)?.state == GateState::Closed && next_epoch > current {
            self.set_word(index, next_epoch.0 << 1 | 1);
            return Ok(());
        }
        if next_epoch <= current {
            return Err(RegionError::EpochOrder { region: index, asked: next_epoch, current });
        }
        self.set_word(index, next_epoch.0 << 1 | 1);
        while self.region(index)?.in_flight > 0 {
            rest(DRAIN_NS);
            if !world(|world| world.running_process().is_some_and(|process| world.is_alive(process))) {
                break;
            }
        }
        let mut region = self.region(index)?;
        region.opened = None;
        region.state = GateState::Closed;
        region.changes += 1;
        Ok(())
    }

    fn share(&self, index: RegionIndex) -> Result<(), RegionError> {
        interrupted();
        let mut region = self.clean(index)?;
        if let Backing::Anonymous(_) = region.backing {
            self.fresh_memory("create the file of a shared region")?;
            self.move_to_file(&mut region, 0, Holders::Node);
        }
        Ok(())
    }

    fn is_copied_to_seal(&self, index: RegionIndex) -> bool {
        let is_copied = |region: MutexGuard<'_, Region>| {
            !matches!(region.backing, Backing::Shared(_, Holders::Node | Holders::Readers))
        };
        self.region(index).is_ok_and(is_copied)
    }

    fn reseat(&self, index: RegionIndex, spare: Option<RegionIndex>) -> Result<(), RegionError> {
        let mut region = self.closed(index)?;
        let region = &mut *region;
        if let Backing::Shared(_, holders @ Holders::Node) = &mut region.backing {
            *holders = Holders::Readers;
            region.dirty_bytes = self.region_bytes;
            return Ok(());
        }
        let takes = |spare: RegionIndex| match self.clean(spare) {
            Ok(mut spare) if matches!(spare.backing, Backing::Shared(_, Holders::Node)) => {
                self.leave_to_host(&mut spare);
                true
            }
            _ => false,
        };
        if !spare.is_some_and(takes) {
            self.fresh_memory("create the file of a sealed region")?;
        }
        let dirty_bytes = region.dirty_bytes as usize;
        self.move_to_file(region, dirty_bytes, Holders::Readers);
        Ok(())
    }

    fn is_shared(&self, index: RegionIndex) -> Option<bool> {
        self.region(index).ok().map(|region| matches!(region.backing, Backing::Shared(..)))
    }

    fn hand_out(&self, index: RegionIndex, access: SharedAccess) -> Result<Shared, RegionError> {
        interrupted();
        let mut region = self.region(index)?;
        let region = &mut *region;
        let (Backing::Shared(file, holders), Some((epoch, ..))) = (&mut region.backing, region.opened) else {
            return Err(RegionError::NotShared { region: index });
        };
        let is_writable = access == SharedAccess::ReadWrite;
        if is_writable && *holders == Holders::Readers {
            return Err(RegionError::NotShared { region: index });
        }
        if *holders == Holders::Node {
            *holders = Holders::Writer;
            region.dirty_bytes = self.region_bytes;
        }
        let mapping =
            Mapping { file: Arc::clone(file), is_writable, region_bytes: self.region_bytes, epoch, index };
        let words: Arc<dyn MappedBytes> = Arc::new(MappedWords(Arc::clone(&self.words)));
        Ok(Shared {
            memory: Mappable::Simulated(Mapped { region: Box::new(mapping), words }),
            attached: Attached {
                region_bytes: self.region_bytes,
                word_offset: u64::from(index.0) * WORD_STRIDE_BYTES,
                words_bytes: self.words.0.len() as u64 * WORD_STRIDE_BYTES,
            },
        })
    }

    fn scrub(&self, index: RegionIndex) -> Result<(), RegionError> {
        interrupted();
        let mut region = self.closed(index)?;
        let region = &mut *region;
        match &mut region.backing {
            Backing::Anonymous(pages) => pages.clear(),
            Backing::Shared(file, Holders::Node) => file.pages.lock().clear(),
            Backing::Shared(..) => self.leave_to_host(region),
        }
        region.dirty_bytes = 0;
        region.changes += 1;
        Ok(())
    }

    fn scrub_away(&self, index: RegionIndex) -> Result<(), RegionError> {
        self.scrub(index)?;
        self.leave_to_host(&mut *self.closed(index)?);
        Ok(())
    }

    fn give_back(&self, index: RegionIndex) -> Result<(), RegionError> {
        interrupted();
        let mut region = self.closed(index)?;
        match (&region.backing, region.dirty_bytes) {
            (Backing::Anonymous(pages), 0) if pages.is_zero() => Ok(()),
            (Backing::Shared(file, Holders::Node), 0) if file.pages.lock().is_zero() => {
                self.leave_to_host(&mut region);
                Ok(())
            }
            (_, dirty_bytes) => Err(RegionError::NotClean { region: index, dirty_bytes }),
        }
    }

    fn verify_zero(&self, index: RegionIndex) -> Result<bool, RegionError> {
        interrupted();
        let region = self.closed(index)?;
        Ok(match &region.backing {
            Backing::Anonymous(pages) => pages.is_zero(),
            Backing::Shared(file, _) => file.pages.lock().is_zero(),
        })
    }

    fn prefault(&self, index: RegionIndex) -> Result<(), RegionError> {
        self.closed(index).map(|_| ())
    }

    fn locked_count(&self) -> u32 {
        0
    }
}

impl SimMemory {
    /// Makes a region anonymous memory without a page.
    fn leave_to_host(&self, region: &mut Region) {
        leave_file(&region.backing);
        region.backing = Backing::Anonymous(Pages::new(self.region_bytes));
        region.changes += 1;
    }

    fn set_suspended(&self, index: RegionIndex, state: GateState) -> Result<(), RegionError> {
        let mut region = self.region(index)?;
        let epoch = self.epoch(index);
        if region.state == GateState::Closed {
            return Err(RegionError::NotOpen { region: index, epoch });
        }
        region.state = state;
        self.set_word(index, epoch.0 << 1 | u64::from(state == GateState::Suspended));
        Ok(())
    }
}

/// Admission through a region's gate, held during an access.
pub(crate) struct Entered<'a> {
    memory: &'a SimMemory,
    index: RegionIndex,
    is_in: bool,
    fence: Fence,
    moved_bytes: Cell<usize>,
    changes: u64,
}

impl Entered<'_> {
    fn admit(&self, offset: u64, bytes: usize) -> Result<(), Refusal> {
        if !self.is_in {
            return Err(self.fence.closed());
        }
        self.moved_bytes.set(self.fence.admit(offset, bytes, self.moved_bytes.get())?);
        Ok(())
    }

    /// Locks the region for one half of a copy. Reports a violation if the region changed since its gate was entered.
    fn region(&self) -> MutexGuard<'_, Region> {
        let region = self.memory.regions[self.index.0 as usize].lock();
        if region.changes != self.changes {
            let epoch = self.fence.epoch;
            violated("I2", || {
                format!(
                    "a copy of epoch {epoch} in region {} continued after the region was closed",
                    self.index
                )
            });
        }
        region
    }
}

impl Inside for Entered<'_> {
    fn fence(&self) -> Fence {
        self.fence
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        self.admit(offset, into.len())?;
        let half = into.len() / 2;
        let (first, second) = into.split_at_mut(half);
        for (offset, into) in [(offset, first), (offset + half as u64, second)] {
            interrupted_inside();
            match &self.region().backing {
                Backing::Anonymous(pages) => pages.read(offset, into),
                Backing::Shared(file, _) => file.pages.lock().read(offset, into),
            }
        }
        Ok(())
    }

    fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), Refusal> {
        self.admit(offset, from.len())?;
        self.fence.admit_write()?;
        let (first, second) = from.split_at(from.len() / 2);
        for (offset, from) in [(offset, first), (offset + first.len() as u64, second)] {
            interrupted_inside();
            let mut region = self.region();
            region.dirty_bytes = region.dirty_bytes.max(offset + from.len() as u64);
            match &mut region.backing {
                Backing::Anonymous(pages) => pages.write(offset, from),
                Backing::Shared(file, _) => file.pages.lock().write(offset, from),
            }
        }
        Ok(())
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_in {
            self.memory.regions[self.index.0 as usize].lock().in_flight -= 1;
        }
    }
}

/// Mapping of a region's file by a client.
#[derive(Debug)]
struct Mapping {
    file: Arc<File>,
    is_writable: bool,
    region_bytes: u64,
    /// Epoch at which the region was handed out to the client, for the oracle.
    epoch: Epoch,
    index: RegionIndex,
}

impl Mapping {
    fn is_inside(&self, offset: u64, bytes: usize) -> bool {
        offset.checked_add(bytes as u64).is_some_and(|end| end <= self.region_bytes)
    }
}

impl MappedBytes for Mapping {
    fn bytes(&self) -> u64 {
        self.region_bytes
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> bool {
        if !self.is_inside(offset, into.len()) {
            return false;
        }
        let half = into.len() / 2;
        let (first, second) = into.split_at_mut(half);
        for (offset, into) in [(offset, first), (offset + half as u64, second)] {
            interrupted_in_mapping();
            self.file.pages.lock().read(offset, into);
        }
        true
    }

    fn copy_in(&self, offset: u64, from: &[u8]) -> bool {
        if !self.is_writable || !self.is_inside(offset, from.len()) {
            return false;
        }
        let (first, second) = from.split_at(from.len() / 2);
        for (offset, from) in [(offset, first), (offset + first.len() as u64, second)] {
            interrupted_in_mapping();
            let serves = self.file.serves.load(Ordering::Relaxed);
            if serves != 0 && serves != self.epoch.0 << 1 {
                violated("I1", || {
                    format!(
                        "a mapping of epoch {} writes region {} at epoch {}{}",
                        self.epoch,
                        self.index,
                        serves >> 1,
                        if serves & 1 != 0 { ", which is sealed" } else { "" }
                    )
                });
            }
            self.file.pages.lock().write(offset, from);
        }
        true
    }

    fn word(&self, _offset: u64) -> Option<u64> {
        None
    }
}

/// Mapping of a node's fence words by a client.
#[derive(Debug)]
struct MappedWords(Arc<Words>);

impl MappedBytes for MappedWords {
    fn bytes(&self) -> u64 {
        self.0.0.len() as u64 * WORD_STRIDE_BYTES
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn copy_out(&self, _offset: u64, _into: &mut [u8]) -> bool {
        false
    }

    fn copy_in(&self, _offset: u64, _from: &[u8]) -> bool {
        false
    }

    fn word(&self, offset: u64) -> Option<u64> {
        interrupted();
        self.0.0.get((offset / WORD_STRIDE_BYTES) as usize).map(|word| word.load(Ordering::SeqCst))
    }
}
