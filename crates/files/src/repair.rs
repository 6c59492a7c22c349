//! Repair: which files are in its care, whether some of them may not be as they should be, and the thread that sees to
//! it.
//!
//! The idea: whoever notices a loss, or a node to be left, only leaves a word ([`Repair::request`]). The session's
//! renewals look for the word ([`Repair::claim`]) and start a thread ([`Repair::run`]), which goes from file to file
//! until all are as they should be. How a file is mended is the file's ([`Mend`]).
//!
//! The lock is that of the list of files. It is held for a look, never while a file is mended, and nothing is locked
//! within.

use crate::base::Base;
use crate::error::Error;
use crate::stats::add;
use farpool_lock::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Pause between two rounds while something could not be mended.
const RETRY_MS: u64 = 500;

/// A file that can be mended.
pub(crate) trait Mend: Send + Sync {
    /// Does what can be done now.
    fn mend(&self) -> Mended;

    /// Bytes whose next loss would be for good.
    fn unprotected_bytes(&self) -> u64;
}

/// How a round over a file went.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mended {
    /// Everything is as it should be.
    All,
    /// Something is not, and could not be helped now.
    Part,
}

/// What there is to mend, and whether somebody is at it.
pub(crate) struct Repair {
    base: Arc<Base>,
    files: Mutex<Vec<Weak<dyn Mend>>>,
    is_needed: AtomicBool,
    is_running: AtomicBool,
}

impl Repair {
    pub(crate) fn new(base: Arc<Base>) -> Repair {
        Repair {
            base,
            files: Mutex::default(),
            is_needed: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
        }
    }

    /// Takes a file into care.
    pub(crate) fn keep<F: Mend + 'static>(&self, file: &Arc<F>) {
        let file: Weak<F> = Arc::downgrade(file);
        let mut files = self.files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(file);
    }

    /// Bytes of files in care whose next loss would be for good.
    pub(crate) fn unprotected_bytes(&self) -> u64 {
        let files: Vec<Weak<dyn Mend>> = self.files.lock().clone();
        files.iter().filter_map(Weak::upgrade).map(|file| file.unprotected_bytes()).sum()
    }

    /// Notes that some file may not be as it should be.
    pub(crate) fn request(&self) {
        self.is_needed.store(true, Ordering::Release);
    }

    /// Returns true if there is something to mend and nobody is at it: the caller is from now on, and starts
    /// [`Self::run`] or says that it does not ([`Self::leave`]).
    pub(crate) fn claim(&self) -> bool {
        self.is_needed.load(Ordering::Acquire) && !self.is_running.swap(true, Ordering::AcqRel)
    }

    /// Notes that nobody is at it.
    pub(crate) fn leave(&self) {
        self.is_running.store(false, Ordering::Release);
    }

    /// Mends until all files are as they should be, or the session ends.
    pub(crate) fn run(&self) {
        while self.is_needed.swap(false, Ordering::AcqRel) {
            let files: Vec<Weak<dyn Mend>> = self.files.lock().clone();
            let open = || self.base.check_open().is_ok();
            let mut mended = Mended::All;
            for file in files.iter().filter_map(Weak::upgrade).take_while(|_| open()) {
                if file.mend() == Mended::Part {
                    mended = Mended::Part;
                }
            }
            if mended == Mended::Part {
                self.request();
                if self.base.pause(RETRY_MS).is_err() {
                    break;
                }
            }
            if !open() {
                break;
            }
        }
        self.leave();
    }

    /// Lets as much time pass as so many bytes may take.
    pub(crate) fn keep_pace(&self, bytes: u64) -> Result<(), Error> {
        add(&self.base.counters.repaired_bytes, bytes);
        self.base.pause(bytes * 1_000 / self.base.options.repair_bytes_per_second)
    }
}
