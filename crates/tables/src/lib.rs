//! Far tables: Arrow columns in pinned, published far files, byte for byte as `spec/table.md` says.
//!
//! The idea: a table is stored in the layout that Arrow has in memory. The rows are divided into row groups of up to
//! 65,536 rows, and all buffers of a row group lie in one region of one node, aligned to 64 bytes. A client that
//! reads two columns therefore fetches the buffers of these two and nothing else. The node that holds the region can
//! run a program over the columns without decoding or moving them. The footer lists the offset of every buffer and
//! the smallest and largest value of every column of a row group. A trailer of fixed size at the end of the file
//! locates the footer.
//!
//! The modules `column_type`, `footer`, `layout`, `texts` and `statistics` (the stored form), `schema_mapping` (columns
//! that change), `bounds`, `arrangement` and `manifest` (the files of a table), `skipping` (which row groups and files
//! a query can leave out) and `compaction::choice` (which files become one) are pure: no I/O. `opened_files` reads
//! footers, `far_table` reads the rows of a table, and `snapshot` and `opening` open it. `writing` writes files:
//! `partitions` arranges their rows, `encoders` encodes their row groups on several threads, and `file_writer` writes
//! these. `commit` adds the files to a table, for `put`, `transaction`, `changing`, `altering` and `compaction`.
//! `query` runs a query, `shipping` runs its program at the nodes, and `placing` asks the planner where it should run.
//!
//! Never in this crate: an operator of our own over columns, or another file format.
#![forbid(unsafe_code)]

mod altering;
mod arrangement;
mod bounds;
mod changing;
mod column_type;
mod commit;
mod compaction;
mod conflicts;
mod counts;
mod decoding;
mod encoders;
mod encryption;
mod estimates;
mod explain;
mod far_table;
mod file_change;
mod file_writer;
mod footer;
mod history;
mod joining;
mod layout;
pub mod manifest;
mod manifest_file;
mod names;
mod opened_files;
mod opening;
mod options;
mod others;
mod pacing;
mod partitions;
mod placing;
mod put;
mod query;
mod report;
mod row_checksum;
mod schema_mapping;
mod scope;
mod shipping;
mod skipping;
mod snapshot;
mod statements;
mod statistics;
mod texts;
mod transaction;
mod watching;
mod window;
mod writing;

pub use altering::{ColumnChange, alter_table};
pub use arrangement::Arrangement;
pub use changing::{GroupChange, change_rows};
pub use commit::{Committed, roll_back};
pub use compaction::compact;
pub use counts::{ScanCounts, scan_counts};
pub use estimates::{Estimate, Estimates};
pub use explain::Explanation;
pub use far_table::{FarTable, FilesOpened, GroupLocation, TableInfo, TableReader, tables};
/// Keys of encrypted tables.
pub use farpool_encryption::{TableKey, WrongKeyLength};
/// Expressions, queries and the programs that queries are compiled to.
pub use farpool_operators as operators;
pub use footer::{
    BufferAt, ColumnChunk, Encoding, Footer, FooterEncryption, Form, RowGroup, Trailer, WrongKey,
};
pub use history::{HistoryEntry, history};
pub use joining::{JoinBy, SemiJoin};
pub use layout::{EncodedGroup, RowGroupEncoder, TableLayout};
pub use names::{drop_table, has_table};
pub use opening::{TableOnDemand, open_table, table_on_demand};
pub use options::{Compaction, MadeBy, Progress, PutOptions, Written};
pub use partitions::PARTITIONS_MAX;
pub use put::put_table;
pub use query::Answer;
pub use report::Report;
pub use schema_mapping::{BoundedColumns, COLUMN_LISTS_MAX, FieldIds};
pub use skipping::may_pass;
pub use snapshot::{TableSnapshot, table_snapshot};
pub use statements::{RowsChanged, delete_rows, update_rows};
pub use statistics::Statistics;
pub use transaction::{TableTransaction, TransactionMade, append_rows};
pub use watching::{TableChange, TableVersion, TableWatch, await_table, watch_table};

pub use column_type::stored_schema;

/// Prefix of the names of published files that are far tables. The trailer of a file decides whether it is one.
pub const TABLE_PREFIX: &str = "tables/";

/// Largest number of rows of a row group. A row group is read, skipped or run over as a whole.
pub const GROUP_ROWS_MAX: usize = 65_536;
/// Alignment of buffers in bytes, in the file and in its region.
pub const BUFFER_ALIGN: usize = 64;
/// Alignment of row groups in bytes: the smallest size of an extent.
pub const GROUP_ALIGN: usize = 65_536;
/// Largest number of columns of a table.
pub const COLUMNS_MAX: usize = 4_096;
/// Largest length of a column's name, in bytes.
pub const COLUMN_NAME_BYTES_MAX: usize = 1_024;
/// Largest length of a time zone's name, in bytes.
pub const ZONE_BYTES_MAX: usize = 255;
/// Largest width of a fixed-size binary column, in bytes.
pub const FIXED_BYTES_MAX: usize = 65_536;
/// Longest prefix of a smallest or largest text or binary value that statistics keep, in bytes.
pub const BOUND_BYTES_MAX: usize = 64;
/// Largest number of row groups of a table. Each has at least one extent.
pub const ROW_GROUPS_MAX: usize = farpool_wire::limits::NAMED_EXTENTS_MAX;
/// Largest size of a footer, in bytes.
pub const FOOTER_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(GROUP_ALIGN as u64 == farpool_files::plan::EXTENT_BYTES_MIN);
// The keys of a dictionary are `u16`.
const _: () = assert!(GROUP_ROWS_MAX == 1 << 16);
