//! Partition phase of a join: divides the rows of one side by the hash of their key.

use crate::chunks::{ChunkSource, JoinSide};
use crate::hash::PartitionHasher;
use crate::morsels::Morsels;
use crate::partitioned::Partitioned;
use crate::settings::{Partitioner, ROWS_MAX, Settings};
use crate::{JoinError, JoinInput, one_pass, threads, two_reads};

/// Partitions one side of a join. Both sides need the same `hasher`: that of [`Settings::hasher`] for the rows of the
/// build side.
///
/// # Errors
/// Returns an error if there are too many rows or no memory, or if `morsels` does not return each row exactly once.
pub fn partition<'m, S: JoinInput + ?Sized>(
    settings: &Settings,
    hasher: &PartitionHasher,
    chunks: &'m dyn ChunkSource,
    side: JoinSide,
    source: &S,
    morsels: &dyn Morsels,
) -> Result<Partitioned<'m>, JoinError> {
    let rows = source.rows();
    if rows > ROWS_MAX {
        return Err(JoinError::TooManyRows { rows, most: ROWS_MAX });
    }
    let (kernels, workers) = (settings.kernels, settings.threads);
    let (partitioned, handed) = match settings.partitioner {
        Partitioner::OnePass => {
            let written = threads::each(vec![(); workers], |worker, ()| {
                let thread = one_pass::PartitionThread { side, worker, workers };
                one_pass::write(hasher, kernels, chunks, source, morsels, thread)
            })?;
            let handed = written.iter().map(|(_, handed)| handed).sum();
            let runs = written.into_iter().map(|(run, _)| run).collect();
            (Partitioned::new(*hasher, runs, None), handed)
        }
        Partitioner::TwoReads => {
            two_reads::partition(hasher, kernels, chunks, source, morsels, side, workers)?
        }
    };
    match handed == rows {
        true => Ok(partitioned),
        false => Err(JoinError::Morsels { rows, handed }),
    }
}
