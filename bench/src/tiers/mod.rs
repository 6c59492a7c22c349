//! Benchmarks of hash joins in memory, on one tier and over two.

pub(crate) mod hash_join;
mod runner;
mod strategies;
pub(crate) mod two_tiers;
