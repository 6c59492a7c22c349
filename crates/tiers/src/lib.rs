//! Memory tiers of one machine.
//!
//! The idea: some memory is near and fast, some is far (behind CXL or another node's link) and there is more of it.
//! Operators that stream are held up by the links, so what matters is how many bytes go over which of them, and that all
//! are busy at the same time. `farpool_place` says where objects should lie; here operators are cut into morsels that say
//! what they move ([`stage`], [`strategy`]), and run under a clock that jumps ([`Virtual`]).
//!
//! Never in this crate: an operator over rows, a decision where something should lie, sockets.
#![deny(unsafe_code)]

mod flow;
mod meter;
pub mod stage;
pub mod strategy;
mod virtual_clock;

pub use virtual_clock::Virtual;
