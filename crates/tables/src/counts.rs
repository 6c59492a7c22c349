//! Numbers of the scans of a session, by where they ran.

use crate::report::Report;
use farpool_files::Pool;
use farpool_files::beneath::{Session, session_of_pool};
use farpool_planner::{Placement, Way};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that are kept with a session.
#[derive(Default)]
struct Counters {
    by_way: [AtomicU64; 3],
    chosen: AtomicU64,
}

/// Scans of far tables that a session has made. A query that reads a table in steps counts once for each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCounts {
    /// Scans whose row groups were all fetched.
    pub fetched: u64,
    /// Scans whose row groups were all shipped.
    pub shipped: u64,
    /// Scans that were split between nodes and the client.
    pub split: u64,
    /// Scans of these whose placement was [`Placement::Auto`].
    pub chosen: u64,
}

/// Counts a scan that has run.
pub(crate) fn count_scan(session: &Session, report: &Report) {
    let counters = session.kept::<Counters>();
    counters.by_way[report.chosen as usize].fetch_add(1, Ordering::Relaxed);
    if report.placement == Placement::Auto {
        counters.chosen.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the numbers of the scans of a session.
pub fn scan_counts(pool: &Pool) -> ScanCounts {
    let counters = session_of_pool(pool).kept::<Counters>();
    let of = |way: Way| counters.by_way[way as usize].load(Ordering::Relaxed);
    ScanCounts {
        fetched: of(Way::Fetch),
        shipped: of(Way::Ship),
        split: of(Way::Split),
        chosen: counters.chosen.load(Ordering::Relaxed),
    }
}
