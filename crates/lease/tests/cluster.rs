//! One broker over three nodes and three clients, under random schedules: messages are lost, delayed,
//! repeated and overtake each other; the broker, nodes and clients crash; names are published, replaced,
//! renamed and dropped. After every step: I1, I2, I4 and I6 at each node (`arbiter`), and I5 here.
//!
//! As in the running system, a node has one question to the broker under way at a time and forgets its answer
//! when it connects anew; and a client does not publish what its own, conservative deadline has passed over.

mod arbiter;
mod schedule;

use arbiter::{Arbiter, Content};
use farpool_lease::broker::{Durable, NamedFile, Record};
use farpool_lease::{BrokerLeases, LeaseSettings};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use schedule::{Random, Tally, run, run_one};
use std::collections::BTreeMap;

const NODES: usize = 3;
const CLIENTS: usize = 3;
const REGIONS: u32 = 5;
const STEPS: u64 = 1_500;
const FLIGHTS_MAX: usize = 60;
const NODE_PATIENCE_MS: u64 = 2_000;
const SETTINGS: LeaseSettings = LeaseSettings {
    lease_ttl_ms: 5_000,
    grace_ms: 2_000,
    ticket_ttl_ms: 6_000,
    heartbeat_ms: 250,
    node_silence_ms: 20_000,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// One life: a connection does not outlive it.
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
struct Flight {
    id: u64,
    from: Address,
    to: Address,
    said: Said,
}

struct Node {
    arbiter: Arbiter,
    /// The life of the broker that took this node in.
    joined: Option<u64>,
    /// The question under way, and when it was asked.
    waiting: Option<(u64, u64)>,
}

/// A sealed region of a client, on its way to a name.
#[derive(Clone, Debug)]
struct Sealed {
    node: usize,
    extent: NamedExtent,
}

#[derive(Clone, Debug, Default)]
struct Client {
    session: Option<SessionProof>,
    tickets: Vec<(usize, Ticket)>,
    held: Vec<(usize, Incarnation, RegionAt)>,
    sealed: Vec<Sealed>,
    /// Until when the leases at a node hold for certain.
    deadlines: BTreeMap<usize, u64>,
    asked: BTreeMap<u64, (Request, Address, u64)>,
}

struct World<'a> {
    random: &'a mut Random,
    tally: &'a mut Tally,
    now_ms: u64,
    /// The machines' clocks differ; each counts from its own start.
    node_clock_ahead_ms: [u64; NODES],
    broker: Option<BrokerLeases>,
    broker_life: u64,
    durable: Durable,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    flights: Vec<Flight>,
    /// What the broker has promised: files by name, and whose bytes they are. Kept apart from its catalog.
    promised: BTreeMap<Name, (NamedFile, SessionId)>,
    /// Every file id below this one may have been given.
    next_file: FileId,
    next_id: u64,
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
    Node { arbiter, joined: None, waiting: None }
}

fn offer_of(index: usize, incarnation: Incarnation) -> Offer {
    let name = Name::new(format!("node-{index}")).expect("a name");
    let info = NodeInfo {
        node: node_id(index),
        name: name.clone(),
        incarnation,
        address: Text::default(),
        shm_socket: Text::default(),
        host_boot: index as u128 % 2,
        host_label: name,
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

    fn send(&mut self, flight: Flight) {
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

    /// Any flight may be the next to arrive, so any may overtake any other.
    fn deliver(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let index = self.random.below(self.flights.len() as u64) as usize;
        let Flight { id, from, to, said } = self.flights.swap_remove(index);
        match (to, said) {
            (Address::Broker { life }, Said::Ask(request)) if life == self.broker_life => {
                if let Some(answer) = self.ask_broker(request) {
                    self.send(Flight { id, from: to, to: from, said: Said::Answer(answer) });
                }
            }
            (Address::Node(node), Said::Ask(request)) => {
                let answer = self.ask_node(node, request);
                self.send(Flight { id, from: to, to: from, said: Said::Answer(answer) });
            }
            (Address::Node(node), Said::Answer(answer)) => self.answer_node(node, id, from, answer),
            (Address::Client(client), Said::Answer(answer)) => self.answer_client(client, id, answer),
            _ => self.tally.add("message to the dead"),
        }
    }

    /// The broker's answer, released only after its records are durable; none if it crashed on the way.
    fn ask_broker(&mut self, request: Request) -> Option<Result<Reply, Refusal>> {
        let now = self.broker_now();
        let fresh = SessionId(self.fresh());
        let broker = self.broker.as_mut()?;
        let mut records = Vec::new();
        broker.tick(now);
        let answer = match request.clone() {
            Request::OpenSession(open) => broker.open_session(now, &open, fresh).map(Reply::OpenSession),
            Request::KeepSession(proof) => broker.keep_session(now, &proof).map(Reply::KeepSession),
            Request::RequestTickets(request) => {
                broker.request_tickets(now, &request).map(Reply::RequestTickets)
            }
            Request::Publish(publish) => broker.publish(now, &publish, &mut records).map(Reply::Publish),
            Request::OpenName(by) => broker.open_name(&by.name).map(Reply::OpenName),
            Request::DropName(by) => broker.drop_name(&by.name, &mut records).map(Reply::DropName),
            Request::RenameName(rename) => broker.rename(&rename, &mut records).map(Reply::RenameName),
            Request::Offer(offer) => broker.offer(now, offer).map(Reply::Offer),
            Request::Inventory(inventory) => broker.inventory(now, inventory).map(Reply::Inventory),
            other => panic!("nobody asks the broker for {other:?}"),
        };
        assert!(answer.is_ok() || records.is_empty(), "a refusal changes nothing: {records:?}");
        if !records.is_empty() && self.random.percent(5) {
            self.tally.add("broker crashed before the commit");
            self.crash_broker();
            return None;
        }
        let has_records = !records.is_empty();
        records.into_iter().for_each(|record| self.durable.apply(record));
        if let Ok(reply) = &answer {
            self.promise(&request, reply);
        }
        if has_records && self.random.percent(5) {
            self.tally.add("broker crashed after the commit");
            self.crash_broker();
            return None;
        }
        Some(answer)
    }

    fn promise(&mut self, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Publish(publish), Reply::Publish(published)) => {
                let (file, class) = (published.file, publish.class);
                let extents = publish.extents.to_vec();
                let is_answered_again =
                    self.promised.get(&publish.name).is_some_and(|(had, _)| had.file == file);
                assert!(file >= self.next_file || is_answered_again, "file id {file} is given twice");
                self.next_file = self.next_file.max(FileId(file.0 + 1));
                let before = self
                    .promised
                    .insert(publish.name.clone(), (NamedFile { file, class, extents }, publish.session));
                self.tally.add(if before.is_some() { "replaced" } else { "published" });
            }
            (Request::DropName(by), _) => {
                self.promised.remove(&by.name);
                self.tally.add("dropped");
            }
            (Request::RenameName(rename), _) => {
                let file = self.promised.remove(&rename.from).expect("renamed what is there");
                let taken = self.promised.insert(rename.to.clone(), file);
                assert!(taken.is_none(), "renamed over another file");
                self.tally.add("renamed");
            }
            (Request::OpenName(by), Reply::OpenName(opened)) => {
                let (file, _) = &self.promised[&by.name];
                assert_eq!((opened.file, opened.extents.to_vec()), (file.file, file.extents.clone()));
                self.tally.add("opened");
            }
            _ => {}
        }
    }

    fn crash_broker(&mut self) {
        self.broker = None;
        self.broker_life += 1;
    }

    fn start_broker(&mut self) {
        let mut records = Vec::new();
        let key = [self.broker_life as u8; 32];
        let broker =
            BrokerLeases::start(self.broker_now(), SETTINGS, self.durable.clone(), key, &mut records);
        assert!(broker.term() > self.durable.term, "each life has a term of its own");
        if self.random.percent(90) {
            records.into_iter().for_each(|record: Record| self.durable.apply(record));
            self.broker = Some(broker);
            self.tally.add("broker started");
        }
    }

    fn ask_node(&mut self, node: usize, request: Request) -> Result<Reply, Refusal> {
        let now = self.node_now(node);
        let arbiter = &mut self.nodes[node].arbiter;
        match request {
            Request::Lease(lease) => arbiter.redeem(now, &lease.ticket).map(Reply::Lease),
            Request::Renew(proof) => arbiter.renew(now, &proof).map(Reply::Renew),
            Request::Release(release) => arbiter.release(&release).map(Reply::Release),
            Request::Seal(seal) => arbiter.seal(&seal).map(Reply::Seal),
            other => panic!("nobody asks a node for {other:?}"),
        }
    }

    fn report(&mut self, index: usize) {
        let (now_ms, life) = (self.now_ms, self.broker_life);
        let node = &mut self.nodes[index];
        if let Some((_, since_ms)) = node.waiting {
            if now_ms - since_ms >= NODE_PATIENCE_MS {
                (node.waiting, node.joined) = (None, None);
                self.tally.add("node gave up an answer");
            }
            return;
        }
        let request = if node.joined == Some(life) {
            Request::Inventory(node.arbiter.inventory())
        } else {
            node.joined = None;
            Request::Offer(offer_of(index, node.arbiter.incarnation()))
        };
        let id = self.fresh();
        self.nodes[index].waiting = Some((id, now_ms));
        let to = Address::Broker { life };
        self.send(Flight { id, from: Address::Node(index), to, said: Said::Ask(request) });
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
            }
            (Ok(Reply::Inventory(ruling)), _) => node.arbiter.rule(now, &ruling),
            _ => node.joined = None,
        }
    }

    fn ask_as_client(&mut self, client: usize, to: Address, request: Request) {
        let id = self.fresh();
        self.clients[client].asked.insert(id, (request.clone(), to, self.now_ms));
        self.send(Flight { id, from: Address::Client(client), to, said: Said::Ask(request) });
    }

    fn ask_broker_as_client(&mut self, client: usize, request: Request) {
        self.ask_as_client(client, Address::Broker { life: self.broker_life }, request);
    }

    /// What the client's own deadline has passed over, or another life of its node, is no longer its own.
    fn forget_what_expired(&mut self, index: usize) {
        let now_ms = self.now_ms;
        let client = &mut self.clients[index];
        client.deadlines.retain(|_, deadline| now_ms < *deadline);
        let deadlines = &client.deadlines;
        client.held.retain(|(node, ..)| deadlines.contains_key(node));
        client.sealed.retain(|sealed| deadlines.contains_key(&sealed.node));
    }

    fn answer_client(&mut self, index: usize, id: u64, answer: Result<Reply, Refusal>) {
        let Some((request, to, asked_ms)) = self.clients[index].asked.remove(&id) else { return };
        self.forget_what_expired(index);
        let deadline = asked_ms + u64::from(SETTINGS.lease_ttl_ms);
        let client = &mut self.clients[index];
        match (request, to, answer) {
            (Request::OpenSession(_), _, Ok(Reply::OpenSession(opened))) => {
                let proof = SessionProof { session: opened.session, secret: opened.secret };
                if client.session.as_ref().is_none_or(|had| had.session == proof.session) {
                    client.session = Some(proof);
                }
            }
            (Request::RequestTickets(_), _, Ok(Reply::RequestTickets(tickets))) => {
                for offer in tickets.tickets.iter() {
                    client.tickets.push((offer.node.node.0 as usize - 1, offer.ticket.clone()));
                }
            }
            (Request::Lease(lease), Address::Node(node), Ok(Reply::Lease(leased))) => {
                let at = |grant: &Grant| RegionAt { region: grant.region, epoch: grant.epoch };
                client
                    .held
                    .extend(leased.grants.iter().map(|grant| (node, lease.ticket.incarnation, at(grant))));
                let held = client.deadlines.entry(node).or_insert(deadline);
                *held = deadline.max(*held);
            }
            (Request::Renew(_), Address::Node(node), Ok(_)) => {
                // Only what is still held can be renewed: an answer that comes too late renews nothing.
                client.deadlines.entry(node).and_modify(|held| *held = deadline.max(*held));
            }
            (Request::Renew(_), Address::Node(node), Err(refusal))
                if refusal.code == Code::UnknownSession =>
            {
                client.deadlines.remove(&node);
                self.forget_what_expired(index);
            }
            (Request::Seal(_), Address::Node(node), Ok(Reply::Seal(sealed))) => {
                for grant in sealed.regions.iter() {
                    let is_it = |(at, _, held): &(usize, Incarnation, RegionAt)| {
                        *at == node && held.region == grant.region && held.epoch < grant.epoch
                    };
                    // Expired meanwhile: then it is not this client's to publish.
                    let Some(index) = client.held.iter().position(is_it) else { continue };
                    let (_, incarnation, _) = client.held.remove(index);
                    let extent = NamedExtent {
                        node: node_id(node),
                        incarnation,
                        region: grant.region,
                        epoch: grant.epoch,
                        handle: grant.handle,
                        region_offset: 0,
                        bytes: REGION_BYTES_MIN,
                    };
                    client.sealed.push(Sealed { node, extent });
                }
            }
            (Request::Publish(publish), _, Ok(_)) => {
                client.sealed.retain(|sealed| !publish.extents.contains(&sealed.extent));
            }
            _ => {}
        }
    }

    fn act_as_client(&mut self, index: usize) {
        self.forget_what_expired(index);
        let Some(SessionProof { session, secret }) = self.clients[index].session.clone() else {
            let (resume, secret) = (SessionId(0), Secret(0));
            let label = Name::new("client").expect("a name");
            // Sometimes twice: the answer of the first may be lost.
            if self.clients[index].asked.is_empty() || self.random.percent(20) {
                self.ask_broker_as_client(index, Request::OpenSession(OpenSession { resume, secret, label }));
            }
            return;
        };
        let leased_at: Vec<usize> = self.clients[index].deadlines.keys().copied().collect();
        let node = self.random.pick(&leased_at).unwrap_or(0);
        let names: Vec<Name> =
            (0..4).map(|name| Name::new(format!("table-{name}")).expect("a name")).collect();
        let name = self.random.pick(&names).expect("four names");
        match self.random.below(100) {
            0..15 => {
                let bytes = (1 + self.random.below(4)) * REGION_BYTES_MIN;
                let (near, avoid) = (u128::from(self.random.below(2)), List::default());
                let class = FileClass::Pinned;
                let request = RequestTickets { session, secret, bytes, class, near, avoid };
                self.ask_broker_as_client(index, Request::RequestTickets(request));
            }
            15..35 => {
                let tickets = &self.clients[index].tickets;
                if let Some((node, ticket)) = self.random.pick(tickets) {
                    if self.random.percent(80) {
                        self.clients[index].tickets.retain(|(_, held)| held.id != ticket.id);
                    }
                    self.ask_as_client(
                        index,
                        Address::Node(node),
                        Request::Lease(Lease { ticket, shared: false }),
                    );
                }
            }
            35..55 => {
                let proof = SessionProof { session, secret };
                self.ask_as_client(index, Address::Node(node), Request::Renew(proof));
            }
            55..58 => {
                let regions = self.some_held(index, node);
                let release = Release { session, secret, whole: false, regions };
                self.ask_as_client(index, Address::Node(node), Request::Release(release));
            }
            58..75 => {
                let regions = self.some_held(index, node);
                if !regions.is_empty() {
                    let seal = Seal { session, secret, regions };
                    self.ask_as_client(index, Address::Node(node), Request::Seal(seal));
                }
            }
            75..90 => {
                let sealed = self.random.pick_some(&self.clients[index].sealed, 2);
                if sealed.is_empty() {
                    return;
                }
                let extents: Vec<NamedExtent> = sealed.iter().map(|sealed| sealed.extent.clone()).collect();
                let (class, replace) = (FileClass::Pinned, self.random.percent(60));
                let extents = List::new(extents).expect("two");
                let publish = Publish { session, secret, name, class, replace, extents };
                self.ask_broker_as_client(index, Request::Publish(publish));
            }
            90..92 => self.ask_broker_as_client(index, Request::DropName(ByName { name })),
            92..94 => {
                let to = self.random.pick(&names).expect("four names");
                self.ask_broker_as_client(index, Request::RenameName(Rename { from: name, to }));
            }
            94..97 => self.ask_broker_as_client(index, Request::OpenName(ByName { name })),
            97..98 => {
                let label = Name::new("client").expect("a name");
                let request = OpenSession { resume: session, secret, label };
                self.ask_broker_as_client(index, Request::OpenSession(request));
            }
            98..99 => {
                for node in 0..NODES {
                    let release = Release { session, secret, whole: true, regions: List::default() };
                    self.ask_as_client(index, Address::Node(node), Request::Release(release));
                }
                self.clients[index] = Client::default();
                self.tally.add("client left");
            }
            _ => {
                self.clients[index] = Client::default();
                self.tally.add("client crashed");
            }
        }
    }

    fn some_held<const MAX: usize>(&mut self, client: usize, node: usize) -> List<RegionAt, MAX> {
        let held = &self.clients[client].held;
        let here: Vec<RegionAt> =
            held.iter().filter(|(at, ..)| *at == node).map(|(_, _, region)| region.clone()).collect();
        List::new(self.random.pick_some(&here, 2)).expect("two")
    }

    fn step(&mut self) {
        self.tally.add("steps");
        let node = self.random.below(NODES as u64) as usize;
        match self.random.below(1_000) {
            0..600 => self.deliver(),
            600..760 => {
                let client = self.random.below(CLIENTS as u64) as usize;
                self.act_as_client(client);
            }
            760..850 => self.report(node),
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

    /// I5: the names promised are the names in the store, and their bytes on living incarnations are sealed,
    /// readable and those of their publisher: not granted, not wiped, whoever else has crashed.
    fn invariant_i5_what_was_promised_is_kept(&self) {
        let stored: Vec<(&Name, &NamedFile)> = self.durable.names.iter().collect();
        let promised: Vec<(&Name, &NamedFile)> =
            self.promised.iter().map(|(name, (file, _))| (name, file)).collect();
        assert_eq!(stored, promised, "I5: the store is not what was promised");
        for (name, (file, publisher)) in &self.promised {
            for extent in &file.extents {
                let node = &self.nodes[extent.node.0 as usize - 1];
                if node.arbiter.incarnation() != extent.incarnation {
                    continue;
                }
                let owner = node.arbiter.owner(extent.region);
                let is_kept = owner.is_some_and(|(epoch, owner)| {
                    let is_sealed = match owner {
                        RegionOwner::Session(_) => false,
                        RegionOwner::Sealing(_) | RegionOwner::Orphan => true,
                        RegionOwner::Name(id) => id == file.file,
                    };
                    epoch == extent.epoch && is_sealed
                });
                assert!(is_kept, "I5: {name} lost {extent:?}; it is {owner:?}");
                let content = node.arbiter.read(extent.region, extent.epoch, extent.handle);
                assert_eq!(content, Some(Content::Written(*publisher)), "I5: {name} at {extent:?}");
            }
        }
    }

    /// A report of every node without a loss, and every wipe done.
    fn settle(&mut self) {
        for index in 0..NODES {
            let now = self.node_now(index);
            let offer = offer_of(index, self.nodes[index].arbiter.incarnation());
            let broker_now = self.broker_now();
            let arbiter = &mut self.nodes[index].arbiter;
            arbiter.tick(now);
            let broker = self.broker.as_mut().expect("it runs");
            arbiter.offered(&broker.offer(broker_now, offer).expect("taken in"));
            for _ in 0..2 {
                let ruling = broker.inventory(broker_now, arbiter.inventory()).expect("known");
                arbiter.rule(now, &ruling);
                arbiter.to_scrub().into_iter().for_each(|region| arbiter.scrub(region));
            }
            broker.inventory(broker_now, arbiter.inventory()).expect("known");
        }
        self.invariant_i5_what_was_promised_is_kept();
    }

    fn free_and_kept(&self) -> (u32, u32) {
        let kept = self.promised.values().flat_map(|(file, _)| &file.extents).filter(|extent| {
            self.nodes[extent.node.0 as usize - 1].arbiter.incarnation() == extent.incarnation
        });
        let free = self.nodes.iter().map(|node| node.arbiter.inventory().counts.free).sum();
        (free, kept.count() as u32)
    }

    /// I6: after everybody has fallen silent and everything under way has arrived, what no name owns is free,
    /// and can be had again.
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
        let opened = broker.open_session(now, &open, SessionId(u64::MAX)).expect("opened");
        let (session, secret) = (opened.session, opened.secret);
        if free > 0 {
            let bytes = u64::from(free) * REGION_BYTES_MIN;
            let (class, near, avoid) = (FileClass::Scratch, 0, List::default());
            let request = RequestTickets { session, secret, bytes, class, near, avoid };
            let tickets = broker.request_tickets(now, &request).expect("all that is free");
            for offer in tickets.tickets.iter() {
                let node = offer.node.node.0 as usize - 1;
                let lease = Lease { ticket: offer.ticket.clone(), shared: false };
                self.ask_node(node, Request::Lease(lease)).expect("what is free is granted");
            }
            assert_eq!(self.free_and_kept(), (0, kept));
        }
        let names: Vec<Name> = self.promised.keys().cloned().collect();
        for name in names {
            let mut records = Vec::new();
            self.broker.as_mut().expect("it runs").drop_name(&name, &mut records).expect("it is there");
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
        clients: vec![Client::default(); CLIENTS],
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
