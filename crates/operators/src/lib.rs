//! Near-data operators: a small program over the columns of a table, checked before it runs, run by the same code on
//! the node that holds the columns and on the client that has fetched them (paper 003, Farview; invariant I8).
//!
//! The idea: a program is data. It is decoded with every count bounded, checked with every type known, and only a
//! [`Program`] that has passed both can be run.
//!
//! Never in this crate: sockets, files, clocks, threads, randomness, unsafe code; a count that is believed before it is
//! bounded; recursion over what was sent.
#![forbid(unsafe_code)]

pub mod codec;
pub mod columns;
pub mod expression;
pub mod limits;
pub mod packed;
pub mod program;
pub mod query;
pub mod run;
pub mod types;
pub mod words;

pub use codec::{PROGRAM_VERSION, ProgramError};
pub use expression::{Binary, Comparison, Expression, Flaw, Instruction};
pub use program::{Aggregate, Function, Lookup, Operator, Program, SortKey, Step};
pub use query::{Agg, By, Expr, Literal, Plan, Query, QueryError, col, lit};
pub use run::{Bounds, KeySet, Merge, Prepared, Run, Stopped};
pub use types::{Arithmetic, Scalar, TimeUnit, Type, Value};
