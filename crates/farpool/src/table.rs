//! Far tables: Arrow columns in pinned, published far files. Implementation: [`farpool_tables`]. Contract:
//! `spec/table.md`.

pub use farpool_tables::{
    Answer, BOUND_BYTES_MAX, BUFFER_ALIGN, BufferAt, COLUMN_NAME_BYTES_MAX, COLUMNS_MAX, ColumnChunk,
    EncodedGroup, Encoding, Estimate, Estimates, Explanation, FIXED_BYTES_MAX, FOOTER_BYTES_MAX, FarTable,
    Footer, FooterEncryption, GROUP_ALIGN, GROUP_ROWS_MAX, GroupLocation, JoinBy, MadeBy, PutOptions,
    ROW_GROUPS_MAX, Report, RowGroup, RowGroupEncoder, SemiJoin, Statistics, TABLE_PREFIX, TableInfo,
    TableLayout, TableReader, Trailer, WrongKey, ZONE_BYTES_MAX, may_pass, stored_schema,
};
