//! Planner: estimates of what fetching, shipping and splitting a step over far data would take, and the choice of one.
//!
//! The idea: each part of a step has a rate of its own. Nodes run the program, links carry columns or results, the
//! client runs the program over what it fetched, and shared CPUs do all of it. The parts work at the same time, so the
//! slowest one decides how long the step takes ([`estimate`]). Rates are learned from runs: rates of a link for each
//! node, rates of a program for each program ([`Learned`]). The difference that remains between estimate and
//! measurement is learned as a factor for each placement. Until something was measured, assumed values are used
//! ([`prior`]).
//!
//! Calls of shipped functions (code of a user that runs beside far memory) are placed by the same rates ([`Call`]).
//!
//! Never in this crate: I/O, a clock, threads, randomness, unsafe code; knowledge of programs or tables. The caller
//! says how many bytes are read, how many are output, and under which key to remember the program.
#![forbid(unsafe_code)]

mod average;
mod calls;
mod estimate;
mod learned;
mod output_size;
mod placement;
pub mod prior;
mod recent;

pub use calls::{Call, CallEstimate, EachEstimate, RanAt, SeenCalls, break_even_accesses};
pub use estimate::{
    ClientCpus, Cost, Limit, LinkCost, Share, StepEstimate, StepEstimates, StepInput, estimate,
};
pub use learned::{
    Distance, ExpectedCost, LINKS_MAX, Learned, Left, Measured, Measurements, PIPELINES_MAX, ProgramKey,
    fingerprint,
};
pub use output_size::OutputSize;
pub use placement::{Placement, UnknownPlacement, Way};
