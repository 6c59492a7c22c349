//! Tests that need more than one crate. Names are claims: area, situation, what is expected.

mod bad_input;
mod conformance;
mod fencing;
mod file_model;
mod processes;
mod published_files;
mod random;
mod raw_client;
mod shaped_and_simulated;
