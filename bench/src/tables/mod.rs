//! Benchmarks of tables with snapshots.

pub(crate) mod manifest;
mod memory_pages;
