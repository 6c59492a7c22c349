//! The one planner: whether a step over far data is fetched, shipped or split, and what each would take.
//!
//! The idea: every part of a step has a rate of its own: nodes run the program, links carry columns or results, the
//! client runs the program over what it fetched, and CPUs that both sides share do all of it. Parts work at the same
//! time, so the slowest says how long a step takes ([`estimate`]). Rates are not believed, they are learnt: of links by
//! node, of everything else by what is run ([`Learned`]); what remains between estimate and actual is learnt as a
//! factor. Before anything was seen, priors stand in ([`prior`]).
//!
//! Shipped functions are called at nodes or here by the same links ([`Call`]).
//!
//! Never in this crate: I/O, a clock, threads, randomness, unsafe code; knowledge of programs or tables: who asks says
//! what is read, what leaves, and by which key to remember it.
#![forbid(unsafe_code)]

mod average;
mod calls;
mod estimate;
mod learned;
mod leaves;
mod placement;
pub mod prior;

pub use calls::{Call, CallEstimate, EachEstimate, RanAt, SeenCalls, break_even_accesses};
pub use estimate::{Cost, Limit, Link, Machine, Share, Step, StepEstimate, StepEstimates, estimate};
pub use learned::{Actual, Key, Known, LINKS_MAX, Learned, Left, PIPELINES_MAX, Reach, Took, fingerprint};
pub use leaves::Leaves;
pub use placement::{Placement, UnknownPlacement, Way};
