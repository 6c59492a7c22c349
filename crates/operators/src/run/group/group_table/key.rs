//! Keys of a group table, as the words that it compares.

/// Key of `K` words.
pub trait Key<const K: usize>: Copy + Ord {
    /// Returns the words of the key.
    fn words(self) -> [u64; K];
    /// Makes the key of these words.
    fn from_words(words: [u64; K]) -> Self;
    /// Returns the keys in the form that the kernels take, or `None` if they have two words.
    fn short(keys: &[Self]) -> Option<&[i64]>;
}

impl Key<1> for i64 {
    #[inline(always)]
    fn words(self) -> [u64; 1] {
        [self as u64]
    }

    #[inline(always)]
    fn from_words([word]: [u64; 1]) -> i64 {
        word as i64
    }

    #[inline(always)]
    fn short(keys: &[i64]) -> Option<&[i64]> {
        Some(keys)
    }
}

impl Key<2> for u128 {
    #[inline(always)]
    fn words(self) -> [u64; 2] {
        [self as u64, (self >> 64) as u64]
    }

    #[inline(always)]
    fn from_words([low, high]: [u64; 2]) -> u128 {
        u128::from(low) | u128::from(high) << 64
    }

    #[inline(always)]
    fn short(_: &[u128]) -> Option<&[i64]> {
        None
    }
}
