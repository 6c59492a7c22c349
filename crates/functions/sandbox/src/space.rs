//! Address spaces of functions: heap, call area (the record of a call and its arguments), output, and window (the bytes
//! of far memory that a function sees), as `spec/function.md` lays them out.
//!
//! The idea: a Wasm module declares a small linear memory, but 4 GiB of addresses are reserved for it. In so
//! large a reservation, compiled code needs no bounds checks: 32-bit addresses cannot leave it, and an address
//! without memory traps. A window that is mapped above the heap can therefore be loaded from at full speed, like the
//! heap itself. Wasmtime works this way but does not promise it, so [`crate::engines`] tests it at the start.
//!
//! Mapping a window takes a thousand times as long as a call. A lane (the connection on which functions are called over
//! one window) therefore keeps its spaces, with the window in place, and uses them for the next call.
#![allow(unsafe_code)]

use farpool_functions::abi::{CALL_AT, CALL_BYTES, OUTPUT_AT, Part, WINDOW_AT};
use farpool_functions::setup::{LaneWindow, WindowRange};
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

/// Reserved bytes: 4 GiB that 32-bit addresses reach, and what the offset in an instruction can add.
const RESERVED_BYTES: usize = (4 << 30) + (4 << 30) + (64 << 10);
const PAGE: usize = WINDOW_PAGE_BYTES as usize;

/// Memory that all address spaces of a lane (a connection on which functions are called over one window) map.
#[derive(Debug)]
pub struct Layout {
    /// The window: which files lie where in it, and the capacity of the output.
    pub window: LaneWindow,
    /// File with the supplied blocks: bytes of the window that lie at other nodes and that the caller has sent. Each
    /// block has the same offset in it as in the window.
    pub supplied: OwnedFd,
    /// Largest size of a heap, in bytes.
    pub heap_bytes: usize,
    /// Base addresses of the lane's spaces; `None` once the window was revoked.
    pub bases: Mutex<Option<Vec<usize>>>,
}

impl Layout {
    /// Reports whether the window was revoked.
    pub fn is_void(&self) -> bool {
        self.bases.lock().is_none()
    }

    /// Unmaps the window in all spaces, also while functions run: their loads trap from then on.
    pub fn forget(&self) {
        let bytes = (self.window.window_bytes as usize).next_multiple_of(PAGE);
        for base in self.bases.lock().take().unwrap_or_default() {
            // The space still exists: it removes itself from the list before it is unmapped.
            let _ = anonymous((base + WINDOW_AT as usize) as *mut u8, bytes, ProtFlags::empty());
        }
    }
}

/// Address space (a reservation of 4 GiB and guards) in which one function at a time runs.
#[derive(Debug)]
pub struct AddressSpace {
    /// Address in this process of the module's address 0.
    base: *mut u8,
    /// Size of the accessible part of the heap, in bytes.
    heap: AtomicUsize,
    layout: Arc<Layout>,
    /// Offset in the window of the first byte of each block that is mapped from [`Layout::supplied`].
    mapped: RefCell<Vec<u64>>,
}

// SAFETY: the pointer is to a mapping of this process that is valid until drop, from any thread. One thread at a time
// uses a space. Only `Layout::forget` changes it from another thread, and leaves the mapping to the kernel.
unsafe impl Send for AddressSpace {}
// SAFETY: the lane's own thread uses the space. Other threads only call `Layout::forget`, which does not touch the list
// of blocks.
unsafe impl Sync for AddressSpace {}

thread_local! {
    /// The space in which this thread instantiates its next module.
    static NEXT: Cell<Option<Arc<AddressSpace>>> = const { Cell::new(None) };
    /// True if a module on this thread was refused a larger heap since this flag was last reset.
    pub static GROWTH_REFUSED: Cell<bool> = const { Cell::new(false) };
}

fn anonymous(at: *mut u8, bytes: usize, protection: ProtFlags) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: callers pass ranges of their own reservation, in which there is no Rust value.
    unsafe { mmap_anonymous(at.cast(), bytes, protection, flags)? };
    Ok(())
}

impl AddressSpace {
    /// Maps a space. At a node the pages of the window are mapped at once, so that no load has to wait for them.
    pub fn new(layout: Arc<Layout>) -> io::Result<AddressSpace> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), RESERVED_BYTES, ProtFlags::empty(), flags)? };
        let space =
            AddressSpace { base: base.cast(), heap: AtomicUsize::new(0), layout, mapped: RefCell::default() };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        anonymous(space.at(CALL_AT), CALL_BYTES, both)?;
        let output_bytes = (space.layout.window.output_bytes as usize).next_multiple_of(PAGE);
        if output_bytes > 0 {
            anonymous(space.at(OUTPUT_AT), output_bytes, both)?;
        }
        let layout = Arc::clone(&space.layout);
        if let Some(bases) = &mut *layout.bases.lock() {
            for range in &layout.window.ranges {
                space.map_range(range)?;
            }
            bases.push(space.base as usize);
        }
        Ok(space)
    }

    fn map_range(&self, range: &WindowRange) -> io::Result<()> {
        let files = &self.layout.window.files;
        let file = files.get(range.file as usize).ok_or(io::ErrorKind::InvalidData)?;
        let mut flags = MapFlags::SHARED | MapFlags::FIXED;
        // The pages of a region exist, so mapping them all is cheap. In a client's own sandbox the file may have only
        // some pages of the window, and the others would be allocated now.
        flags.set(MapFlags::POPULATE, self.layout.window.words.is_some());
        let at = self.at(WINDOW_AT + range.part.first);
        // SAFETY: `LaneWindow::check` keeps the part inside the window, whose 3 GiB lie inside the reservation, and
        // there is no Rust value in it. `crate::faults` handles loads behind the end of the file.
        unsafe { mmap(at.cast(), range.part.bytes as usize, ProtFlags::READ, flags, file, range.offset)? };
        Ok(())
    }

    /// Returns the address in this process of a module's address, which must lie in the reservation.
    pub fn at(&self, address: u64) -> *mut u8 {
        debug_assert!(address < RESERVED_BYTES as u64);
        self.base.wrapping_add(address as usize)
    }

    /// Returns the address in this process of the module's address 0.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the memory that the space maps.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Copies bytes to a module's address in the call area. The caller must ensure that they fit there.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        assert!(address >= CALL_AT && end <= OUTPUT_AT, "what a record leads to fits the call area");
        // SAFETY: the range was just checked to lie in the call area, which is mapped for writing as long as the
        // space exists. `bytes` is a Rust slice, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(address), bytes.len()) };
    }

    /// Returns the 64-bit integer at a module's address, which must lie in the call area.
    pub fn word(&self, address: u64) -> u64 {
        assert!(address >= CALL_AT && address + 8 <= OUTPUT_AT);
        // SAFETY: the range was just checked to lie in the call area, which is mapped as long as the space exists. The
        // address need not be aligned.
        unsafe { self.at(address).cast::<u64>().read_unaligned() }
    }

    /// Returns a copy of a range of the output area.
    pub fn output(&self, range: Range<usize>) -> Vec<u8> {
        let capacity = self.layout.window.output_bytes as usize;
        assert!(range.start <= range.end && range.end <= capacity, "an output does not exceed its capacity");
        let mut bytes = vec![0; range.len()];
        let from = self.at(OUTPUT_AT + range.start as u64);
        // SAFETY: the range was just checked to lie in the output, which is mapped as long as the space exists. No
        // function runs in the space while its lane's thread is here.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), range.len()) };
        bytes
    }

    /// Makes the first `bytes` of the heap accessible, and all of it zero.
    fn renew_heap(&self, bytes: usize) -> io::Result<()> {
        let heap = self.heap.load(Ordering::Relaxed);
        if heap > 0 {
            // SAFETY: the heap is private memory of this mapping, to which no Rust reference exists.
            unsafe { madvise(self.base.cast(), heap, Advice::LinuxDontNeed)? };
        }
        self.size_heap(bytes)
    }

    fn size_heap(&self, bytes: usize) -> io::Result<()> {
        let wanted = bytes.next_multiple_of(PAGE);
        let heap = self.heap.load(Ordering::Relaxed);
        if wanted > heap {
            let all = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the range lies below the call area (`Heap` ensures that), in this mapping.
            unsafe { mprotect(self.base.cast(), wanted, all)? };
        } else if wanted < heap {
            // SAFETY: the range lies in the heap of this mapping, and nothing uses the part that becomes inaccessible.
            unsafe { mprotect(self.at(wanted as u64).cast(), heap - wanted, MprotectFlags::empty())? };
        }
        self.heap.store(wanted, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the offset in the window of an address of this process; `None` if it lies outside the window.
    pub fn window_byte(&self, address: usize) -> Option<u64> {
        let at = (address as u64).checked_sub(self.base as u64)?.checked_sub(WINDOW_AT)?;
        (at < self.layout.window.window_bytes).then_some(at)
    }

    /// Returns the module's address for an address of this process; `None` if it lies outside the reservation.
    pub fn address_of(&self, address: usize) -> Option<u64> {
        (address as u64).checked_sub(self.base as u64).filter(|at| *at < RESERVED_BYTES as u64)
    }

    /// Reports whether a byte of the window lies at this node.
    pub fn is_here(&self, byte: u64) -> bool {
        let ranges = &self.layout.window.ranges;
        let after = ranges.partition_point(|range| range.part.first <= byte);
        let end = |Part { first, bytes }: Part| first + bytes.next_multiple_of(WINDOW_PAGE_BYTES);
        after.checked_sub(1).is_some_and(|index| byte < end(ranges[index].part))
    }

    /// Maps a block of the window from [`Layout::supplied`], where the caller's bytes for it were stored. Pages of it
    /// that lie at this node are mapped already and stay.
    pub fn map_supplied(&self, first: u64) -> io::Result<()> {
        for page in (first..first + FUNCTION_PIECE_BYTES as u64).step_by(PAGE) {
            if page >= self.layout.window.window_bytes || self.is_here(page) {
                continue;
            }
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            // SAFETY: the page lies in the window, and there is no Rust value in it.
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

    /// Maps zeros in place of a page of the window that is not available. The function can then run to its end, and
    /// its result is discarded.
    pub fn map_zeros(&self, byte: u64) -> io::Result<()> {
        anonymous(self.at(WINDOW_AT + byte - byte % PAGE as u64), PAGE, ProtFlags::READ)
    }

    /// Unmaps all blocks that [`Self::map_supplied`] has mapped.
    pub fn forget_supplied(&self) {
        for first in self.mapped.borrow_mut().drain(..) {
            for page in (first..first + FUNCTION_PIECE_BYTES as u64).step_by(PAGE) {
                if page < self.layout.window.window_bytes && !self.is_here(page) {
                    // A block that cannot be unmapped stays as it was.
                    let _ = anonymous(self.at(WINDOW_AT + page), PAGE, ProtFlags::empty());
                }
            }
        }
    }

    /// Makes this thread instantiate its next module in this space. No other module may exist in it.
    pub fn offer(self: Arc<Self>) {
        NEXT.set(Some(self));
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // Holds the lock until the space is unmapped, so that nobody maps into memory that takes its place.
        let mut bases = self.layout.bases.lock();
        if let Some(bases) = &mut *bases {
            bases.retain(|base| *base != self.base as usize);
        }
        // SAFETY: it unmaps exactly what `new` has mapped, and nothing borrows from it.
        let _ = unsafe { munmap(self.base.cast(), RESERVED_BYTES) };
    }
}

/// Allocator of linear memory for Wasmtime: gives a module the address space that its thread has offered.
pub struct Spaces;

// SAFETY: `new_memory` returns memories with 4 GiB of reserved addresses and more than the guard behind them, which
// it checks. The heap's bytes are zero and accessible; what lies between the heap and the call area is not
// accessible.
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
            GROWTH_REFUSED.set(true);
            let max = space.layout.heap_bytes;
            return Err(format!("the module needs {minimum} bytes of heap; at most {max} are permitted"));
        }
        space.renew_heap(minimum).map_err(|error| error.to_string())?;
        Ok(Box::new(Heap { bytes: minimum, space }))
    }
}

/// Heap of a module. It keeps the module's space alive.
struct Heap {
    bytes: usize,
    space: Arc<AddressSpace>,
}

// SAFETY: the base does not move, and `byte_size` bytes from it are accessible: see `AddressSpace::size_heap`.
unsafe impl wasmtime::LinearMemory for Heap {
    fn byte_size(&self) -> usize {
        self.bytes
    }

    /// Returns all that 32-bit addresses reach. Growing never moves the heap, and `grow_to` enforces the heap's limit.
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
