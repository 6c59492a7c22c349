//! Call lanes: connections to nodes on which functions are called, each over one window.

use crate::Function;
use crate::lists::GroupSelection;
use crate::places::Locations;
use crate::race::Try;
use farpool_files::beneath::{BRIEF_MS, NodeLinks, Session};
use farpool_files::{Error, ErrorKind};
use farpool_transport::{Link, LinkError};
use farpool_wire::control::*;
use farpool_wire::limits::*;
use farpool_wire::{Bytes, Code, List, MonoNs, Name, Reply, Request, TraceId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kind of lane that a function needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// A lane that the node itself serves, for resident functions.
    Resident,
    /// A lane that a sandbox process serves, for all other functions.
    Sandbox,
}

impl Side {
    pub(crate) fn of(function: &Function) -> Side {
        if function.form == FunctionForm::Resident { Side::Resident } else { Side::Sandbox }
    }
}

/// Requests to a node, or to a sandbox process of this machine, and how long each is waited for.
pub(crate) struct Requests<'s> {
    pub(crate) session: &'s Session,
    /// Node that is asked whether it is there while it does not answer, because others may be able to do the same.
    /// `None` if a request is waited for until its deadline.
    pub(crate) watched: Option<&'s Arc<NodeLinks>>,
    /// The try of a call that the requests are for, if it has two, and the node that runs it.
    pub(crate) hedged: Option<(Try<'s>, &'s Arc<NodeLinks>)>,
}

impl Requests<'_> {
    /// Returns the deadline of a request that is sent now, and takes up to `more_ms` longer than others.
    pub(crate) fn deadline(&self, more_ms: u64) -> MonoNs {
        self.session.deadline(self.session.options().request_timeout_ms.saturating_add(more_ms))
    }

    /// Sends a request and waits for its reply.
    ///
    /// Errors: [`LinkError::TimedOut`] if the deadline passes, or if the node is silent; [`LinkError::Disconnected`] if
    /// another try of the call has ended it.
    pub(crate) fn call(
        &self,
        link: &mut dyn Link,
        request: &Request,
        deadline: MonoNs,
    ) -> Result<Reply, LinkError> {
        if self.watched.is_none() && self.hedged.is_none() {
            return link.call(request, deadline);
        }
        link.post_call(request, deadline.min(self.session.deadline(BRIEF_MS)))?;
        let meanwhile = |now| match self.hedged {
            Some((hedged, node)) => hedged.look(now, node),
            None => Ok(deadline),
        };
        self.session.await_reply(self.watched.map(|node| &**node), link, deadline, meanwhile)?;
        link.take_call(request, deadline)
    }
}

/// Bytes of a module up to which it is sent with its first use on a lane, without asking whether the lane knows it.
const SENT_AT_ONCE_BYTES: usize = 8 << 10;

/// An open lane. One call at a time uses it.
pub(crate) struct OpenLane {
    pub(crate) link: Box<dyn Link>,
    /// Numbers of functions on this lane, by digest and entry.
    numbers: BTreeMap<[u8; 32], Vec<(Name, u32)>>,
    /// Row groups in the table of columns that the lane has; `None` if it has none.
    pub(crate) lists: Option<GroupSelection>,
    /// Names of the nodes at which calls go on by themselves, in the order in which the lane's node knows them.
    peers: Vec<String>,
}

impl OpenLane {
    /// Makes a lane of a connection that was handed over already.
    pub(crate) fn over(link: Box<dyn Link>) -> OpenLane {
        OpenLane { link, numbers: BTreeMap::new(), lists: None, peers: Vec::new() }
    }

    /// Opens a lane at a node. If calls are to go on at the other nodes of the window by themselves, `peers` names
    /// these nodes. A node of an earlier version opens a lane without that.
    pub(crate) fn open(
        requests: &Requests<'_>,
        node: &Arc<NodeLinks>,
        places: &Locations,
        side: Side,
        output_bytes: u32,
        trace: TraceId,
        peers: List<LanePeer, LANE_PEERS_MAX>,
    ) -> Result<OpenLane, Error> {
        let names = places.names(&peers);
        let open = OpenLaneMessage {
            resident: side == Side::Resident,
            window_bytes: places.range.end - places.range.start,
            output_bytes,
            parts: places.parts(node)?,
        };
        let mut link = node.dial_own(match requests.watched {
            Some(_) => requests.session.deadline(BRIEF_MS),
            None => requests.deadline(0),
        })?;
        link.set_trace(trace);
        let (is_hopping, lane) = (!peers.is_empty(), open.clone());
        let request = match is_hopping {
            true => Request::OpenHoppingLane(OpenHoppingLane { lane, peers, caller: List::default() }),
            false => Request::OpenLane(lane),
        };
        // The request may queue at the node for a process.
        let deadline = requests.deadline(LANE_QUEUE_MS);
        let mut reply = requests.call(&mut *link, &request, deadline);
        if let Err(LinkError::Refused { refusal, .. }) = &reply
            && is_hopping
            && refusal.code == Code::Unsupported
        {
            reply = requests.call(&mut *link, &Request::OpenLane(open), deadline);
        }
        match reply.map_err(|error| node.link_error(&error))? {
            Reply::OpenLane(_) => Ok(OpenLane::over(link)),
            Reply::OpenHoppingLane(_) => Ok(OpenLane { peers: names, ..OpenLane::over(link) }),
            other => {
                let message = format!("unexpected answer to OpenLane: {:?}", other.opcode());
                Err(Error::new(ErrorKind::Refused, message))
            }
        }
    }

    /// Returns how often a call has hopped by itself before it ended, and the name of the node at which it ended if
    /// that is another one.
    pub(crate) fn hopped(&self, called: &Called) -> (u32, Option<String>) {
        if called.outcome != Outcome::Done || self.peers.is_empty() {
            return (0, None);
        }
        let ended = (called.detail >> 32).checked_sub(1).and_then(|at| self.peers.get(at as usize));
        (called.detail as u32, ended.cloned())
    }

    /// Returns the number of a function on this lane, and sends the function if the lane does not know it.
    pub(crate) fn number(&mut self, function: &Function, requests: &Requests<'_>) -> Result<u32, LinkError> {
        let Function { entry, digest, .. } = function;
        let known = self.numbers.get(digest).into_iter().flatten().find(|(known, _)| known == entry);
        if let Some((_, number)) = known {
            return Ok(*number);
        }
        let number = self.ask_number(function, requests)?;
        self.numbers.entry(*digest).or_default().push((entry.clone(), number));
        Ok(number)
    }

    fn ask_number(&mut self, function: &Function, requests: &Requests<'_>) -> Result<u32, LinkError> {
        let Function { form, entry, digest, bytes, .. } = function.clone();
        // Sends a short module at once: a question would take as long.
        if form == FunctionForm::Wasm && bytes.len() <= SENT_AT_ONCE_BYTES {
            return self.put(function, requests);
        }
        let wanted = UseFunction { form, digest, entry };
        match requests.call(&mut *self.link, &Request::UseFunction(wanted), requests.deadline(0)) {
            Ok(Reply::UseFunction(used)) => Ok(used.number),
            Err(LinkError::Refused { refusal, .. })
                if refusal.code == Code::NoSuchFunction && form != FunctionForm::Resident =>
            {
                self.put(function, requests)
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        }
    }

    fn put(&mut self, function: &Function, requests: &Requests<'_>) -> Result<u32, LinkError> {
        let put = PutFunction {
            form: function.form,
            entry: function.entry.clone(),
            signature: List::new(function.signature.iter().cloned().collect())
                .map_err(LinkError::Protocol)?,
            bytes: Bytes::new(function.bytes.to_vec()).map_err(LinkError::Protocol)?,
        };
        // Compiling or loading the function may take this long, in addition to the answer.
        let deadline = requests.deadline(FUNCTION_READY_MS_MAX.into());
        match requests.call(&mut *self.link, &Request::PutFunction(put), deadline)? {
            Reply::PutFunction(used) => Ok(used.number),
            other => Err(unexpected(&other)),
        }
    }
}

/// Request that opens a lane. It has the same name as [`OpenLane`].
type OpenLaneMessage = farpool_wire::control::OpenLane;

/// Makes the error for a reply of another kind than the request.
pub(crate) fn unexpected(reply: &Reply) -> LinkError {
    LinkError::Protocol(farpool_wire::WireError::Opcode { found: reply.opcode() as u16 })
}
