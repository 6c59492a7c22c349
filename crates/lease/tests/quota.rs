//! Quotas under random schedules: one broker, three nodes, and sessions of three tenants. Tickets are redeemed
//! late, twice or never. Connections are cut with a report or a ruling under way. Leases expire. Nodes and the
//! broker restart. After every step each tenant is within its quota with what it holds at the nodes and what it
//! could still redeem there.
//!
//! A node has one report under way at a time, and messages on a connection that was cut never arrive, as in the
//! running system. After its own restart the broker grants nothing in this test before every node has
//! reported once: until then it cannot know what tenants hold.

mod arbiter;
mod schedule;

use arbiter::Arbiter;
use farpool_lease::broker::Durable;
use farpool_lease::{BrokerLeases, BrokerSettings, LeaseSettings, Quotas};
use farpool_wire::control::*;
use farpool_wire::host_label::is_within;
use farpool_wire::*;
use schedule::{Random, Tally, run, run_one};
use std::collections::BTreeMap;

const NODES: usize = 3;
const REGIONS: u32 = 6;
const STEPS: u64 = 600;
const TENANTS: [&str; 3] = ["blue", "green", "red"];
/// Quotas in regions of 1 MiB; that of the third tenant is the default.
const QUOTAS: [u64; 3] = [2, 5, 9];
const MIB: u64 = 1 << 20;
const TIMES: LeaseSettings = LeaseSettings {
    lease_ttl_ms: 4_000,
    grace_ms: 1_000,
    ticket_ttl_ms: 3_000,
    heartbeat_ms: 250,
    node_silence_ms: 2_000,
};

/// Message under way between a node and the broker.
#[derive(Clone, Debug)]
enum UnderWay {
    /// The node has no connection.
    Disconnected,
    /// The broker has accepted the node, which may report.
    Nothing,
    /// Report, and the node's time at which it was made.
    Report(Box<Inventory>, MonoNs),
    Ruling(Box<Ruling>, MonoNs),
}

struct Node {
    arbiter: Arbiter,
    /// True if an administrator has ordered to drain (empty) this life of the node.
    is_to_drain: bool,
    under_way: UnderWay,
    /// Number of the connection to the broker; each connection has its own.
    connection: u64,
    clock_ahead_ms: u64,
}

struct Promise {
    tenant: usize,
    node: usize,
    ticket: Ticket,
    life: u64,
    spent: bool,
}

struct World<'a> {
    random: &'a mut Random,
    tally: &'a mut Tally,
    now_ms: u64,
    began_ms: u64,
    life: u64,
    broker: BrokerLeases,
    durable: Durable,
    nodes: Vec<Node>,
    sessions: Vec<(usize, SessionProof)>,
    promises: Vec<Promise>,
    next: u64,
}

fn tenant_of(index: usize) -> Name {
    Name::new(TENANTS[index]).expect("a name")
}

fn host_of(node: usize) -> Name {
    Name::new(format!("zone-{}/host-{node}", node % 2)).expect("a name")
}

fn settings() -> BrokerSettings {
    let by_tenant = (0..2).map(|index| (tenant_of(index), QUOTAS[index] * MIB)).collect();
    BrokerSettings {
        lease: TIMES,
        quotas: Quotas { default_bytes: Some(QUOTAS[2] * MIB), by_tenant },
        ..BrokerSettings::default()
    }
}

fn key_of(incarnation: Incarnation) -> [u8; 32] {
    [incarnation.0 as u8; 32]
}

fn fresh_node(index: usize, incarnation: Incarnation, clock_ahead_ms: u64) -> Node {
    let arbiter = Arbiter::new(NodeId(index as u64 + 1), incarnation, key_of(incarnation), REGIONS);
    Node { arbiter, is_to_drain: false, under_way: UnderWay::Disconnected, connection: 0, clock_ahead_ms }
}

impl World<'_> {
    fn now(&self) -> MonoNs {
        MonoNs(self.now_ms * 1_000_000)
    }

    fn node_now(&self, node: usize) -> MonoNs {
        MonoNs((self.now_ms + self.nodes[node].clock_ahead_ms) * 1_000_000)
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Carries out the next step between a node and the broker.
    fn advance(&mut self, index: usize) {
        let (now, node_now, fresh) = (self.now(), self.node_now(index), self.fresh());
        let node = &mut self.nodes[index];
        node.under_way = match std::mem::replace(&mut node.under_way, UnderWay::Disconnected) {
            UnderWay::Disconnected => {
                let label = host_of(index);
                let incarnation = node.arbiter.incarnation();
                let info = NodeInfo {
                    node: NodeId(index as u64 + 1),
                    name: label.clone(),
                    incarnation,
                    address: Text::default(),
                    shm_socket: Text::default(),
                    host_boot: 0,
                    host_label: label,
                    region_bytes: MIB,
                };
                node.connection = fresh;
                match self.broker.offer(now, fresh, Offer { info, ticket_key: key_of(incarnation) }) {
                    Ok(offered) => {
                        node.arbiter.offered(&offered);
                        UnderWay::Nothing
                    }
                    // The broker heard of the node's former life a moment ago, so it refuses this one for now.
                    Err(_) => UnderWay::Disconnected,
                }
            }
            UnderWay::Nothing => UnderWay::Report(Box::new(node.arbiter.inventory()), node_now),
            UnderWay::Report(inventory, made) => {
                let ruling = self.broker.inventory(now, node.connection, *inventory);
                let ruling = ruling.expect("its life is known");
                UnderWay::Ruling(Box::new(ruling), made)
            }
            UnderWay::Ruling(ruling, asked) => {
                node.arbiter.rule(asked, &ruling);
                UnderWay::Nothing
            }
        };
    }

    fn report_whole(&mut self, index: usize) {
        let mut tries = 0;
        while !matches!(self.nodes[index].under_way, UnderWay::Nothing) {
            self.advance(index);
            tries += 1;
            if tries > 6 {
                return;
            }
        }
        for _ in 0..3 {
            self.advance(index);
        }
        self.advance(index);
        self.advance(index);
        let node = &self.nodes[index];
        assert_eq!(node.arbiter.inventory().draining, node.is_to_drain, "as it was told, whoever restarted");
        let report = self.broker.status(self.now(), &Name::new("admin").expect("a name"));
        let shown = report.nodes.iter().find(|shown| shown.info.name == host_of(index));
        assert_eq!(shown.map(|shown| shown.draining), Some(node.is_to_drain));
    }

    fn ask_for_tickets(&mut self) {
        let (tenant, proof) = self.random.pick(&self.sessions).expect("sessions");
        let regions = 1 + self.random.below(5);
        let zone = Name::new("zone-1").expect("a name");
        let domains: Vec<Name> = (0..NODES).map(host_of).chain([zone]).collect();
        let apart = if self.random.percent(20) { self.random.pick_some(&domains, 2) } else { Vec::new() };
        let request = RequestTickets {
            session: proof.session,
            secret: proof.secret,
            bytes: regions * MIB - self.random.below(MIB),
            class: FileClass::Scratch,
            near: 0,
            avoid: List::default(),
            apart: List::new(apart.clone()).expect("two"),
        };
        match self.broker.request_tickets(self.now(), &tenant_of(tenant), &request) {
            Ok(tickets) => {
                let is_in = |offer: &TicketOffer, domain| is_within(&offer.node.host_label, domain);
                let is_apart = |offer: &TicketOffer| !apart.iter().any(|domain| is_in(offer, domain));
                assert!(tickets.tickets.iter().all(is_apart), "{tickets:?} is not apart from {apart:?}");
                let drains = |offer: &TicketOffer| self.nodes[offer.node.node.0 as usize - 1].is_to_drain;
                assert!(!tickets.tickets.iter().any(drains), "promised from a node that is being emptied");
                let promised: u32 = tickets.tickets.iter().map(|offer| offer.ticket.region_count).sum();
                assert_eq!(u64::from(promised), regions, "whole regions, and not one more");
                let life = self.life;
                self.promises.extend(tickets.tickets.into_vec().into_iter().map(|offer| {
                    let node = offer.node.node.0 as usize - 1;
                    Promise { tenant, node, ticket: offer.ticket, life, spent: false }
                }));
                self.tally.add("promised");
            }
            Err(Refusal { code: Code::OverQuota, detail }) => {
                assert!(detail < regions * MIB && detail.is_multiple_of(MIB), "{detail} of {regions} left");
                assert!(detail <= QUOTAS[tenant] * MIB);
                self.tally.add("over quota");
            }
            Err(refusal) => {
                // The nodes of an earlier life of the broker have as long to come as sessions hold leases without it.
                let has_settled = self.life == 1
                    || self.now_ms - self.began_ms > u64::from(TIMES.lease_ttl_ms + TIMES.grace_ms);
                let silence_ms = u64::from(TIMES.lease_ttl_ms + TIMES.grace_ms);
                let status = self.broker.status(self.now(), &Name::new("admin").expect("a name"));
                let is_silent = |node: &NodeStatus| !node.alive && node.heard_ms_ago <= silence_ms;
                let may_wait = !has_settled || status.nodes.iter().any(is_silent);
                let expected: &[Code] = match (has_settled, may_wait) {
                    (false, _) => &[Code::NotReported],
                    (true, true) => &[Code::Exhausted, Code::NoNodes, Code::NotReported],
                    (true, false) => &[Code::Exhausted, Code::NoNodes],
                };
                assert!(expected.contains(&refusal.code), "{refusal}");
                self.tally.add("none free");
            }
        }
    }

    fn redeem(&mut self) {
        if self.promises.is_empty() {
            return;
        }
        let at = self.random.below(self.promises.len() as u64) as usize;
        let node = self.promises[at].node;
        let now = self.node_now(node);
        let answer = self.nodes[node].arbiter.redeem(now, None, &self.promises[at].ticket);
        let answer = answer.map_err(|refusal| refusal.code);
        // If the regions are exhausted or the node is being emptied, the ticket is spent for nothing.
        self.promises[at].spent |= matches!(&answer, Ok(_) | Err(Code::Exhausted | Code::Draining));
        self.tally.add(match answer {
            Ok(_) => "redeemed",
            Err(Code::TicketExpired) => "expired",
            Err(Code::Draining) => "refused by a draining node",
            Err(_) => "refused",
        });
    }

    fn drain(&mut self, index: usize) {
        let drain = self.random.percent(40);
        let order = DrainNode { node: host_of(index), drain, stop: self.random.percent(50) };
        let by = self.random.pick(&["red", "local", "admin"]).expect("three");
        let answer = self.broker.drain(&Name::new(by).expect("a name"), &order);
        match answer.map_err(|refusal| refusal.code) {
            Ok(_) => {
                assert_ne!(by, "red");
                self.tally.add(if drain { "told to drain" } else { "told to stay" });
                let report = self.broker.status(self.now(), &Name::new("admin").expect("a name"));
                let shown = report.nodes.iter().find(|node| node.info.name == host_of(index));
                let shown = shown.expect("it is known");
                // An order for a former life does not hold for the next one.
                if shown.info.incarnation == self.nodes[index].arbiter.incarnation() {
                    self.nodes[index].is_to_drain = drain;
                }
            }
            // The broker has not heard of this node yet, so it takes no order for it.
            Err(Code::NoNodes) => {}
            Err(code) => assert_eq!((by, code), ("red", Code::NotPermitted)),
        }
    }

    fn step(&mut self) {
        self.tally.add("steps");
        let node = self.random.below(NODES as u64) as usize;
        let node_now = self.node_now(node);
        match self.random.below(100) {
            0..25 => self.ask_for_tickets(),
            25..45 => self.redeem(),
            45..65 => self.advance(node),
            65..75 => {
                if let Some((_, proof)) = self.random.pick(&self.sessions) {
                    let _ = self.nodes[node].arbiter.renew(node_now, None, &proof);
                }
            }
            75..82 => {
                let (_, SessionProof { session, secret }) = self.random.pick(&self.sessions).expect("some");
                let owned = self.nodes[node].arbiter.inventory().owned;
                let own = owned.iter().filter(|owned| owned.owner == RegionOwner::Session(session));
                let own: Vec<RegionAt> =
                    own.map(|owned| RegionAt { region: owned.region, epoch: owned.epoch }).collect();
                let regions = List::new(self.random.pick_some(&own, 2)).expect("two");
                let _ = self.nodes[node]
                    .arbiter
                    .release(None, &Release { session, secret, whole: false, regions });
            }
            82..90 => {
                if let Some(region) = self.random.pick(&self.nodes[node].arbiter.to_scrub()) {
                    self.nodes[node].arbiter.scrub(region);
                }
            }
            90..92 => self.nodes[node].arbiter.tick(node_now),
            92 => self.drain(node),
            93..95 => {
                self.nodes[node].under_way = UnderWay::Disconnected;
                self.tally.add("cut");
            }
            95..98 => {
                self.now_ms += self.random.below(400);
                (0..NODES).for_each(|node| self.advance(node));
            }
            98 => {
                self.now_ms += self.random.below(u64::from(TIMES.ticket_ttl_ms) + 500);
                // All nodes report, so that none is silent for so long that it counts as dead.
                (0..NODES).for_each(|node| self.report_whole(node));
                self.tally.add("time jumped");
            }
            _ if self.random.percent(70) => {
                let incarnation = Incarnation(self.fresh());
                self.nodes[node] = fresh_node(node, incarnation, self.nodes[node].clock_ahead_ms);
                self.tally.add("node started again");
            }
            _ => {
                self.life += 1;
                let mut records = Vec::new();
                self.broker =
                    BrokerLeases::start(self.now(), settings(), self.durable.clone(), [9; 32], &mut records);
                records.into_iter().for_each(|record| self.durable.apply(record));
                self.began_ms = self.now_ms;
                for index in 0..NODES {
                    let node = &mut self.nodes[index];
                    node.under_way = UnderWay::Disconnected;
                    // An order that the node has not learned yet is lost with the broker that took it.
                    node.is_to_drain = node.arbiter.inventory().draining;
                    self.report_whole(index);
                }
                self.tally.add("broker started again");
            }
        }
        self.invariant_quotas_hold();
    }

    /// Checks that each tenant is within its quota with what it holds and what it could redeem now.
    fn invariant_quotas_hold(&self) {
        let mut held: BTreeMap<String, u64> = BTreeMap::new();
        for node in &self.nodes {
            for has in node.arbiter.inventory().tenants.iter() {
                *held.entry(has.tenant.to_string()).or_default() += u64::from(has.regions);
            }
        }
        for (index, tenant) in TENANTS.iter().enumerate() {
            let held = held.get(*tenant).copied().unwrap_or(0);
            let redeemable = self.promises.iter().filter(|promise| {
                promise.tenant == index
                    && !promise.spent
                    && promise.life == self.life
                    && self.nodes[promise.node].arbiter.incarnation() == promise.ticket.incarnation
                    && self.now_ms - self.began_ms <= promise.ticket.not_after_ms
            });
            let promised: u64 = redeemable.map(|promise| u64::from(promise.ticket.region_count)).sum();
            assert!(
                held + promised <= QUOTAS[index],
                "{tenant} holds {held} and may redeem {promised} of {} regions",
                QUOTAS[index]
            );
        }
        let report = self.broker.status(self.now(), &Name::new("admin").expect("a name"));
        for has in report.tenants.iter() {
            // `promised_bytes` is left out: a ticket redeemed at the last moment counts twice until its end was
            // reported.
            assert!(has.held_bytes <= has.quota_bytes, "{has:?}");
        }
    }
}

fn schedule(random: &mut Random, tally: &mut Tally) -> Vec<Inventory> {
    let mut durable = Durable::default();
    let mut records = Vec::new();
    let now_ms = 1 + random.below(1 << 30);
    let now = MonoNs(now_ms * 1_000_000);
    let mut broker = BrokerLeases::start(now, settings(), durable.clone(), [9; 32], &mut records);
    records.into_iter().for_each(|record| durable.apply(record));
    let open =
        OpenSession { resume: SessionId(0), secret: Secret(0), label: Name::new("client").expect("a name") };
    // Each tenant has two sessions, which share its quota.
    let sessions = (0..6).map(|index| {
        let id = SessionId(index as u64 + 1);
        let opened = broker.open_session(now, &tenant_of(index / 2), &open, id).expect("opened");
        (index / 2, SessionProof { session: opened.session, secret: opened.secret })
    });
    let sessions = sessions.collect();
    let nodes = (0..NODES).map(|index| {
        let ahead_ms = random.below(1 << 20);
        fresh_node(index, Incarnation(index as u64 + 1), ahead_ms)
    });
    let nodes = nodes.collect();
    let mut world = World {
        random,
        tally,
        now_ms,
        began_ms: now_ms,
        life: 1,
        broker,
        durable,
        nodes,
        sessions,
        promises: Vec::new(),
        next: 10,
    };
    for index in 0..NODES {
        world.nodes[index]
            .arbiter
            .to_scrub()
            .into_iter()
            .for_each(|region| world.nodes[index].arbiter.scrub(region));
        world.report_whole(index);
    }
    for _ in 0..STEPS {
        world.step();
    }
    world.nodes.iter().map(|node| node.arbiter.inventory()).collect()
}

#[test]
fn quota_under_random_schedules_is_never_exceeded() {
    let expected = [
        "promised",
        "over quota",
        "none free",
        "redeemed",
        "expired",
        "refused",
        "refused by a draining node",
        "told to drain",
        "told to stay",
        "cut",
        "time jumped",
        "node started again",
        "broker started again",
    ];
    run("quota", 3_000, &expected, schedule);
}

#[test]
fn quota_under_the_same_seed_ends_in_the_same_state() {
    assert_eq!(run_one("quota", 5, &schedule), run_one("quota", 5, &schedule));
}
