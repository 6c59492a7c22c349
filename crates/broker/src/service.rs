//! The broker at work: requests in, decisions under one lock, records committed, replies out.

use crate::stores::{Store, StoreError};
use farpool_lease::broker::Record;
use farpool_lease::{BrokerLeases, LeaseSettings};
use farpool_transport::tcp::{self, Listening};
use farpool_transport::{Peer, Service, Shared, clock};
use farpool_wire::control::Attach;
use farpool_wire::data::Span;
use farpool_wire::{Code, Opcode, Refusal, Reply, Request, SessionId, Term};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// A running broker. Dropping it stops it; what it promised stays in its store.
pub struct Broker {
    address: SocketAddr,
    term: Term,
    _listening: Listening,
}

struct Core {
    leases: BrokerLeases,
    store: Box<dyn Store>,
    /// Once a commit has failed, memory and store may differ: nothing is answered until a restart.
    failure: Option<StoreError>,
}

struct BrokerService {
    core: Mutex<Core>,
}

impl Broker {
    /// Begins a new term over what the store holds and serves on `address` (port 0: a free one).
    pub fn start(
        address: SocketAddr,
        settings: LeaseSettings,
        mut store: Box<dyn Store>,
    ) -> io::Result<Broker> {
        if let Some(mistake) = settings.mistakes().into_iter().next() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, mistake));
        }
        let mut durable = store.load().map_err(io::Error::other)?;
        if durable.term == Term(0) {
            // A store that was lost, or never kept, has forgotten the term that nodes may have seen. Seconds
            // since 1970 are above any number of restarts counted from an earlier such moment.
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            durable.term = Term(since.map_or(0, |since| since.as_secs()));
        }
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let mut records = Vec::new();
        let leases = BrokerLeases::start(clock::now(), settings, durable, key, &mut records);
        store.commit(&records).map_err(io::Error::other)?;
        let term = leases.term();
        let service = Arc::new(BrokerService { core: Mutex::new(Core { leases, store, failure: None }) });
        let listening = tcp::listen(address, service)?;
        let address = listening.local_address().unwrap_or(address);
        Ok(Broker { address, term, _listening: listening })
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This life of it.
    pub fn term(&self) -> Term {
        self.term
    }
}

impl Core {
    fn answer(&mut self, request: Request) -> Result<Reply, Refusal> {
        let now = clock::now();
        let leases = &mut self.leases;
        leases.tick(now);
        let mut records: Vec<Record> = Vec::new();
        let answer = match request {
            Request::OpenSession(open) => {
                let mut fresh = [0; 8];
                getrandom::fill(&mut fresh).map_err(|_| Refusal::new(Code::StoreFailed, 0))?;
                // Zero means "no session" on the wire.
                let fresh = SessionId(u64::from_le_bytes(fresh).max(1));
                leases.open_session(now, &open, fresh).map(Reply::OpenSession)
            }
            Request::KeepSession(proof) => leases.keep_session(now, &proof).map(Reply::KeepSession),
            Request::CloseSession(proof) => leases.close_session(now, &proof).map(Reply::CloseSession),
            Request::RequestTickets(request) => {
                leases.request_tickets(now, &request).map(Reply::RequestTickets)
            }
            Request::Publish(publish) => leases.publish(now, &publish, &mut records).map(Reply::Publish),
            Request::OpenName(by) => leases.open_name(&by.name).map(Reply::OpenName),
            Request::DropName(by) => leases.drop_name(&by.name, &mut records).map(Reply::DropName),
            Request::RenameName(rename) => leases.rename(&rename, &mut records).map(Reply::RenameName),
            Request::ListNames(list) => Ok(Reply::ListNames(leases.list_names(&list))),
            Request::Status(_) => Ok(Reply::Status(leases.status(now))),
            Request::Offer(offer) => leases.offer(now, offer).map(Reply::Offer),
            Request::Inventory(inventory) => leases.inventory(now, inventory).map(Reply::Inventory),
            other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
        }?;
        if !records.is_empty()
            && let Err(error) = self.store.commit(&records)
        {
            eprintln!("farpool broker: {error}. Nothing more is answered until it is restarted.");
            self.failure = Some(error);
            return Err(Refusal::new(Code::StoreFailed, 0));
        }
        Ok(answer)
    }
}

impl Service for BrokerService {
    fn call(&self, _peer: Peer, request: Request) -> Result<Reply, Refusal> {
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        if core.failure.is_some() {
            return Err(Refusal::new(Code::StoreFailed, 0));
        }
        core.answer(request)
    }

    fn read(&self, _span: &Span, _into: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Read as u64))
    }

    fn write(&self, _span: &Span, _from: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Write as u64))
    }

    fn share(&self, _attach: &Attach) -> Result<Shared, Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Attach as u64))
    }
}
