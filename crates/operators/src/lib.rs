//! Near-data operators. A client sends a small program over the columns of a table; the node that holds the columns
//! runs it. If the client fetches the columns instead, it runs the same program with the same code (paper 003,
//! Farview; invariant I8).
//!
//! The idea: a program is data. It is decoded with every count bounded, then checked with every type known. Only a
//! [`Program`] that passed both can run.
//!
//! Never in this crate: sockets, files, clocks, threads, randomness, unsafe code; a count that is used before it is
//! bounded; recursion over received bytes.
#![forbid(unsafe_code)]

pub mod codec;
pub mod columns;
pub mod display;
pub mod expression;
pub mod limits;
pub mod packed;
pub mod program;
pub mod query;
pub mod run;
pub mod types;

pub use codec::{PROGRAM_VERSION, ProgramError};
pub use expression::{Binary, Comparison, Expression, Flaw, Instruction};
pub use program::{Aggregate, AggregateFunction, CheckedOperator, JoinLookup, Operator, Program, SortKey};
pub use query::{Agg, By, Expr, Literal, Plan, Query, QueryError, col, lit};
pub use run::{Bounds, KeySet, Merge, Prepared, Run, Stopped};
pub use types::{Arithmetic, Scalar, TimeUnit, Type, Value};
