//! Bump allocator for functions on wasm32: addresses only grow, and all memory is free again when the next call begins.
//! One of the modules with `unsafe` code.
//!
//! Only the newest allocation can be freed or grow in place. That suffices for a single vector that is being filled.
//! Memory lost in between is regained at the next call.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32::{memory_grow, memory_size};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

const PAGE_BYTES: usize = 65_536;

unsafe extern "C" {
    /// Address that the linker sets: nothing else uses the memory above it.
    static __heap_base: u8;
}

struct Heap {
    /// Address of the first free byte; 0 before the first call.
    free: UnsafeCell<usize>,
}

// SAFETY: functions have no threads.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { free: UnsafeCell::new(0) };

/// Frees all memory.
///
/// # Safety
///
/// Nothing that was allocated before may be used after this.
pub(crate) unsafe fn begin() {
    // SAFETY: there are no threads, so nobody else accesses the cell.
    unsafe { *HEAP.free.get() = (&raw const __heap_base) as usize };
}

impl Heap {
    /// Allocates `bytes` bytes at `first`. Returns null if the memory cannot grow that far.
    fn take(&self, first: usize, bytes: usize) -> *mut u8 {
        let Some(end) = first.checked_add(bytes) else { return null_mut() };
        let there = memory_size(0) * PAGE_BYTES;
        if end > there && memory_grow(0, (end - there).div_ceil(PAGE_BYTES)) == usize::MAX {
            return null_mut();
        }
        // SAFETY: there are no threads, so nobody else accesses the cell.
        unsafe { *self.free.get() = end };
        first as *mut u8
    }

    fn free(&self) -> usize {
        // SAFETY: there are no threads, so nobody writes to the cell.
        unsafe { *self.free.get() }
    }
}

// SAFETY: each allocation begins at or above the end of those in use, is aligned as asked for, and is inside the
// memory.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.free().checked_next_multiple_of(layout.align()) {
            Some(first) => self.take(first, layout.size()),
            None => null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if block as usize + layout.size() == self.free() {
            self.take(block as usize, 0);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if block as usize + layout.size() == self.free() {
            return self.take(block as usize, bytes);
        }
        if bytes <= layout.size() {
            return block;
        }
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        // SAFETY: the new allocation does not overlap the old one, is larger, and the old one has `layout.size()`
        // bytes.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                block.copy_to_nonoverlapping(moved, layout.size());
            }
            moved
        }
    }
}
