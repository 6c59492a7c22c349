//! Shared parts of Farpool's commands: settings, flags for connections and TLS, failures and their exit codes, sizes
//! and times, declarations of flags, input files, tables, JSON output, the log, monitoring over HTTP, signals,
//! messages to systemd, and the search for programs.
//!
//! Never in this crate: the work of a single command.
#![forbid(unsafe_code)]

pub mod declaration;
pub mod exit;
pub mod exposure;
pub mod input;
pub mod json;
pub mod log;
pub mod monitoring;
pub mod programs;
pub mod settings;
pub mod signals;
pub mod supervisor;
pub mod table;
pub mod units;
