//! Mapped memory, by raw pointer. All address arithmetic on it is here.
//!
//! The idea: a [`Mapping`] owns an address range until it is dropped, a [`MappedSlice`] borrows some of it, and both
//! only move bytes. A client's process may change region bytes at any time. So no Rust reference to them exists, no
//! decision is taken from them in place, and every bit pattern is valid. There are two exceptions: a file that nobody
//! writes any more ([`SealedSlice`]), and memory that is no region of a pool ([`PrivateMemory`]).
//!
//! This module never decides when the bytes may be touched: the gate does.
//!
//! Invariant: `base..base + bytes` is mapped readable and writable from construction to drop. Slices lie inside and
//! cannot outlive their mapping.
#![allow(unsafe_code)]

use crate::{memfd, numa};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, mmap_anonymous, munlock, munmap,
};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Bytes of a huge page, to which anonymous mappings are aligned.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of the smallest page of any host.
pub(crate) const PAGE_BYTES_MIN: usize = 4096;

/// Address range that this process has mapped for reading and writing. Dropping it unmaps the range.
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the range stays mapped until drop, and any thread may touch it. All accesses are raw copies, fills and
// atomics, which the gate orders, or go by slices of the one `PrivateMemory` that owns the mapping.
unsafe impl Send for Mapping {}
// SAFETY: the accesses that a shared reference permits are those above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps private zero pages on a huge-page boundary, none of them present yet.
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
        // SAFETY: pages are aligned, so head < HUGE_PAGE_BYTES, and `base..base + bytes` lies in the new mapping. The
        // two ranges that are unmapped lie outside of it, and nobody has seen their addresses.
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

    /// Maps private zero pages for regions, excluded from core dumps and forked children.
    pub(crate) fn reserve(bytes: usize) -> Result<Mapping, Errno> {
        let mapping = Mapping::aligned(bytes)?;
        mapping.keep_private()?;
        Ok(mapping)
    }

    pub(crate) fn ask_for_huge_pages(&self) -> Result<(), Errno> {
        self.whole().advise(Advice::LinuxHugepage)
    }

    /// Maps the first `bytes` of a file or device, which must exist. Makes no page present, but of a file of huge pages
    /// it reserves all of them.
    pub(crate) fn shared(fd: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        let mapping = Mapping { base: base.cast(), bytes };
        mapping.keep_private()?;
        Ok(mapping)
    }

    /// Excludes the pages from core dumps and forked children.
    fn keep_private(&self) -> Result<(), Errno> {
        self.whole().advise(Advice::LinuxDontDump)?;
        self.whole().advise(Advice::LinuxDontFork)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn whole(&self) -> MappedSlice<'_> {
        MappedSlice { base: self.base, bytes: self.bytes, mapping: PhantomData }
    }

    /// Returns a slice of the mapping. Panics if the range leaves it: callers check indices before they make offsets
    /// of them.
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> MappedSlice<'_> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: the assertion above shows that the offset lies in the mapping.
        MappedSlice { base: unsafe { self.base.add(offset) }, bytes, mapping: PhantomData }
    }

    /// Returns an atomic word in the mapping. Panics if the offset is not aligned or outside.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.bytes));
        // SAFETY: aligned, because mappings start on pages; inside, by the assertion above; mapped as long as `self`
        // is borrowed. It is changed by atomic stores of this process only (others map the file read-only).
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what this value owns, and whatever borrowed it is gone. The gate does not use its
        // copy of the address any more: `Gate::seat` has given it another one, or the arena with the gate is gone.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// Part of a [`Mapping`], which it borrows.
#[derive(Clone, Copy)]
pub(crate) struct MappedSlice<'a> {
    base: *mut u8,
    bytes: usize,
    mapping: PhantomData<&'a Mapping>,
}

impl<'a> MappedSlice<'a> {
    /// Returns a part of the slice. Panics if it leaves the slice.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> MappedSlice<'a> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: the assertion above shows that the offset lies in the slice, which is mapped.
        MappedSlice { base: unsafe { self.base.add(offset) }, bytes, mapping: PhantomData }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the slice is mapped. Of the advice used here only DONTNEED changes bytes, to zeros, and every bit
        // pattern is valid.
        unsafe { madvise(self.base.cast(), self.bytes, advice) }
    }

    /// Zeroes the first `bytes`.
    pub(crate) fn zero(&self, bytes: usize) {
        // SAFETY: the length is limited to the slice, which is mapped writable.
        unsafe { ptr::write_bytes(self.base, 0, bytes.min(self.bytes)) };
    }

    /// Reports whether every byte is zero. It reads whole words: slices are multiples of the page size.
    pub(crate) fn is_zero(&self) -> bool {
        const STEP_WORDS: usize = PAGE_BYTES_MIN / 8;
        let words: *const u64 = self.base.cast_const().cast();
        (0..self.bytes / 8).step_by(STEP_WORDS).all(|start| {
            let mut seen = 0;
            for index in start..start + STEP_WORDS {
                // SAFETY: slices start on pages and are multiples of them, so each word is aligned and inside.
                seen |= unsafe { words.add(index).read() };
            }
            seen == 0
        })
    }

    /// Copies the first `bytes` of another slice to the start of this one.
    pub(crate) fn copy_from(&self, other: &MappedSlice<'_>, bytes: usize) {
        let bytes = bytes.min(self.bytes).min(other.bytes);
        // SAFETY: both ranges are mapped and limited to their slices; `copy` allows overlap.
        unsafe { ptr::copy(other.base, self.base, bytes) };
    }

    /// Makes all pages of memory that is never short present, without changing a byte. One call takes two thirds of the
    /// time of the single faults that verifying or copying would take.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => {
                for offset in (0..self.bytes).step_by(PAGE_BYTES_MIN) {
                    // SAFETY: the byte lies in the slice. The atomic `or` with 0 writes its page and keeps its value,
                    // whoever else writes.
                    unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.fetch_or(0, Ordering::Relaxed);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Makes all pages present without changing a byte. If there is no memory for one, it is an error and no signal.
    pub(crate) fn populate_or_fail(&self) -> Result<(), Errno> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // The access would have been answered by a signal.
            Err(Errno::FAULT) => Err(Errno::NOMEM),
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => Err(Errno::NOSYS),
            other => other,
        }
    }

    /// Requests that pages come from one NUMA node only. It moves none that are present.
    pub(crate) fn bind(&self, node: u32) -> Result<(), Errno> {
        numa::bind(self.base, self.bytes, node)
    }

    /// Counts the pages, and those of them that are not on a NUMA node.
    pub(crate) fn astray(&self, node: u32, page_bytes: usize) -> Result<(usize, usize), Errno> {
        let nodes = numa::nodes_from(self.base, self.bytes, page_bytes)?;
        Ok((nodes.len(), nodes.iter().filter(|on| u32::try_from(**on) != Ok(node)).count()))
    }

    /// Keeps pages in memory from the time at which they are present. It makes none present.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the call changes where the kernel may put the pages, not their bytes.
        unsafe { mlock_with(self.base.cast(), self.bytes, MlockFlags::ONFAULT) }
    }

    pub(crate) fn unlock(&self) -> Result<(), Errno> {
        // SAFETY: the call changes where the kernel may put the pages, not their bytes.
        unsafe { munlock(self.base.cast(), self.bytes) }
    }

    /// Returns private pages to the host. They read as zeros from here on.
    pub(crate) fn discard(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxDontNeed)
    }
}

/// Memory that only this process has. Its bytes are borrowed as slices, under Rust's usual rules.
pub struct PrivateMemory(Mapping);

impl PrivateMemory {
    /// Maps zeros on a boundary of [`HUGE_PAGE_BYTES`], without a page present.
    pub fn reserve(bytes: usize) -> Result<PrivateMemory, Errno> {
        Mapping::aligned(bytes).map(PrivateMemory)
    }

    /// Asks for huge pages.
    pub fn ask_for_huge_pages(&self) -> Result<(), Errno> {
        self.0.ask_for_huge_pages()
    }

    /// Makes the pages of a range present, as if each had been written. Panics if the range leaves the memory.
    pub fn populate(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        self.0.slice(offset, bytes).advise(Advice::LinuxPopulateWrite)
    }

    /// Returns the start of the memory, for a caller that lends out parts of it and keeps account of them.
    pub fn base(&self) -> *mut u8 {
        self.0.base
    }

    /// Returns the whole memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until drop, and initialised, because fresh pages are zeros. Nothing writes while it is
        // borrowed, because writing takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.base, self.0.bytes) }
    }

    /// Returns the whole memory for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped until drop, and initialised, because fresh pages are zeros. `&mut self` excludes other
        // borrows.
        unsafe { std::slice::from_raw_parts_mut(self.0.base, self.0.bytes) }
    }
}

/// Memory file of a region, mapped. Once its region has left the file and nobody uses it any more, it is unmapped and
/// its pages go back to the host, even if an old client still maps it. A file that its region has not left, as when a
/// node ends, keeps its bytes: the fence words still admit its clients, and they must not read zeros.
pub(crate) struct FileMemory {
    fd: OwnedFd,
    /// True once the region does not use the file any more.
    is_left: AtomicBool,
    /// Mapping of the file; `None` only while this value is dropped.
    mapping: Option<Mapping>,
    /// Size of the file.
    bytes: usize,
}

impl FileMemory {
    pub(crate) fn new(fd: OwnedFd, mapping: Mapping) -> FileMemory {
        FileMemory { fd, is_left: AtomicBool::new(false), bytes: mapping.bytes(), mapping: Some(mapping) }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Notes that the region has closed its gate and does not use the file any more.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    /// Returns the mapped bytes. Panics only while this value is dropped, when nobody can call it.
    pub(crate) fn slice(&self) -> MappedSlice<'_> {
        self.mapping.as_ref().map(Mapping::whole).expect("mapped until it is dropped")
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        // Unmapped first: punching is faster the fewer processes map the file.
        drop(self.mapping.take());
        if self.is_left.load(Ordering::Acquire) {
            // The seals of the file permit punching. If it fails, the pages go when the last process unmaps the file.
            let _ = memfd::punch(self.fd.as_fd(), self.bytes as u64);
        }
    }
}

/// Bytes of a sealed region, in place. They do not change as long as this value lives, whatever happens to the
/// region. Before a result made from them is given to anybody, the right to the region must be checked again.
pub struct SealedSlice {
    memory: Arc<FileMemory>,
    offset: usize,
    bytes: usize,
}

impl SealedSlice {
    /// Returns a range of `memory`, which must be that of a region that was reseated; `None` if the range leaves it.
    pub(crate) fn new(memory: Arc<FileMemory>, offset: u64, bytes: usize) -> Option<SealedSlice> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= memory.bytes).then_some(SealedSlice { memory, offset, bytes })
    }
}

impl AsRef<[u8]> for SealedSlice {
    fn as_ref(&self) -> &[u8] {
        let base = self.memory.slice().base();
        // SAFETY:
        // * inside: the range was checked against the mapping, which lives as long as `self`; bytes need no
        //   alignment.
        // * unchanged: `reseat` ends all writing of the file, which nobody but this process could write. After that
        //   this process has no way to write it: a gate opens for writers only before a clean region (`Arena::open`),
        //   wiping leaves the file, and its pages are punched out only when the last holder is gone. Other processes
        //   get descriptors that cannot write. (A process of the node's own user could reopen one through /proc, but it
        //   could also trace the node: it has the same trust.)
        unsafe { std::slice::from_raw_parts(base.add(self.offset).cast_const(), self.bytes) }
    }
}

impl std::fmt::Debug for SealedSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedSlice").field("offset", &self.offset).field("bytes", &self.bytes).finish()
    }
}
