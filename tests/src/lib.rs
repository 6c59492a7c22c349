//! Support code that the tests in `it/` share with the processes they start, and with the tests of `engines`.
//!
//! Never in this crate: a test, which belongs in `it/`, or anything that a user's program would want.
#![forbid(unsafe_code)]

pub mod canary;
pub mod programs;
pub mod random;
pub mod raw_session;
