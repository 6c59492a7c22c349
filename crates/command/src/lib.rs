//! What the commands of Farpool are made of: flags that say how far connections go, failures and their exit codes,
//! sizes and times as people write them, files that are read whole, plain tables, JSON for a terminal, signals that
//! end them, where programs lie.
//!
//! Never in this crate: what a command does.
#![forbid(unsafe_code)]

pub mod exit;
pub mod input;
pub mod json;
pub mod programs;
pub mod reach;
pub mod signals;
pub mod table;
pub mod units;
