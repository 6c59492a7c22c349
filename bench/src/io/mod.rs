//! Reads, writes and leases: what far memory costs, and what it costs others.

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
