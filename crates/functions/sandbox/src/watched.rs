//! Watching of call lanes (connections on which functions are called): the state of a lane that a second thread needs
//! to stop the function that runs on it.
//!
//! The idea: a function that loops cannot look at the clock by itself, so one thread does it for all lanes,
//! some hundred times a second while there are any. It unmaps windows (ranges of far memory that functions see) that
//! the node has revoked, notices callers that have left, and interrupts modules so that each checks its own deadline.
//! For code that cannot be interrupted, it writes a deadline that has passed into the memory that is shared with the
//! node ([`Status`]), and the node then ends the process.

use crate::engines::Engines;
use crate::fences::Fences;
use crate::module::Interruption;
use crate::space::Layout;
use farpool_functions::status::{Activity, LEFT_NS, REVOKED_NS, Status};
use farpool_host::clock;
use farpool_lock::{Condvar, Mutex};
use farpool_wire::control::Outcome;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which the watching thread looks at all open lanes.
const LOOK: Duration = Duration::from_millis(2);
/// Time in ns that an interrupted function has to end by itself before the node ends the process.
const GRACE_NS: u64 = 20_000_000;

/// State of a lane that the watching thread shares with the lane's own thread.
pub struct Watched {
    /// Number of the lane in [`Status`], the memory in which lanes show the node what they are doing.
    pub slot: usize,
    /// Memory that functions on this lane see: the window, and the sizes of heap and output.
    pub layout: Arc<Layout>,
    /// Words by which the node shows that it has revoked memory of the window.
    pub fences: Fences,
    /// Connection to the caller.
    pub socket: OwnedFd,
    /// Time in ns at which the function that runs must have ended.
    until_ns: AtomicU64,
    /// Time in ms that the caller has given this function. It is the detail of the outcome `Deadline`.
    deadline_ms: AtomicU64,
    /// True once the caller has closed its connection.
    has_left: AtomicBool,
    /// True if the code that runs can only be stopped by ending the process.
    ends_process: AtomicBool,
}

/// Outcome of a function that was interrupted, and its detail: the deadline in ms if it has passed, otherwise 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(pub Outcome, pub u64);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {:?}", self.0)
    }
}

impl std::error::Error for Interrupted {}

impl Watched {
    /// Makes the state of a lane on which nothing runs.
    pub fn new(slot: usize, layout: Arc<Layout>, fences: Fences, socket: OwnedFd) -> Watched {
        let (until_ns, deadline_ms) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let (has_left, ends_process) = (AtomicBool::new(false), AtomicBool::new(false));
        Watched { slot, layout, fences, socket, until_ns, deadline_ms, has_left, ends_process }
    }

    /// Sets how the next function is interrupted: by checks inside its code, or by the end of the process.
    pub fn set_interruption(&self, interruption: Interruption) {
        self.ends_process.store(interruption == Interruption::Outside, Ordering::Relaxed);
    }

    /// Returns the time in ns at which the node ends the process if a function with deadline `until_ns` still runs.
    pub fn killed_at(&self, until_ns: u64) -> u64 {
        let grace_ns = if self.ends_process.load(Ordering::Relaxed) { 0 } else { GRACE_NS };
        until_ns.saturating_add(grace_ns)
    }

    /// Sets the deadline of the function that runs, in ns, and the time in ms that it was given.
    pub fn set_until(&self, until_ns: u64, deadline_ms: u32) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        self.deadline_ms.store(deadline_ms.into(), Ordering::Relaxed);
    }

    /// Checks whether the function that runs may continue; the error says why not.
    pub fn go_on(&self) -> Result<(), Interrupted> {
        if self.has_left.load(Ordering::Relaxed) {
            return Err(Interrupted(Outcome::Cancelled, 0));
        }
        if !self.is_current() {
            return Err(Interrupted(Outcome::Revoked, 0));
        }
        match clock::now().0 > self.until_ns.load(Ordering::Relaxed) {
            true => Err(Interrupted(Outcome::Deadline, self.deadline_ms.load(Ordering::Relaxed))),
            false => Ok(()),
        }
    }

    /// Reports whether the node has revoked no memory of the window.
    pub fn is_current(&self) -> bool {
        self.fences.are_up() && !self.layout.is_void()
    }

    /// Reports whether the caller has closed its connection.
    fn looks_left(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// The open lanes of the process.
#[derive(Default)]
pub struct Lanes {
    open: Mutex<Vec<Arc<Watched>>>,
    opened: Condvar,
}

impl Lanes {
    /// Adds a lane.
    pub fn open(&self, lane: Arc<Watched>) {
        self.open.lock().push(lane);
        self.opened.notify_all();
    }

    /// Removes a lane that has ended.
    pub fn close(&self, lane: &Arc<Watched>) {
        self.open.lock().retain(|other| !Arc::ptr_eq(other, lane));
    }

    /// Looks at all lanes periodically, and never returns.
    pub fn watch(&self, engines: &Engines, status: &Status) {
        let mut open = self.open.lock();
        loop {
            while open.is_empty() {
                open = self.opened.wait(open);
            }
            open = self.opened.wait_timeout(open, LOOK);
            for lane in open.iter() {
                if !lane.fences.are_up() && !lane.layout.is_void() {
                    lane.layout.forget();
                }
                let Activity::Running { request_id, opcode, until_ns, deadline_ms } = status.doing(lane.slot)
                else {
                    continue;
                };
                let over = if lane.looks_left() {
                    lane.has_left.store(true, Ordering::Relaxed);
                    LEFT_NS
                } else if !lane.is_current() {
                    REVOKED_NS
                } else {
                    continue;
                };
                if lane.ends_process.load(Ordering::Relaxed) && until_ns > REVOKED_NS {
                    let running = Activity::Running { request_id, opcode, until_ns: over, deadline_ms };
                    status.set(lane.slot, running);
                }
            }
            engines.tick();
        }
    }
}
