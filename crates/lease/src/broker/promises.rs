//! Tickets: which node promises how much to whom.
//!
//! The idea: the broker adds what a tenant holds, which inventories show, and what it was promised by tickets that no
//! inventory has accounted for yet. The sum stays within the tenant's quota. Nodes redeem each ticket once.

use super::BrokerLeases;
use super::nodes::{Node, Share};
use super::spread::{Candidate, spread};
use crate::ticket;
use farpool_wire::control::{RequestTickets, Ticket, TicketOffer, Tickets};
use farpool_wire::host_label::is_within;
use farpool_wire::ids::{MonoNs, NodeId, TicketId};
use farpool_wire::limits::{LEASE_REGIONS_MAX, TENANTS_MAX, TICKETS_MAX};
use farpool_wire::{Code, List, Name, Refusal, mutant};
use std::cmp::Reverse;

impl BrokerLeases {
    /// Promises at least the bytes asked for. A refusal says how many bytes are free, or how many the tenant
    /// may still have. `NotReported` means that nodes with enough memory may still come: those of an earlier life of
    /// the broker, or those that are silent for a moment.
    pub fn request_tickets(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        request: &RequestTickets,
    ) -> Result<Tickets, Refusal> {
        self.prove(now, tenant, request.session, request.secret)?;
        self.promise_of(now, tenant, request).map_err(|refusal| match refusal.code {
            Code::NoNodes | Code::Exhausted if self.awaits_nodes(now) || self.may_grow(now, request) => {
                Refusal::new(Code::NotReported, 0)
            }
            _ => refusal,
        })
    }

    /// Reports whether there would be enough memory if all nodes that are silent for a moment went on. A session that
    /// knows that a node is lost avoids it, so that nobody waits for it.
    fn may_grow(&self, now: MonoNs, request: &RequestTickets) -> bool {
        let free = |node: &Node| node.unpromised().min(LEASE_REGIONS_MAX as u64) * node.info.region_bytes;
        let wanted = || self.nodes.values().filter(|node| is_wanted(node, request));
        let silent_bytes: u64 = wanted().filter(|node| self.may_come_back(now, node)).map(free).sum();
        let alive_bytes: u64 = wanted().filter(|node| self.may_grant(now, node)).map(free).sum();
        silent_bytes > 0 && silent_bytes.saturating_add(alive_bytes) >= request.bytes
    }

    /// Promises regions of the nodes that [`spread`] chooses among those that have reported.
    fn promise_of(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        request: &RequestTickets,
    ) -> Result<Tickets, Refusal> {
        let may_give = |node: &&Node| self.may_grant(now, node) && is_wanted(node, request);
        let mut candidates: Vec<Candidate<'_>> = self
            .nodes
            .values()
            .filter(may_give)
            .map(|node| Candidate {
                node: node.info.node,
                near: request.near != 0 && node.info.host_boot == request.near,
                label: &node.info.host_label,
                region_bytes: node.info.region_bytes,
                free: node.unpromised().min(LEASE_REGIONS_MAX as u64),
                taken: 0,
            })
            .collect();
        let Some(region_bytes) = candidates.iter().map(|candidate| candidate.region_bytes).min() else {
            return Err(Refusal::new(Code::NoNodes, 0));
        };
        // Each node gives one ticket, and an answer holds at most `TICKETS_MAX`.
        if candidates.len() > TICKETS_MAX {
            let has = |candidate: &Candidate<'_>| (candidate.near, candidate.free * candidate.region_bytes);
            candidates.sort_by_key(|candidate| Reverse(has(candidate)));
            candidates.truncate(TICKETS_MAX);
        }
        let left_bytes = self.quota_left(now, tenant)?;
        // Rounded down to whole regions, so that a request for exactly this many bytes succeeds.
        let over_quota = Refusal::new(Code::OverQuota, left_bytes / region_bytes * region_bytes);
        if request.bytes > left_bytes && !mutant!(QuotaNotChecked) {
            return Err(over_quota);
        }
        let free_bytes: u64 =
            candidates.iter().map(|candidate| candidate.free * candidate.region_bytes).sum();
        if request.bytes == 0 || spread(&mut candidates, request.bytes) > 0 {
            return Err(Refusal::new(Code::Exhausted, free_bytes));
        }
        let taken_bytes: u64 =
            candidates.iter().map(|candidate| candidate.taken * candidate.region_bytes).sum();
        if taken_bytes > left_bytes && !mutant!(QuotaNotChecked) {
            return Err(over_quota);
        }
        let taken = candidates.iter().filter(|candidate| candidate.taken > 0);
        let taken: Vec<(NodeId, u32)> =
            taken.map(|candidate| (candidate.node, candidate.taken as u32)).collect();
        let not_after_ms = self.clock_ms(now) + u64::from(self.settings.lease.ticket_ttl_ms);
        let mut offers = Vec::with_capacity(taken.len());
        for (node, regions) in taken {
            let Some(node) = self.nodes.get_mut(&node) else { continue };
            let id = TicketId(self.next_ticket);
            self.next_ticket += 1;
            let mut promise = Ticket {
                id,
                term: self.durable.term,
                session: request.session,
                secret_digest: ticket::secret_digest(request.secret),
                node: node.info.node,
                incarnation: node.info.incarnation,
                region_count: regions,
                class: request.class,
                tenant: tenant.clone(),
                not_after_ms,
                mac: [0; 32],
            };
            ticket::sign(&mut promise, &node.ticket_key);
            node.promise(id, tenant, regions, not_after_ms);
            offers.push(TicketOffer { ticket: promise, node: node.info.clone() });
        }
        let tickets = List::new(offers).map_err(|_| Refusal::new(Code::LimitReached, TICKETS_MAX as u64))?;
        Ok(Tickets { tickets })
    }

    /// Returns the bytes that a tenant may still be promised.
    fn quota_left(&self, now: MonoNs, tenant: &Name) -> Result<u64, Refusal> {
        let has = self.share_of(now, tenant);
        if has == Share::default() && self.shares(now).len() >= TENANTS_MAX {
            return Err(Refusal::new(Code::LimitReached, TENANTS_MAX as u64));
        }
        let quota_bytes = self.settings.quotas.of(tenant).unwrap_or(u64::MAX);
        Ok(quota_bytes.saturating_sub(has.held + has.promised))
    }
}

/// Reports whether a request permits that this node gives memory.
fn is_wanted(node: &Node, request: &RequestTickets) -> bool {
    !request.avoid.contains(&node.info.incarnation)
        && !request.apart.iter().any(|domain| is_within(&node.info.host_label, domain))
}
