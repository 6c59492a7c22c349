//! Options of putting and changing tables, and what their caller is told meanwhile.

use crate::layout::TableLayout;
use farpool_encryption::TableKey;
use farpool_files::{Error, Protection, Recipe};
use farpool_wire::FileId;
use std::fmt;
use std::sync::Arc;

/// Options of [`put_table`](crate::put_table) and of changes of tables. By default a table is stored column by column,
/// is not encrypted, and does not replace another table.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Layout of the rows.
    pub layout: TableLayout,
    /// Key that encrypts the table; only clients that have it can read the rows. The names and types of the columns
    /// and the numbers of rows and nulls are not encrypted.
    pub key: Option<TableKey>,
    /// True to replace a table of this name, if there is one. The replacement is one step, after all of the new table
    /// is written; until then readers see the old one. If false, a name in use is refused.
    pub replace: bool,
    /// Protection against the loss of a node: none, a mirror, which needs nodes on two hosts, or parity
    /// ([`Protection::Rs`]). Each row group is in one region of a node, and its copy in one region of a node on another
    /// host. Default: a mirror where the pool has two hosts and is not embedded.
    pub protection: Option<Protection>,
    /// How the table is made, kept with its name for the case that all of its copies are lost.
    pub made_by: Option<MadeBy>,
    /// Compaction after an append: small files become one.
    pub compaction: Compaction,
    /// Columns, by name, whose values divide a table that is made into partitions: each of its files has rows of one
    /// partition, so that a query opens the files of the partitions alone that it asks for. At most 1,024 in one
    /// commit. Rows that are added later are divided in the same way.
    pub partition_by: Vec<String>,
    /// Columns, by name, by which each file of a table that is made is sorted, ascending and NULL first. So are the
    /// files of rows that are added later. At most 8 columns with those of `partition_by`.
    pub sort_by: Vec<String>,
    /// Threads that encode rows, besides the one that reads them and writes to the pool; 1: that one encodes as well.
    /// Default, 0: as many as this process may use CPUs. At most 256.
    pub threads: usize,
    /// Function that is told what has been written.
    pub progress: Option<Progress>,
}

/// Compaction after an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compaction {
    /// An append that finds more than 64 small files in the last page of the manifest makes them fewer after its own
    /// commit, so that each row is written anew about as many times as the logarithm of the table's rows.
    #[default]
    Auto,
    /// Appends leave the files as they are.
    Off,
}

/// Rows that a put or an append has written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of rows.
    pub rows: u64,
    /// Bytes that they take in the pool, without copies and parity.
    pub bytes: u64,
}

/// Function that is told what a put or an append has written: by its thread, at most ten times a second, and once when
/// all rows are written. If it returns an error, the put ends with that.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(Written) -> Result<(), Error> + Send + Sync>);

impl Progress {
    /// Wraps a function.
    pub fn new(tell: impl Fn(Written) -> Result<(), Error> + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(tell))
    }

    pub(crate) fn tell(&self, written: Written) -> Result<(), Error> {
        (self.0)(written)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// How a table is made: the part of its [`Recipe`] that its maker knows. [`put_table`](crate::put_table) adds the rows
/// and their checksum.
#[derive(Clone, Debug, Default)]
pub struct MadeBy {
    /// Kind of the recipe.
    pub kind: String,
    /// Body of the recipe. It must hold no credentials.
    pub body: Vec<u8>,
    /// Lost file in whose place the table is put, and its recipe: the table must have the same rows, in any order.
    pub lost: Option<(FileId, Recipe)>,
}
