//! Tests of far tables in engines that are linked with them. `reference.py` makes the data that they read.

mod aggregates;
mod answers;
mod beside;
mod cached_files;
mod canonical;
mod distributed;
mod floats;
mod joins;
mod losses;
mod plans;
mod pools;
mod projections;
mod spills;
mod substrait;
mod suite;

/// Placements that queries are run with.
const PLACEMENTS: [&str; 4] = ["auto", "fetch", "ship", "split"];
