//! Mark that does not survive a fork. It shows if this is still the process that made it, without a system call for
//! each check.
//!
//! The mark is a page that the kernel fills with zeros in a forked child (`MADV_WIPEONFORK`).
#![allow(unsafe_code)]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;
const SET: u64 = 1;

/// Mark of the process that made it.
#[derive(Debug)]
pub struct ForkMark {
    page: *mut u8,
}

// SAFETY: the page lives until drop and is only read, atomically.
unsafe impl Send for ForkMark {}
// SAFETY: as for Send.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process. Fails only with an error of the system.
    pub fn new() -> io::Result<ForkMark> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE)? };
        let mark = ForkMark { page: page.cast() };
        // SAFETY: exactly the page just mapped, which nobody else knows. The advice only changes the page's contents in
        // a child.
        unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork)? };
        mark.word().store(SET, Ordering::Relaxed);
        Ok(mark)
    }

    /// Reports whether this process is a child of the one that made the mark.
    pub fn is_forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) != SET
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped until drop, aligned, and accessed through this atomic only.
        unsafe { AtomicU64::from_ptr(self.page.cast()) }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly the page that `new` mapped; no reference to it outlives a call.
        let _ = unsafe { munmap(self.page.cast(), PAGE_BYTES) };
    }
}
