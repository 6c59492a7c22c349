//! Zombie for `bench/chaos`: it leases in a pool of many nodes, and is stopped and continued. It uses its old rights
//! once its leases have certainly ended, by the clock of every machine.
//!
//! It prints `leased`; after it was stopped and continued, `count NUMBER WHAT` lines and `end`.

use crate::{Order, Tally, exposure};
use farpool_host::clock;
use farpool_tests::raw_session::{Lessor, MIB, RawSession, read, redeem, soon, write};
use farpool_transport::{Identity, Link, LinkError, tcp};
use farpool_wire::control::Done;
use farpool_wire::{Code, Reply, Request};

/// Time in ms that must have passed since the end of a lease for an operation to count as one with an old right.
const OVER_MS: u64 = 1_000;
const PAGE: usize = 4096;

/// Runs the ghost. Returns its counts.
pub(crate) fn run(order: &Order) -> Tally {
    let mut tally = Tally::default();
    let session = RawSession::open(order);
    let ticket = session.ticket(&mut *order.broker_link(), order.regions).expect("a ticket");
    let Ok(Reply::Status(status)) = order.broker_link().call(&Request::Status(Done {}), soon()) else {
        panic!("a status is answered by a status");
    };
    let node = status.nodes.iter().find(|node| node.info.node == ticket.node).expect("its node").info.clone();
    let connect = || tcp::connect(&exposure(), &node.address, &Identity::Node(node.node), soon());
    let mut link = connect().expect("the node");
    let grants = redeem(&mut *link, &ticket).expect("leased");
    let Ok(Reply::Renew(renewed)) = session.renew(&mut *link) else { panic!("a renewal is answered") };
    let over = clock::now().plus_ms(u64::from(renewed.lease_ttl_ms) + order.seed + OVER_MS);
    let page = vec![0xA5; PAGE];
    println!("leased");
    while clock::now() < over {
        for grant in &grants {
            // The node may accept this write while the lease lives, and refuse it later.
            let _ = write(&mut *link, grant, 0, &page);
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    let mut tried = 0;
    let mut connections = 0;
    while tried < order.tries {
        for grant in &grants {
            let offset = tried * PAGE as u64 % MIB;
            let is_write = tried.is_multiple_of(2);
            let answer = match is_write {
                true => write(&mut *link, grant, offset, &page).map(drop),
                false => read(&mut *link, grant, offset, PAGE).map(drop),
            };
            tried += 1;
            let what = if is_write { "write" } else { "read" };
            match answer {
                Ok(()) => tally.add(format!("wrong: a stale {what} was accepted")),
                Err(LinkError::Refused { refusal, .. }) => {
                    let is_stale = matches!(
                        refusal.code,
                        Code::StaleEpoch | Code::WrongHandle | Code::LeaseExpired | Code::Sealed
                    );
                    let word = if is_stale { "refused" } else { "refused otherwise" };
                    tally.add(format!("stale {what} {word}"));
                }
                Err(_) if connections < 100 => {
                    connections += 1;
                    tally.add(format!("stale {what} cut off"));
                    match connect() {
                        Ok(fresh) => link = fresh,
                        // The node's process has ended, or cannot be reached, so the operation is tried again later.
                        Err(_) => std::thread::park_timeout(std::time::Duration::from_millis(100)),
                    }
                }
                Err(_) => return tally,
            }
        }
    }
    tally
}
