//! Source of chunks (2 MiB of memory each) for joins on machines with one memory tier, in huge pages.
//!
//! Memory that a join gave back is kept for the next one, because the kernel zeroes each new page, which takes as long
//! as partitioning rows into that page. [`HugePages::trim`] returns kept memory to the system.
#![allow(unsafe_code)]

use crate::JoinError;
use crate::chunks::{CHUNK_BYTES, CHUNK_LINES, ChunkSource, Purpose};
use crate::memory::{CacheLine, LineMemory};
use farpool_lock::Mutex;
use std::ptr::NonNull;

/// Private memory of this process, in pages of 2 MiB if the system has them.
#[derive(Debug, Default)]
pub struct HugePages {
    /// Memory that is not lent.
    free: Mutex<Vec<Mapped>>,
}

impl HugePages {
    /// Returns an empty source. Memory is mapped when it is asked for.
    pub fn new() -> HugePages {
        HugePages::default()
    }

    /// Returns the bytes that joins have given back and that are kept for later ones.
    pub fn kept_bytes(&self) -> usize {
        self.free.lock().iter().map(|mapped| mapped.chunks * CHUNK_BYTES).sum()
    }

    /// Returns the kept memory to the system.
    pub fn trim(&self) {
        self.free.lock().clear();
    }
}

impl ChunkSource for HugePages {
    fn take(&self, _purpose: Purpose, count: usize) -> Result<LineMemory<'_>, JoinError> {
        if count == 0 {
            return Ok(LineMemory::none());
        }
        let mut free = self.free.lock();
        let kept = free.iter().rposition(|mapped| mapped.chunks == count).map(|at| free.swap_remove(at));
        drop(free);
        let mapped = match kept {
            Some(mapped) => mapped,
            None => Mapped::new(count)?,
        };
        let (start, lines) = (mapped.start, count * CHUNK_LINES);
        let loan = Loan { pages: self, mapped: Some(mapped) };
        // SAFETY: `loan` owns the mapping, which is initialised (zeroed by the kernel, then written by joins only),
        // stays where it is until the loan is dropped, and is in no list until then, so it is nobody else's.
        Ok(unsafe { LineMemory::new(start, lines, Box::new(loan)) })
    }
}

/// Lent chunks. Dropping them keeps the memory for the next request.
struct Loan<'p> {
    /// Source that gets the memory back.
    pages: &'p HugePages,
    /// The memory. It is `Some` until the loan is dropped.
    mapped: Option<Mapped>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.pages.free.lock().extend(self.mapped.take());
    }
}

/// Mapping of some chunks.
#[derive(Debug)]
struct Mapped {
    start: NonNull<CacheLine>,
    chunks: usize,
}

// SAFETY: the value is the only owner of its range, and the range is plain memory that any thread may access.
unsafe impl Send for Mapped {}
// SAFETY: no method accesses the range through a shared reference.
unsafe impl Sync for Mapped {}

#[cfg(target_os = "linux")]
impl Mapped {
    /// Maps private zero pages on a huge-page boundary. No page is present yet.
    fn new(chunks: usize) -> Result<Mapped, JoinError> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let refused =
            |error: &dyn std::fmt::Display| JoinError::Memory(format!("{chunks} chunks of 2 MiB: {error}"));
        let bytes =
            chunks.checked_mul(CHUNK_BYTES).ok_or_else(|| refused(&"the size exceeds the address space"))?;
        let padded =
            bytes.checked_add(CHUNK_BYTES).ok_or_else(|| refused(&"the size exceeds the address space"))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), padded, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let start: *mut u8 = start.map_err(|error| refused(&error))?.cast();
        let head = start.align_offset(CHUNK_BYTES);
        let tail = CHUNK_BYTES - head;
        // SAFETY: head <= CHUNK_BYTES, so `base` and the end of the kept part lie in the new mapping. The two unmapped
        // parts lie outside the kept one, and nobody has seen their addresses. Advice on the size of pages does not
        // change their contents, so it does not matter whether it is taken.
        unsafe {
            let base = start.add(head);
            if head > 0 {
                munmap(start.cast(), head).map_err(|error| refused(&error))?;
            }
            if tail > 0 {
                munmap(base.add(bytes).cast(), tail).map_err(|error| refused(&error))?;
            }
            let _ = madvise(base.cast(), bytes, Advice::LinuxHugepage);
            let start = NonNull::new(base.cast()).ok_or_else(|| refused(&"mapped at 0"))?;
            Ok(Mapped { start, chunks })
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this unmaps exactly what the value owns. Users of the lines hold the `Loan` that owns this value, so
        // none is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.chunks * CHUNK_BYTES) };
    }
}

#[cfg(not(target_os = "linux"))]
impl Mapped {
    fn layout(chunks: usize) -> Option<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(chunks.checked_mul(CHUNK_BYTES)?, CHUNK_BYTES).ok()
    }

    fn new(chunks: usize) -> Result<Mapped, JoinError> {
        let start = Mapped::layout(chunks).and_then(|layout| {
            // SAFETY: the layout is not empty: nobody asks for no chunks here.
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }.cast())
        });
        let start =
            start.ok_or_else(|| JoinError::Memory(format!("{chunks} chunks of 2 MiB: out of memory")))?;
        Ok(Mapped { start, chunks })
    }
}

#[cfg(not(target_os = "linux"))]
impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(layout) = Mapped::layout(self.chunks) {
            // SAFETY: allocated by `new` with the same layout, and borrowed by nobody any more.
            unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}
