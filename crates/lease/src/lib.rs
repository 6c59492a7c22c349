//! Who may touch which region, until when.
//!
//! The idea: the leased thing lives on the memory node, so the node alone can decide who may touch it, by
//! comparing tokens, without trusting anybody's clock. The broker only spreads promises (tickets) over the
//! nodes and keeps names; if it is wrong, slow or dead, a promise is refused, never broken into.
//!
//! * [`node::NodeLeases`] is the arbiter of one node's regions.
//! * [`broker::BrokerLeases`] grants tickets and keeps the catalog of published files.
//! * [`ticket`] signs and checks what travels between the two.
//! * [`tenant`] says whose things are.
//!
//! Never in this crate: a clock, a socket, a random number, a lock, or a map whose order depends on the run.
//! Every method takes `now`; every effect is an [`node::Action`] or a [`broker::Record`] that the caller
//! carries out, in order, before it releases the reply.
#![forbid(unsafe_code)]

pub mod broker;
pub mod node;
pub mod settings;
pub mod tenant;
pub mod ticket;

pub use broker::BrokerLeases;
pub use node::NodeLeases;
pub use settings::{BrokerSettings, LeaseSettings, Quotas};
