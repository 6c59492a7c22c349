//! Operations sorted by the node they go to, and the conversation with each.

use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
use crate::plan::Piece;
use crate::session::Session;
use farpool_transport::{Link, LinkError, ReadOp, WriteOp};
use farpool_wire::data::Span;
use farpool_wire::{Code, MonoNs, Request, mutant};
use std::sync::Arc;

/// Operations sorted by node, in order within each.
pub(crate) struct ByNode<'r, Op> {
    nodes: Vec<(&'r Arc<LeasedRegion>, Vec<Op>)>,
}

/// How the conversations went, one for each node.
pub(crate) struct Outcome {
    node: Arc<NodeLinks>,
    result: Result<(), Error>,
}

impl<Op> Default for ByNode<'_, Op> {
    fn default() -> Self {
        ByNode { nodes: Vec::new() }
    }
}

/// An operation on a range of a region.
pub(crate) trait Spanned {
    /// The range.
    fn span(&self) -> Span;
}

impl Spanned for ReadOp<'_> {
    fn span(&self) -> Span {
        self.span
    }
}

impl Spanned for WriteOp<'_> {
    fn span(&self) -> Span {
        self.span
    }
}

impl<'r, Op: Spanned> ByNode<'r, Op> {
    pub(crate) fn add(&mut self, region: &'r Arc<LeasedRegion>, op: Op) {
        match self.nodes.iter_mut().find(|(of, _)| Arc::ptr_eq(&of.node, &region.node)) {
            Some((_, ops)) => ops.push(op),
            None => self.nodes.push((region, vec![op])),
        }
    }

    /// Has one conversation with each node, under leases that were checked to hold.
    fn each(
        self,
        session: &Session,
        repeat: Repeat,
        talk: impl Fn(&mut dyn Link, &mut [Op], MonoNs) -> Result<(), LinkError>,
    ) -> Vec<Outcome> {
        let converse = |(region, ops): (&Arc<LeasedRegion>, Vec<Op>)| Outcome {
            node: Arc::clone(&region.node),
            result: converse(session, region, repeat, ops, &talk),
        };
        self.nodes.into_iter().map(converse).collect()
    }
}

impl ByNode<'_, ReadOp<'_>> {
    pub(crate) fn read(self, session: &Session) -> Vec<Outcome> {
        self.each(session, Repeat::Harmless, |link, ops, deadline| link.read(ops, deadline))
    }
}

impl ByNode<'_, WriteOp<'_>> {
    pub(crate) fn write(self, session: &Session) -> Vec<Outcome> {
        self.each(session, Repeat::Harmful, |link, ops, deadline| link.write(ops, deadline))
    }
}

/// The failure of the node that has a region, if there was one.
pub(crate) fn failure<'o>(outcomes: &'o [Outcome], region: &LeasedRegion) -> Option<&'o Error> {
    let of = outcomes.iter().find(|outcome| Arc::ptr_eq(&outcome.node, &region.node))?;
    of.result.as_ref().err()
}

fn converse<Op: Spanned>(
    session: &Session,
    region: &Arc<LeasedRegion>,
    repeat: Repeat,
    mut ops: Vec<Op>,
    talk: &impl Fn(&mut dyn Link, &mut [Op], MonoNs) -> Result<(), LinkError>,
) -> Result<(), Error> {
    session.check_lease(region)?;
    let deadline = session.deadline(session.options.request_timeout_ms);
    let mut moved_on = None;
    let talked = region.node.converse(deadline, repeat, |link| {
        let result = match talk(link, &mut ops, deadline) {
            // In its grace the lease has lost nothing yet: renew it over this very link and go on.
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::LeaseExpired => {
                link.call(&Request::Renew(session.proof()), deadline)?;
                talk(link, &mut ops, deadline)
            }
            other => other,
        };
        if let Err(LinkError::Refused { index, refusal }) = &result
            && refusal.code == Code::StaleEpoch
        {
            moved_on = ops.get(*index).map(Spanned::span);
        }
        result
    });
    talked.map_err(|error| {
        match error.kind() {
            // Refused as a stranger: the node has forgotten us (or started anew), and says so here.
            ErrorKind::Lost if region.is_leased => drop(session.renew(&region.node)),
            // Whatever else there is to do, others do it faster until this one answers again.
            ErrorKind::Unreachable => region.node.set_suspect(true),
            _ => {}
        }
        if let Some(span) = moved_on {
            session.lose_region(&region.node, span.region, span.epoch);
        }
        if region.node.is_lost() {
            session.lose_regions(&region.node);
        }
        // What went while we talked is better named as lost than as a refusal or a broken connection.
        region.check_usable().err().unwrap_or(error)
    })
}

/// Whether a write that failed so may still be carried out in this region later.
pub(crate) fn may_arrive_late(error: &Error, region: &LeasedRegion) -> bool {
    !mutant!(LateWriteForgotten)
        && error.kind() == ErrorKind::Unreachable
        && error.node() == Some(&*region.node.info.name)
}

/// The span of a piece.
pub(crate) fn span(piece: &Piece<Arc<LeasedRegion>>) -> Span {
    Span {
        region: piece.region.region,
        // An extent, and so a piece of one, is at most EXTENT_BYTES_MAX long.
        bytes: (piece.file.end - piece.file.start) as u32,
        offset: piece.offset,
        epoch: piece.region.epoch,
        handle: piece.region.handle,
    }
}
