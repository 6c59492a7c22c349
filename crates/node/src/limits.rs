//! What a node may spend in a while. Pure: told the time, it reads no clock.
//!
//! The idea: a token bucket whose tokens are taken when a piece is over, because only then is it known what it
//! took. The level may so fall below nothing, and nobody begins a piece before it has risen above that again.
//! Over any span a node spends at most what the span brings in, a burst, and a piece in each slot.

use farpool_wire::MonoNs;

/// What a full bucket holds: the tokens of so long.
pub const BURST_NS: u64 = 10_000_000;
const SECOND_NS: i128 = 1_000_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Tokens of a second.
    per_second: u64,
    /// In billionths of a token, so that no time is lost between two looks.
    level: i128,
    filled_at: MonoNs,
}

impl Bucket {
    /// A full one.
    pub fn new(per_second: u64, now: MonoNs) -> Bucket {
        Bucket { per_second, level: i128::from(per_second) * i128::from(BURST_NS), filled_at: now }
    }

    /// How long nothing may be begun, in nanoseconds; 0: something may.
    pub fn wait_ns(&mut self, now: MonoNs) -> u64 {
        let since = now.0.saturating_sub(self.filled_at.0);
        self.filled_at = self.filled_at.max(now);
        let full = i128::from(self.per_second) * i128::from(BURST_NS);
        self.level = (self.level + i128::from(since) * i128::from(self.per_second)).min(full);
        if self.level > 0 {
            return 0;
        }
        let missing = 1 - self.level;
        u64::try_from(missing / i128::from(self.per_second.max(1)) + 1).unwrap_or(u64::MAX)
    }

    /// Takes what a piece took.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(i128::from(tokens) * SECOND_NS);
    }
}
