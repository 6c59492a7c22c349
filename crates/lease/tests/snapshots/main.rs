//! One broker with tables of two tenants, that sessions change and read under random schedules. Answers are lost and
//! requests come again, sessions and leaders end, snapshots end by count and by age. After every step each snapshot
//! that is the latest of its table, or that a session holds, has its root and all of its parts. At the end nothing is
//! left but the latest snapshots, and then nothing at all.

#[path = "../schedule/mod.rs"]
mod schedule;

mod commits;
mod holds;

use farpool_lease::broker::{Durable, StateChange};
use farpool_lease::{BrokerLeases, BrokerSettings, LeaseSettings, SnapshotSettings};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MAX;
use farpool_wire::*;
use schedule::{Random, Tally, run};
use std::collections::{BTreeMap, BTreeSet};

const TENANTS: [&str; 4] = ["red", "red", "red", "blue"];
const TABLES_OF_TENANT: u64 = 3;
const STEPS: u64 = 300;
const PART_BYTES: u64 = 4_096;
const LEASE: LeaseSettings = LeaseSettings {
    lease_ttl_ms: 5_000,
    grace_ms: 2_000,
    ticket_ttl_ms: 6_000,
    heartbeat_ms: 250,
    node_silence_ms: 1_000,
};
/// Time for which a leader that was deposed may not notice, in ms.
const FAILOVER_MS: u64 = 20_000;
/// Time for which a new leader waits for its sessions, in ms.
const AWAITED_MS: u64 = 5_000 + 2_000 + 1_000 + FAILOVER_MS;
const SNAPSHOTS: SnapshotSettings =
    SnapshotSettings { count_max: 3, age_ms_max: 60_000, hold_ms_max: 600_000 };

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Part of a table, and the snapshot that has it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    at: PartAt,
    added: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot {
    root: FileId,
    parts: BTreeSet<Part>,
    /// Time at which another one followed, in ms.
    replaced_ms: Option<u64>,
}

#[derive(Clone, Debug)]
struct Table {
    id: TableId,
    tenant: Name,
    snapshots: BTreeMap<u64, Snapshot>,
}

impl Table {
    fn latest(&self) -> (u64, &Snapshot) {
        let (number, snapshot) = self.snapshots.last_key_value().expect("one at least");
        (*number, snapshot)
    }
}

#[derive(Clone, Debug, Default)]
struct Client {
    proof: Option<SessionProof>,
    holds: BTreeSet<SnapshotAt>,
    /// True if the present leader knows what the session holds.
    has_said: bool,
    /// True if the session still asks the leader before.
    is_behind: bool,
    /// Number of the session's last request about what it holds.
    number: u64,
    /// Request to hold snapshots of which the session has given up the answer.
    late: Option<HoldSnapshots>,
    /// Parts that were published ahead: the table, the commit, and how many.
    ahead: Vec<(Name, TableId, CommitId, u32)>,
}

/// Commit that was made: its tenant, the time in ms, what it asked, and the answer.
type Made = (Name, u64, CommitTables, TablesCommitted);

/// Commit of a session that is silent: its tenant, what it will ask, the parts that the table then has, and how many of
/// them were published ahead.
type Late = (Name, CommitTables, BTreeSet<Part>, u32);

/// Time for which the broker knows a commit at least, in ms.
const KNOWN_MS: u64 = 600_000;

struct World<'a> {
    random: &'a mut Random,
    tally: &'a mut Tally,
    now_ms: u64,
    durable: Durable,
    broker: BrokerLeases,
    /// Leader before, which has not noticed, and the time at which it does, in ms.
    deposed: Option<(BrokerLeases, u64)>,
    /// Time by which the wall clock is ahead, in ms.
    wall_ahead_ms: u64,
    /// Bytes of the node's one segment that are in use.
    end: u64,
    /// Ranges of it that are pending, and the sessions that may publish them.
    pending: BTreeMap<u32, SessionId>,
    clients: Vec<Client>,
    tables: BTreeMap<Name, Table>,
    /// Tables of one file, without snapshots.
    plain: BTreeMap<Name, FileId>,
    made: Vec<Made>,
    late: Vec<Late>,
    /// Requests to publish parts ahead that were answered, with their tenants: they may come again.
    added: Vec<(Name, AddParts)>,
    next: u64,
}

fn settings() -> BrokerSettings {
    BrokerSettings {
        lease: LEASE,
        snapshots: SNAPSHOTS,
        failover_ms: FAILOVER_MS,
        ..BrokerSettings::default()
    }
}

/// Returns the ranges of parts, which are in order.
fn ranges<const MAX: usize>(parts: &BTreeSet<Part>) -> List<PartRange, MAX> {
    let mut ranges: Vec<PartRange> = Vec::new();
    for Part { at, added } in parts {
        match ranges.last_mut() {
            Some(last) if (last.commit, last.added, last.last + 1) == (at.commit, *added, at.index) => {
                last.last += 1;
            }
            _ => ranges.push(PartRange { added: *added, commit: at.commit, first: at.index, last: at.index }),
        }
    }
    List::new(ranges).expect("few")
}

impl World<'_> {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn now(&self) -> MonoNs {
        MonoNs(self.now_ms * 1_000_000)
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.now_ms + self.wall_ahead_ms
    }

    fn keep(&mut self, records: Vec<StateChange>) {
        records.into_iter().for_each(|record| self.durable.apply(record));
    }

    /// Has the node report its one segment.
    fn report(&mut self) {
        let info = NodeInfo {
            node: NodeId(1),
            name: name("n"),
            incarnation: Incarnation(1),
            address: Text::default(),
            shm_socket: Text::default(),
            host_boot: 0,
            host_label: name("h"),
            region_bytes: REGION_BYTES_MAX,
        };
        let connection = self.fresh();
        let offer = Offer { info, ticket_key: [5; 32] };
        self.broker.offer(self.now(), connection, offer).expect("one node");
        let pending = self.pending.iter().map(|(offset, session)| PendingRange {
            offset: *offset,
            bytes: PART_BYTES as u32,
            owner: RegionOwner::Sealing(*session),
        });
        let held = SegmentHeld {
            region: RegionIndex(0),
            epoch: Epoch(1),
            end: self.end as u32,
            is_open: true,
            pending: List::new(pending.collect()).expect("few"),
        };
        let report = SegmentReport {
            node: NodeId(1),
            incarnation: Incarnation(1),
            segments: List::new(vec![held]).expect("one"),
        };
        let ruling = self.broker.segments(connection, &report).expect("joined");
        assert!(ruling.dropped.is_empty() || self.durable.names.is_empty(), "the segment is in use");
        for settled in ruling.settled.iter() {
            self.pending.remove(&settled.offset);
        }
    }

    /// Seals the places of a file.
    fn seal(&mut self, session: SessionId) -> Places {
        let offset = self.end;
        self.end += PART_BYTES;
        self.pending.insert(offset as u32, session);
        let region = NamedRegion {
            node: NodeId(1),
            incarnation: Incarnation(1),
            region: RegionIndex(0),
            epoch: Epoch(1),
            handle: Handle(7),
        };
        let mut adding = PlacesBuilder::default();
        adding.push(PART_BYTES, [(region, offset)]).expect("fits");
        adding.finish().expect("fits")
    }

    fn new_parts<const MAX: usize>(
        &mut self,
        session: SessionId,
        first: u32,
        count: u32,
    ) -> List<NewPart, MAX> {
        let part = |index| NewPart { index, copies_wanted: 1, places: self.seal(session) };
        List::new((first..first + count).map(part).collect()).expect("few")
    }

    fn session(&mut self, client: usize) -> SessionProof {
        if let Some(proof) = self.clients[client].proof.clone() {
            return proof;
        }
        let fresh = SessionId(self.fresh());
        let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
        let opened =
            self.broker.open_session(self.now(), &name(TENANTS[client]), &open, fresh).expect("opened");
        let proof = SessionProof { session: opened.session, secret: opened.secret };
        self.clients[client] = Client { proof: Some(proof.clone()), has_said: true, ..Client::default() };
        proof
    }

    fn table_name(&mut self, client: usize) -> Name {
        name(&format!("tables/{}-{}", TENANTS[client], self.random.below(TABLES_OF_TENANT)))
    }

    fn is_past_holding(&self, table: &Table, number: u64) -> bool {
        let replaced = table.snapshots[&number].replaced_ms;
        replaced.is_some_and(|replaced| self.now_ms - replaced >= SNAPSHOTS.hold_ms_max)
    }

    fn drop_table(&mut self) {
        let names: Vec<Name> = self.tables.keys().cloned().collect();
        let Some(of) = self.random.pick(&names) else { return };
        let table = self.tables.remove(&of).expect("it is one of them");
        let mut records = Vec::new();
        self.broker.drop_name(&table.tenant, &of, &mut records).expect("it is there");
        self.keep(records);
        self.tally.add("dropped");
    }

    fn rename(&mut self) {
        let names: Vec<Name> = self.tables.keys().cloned().collect();
        let Some(from) = self.random.pick(&names) else { return };
        let tenant = self.tables[&from].tenant.clone();
        let to = name(&format!("tables/{tenant}-{}", self.random.below(TABLES_OF_TENANT)));
        if self.tables.contains_key(&to) || self.plain.contains_key(&to) {
            return;
        }
        let mut records = Vec::new();
        let rename = Rename { from: from.clone(), to: to.clone() };
        self.broker.rename(&tenant, &rename, &mut records).expect("the name is free");
        self.keep(records);
        let table = self.tables.remove(&from).expect("it is there");
        self.tables.insert(to, table);
        self.tally.add("renamed");
    }

    fn tidy(&mut self) -> bool {
        let mut records = Vec::new();
        let more = self.broker.tidy_tables(self.now(), self.wall_ms(), &mut records);
        let prefix = farpool_wire::control::SNAPSHOTS;
        let ended =
            |record: &StateChange| matches!(record, StateChange::DropName(name) if name.starts_with(prefix));
        if records.iter().any(ended) {
            self.tally.add("snapshot ended");
        }
        self.keep(records);
        more
    }

    /// Lets time pass. Sessions that live say so in time.
    fn wait(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.now_ms = until.min(self.now_ms + 2_000);
            if self.deposed.as_ref().is_some_and(|(_, until_ms)| self.now_ms >= *until_ms) {
                self.notice();
            }
            (0..TENANTS.len()).for_each(|client| self.renew(client));
            self.tidy();
        }
    }

    /// Has the leader stand still, for a moment or for longer than it waits for sessions. They live on, and come to it
    /// afterwards.
    fn stall(&mut self) {
        self.now_ms += 1 + self.random.below(AWAITED_MS + 20_000);
        self.notice();
        self.clients.iter_mut().for_each(|client| client.has_said = false);
        self.tidy();
        self.tally.add("leader stood still");
    }

    fn end_session(&mut self, client: usize) {
        let Some(proof) = self.clients[client].proof.take() else { return };
        if self.random.percent(50) {
            self.broker.close_session(self.now(), &name(TENANTS[client]), &proof).expect("its own");
        }
        self.pending.retain(|_, owner| *owner != proof.session);
        self.clients[client] = Client::default();
        self.tally.add("session ended");
    }

    fn restart(&mut self) {
        let mut records = Vec::new();
        self.broker =
            BrokerLeases::start(self.now(), settings(), self.durable.clone(), [4; 32], &mut records);
        self.keep(records);
        self.notice();
        self.clients.iter_mut().for_each(|client| client.has_said = false);
        // A commit that came to an earlier life, and was dropped there, may come to this one, while nodes have not
        // heard of its fate.
        let ids: BTreeSet<TableId> = self.tables.values().map(|table| table.id).collect();
        self.made.retain(|(.., commit, _)| commit.changes.iter().all(|change| ids.contains(&change.table)));
        self.report();
        self.tally.add("another leader");
    }

    fn step(&mut self) {
        let client = self.random.below(TENANTS.len() as u64) as usize;
        match self.random.below(100) {
            0..40 => self.commit(client),
            40..45 => self.add_ahead(client),
            45..47 => self.publish_plain(client),
            47 => self.add_again(),
            48..54 => self.commit_again(),
            54..66 => self.open(client),
            66..70 => self.hold(client),
            70 => self.hold_late(client),
            71 => self.wall_ahead_ms = self.random.below(4 * SNAPSHOTS.hold_ms_max),
            72..79 => _ = self.tidy(),
            79 => self.stall(),
            80..82 => self.drop_table(),
            82..84 => self.rename(),
            84 => self.end_session(client),
            85 => self.fall_silent(client),
            86 => self.restart(),
            87..89 => self.depose(),
            89 => self.wait(70_000),
            91..94 => self.commit_late(),
            90 if self.random.percent(20) => self.wait(700_000),
            _ => {
                let ms_max = if self.random.percent(20) { 15_000 } else { 1_500 };
                let ms = 1 + self.random.below(ms_max);
                self.wait(ms);
            }
        }
        self.check();
    }

    fn has(&self, name: &Name) -> bool {
        self.durable.names.contains_key(name)
    }

    /// Checks that what somebody may read or commit is there.
    fn check(&self) {
        for (of, table) in &self.tables {
            let (latest, _) = table.latest();
            for (number, snapshot) in &table.snapshots {
                let at = SnapshotAt { table: table.id, snapshot: *number };
                let is_held = self.clients.iter().any(|client| client.holds.contains(&at));
                if *number != latest && (!is_held || self.is_past_holding(table, *number)) {
                    continue;
                }
                let root = if *number == latest { of.clone() } else { snapshot_name(at) };
                let file = self.durable.names.get(&root);
                assert_eq!(file.map(|file| file.file), Some(snapshot.root), "the root of {at:?} of {of:?}");
                for part in &snapshot.parts {
                    assert!(self.has(&part_name(table.id, part.at)), "{part:?} of {at:?} of {of:?}");
                }
            }
        }
        for (of, file) in &self.plain {
            assert_eq!(self.durable.names.get(of).map(|file| file.file), Some(*file), "{of:?}");
        }
        for client in self.clients.iter().filter(|client| client.proof.is_some()) {
            for (of, table, commit, count) in &client.ahead {
                // Those for a table that was dropped may be gone.
                let is_there = self.tables.get(of).is_some_and(|now| now.id == *table);
                let is_new = table.0 == commit.0;
                for index in (0..*count).filter(|_| is_there || is_new) {
                    let part = PartAt { commit: *commit, index };
                    assert!(self.has(&part_name(*table, part)), "{part:?}, published ahead, of {of:?}");
                }
            }
        }
    }

    fn tidy_all(&mut self) {
        for _ in 0..1_000 {
            if !self.tidy() {
                return;
            }
        }
        panic!("there is always more to tidy");
    }

    /// Checks that nothing is left but the latest snapshots, once nobody holds others, and then nothing.
    fn end(&mut self) {
        (0..TENANTS.len()).for_each(|client| self.end_session(client));
        self.wait(AWAITED_MS + SNAPSHOTS.hold_ms_max);
        self.tidy_all();
        self.wait(SNAPSHOTS.hold_ms_max);
        self.tidy_all();
        // Commits are forgotten once what they removed is gone.
        self.tidy_all();
        self.check();
        let mut left: BTreeSet<Name> = self.tables.keys().chain(self.plain.keys()).cloned().collect();
        for table in self.tables.values() {
            let (_, latest) = table.latest();
            left.extend(latest.parts.iter().map(|part| part_name(table.id, part.at)));
        }
        let has: BTreeSet<Name> = self.durable.names.keys().cloned().collect();
        assert_eq!(has, left, "only the latest snapshots are left");
        assert_eq!(self.durable.commits.len(), self.tables.len(), "old commits are forgotten");
        let mut records = Vec::new();
        for of in self.plain.keys() {
            self.broker.drop_name(&name("admin"), of, &mut records).expect("it is there");
        }
        self.keep(records);
        while !self.tables.is_empty() {
            self.drop_table();
        }
        self.tidy_all();
        assert!(self.durable.names.is_empty(), "{:?}", self.durable.names.keys());
        assert!(self.durable.commits.is_empty() && self.durable.open_commits.is_empty());
    }
}

#[test]
fn each_snapshot_that_is_held_has_its_parts_and_no_other_parts_stay() {
    let expected = [
        "committed",
        "two tables changed",
        "conflict",
        "commit of a dropped table",
        "commit that removes what is not there",
        "repeated commit answered as done",
        "rolled back",
        "new table in the place of another",
        "published ahead",
        "table of one file became a part",
        "given up",
        "opened",
        "snapshot has ended",
        "snapshot ended",
        "held for too long, or dropped",
        "dropped",
        "renamed",
        "session ended",
        "silent ahead of a commit",
        "late commit made",
        "late commit refused",
        "leader lost before a commit was stored",
        "leader lost after a commit was stored",
        "another leader",
        "leader stood still",
        "leader deposed that has not noticed",
        "opened at a leader that was deposed",
        "renewal came late",
        "late parts refused",
        "another part published late",
        "parts of an earlier try left over",
    ];
    run("snapshots", 600, &expected, |random, tally| {
        let (mut durable, mut records) = (Durable::default(), Vec::new());
        let broker = BrokerLeases::start(MonoNs(1), settings(), Durable::default(), [4; 32], &mut records);
        records.into_iter().for_each(|record| durable.apply(record));
        let mut world = World {
            random,
            tally,
            now_ms: 1,
            durable,
            broker,
            deposed: None,
            wall_ahead_ms: 0,
            end: 0,
            pending: BTreeMap::new(),
            clients: vec![Client::default(); TENANTS.len()],
            tables: BTreeMap::new(),
            plain: BTreeMap::new(),
            made: Vec::new(),
            late: Vec::new(),
            added: Vec::new(),
            next: 100,
        };
        for _ in 0..STEPS {
            world.step();
        }
        world.end();
    });
}
