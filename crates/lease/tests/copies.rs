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

/// Broker with nodes 1 to 3, of which 2 and 3 are on one host, and a session that has sealed four regions of each.
struct Pool {
    broker: BrokerLeases,
    durable: Durable,
    proof: SessionProof,
}

impl Pool {
    fn new() -> Pool {
        let mut records = Vec::new();
        let settings = LeaseSettings::default();
        let broker = BrokerLeases::start(START, settings, Durable::default(), [4; 32], &mut records);
        let proof = SessionProof { session: SessionId(9), secret: Secret(0) };
        let mut pool = Pool { broker, durable: Durable::default(), proof };
        records.into_iter().for_each(|record| pool.durable.apply(record));
        (1..=NODES).for_each(|node| pool.offer(START, node, LIFE));
        let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
        let opened = pool.broker.open_session(START, &tenant::local(), &open, SessionId(9)).expect("opened");
        pool.proof.secret = opened.secret;
        (1..=NODES).for_each(|node| pool.report(START, node));
        pool
    }

    fn offer(&mut self, now: MonoNs, node: u64, incarnation: Incarnation) {
        let host = if node == 1 { "a" } else { "b" };
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
        let owned = (0..4).map(|region| OwnedRegion { region: RegionIndex(region), epoch: Epoch(2), owner });
        inventory.owned = List::new(owned.collect()).expect("four");
        self.broker.inventory(now, node, inventory).expect("known");
    }

    fn publish(
        &mut self,
        now: MonoNs,
        moved: FileId,
        runs: &[&[(NamedRegion, u64)]],
    ) -> Result<FileId, Code> {
        let mut adding = PlacesBuilder::default();
        for copies in runs {
            adding.push(REGION_BYTES_MIN / 2, copies.iter().cloned()).expect("fits");
        }
        let publish = PublishPlaces {
            session: self.proof.session,
            secret: self.proof.secret,
            name: name("view"),
            class: FileClass::Pinned,
            replace: false,
            moved,
            copies_wanted: 2,
            places: adding.finish().expect("fits"),
        };
        let mut records = Vec::new();
        let answer = self.broker.publish(now, &tenant::local(), &publish, &mut records);
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
    assert_eq!(pool.publish(START, FileId(0), &[&[at(2, 0), at(3, 0)]]), Err(Code::CopiesTogether));
    assert_eq!(pool.publish(START, FileId(0), &[&[at(1, 0), at(1, 1)]]), Err(Code::CopiesTogether));
    assert!(pool.publish(START, FileId(0), &[&[at(1, 0), at(2, 0)], &[at(3, 0)]]).is_ok());
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2], vec![3]]));
}

/// A file of 32 TiB in one region made the broker build an answer of gigabytes.
#[test]
fn runs_that_take_more_than_their_region_are_refused() {
    let mut pool = Pool::new();
    let again = |offset| (at(1, 0).0, offset);
    let overlapping = [&[again(0)][..], &[again(8)], &[again(16)]];
    assert_eq!(pool.publish(START, FileId(0), &overlapping), Err(Code::OutOfBounds));
    assert_eq!(pool.publish(START, FileId(0), &[&[again(REGION_BYTES_MIN)]]), Err(Code::OutOfBounds));
    assert!(pool.publish(START, FileId(0), &[&[again(0)], &[again(REGION_BYTES_MIN / 2)]]).is_ok());
}

#[test]
fn file_is_lost_only_when_all_copies_of_a_run_are() {
    let mut pool = Pool::new();
    pool.publish(START, FileId(0), &[&[at(1, 0), at(2, 0)], &[at(1, 1), at(3, 0)]]).expect("published");
    let later = START.plus_ms(60_000);
    pool.offer(later, 1, Incarnation(8));
    assert_eq!(pool.shown(), Ok(vec![vec![2], vec![3]]), "a copy that is lost is not shown");
    pool.offer(later, 3, Incarnation(8));
    assert_eq!(pool.shown(), Err(Code::FileLost));
}

/// A drained node had the only copy that could be read: the other was on a node that had fallen silent, or that had not
/// come to a new broker yet. The copy was given up all the same.
#[test]
fn move_that_leaves_only_copies_on_silent_nodes_or_forgets_copies_not_heard_of_yet_is_refused() {
    let mut pool = Pool::new();
    let file = pool.publish(START, FileId(0), &[&[at(1, 0), at(2, 0)]]).expect("published");
    let silent = START.plus_ms(u64::from(LeaseSettings::default().node_silence_ms) + 1);
    pool.report(silent, 1);
    assert_eq!(pool.publish(silent, file, &[&[at(2, 0)]]), Err(Code::NoNodes));
    pool.report(silent, 2);
    assert!(pool.publish(silent, file, &[&[at(2, 0)]]).is_ok());

    let mut pool = Pool::new();
    let file = pool.publish(START, FileId(0), &[&[at(1, 0), at(2, 0)]]).expect("published");
    let (settings, durable) = (LeaseSettings::default(), pool.durable.clone());
    pool.broker = BrokerLeases::start(START, settings, durable, [4; 32], &mut Vec::new());
    for node in [1, 3] {
        pool.offer(START, node, LIFE);
        pool.report(START, node);
    }
    assert_eq!(pool.publish(START, file, &[&[at(3, 1)]]), Err(Code::NoNodes));
    pool.offer(START, 2, LIFE);
    pool.report(START, 2);
    assert!(pool.publish(START, file, &[&[at(1, 0), at(3, 1)]]).is_ok());
}
