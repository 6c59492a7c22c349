//! Memory file of a node that is mapped into this process: raw copies in and out, and fence words (numbers by which the
//! node shows whether a region may still be used).
//!
//! No Rust reference into the mapped bytes ever exists, because the node, and after a revocation other processes, may
//! write them at any time. Bytes are copied to and from private memory. A copy is valid only after the fence word was
//! found unchanged.
#![allow(unsafe_code)]

use super::MappedBytes;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a writable mapping that are populated together, before the first write to any of them.
const STEP_BYTES: usize = 2 << 20;

/// Permitted access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// A mapping of the first `bytes` of a file.
///
/// Its pages are populated as they are used, because a process often uses a small part of a region: one of two copies,
/// a few columns, some rows. The kernel maps 16 pages at a read fault, but only one at a write fault. Therefore steps
/// of a writable mapping are populated before they are written.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
    access: Access,
    /// Steps of a writable mapping: true once the step was populated.
    populated: Box<[AtomicBool]>,
}

// SAFETY: the pointer is to a mapping of this process, valid until drop from any thread; every access is a
// raw copy or an atomic load, so sharing it races no more than the peers on the other side already do.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference permits only raw copies and atomic accesses, as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the memory. Refused if the file is shorter.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize, access: Access) -> io::Result<Mapping> {
        let length = rustix::fs::fstat(fd)?.st_size;
        // The first access past the end of the file would kill this process by SIGBUS.
        if bytes == 0 || u64::try_from(length).is_ok_and(|length| length < bytes as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0)? };
        let steps = if access == Access::ReadWrite { bytes.div_ceil(STEP_BYTES) } else { 0 };
        let populated = (0..steps).map(|_| AtomicBool::new(false)).collect();
        Ok(Mapping { base: base.cast(), bytes, access, populated })
    }

    /// Populates the steps of a range that lies in the mapping and is about to be written.
    fn populate(&self, offset: usize, length: usize) {
        let steps = offset / STEP_BYTES..(offset + length).div_ceil(STEP_BYTES);
        for (step, populated) in steps.clone().zip(&self.populated[steps]) {
            if !populated.load(Ordering::Relaxed) {
                let at = step * STEP_BYTES;
                let bytes = STEP_BYTES.min(self.bytes - at);
                // A kernel before 5.14 does not know this advice: there, writes take page faults.
                // SAFETY: the range lies in the mapping, which lives until drop, and the advice changes no byte.
                let _ = unsafe { madvise(self.base.add(at).cast(), bytes, Advice::LinuxPopulateRead) };
                populated.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Returns the word at an offset for writing. `None` if there is no aligned word there or the mapping is read-only.
    fn word_to_write(&self, offset: u64) -> Option<&AtomicU64> {
        if self.access != Access::ReadWrite || !offset.is_multiple_of(8) || !self.is_inside(offset, 8) {
            return None;
        }
        // SAFETY: the offset was just checked to be aligned and inside the mapping, which is writable and lives as long
        // as the reference. Mappings start on pages, so the word is aligned. The other side changes it only by atomic
        // stores.
        Some(unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast()) })
    }

    /// Stores a word with release ordering. Does nothing if there is no writable word at the offset.
    pub(crate) fn store_word(&self, offset: u64, value: u64) {
        if let Some(word) = self.word_to_write(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Swaps a word and returns its old value; 0 if there is no writable word at the offset.
    pub(crate) fn swap_word(&self, offset: u64, value: u64) -> u64 {
        self.word_to_write(offset).map_or(0, |word| word.swap(value, Ordering::SeqCst))
    }

    fn is_inside(&self, offset: u64, length: usize) -> bool {
        offset.checked_add(length as u64).is_some_and(|end| end <= self.bytes as u64)
    }
}

impl MappedBytes for Mapping {
    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn is_writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> bool {
        if !self.is_inside(offset, into.len()) {
            return false;
        }
        // SAFETY: the source range was just checked to lie in the mapping, which lives until drop; `into` is private
        // memory, so they cannot overlap; peers may write meanwhile, and then the caller's second check of the fence
        // word throws the result away.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.add(offset as usize), into.as_mut_ptr(), into.len())
        };
        true
    }

    fn copy_in(&self, offset: u64, from: &[u8]) -> bool {
        if !self.is_writable() || !self.is_inside(offset, from.len()) {
            return false;
        }
        self.populate(offset as usize, from.len());
        // SAFETY: the target range was just checked to lie in the mapping, which is writable and lives until
        // drop; `from` is private memory, so they cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(offset as usize), from.len()) };
        true
    }

    fn word(&self, offset: u64) -> Option<u64> {
        if !offset.is_multiple_of(8) || !self.is_inside(offset, 8) {
            return None;
        }
        // SAFETY: the offset was just checked to be aligned and inside the mapping, and mappings start on pages. The
        // other side changes the word only by atomic stores.
        let word = unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast()) };
        Some(word.load(Ordering::SeqCst))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; nothing borrows from it.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    /// Returns the bytes of a mapping that are in the page table of this process.
    fn populated_bytes(mapping: &Mapping) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", mapping.base as usize);
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&begin));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn pages_are_populated_as_they_are_used() {
        const BYTES: usize = 5 << 20;
        let file = memfd_create("farpool-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        let writing = Mapping::new(file.as_fd(), BYTES, Access::ReadWrite).unwrap();
        let reading = Mapping::new(file.as_fd(), BYTES, Access::Read).unwrap();
        assert_eq!((populated_bytes(&writing), populated_bytes(&reading)), (0, 0));
        // The last step is shorter than the others, and the write ends where the mapping ends.
        assert!(writing.copy_in(BYTES as u64 - 3, b"end"));
        assert!(populated_bytes(&writing) <= STEP_BYTES);
        assert!(writing.copy_in(STEP_BYTES as u64 - 1, b"ab"));
        assert!(!writing.copy_in(BYTES as u64 - 1, b"ab"));
        let mut found = [0; 3];
        assert!(reading.copy_out(BYTES as u64 - 3, &mut found));
        assert_eq!(&found, b"end");
        assert!(populated_bytes(&reading) <= BYTES / 2);
    }
}
