//! Other nodes that can take the place of one that runs a part of a query, and how long that one is waited for.

use farpool_files::beneath::{BRIEF_MS, NodeLinks, Session};
use farpool_transport::{Link, LinkError};
use farpool_wire::{MonoNs, Reply, Request};

/// Other nodes with the row groups of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Others {
    /// Each row group is at another node, too, or can be computed from parity.
    Known,
    /// None are known. Nodes make lost row groups again, so others may have been given them meanwhile.
    Perhaps,
    /// Nobody else has the row groups.
    None,
}

impl Others {
    /// Returns the deadline of a request to the node that is sent now.
    pub(crate) fn deadline(self, session: &Session) -> MonoNs {
        let full = session.options().request_timeout_ms;
        session.deadline(if self == Others::Known { full.min(BRIEF_MS) } else { full })
    }

    /// Returns the deadline for connecting to the node, or for a request whose loss is made good.
    pub(crate) fn brief_deadline(self, session: &Session) -> MonoNs {
        let full = session.options().request_timeout_ms;
        session.deadline(if self == Others::None { full } else { full.min(BRIEF_MS) })
    }

    /// Sends a request to the node and waits for the reply, as [`Self::await_reply`] does.
    pub(crate) fn ask(
        self,
        session: &Session,
        node: &NodeLinks,
        link: &mut dyn Link,
        request: &Request,
    ) -> Result<Reply, LinkError> {
        let deadline = self.deadline(session);
        link.post_call(request, deadline)?;
        self.await_reply(session, node, link)?;
        link.take_call(request, deadline)
    }

    /// Waits for the reply of a node while it is there, if others may have its row groups. The time limit of other
    /// requests is enough.
    pub(crate) fn await_reply(
        self,
        session: &Session,
        node: &NodeLinks,
        link: &mut dyn Link,
    ) -> Result<(), LinkError> {
        let deadline = self.deadline(session);
        match self {
            Others::Perhaps => session.await_reply(Some(node), link, deadline, |_| Ok(deadline)),
            Others::Known | Others::None => Ok(()),
        }
    }
}
