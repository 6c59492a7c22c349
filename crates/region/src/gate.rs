//! The gate of a region: counts the copies inside, shows them the fence, and makes the copies.
//!
//! The idea is Dekker's: a copy announces itself (increments `in_flight`), then reads the fence word. A close changes
//! the word, then reads `in_flight`. All four steps are sequentially consistent, so at least one of the two sees the
//! other: either the copy finds the gate closed, or the close waits for the copy.
//!
//! Everything else that belongs to an open gate (handles, address) changes only while the gate is closed *and* no
//! copy is inside:
//! * A copy that found the word open holds off the next close until it leaves, and so it holds off every change. The
//!   values that it reads were stored before the word it saw. So it never sees a torn handle under an open epoch.
//! * A copy that found the word suspended or closed may run beside `open`. It takes handles only under a tag
//!   (`opened`) equal to the epoch it saw. An epoch is opened once, its handles are stored before its tag, and the
//!   tag is removed only after a close has waited for this copy too. Such a copy never touches region memory.
//!
//! The gate does not decide whether an operation is admitted: the crate `node` does, from the [`Fence`]. The gate
//! only makes sure that bytes are copied under an open fence, and copied in only if there is a writer. A mistake of
//! that crate therefore cannot break memory.
//!
//! Invariants, numbered as in ARCHITECTURE.md: I1 (at most one epoch can write), I2 (nothing of an older epoch runs or
//! is admitted after `close`), I3 (no copy is torn by a close: the copy ends before the close does).
#![allow(unsafe_code)]

use crate::fence::Fence;
use crate::gated_range::GatedRange;
use farpool_wire::{Epoch, Handle, Refusal};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// Largest epoch. Its fence word (epoch * 2 + 1) and the tag of its handles (epoch * 4 + 3) must fit 64 bits.
pub(crate) const EPOCH_MAX: u64 = (1 << 62) - 1;
/// Number of times that a close looks at `in_flight` before it sleeps between two looks: about 5 us in all. A copy of
/// 256 KiB takes 20 to 40 us, so a close spins while a small copy ends and sleeps while a large one does.
const DRAIN_SPINS: u32 = 200;
/// Time that a close sleeps between two looks at `in_flight`.
const DRAIN_SLEEP: Duration = Duration::from_micros(50);

/// Flags of a tag: there is a handle for writing, or one for reading only.
const TAG_WRITE: u64 = 2;
const TAG_READ: u64 = 1;

/// Gate of one region. It fills one cache line.
#[repr(C, align(64))]
pub(crate) struct Gate {
    /// Number of copies that have entered an open gate and have not left, and of those that are just looking at it.
    in_flight: AtomicU64,
    /// Tag of the handles below: epoch * 4 + flags of the handles that there are; 0 while the gate is closed and
    /// empty.
    opened: AtomicU64,
    /// Upper and lower half of the handle that permits writing.
    write_handle: [AtomicU64; 2],
    /// Upper and lower half of the handle that permits only reading.
    read_handle: [AtomicU64; 2],
    /// Start of the region's memory.
    base: AtomicPtr<u8>,
    /// Number of bytes from the start that may have been written since the last scrub.
    dirty_bytes: AtomicU64,
}

const _: () = assert!(size_of::<Gate>() == 64);

impl Gate {
    /// Returns a closed gate before the memory at `base`.
    pub(crate) fn new(base: *mut u8) -> Gate {
        Gate {
            in_flight: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            write_handle: [AtomicU64::new(0), AtomicU64::new(0)],
            read_handle: [AtomicU64::new(0), AtomicU64::new(0)],
            base: AtomicPtr::new(base),
            dirty_bytes: AtomicU64::new(0),
        }
    }

    /// Counts a copy in, and returns it with the fence that it has found. `word` is the region's fence word.
    pub(crate) fn enter<'a>(&'a self, word: &AtomicU64, region_bytes: u64) -> Entered<'a> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let word = word.load(Ordering::SeqCst);
        let opened = self.opened.load(Ordering::Acquire);
        let has_holders = opened != 0 && opened >> 2 == word >> 1;
        let handle = |flag, halves| (has_holders && opened & flag != 0).then(|| load_handle(halves));
        let write_handle = handle(TAG_WRITE, &self.write_handle);
        let read_handle = handle(TAG_READ, &self.read_handle);
        let fence = Fence {
            epoch: Epoch(word >> 1),
            suspended: has_holders && word & 1 != 0,
            write_handle,
            read_handle,
            sealed: write_handle.is_none() && read_handle.is_some(),
            region_bytes,
        };
        let entered = Entered { gate: Some(self), fence, moved_bytes: Cell::new(0) };
        // A copy that finds the gate closed or suspended leaves at once: endless refused requests must not hold up a
        // close, because a node never waits for clients to get memory back (invariant I9).
        if word & 1 == 0 { entered } else { Entered { gate: None, fence, moved_bytes: Cell::new(0) } }
    }

    /// Opens a closed gate. The caller excludes every other change of it.
    pub(crate) fn open(&self, word: &AtomicU64, epoch: Epoch, write: Option<Handle>, read: Option<Handle>) {
        self.assert_drained();
        store_handle(&self.write_handle, write);
        store_handle(&self.read_handle, read);
        let flags = if write.is_some() { TAG_WRITE } else { 0 } + if read.is_some() { TAG_READ } else { 0 };
        self.opened.store(epoch.0 << 2 | flags, Ordering::Release);
        word.store(epoch.0 << 1, Ordering::SeqCst);
    }

    /// Closes the gate. Returns when no copy of an older epoch is running.
    pub(crate) fn close(&self, word: &AtomicU64, next_epoch: Epoch) {
        word.store(next_epoch.0 << 1 | 1, Ordering::SeqCst);
        let mut spins = 0;
        while self.in_flight.load(Ordering::SeqCst) != 0 {
            if spins < DRAIN_SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::sleep(DRAIN_SLEEP);
            }
        }
        self.opened.store(0, Ordering::Release);
    }

    /// Puts other memory behind a closed gate. The caller keeps that memory mapped until it seats the gate on other
    /// memory or the arena is gone, and drops the old memory only after this call.
    pub(crate) fn seat(&self, base: *mut u8) {
        self.assert_drained();
        self.base.store(base, Ordering::Release);
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dirty_bytes(&self, bytes: u64) {
        self.dirty_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Panics unless the gate is closed and empty. All memory accesses depend on this, so it is checked in release
    /// builds too.
    fn assert_drained(&self) {
        assert!(self.opened.load(Ordering::Acquire) == 0, "a gate is changed only while closed and drained");
    }
}

fn load_handle(halves: &[AtomicU64; 2]) -> Handle {
    let [high, low] = halves;
    Handle(u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low.load(Ordering::Relaxed)))
}

fn store_handle(halves: &[AtomicU64; 2], handle: Option<Handle>) {
    let bits = handle.unwrap_or_default().0;
    halves[0].store((bits >> 64) as u64, Ordering::Relaxed);
    halves[1].store(bits as u64, Ordering::Relaxed);
}

/// Presence of one copy in a region's gate. A close of the region waits until this value is dropped. So enter, check
/// the fence, copy and leave; never wait for anything in between.
pub struct Entered<'a> {
    /// Gate that no close passes until this is dropped; `None` if it was closed or suspended.
    gate: Option<&'a Gate>,
    /// Fence as it was when the gate was entered.
    fence: Fence,
    /// Bytes that have moved since the gate was entered.
    moved_bytes: Cell<usize>,
}

impl Entered<'_> {
    /// Returns the fence by which the operation is admitted or refused.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Copies bytes of the region into `into`.
    ///
    /// Refused: `OutOfBounds`; `LeaseExpired` if suspended; `StaleEpoch` if closed; `LimitReached` if more than
    /// [`crate::GATE_BYTES_MAX`] would have moved since entering.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let (_, from) = self.admit(offset, into.len())?;
        // SAFETY: source: `admit` returned the start of `into.len()` mapped bytes that stay mapped until `self` is
        // dropped. Target: `into` is private memory, so there is no overlap. Others may write the source meanwhile.
        // Then the copy has old and new bytes mixed, all of which are valid `u8`s.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies `from` into the region. Refused as in [`Entered::copy_out`], and `Sealed` if nobody may write.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), Refusal> {
        let into = self.admit_write(offset, from.len())?;
        // SAFETY: target: `admit_write` returned the start of `from.len()` mapped, writable bytes that stay mapped
        // until `self` is dropped. Source: `from` is private memory, so there is no overlap. No Rust reference to the
        // target exists.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    /// Returns a range that the kernel may send from until `self` is dropped. Refused as in [`Entered::copy_out`].
    pub fn range_out(&self, offset: u64, bytes: usize) -> Result<GatedRange<'_>, Refusal> {
        self.admit(offset, bytes).map(|(_, from)| GatedRange::new(from, bytes))
    }

    /// Returns a range that the kernel may receive into until `self` is dropped. Refused as in [`Entered::copy_in`].
    pub fn range_in(&self, offset: u64, bytes: usize) -> Result<GatedRange<'_>, Refusal> {
        self.admit_write(offset, bytes).map(|into| GatedRange::new(into, bytes))
    }

    /// Returns the address of a range that may be written until `self` is dropped. The range counts as written.
    fn admit_write(&self, offset: u64, bytes: usize) -> Result<*mut u8, Refusal> {
        let (gate, into) = self.admit(offset, bytes)?;
        self.fence.admit_write()?;
        // The sum cannot overflow: `admit` has checked the range against the region's size.
        let end = offset + bytes as u64;
        // Loads first, because the number mostly does not change: a cache line that is only read stays in the caches of
        // all cores.
        if gate.dirty_bytes.load(Ordering::Relaxed) < end {
            gate.dirty_bytes.fetch_max(end, Ordering::Relaxed);
        }
        Ok(into)
    }

    /// Returns the address of a range that may be copied until `self` is dropped.
    fn admit(&self, offset: u64, bytes: usize) -> Result<(&Gate, *mut u8), Refusal> {
        let gate = self.gate.ok_or_else(|| self.fence.closed())?;
        self.moved_bytes.set(self.fence.admit(offset, bytes, self.moved_bytes.get())?);
        // SAFETY: the gate was seen open after entering. So until `self` is dropped no close returns and no `seat`
        // happens, and `base` is the start of `region_bytes` mapped bytes. `Fence::admit` has found the range to lie
        // inside them.
        Ok((gate, unsafe { gate.base.load(Ordering::Acquire).add(offset as usize) }))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.gate {
            // The close that reads this count sees every byte of the copies before it.
            gate.in_flight.fetch_sub(1, Ordering::Release);
        }
    }
}
