//! Published files with copies: which of them the broker takes, shows and lets go.

use farpool_lease::broker::Durable;
use farpool_lease::{BrokerLeases, LeaseSettings, NodeLeases, tenant};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;

const LIFE: Incarnation = Incarnation(2);
const KEY: [u8; 32] = [3; 32];
const START: MonoNs = MonoNs(1_000_000_000);
const NODES: u64 = 3;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Broker with nodes 1 to 3, of which 2 and 3 are on one host unless given, and a session that has sealed four regions
/// of each.
struct Pool {
    broker: BrokerLeases,
    durable: Durable,
    proof: SessionProof,
    /// Host labels of the nodes.
    hosts: [&'static str; 3],
    /// Nodes that have filled region 7 with copies.
    filled: Vec<u64>,
    /// Regions that nodes have taken back.
    taken_back: Vec<(u64, RegionIndex)>,
}

impl Pool {
    fn new() -> Pool {
        Pool::on(["a", "b", "b"])
    }

    fn on(hosts: [&'static str; 3]) -> Pool {
        let mut records = Vec::new();
        let settings = LeaseSettings::default();
        let broker = BrokerLeases::start(START, settings, Durable::default(), [4; 32], &mut records);
        let proof = SessionProof { session: SessionId(9), secret: Secret(0) };
        let durable = Durable::default();
        let mut pool = Pool { broker, durable, proof, hosts, filled: vec![], taken_back: vec![] };
        records.into_iter().for_each(|record| pool.durable.apply(record));
        (1..=NODES).for_each(|node| pool.offer(START, node, LIFE));
        let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
        let opened = pool.broker.open_session(START, &tenant::local(), &open, SessionId(9)).expect("opened");
        pool.proof.secret = opened.secret;
        for node in 1..=NODES {
            pool.report(START, node);
            assert_eq!(pool.next(START, node), None);
        }
        pool
    }

    fn offer(&mut self, now: MonoNs, node: u64, incarnation: Incarnation) {
        let host = self.hosts[node as usize - 1];
        let info = NodeInfo {
            node: NodeId(node),
            name: name(&format!("n{node}")),
            incarnation,
            address: Text::default(),
            shm_socket: Text::default(),
            host_boot: 0,
            host_label: name(host),
            region_bytes: REGION_BYTES_MIN,
        };
        self.broker.offer(now, node, Offer { info, ticket_key: KEY }).expect("taken in");
    }

    /// Has a node report that four of its regions are sealed by the session.
    fn report(&mut self, now: MonoNs, node: u64) {
        let mut inventory = NodeLeases::new(NodeId(node), LIFE, KEY, 4).inventory(Traffic::default(), 0);
        let owner = RegionOwner::Sealing(self.proof.session);
        let at = |region, owner| OwnedRegion { region: RegionIndex(region), epoch: Epoch(2), owner };
        let filled = self.filled.contains(&node).then(|| at(7, RegionOwner::Sealing(SessionId(0))));
        let owned = (0..4).map(|region| at(region, owner)).chain(filled);
        let owned = owned.filter(|owned| !self.taken_back.contains(&(node, owned.region)));
        inventory.owned = List::new(owned.collect()).expect("five");
        inventory.counts.free = 4;
        self.broker.inventory(now, node, inventory).expect("known");
    }

    fn publish(&mut self, runs: &[&[(NamedRegion, u64)]]) -> Result<FileId, Code> {
        self.publish_as("view", runs)
    }

    fn publish_as(&mut self, called: &str, runs: &[&[(NamedRegion, u64)]]) -> Result<FileId, Code> {
        let mut adding = PlacesBuilder::default();
        for copies in runs {
            adding.push(REGION_BYTES_MIN / 2, copies.iter().cloned()).expect("fits");
        }
        let publish = PublishPlaces {
            session: self.proof.session,
            secret: self.proof.secret,
            name: name(called),
            class: FileClass::Pinned,
            replace: true,
            copies_wanted: 2,
            places: adding.finish().expect("fits"),
        };
        let mut records = Vec::new();
        let answer = self.broker.publish(START, &tenant::local(), &publish, &mut records);
        records.into_iter().for_each(|record| self.durable.apply(record));
        answer.map(|published| published.file).map_err(|refusal| refusal.code)
    }

    /// Returns the nodes of each run of the file.
    fn shown(&self) -> Result<Vec<Vec<u64>>, Code> {
        let opened =
            self.broker.open_places(&tenant::local(), &name("view")).map_err(|refusal| refusal.code)?;
        let places = &opened.places;
        let nodes = |run| places.copies(run).map(|(region, _)| region.node.0).collect();
        Ok(places.runs.iter().map(nodes).collect())
    }
}

fn at(node: u64, region: u32) -> (NamedRegion, u64) {
    let (node, region) = (NodeId(node), RegionIndex(region));
    (NamedRegion { node, incarnation: LIFE, region, epoch: Epoch(2), handle: Handle(5) }, 0)
}

#[test]
fn copies_of_a_run_on_one_host_are_refused() {
    let mut pool = Pool::new();
    assert_eq!(pool.publish(&[&[at(2, 0), at(3, 0)]]), Err(Code::CopiesTogether));
    assert_eq!(pool.publish(&[&[at(1, 0), at(1, 1)]]), Err(Code::CopiesTogether));
    assert!(pool.publish(&[&[at(1, 0), at(2, 0)], &[at(3, 0)]]).is_ok());
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2], vec![3]]));
}

/// A file of 32 TiB in one region made the broker build an answer of gigabytes.
#[test]
fn runs_that_take_more_than_their_region_are_refused() {
    let mut pool = Pool::new();
    let again = |offset| (at(1, 0).0, offset);
    let overlapping = [&[again(0)][..], &[again(8)], &[again(16)]];
    assert_eq!(pool.publish(&overlapping), Err(Code::OutOfBounds));
    assert_eq!(pool.publish(&[&[again(REGION_BYTES_MIN)]]), Err(Code::OutOfBounds));
    assert!(pool.publish(&[&[again(0)], &[again(REGION_BYTES_MIN / 2)]]).is_ok());
}

#[test]
fn file_is_lost_only_when_all_copies_of_a_run_are() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)], &[at(1, 1), at(3, 0)]]).expect("published");
    let later = START.plus_ms(60_000);
    pool.offer(later, 1, Incarnation(8));
    assert_eq!(pool.shown(), Ok(vec![vec![2], vec![3]]), "a copy that is lost is not shown");
    pool.offer(later, 3, Incarnation(8));
    assert_eq!(pool.shown(), Err(Code::FileLost));
}

/// Time at which a node that has been silent since the start counts as lost.
fn lost() -> MonoNs {
    let times = LeaseSettings::default();
    START.plus_ms(u64::from(times.lease_ttl_ms + times.grace_ms) + 1)
}

impl Pool {
    /// Asks for an order for a node, and changes the store as the broker says.
    fn next(&mut self, now: MonoNs, node: u64) -> Option<RepairOrder> {
        let mut records = Vec::new();
        let asked = NextRepair { node: NodeId(node), incarnation: LIFE };
        let given = self.broker.next_repair(now, node, &asked, &mut records).expect("known");
        records.into_iter().for_each(|record| self.durable.apply(record));
        given.order.into_vec().pop()
    }

    /// Reports the copies that an order names, in region 7 of the node.
    fn end(&mut self, now: MonoNs, order: &RepairOrder) -> Result<u32, Code> {
        let runs = order.signed.runs.len() as u32;
        let copied = List::new((0..runs).collect()).expect("as many");
        let (region, epoch, handle) = (RegionIndex(7), Epoch(2), Handle(6));
        let report = EndRepair { order: order.signed.clone(), copied, region, epoch, handle };
        let mut records = Vec::new();
        self.fill(now, order.signed.node.0);
        let ended = self.broker.end_repair(now, order.signed.node.0, &report, &mut records);
        records.into_iter().for_each(|record| self.durable.apply(record));
        ended.map(|ended| ended.runs).map_err(|refusal| refusal.code)
    }

    /// Has a node report that it has filled region 7.
    fn fill(&mut self, now: MonoNs, node: u64) {
        self.filled.push(node);
        self.report(now, node);
    }

    fn drain(&mut self, node: u64) {
        let order = DrainNode { node: name(&format!("n{node}")), drain: true, stop: false };
        self.broker.drain(&tenant::local(), &order).expect("known");
    }

    /// Has nodes 1 to 3 report, except one.
    fn report_all_but(&mut self, now: MonoNs, silent: u64) {
        (1..=NODES).filter(|node| *node != silent).for_each(|node| self.report(now, node));
    }

    fn listed(&mut self, now: MonoNs) -> (u64, u64, u64) {
        let listed = self.broker.list_repairs(now, &tenant::local());
        (listed.endangered_files, listed.leaving_files, listed.lost_files)
    }
}

#[test]
fn copy_of_a_lost_node_is_ordered_from_a_node_on_another_host_than_the_copy_that_is_left() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)], &[at(1, 1), at(3, 0)]]).expect("published");
    assert_eq!(pool.listed(START), (0, 0, 0));
    assert_eq!((1..=NODES).find_map(|node| pool.next(START, node)), None, "nothing is missing");
    pool.report_all_but(lost(), 2);
    assert_eq!(pool.listed(lost()), (1, 0, 0));
    assert_eq!(pool.next(lost(), 1), None, "it has the copy that is left");
    let order = pool.next(lost(), 3).expect("node 3 is on the host of the lost node");
    assert_eq!(order.signed.runs.iter().map(|run| run.run).collect::<Vec<_>>(), [0]);
    // The node that reads gets the handle as the node that has the bytes knows it.
    let mut source = at(1, 0).0;
    source.bind(&name("view"));
    assert_eq!(order.regions.to_vec(), [source]);
    assert_eq!(pool.end(lost(), &order), Ok(1));
    assert_eq!(pool.end(lost(), &order), Ok(1), "a lost answer is given again");
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3], vec![1, 3]]));
    assert_eq!(pool.listed(lost()), (0, 0, 0));
    // The lost node comes back, and has to free what it kept.
    let owned = OwnedRegion { region: RegionIndex(0), epoch: Epoch(2), owner: RegionOwner::Name(FileId(1)) };
    let mut inventory = NodeLeases::new(NodeId(2), LIFE, KEY, 4).inventory(Traffic::default(), 0);
    inventory.owned = List::new(vec![owned]).expect("one");
    let ruling = pool.broker.inventory(lost(), 2, inventory).expect("known");
    assert_eq!(ruling.drop.iter().map(|at| at.region).collect::<Vec<_>>(), [RegionIndex(0)]);
}

#[test]
fn copy_is_ordered_from_the_node_that_lies_farthest_among_those_that_are_free() {
    let mut pool = Pool::on(["z/1", "z/2", "y/3"]);
    pool.publish(&[&[at(1, 0)]]).expect("published");
    assert_eq!(pool.next(START, 2), None, "another zone has a free node");
    assert!(pool.next(START, 3).is_some());
    // It could not make the copy, so nearer nodes may.
    let order = pool.next(START, 3).expect("ordered");
    let (region, epoch, handle) = (RegionIndex(7), Epoch(2), Handle(6));
    let report = EndRepair { order: order.signed, copied: List::default(), region, epoch, handle };
    assert_eq!(pool.broker.end_repair(START, 3, &report, &mut Vec::new()), Ok(RepairEnded { runs: 0 }));
    assert!(pool.next(START, 2).is_some());

    let mut pool = Pool::on(["z/1", "z/2", "y/3"]);
    pool.publish(&[&[at(1, 0)]]).expect("published");
    pool.drain(3);
    assert!(pool.next(START, 2).is_some(), "no other zone takes copies");
}

#[test]
fn copies_in_a_domain_and_on_a_host_of_it_are_refused_as_they_may_be_on_one_host() {
    let mut pool = Pool::on(["z", "z/2", "y/2"]);
    assert_eq!(pool.publish(&[&[at(1, 0), at(2, 0)]]), Err(Code::CopiesTogether));
    assert!(pool.publish(&[&[at(2, 0), at(3, 0)]]).is_ok());
}

/// The broker may have been stopped itself, and comes to old words of a node that died meanwhile.
#[test]
fn report_of_a_node_that_has_been_silent_waits_for_the_next_word_of_it() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(2);
    let order = pool.next(START, 3).expect("ordered");
    pool.fill(START, 3);
    (1..=2).for_each(|node| pool.report(lost(), node));
    let (region, epoch, handle) = (RegionIndex(7), Epoch(2), Handle(6));
    let copied = List::new(vec![0]).expect("one");
    let report = EndRepair { order: order.signed.clone(), copied, region, epoch, handle };
    let ended = pool.broker.end_repair(lost(), 3, &report, &mut Vec::new());
    assert_eq!(ended.map_err(|refusal| refusal.code), Err(Code::NotReported));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2]]));
    assert_eq!(pool.end(lost(), &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3]]));
}

#[test]
fn copy_that_could_not_be_published_is_made_later() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(2, 0)]]).expect("published");
    assert_eq!(pool.listed(START), (1, 0, 0));
    assert_eq!(pool.next(START, 3), None, "it is on the host of node 2");
    let order = pool.next(START, 1).expect("ordered");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![2, 1]]));
}

#[test]
fn drained_node_is_read_from_and_keeps_its_place_until_another_has_the_bytes() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(2);
    assert_eq!(pool.listed(START), (0, 1, 0));
    assert_eq!((pool.next(START, 1), pool.next(START, 2)), (None, None));
    let order = pool.next(START, 3).expect("ordered");
    assert_eq!(order.sources[0].len(), 2, "both copies can be read");
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2]]));
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3]]));
}

#[test]
fn drained_copy_is_dropped_where_no_host_can_have_another_and_made_again_when_one_can() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(1);
    assert_eq!(pool.next(START, 3), None, "hosts of nodes 2 and 3 are the same");
    assert_eq!(pool.shown(), Ok(vec![vec![2]]));
    assert_eq!(pool.listed(START), (1, 0, 0));
    let order = DrainNode { node: name("n1"), drain: false, stop: false };
    pool.broker.drain(&tenant::local(), &order).expect("known");
    let order = pool.next(START, 1).expect("ordered");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![2, 1]]));
}

/// The copy that stays must be one that can be read: it may be on a node that has fallen silent.
#[test]
fn drained_copy_is_kept_while_the_other_copy_is_silent() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(1);
    let silent = START.plus_ms(u64::from(LeaseSettings::default().node_silence_ms) + 1);
    pool.report_all_but(silent, 2);
    assert_eq!(pool.next(silent, 3), None);
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2]]));
}

#[test]
fn copy_of_a_file_that_was_replaced_or_has_got_its_copies_is_not_listed() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)], &[at(1, 1)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    assert_eq!(order.signed.runs.len(), 2);
    assert_eq!(pool.next(START, 3), None, "another node makes these copies");
    // A new broker knows of no order, and gives it to another node. Whoever reports first is listed.
    let (settings, durable) = (LeaseSettings::default(), pool.durable.clone());
    pool.broker = BrokerLeases::start(START, settings, durable, [4; 32], &mut Vec::new());
    for node in 1..=NODES {
        pool.offer(START, node, LIFE);
        pool.report(START, node);
    }
    assert_eq!(pool.next(START, 3), None, "nodes of the former broker may still come");
    assert_eq!(pool.end(START, &order), Err(Code::NotReported));
    (1..=NODES).for_each(|node| pool.report(lost(), node));
    let other = pool.next(lost(), 3).expect("ordered");
    assert_eq!((pool.end(lost(), &order), pool.end(lost(), &other)), (Ok(2), Ok(0)));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2], vec![1, 2]]));

    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    pool.publish(&[&[at(1, 1)]]).expect("published");
    assert_eq!(pool.end(START, &order), Ok(0));
}

#[test]
fn report_of_an_order_that_nobody_gave_or_of_a_region_in_use_is_refused() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    let mut forged = order.clone();
    forged.signed.runs[0].run = 1;
    let mut report = EndRepair {
        order: forged.signed,
        copied: List::new(vec![0, 9]).expect("two"),
        region: RegionIndex(u32::MAX),
        epoch: Epoch(2),
        handle: Handle(6),
    };
    let code = |pool: &mut Pool, report: &EndRepair| {
        let ended = pool.broker.end_repair(START, 2, report, &mut Vec::new());
        ended.map(|ended| ended.runs).map_err(|refusal| refusal.code)
    };
    assert_eq!(code(&mut pool, &report), Err(Code::TicketForged));
    report.order = order.signed;
    assert_eq!(code(&mut pool, &report), Err(Code::StaleEpoch));
    report.region = RegionIndex(7);
    assert_eq!(
        code(&mut pool, &report),
        Err(Code::StaleEpoch),
        "the node has not shown that it has filled it"
    );
    let order = pool.next(START.plus_ms(1), 3).expect("ordered");
    report.order = order.signed;
    pool.fill(START, 3);
    let ended = pool.broker.end_repair(START, 3, &report, &mut Vec::new());
    assert_eq!(ended.map(|ended| ended.runs), Ok(1));
    let other = EndRepair { epoch: Epoch(3), ..report };
    let ended = pool.broker.end_repair(START, 3, &other, &mut Vec::new());
    assert_eq!(ended.map_err(|refusal| refusal.code), Err(Code::StaleEpoch));
}

#[test]
fn run_that_could_not_be_copied_is_ordered_again_after_a_while_and_does_not_hold_up_others() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)], &[at(1, 1)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    let report = EndRepair {
        order: order.signed,
        copied: List::new(vec![1]).expect("one"),
        region: RegionIndex(7),
        epoch: Epoch(2),
        handle: Handle(6),
    };
    pool.fill(START, 2);
    assert_eq!(pool.broker.end_repair(START, 2, &report, &mut Vec::new()), Ok(RepairEnded { runs: 1 }));
    assert_eq!(pool.next(START, 2), None);
    let later = START.plus_ms(20_000);
    (1..=NODES).for_each(|node| pool.report(later, node));
    let again = pool.next(later, 2).expect("ordered");
    assert_eq!(again.signed.runs.iter().map(|run| run.run).collect::<Vec<_>>(), [0]);
}

/// A node takes back what published files have when its host needs the memory at once.
#[test]
fn copy_that_its_node_has_taken_back_is_lost_and_made_again() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.taken_back.push((1, RegionIndex(0)));
    pool.report(START, 1);
    assert_eq!(pool.shown(), Ok(vec![vec![2]]));
    assert_eq!(pool.listed(START), (1, 0, 0));
    let order = pool.next(START, 1).expect("the node lives, and has other memory");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![2, 1]]));
    pool.taken_back.push((2, RegionIndex(0)));
    pool.taken_back.push((1, RegionIndex(7)));
    (1..=2).for_each(|node| pool.report(START, node));
    assert_eq!((pool.shown(), pool.listed(START)), (Err(Code::FileLost), (0, 0, 1)));
}

/// The region may have been granted and published anew since it was taken back.
#[test]
fn region_that_was_taken_back_is_free_for_another_file() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.taken_back.push((1, RegionIndex(0)));
    pool.report(START, 1);
    pool.taken_back.clear();
    let anew =
        OwnedRegion { region: RegionIndex(0), epoch: Epoch(5), owner: RegionOwner::Sealing(SessionId(9)) };
    let mut inventory = NodeLeases::new(NodeId(1), LIFE, KEY, 4).inventory(Traffic::default(), 0);
    inventory.owned = List::new(vec![anew]).expect("one");
    pool.broker.inventory(START, 1, inventory.clone()).expect("known");
    let (mut region, offset) = at(1, 0);
    region.epoch = Epoch(5);
    let file = pool.publish_as("other", &[&[(region, offset)]]).expect("published");
    let adopted = |pool: &mut Pool| {
        let ruling = pool.broker.inventory(START, 1, inventory.clone()).expect("known");
        (ruling.adopt.iter().map(|adopted| adopted.file).collect::<Vec<_>>(), ruling.drop.len())
    };
    assert_eq!(adopted(&mut pool), (vec![file], 0));
    // A broker that starts again finds the region at both epochs in its store.
    let (settings, durable) = (LeaseSettings::default(), pool.durable.clone());
    pool.broker = BrokerLeases::start(START, settings, durable, [4; 32], &mut Vec::new());
    pool.offer(START, 1, LIFE);
    assert_eq!(adopted(&mut pool), (vec![file], 0));
}

#[test]
fn two_copies_are_never_on_one_host_also_if_both_are_on_nodes_that_are_drained() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(2, 0), at(1, 0)]]).expect("published");
    pool.drain(1);
    pool.drain(2);
    let order = pool.next(START, 3).expect("node 3 is on the host of node 2");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3]]));
}

#[test]
fn order_of_a_node_that_is_lost_is_given_to_another() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    pool.next(START, 2).expect("ordered");
    assert_eq!(pool.next(START, 3), None);
    pool.report_all_but(lost(), 2);
    pool.next(lost(), 3).expect("node 2 does nothing any more");
}

#[test]
fn copies_on_a_node_that_is_about_to_end_are_not_listed() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    pool.drain(2);
    assert_eq!(pool.end(START, &order), Ok(0));
    assert_eq!(pool.shown(), Ok(vec![vec![1]]));
}
