//! Row groups of a table that a call sees.

use crate::places::Locations;
use farpool_wire::NodeId;
use std::ops::Range;

/// Selection of the row groups that a function finds in its table of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupSelection {
    /// All row groups.
    All,
    /// Row groups that lie at the node that runs the function, without those that the client takes.
    Near(ClientShare),
    /// Row groups that the client takes.
    Taken(ClientShare),
}

/// Row groups that the client takes in a split: `here` of `of`, spread evenly over the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientShare {
    pub(crate) here: usize,
    pub(crate) of: usize,
}

impl ClientShare {
    /// Reports whether the client takes the row group with this index.
    pub(crate) fn has(&self, index: usize) -> bool {
        (index + 1) * self.here / self.of.max(1) > index * self.here / self.of.max(1)
    }
}

impl GroupSelection {
    /// Reports whether a call at this node, or on the client if `node` is `None`, sees this row group.
    pub(crate) fn has(
        &self,
        index: usize,
        group: &Range<u64>,
        places: &Locations,
        node: Option<NodeId>,
    ) -> bool {
        match (self, node) {
            (GroupSelection::All, _) => true,
            (GroupSelection::Taken(taken), _) => taken.has(index),
            (GroupSelection::Near(taken), None) => !taken.has(index),
            (GroupSelection::Near(taken), Some(node)) => {
                let at = places.node_of(group.start).map(|links| links.info.node);
                at == Some(node) && !taken.has(index)
            }
        }
    }
}
