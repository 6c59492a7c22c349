//! Benchmarks of queries over tables in far memory, and of the operators that such queries consist of.

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
