//! Settings of a join.

use crate::JoinError;
use crate::hash::{BITS_MAX, PartitionHasher};
use crate::kernels::Kernels;

/// Most threads of a join.
pub(crate) const THREADS_MAX: usize = 256;
/// Most rows of a side, because positions in a table have 31 bits.
pub(crate) const ROWS_MAX: usize = 1 << 31;

/// Method of partitioning an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// One read of the rows. Partitions grow block by block as rows come.
    OnePass,
    /// Two reads of the rows, as in paper 002: one to count, one to write partitions without gaps.
    TwoReads,
}

/// Settings of all phases of a join.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads, 1 to 256.
    pub threads: usize,
    /// Seed of the hash function. It should be random if keys come from untrusted users.
    pub seed: u64,
    /// Logarithm to base 2 of the number of partitions, 1 to 14. `None` lets [`Settings::hasher`] choose.
    pub bits: Option<u32>,
    /// Method of partitioning.
    pub partitioner: Partitioner,
    /// Instruction set for the hot loops.
    pub kernels: Kernels,
}

impl Settings {
    /// Returns settings for one-pass partitioning with the best instructions of this CPU.
    pub fn new(threads: usize, seed: u64) -> Settings {
        let (bits, partitioner) = (None, Partitioner::OnePass);
        Settings { threads, seed, bits, partitioner, kernels: Kernels::best() }
    }

    /// Returns the hash function for both sides, given the number of rows of the build side.
    ///
    /// # Errors
    /// Returns an error if a setting is out of its range, or if there are too many rows.
    pub fn hasher(&self, build_rows: usize) -> Result<PartitionHasher, JoinError> {
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
        Ok(PartitionHasher::new(self.seed, bits))
    }
}

/// Rows of the build side that a partition should have at most, if `Settings::bits` is `None`. Its table then takes
/// 128 KiB if it is an array indexed by key, or 680 KiB if it has buckets. Smaller tables of buckets would be faster,
/// but need more partitions, which costs as much.
const PARTITION_ROWS: usize = 1 << 14;
/// Most bits of a partition's number if `Settings::bits` is `None`. The write buffers of more partitions take more of
/// the caches than smaller tables save.
const CHOSEN_BITS_MAX: u32 = 12;

fn bits_for(build_rows: usize) -> u32 {
    let partitions = build_rows.div_ceil(PARTITION_ROWS).max(2);
    partitions.next_power_of_two().ilog2().min(CHOSEN_BITS_MAX)
}
