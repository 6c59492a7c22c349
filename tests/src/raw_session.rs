//! Session that sends single messages, to do things that the library never does: use old rights, skip a renewal, repeat
//! a request.

use crate::canary::UNREAD;
use farpool_host::clock;
use farpool_transport::{Link, LinkError, ReadOp, Transport, WriteOp};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::{Code, FileClass, List, MonoNs, Name, Reply, Request};
use std::time::Duration;

/// Bytes of one MiB, which is also the region size of these tests.
pub const MIB: u64 = 1 << 20;

/// Returns a deadline two minutes from now, for an operation that takes milliseconds.
pub fn soon() -> MonoNs {
    clock::now().plus_ms(120_000)
}

/// Pool in which a [`RawSession`] can lease.
pub trait Lessor {
    /// Connects to the pool's broker.
    fn broker_link(&self) -> Box<dyn Link>;
}

/// Session whose messages the test chooses.
pub struct RawSession {
    /// Id and secret, which prove to brokers and nodes that a request is of this session.
    pub proof: SessionProof,
}

impl RawSession {
    /// Opens a session with the broker.
    pub fn open(pool: &impl Lessor) -> RawSession {
        let label = Name::new("raw client").expect("a name");
        let open = OpenSession { resume: Default::default(), secret: Default::default(), label };
        let Ok(Reply::OpenSession(opened)) = pool.broker_link().call(&Request::OpenSession(open), soon())
        else {
            panic!("a session is opened");
        };
        RawSession { proof: SessionProof { session: opened.session, secret: opened.secret } }
    }

    /// Leases regions of the node at the other end of a link, with a ticket of the broker.
    pub fn lease(
        &self,
        pool: &impl Lessor,
        link: &mut dyn Link,
        regions: u64,
    ) -> Result<Vec<Grant>, LinkError> {
        self.lease_over(&mut *pool.broker_link(), link, regions)
    }

    /// Leases regions, and retries while the node is still wiping regions that were released.
    pub fn lease_patiently(&self, pool: &impl Lessor, link: &mut dyn Link, regions: u64) -> Vec<Grant> {
        let mut broker = pool.broker_link();
        let give_up = soon();
        loop {
            match self.lease_over(&mut *broker, link, regions) {
                Ok(grants) => return grants,
                Err(LinkError::Refused { refusal, .. })
                    if refusal.code == Code::Exhausted && clock::now() < give_up =>
                {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
                Err(error) => panic!("leasing: {error}"),
            }
        }
    }

    fn lease_over(
        &self,
        broker: &mut dyn Link,
        link: &mut dyn Link,
        regions: u64,
    ) -> Result<Vec<Grant>, LinkError> {
        redeem(link, &self.ticket(broker, regions)?)
    }

    /// Returns a ticket for regions. If the broker spreads them over several nodes, returns only the ticket for the
    /// first.
    pub fn ticket(&self, broker: &mut dyn Link, regions: u64) -> Result<Ticket, LinkError> {
        let request = RequestTickets {
            session: self.proof.session,
            secret: self.proof.secret,
            bytes: regions * MIB,
            class: FileClass::Scratch,
            near: 0,
            avoid: List::default(),
            apart: List::default(),
        };
        let reply = broker.call(&Request::RequestTickets(request), soon())?;
        let Reply::RequestTickets(tickets) = reply else { panic!("tickets are answered by tickets") };
        Ok(tickets.tickets[0].ticket.clone())
    }

    /// Releases regions.
    pub fn release(&self, link: &mut dyn Link, grants: &[Grant]) -> Result<Reply, LinkError> {
        let at = grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
        self.release_of(link, false, at.collect())
    }

    /// Releases all regions of the session at the node.
    pub fn release_all(&self, link: &mut dyn Link) -> Result<Reply, LinkError> {
        self.release_of(link, true, Vec::new())
    }

    fn release_of(
        &self,
        link: &mut dyn Link,
        whole: bool,
        regions: Vec<RegionAt>,
    ) -> Result<Reply, LinkError> {
        let SessionProof { session, secret } = self.proof;
        let release = Release { session, secret, whole, regions: List::new(regions).expect("few") };
        link.call(&Request::Release(release), soon())
    }

    /// Seals regions.
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

    /// Renews all leases of the session at the node.
    pub fn renew(&self, link: &mut dyn Link) -> Result<Reply, LinkError> {
        link.call(&Request::Renew(self.proof.clone()), soon())
    }
}

/// Redeems a ticket at the node of this link. Returns the leases.
pub fn redeem(link: &mut dyn Link, ticket: &Ticket) -> Result<Vec<Grant>, LinkError> {
    let lease = Lease { ticket: ticket.clone(), shared: link.transport() == Transport::Shm };
    match link.call(&Request::Lease(lease), soon())? {
        Reply::Lease(leased) => Ok(leased.grants.into_vec()),
        other => panic!("a lease is answered by {other:?}"),
    }
}

/// Makes the address of a range (region, offset, length) with the right that the grant gives.
pub fn span(grant: &Grant, offset: u64, bytes: usize) -> Span {
    Span { region: grant.region, bytes: bytes as u32, offset, epoch: grant.epoch, handle: grant.handle }
}

/// Reads a range.
pub fn read(link: &mut dyn Link, grant: &Grant, offset: u64, bytes: usize) -> Result<Vec<u8>, LinkError> {
    let mut into = vec![UNREAD; bytes];
    link.read(&mut [ReadOp { span: span(grant, offset, bytes), into: &mut into }], far_deadline(link))?;
    Ok(into)
}

/// Writes a range.
pub fn write(link: &mut dyn Link, grant: &Grant, offset: u64, from: &[u8]) -> Result<(), LinkError> {
    link.write(&[WriteOp { span: span(grant, offset, from.len()), from }], far_deadline(link))
}

/// Returns a deadline on the link's own clock. The clock of a simulated link is virtual, so its deadline is infinite.
pub fn far_deadline(link: &dyn Link) -> MonoNs {
    if link.transport() == Transport::Sim { MonoNs(u64::MAX) } else { soon() }
}

/// Returns the code of a refusal. Panics on any other result.
pub fn refused<T: std::fmt::Debug>(result: Result<T, LinkError>) -> Code {
    match result {
        Err(LinkError::Refused { refusal, .. }) => refusal.code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
