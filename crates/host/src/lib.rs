//! What the core asks of the machine under it: clock, randomness, threads, waking and waiting, a line to say.
//!
//! The idea: whoever takes part in a pool is given its [`Host`] and asks nothing of the system by itself, so the
//! simulator can run a whole pool in one thread from one seed. How long a thread spins for an answer before it parks is
//! [`waiting`]'s.
//!
//! Never in this crate: a link or a peer (that is `transport`), or a rule about either. Unsafe code stands in `fork.rs`
//! and `slice.rs` alone.
#![deny(unsafe_code)]

pub mod clock;
mod fork;
mod host;
pub mod slice;
pub mod waiting;

pub use fork::ForkMark;
pub use host::{Bell, DiskFile, Host, HostLayer, Machine, Task, Turn};
