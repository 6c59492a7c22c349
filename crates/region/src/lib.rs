//! Region memory of a node: where regions lie, how copies enter and leave them, and how they are wiped and given
//! back.
//!
//! The idea: one [`Arena`] owns all region memory of a node. A copy enters the region's gate (one atomic increment, no
//! lock) and checks the [`Fence`] behind it: the epoch of the region, and the handles (secret numbers) that permit its
//! use. To take a region away, the node changes the fence word first and then waits for the copies that are inside. The
//! first three invariants of ARCHITECTURE.md need nothing else: at most one epoch can write a region (I1), nothing of
//! an older epoch is seen once a newer one is in use (I2), and a read returns bytes of its own epoch or an error (I3).
//! Memory that is no region is mapped here as well ([`PrivateMemory`]), and the host is asked which memory it has
//! ([`topology`], [`donation`]).
//!
//! Never in this crate: a decision about who may do what (the crates `node` and `lease` decide), a socket of its
//! own, clocks, a Rust reference into region memory that is not sealed, or a panic that a peer's numbers can cause
//! (I10).
#![deny(unsafe_code)]

mod arena;
pub mod donation;
mod error;
mod fence;
mod fence_words;
mod gate;
mod gated_range;
mod ground;
mod mapping;
mod memfd;
pub mod numa;
mod options;
#[cfg(test)]
mod sysfs;
pub mod topology;

pub use arena::{Arena, SharedAccess};
pub use error::RegionError;
pub use fence::{Fence, GATE_BYTES_MAX};
pub use gate::Entered;
pub use gated_range::{GatedRange, RANGES_MAX, receive, send};
pub use mapping::{HUGE_PAGE_BYTES, PrivateMemory, SealedSlice};
pub use options::ArenaOptions;
