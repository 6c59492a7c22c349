//! A whole pool in one thread, from one seed: the real client, broker, node, lease rules and framing, over
//! simulated time, net, disks, memory and failures.
//!
//! The idea: what blocks a thread in life suspends a coroutine here, so the real code runs as it is; every clock,
//! every draw of chance, every journey of bytes and every fault comes from the seed. After every step the oracle
//! compares what was answered and copied with what the invariants of `spec/lease.md` permit. The same seed gives
//! the same run, so a finding is a number.
//!
//! Never in this crate: a second implementation of a rule. What it simulates is what lies under the rules: time,
//! net, disk, memory.

mod admin;
mod again;
mod campaign;
mod clock;
mod coroutine;
mod electorate;
mod faults;
mod host;
#[cfg(feature = "mutants")]
pub mod hunt;
mod kernel;
mod localdisk;
mod memory;
mod names;
mod net;
mod observed;
mod oracle;
mod panics;
mod parties;
mod pressure;
mod profile;
mod random;
mod run;
mod store;
mod tally;
mod trace;
mod workload;

pub use campaign::{Budget, Progress, Report, run};
pub use oracle::Violation;
pub use profile::Profile;
pub use run::{Outcome, run_world, run_world_printed};
pub use tally::Tally;
