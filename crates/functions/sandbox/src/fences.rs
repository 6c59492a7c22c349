//! Fence words of the regions in a window, which show whether the node has revoked the memory.
#![allow(unsafe_code)]

use farpool_functions::setup::FenceAt;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mapping of a node's fence words. Without a node there are none, and no memory is ever revoked.
#[derive(Debug)]
pub struct Fences {
    base: *const u8,
    /// Size of the mapping in bytes; 0 if there is none.
    bytes: usize,
    /// Fence words of the window's regions: where each lies, and the value that it has until its region is revoked.
    fences: Vec<FenceAt>,
}

// SAFETY: the pointer is to a mapping of this process that is valid until drop, from any thread. It is used for
// atomic loads only.
unsafe impl Send for Fences {}
// SAFETY: through a shared reference, the pointer is used for atomic loads only.
unsafe impl Sync for Fences {}

impl Fences {
    /// Maps the fence words from their file, whose size in bytes comes with it. `fences` says which of them to look at.
    pub fn new(words: Option<&(OwnedFd, u64)>, fences: Vec<FenceAt>) -> io::Result<Fences> {
        let Some((file, bytes)) = words else {
            return Ok(Fences { base: std::ptr::null(), bytes: 0, fences: Vec::new() });
        };
        let bytes = *bytes as usize;
        let is_inside = |fence: &FenceAt| fence.offset.is_multiple_of(8) && fence.offset + 8 <= bytes as u64;
        if !fences.iter().all(is_inside) || rustix::fs::fstat(file)?.st_size < bytes as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing. The file has this length, and
        // its node has sealed its size.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        Ok(Fences { base: base.cast_const().cast(), bytes, fences })
    }

    /// Reports whether no region of the window was revoked.
    pub fn are_up(&self) -> bool {
        self.fences.iter().all(|fence| {
            // SAFETY: `new` has checked that the word lies in the mapping and is aligned. The node changes it by
            // atomic stores.
            let word = unsafe { AtomicU64::from_ptr(self.base.add(fence.offset as usize).cast_mut().cast()) };
            word.load(Ordering::SeqCst) == fence.word
        })
    }
}

impl Drop for Fences {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: it unmaps exactly what `new` has mapped, and nothing borrows from it.
            let _ = unsafe { munmap(self.base.cast_mut().cast(), self.bytes) };
        }
    }
}
