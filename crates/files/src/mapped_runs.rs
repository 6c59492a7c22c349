//! List of where the readable bytes of a file are mapped in this process, for the mapped reads and writes of
//! `mapped_access`.

use crate::node_links::LeasedRegion;
use crate::plan::Readable;
use farpool_lock::RwLock;
use farpool_transport::shm::MappedRegion;
use farpool_wire::data::Span;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Runs of a file's bytes that are mapped, and when to list them again.
#[derive(Default)]
pub(crate) struct Direct {
    pub(crate) list: RwLock<List>,
    /// Reads that took the slow path since the list was made.
    pub(crate) misses: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct List {
    /// Layout number of the file's map when the list was made.
    pub(crate) layout: u64,
    /// Mapped runs in file order.
    pub(crate) runs: Vec<Run>,
    /// Readable runs, mapped or not, that the list was made from.
    pub(crate) looked_at: usize,
}

/// Bytes of a file that lie together in a mapped region.
pub(crate) struct Run {
    pub(crate) file: Range<u64>,
    /// Offset in the region of the first of these bytes.
    pub(crate) offset: u64,
    pub(crate) region: Arc<LeasedRegion>,
    pub(crate) memory: Arc<MappedRegion>,
    /// True if this is the only copy and it may be written.
    pub(crate) is_only: bool,
}

impl Run {
    pub(crate) fn span(&self, offset: u64, bytes: u32) -> Span {
        let LeasedRegion { region, epoch, handle, .. } = *self.region;
        Span { region, bytes, offset, epoch, handle }
    }
}

impl List {
    /// Splits a range into parts, each with its run. Yields `None` and ends where a byte is in no run.
    pub(crate) fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = Option<(&Run, Range<u64>)>> {
        let first = self.runs.partition_point(|run| run.file.end <= range.start);
        let mut runs = self.runs[first..].iter();
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let run = runs.next().filter(|run| run.file.start <= at);
            let part = run.map(|run| (run, at..range.end.min(run.file.end)));
            at = part.as_ref().map_or(range.end, |(_, part)| part.end);
            Some(part)
        })
    }
}

/// Returns the run of readable bytes. `None` if its region is not mapped; reads of the slow path map regions.
pub(crate) fn mapped(readable: Readable<Arc<LeasedRegion>>) -> Option<Run> {
    let Readable { file, allocation, is_only } = readable;
    let LeasedRegion { region, epoch, handle, .. } = *allocation.region;
    let span = Span { region, bytes: allocation.bytes, offset: allocation.offset, epoch, handle };
    let memory = allocation.region.node.mapped(&span)?;
    Some(Run { file, offset: allocation.offset, memory, is_only, region: allocation.region })
}
