//! The fence words of a window's regions, as their node shows them: whether the memory is still what it was.
#![allow(unsafe_code)]

use farpool_functions::setup::FenceAt;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module. Without a node there are none, and memory stays what it is.
#[derive(Debug)]
pub struct Fences {
    base: *const u8,
    bytes: usize,
    fences: Vec<FenceAt>,
}

// SAFETY: the pointer is to a mapping of this process, valid until drop from any thread; it is used for atomic loads
// alone.
unsafe impl Send for Fences {}
// SAFETY: as for Send.
unsafe impl Sync for Fences {}

impl Fences {
    /// Maps the words.
    pub fn new(words: Option<&(OwnedFd, u64)>, fences: Vec<FenceAt>) -> io::Result<Fences> {
        let Some((file, bytes)) = words else {
            return Ok(Fences { base: std::ptr::null(), bytes: 0, fences: Vec::new() });
        };
        let bytes = *bytes as usize;
        let is_inside = |fence: &FenceAt| fence.offset.is_multiple_of(8) && fence.offset + 8 <= bytes as u64;
        if !fences.iter().all(is_inside) || rustix::fs::fstat(file)?.st_size < bytes as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing; the file is as long, and its
        // node has sealed its length.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        Ok(Fences { base: base.cast_const().cast(), bytes, fences })
    }

    /// Whether all regions are what they were.
    pub fn are_up(&self) -> bool {
        self.fences.iter().all(|fence| {
            // SAFETY: `new` has checked that the word lies in the mapping and is aligned; the node changes it by atomic
            // stores.
            let word = unsafe { AtomicU64::from_ptr(self.base.add(fence.offset as usize).cast_mut().cast()) };
            word.load(Ordering::SeqCst) == fence.word
        })
    }
}

impl Drop for Fences {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: unmaps exactly what `new` mapped; nothing borrows from it.
            let _ = unsafe { munmap(self.base.cast_mut().cast(), self.bytes) };
        }
    }
}
