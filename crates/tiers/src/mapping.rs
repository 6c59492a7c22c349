//! Private memory in chunks of a huge page, each of which can be asked for on its own.
//!
//! The idea: a [`Mapping`] owns an address range, aligned to huge pages, until it is dropped. Nobody else knows of it, so
//! it is lent out as slices under the rules of any other memory.
//!
//! Invariant: `base..base + bytes` is mapped readable and writable from construction to drop.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{ptr, slice};

/// A huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the range belongs to this value alone and is reached through it alone, as with a boxed slice.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; a shared mapping gives out shared slices only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeros on a huge-page boundary, none of them present yet.
    pub(crate) fn reserve(bytes: usize) -> Result<Mapping, Errno> {
        let padded = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start: *mut u8 = unsafe { mmap_anonymous(ptr::null_mut(), padded, protection, flags)? }.cast();
        let head = start.align_offset(HUGE_PAGE_BYTES);
        let tail = HUGE_PAGE_BYTES - head;
        // SAFETY: head < HUGE_PAGE_BYTES, for pages are aligned, so base and what is cut off behind `base + bytes` lie in
        // what was just mapped; nobody has seen the addresses that are cut off.
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

    /// Asks for huge pages.
    pub(crate) fn ask_for_huge_pages(&self) -> Result<(), Errno> {
        // SAFETY: the range is mapped; the advice changes no bytes.
        unsafe { madvise(self.base.cast(), self.bytes, Advice::LinuxHugepage) }
    }

    /// Makes pages of a part present, as if each had been written to. Panics if the part leaves the mapping.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        let part = &self.bytes()[offset..offset + bytes];
        // SAFETY: the part is mapped; populating changes no bytes.
        unsafe { madvise(part.as_ptr().cast_mut().cast(), part.len(), Advice::LinuxPopulateWrite) }
    }

    /// Where it begins, for whoever lends parts of it out and keeps account of them.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until drop, and initialised, for fresh pages are zeros; nothing writes while it is borrowed, for
        // writing takes `&mut self`.
        unsafe { slice::from_raw_parts(self.base, self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { slice::from_raw_parts_mut(self.base, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what this value owns; slices of it borrow it and are gone.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
