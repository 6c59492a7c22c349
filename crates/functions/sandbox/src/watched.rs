//! What is known of a lane besides its own thread: so that somebody can stop what runs on it.
//!
//! The idea: one thread looks at all lanes, some hundred times in a second while there are any. It lets go of windows
//! that were taken back, notices callers that have left, and interrupts modules so that each looks at its time. What
//! cannot be interrupted it marks as overdue for the node, which ends the process.

use crate::engines::Engines;
use crate::fences::Fences;
use crate::module::Interruption;
use crate::space::Layout;
use farpool_functions::status::{Doing, LEFT_NS, REVOKED_NS, Status};
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

/// How often lanes are looked at.
const LOOK: Duration = Duration::from_millis(2);
/// What is interrupted has this long to end by itself.
const GRACE_NS: u64 = 20_000_000;

/// A lane as others see it.
pub struct Watched {
    /// Its place in the status.
    pub slot: usize,
    /// Its memory.
    pub layout: Arc<Layout>,
    /// Whether that is still what it was.
    pub fences: Fences,
    /// Its connection.
    pub socket: OwnedFd,
    until_ns: AtomicU64,
    deadline_ms: AtomicU64,
    has_left: AtomicBool,
    /// Whether what runs is stopped by its process's end alone.
    ends_process: AtomicBool,
}

/// Why a function was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(pub Outcome, pub u64);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {:?}", self.0)
    }
}

impl std::error::Error for Interrupted {}

impl Watched {
    /// A lane on which nothing runs.
    pub fn new(slot: usize, layout: Arc<Layout>, fences: Fences, socket: OwnedFd) -> Watched {
        let (until_ns, deadline_ms) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let (has_left, ends_process) = (AtomicBool::new(false), AtomicBool::new(false));
        Watched { slot, layout, fences, socket, until_ns, deadline_ms, has_left, ends_process }
    }

    /// Says how what runs next is stopped.
    pub fn set_interruption(&self, interruption: Interruption) {
        self.ends_process.store(interruption == Interruption::Outside, Ordering::Relaxed);
    }

    /// When the node is to end the process for what may run until then.
    pub fn killed_at(&self, until_ns: u64) -> u64 {
        let grace_ns = if self.ends_process.load(Ordering::Relaxed) { 0 } else { GRACE_NS };
        until_ns.saturating_add(grace_ns)
    }

    /// Something runs until then.
    pub fn set_until(&self, until_ns: u64, deadline_ms: u32) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        self.deadline_ms.store(deadline_ms.into(), Ordering::Relaxed);
    }

    /// Whether what runs may go on.
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

    /// Whether the window is still what it was.
    pub fn is_current(&self) -> bool {
        self.fences.are_up() && !self.layout.is_void()
    }

    /// Whether its caller has closed the connection.
    fn looks_left(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// All lanes.
#[derive(Default)]
pub struct Lanes {
    open: Mutex<Vec<Arc<Watched>>>,
    opened: Condvar,
}

impl Lanes {
    /// One more.
    pub fn open(&self, lane: Arc<Watched>) {
        self.open.lock().push(lane);
        self.opened.notify_all();
    }

    /// It has ended.
    pub fn close(&self, lane: &Arc<Watched>) {
        self.open.lock().retain(|other| !Arc::ptr_eq(other, lane));
    }

    /// Looks at all of them, for ever.
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
                let Doing::Running { request_id, opcode, until_ns, deadline_ms } = status.doing(lane.slot)
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
                    let running = Doing::Running { request_id, opcode, until_ns: over, deadline_ms };
                    status.set(lane.slot, running);
                }
            }
            engines.tick();
        }
    }
}
