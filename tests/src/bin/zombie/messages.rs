//! Zombie that sends single messages: it leases regions and is stopped. Then it uses its old rights in every kind of
//! request that takes any, and leases again.

use crate::files::OldFiles;
use crate::worker::{WORKERS, Worker};
use crate::{Order, Tally};
use farpool_tests::canary::Canary;
use farpool_tests::raw_session::{Lessor, MIB, RawSession, read, soon, write};
use farpool_transport::shm::{self, ShmSpace};
use farpool_transport::{Exposure, Identity, Link, Transport, tcp};
use farpool_wire::control::{Done, Grant, NodeInfo};
use farpool_wire::{Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between renewals of the second lease.
const RENEW: Duration = Duration::from_millis(50);

/// Region that was leased, and the bytes written there.
pub(crate) struct Holding {
    pub(crate) grant: Grant,
    pub(crate) canary: Canary,
}

/// State that the zombie's threads share.
pub(crate) struct Client<'a> {
    pub(crate) order: &'a Order,
    pub(crate) session: RawSession,
    /// Regions of the lease from before the stop.
    pub(crate) held: Vec<Holding>,
    node: NodeInfo,
    space: Arc<ShmSpace>,
}

impl Client<'_> {
    /// Opens a link to the node for one thread.
    pub(crate) fn link(&self) -> Box<dyn Link> {
        match self.order.transport {
            Transport::Shm => {
                let space = Arc::clone(&self.space);
                shm::connect(&self.node.shm_socket, space, soon()).expect("shm")
            }
            _ => {
                let expected = Identity::Node(self.node.node);
                tcp::connect(&Exposure::default(), &self.node.address, &expected, soon()).expect("tcp")
            }
        }
    }

    /// Reads a newly leased region, which must be all zeros, and fills it.
    fn move_in(&self, link: &mut dyn Link, grant: Grant, tally: &mut Tally) -> Holding {
        let fresh = read(link, &grant, 0, MIB as usize).expect("a read of a fresh region");
        if fresh.iter().any(|byte| *byte != 0) {
            tally.add("wrong: a fresh region was not zero");
        }
        let canary =
            Canary::new(self.session.proof.session.0, grant.region.0.into(), grant.epoch.0, MIB as usize);
        write(link, &grant, 0, canary.at(0, MIB as usize)).expect("a write to a fresh region");
        Holding { grant, canary }
    }

    /// Renews the session's leases. Returns the time until which they are valid at least, on this process's clock.
    pub(crate) fn renew(&self, link: &mut dyn Link) -> Instant {
        let asked = Instant::now();
        match self.session.renew(link) {
            Ok(Reply::Renew(renewed)) => asked + Duration::from_millis(renewed.lease_ttl_ms.into()),
            other => panic!("a renewal in time is answered by {other:?}"),
        }
    }
}

/// Leases all regions and uses them until the process was stopped and continued. Goes on without a lease, and at last
/// leases one region again.
pub(crate) fn run(order: &Order) -> Tally {
    let Ok(Reply::Status(status)) = order.broker_link().call(&Request::Status(Done {}), soon()) else {
        panic!("a status is answered by a status");
    };
    let [node] = &status.nodes[..] else { panic!("there are {} nodes, not one", status.nodes.len()) };
    let session = RawSession::open(order);
    let mut client =
        Client { order, session, held: Vec::new(), node: node.info.clone(), space: Arc::default() };
    let mut link = client.link();
    let mut tally = Tally::default();

    for grant in client.session.lease_patiently(order, &mut *link, order.regions) {
        println!("holds {} {}", grant.region, grant.epoch);
        let holding = client.move_in(&mut *link, grant, &mut tally);
        client.held.push(holding);
        client.renew(&mut *link);
    }
    let is_shm = order.transport == Transport::Shm;
    let old_files = is_shm.then(|| OldFiles::take(&client.node.shm_socket, &client.held));
    let mut workers: Vec<Worker<'_>> = (0..WORKERS).map(|number| Worker::new(&client, number)).collect();

    // This is the last renewal before the stop.
    let leased_until = client.renew(&mut *link);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let storing = old_files.map(|files| scope.spawn(|| files.use_until(&is_over, order)));
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                scope.spawn(move || {
                    worker.work_until_stopped(leased_until);
                    worker.try_old_rights(None);
                })
            })
            .collect();
        for thread in running {
            thread.join().expect("a worker");
        }
        is_over.store(true, Ordering::Release);
        if let Some(storing) = storing {
            tally.take_in(storing.join().expect("the thread with the descriptors"));
        }
    });
    println!("refused {}", workers.iter().map(|worker| worker.data_refused).sum::<u64>());
    std::io::stdin().read_line(&mut String::new()).expect("a line");

    let grant = client.session.lease_patiently(order, &mut *link, 1).remove(0);
    let second = client.move_in(&mut *link, grant, &mut tally);
    std::thread::scope(|scope| {
        let second = &second;
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(move || worker.try_old_rights(Some(second))))
            .collect();
        while running.iter().any(|thread| !thread.is_finished()) {
            client.renew(&mut *link);
            std::thread::park_timeout(RENEW);
        }
    });
    for worker in workers {
        tally.take_in(worker.tally);
    }
    client.session.release_all(&mut *link).expect("what is left is given back");
    tally
}
