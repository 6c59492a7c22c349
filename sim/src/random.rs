//! Chance, all of it from one number.

/// SplitMix64 (Steele, Lea, Flood 2014): every seed is a good seed, and the whole state is one number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Another sequence, told apart by `stream`.
    pub(crate) fn fork(&mut self, stream: u64) -> Random {
        Random(self.draw() ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is above 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// The same, with small numbers as likely as large ones of as many more digits.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let (low_bits, high_bits) = (low.max(1).ilog2(), high.max(1).ilog2());
        let bits = self.range(low_bits.into(), high_bits.into());
        self.range(1 << bits, (2 << bits) - 1).clamp(low, high)
    }

    /// Whether something happens that happens so often of a million times.
    pub(crate) fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Whether one of `of` happens.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// One of the items; there is at least one.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
