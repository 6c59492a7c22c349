//! Near-data operators: a small program over the columns of a table, checked before it runs, run by the same code on
//! the node that holds the columns and on the client that has fetched them (paper 003, Farview; invariant I8).
//!
//! The idea: a program is data. It is decoded with every count bounded, checked with every type known, and only a
//! [`Program`] that has passed both can be run.
#![forbid(unsafe_code)]

pub mod expression;
pub mod limits;
pub mod program;
pub mod types;

pub use expression::{Binary, Comparison, Expression, Flaw, Instruction};
pub use program::{Aggregate, Function, Lookup, Operator, Program, SortKey, Step};
pub use types::{Arithmetic, Scalar, TimeUnit, Type, Value};
