//! Random numbers, all of them from one seed.

/// SplitMix64 (Steele, Lea, Flood 2014). Every seed is good, and the whole state is one number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Makes another generator, seeded from this one. Different values of `stream` give different sequences.
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

    /// Draws a number below `end`, which must be above 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// Draws a number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Draws a number from `low` to `high`, both included. Every power of two in between is equally likely, so small
    /// numbers are as frequent as large ones.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let (low_bits, high_bits) = (low.max(1).ilog2(), high.max(1).ilog2());
        let bits = self.range(low_bits.into(), high_bits.into());
        self.range(1 << bits, (2 << bits) - 1).clamp(low, high)
    }

    /// Returns true with a probability of `per_million` millionths.
    pub(crate) fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Returns true with a probability of 1 / `of`.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Draws one of the items. There must be at least one.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
