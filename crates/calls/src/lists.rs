//! Row groups of a table that a call sees.

use crate::places::Places;
use farpool_wire::NodeId;
use std::ops::Range;

/// Selection of the row groups that a function finds in its table of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// All row groups.
    All,
    /// Row groups that lie at the node that runs the function, without those that the client takes.
    Near(Taken),
    /// Row groups that the client takes.
    Taken(Taken),
}

/// Row groups that the client takes in a split: `here` of `of`, spread evenly over the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) here: usize,
    pub(crate) of: usize,
}

impl Taken {
    /// Reports whether the client takes the row group with this index.
    pub(crate) fn has(&self, index: usize) -> bool {
        (index + 1) * self.here / self.of.max(1) > index * self.here / self.of.max(1)
    }
}

impl Lists {
    /// Reports whether a call at this node, or on the client if `node` is `None`, sees this row group.
    pub(crate) fn has(
        &self,
        index: usize,
        group: &Range<u64>,
        places: &Places,
        node: Option<NodeId>,
    ) -> bool {
        match (self, node) {
            (Lists::All, _) => true,
            (Lists::Taken(taken), _) => taken.has(index),
            (Lists::Near(taken), None) => !taken.has(index),
            (Lists::Near(taken), Some(node)) => {
                let at = places.node_of(group.start).map(|links| links.info.node);
                at == Some(node) && !taken.has(index)
            }
        }
    }
}
