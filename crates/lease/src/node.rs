//! `NodeLeases` decides about the regions (blocks of memory of one size) of one node: it turns tickets, the broker's
//! signed promises, into leases, raises epochs, seals regions, expires leases and takes regions back. A region's epoch
//! is a counter that each access must name.
//!
//! The idea: a region is always in exactly one state. An open epoch ends only through `Close`, which raises the epoch
//! and waits until no copy of bytes under the old epoch is running. Whatever a delayed message, a late client or a
//! second broker asks for afterwards carries an old epoch and is refused.
//!
//! This module never touches a byte. It returns [`Action`]s, which say in order what must happen to the memory and to
//! the gates that admit or refuse accesses, and the node calls `scrubbed` when a region is clean. A reply leaves only
//! after its actions are carried out.
//!
//! Invariants, by their numbers in spec/lease.md: I1 (one writable epoch per region: a writable `Open` follows `Close`
//! and a scrub, never another `Open`), I2 (epochs only grow), I4 (only scrubbed regions are granted), I6 (a silent
//! session owns nothing after TTL + grace).

mod copying;
mod redeeming;
mod sealing;
mod segments;
mod withdrawal;

pub use segments::{RANGE_SHARE, Reserved};
pub use withdrawal::Withdrawal;

use crate::settings::LeaseSettings;
use crate::tenant::{TenantCounts, TenantIndex};
use crate::ticket::{self, TicketKey};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Refusal, mutant};
use segments::Segment;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Order to change a region's memory, or its gate, which admits or refuses accesses. The node carries actions out in
/// the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Order to admit operations that name one epoch.
    Open {
        /// Region to open.
        region: RegionIndex,
        /// Epoch of the operations that are admitted.
        epoch: Epoch,
        /// True if the holder of `handle` may write; else it may only read.
        writable: bool,
        /// Random capability that admits its holder.
        handle: Handle,
    },
    /// Order to admit operations that name one epoch of a segment, which the node itself fills.
    OpenSegment {
        /// Region to open.
        region: RegionIndex,
        /// Epoch of the operations that are admitted.
        epoch: Epoch,
        /// Right to write, which never leaves the node.
        own: Handle,
        /// Right to read.
        handle: Handle,
    },
    /// Order to refuse everybody until `Resume`; the bytes stay.
    Suspend(RegionIndex),
    /// Counterpart of `Suspend`: the order to admit the same epoch and handle again.
    Resume(RegionIndex),
    /// Order to refuse everybody for good: to set the epoch, then to wait until no copy is running.
    Close {
        /// Region to close.
        region: RegionIndex,
        /// Epoch of the region from now on.
        epoch: Epoch,
    },
    /// Order to zero the region, and then to call [`NodeLeases::scrubbed`].
    Scrub(RegionIndex),
    /// Order to return the pages of a clean region to the host.
    GiveBack(RegionIndex),
}

/// State of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Zeroed, so it may be granted.
    Free,
    /// Leased to this session.
    Leased(SessionId),
    /// Made immutable by this session, and owned by no name (published file) yet. The read handle is kept so that a
    /// repeated `seal` gets the same answer.
    Sealing { session: SessionId, handle: Handle },
    /// Sealed by a session that has ended or released it. The broker has not ruled yet if a name owns it.
    Orphan,
    /// Being filled by the node itself, with copies of a published file.
    Copying,
    /// Has such copies and is immutable. The broker does not know yet, as far as the node knows.
    Copied,
    /// Owned by this published file.
    Named(FileId),
    /// Filled by the node with ranges of many published files.
    Segment,
    /// Being zeroed, or being made mappable by clients of this host.
    Cleaning,
    /// Has no memory: its pages went back to the host.
    Away,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    epoch: Epoch,
    state: State,
    /// Tenant and class of its last lease. Neither has a meaning while the region is free, cleaning or away.
    tenant: TenantIndex,
    class: FileClass,
}

#[derive(Clone, Debug)]
struct Session {
    secret_digest: u128,
    tenant: Name,
    /// End of its leases. They are suspended then, and freed at `deadline + grace`.
    deadline: MonoNs,
    suspended: bool,
    /// Time until which the session is asked to move its scratch regions elsewhere; `None` if it may keep them.
    leaves: Option<MonoNs>,
    regions: BTreeSet<RegionIndex>,
    /// Grants for its last tickets, the oldest first, for [`NodeLeases::redeemed`].
    granted: VecDeque<(Term, TicketId, List<Grant, LEASE_REGIONS_MAX>)>,
    /// Answers to its last requests to copy ranges into segments, the oldest first.
    ranges_sealed: VecDeque<(u64, RangesSealed)>,
}

impl Session {
    /// Extends the leases until `deadline`, also those that are suspended in their grace.
    fn extend(&mut self, deadline: MonoNs, actions: &mut Vec<Action>) {
        self.deadline = deadline;
        if std::mem::take(&mut self.suspended) {
            let resumed = self.regions.iter().filter(|_| !mutant!(ResumeForgotten));
            actions.extend(resumed.map(|region| Action::Resume(*region)));
        }
    }
}

/// Broker's clock as the last ruling (the broker's answer to a report of this node) showed it.
#[derive(Clone, Copy, Debug)]
struct BrokerClock {
    /// Time of the broker's clock, in ms since the broker's start.
    broker_ms: u64,
    /// This node's time at which it sent the report that the ruling answers.
    heard: MonoNs,
}

/// Rules for the leases of one node: a state for each region, the sessions and the spent tickets.
///
/// Apart from `new` and `set_firm_max`, which set it up, there are six kinds of methods:
///
/// * *Requests of clients*: `redeem`, `redeemed`, `renew`, `release`, `seal`. Each checks who asks, then returns the
///   reply or a refusal. `redeem` comes first, because it is how a session becomes known.
/// * *Decisions of others*: `offered` and `rule` (the broker), `limit` (the host's memory), `tick` (time),
///   `abandon` (a grant that could not be opened).
/// * *Copies of published files*, which the node makes itself: `begin_copying`, then `abandon_copying`, or
///   `end_copying` and `copies_known`.
/// * *Ranges of small published files*, which the node copies into segments: `begin_filling`, then `end_filling` or
///   `abandon_filling`, the same for its own copies, and `rule_segments`.
/// * *Reports of finished work*: `scrubbed` after each `Action::Scrub` and once for every region after `new`;
///   `take_to_make_mappable`, followed by `made_mappable` or `scrubbed`.
/// * *Queries*, which change nothing: `inventory`, `epoch_of`, `is_suspended`, `surplus`, `present`, `is_away`,
///   `is_evacuating`, `is_draining`, `may_end`, `may_leave`, `next_deadline`.
///
/// A method that has effects appends [`Action`]s to its argument or returns one. The caller carries them out in
/// order, before it sends the reply.
///
/// The service of a node, `NodeService` in `crates/node`, holds this value in one mutex, the lease lock. Request
/// threads, the loops for expiry and wiping, the report to the broker and the watch on memory take it for each call.
/// They hold it until the actions have suspended or closed their gates, so that two decisions about one region reach
/// its gate in order. Work that takes long is done without the lock: wiping, opening granted or sealed regions, and
/// returning the pages of many regions. If a region is taken back before it is opened, its gate refuses to open at the
/// old epoch.
#[derive(Clone, Debug)]
pub struct NodeLeases {
    node: NodeId,
    incarnation: Incarnation,
    ticket_key: TicketKey,
    lease_ttl_ms: u32,
    grace_ms: u32,
    /// Highest term (number of a broker's life) that the node has heard of.
    term: Term,
    /// `None` until a ruling of this term has come.
    clock: Option<BrokerClock>,
    regions: Vec<Region>,
    free: BTreeSet<RegionIndex>,
    /// Free regions whose memory a client on this host can map at once.
    mappable: BTreeSet<RegionIndex>,
    /// True once the present broker has answered a report about segments. One of an earlier version never does.
    has_segments: bool,
    /// Segments that may be opened until the broker's next ruling, for tenants that have a quota.
    segments_left: BTreeMap<Name, u32>,
    /// The same for each other tenant.
    segments_left_others: u32,
    /// Segments that sessions of these tenants have had opened since the last ruling.
    segments_opened: BTreeMap<Name, u32>,
    /// Regions that are filled with ranges of many files.
    segments: BTreeMap<RegionIndex, Segment>,
    sessions: BTreeMap<SessionId, Session>,
    tenants: TenantCounts,
    /// Spent tickets and the end of each, in ms of the broker's clock.
    spent: BTreeMap<TicketId, u64>,
    /// Time of the broker's clock, in ms. Spent tickets that ended before it are no longer remembered. A late ruling
    /// (the broker's answer to a report) can set the clock back; without this bound such a ticket would then be good
    /// for a second lease.
    forgotten_before_ms: u64,
    /// True while the node is being emptied by an order: nothing is granted, and holders are asked to leave.
    draining: bool,
    /// True if the node's process ends once it holds nothing.
    stops: bool,
    /// True if the node's own process was told to end, and lets its holders leave first.
    leaving: bool,
    /// Number of regions that may have memory.
    limit: u32,
    /// Regions without memory.
    away: BTreeSet<RegionIndex>,
    /// Number of regions in state `Cleaning`: being wiped, or being made mappable.
    cleaning: usize,
    /// Number of regions that may be firm (kept except in an emergency): leased for pinned files, sealed, or owned by
    /// names.
    firm_max: u32,
}

impl NodeLeases {
    /// Returns the rules for `region_count` regions. None of them counts as clean yet: report each that is zero with
    /// [`Self::scrubbed`].
    pub fn new(node: NodeId, incarnation: Incarnation, ticket_key: TicketKey, region_count: u32) -> Self {
        let times = LeaseSettings::default();
        NodeLeases {
            node,
            incarnation,
            ticket_key,
            lease_ttl_ms: times.lease_ttl_ms,
            grace_ms: times.grace_ms,
            term: Term(0),
            clock: None,
            regions: vec![
                Region {
                    epoch: Epoch(0),
                    state: State::Cleaning,
                    tenant: TenantIndex::default(),
                    class: FileClass::Cache,
                };
                region_count as usize
            ],
            free: BTreeSet::new(),
            mappable: BTreeSet::new(),
            has_segments: false,
            segments_left: BTreeMap::new(),
            // The first ruling comes before the first lease.
            segments_left_others: SEGMENTS_UNLIMITED,
            segments_opened: BTreeMap::new(),
            segments: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tenants: TenantCounts::default(),
            spent: BTreeMap::new(),
            forgotten_before_ms: 0,
            draining: false,
            stops: false,
            leaving: false,
            limit: region_count,
            away: BTreeSet::new(),
            cleaning: region_count as usize,
            firm_max: region_count,
        }
    }

    /// Sets how many regions may be leased for pinned files, sealed (immutable) or owned by published files at a time.
    /// The node takes them back only in an emergency of its host's memory.
    pub fn set_firm_max(&mut self, regions: u32) {
        self.firm_max = regions;
    }

    /// Returns the incarnation of the node: the id of this life, one run of its process.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Takes over the lease times of a broker that accepted the node's offer of memory. Ignores a broker of an older
    /// term (earlier life).
    pub fn offered(&mut self, offered: &Offered) {
        if offered.term >= self.term {
            self.enter_term(offered.term);
            self.lease_ttl_ms = offered.lease_ttl_ms;
            self.grace_ms = offered.grace_ms;
        }
    }

    /// Notes that a region is zeroed. It may be granted from now on, unless more regions have memory than the node's
    /// limit permits: then the returned action gives its pages back to the host.
    #[must_use]
    pub fn scrubbed(&mut self, region: RegionIndex) -> Option<Action> {
        let goes = self.surplus() > 0;
        let entry = self.regions.get_mut(region.0 as usize).filter(|entry| entry.state == State::Cleaning)?;
        self.cleaning -= 1;
        if goes {
            entry.state = State::Away;
            self.away.insert(region);
            return Some(Action::GiveBack(region));
        }
        entry.state = State::Free;
        self.free.insert(region);
        None
    }

    /// Reports whether the node is being emptied.
    pub fn is_draining(&self) -> bool {
        self.draining || self.leaving
    }

    /// Begins to empty the node because its process was told to end. No order of the broker ends that.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Reports whether a node that leaves holds nothing that sessions can move. Published files are moved by whoever
    /// has ordered the node to drain, so without such an order they are not waited for.
    pub fn may_leave(&self) -> bool {
        let is_held = |region: &Region| matches!(region.state, State::Leased(_) | State::Sealing { .. });
        let is_ordered = self.draining && self.stops;
        self.leaving && !is_ordered && !self.regions.iter().any(is_held)
    }

    /// Reports whether the node was ordered to end and nobody owns a region any more. Regions may still have to be
    /// wiped.
    pub fn may_end(&self) -> bool {
        let is_idle = |region: &Region| matches!(region.state, State::Free | State::Cleaning | State::Away);
        self.draining && self.stops && self.regions.iter().all(is_idle)
    }

    /// Takes a free region out, so that its memory can be made mappable ahead of a lease that wants that. Returns
    /// `None` if half of the free regions are mappable already, if the node drains, or if more regions have memory than
    /// its limit permits. The caller gives the region back with [`Self::made_mappable`], or with [`Self::scrubbed`] if
    /// it could not be made mappable.
    pub fn take_to_make_mappable(&mut self) -> Option<RegionIndex> {
        if self.is_draining() || self.surplus() > 0 || 2 * self.mappable.len() >= self.free.len() {
            return None;
        }
        // Grants take the first free regions, so this takes one of the last.
        let region = self.free.iter().rev().find(|region| !self.mappable.contains(region)).copied()?;
        self.free.remove(&region);
        self.regions[region.0 as usize].state = State::Cleaning;
        self.cleaning += 1;
        Some(region)
    }

    /// Takes a free, mappable region out, so that its memory can become that of a region that is being sealed. `None`
    /// if there is none. The caller gives the region back with [`Self::scrubbed`] or, if it is still mappable, with
    /// [`Self::made_mappable`].
    pub fn take_mappable(&mut self) -> Option<RegionIndex> {
        let region = self.mappable.pop_last()?;
        self.free.remove(&region);
        self.regions[region.0 as usize].state = State::Cleaning;
        self.cleaning += 1;
        Some(region)
    }

    /// Notes that clients of this host can map the memory of a region, so the region may be granted. If more regions
    /// have memory than the limit permits, returns the order to wipe the region instead, after which its pages go to
    /// the host.
    #[must_use]
    pub fn made_mappable(&mut self, region: RegionIndex) -> Option<Action> {
        if self.surplus() > 0 {
            return Some(Action::Scrub(region));
        }
        // No region has to go, as was just checked, so `scrubbed` returns no action.
        let _ = self.scrubbed(region);
        if self.free.contains(&region) {
            self.mappable.insert(region);
        }
        None
    }

    /// Extends all leases of a session on this node, also those that are suspended in their grace.
    pub fn renew(
        &mut self,
        now: MonoNs,
        asker: Option<&Name>,
        proof: &SessionProof,
        actions: &mut Vec<Action>,
    ) -> Result<Renewed, Refusal> {
        let (lease_ttl_ms, draining) = (self.lease_ttl_ms, self.is_draining());
        let session = self.session_of(asker, proof.session, proof.secret)?;
        session.extend(now.plus_ms(lease_ttl_ms.into()), actions);
        let draining = draining || session.leaves.is_some();
        let regions = session.regions.len() as u32;
        Ok(Renewed { lease_ttl_ms, regions, draining })
    }

    /// Takes back the regions that a session releases. Skips a region that is not the session's own or is at another
    /// epoch (fencing counter) than the request says: a repeated release must not fail.
    ///
    /// A sealed (immutable) region becomes an orphan, a region without a session, instead, also if the session names
    /// the epoch before: it may not know that the region was sealed. The broker may have accepted a publication of it
    /// without the session knowing, so the broker decides if it is freed.
    pub fn release(
        &mut self,
        asker: Option<&Name>,
        release: &Release,
        actions: &mut Vec<Action>,
    ) -> Result<Released, Refusal> {
        let held = self.session_of(asker, release.session, release.secret)?.regions.clone();
        let mut count = 0;
        if release.whole {
            count = held.len();
            held.into_iter().for_each(|region| self.take_back(region, actions));
            self.sessions.remove(&release.session);
        } else {
            for at in release.regions.iter() {
                let Some(entry) = self.regions.get_mut(at.region.0 as usize) else { continue };
                let was_then = at.epoch.0.checked_add(1) == Some(entry.epoch.0);
                match entry.state {
                    State::Leased(session) if session == release.session && entry.epoch == at.epoch => {
                        self.take_back(at.region, actions)
                    }
                    State::Sealing { session, .. }
                        if session == release.session && (entry.epoch == at.epoch || was_then) =>
                    {
                        entry.state = State::Orphan;
                    }
                    _ => continue,
                }
                count += 1;
            }
        }
        Ok(Released { regions: count as u32 })
    }

    /// Returns the epoch of a region, its fencing counter. `None` if there is no such region.
    pub fn epoch_of(&self, region: RegionIndex) -> Option<Epoch> {
        self.regions.get(region.0 as usize).map(|entry| entry.epoch)
    }

    /// Takes back granted regions that could not be opened for lack of memory, as if they were released.
    pub fn abandon(&mut self, session: SessionId, regions: &[RegionAt], actions: &mut Vec<Action>) {
        for at in regions {
            if self
                .regions
                .get(at.region.0 as usize)
                .is_some_and(|entry| entry.epoch == at.epoch && entry.state == State::Leased(session))
            {
                self.take_back(at.region, actions);
            }
        }
    }

    /// Reports whether the session's leases have expired and are in their grace.
    pub fn is_suspended(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.suspended)
    }

    /// Applies the passing of time: suspends the regions of expired sessions, takes back the regions of sessions whose
    /// grace is over too, and takes back `scratch` regions that their holders were asked to move and did not in time.
    pub fn tick(&mut self, now: MonoNs, actions: &mut Vec<Action>) {
        let grace_ms = u64::from(self.grace_ms);
        let mut gone = Vec::new();
        for (id, session) in self.sessions.iter_mut().filter(|_| !mutant!(NeverExpires)) {
            if now >= session.deadline.plus_ms(grace_ms) {
                gone.push(*id);
            } else if now >= session.deadline && !session.suspended {
                session.suspended = true;
                actions.extend(session.regions.iter().map(|region| Action::Suspend(*region)));
            }
        }
        for id in gone {
            let Some(session) = self.sessions.get(&id) else { continue };
            for region in session.regions.clone() {
                self.take_back(region, actions);
            }
            self.sessions.remove(&id);
        }
        // A sealed region outlives its session until the broker says whether a name (published file) owns it.
        let sessions = &self.sessions;
        for entry in &mut self.regions {
            if let State::Sealing { session, .. } = entry.state
                && !sessions.contains_key(&session)
            {
                entry.state = State::Orphan;
            }
        }
        if mutant!(OrphanFreed) {
            let all = (0..self.regions.len() as u32).map(RegionIndex);
            let orphans: Vec<_> =
                all.filter(|region| self.regions[region.0 as usize].state == State::Orphan).collect();
            orphans.into_iter().for_each(|region| self.take_back(region, actions));
        }
        self.recall(now, actions);
        self.forget_expired_tickets(now);
    }

    /// Returns when [`Self::tick`] next has something to do; `None` if there is no session.
    pub fn next_deadline(&self) -> Option<MonoNs> {
        self.sessions
            .values()
            .flat_map(|session| {
                let ends = match session.suspended {
                    true => session.deadline.plus_ms(self.grace_ms.into()),
                    false => session.deadline,
                };
                [Some(ends), session.leaves]
            })
            .flatten()
            .min()
    }

    /// Returns the report for the broker: every region that has an owner, the number of other regions in each state,
    /// and the spent tickets.
    pub fn inventory(&self, traffic: Traffic, locked: u32) -> Inventory {
        let mut counts = RegionCounts { locked, ..RegionCounts::default() };
        counts.sessions = self.sessions.values().filter(|session| !session.regions.is_empty()).count() as u32;
        let mut owned = Vec::new();
        for (index, entry) in self.regions.iter().enumerate() {
            let owner = match entry.state {
                State::Free => {
                    counts.free += 1;
                    continue;
                }
                State::Cleaning => {
                    counts.cleaning += 1;
                    continue;
                }
                State::Away => {
                    counts.away += 1;
                    continue;
                }
                State::Leased(session) => {
                    counts.leased += 1;
                    RegionOwner::Session(session)
                }
                State::Sealing { session, .. } => {
                    counts.named += 1;
                    RegionOwner::Sealing(session)
                }
                State::Orphan => {
                    counts.named += 1;
                    RegionOwner::Orphan
                }
                // The broker learns more of segments by a report of their own.
                State::Copying | State::Copied | State::Segment => {
                    counts.named += 1;
                    RegionOwner::Sealing(SessionId(0))
                }
                State::Named(file) => {
                    counts.named += 1;
                    RegionOwner::Name(file)
                }
            };
            owned.push(OwnedRegion { region: RegionIndex(index as u32), epoch: entry.epoch, owner });
        }
        Inventory {
            node: self.node,
            incarnation: self.incarnation,
            draining: self.is_draining(),
            counts,
            traffic,
            // Neither list exceeds its limit: `redeem` bounds `spent`, and a node has at most NODE_REGIONS_MAX regions.
            spent: List::new(self.spent.keys().copied().collect()).unwrap_or_default(),
            owned: List::new(owned).unwrap_or_default(),
            tenants: self.tenants.list(),
        }
    }

    /// Counts the firm regions: those leased for pinned files, sealed (immutable), or owned by published files.
    fn firm(&self) -> u32 {
        let is_firm = |region: &&Region| match region.state {
            State::Leased(_) => region.class == FileClass::Pinned,
            State::Sealing { .. }
            | State::Orphan
            | State::Copying
            | State::Copied
            | State::Named(_)
            | State::Segment => true,
            State::Free | State::Cleaning | State::Away => false,
        };
        self.regions.iter().filter(is_firm).count() as u32
    }

    fn entry(&self, region: RegionIndex) -> Result<Region, Refusal> {
        let regions = self.regions.len() as u64;
        self.regions.get(region.0 as usize).copied().ok_or(Refusal::new(Code::NoSuchRegion, regions))
    }

    fn session_of(
        &mut self,
        asker: Option<&Name>,
        session: SessionId,
        secret: Secret,
    ) -> Result<&mut Session, Refusal> {
        let entry = self.sessions.get_mut(&session).ok_or(Refusal::new(Code::UnknownSession, session.0))?;
        if entry.secret_digest != ticket::secret_digest(secret) {
            return Err(Refusal::new(Code::WrongSecret, session.0));
        }
        if asker.is_some_and(|asker| *asker != entry.tenant) {
            return Err(Refusal::new(Code::WrongTenant, 0));
        }
        Ok(entry)
    }

    fn take_back(&mut self, region: RegionIndex, actions: &mut Vec<Action>) {
        let entry = &mut self.regions[region.0 as usize];
        if let State::Leased(session) | State::Sealing { session, .. } = entry.state
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.regions.remove(&region);
        }
        self.segments.remove(&region);
        self.tenants.remove(entry.tenant);
        entry.epoch = Epoch(entry.epoch.0 + u64::from(!mutant!(EpochKeptAtClose)));
        entry.state = State::Cleaning;
        self.cleaning += 1;
        if !mutant!(ReleasedStaysOpen) {
            actions.push(Action::Close { region, epoch: entry.epoch });
        }
        actions.push(Action::Scrub(region));
    }

    /// Begins a new term (life of the broker) if this one is higher. Forgets the broker's clock, which starts anew with
    /// each life, and the spent tickets, because tickets of earlier terms are refused anyway.
    fn enter_term(&mut self, term: Term) {
        if term > self.term {
            self.term = term;
            self.clock = None;
            self.spent.clear();
            self.forgotten_before_ms = 0;
        }
    }

    fn broker_now_ms(&self, now: MonoNs) -> Option<u64> {
        self.clock.map(|clock| clock.broker_ms.saturating_add(now.ms_since(clock.heard)))
    }

    fn forget_expired_tickets(&mut self, now: MonoNs) {
        if let Some(clock) = self.broker_now_ms(now) {
            self.forgotten_before_ms = self.forgotten_before_ms.max(clock);
            self.spent.retain(|_, not_after_ms| *not_after_ms >= clock);
        }
    }
}
