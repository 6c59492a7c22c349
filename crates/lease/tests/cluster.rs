//! One broker over three nodes and four clients of three tenants, under random schedules. Messages are lost, delayed,
//! repeated and overtake each other. The broker, nodes and clients crash. Names are published, replaced, renamed and
//! dropped. Nodes make copies of files that lack some. After every step invariants I1, I2, I4 and I6 of leases are
//! checked at each node (by `arbiter`, which words them), and here I5: a published name keeps its bytes.
//!
//! Two rules are those of the running system. A node has one question to the broker under way at a time, and
//! forgets its answer when it connects anew. A client does not publish regions for which its own, conservative
//! deadline has passed.

mod arbiter;
mod clients;
mod copying;
mod promises;
mod schedule;

use arbiter::{Arbiter, Content};
use clients::Client;
use copying::Copies;
use farpool_lease::broker::{Durable, NamedFile, RegionKey, StateChange, region_key};
use farpool_lease::{BrokerLeases, BrokerSettings, LeaseSettings, Quotas, tenant};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use schedule::{Random, Tally, run, run_one};
use std::collections::{BTreeMap, BTreeSet};

const NODES: usize = 3;
/// Tenant of each client.
const CLIENTS: [&str; 4] = ["red", "red", "blue", "admin"];
const RED_QUOTA_BYTES: u64 = 9 * REGION_BYTES_MIN;
const REGIONS: u32 = 5;
const STEPS: u64 = 2_500;
const FLIGHTS_MAX: usize = 60;
const NODE_PATIENCE_MS: u64 = 300;
const SETTINGS: LeaseSettings = LeaseSettings {
    lease_ttl_ms: 5_000,
    grace_ms: 2_000,
    ticket_ttl_ms: 6_000,
    heartbeat_ms: 250,
    node_silence_ms: 1_000,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// One life of the broker: a connection does not outlive it.
    Broker {
        life: u64,
    },
    Node(usize),
    Client(usize),
}

#[derive(Clone, Debug)]
enum Said {
    Ask(Request),
    Answer(Result<Reply, Refusal>),
}

#[derive(Clone, Debug)]
struct InFlight {
    id: u64,
    from: Address,
    to: Address,
    /// Connection of a node's question, numbered by the id of the offer that opened it; 0 for other messages.
    connection: u64,
    said: Said,
}

struct Node {
    arbiter: Arbiter,
    /// Life of the broker that accepted this node; `None` if it is not connected.
    joined: Option<u64>,
    /// Id of the question under way and the time it was asked at.
    waiting: Option<(u64, u64)>,
    /// Connection over which it asks the broker, numbered by the id of the offer that opened it.
    connection: u64,
    /// Life of the broker that was asked last.
    asked_life: u64,
    copies: Copies,
}

/// Published file, and the session that wrote it.
struct Promised {
    file: NamedFile,
    writer: SessionId,
}

struct World<'a> {
    random: &'a mut Random,
    tally: &'a mut Tally,
    now_ms: u64,
    /// Lead of each node's clock over the test's time: each machine counts from its own start.
    node_clock_ahead_ms: [u64; NODES],
    broker: Option<BrokerLeases>,
    broker_life: u64,
    durable: Durable,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    flights: Vec<InFlight>,
    /// Files that the broker has acknowledged, by name. Kept apart from the broker's catalog.
    promised: BTreeMap<Name, Promised>,
    /// Lowest file id that was certainly never given.
    next_file: FileId,
    next_id: u64,
}

fn settings() -> BrokerSettings {
    let by_tenant = BTreeMap::from([(tenant_of(0), RED_QUOTA_BYTES)]);
    BrokerSettings {
        lease: SETTINGS,
        quotas: Quotas { default_bytes: None, by_tenant },
        ..BrokerSettings::default()
    }
}

fn tenant_of(client: usize) -> Name {
    Name::new(CLIENTS[client]).expect("a name")
}

fn node_id(index: usize) -> NodeId {
    NodeId(index as u64 + 1)
}

fn ticket_key(incarnation: Incarnation) -> [u8; 32] {
    let mut key = [9; 32];
    key[..8].copy_from_slice(&incarnation.0.to_le_bytes());
    key
}

fn fresh_node(index: usize, incarnation: Incarnation) -> Node {
    let arbiter = Arbiter::new(node_id(index), incarnation, ticket_key(incarnation), REGIONS);
    Node { arbiter, joined: None, waiting: None, connection: 0, asked_life: 0, copies: Copies::Idle }
}

fn offer_of(index: usize, incarnation: Incarnation) -> Offer {
    let name = Name::new(format!("node-{index}")).expect("a name");
    let info = NodeInfo {
        node: node_id(index),
        name,
        incarnation,
        address: Text::default(),
        shm_socket: Text::default(),
        host_boot: index as u128 % 2,
        // Two of them are on one host.
        host_label: Name::new(format!("host-{}", index % 2)).expect("a name"),
        region_bytes: REGION_BYTES_MIN,
    };
    Offer { info, ticket_key: ticket_key(incarnation) }
}

impl World<'_> {
    fn fresh(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn node_now(&self, node: usize) -> MonoNs {
        MonoNs((self.now_ms + self.node_clock_ahead_ms[node]) * 1_000_000)
    }

    fn broker_now(&self) -> MonoNs {
        MonoNs(self.now_ms * 1_000_000)
    }

    fn send(&mut self, flight: InFlight) {
        if self.random.percent(3) || self.flights.len() >= FLIGHTS_MAX {
            self.tally.add("message lost");
            return;
        }
        if matches!(flight.said, Said::Ask(_)) && self.random.percent(6) {
            self.tally.add("message repeated");
            self.flights.push(flight.clone());
        }
        self.flights.push(flight);
    }

    /// Delivers any of the messages under way, so any may overtake any other.
    fn deliver(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let index = self.random.below(self.flights.len() as u64) as usize;
        let InFlight { id, from, to, connection, said } = self.flights.swap_remove(index);
        match (to, said) {
            (Address::Broker { life }, Said::Ask(request)) if life == self.broker_life => {
                if let Some(answer) = self.ask_broker(from, connection, request) {
                    self.send(InFlight { id, from: to, to: from, connection, said: Said::Answer(answer) });
                }
            }
            (Address::Node(node), Said::Ask(request)) => {
                let Address::Client(client) = from else { panic!("only clients ask nodes") };
                let answer = self.ask_node(node, &tenant_of(client), request);
                self.send(InFlight { id, from: to, to: from, connection, said: Said::Answer(answer) });
            }
            (Address::Node(node), Said::Answer(answer)) => self.answer_node(node, id, from, answer),
            (Address::Client(client), Said::Answer(answer)) => self.answer_client(client, id, answer),
            _ => self.tally.add("message to the dead"),
        }
    }

    /// Returns the broker's answer once its records are durable; `None` if the broker crashed before.
    fn ask_broker(
        &mut self,
        from: Address,
        connection: u64,
        request: Request,
    ) -> Option<Result<Reply, Refusal>> {
        let asker = match from {
            Address::Client(client) => tenant_of(client),
            _ => tenant::local(),
        };
        let now = self.broker_now();
        let fresh = SessionId(self.fresh());
        let broker = self.broker.as_mut()?;
        let mut records = Vec::new();
        broker.tick(now);
        let answer = match request.clone() {
            Request::OpenSession(open) => {
                broker.open_session(now, &asker, &open, fresh).map(Reply::OpenSession)
            }
            Request::KeepSession(proof) => broker.keep_session(now, &asker, &proof).map(Reply::KeepSession),
            Request::RequestTickets(request) => {
                broker.request_tickets(now, &asker, &request).map(Reply::RequestTickets)
            }
            Request::PublishPlaces(publish) => {
                broker.publish(now, &asker, &publish, &mut records).map(Reply::PublishPlaces)
            }
            Request::OpenPlaces(by) => broker.open_places(&asker, &by.name).map(Reply::OpenPlaces),
            Request::DropName(by) => broker.drop_name(&asker, &by.name, &mut records).map(Reply::DropName),
            Request::RenameName(rename) => {
                broker.rename(&asker, &rename, &mut records).map(Reply::RenameName)
            }
            Request::Drain(order) => broker.drain(&asker, &order).map(Reply::Drain),
            Request::Offer(offer) => broker.offer(now, connection, offer).map(Reply::Offer),
            Request::Inventory(inventory) => {
                broker.inventory(now, connection, inventory).map(Reply::Inventory)
            }
            Request::NextRepair(asked) => {
                broker.next_repair(now, connection, &asked, &mut records).map(Reply::NextRepair)
            }
            Request::EndRepair(report) => {
                broker.end_repair(now, connection, &report, &mut records).map(Reply::EndRepair)
            }
            other => panic!("nobody asks the broker for {other:?}"),
        };
        assert!(answer.is_ok() || records.is_empty(), "a refusal changes nothing: {records:?}");
        let status = broker.status(now, &tenant_of(0));
        assert!(status.tenants.iter().all(|has| *has.tenant == *CLIENTS[0]), "others are not shown");
        let red = status.tenants.first().expect("it has a quota");
        if matches!(answer, Ok(Reply::RequestTickets(_))) && *asker == *CLIENTS[0] {
            assert!(red.held_bytes + red.promised_bytes <= RED_QUOTA_BYTES, "{red:?}");
        } else if let Err(Refusal { code: Code::OverQuota, detail }) = &answer {
            assert!(*asker == *CLIENTS[0] && *detail <= RED_QUOTA_BYTES, "{answer:?}");
            self.tally.add("over quota");
        }
        if !records.is_empty() && self.random.percent(5) {
            self.tally.add("broker crashed before the commit");
            self.crash_broker();
            return None;
        }
        let has_records = !records.is_empty();
        records.into_iter().for_each(|record| self.durable.apply(record));
        match &answer {
            Ok(reply) => self.promise(&asker, &request, reply),
            Err(refusal) => self.check_refusal(&asker, &request, refusal),
        }
        if has_records && self.random.percent(5) {
            self.tally.add("broker crashed after the commit");
            self.crash_broker();
            return None;
        }
        Some(answer)
    }

    fn crash_broker(&mut self) {
        self.broker = None;
        self.broker_life += 1;
    }

    fn start_broker(&mut self) {
        let mut records = Vec::new();
        let key = [self.broker_life as u8; 32];
        let broker =
            BrokerLeases::start(self.broker_now(), settings(), self.durable.clone(), key, &mut records);
        assert!(broker.term() > self.durable.term, "each life has a term of its own");
        if self.random.percent(90) {
            records.into_iter().for_each(|record: StateChange| self.durable.apply(record));
            self.broker = Some(broker);
            self.tally.add("broker started");
        }
    }

    fn ask_node(&mut self, node: usize, asker: &Name, request: Request) -> Result<Reply, Refusal> {
        let now = self.node_now(node);
        let arbiter = &mut self.nodes[node].arbiter;
        match request {
            Request::Lease(lease) => arbiter.redeem(now, Some(asker), &lease.ticket).map(Reply::Lease),
            Request::Renew(proof) => arbiter.renew(now, Some(asker), &proof).map(Reply::Renew),
            Request::Release(release) => arbiter.release(Some(asker), &release).map(Reply::Release),
            Request::Seal(seal) => {
                let owner = |at: &RegionAt| arbiter.owner(at.region).map(|(_, owner)| owner);
                let is_sealed =
                    seal.regions.iter().any(|at| owner(at) == Some(RegionOwner::Sealing(seal.session)));
                let sealed = arbiter.seal(Some(asker), &seal);
                if sealed.is_ok() && is_sealed {
                    self.tally.add("sealed again");
                }
                sealed.map(Reply::Seal)
            }
            other => panic!("nobody asks a node for {other:?}"),
        }
    }

    fn report(&mut self, index: usize) {
        let (now_ms, life) = (self.now_ms, self.broker_life);
        let node = &mut self.nodes[index];
        if node.asked_life != life {
            // The node's connection has ended with the life of the broker that was asked last.
            (node.waiting, node.joined) = (None, None);
        }
        if let Some((_, since_ms)) = node.waiting {
            if now_ms - since_ms >= NODE_PATIENCE_MS {
                (node.waiting, node.joined) = (None, None);
                self.tally.add("node gave up an answer");
            }
            return;
        }
        let request = if node.joined == Some(life) {
            let incarnation = node.arbiter.incarnation();
            match &node.copies {
                Copies::Made(report, true) if self.random.percent(70) => {
                    Request::EndRepair((**report).clone())
                }
                Copies::Idle if self.random.percent(50) => {
                    Request::NextRepair(NextRepair { node: node_id(index), incarnation })
                }
                _ => Request::Inventory(node.arbiter.inventory()),
            }
        } else {
            node.joined = None;
            Request::Offer(offer_of(index, node.arbiter.incarnation()))
        };
        let id = self.fresh();
        let node = &mut self.nodes[index];
        (node.waiting, node.asked_life) = (Some((id, now_ms)), life);
        if matches!(request, Request::Offer(_)) {
            node.connection = id;
        }
        let (from, to, connection) = (Address::Node(index), Address::Broker { life }, node.connection);
        self.send(InFlight { id, from, to, connection, said: Said::Ask(request) });
    }

    fn answer_node(&mut self, index: usize, id: u64, from: Address, answer: Result<Reply, Refusal>) {
        let now = self.node_now(index);
        let node = &mut self.nodes[index];
        if node.waiting.is_none_or(|(waiting, _)| waiting != id) {
            return;
        }
        node.waiting = None;
        match (answer, from) {
            (Ok(Reply::Offer(offered)), Address::Broker { life }) => {
                node.arbiter.offered(&offered);
                node.joined = Some(life);
                if let Copies::Made(_, is_shown) = &mut node.copies {
                    *is_shown = false;
                }
            }
            (Ok(Reply::Inventory(ruling)), _) => {
                node.arbiter.rule(now, &ruling);
                if let Copies::Made(_, is_shown) = &mut node.copies {
                    *is_shown = true;
                }
                if node.arbiter.inventory().draining {
                    self.tally.add("draining");
                }
            }
            (Ok(Reply::NextRepair(given)), _) => {
                let Some(order) = given.order.into_vec().pop() else { return };
                match node.arbiter.begin_copying(&order.tenant) {
                    Ok(at) => node.copies = Copies::Copying(Box::new(order), at),
                    Err(_) => self.tally.add("no region for a copy"),
                }
            }
            (Ok(Reply::EndRepair(ended)), _) => {
                if ended.runs == 0 {
                    self.tally.add("copy not needed any more");
                }
                node.copies_known();
            }
            (Err(Refusal { code: Code::NotReported, .. }), _) => self.tally.add("report of a copy too early"),
            // Only the broker's rules say this.
            (Err(Refusal { code: Code::StaleEpoch | Code::NameTaken, .. }), _) => node.copies_known(),
            _ => node.joined = None,
        }
    }

    fn step(&mut self) {
        self.tally.add("steps");
        let node = self.random.below(NODES as u64) as usize;
        match self.random.below(1_000) {
            0..600 => self.deliver(),
            600..760 => {
                let client = self.random.below(CLIENTS.len() as u64) as usize;
                self.act_as_client(client);
            }
            760..835 => self.report(node),
            835..850 => self.copy(node),
            850..900 => {
                if let Some(region) = self.random.pick(&self.nodes[node].arbiter.to_scrub()) {
                    self.nodes[node].arbiter.scrub(region);
                }
            }
            900..950 => {
                let now = self.node_now(node);
                self.nodes[node].arbiter.tick(now);
            }
            950..990 => self.now_ms += self.random.below(200),
            990..991 => {
                self.now_ms += self.random.below(9_000);
                self.tally.add("time jumped");
            }
            991..993 => {
                if self.broker.is_some() {
                    self.crash_broker();
                    self.tally.add("broker crashed");
                }
            }
            993..999 => {
                if self.broker.is_none() {
                    self.start_broker();
                }
            }
            _ => {
                let incarnation = Incarnation(self.fresh());
                self.nodes[node] = fresh_node(node, incarnation);
                self.tally.add("node crashed");
            }
        }
        self.invariant_i5_what_was_promised_is_kept();
    }

    /// I5: the names that the broker has acknowledged are the names in the store. Their bytes on nodes that live are
    /// sealed, readable and those of their publisher: not granted and not wiped, whoever else has crashed.
    fn invariant_i5_what_was_promised_is_kept(&self) {
        let stored: Vec<(&Name, &NamedFile)> = self.durable.names.iter().collect();
        let promised: Vec<(&Name, &NamedFile)> =
            self.promised.iter().map(|(name, promised)| (name, &promised.file)).collect();
        assert_eq!(stored, promised, "I5: the store is not what was promised");
        for (name, Promised { file, writer }) in &self.promised {
            for region in file.places.regions.iter() {
                let node = &self.nodes[region.node.0 as usize - 1];
                if node.arbiter.incarnation() != region.incarnation {
                    continue;
                }
                let owner = node.arbiter.owner(region.region);
                let is_kept = owner.is_some_and(|(epoch, owner)| {
                    let is_sealed = match owner {
                        RegionOwner::Session(_) => false,
                        RegionOwner::Sealing(_) | RegionOwner::Orphan => true,
                        RegionOwner::Name(id) => id == file.file,
                    };
                    epoch == region.epoch && is_sealed
                });
                assert!(is_kept, "I5: {name} lost {region:?}; it is {owner:?}");
                let mut freed = region.clone();
                freed.bind(name);
                let content = node.arbiter.read(region.region, region.epoch, freed.handle);
                assert_eq!(content, Some(Content::Written(*writer)), "I5: {name} at {region:?}");
            }
        }
    }

    /// Has every node report to the broker, with no message lost, and carries out every wipe.
    fn settle(&mut self) {
        for index in 0..NODES {
            let now = self.node_now(index);
            let offer = offer_of(index, self.nodes[index].arbiter.incarnation());
            let (broker_now, connection) = (self.broker_now(), self.fresh());
            let arbiter = &mut self.nodes[index].arbiter;
            arbiter.tick(now);
            let broker = self.broker.as_mut().expect("it runs");
            arbiter.offered(&broker.offer(broker_now, connection, offer).expect("taken in"));
            match std::mem::take(&mut self.nodes[index].copies) {
                Copies::Idle => {}
                Copies::Copying(_, at) => self.nodes[index].arbiter.abandon_copying(&at),
                Copies::Made(report, _) => {
                    let mut records = Vec::new();
                    let shown = self.nodes[index].arbiter.inventory();
                    broker.inventory(broker_now, connection, shown).expect("known");
                    let _ = broker.end_repair(broker_now, connection, &report, &mut records);
                    records.into_iter().for_each(|record| self.durable.apply(record));
                    self.promise_copies(Some(&report));
                    self.nodes[index].copies = Copies::Made(report, true);
                    self.nodes[index].copies_known();
                }
            }
            let arbiter = &mut self.nodes[index].arbiter;
            let broker = self.broker.as_mut().expect("it runs");
            for _ in 0..2 {
                let ruling = broker.inventory(broker_now, connection, arbiter.inventory()).expect("known");
                arbiter.rule(now, &ruling);
                arbiter.to_scrub().into_iter().for_each(|region| arbiter.scrub(region));
            }
            broker.inventory(broker_now, connection, arbiter.inventory()).expect("known");
        }
        self.invariant_i5_what_was_promised_is_kept();
    }

    /// Ends the draining (emptying) of all nodes.
    fn end_draining(&mut self) {
        let admin = Name::new("admin").expect("a name");
        for index in 0..NODES {
            let node = offer_of(index, Incarnation(0)).info.name;
            let broker = self.broker.as_mut().expect("it runs");
            broker.drain(&admin, &DrainNode { node, drain: false, stop: false }).expect("known");
        }
        self.settle();
    }

    fn free_and_kept(&self) -> (u32, u32) {
        let lives = |(node, incarnation, _): &&RegionKey| {
            self.nodes[node.0 as usize - 1].arbiter.incarnation() == *incarnation
        };
        let kept: Vec<RegionKey> = self
            .promised
            .values()
            .flat_map(|promised| promised.file.places.regions.iter().map(region_key))
            .collect();
        let kept = kept.iter().filter(lives);
        let free = self.nodes.iter().map(|node| node.arbiter.inventory().counts.free).sum();
        (free, kept.count() as u32)
    }

    /// I6: after everybody has fallen silent and all messages have arrived, every region that no name owns is
    /// free and can be leased again.
    fn invariant_i6_all_that_no_name_owns_becomes_free(&mut self) {
        while self.broker.is_none() {
            self.start_broker();
        }
        while !self.flights.is_empty() {
            self.deliver();
            self.invariant_i5_what_was_promised_is_kept();
        }
        while self.broker.is_none() {
            self.start_broker();
        }
        self.now_ms += u64::from(SETTINGS.lease_ttl_ms + SETTINGS.grace_ms + SETTINGS.ticket_ttl_ms) + 1;
        self.settle();
        self.end_draining();
        let total = NODES as u32 * REGIONS;
        let (free, kept) = self.free_and_kept();
        assert_eq!(free + kept, total, "I6: {free} free, {kept} named");

        let now = self.broker_now();
        let broker = self.broker.as_mut().expect("it runs");
        let open = OpenSession {
            resume: SessionId(0),
            secret: Secret(0),
            label: Name::new("last").expect("a name"),
        };
        let last = tenant::local();
        let opened = broker.open_session(now, &last, &open, SessionId(u64::MAX)).expect("opened");
        let (session, secret) = (opened.session, opened.secret);
        if free > 0 {
            let bytes = u64::from(free) * REGION_BYTES_MIN;
            let (class, near, avoid, apart) = (FileClass::Scratch, 0, List::default(), List::default());
            let request = RequestTickets { session, secret, bytes, class, near, avoid, apart };
            let tickets = broker.request_tickets(now, &last, &request).expect("all that is free");
            for offer in tickets.tickets.iter() {
                let node = offer.node.node.0 as usize - 1;
                let lease = Lease { ticket: offer.ticket.clone(), shared: false };
                self.ask_node(node, &last, Request::Lease(lease)).expect("what is free is granted");
            }
            assert_eq!(self.free_and_kept(), (0, kept));
        }
        let names: Vec<Name> = self.promised.keys().cloned().collect();
        for name in names {
            let mut records = Vec::new();
            let owner = &self.promised[&name].file.tenant;
            let broker = self.broker.as_mut().expect("it runs");
            broker.drop_name(owner, &name, &mut records).expect("it is there");
            records.into_iter().for_each(|record| self.durable.apply(record));
            self.promised.remove(&name);
        }
        self.now_ms += u64::from(SETTINGS.lease_ttl_ms + SETTINGS.grace_ms);
        self.settle();
        assert_eq!(self.free_and_kept(), (total, 0), "I6: the names are dropped, their bytes are not free");
    }
}

fn schedule(random: &mut Random, tally: &mut Tally) -> (Durable, Vec<Inventory>) {
    let node_clock_ahead_ms = std::array::from_fn(|_| random.below(1 << 30));
    let mut world = World {
        random,
        tally,
        now_ms: 0,
        node_clock_ahead_ms,
        broker: None,
        broker_life: 1,
        durable: Durable::default(),
        nodes: (0..NODES).map(|index| fresh_node(index, Incarnation(index as u64 + 1))).collect(),
        clients: vec![Client::default(); CLIENTS.len()],
        flights: Vec::new(),
        promised: BTreeMap::new(),
        next_file: FileId(0),
        next_id: 100,
    };
    world.start_broker();
    for _ in 0..STEPS {
        world.step();
    }
    let inventories = world.nodes.iter().map(|node| node.arbiter.inventory()).collect();
    let end = (world.durable.clone(), inventories);
    world.invariant_i6_all_that_no_name_owns_becomes_free();
    end
}

#[test]
fn cluster_under_random_schedules_keeps_its_invariants() {
    let expected = [
        "published",
        "replaced",
        "renamed",
        "dropped",
        "opened",
        "copy added",
        "copy replaced",
        "repaired again",
        "leaving copy dropped",
        "copy not needed any more",
        "source of a copy is gone",
        "report of a copy too early",
        "another's name not seen",
        "over quota",
        "second life waits",
        "sealed region given back",
        "sealed again",
        "told to drain",
        "told to stay",
        "draining",
        "message lost",
        "message repeated",
        "message to the dead",
        "broker crashed before the commit",
        "broker crashed after the commit",
        "broker crashed",
        "broker started",
        "node crashed",
        "node gave up an answer",
        "client crashed",
        "client left",
        "time jumped",
    ];
    run("cluster", 8_000, &expected, schedule);
}

#[test]
fn cluster_under_the_same_seed_ends_in_the_same_state() {
    assert_eq!(run_one("cluster", 11, &schedule), run_one("cluster", 11, &schedule));
}
