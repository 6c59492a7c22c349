//! Far tables in DataFusion 55: a schema of all tables of a pool, scans that run beside the data what can be said
//! there, and the rule that moves groupings, DISTINCT and top-k into them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = farpool::Pool::connect("farpool://127.0.0.1:7700")?;
//! let session = farpool_datafusion::Session::new(&pool, Default::default())?;
//! let rows = session.context().sql("SELECT l_shipmode, count(*) FROM lineitem GROUP BY l_shipmode").await?;
//! rows.show().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The life of a query: `catalog` opens the table, `source` takes filters and columns while DataFusion plans, `rules`
//! gives it groupings and tops, `pipeline` makes a program of all of it, `steps` runs that over a few row groups at a
//! time, narrowed by what joins found out meanwhile (`narrowing`). What does not fit into the memory that a session may
//! take goes to temporary files in far memory (`spill`), hash joins included (`far_hash_join`).
//!
//! Files of other stores that queries read are kept in memory, near and far (`cached_store`).
//!
//! Plans of others come and go as Substrait (`substrait`), and live the same life.
//!
//! Never here: a socket, or an operator over columns; what runs beside the data is `farpool`'s.
#![forbid(unsafe_code)]

mod cached_store;
mod catalog;
mod explain;
mod extremes;
mod far_hash_join;
mod keys;
mod memory;
mod narrowing;
mod options;
mod outcome;
mod pipeline;
mod rules;
mod session;
mod ship_keys;
mod source;
mod spill;
mod statistics;
mod steps;
mod substrait;
mod translate;

pub use cached_store::CachedStore;
pub use catalog::{FarCatalog, FarSchema, FarTableProvider};
pub use explain::{each_scan, scans, spills};
pub use extremes::extremes;
pub use far_hash_join::{FarHashJoinExec, SpillHashJoins};
pub use options::Options;
pub use outcome::{Outcome, Sum};
pub use rules::ShipToScans;
pub use session::{Plans, Session, builder, builder_for, runtime};
pub use ship_keys::ShipJoinKeys;
pub use source::{FarSource, GroupsEach};
pub use spill::{FarTempFiles, Spilled};
pub use substrait::{
    PLAN_BYTES_MAX, PLAN_COLUMNS_MAX, PLAN_EXPANSION_MAX, PLAN_NESTING_MAX, PLAN_RELATIONS_MAX,
};

use datafusion::common::DataFusionError;

/// An error of the pool's as one of DataFusion's.
pub(crate) fn external(error: farpool::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
