//! Places where calls of functions run.

use farpool_files::beneath::NodeLinks;
use farpool_files::{Error, ErrorKind};
use farpool_transport::LinkError;
use farpool_wire::NodeId;
use std::sync::Arc;

/// Place where a call currently runs.
pub(crate) enum Station {
    Node(Arc<NodeLinks>),
    Here,
}

impl Station {
    /// Returns the node. `None` on the client.
    pub(crate) fn key(&self) -> Option<NodeId> {
        match self {
            Station::Node(node) => Some(node.info.node),
            Station::Here => None,
        }
    }

    pub(crate) fn links(&self) -> Option<&Arc<NodeLinks>> {
        match self {
            Station::Node(node) => Some(node),
            Station::Here => None,
        }
    }

    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Station::Node(node) => Some(node.info.name.to_string()),
            Station::Here => None,
        }
    }

    /// Notes that no lane could be opened here. A node that did not answer is used again once it does.
    pub(crate) fn note(&self, error: &Error) {
        if let (Station::Node(node), ErrorKind::Unreachable) = (self, error.kind()) {
            node.suspect();
        }
    }

    /// Returns the error of a call here. A connection that ended may have been that of a process, so it says nothing
    /// about the node.
    pub(crate) fn error(&self, error: &LinkError) -> Error {
        match self {
            Station::Node(node) => {
                if let LinkError::TimedOut = error {
                    node.suspect();
                }
                node.link_error(error)
            }
            Station::Here => Error::of_link("the sandbox of this machine", error),
        }
    }

    /// Returns the part of a message that says where the call ran.
    pub(crate) fn at(&self) -> String {
        self.name().map_or(" on this machine".to_owned(), |name| format!(" at node {name}"))
    }
}
