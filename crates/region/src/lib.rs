//! Region memory of a node: where regions lie, how copies enter and leave them, and how they are wiped and given
//! back.
//!
//! The idea: one [`Arena`] owns all region memory of a node. A copy enters the region's gate (one atomic increment,
//! no lock) and checks the [`Fence`] behind it. To take a region away, the node changes the fence word first and then
//! waits for the copies that are inside. I1, I2 and I3 need nothing else. Memory that is no region is mapped here as
//! well ([`PrivateMemory`]).
//!
//! Never in this crate: a decision about who may do what (the crates `node` and `lease` decide), a socket of its
//! own, clocks, a Rust reference into region memory that is not sealed, or a panic that a peer's numbers can cause
//! (I10).
#![deny(unsafe_code)]

mod arena;
mod error;
mod fence;
mod fence_words;
mod gate;
mod gated_range;
mod mapping;
mod memfd;

pub use arena::{Arena, ArenaOptions, SharedAccess};
pub use error::RegionError;
pub use fence::{Fence, GATE_BYTES_MAX};
pub use gate::Entered;
pub use gated_range::{GatedRange, RANGES_MAX, receive, send};
pub use mapping::{HUGE_PAGE_BYTES, PrivateMemory, SealedSlice};
