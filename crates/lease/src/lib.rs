//! Leases: who may touch which region, until when.
//!
//! The idea: the leased memory lives on the memory node, so the node alone decides who may touch it. It decides by
//! comparing tokens and trusts nobody's clock. The broker only spreads promises (tickets) over the nodes and keeps
//! names. If the broker is wrong, slow or dead, a promise is refused; it never breaks into somebody's lease.
//!
//! * [`node::NodeLeases`] decides about one node's regions.
//! * [`broker::BrokerLeases`] grants tickets and keeps the catalog of published files.
//! * [`ticket`] signs and checks the tickets that travel between the two.
//! * [`tenant`] names the owners of sessions, files and regions, and counts their regions.
//!
//! Never in this crate: a clock, a socket, a random number, a lock, or a map whose order depends on the run.
//! Methods whose result depends on time take `now`. Every effect is an [`node::Action`] or a
//! [`broker::StateChange`], which the caller carries out, in order, before it releases the reply.
#![forbid(unsafe_code)]

pub mod broker;
pub mod node;
pub mod settings;
pub mod tenant;
pub mod ticket;

pub use broker::BrokerLeases;
pub use node::NodeLeases;
pub use settings::{BrokerSettings, LeaseSettings, Quotas, SnapshotSettings};
