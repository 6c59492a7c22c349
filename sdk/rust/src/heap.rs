//! An allocator for functions on wasm32: memory is handed out upwards, and all of it is free when the next call begins.
//! A home of `unsafe`.
//!
//! Only the piece that was handed out last can be given back or grow in place; that is what one vector being filled
//! needs. A call is short, so what is lost in between does not matter.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32::{memory_grow, memory_size};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

const PAGE_BYTES: usize = 65_536;

unsafe extern "C" {
    /// By the linker: what is above belongs to nobody.
    static __heap_base: u8;
}

struct Heap {
    /// First free byte; 0 before the first call.
    free: UnsafeCell<usize>,
}

// SAFETY: functions have no threads.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { free: UnsafeCell::new(0) };

/// Makes all memory free.
///
/// # Safety
///
/// Nothing that was allocated may be used any more.
pub(crate) unsafe fn begin() {
    // SAFETY: there are no threads, so nobody else looks at the cell.
    unsafe { *HEAP.free.get() = (&raw const __heap_base) as usize };
}

impl Heap {
    /// Hands out what lies from here on; null if the memory cannot grow so far.
    fn take(&self, first: usize, bytes: usize) -> *mut u8 {
        let Some(end) = first.checked_add(bytes) else { return null_mut() };
        let there = memory_size(0) * PAGE_BYTES;
        if end > there && memory_grow(0, (end - there).div_ceil(PAGE_BYTES)) == usize::MAX {
            return null_mut();
        }
        // SAFETY: there are no threads, so nobody else looks at the cell.
        unsafe { *self.free.get() = end };
        first as *mut u8
    }

    fn free(&self) -> usize {
        // SAFETY: there are no threads, so nobody writes to the cell.
        unsafe { *self.free.get() }
    }
}

// SAFETY: each piece begins at or above the end of those in use, aligned as asked for, inside the memory.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.free().checked_next_multiple_of(layout.align()) {
            Some(first) => self.take(first, layout.size()),
            None => null_mut(),
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if piece as usize + layout.size() == self.free() {
            self.take(piece as usize, 0);
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if piece as usize + layout.size() == self.free() {
            return self.take(piece as usize, bytes);
        }
        if bytes <= layout.size() {
            return piece;
        }
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        // SAFETY: the new piece is larger and does not overlap the old one, which has so many bytes.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                piece.copy_to_nonoverlapping(moved, layout.size());
            }
            moved
        }
    }
}
