//! A client made of single messages, for what the library would never do: use old rights, skip a renewal,
//! repeat itself. And a pool of this process to do it to.

use farpool_broker::stores::MemoryStore;
use farpool_broker::{Broker, LeaseSettings};
use farpool_node::{Node, NodeOptions};
use farpool_transport::shm::{ShmLink, ShmSpace};
use farpool_transport::sim::{Faults, SimNet};
use farpool_transport::{Link, LinkError, ReadOp, Transport, WriteOp, clock, tcp};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::{Code, FileClass, List, MonoNs, Name, Reply, Request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub const MIB: u64 = 1 << 20;

/// A broker and one node of this process. The node goes first.
pub struct OneNode {
    pub node: Node,
    pub broker: Broker,
}

pub fn one_node(regions: u64, settings: LeaseSettings) -> OneNode {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let broker = Broker::start(loopback, settings, Box::new(MemoryStore::default())).expect("a broker");
    let name = Name::new("raw").expect("a name");
    let mut options = NodeOptions::new(name, regions * MIB, broker.address().to_string());
    options.region_bytes = MIB;
    let node = Node::start(options).expect("a node");
    assert!(node.wait_joined(Duration::from_secs(10)), "the node joins");
    OneNode { node, broker }
}

pub fn soon() -> MonoNs {
    clock::now().plus_ms(5_000)
}

impl OneNode {
    /// A link to the node over a transport, with a virtual clock for `Sim`.
    pub fn link(&self, transport: Transport) -> Box<dyn Link> {
        let info = self.node.info();
        match transport {
            Transport::Tcp => Box::new(tcp::connect(&info.address, soon()).expect("tcp")),
            Transport::Shm => {
                let space = Arc::new(ShmSpace::default());
                Box::new(ShmLink::connect(&info.shm_socket, space, soon()).expect("shm"))
            }
            Transport::Sim => {
                Box::new(SimNet::new(1, Faults::none()).connect(self.node.service()).expect("sim"))
            }
        }
    }

    pub fn broker_link(&self) -> impl Link + use<> {
        tcp::connect(&self.broker.address().to_string(), soon()).expect("broker")
    }

    pub fn session(&self) -> RawSession {
        let label = Name::new("raw client").expect("a name");
        let open = OpenSession { resume: Default::default(), secret: Default::default(), label };
        let Ok(Reply::OpenSession(opened)) = self.broker_link().call(&Request::OpenSession(open), soon())
        else {
            panic!("a session is opened");
        };
        RawSession { proof: SessionProof { session: opened.session, secret: opened.secret } }
    }
}

pub struct RawSession {
    pub proof: SessionProof,
}

impl RawSession {
    /// Leases regions through the broker.
    pub fn lease(&self, pool: &OneNode, link: &mut dyn Link, regions: u64) -> Result<Vec<Grant>, LinkError> {
        let request = RequestTickets {
            session: self.proof.session,
            secret: self.proof.secret,
            bytes: regions * MIB,
            class: FileClass::Scratch,
            near: 0,
            avoid: List::default(),
        };
        let reply = pool.broker_link().call(&Request::RequestTickets(request), soon())?;
        let Reply::RequestTickets(tickets) = reply else { panic!("tickets are answered by tickets") };
        let ticket = tickets.tickets[0].ticket.clone();
        let shared = link.transport() == Transport::Shm;
        match link.call(&Request::Lease(Lease { ticket, shared }), soon())? {
            Reply::Lease(leased) => Ok(leased.grants.into_vec()),
            other => panic!("a lease is answered by {other:?}"),
        }
    }

    /// Leases, asking again while the node is still wiping what was released.
    pub fn lease_patiently(&self, pool: &OneNode, link: &mut dyn Link, regions: u64) -> Vec<Grant> {
        let give_up = soon();
        loop {
            match self.lease(pool, link, regions) {
                Ok(grants) => return grants,
                Err(LinkError::Refused { refusal, .. })
                    if refusal.code == Code::Exhausted && clock::now() < give_up =>
                {
                    std::thread::yield_now();
                }
                Err(error) => panic!("leasing: {error}"),
            }
        }
    }

    pub fn release(&self, link: &mut dyn Link, grants: &[Grant]) -> Result<Reply, LinkError> {
        let at = grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
        let release = Release {
            session: self.proof.session,
            secret: self.proof.secret,
            whole: false,
            regions: List::new(at.collect()).expect("few"),
        };
        link.call(&Request::Release(release), soon())
    }

    pub fn seal(&self, link: &mut dyn Link, grants: &[Grant]) -> Result<Vec<Grant>, LinkError> {
        let at = grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
        let seal = Seal {
            session: self.proof.session,
            secret: self.proof.secret,
            regions: List::new(at.collect()).expect("few"),
        };
        match link.call(&Request::Seal(seal), soon())? {
            Reply::Seal(sealed) => Ok(sealed.regions.into_vec()),
            other => panic!("a seal is answered by {other:?}"),
        }
    }

    pub fn renew(&self, link: &mut dyn Link) -> Result<Reply, LinkError> {
        link.call(&Request::Renew(self.proof.clone()), soon())
    }
}

pub fn span(grant: &Grant, offset: u64, bytes: usize) -> Span {
    Span { region: grant.region, bytes: bytes as u32, offset, epoch: grant.epoch, handle: grant.handle }
}

pub fn read(link: &mut dyn Link, grant: &Grant, offset: u64, bytes: usize) -> Result<Vec<u8>, LinkError> {
    let mut into = vec![0xee; bytes];
    link.read(&mut [ReadOp { span: span(grant, offset, bytes), into: &mut into }], far_deadline(link))?;
    Ok(into)
}

pub fn write(link: &mut dyn Link, grant: &Grant, offset: u64, from: &[u8]) -> Result<(), LinkError> {
    link.write(&[WriteOp { span: span(grant, offset, from.len()), from }], far_deadline(link))
}

/// A deadline on the link's own clock: a simulated one starts near zero and must not time out by itself.
pub fn far_deadline(link: &dyn Link) -> MonoNs {
    if link.transport() == Transport::Sim { MonoNs(u64::MAX) } else { soon() }
}

/// The code of a refusal; anything else fails the test.
pub fn refused<T: std::fmt::Debug>(result: Result<T, LinkError>) -> Code {
    match result {
        Err(LinkError::Refused { refusal, .. }) => refusal.code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
