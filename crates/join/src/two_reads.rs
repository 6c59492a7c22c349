//! Partitioner of paper 002, as a baseline: reads once to count, and once more to write.
//!
//! The idea (paper section 2.2, and its published code): after all threads have counted, each thread knows its own
//! range in every partition. Partitions lie one after another without gaps. Here ranges begin at cache lines, so that a
//! buffer written past the caches never overlaps the range of another thread.

use crate::chunks::{ChunkSource, JoinSide, Purpose, chunks_for, take};
use crate::hash::PartitionHasher;
use crate::kernels::Kernels;
use crate::memory::CacheLine;
use crate::morsels::Morsels;
use crate::one_pass::{Place, Scatter, buffer_lines, check};
use crate::partitioned::{Partitioned, Run};
use crate::{JoinError, JoinInput, threads};
use std::ops::Range;

/// Partitions an input. Returns the partitions, and the number of rows that `morsels` gave to the workers. The caller
/// compares it with the rows of the input.
pub(crate) fn partition<'m, S: JoinInput + ?Sized>(
    hasher: &PartitionHasher,
    kernels: Kernels,
    chunks: &'m dyn ChunkSource,
    source: &S,
    morsels: &dyn Morsels,
    side: JoinSide,
    workers: usize,
) -> Result<(Partitioned<'m>, usize), JoinError> {
    let partitions = hasher.partitions();
    let counted = threads::each(vec![(); workers], |worker, ()| {
        let (mut counts, mut taken) = (vec![0_u32; partitions], Vec::new());
        while let Some(rows) = morsels.next(worker) {
            check(&rows, source.rows())?;
            source.tuples(rows.clone(), &mut |tuples| {
                tuples.iter().for_each(|tuple| counts[hasher.partition(tuple.key)] += 1);
            });
            taken.push(rows);
        }
        Ok((counts, taken))
    })?;
    let handed = counted.iter().flat_map(|(_, taken)| taken).map(Range::len).sum();
    let mut starts = vec![vec![0; partitions]; workers];
    let mut lines = 0;
    for partition in 0..partitions {
        for (starts, (counts, _)) in starts.iter_mut().zip(&counted) {
            starts[partition] = lines;
            lines += (counts[partition] as usize).div_ceil(4);
        }
    }
    let mut whole = take(chunks, Purpose::Partition { side, worker: 0 }, chunks_for(lines))?;
    let mut rest: &mut [CacheLine] = whole.lines_mut();
    let mut inputs: Vec<(Vec<Place<'_>>, &[Range<usize>])> =
        counted.iter().map(|(_, taken)| (Vec::with_capacity(partitions), taken.as_slice())).collect();
    for partition in 0..partitions {
        for ((places, _), (counts, _)) in inputs.iter_mut().zip(&counted) {
            let (own, behind) = rest.split_at_mut((counts[partition] as usize).div_ceil(4));
            places.push(Place::new(own));
            rest = behind;
        }
    }
    let written = threads::each(inputs, |worker, (places, taken)| {
        let buffers = chunks_for(partitions * buffer_lines(partitions));
        let mut buffers = take(chunks, Purpose::Scratch { worker }, buffers)?;
        let mut scatter = Scatter::new(buffers.lines_mut(), places);
        // Memory is exactly as long as the first read counted. More is needed only if `source` supplies other tuples in
        // the second read, which is an error.
        let mut refill = |_| Err(JoinError::Morsels { rows: source.rows(), handed: source.rows() });
        for rows in taken {
            morsels.again(worker, rows);
            let mut result = Ok(());
            source.tuples(rows.clone(), &mut |tuples| {
                if result.is_ok() {
                    result = kernels.scatter(hasher, tuples, &mut scatter, &mut refill);
                }
            });
            result?;
        }
        let counts = scatter.finish(&mut refill)?;
        kernels.fence();
        Ok(counts)
    })?;
    let runs =
        starts.into_iter().zip(written).map(|(starts, counts)| Run::of_whole(starts, counts)).collect();
    Ok((Partitioned::new(*hasher, runs, Some(whole)), handed))
}
