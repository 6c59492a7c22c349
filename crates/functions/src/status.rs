//! Shared memory of a node and a sandbox process, in which the process shows what each call lane is doing. A call lane
//! is a connection on which a caller calls functions over one window; it has a thread of its own.
//!
//! The node can thereby enforce deadlines, and report the death of a process to callers, without a message from the
//! process. The process can write anything into it, so the node believes it only about calls of the process itself.
#![allow(unsafe_code)]

use farpool_wire::{MonoNs, TraceId};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest number of call lanes of one process.
pub const LANES_MAX: usize = 64;
/// Number of 64-bit words that show what one lane is doing. They fill two cache lines.
const LANE_WORDS: usize = 16;
/// Index, among the words of a lane, of the word with the time at which the lane's call began.
const BEGUN_AT: usize = 4;
/// Index of the first word with the name of the lane's function (`NAME_AT`), and number of these words
/// (`NAME_WORDS`).
const NAME_AT: usize = 5;
const NAME_WORDS: usize = 3;
/// Index of the word with the trace id of the lane's last request.
const TRACE_AT: usize = 8;
/// Value of the request id before the lane's first request.
const NO_REQUEST: u64 = u64::MAX;
const BYTES: usize = LANES_MAX * LANE_WORDS * 8;

/// Deadline in ns that has passed already and says: the caller has left.
pub const LEFT_NS: u64 = 0;
/// Deadline in ns that has passed already and says: memory of the window was revoked.
pub const REVOKED_NS: u64 = 1;

/// Activity of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The lane is not open, or it has ended.
    Ended,
    /// The lane waits for a request.
    Waiting,
    /// A function runs, or is made ready (compiled or loaded).
    Running {
        /// Id of the request for which the function runs.
        request_id: u64,
        /// Opcode of that request.
        opcode: u16,
        /// Deadline of the function, in ns of the clock of boot time.
        until_ns: u64,
        /// Time in ms that the function may run, as its caller has asked.
        deadline_ms: u32,
    },
    /// The lane starts, answers, or waits for bytes of the window.
    Busy,
}

/// Mapping of the shared memory, in the node or in the sandbox process.
#[derive(Debug)]
pub struct Status {
    file: OwnedFd,
    base: *mut u8,
}

// SAFETY: the pointer is to a mapping of this process that is valid until drop, from any thread. It is used for
// atomic words only.
unsafe impl Send for Status {}
// SAFETY: through a shared reference, the pointer is used for atomic words only.
unsafe impl Sync for Status {}

impl Status {
    /// Creates new shared memory, in which all lanes have ended.
    pub fn new() -> io::Result<Status> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match memfd_create("farpool-lanes", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag `NOEXEC_SEAL`.
            Err(rustix::io::Errno::INVAL) => memfd_create("farpool-lanes", flags)?,
            other => other?,
        };
        ftruncate(&file, BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Status::of(file)
    }

    /// Maps the shared memory that the other process has created, from its file.
    pub fn of(file: OwnedFd) -> io::Result<Status> {
        if fstat(&file)?.st_size != BYTES as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing. The file has this length and
        // can neither shrink nor grow.
        let base = unsafe { mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, &file, 0)? };
        Ok(Status { file, base: base.cast() })
    }

    /// Returns the file to send to the other process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn word(&self, lane: usize, word: usize) -> &AtomicU64 {
        let at = (lane % LANES_MAX) * LANE_WORDS + word % LANE_WORDS;
        // SAFETY: the index was just kept inside the mapping, which lives as long as the reference. The word is
        // aligned, because mappings start on pages. Both processes use atomic operations only.
        unsafe { AtomicU64::from_ptr(self.base.add(at * 8).cast()) }
    }

    /// Stores what a lane is doing.
    pub fn set(&self, lane: usize, doing: Activity) {
        let state = match doing {
            Activity::Ended => 0,
            Activity::Waiting => 1,
            Activity::Busy => 2,
            Activity::Running { request_id, opcode, until_ns, deadline_ms } => {
                self.word(lane, 1).store(request_id, Ordering::Relaxed);
                self.word(lane, 2).store(until_ns, Ordering::Relaxed);
                self.word(lane, 3).store(u64::from(opcode) << 32 | u64::from(deadline_ms), Ordering::Relaxed);
                3
            }
        };
        self.word(lane, 0).store(state, Ordering::Release);
    }

    /// Stores the trace id of the request that a lane serves.
    pub fn set_trace(&self, lane: usize, trace: TraceId) {
        self.word(lane, TRACE_AT).store(trace.0, Ordering::Relaxed);
    }

    /// Returns the trace id of the last request of a lane.
    pub fn trace(&self, lane: usize) -> TraceId {
        TraceId(self.word(lane, TRACE_AT).load(Ordering::Relaxed))
    }

    /// Shows that a call of this function has begun on a lane, until the returned value is dropped.
    pub fn under_way(&self, lane: usize, function: &str, begun: MonoNs) -> UnderWay<'_> {
        let mut name = [0; NAME_WORDS * 8];
        let count = function.floor_char_boundary(name.len());
        name[..count].copy_from_slice(&function.as_bytes()[..count]);
        for (word, bytes) in name.as_chunks::<8>().0.iter().enumerate() {
            self.word(lane, NAME_AT + word).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.word(lane, BEGUN_AT).store(begun.0.max(1), Ordering::Release);
        UnderWay { status: self, lane }
    }

    /// Returns the name of the function that runs on a lane, truncated to 24 bytes, and when the call began; `None` if
    /// none runs. The sandbox process may have written anything.
    pub fn call(&self, lane: usize) -> Option<(String, MonoNs)> {
        let begun = self.word(lane, BEGUN_AT).load(Ordering::Acquire);
        if begun == 0 || self.doing(lane) == Activity::Ended {
            return None;
        }
        let words = (0..NAME_WORDS).map(|word| self.word(lane, NAME_AT + word).load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
        Some((String::from_utf8_lossy(&bytes).into_owned(), MonoNs(begun)))
    }

    /// Stores that a lane starts, and that no function has run on it.
    pub fn begin(&self, lane: usize) {
        self.word(lane, 1).store(NO_REQUEST, Ordering::Relaxed);
        self.set(lane, Activity::Busy);
    }

    /// Returns the id of the last request for which a function has run or was made ready on a lane; `None` if there was
    /// none.
    pub fn last_request(&self, lane: usize) -> Option<u64> {
        Some(self.word(lane, 1).load(Ordering::Relaxed)).filter(|id| *id != NO_REQUEST)
    }

    /// Returns what a lane is doing. The words of two calls may be mixed: callers must look twice before they act on
    /// it, unless the other process has ended.
    pub fn doing(&self, lane: usize) -> Activity {
        match self.word(lane, 0).load(Ordering::Acquire) {
            0 => Activity::Ended,
            1 => Activity::Waiting,
            3 => {
                let of_call = self.word(lane, 3).load(Ordering::Relaxed);
                Activity::Running {
                    request_id: self.word(lane, 1).load(Ordering::Relaxed),
                    until_ns: self.word(lane, 2).load(Ordering::Relaxed),
                    opcode: (of_call >> 32) as u16,
                    deadline_ms: of_call as u32,
                }
            }
            _ => Activity::Busy,
        }
    }
}

/// A call that the shared memory shows as under way on its lane until this value is dropped.
#[derive(Debug)]
pub struct UnderWay<'s> {
    status: &'s Status,
    lane: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.status.word(self.lane, BEGUN_AT).store(0, Ordering::Release);
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: it unmaps exactly what `of` has mapped, and nothing borrows from it.
        let _ = unsafe { munmap(self.base.cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_beginning_of_a_call_are_seen_while_it_is_under_way() {
        let ours = Status::new().unwrap();
        let theirs = Status::of(ours.file().try_clone_to_owned().unwrap()).unwrap();
        theirs.set(3, Activity::Waiting);
        theirs.set_trace(3, TraceId(9));
        assert_eq!((ours.trace(3), ours.trace(4)), (TraceId(9), TraceId::NONE));
        let call = theirs.under_way(3, "größer_als_vierundzwanzig_bytes", MonoNs(7));
        assert_eq!(ours.call(3), Some(("größer_als_vierundzwan".to_owned(), MonoNs(7))));
        assert_eq!(ours.call(4), None);
        drop(call);
        assert_eq!(ours.call(3), None);
    }

    #[test]
    fn both_sides_see_what_a_lane_does() {
        let ours = Status::new().unwrap();
        let theirs = Status::of(ours.file().try_clone_to_owned().unwrap()).unwrap();
        let running = Activity::Running { request_id: 7, opcode: 100, until_ns: u64::MAX, deadline_ms: 250 };
        theirs.set(LANES_MAX - 1, running);
        theirs.set(0, Activity::Waiting);
        assert_eq!(
            (ours.doing(LANES_MAX - 1), ours.doing(0), ours.doing(1)),
            (running, Activity::Waiting, Activity::Ended)
        );
    }
}
