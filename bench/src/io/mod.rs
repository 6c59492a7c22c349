//! Benchmarks of reads and writes of far memory and of leases on it: their cost, and their effect on other work.

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
