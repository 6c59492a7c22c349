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

use crate::settings::LeaseSettings;
use crate::ticket::{self, TicketKey};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Opcode, Refusal};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What must be durable before the answer it came with is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The broker's life: each start takes the next.
    Term(Term),
    /// The key from which session secrets are derived; made once.
    Key([u8; 32]),
    /// Ids below this one are taken.
    NextFile(FileId),
    /// The file that has this name from now on.
    Name(Name, NamedFile),
    /// Nobody has this name any more.
    DropName(Name),
}

/// A published file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Its id, whatever its name.
    pub file: FileId,
    /// Its class.
    pub class: FileClass,
    /// Where its bytes are, in file order.
    pub extents: Vec<NamedExtent>,
}

impl NamedFile {
    fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).sum()
    }
}

/// What a store gives back at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// Term of the last life; 0 if there was none.
    pub term: Term,
    /// The key, if one was made.
    pub key: Option<[u8; 32]>,
    /// Ids below this one are taken.
    pub next_file: FileId,
    /// The catalog.
    pub names: BTreeMap<Name, NamedFile>,
}

impl Durable {
    /// Carries out a record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Term(term) => self.term = term,
            Record::Key(key) => self.key = Some(key),
            Record::NextFile(file) => self.next_file = file,
            Record::Name(name, file) => {
                self.names.insert(name, file);
            }
            Record::DropName(name) => {
                self.names.remove(&name);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Node {
    info: NodeInfo,
    ticket_key: TicketKey,
    heard: MonoNs,
    inventory: Option<Inventory>,
    /// What its last inventory showed as sealed.
    sealed: BTreeMap<RegionIndex, Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct OpenTicket {
    node: NodeId,
    incarnation: Incarnation,
    region_count: u32,
    not_after_ms: u64,
}

/// The place of a region in one life of its node.
type Place = (NodeId, Incarnation, RegionIndex);

/// See the module.
#[derive(Clone, Debug)]
pub struct BrokerLeases {
    settings: LeaseSettings,
    started: MonoNs,
    durable: Durable,
    key: [u8; 32],
    nodes: BTreeMap<NodeId, Node>,
    sessions: BTreeMap<SessionId, MonoNs>,
    tickets: BTreeMap<TicketId, OpenTicket>,
    next_ticket: u64,
    /// Which file has a region, from the catalog.
    owners: BTreeMap<Place, (Epoch, FileId)>,
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
        settings: LeaseSettings,
        durable: Durable,
        fresh_key: [u8; 32],
        records: &mut Vec<Record>,
    ) -> Self {
        let mut broker = BrokerLeases {
            settings,
            started: now,
            key: durable.key.unwrap_or(fresh_key),
            durable,
            nodes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 1,
            owners: BTreeMap::new(),
            given_up: BTreeMap::new(),
        };
        for file in broker.durable.names.values() {
            for extent in &file.extents {
                broker
                    .owners
                    .insert((extent.node, extent.incarnation, extent.region), (extent.epoch, file.file));
            }
        }
        if broker.durable.key.is_none() {
            broker.persist(Record::Key(broker.key), records);
        }
        broker.persist(Record::Term(Term(broker.durable.term.0 + 1)), records);
        broker
    }

    /// This life.
    pub fn term(&self) -> Term {
        self.durable.term
    }

    /// A node presents itself; a new incarnation replaces the old one.
    pub fn offer(&mut self, now: MonoNs, offer: Offer) -> Result<Offered, Refusal> {
        if !self.nodes.contains_key(&offer.info.node) && self.nodes.len() >= NODES_MAX {
            return Err(Refusal::new(Code::LimitReached, NODES_MAX as u64));
        }
        let region_bytes = offer.info.region_bytes;
        if !region_bytes.is_power_of_two() || !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region_bytes) {
            return Err(Refusal::new(Code::Malformed, Opcode::Offer as u64));
        }
        let (id, incarnation) = (offer.info.node, offer.info.incarnation);
        self.given_up.retain(|place, _| place.0 != id || place.1 == incarnation);
        let node = Node {
            info: offer.info,
            ticket_key: offer.ticket_key,
            heard: now,
            inventory: None,
            sealed: BTreeMap::new(),
        };
        self.nodes.insert(node.info.node, node);
        Ok(Offered {
            term: self.term(),
            lease_ttl_ms: self.settings.lease_ttl_ms,
            grace_ms: self.settings.grace_ms,
            heartbeat_ms: self.settings.heartbeat_ms,
        })
    }

    /// A node's report, answered by who owns its sealed regions.
    pub fn inventory(&mut self, now: MonoNs, inventory: Inventory) -> Result<Ruling, Refusal> {
        let node =
            self.nodes.get_mut(&inventory.node).ok_or(Refusal::new(Code::NoNodes, inventory.node.0))?;
        if node.info.incarnation != inventory.incarnation {
            return Err(Refusal::new(Code::WrongIncarnation, node.info.incarnation.0));
        }
        if inventory.counts.free as usize > NODE_REGIONS_MAX {
            return Err(Refusal::new(Code::Malformed, Opcode::Inventory as u64));
        }
        node.heard = now;
        for ticket in inventory.spent.iter() {
            self.tickets.remove(ticket);
        }
        let mut adopt = Vec::new();
        let mut drop = Vec::new();
        for owned in inventory.owned.iter() {
            let place = (inventory.node, inventory.incarnation, owned.region);
            let named =
                self.owners.get(&place).filter(|(epoch, _)| *epoch == owned.epoch).map(|(_, file)| *file);
            match (owned.owner, named) {
                (RegionOwner::Session(_), _) => {}
                // Its session may still publish it, unless a name had it already and has let it go.
                (RegionOwner::Sealing(_), None) if self.given_up.get(&place) < Some(&owned.epoch) => {}
                (RegionOwner::Sealing(_) | RegionOwner::Orphan, Some(file)) => {
                    adopt.push(Adoption { region: owned.region, epoch: owned.epoch, file });
                }
                (RegionOwner::Name(has), Some(file)) if has == file => {}
                (RegionOwner::Sealing(_) | RegionOwner::Orphan | RegionOwner::Name(_), _) => {
                    give_up(&mut self.given_up, place, owned.epoch);
                    drop.push(RegionAt { region: owned.region, epoch: owned.epoch });
                }
            }
        }
        let is_sealed = |owned: &&OwnedRegion| !matches!(owned.owner, RegionOwner::Session(_));
        node.sealed =
            inventory.owned.iter().filter(is_sealed).map(|owned| (owned.region, owned.epoch)).collect();
        node.inventory = Some(inventory);
        Ok(Ruling {
            term: self.term(),
            broker_now_ms: now.ms_since(self.started),
            // No longer than the inventory, which has the same limit.
            adopt: List::new(adopt).unwrap_or_default(),
            drop: List::new(drop).unwrap_or_default(),
        })
    }

    /// Begins a session with this fresh random id, or resumes one that proves itself.
    pub fn open_session(
        &mut self,
        now: MonoNs,
        open: &OpenSession,
        fresh: SessionId,
    ) -> Result<SessionOpened, Refusal> {
        let session = if open.resume == SessionId(0) {
            fresh
        } else {
            self.prove(now, open.resume, open.secret)?;
            open.resume
        };
        self.sessions.insert(session, now);
        Ok(SessionOpened {
            session,
            secret: ticket::session_secret(&self.key, session),
            term: self.term(),
            lease_ttl_ms: self.settings.lease_ttl_ms,
            grace_ms: self.settings.grace_ms,
        })
    }

    /// The session lives.
    pub fn keep_session(&mut self, now: MonoNs, proof: &SessionProof) -> Result<Done, Refusal> {
        self.prove(now, proof.session, proof.secret)?;
        Ok(Done {})
    }

    /// The session is over.
    pub fn close_session(&mut self, now: MonoNs, proof: &SessionProof) -> Result<Done, Refusal> {
        self.prove(now, proof.session, proof.secret)?;
        self.sessions.remove(&proof.session);
        Ok(Done {})
    }

    /// Promises at least the bytes asked for, or says how many there are.
    ///
    /// Spread evenly over the nodes by free bytes, nodes on the client's own host first.
    pub fn request_tickets(&mut self, now: MonoNs, request: &RequestTickets) -> Result<Tickets, Refusal> {
        self.prove(now, request.session, request.secret)?;
        let clock = now.ms_since(self.started);
        self.tickets.retain(|_, open| open.not_after_ms >= clock);
        struct Candidate {
            node: NodeId,
            near: bool,
            free: u64,
            region_bytes: u64,
            taken: u32,
        }
        let mut candidates: Vec<Candidate> = self
            .nodes
            .values()
            .filter(|node| self.is_alive(now, node) && !request.avoid.contains(&node.info.incarnation))
            .map(|node| Candidate {
                node: node.info.node,
                near: request.near != 0 && node.info.host_boot == request.near,
                free: self.unpromised_regions(node),
                region_bytes: node.info.region_bytes,
                taken: 0,
            })
            .collect();
        if candidates.is_empty() {
            return Err(Refusal::new(Code::NoNodes, 0));
        }
        let free_bytes: u64 =
            candidates.iter().map(|candidate| candidate.free * candidate.region_bytes).sum();
        if request.bytes == 0 || free_bytes < request.bytes {
            return Err(Refusal::new(Code::Exhausted, free_bytes));
        }
        let mut missing = request.bytes;
        while missing > 0 {
            let best = candidates
                .iter_mut()
                .filter(|candidate| {
                    candidate.free > u64::from(candidate.taken)
                        && (candidate.taken as usize) < LEASE_REGIONS_MAX
                })
                .max_by_key(|candidate| {
                    let left = (candidate.free - u64::from(candidate.taken)) * candidate.region_bytes;
                    (candidate.near, left, std::cmp::Reverse(candidate.node))
                });
            let Some(best) = best else { return Err(Refusal::new(Code::Exhausted, free_bytes - missing)) };
            best.taken += 1;
            missing = missing.saturating_sub(best.region_bytes);
        }
        candidates.retain(|candidate| candidate.taken > 0);
        if candidates.len() > TICKETS_MAX {
            return Err(Refusal::new(Code::LimitReached, TICKETS_MAX as u64));
        }
        let mut offers = Vec::with_capacity(candidates.len());
        for candidate in &candidates {
            let Some(node) = self.nodes.get(&candidate.node) else { continue };
            let id = TicketId(self.next_ticket);
            self.next_ticket += 1;
            let not_after_ms = clock + u64::from(self.settings.ticket_ttl_ms);
            let mut promise = Ticket {
                id,
                term: self.durable.term,
                session: request.session,
                secret_digest: ticket::secret_digest(request.secret),
                node: node.info.node,
                incarnation: node.info.incarnation,
                region_count: candidate.taken,
                class: request.class,
                not_after_ms,
                mac: [0; 32],
            };
            ticket::sign(&mut promise, &node.ticket_key);
            self.tickets.insert(
                id,
                OpenTicket {
                    node: node.info.node,
                    incarnation: node.info.incarnation,
                    region_count: candidate.taken,
                    not_after_ms,
                },
            );
            offers.push(TicketOffer { ticket: promise, node: node.info.clone() });
        }
        let tickets = List::new(offers).map_err(|_| Refusal::new(Code::LimitReached, TICKETS_MAX as u64))?;
        Ok(Tickets { tickets })
    }

    /// Gives sealed extents to a name: one transaction, which frees what the name had before.
    pub fn publish(
        &mut self,
        now: MonoNs,
        publish: &Publish,
        records: &mut Vec<Record>,
    ) -> Result<Published, Refusal> {
        self.prove(now, publish.session, publish.secret)?;
        if let Some(has) = self.durable.names.get(&publish.name) {
            // The same extents again: the first answer was lost on its way.
            if has.extents == *publish.extents {
                return Ok(Published { file: has.file });
            }
            if !publish.replace {
                return Err(Refusal::new(Code::NameTaken, has.file.0));
            }
        }
        let mut epochs: BTreeMap<Place, Epoch> = BTreeMap::new();
        for extent in publish.extents.iter() {
            // A node not heard of since the broker started may still come: that is not a loss.
            let node = self.nodes.get(&extent.node).ok_or(Refusal::new(Code::NoNodes, extent.node.0))?;
            if node.info.incarnation != extent.incarnation {
                return Err(Refusal::new(Code::FileLost, extent.node.0));
            }
            let ends_at = extent.region_offset.checked_add(extent.bytes);
            if extent.bytes == 0 || ends_at.is_none_or(|end| end > node.info.region_bytes) {
                return Err(Refusal::new(Code::OutOfBounds, node.info.region_bytes));
            }
            if extent.region.0 as usize >= NODE_REGIONS_MAX {
                return Err(Refusal::new(Code::NoSuchRegion, NODE_REGIONS_MAX as u64));
            }
            let place = (extent.node, extent.incarnation, extent.region);
            // A named region stays at its epoch until its name lets it go, so any other epoch is a wrong one.
            if let Some((epoch, file)) = self.owners.get(&place) {
                return Err(match *epoch == extent.epoch {
                    true => Refusal::new(Code::NameTaken, file.0),
                    false => Refusal::new(Code::StaleEpoch, epoch.0),
                });
            }
            if let Some(epoch) = self.given_up.get(&place)
                && *epoch >= extent.epoch
            {
                return Err(Refusal::new(Code::StaleEpoch, epoch.0));
            }
            if *epochs.entry(place).or_insert(extent.epoch) != extent.epoch {
                return Err(Refusal::new(Code::StaleEpoch, extent.epoch.0));
            }
            // Only what the node itself has shown as sealed to this life of the broker: the asker may have
            // published it to an earlier life, which has let it go since.
            if node.sealed.get(&extent.region) != Some(&extent.epoch) {
                return Err(Refusal::new(Code::NotReported, extent.node.0));
            }
        }
        let file = self.durable.next_file;
        self.persist(Record::NextFile(FileId(file.0 + 1)), records);
        self.forget(&publish.name);
        for extent in publish.extents.iter() {
            self.owners.insert((extent.node, extent.incarnation, extent.region), (extent.epoch, file));
        }
        let named = NamedFile { file, class: publish.class, extents: publish.extents.to_vec() };
        self.persist(Record::Name(publish.name.clone(), named), records);
        Ok(Published { file })
    }

    /// Where the bytes of a name are.
    pub fn open_name(&self, name: &Name) -> Result<Opened, Refusal> {
        let file = self.durable.names.get(name).ok_or(Refusal::new(Code::NoSuchName, 0))?;
        let mut nodes: BTreeMap<NodeId, NodeInfo> = BTreeMap::new();
        for extent in &file.extents {
            // A node not heard of since the broker started may still come: that is not a loss.
            let node = self.nodes.get(&extent.node).ok_or(Refusal::new(Code::NoNodes, extent.node.0))?;
            if node.info.incarnation != extent.incarnation {
                return Err(Refusal::new(Code::FileLost, extent.node.0));
            }
            nodes.insert(extent.node, node.info.clone());
        }
        let nodes = List::new(nodes.into_values().collect());
        let extents = List::new(file.extents.clone());
        match (nodes, extents) {
            (Ok(nodes), Ok(extents)) => Ok(Opened { file: file.file, class: file.class, extents, nodes }),
            _ => Err(Refusal::new(Code::LimitReached, NAMED_EXTENTS_MAX as u64)),
        }
    }

    /// Forgets a name; its nodes are told to free the bytes at their next report.
    pub fn drop_name(&mut self, name: &Name, records: &mut Vec<Record>) -> Result<Done, Refusal> {
        if !self.durable.names.contains_key(name) {
            return Err(Refusal::new(Code::NoSuchName, 0));
        }
        self.forget(name);
        self.persist(Record::DropName(name.clone()), records);
        Ok(Done {})
    }

    /// Gives a file another name.
    pub fn rename(&mut self, rename: &Rename, records: &mut Vec<Record>) -> Result<Done, Refusal> {
        let file = self.durable.names.get(&rename.from).ok_or(Refusal::new(Code::NoSuchName, 0))?.clone();
        if let Some(has) = self.durable.names.get(&rename.to) {
            return Err(Refusal::new(Code::NameTaken, has.file.0));
        }
        self.persist(Record::DropName(rename.from.clone()), records);
        self.persist(Record::Name(rename.to.clone(), file), records);
        Ok(Done {})
    }

    /// A page of names in their order.
    pub fn list_names(&self, list: &ListNames) -> Names {
        let after = Name::new(list.after.to_string()).ok();
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut names = Vec::new();
        let mut more = false;
        for (name, file) in self.durable.names.range::<Name, _>((from, Bound::Unbounded)) {
            if !name.starts_with(&*list.prefix) {
                continue;
            }
            if names.len() == NAMES_PAGE_MAX {
                more = true;
                break;
            }
            let lost = file.extents.iter().any(|extent| {
                self.nodes.get(&extent.node).is_some_and(|node| node.info.incarnation != extent.incarnation)
            });
            names.push(NameInfo {
                name: name.clone(),
                file: file.file,
                class: file.class,
                bytes: file.bytes(),
                lost,
            });
        }
        Names { names: List::new(names).unwrap_or_default(), more }
    }

    /// The pool at a glance.
    pub fn status(&self, now: MonoNs) -> StatusReport {
        let nodes = self.nodes.values().map(|node| NodeStatus {
            info: node.info.clone(),
            alive: self.is_alive(now, node),
            heard_ms_ago: now.ms_since(node.heard),
            counts: node.inventory.as_ref().map(|inventory| inventory.counts.clone()).unwrap_or_default(),
            traffic: node.inventory.as_ref().map(|inventory| inventory.traffic.clone()).unwrap_or_default(),
        });
        let clock = now.ms_since(self.started);
        StatusReport {
            term: self.term(),
            sessions: self.sessions.len() as u32,
            files: self.durable.names.len() as u64,
            file_bytes: self.durable.names.values().map(NamedFile::bytes).sum(),
            tickets_open: self.tickets.values().filter(|open| open.not_after_ms >= clock).count() as u32,
            nodes: List::new(nodes.collect()).unwrap_or_default(),
        }
    }

    /// Lets time pass: forgets sessions that are silent for longer than any lease of theirs can live.
    pub fn tick(&mut self, now: MonoNs) {
        let silence_ms = u64::from(self.settings.lease_ttl_ms) + u64::from(self.settings.grace_ms);
        self.sessions.retain(|_, heard| now.ms_since(*heard) <= silence_ms);
        let clock = now.ms_since(self.started);
        self.tickets.retain(|_, open| open.not_after_ms >= clock);
    }

    fn persist(&mut self, record: Record, records: &mut Vec<Record>) {
        self.durable.apply(record.clone());
        records.push(record);
    }

    fn forget(&mut self, name: &Name) {
        if let Some(file) = self.durable.names.get(name) {
            for extent in &file.extents {
                let place = (extent.node, extent.incarnation, extent.region);
                self.owners.remove(&place);
                give_up(&mut self.given_up, place, extent.epoch);
            }
        }
    }

    fn prove(&mut self, now: MonoNs, session: SessionId, secret: Secret) -> Result<(), Refusal> {
        if ticket::session_secret(&self.key, session) != secret {
            return Err(Refusal::new(Code::WrongSecret, session.0));
        }
        self.sessions.insert(session, now);
        Ok(())
    }

    fn is_alive(&self, now: MonoNs, node: &Node) -> bool {
        node.inventory.is_some() && now.ms_since(node.heard) <= u64::from(self.settings.node_silence_ms)
    }

    fn unpromised_regions(&self, node: &Node) -> u64 {
        let free = node.inventory.as_ref().map_or(0, |inventory| u64::from(inventory.counts.free));
        let promised: u64 = self
            .tickets
            .values()
            .filter(|open| open.node == node.info.node && open.incarnation == node.info.incarnation)
            .map(|open| u64::from(open.region_count))
            .sum();
        free.saturating_sub(promised)
    }
}
