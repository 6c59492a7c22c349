//! Reads and writes, grouped by node and sent to all these nodes at once.

use crate::error::{Error, ErrorKind};
use crate::node_links::{Conversation, LeasedRegion, NodeLinks, Repeat};
use crate::plan::Segment;
use crate::session::Session;
use crate::session_core::LOOK_MS;
use farpool_transport::{Link, LinkError, ReadOp, Transport, WriteOp, wait_writable};
use farpool_wire::data::Span;
use farpool_wire::{Code, MonoNs, Opcode, Request, mutant};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Operations grouped by node, in the order in which they were added.
pub(crate) struct NodeBatches<'r, Op> {
    nodes: Vec<(&'r Arc<LeasedRegion>, Vec<Op>)>,
}

/// Result of the conversation with one node.
pub(crate) struct Outcome {
    node: Arc<NodeLinks>,
    result: Result<(), Error>,
}

impl Outcome {
    /// Reports whether it is the success of this node.
    pub(crate) fn is_success_of(&self, node: &Arc<NodeLinks>) -> bool {
        Arc::ptr_eq(&self.node, node) && self.result.is_ok()
    }
}

/// Region whose bytes did not come, and the reason.
pub(crate) type Missed = (Arc<LeasedRegion>, Error);

impl<Op> Default for NodeBatches<'_, Op> {
    fn default() -> Self {
        NodeBatches { nodes: Vec::new() }
    }
}

/// Operation on a range of a region.
pub(crate) trait Spanned {
    /// Returns the range of the region.
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

impl<'r, Op: Spanned> NodeBatches<'r, Op> {
    pub(crate) fn add(&mut self, region: &'r Arc<LeasedRegion>, op: Op) {
        match self.nodes.iter_mut().find(|(of, _)| Arc::ptr_eq(&of.node, &region.node)) {
            Some((_, ops)) => ops.push(op),
            None => self.nodes.push((region, vec![op])),
        }
    }

    /// Sends the operations to each node and waits for all answers. Leases are checked first, and renewed if need be.
    /// Every node is asked before the first is waited for, so the nodes work at the same time. `answered` is called for
    /// each node that succeeded, while others may still be working.
    fn each(
        self,
        session: &Session,
        repeat: Repeat,
        exchange: &Exchange<'_, Op>,
        mut answered: impl FnMut(&Arc<NodeLinks>, &mut [Op]),
    ) -> Vec<Outcome> {
        // The link chooses by itself how to wait if there is only one node.
        let is_alone = self.nodes.len() == 1 && exchange.may_give_up.is_none();
        let begin = |(region, ops): (&'r Arc<LeasedRegion>, Vec<Op>)| {
            let begun =
                session.check_lease(region).and_then(|()| begin(session, region, &ops, exchange, is_alone));
            (region, ops, begun)
        };
        let mut begun: Vec<_> = self.nodes.into_iter().map(begin).collect();
        send_on(session, &mut begun, exchange);
        let mut finish = |(region, mut ops, begun): Asked<'r, Op>| {
            let result = begun.and_then(|begun| finish(session, region, repeat, begun, &mut ops, exchange));
            if result.is_ok() {
                answered(&region.node, &mut ops);
            }
            Outcome { node: Arc::clone(&region.node), result }
        };
        let Some(may_give_up) = exchange.may_give_up else { return begun.into_iter().map(finish).collect() };
        let mut outcomes = Vec::new();
        let mut silent = Vec::new();
        for mut asked in begun {
            match is_silent(session, &mut asked, exchange) {
                true => silent.push(asked),
                false => outcomes.push(finish(asked)),
            }
        }
        for (region, ops, begun) in silent {
            let outcome = if may_give_up(&region.node, &outcomes) {
                let error = begun.err().unwrap_or_else(|| region.node.link_error(&LinkError::TimedOut));
                Outcome { node: Arc::clone(&region.node), result: Err(settle(session, region, error)) }
            } else {
                // It may only be slow.
                let begun = begun.or_else(|_| self::begin(session, region, &ops, exchange, true));
                finish((region, ops, begun))
            };
            outcomes.push(outcome);
        }
        outcomes
    }
}

/// Reports whether a node that is silent may be given up: what the other nodes have done is enough, or they can do the
/// same.
pub(crate) type MayGiveUp<'a> = &'a dyn Fn(&NodeLinks, &[Outcome]) -> bool;

/// Takes the next reply of a link, after those to the first operations, whose number is given. Returns how many
/// operations are answered then.
type TakePart<Op> = fn(&mut dyn Link, &mut [Op], usize, MonoNs) -> Result<usize, LinkError>;

/// Functions of a link for one kind of operation: `post` and `take_part` send and receive; `talk` does both.
struct Exchange<'a, Op> {
    opcode: Opcode,
    /// `None` if each node is waited for until its time limit.
    may_give_up: Option<MayGiveUp<'a>>,
    /// Time limit of each step: sending, and each reply of a node.
    timeout_ms: u64,
    post: fn(&mut dyn Link, &[Op], MonoNs) -> Result<(), LinkError>,
    /// Sends as much as the node takes without waiting. Returns true if everything has been sent.
    post_some: fn(&mut dyn Link, &[Op], MonoNs) -> Result<bool, LinkError>,
    take_part: TakePart<Op>,
    talk: fn(&mut dyn Link, &mut [Op], MonoNs) -> Result<(), LinkError>,
}

impl NodeBatches<'_, ReadOp<'_>> {
    pub(crate) fn read(self, session: &Session, timeout_ms: u64) -> Vec<Outcome> {
        self.read_and(session, timeout_ms, |_, _| {})
    }

    /// Returns the bytes of all operations.
    pub(crate) fn bytes(&self) -> u64 {
        let ops = self.nodes.iter().flat_map(|(_, ops)| ops);
        ops.map(|op| op.span.bytes as u64).sum()
    }

    /// Reads. Calls `answered` with each node's operations, in the order they were added, as soon as their bytes have
    /// come.
    pub(crate) fn read_and(
        self,
        session: &Session,
        timeout_ms: u64,
        answered: impl FnMut(&Arc<NodeLinks>, &mut [ReadOp<'_>]),
    ) -> Vec<Outcome> {
        let exchange = Exchange {
            opcode: Opcode::Read,
            may_give_up: None,
            timeout_ms,
            post: |link, ops, deadline| link.post_read(ops, deadline),
            post_some: |link, ops, deadline| link.post_read(ops, deadline).map(|()| true),
            take_part: |link, ops, _, deadline| link.take_read(ops, deadline).map(|()| ops.len()),
            talk: |link, ops, deadline| link.read(ops, deadline),
        };
        self.each(session, Repeat::Harmless, &exchange, answered)
    }
}

impl NodeBatches<'_, WriteOp<'_>> {
    /// Writes. A node that is silent is waited for until the time limit only if `may_give_up` returns false.
    pub(crate) fn write(self, session: &Session, may_give_up: MayGiveUp<'_>) -> Vec<Outcome> {
        let exchange = Exchange {
            opcode: Opcode::Write,
            may_give_up: Some(may_give_up),
            timeout_ms: session.options().request_timeout_ms,
            post: |link, ops, deadline| link.post_write(ops, deadline),
            post_some: |link, ops, deadline| link.post_write_some(ops, deadline),
            take_part: |link, ops, done, deadline| link.take_write_part(ops, done, deadline),
            talk: |link, ops, deadline| link.write(ops, deadline),
        };
        self.each(session, Repeat::Harmful, &exchange, |_, _| {})
    }
}

/// Returns the error of the region's node. `None` if the node succeeded.
pub(crate) fn failure<'o>(outcomes: &'o [Outcome], region: &LeasedRegion) -> Option<&'o Error> {
    let of = outcomes.iter().find(|outcome| Arc::ptr_eq(&outcome.node, &region.node))?;
    of.result.as_ref().err()
}

/// Request that has been sent, at least in part, and not answered.
struct Begun {
    sent: MonoNs,
    conversation: Conversation,
    /// Result of sending: true if everything has been sent.
    posted: Result<bool, LinkError>,
    /// Number of operations whose replies were taken.
    done: usize,
}

/// Region that names the node, the operations for that node, and the request.
type Asked<'r, Op> = (&'r Arc<LeasedRegion>, Vec<Op>, Result<Begun, Error>);

/// Sends the request to a node without waiting for the answer. If there are other nodes, it does not wait either until
/// the node takes all of a write.
fn begin<Op>(
    session: &Session,
    region: &Arc<LeasedRegion>,
    ops: &[Op],
    exchange: &Exchange<'_, Op>,
    is_alone: bool,
) -> Result<Begun, Error> {
    let deadline = session.deadline(exchange.timeout_ms);
    // If others can do the same, a node that does not even connect is left until they have.
    let is_patient = exchange.may_give_up.is_none() || is_alone;
    let connected =
        if is_patient { deadline } else { deadline.min(session.deadline(region.node.brief_ms())) };
    let mut conversation = region.node.begin(connected).map_err(|error| settle(session, region, error))?;
    let (link, sent) = (&mut *conversation.link, session.host().now());
    let posted = match is_alone {
        true => (exchange.post)(link, ops, deadline).map(|()| true),
        false => (exchange.post_some)(link, ops, deadline),
    };
    Ok(Begun { sent, conversation, posted, done: 0 })
}

/// Sends what the nodes did not take at once. The node that can take bytes next gets them next, so no node waits for
/// another. If a node may be given up, stops before all is sent as soon as those that are left are silent.
fn send_on<Op>(session: &Session, asked: &mut [Asked<'_, Op>], exchange: &Exchange<'_, Op>) {
    // A new deadline: connecting to the other nodes may have used up the first one.
    let deadline = session.deadline(exchange.timeout_ms);
    let mut is_late = false;
    loop {
        for (_, ops, begun) in &mut *asked {
            if let Ok(begun) = begun
                && let Ok(false) = begun.posted
            {
                let link = &mut *begun.conversation.link;
                begun.posted = match (exchange.post_some)(link, ops, deadline) {
                    Ok(false) if is_late => Err(LinkError::TimedOut),
                    posted => posted,
                };
            }
        }
        let is_left = |begun: &Begun| matches!(begun.posted, Ok(false));
        let left = asked.iter().filter_map(|(region, _, begun)| Some((*region, begun.as_ref().ok()?)));
        let left: Vec<_> = left.filter(|(_, begun)| is_left(begun)).collect();
        let sockets: Vec<_> =
            left.iter().filter_map(|(_, begun)| begun.conversation.link.descriptor()).collect();
        if sockets.is_empty() {
            return;
        }
        let until = match exchange.may_give_up {
            Some(_) => deadline.min(session.deadline(LOOK_MS)),
            None => deadline,
        };
        if wait_writable(&sockets, until).is_err() {
            is_late = until == deadline;
            if !is_late && !left.iter().any(|(region, _)| session.answers(&region.node)) {
                return;
            }
        }
    }
}

/// Reports whether a node that may be given up falls silent before it has answered, and does not say that it is there
/// either. Takes the replies that come.
fn is_silent<Op>(
    session: &Session,
    (region, ops, begun): &mut Asked<'_, Op>,
    exchange: &Exchange<'_, Op>,
) -> bool {
    loop {
        let one = match begun {
            Err(error) => return error.kind() == ErrorKind::Unreachable,
            Ok(one) => one,
        };
        match one.posted {
            Ok(true) if one.done < ops.len() => {}
            Ok(is_sent) => return !is_sent,
            Err(_) => return false,
        }
        let deadline = session.request_deadline();
        let link = &mut *one.conversation.link;
        match session.await_reply(Some(&region.node), link, deadline, |_| Ok(deadline)) {
            Err(LinkError::TimedOut) => return true,
            Err(error) => one.posted = Err(error),
            Ok(()) => {
                // This process writes to shared memory itself. The node only has to give it the memory, once.
                let is_shm = link.transport() == Transport::Shm;
                let until = if is_shm { session.deadline(region.node.brief_ms()) } else { deadline };
                match (exchange.take_part)(link, ops, one.done, until) {
                    Ok(done) => one.done = done,
                    Err(LinkError::TimedOut) if is_shm => {
                        *begun = Err(region.node.link_error(&LinkError::TimedOut));
                    }
                    Err(error) => one.posted = Err(error),
                }
            }
        }
    }
}

/// Waits for the answer of a node.
fn finish<Op: Spanned>(
    session: &Session,
    region: &Arc<LeasedRegion>,
    repeat: Repeat,
    Begun { sent, mut conversation, posted, mut done }: Begun,
    ops: &mut [Op],
    exchange: &Exchange<'_, Op>,
) -> Result<(), Error> {
    // A new deadline. Another node that did not answer may have used up the last one. Meanwhile this node's answer may
    // have filled the socket buffers, and the node then waits until it is read.
    let deadline = session.deadline(exchange.timeout_ms);
    let mut moved_on = None;
    let mut judge = |link: &mut dyn Link, ops: &mut [Op], result: Result<(), LinkError>| {
        let result = match result {
            // The lease has lost nothing within its grace period. Renew it over this link and send the operations
            // again.
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::LeaseExpired => {
                link.call(&Request::Renew(session.leases.proof().clone()), deadline)?;
                (exchange.talk)(link, ops, deadline)
            }
            other => other,
        };
        if let Err(LinkError::Refused { index, refusal }) = &result
            && refusal.code == Code::StaleEpoch
        {
            moved_on = ops.get(*index).map(Spanned::span);
        }
        result
    };
    let link = &mut *conversation.link;
    let taken = posted.and_then(|mut is_sent| {
        while !is_sent {
            // A descriptor that cannot be waited for shows at the next try.
            let _ = link.descriptor().map(|socket| wait_writable(&[socket], deadline));
            is_sent = (exchange.post_some)(link, ops, deadline)?;
            if !is_sent && session.host().now() >= deadline {
                return Err(LinkError::TimedOut);
            }
        }
        while done < ops.len() {
            done = (exchange.take_part)(link, ops, done, deadline)?;
        }
        Ok(())
    });
    if taken.is_ok() {
        session.note_time(&*conversation.link, exchange.opcode, sent);
    }
    let result = judge(&mut *conversation.link, ops, taken);
    let result = region.node.end(conversation, result, deadline, repeat, |link| {
        let again = (exchange.talk)(link, ops, deadline);
        judge(link, ops, again)
    });
    result.map_err(|error| {
        if let Some(span) = moved_on {
            if (span.region, span.epoch) == (region.region, region.epoch) {
                // A published file has moved. It is looked up again, and not read here until then.
                region.is_taken.store(true, Ordering::Release);
                session.repair.note_nodes();
            }
            session.leases.lose_region(&region.node, span.region, span.epoch);
        }
        settle(session, region, error)
    })
}

/// Copies bytes from one segment of an extent to another, on any nodes.
pub(crate) fn copy_bytes(
    session: &Session,
    from: &Segment<Arc<LeasedRegion>>,
    to: &Segment<Arc<LeasedRegion>>,
) -> Result<(), Error> {
    let mut bytes = vec![0; (from.file.end - from.file.start) as usize];
    let mut read = NodeBatches::default();
    read.add(&from.region, ReadOp { span: span(from), into: &mut bytes });
    if let Some(error) = failure(&read.read(session, session.options().request_timeout_ms), &from.region) {
        return Err(error.clone());
    }
    write_bytes(session, to, &bytes)
}

/// Writes bytes to a segment of an extent.
pub(crate) fn write_bytes(
    session: &Session,
    to: &Segment<Arc<LeasedRegion>>,
    bytes: &[u8],
) -> Result<(), Error> {
    let mut write = NodeBatches::default();
    write.add(&to.region, WriteOp { span: span(to), from: bytes });
    match failure(&write.write(session, &|_, _| true), &to.region) {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}

/// Updates the state of a node that failed, and returns the error to report.
fn settle(session: &Session, region: &Arc<LeasedRegion>, error: Error) -> Error {
    match error.kind() {
        // The node does not know the session: it has forgotten it, or it has restarted. A renewal finds out and drops
        // the leases.
        ErrorKind::Lost if region.is_leased => drop(session.leases.renew(&region.node)),
        // Other nodes are preferred until this one answers again.
        ErrorKind::Unreachable => region.node.set_suspect(true),
        _ => {}
    }
    if region.node.is_lost() {
        session.leases.lose_regions(&region.node);
    }
    // If the region was lost meanwhile, report that instead of a refusal or a broken connection.
    region.check_usable().err().unwrap_or(error)
}

/// Reports whether a write that failed with `error` may still be carried out in this region later.
pub(crate) fn may_arrive_late(error: &Error, region: &LeasedRegion) -> bool {
    !mutant!(LateWriteForgotten)
        && error.kind() == ErrorKind::Unreachable
        && error.node() == Some(&*region.node.info.name)
}

/// Returns the range of the region that a segment covers.
pub(crate) fn span(segment: &Segment<Arc<LeasedRegion>>) -> Span {
    Span {
        region: segment.region.region,
        // An extent has at most EXTENT_BYTES_MAX bytes, so a segment of one fits.
        bytes: (segment.file.end - segment.file.start) as u32,
        offset: segment.offset,
        epoch: segment.region.epoch,
        handle: segment.region.handle,
    }
}
