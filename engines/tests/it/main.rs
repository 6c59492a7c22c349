//! Tests of far tables in engines that are linked with them. What they read is made by `reference.py`.

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

/// Ways to run a scan.
const PLACEMENTS: [&str; 4] = ["auto", "fetch", "ship", "split"];
