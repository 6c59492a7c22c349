//! Benchmarks of queries over far tables, and of their operators.

mod choices;
mod ciphers;
mod cryptopp;
pub(crate) mod groups;
mod operands;
pub(crate) mod operators;
mod patterns;
pub(crate) mod place;
pub(crate) mod scan;
mod scan_clients;
mod scan_queries;
mod semi_joins;
pub(crate) mod wide_table;
