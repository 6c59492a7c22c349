//! Interface between Farpool and the machine it runs on: clock, randomness, threads, events, waiting, and a log.
//!
//! The idea: clients, nodes and brokers get a [`Host`] and never call the system for these things themselves. The
//! simulator can therefore run a whole pool in one thread from one seed. The module [`waiting`] decides how long a
//! thread spins for an answer before it parks.
//!
//! Never in this crate: a link or a peer (crate `transport` has those), or a rule about either. Unsafe code is in
//! `clock.rs`, `fork.rs` and `slice.rs` only.
#![deny(unsafe_code)]

pub mod clock;
mod event;
mod fork;
mod host;
mod memory;
pub mod slice;
pub mod waiting;

pub use event::{Event, Level};
pub use fork::ForkMark;
pub use host::{DiskFile, Host, HostEvent, HostLayer, HostMutex, Machine, Task};
pub use memory::{BoundedMemory, UsableMemory};
