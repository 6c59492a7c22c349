//! Repair of files: which files are watched, whether one may need repair, and the thread that repairs them.
//!
//! The idea: code that notices a lost or draining node only sets a flag ([`Repair::request`]). The session's renewals
//! check the flag ([`Repair::claim`]) and start a thread ([`Repair::run`]). The thread goes from file to file until all
//! are repaired. Each file knows how to repair itself ([`Repairable`]).
//!
//! The only lock is that of the list of files. It is held to copy the list, never while a file is repaired, and no
//! other lock is taken inside it.

use crate::error::Error;
use crate::session_core::SessionCore;
use crate::stats::add;
use farpool_lock::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Pause before the next round in ms, if a file could not be repaired.
const RETRY_MS: u64 = 500;
/// Longest time in ms after which it is looked again where the copies are that nodes make.
const LOOK_AGAIN_MS_MAX: u64 = 60_000;

/// File that can be repaired.
pub(crate) trait Repairable: Send + Sync {
    /// Repairs what can be repaired now. Nodes make lost copies of a published file again: it is only looked where
    /// those are, if `looks` is true.
    fn repair(&self, looks: bool) -> Repaired;

    /// Returns how many bytes the next loss of a node would destroy.
    fn unprotected_bytes(&self) -> u64;
}

/// Result of one round over a file, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Repaired {
    /// The file needs no repair any more.
    All,
    /// Nodes have yet to make copies of the file again.
    Awaited,
    /// Some of the file still needs repair and could not be repaired now.
    Part,
}

/// Files of a session that may need repair, and whether a thread is repairing them.
pub(crate) struct Repair {
    base: Arc<SessionCore>,
    files: Mutex<Vec<Weak<dyn Repairable>>>,
    is_needed: AtomicBool,
    /// True if nodes were lost or are back since copies were last looked for.
    looks_anew: AtomicBool,
    is_running: AtomicBool,
}

impl Repair {
    pub(crate) fn new(base: Arc<SessionCore>) -> Repair {
        Repair {
            base,
            files: Mutex::default(),
            is_needed: AtomicBool::new(false),
            looks_anew: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
        }
    }

    /// Adds a file to those that are watched for lost copies.
    pub(crate) fn keep<F: Repairable + 'static>(&self, file: &Arc<F>) {
        let file: Weak<F> = Arc::downgrade(file);
        let mut files = self.files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(file);
    }

    /// Returns how many bytes of all watched files the next loss of a node would destroy.
    pub(crate) fn unprotected_bytes(&self) -> u64 {
        let files: Vec<Weak<dyn Repairable>> = self.files.lock().clone();
        files.iter().filter_map(Weak::upgrade).map(|file| file.unprotected_bytes()).sum()
    }

    /// Notes that a file may need repair.
    pub(crate) fn request(&self) {
        self.is_needed.store(true, Ordering::Release);
    }

    /// Notes that nodes were lost or are back, so files may need repair or have copies elsewhere.
    pub(crate) fn note_nodes(&self) {
        self.looks_anew.store(true, Ordering::Release);
        self.request();
    }

    /// Returns true if repair was requested and no thread is running. The caller then owns the work: it starts
    /// [`Self::run`], or calls [`Self::leave`] if it cannot.
    pub(crate) fn claim(&self) -> bool {
        self.is_needed.load(Ordering::Acquire) && !self.is_running.swap(true, Ordering::AcqRel)
    }

    /// Notes that no thread is repairing.
    pub(crate) fn leave(&self) {
        self.is_running.store(false, Ordering::Release);
    }

    /// Repairs until no file needs it, or until the session ends. Copies that nodes make are looked for less and less
    /// often while no node is lost or comes back.
    pub(crate) fn run(&self) {
        let mut repaired = Repaired::All;
        let (mut look_after_ms, mut next_look) = (RETRY_MS, self.base.host.now());
        loop {
            if !self.is_needed.swap(false, Ordering::AcqRel) && repaired == Repaired::All {
                break;
            }
            if self.looks_anew.swap(false, Ordering::AcqRel) {
                (look_after_ms, next_look) = (RETRY_MS, self.base.host.now());
            }
            let looks = self.base.host.now() >= next_look;
            let files: Vec<Weak<dyn Repairable>> = self.files.lock().clone();
            let open = || self.base.check_open().is_ok();
            let files = files.iter().filter_map(Weak::upgrade).take_while(|_| open());
            repaired = files.map(|file| file.repair(looks)).max().unwrap_or(Repaired::All);
            if looks {
                next_look = self.base.deadline(look_after_ms);
                look_after_ms = LOOK_AGAIN_MS_MAX.min(2 * look_after_ms);
            }
            if !open() || repaired != Repaired::All && self.base.pause(RETRY_MS).is_err() {
                break;
            }
        }
        self.leave();
    }

    /// Counts repaired bytes, and waits as long as the configured repair rate allows for that many.
    pub(crate) fn keep_pace(&self, bytes: u64) -> Result<(), Error> {
        add(&self.base.counters.repaired_bytes, bytes);
        self.base.pause(bytes * 1_000 / self.base.options.repair_bytes_per_second)
    }
}
