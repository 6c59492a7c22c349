//! The arena: all region memory of one node, and every change of a region's state.
//!
//! The idea: address space for all regions is reserved once and never moves. Pages come when they are prefaulted or
//! written, and go when a region is given back. A region that a local client maps gets a memory file of its own,
//! which ends with the lease. A change of a region takes the lock of its slot. Copies take no lock: they pass the
//! gate. Regions of huge pages are files from the start and keep their pages; those of a device lie on it and are never
//! files (`ground.rs`).
//!
//! The life of a region here: `prefault`, `lock` (optional), `share` (if a local client will map it), `verify_zero`,
//! `open`, copies, `suspend` and `resume`, `close`, then either `reseat` and `open` (sealed) or `scrub`. `give_back`
//! is possible at any time while the region is closed and clean.
//!
//! The arena never raises an epoch by itself, never decides who is admitted, and never waits for a client.
//!
//! Invariants: memory is replaced, wiped or given back only behind a closed gate without copies inside, and the
//! slot's lock keeps the gate closed meanwhile. A file that a client may write never holds another lease's bytes
//! (invariants I3 and I4 of ARCHITECTURE.md).

use crate::donation::Donation;
use crate::error::RegionError;
use crate::fence_words::{FenceWords, WORD_STRIDE_BYTES};
use crate::gate::{EPOCH_MAX, Entered, Gate};
use crate::ground::Ground;
use crate::mapping::{FileMemory, MappedSlice, SealedSlice};
use crate::memfd;
use crate::options::ArenaOptions;
use farpool_lock::{Mutex, MutexGuard};
use farpool_wire::limits::{NODE_REGIONS_MAX, REGION_BYTES_MAX, REGION_BYTES_MIN};
use farpool_wire::{Code, Epoch, Handle, Refusal, RegionIndex};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that `prefault` touches between two releases of the slot's lock: about 10 ms where the host backs memory
/// lazily.
const PREFAULT_STEP_BYTES: usize = 2 << 20;

/// Access that the receiver of a shared region's descriptor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedAccess {
    /// Mapping for reading.
    Read,
    /// Mapping for reading and writing. Only for the file of a lease, never for a sealed region.
    ReadWrite,
}

/// All region memory of one node: a gate, a fence word and a slot with its memory for each region.
pub struct Arena {
    region_bytes: u64,
    /// True to lock pages in memory when they are prefaulted or shared.
    lock: bool,
    /// Fence words of all regions, in a file that local clients can map for reading.
    words: FenceWords,
    /// Gate of each region, which every copy passes.
    gates: Box<[Gate]>,
    /// Slot of each region. Its lock is held while the region's state or memory is changed.
    slots: Box<[Mutex<Slot>]>,
    /// Number of regions whose pages are locked in memory.
    locked_count: AtomicU32,
    /// Kind of the memory, for reports.
    donation: Donation,
    /// Memory of all regions.
    ground: Ground,
    /// Held while a region of huge pages changes its file, because there are pages for one file more only.
    moving: Mutex<()>,
}

/// State of a region's gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GateState {
    Closed,
    Open,
    Suspended,
}

/// State of a region that its lock protects.
struct Slot {
    state: GateState,
    /// True if the region's pages are locked in memory.
    is_locked: bool,
    backing: Backing,
}

/// Memory of a region.
enum Backing {
    /// The region's range of the addresses of all regions.
    Range,
    /// Memory file.
    File { memory: Arc<FileMemory>, holders: Holders },
}

/// Processes that may have a descriptor of a region's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holders {
    /// The node alone.
    Node,
    /// The node and a client that was given a descriptor while the region was leased.
    Writer,
    /// The node and readers. Nobody writes the file any more.
    Readers,
}

impl Arena {
    /// Reserves the regions. All begin closed at epoch 0. They are clean, except those of a device. Ordinary memory has
    /// no page present, huge pages are all taken.
    ///
    /// Errors: [`RegionError::RegionBytes`], [`RegionError::RegionCount`], [`RegionError::HostMemory`],
    /// [`RegionError::Donation`], [`RegionError::System`].
    pub fn new(options: &ArenaOptions) -> Result<Arena, RegionError> {
        let &ArenaOptions { region_bytes, region_count, lock, .. } = options;
        if !region_bytes.is_power_of_two() || !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region_bytes) {
            return Err(RegionError::RegionBytes { bytes: region_bytes });
        }
        if region_count == 0 || region_count as usize > NODE_REGIONS_MAX {
            return Err(RegionError::RegionCount { count: region_count });
        }
        let ground = Ground::new(options)?;
        let words = FenceWords::new(region_count)?;
        let (mut gates, mut slots) = (Vec::new(), Vec::new());
        for index in 0..region_count {
            let (base, backing) = match ground.range(index) {
                Some(range) => (range.base(), Backing::Range),
                None => {
                    let memory = Arc::new(ground.file()?);
                    (memory.slice().base(), Backing::File { memory, holders: Holders::Node })
                }
            };
            let gate = Gate::new(base);
            if !ground.has_files() {
                gate.set_dirty_bytes(region_bytes);
            }
            gates.push(gate);
            slots.push(Mutex::new(Slot { state: GateState::Closed, is_locked: false, backing }));
        }
        Ok(Arena {
            region_bytes,
            lock,
            words,
            gates: gates.into(),
            slots: slots.into(),
            locked_count: AtomicU32::new(0),
            donation: options.donation.clone(),
            ground,
            moving: Mutex::new(()),
        })
    }

    /// Returns the kind of memory that regions are made of.
    pub fn donation(&self) -> &Donation {
        &self.donation
    }

    /// Returns the NUMA node that the memory was asked from. `None` if none was chosen.
    pub fn numa_node(&self) -> Option<u32> {
        self.ground.numa_node()
    }

    /// Reports whether regions begin clean. Those of a device hold what was there before, and must be scrubbed first.
    pub fn begins_clean(&self) -> bool {
        self.ground.has_files()
    }

    /// Returns the bytes of each region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the number of regions.
    pub fn region_count(&self) -> u32 {
        self.gates.len() as u32
    }

    /// Enters the gate of a region and returns its fence. This is the data path: it takes no lock and makes no system
    /// call.
    ///
    /// Refused: `NoSuchRegion`.
    pub fn enter(&self, region: RegionIndex) -> Result<Entered<'_>, Refusal> {
        match self.gates.get(region.0 as usize) {
            Some(gate) => Ok(gate.enter(self.words.word(region.0), self.region_bytes)),
            None => Err(Refusal::new(Code::NoSuchRegion, u64::from(self.region_count()))),
        }
    }

    /// Opens a closed region: admits whoever shows one of these handles (secret numbers) together with `epoch`, which
    /// must not be below the region's own. A read handle without a write handle makes the region sealed.
    ///
    /// Errors: [`RegionError::NotClosed`], [`RegionError::EpochOrder`], [`RegionError::NotClean`] if a region that
    /// was reseated would be opened for writing, [`RegionError::NoSuchRegion`].
    pub fn open(
        &self,
        region: RegionIndex,
        epoch: Epoch,
        write: Option<Handle>,
        read: Option<Handle>,
    ) -> Result<(), RegionError> {
        let mut slot = self.closed_slot(region)?;
        let current = self.epoch(region);
        if epoch < current || epoch == Epoch(0) || epoch.0 > EPOCH_MAX {
            return Err(RegionError::EpochOrder { region, asked: epoch, current });
        }
        if let (Backing::File { holders: Holders::Readers, .. }, Some(_)) = (&slot.backing, write) {
            // The file of a sealed region must not change, because programs read it in place ([`SealedSlice`]).
            return Err(RegionError::NotClean { region, dirty_bytes: self.gate(region).dirty_bytes() });
        }
        self.gate(region).open(self.word(region), epoch, write, read);
        slot.state = GateState::Open;
        Ok(())
    }

    /// Suspends an open region: refuses copies from now on. Handles and bytes stay, and copies that are inside finish.
    ///
    /// Errors: [`RegionError::NotOpen`], [`RegionError::NoSuchRegion`].
    pub fn suspend(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.set_suspended(region, GateState::Suspended)
    }

    /// Ends a suspension: admits the holders of the same handles again. Errors: as [`Arena::suspend`].
    pub fn resume(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.set_suspended(region, GateState::Open)
    }

    fn set_suspended(&self, region: RegionIndex, state: GateState) -> Result<(), RegionError> {
        let mut slot = self.slot(region)?;
        let epoch = self.epoch(region);
        if slot.state == GateState::Closed {
            return Err(RegionError::NotOpen { region, epoch });
        }
        slot.state = state;
        self.word(region).store(epoch.0 << 1 | u64::from(state == GateState::Suspended), Ordering::SeqCst);
        Ok(())
    }

    /// Closes a region, which ends its epoch. Changes the fence word first, then waits until no copy is inside: at most
    /// the time of one copy of [`crate::GATE_BYTES_MAX`], if its thread gets to run. After this returns, no copy of an
    /// older epoch runs or is admitted (invariant I2). Closing a closed region raises its epoch.
    ///
    /// Errors: [`RegionError::EpochOrder`] unless `next_epoch` is above the region's epoch,
    /// [`RegionError::NoSuchRegion`].
    pub fn close(&self, region: RegionIndex, next_epoch: Epoch) -> Result<(), RegionError> {
        let mut slot = self.slot(region)?;
        let current = self.epoch(region);
        if next_epoch <= current || next_epoch.0 > EPOCH_MAX {
            return Err(RegionError::EpochOrder { region, asked: next_epoch, current });
        }
        self.gate(region).close(self.word(region), next_epoch);
        slot.state = GateState::Closed;
        Ok(())
    }

    /// Returns the file of the fence words, which nobody can map writable.
    pub fn words_fd(&self) -> BorrowedFd<'_> {
        self.words.fd()
    }

    /// Returns the bytes of the file of the fence words.
    pub fn words_bytes(&self) -> u64 {
        self.words.bytes()
    }

    /// Returns the offset of a region's fence word in the file of the fence words. The word is epoch * 2, plus 1 while
    /// nobody may use the region.
    pub fn word_offset(&self, region: RegionIndex) -> u64 {
        u64::from(region.0) * WORD_STRIDE_BYTES
    }

    /// Gives a closed, clean region a fresh memory file of zeros, with all its pages present: a local client can map
    /// it, and sealing it copies nothing unless one has. The anonymous pages go back to the host first, so the node
    /// never holds more memory than its share. Does nothing if the region is such a file already.
    ///
    /// Errors: [`RegionError::NotClosed`], [`RegionError::NotClean`], [`RegionError::NotShared`] if the region lies on
    /// a device, [`RegionError::Donation`], [`RegionError::System`] (the region stays as it was, but its pages may be
    /// gone), [`RegionError::NoSuchRegion`].
    pub fn share(&self, region: RegionIndex) -> Result<(), RegionError> {
        let mut slot = self.clean_slot(region)?;
        match &slot.backing {
            Backing::Range if !self.ground.has_files() => Err(RegionError::NotShared { region }),
            Backing::Range => {
                self.discard(region, &mut slot)?;
                self.move_to_file(region, &mut slot)
            }
            // Nobody else has had the file of a clean region.
            Backing::File { .. } => Ok(()),
        }
    }

    /// Reports whether [`Arena::reseat`] would copy the region's bytes to a file of ordinary memory.
    pub fn is_copied_to_seal(&self, region: RegionIndex) -> bool {
        let is_copied = |slot: MutexGuard<'_, Slot>| {
            !matches!(slot.backing, Backing::File { holders: Holders::Node | Holders::Readers, .. })
        };
        self.ground.is_ordinary() && self.slot(region).is_ok_and(is_copied)
    }

    /// Copies a closed region's bytes into a memory file that only the node writes, so that the region can be sealed.
    /// Whoever mapped the old file sees zeros from now on, and writes to it reach nobody. Anonymous memory becomes a
    /// file that readers can map. Nothing is copied if nobody but the node can write the memory: a device, or a file
    /// that no client was given.
    ///
    /// The file is that of `spare`, if that is a closed, clean region of ordinary memory with a file that no client was
    /// given; `spare` is without a file and without a page afterwards. Otherwise it is a fresh one, which takes eight
    /// times as long, and for a moment both the old and the new memory are in use.
    ///
    /// Errors: [`RegionError::NotClosed`], [`RegionError::Donation`] and [`RegionError::System`] (the region stays as
    /// it was), [`RegionError::NoSuchRegion`].
    pub fn reseat(&self, region: RegionIndex, spare: Option<RegionIndex>) -> Result<(), RegionError> {
        let mut slot = self.closed_slot(region)?;
        match &mut slot.backing {
            Backing::Range if !self.ground.has_files() => Ok(()),
            Backing::File { holders, .. } if *holders == Holders::Node => {
                *holders = Holders::Readers;
                self.gate(region).set_dirty_bytes(self.region_bytes);
                Ok(())
            }
            _ => {
                let _one = (!self.ground.is_ordinary()).then(|| self.moving.lock());
                let dirty_bytes = self.gate(region).dirty_bytes() as usize;
                let file = spare.filter(|spare| *spare != region).and_then(|spare| self.take_file(spare));
                let file = file.map_or_else(|| self.ground.file().map(Arc::new), Ok)?;
                self.move_into(file, region, &mut slot, dirty_bytes, Holders::Readers);
                Ok(())
            }
        }
    }

    /// Returns a descriptor of a region's memory file, with this access, for a client. From then on, any byte of a
    /// region that is not sealed may have been written.
    ///
    /// Errors: [`RegionError::NotShared`] if the region is no file, or to write one that was reseated;
    /// [`RegionError::System`], [`RegionError::NoSuchRegion`].
    pub fn shared_fd(&self, region: RegionIndex, access: SharedAccess) -> Result<OwnedFd, RegionError> {
        let mut slot = self.slot(region)?;
        let refused = |error| RegionError::system("duplicate a shared region's descriptor", 0, error);
        if let Backing::File { holders: holders @ Holders::Node, .. } = &mut slot.backing {
            *holders = Holders::Writer;
            // A client writes its mapping without passing the gate.
            self.gate(region).set_dirty_bytes(self.region_bytes);
        }
        match (&slot.backing, access) {
            (Backing::File { memory, holders: Holders::Writer }, SharedAccess::ReadWrite) => {
                memory.fd().try_clone().map_err(refused)
            }
            (Backing::File { memory, .. }, SharedAccess::Read) => {
                memfd::reopen_read_only(memory.fd()).map_err(|errno| refused(errno.into()))
            }
            _ => Err(RegionError::NotShared { region }),
        }
    }

    /// Returns a range of an open, sealed region in place; `None` if the region is not sealed, lies on a device, or the
    /// range leaves it. The caller checks the right to the bytes, by [`Arena::enter`], before and after it uses them.
    pub fn sealed(&self, region: RegionIndex, offset: u64, bytes: usize) -> Option<SealedSlice> {
        let slot = self.slot(region).ok()?;
        match (&slot.backing, slot.state) {
            (Backing::File { memory, holders: Holders::Readers }, GateState::Open) => {
                SealedSlice::new(Arc::clone(memory), offset, bytes)
            }
            _ => None,
        }
    }

    /// Reports whether the region is a memory file, which clients may be given; `None` if there is no such region.
    pub fn is_shared(&self, region: RegionIndex) -> Option<bool> {
        self.slot(region).ok().map(|slot| matches!(slot.backing, Backing::File { .. }))
    }

    /// Zeroes the bytes of a closed region that may have been written. A region whose file a client was given loses it:
    /// it becomes anonymous memory again, without a page present, or gets another file of huge pages. One whose file
    /// only the node has had keeps it.
    ///
    /// Errors: [`RegionError::NotClosed`], [`RegionError::NoSuchRegion`]; of huge pages also [`RegionError::Donation`]
    /// and [`RegionError::System`], if others have taken the pages (the region stays as it was).
    pub fn scrub(&self, region: RegionIndex) -> Result<(), RegionError> {
        let mut slot = self.closed_slot(region)?;
        let gate = self.gate(region);
        match (&slot.backing, self.ground.range(region.0)) {
            (Backing::Range | Backing::File { holders: Holders::Node, .. }, _) => {
                self.slice(region, &slot).zero(gate.dirty_bytes() as usize);
            }
            (Backing::File { .. }, Some(range)) => self.return_to_range(region, &mut slot, range),
            (Backing::File { .. }, None) => self.move_to_file(region, &mut slot)?,
        }
        gate.set_dirty_bytes(0);
        Ok(())
    }

    /// Zeroes a closed region by returning all its pages to the host at once. Memory whose pages nobody else could use
    /// is scrubbed instead.
    ///
    /// Errors: as [`Arena::scrub`], and [`RegionError::System`].
    pub fn scrub_away(&self, region: RegionIndex) -> Result<(), RegionError> {
        if self.ground.is_ordinary() {
            let mut slot = self.closed_slot(region)?;
            self.return_pages(region, &mut slot)?;
            self.gate(region).set_dirty_bytes(0);
            return Ok(());
        }
        self.scrub(region)
    }

    /// Reports whether every byte of a closed region is zero, by reading all of them. A region with other bytes must
    /// not be granted: nobody may see bytes of another tenant (invariant I4). Each page that is not present costs a
    /// page fault.
    ///
    /// Errors: [`RegionError::NotClosed`], [`RegionError::NoSuchRegion`].
    pub fn verify_zero(&self, region: RegionIndex) -> Result<bool, RegionError> {
        let slot = self.closed_slot(region)?;
        Ok(self.slice(region, &slot).is_zero())
    }

    /// Makes the pages of a closed region present, so that its first holder does not wait for page faults. Locks them
    /// if the arena has that option. It is slow (seconds per GiB where the host backs memory lazily), so call it on a
    /// background thread. It releases the slot's lock after each [`PREFAULT_STEP_BYTES`].
    ///
    /// Errors: [`RegionError::NotClosed`], also if the region is opened meanwhile; [`RegionError::Donation`] if a page
    /// is not on the NUMA node that was asked for, [`RegionError::System`], [`RegionError::NoSuchRegion`].
    pub fn prefault(&self, region: RegionIndex) -> Result<(), RegionError> {
        if self.lock {
            self.lock(region);
        }
        let region_bytes = self.region_bytes as usize;
        let step_bytes = PREFAULT_STEP_BYTES.min(region_bytes);
        for step in (0..region_bytes).step_by(step_bytes) {
            let slot = self.closed_slot(region)?;
            // All pages of a file are present from the start.
            let Backing::Range = slot.backing else { return Ok(()) };
            self.ground.populate(self.slice(region, &slot).part(step, step_bytes))?;
        }
        Ok(())
    }

    /// Keeps the region's pages out of swap from the time they are present. Returns false if the system does not
    /// permit it (`RLIMIT_MEMLOCK`) or there is no such region. The region works without the lock too.
    pub fn lock(&self, region: RegionIndex) -> bool {
        self.slot(region).is_ok_and(|mut slot| self.lock_slot(region, &mut slot))
    }

    /// Counts the regions that are locked in memory.
    pub fn locked_count(&self) -> u32 {
        self.locked_count.load(Ordering::Relaxed)
    }

    /// Returns the pages of a closed, clean region to the host at once. The region stays usable: pages come back on
    /// use. Memory whose pages nobody else could use keeps them.
    ///
    /// Errors: [`RegionError::NotClosed`], [`RegionError::NotClean`], [`RegionError::System`],
    /// [`RegionError::NoSuchRegion`].
    pub fn give_back(&self, region: RegionIndex) -> Result<(), RegionError> {
        let mut slot = self.clean_slot(region)?;
        if self.ground.is_ordinary() { self.return_pages(region, &mut slot) } else { Ok(()) }
    }

    fn slot(&self, region: RegionIndex) -> Result<MutexGuard<'_, Slot>, RegionError> {
        match self.slots.get(region.0 as usize) {
            Some(slot) => Ok(slot.lock()),
            None => Err(RegionError::NoSuchRegion { region, region_count: self.region_count() }),
        }
    }

    /// Locks the slot of a closed region. The gate stays closed and without copies inside as long as the lock is
    /// held.
    fn closed_slot(&self, region: RegionIndex) -> Result<MutexGuard<'_, Slot>, RegionError> {
        let slot = self.slot(region)?;
        match slot.state {
            GateState::Closed => Ok(slot),
            _ => Err(RegionError::NotClosed { region, epoch: self.epoch(region) }),
        }
    }

    /// Locks the slot of a closed, clean region: no client has its file, and nobody has written it since the last
    /// scrub.
    fn clean_slot(&self, region: RegionIndex) -> Result<MutexGuard<'_, Slot>, RegionError> {
        let slot = self.closed_slot(region)?;
        match self.gate(region).dirty_bytes() {
            0 => Ok(slot),
            dirty_bytes => Err(RegionError::NotClean { region, dirty_bytes }),
        }
    }

    /// Returns the gate of a region. The index must be one that `slot` has checked, also for `word` and `epoch`.
    fn gate(&self, region: RegionIndex) -> &Gate {
        &self.gates[region.0 as usize]
    }

    fn word(&self, region: RegionIndex) -> &AtomicU64 {
        self.words.word(region.0)
    }

    fn epoch(&self, region: RegionIndex) -> Epoch {
        Epoch(self.word(region).load(Ordering::SeqCst) >> 1)
    }

    /// Returns the memory that the region has now.
    fn slice<'a>(&'a self, region: RegionIndex, slot: &'a Slot) -> MappedSlice<'a> {
        match &slot.backing {
            Backing::Range => self.ground.range(region.0).expect("a region in its range has one"),
            Backing::File { memory, .. } => memory.slice(),
        }
    }

    fn lock_slot(&self, region: RegionIndex, slot: &mut Slot) -> bool {
        if !slot.is_locked && self.slice(region, slot).lock().is_ok() {
            slot.is_locked = true;
            self.locked_count.fetch_add(1, Ordering::Relaxed);
        }
        slot.is_locked
    }

    /// Clears the mark that the region's pages are locked in memory, because they were unlocked or unmapped.
    fn forget_lock(&self, slot: &mut Slot) {
        if std::mem::take(&mut slot.is_locked) {
            self.locked_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the pages of a region's range to the host, also while the region is a file.
    fn discard(&self, region: RegionIndex, slot: &mut Slot) -> Result<(), RegionError> {
        let Some(range) = self.ground.range(region.0) else { return Ok(()) };
        let refused = |errno| RegionError::system("free a region's pages", self.region_bytes, errno);
        // Locked pages would refuse to go. Unlocking pages that are not locked does nothing.
        range.unlock().map_err(refused)?;
        self.forget_lock(slot);
        range.discard().map_err(refused)
    }

    /// Returns all pages of a closed region of ordinary memory to the host. It has no file afterwards.
    fn return_pages(&self, region: RegionIndex, slot: &mut Slot) -> Result<(), RegionError> {
        match (&slot.backing, self.ground.range(region.0)) {
            // The pages of the range went when the region became a file.
            (Backing::File { .. }, Some(range)) => {
                self.return_to_range(region, slot, range);
                Ok(())
            }
            _ => self.discard(region, slot),
        }
    }

    /// Replaces the file behind the closed gate by the region's range, which has no page present.
    fn return_to_range(&self, region: RegionIndex, slot: &mut Slot, range: MappedSlice<'_>) {
        self.gate(region).seat(range.base());
        self.leave_file(slot, Backing::Range);
    }

    /// Takes the file of a closed, clean region of ordinary memory that no client was given. `None` if it has none.
    fn take_file(&self, spare: RegionIndex) -> Option<Arc<FileMemory>> {
        let (mut slot, range) = (self.clean_slot(spare).ok()?, self.ground.range(spare.0)?);
        if !matches!(slot.backing, Backing::File { holders: Holders::Node, .. }) {
            return None;
        }
        self.gate(spare).seat(range.base());
        self.forget_lock(&mut slot);
        match std::mem::replace(&mut slot.backing, Backing::Range) {
            Backing::File { memory, .. } => Some(memory),
            Backing::Range => None,
        }
    }

    /// Replaces the memory behind the closed gate of a region by a fresh file of zeros.
    fn move_to_file(&self, region: RegionIndex, slot: &mut Slot) -> Result<(), RegionError> {
        let _one = (!self.ground.is_ordinary()).then(|| self.moving.lock());
        let file = Arc::new(self.ground.file()?);
        self.move_into(file, region, slot, 0, Holders::Node);
        Ok(())
    }

    /// Replaces the memory behind the closed gate by a file of zeros, and copies the region's first `keep_bytes` bytes
    /// to it.
    fn move_into(
        &self,
        memory: Arc<FileMemory>,
        region: RegionIndex,
        slot: &mut Slot,
        keep_bytes: usize,
        holders: Holders,
    ) {
        memory.slice().copy_from(&self.slice(region, slot), keep_bytes);
        let gate = self.gate(region);
        gate.seat(memory.slice().base());
        // A file that readers have is not clean, whatever it holds: it must not be granted again.
        gate.set_dirty_bytes(if holders == Holders::Node { keep_bytes as u64 } else { self.region_bytes });
        if let Backing::Range = slot.backing {
            // The region's range counts as clean from here on. If its pages cannot go back to the host, their bytes
            // must therefore be wiped.
            if self.discard(region, slot).is_err() {
                self.slice(region, slot).zero(keep_bytes);
            }
        }
        self.leave_file(slot, Backing::File { memory, holders });
        if self.lock {
            self.lock_slot(region, slot);
        }
    }

    /// Replaces the backing of a slot whose gate is already seated on the new one. The pages of the old file go once
    /// no [`SealedSlice`] uses it any more.
    fn leave_file(&self, slot: &mut Slot, next: Backing) {
        if let Backing::File { memory, .. } = std::mem::replace(&mut slot.backing, next) {
            // The mapping will be unmapped, which unlocks it.
            self.forget_lock(slot);
            memory.leave();
        }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena")
            .field("region_bytes", &self.region_bytes)
            .field("region_count", &self.region_count())
            .finish_non_exhaustive()
    }
}
