//! Row groups of a table that a call sees.

use std::sync::Arc;

/// Selection of the row groups that a function finds in its table of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupSelection {
    /// All row groups.
    All,
    /// Row groups with these indices, which ascend.
    Listed(Arc<[usize]>),
}

impl GroupSelection {
    /// Reports whether a call sees the row group with this index.
    pub(crate) fn has(&self, index: usize) -> bool {
        match self {
            GroupSelection::All => true,
            GroupSelection::Listed(indices) => indices.binary_search(&index).is_ok(),
        }
    }
}

/// Reports whether the client takes the row group with this index in a split. It takes `here` of `of` row groups,
/// spread evenly over the table.
pub(crate) fn is_taken_here(index: usize, here: usize, of: usize) -> bool {
    (index + 1) * here / of.max(1) > index * here / of.max(1)
}
