//! Benchmarks of reads, writes and leases: their cost, and their effect on other work.

pub(crate) mod cache;
mod contenders;
mod empty_rpc;
pub(crate) mod fairness;
pub(crate) mod leases;
pub(crate) mod neighbour;
mod report;
mod rivals;
pub(crate) mod transports;
pub(crate) mod waiting;
