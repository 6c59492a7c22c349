//! `BrokerLeases` spreads promises over the nodes and keeps the names of published files.
//!
//! The idea: of all it knows, only names, its key and its term must survive it, so only those are
//! [`Record`]s. Sessions prove themselves by a secret derived from the key; nodes bring their inventories;
//! tickets expire. What it believes to be free may be wrong for a moment, and then a node refuses.
//!
//! It never answers before the records of the answer are durable: each method returns them, and the caller
//! commits them first. If that fails the caller throws this value away and starts again from the store.
//!
//! Invariants: I5 (a published name survives), and its half of I6 (what nobody owns is dropped).

mod catalog;
mod nodes;
mod promises;
mod records;
mod spread;

pub use records::{Durable, NamedFile, Place, Record, place_of};

use crate::settings::BrokerSettings;
use crate::{tenant, ticket};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Refusal, mutant};
use nodes::Node;
use std::collections::BTreeMap;

/// Ids of files begin at the term times this: so many are there for each of its milliseconds.
const FILES_OF_A_TERM: u64 = 1 << 20;

/// Who has a named region.
#[derive(Clone, Debug)]
struct Owner {
    epoch: Epoch,
    file: FileId,
    /// Whose it is, if its node counts it as the administrator's.
    instead_of_admin: Option<Name>,
}

/// A session that was heard of.
#[derive(Clone, Debug)]
struct Session {
    heard: MonoNs,
    tenant: Name,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct BrokerLeases {
    settings: BrokerSettings,
    started: MonoNs,
    durable: Durable,
    key: [u8; 32],
    nodes: BTreeMap<NodeId, Node>,
    sessions: BTreeMap<SessionId, Session>,
    /// When silent sessions are looked for again.
    tidies: MonoNs,
    next_ticket: u64,
    /// Which file has a region, from the catalog.
    owners: BTreeMap<Place, Owner>,
    /// Up to which epoch a place has been given up in this life: a node was, or will be, told to free it. A
    /// publish that comes late, or a second time, must not name such bytes.
    given_up: BTreeMap<Place, Epoch>,
}

fn give_up(given_up: &mut BTreeMap<Place, Epoch>, place: Place, epoch: Epoch) {
    let last = given_up.entry(place).or_insert(epoch);
    *last = epoch.max(*last);
}

impl BrokerLeases {
    /// A new life over what the store kept. `fresh_key` is used if no key was ever made.
    pub fn start(
        now: MonoNs,
        settings: impl Into<BrokerSettings>,
        durable: Durable,
        fresh_key: [u8; 32],
        records: &mut Vec<Record>,
    ) -> Self {
        let mut broker = BrokerLeases {
            settings: settings.into(),
            started: now,
            key: durable.key.unwrap_or(fresh_key),
            durable,
            nodes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tidies: now,
            next_ticket: 1,
            owners: BTreeMap::new(),
            given_up: BTreeMap::new(),
        };
        let files: Vec<NamedFile> = broker.durable.names.values().cloned().collect();
        for file in files.iter().filter(|_| !mutant!(OwnersForgotten)) {
            broker.own(file);
        }
        if broker.durable.key.is_none() {
            broker.persist(Record::Key(broker.key), records);
        }
        broker.persist(Record::Term(Term(broker.durable.term.0 + u64::from(!mutant!(TermKept)))), records);
        // Whatever the store has forgotten, no earlier life has given an id as high.
        let first = broker.durable.term.0.checked_mul(FILES_OF_A_TERM).unwrap_or(0);
        broker.durable.next_file = broker.durable.next_file.max(FileId(first));
        broker
    }

    /// This life.
    pub fn term(&self) -> Term {
        self.durable.term
    }

    /// Begins a tenant's session with this fresh random id, or resumes one that proves itself.
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

    /// The session lives.
    pub fn keep_session(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        proof: &SessionProof,
    ) -> Result<SessionKept, Refusal> {
        self.prove(now, tenant, proof.session, proof.secret)?;
        Ok(SessionKept { hosts: self.hosts(now) })
    }

    /// The session is over.
    pub fn close_session(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        proof: &SessionProof,
    ) -> Result<Done, Refusal> {
        self.prove(now, tenant, proof.session, proof.secret)?;
        self.sessions.remove(&proof.session);
        Ok(Done {})
    }

    /// The pool at a glance. Whoever does not oversee it is shown no other tenant.
    pub fn status(&self, now: MonoNs, tenant: &Name) -> StatusReport {
        let nodes = self.nodes.values().map(|node| NodeStatus {
            info: node.info.clone(),
            alive: self.is_alive(now, node),
            draining: node.inventory.as_ref().is_some_and(|inventory| inventory.draining),
            heard_ms_ago: now.ms_since(node.heard),
            present_ms: now.ms_since(node.since),
            counts: node.inventory.as_ref().map(|inventory| inventory.counts.clone()).unwrap_or_default(),
            traffic: node.inventory.as_ref().map(|inventory| inventory.traffic.clone()).unwrap_or_default(),
        });
        let clock = self.clock_ms(now);
        let tickets_open = self.nodes.values().map(|node| node.open_tickets(clock)).sum::<usize>();
        let shows = |of: &Name| tenant::oversees(tenant) || of == tenant;
        let shown = self.durable.names.values().filter(|file| shows(&file.tenant));
        let (files, file_bytes) =
            shown.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes()));
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
            // Both are bounded: nodes where they are taken in, tenants here.
            nodes: List::new(nodes.collect()).unwrap_or_default(),
            tenants: List::new(tenants.collect()).unwrap_or_default(),
        }
    }

    /// Lets time pass: forgets sessions that are silent for longer than any lease of theirs can live, and nodes
    /// that have ended as they were told to.
    pub fn tick(&mut self, now: MonoNs) {
        if now < self.tidies {
            return;
        }
        self.tidies = now.plus_ms(self.settings.lease.heartbeat_ms.into());
        let silence_ms = self.silence_ms();
        self.sessions.retain(|_, session| now.ms_since(session.heard) <= silence_ms);
        self.forget_ended_nodes(now);
    }

    /// How long a session can be silent and still have leases.
    fn silence_ms(&self) -> u64 {
        u64::from(self.settings.lease.lease_ttl_ms) + u64::from(self.settings.lease.grace_ms)
    }

    fn is_heard(&self, now: MonoNs, session: &Session) -> bool {
        now.ms_since(session.heard) <= self.silence_ms()
    }

    /// The broker's clock, which tickets are timed by.
    fn clock_ms(&self, now: MonoNs) -> u64 {
        now.ms_since(self.started)
    }

    fn persist(&mut self, record: Record, records: &mut Vec<Record>) {
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
            // A secret is good for one tenant. Whose it is, if not the asker's, is known of sessions that were
            // heard of in this life of the broker.
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
