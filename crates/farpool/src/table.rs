//! Far tables: Arrow columns in pinned, published far files. Implementation: [`farpool_tables`]. Contract:
//! `spec/table.md`.

pub use farpool_tables::{
    Answer, BOUND_BYTES_MAX, BUFFER_ALIGN, BufferAt, COLUMN_NAME_BYTES_MAX, COLUMNS_MAX, ColumnChange,
    ColumnChunk, Committed, Compaction, EncodedGroup, Encoding, Estimate, Estimates, Explanation,
    FIXED_BYTES_MAX, FOOTER_BYTES_MAX, FarTable, FilesOpened, Footer, FooterEncryption, Form, GROUP_ALIGN,
    GROUP_ROWS_MAX, GroupChange, GroupLocation, HistoryEntry, JoinBy, MadeBy, Progress, PutOptions,
    ROW_GROUPS_MAX, Report, RowGroup, RowGroupEncoder, RowsChanged, SemiJoin, Statistics, TABLE_PREFIX,
    TableChange, TableInfo, TableLayout, TableOnDemand, TableReader, TableSnapshot, TableTransaction,
    TableVersion, TableWatch, Trailer, TransactionMade, Written, WrongKey, ZONE_BYTES_MAX, may_pass,
    stored_schema,
};
