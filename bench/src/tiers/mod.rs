//! Benchmarks of hash joins in memory: on one memory tier, and on a near and a far tier.

pub(crate) mod hash_join;
mod runner;
mod strategies;
pub(crate) mod two_tiers;
