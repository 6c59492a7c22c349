//! Far tables: Arrow columns in pinned, published far files, byte for byte as `spec/table.md` says.
//!
//! The idea: the buffers of a row group lie in one region just as Arrow wants them in memory, aligned to 64 bytes.
//! Whoever reads some columns fetches their buffers and nothing else, and code beside the region could use them where
//! they are. A footer says where every buffer lies and between which values its column is; a fixed trailer at the end
//! of the file says where the footer is.
//!
//! What decides about bytes (`column_type`, `footer`, `layout`, `statistics`) and which of them a query needs
//! (`skipping`) is pure, and so is the planner that `placing` asks where to run it; `put` and `far_table` move them,
//! `query` runs programs of operators over them, `shipping` beside them.
//!
//! Never in this crate: an operator of our own over columns, or another file format.
#![forbid(unsafe_code)]

mod column_type;
mod estimates;
mod explain;
mod far_table;
mod footer;
mod joining;
mod layout;
mod names;
mod pacing;
mod placing;
mod put;
mod query;
mod report;
mod scope;
mod sealed;
mod shipping;
mod skipping;
mod statistics;
mod window;

pub use estimates::{Estimate, Estimates};
pub use explain::Explanation;
pub use far_table::{FarTable, GroupPlace, TableInfo, TableReader, open_table, tables};
/// Expressions, queries and the programs they become.
pub use farpool_operators as operators;
/// Keys of encrypted tables.
pub use farpool_sealing::{TableKey, WrongKeyLength};
pub use footer::{BufferAt, ColumnChunk, Encoding, Footer, FooterSeal, RowGroup, Trailer, WrongKey};
pub use joining::{JoinBy, SemiJoin};
pub use layout::{EncodedGroup, Packer, TableLayout};
pub use names::{drop_table, has_table};
pub use put::{PutOptions, put_table};
pub use query::Answer;
pub use report::Report;
pub use skipping::may_pass;
pub use statistics::Statistics;

pub use column_type::stored_schema;

/// Tables are the published files whose names begin so; a file's trailer tells whether it is one.
pub const TABLE_PREFIX: &str = "tables/";

/// Rows of a row group, at most: what is read, skipped and one day computed at a time.
pub const GROUP_ROWS_MAX: usize = 65_536;
/// Every buffer begins at a multiple of this, in the file and in its region.
pub const BUFFER_ALIGN: usize = 64;
/// Every row group begins at a multiple of this: an extent's smallest size.
pub const GROUP_ALIGN: usize = 65_536;
/// Columns of a table, at most.
pub const COLUMNS_MAX: usize = 4_096;
/// Bytes of a column's name, at most.
pub const COLUMN_NAME_BYTES_MAX: usize = 1_024;
/// Bytes of a time zone's name, at most.
pub const ZONE_BYTES_MAX: usize = 255;
/// Bytes of a value of a fixed-size binary column, at most.
pub const FIXED_BYTES_MAX: usize = 65_536;
/// Bytes of a smallest or largest text or binary value that are kept, at most.
pub const BOUND_BYTES_MAX: usize = 64;
/// Row groups of a table, at most: each has at least one extent.
pub const ROW_GROUPS_MAX: usize = farpool_wire::limits::NAMED_EXTENTS_MAX;
/// Bytes of a footer, at most.
pub const FOOTER_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(GROUP_ALIGN as u64 == farpool_files::plan::EXTENT_BYTES_MIN);
// A dictionary's keys are `u16`.
const _: () = assert!(GROUP_ROWS_MAX == 1 << 16);
