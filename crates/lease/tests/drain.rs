//! Draining a node, case by case. The random schedules of `node`, `quota` and `cluster` mix it with everything else.

use farpool_lease::broker::Durable;
use farpool_lease::ticket::{node_id, secret_digest, sign};
use farpool_lease::{BrokerLeases, LeaseSettings, NodeLeases};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;

/// Number of the connection between each node and the broker.
const CONNECTION: u64 = 1;
const KEY: [u8; 32] = [3; 32];
const START: MonoNs = MonoNs(1_000_000_000);
const SESSION: SessionId = SessionId(9);
const SECRET: Secret = Secret(8);

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn code<T>(answer: Result<T, Refusal>) -> Result<T, Code> {
    answer.map_err(|refusal| refusal.code)
}

fn broker() -> BrokerLeases {
    let settings = LeaseSettings::default();
    BrokerLeases::start(START, settings, Durable::default(), [4; 32], &mut Vec::new())
}

/// Returns a node of two free regions.
fn node(called: &str) -> NodeLeases {
    let mut node = NodeLeases::new(node_id(called), Incarnation(1), KEY, 2);
    let _ = node.scrubbed(RegionIndex(0));
    let _ = node.scrubbed(RegionIndex(1));
    node
}

fn join(broker: &mut BrokerLeases, called: &str, host: &str) {
    let info = NodeInfo {
        node: node_id(called),
        name: name(called),
        incarnation: Incarnation(1),
        address: Text::default(),
        shm_socket: Text::default(),
        host_boot: 0,
        host_label: name(host),
        region_bytes: REGION_BYTES_MIN,
    };
    broker.offer(START, CONNECTION, Offer { info, ticket_key: KEY }).expect("taken in");
}

/// Sends the node's report to the broker and lets the node follow the ruling.
fn report(broker: &mut BrokerLeases, node: &mut NodeLeases) -> Ruling {
    let ruling = broker.inventory(START, CONNECTION, node.inventory(Traffic::default(), 0)).expect("known");
    node.rule(START, &ruling, &mut Vec::new());
    ruling
}

fn tell(broker: &mut BrokerLeases, called: &str, drain: bool, stop: bool) {
    let order = DrainNode { node: name(called), drain, stop };
    broker.drain(&name("admin"), &order).expect("known");
}

fn shown(broker: &BrokerLeases, now: MonoNs) -> Vec<(String, bool)> {
    let report = broker.status(now, &name("admin"));
    report.nodes.iter().map(|node| (node.info.name.to_string(), node.draining)).collect()
}

fn ticket(id: u64) -> Lease {
    let mut ticket = Ticket {
        id: TicketId(id),
        term: Term(1),
        session: SESSION,
        secret_digest: secret_digest(SECRET),
        node: node_id("n"),
        incarnation: Incarnation(1),
        region_count: 1,
        class: FileClass::Pinned,
        tenant: name("red"),
        not_after_ms: 1 << 40,
        mac: [0; 32],
    };
    sign(&mut ticket, &KEY);
    Lease { ticket, shared: false }
}

#[test]
fn node_is_emptied_by_those_who_oversee_the_pool_and_by_its_name_only() {
    let mut broker = broker();
    join(&mut broker, "n", "h");
    let order = DrainNode { node: name("n"), drain: true, stop: false };
    let answer = broker.drain(&name("red"), &order);
    assert_eq!(answer, Err(Refusal::new(Code::NotPermitted, Opcode::Drain as u64)));
    for by in ["admin", "local"] {
        assert!(broker.drain(&name(by), &order).is_ok());
    }
    let other = DrainNode { node: name("m"), ..order };
    let answer = broker.drain(&name("admin"), &other);
    assert_eq!(answer, Err(Refusal::new(Code::NoNodes, node_id("m").0)));
}

/// Opens a session of the tenant `red`. Returns its request for three regions.
fn request(broker: &mut BrokerLeases) -> RequestTickets {
    let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
    let opened = broker.open_session(START, &name("red"), &open, SESSION).expect("opened");
    RequestTickets {
        session: opened.session,
        secret: opened.secret,
        bytes: 3 * REGION_BYTES_MIN,
        class: FileClass::Scratch,
        near: 0,
        avoid: List::default(),
        apart: List::default(),
    }
}

fn hosts(broker: &mut BrokerLeases, request: &RequestTickets) -> u32 {
    let proof = SessionProof { session: request.session, secret: request.secret };
    broker.keep_session(START, &name("red"), &proof).expect("its own").hosts
}

#[test]
fn draining_node_gets_no_promises_and_is_no_failure_domain() {
    let mut broker = broker();
    let (mut one, mut other) = (node("n"), node("m"));
    join(&mut broker, "n", "h");
    join(&mut broker, "m", "i");
    report(&mut broker, &mut one);
    report(&mut broker, &mut other);
    let request = request(&mut broker);
    assert_eq!(hosts(&mut broker, &request), 2);
    tell(&mut broker, "n", true, false);
    let answer = broker.request_tickets(START, &name("red"), &request);
    assert_eq!(answer, Err(Refusal::new(Code::Exhausted, 2 * REGION_BYTES_MIN)));
    assert_eq!(hosts(&mut broker, &request), 1);
    tell(&mut broker, "n", false, false);
    assert!(broker.request_tickets(START, &name("red"), &request).is_ok());
}

#[test]
fn node_that_leaves_after_its_drain_was_cancelled_gets_no_promises() {
    let mut broker = broker();
    let (mut leaves, mut stays) = (node("n"), node("m"));
    join(&mut broker, "n", "h");
    join(&mut broker, "m", "i");
    report(&mut broker, &mut stays);
    for drain in [true, false] {
        tell(&mut broker, "n", drain, false);
        report(&mut broker, &mut leaves);
        // The ruling on the first report is followed, and the second report shows it.
        report(&mut broker, &mut leaves);
        assert_eq!(leaves.is_draining(), drain);
    }
    let request = request(&mut broker);
    assert_eq!(hosts(&mut broker, &request), 2);
    leaves.leave();
    report(&mut broker, &mut leaves);
    let answer = broker.request_tickets(START, &name("red"), &request);
    assert_eq!(answer, Err(Refusal::new(Code::Exhausted, 2 * REGION_BYTES_MIN)));
    assert_eq!(hosts(&mut broker, &request), 1);
}

#[test]
fn draining_node_refuses_leases_for_good_and_asks_its_holders_to_leave() {
    let (mut broker, mut node) = (broker(), node("n"));
    join(&mut broker, "n", "h");
    report(&mut broker, &mut node);
    let (actions, proof) = (&mut Vec::new(), SessionProof { session: SESSION, secret: SECRET });
    let leased = node.redeem(START, None, &ticket(1), || Handle(5), actions).expect("leased");
    assert_eq!(node.renew(START, None, &proof, actions).map(|renewed| renewed.draining), Ok(false));
    tell(&mut broker, "n", true, true);
    report(&mut broker, &mut node);
    assert_eq!(node.renew(START, None, &proof, actions).map(|renewed| renewed.draining), Ok(true));
    let late = node.redeem(START, None, &ticket(2), || Handle(6), actions);
    assert_eq!(code(late), Err(Code::Draining));
    // The broker learns that the ticket is spent, so the promise no longer counts.
    assert!(node.inventory(Traffic::default(), 0).spent.contains(&TicketId(2)));
    assert!(!node.may_end());
    let regions = leased.grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
    let regions = List::new(regions.collect()).expect("one");
    let (session, secret) = (SESSION, SECRET);
    let release = Release { session, secret, whole: false, regions };
    node.release(None, &release, actions).expect("released");
    assert!(node.may_end());
    tell(&mut broker, "n", false, false);
    report(&mut broker, &mut node);
    assert!(!node.may_end() && !node.is_draining());
}

#[test]
fn node_stays_what_it_was_told_to_be_over_connections_and_lives_of_the_broker() {
    let (mut first, mut node) = (broker(), node("n"));
    join(&mut first, "n", "h");
    tell(&mut first, "n", true, true);
    // The node connects anew before it has learned of the order.
    join(&mut first, "n", "h");
    report(&mut first, &mut node);
    assert!(node.may_end());
    report(&mut first, &mut node);
    assert_eq!(shown(&first, START), [("n".to_owned(), true)]);

    let mut next = broker();
    join(&mut next, "n", "h");
    let ruling = report(&mut next, &mut node);
    assert_eq!((ruling.drain, ruling.stop), (false, true), "as it was told before");
    assert!(node.may_end());
    assert_eq!(shown(&next, START), [("n".to_owned(), true)]);
    let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
    let opened = next.open_session(START, &name("red"), &open, SESSION).expect("opened");
    assert_eq!(opened.hosts, 0, "learnt from the node");
    tell(&mut next, "n", true, false);
    report(&mut next, &mut node);
    assert!(node.is_draining() && !node.may_end(), "told to go on running");
}

#[test]
fn node_that_ended_as_it_was_told_to_is_forgotten_once_it_is_silent() {
    let (mut broker, mut node) = (broker(), node("n"));
    join(&mut broker, "n", "h");
    report(&mut broker, &mut node);
    tell(&mut broker, "n", true, true);
    report(&mut broker, &mut node);
    report(&mut broker, &mut node);
    let silent = START.plus_ms(u64::from(LeaseSettings::default().node_silence_ms) + 1);
    broker.tick(START.plus_ms(1_000));
    assert_eq!(shown(&broker, START).len(), 1);
    broker.tick(silent);
    assert_eq!(shown(&broker, silent), []);
}

#[test]
fn node_that_was_lost_while_it_drained_stays_listed() {
    let (mut broker, mut node) = (broker(), node("n"));
    join(&mut broker, "n", "h");
    report(&mut broker, &mut node);
    node.redeem(START, None, &ticket(1), || Handle(5), &mut Vec::new()).expect("leased");
    tell(&mut broker, "n", true, true);
    report(&mut broker, &mut node);
    report(&mut broker, &mut node);
    let silent = START.plus_ms(60_000);
    broker.tick(silent);
    assert_eq!(shown(&broker, silent), [("n".to_owned(), true)]);
}

#[test]
fn node_that_leaves_grants_nothing_and_waits_for_leases_but_not_for_published_files() {
    let (mut broker, mut node) = (broker(), node("n"));
    join(&mut broker, "n", "h");
    report(&mut broker, &mut node);
    let (actions, proof) = (&mut Vec::new(), SessionProof { session: SESSION, secret: SECRET });
    node.redeem(START, None, &ticket(1), || Handle(5), actions).expect("leased");
    node.leave();
    assert!(node.is_draining() && !node.may_leave());
    let late = node.redeem(START, None, &ticket(2), || Handle(6), actions);
    assert_eq!(code(late), Err(Code::Draining));
    assert_eq!(node.renew(START, None, &proof, actions).map(|renewed| renewed.draining), Ok(true));
    // No ruling ends it, whether that is on a report from before or from after.
    for _ in 0..2 {
        report(&mut broker, &mut node);
        assert!(node.is_draining());
    }
    assert_eq!(shown(&broker, START), [("n".to_owned(), true)]);
    let release = Release { session: SESSION, secret: SECRET, whole: true, regions: List::default() };
    node.release(None, &release, actions).expect("released");
    assert!(node.may_leave());
    tell(&mut broker, "n", true, true);
    report(&mut broker, &mut node);
    assert!(!node.may_leave(), "an administrator moves what is published, and is waited for");
}
