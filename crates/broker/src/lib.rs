//! Broker: serves the rules of [`farpool_lease::BrokerLeases`], and keeps their records in a store.
//!
//! The idea: one lock, one decision at a time, and a promise is in the store before its answer leaves. A pool needs the
//! broker only to allocate memory and to find names, so the broker is never on a data path.
//!
//! Never in this crate: a rule about leases (crate `lease` has those), or file bytes.
#![forbid(unsafe_code)]

pub mod election;
mod news;
mod service;
mod start;
pub mod stores;
mod waits;

pub use farpool_lease::broker::SessionStatus;
pub use farpool_lease::{BrokerSettings, LeaseSettings, Quotas, SnapshotSettings};
pub use service::BrokerService;
pub use start::Broker;
