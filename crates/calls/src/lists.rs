//! Which row groups of a table a call is told of.

use crate::places::Places;
use farpool_wire::NodeId;
use std::ops::Range;

/// Which row groups a function finds in its table of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// All.
    All,
    /// Those that lie where it runs, but for those that are taken here.
    Near(Taken),
    /// Those that are taken here.
    Taken(Taken),
}

/// How many row groups of how many this machine takes from the nodes, from all parts of the table alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) here: usize,
    pub(crate) of: usize,
}

impl Taken {
    /// Whether it takes this one.
    pub(crate) fn has(&self, index: usize) -> bool {
        (index + 1) * self.here / self.of.max(1) > index * self.here / self.of.max(1)
    }
}

impl Lists {
    /// Whether a call at this node, or here, is told of this row group.
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
