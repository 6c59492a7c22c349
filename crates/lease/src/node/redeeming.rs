//! Redeeming tickets: regions become a session's.
//!
//! The idea: a ticket is a promise of the broker, and is spent by the first request with it. The node remembers for a
//! while what it gave, so that a client whose answer was lost gets the same once more, and not nothing.
//!
//! Invariants: those of [`NodeLeases`]; a ticket gives regions once.

use super::{Action, NodeLeases, Session, State};
use crate::ticket;
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, FileClass, List, Name, Refusal, mutant};
use std::collections::{BTreeSet, VecDeque};

/// Tickets of a session whose grants are remembered.
const GRANTED_MAX: usize = 16;

/// Takes the next region to grant out of the free ones. Prefers memory that a client on this host can map at once if
/// `wants_mappable`, and memory that it cannot map otherwise.
pub(super) fn pick(
    free: &mut BTreeSet<RegionIndex>,
    mappable: &mut BTreeSet<RegionIndex>,
    wants_mappable: bool,
) -> Option<RegionIndex> {
    let fits = |region: &&RegionIndex| mappable.contains(region) == wants_mappable;
    let region = free.iter().find(fits).or_else(|| free.first()).copied()?;
    if !mutant!(GrantsTwice) {
        free.remove(&region);
    }
    mappable.remove(&region);
    Some(region)
}

impl NodeLeases {
    /// Turns a ticket into leases of as many regions as it names. `asker` is the tenant that the connection
    /// proves; `None` if it proves none. `handles` returns a fresh random handle for each region.
    pub fn redeem(
        &mut self,
        now: MonoNs,
        asker: Option<&Name>,
        lease: &Lease,
        mut handles: impl FnMut() -> Handle,
        actions: &mut Vec<Action>,
    ) -> Result<Leased, Refusal> {
        let ticket = &lease.ticket;
        // Checked before the signature: each life of the node has its own key, so a ticket of an old life would look
        // forged.
        if ticket.node == self.node && ticket.incarnation != self.incarnation {
            return Err(Refusal::new(Code::WrongIncarnation, self.incarnation.0));
        }
        if ticket.node != self.node || !ticket::is_genuine(ticket, &self.ticket_key) {
            return Err(Refusal::new(Code::TicketForged, 0));
        }
        if asker.is_some_and(|asker| *asker != ticket.tenant) {
            return Err(Refusal::new(Code::WrongTenant, 0));
        }
        if ticket.term < self.term && !mutant!(OldTermTaken) {
            return Err(Refusal::new(Code::OldTerm, self.term.0));
        }
        self.enter_term(ticket.term);
        self.forget_expired_tickets(now);
        let clock = self.broker_now_ms(now).unwrap_or(0).max(self.forgotten_before_ms);
        if clock > ticket.not_after_ms {
            return Err(Refusal::new(Code::TicketExpired, clock - ticket.not_after_ms));
        }
        if self.spent.contains_key(&ticket.id) && !mutant!(SpentTicketTaken) {
            return Err(Refusal::new(Code::TicketSpent, ticket.id.0));
        }
        if self.spent.len() >= SPENT_TICKETS_MAX {
            return Err(Refusal::new(Code::LimitReached, SPENT_TICKETS_MAX as u64));
        }
        if self.is_draining() {
            // The refused ticket counts as spent, so that its tenant can use this part of its quota elsewhere at once.
            self.spent.insert(ticket.id, ticket.not_after_ms);
            return Err(Refusal::new(Code::Draining, 0));
        }
        let wanted = ticket.region_count as usize;
        if wanted == 0 || wanted > LEASE_REGIONS_MAX || wanted > self.free.len() {
            // The refused ticket counts as spent, so that the broker can promise these regions to others at once.
            self.spent.insert(ticket.id, ticket.not_after_ms);
            return Err(Refusal::new(Code::Exhausted, self.free.len() as u64));
        }
        let firm_left = self.firm_max.saturating_sub(self.firm());
        if ticket.class == FileClass::Pinned && ticket.region_count > firm_left {
            self.spent.insert(ticket.id, ticket.not_after_ms);
            return Err(Refusal::new(Code::Exhausted, firm_left.into()));
        }
        let Some(tenant) = self.tenants.index_of(&ticket.tenant) else {
            self.spent.insert(ticket.id, ticket.not_after_ms);
            return Err(Refusal::new(Code::LimitReached, TENANTS_MAX as u64));
        };
        let deadline = now.plus_ms(self.lease_ttl_ms.into());
        let session = self.sessions.entry(ticket.session).or_insert_with(|| Session {
            secret_digest: ticket.secret_digest,
            tenant: ticket.tenant.clone(),
            deadline,
            suspended: false,
            leaves: None,
            regions: BTreeSet::new(),
            granted: VecDeque::new(),
            ranges_sealed: VecDeque::new(),
        });
        if session.secret_digest != ticket.secret_digest {
            return Err(Refusal::new(Code::WrongSecret, ticket.session.0));
        }
        if session.tenant != ticket.tenant {
            return Err(Refusal::new(Code::WrongTenant, 0));
        }
        // Leasing renews the session's other leases too. Otherwise the new region would be open in a suspended session.
        session.extend(deadline, actions);
        self.spent.insert(ticket.id, ticket.not_after_ms);
        let mut grants = Vec::with_capacity(wanted);
        for _ in 0..wanted {
            // Regions of pinned files will be sealed, for which their memory has to be mappable.
            let wants_mappable = lease.shared || ticket.class == FileClass::Pinned;
            let Some(region) = pick(&mut self.free, &mut self.mappable, wants_mappable) else { break };
            let entry = &mut self.regions[region.0 as usize];
            entry.epoch = Epoch(entry.epoch.0 + 1);
            entry.state = State::Leased(ticket.session);
            entry.tenant = tenant;
            entry.class = ticket.class;
            self.tenants.add(tenant);
            session.regions.insert(region);
            let handle = handles();
            actions.push(Action::Open { region, epoch: entry.epoch, writable: true, handle });
            grants.push(Grant { region, epoch: entry.epoch, handle });
        }
        let grants =
            List::new(grants).map_err(|_| Refusal::new(Code::LimitReached, LEASE_REGIONS_MAX as u64))?;
        if session.granted.len() == GRANTED_MAX {
            session.granted.pop_front();
        }
        session.granted.push_back((ticket.term, ticket.id, grants.clone()));
        Ok(Leased { lease_ttl_ms: self.lease_ttl_ms, grants })
    }

    /// Returns what a ticket has given its session, if the session still holds some of that, and extends its leases. A
    /// client asks again if the answer to its first request was lost: the regions would otherwise stay leased for
    /// nobody while the session lives. Neither the ticket's time nor the broker's term matters for that.
    ///
    /// `None` if the ticket is not spent, or too long ago, or is not good for the asker: [`Self::redeem`] says more.
    pub fn redeemed(
        &mut self,
        now: MonoNs,
        asker: Option<&Name>,
        ticket: &Ticket,
        actions: &mut Vec<Action>,
    ) -> Option<Leased> {
        let is_good = ticket.node == self.node
            && ticket.incarnation == self.incarnation
            && ticket::is_genuine(ticket, &self.ticket_key)
            && asker.is_none_or(|asker| *asker == ticket.tenant)
            && !mutant!(SpentTicketTaken);
        let session = self.sessions.get_mut(&ticket.session).filter(|_| is_good)?;
        let (.., grants) =
            session.granted.iter().find(|(term, id, _)| (*term, *id) == (ticket.term, ticket.id))?;
        let is_held = |grant: &&Grant| {
            let entry = &self.regions[grant.region.0 as usize];
            entry.epoch == grant.epoch && entry.state == State::Leased(ticket.session)
        };
        let held: Vec<Grant> = grants.iter().filter(is_held).cloned().collect();
        if held.is_empty() {
            return None;
        }
        session.extend(now.plus_ms(self.lease_ttl_ms.into()), actions);
        Some(Leased { lease_ttl_ms: self.lease_ttl_ms, grants: List::new(held).ok()? })
    }
}
