//! A node whose process was told to end, while no broker answers: it waits for its leases, and for nothing else.

use farpool_host::{Host, HostLayer, Machine};
use farpool_lease::ticket::{node_id, secret_digest, sign};
use farpool_node::{NodeService, report};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::{Brokers, Dial, Dialer, Link, LinkError, Peer, Service};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

const NODE: &str = "n";
const PATIENCE: Duration = Duration::from_secs(120);
const SESSION: SessionId = SessionId(9);
const SECRET: Secret = Secret(8);

/// Host without a broker. Each attempt to connect to one waits until the test takes note of it.
struct WithoutBroker(SyncSender<()>);

impl HostLayer for WithoutBroker {
    fn inner(&self) -> &dyn Host {
        &Machine
    }
}

impl Dialer for WithoutBroker {
    fn dial(&self, _to: Dial<'_>, _deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        // Nobody takes note any more at the end of the test.
        let _ = self.0.send(());
        Err(LinkError::TimedOut)
    }
}

#[test]
fn node_that_leaves_and_reaches_no_broker_has_drained_once_nothing_is_leased() {
    let arena = Arena::new(&ArenaOptions::new(REGION_BYTES_MIN, 1)).expect("an arena");
    let (node, life) = NodeService::begin(Arc::new(Machine), arena, node_id(NODE)).expect("a node");
    let node = Arc::new(node);
    let mut ticket = Ticket {
        id: TicketId(1),
        term: Term(1),
        session: SESSION,
        secret_digest: secret_digest(SECRET),
        node: node_id(NODE),
        incarnation: life.incarnation,
        region_count: 1,
        class: FileClass::Scratch,
        tenant: Name::new("red").expect("a name"),
        not_after_ms: 1 << 40,
        mac: [0; 32],
    };
    sign(&mut ticket, &life.ticket_key);
    let ask = |request| node.call(&Peer::default(), request).expect("permitted");
    ask(Request::Lease(Lease { ticket, shared: false }));

    let name = Name::new(NODE).expect("a name");
    let info = NodeInfo {
        node: node_id(NODE),
        name: name.clone(),
        incarnation: life.incarnation,
        address: Text::default(),
        shm_socket: Text::default(),
        host_boot: 0,
        host_label: name,
        region_bytes: REGION_BYTES_MIN,
    };
    let (tried, tries) = sync_channel(0);
    let brokers = Brokers::new("broker:7700").expect("an address");
    let reporter = Arc::clone(&node);
    let reports = std::thread::spawn(move || {
        report(&reporter, &WithoutBroker(tried), &info, life.ticket_key, &brokers);
    });
    // The node has dealt with the failure of the first of two attempts when it begins the second.
    let wait_for_two_attempts = || (0..2).for_each(|_| tries.recv_timeout(PATIENCE).expect("an attempt"));
    wait_for_two_attempts();
    assert!(!node.is_drained(), "nobody has told it to end");
    node.leases().leave();
    wait_for_two_attempts();
    assert!(!node.is_drained(), "its lease has a holder");
    let regions = List::default();
    ask(Request::Release(Release { session: SESSION, secret: SECRET, whole: true, regions }));
    wait_for_two_attempts();
    assert!(node.is_drained());
    node.stop();
    drop(tries);
    reports.join().expect("no panic");
}
