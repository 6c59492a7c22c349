//! Requests to nodes that may be silent, where others can do the same.
//!
//! The idea: while a node has not answered, it is asked now and then over another connection whether it is there. A
//! slow node says so and is waited for. A silent one is given up after [`BRIEF_MS`], long before the time limit of the
//! request, and is a suspect until it answers again. A suspect is given up after 2 [`LOOK_MS`].

use super::Leases;
use crate::error::{Error, ErrorKind};
use crate::node_links::{Conversation, NodeLinks, Repeat};
use crate::session_core::{BRIEF_MS, LOOK_MS};
use farpool_transport::{Link, LinkError};
use farpool_wire::{MonoNs, Reply, Request};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Effort to get an answer from a node, or from the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It is waited for until the time limit.
    Long,
    /// It is given up if it is silent.
    WhileItIsThere,
}

/// Request to a node, which works through `bytes` bytes for it. Repeating it must be harmless.
pub(crate) struct NodeRequest {
    pub(crate) node: Arc<NodeLinks>,
    pub(crate) request: Request,
    pub(crate) bytes: u64,
}

impl Leases {
    /// Waits for a reply as [`Session::await_reply`](crate::session::Session::await_reply) does.
    pub(crate) fn await_reply(
        &self,
        node: Option<&NodeLinks>,
        link: &mut dyn Link,
        deadline: MonoNs,
        meanwhile: impl Fn(MonoNs) -> Result<MonoNs, LinkError>,
    ) -> Result<(), LinkError> {
        let next = || node.map_or(deadline, |_| self.base.deadline(LOOK_MS).min(deadline));
        let mut asks = next();
        loop {
            let look = meanwhile(self.base.host.now())?.min(asks);
            if link.begins_by(look)? {
                return Ok(());
            }
            if look < asks {
                continue;
            }
            if asks == deadline || node.is_some_and(|node| !self.answers(node)) {
                return Err(LinkError::TimedOut);
            }
            asks = next();
        }
    }

    /// Asks a node whether it is there. Any answer will do.
    pub(crate) fn answers(&self, node: &NodeLinks) -> bool {
        let deadline = self.base.deadline(node.brief_ms().min(BRIEF_MS - LOOK_MS));
        let renew = Request::Renew(self.proof.clone());
        let asked = node.converse(deadline, Repeat::Harmless, |link| match link.call(&renew, deadline) {
            Err(LinkError::Refused { .. }) => Ok(()),
            other => other.map(drop),
        });
        asked.is_ok()
    }

    /// Sends a request to a node and waits for the reply. Repeating the request must be harmless.
    pub(super) fn ask(
        &self,
        node: &NodeLinks,
        request: &Request,
        deadline: MonoNs,
        waits: Waits,
    ) -> Result<Reply, Error> {
        let begun = self.begin(node, request, deadline, waits);
        self.finish(node, request, deadline, waits, begun)
    }

    fn begin(
        &self,
        node: &NodeLinks,
        request: &Request,
        deadline: MonoNs,
        waits: Waits,
    ) -> Result<(Conversation, Result<(), LinkError>), Error> {
        let connected = match waits {
            Waits::Long => deadline,
            Waits::WhileItIsThere => deadline.min(self.base.deadline(node.brief_ms())),
        };
        let mut conversation = node.begin(connected).inspect_err(|error| note_silence(node, error))?;
        let posted = conversation.link.post_call(request, connected);
        Ok((conversation, posted))
    }

    fn finish(
        &self,
        node: &NodeLinks,
        request: &Request,
        deadline: MonoNs,
        waits: Waits,
        begun: Result<(Conversation, Result<(), LinkError>), Error>,
    ) -> Result<Reply, Error> {
        let (mut conversation, posted) = begun?;
        let link = &mut *conversation.link;
        let watched = (waits == Waits::WhileItIsThere).then_some(node);
        let taken = posted
            .and_then(|()| self.await_reply(watched, link, deadline, |_| Ok(deadline)))
            .and_then(|()| link.take_call(request, deadline));
        let answer =
            node.end(conversation, taken, deadline, Repeat::Harmless, |link| link.call(request, deadline));
        answer.inspect_err(|error| note_silence(node, error))
    }

    /// Sends requests to nodes and returns the answers, in order. The nodes work at the same time; each gets one
    /// request after the other, and none after one that failed, whose error then stands for the rest.
    pub(crate) fn ask_all(&self, requests: &[NodeRequest], waits: Waits) -> Vec<Result<Reply, Error>> {
        let mut answers: Vec<Option<Result<Reply, Error>>> = requests.iter().map(|_| None).collect();
        let mut left: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
        for (index, one) in requests.iter().enumerate() {
            left.entry((one.node.info.node, one.node.info.incarnation)).or_default().push_back(index);
        }
        while !left.is_empty() {
            let begin = |of_node: &mut VecDeque<usize>| {
                let NodeRequest { node, request, bytes } = &requests[of_node[0]];
                self.begin(node, request, self.base.request_deadline_for(*bytes), waits)
            };
            let begun: Vec<Result<_, Error>> = left.values_mut().map(begin).collect();
            for (of_node, begun) in left.values_mut().zip(begun) {
                let Some(index) = of_node.pop_front() else { continue };
                let NodeRequest { node, request, bytes } = &requests[index];
                // A new deadline: another node that did not answer may have used up the last one.
                let deadline = self.base.request_deadline_for(*bytes);
                let answer = self.finish(node, request, deadline, waits, begun);
                if let Err(error) = &answer {
                    of_node.drain(..).for_each(|rest| answers[rest] = Some(Err(error.clone())));
                }
                answers[index] = Some(answer);
            }
            left.retain(|_, of_node| !of_node.is_empty());
        }
        answers.into_iter().flatten().collect()
    }
}

/// Notes that a node did not answer. Others are preferred until it does again.
fn note_silence(node: &NodeLinks, error: &Error) {
    if error.kind() == ErrorKind::Unreachable {
        node.suspect();
    }
}
