//! Limits of a node's work per second, in bytes or in ns of CPU time. Pure: the caller passes the time.
//!
//! A token bucket fills with time, up to a burst. Its tokens are taken when a morsel of work (all that a connection
//! does between two admissions) ends, because only then is its size known. The level may therefore fall below zero, and
//! nobody begins a morsel until it is above zero again. An idle node keeps at most a burst of tokens. Over any span of
//! time a node spends at most what the span brings in, a burst, and one morsel in each slot (place to work; a node has
//! one for each CPU).

use farpool_wire::MonoNs;

/// Size of a full bucket: the tokens that arrive in this many ns.
pub const BURST_NS: u64 = 10_000_000;
const SECOND_NS: i128 = 1_000_000_000;

/// Token bucket whose level may be negative.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Tokens per second. A token is a byte, or one ns of CPU time.
    per_second: u64,
    /// Level in billionths of a token, so that no time is lost between two calls.
    level: i128,
    filled_at: MonoNs,
}

impl Bucket {
    /// Makes a full bucket.
    pub fn new(per_second: u64, now: MonoNs) -> Bucket {
        Bucket { per_second, level: i128::from(per_second) * i128::from(BURST_NS), filled_at: now }
    }

    /// Returns for how many ns no work may begin; 0 if it may begin now.
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

    /// Takes the tokens of a morsel (piece of work) that has ended.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(i128::from(tokens) * SECOND_NS);
    }
}
