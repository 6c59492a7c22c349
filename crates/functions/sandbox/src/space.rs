//! Address spaces of functions: heap, call area, output and window, as `spec/function.md` lays them out.
//!
//! The idea: a module's linear memory is 4 GiB of reserved addresses, of which it has declared only the beginning.
//! Compiled code checks no bounds within so large a reservation, so whatever is mapped above the heap can be loaded
//! from at full speed, and whatever is not mapped traps. (Wasmtime does so without promising it: [`crate::engines`]
//! looks at the start whether it is still true.) Spaces of a lane are kept and used again, with their window in place:
//! mapping one costs a thousand times as much as a call.
#![allow(unsafe_code)]

use farpool_functions::abi::{CALL_AT, CALL_BYTES, OUTPUT_AT, Part, WINDOW_AT};
use farpool_functions::setup::{LaneWindow, Piece};
use farpool_lock::Mutex;
use farpool_wire::limits::{FUNCTION_PIECE_BYTES, WINDOW_PAGE_BYTES};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What 32-bit addresses reach, and what an instruction's own offset can add.
const RESERVED_BYTES: usize = (4 << 30) + (4 << 30) + (64 << 10);
const PAGE: usize = WINDOW_PAGE_BYTES as usize;

/// What all spaces of a lane map.
#[derive(Debug)]
pub struct Layout {
    /// The window.
    pub window: LaneWindow,
    /// Pieces from elsewhere that have been supplied to this lane.
    pub supplied: OwnedFd,
    /// The most bytes of a heap.
    pub heap_bytes: usize,
    /// Where its spaces are, while they are; nothing once the window was taken back.
    pub bases: Mutex<Option<Vec<usize>>>,
}

impl Layout {
    /// Whether the window was taken back.
    pub fn is_void(&self) -> bool {
        self.bases.lock().is_none()
    }

    /// Lets go of all memory of the window, also while functions run: their loads trap from then on.
    pub fn forget(&self) {
        let bytes = (self.window.window_bytes as usize).next_multiple_of(PAGE);
        for base in self.bases.lock().take().unwrap_or_default() {
            // The space is there: it takes itself out of the list first.
            let _ = anonymous((base + WINDOW_AT as usize) as *mut u8, bytes, ProtFlags::empty());
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Space {
    base: *mut u8,
    /// Bytes of the heap that can be loaded and stored.
    heap: AtomicUsize,
    layout: Arc<Layout>,
    /// Pieces from elsewhere that are mapped, by their numbers.
    mapped: RefCell<Vec<u64>>,
}

// SAFETY: the pointer is to a mapping of this process, valid until drop from any thread. A space is used by one thread
// at a time; only `Layout::forget` reaches into it from another, and it leaves the mapping to the kernel.
unsafe impl Send for Space {}
// SAFETY: as for Send; the list of pieces is looked at by the lane's own thread alone.
unsafe impl Sync for Space {}

thread_local! {
    /// The space that the next module of this thread is made in.
    static NEXT: Cell<Option<Arc<Space>>> = const { Cell::new(None) };
    /// Whether a heap of this thread was to grow beyond what is permitted, since this was last looked at.
    pub static GROWTH_REFUSED: Cell<bool> = const { Cell::new(false) };
}

fn anonymous(at: *mut u8, bytes: usize, protection: ProtFlags) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: callers give ranges of a reservation of theirs, in which nothing of Rust's lies.
    unsafe { mmap_anonymous(at.cast(), bytes, protection, flags)? };
    Ok(())
}

impl Space {
    /// Maps one: the window with all its pages present, so that no load pays for them.
    pub fn new(layout: Arc<Layout>) -> io::Result<Space> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), RESERVED_BYTES, ProtFlags::empty(), flags)? };
        let space =
            Space { base: base.cast(), heap: AtomicUsize::new(0), layout, mapped: RefCell::default() };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        anonymous(space.at(CALL_AT), CALL_BYTES, both)?;
        let output_bytes = (space.layout.window.output_bytes as usize).next_multiple_of(PAGE);
        if output_bytes > 0 {
            anonymous(space.at(OUTPUT_AT), output_bytes, both)?;
        }
        let layout = Arc::clone(&space.layout);
        if let Some(bases) = &mut *layout.bases.lock() {
            for piece in &layout.window.pieces {
                space.map_piece(piece)?;
            }
            bases.push(space.base as usize);
        }
        Ok(space)
    }

    fn map_piece(&self, piece: &Piece) -> io::Result<()> {
        let files = &self.layout.window.files;
        let file = files.get(piece.file as usize).ok_or(io::ErrorKind::InvalidData)?;
        let mut flags = MapFlags::SHARED | MapFlags::FIXED;
        // A region has its pages. What a client brings to itself may be a part of its window: the rest would be made
        // now.
        flags.set(MapFlags::POPULATE, self.layout.window.words.is_some());
        let at = self.at(WINDOW_AT + piece.part.first);
        // SAFETY: `LaneWindow::check` holds the part inside the window, whose 3 GiB lie inside the reservation; nothing
        // of Rust's is there. Loads past the file's end are answered by `crate::faults`.
        unsafe { mmap(at.cast(), piece.part.bytes as usize, ProtFlags::READ, flags, file, piece.offset)? };
        Ok(())
    }

    /// Where a module's address is. Not beyond the reservation.
    pub fn at(&self, address: u64) -> *mut u8 {
        debug_assert!(address < RESERVED_BYTES as u64);
        self.base.wrapping_add(address as usize)
    }

    /// Its address 0.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// What it maps.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Copies bytes to the call area. The caller keeps them inside.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        assert!(address >= CALL_AT && end <= OUTPUT_AT, "what a record leads to fits the call area");
        // SAFETY: the range was just checked to lie in the call area, which is mapped to be written as long as the
        // space is; `bytes` is memory of Rust's, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(address), bytes.len()) };
    }

    /// An integer of the call area.
    pub fn word(&self, address: u64) -> u64 {
        assert!(address >= CALL_AT && address + 8 <= OUTPUT_AT);
        // SAFETY: as in `put`, the other way round; the address need not be aligned.
        unsafe { self.at(address).cast::<u64>().read_unaligned() }
    }

    /// Copies bytes of the output.
    pub fn output(&self, range: Range<usize>) -> Vec<u8> {
        let capacity = self.layout.window.output_bytes as usize;
        assert!(range.start <= range.end && range.end <= capacity, "an output does not exceed its capacity");
        let mut bytes = vec![0; range.len()];
        let from = self.at(OUTPUT_AT + range.start as u64);
        // SAFETY: the range was just checked to lie in the output, which is mapped as long as the space is; no function
        // runs in it while its lane's thread is here.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), range.len()) };
        bytes
    }

    /// Makes the heap so large that `bytes` of it can be used, and all of it zero.
    fn renew_heap(&self, bytes: usize) -> io::Result<()> {
        let heap = self.heap.load(Ordering::Relaxed);
        if heap > 0 {
            // SAFETY: the heap is private memory of this mapping, to which nothing of Rust's refers.
            unsafe { madvise(self.base.cast(), heap, Advice::LinuxDontNeed)? };
        }
        self.size_heap(bytes)
    }

    fn size_heap(&self, bytes: usize) -> io::Result<()> {
        let wanted = bytes.next_multiple_of(PAGE);
        let heap = self.heap.load(Ordering::Relaxed);
        if wanted > heap {
            let all = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the range lies below the call area (`Heap` keeps it so), in this mapping.
            unsafe { mprotect(self.base.cast(), wanted, all)? };
        } else if wanted < heap {
            // SAFETY: likewise; what becomes inaccessible is nobody's any more.
            unsafe { mprotect(self.at(wanted as u64).cast(), heap - wanted, MprotectFlags::empty())? };
        }
        self.heap.store(wanted, Ordering::Relaxed);
        Ok(())
    }

    /// Which part of the window, if any, an address of this process is in: its byte.
    pub fn window_byte(&self, address: usize) -> Option<u64> {
        let at = (address as u64).checked_sub(self.base as u64)?.checked_sub(WINDOW_AT)?;
        (at < self.layout.window.window_bytes).then_some(at)
    }

    /// A module's address for one of this process, if it lies in the reservation.
    pub fn address_of(&self, address: usize) -> Option<u64> {
        (address as u64).checked_sub(self.base as u64).filter(|at| *at < RESERVED_BYTES as u64)
    }

    /// Whether a byte of the window is here.
    pub fn is_here(&self, byte: u64) -> bool {
        let pieces = &self.layout.window.pieces;
        let after = pieces.partition_point(|piece| piece.part.first <= byte);
        let end = |Part { first, bytes }: Part| first + bytes.next_multiple_of(WINDOW_PAGE_BYTES);
        after.checked_sub(1).is_some_and(|index| byte < end(pieces[index].part))
    }

    /// Maps a piece from elsewhere, which lies in the file of what was supplied, but for what of it is here.
    pub fn map_supplied(&self, first: u64) -> io::Result<()> {
        for page in (first..first + FUNCTION_PIECE_BYTES as u64).step_by(PAGE) {
            if page >= self.layout.window.window_bytes || self.is_here(page) {
                continue;
            }
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            // SAFETY: the page lies in the window, and nothing of Rust's is there.
            unsafe {
                mmap(
                    self.at(WINDOW_AT + page).cast(),
                    PAGE,
                    ProtFlags::READ,
                    flags,
                    &self.layout.supplied,
                    page,
                )?
            };
        }
        self.mapped.borrow_mut().push(first);
        Ok(())
    }

    /// Maps zeros where a page of the window cannot be had, for what runs to go on to its end, which counts for
    /// nothing.
    pub fn map_zeros(&self, byte: u64) -> io::Result<()> {
        anonymous(self.at(WINDOW_AT + byte - byte % PAGE as u64), PAGE, ProtFlags::READ)
    }

    /// Takes what was supplied out of the window again.
    pub fn forget_supplied(&self) {
        for first in self.mapped.borrow_mut().drain(..) {
            for page in (first..first + FUNCTION_PIECE_BYTES as u64).step_by(PAGE) {
                if page < self.layout.window.window_bytes && !self.is_here(page) {
                    // What cannot be unmapped is what it was.
                    let _ = anonymous(self.at(WINDOW_AT + page), PAGE, ProtFlags::empty());
                }
            }
        }
    }

    /// The next module that this thread makes is made in this space. No other one that lives may be in it.
    pub fn offer(self: Arc<Self>) {
        NEXT.set(Some(self));
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Held until it is gone, so that nobody maps into what comes to its place.
        let mut bases = self.layout.bases.lock();
        if let Some(bases) = &mut *bases {
            bases.retain(|base| *base != self.base as usize);
        }
        // SAFETY: unmaps exactly what `new` mapped; nothing borrows from it.
        let _ = unsafe { munmap(self.base.cast(), RESERVED_BYTES) };
    }
}

/// Makes linear memories of the spaces that threads offer.
pub struct Spaces;

// SAFETY: `new_memory` gives memories of 4 GiB of reserved addresses and more than the guard behind them, as is
// checked; the heap's bytes are zero and accessible, what is between heap and call area is not.
unsafe impl wasmtime::MemoryCreator for Spaces {
    fn new_memory(
        &self,
        _ty: wasmtime::MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn wasmtime::LinearMemory>, String> {
        let space = NEXT.take().ok_or("no address space was offered")?;
        if reserved.unwrap_or(0).saturating_add(guard) > RESERVED_BYTES {
            return Err(format!("{reserved:?} and {guard} bytes of addresses are not reserved"));
        }
        if minimum > space.layout.heap_bytes {
            return Err(format!("{minimum} bytes of heap, {} are permitted", space.layout.heap_bytes));
        }
        space.renew_heap(minimum).map_err(|error| error.to_string())?;
        Ok(Box::new(Heap { bytes: minimum, space }))
    }
}

/// The heap of a module, and with it its space.
struct Heap {
    bytes: usize,
    space: Arc<Space>,
}

// SAFETY: the base does not move, and `byte_size` bytes from it on are accessible: see `Space::size_heap`.
unsafe impl wasmtime::LinearMemory for Heap {
    fn byte_size(&self) -> usize {
        self.bytes
    }

    /// All that is reserved: growing never moves anything, and `grow_to` says how far it goes.
    fn byte_capacity(&self) -> usize {
        4 << 30
    }

    fn grow_to(&mut self, bytes: usize) -> wasmtime::Result<()> {
        if bytes > self.space.layout.heap_bytes {
            GROWTH_REFUSED.set(true);
            return Err(wasmtime::Error::msg("more heap than is permitted"));
        }
        self.space.size_heap(bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.space.base()
    }
}
