//! The bytes of the pool, on the node's side: where regions live, who is let through to them, how they are
//! wiped and given back.
//!
//! The idea: one [`Arena`] owns all region memory of a node. A copy passes the region's gate (one atomic
//! increment, no lock) and looks at the [`Fence`] behind it; whoever takes a region away changes the fence
//! word first and then waits for the copies already inside. Nothing else is needed for I1, I2 and I3. Memory that
//! is no pool's is mapped here as well ([`PrivateMemory`]).
//!
//! Never in this crate: a decision about who may do what (that is the node's dispatch and `lease`), a
//! socket of its own, clocks, a Rust reference into region memory that is not sealed, or a panic that a peer's numbers
//! can reach (I10).
#![deny(unsafe_code)]

mod arena;
mod error;
mod fence;
mod gate;
mod mapping;
mod memfd;
mod window;
mod words;

pub use arena::{Arena, ArenaOptions, SharedAccess};
pub use error::RegionError;
pub use fence::{Fence, GATE_BYTES_MAX};
pub use gate::Entered;
pub use mapping::{HUGE_PAGE_BYTES, PrivateMemory, SealedSlice};
pub use window::{WINDOWS_MAX, Window, receive, send};
