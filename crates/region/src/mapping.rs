//! Mapped memory, by raw pointer: the part of this crate where the addresses are.
//!
//! The idea: a [`Mapping`] owns an address range until it is dropped, a [`Part`] borrows some of it, and both
//! only ever move bytes. Region bytes may be changed by a client's process at any time, so no Rust reference
//! to them exists, nothing is decided from them in place, and every bit pattern is as good as any other. The
//! exceptions are a file that nobody writes any more ([`SealedSlice`]), and memory that is no region of a pool
//! ([`PrivateMemory`]).
//!
//! It never decides when the bytes may be touched: that is the gate's business.
//!
//! Invariant: `base..base + bytes` is mapped readable and writable from construction to drop; parts lie
//! inside and cannot outlive their mapping.
#![allow(unsafe_code)]

use crate::memfd;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, mmap_anonymous, munlock, munmap,
};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Alignment of an anonymous mapping: a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// No host has smaller pages.
const PAGE_BYTES_MIN: usize = 4096;

pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the range stays mapped until drop and any thread may touch it; all accesses are raw copies, fills
// and atomics, whose order the gate provides, or by slices of the one `PrivateMemory` that owns it.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zero pages on a huge-page boundary, none of them present yet.
    fn aligned(bytes: usize) -> Result<Mapping, Errno> {
        let padded = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start: *mut u8 = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                padded,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        }
        .cast();
        let head = start.align_offset(HUGE_PAGE_BYTES);
        let tail = HUGE_PAGE_BYTES - head;
        // SAFETY: head < HUGE_PAGE_BYTES, for pages are aligned, so `base..base + bytes` lies in what was just mapped;
        // the two pieces cut off lie outside of it, and nobody has seen their addresses.
        let base = unsafe {
            let base = start.add(head);
            if head > 0 {
                munmap(start.cast(), head)?;
            }
            if tail > 0 {
                munmap(base.add(bytes).cast(), tail)?;
            }
            base
        };
        Ok(Mapping { base, bytes })
    }

    /// The same for regions.
    pub(crate) fn reserve(bytes: usize) -> Result<Mapping, Errno> {
        let mapping = Mapping::aligned(bytes)?;
        mapping.keep_private()?;
        Ok(mapping)
    }

    pub(crate) fn ask_for_huge_pages(&self) -> Result<(), Errno> {
        self.whole().advise(Advice::LinuxHugepage)
    }

    /// A file's first `bytes`, which must exist. Mapped page by page at once: in one call that takes two
    /// thirds of the time of the faults that verifying or copying would take one by one.
    pub(crate) fn shared(fd: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        let mapping = Mapping { base: base.cast(), bytes };
        mapping.keep_private()?;
        mapping.whole().populate()?;
        Ok(mapping)
    }

    /// Out of core dumps and of forked children.
    fn keep_private(&self) -> Result<(), Errno> {
        self.whole().advise(Advice::LinuxDontDump)?;
        self.whole().advise(Advice::LinuxDontFork)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn whole(&self) -> Part<'_> {
        Part { base: self.base, bytes: self.bytes, mapping: PhantomData }
    }

    /// Panics if the range leaves the mapping: indices are checked before they become offsets.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Part<'_> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: the offset was just checked to lie in the mapping.
        Part { base: unsafe { self.base.add(offset) }, bytes, mapping: PhantomData }
    }

    /// An atomic word in the mapping. Panics if it is misplaced.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.bytes));
        // SAFETY: aligned, for mappings start on pages; inside, as just checked; mapped as long as `self` is
        // borrowed; changed by atomic stores of this process only (others map the file read-only).
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what this value owns; what borrows it is gone. The gate's copy
        // of the address is unused: see `Gate::seat`.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// A piece of a mapping.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    base: *mut u8,
    bytes: usize,
    mapping: PhantomData<&'a Mapping>,
}

impl Part<'_> {
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the part is mapped. Of the advices used here only DONTNEED changes bytes, to zeros, which
        // are as good as any others.
        unsafe { madvise(self.base.cast(), self.bytes, advice) }
    }

    /// Zeroes the first `bytes`.
    pub(crate) fn zero(&self, bytes: usize) {
        // SAFETY: the length is cut to the part, which is mapped writable.
        unsafe { ptr::write_bytes(self.base, 0, bytes.min(self.bytes)) };
    }

    /// Whether every byte is zero. Looks at whole words; parts are multiples of the page size.
    pub(crate) fn is_zero(&self) -> bool {
        const STEP_WORDS: usize = PAGE_BYTES_MIN / 8;
        let words: *const u64 = self.base.cast_const().cast();
        (0..self.bytes / 8).step_by(STEP_WORDS).all(|start| {
            let mut seen = 0;
            for index in start..start + STEP_WORDS {
                // SAFETY: parts start on pages and are multiples of them, so each word is aligned and inside.
                seen |= unsafe { words.add(index).read() };
            }
            seen == 0
        })
    }

    /// Copies the first `bytes` of another part to the start of this one.
    pub(crate) fn copy_from(&self, other: &Part<'_>, bytes: usize) {
        let bytes = bytes.min(self.bytes).min(other.bytes);
        // SAFETY: both ranges are mapped and cut to their parts; `copy` allows overlap.
        unsafe { ptr::copy(other.base, self.base, bytes) };
    }

    /// Makes all pages present without changing a byte.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // Kernels before 5.14.
            Err(Errno::INVAL) => {
                for offset in (0..self.bytes).step_by(PAGE_BYTES_MIN) {
                    // SAFETY: the byte lies in the part; the atomic `or` of nothing writes its page and keeps
                    // its value, whoever else writes.
                    unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.fetch_or(0, Ordering::Relaxed);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Keeps the pages in memory from when they are present; makes none present.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        // SAFETY: changes where the kernel may put the pages, not their bytes.
        unsafe { mlock_with(self.base.cast(), self.bytes, MlockFlags::ONFAULT) }
    }

    pub(crate) fn unlock(&self) -> Result<(), Errno> {
        // SAFETY: as for lock.
        unsafe { munlock(self.base.cast(), self.bytes) }
    }

    /// Returns private pages to the host; they read as zeros from here on.
    pub(crate) fn discard(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxDontNeed)
    }
}

/// Memory that only this process has, lent out as slices under the rules of any other memory.
pub struct PrivateMemory(Mapping);

impl PrivateMemory {
    /// Zeros on a boundary of [`HUGE_PAGE_BYTES`], none of them present yet.
    pub fn reserve(bytes: usize) -> Result<PrivateMemory, Errno> {
        Mapping::aligned(bytes).map(PrivateMemory)
    }

    /// Asks for huge pages.
    pub fn ask_for_huge_pages(&self) -> Result<(), Errno> {
        self.0.ask_for_huge_pages()
    }

    /// Makes pages of a part present, as if each had been written to. Panics if the part leaves the memory.
    pub fn populate(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        self.0.part(offset, bytes).advise(Advice::LinuxPopulateWrite)
    }

    /// Where it begins, for whoever lends parts of it out and keeps account of them.
    pub fn base(&self) -> *mut u8 {
        self.0.base
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until drop, and initialised, for fresh pages are zeros; nothing writes while it is borrowed,
        // for writing takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.base, self.0.bytes) }
    }

    /// All of it, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.0.base, self.0.bytes) }
    }
}

/// A memory file, mapped. Once its region has left it and nobody looks at it any more it is unmapped and gives its
/// pages up, though a zombie may map it still. A file that no region has left, as when a node ends, keeps its bytes:
/// the fence words still let its clients in, and they must not read zeros.
pub(crate) struct FileMemory {
    fd: OwnedFd,
    is_left: AtomicBool,
    /// Until it is dropped.
    mapping: Option<Mapping>,
    bytes: usize,
}

impl FileMemory {
    pub(crate) fn new(fd: OwnedFd, mapping: Mapping) -> FileMemory {
        FileMemory { fd, is_left: AtomicBool::new(false), bytes: mapping.bytes(), mapping: Some(mapping) }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Its region has closed its gate and goes on without it.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    /// Panics if it is being dropped, when nobody can ask.
    pub(crate) fn part(&self) -> Part<'_> {
        self.mapping.as_ref().map(Mapping::whole).expect("mapped until it is dropped")
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        // Unmapped first: punching is faster the fewer map it.
        drop(self.mapping.take());
        if self.is_left.load(Ordering::Acquire) {
            // Our seals permit it, and without it the pages go with the last holder.
            let _ = memfd::punch(self.fd.as_fd(), self.bytes as u64);
        }
    }
}

/// Bytes of a sealed region, where they are. They stay as they are as long as this lives, whatever becomes of the
/// region; the right to them has to be looked at again before anything that comes of them is given to anybody.
pub struct SealedSlice {
    memory: Arc<FileMemory>,
    offset: usize,
    bytes: usize,
}

impl SealedSlice {
    /// `memory` must be that of a region that was reseated. Nothing if the range leaves it.
    pub(crate) fn new(memory: Arc<FileMemory>, offset: u64, bytes: usize) -> Option<SealedSlice> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= memory.bytes).then_some(SealedSlice { memory, offset, bytes })
    }
}

impl AsRef<[u8]> for SealedSlice {
    fn as_ref(&self) -> &[u8] {
        let base = self.memory.part().base();
        // SAFETY:
        // * inside: the range was checked against the mapping, which lives as long as `self`; bytes need no alignment.
        // * unchanged: a file that a region was reseated to is written by `reseat` before anybody else sees it. Behind
        //   that this process has no way to write it: the gate opens for writers only before a clean region
        //   (`Arena::open`), wiping leaves the file, and its pages are punched out only when the last holder is gone.
        //   Other processes get descriptors that cannot write. (A process of the node's own user could reopen one
        //   through /proc, as it could trace the node: it is within the same trust.)
        unsafe { std::slice::from_raw_parts(base.add(self.offset).cast_const(), self.bytes) }
    }
}

impl std::fmt::Debug for SealedSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedSlice").field("offset", &self.offset).field("bytes", &self.bytes).finish()
    }
}
