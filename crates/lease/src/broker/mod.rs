//! `BrokerLeases` spreads promises over the nodes and keeps the names of published files.
//!
//! The idea: only names, the broker's key and its term must survive a crash, so only these are [`StateChange`]s. All
//! else comes back: sessions prove themselves by a secret derived from the key, nodes send their inventories, and
//! tickets expire. The broker may believe for a moment that a region is free when it is not; then the node refuses.
//!
//! An answer never leaves before its records are durable. Each method returns the records, and the caller
//! commits them first. If that fails, the caller throws this value away and starts again from the store.
//!
//! Invariants, by their numbers in spec/lease.md: I5 (a published name survives), and the broker's half of I6 (it
//! orders the nodes to free regions that nobody owns).

mod catalog;
mod news;
mod nodes;
mod orders;
mod promises;
mod records;
mod repair;
mod segment_seen;
mod segments;
mod snapshots;
mod spread;

pub use news::{LostFiles, News};
pub use records::{CommitRecord, Durable, NamedFile, RegionKey, StateChange, region_key};

use crate::settings::BrokerSettings;
use crate::{tenant, ticket};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Refusal, mutant};
use news::ToldNodes;
use nodes::{Node, Taken};
use repair::Repairs;
use segments::Ranges;
use snapshots::Tables;
use std::collections::BTreeMap;

/// File ids per term (life of the broker): the first id of a term is the term times this number. Terms are above the
/// milliseconds since 1970 at the broker's start, so there are this many ids for each ms.
const FILES_OF_A_TERM: u64 = 1 << 20;

/// Changes of the pool that are kept until [`BrokerLeases::take_news`] returns them. Later ones are dropped.
const NEWS_MAX: usize = 4096;

/// Owners of a region: a published file, or many that share a segment.
#[derive(Clone, Debug)]
struct Owner {
    epoch: Epoch,
    /// Bytes of the region that each file takes.
    files: BTreeMap<FileId, u64>,
}

impl Owner {
    /// Reports whether a file owns the region, or a part of it, at the epoch that `region` says.
    fn is(&self, file: &NamedFile, region: &NamedRegion) -> bool {
        self.epoch == region.epoch && self.files.contains_key(&file.file)
    }

    /// Returns the bytes of the region that published files take.
    fn live_bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// Returns the file that owns the region; the first one if many share it.
    fn file(&self) -> FileId {
        self.files.keys().next().copied().unwrap_or_default()
    }
}

/// Session that has proved itself to this life (since the start) of the broker.
#[derive(Clone, Debug)]
struct Session {
    heard: MonoNs,
    tenant: Name,
}

/// Session in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Id of the session.
    pub session: SessionId,
    /// Tenant of the session.
    pub tenant: Name,
    /// Milliseconds since the broker last heard of the session.
    pub heard_ms_ago: u64,
}

/// Rules of the broker: its durable state, and what it knows of nodes, sessions and promises.
///
/// Methods take the tenant that the connection proves, check what it may do, and return a reply or a refusal.
/// `start` comes first, and `tick` before each request. The broker (`crates/broker`) holds this value under one
/// lock until the records of an answer are in its store.
#[derive(Clone, Debug)]
pub struct BrokerLeases {
    settings: BrokerSettings,
    started: MonoNs,
    /// True if the store has the records of an earlier life, whose nodes may still come to this one.
    has_predecessor: bool,
    durable: Durable,
    key: [u8; 32],
    nodes: BTreeMap<NodeId, Node>,
    sessions: BTreeMap<SessionId, Session>,
    /// Time from which on `tick` looks for silent sessions again.
    tidies: MonoNs,
    /// Time of the last `tick`.
    ticked: MonoNs,
    /// Memory that tenants have taken of their quotas, as the last `tick` that looked found it.
    taken: Taken,
    next_ticket: u64,
    /// Owners of the regions of published files, derived from the catalog.
    owners: BTreeMap<RegionKey, Owner>,
    /// Names of the published files.
    names_of_files: BTreeMap<FileId, Name>,
    /// Highest epoch (fencing counter) at which this life of the broker freed each region: its node was ordered to free
    /// it, or will be. A publication that comes late, or a second time, must not name such bytes.
    given_up: BTreeMap<RegionKey, Epoch>,
    /// Ranges of segments that this life of the broker has taken from a file, until their nodes show them as pending no
    /// more. A publication that comes a second time must not name them.
    let_go: BTreeMap<(RegionKey, Epoch), Ranges>,
    /// Regions of published files that their nodes have taken back, with their last such epochs: the node lives, and
    /// its report shows the region no more. An emergency of the host's memory makes nodes do that.
    taken_back: BTreeMap<RegionKey, Epoch>,
    /// Changes that [`Self::take_news`] has not returned yet.
    news: Vec<News>,
    /// State of each node as the news reported it last.
    told_nodes: ToldNodes,
    /// Copies of published files that are missing, and the orders to make them.
    repairs: Repairs,
    /// Sessions that make lost files again by their recipes.
    rebuilds: BTreeMap<FileId, SessionId>,
    /// Tables with snapshots.
    tables: Tables,
}

fn give_up(given_up: &mut BTreeMap<RegionKey, Epoch>, place: RegionKey, epoch: Epoch) {
    let last = given_up.entry(place).or_insert(epoch);
    *last = epoch.max(*last);
}

impl BrokerLeases {
    /// Begins a new life (run) of the broker over the contents of the store. `fresh_key` is used if the store has no
    /// key.
    pub fn start(
        now: MonoNs,
        settings: impl Into<BrokerSettings>,
        durable: Durable,
        fresh_key: [u8; 32],
        records: &mut Vec<StateChange>,
    ) -> Self {
        let mut broker = BrokerLeases {
            settings: settings.into(),
            started: now,
            has_predecessor: durable.key.is_some(),
            key: durable.key.unwrap_or(fresh_key),
            durable,
            nodes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tidies: now,
            ticked: now,
            taken: Taken::default(),
            next_ticket: 1,
            owners: BTreeMap::new(),
            names_of_files: BTreeMap::new(),
            given_up: BTreeMap::new(),
            let_go: BTreeMap::new(),
            taken_back: BTreeMap::new(),
            news: Vec::new(),
            told_nodes: ToldNodes::new(),
            repairs: Repairs::default(),
            rebuilds: BTreeMap::new(),
            tables: Tables::default(),
        };
        let files: Vec<NamedFile> = broker.durable.names.values().cloned().collect();
        broker.names_of_files =
            broker.durable.names.iter().map(|(name, file)| (file.file, name.clone())).collect();
        for file in files.iter().filter(|_| !mutant!(OwnersForgotten)) {
            broker.own(file);
        }
        broker.begin_tables();
        if broker.durable.key.is_none() {
            broker.persist(StateChange::Key(broker.key), records);
        }
        broker
            .persist(StateChange::Term(Term(broker.durable.term.0 + u64::from(!mutant!(TermKept)))), records);
        // No earlier life of the broker has given a file id as high, even if the store has forgotten the ids it gave.
        let first = broker.durable.term.0.checked_mul(FILES_OF_A_TERM).unwrap_or(0);
        broker.durable.next_file = broker.durable.next_file.max(FileId(first));
        broker
    }

    /// Returns the term, the number of this life of the broker.
    pub fn term(&self) -> Term {
        self.durable.term
    }

    /// Begins a session of a tenant with the random id `fresh`, or resumes one that proves itself.
    pub fn open_session(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        open: &OpenSession,
        fresh: SessionId,
    ) -> Result<SessionOpened, Refusal> {
        let session = if open.resume == SessionId(0) {
            fresh
        } else {
            self.prove(now, tenant, open.resume, open.secret)?;
            open.resume
        };
        self.sessions.insert(session, Session { heard: now, tenant: tenant.clone() });
        let times = &self.settings.lease;
        Ok(SessionOpened {
            session,
            secret: ticket::session_secret(&self.key, session, tenant),
            tenant: tenant.clone(),
            term: self.term(),
            lease_ttl_ms: times.lease_ttl_ms,
            grace_ms: times.grace_ms,
            hosts: self.hosts(now),
        })
    }

    /// Notes that a session lives, and returns the number of hosts on which it can get leases now.
    pub fn keep_session(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        proof: &SessionProof,
    ) -> Result<SessionKept, Refusal> {
        self.prove(now, tenant, proof.session, proof.secret)?;
        Ok(SessionKept { hosts: self.hosts(now) })
    }

    /// Ends a session.
    pub fn close_session(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        proof: &SessionProof,
    ) -> Result<Done, Refusal> {
        self.prove(now, tenant, proof.session, proof.secret)?;
        self.sessions.remove(&proof.session);
        self.tables.forget_sessions(|session| self.sessions.contains_key(session));
        Ok(Done {})
    }

    /// Returns the state of the pool. A caller who may not look at the whole pool sees no other tenant.
    pub fn status(&self, now: MonoNs, tenant: &Name) -> StatusReport {
        let nodes = self.nodes.values().map(|node| NodeStatus {
            info: node.info.clone(),
            alive: self.is_alive(now, node),
            draining: node.says_it_drains(),
            heard_ms_ago: now.ms_since(node.heard),
            present_ms: now.ms_since(node.since),
            counts: node.inventory.as_ref().map(|inventory| inventory.counts.clone()).unwrap_or_default(),
            traffic: node.inventory.as_ref().map(|inventory| inventory.traffic.clone()).unwrap_or_default(),
        });
        let clock = self.clock_ms(now);
        let tickets_open = self.nodes.values().map(|node| node.open_tickets(clock)).sum::<usize>();
        let shows = |of: &Name| tenant::oversees(tenant) || of == tenant;
        let shown = self.durable.names.iter().filter(|(_, file)| shows(&file.tenant));
        let (files, file_bytes) = shown.fold((0, 0), |(count, bytes), (name, file)| {
            (count + u64::from(!catalog::is_reserved(name)), bytes + file.places.bytes())
        });
        let mut shares = self.shares(now);
        for tenant in self.settings.quotas.by_tenant.keys() {
            shares.entry(tenant).or_default();
        }
        let tenants = shares.into_iter().filter(|(tenant, _)| shows(tenant)).take(TENANTS_MAX).map(
            |(tenant, share)| TenantStatus {
                tenant: tenant.clone(),
                held_bytes: share.held,
                promised_bytes: share.promised,
                quota_bytes: self.settings.quotas.of(tenant).unwrap_or(0),
            },
        );
        StatusReport {
            term: self.term(),
            sessions: self.sessions.values().filter(|session| self.is_heard(now, session)).count() as u32,
            files,
            file_bytes,
            tickets_open: tickets_open as u32,
            // Both lists are bounded: nodes by `offer`, tenants by the `take` above.
            nodes: List::new(nodes.collect()).unwrap_or_default(),
            tenants: List::new(tenants.collect()).unwrap_or_default(),
        }
    }

    /// Returns the first `count_max` sessions that the broker has heard of lately, in the order of their ids.
    pub fn sessions(&self, now: MonoNs, count_max: usize) -> Vec<SessionStatus> {
        let heard = self.sessions.iter().filter(|(_, session)| self.is_heard(now, session));
        let listed = heard.map(|(id, session)| SessionStatus {
            session: *id,
            tenant: session.tenant.clone(),
            heard_ms_ago: now.ms_since(session.heard),
        });
        listed.take(count_max).collect()
    }

    /// Applies the passing of time: forgets sessions that have been silent for longer than any of their leases
    /// can live, and nodes that have ended as they were ordered.
    pub fn tick(&mut self, now: MonoNs) {
        let silence_ms = self.silence_ms();
        let gap_ms = now.ms_since(std::mem::replace(&mut self.ticked, now));
        // Sessions renew three times in a lease; without any, only looks come. After a longer gap the process stood
        // still, and what sessions said meanwhile waits. Those that are ended now say again what they hold before any
        // of that ends.
        let between_looks_ms = if self.sessions.is_empty() { self.settings.look_ms } else { 0 };
        if gap_ms > between_looks_ms + silence_ms / 2 {
            self.resume(now);
        }
        if now < self.tidies {
            return;
        }
        self.tidies = now.plus_ms(self.settings.lease.heartbeat_ms.into());
        let news = &mut self.news;
        self.sessions.retain(|id, session| {
            let is_heard = now.ms_since(session.heard) <= silence_ms;
            if !is_heard {
                news.push(News::SessionLost { session: *id, tenant: session.tenant.clone() });
            }
            is_heard
        });
        let sessions = &self.sessions;
        self.rebuilds.retain(|_, session| sessions.contains_key(session));
        self.tables.forget_sessions(|session| sessions.contains_key(session));
        self.forget_ended_nodes(now);
        self.note_nodes(now);
        self.count_taken(now);
        // A caller that never takes the news wants none, so what exceeds the limit is dropped.
        self.news.truncate(NEWS_MAX);
    }

    /// Returns how long a session can be silent and still have leases, in ms.
    fn silence_ms(&self) -> u64 {
        u64::from(self.settings.lease.lease_ttl_ms) + u64::from(self.settings.lease.grace_ms)
    }

    /// Reports whether nodes of an earlier life may not have come to this one yet. Sessions hold their leases for that
    /// long without a broker, so a node that is still useful to them has come by then.
    fn awaits_nodes(&self, now: MonoNs) -> bool {
        self.has_predecessor && now.ms_since(self.started) <= self.silence_ms()
    }

    fn is_heard(&self, now: MonoNs, session: &Session) -> bool {
        now.ms_since(session.heard) <= self.silence_ms()
    }

    /// Returns the broker's clock, by which tickets are timed, in ms since its start.
    fn clock_ms(&self, now: MonoNs) -> u64 {
        now.ms_since(self.started)
    }

    fn persist(&mut self, record: StateChange, records: &mut Vec<StateChange>) {
        let mut before = None;
        if let StateChange::Name(name, _) | StateChange::DropName(name) = &record {
            self.repairs.note_change(name);
            before = self.durable.names.get(name);
            if let Some(before) = before {
                self.names_of_files.remove(&before.file);
            }
        }
        let tenant = match &record {
            StateChange::Commit(at, _) => self.tables.tenant_of(at.table, &self.durable),
            _ => None,
        };
        self.tables.note(&record, before, tenant.as_ref());
        if let StateChange::Name(name, file) = &record {
            self.names_of_files.insert(file.file, name.clone());
        }
        self.durable.apply(record.clone());
        records.push(record);
    }

    fn prove(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        session: SessionId,
        secret: Secret,
    ) -> Result<(), Refusal> {
        let secret_of = |tenant: &Name| ticket::session_secret(&self.key, session, tenant);
        if secret_of(tenant) != secret {
            // A secret is good for one tenant. If it is the secret of another tenant, that shows only for
            // sessions that this life of the broker has heard of.
            let known = self.sessions.get(&session).filter(|known| known.tenant != *tenant);
            return Err(match known {
                Some(known) if secret_of(&known.tenant) == secret => Refusal::new(Code::WrongTenant, 0),
                _ => Refusal::new(Code::WrongSecret, session.0),
            });
        }
        self.sessions.insert(session, Session { heard: now, tenant: tenant.clone() });
        Ok(())
    }
}
