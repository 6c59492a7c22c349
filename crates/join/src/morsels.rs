//! Interface through which threads get their next rows.
//!
//! The idea: threads ask a queue for the next morsel, a range of rows of an input. The caller implements the queue. If
//! it knows the memory tier of each row, it can mix near and far morsels. All tiers are then busy all the time.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most rows of a morsel (range of rows for one thread) of [`RowQueue`]: a mebibyte of tuples.
pub const MORSEL_ROWS: usize = 1 << 16;

/// Queue of the rows of an input, or of the numbers of partitions. Each is returned to one thread, once.
pub trait Morsels: Sync {
    /// Returns the next rows for a thread; `None` if none are left. The call also means that the thread is done with
    /// the rows that it got before.
    fn next(&self, worker: usize) -> Option<Range<usize>>;

    /// Notes that a thread is about to read these rows a second time, after all threads have read all rows once. A
    /// thread reads its morsels again in the order in which it got them. The call also means that the thread is done
    /// with the morsel before.
    fn again(&self, worker: usize, rows: &Range<usize>) {
        let _ = (worker, rows);
    }
}

/// Queue that returns rows from first to last.
#[derive(Debug)]
pub struct RowQueue {
    /// First row of the next morsel.
    next: AtomicUsize,
    /// Rows of the input.
    rows: usize,
    /// Rows of a morsel.
    step: usize,
}

impl RowQueue {
    /// Returns a queue over `rows` rows.
    pub fn new(rows: usize) -> RowQueue {
        // A morsel is at most a sixteenth of a short input, so that several threads get some of it.
        RowQueue { next: AtomicUsize::new(0), rows, step: (rows / 16).clamp(1024, MORSEL_ROWS) }
    }
}

impl Morsels for RowQueue {
    fn next(&self, _worker: usize) -> Option<Range<usize>> {
        let start = self.next.fetch_add(self.step, Ordering::Relaxed);
        (start < self.rows).then(|| start..self.rows.min(start + self.step))
    }
}
