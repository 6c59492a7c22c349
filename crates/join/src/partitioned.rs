//! Partitioned input of a join: its rows, divided by the hash of their key.

use crate::arena::Blocks;
use crate::hash::PartitionHasher;
use crate::memory::{LineMemory, tuples};
use crate::{CacheLine, Tuple};

/// Rows of an input, grouped by the partition of their key. Dropping it gives the memory back.
#[derive(Debug)]
pub struct Partitioned<'m> {
    /// Function that has assigned keys to partitions.
    pub(crate) hasher: PartitionHasher,
    /// Rows of all partitions that each thread has written, one run for each thread.
    runs: Vec<Run<'m>>,
    /// Memory of all partitions if they lie in one range; `None` if threads wrote blocks of their own.
    whole: Option<LineMemory<'m>>,
    /// Number of rows of each partition.
    counts: Vec<usize>,
}

/// Rows that one thread wrote, of all partitions.
#[derive(Debug)]
pub(crate) struct Run<'m> {
    /// Number of these rows in each partition.
    counts: Vec<u32>,
    /// Place of the rows in memory.
    laid: Laid<'m>,
}

#[derive(Debug)]
enum Laid<'m> {
    /// Rows lie in blocks. Partition `p` has the blocks `numbers[starts[p]..starts[p + 1]]`.
    Blocks { blocks: Blocks<'m>, starts: Vec<u32>, numbers: Vec<u32> },
    /// Rows lie in [`Partitioned::whole`]. This thread's rows of partition `p` begin at its cache line `starts[p]`.
    Whole { starts: Vec<usize> },
}

impl<'m> Run<'m> {
    /// Returns a run whose block `i` belongs to partition `owners[i]`.
    pub(crate) fn of_blocks(blocks: Blocks<'m>, owners: &[u16], counts: Vec<u32>) -> Run<'m> {
        let mut starts = vec![0_u32; counts.len() + 1];
        for owner in owners {
            starts[usize::from(*owner) + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut next, mut numbers) = (starts.clone(), vec![0; owners.len()]);
        for (block, owner) in owners.iter().enumerate() {
            let at = &mut next[usize::from(*owner)];
            numbers[*at as usize] = block as u32;
            *at += 1;
        }
        Run { counts, laid: Laid::Blocks { blocks, starts, numbers } }
    }

    /// Returns a run whose partitions begin at these cache lines of the one range that all threads write.
    pub(crate) fn of_whole(starts: Vec<usize>, counts: Vec<u32>) -> Run<'m> {
        Run { counts, laid: Laid::Whole { starts } }
    }
}

impl<'m> Partitioned<'m> {
    pub(crate) fn new(
        hasher: PartitionHasher,
        runs: Vec<Run<'m>>,
        whole: Option<LineMemory<'m>>,
    ) -> Partitioned<'m> {
        let count = |partition: usize| runs.iter().map(|run| run.counts[partition] as usize).sum();
        let counts = (0..hasher.partitions()).map(count).collect();
        Partitioned { hasher, runs, whole, counts }
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.counts.len()
    }

    /// Returns the number of rows of a partition.
    ///
    /// # Panics
    /// Panics if there is no such partition.
    pub fn count(&self, partition: usize) -> usize {
        self.counts[partition]
    }

    /// Returns the number of rows of all partitions.
    pub fn rows(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Returns the rows of a partition, as slices of the memory where they lie.
    ///
    /// # Panics
    /// Panics if there is no such partition.
    pub fn slices(&self, partition: usize) -> impl Iterator<Item = &[Tuple]> {
        self.runs.iter().flat_map(move |run| {
            let count = run.counts[partition] as usize;
            let (whole, blocks) = match &run.laid {
                Laid::Whole { starts } => {
                    let lines: &[CacheLine] = self.whole.as_ref().map_or(&[], |whole| whole.lines());
                    let lines = &lines[starts[partition]..][..count.div_ceil(4)];
                    (Some(&tuples(lines)[..count]), None)
                }
                Laid::Blocks { blocks, starts, numbers } => {
                    let numbers = &numbers[starts[partition] as usize..starts[partition + 1] as usize];
                    (None, Some((blocks, numbers)))
                }
            };
            let mut left = count;
            let blocks = blocks.into_iter().flat_map(|(blocks, numbers)| {
                numbers.iter().map(move |number| tuples(blocks.block(*number as usize)))
            });
            let blocks = blocks.map(move |block| {
                let rows = block.len().min(left);
                left -= rows;
                &block[..rows]
            });
            whole.into_iter().chain(blocks)
        })
    }
}
