//! Memory tiers of one machine.
//!
//! The idea: some memory is near and fast, some is far (behind CXL or another node's link) and there is more of it.
//! Operators that stream are held up by the links, so what matters is how many bytes go over which of them, and that
//! all are busy at the same time. [`plan`] says where objects should lie; the rest of this crate has the memory
//! ([`TieredRegion`]), what the machine says of itself ([`topology`]), what it really does ([`calibrate`]), and three
//! places to run operators cut into morsels that say what they move ([`stage`], [`strategy`]): on real tiers
//! ([`Numa`]), on one tier whose parts are held back ([`Emulated`]), and under a clock that jumps ([`Virtual`]). On the
//! first two [`join()`] has the kernels of `farpool-join` do the work, on memory that is placed as a plan says
//! ([`TierMemory`]).
//!
//! Figures of emulated tiers are called so wherever they are shown: they are good for ratios, never for rates.
//!
//! Never in this crate: an operator over rows, a decision where something should lie outside [`plan`], sockets. Unsafe
//! code stands in `memory.rs` and `policy.rs` alone.
#![deny(unsafe_code)]

pub mod calibrate;
mod drive;
mod emulated;
mod feed;
mod flow;
mod join;
pub mod kept;
mod memory;
mod meter;
mod moving;
mod numa;
mod pace;
pub mod plan;
mod policy;
pub mod region;
mod room;
pub mod stage;
pub mod strategy;
pub mod topology;
mod virtual_clock;

pub use emulated::Emulated;
pub use join::{Joined, TierError, Tiered, join};
pub use memory::{TierMemory, share_in_chunks};
pub use numa::Numa;
pub use pace::Pace;
pub use region::{Nodes, TieredRegion};
pub use virtual_clock::Virtual;
