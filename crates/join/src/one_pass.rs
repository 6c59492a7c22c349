//! Partitioning in one pass: each row is read once and written once.
//!
//! The idea: how many rows a partition gets is not counted beforehand. Each thread has a buffer of a few cache lines
//! for every partition; a full buffer is written, past the caches, behind what the partition has of that thread
//! already, which is a list of pieces of equal length. Pieces are cut from chunks one behind the other, so what is
//! written at about the same time lies in few huge pages. The paper's partitioner ([`two_reads`](crate::two_reads))
//! reads twice for the same.

use crate::arena::Arena;
use crate::chunks::{Chunks, Purpose, Side, chunks_for, take};
use crate::hash::Hasher;
use crate::kernels::Kernels;
use crate::memory::Line;
use crate::morsels::Morsels;
use crate::partitioned::Run;
use crate::{JoinError, Source};

/// Lines that the buffers of all partitions have if there are few: 2 MiB. Memory takes longer runs at twice the rate of
/// single lines, and the branch that sees a buffer full is foreseen more often; that buffers of all partitions leave
/// the second cache costs less, but not more and more of it.
const ALL_LINES: usize = 1 << 15;
/// Lines of the buffer of a partition, at least and at most: 1 and 2 KiB.
const BUFFER_LINES: [usize; 2] = [16, 32];
/// Lines of the longest pieces, 64 KiB: of each partition and thread half a piece stays empty.
const PIECE_LINES_MAX: usize = 1024;
/// Lines of the shortest.
const PIECE_LINES_MIN: usize = BUFFER_LINES[1];

const _: () = assert!(BUFFER_LINES[0].is_power_of_two() && BUFFER_LINES[1].is_power_of_two());

/// Lines of the buffer of each of so many partitions: powers of two both.
pub(crate) fn buffer_lines(partitions: usize) -> usize {
    (ALL_LINES / partitions).clamp(BUFFER_LINES[0], BUFFER_LINES[1])
}

/// Where a partition goes on, for one thread.
#[derive(Debug, Default)]
pub(crate) struct Place<'a>(&'a mut [Line]);

impl<'a> Place<'a> {
    /// From these lines on.
    pub(crate) fn new(lines: &'a mut [Line]) -> Place<'a> {
        Place(lines)
    }

    /// The next lines; `refill` is asked when there are none.
    #[inline(always)]
    pub(crate) fn next(
        &mut self,
        lines: usize,
        refill: impl FnOnce() -> Result<&'a mut [Line], JoinError>,
    ) -> Result<&'a mut [Line], JoinError> {
        if self.0.len() < lines {
            self.0 = refill()?;
        }
        match std::mem::take(&mut self.0).split_at_mut_checked(lines) {
            Some((next, rest)) => {
                self.0 = rest;
                Ok(next)
            }
            None => Err(JoinError::Memory(format!("a piece of fewer than {lines} lines"))),
        }
    }
}

/// What one thread writes partitions by.
#[derive(Debug)]
pub(crate) struct Scatter<'a> {
    /// As many lines for each partition.
    pub(crate) buffers: &'a mut [Line],
    /// How many: a power of two.
    pub(crate) lines: usize,
    /// The slot of its next row in the buffers.
    pub(crate) next: Vec<u32>,
    /// Rows of each partition that were written.
    pub(crate) counts: Vec<u32>,
    /// Where the next buffer of each goes.
    pub(crate) places: Vec<Place<'a>>,
}

impl<'a> Scatter<'a> {
    /// With buffers for so many places, and nothing in them.
    pub(crate) fn new(buffers: &'a mut [Line], places: Vec<Place<'a>>) -> Scatter<'a> {
        let partitions = places.len();
        let lines = buffer_lines(partitions);
        let buffers = &mut buffers[..partitions * lines];
        let next = (0..partitions).map(|partition| (partition * lines * 4) as u32).collect();
        Scatter { buffers, lines, next, counts: vec![0; partitions], places }
    }

    /// Writes what is left in the buffers.
    pub(crate) fn finish(
        self,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
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

/// One of the threads that partition a side.
pub(crate) struct Part {
    pub(crate) side: Side,
    pub(crate) worker: usize,
    pub(crate) workers: usize,
}

/// The part of one thread.
pub(crate) fn write<'m, S: Source + ?Sized>(
    hasher: &Hasher,
    kernels: Kernels,
    chunks: &'m dyn Chunks,
    source: &S,
    morsels: &dyn Morsels,
    part: Part,
) -> Result<(Run<'m>, usize), JoinError> {
    let Part { side, worker, workers } = part;
    let partitions = hasher.partitions();
    let expected_lines = source.rows() / (4 * workers * partitions);
    // An eighth of what a partition gets, so that little stays empty.
    let piece_lines = (expected_lines / 8).next_power_of_two().clamp(PIECE_LINES_MIN, PIECE_LINES_MAX);
    let purpose = Purpose::Scratch { worker };
    let mut buffers = take(chunks, purpose, chunks_for(partitions * buffer_lines(partitions)))?;
    let arena = Arena::new(chunks, Purpose::Partition { side, worker }, piece_lines);
    let mut owners: Vec<u16> = Vec::new();
    let mut refill = |partition: usize| {
        owners.push(partition as u16);
        arena.piece()
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
    Ok((Run::of_pieces(arena.finish(), &owners, counts), handed))
}

/// How many rows a morsel has, if they are rows of the input.
pub(crate) fn check(rows: &std::ops::Range<usize>, all: usize) -> Result<usize, JoinError> {
    match rows.start <= rows.end && rows.end <= all {
        true => Ok(rows.len()),
        false => Err(JoinError::Morsels { rows: all, handed: rows.start.max(rows.end) }),
    }
}
