//! Partitioning in one pass: each row is read once and written once.
//!
//! The idea: sort letters into boxes without counting them first. Letters are collected in small trays, one for each
//! box. A full tray is emptied into its box, and a full box is continued in a new one. Here each thread has a buffer of
//! some cache lines for every partition. A full buffer is written, bypassing the caches, to the end of the thread's
//! blocks for that partition. Blocks have equal length and are taken from chunks in sequence, so rows that are written
//! at about the same time lie in few huge pages.
//!
//! If there are few rows, blocks are short, so that little stays empty. If a partition gets far more rows than others,
//! it just gets more blocks. The partitioner of paper 002 ([`two_reads`](crate::two_reads)) leaves no gaps, but reads
//! its input twice.

use crate::arena::Arena;
use crate::chunks::{ChunkSource, JoinSide, Purpose, chunks_for, take};
use crate::hash::PartitionHasher;
use crate::kernels::Kernels;
use crate::memory::CacheLine;
use crate::morsels::Morsels;
use crate::partitioned::Run;
use crate::{JoinError, JoinInput};

/// Cache lines of the buffers of all partitions of a thread together: 2 MiB, unless a bound of [`BUFFER_LINES`] says
/// otherwise. Writes of long buffers reach twice the rate of writes of single lines, and the branch for a full buffer
/// is predicted more often. Up to this size, that gains more than misses of the second-level cache cost.
const ALL_LINES: usize = 1 << 15;
/// Least and most cache lines of a partition's buffer: 1 and 2 KiB.
const BUFFER_LINES: [usize; 2] = [16, 32];
/// Most cache lines of a block (memory that one thread fills with rows of one partition): 64 KiB. On average, half a
/// block stays empty for each partition and thread.
const BLOCK_LINES_MAX: usize = 1024;
/// Least cache lines of a block: a full buffer fits.
const BLOCK_LINES_MIN: usize = BUFFER_LINES[1];

const _: () = assert!(BUFFER_LINES[0].is_power_of_two() && BUFFER_LINES[1].is_power_of_two());

/// Returns the lines of the buffer of each of `partitions` partitions. Both are powers of two.
pub(crate) fn buffer_lines(partitions: usize) -> usize {
    (ALL_LINES / partitions).clamp(BUFFER_LINES[0], BUFFER_LINES[1])
}

/// Free cache lines to which one thread writes its next rows of one partition.
#[derive(Debug, Default)]
pub(crate) struct Place<'a>(&'a mut [CacheLine]);

impl<'a> Place<'a> {
    /// Returns a place that begins with these free lines.
    pub(crate) fn new(lines: &'a mut [CacheLine]) -> Place<'a> {
        Place(lines)
    }

    /// Returns the next `lines` free lines. Gets a new block from `refill` if fewer are left.
    #[inline(always)]
    pub(crate) fn next(
        &mut self,
        lines: usize,
        refill: impl FnOnce() -> Result<&'a mut [CacheLine], JoinError>,
    ) -> Result<&'a mut [CacheLine], JoinError> {
        if self.0.len() < lines {
            self.0 = refill()?;
        }
        match std::mem::take(&mut self.0).split_at_mut_checked(lines) {
            Some((next, rest)) => {
                self.0 = rest;
                Ok(next)
            }
            None => Err(JoinError::Memory(format!("a block has fewer than {lines} lines"))),
        }
    }
}

/// State of one thread while it partitions.
#[derive(Debug)]
pub(crate) struct Scatter<'a> {
    /// Buffers of all partitions, `lines` lines for each.
    pub(crate) buffers: &'a mut [CacheLine],
    /// Lines of each buffer: a power of two.
    pub(crate) lines: usize,
    /// Index of each partition's next free slot, among the slots (four to a line) of all buffers.
    pub(crate) next: Vec<u32>,
    /// Number of rows of each partition that have left the buffers.
    pub(crate) counts: Vec<u32>,
    /// Free lines of each partition, where its next full buffer goes.
    pub(crate) places: Vec<Place<'a>>,
}

impl<'a> Scatter<'a> {
    /// Returns a state with empty buffers for as many partitions as there are places.
    pub(crate) fn new(buffers: &'a mut [CacheLine], places: Vec<Place<'a>>) -> Scatter<'a> {
        let partitions = places.len();
        let lines = buffer_lines(partitions);
        let buffers = &mut buffers[..partitions * lines];
        let next = (0..partitions).map(|partition| (partition * lines * 4) as u32).collect();
        Scatter { buffers, lines, next, counts: vec![0; partitions], places }
    }

    /// Writes the rows that are left in the buffers. Returns the number of rows of each partition.
    pub(crate) fn finish(
        self,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
    ) -> Result<Vec<u32>, JoinError> {
        let (mut counts, next) = (self.counts, self.next);
        for (partition, mut place) in self.places.into_iter().enumerate() {
            let left = next[partition] as usize - partition * self.lines * 4;
            if left > 0 {
                let buffer = &self.buffers[partition * self.lines..][..left.div_ceil(4)];
                place.next(buffer.len(), || refill(partition))?.copy_from_slice(buffer);
                counts[partition] += left as u32;
            }
        }
        Ok(counts)
    }
}

/// Identity of a thread that partitions a side.
pub(crate) struct PartitionThread {
    /// Side whose rows are partitioned.
    pub(crate) side: JoinSide,
    /// Number of the thread, from 0.
    pub(crate) worker: usize,
    /// Number of threads that partition the side.
    pub(crate) workers: usize,
}

/// Partitions the rows that one thread gets from `morsels`. Returns the partitioned rows and their number.
pub(crate) fn write<'m, S: JoinInput + ?Sized>(
    hasher: &PartitionHasher,
    kernels: Kernels,
    chunks: &'m dyn ChunkSource,
    source: &S,
    morsels: &dyn Morsels,
    thread: PartitionThread,
) -> Result<(Run<'m>, usize), JoinError> {
    let PartitionThread { side, worker, workers } = thread;
    let partitions = hasher.partitions();
    let expected_lines = source.rows() / (4 * workers * partitions);
    // A block is an eighth of the expected rows of a partition, so that little of the last block stays empty.
    let block_lines = (expected_lines / 8).next_power_of_two().clamp(BLOCK_LINES_MIN, BLOCK_LINES_MAX);
    let purpose = Purpose::Scratch { worker };
    let mut buffers = take(chunks, purpose, chunks_for(partitions * buffer_lines(partitions)))?;
    let arena = Arena::new(chunks, Purpose::Partition { side, worker }, block_lines);
    // Partition to which each block belongs.
    let mut owners: Vec<u16> = Vec::new();
    let mut refill = |partition: usize| {
        owners.push(partition as u16);
        arena.block()
    };
    let places = std::iter::repeat_with(Place::default).take(partitions).collect();
    let mut scatter = Scatter::new(buffers.lines_mut(), places);
    let mut handed = 0;
    while let Some(rows) = morsels.next(worker) {
        handed += check(&rows, source.rows())?;
        let mut result = Ok(());
        source.tuples(rows, &mut |tuples| {
            if result.is_ok() {
                result = kernels.scatter(hasher, tuples, &mut scatter, &mut refill);
            }
        });
        result?;
    }
    let counts = scatter.finish(&mut refill)?;
    kernels.fence();
    Ok((Run::of_blocks(arena.finish(), &owners, counts), handed))
}

/// Returns the number of rows of a morsel (a range of rows). Returns an error if it goes beyond the `all` rows of the
/// input.
pub(crate) fn check(rows: &std::ops::Range<usize>, all: usize) -> Result<usize, JoinError> {
    match rows.start <= rows.end && rows.end <= all {
        true => Ok(rows.len()),
        false => Err(JoinError::Morsels { rows: all, handed: rows.start.max(rows.end) }),
    }
}
