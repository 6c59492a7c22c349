//! Tests of functions through real nodes and sandbox processes. The name of a test is its claim: area, situation,
//! expectation.

mod calls;
mod crowd;
mod escapes;
mod examples;
mod groups;
mod hedged;
mod hops;
mod hostile;
mod native;
mod pool;
mod tables;
