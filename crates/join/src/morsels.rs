//! Which rows a thread takes next.
//!
//! The idea: threads ask a queue for the next morsel of an input. The queue is the caller's: one that knows on which
//! tier each row lies can mix near and far morsels, so that all tiers are busy all the time.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of a morsel of [`Cursor`]: a mebibyte of tuples.
pub const MORSEL_ROWS: usize = 1 << 16;

/// Hands out the rows of one input, or the partitions of two, each of them once.
pub trait Morsels: Sync {
    /// What this thread works on next, or nothing if all is handed out. Whoever asks is done with what it had before.
    fn next(&self, worker: usize) -> Option<Range<usize>>;

    /// The thread that was handed these rows is about to read them once more, and is done with those before them: in
    /// the order in which it was handed them, when all threads have read all rows once.
    fn again(&self, worker: usize, rows: &Range<usize>) {
        let _ = (worker, rows);
    }
}

/// The plain queue: from the first row to the last.
#[derive(Debug)]
pub struct Cursor {
    next: AtomicUsize,
    rows: usize,
    step: usize,
}

impl Cursor {
    /// Over so many rows.
    pub fn new(rows: usize) -> Cursor {
        // Short inputs are shared out as well.
        Cursor { next: AtomicUsize::new(0), rows, step: (rows / 16).clamp(1024, MORSEL_ROWS) }
    }
}

impl Morsels for Cursor {
    fn next(&self, _worker: usize) -> Option<Range<usize>> {
        let start = self.next.fetch_add(self.step, Ordering::Relaxed);
        (start < self.rows).then(|| start..self.rows.min(start + self.step))
    }
}
