//! Pool of real processes, and a tenant that leases the regions which another session held and checks their contents.

use crate::canary::Canary;
use crate::processes::{Process, until};
use crate::programs::PATIENCE;
use crate::random::Random;
use crate::raw_client::*;
use farpool::{Pool, PoolOptions, TransportChoice};
use farpool_transport::shm;
use farpool_transport::{Exposure, Identity, Link, LinkError, Transport, tcp};
use farpool_wire::Code;
use farpool_wire::control::{Grant, NodeInfo, NodeStatus, Traffic};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pool of real processes: a broker and one node with regions of 1 MiB.
pub struct RealPool {
    observer: Pool,
    pub info: NodeInfo,
    /// Address of the broker.
    pub address: String,
    pub regions: u64,
    /// Time after which a lease ends if it is not renewed.
    pub ttl: Duration,
    _node: Process,
    _broker: Process,
}

impl RealPool {
    pub fn start(regions: u64, ttl: Duration) -> RealPool {
        let (lasts, grace) = (format!("{}ms", ttl.as_millis()), format!("{}ms", ttl.as_millis() / 3));
        let broker =
            Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", &lasts, "--grace", &grace]);
        let memory = format!("{regions}MiB");
        let url = broker.ready.clone();
        let node =
            ["node", "--name", "haunted", "--memory", &memory, "--region-size", "1MiB", "--broker", &url];
        let node = Process::start(&node);
        let options = PoolOptions { transport: TransportChoice::Tcp, ..PoolOptions::default() };
        let observer = Pool::connect_with(&url, options).expect("a session");
        let info = observer.status().expect("a status").nodes[0].info.clone();
        let address = url.trim_start_matches("farpool://").to_owned();
        RealPool { observer, info, address, regions, ttl, _node: node, _broker: broker }
    }

    pub fn link(&self, transport: Transport) -> Box<dyn Link> {
        match transport {
            Transport::Shm => shm::connect(&self.info.shm_socket, Arc::default(), soon()).expect("shm"),
            _ => {
                let expected = Identity::Node(self.info.node);
                tcp::connect(&Exposure::default(), &self.info.address, &expected, soon()).expect("tcp")
            }
        }
    }

    fn node(&self) -> NodeStatus {
        self.observer.status().expect("a status").nodes[0].clone()
    }

    /// Returns the node's current counters of operations and bytes, as it reports them to the broker.
    pub fn traffic(&self) -> Traffic {
        let before = self.node().traffic.refused_ops;
        // Provokes a refusal. Once the node has reported that refusal, it has also reported all operations before it.
        let nobody =
            Grant { region: Default::default(), epoch: Default::default(), handle: Default::default() };
        let refusal = refused(read(&mut *self.link(Transport::Tcp), &nobody, 0, 1));
        assert_eq!(refusal, Code::StaleEpoch, "no region is at epoch 0");
        until(&self.observer, PATIENCE, "the node reports", |status| {
            status.nodes[0].traffic.refused_ops > before
        });
        self.node().traffic
    }

    pub fn wait_until_some_is_leased(&self) {
        until(&self.observer, PATIENCE, "something is leased", |status| status.nodes[0].counts.leased > 0);
    }

    pub fn wait_until_all_is_free(&self) {
        until(&self.observer, PATIENCE, "everything is free", |status| {
            u64::from(status.nodes[0].counts.free) == self.regions
        });
    }
}

impl Lessor for RealPool {
    fn broker_link(&self) -> Box<dyn Link> {
        tcp::connect(&Exposure::default(), &self.address, &Identity::Broker, soon()).expect("the broker")
    }
}

/// Session that leases regions, fills each with contents of its own, and checks that nobody else changes them.
pub struct Tenant {
    session: RawSession,
    link: Box<dyn Link>,
    pub held: Vec<(Grant, Canary)>,
    renewed: Instant,
    ttl: Duration,
    random: Random,
}

impl Tenant {
    /// Leases every region of the pool once all are free. Checks that each holds only zeros, and fills it.
    pub fn of_all(pool: &RealPool, transport: Transport, seed: u64) -> Tenant {
        Tenant::move_in(pool, transport, seed, |session, link| {
            session.lease_patiently(pool, link, pool.regions)
        })
    }

    /// Leases and fills every region, except those that the broker has promised to a session which was stopped before
    /// it redeemed its ticket.
    pub fn of_all_unpromised(pool: &RealPool, transport: Transport, seed: u64) -> Tenant {
        pool.wait_until_all_is_free();
        Tenant::move_in(pool, transport, seed, |session, link| {
            loop {
                match session.lease(pool, link, pool.regions) {
                    // The detail of `Exhausted` is the number of free bytes if the broker refuses, but the number of
                    // free regions if a node does that is still wiping one. So a small number is the latter, and the
                    // request is repeated.
                    Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::Exhausted => {
                        if refusal.detail >= MIB {
                            return session.lease_patiently(pool, link, refusal.detail / MIB);
                        }
                    }
                    other => return other.expect("a lease"),
                }
            }
        })
    }

    fn move_in(
        pool: &RealPool,
        transport: Transport,
        seed: u64,
        lease: impl FnOnce(&RawSession, &mut dyn Link) -> Vec<Grant>,
    ) -> Tenant {
        let session = RawSession::open(pool);
        let mut link = pool.link(transport);
        let grants = lease(&session, &mut *link);
        let (renewed, random) = (Instant::now(), Random(seed));
        let mut tenant = Tenant { session, link, held: Vec::new(), renewed, ttl: pool.ttl, random };
        tenant.renew();
        for grant in grants {
            let fresh = tenant.read(&grant, 0, MIB as usize);
            assert!(fresh.iter().all(|byte| *byte == 0), "region {} came zeroed", grant.region);
            let owner = tenant.session.proof.session.0;
            let canary = Canary::new(owner, grant.region.0.into(), grant.epoch.0, MIB as usize);
            write(&mut *tenant.link, &grant, 0, canary.at(0, MIB as usize)).expect("the tenant writes");
            tenant.held.push((grant, canary));
        }
        tenant
    }

    fn renew(&mut self) {
        self.renewed = Instant::now();
        self.session.renew(&mut *self.link).expect("the tenant keeps its lease");
    }

    fn read(&mut self, grant: &Grant, offset: u64, bytes: usize) -> Vec<u8> {
        if self.renewed.elapsed() > self.ttl / 6 {
            self.renew();
        }
        match read(&mut *self.link, grant, offset, bytes) {
            // This process did not run for longer than its lease lives, and the lease is in its grace, so it can be
            // renewed.
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::LeaseExpired => {
                self.renew();
                read(&mut *self.link, grant, offset, bytes).expect("the tenant reads")
            }
            other => other.expect("the tenant reads"),
        }
    }

    /// Checks a random range of the tenant's bytes, and renews the leases in time.
    pub fn look(&mut self) {
        let (grant, _) = &self.held[self.random.below(self.held.len() as u64) as usize];
        let grant = grant.clone();
        let bytes = 1 + self.random.below(128 << 10);
        let offset = self.random.below(MIB - bytes + 1);
        self.check(&grant, offset, bytes as usize);
    }

    /// Checks all bytes of all regions that the tenant holds.
    pub fn look_at_all(&mut self) {
        let grants: Vec<Grant> = self.held.iter().map(|(grant, _)| grant.clone()).collect();
        for grant in grants {
            self.check(&grant, 0, MIB as usize);
        }
    }

    fn check(&mut self, grant: &Grant, offset: u64, bytes: usize) {
        let found = self.read(grant, offset, bytes);
        let (_, canary) = self.held.iter().find(|(held, _)| held.region == grant.region).expect("held");
        assert!(canary.is_at(offset, &found), "region {} has its tenant's bytes", grant.region);
    }

    /// Releases `count` regions, chosen at random.
    pub fn give_back(&mut self, count: usize) {
        for _ in 0..count {
            let (grant, _) = self.held.swap_remove(self.random.below(self.held.len() as u64) as usize);
            self.session.release(&mut *self.link, &[grant]).expect("the tenant releases");
        }
    }

    /// Releases all regions.
    pub fn leave(mut self) {
        self.session.release_all(&mut *self.link).expect("the tenant releases all");
    }
}
