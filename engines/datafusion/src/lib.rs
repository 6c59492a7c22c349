//! Far tables in DataFusion 55: a catalog schema with all tables of a pool, scans that run steps beside the data, and
//! the optimizer rules that move groupings, DISTINCT and top-k into those scans.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = farpool::Pool::connect("farpool://127.0.0.1:7700")?;
//! let session = farpool_datafusion::FarSession::new(&pool, Default::default())?;
//! let rows = session.context().sql("SELECT l_shipmode, count(*) FROM lineitem GROUP BY l_shipmode").await?;
//! rows.show().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The life of a query:
//!
//! 1. `catalog` finds the far table, or an earlier snapshot of it (`as_of`), and opens the files that the filters of
//!    the query do not rule out.
//! 2. While DataFusion plans, `source` takes filters and columns, and `rules` gives it groupings and top-k.
//! 3. `pipeline` makes one program of all of that.
//! 4. `steps` runs the program over a few row groups at a time. Filters that joins found meanwhile narrow later steps
//!    (`narrowing`).
//! 5. Rows beyond the session's memory limit spill to temporary files in far memory (`spill`). That includes hash joins
//!    (`far_hash_join`).
//!
//! `session` runs statements that change far tables: it writes the rows of queries, `changes` those of `DELETE` and
//! `UPDATE`, and `alter` reads changes of columns.
//!
//! A table that `CREATE TABLE .. AS` makes has a recipe (`recipes`), by which it is made again if it is lost.
//!
//! Blocks of files in other object stores are cached in near and far memory (`cached_store`). Plans can be read and
//! written as Substrait (`substrait`); a plan that was read is then executed like any other.
//!
//! Never in this crate: a socket, or an operator over columns. The crate `farpool` runs what is placed beside the data.
#![forbid(unsafe_code)]

mod alter;
mod as_of;
mod cached_store;
mod catalog;
mod changes;
mod explain;
mod extremes;
mod far_hash_join;
mod keys;
mod memory;
mod narrowing;
mod options;
mod outcome;
mod pipeline;
mod recipes;
mod rules;
mod session;
mod ship_keys;
mod source;
mod spill;
mod statistics;
mod steps;
mod substrait;
mod translate;

pub use as_of::parse_sql;
pub use cached_store::CachedStore;
pub use catalog::{FarCatalog, FarSchema, FarTableProvider};
pub use explain::{each_scan, scans, spills};
pub use extremes::extremes;
pub use far_hash_join::{FarHashJoinExec, SpillHashJoins};
pub use options::Options;
pub use outcome::{ScanReports, Sum};
pub use rules::ShipToScans;
pub use session::{FarSession, Plans, builder, builder_for, runtime};
pub use ship_keys::ShipJoinKeys;
pub use source::{FarSource, GroupsEach};
pub use spill::{FarTempFiles, Spilled};
pub use substrait::{
    PLAN_BYTES_MAX, PLAN_COLUMNS_MAX, PLAN_EXPANSION_MAX, PLAN_NESTING_MAX, PLAN_RELATIONS_MAX,
};

use datafusion::common::DataFusionError;

/// Wraps an error of the pool as an error of DataFusion.
pub(crate) fn external(error: farpool::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
