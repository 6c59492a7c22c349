//! Getting memory: extents in regions that the session holds, and more regions from the pool.
//!
//! The idea: tickets (promises of regions) come from the broker, leases from the nodes. Regions are leased ahead of
//! need, without taking everything. Nodes that are lost, being emptied or not answering are left out.

use super::{Growing, Leases, Patience, STEP_BYTES, Waits};
use crate::broker::answer_of;
use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::plan::{Allocation, Apart, Group};
use crate::stats::{add, subtract};
use farpool_lock::MutexGuard;
use farpool_wire::control::*;
use farpool_wire::{Code, FileClass, Incarnation, List, MonoNs, Name, Refusal, Request, mutant};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bounds of the bytes that are leased ahead of need: a quarter of what is held, within these. Leasing ahead saves
/// requests to the broker; the bounds keep the session from taking much that it may not need.
const AHEAD_BYTES_MIN: u64 = 128 << 20;
const AHEAD_BYTES_MAX: u64 = 1 << 30;
/// Number of tries to get memory of a full pool. A node may be wiping regions that were just released, or making memory
/// files of free ones. There are more tries while memory may become free that was promised at a node that did not
/// answer.
pub(crate) const FULL_TRIES: u32 = 5;

/// Pause in ms after a refusal, before the broker is asked again for memory with [`Patience::Brief`].
const BRIEF_PAUSE_MS: u64 = 1_000;
/// Time in ms after a broker did not answer for the whole patience, in which other threads that need memory ask only
/// once. Otherwise they would all wait for as long, one after the other.
const UNREACHABLE_PAUSE_MS: u64 = 1_000;

impl Leases {
    /// Waits for the mutex under which more memory is requested.
    fn grow(&self) -> MutexGuard<'_, Growing> {
        let asked = self.base.host.now();
        let mut growing = self.growing.take(&*self.base.host);
        growing.asked = asked;
        growing
    }

    /// Allocates an extent on a host other than those with the labels in `beside`, and as far from them as the pool
    /// allows. Leases more regions if necessary.
    pub(crate) fn allocate(
        &self,
        group: Group,
        bytes: u32,
        beside: &[Name],
        patience: Patience,
    ) -> Result<Allocation<Arc<LeasedRegion>>, Error> {
        let beside = if mutant!(MirrorOnOneHost) { &[] } else { beside };
        farthest(beside, patience, |apart, patience| self.allocate_apart(group, bytes, apart, patience))
    }

    fn allocate_apart(
        &self,
        group: Group,
        bytes: u32,
        apart: &Apart,
        patience: Patience,
    ) -> Result<Allocation<Arc<LeasedRegion>>, Error> {
        let is_good = |node: &NodeLinks| !node.is_suspect() && apart.allows(&node.info.host_label);
        if let Some(allocation) = self.allocate_from_held(group, bytes, is_good) {
            return Ok(allocation);
        }
        let mut growing = self.grow();
        let mut has_leased = false;
        loop {
            // Another thread may have leased memory that serves both.
            if let Some(allocation) = self.allocate_from_held(group, bytes, is_good) {
                return Ok(allocation);
            }
            if has_leased && apart.levels() > 0 {
                // The broker is of a version that knows hosts alone, or the node was lost at once.
                growing.brief_until[apart.levels()] = self.base.deadline(BRIEF_PAUSE_MS);
            }
            if patience == Patience::Brief {
                self.check_not_refused(&growing, apart)?;
            }
            let (held, _) = self.held.lock().allocator.held(group);
            let needed = u64::from(bytes);
            let wanted = match group {
                // Small files that will be published leave the region soon.
                Group::Class(FileClass::Pinned) | Group::File(_) => needed,
                Group::Class(_) => needed.max((held / 4).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX)),
            };
            if let Err(error) = self.lease_more(&mut growing, group, needed, wanted, apart, patience) {
                if patience == Patience::Brief {
                    growing.brief_until[apart.levels()] = self.base.deadline(BRIEF_PAUSE_MS);
                    return Err(error);
                }
                // A node that did not answer last time is better than none.
                let is_apart = |node: &NodeLinks| apart.allows(&node.info.host_label);
                return self.allocate_from_held(group, bytes, is_apart).ok_or(error);
            }
            has_leased = true;
        }
    }

    /// Fails if the pool had no memory a moment ago that is as far from other copies.
    fn check_not_refused(&self, growing: &Growing, apart: &Apart) -> Result<(), Error> {
        if self.base.host.now() >= growing.brief_until[apart.levels()] {
            return Ok(());
        }
        let message = "the pool had no free memory less than 1 s ago; retry later";
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    fn allocate_from_held(
        &self,
        group: Group,
        bytes: u32,
        is_good: impl Fn(&NodeLinks) -> bool,
    ) -> Option<Allocation<Arc<LeasedRegion>>> {
        let mut held = self.held.lock();
        loop {
            let unfit = self.nodes.unfit(&is_good);
            let allocation = held.allocator.allocate(group, bytes, |node| !unfit.contains(&node))?;
            add(&self.base.counters.used_bytes, bytes.into());
            let region = Arc::clone(held.regions.get(&allocation.region)?);
            if region.node.is_lost() {
                // Another operation has just noticed that the node is lost, so nothing new goes there.
                self.forget_region(&mut held, &region);
                continue;
            }
            held.idle_for.remove(&allocation.region);
            return Some(Allocation { region, offset: allocation.offset, bytes: allocation.bytes });
        }
    }

    /// Allocates consecutive extents in one region, of at least `bytes` bytes in all, on a host other than those with
    /// the labels in `beside`, and as far from them as the pool allows. Leases more regions if necessary.
    pub(crate) fn allocate_run(
        &self,
        group: Group,
        bytes: u64,
        beside: &[Name],
        patience: Patience,
    ) -> Result<Vec<Allocation<Arc<LeasedRegion>>>, Error> {
        farthest(beside, patience, |apart, patience| self.allocate_run_apart(group, bytes, apart, patience))
    }

    fn allocate_run_apart(
        &self,
        group: Group,
        bytes: u64,
        apart: &Apart,
        patience: Patience,
    ) -> Result<Vec<Allocation<Arc<LeasedRegion>>>, Error> {
        // Each round leases a region. Another round is needed only if the region is too small or is lost at once.
        const ROUNDS: u32 = 3;
        let mut growing = self.grow();
        for _ in 0..ROUNDS {
            if let Some(allocations) = self.allocate_run_from_held(group, bytes, apart, false) {
                return Ok(allocations);
            }
            // Each row group of a table would ask again for memory that the pool lacks.
            if apart.levels() > 0 {
                self.check_not_refused(&growing, apart)?;
            }
            if let Err(error) = self.lease_more(&mut growing, group, bytes, bytes, apart, patience) {
                if apart.levels() > 0 {
                    growing.brief_until[apart.levels()] = self.base.deadline(BRIEF_PAUSE_MS);
                }
                // A node that did not answer last time is better than none.
                let takes_suspects = patience == Patience::Full;
                let held = || self.allocate_run_from_held(group, bytes, apart, true);
                return takes_suspects.then(held).flatten().ok_or(error);
            }
        }
        let message = format!("no leased region has {bytes} contiguous free bytes");
        self.allocate_run_from_held(group, bytes, apart, false)
            .ok_or_else(|| Error::new(ErrorKind::Exhausted, message))
    }

    fn allocate_run_from_held(
        &self,
        group: Group,
        bytes: u64,
        apart: &Apart,
        takes_suspects: bool,
    ) -> Option<Vec<Allocation<Arc<LeasedRegion>>>> {
        let is_good =
            |node: &NodeLinks| (takes_suspects || !node.is_suspect()) && apart.allows(&node.info.host_label);
        let mut held = self.held.lock();
        loop {
            let unfit = self.nodes.unfit(is_good);
            let allocations = held.allocator.allocate_run(group, bytes, |node| !unfit.contains(&node))?;
            let id = allocations.first()?.region;
            add(
                &self.base.counters.used_bytes,
                allocations.iter().map(|allocation| u64::from(allocation.bytes)).sum(),
            );
            let region = Arc::clone(held.regions.get(&id)?);
            if region.node.is_lost() {
                self.forget_region(&mut held, &region);
                continue;
            }
            held.idle_for.remove(&id);
            let of_region = |allocation: Allocation<u64>| Allocation {
                region: Arc::clone(&region),
                offset: allocation.offset,
                bytes: allocation.bytes,
            };
            return Some(allocations.into_iter().map(of_region).collect());
        }
    }

    /// Leases a region of at least `bytes` bytes at a node where the group (the files that share regions) has none, so
    /// that its extents are spread over that node too. Returns false if there is no such node; nothing else changes
    /// then.
    pub(crate) fn widen(&self, group: Group, bytes: u64) -> bool {
        let mut growing = self.grow();
        let mut avoid: Vec<Incarnation> = {
            let held = self.held.lock();
            let of_group = held.allocator.regions().filter(|(_, _, its_group)| *its_group == group);
            of_group.filter_map(|(id, ..)| Some(held.regions.get(&id)?.node.info.incarnation)).collect()
        };
        self.lease_once(&mut growing, group, bytes, &Apart::default(), Patience::Brief, &mut avoid).is_ok()
    }

    /// Returns the bytes of the regions that a group of files shares, and how many of them are free.
    pub(crate) fn held_by(&self, group: Group) -> (u64, u64) {
        self.held.lock().allocator.held(group)
    }

    /// Returns the number of hosts that have regions which a group of files shares.
    pub(crate) fn hosts_with(&self, group: Group) -> usize {
        let held = self.held.lock();
        let of_group = held.allocator.regions().filter(|(_, _, its_group)| *its_group == group);
        let labels = of_group.filter_map(|(id, ..)| Some(&held.regions.get(&id)?.node.info.host_label));
        labels.collect::<BTreeSet<_>>().len()
    }

    /// Notes that a write may still arrive late at this offset of a region. What lies there is not used again, and the
    /// region is given up when nothing else is in it.
    pub(crate) fn note_late(&self, region: &LeasedRegion, offset: u64) {
        self.held.lock().allocator.note_late(region.id, offset);
    }

    /// Frees extents for other uses by the session.
    pub(crate) fn give_back(&self, allocations: Vec<Allocation<Arc<LeasedRegion>>>) {
        let mut held = self.held.lock();
        for allocation in allocations {
            if held.regions.contains_key(&allocation.region.id) {
                subtract(&self.base.counters.used_bytes, allocation.bytes.into());
                held.allocator.give_back(Allocation {
                    region: allocation.region.id,
                    offset: allocation.offset,
                    bytes: allocation.bytes,
                });
            }
        }
    }

    /// Leases until a group of files has at least `bytes` free bytes in its regions. Leases nothing if the pool has not
    /// that many, so that a write far behind a file's end does not take the pool and then fail.
    pub(crate) fn make_room(&self, group: Group, bytes: u64) -> Result<(), Error> {
        if self.held.lock().allocator.held(group).1 >= bytes {
            return Ok(());
        }
        let mut growing = self.grow();
        let (_, free) = self.held.lock().allocator.held(group);
        if free >= bytes {
            return Ok(());
        }
        self.lease_more(&mut growing, group, bytes - free, bytes - free, &Apart::default(), Patience::Full)
    }

    /// Leases until a group of files has at least `bytes` free bytes in its regions. For scratch files, the regions
    /// held then stay leased while the session lives.
    pub(crate) fn reserve(&self, group: Group, bytes: u64) -> Result<(), Error> {
        let mut growing = self.grow();
        let floor_before = self.held.lock().floor_bytes;
        loop {
            let free = {
                let mut held = self.held.lock();
                let (all, free) = held.allocator.held(group);
                // Nodes may take long, and what they have leased so far is idle until the last of them is done.
                if group == Group::Class(FileClass::Scratch) {
                    held.floor_bytes = held.floor_bytes.max(all);
                }
                free
            };
            if free >= bytes {
                return Ok(());
            }
            let next = (bytes - free).min(STEP_BYTES);
            let leased = self.lease_more(&mut growing, group, next, next, &Apart::default(), Patience::Full);
            if let Err(error) = leased {
                self.held.lock().floor_bytes = floor_before;
                return Err(error);
            }
        }
    }

    /// Leases `wanted` bytes or, if the pool has not that many, at least `needed`. The caller holds the mutex
    /// `growing`.
    fn lease_more(
        &self,
        growing: &mut Growing,
        group: Group,
        needed: u64,
        wanted: u64,
        apart: &Apart,
        patience: Patience,
    ) -> Result<(), Error> {
        if patience == Patience::Brief {
            return self.lease_within(growing, group, needed, wanted, apart, patience);
        }
        // Threads that queued for the mutex while another one waited without success have waited as long already.
        let waits = self.base.host.now() >= growing.unreachable_until && growing.asked >= growing.refused_at;
        let patience = if waits { patience } else { Patience::Brief };
        let leased = self.lease_within(growing, group, needed, wanted, apart, patience);
        match &leased {
            Ok(()) => growing.unreachable_until = MonoNs(0),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                growing.unreachable_until = self.base.deadline(UNREACHABLE_PAUSE_MS);
            }
            Err(_) if waits => growing.refused_at = self.base.host.now(),
            Err(_) => {}
        }
        leased
    }

    /// Returns the time in ms for which memory is waited for that was promised at a node which did not answer. By
    /// default, a promise lasts as long as the patience for brokers, and the broker learns of its end a little later.
    fn promise_patience_ms(&self) -> u64 {
        self.base.options.broker_patience_ms.saturating_mul(3) / 2
    }

    fn lease_within(
        &self,
        growing: &mut Growing,
        group: Group,
        needed: u64,
        wanted: u64,
        apart: &Apart,
        patience: Patience,
    ) -> Result<(), Error> {
        let mut avoid: Vec<Incarnation> = Vec::new();
        let mut bytes = wanted;
        let (mut tries, mut died) = (0, 0);
        let mut give_up = None;
        loop {
            let error = match self.lease_once(growing, group, bytes, apart, patience, &mut avoid) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Exhausted => error,
                Err(error) => return Err(error),
            };
            let is_full = |refusal: &Refusal| matches!(refusal.code, Code::Exhausted | Code::OverQuota);
            let full = error.refusal().filter(is_full);
            if bytes > needed && full.is_some_and(|refusal| refusal.detail >= needed) {
                bytes = needed;
                continue;
            }
            // A node has died, and the broker may not have noticed yet. It is asked for memory of other nodes at once.
            avoid.retain(|life| self.nodes.is_over(*life));
            if avoid.len() > died {
                died = avoid.len();
                continue;
            }
            tries += 1;
            // It was asked for until the patience for brokers was over.
            let has_waited = error.refusal().is_some_and(|refusal| refusal.code == Code::NotReported);
            let give_up = *give_up.get_or_insert_with(|| self.base.deadline(self.promise_patience_ms()));
            let may_become_free = self.base.host.now() < growing.unredeemed_until.min(give_up);
            let is_over = tries >= FULL_TRIES && !may_become_free;
            if is_over || patience == Patience::Brief || has_waited {
                let held = self.base.counters.read();
                return Err(error.during(format!(
                    "leasing {needed} more bytes (this session holds {}, {} in use{})",
                    held.leased_bytes,
                    held.used_bytes,
                    self.nodes.lost_shown()
                )));
            }
            // No other node had memory either, so one that was silent is waited for.
            let deadline = |offer: &TicketOffer| self.lease_deadline(offer);
            if tries > 1 && self.redeem_unanswered(growing, deadline, Waits::Long).contains(&group) {
                return Ok(());
            }
            self.base.pause(20 << tries.min(FULL_TRIES))?;
        }
    }

    /// Asks for tickets once and leases at each node. Adds nodes that fail to `avoid`.
    ///
    /// Errors: no region was leased.
    fn lease_once(
        &self,
        growing: &mut Growing,
        group: Group,
        bytes: u64,
        apart: &Apart,
        patience: Patience,
        avoid: &mut Vec<Incarnation>,
    ) -> Result<(), Error> {
        self.base.check_open()?;
        let deadline = |offer: &TicketOffer| self.lease_deadline(offer);
        if self.redeem_unanswered(growing, deadline, Waits::WhileItIsThere).contains(&group) {
            return Ok(());
        }
        let class = match group {
            Group::Class(class) => class,
            Group::File(_) => FileClass::Pinned,
        };
        avoid.extend(self.nodes.lives_to_avoid());
        avoid.sort_unstable();
        avoid.dedup();
        let request = RequestTickets {
            session: self.proof.session,
            secret: self.proof.secret,
            bytes,
            class,
            near: self.nodes.this_host(),
            avoid: List::new(avoid.clone()).unwrap_or_default(),
            apart: List::new(apart.domains().to_vec()).unwrap_or_default(),
        };
        let patience_ms = match patience {
            Patience::Full => self.base.options.broker_patience_ms,
            Patience::Brief => 0,
        };
        let answer = self.broker.ask_for(&Request::RequestTickets(request), patience_ms)?;
        let tickets = answer_of!(answer, RequestTickets)?;
        let mut failed = None;
        let mut leased = 0;
        for offer in tickets.tickets.iter() {
            match self.redeem(group, offer, self.lease_deadline(offer), Waits::WhileItIsThere) {
                Ok(count) => leased += count,
                Err(error) => {
                    if error.kind() == ErrorKind::Unreachable {
                        growing.unredeemed_until = self.base.deadline(self.promise_patience_ms());
                        growing.unanswered.push((group, offer.clone()));
                    }
                    avoid.push(offer.node.incarnation);
                    failed = Some(error);
                }
            }
        }
        match failed {
            // Less than requested is a success. The caller asks again for the rest.
            _ if leased > 0 => Ok(()),
            Some(error) => Err(Error::new(ErrorKind::Exhausted, error.to_string())),
            None => Err(Error::new(ErrorKind::Exhausted, "the broker granted no tickets")),
        }
    }

    /// Asks nodes again that were asked to redeem a ticket and did not answer. Returns the groups of files for which
    /// they have leased memory. A node that has answered no other request since is asked only if it is waited for long.
    fn redeem_unanswered(
        &self,
        growing: &mut Growing,
        deadline: impl Fn(&TicketOffer) -> MonoNs,
        waits: Waits,
    ) -> BTreeSet<Group> {
        let mut leased = BTreeSet::new();
        growing.unanswered.retain(|(group, offer)| {
            let redeemed = match self.links(&offer.node) {
                Ok(links) if links.is_suspect() && waits == Waits::WhileItIsThere => return true,
                Ok(_) => self.redeem(*group, offer, deadline(offer), waits),
                Err(error) => Err(error),
            };
            if redeemed.is_ok() {
                leased.insert(*group);
            }
            redeemed.is_err_and(|error| error.kind() == ErrorKind::Unreachable)
        });
        leased
    }

    /// Asks nodes again for leases of which the answer was lost, unless a thread asks for memory and does that.
    pub(crate) fn find_unanswered(&self, timeout_ms: u64) {
        if let Some(mut growing) = self.growing.try_take() {
            let deadline = |_: &TicketOffer| self.base.deadline(timeout_ms);
            self.redeem_unanswered(&mut growing, deadline, Waits::WhileItIsThere);
        }
    }

    /// Returns the deadline of a request for a lease that is sent now: large regions take the node some time.
    fn lease_deadline(&self, offer: &TicketOffer) -> MonoNs {
        let bytes = u64::from(offer.ticket.region_count).saturating_mul(offer.node.region_bytes);
        self.base.request_deadline_for(bytes)
    }

    fn redeem(
        &self,
        group: Group,
        offer: &TicketOffer,
        deadline: MonoNs,
        waits: Waits,
    ) -> Result<u64, Error> {
        let links = self.links(&offer.node)?;
        // The regions held at the node may be gone if this process paused for longer than a lease. A renewal must find
        // that out before a new lease makes the old ones look valid.
        if links.leased_until().0 > 0 && self.base.host.now() >= links.leased_until() {
            self.renew(&links)?;
        }
        let lease = Request::Lease(Lease { ticket: offer.ticket.clone(), shared: links.is_shared() });
        let asked = self.base.host.now();
        // A node that has redeemed the ticket gives the same answer again.
        let reply = self.ask(&links, &lease, deadline, waits)?;
        let leased = answer_of!(reply, Lease)?;
        links.extend_lease(asked, leased.lease_ttl_ms);
        let region_bytes = offer.node.region_bytes;
        let mut held = self.held.lock();
        for grant in leased.grants.iter() {
            let id = held.next_id;
            held.next_id += 1;
            held.allocator.add(id, links.info.node, group, region_bytes);
            held.regions.insert(
                id,
                Arc::new(LeasedRegion {
                    id,
                    node: Arc::clone(&links),
                    region: grant.region,
                    epoch: grant.epoch,
                    handle: grant.handle,
                    is_leased: true,
                    is_taken: AtomicBool::new(false),
                }),
            );
        }
        let bytes = leased.grants.len() as u64 * region_bytes;
        add(&self.base.counters.leased_bytes, bytes);
        add(&self.base.counters.leased_bytes_total, bytes);
        Ok(leased.grants.len() as u64)
    }
}

/// Allocates for a copy beside others, whose host labels are given: in the domains farthest from theirs that have
/// memory.
fn farthest<T>(
    beside: &[Name],
    patience: Patience,
    allocate: impl Fn(&Apart, Patience) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut levels = Apart::farthest_first(beside);
    let hosts = levels.pop().unwrap_or_default();
    let wider = levels.iter().find_map(|apart| allocate(apart, Patience::Brief).ok());
    wider.map_or_else(|| allocate(&hosts, patience), Ok)
}
