//! The broker: the loop round [`farpool_lease::BrokerLeases`], and the stores its promises survive in.
//!
//! The idea: one lock, one decision at a time, and what was promised is in the store before the answer
//! leaves. A pool needs a broker only to allocate and to find names, so this is never on a data path.
//!
//! Never in this crate: a rule about leases (that is `lease`), or file bytes.
#![forbid(unsafe_code)]

pub mod election;
mod service;
mod start;
pub mod stores;

pub use farpool_lease::{BrokerSettings, LeaseSettings, Quotas};
pub use service::BrokerService;
pub use start::Broker;
