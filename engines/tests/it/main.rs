//! Tests of SQL over far tables (tables in the memory of nodes). The SQL engine is a part of this test program; some
//! tests start the programs `farpool` and `farpool-sql` as well. `reference.py` writes the Parquet files that the tests
//! load, and DuckDB's answers over them.

mod aggregates;
mod altered_tables;
mod answers;
mod beside;
mod cached_files;
mod canonical;
mod changes;
mod distributed;
mod floats;
mod joins;
mod losses;
mod plans;
mod pools;
mod projections;
mod recipes;
mod refreshes;
mod spills;
mod substrait;
mod suite;
mod worker_certificates;

/// Placements that queries are run with.
const PLACEMENTS: [&str; 4] = ["auto", "fetch", "ship", "split"];
