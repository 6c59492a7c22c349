//! Broker with nodes that report what a test says, and a session that publishes.

use farpool_lease::broker::Durable;
use farpool_lease::{BrokerLeases, LeaseSettings, NodeLeases, tenant};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;

pub const LIFE: Incarnation = Incarnation(2);
pub const KEY: [u8; 32] = [3; 32];
pub const START: MonoNs = MonoNs(1_000_000_000);
pub const NODES: u64 = 3;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Broker with nodes 1 to 3, of which 2 and 3 are on one host unless given, and a session that has sealed four regions
/// of each.
pub struct Pool {
    pub broker: BrokerLeases,
    pub durable: Durable,
    pub proof: SessionProof,
    /// Host labels of the nodes.
    pub hosts: Vec<&'static str>,
    /// Nodes that have filled region 7 with copies.
    pub filled: Vec<u64>,
    /// Regions that nodes have taken back.
    pub taken_back: Vec<(u64, RegionIndex)>,
}

impl Pool {
    pub fn new() -> Pool {
        Pool::on(&["a", "b", "b"])
    }

    pub fn on(hosts: &[&'static str]) -> Pool {
        let mut records = Vec::new();
        let settings = LeaseSettings::default();
        let broker = BrokerLeases::start(START, settings, Durable::default(), [4; 32], &mut records);
        let proof = SessionProof { session: SessionId(9), secret: Secret(0) };
        let durable = Durable::default();
        let hosts = hosts.to_vec();
        let mut pool = Pool { broker, durable, proof, hosts, filled: vec![], taken_back: vec![] };
        records.into_iter().for_each(|record| pool.durable.apply(record));
        let nodes = pool.hosts.len() as u64;
        (1..=nodes).for_each(|node| pool.offer(START, node, LIFE));
        let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
        let opened = pool.broker.open_session(START, &tenant::local(), &open, SessionId(9)).expect("opened");
        pool.proof.secret = opened.secret;
        for node in 1..=nodes {
            pool.report(START, node);
            assert_eq!(pool.next(START, node), None);
        }
        pool
    }

    pub fn offer(&mut self, now: MonoNs, node: u64, incarnation: Incarnation) {
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
    pub fn report(&mut self, now: MonoNs, node: u64) {
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

    pub fn publish(&mut self, runs: &[&[(NamedRegion, u64)]]) -> Result<FileId, Code> {
        self.publish_as("view", runs)
    }

    pub fn publish_as(&mut self, called: &str, runs: &[&[(NamedRegion, u64)]]) -> Result<FileId, Code> {
        let mut adding = PlacesBuilder::default();
        for copies in runs {
            adding.push(REGION_BYTES_MIN / 2, copies.iter().cloned()).expect("fits");
        }
        let publish = PublishPlaces {
            session: self.proof.session,
            secret: self.proof.secret,
            name: name(called),
            class: FileClass::Pinned,
            replaces: Replaces::Anything,
            copies_wanted: 2,
            recipe: Bytes::default(),
            places: adding.finish().expect("fits"),
        };
        self.ask(&publish)
    }

    /// Publishes one run in a region of node 1.
    pub fn publish_region(&mut self, region: u32, replaces: Replaces, recipe: &[u8]) -> Result<FileId, Code> {
        let mut adding = PlacesBuilder::default();
        adding.push(REGION_BYTES_MIN / 2, [at(1, region)]).expect("fits");
        self.ask(&PublishPlaces {
            session: self.proof.session,
            secret: self.proof.secret,
            name: name("view"),
            class: FileClass::Pinned,
            replaces,
            copies_wanted: 1,
            recipe: Bytes::new(recipe.to_vec()).expect("short"),
            places: adding.finish().expect("fits"),
        })
    }

    pub fn ask(&mut self, publish: &PublishPlaces) -> Result<FileId, Code> {
        let mut records = Vec::new();
        let answer = self.broker.publish(START, &tenant::local(), publish, &mut records);
        records.into_iter().for_each(|record| self.durable.apply(record));
        answer.map(|published| published.file).map_err(|refusal| refusal.code)
    }

    /// Returns the nodes of each run of the file.
    pub fn shown(&self) -> Result<Vec<Vec<u64>>, Code> {
        let opened =
            self.broker.open_places(&tenant::local(), &name("view")).map_err(|refusal| refusal.code)?;
        let places = &opened.places;
        let nodes = |run| places.copies(run).map(|(region, _)| region.node.0).collect();
        Ok(places.runs.iter().map(nodes).collect())
    }
}

pub fn at(node: u64, region: u32) -> (NamedRegion, u64) {
    let (node, region) = (NodeId(node), RegionIndex(region));
    (NamedRegion { node, incarnation: LIFE, region, epoch: Epoch(2), handle: Handle(5) }, 0)
}

/// Time at which a node that has been silent since the start counts as lost.
pub fn lost() -> MonoNs {
    let times = LeaseSettings::default();
    START.plus_ms(u64::from(times.lease_ttl_ms + times.grace_ms) + 1)
}

impl Pool {
    /// Asks for an order for a node, and changes the store as the broker says.
    pub fn next(&mut self, now: MonoNs, node: u64) -> Option<RepairOrder> {
        let mut records = Vec::new();
        let asked = NextRepair { node: NodeId(node), incarnation: LIFE };
        let given = self.broker.next_repair(now, node, &asked, &mut records).expect("known");
        records.into_iter().for_each(|record| self.durable.apply(record));
        given.order.into_vec().pop()
    }

    /// Reports the copies that an order names, in region 7 of the node.
    pub fn end(&mut self, now: MonoNs, order: &RepairOrder) -> Result<u32, Code> {
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
    pub fn fill(&mut self, now: MonoNs, node: u64) {
        self.filled.push(node);
        self.report(now, node);
    }

    pub fn drain(&mut self, node: u64) {
        let order = DrainNode { node: name(&format!("n{node}")), drain: true, stop: false };
        self.broker.drain(&tenant::local(), &order).expect("known");
    }

    /// Has all nodes report, except one.
    pub fn report_all_but(&mut self, now: MonoNs, silent: u64) {
        (1..=self.hosts.len() as u64).filter(|node| *node != silent).for_each(|node| self.report(now, node));
    }

    pub fn listed(&mut self, now: MonoNs) -> (u64, u64, u64) {
        let listed = self.broker.list_repairs(now, &tenant::local());
        (listed.endangered_files, listed.leaving_files, listed.lost_files)
    }
}
