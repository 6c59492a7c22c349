//! One broker over three nodes and three sessions of two tenants, that publish small files which share segments, under
//! random schedules. Answers are lost, requests come again later, nodes and the broker start anew, copies are made of
//! what is lost or lies in segments that are less than half alive. After every step, each name has the bytes that were
//! published, in regions that nobody writes. At the end, all is free again.

#[path = "../schedule/mod.rs"]
mod schedule;

mod quotas;

use farpool_lease::broker::{Durable, StateChange};
use farpool_lease::node::{Action, Reserved};
use farpool_lease::{BrokerLeases, BrokerSettings, LeaseSettings, NodeLeases};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use schedule::{Random, Tally, run};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const NODES: usize = 3;
const REGIONS: u32 = 6;
const TENANTS: [&str; 3] = ["red", "red", "blue"];
const STEPS: u64 = 400;
const LATE_MAX: usize = 4;
const KEY: [u8; 32] = [5; 32];
const SETTINGS: LeaseSettings = LeaseSettings {
    lease_ttl_ms: 5_000,
    grace_ms: 2_000,
    ticket_ttl_ms: 6_000,
    heartbeat_ms: 250,
    node_silence_ms: 1_000,
};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Node, and what lies where in its memory.
struct Node {
    leases: NodeLeases,
    incarnation: Incarnation,
    connection: u64,
    is_joined: bool,
    /// Content of each range, by region, epoch and first byte. Gone once the region is closed.
    content: BTreeMap<(RegionIndex, Epoch, u32), u64>,
    to_scrub: BTreeSet<RegionIndex>,
    handles: u128,
    /// Rulings of the broker that may come late, or again: the last few.
    late: VecDeque<SegmentRuling>,
}

#[derive(Clone, Default)]
struct Client {
    proof: Option<SessionProof>,
    /// Region that it leases at each node, with its epoch.
    leased: BTreeMap<usize, RegionAt>,
    number: u64,
    /// Files that are sealed: what is to be published, and the content.
    sealed: Vec<(PublishPlaces, u64)>,
}

#[derive(Clone)]
struct Known {
    file: FileId,
    tenant: Name,
    content: u64,
}

struct World<'a> {
    random: &'a mut Random,
    tally: &'a mut Tally,
    now_ms: u64,
    durable: Durable,
    broker: BrokerLeases,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    known: BTreeMap<Name, Known>,
    /// Publications that were answered, with the tenant and the file: they may come again.
    answered: Vec<(PublishPlaces, Name, FileId)>,
    next: u64,
}

fn fresh_node(index: usize, incarnation: Incarnation) -> Node {
    let leases = NodeLeases::new(NodeId(index as u64 + 1), incarnation, KEY, REGIONS);
    let mut node = Node {
        leases,
        incarnation,
        connection: 0,
        is_joined: false,
        content: BTreeMap::new(),
        to_scrub: (0..REGIONS).map(RegionIndex).collect(),
        handles: u128::from(incarnation.0) << 64,
        late: VecDeque::new(),
    };
    node.scrub();
    node
}

impl Node {
    fn carry_out(&mut self, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::Close { region, .. } => self.content.retain(|(of, ..), _| *of != region),
                Action::Scrub(region) => drop(self.to_scrub.insert(region)),
                Action::OpenSegment { region, .. } | Action::Open { region, writable: true, .. } => {
                    assert!(!self.content.keys().any(|(of, ..)| *of == region), "{region} is clean");
                }
                _ => {}
            }
        }
    }

    fn scrub(&mut self) {
        for region in std::mem::take(&mut self.to_scrub) {
            let action = self.leases.scrubbed(region);
            self.carry_out(action.as_slice());
        }
    }

    fn fill(&mut self, place: &Reserved, content: u64) {
        let before = self.content.insert((place.at.region, place.at.epoch, place.offset), content);
        assert_eq!(before, None, "a place is used once");
    }
}

impl World<'_> {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn now(&self) -> MonoNs {
        MonoNs(self.now_ms * 1_000_000)
    }

    fn keep(&mut self, records: Vec<StateChange>) {
        records.into_iter().for_each(|record| self.durable.apply(record));
    }

    fn tenant(client: usize) -> Name {
        name(TENANTS[client])
    }

    fn join(&mut self, index: usize) {
        let connection = self.fresh();
        let incarnation = self.nodes[index].incarnation;
        let info = NodeInfo {
            node: NodeId(index as u64 + 1),
            name: name(&format!("n{index}")),
            incarnation,
            address: Text::default(),
            shm_socket: Text::default(),
            host_boot: 0,
            host_label: name(&format!("h{index}")),
            region_bytes: REGION_BYTES_MIN,
        };
        let now = self.now();
        let node = &mut self.nodes[index];
        (node.is_joined, node.connection) = (false, connection);
        if let Ok(offered) = self.broker.offer(now, connection, Offer { info, ticket_key: KEY }) {
            node.leases.offered(&offered);
            node.is_joined = true;
        }
    }

    /// Has a node report its segments and its regions. An answer may be lost.
    fn report(&mut self, index: usize) {
        let now = self.now();
        if !self.nodes[index].is_joined {
            self.join(index);
        }
        let node = &mut self.nodes[index];
        if !node.is_joined {
            return;
        }
        let mut actions = Vec::new();
        let ruling = self.broker.segments(node.connection, &node.leases.segment_report()).expect("joined");
        if (!ruling.dropped.is_empty() || !ruling.settled.is_empty()) && self.random.percent(50) {
            node.late.push_front(ruling.clone());
            node.late.truncate(LATE_MAX);
        }
        let is_lost = self.random.percent(10);
        if !is_lost {
            let before = node.leases.inventory(Traffic::default(), 0).counts.named;
            node.leases.rule_segments(&ruling, &mut actions);
            if !ruling.settled.is_empty() {
                self.tally.add("settled");
            }
            if node.leases.inventory(Traffic::default(), 0).counts.named < before {
                self.tally.add("segment freed");
            }
        }
        let inventory = node.leases.inventory(Traffic::default(), 0);
        let ruling = self.broker.inventory(now, node.connection, inventory).expect("joined");
        if !self.random.percent(10) {
            node.leases.rule(now, &ruling, &mut actions);
        }
        node.carry_out(&actions);
        node.scrub();
    }

    /// Has a ruling about segments come late, or once more.
    fn rule_late(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(ruling) = self.random.pick(node.late.make_contiguous()) else { return };
        let mut actions = Vec::new();
        node.leases.rule_segments(&ruling, &mut actions);
        node.carry_out(&actions);
        node.scrub();
        self.tally.add("ruling came late");
    }

    /// Gives a client a session and a region at each node that has one.
    fn prepare(&mut self, client: usize) {
        let (now, tenant) = (self.now(), Self::tenant(client));
        if self.clients[client].proof.is_none() {
            let fresh = SessionId(self.fresh());
            let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
            let opened = self.broker.open_session(now, &tenant, &open, fresh).expect("opened");
            let proof = SessionProof { session: opened.session, secret: opened.secret };
            self.clients[client] = Client { proof: Some(proof), ..Client::default() };
        }
        let proof = self.clients[client].proof.clone().expect("opened");
        let request = RequestTickets {
            session: proof.session,
            secret: proof.secret,
            bytes: REGION_BYTES_MIN,
            class: FileClass::Pinned,
            near: 0,
            avoid: List::default(),
            apart: List::new(
                self.clients[client].leased.keys().map(|node| name(&format!("h{node}"))).collect(),
            )
            .expect("few"),
        };
        let Ok(tickets) = self.broker.request_tickets(now, &tenant, &request) else { return };
        for offer in tickets.tickets.iter() {
            let index = offer.node.node.0 as usize - 1;
            let node = &mut self.nodes[index];
            let (mut actions, mut handles) = (Vec::new(), node.handles);
            let lease = Lease { ticket: offer.ticket.clone(), shared: false };
            let next = || {
                handles += 1;
                Handle(handles)
            };
            if let Ok(leased) = node.leases.redeem(now, Some(&tenant), &lease, next, &mut actions)
                && let Some(grant) = leased.grants.first()
            {
                let at = RegionAt { region: grant.region, epoch: grant.epoch };
                self.clients[client].leased.insert(index, at);
            }
            node.handles = handles;
            node.carry_out(&actions);
        }
    }

    /// Copies a file of a client into segments of one or two nodes.
    fn seal(&mut self, client: usize) {
        let (now, tenant) = (self.now(), Self::tenant(client));
        let Some(proof) = self.clients[client].proof.clone() else { return self.prepare(client) };
        let nodes: Vec<usize> = self.clients[client].leased.keys().copied().collect();
        let count = 1 + self.random.below(2);
        let nodes = self.random.pick_some(&nodes, count);
        if nodes.is_empty() {
            return self.prepare(client);
        }
        let content = self.fresh();
        // Few lengths, so that files are replaced by others of the same length.
        let bytes = 1 + REGION_BYTES_MIN / 40 * self.random.below(8);
        let mut copies = Vec::new();
        for index in nodes {
            let at = self.clients[client].leased[&index].clone();
            self.clients[client].number += 1;
            let range = LeasedRange { region: at.region, epoch: at.epoch, offset: 0, bytes: bytes as u32 };
            let seal = SealRanges {
                session: proof.session,
                secret: proof.secret,
                number: self.clients[client].number,
                ranges: List::new(vec![range]).expect("one"),
                given_up: List::new(self.give_up(client, index)).expect("few"),
            };
            let node = &mut self.nodes[index];
            let (mut actions, mut handles) = (Vec::new(), node.handles);
            let next = || {
                handles += 1;
                Handle(handles)
            };
            let begun = node.leases.begin_filling(Some(&tenant), &seal, REGION_BYTES_MIN, next, &mut actions);
            node.handles = handles;
            node.carry_out(&actions);
            let Ok(reserved) = begun else {
                self.clients[client].leased.remove(&index);
                self.tally.add("not copied");
                return;
            };
            if self.random.percent(5) {
                node.leases.abandon_filling(&reserved);
                self.tally.add("copying abandoned");
                return;
            }
            if self.random.percent(20) {
                // The node reports, and time passes, while it copies.
                self.report(index);
                self.nodes[index].leases.tick(now, &mut Vec::new());
            }
            let node = &mut self.nodes[index];
            reserved.iter().for_each(|place| node.fill(place, content));
            let Ok(sealed) = node.leases.end_filling(Some(&tenant), &seal, &reserved, &[7]) else { return };
            let again = node.leases.ranges_sealed_before(Some(&tenant), &seal).expect("its own");
            assert_eq!(again.as_ref(), Some(&sealed), "a repeated request has the same answer");
            let SealedRange { region, epoch, handle, offset, .. } = *sealed.ranges.first().expect("one");
            let named = NamedRegion {
                node: NodeId(index as u64 + 1),
                incarnation: node.incarnation,
                region,
                epoch,
                handle,
            };
            copies.push((named, u64::from(offset)));
        }
        let copies_wanted = copies.len() as u8;
        let mut adding = PlacesBuilder::default();
        adding.push(bytes, copies).expect("fits");
        let publish = PublishPlaces {
            session: proof.session,
            secret: proof.secret,
            name: name(&format!("{tenant}/{}", self.random.below(12))),
            class: FileClass::Pinned,
            replaces: Replaces::Anything,
            copies_wanted,
            recipe: Bytes::default(),
            places: adding.finish().expect("fits"),
        };
        self.clients[client].sealed.push((publish, content));
    }

    /// Gives up what a client has sealed at a node and has not published, now and then. Returns the places.
    fn give_up(&mut self, client: usize, index: usize) -> Vec<RangeAt> {
        if !self.random.percent(10) {
            return Vec::new();
        }
        let node = NodeId(index as u64 + 1);
        let mut given_up = Vec::new();
        let is_at = |publish: &PublishPlaces| publish.places.regions.iter().any(|region| region.node == node);
        for (publish, _) in self.clients[client].sealed.extract_if(.., |(publish, _)| is_at(publish)) {
            for run in publish.places.runs.iter() {
                for (region, offset) in publish.places.copies(run).filter(|(region, _)| region.node == node) {
                    given_up.push(RangeAt {
                        region: region.region,
                        epoch: region.epoch,
                        offset: offset as u32,
                    });
                }
            }
        }
        if !given_up.is_empty() {
            self.tally.add("given up");
        }
        given_up
    }

    fn publish(&mut self, client: usize) {
        let count = self.clients[client].sealed.len() as u64;
        if count == 0 {
            return self.seal(client);
        }
        let which = self.random.below(count) as usize;
        let (publish, content) = self.clients[client].sealed[which].clone();
        let (now, tenant) = (self.now(), Self::tenant(client));
        let mut records = Vec::new();
        let answer = self.broker.publish(now, &tenant, &publish, &mut records);
        self.keep(records);
        match answer {
            Ok(published) => {
                let known = Known { file: published.file, tenant: tenant.clone(), content };
                if self.known.insert(publish.name.clone(), known).is_some() {
                    self.tally.add("replaced");
                }
                self.answered.push((publish, tenant, published.file));
                self.tally.add("published");
                self.clients[client].sealed.swap_remove(which);
            }
            Err(Refusal { code: Code::NotReported | Code::NoNodes, .. }) => {
                self.tally.add("not reported yet")
            }
            Err(refusal) => {
                assert!(
                    matches!(refusal.code, Code::StaleEpoch | Code::FileLost | Code::WrongSecret),
                    "{refusal:?}"
                );
                self.tally.add("publication refused");
                self.clients[client].sealed.swap_remove(which);
            }
        }
    }

    /// Sends a publication again that was answered. It finds its own file, or nothing. Under another name
    /// it is refused.
    fn publish_again(&mut self) {
        let Some((mut publish, tenant, file)) = self.random.pick(&self.answered) else { return };
        let is_renamed = self.random.percent(50);
        if is_renamed {
            publish.name = name(&format!("{tenant}/other"));
        }
        let mut records = Vec::new();
        let now = self.now();
        let answer = self.broker.publish(now, &tenant, &publish, &mut records);
        assert!(records.is_empty(), "a publication came twice: {publish:?}");
        match answer {
            Ok(published) => assert_eq!((published.file, is_renamed), (file, false)),
            Err(_) => self.tally.add("late publication refused"),
        }
    }

    fn drop_name(&mut self) {
        let names: Vec<Name> = self.known.keys().cloned().collect();
        let Some(name) = self.random.pick(&names) else { return };
        let tenant = self.known[&name].tenant.clone();
        let mut records = Vec::new();
        self.broker.drop_name(&tenant, &name, &mut records).expect("it is there");
        self.keep(records);
        self.known.remove(&name);
        self.tally.add("dropped");
    }

    /// Has a node carry out an order to make copies, in a segment.
    fn repair(&mut self, index: usize) {
        let now = self.now();
        if !self.nodes[index].is_joined {
            return self.report(index);
        }
        let (connection, incarnation) = (self.nodes[index].connection, self.nodes[index].incarnation);
        let mut records = Vec::new();
        let asked = NextRepair { node: NodeId(index as u64 + 1), incarnation };
        let given = self.broker.next_repair(now, connection, &asked, &mut records).expect("joined");
        self.keep(records);
        let Some(order) = given.order.into_vec().pop() else { return };
        let end = order.signed.runs.iter().map(|run| run.offset + run.bytes).max().expect("a run");
        let node = &mut self.nodes[index];
        let (mut actions, mut handles) = (Vec::new(), node.handles);
        let next = || {
            handles += 1;
            Handle(handles)
        };
        let begun =
            node.leases.begin_filling_copies(&order.tenant, end, REGION_BYTES_MIN, next, &mut actions);
        node.handles = handles;
        node.carry_out(&actions);
        let Ok(place) = begun else { return self.tally.add("no room for a copy") };
        let mut copied = Vec::new();
        for (number, run) in order.signed.runs.iter().enumerate() {
            let sources = order.sources[number].iter();
            let content = sources.filter_map(|copy| {
                let region = &order.regions[copy.region as usize];
                let from = &self.nodes[region.node.0 as usize - 1];
                let is_same = from.incarnation == region.incarnation;
                from.content.get(&(region.region, region.epoch, copy.offset)).filter(|_| is_same).copied()
            });
            if let Some(content) = content.into_iter().next() {
                let key = (place.at.region, place.at.epoch, place.offset + run.offset);
                assert_eq!(self.nodes[index].content.insert(key, content), None, "a place is used once");
                copied.push(number as u32);
            }
        }
        let grant = self.nodes[index].leases.end_filling_copies(&place).expect("it is there");
        self.report(index);
        let report = EndRepair {
            order: order.signed,
            copied: List::new(copied).expect("few"),
            region: grant.region,
            epoch: grant.epoch,
            handle: grant.handle,
        };
        for _ in 0..1 + self.random.below(2) {
            let mut records = Vec::new();
            let ended = self.broker.end_repair(now, connection, &report, &mut records);
            self.keep(records);
            match ended {
                Ok(ended) if ended.runs > 0 => self.tally.add("copied"),
                Ok(_) => self.tally.add("copy not needed"),
                Err(_) => self.tally.add("copy refused"),
            }
        }
        self.nodes[index].leases.copies_known(grant.region, grant.epoch);
    }

    fn end_session(&mut self, client: usize) {
        let Some(proof) = self.clients[client].proof.take() else { return };
        let tenant = Self::tenant(client);
        for node in &mut self.nodes {
            let mut actions = Vec::new();
            let release = Release {
                session: proof.session,
                secret: proof.secret,
                whole: true,
                regions: List::default(),
            };
            let _ = node.leases.release(Some(&tenant), &release, &mut actions);
            node.carry_out(&actions);
            node.scrub();
        }
        self.clients[client] = Client::default();
        self.tally.add("session ended");
    }

    fn restart_broker(&mut self) {
        let mut records = Vec::new();
        self.broker = BrokerLeases::start(self.now(), SETTINGS, self.durable.clone(), [4; 32], &mut records);
        self.keep(records);
        self.nodes.iter_mut().for_each(|node| node.is_joined = false);
        // A publication that came to an earlier life, and was dropped there, may come to this one, while nodes have not
        // heard of its fate.
        let names = &self.durable.names;
        let is_there = |publish: &PublishPlaces, file: FileId| {
            names.get(&publish.name).is_some_and(|has| has.file == file && has.places == publish.places)
        };
        self.answered.retain(|(publish, _, file)| is_there(publish, *file));
        self.tally.add("broker started");
    }

    fn restart_node(&mut self, index: usize) {
        let incarnation = Incarnation(self.fresh());
        self.nodes[index] = fresh_node(index, incarnation);
        for client in &mut self.clients {
            client.leased.remove(&index);
        }
        self.tally.add("node started");
    }

    fn step(&mut self) {
        let node = self.random.below(NODES as u64) as usize;
        let client = self.random.below(TENANTS.len() as u64) as usize;
        match self.random.below(100) {
            0..25 => self.seal(client),
            25..50 => self.publish(client),
            50..54 => self.publish_again(),
            54..66 => self.drop_name(),
            66..80 => self.report(node),
            80..82 => self.join(node),
            82..86 => self.rule_late(node),
            86..95 => self.repair(node),
            95..96 => self.end_session(client),
            96 if self.random.percent(30) => self.restart_broker(),
            97 if self.random.percent(30) => self.restart_node(node),
            _ => {
                self.now_ms += self.random.below(300);
                let proofs: Vec<_> =
                    self.clients.iter().map(|client| client.proof.clone()).enumerate().collect();
                for (client, proof) in proofs {
                    let Some(proof) = proof else { continue };
                    let _ = self.broker.keep_session(self.now(), &Self::tenant(client), &proof);
                    for node in &mut self.nodes {
                        let now = MonoNs(self.now_ms * 1_000_000);
                        let _ = node.leases.renew(now, None, &proof, &mut Vec::new());
                    }
                }
            }
        }
        self.check();
    }

    /// Checks that each name has the bytes that were published, wherever the catalog says that they are.
    fn check(&self) {
        let stored: Vec<(&Name, FileId)> =
            self.durable.names.iter().map(|(name, file)| (name, file.file)).collect();
        let known: Vec<(&Name, FileId)> = self.known.iter().map(|(name, known)| (name, known.file)).collect();
        assert_eq!(stored, known, "I5: the store is not what was answered");
        for (name, file) in &self.durable.names {
            for run in file.places.runs.iter() {
                for (region, offset) in file.places.copies(run) {
                    let node = &self.nodes[region.node.0 as usize - 1];
                    if node.incarnation != region.incarnation {
                        continue;
                    }
                    let content = node.content.get(&(region.region, region.epoch, offset as u32));
                    assert_eq!(content, Some(&self.known[name].content), "I5: {name} at {region:?}");
                }
            }
        }
    }

    /// Checks that segments are freed: those in which little is left once nobody adds anything, and all of them once
    /// all names are dropped.
    fn end(&mut self) {
        (0..TENANTS.len()).for_each(|client| self.end_session(client));
        self.now_ms += 20_000;
        for _ in 0..60 {
            for index in 0..NODES {
                self.report(index);
                self.repair(index);
                self.report(index);
            }
            self.now_ms += 300;
            self.check();
        }
        for node in &self.nodes {
            let held = node.leases.segment_report().segments;
            let closed = held.iter().filter(|held| !held.is_open);
            for held in closed {
                let live: u64 = self
                    .durable
                    .names
                    .values()
                    .flat_map(|file| file.places.runs.iter().map(move |run| (file, run)))
                    .flat_map(|(file, run)| file.places.copies(run).map(move |(region, _)| (region, run)))
                    .filter(|(region, _)| {
                        (region.incarnation, region.region) == (node.incarnation, held.region)
                    })
                    .map(|(_, run)| u64::from(run.bytes).next_multiple_of(4_096))
                    .sum();
                assert!(2 * live >= u64::from(held.end), "{held:?} has only {live} bytes");
            }
        }
        while !self.known.is_empty() {
            self.drop_name();
        }
        for _ in 0..20 {
            (0..NODES).for_each(|index| self.report(index));
            self.now_ms += 300;
        }
        for node in &self.nodes {
            let counts = node.leases.inventory(Traffic::default(), 0).counts;
            assert_eq!(counts.free, REGIONS, "all is free: {counts:?}");
        }
    }
}

#[test]
fn small_files_share_segments_under_random_schedules() {
    let expected = [
        "published",
        "replaced",
        "dropped",
        "not reported yet",
        "publication refused",
        "late publication refused",
        "settled",
        "segment freed",
        "copying abandoned",
        "given up",
        "not copied",
        "copied",
        "copy not needed",
        "session ended",
        "broker started",
        "node started",
        "ruling came late",
    ];
    run("segments", 1_500, &expected, |random, tally| {
        let mut world = world(random, tally, SETTINGS);
        for _ in 0..STEPS {
            world.step();
        }
        world.end();
    });
}

fn world<'a>(random: &'a mut Random, tally: &'a mut Tally, settings: impl Into<BrokerSettings>) -> World<'a> {
    let mut records = Vec::new();
    let broker = BrokerLeases::start(MonoNs(1), settings.into(), Durable::default(), [4; 32], &mut records);
    let mut durable = Durable::default();
    records.into_iter().for_each(|record| durable.apply(record));
    World {
        random,
        tally,
        now_ms: 1,
        durable,
        broker,
        nodes: (0..NODES).map(|index| fresh_node(index, Incarnation(index as u64 + 1))).collect(),
        clients: vec![Client::default(); TENANTS.len()],
        known: BTreeMap::new(),
        answered: Vec::new(),
        next: 100,
    }
}
