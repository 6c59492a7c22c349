//! Where a key belongs.
//!
//! The idea: a key is its low bits, as many as name a partition, and what is left of it: its *rank*. The rank under a
//! secret is multiplied by a secret odd number, and both halves of the 128 bits are folded. The top bits of that *plus
//! the low bits of the key* name the partition; all of it, mixed once more, names the bucket. So keys of one rank lie
//! in partitions of their own, and of all keys in a partition no two have the same rank: keys that are close together,
//! such as 1..N, have ranks close together in each partition, which can be places in a table
//! ([`direct`](crate::direct)). Keys in steps of any length spread by the product. A fold takes three instructions more
//! than the top of a plain product, which can lay keys in any arithmetic order into few places.

/// Most bits that partitions are named by.
pub(crate) const BITS_MAX: u32 = 14;

/// Spreads keys under a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher {
    pub(crate) secret: u64,
    pub(crate) factor: u64,
    /// How far a hash is shifted down to be the number of a partition: 64 less the bits.
    pub(crate) shift: u32,
    /// Two keys that belong to different partitions.
    markers: [i64; 2],
}

/// A number spread over 64 bits (splitmix64).
pub(crate) fn mixed(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Both halves of a product, folded.
#[inline(always)]
pub(crate) fn fold(value: u64, factor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Hasher {
    /// For 2 to the power of `bits` partitions; the caller has checked that it is 1 to [`BITS_MAX`].
    pub(crate) fn new(seed: u64, bits: u32) -> Hasher {
        let secret = mixed(seed);
        // Both markers have the same rank.
        Hasher { secret, factor: mixed(secret) | 1, shift: 64 - bits, markers: [0, 1] }
    }

    /// How many bits name a partition.
    pub fn bits(&self) -> u32 {
        64 - self.shift
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> usize {
        1 << self.bits()
    }

    /// The hash of a key: its top bits are the partition.
    #[inline(always)]
    pub fn hash(&self, key: i64) -> u64 {
        fold(self.rank(key) as u64 ^ self.secret, self.factor).wrapping_add((key as u64) << self.shift)
    }

    /// What a key is beside its partition: two keys of the same partition and rank are equal.
    #[inline(always)]
    pub(crate) fn rank(&self, key: i64) -> i64 {
        key >> (64 - self.shift)
    }

    /// The partition that a key belongs to.
    #[inline(always)]
    pub fn partition(&self, key: i64) -> usize {
        (self.hash(key) >> self.shift) as usize
    }

    /// The marker of all partitions but that which it belongs to itself.
    pub(crate) fn usual_marker(&self) -> i64 {
        self.markers[0]
    }

    /// A key that does not belong to this partition: what free places of its table hold.
    #[inline(always)]
    pub(crate) fn marker(&self, partition: usize) -> i64 {
        self.markers[usize::from(self.partition(self.markers[0]) == partition)]
    }
}

/// The bucket of a hash among so many.
///
/// Hashes of keys in steps lie on a lattice: of those whose top bits say the same, bits further down can be few.
/// Folding bits onto others and multiplying once more ends that.
#[inline(always)]
pub(crate) fn bucket(hash: u64, buckets: u32) -> usize {
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
    ((mixed * u64::from(buckets)) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many keys are beyond the fourth of their bucket as would be by chance, whatever the step: less than 2 %.
    #[test]
    fn keys_in_steps_spread_over_buckets_of_their_partition() {
        for (seed, bits, step) in
            [(1, 12, 64), (1, 12, 16), (9, 12, 16), (3, 11, 28), (1, 8, 1 << 20), (2, 10, 6)]
        {
            let hasher = Hasher::new(seed, bits);
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
