//! Hash function of joins: the partition of a key, and its bucket within the partition.
//!
//! The idea: a library has many rooms. The last digit of a book's number and a secret together name its room. In each
//! room, books stand in the order of their number without that digit. Numbers 1 to N then fill each room without gaps,
//! and a book's position follows from its number.
//!
//! Here the low bits of a key, as many as name a partition, play the last digit. The rest of the key is its *rank*. The
//! rank and a secret are multiplied by a secret odd number, and both halves of the 128-bit product are XORed
//! (*folded*). The top bits of that *plus the low bits of the key* are the partition. Keys of the same rank therefore
//! lie in different partitions, and keys within a partition differ in rank. Keys that are close together, such as 1..N,
//! have ranks close together in each partition. A table can then use the rank as an array index
//! ([`dense_table`](crate::dense_table)).
//!
//! If keys come in large steps, ranks are far apart and the product spreads them; the whole hash, mixed once more,
//! selects a bucket. A random seed makes the partitions of chosen keys hard to predict.
//!
//! The top bits of a plain product are the obvious hash. They save three instructions, but keys at some regular
//! distances would fall into few partitions.

/// Most bits of a partition's number.
pub(crate) const BITS_MAX: u32 = 14;

/// Hash function under a seed, for one number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionHasher {
    /// Secret that is XORed with the rank of a key. It follows from the seed.
    pub(crate) secret: u64,
    /// Odd number by which the result is multiplied.
    pub(crate) factor: u64,
    /// Right shift that turns a hash into a partition: 64 minus the number of bits that number partitions.
    pub(crate) shift: u32,
    /// Two keys of different partitions. Free slots of a partition's table hold the one that is not in that partition.
    markers: [i64; 2],
}

/// Returns 64 well-mixed bits of a seed (splitmix64).
pub(crate) fn mixed(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Multiplies to 128 bits and XORs both halves.
#[inline(always)]
pub(crate) fn fold(value: u64, factor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor);
    (product as u64) ^ ((product >> 64) as u64)
}

impl PartitionHasher {
    /// Returns the hash function for 2 to the power of `bits` partitions. The caller checks that `bits` is 1 to
    /// [`BITS_MAX`].
    pub(crate) fn new(seed: u64, bits: u32) -> PartitionHasher {
        let secret = mixed(seed);
        // Both markers have rank 0, because `bits` is at least 1, so they are in different partitions.
        PartitionHasher { secret, factor: mixed(secret) | 1, shift: 64 - bits, markers: [0, 1] }
    }

    /// Returns the number of bits of a partition's number.
    pub fn bits(&self) -> u32 {
        64 - self.shift
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        1 << self.bits()
    }

    /// Returns the hash of a key. Its top bits are the partition.
    #[inline(always)]
    pub fn hash(&self, key: i64) -> u64 {
        fold(self.rank(key) as u64 ^ self.secret, self.factor).wrapping_add((key as u64) << self.shift)
    }

    /// Returns the rank of a key: its bits without those that name partitions. Keys of one partition with the same rank
    /// are equal.
    #[inline(always)]
    pub(crate) fn rank(&self, key: i64) -> i64 {
        key >> (64 - self.shift)
    }

    /// Returns the partition of a key.
    #[inline(always)]
    pub fn partition(&self, key: i64) -> usize {
        (self.hash(key) >> self.shift) as usize
    }

    /// Returns the key that free slots of tables hold in all partitions, except in the one to which this key belongs.
    pub(crate) fn usual_marker(&self) -> i64 {
        self.markers[0]
    }

    /// Returns a key that does not belong to this partition. Free slots of its table hold it.
    #[inline(always)]
    pub(crate) fn marker(&self, partition: usize) -> i64 {
        self.markers[usize::from(self.partition(self.markers[0]) == partition)]
    }
}

/// Returns the bucket of a hash among `buckets`.
///
/// Hashes of keys in steps form a lattice: among hashes with the same top bits, few values of lower bits may occur.
/// XORing bits onto others and multiplying once more spreads them.
#[inline(always)]
pub(crate) fn bucket(hash: u64, buckets: u32) -> usize {
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
    ((mixed * u64::from(buckets)) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Less than 2.5 % of keys do not fit their bucket of four slots, about as many as with random keys, for any step.
    #[test]
    fn keys_in_steps_spread_over_buckets_of_their_partition() {
        for (seed, bits, step) in
            [(1, 12, 64), (1, 12, 16), (9, 12, 16), (3, 11, 28), (1, 8, 1 << 20), (2, 10, 6)]
        {
            let hasher = PartitionHasher::new(seed, bits);
            let keys = (1..=4096_i64 << bits).map(|key| key * step);
            let hashes: Vec<u64> =
                keys.map(|key| hasher.hash(key)).filter(|hash| hash >> hasher.shift == 1).collect();
            let buckets = hashes.len() / 3 * 2 + 2;
            let mut loads = vec![0_usize; buckets];
            hashes.iter().for_each(|hash| loads[bucket(*hash, buckets as u32)] += 1);
            let beyond: usize = loads.iter().map(|load| load.saturating_sub(4)).sum();
            let share = beyond as f64 / hashes.len() as f64;
            assert!(hashes.len() > 1000 && share < 0.025, "{seed} {bits} {step}: {share}");
        }
    }
}
