//! The conversation of a session with its broker: one link, which is asked one thing at a time.
//!
//! Methods of three kinds, in the order they are called: [`Broker::open`] begins the session and says at once if there
//! is no broker; [`Broker::ask`] and [`Broker::ask_for`] put a question again and again, for as long as the asker's
//! patience lasts (every question is one that may be asked twice), while [`Broker::keep`] asks once and only if nobody
//! else is asking; [`Broker::close`] ends the session.
//!
//! One lock: the turn to use the link, held until the answer is there or the request's time is over, and not in the
//! pauses between two tries. Nothing else is locked within.

use crate::base::Base;
use crate::error::Error;
use crate::nodes::Nodes;
use crate::refused::refused;
use crate::stats::add;
use farpool_host::Turn;
use farpool_transport::{Brokers, Link, LinkError, is_not_leader};
use farpool_wire::control::*;
use farpool_wire::{Code, Name, NodeId, Refusal, Reply, Request};
use std::sync::Arc;

/// The answer of the kind that belongs to the question, or a protocol error.
macro_rules! answer_of {
    ($reply:expr, $kind:ident) => {
        match $reply {
            farpool_wire::Reply::$kind(message) => Ok(message),
            other => Err(crate::error::Error::new(
                crate::error::ErrorKind::Refused,
                format!("the answer to {} is of kind {:?}", stringify!($kind), other.opcode()),
            )),
        }
    };
}
pub(crate) use answer_of;

/// See the module.
pub(crate) struct Broker {
    base: Arc<Base>,
    brokers: Brokers,
    /// They have names, by which a refusal is told that is about one of them.
    nodes: Arc<Nodes>,
    link: Turn<Option<Box<dyn Link>>>,
}

impl Broker {
    pub(crate) fn new(base: Arc<Base>, brokers: Brokers, nodes: Arc<Nodes>) -> Broker {
        Broker { base, brokers, nodes, link: Turn::default() }
    }

    /// Begins a session.
    pub(crate) fn open(&self, label: Name) -> Result<SessionOpened, Error> {
        let open = OpenSession { resume: Default::default(), secret: Default::default(), label };
        // A pool that is not there should be said at once, not after the patience for one that restarts.
        answer_of!(self.ask_first(&Request::OpenSession(open))?, OpenSession)
    }

    /// Asks each broker once; again and again only if one of them is there and waits for another to lead.
    fn ask_first(&self, request: &Request) -> Result<Reply, Error> {
        let give_up = self.base.deadline(self.base.options.broker_patience_ms);
        loop {
            let mut stands_by = false;
            let mut last = None;
            for _ in 0..self.brokers.count() {
                match self.ask_once(request) {
                    Ok(reply) => return Ok(reply),
                    Err(error) => {
                        stands_by |= is_not_leader(&error);
                        last = Some(error);
                    }
                }
            }
            if let Some(error) = last.filter(|_| !stands_by || self.base.host.now() >= give_up) {
                return Err(self.error(&error));
            }
            self.base.pause(50)?;
        }
    }

    /// Asks, again and again while nobody can be reached, for as long as the patience lasts.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, Error> {
        self.ask_for(request, self.base.options.broker_patience_ms)
    }

    /// The same, with this patience.
    pub(crate) fn ask_for(&self, request: &Request, patience_ms: u64) -> Result<Reply, Error> {
        self.base.check_open()?;
        let give_up = self.base.deadline(patience_ms);
        let mut asked_before = false;
        loop {
            let error = match self.ask_once(request) {
                Ok(reply) => return Ok(reply),
                Err(error) if is_not_leader(&error) => error,
                Err(LinkError::Refused { refusal, .. }) => match (request, refusal.code) {
                    // A broker waits for its nodes to present themselves, and to report what they have sealed.
                    (Request::OpenName(_) | Request::Publish(_), Code::NoNodes | Code::NotReported)
                        if self.base.host.now() < give_up =>
                    {
                        self.base.pause(10)?;
                        continue;
                    }
                    // Done by the first try, whose answer was lost.
                    (Request::RenameName(_), Code::NoSuchName) if asked_before => {
                        return Ok(Reply::RenameName(Done {}));
                    }
                    (Request::DropName(_), Code::NoSuchName) if asked_before => {
                        return Ok(Reply::DropName(Done {}));
                    }
                    _ => return Err(self.refused(refusal)),
                },
                // Waiting makes nobody trusted.
                Err(error @ LinkError::Untrusted(_)) => return Err(self.error(&error)),
                Err(error) => error,
            };
            asked_before = true;
            if self.base.host.now() >= give_up {
                return Err(self.error(&error).during(format!("gave up after {patience_ms} ms")));
            }
            self.base.pause(50)?;
        }
    }

    pub(crate) fn status(&self) -> Result<StatusReport, Error> {
        answer_of!(self.ask(&Request::Status(Done {}))?, Status)
    }

    /// Says that the session is still there, by which the broker lists it. `None` if it did not answer in time, or
    /// somebody is asking it something: then it hears of the session anyway.
    pub(crate) fn keep(&self, proof: &SessionProof, timeout_ms: u64) -> Option<SessionKept> {
        let mut link = self.link.try_take()?;
        let reply = self.ask_over(&mut link, &Request::KeepSession(proof.clone()), timeout_ms).ok()?;
        answer_of!(reply, KeepSession).ok()
    }

    /// Ends a session, if the broker can be told.
    pub(crate) fn close(&self, proof: &SessionProof) {
        let _ = self.ask_once(&Request::CloseSession(proof.clone()));
        *self.link.take(&*self.base.host) = None;
    }

    fn ask_once(&self, request: &Request) -> Result<Reply, LinkError> {
        add(&self.base.counters.broker_calls, 1);
        let timeout_ms = self.base.options.request_timeout_ms;
        self.ask_over(&mut self.link.take(&*self.base.host), request, timeout_ms)
    }

    fn ask_over(
        &self,
        link: &mut Option<Box<dyn Link>>,
        request: &Request,
        timeout_ms: u64,
    ) -> Result<Reply, LinkError> {
        let deadline = self.base.deadline(timeout_ms);
        let connected = match &mut *link {
            Some(link) => link,
            none => none.insert(self.brokers.dial(&*self.base.host, deadline)?),
        };
        let result = connected.call(request, self.brokers.until(&*self.base.host, deadline));
        if self.brokers.heard(&result) || connected.is_worn() {
            *link = None;
        }
        result
    }

    fn error(&self, error: &LinkError) -> Error {
        match error {
            LinkError::Refused { refusal, .. } => self.refused(*refusal),
            other => Error::of_link(&self.shown(), other),
        }
    }

    fn refused(&self, refusal: Refusal) -> Error {
        refused(&self.shown(), refusal, &self.nodes, |id| self.node_status(id))
    }

    /// Returns what the broker knows of a node, if it answers at once and knows it.
    fn node_status(&self, id: NodeId) -> Option<NodeStatus> {
        let reply = self.ask_once(&Request::Status(Done {})).ok()?;
        let report = answer_of!(reply, Status).ok()?;
        report.nodes.into_vec().into_iter().find(|node| node.info.node == id)
    }

    /// Returns what errors call the broker.
    fn shown(&self) -> String {
        format!("broker {}", self.brokers)
    }
}
