//! Oracle: checks what must hold whatever happens, with one named check for each invariant of `spec/lease.md`.
//!
//! The idea: it relies on no bookkeeping of the code under test. It sees what nodes and brokers answer, which memory
//! was copied, and what is on the disk, and compares them. The checks of bytes that clients read are in `workload`
//! and `names`, those of memory in `memory`; all of them report their findings here.

use crate::holds::{Holds, Moment, Opening};
use crate::memory::{GateView, SimMemory};
use crate::names::Place;
use crate::profile::Plan;
use crate::snapshots::Turn;
use crate::store::Disk;
#[cfg(feature = "mutants")]
use farpool_encryption::watch::{FileKey, Nonce};
use farpool_node::NodeService;
use farpool_transport::Intent;
use farpool_wire::control::{Grant, Inventory, Lease, Leased, RegionOwner, SegmentHeld, SnapshotAt, Traffic};
use farpool_wire::data::Span;
use farpool_wire::{
    Epoch, Handle, Incarnation, MonoNs, NodeId, Refusal, RegionIndex, Reply, Request, SessionId, TableId,
    Term, TicketId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Name of the invariant, such as `I5`.
    pub invariant: &'static str,
    /// Description of the finding, for the report.
    pub what: String,
}

/// Right to a region that a node has granted: whoever shows this handle at this epoch may use the region.
#[derive(Clone, Copy, Debug)]
struct Right {
    epoch: Epoch,
    handle: u128,
    session: Option<SessionId>,
    is_writable: bool,
}

/// State of a node's knowledge of its broker at the moment that the node began to handle a request: the highest term,
/// and the broker's clock in ms, that it has certainly received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    term: Term,
    broker_ms: u64,
}

/// Rights that were given to a client: regions with their epochs and handles.
type GivenRights = BTreeSet<(RegionIndex, Epoch, u128)>;

#[derive(Debug, Default)]
struct NodeView {
    node: NodeId,
    /// Newest right granted for each region.
    rights: BTreeMap<RegionIndex, Right>,
    /// Handles that this life of the node has granted, to notice one that is granted twice.
    handles: BTreeMap<u128, (RegionIndex, Epoch)>,
    /// Time of the last sign of life of each session, on the node's clock.
    signs: BTreeMap<SessionId, MonoNs>,
    /// Number of renewals of each session that the node has answered.
    renewed: BTreeMap<SessionId, u64>,
    /// Number of requests in progress of each session. While there are any, the state of its regions may be changing.
    calls: BTreeMap<SessionId, u32>,
    /// Tickets that this life of the node has redeemed, with the rights that they gave.
    redeemed: BTreeMap<(Term, TicketId), GivenRights>,
    /// Highest broker's term that the node has certainly received.
    term: Term,
    /// Term and broker's clock of a ruling (the answer to the node's report) that the broker has sent. `None` once the
    /// node has certainly received it.
    sent_ruling: Option<(Term, u64)>,
    /// Broker's clock in ms, in the last ruling of this term that the node has certainly received.
    broker_ms: u64,
    /// Time on the node's clock since which the node has run without a stop of its process or machine.
    runs_since: MonoNs,
}

/// State of all checks, and the first violation.
///
/// Three kinds of methods. *Events*: [`Oracle::node_begins`], [`Oracle::node_called`], [`Oracle::node_moved`],
/// [`Oracle::broker_answers`], [`Oracle::names_changed`] and their like are called by the observed services, the
/// store and the kernel as things happen, before the answer leaves. *Checks of a state*: [`Oracle::node_as_a_whole`],
/// after each step, for nodes that have changed. *Results*: [`Oracle::violation`] and the number of `checks`. Nothing
/// is locked: the oracle is part of the world, which one thread owns.
pub(crate) struct Oracle {
    violation: Option<Violation>,
    pub(crate) checks: u64,
    ttl_ms: u64,
    grace_ms: u64,
    tick_ms: u64,
    nodes: BTreeMap<Incarnation, NodeView>,
    /// Regions that a name has released since a broker last opened the disk.
    let_go: BTreeSet<Place>,
    /// Regions that a name has released before that. A broker that does not know it waits for their sessions to publish
    /// them, so they are kept until these sessions end.
    let_go_before: BTreeSet<Place>,
    /// Regions that nodes have reported as segments, which many names share, and where the bytes in use end.
    segments: BTreeMap<Place, u32>,
    /// Regions that nodes have filled with copies of published files.
    copied: BTreeSet<Place>,
    /// Snapshots of tables that brokers have promised to sessions.
    pub(crate) holds: Holds,
    /// Nonces that were used with each key.
    #[cfg(feature = "mutants")]
    nonces: BTreeSet<(FileKey, Nonce)>,
}

/// Least delay in ms, beyond TTL and grace, within which a node must have ended a silent session's leases (invariant
/// I6).
const LATE_MS: u64 = 1_000;

impl Oracle {
    pub(crate) fn new(plan: &Plan) -> Oracle {
        Oracle {
            violation: None,
            checks: 0,
            ttl_ms: plan.settings.lease_ttl_ms.into(),
            grace_ms: plan.settings.grace_ms.into(),
            tick_ms: plan.tick_ms,
            nodes: BTreeMap::new(),
            let_go: BTreeSet::new(),
            let_go_before: BTreeSet::new(),
            segments: BTreeMap::new(),
            copied: BTreeSet::new(),
            holds: Holds::new(
                u64::from(plan.settings.lease_ttl_ms) + u64::from(plan.settings.grace_ms),
                plan.snapshots.hold_ms_max,
                plan.stands,
            ),
            #[cfg(feature = "mutants")]
            nonces: BTreeSet::new(),
        }
    }

    /// Notes a violation. Only the first one is kept, since later ones may follow from it.
    pub(crate) fn violated(&mut self, invariant: &'static str, what: String) {
        self.violation.get_or_insert(Violation { invariant, what });
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    fn check(&mut self, holds: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            self.violated(invariant, what());
        }
    }

    /// Returns the delay that I6 permits beyond TTL and grace, in ms. It grows with the node's tick (the interval at
    /// which it checks its leases).
    fn late_ms(&self) -> u64 {
        LATE_MS.max(2 * self.tick_ms + 500)
    }

    pub(crate) fn node_begins(&mut self, incarnation: Incarnation, node: NodeId) {
        let is_new = !self.nodes.contains_key(&incarnation);
        self.check(is_new, "I3", || format!("node {node} begins a second life as {incarnation}"));
        self.nodes.insert(incarnation, NodeView { node, ..NodeView::default() });
    }

    pub(crate) fn node_ends(&mut self, incarnation: Incarnation) {
        // Its memory is gone. Its entry stays, empty, so that a second node of this incarnation is noticed.
        self.nodes.insert(incarnation, NodeView::default());
    }

    /// Notes that a node runs again after its process or machine was stopped.
    pub(crate) fn node_runs_again(&mut self, incarnation: Incarnation, clock: MonoNs) {
        if let Some(view) = self.nodes.get_mut(&incarnation) {
            view.runs_since = clock;
        }
    }

    /// Returns the number of renewals of a session that a node has answered.
    pub(crate) fn renewals(&self, incarnation: Incarnation, session: SessionId) -> u64 {
        self.nodes.get(&incarnation).and_then(|view| view.renewed.get(&session)).copied().unwrap_or_default()
    }

    /// Returns the newest right that a node has granted for a region.
    pub(crate) fn right_of(&self, incarnation: Incarnation, region: RegionIndex) -> Option<(Epoch, Handle)> {
        let right = self.nodes.get(&incarnation)?.rights.get(&region)?;
        Some((right.epoch, Handle(right.handle)))
    }

    /// Notes that a broker has opened the disk. It need not know which regions earlier brokers' names released.
    pub(crate) fn disk_opened(&mut self) {
        self.let_go_before.append(&mut self.let_go);
    }

    /// Reports whether a name has released a region, and the present broker need not know it.
    pub(crate) fn may_be_awaited(&self, place: &Place) -> bool {
        self.let_go_before.contains(place)
    }

    /// Checks I5: a broker never gives a name a region that a name has released. `before` and `after` are the regions
    /// that belong to names before and after a record was written.
    pub(crate) fn names_changed(&mut self, before: &BTreeSet<Place>, after: &BTreeSet<Place>) {
        let again = after.difference(before).find(|place| self.let_go.contains(*place)).copied();
        self.check(again.is_none(), "I5", || {
            format!("a name has {again:?} (life, region, epoch), which a name released before")
        });
        // Names share segments, so one may have a segment after another has left it.
        let gone = before.difference(after).filter(|place| !self.segments.contains_key(*place));
        self.let_go.extend(gone);
    }

    /// Returns where the bytes in use of a segment end, as far as nodes have reported it. `None` for another region.
    pub(crate) fn end_of_segment(&self, place: &Place) -> Option<u32> {
        self.segments.get(place).copied()
    }

    /// Checks I1 in a node's log: no line reports a contradiction between its leases and its gates.
    pub(crate) fn said(&mut self, line: &str) {
        let disagree = line.contains("the gate of region") || line.contains("was not clean");
        self.check(!disagree, "I1", || format!("leases and gates disagree: {line}"));
    }

    /// Notes that a node has begun to handle a request. Returns the node's knowledge of its broker at that moment.
    pub(crate) fn node_called(&mut self, incarnation: Incarnation, request: &Request) -> Known {
        let Some(view) = self.nodes.get_mut(&incarnation) else { return Known::default() };
        if let Some(session) = session_of(request) {
            *view.calls.entry(session).or_default() += 1;
        }
        Known { term: view.term, broker_ms: view.broker_ms }
    }

    pub(crate) fn node_answers(
        &mut self,
        incarnation: Incarnation,
        clock: MonoNs,
        known: Known,
        request: &Request,
        answer: &Result<Reply, Refusal>,
    ) {
        let Some(view) = self.nodes.get_mut(&incarnation) else { return };
        if let Some(session) = session_of(request)
            && let Some(count) = view.calls.get_mut(&session)
        {
            *count -= 1;
            if *count == 0 {
                view.calls.remove(&session);
            }
        }
        match (request, answer) {
            (Request::Lease(lease), Ok(Reply::Lease(leased))) => {
                let session = Some(lease.ticket.session);
                for Grant { region, epoch, handle } in self.ticket_is_good(incarnation, known, lease, leased)
                {
                    self.right_is_new(incarnation, region, epoch, handle.0, session, true);
                }
                self.sign(incarnation, lease.ticket.session, clock);
            }
            (Request::Renew(proof), Ok(_)) => {
                *view.renewed.entry(proof.session).or_default() += 1;
                self.sign(incarnation, proof.session, clock);
            }
            (Request::Seal(_), Ok(Reply::Seal(sealed))) => {
                for grant in sealed.regions.iter() {
                    self.right_is_new(incarnation, grant.region, grant.epoch, grant.handle.0, None, false);
                }
            }
            (Request::SealRanges(_), Ok(Reply::SealRanges(sealed))) => {
                for range in sealed.ranges.iter() {
                    self.right_is_new(incarnation, range.region, range.epoch, range.handle.0, None, false);
                }
            }
            _ => {}
        }
    }

    fn sign(&mut self, incarnation: Incarnation, session: SessionId, clock: MonoNs) {
        if let Some(view) = self.nodes.get_mut(&incarnation) {
            let sign = view.signs.entry(session).or_insert(clock);
            *sign = clock.max(*sign);
        }
    }

    /// Checks that a ticket gives its regions once, at the life of the node that it names, before it expires, and not
    /// for a deposed broker. Returns what it has not given before: a request may be repeated, and gets the same again.
    fn ticket_is_good(
        &mut self,
        incarnation: Incarnation,
        known: Known,
        lease: &Lease,
        leased: &Leased,
    ) -> Vec<Grant> {
        let ticket = &lease.ticket;
        let Some(view) = self.nodes.get_mut(&incarnation) else { return Vec::new() };
        let is_first = !view.redeemed.contains_key(&(ticket.term, ticket.id));
        let given = view.redeemed.entry((ticket.term, ticket.id)).or_default();
        let is_new = |grant: &&Grant| given.insert((grant.region, grant.epoch, grant.handle.0));
        let fresh: Vec<Grant> = leased.grants.iter().filter(is_new).cloned().collect();
        let is_once = given.len() <= ticket.region_count as usize;
        let (Known { term, broker_ms }, node) = (known, view.node);
        if ticket.term > view.term {
            view.term = ticket.term;
            view.broker_ms = 0;
        }
        let (id, of) = (ticket.id, ticket.term);
        self.check(is_once, "ticket-once", || format!("ticket {id} of term {of} was redeemed twice"));
        self.check(of >= term || !is_first, "ticket-term", || {
            format!("ticket {id} of term {of} was redeemed at a node that has seen term {term}")
        });
        self.check(ticket.incarnation == incarnation && ticket.node == node, "ticket-life", || {
            format!("ticket {id} for life {} was redeemed in life {incarnation}", ticket.incarnation)
        });
        let is_timely = of != term || ticket.not_after_ms >= broker_ms || !is_first;
        self.check(is_timely, "ticket-time", || {
            format!("ticket {id}, valid until {} ms, was redeemed after {broker_ms} ms", ticket.not_after_ms)
        });
        fresh
    }

    /// Checks I2 and I4 for a right that a node has granted: epochs of a region only grow, and no handle is granted
    /// twice.
    fn right_is_new(
        &mut self,
        incarnation: Incarnation,
        region: RegionIndex,
        epoch: Epoch,
        handle: u128,
        session: Option<SessionId>,
        is_writable: bool,
    ) {
        let Some(view) = self.nodes.get_mut(&incarnation) else { return };
        let is_known = view.handles.contains_key(&handle);
        // A request to seal that is sent twice gets the same handle twice, and so does who seals into the same segment.
        let given = *view.handles.entry(handle).or_insert((region, epoch));
        let is_repeated = !is_writable && given == (region, epoch) && is_known;
        let is_fresh = (!is_known || is_repeated) && handle != 0;
        let before = view.rights.get(&region).map(|right| right.epoch);
        // An older right whose answer comes late must not displace a newer one.
        if before.is_none_or(|before| epoch > before) {
            view.rights.insert(region, Right { epoch, handle, session, is_writable });
        }
        self.check(is_fresh, "I4", || format!("a handle of region {region} was given out before"));
        self.check(before != Some(epoch) || is_repeated, "I2", || {
            format!("epoch {epoch} of region {region} was given twice")
        });
    }

    /// Checks I1, I2 and I6: a data operation is admitted only under a valid right.
    pub(crate) fn node_moved(
        &mut self,
        incarnation: Incarnation,
        clock: MonoNs,
        span: &Span,
        intent: Intent,
        result: &Result<(), Refusal>,
    ) {
        if result.is_err() {
            return;
        }
        let Some(view) = self.nodes.get(&incarnation) else { return };
        let right = view.rights.get(&span.region).copied();
        let runs_since = view.runs_since;
        let sign =
            right.and_then(|right| right.session).and_then(|session| view.signs.get(&session)).copied();
        let Some(right) = right else {
            // The answer with a right may still be on its way, but then nobody can have its handle yet.
            self.violated(
                "I1",
                format!("an operation on region {} was admitted before any lease", span.region),
            );
            return;
        };
        let region = span.region;
        self.check(right.epoch == span.epoch, "I2", || {
            format!("an operation of epoch {} was admitted to region {region} at {}", span.epoch, right.epoch)
        });
        self.check(right.handle == span.handle.0, "I1", || {
            format!(
                "an operation was admitted to region {region} with a handle that was never granted for it"
            )
        });
        self.check(right.is_writable || intent == Intent::Read, "I1", || {
            format!("sealed region {region} was written")
        });
        if let Some(sign) = sign {
            let ends = sign.plus_ms(self.ttl_ms + self.late_ms());
            let is_late = clock > ends && clock > runs_since.plus_ms(self.late_ms());
            self.check(!is_late, "I6", || {
                format!(
                    "an operation was admitted to region {region} {} ms after its session's last sign of life",
                    clock.ms_since(sign)
                )
            });
        }
    }

    /// Checks that no nonce is used twice with one key: whoever sees both ciphertexts learns their difference, and can
    /// forge others.
    #[cfg(feature = "mutants")]
    pub(crate) fn nonce_used(&mut self, key: &FileKey, nonce: &Nonce) {
        let is_fresh = self.nonces.insert((*key, *nonce));
        self.check(is_fresh, "nonce", || format!("nonce {nonce:02x?} was used twice with one key"));
    }

    /// Notes what has become of a snapshot, by a record that a leader has written. Checks that no snapshot ends which a
    /// session holds.
    pub(crate) fn snapshots_turn(&mut self, by: Opening, turn: Option<Turn>, now: Moment) {
        match turn {
            Some(Turn::Replaced(at)) => self.holds.replaced(at, now),
            Some(Turn::Dropped(table)) => self.holds.dropped(table),
            Some(Turn::Ended(at)) => {
                let broken = self.holds.ended(by, at, now);
                self.check(broken.is_none(), "hold", || broken.unwrap_or_default());
            }
            None => {}
        }
    }

    /// Notes what a session asks a broker about snapshots, over a connection. Returns true if the session has not gone
    /// on over another connection, so that it hears of the answer.
    pub(crate) fn session_asks(&mut self, by: Opening, connection: u64, request: &Request) -> bool {
        match request {
            Request::OpenTable(open) => self.holds.asks(by, open.session, connection),
            Request::HoldSnapshots(hold) => {
                let is_last = self.holds.asks(by, hold.session, connection);
                if is_last {
                    self.holds.holds_only(hold.session, &hold.held.iter().copied().collect());
                }
                is_last
            }
            Request::CloseSession(proof) => {
                self.holds.session_ended(proof.session);
                false
            }
            _ => false,
        }
    }

    /// Notes what a broker has promised a session about snapshots.
    pub(crate) fn session_is_told(
        &mut self,
        by: Opening,
        now: Moment,
        request: &Request,
        answer: &Result<Reply, Refusal>,
    ) {
        match (request, answer) {
            (Request::OpenTable(open), Ok(Reply::OpenTable(opened))) if opened.table != TableId(0) => {
                let at = SnapshotAt { table: opened.table, snapshot: opened.snapshot };
                self.holds.promised(by, open.session, at, now);
            }
            (Request::HoldSnapshots(hold), Ok(Reply::HoldSnapshots(told))) => {
                for at in hold.held.iter().filter(|at| !told.ended.contains(at)) {
                    self.holds.promised(by, hold.session, *at, now);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn broker_called(&mut self, request: &Request) {
        match request {
            Request::Offer(offer) => {
                if let Some(view) = self.nodes.get_mut(&offer.info.incarnation) {
                    view.sent_ruling = None;
                }
            }
            Request::Inventory(inventory) => {
                // The node sends one request at a time, so it has received the answer to the one before.
                if let Some(view) = self.nodes.get_mut(&inventory.incarnation)
                    && let Some((term, broker_ms)) = view.sent_ruling.take()
                    && term >= view.term
                {
                    view.term = term;
                    view.broker_ms = broker_ms;
                }
            }
            Request::Segments(report) => {
                let place = |held: &SegmentHeld| ((report.incarnation, held.region, held.epoch), held.end);
                self.segments.extend(report.segments.iter().map(place));
            }
            // The broker may give the handle to clients from now on.
            Request::EndRepair(report) if !report.copied.is_empty() => {
                let incarnation = report.order.incarnation;
                // A report is repeated until the broker has decided.
                if self.copied.insert((incarnation, report.region, report.epoch)) {
                    self.right_is_new(incarnation, report.region, report.epoch, report.handle.0, None, false);
                }
            }
            _ => {}
        }
    }

    /// Checks I5: everything that a broker acknowledges is on the disk.
    pub(crate) fn broker_answers(&mut self, request: &Request, answer: &Result<Reply, Refusal>, disk: &Disk) {
        match (request, answer) {
            (Request::Inventory(inventory), Ok(Reply::Inventory(ruling))) => {
                if let Some(view) = self.nodes.get_mut(&inventory.incarnation) {
                    view.sent_ruling = Some((ruling.term, ruling.broker_now_ms));
                }
            }
            (Request::PublishPlaces(publish), Ok(Reply::PublishPlaces(published))) => {
                let kept = disk.with_durable(|durable| {
                    durable.next_file > published.file
                        && durable.names.get(&publish.name).is_none_or(|named| named.file >= published.file)
                });
                let name = publish.name.to_string();
                self.check(kept, "I5", || format!("{name:?} was acknowledged and is not on the disk"));
            }
            (Request::OpenPlaces(by), Ok(Reply::OpenPlaces(opened))) => {
                let kept = disk.with_durable(|durable| durable.next_file > opened.file);
                self.check(kept, "I5", || format!("{:?} was opened and is not on the disk", &*by.name));
            }
            _ => {}
        }
    }

    /// Checks a node's leases and gates against each other and against its clock.
    pub(crate) fn node_as_a_whole(
        &mut self,
        incarnation: Incarnation,
        clock: MonoNs,
        service: &NodeService<SimMemory>,
        named: &[(RegionIndex, Epoch)],
    ) {
        self.invariant_i5_what_names_have_is_kept(incarnation, service.memory(), named);
        // While the node handles a request that changes its leases, they need not agree with the gates.
        let Some(leases) = service.try_leases() else { return };
        let inventory = leases.inventory(Traffic::default(), 0);
        let suspended: BTreeSet<SessionId> = inventory
            .owned
            .iter()
            .filter_map(|owned| match owned.owner {
                RegionOwner::Session(session) if leases.is_suspended(session) => Some(session),
                _ => None,
            })
            .collect();
        drop(leases);
        let memory = service.memory();
        let region_count = farpool_node::Memory::region_count(memory);
        self.invariant_every_region_is_counted_once(&inventory, region_count);
        let owners: BTreeMap<RegionIndex, (Epoch, RegionOwner)> =
            inventory.owned.iter().map(|owned| (owned.region, (owned.epoch, owned.owner))).collect();
        for index in 0..region_count {
            let region = RegionIndex(index);
            let gate = memory.view(index);
            self.invariant_i1_gates_are_as_leases_say(region, owners.get(&region), &gate);
            if let Some((_, RegionOwner::Session(session) | RegionOwner::Sealing(session))) =
                owners.get(&region)
                && *session != SessionId(0)
            {
                self.invariant_i6_silent_sessions_own_nothing(incarnation, clock, region, *session);
            }
            if let Some((_, RegionOwner::Session(session))) = owners.get(&region) {
                let is_suspended = suspended.contains(session);
                self.invariant_gates_are_suspended_as_sessions_are(
                    incarnation,
                    region,
                    *session,
                    is_suspended,
                    &gate,
                );
            }
        }
    }

    /// Checks I5: the bytes of a published name stay in the node's memory until the name releases them.
    fn invariant_i5_what_names_have_is_kept(
        &mut self,
        incarnation: Incarnation,
        memory: &SimMemory,
        named: &[(RegionIndex, Epoch)],
    ) {
        for (region, epoch) in named {
            let gate = memory.view(region.0);
            self.check(gate.epoch == *epoch, "I5", || {
                format!("a name has region {region} at epoch {epoch} in life {incarnation}: {gate:?}")
            });
        }
    }

    /// Checks that a gate is suspended exactly if its session is: a session that has been heard again is admitted to
    /// all its regions.
    fn invariant_gates_are_suspended_as_sessions_are(
        &mut self,
        incarnation: Incarnation,
        region: RegionIndex,
        session: SessionId,
        is_suspended: bool,
        gate: &GateView,
    ) {
        let Some(view) = self.nodes.get(&incarnation) else { return };
        let is_in = gate.is_open || gate.is_suspended;
        // A request in progress opens its regions one after the other, so they may differ meanwhile.
        if is_in && !view.calls.contains_key(&session) {
            self.check(gate.is_suspended == is_suspended, "suspension", || {
                format!("session {session} is suspended: {is_suspended}; its region {region}: {gate:?}")
            });
        }
    }

    /// Reports whether a node has filled a region with copies of a published file.
    pub(crate) fn was_copied(&self, place: Place) -> bool {
        self.copied.contains(&place)
    }

    /// Checks that a tenant holds no more than its quota.
    pub(crate) fn holds_no_more_than(&mut self, tenant: &str, bytes: u64, quota_bytes: u64) {
        self.check(bytes <= quota_bytes, "quota", || {
            format!("tenant {tenant} holds {bytes} bytes, its quota is {quota_bytes}")
        });
    }

    fn invariant_every_region_is_counted_once(&mut self, inventory: &Inventory, region_count: u32) {
        let counts = &inventory.counts;
        let sum = counts.free + counts.leased + counts.named + counts.cleaning + counts.away;
        self.check(sum == region_count, "counts", || format!("{counts:?} of {region_count} regions"));
    }

    fn invariant_i1_gates_are_as_leases_say(
        &mut self,
        region: RegionIndex,
        owner: Option<&(Epoch, RegionOwner)>,
        gate: &GateView,
    ) {
        let is_in = gate.is_open || gate.is_suspended;
        match owner {
            None => {
                self.check(!is_in, "I1", || format!("region {region} has no owner but is open: {gate:?}"))
            }
            Some((epoch, RegionOwner::Session(_))) => {
                // The gate is still closed, at an older epoch, while the region is being prepared for its session.
                let agrees = if is_in {
                    gate.epoch == *epoch && gate.write_handle.is_some()
                } else {
                    gate.epoch < *epoch
                };
                self.check(agrees, "I1", || format!("region {region} is leased at {epoch}: {gate:?}"));
            }
            // The node fills it with copies of a published file, or has done that.
            Some((epoch, RegionOwner::Sealing(SessionId(0)))) => {
                let agrees = if is_in { gate.epoch == *epoch } else { gate.epoch <= *epoch };
                self.check(agrees && !gate.is_suspended, "I1", || {
                    format!("region {region} has copies at {epoch}: {gate:?}")
                });
            }
            Some((epoch, _)) => {
                let agrees = gate.epoch == *epoch && gate.write_handle.is_none() && !gate.is_suspended;
                self.check(agrees, "I1", || format!("region {region} is sealed at {epoch}: {gate:?}"));
            }
        }
    }

    /// Checks I6: a session without a sign of life for TTL and grace, on the node's own clock, owns no region.
    fn invariant_i6_silent_sessions_own_nothing(
        &mut self,
        incarnation: Incarnation,
        clock: MonoNs,
        region: RegionIndex,
        session: SessionId,
    ) {
        let Some(view) = self.nodes.get(&incarnation) else { return };
        if view.calls.contains_key(&session) {
            return;
        }
        let Some(sign) = view.signs.get(&session).copied() else {
            self.violated(
                "I6",
                format!("region {region} belongs to session {session}, which never leased here"),
            );
            return;
        };
        let ends = sign.plus_ms(self.ttl_ms + self.grace_ms + self.late_ms());
        let is_late = clock > ends && clock > view.runs_since.plus_ms(self.late_ms());
        self.check(!is_late, "I6", || {
            format!(
                "session {session} owns region {region} {} ms after its last sign of life",
                clock.ms_since(sign)
            )
        });
    }
}

/// Returns the session of a request to a node about leases.
pub(crate) fn session_of(request: &Request) -> Option<SessionId> {
    match request {
        Request::Lease(lease) => Some(lease.ticket.session),
        Request::Renew(proof) => Some(proof.session),
        Request::Release(release) => Some(release.session),
        Request::Seal(seal) => Some(seal.session),
        Request::SealRanges(seal) => Some(seal.session),
        _ => None,
    }
}
