//! Requests of a session to its broker, over one link and one at a time.
//!
//! Methods, in the order in which they are called: [`Broker::open`] opens the session and fails at once if there is no
//! broker. [`Broker::ask`] and [`Broker::ask_for`] send a request, and retry until the given patience is over; every
//! request is one that may be sent twice. [`Broker::open_places_within`] sends one request, once, and waits for others
//! only as long as for the answer; [`Broker::keep`] sends one, and waits for others no longer, or not at all if the
//! session holds no snapshots. [`Broker::close`] ends the session.
//!
//! The mutex of the link is held until the answer has come or the request has timed out, but not in the pauses between
//! retries. Only that of the snapshots which the session holds is taken inside it.

use crate::error::{Error, ErrorKind};
use crate::nodes::Nodes;
use crate::refused::refused;
use crate::session_core::SessionCore;
use crate::stats::add;
use farpool_host::HostMutex;
use farpool_lock::Mutex;
use farpool_transport::{Brokers, Link, LinkError, is_not_leader};
use farpool_wire::control::*;
use farpool_wire::limits::HELD_SNAPSHOTS_MAX;
use farpool_wire::{Code, FileId, List, MonoNs, Name, NodeId, Refusal, Reply, Request, TableId};
use std::collections::BTreeMap;
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
    /// Snapshots of tables that the session holds, and how often. It changes with answers to `OpenTable` while the link
    /// is held, so a request that names all of them, which is made then as well, lacks none.
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    held: BTreeMap<SnapshotAt, Held>,
    /// True if the broker may know of one, and was not told yet that there are none any more.
    was_told: bool,
    /// Number of the last request about them. Each try has a number of its own, so that the broker knows which is the
    /// latest.
    number: u64,
}

impl Holds {
    /// Returns a request about snapshots that the session holds with the next number. `None` for any other request.
    fn numbered(&mut self, request: &Request) -> Option<Request> {
        let number = self.number + 1;
        let numbered = match request {
            Request::OpenTable(open) => Request::OpenTable(OpenTable { number, ..open.clone() }),
            Request::HoldSnapshots(hold) => Request::HoldSnapshots(HoldSnapshots { number, ..hold.clone() }),
            _ => return None,
        };
        self.number = number;
        Some(numbered)
    }

    /// Notes the answer to a request to open a snapshot.
    fn note_opened(&mut self, answer: &Result<Reply, LinkError>) {
        match answer {
            Ok(Reply::OpenTable(TableOpened { table, snapshot, .. })) => {
                if *table == TableId(0) {
                    return;
                }
                let held = self.held.entry(SnapshotAt { table: *table, snapshot: *snapshot }).or_default();
                held.count += 1;
                held.has_ended = false;
            }
            Err(LinkError::Refused { .. }) => return,
            // The broker may have taken the request.
            _ => {}
        }
        self.was_told = true;
    }
}

/// Snapshot that is open in this session.
#[derive(Default)]
struct Held {
    /// Number of times that it is open.
    count: u32,
    /// True if the broker says that it has ended.
    has_ended: bool,
}

impl Broker {
    pub(crate) fn new(base: Arc<SessionCore>, brokers: Brokers, nodes: Arc<Nodes>) -> Broker {
        Broker { base, brokers, nodes, link: HostMutex::default(), holds: Mutex::default() }
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
                        | Request::Publish(_)
                        | Request::AddParts(_)
                        | Request::CommitTables(_)
                        | Request::OpenTable(_)
                        | Request::OpenParts(_),
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

    /// Publishes parts of a table ahead of their commit.
    pub(crate) fn add_parts(&self, add: AddParts, may_wait: &dyn Fn(Refusal) -> bool) -> Result<(), Error> {
        answer_of!(self.ask_for_tables(&Request::AddParts(add), may_wait)?, AddParts).map(drop)
    }

    /// Gives up parts that were published ahead, if the broker can be reached. Otherwise it drops them once the session
    /// has ended.
    pub(crate) fn give_up_parts(&self, give_up: AddParts) {
        let _ = self.ask_once(&Request::AddParts(give_up));
    }

    /// Changes tables.
    pub(crate) fn commit_tables(
        &self,
        commit: CommitTables,
        may_wait: &dyn Fn(Refusal) -> bool,
    ) -> Result<TablesCommitted, Error> {
        answer_of!(self.ask_for_tables(&Request::CommitTables(commit), may_wait)?, CommitTables)
    }

    /// Returns a snapshot of a table, which the session holds until [`Self::let_snapshot_go`] is called as often.
    pub(crate) fn open_table(
        &self,
        proof: &SessionProof,
        name: Name,
        snapshot: u64,
    ) -> Result<TableOpened, Error> {
        let SessionProof { session, secret } = proof.clone();
        let open = Request::OpenTable(OpenTable { session, secret, number: 0, name: name.clone(), snapshot });
        let mut opened = self.ask_leader(&open);
        let is_full =
            |error: &Error| error.refusal().is_some_and(|refusal| refusal.code == Code::LimitReached);
        if opened.as_ref().is_err_and(is_full) {
            // The broker may not know yet of those that are not needed any more.
            self.keep(proof, self.base.options.request_timeout_ms);
            opened = self.ask_leader(&open);
        }
        match opened {
            // A broker of an earlier version has tables of one file alone.
            Err(error) if is_unsupported(&error) && snapshot == 0 => {
                let root = self.open_places(&name)?;
                Ok(TableOpened { table: TableId(0), snapshot: 0, latest: 0, root, name })
            }
            reply => answer_of!(reply?, OpenTable),
        }
    }

    /// Notes that a snapshot is not needed any more, as often as it was opened.
    pub(crate) fn let_snapshot_go(&self, at: SnapshotAt) {
        let open = &mut self.holds.lock().held;
        if let Some(held) = open.get_mut(&at) {
            held.count -= 1;
            if held.count == 0 {
                open.remove(&at);
            }
        }
    }

    /// Reports whether a snapshot that this session holds has ended, as far as it was told: it is told with each
    /// heartbeat.
    pub(crate) fn has_ended(&self, at: SnapshotAt) -> bool {
        self.holds.lock().held.get(&at).is_some_and(|held| held.has_ended)
    }

    /// Asks the broker whether a snapshot that this session holds has ended. False if there is no answer in time.
    pub(crate) fn ask_if_ended(&self, proof: &SessionProof, at: SnapshotAt) -> bool {
        self.keep(proof, self.base.options.request_timeout_ms);
        self.has_ended(at)
    }

    pub(crate) fn open_parts(&self, table: TableId, parts: Vec<PartAt>) -> Result<PartsOpened, Error> {
        let parts = List::new(parts).unwrap_or_default();
        answer_of!(
            self.ask_for_tables(&Request::OpenParts(OpenParts { table, parts }), &|_| true)?,
            OpenParts
        )
    }

    pub(crate) fn list_snapshots(&self, list: ListSnapshots) -> Result<SnapshotsListed, Error> {
        answer_of!(self.ask_for_tables(&Request::ListSnapshots(list), &|_| true)?, ListSnapshots)
    }

    /// Returns the files that names have now.
    pub(crate) fn await_names(&self, asked: AwaitNames) -> Result<NamesAwaited, Error> {
        answer_of!(self.ask_for_tables(&Request::AwaitNames(asked), &|_| true)?, AwaitNames)
    }

    /// Opens another link to the broker that the last request went to.
    pub(crate) fn dial_beside(&self) -> Result<Box<dyn Link>, LinkError> {
        self.brokers.dial(&*self.base.host, self.base.request_deadline())
    }

    /// Sends a request about tables with snapshots.
    fn ask_for_tables(&self, request: &Request, may_wait: &dyn Fn(Refusal) -> bool) -> Result<Reply, Error> {
        self.ask_leader_while(request, may_wait).map_err(|error| match is_unsupported(&error) {
            true => {
                let message =
                    "the broker is of an earlier version, which knows no tables that change; upgrade it";
                Error::new(ErrorKind::Refused, message)
            }
            false => error,
        })
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

    /// Tells the broker that the session is still there, so that the broker lists it, and which snapshots it holds.
    /// Notes which of them have ended. `None` if there was no answer in time, or if another request is under way and
    /// the session holds no snapshots: that request serves the same purpose.
    pub(crate) fn keep(&self, proof: &SessionProof, timeout_ms: u64) -> Option<SessionKept> {
        let has_holds = {
            let holds = self.holds.lock();
            !holds.held.is_empty() || holds.was_told
        };
        let until = self.base.deadline(timeout_ms);
        if !has_holds {
            let mut link = self.link.try_take()?;
            let reply = self.tell(&mut link, &Request::KeepSession(proof.clone()), until)?;
            return answer_of!(reply, KeepSession).ok();
        }
        // Another request that gets no answer must not keep the session from renewing its leases. Half of the time is
        // left for the answer to this one.
        let turn = self.base.deadline(timeout_ms / 2);
        let mut link = loop {
            match self.link.try_take() {
                Some(link) => break link,
                None if self.base.host.now() >= turn => return None,
                None => self.base.pause(1).ok()?,
            }
        };
        // The broker lets no session hold more.
        let held: Vec<SnapshotAt> = {
            let holds = self.holds.lock();
            let held = holds.held.iter().filter(|(_, held)| !held.has_ended).map(|(at, _)| *at);
            held.take(HELD_SNAPSHOTS_MAX).collect()
        };
        let is_last = held.is_empty();
        let SessionProof { session, secret } = proof.clone();
        let hold = HoldSnapshots { session, secret, number: 0, held: List::new(held).unwrap_or_default() };
        let reply = self.tell(&mut link, &Request::HoldSnapshots(hold), until)?;
        let SnapshotsHeld { hosts, ended } = answer_of!(reply, HoldSnapshots).ok()?;
        let mut holds = self.holds.lock();
        holds.was_told = !is_last;
        for at in ended.iter() {
            if let Some(held) = holds.held.get_mut(at) {
                held.has_ended = true;
            }
        }
        Some(SessionKept { hosts })
    }

    /// Sends a request to each broker, if need be, until the one that leads has answered. A new leader has to hear soon
    /// what the session holds. `None` if none has answered by then.
    fn tell(&self, link: &mut Option<Box<dyn Link>>, request: &Request, until: MonoNs) -> Option<Reply> {
        for _ in 0..self.brokers.count() {
            let left_ms = until.ms_since(self.base.host.now());
            if left_ms == 0 {
                return None;
            }
            match self.ask_over(link, request, left_ms) {
                Ok(reply) => return Some(reply),
                // Asking again, or another one, is of no use.
                Err(LinkError::Refused { refusal, .. }) if refusal.code != Code::NotLeader => return None,
                Err(_) => {}
            }
        }
        None
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
        let numbered = self.holds.lock().numbered(request);
        let sent = numbered.as_ref().unwrap_or(request);
        let result = connected.call(sent, self.brokers.until(&*self.base.host, deadline));
        if matches!(request, Request::OpenTable(_)) {
            self.holds.lock().note_opened(&result);
        }
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
    pub(crate) fn shown(&self) -> String {
        format!("broker {}", self.brokers)
    }
}
