//! Simulator of a whole pool in one thread, from one seed. It runs the real client, broker, node, lease rules and
//! framing over simulated time, network, disks, memory and failures.
//!
//! The idea: where real code would block its thread, a coroutine pauses, so the real code runs unchanged. Every
//! clock, every random choice, every transfer of bytes and every fault comes from the seed. After every step the
//! oracle compares what was answered and copied with the invariants of `spec/lease.md`. The same seed gives the same
//! run, so a finding is reported as one number.
//!
//! Never in this crate: a second implementation of a rule. It simulates only what lies below the rules: time,
//! network, disk, memory.

mod admin;
mod campaign;
mod clock;
mod coroutine;
mod electorate;
mod faults;
mod holds;
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
mod pages;
mod panics;
mod parties;
mod pressure;
mod profile;
mod random;
mod replayed_requests;
mod run;
mod snapshots;
mod store;
mod tally;
mod trace;
mod workload;

pub use campaign::{Budget, CampaignProgress, CampaignReport, run};
pub use oracle::Violation;
pub use profile::Profile;
pub use run::{WorldOutcome, run_world, run_world_printed};
pub use tally::Tally;
