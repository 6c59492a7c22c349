//! Requests of a session to its broker, over one link and one at a time.
//!
//! Methods, in the order in which they are called: [`Broker::open`] opens the session and fails at once if there is no
//! broker. [`Broker::ask`] and [`Broker::ask_for`] send a request, and retry until the given patience is over; every
//! request is one that may be sent twice. [`Broker::open_places_within`] sends one request, once, and waits for others
//! only as long as for the answer; [`Broker::keep`] sends one, once, and only if no other is under way.
//! [`Broker::close`] ends the session.
//!
//! The only lock is the mutex of the link. It is held until the answer has come or the request has timed out, but not
//! in the pauses between retries. No other lock is taken inside it.

use crate::error::{Error, ErrorKind};
use crate::nodes::Nodes;
use crate::refused::refused;
use crate::session_core::SessionCore;
use crate::stats::add;
use farpool_host::HostMutex;
use farpool_transport::{Brokers, Link, LinkError, is_not_leader};
use farpool_wire::control::*;
use farpool_wire::{Code, FileId, List, Name, NodeId, Refusal, Reply, Request};
use std::sync::Arc;

/// Unwraps a reply of the expected kind. Another kind is a protocol error.
macro_rules! answer_of {
    ($reply:expr, $kind:ident) => {
        match $reply {
            farpool_wire::Reply::$kind(message) => Ok(message),
            other => Err(crate::error::Error::new(
                crate::error::ErrorKind::Refused,
                format!("unexpected answer to {}: {:?}", stringify!($kind), other.opcode()),
            )),
        }
    };
}
pub(crate) use answer_of;

/// Reports whether the broker is of a version that does not know the request.
fn is_unsupported(error: &Error) -> bool {
    error.refusal().is_some_and(|refusal| refusal.code == Code::Unsupported)
}

/// Link of a session to its broker.
pub(crate) struct Broker {
    base: Arc<SessionCore>,
    brokers: Brokers,
    /// Nodes of the session. Errors about a refusal name them.
    nodes: Arc<Nodes>,
    link: HostMutex<Option<Box<dyn Link>>>,
}

impl Broker {
    pub(crate) fn new(base: Arc<SessionCore>, brokers: Brokers, nodes: Arc<Nodes>) -> Broker {
        Broker { base, brokers, nodes, link: HostMutex::default() }
    }

    /// Opens a session.
    pub(crate) fn open(&self, label: Name) -> Result<SessionOpened, Error> {
        let open = OpenSession { resume: Default::default(), secret: Default::default(), label };
        // If there is no broker the error should come at once, and not after the time that is allowed for one to
        // restart.
        answer_of!(self.ask_first(&Request::OpenSession(open))?, OpenSession)
    }

    /// Asks each broker once. Retries only if one of them is there and waits for another to become the leader.
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

    /// Sends a request. Retries while no broker can be reached, until the session's patience for brokers is over.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, Error> {
        self.ask_for(request, self.base.options.broker_patience_ms)
    }

    /// Sends a request. Retries while no broker can be reached, for `patience_ms`.
    pub(crate) fn ask_for(&self, request: &Request, patience_ms: u64) -> Result<Reply, Error> {
        self.ask_while(request, patience_ms, &|_| true)
    }

    /// Sends a request. Retries while no broker can be reached, for `patience_ms`, and after a refusal while nodes may
    /// still report what it needs, as long as `may_wait` returns true.
    fn ask_while(
        &self,
        request: &Request,
        patience_ms: u64,
        may_wait: &dyn Fn(Refusal) -> bool,
    ) -> Result<Reply, Error> {
        self.base.check_open()?;
        let give_up = self.base.deadline(patience_ms);
        let mut asked_before = false;
        loop {
            let error = match self.ask_once(request) {
                Ok(reply) => return Ok(reply),
                Err(error) if is_not_leader(&error) => error,
                Err(LinkError::Refused { refusal, .. }) => match (request, refusal.code) {
                    // A broker that has just started waits for its nodes to connect and to report which regions are
                    // free, and which are sealed (immutable).
                    (
                        Request::OpenPlaces(_)
                        | Request::PublishPlaces(_)
                        | Request::OpenName(_)
                        | Request::Publish(_),
                        Code::NoNodes | Code::NotReported,
                    )
                    | (Request::RequestTickets(_), Code::NotReported)
                        if self.base.host.now() < give_up && may_wait(refusal) =>
                    {
                        self.base.pause(10)?;
                        continue;
                    }
                    // A broker of version 1 does not know, and no node tells it.
                    (Request::ListMemory(_), Code::Unsupported) => {
                        return Ok(Reply::ListMemory(MemoryListed { nodes: List::default() }));
                    }
                    // The first try succeeded, but its answer was lost.
                    (Request::RenameName(_), Code::NoSuchName) if asked_before => {
                        return Ok(Reply::RenameName(Done {}));
                    }
                    (Request::DropName(_), Code::NoSuchName) if asked_before => {
                        return Ok(Reply::DropName(Done {}));
                    }
                    _ => return Err(self.refused(refusal)),
                },
                // A retry would not make the peer trusted.
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

    /// Sends a request that earlier versions do not know. A broker of an earlier version that does not lead cannot say
    /// so, as the request is not even sent to it; a request that every version knows then finds the leader.
    fn ask_leader(&self, request: &Request) -> Result<Reply, Error> {
        self.ask_leader_while(request, &|_| true)
    }

    fn ask_leader_while(
        &self,
        request: &Request,
        may_wait: &dyn Fn(Refusal) -> bool,
    ) -> Result<Reply, Error> {
        let ask = || self.ask_while(request, self.base.options.broker_patience_ms, may_wait);
        match ask() {
            Err(error) if is_unsupported(&error) => {
                self.ask(&Request::Status(Done {}))?;
                ask()
            }
            reply => reply,
        }
    }

    /// Returns where the bytes of a name are.
    pub(crate) fn open_places(&self, name: &Name) -> Result<PlacesOpened, Error> {
        let by_name = ByName { name: name.clone() };
        match self.ask_leader(&Request::OpenPlaces(by_name.clone())) {
            Err(error) if is_unsupported(&error) => {
                let opened = answer_of!(self.ask(&Request::OpenName(by_name))?, OpenName)?;
                let places = Places::of_extents(&opened.extents).map_err(|error| {
                    Error::new(ErrorKind::Refused, format!("the broker's answer: {error}"))
                })?;
                let Opened { file, class, nodes, .. } = opened;
                Ok(PlacesOpened { file, class, copies_wanted: 1, places, nodes })
            }
            reply => answer_of!(reply?, OpenPlaces),
        }
    }

    /// Asks once where the bytes of a name are. Gives up after `timeout_ms`, also while other requests are under way.
    pub(crate) fn open_places_within(&self, name: &Name, timeout_ms: u64) -> Result<PlacesOpened, Error> {
        let (host, deadline) = (&*self.base.host, self.base.deadline(timeout_ms));
        let mut link = loop {
            match self.link.try_take() {
                Some(link) => break link,
                // The rest must suffice for an answer.
                None if host.now().plus_ms(timeout_ms / 4) >= deadline => {
                    return Err(Error::of_link(&self.shown(), &LinkError::TimedOut));
                }
                None => self.base.pause(10)?,
            }
        };
        add(&self.base.counters.broker_calls, 1);
        let request = Request::OpenPlaces(ByName { name: name.clone() });
        let left_ms = deadline.ms_since(host.now());
        let asked = self.ask_over(&mut link, &request, left_ms);
        drop(link);
        answer_of!(asked.map_err(|error| Error::of_link(&self.shown(), &error))?, OpenPlaces)
    }

    /// Gives sealed regions to a name. Waits until their nodes have reported them, as long as `may_wait` returns true
    /// for the broker's refusal.
    ///
    /// Errors: the file has copies, and the broker is of a version that knows none.
    pub(crate) fn publish(
        &self,
        publish: PublishPlaces,
        may_wait: &dyn Fn(Refusal) -> bool,
    ) -> Result<Published, Error> {
        match self.ask_leader_while(&Request::PublishPlaces(publish.clone()), may_wait) {
            Err(error) if is_unsupported(&error) => {
                let extents = publish.places.extents().and_then(List::new).map_err(|_| {
                    let message = "the broker is of an earlier version, which keeps one copy of a published file and \
                                   fewer extents; upgrade it, or publish with protection none";
                    Error::new(ErrorKind::Invalid, message)
                })?;
                let PublishPlaces { session, secret, name, class, replaces, .. } = publish;
                // Such a broker cannot compare the file that has the name.
                let replace = replaces != Replaces::Nothing;
                let moved = FileId(0);
                let publish = Publish { session, secret, name, class, replace, moved, extents };
                answer_of!(self.ask(&Request::Publish(publish))?, Publish)
            }
            reply => answer_of!(reply?, PublishPlaces),
        }
    }

    /// Reports whether the broker keeps several copies of a published file. One that does not answer is taken for one
    /// that does.
    pub(crate) fn knows_copies(&self) -> bool {
        !self.repairs().is_err_and(|error| is_unsupported(&error))
    }

    /// Asks for the recipe of a file. If the file is lost and `is_over` is false, the session may be given the task of
    /// making it again.
    ///
    /// Errors: there is no such name, or the broker is of an earlier version.
    pub(crate) fn claim_rebuild(
        &self,
        proof: &SessionProof,
        name: &Name,
        is_over: bool,
    ) -> Result<RebuildClaimed, Error> {
        let SessionProof { session, secret } = proof.clone();
        let claim = ClaimRebuild { session, secret, name: name.clone(), is_over };
        answer_of!(self.ask_leader(&Request::ClaimRebuild(claim))?, ClaimRebuild)
    }

    pub(crate) fn status(&self) -> Result<StatusReport, Error> {
        answer_of!(self.ask(&Request::Status(Done {}))?, Status)
    }

    pub(crate) fn drain(&self, order: &DrainNode) -> Result<(), Error> {
        let refused = |error: Error| match error.refusal().map(|refusal| refusal.code) {
            Some(Code::NoNodes) => {
                let message =
                    format!("there is no node {} in this pool; farpool status lists the nodes", order.node);
                Error::new(ErrorKind::NotFound, message)
            }
            Some(Code::NotPermitted) => {
                let message = "only the administrator may drain a node: use the certificate of admin.farpool";
                Error::new(ErrorKind::Refused, message)
            }
            _ => error,
        };
        answer_of!(self.ask(&Request::Drain(order.clone())).map_err(refused)?, Drain).map(drop)
    }

    pub(crate) fn repairs(&self) -> Result<RepairsListed, Error> {
        answer_of!(self.ask_leader(&Request::ListRepairs(Done {}))?, ListRepairs)
    }

    pub(crate) fn list_memory(&self) -> Result<Vec<NodeMemory>, Error> {
        let listed = answer_of!(self.ask(&Request::ListMemory(Done {}))?, ListMemory)?;
        Ok(listed.nodes.into_vec())
    }

    /// Tells the broker that the session is still there, so that the broker lists it. `None` if there was no answer in
    /// time, or if another request is under way, which serves the same purpose.
    pub(crate) fn keep(&self, proof: &SessionProof, timeout_ms: u64) -> Option<SessionKept> {
        let mut link = self.link.try_take()?;
        let reply = self.ask_over(&mut link, &Request::KeepSession(proof.clone()), timeout_ms).ok()?;
        answer_of!(reply, KeepSession).ok()
    }

    /// Ends the session at the broker, if that can be reached.
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

    /// Returns the broker's status of a node. `None` if the broker does not answer at once or does not know the node.
    fn node_status(&self, id: NodeId) -> Option<NodeStatus> {
        let reply = self.ask_once(&Request::Status(Done {})).ok()?;
        let report = answer_of!(reply, Status).ok()?;
        report.nodes.into_vec().into_iter().find(|node| node.info.node == id)
    }

    /// Returns the name of the broker for error messages.
    fn shown(&self) -> String {
        format!("broker {}", self.brokers)
    }
}
