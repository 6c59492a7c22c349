//! The oracle: what must hold, whatever happened. One named check for each invariant of `spec/lease.md`.
//!
//! The idea: it believes nobody's bookkeeping. It sees what nodes and brokers answer, what memory was really
//! copied where, and what is on the disk, and compares. The checks on bytes a client reads are in `workload`
//! and `names`, those on memory in `memory`; all of them report here.

use crate::memory::{GateView, SimMemory};
use crate::names::Place;
use crate::profile::Plan;
use crate::store::Disk;
use farpool_node::NodeService;
use farpool_transport::Intent;
use farpool_wire::control::{Inventory, Lease, RegionOwner, Traffic};
use farpool_wire::data::Span;
use farpool_wire::{
    Epoch, Handle, Incarnation, MonoNs, NodeId, Refusal, RegionIndex, Reply, Request, SessionId, Term,
    TicketId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Something that must never be.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

#[derive(Clone, Copy, Debug)]
struct Right {
    epoch: Epoch,
    handle: u128,
    session: Option<SessionId>,
    is_writable: bool,
}

/// What a node had been told of its broker at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    term: Term,
    broker_ms: u64,
}

#[derive(Debug, Default)]
struct NodeView {
    node: NodeId,
    /// The last right given at each region.
    rights: BTreeMap<RegionIndex, Right>,
    handles: BTreeSet<u128>,
    /// Last sign of life of each session, on the node's clock.
    signs: BTreeMap<SessionId, MonoNs>,
    /// Calls of each session under way: what they leave behind is not known yet.
    calls: BTreeMap<SessionId, u32>,
    redeemed: BTreeSet<(Term, TicketId)>,
    /// The highest term it is known to have seen.
    term: Term,
    /// A ruling the broker has sent it, which it has not shown to have.
    sent_ruling: Option<(Term, u64)>,
    /// The broker's clock in the last ruling it is known to have, of its term.
    broker_ms: u64,
    /// Since when, on its clock, it has run without a stop.
    runs_since: MonoNs,
}

/// See the module.
pub(crate) struct Oracle {
    violation: Option<Violation>,
    pub(crate) checks: u64,
    ttl_ms: u64,
    grace_ms: u64,
    tick_ms: u64,
    nodes: BTreeMap<Incarnation, NodeView>,
    /// What names had and have let go of since the disk was opened last.
    let_go: BTreeSet<Place>,
}

/// I6: this much later than TTL and grace.
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
        }
    }

    /// Only the first one counts: what follows from it is noise.
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

    /// How late a node may be: it looks at its leases every tick.
    fn late_ms(&self) -> u64 {
        LATE_MS.max(2 * self.tick_ms + 500)
    }

    pub(crate) fn node_begins(&mut self, incarnation: Incarnation, node: NodeId) {
        let is_new = !self.nodes.contains_key(&incarnation);
        self.check(is_new, "I3", || format!("node {node} begins a second life as {incarnation}"));
        self.nodes.insert(incarnation, NodeView { node, ..NodeView::default() });
    }

    pub(crate) fn node_ends(&mut self, incarnation: Incarnation) {
        // Its memory is gone; only that it must not come again is remembered.
        self.nodes.insert(incarnation, NodeView::default());
    }

    /// A node, or its machine, goes on after a stop.
    pub(crate) fn node_runs_again(&mut self, incarnation: Incarnation, clock: MonoNs) {
        if let Some(view) = self.nodes.get_mut(&incarnation) {
            view.runs_since = clock;
        }
    }

    /// The last right that a node has given for a region.
    pub(crate) fn right_of(&self, incarnation: Incarnation, region: RegionIndex) -> Option<(Epoch, Handle)> {
        let right = self.nodes.get(&incarnation)?.rights.get(&region)?;
        Some((right.epoch, Handle(right.handle)))
    }

    /// A broker has opened the disk: what its predecessors have given up it need not know.
    pub(crate) fn disk_opened(&mut self) {
        self.let_go.clear();
    }

    /// I5: what a name had and has let go of, the same broker gives to no name again.
    pub(crate) fn names_changed(&mut self, before: &BTreeSet<Place>, after: &BTreeSet<Place>) {
        let again = after.difference(before).find(|place| self.let_go.contains(*place)).copied();
        self.check(again.is_none(), "I5", || {
            format!("a name has {again:?} (life, region, epoch), which a name had and has let go of")
        });
        self.let_go.extend(before.difference(after));
    }

    /// Nodes say aloud what they do not understand about themselves.
    pub(crate) fn said(&mut self, line: &str) {
        let disagree = line.contains("the gate of region") || line.contains("was not clean");
        self.check(!disagree, "I1", || format!("leases and gates disagree: {line}"));
    }

    /// What the node knows as it begins to answer.
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
                self.ticket_is_good(incarnation, known, lease);
                let session = Some(lease.ticket.session);
                for grant in leased.grants.iter() {
                    self.right_is_new(incarnation, grant.region, grant.epoch, grant.handle.0, session, true);
                }
                self.sign(incarnation, lease.ticket.session, clock);
            }
            (Request::Renew(proof), Ok(_)) => self.sign(incarnation, proof.session, clock),
            (Request::Seal(_), Ok(Reply::Seal(sealed))) => {
                for grant in sealed.regions.iter() {
                    self.right_is_new(incarnation, grant.region, grant.epoch, grant.handle.0, None, false);
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

    /// Tickets: redeemed once, by the life that was meant, not of a deposed broker, not past their time.
    fn ticket_is_good(&mut self, incarnation: Incarnation, known: Known, lease: &Lease) {
        let ticket = &lease.ticket;
        let Some(view) = self.nodes.get_mut(&incarnation) else { return };
        let is_first = view.redeemed.insert((ticket.term, ticket.id));
        let (Known { term, broker_ms }, node) = (known, view.node);
        if ticket.term > view.term {
            view.term = ticket.term;
            view.broker_ms = 0;
        }
        let (id, of) = (ticket.id, ticket.term);
        self.check(is_first, "ticket-once", || format!("ticket {id} of term {of} was redeemed twice"));
        self.check(of >= term, "ticket-term", || {
            format!("ticket {id} of term {of} was redeemed at a node that has seen term {term}")
        });
        self.check(ticket.incarnation == incarnation && ticket.node == node, "ticket-life", || {
            format!("ticket {id} for life {} was redeemed in life {incarnation}", ticket.incarnation)
        });
        let is_timely = of != term || ticket.not_after_ms >= broker_ms;
        self.check(is_timely, "ticket-time", || {
            format!("ticket {id} good until {} ms was redeemed behind {broker_ms} ms", ticket.not_after_ms)
        });
    }

    /// I2 and I4: epochs of a region only grow, and no capability is given out twice.
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
        // A seal that is asked for again gets the same answer.
        let is_repeated = !is_writable
            && view.rights.get(&region).is_some_and(|right| right.epoch == epoch && right.handle == handle);
        let is_fresh = (view.handles.insert(handle) || is_repeated) && handle != 0;
        let before = view.rights.get(&region).map(|right| right.epoch);
        // An older one whose answer comes late must not displace a newer.
        if before.is_none_or(|before| epoch > before) {
            view.rights.insert(region, Right { epoch, handle, session, is_writable });
        }
        self.check(is_fresh, "I4", || format!("a handle of region {region} was given out before"));
        self.check(before != Some(epoch) || is_repeated, "I2", || {
            format!("epoch {epoch} of region {region} was given twice")
        });
    }

    /// I1, I2, I6 of a data operation that a node let in.
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
            // The answer that gives the right may not have left yet, but then nobody can have the handle.
            self.violated(
                "I1",
                format!("an operation of region {} was let in before any lease", span.region),
            );
            return;
        };
        let region = span.region;
        self.check(right.epoch == span.epoch, "I2", || {
            format!("an operation of epoch {} was let into region {region} at {}", span.epoch, right.epoch)
        });
        self.check(right.handle == span.handle.0, "I1", || {
            format!("an operation was let into region {region} with a handle nobody gave out for it")
        });
        self.check(right.is_writable || intent == Intent::Read, "I1", || {
            format!("sealed region {region} was written")
        });
        if let Some(sign) = sign {
            let ends = sign.plus_ms(self.ttl_ms + self.late_ms());
            let is_late = clock > ends && clock > runs_since.plus_ms(self.late_ms());
            self.check(!is_late, "I6", || {
                format!(
                    "an operation was let into region {region} {} ms behind its session's last sign of life",
                    clock.ms_since(sign)
                )
            });
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
                // It asks one question at a time, so it has the answer to the one before.
                if let Some(view) = self.nodes.get_mut(&inventory.incarnation)
                    && let Some((term, broker_ms)) = view.sent_ruling.take()
                    && term >= view.term
                {
                    view.term = term;
                    view.broker_ms = broker_ms;
                }
            }
            _ => {}
        }
    }

    /// I5: what is answered is on the disk.
    pub(crate) fn broker_answers(&mut self, request: &Request, answer: &Result<Reply, Refusal>, disk: &Disk) {
        match (request, answer) {
            (Request::Inventory(inventory), Ok(Reply::Inventory(ruling))) => {
                if let Some(view) = self.nodes.get_mut(&inventory.incarnation) {
                    view.sent_ruling = Some((ruling.term, ruling.broker_now_ms));
                }
            }
            (Request::Publish(publish), Ok(Reply::Publish(published))) => {
                let kept = disk.with_durable(|durable| {
                    durable.next_file > published.file
                        && durable.names.get(&publish.name).is_none_or(|named| named.file >= published.file)
                });
                let name = publish.name.to_string();
                self.check(kept, "I5", || format!("{name:?} was acknowledged and is not on the disk"));
            }
            (Request::OpenName(by), Ok(Reply::OpenName(opened))) => {
                let kept = disk.with_durable(|durable| durable.next_file > opened.file);
                self.check(kept, "I5", || format!("{:?} was opened and is not on the disk", &*by.name));
            }
            _ => {}
        }
    }

    /// A node as a whole: its leases, its gates and its time.
    pub(crate) fn node_as_a_whole(
        &mut self,
        incarnation: Incarnation,
        clock: MonoNs,
        service: &NodeService<SimMemory>,
        named: &[(RegionIndex, Epoch)],
    ) {
        self.invariant_i5_what_names_have_is_kept(incarnation, service.memory(), named);
        // While they are being changed they need not agree.
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

    /// I5: the bytes of a name stay until it lets them go.
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

    /// A session that is not silent any more is let in again, everywhere.
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
        // What is being granted is opened by and by.
        if is_in && !view.calls.contains_key(&session) {
            self.check(gate.is_suspended == is_suspended, "suspension", || {
                format!("session {session} is suspended: {is_suspended}; its region {region}: {gate:?}")
            });
        }
    }

    /// Quotas hold.
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
            None => self.check(!is_in, "I1", || format!("region {region} is nobody's and open: {gate:?}")),
            Some((epoch, RegionOwner::Session(_))) => {
                // Closed while it is being made ready.
                let agrees = if is_in {
                    gate.epoch == *epoch && gate.write_handle.is_some()
                } else {
                    gate.epoch < *epoch
                };
                self.check(agrees, "I1", || format!("region {region} is leased at {epoch}: {gate:?}"));
            }
            Some((epoch, _)) => {
                let agrees = gate.epoch == *epoch && gate.write_handle.is_none() && !gate.is_suspended;
                self.check(agrees, "I1", || format!("region {region} is sealed at {epoch}: {gate:?}"));
            }
        }
    }

    /// I6, on the node's own clock.
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

fn session_of(request: &Request) -> Option<SessionId> {
    match request {
        Request::Lease(lease) => Some(lease.ticket.session),
        Request::Renew(proof) => Some(proof.session),
        Request::Release(release) => Some(release.session),
        Request::Seal(seal) => Some(seal.session),
        _ => None,
    }
}
