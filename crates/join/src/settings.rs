//! How a join is done.

use crate::JoinError;
use crate::hash::{BITS_MAX, Hasher};
use crate::kernels::Kernels;

/// Most threads.
pub(crate) const THREADS_MAX: usize = 256;
/// Most rows of a side: places in it are 31 bits.
pub(crate) const ROWS_MAX: usize = 1 << 31;

/// How an input is partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// Read once: partitions grow by pieces as rows come.
    OnePass,
    /// The paper's: read once to count, then once more to lay partitions out without gaps.
    TwoReads,
}

/// How a join is done: the same for all of its phases.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads, 1 to 256.
    pub threads: usize,
    /// What keys are spread under. Random, if keys are somebody else's.
    pub seed: u64,
    /// The number of partitions as a power of two, 1 to 14; nothing lets [`Settings::hasher`] choose.
    pub bits: Option<u32>,
    /// How inputs are partitioned.
    pub partitioner: Partitioner,
    /// Which instructions are used.
    pub kernels: Kernels,
}

impl Settings {
    /// So many threads, one pass, and all that the CPU has.
    pub fn new(threads: usize, seed: u64) -> Settings {
        let (bits, partitioner) = (None, Partitioner::OnePass);
        Settings { threads, seed, bits, partitioner, kernels: Kernels::best() }
    }

    /// What both sides are partitioned by, for a build side of so many rows.
    ///
    /// # Errors
    /// If a setting is out of its range, or there are too many rows.
    pub fn hasher(&self, build_rows: usize) -> Result<Hasher, JoinError> {
        let within = |name, value: u64, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(JoinError::Setting { name, value, least, most }),
        };
        within("threads", self.threads as u64, 1, THREADS_MAX as u64)?;
        if build_rows > ROWS_MAX {
            return Err(JoinError::TooManyRows { rows: build_rows, most: ROWS_MAX });
        }
        let bits = match self.bits {
            Some(bits) => bits,
            None => bits_for(build_rows),
        };
        within("bits", u64::from(bits), 1, u64::from(BITS_MAX))?;
        Ok(Hasher::new(self.seed, bits))
    }
}

/// Rows of the build side in a partition. A table by rank then takes 128 KiB, one of buckets 680; smaller tables of the
/// latter would be faster by what more partitions cost.
const PARTITION_ROWS: usize = 1 << 14;
/// More partitions than this cost more, by what their lines take of the caches, than smaller tables save.
const CHOSEN_BITS_MAX: u32 = 12;

fn bits_for(build_rows: usize) -> u32 {
    let partitions = build_rows.div_ceil(PARTITION_ROWS).max(2);
    partitions.next_power_of_two().ilog2().min(CHOSEN_BITS_MAX)
}
