//! Nodes as the broker knows them: their reports, and the tickets that promise their regions.

use super::records::RegionKey;
use super::segment_seen::SegmentSeen;
use super::{BrokerLeases, Owner, give_up};
use crate::settings::Quotas;
use crate::tenant;
use crate::ticket::{self, TicketKey};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Opcode, Refusal, mutant};
use std::collections::{BTreeMap, BTreeSet};

/// Node in one of its lives (runs of its process).
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    /// Number of the connection over which the node offered itself last.
    connection: u64,
    pub(super) ticket_key: TicketKey,
    /// Time at which this life of the node was first heard of.
    pub(super) since: MonoNs,
    /// Time of the node's last message.
    pub(super) heard: MonoNs,
    /// Last report of the node. `None` until one has come over its present connection.
    pub(super) inventory: Option<Inventory>,
    /// Memory that the node donates; `None` if it has not told. Nodes of version 1 of the protocol never do.
    pub(super) memory: Option<NodeMemory>,
    /// Regions that the last inventory (report) showed as sealed without a name, and the sessions that sealed them.
    pub(super) sealed: BTreeMap<RegionIndex, (Epoch, SessionId)>,
    /// Regions that the last inventory showed as filled by the node itself, with copies of published files.
    pub(super) filled: BTreeMap<RegionIndex, Epoch>,
    /// Segments, which many published files share, as the last report about them over this connection showed them.
    pub(super) segments: BTreeMap<RegionIndex, SegmentSeen>,
    /// True if this life of the node has asked for orders to make copies. Nodes of earlier versions never do.
    pub(super) makes_copies: bool,
    /// Broker's clock in the last answer to an inventory over this connection, in ms. The node makes its next
    /// inventory after that time.
    ruled_ms: Option<u64>,
    /// Tickets for the node's regions that it may still redeem, or may have redeemed without the broker knowing yet.
    tickets: BTreeMap<TicketId, OpenTicket>,
    /// Number of regions that `tickets` promise in sum.
    promised: u64,
    /// Regions that each tenant has on the node.
    shares: BTreeMap<Name, Share>,
    /// Order to drain (empty) the node or to use it again, if one was given in this life (since the start) of the
    /// broker.
    told: Option<DrainOrder>,
}

/// Order of an administrator to drain (empty) a node, or to use it again.
#[derive(Clone, Copy, Debug)]
struct DrainOrder {
    drain: bool,
    stop: bool,
}

#[derive(Clone, Debug)]
struct OpenTicket {
    tenant: Name,
    regions: u32,
    not_after_ms: u64,
}

/// Amount of memory that a tenant has: regions in the field `shares` of [`Node`], bytes in the results of all methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Memory that is leased, sealed (immutable) or owned by published files, as the node reported last.
    pub(super) held: u64,
    /// Memory promised by tickets that no report has accounted for yet.
    pub(super) promised: u64,
}

impl Node {
    fn new(now: MonoNs, connection: u64, offer: Offer) -> Node {
        Node {
            info: offer.info,
            connection,
            ticket_key: offer.ticket_key,
            since: now,
            heard: now,
            inventory: None,
            memory: None,
            sealed: BTreeMap::new(),
            filled: BTreeMap::new(),
            segments: BTreeMap::new(),
            makes_copies: false,
            ruled_ms: None,
            tickets: BTreeMap::new(),
            promised: 0,
            shares: BTreeMap::new(),
            told: None,
        }
    }

    /// Takes over an offer that the same life of the node makes over a new connection. Tickets and orders stay,
    /// and so do the counts of regions held, until the next inventory.
    fn connected_again(&mut self, now: MonoNs, connection: u64, offer: Offer) {
        let before = std::mem::replace(self, Node::new(now, connection, offer));
        (self.tickets, self.promised, self.shares) = (before.tickets, before.promised, before.shares);
        (self.told, self.since, self.memory) = (before.told, before.since, before.memory);
        self.makes_copies = before.makes_copies;
    }

    /// Reports whether the node's last report says that it is being emptied, for whatever reason.
    pub(super) fn says_it_drains(&self) -> bool {
        self.inventory.as_ref().is_some_and(|inventory| inventory.draining)
    }

    /// Reports whether the node is being emptied, by an order or by its own report. An order to use it again counts
    /// once the node follows it: a node whose process was told to end does not.
    pub(super) fn is_draining(&self) -> bool {
        self.told.is_some_and(|told| told.drain) || self.says_it_drains()
    }

    /// Returns `drain` and `stop` for a ruling, the answer to a report. The pair (false, true) means that the node's
    /// earlier orders stay.
    fn order(&self) -> (bool, bool) {
        self.told.map_or((false, self.says_it_drains()), |told| (told.drain, told.stop))
    }

    /// Reports whether the node was ordered to end once it holds nothing, and its last report shows that it holds
    /// nothing.
    fn has_ended(&self) -> bool {
        let is_empty = |inventory: &Inventory| inventory.owned.is_empty() && inventory.draining;
        self.told.is_some_and(|told| told.stop) && self.inventory.as_ref().is_some_and(is_empty)
    }

    /// Counts the free regions that are not promised yet.
    pub(super) fn unpromised(&self) -> u64 {
        let free = self.inventory.as_ref().map_or(0, |inventory| u64::from(inventory.counts.free));
        free.saturating_sub(self.promised)
    }

    /// Records that a ticket was given for some of the node's regions.
    pub(super) fn promise(&mut self, id: TicketId, tenant: &Name, regions: u32, not_after_ms: u64) {
        self.promised += u64::from(regions);
        self.shares.entry(tenant.clone()).or_default().promised += u64::from(regions);
        self.tickets.insert(id, OpenTicket { tenant: tenant.clone(), regions, not_after_ms });
    }

    fn forget_ticket(&mut self, id: TicketId) {
        let Some(open) = self.tickets.remove(&id) else { return };
        self.promised -= u64::from(open.regions);
        if let Some(share) = self.shares.get_mut(&open.tenant) {
            share.promised -= u64::from(open.regions);
        }
    }

    /// Counts the tickets that can still be redeemed at this time of the broker's clock, in ms.
    pub(super) fn open_tickets(&self, clock: u64) -> usize {
        // Most tickets are open, so this counts the expired ones, which have the lowest ids.
        self.tickets.len() - self.tickets.values().take_while(|open| open.not_after_ms < clock).count()
    }

    /// Returns what this tenant has on the node, in bytes.
    pub(super) fn share_of(&self, tenant: &Name) -> Share {
        self.in_bytes(self.shares.get(tenant).copied().unwrap_or_default())
    }

    /// Returns what each tenant has on the node, in bytes.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&Name, Share)> {
        self.shares.iter().map(|(tenant, share)| (tenant, self.in_bytes(*share)))
    }

    /// Converts regions to bytes. It cannot overflow: both counts are at most `NODE_REGIONS_MAX`.
    fn in_bytes(&self, share: Share) -> Share {
        let bytes = self.info.region_bytes;
        Share { held: share.held * bytes, promised: share.promised * bytes }
    }

    /// Takes over what an inventory (the node's report) says of tickets and tenants.
    fn count(&mut self, inventory: &Inventory) {
        for ticket in inventory.spent.iter() {
            self.forget_ticket(*ticket);
        }
        // An inventory made after the end of a ticket shows what became of the ticket. One that was only
        // received after the end may have been on its way when the ticket was redeemed.
        if let Some(ruled_ms) = self.ruled_ms {
            while let Some((id, open)) = self.tickets.first_key_value()
                && open.not_after_ms < ruled_ms
            {
                let id = *id;
                self.forget_ticket(id);
            }
        }
        for share in self.shares.values_mut() {
            share.held = 0;
        }
        for has in inventory.tenants.iter() {
            self.shares.entry(has.tenant.clone()).or_default().held += u64::from(has.regions);
        }
        self.shares.retain(|_, share| *share != Share::default());
    }
}

/// Returns a node that reports over a connection, which must be that of the node's last offer: what comes late over an
/// earlier one may not be true any more.
pub(super) fn reporting(
    node: Option<&mut Node>,
    connection: u64,
    id: NodeId,
    incarnation: Incarnation,
) -> Result<&mut Node, Refusal> {
    let node = node.ok_or(Refusal::new(Code::NoNodes, id.0))?;
    if node.info.incarnation != incarnation {
        return Err(Refusal::new(Code::WrongIncarnation, node.info.incarnation.0));
    }
    if node.connection != connection {
        return Err(Refusal::new(Code::NoNodes, id.0));
    }
    Ok(node)
}

impl BrokerLeases {
    /// Accepts a node that presents itself over a connection, which the caller has numbered. A new incarnation (run of
    /// the node's process) replaces the old one only when that is silent; otherwise two that both live would displace
    /// each other for ever.
    ///
    /// An offer may be handled late, when its connection is already broken. Then an earlier life, or an earlier
    /// connection, seems to be the present one until the node offers itself again.
    pub fn offer(&mut self, now: MonoNs, connection: u64, offer: Offer) -> Result<Offered, Refusal> {
        if !self.nodes.contains_key(&offer.info.node) && self.nodes.len() >= NODES_MAX {
            return Err(Refusal::new(Code::LimitReached, NODES_MAX as u64));
        }
        let region_bytes = offer.info.region_bytes;
        if !region_bytes.is_power_of_two() || !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region_bytes) {
            return Err(Refusal::new(Code::Malformed, Opcode::Offer as u64));
        }
        let (id, incarnation) = (offer.info.node, offer.info.incarnation);
        if let Some(other) = self.nodes.get(&id).filter(|node| node.info.incarnation != incarnation)
            && now.ms_since(other.heard) <= u64::from(self.settings.lease.node_silence_ms)
        {
            return Err(Refusal::new(Code::WrongIncarnation, other.info.incarnation.0));
        }
        // An offer of an earlier life that comes late erases the record of what the present life was ordered to
        // free. Even so none of that is published: a region must first be reported as sealed, in an inventory
        // that the node made after the answer to a later offer. Such an inventory is up to date, and what the
        // broker sent over other connections no longer reaches the node.
        self.given_up.retain(|place, _| place.0 != id || place.1 == incarnation);
        self.taken_back.retain(|place, _| place.0 != id || place.1 == incarnation);
        match self.nodes.get_mut(&id) {
            Some(node) if node.info.incarnation == incarnation => {
                node.connected_again(now, connection, offer);
            }
            _ => {
                self.nodes.insert(id, Node::new(now, connection, offer));
            }
        }
        let times = &self.settings.lease;
        Ok(Offered {
            term: self.durable.term,
            lease_ttl_ms: times.lease_ttl_ms,
            grace_ms: times.grace_ms,
            heartbeat_ms: times.heartbeat_ms,
        })
    }

    /// Notes which memory a node donates. Accepted only over the connection of the node's last offer.
    pub fn offer_memory(&mut self, connection: u64, memory: NodeMemory) -> Result<Done, Refusal> {
        let node = self.nodes.get_mut(&memory.node).filter(|node| node.connection == connection);
        let node = node.ok_or(Refusal::new(Code::NoNodes, memory.node.0))?;
        node.memory = Some(memory);
        Ok(Done {})
    }

    /// Returns the memory of each node that has told it.
    pub fn list_memory(&self) -> MemoryListed {
        let told = self.nodes.values().filter_map(|node| node.memory.clone());
        // `offer` bounds the number of nodes.
        MemoryListed { nodes: List::new(told.collect()).unwrap_or_default() }
    }

    /// Takes a node's report and returns the ruling: which of its sealed (immutable) regions have owners, and which are
    /// dropped. Accepts reports only over the connection of the node's last offer: a late report over an earlier one
    /// may show regions that were freed since.
    pub fn inventory(
        &mut self,
        now: MonoNs,
        connection: u64,
        inventory: Inventory,
    ) -> Result<Ruling, Refusal> {
        let broker_now_ms = self.clock_ms(now);
        let node = self.nodes.get_mut(&inventory.node);
        let node = reporting(node, connection, inventory.node, inventory.incarnation)?;
        let counted: u64 = inventory.tenants.iter().map(|has| u64::from(has.regions)).sum();
        if u64::from(inventory.counts.free).max(counted) > NODE_REGIONS_MAX as u64 {
            return Err(Refusal::new(Code::Malformed, Opcode::Inventory as u64));
        }
        node.heard = now;
        let mut adopt = Vec::new();
        let mut drop = Vec::new();
        let mut kept = 0;
        node.sealed.clear();
        node.filled.clear();
        for owned in inventory.owned.iter() {
            let place: RegionKey = (inventory.node, inventory.incarnation, owned.region);
            let named = self.owners.get(&place).filter(|owner| owner.epoch == owned.epoch);
            kept += usize::from(named.is_some());
            if node.segments.get(&owned.region).is_some_and(|segment| segment.epoch == owned.epoch) {
                continue;
            }
            match (owned.owner, named.map(Owner::file)) {
                (RegionOwner::Session(_), _) => {}
                // The node makes copies here, or has made them, and will say what became of them.
                (RegionOwner::Sealing(SessionId(0)), None)
                    if self.given_up.get(&place) < Some(&owned.epoch) =>
                {
                    node.filled.insert(owned.region, owned.epoch);
                }
                // The session may still publish the region, unless a published file had it before and has given it up.
                (RegionOwner::Sealing(session), None) if self.given_up.get(&place) < Some(&owned.epoch) => {
                    node.sealed.insert(owned.region, (owned.epoch, session));
                }
                (RegionOwner::Sealing(_) | RegionOwner::Orphan, Some(file)) => {
                    adopt.push(Adoption { region: owned.region, epoch: owned.epoch, file });
                }
                (RegionOwner::Name(has), Some(file)) if has == file && !mutant!(NamedDropped) => {}
                (RegionOwner::Sealing(_) | RegionOwner::Orphan | RegionOwner::Name(_), _) => {
                    give_up(&mut self.given_up, place, owned.epoch);
                    drop.push(RegionAt { region: owned.region, epoch: owned.epoch });
                }
            }
        }
        let (id, incarnation) = (inventory.node, inventory.incarnation);
        let named =
            self.owners.range((id, incarnation, RegionIndex(0))..=(id, incarnation, RegionIndex(u32::MAX)));
        if named.clone().count() > kept {
            let shown: BTreeSet<(RegionIndex, Epoch)> =
                inventory.owned.iter().map(|owned| (owned.region, owned.epoch)).collect();
            let gone = named.filter(|(place, owner)| !shown.contains(&(place.2, owner.epoch)));
            let gone: Vec<(RegionKey, Epoch)> = gone.map(|(place, owner)| (*place, owner.epoch)).collect();
            for (place, epoch) in gone {
                // The node may use the region for something else now.
                self.owners.remove(&place);
                self.taken_back.insert(place, epoch);
                give_up(&mut self.given_up, place, epoch);
            }
            self.repairs.note_all();
        }
        node.count(&inventory);
        node.ruled_ms = Some(broker_now_ms);
        node.inventory = Some(inventory);
        let (drain, stop) = node.order();
        Ok(Ruling {
            term: self.durable.term,
            broker_now_ms,
            // Neither list is longer than the inventory's, which has the same limit.
            adopt: List::new(adopt).unwrap_or_default(),
            drop: List::new(drop).unwrap_or_default(),
            drain,
            stop,
        })
    }

    /// Takes an administrator's order to drain (empty) a node, or to use it again. The node learns of it with the
    /// answer to its next report.
    pub fn drain(&mut self, tenant: &Name, order: &DrainNode) -> Result<Done, Refusal> {
        if !tenant::oversees(tenant) {
            return Err(Refusal::new(Code::NotPermitted, Opcode::Drain as u64));
        }
        let node = self.nodes.values_mut().find(|node| node.info.name == order.node);
        let node = node.ok_or_else(|| Refusal::new(Code::NoNodes, ticket::node_id(&order.node).0))?;
        node.told = Some(DrainOrder { drain: order.drain, stop: order.drain && order.stop });
        Ok(Done {})
    }

    /// Forgets nodes that have ended as they were ordered, once they are silent. Keeps a node on which a published
    /// file has lost bytes: otherwise that loss would look like a node that has not come back yet.
    pub(super) fn forget_ended_nodes(&mut self, now: MonoNs) {
        let silence_ms = u64::from(self.settings.lease.node_silence_ms);
        let owners = &self.owners;
        self.nodes.retain(|id, node| {
            let is_gone = node.has_ended() && now.ms_since(node.heard) > silence_ms;
            let from = (*id, Incarnation(0), RegionIndex(0));
            !is_gone || owners.range(from..).next().is_some_and(|((node, ..), _)| node == id)
        });
    }

    /// Reports whether regions of the node may be promised.
    pub(super) fn may_grant(&self, now: MonoNs, node: &Node) -> bool {
        self.is_alive(now, node) && !node.is_draining()
    }

    /// Reports whether the node is silent for so short a time that it may go on soon, as one that has no CPU does.
    pub(super) fn may_come_back(&self, now: MonoNs, node: &Node) -> bool {
        let is_recent = now.ms_since(node.heard) <= self.silence_ms();
        node.inventory.is_some() && !self.is_alive(now, node) && is_recent && !node.is_draining()
    }

    /// Counts the failure domains with a node that may grant leases now.
    pub(super) fn hosts(&self, now: MonoNs) -> u32 {
        let grants = self.nodes.values().filter(|node| self.may_grant(now, node));
        let labels: BTreeSet<&Name> = grants.map(|node| &node.info.host_label).collect();
        labels.len() as u32
    }

    /// Reports whether the node has sent an inventory (report) and has not been silent for too long.
    pub(super) fn is_alive(&self, now: MonoNs, node: &Node) -> bool {
        let silence_ms = u64::from(self.settings.lease.node_silence_ms);
        node.inventory.is_some() && now.ms_since(node.heard) <= silence_ms
    }

    /// Reports whether the regions of the node count for quotas. A node that is silent may be cut off from the broker
    /// only and still serve its clients, so it counts. If it is silent for longer than a session may be, it has most
    /// likely ended, and its leases with it.
    fn is_counted(&self, now: MonoNs, node: &Node) -> bool {
        let times = &self.settings.lease;
        let silence_ms = self.silence_ms().max(times.node_silence_ms.into());
        now.ms_since(node.heard) <= silence_ms
    }

    /// Returns what a tenant has in the whole pool, in bytes.
    pub(super) fn share_of(&self, now: MonoNs, tenant: &Name) -> Share {
        let counted = self.nodes.values().filter(|node| self.is_counted(now, node));
        counted.map(|node| node.share_of(tenant)).fold(Share::default(), |all, here| Share {
            held: all.held + here.held,
            promised: all.promised + here.promised,
        })
    }

    /// Returns what each tenant has in the whole pool, in bytes. Leaves out tenants that have nothing.
    pub(super) fn shares(&self, now: MonoNs) -> BTreeMap<&Name, Share> {
        let mut all: BTreeMap<&Name, Share> = BTreeMap::new();
        for node in self.nodes.values().filter(|node| self.is_counted(now, node)) {
            for (tenant, here) in node.shares() {
                let share = all.entry(tenant).or_default();
                share.held += here.held;
                share.promised += here.promised;
            }
        }
        all
    }

    /// Counts what tenants have taken of their quotas, for the reports that come until this is called again.
    pub(super) fn count_taken(&mut self, now: MonoNs) {
        if self.settings.quotas == Quotas::default() {
            return;
        }
        let mut taken = Taken::default();
        for (id, node) in self.nodes.iter().filter(|(_, node)| self.is_counted(now, node)) {
            taken.nodes += 1;
            for (tenant, here) in node.shares() {
                let bytes = here.held + here.promised;
                *taken.in_all.entry(tenant.clone()).or_default() += bytes;
                taken.by_node.insert((*id, tenant.clone()), bytes);
            }
        }
        self.taken = taken;
    }
}

/// Bytes that tenants had taken of their quotas when they were counted last.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    /// Number of nodes.
    pub(super) nodes: u64,
    /// Bytes that each tenant had taken in the whole pool.
    in_all: BTreeMap<Name, u64>,
    /// Bytes of that on each node.
    by_node: BTreeMap<(NodeId, Name), u64>,
}

impl Taken {
    /// Returns the bytes that a tenant had taken on all nodes but one.
    pub(super) fn elsewhere(&self, node: NodeId, tenant: &Name) -> u64 {
        let here = self.by_node.get(&(node, tenant.clone())).copied().unwrap_or(0);
        self.in_all.get(tenant).copied().unwrap_or(0) - here
    }
}
