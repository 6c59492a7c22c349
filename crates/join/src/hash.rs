//! Where a key belongs.
//!
//! The idea: the key under a secret is multiplied by a secret odd number, and both halves of the 128 bits are folded. The
//! top bits name the partition, the low 32 the bucket, so the two say nothing about each other. It takes three
//! instructions more than the top of a plain product, and keys in any arithmetic order, which a plain product can lay
//! into few places, spread.

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
        let mut hasher = Hasher { secret, factor: mixed(secret) | 1, shift: 64 - bits, markers: [0; 2] };
        let first = hasher.partition(0);
        // Of half of all seeds the first will do; that none of a thousand does is no seed at all.
        let second = (1..).find(|key| hasher.partition(*key) != first).unwrap_or_default();
        hasher.markers = [0, second];
        hasher
    }

    /// How many bits name a partition.
    pub fn bits(&self) -> u32 {
        64 - self.shift
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> usize {
        1 << self.bits()
    }

    /// The hash of a key.
    #[inline(always)]
    pub fn hash(&self, key: i64) -> u64 {
        fold(key as u64 ^ self.secret, self.factor)
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
#[inline(always)]
pub(crate) fn bucket(hash: u64, buckets: u32) -> usize {
    ((u64::from(hash as u32) * u64::from(buckets)) >> 32) as usize
}
