//! Messages that come late, twice or after a restart, and the damage that each of them once could do. The random
//! schedules of the other tests found each case, or were extended afterwards so that they find it.

use farpool_lease::broker::Durable;
use farpool_lease::node::Action;
use farpool_lease::ticket::{secret_digest, sign};
use farpool_lease::{BrokerLeases, LeaseSettings, NodeLeases, tenant};
use farpool_wire::control::*;
use farpool_wire::limits::{NODE_REGIONS_MAX, REGION_BYTES_MIN};
use farpool_wire::*;

const NODE: NodeId = NodeId(1);
const LIFE: Incarnation = Incarnation(2);
const KEY: [u8; 32] = [3; 32];
/// Number of the connection between the node and the broker.
const CONNECTION: u64 = 1;
const START: MonoNs = MonoNs(1_000_000_000);

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn offer_of(node: NodeId) -> Offer {
    offer_of_life(node, LIFE)
}

fn offer_of_life(node: NodeId, incarnation: Incarnation) -> Offer {
    let info = NodeInfo {
        node,
        name: name("n"),
        incarnation,
        address: Text::default(),
        shm_socket: Text::default(),
        host_boot: 0,
        host_label: name("h"),
        region_bytes: REGION_BYTES_MIN,
    };
    Offer { info, ticket_key: KEY }
}

/// Returns a broker with one node, and a session.
fn broker() -> (BrokerLeases, SessionProof) {
    let records = &mut Vec::new();
    let mut broker =
        BrokerLeases::start(START, LeaseSettings::default(), Durable::default(), [4; 32], records);
    broker.offer(START, CONNECTION, offer_of(NODE)).expect("taken in");
    let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
    let opened = broker.open_session(START, &tenant::local(), &open, SessionId(9)).expect("opened");
    (broker, SessionProof { session: opened.session, secret: opened.secret })
}

fn extent(epoch: u64) -> NamedExtent {
    NamedExtent {
        node: NODE,
        incarnation: LIFE,
        region: RegionIndex(0),
        epoch: Epoch(epoch),
        handle: Handle(5),
        region_offset: 0,
        bytes: 8,
    }
}

fn publish(
    broker: &mut BrokerLeases,
    proof: &SessionProof,
    called: &str,
    extents: &[NamedExtent],
) -> Result<FileId, Code> {
    let publish = Publish {
        session: proof.session,
        secret: proof.secret,
        name: name(called),
        class: FileClass::Pinned,
        replace: true,
        moved: FileId(0),
        extents: List::new(extents.to_vec()).expect("few"),
    };
    let answer = broker.publish_extents(START, &tenant::local(), &publish, &mut Vec::new());
    answer.map(|published| published.file).map_err(|refusal| refusal.code)
}

/// Returns an inventory (report of the node) that shows region 0 at this epoch with this owner.
fn inventory_with(epoch: u64, owner: RegionOwner) -> Inventory {
    let mut inventory = NodeLeases::new(NODE, LIFE, KEY, 1).inventory(Traffic::default(), 0);
    let owned = OwnedRegion { region: RegionIndex(0), epoch: Epoch(epoch), owner };
    inventory.owned = List::new(vec![owned]).expect("one");
    inventory
}

/// Returns the broker's ruling, its answer to a report of region 0 at this epoch with this owner.
fn ruling_on(broker: &mut BrokerLeases, epoch: u64, owner: RegionOwner) -> Ruling {
    broker.inventory(START, CONNECTION, inventory_with(epoch, owner)).expect("known")
}

/// Reports region 0 as sealed at this epoch and without a name yet.
fn shown_as_sealed(broker: &mut BrokerLeases, epoch: u64) {
    ruling_on(broker, epoch, RegionOwner::Sealing(SessionId(9)));
}

/// A publication was committed, its answer was lost, its name was dropped, and the broker restarted. A
/// repetition to the new life was acknowledged though the bytes were gone. Now only regions that a node shows
/// as sealed are published.
#[test]
fn publish_of_what_the_node_does_not_show_as_sealed_is_refused() {
    let (mut broker, proof) = broker();
    assert_eq!(publish(&mut broker, &proof, "view", &[extent(2)]), Err(Code::NotReported));
    ruling_on(&mut broker, 2, RegionOwner::Session(SessionId(9)));
    assert_eq!(publish(&mut broker, &proof, "view", &[extent(2)]), Err(Code::NotReported));
    shown_as_sealed(&mut broker, 2);
    assert!(publish(&mut broker, &proof, "view", &[extent(2)]).is_ok());
}

/// A client stalls between seal and publish. Its region is freed, leased, sealed and published by another client. When
/// the first client's publication came then, it replaced the owner in the catalog's index, and the node was ordered to
/// drop the other client's file.
#[test]
fn publish_of_an_older_epoch_leaves_the_present_owner_alone() {
    let (mut broker, proof) = broker();
    shown_as_sealed(&mut broker, 6);
    let file = publish(&mut broker, &proof, "present", &[extent(6)]).expect("published");
    for late in [2, 7] {
        assert_eq!(publish(&mut broker, &proof, "late", &[extent(late)]), Err(Code::StaleEpoch));
    }
    assert_eq!(publish(&mut broker, &proof, "second", &[extent(6)]), Err(Code::NameTaken));
    let ruling = ruling_on(&mut broker, 6, RegionOwner::Name(file));
    assert!(ruling.drop.is_empty() && ruling.adopt.is_empty());
}

/// The node had been ordered to free an orphan, a sealed region without a session. A publication of it that came after
/// that was acknowledged all the same.
#[test]
fn publish_of_an_orphan_that_was_ruled_away_is_refused() {
    let (mut broker, proof) = broker();
    assert_eq!(ruling_on(&mut broker, 2, RegionOwner::Orphan).drop.len(), 1);
    assert_eq!(publish(&mut broker, &proof, "late", &[extent(2)]), Err(Code::StaleEpoch));
    shown_as_sealed(&mut broker, 4);
    assert!(
        publish(&mut broker, &proof, "next", &[extent(4)]).is_ok(),
        "the region's next life may be named"
    );
}

/// Found by the model checker. The offer of a node's earlier life was taken after that of the present one, so
/// the broker forgot what it had ordered the present life to free. Then an inventory over a broken connection
/// showed the region as sealed, and a late publication of it was acknowledged although it had been freed.
#[test]
fn report_of_a_broken_connection_does_not_bring_back_what_was_ruled_away() {
    let (mut broker, proof) = broker();
    let late_report = inventory_with(2, RegionOwner::Sealing(SessionId(9)));
    assert_eq!(ruling_on(&mut broker, 2, RegionOwner::Orphan).drop.len(), 1);
    let silent_ms = u64::from(LeaseSettings::default().node_silence_ms) + 1;
    let (earlier, broken, present) = (CONNECTION + 1, CONNECTION, CONNECTION + 2);
    let later = START.plus_ms(silent_ms);
    broker.offer(later, earlier, offer_of_life(NODE, Incarnation(1))).expect("the other is silent");
    let later = later.plus_ms(silent_ms);
    broker.offer(later, present, offer_of(NODE)).expect("not locked out");

    let answer = broker.inventory(later, broken, late_report.clone());
    assert_eq!(answer.map_err(|refusal| refusal.code), Err(Code::NoNodes));
    assert_eq!(publish(&mut broker, &proof, "late", &[extent(2)]), Err(Code::NotReported));
    // A region that the node shows over its present connection does exist.
    broker.inventory(later, present, late_report).expect("taken");
    assert!(publish(&mut broker, &proof, "there", &[extent(2)]).is_ok());
}

/// An offer whose answer the node never had is taken after the offer over its present connection. The node's
/// report is refused, and it offers itself again.
#[test]
fn offer_that_comes_late_makes_the_node_offer_itself_again() {
    let (mut broker, proof) = broker();
    broker.offer(START, CONNECTION + 1, offer_of(NODE)).expect("taken in");
    let sealed = inventory_with(2, RegionOwner::Sealing(SessionId(9)));
    let answer = broker.inventory(START, CONNECTION, sealed.clone());
    assert_eq!(answer.map_err(|refusal| refusal.code), Err(Code::NoNodes));
    broker.offer(START, CONNECTION + 2, offer_of(NODE)).expect("taken in");
    broker.inventory(START, CONNECTION + 2, sealed).expect("taken");
    assert!(publish(&mut broker, &proof, "view", &[extent(2)]).is_ok());
}

/// A publication arrives a second time after its name was dropped: the name must not come back without its bytes.
#[test]
fn publish_repeated_after_its_name_was_dropped_is_refused() {
    let (mut broker, proof) = broker();
    shown_as_sealed(&mut broker, 2);
    let file = publish(&mut broker, &proof, "view", &[extent(2)]);
    assert!(file.is_ok());
    assert_eq!(publish(&mut broker, &proof, "view", &[extent(2)]), file, "a lost answer is given again");
    broker.drop_name(&tenant::local(), &name("view"), &mut Vec::new()).expect("dropped");
    assert_eq!(publish(&mut broker, &proof, "view", &[extent(2)]), Err(Code::StaleEpoch));
}

/// A session that replaced a file faster than the node reported leaked every version until it ended, because a
/// sealed region without a name was never dropped.
#[test]
fn version_replaced_before_its_adoption_is_freed_while_its_session_lives() {
    let (mut broker, proof) = broker();
    shown_as_sealed(&mut broker, 2);
    publish(&mut broker, &proof, "view", &[extent(2)]).expect("published");
    broker.drop_name(&tenant::local(), &name("view"), &mut Vec::new()).expect("dropped");

    let (mut node, ticket) = (node_with_a_region(), ticket(Term(1), 1_000));
    let actions = &mut Vec::new();
    let granted = node
        .redeem(START, None, &Lease { ticket, shared: false }, || Handle(5), actions)
        .expect("leased")
        .grants[0]
        .clone();
    let regions = List::new(vec![RegionAt { region: granted.region, epoch: granted.epoch }]).expect("one");
    let (session, secret) = (SessionId(9), Secret(8));
    node.seal(None, &Seal { session, secret, regions }, || Handle(6), actions).expect("sealed");
    let ruling = broker.inventory(START, CONNECTION, node.inventory(Traffic::default(), 0)).expect("known");
    node.rule(START, &ruling, actions);
    assert_eq!(node.inventory(Traffic::default(), 0).counts.cleaning, 1);
}

/// One file names a region at two epochs, so at least one of them is wrong.
#[test]
fn publish_of_one_region_at_two_epochs_is_refused() {
    let (mut broker, proof) = broker();
    shown_as_sealed(&mut broker, 2);
    assert_eq!(publish(&mut broker, &proof, "both", &[extent(2), extent(3)]), Err(Code::StaleEpoch));
}

/// The broker's index of freed regions is bounded by the number of regions that nodes can have.
#[test]
fn publish_of_a_region_no_node_can_have_is_refused() {
    let (mut broker, proof) = broker();
    let far_out = NamedExtent { region: RegionIndex(NODE_REGIONS_MAX as u32), ..extent(2) };
    assert_eq!(publish(&mut broker, &proof, "far out", &[far_out]), Err(Code::NoSuchRegion));
}

/// Two nodes that each reported four thousand million free regions made the sum of free bytes overflow: a
/// message caused a panic.
#[test]
fn inventory_with_more_free_regions_than_a_node_can_have_is_refused() {
    let (mut broker, proof) = broker();
    for node in [NODE, NodeId(2)] {
        broker.offer(START, CONNECTION, offer_of(node)).expect("taken in");
        let mut inventory = NodeLeases::new(node, LIFE, KEY, 1).inventory(Traffic::default(), 0);
        inventory.counts.free = u32::MAX;
        let answer = broker.inventory(START, CONNECTION, inventory);
        assert_eq!(answer.map_err(|refusal| refusal.code), Err(Code::Malformed));
    }
    let request = RequestTickets {
        session: proof.session,
        secret: proof.secret,
        bytes: u64::MAX,
        class: FileClass::Scratch,
        near: 0,
        avoid: List::default(),
        apart: List::default(),
    };
    let answer = broker.request_tickets(START, &tenant::local(), &request);
    assert_eq!(answer.map_err(|refusal| refusal.code), Err(Code::NoNodes));
}

/// A node of a busy machine had no CPU for two seconds. Its memory did not count meanwhile, and a session was told that
/// the pool was full.
#[test]
fn memory_of_a_node_that_is_silent_for_a_moment_is_waited_for() {
    const OTHER: Incarnation = Incarnation(7);
    let (mut broker, proof) = broker();
    let lives = [(NODE, LIFE), (NodeId(2), OTHER)];
    broker.offer(START, CONNECTION, offer_of_life(NodeId(2), OTHER)).expect("taken in");
    let report = |broker: &mut BrokerLeases, now, (node, life)| {
        broker.inventory(now, CONNECTION, with_two_regions(node, life).inventory(Traffic::default(), 0))
    };
    for life in lives {
        report(&mut broker, START, life).expect("known");
    }
    let ask = |broker: &mut BrokerLeases, now, regions, avoid: &[Incarnation]| {
        broker.keep_session(now, &tenant::local(), &proof).expect("open");
        let request = RequestTickets {
            session: proof.session,
            secret: proof.secret,
            bytes: regions * REGION_BYTES_MIN,
            class: FileClass::Scratch,
            near: 0,
            avoid: List::new(avoid.to_vec()).expect("few"),
            apart: List::default(),
        };
        broker.request_tickets(now, &tenant::local(), &request)
    };
    let times = LeaseSettings::default();
    let later = START.plus_ms(u64::from(times.node_silence_ms) + 1);
    report(&mut broker, later, lives[0]).expect("known");
    let two = Refusal::new(Code::Exhausted, 2 * REGION_BYTES_MIN);
    assert_eq!(ask(&mut broker, later, 3, &[]), Err(Refusal::new(Code::NotReported, 0)));
    assert_eq!(ask(&mut broker, later, 5, &[]), Err(two), "more than both have");
    assert_eq!(ask(&mut broker, later, 3, &[OTHER]), Err(two), "of a node that the session knows as lost");
    let lost = START.plus_ms(u64::from(times.lease_ttl_ms + times.grace_ms) + 1);
    report(&mut broker, lost, lives[0]).expect("known");
    assert_eq!(ask(&mut broker, lost, 3, &[]), Err(two), "of a node that is silent for too long");
    report(&mut broker, lost, lives[1]).expect("known");
    assert_eq!(ask(&mut broker, lost, 3, &[]).map(|tickets| tickets.tickets.len()), Ok(2));
}

fn node_with_a_region() -> NodeLeases {
    with_two_regions(NODE, LIFE)
}

fn with_two_regions(node: NodeId, incarnation: Incarnation) -> NodeLeases {
    let mut node = NodeLeases::new(node, incarnation, KEY, 2);
    let _ = node.scrubbed(RegionIndex(0));
    let _ = node.scrubbed(RegionIndex(1));
    node
}

fn ticket(term: Term, not_after_ms: u64) -> Ticket {
    let mut ticket = Ticket {
        id: TicketId(1),
        term,
        session: SessionId(9),
        secret_digest: secret_digest(Secret(8)),
        node: NODE,
        incarnation: LIFE,
        region_count: 1,
        class: FileClass::Pinned,
        tenant: tenant::local(),
        not_after_ms,
        mac: [0; 32],
    };
    sign(&mut ticket, &KEY);
    ticket
}

fn clock_of(term: Term, broker_now_ms: u64) -> Ruling {
    Ruling { term, broker_now_ms, adopt: List::default(), drop: List::default(), drain: false, stop: false }
}

fn redeem(node: &mut NodeLeases, ticket: &Ticket) -> Result<(), Code> {
    let answer = node.redeem(
        START,
        None,
        &Lease { ticket: ticket.clone(), shared: false },
        || Handle(5),
        &mut Vec::new(),
    );
    answer.map(|_| ()).map_err(|refusal| refusal.code)
}

/// A spent ticket is forgotten once it has expired. A ruling (answer to a report) that was delayed for long then set
/// the broker's clock back to before that, and the ticket was good again.
#[test]
fn ticket_spent_and_forgotten_stays_spent_when_a_late_ruling_sets_the_clock_back() {
    let mut node = node_with_a_region();
    let ticket = ticket(Term(1), 1_000);
    node.rule(START, &clock_of(Term(1), 500), &mut Vec::new());
    assert_eq!(redeem(&mut node, &ticket), Ok(()));
    node.rule(START, &clock_of(Term(1), 2_000), &mut Vec::new());
    node.tick(START, &mut Vec::new());
    node.rule(START, &clock_of(Term(1), 600), &mut Vec::new());
    assert_eq!(redeem(&mut node, &ticket), Err(Code::TicketExpired));
}

/// Regions stayed leased for nobody, as long as their session lived, if the answer with their handles was lost.
#[test]
fn ticket_whose_answer_was_lost_gives_the_same_again_while_its_session_holds_it() {
    let mut node = node_with_a_region();
    let ticket = ticket(Term(1), 1_000);
    let again = |node: &mut NodeLeases, now, asker: Option<&Name>| {
        let mut actions = Vec::new();
        let leased = node.redeemed(now, asker, &ticket, &mut actions);
        (leased.map(|leased| leased.grants.into_vec()), actions)
    };
    assert_eq!(again(&mut node, START, None).0, None, "nobody has redeemed it");
    assert_eq!(redeem(&mut node, &ticket), Ok(()));
    // Another broker leads, and by the clock of the first one the ticket would have expired.
    node.rule(START, &clock_of(Term(2), 5_000), &mut Vec::new());
    let grant = Grant { region: RegionIndex(0), epoch: Epoch(1), handle: Handle(5) };
    assert_eq!(again(&mut node, START, None), (Some(vec![grant.clone()]), vec![]));
    assert_eq!(node.inventory(Traffic::default(), 0).counts.leased, 1);
    assert_eq!(again(&mut node, START, Some(&name("another"))).0, None);
    // It extends the leases, as the first request did.
    let expired = START.plus_ms(LeaseSettings::default().lease_ttl_ms.into());
    node.tick(expired, &mut Vec::new());
    assert!(node.is_suspended(SessionId(9)));
    assert_eq!(again(&mut node, expired, None), (Some(vec![grant]), vec![Action::Resume(RegionIndex(0))]));
    assert!(!node.is_suspended(SessionId(9)));
    node.tick(expired.plus_ms(60_000), &mut Vec::new());
    assert_eq!(again(&mut node, expired.plus_ms(60_000), None).0, None, "the lease is over");
}

/// A broker's clock starts anew with each of its lives. By the clock of the life before, its first tickets had
/// expired long ago.
#[test]
fn ticket_of_a_new_term_is_not_timed_by_the_clock_of_the_old() {
    let mut node = node_with_a_region();
    node.rule(START, &clock_of(Term(1), 1 << 40), &mut Vec::new());
    assert_eq!(redeem(&mut node, &ticket(Term(2), 10_000)), Ok(()));
    assert_eq!(redeem(&mut node, &ticket(Term(1), u64::MAX)), Err(Code::OldTerm));
}

/// Each life of a node has its own key, so tickets for an earlier life looked forged.
#[test]
fn ticket_for_an_earlier_life_of_the_node_says_so() {
    let mut node = node_with_a_region();
    let mut earlier = ticket(Term(1), 1_000);
    earlier.incarnation = Incarnation(1);
    sign(&mut earlier, &[77; 32]);
    assert_eq!(redeem(&mut node, &earlier), Err(Code::WrongIncarnation));
}

/// A description of a node's memory that comes late, over a connection of an earlier run, must not describe the present
/// one.
#[test]
fn memory_told_over_a_former_connection_is_refused_and_a_new_life_has_told_none() {
    let (mut broker, _) = broker();
    let memory = |kind| NodeMemory {
        node: NODE,
        kind,
        page_bytes: 0,
        numa_node: List::default(),
        device: Text::default(),
    };
    let kinds =
        |broker: &BrokerLeases| broker.list_memory().nodes.iter().map(|one| one.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&broker), []);
    broker.offer_memory(CONNECTION, memory(MemoryKind::Device)).expect("noted");
    assert_eq!(kinds(&broker), [MemoryKind::Device]);
    broker.offer(START, CONNECTION + 1, offer_of(NODE)).expect("connected again");
    assert_eq!(kinds(&broker), [MemoryKind::Device], "the same life has the same memory");
    let late = broker.offer_memory(CONNECTION, memory(MemoryKind::HugePages));
    assert_eq!(late, Err(Refusal::new(Code::NoNodes, NODE.0)));
    let later = START.plus_ms(60_000);
    broker.offer(later, CONNECTION + 2, offer_of_life(NODE, Incarnation(3))).expect("a new life");
    assert_eq!(kinds(&broker), []);
}
