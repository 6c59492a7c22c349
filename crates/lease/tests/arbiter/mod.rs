//! A node's `NodeLeases` with a model of its memory and of its gates, which admit or refuse accesses. After every step,
//! everybody who ever held a grant tries to use it, and the invariants are checked.
#![allow(dead_code, reason = "not every test asks everything")]

use farpool_lease::NodeLeases;
use farpool_lease::node::{Action, Withdrawal};
use farpool_lease::settings::LeaseSettings;
use farpool_lease::ticket::TicketKey;
use farpool_wire::control::*;
use farpool_wire::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes from before this life of the node, which may be anybody's.
    Unknown,
    Zeros,
    Written(SessionId),
}

#[derive(Clone, Copy, Debug)]
struct Right {
    epoch: Epoch,
    writable: bool,
    handle: Handle,
}

#[derive(Clone, Copy, Debug)]
struct Gate {
    epoch: Epoch,
    right: Option<Right>,
    suspended: bool,
    to_scrub: bool,
    content: Content,
}

/// Grant that was given once. Its holder goes on trying to use it for ever.
#[derive(Clone, Copy, Debug)]
struct Given {
    session: SessionId,
    region: RegionIndex,
    epoch: Epoch,
    handle: Handle,
}

#[derive(Debug)]
pub struct Arbiter {
    leases: NodeLeases,
    grace_ms: u32,
    gates: Vec<Gate>,
    given: Vec<Given>,
    /// Tickets that were redeemed. Their ids begin anew with each term.
    redeemed: Vec<(Term, TicketId)>,
    /// Time at which each session's leases expire unless renewed.
    deadlines: BTreeMap<SessionId, MonoNs>,
    /// Tenant and class for which each region was leased last.
    tenants: BTreeMap<RegionIndex, Name>,
    classes: BTreeMap<RegionIndex, FileClass>,
    handles: u128,
}

impl Arbiter {
    pub fn new(node: NodeId, incarnation: Incarnation, key: TicketKey, region_count: u32) -> Arbiter {
        let gate = Gate {
            epoch: Epoch(0),
            right: None,
            suspended: false,
            to_scrub: true,
            content: Content::Unknown,
        };
        Arbiter {
            leases: NodeLeases::new(node, incarnation, key, region_count),
            grace_ms: LeaseSettings::default().grace_ms,
            gates: vec![gate; region_count as usize],
            given: Vec::new(),
            redeemed: Vec::new(),
            deadlines: BTreeMap::new(),
            tenants: BTreeMap::new(),
            classes: BTreeMap::new(),
            handles: u128::from(incarnation.0) << 64,
        }
    }

    pub fn incarnation(&self) -> Incarnation {
        self.leases.incarnation()
    }

    pub fn inventory(&self) -> Inventory {
        self.leases.inventory(Traffic::default(), 0)
    }

    pub fn may_end(&self) -> bool {
        self.leases.may_end()
    }

    pub fn owner(&self, region: RegionIndex) -> Option<(Epoch, RegionOwner)> {
        let inventory = self.inventory();
        inventory.owned.iter().find(|owned| owned.region == region).map(|owned| (owned.epoch, owned.owner))
    }

    /// Returns the bytes that a reader with this handle sees; `None` if the gate refuses it.
    pub fn read(&self, region: RegionIndex, epoch: Epoch, handle: Handle) -> Option<Content> {
        let gate = &self.gates[region.0 as usize];
        let right = gate.right?;
        let admitted = right.epoch == epoch && right.handle == handle && !gate.suspended;
        admitted.then_some(gate.content)
    }

    pub fn to_scrub(&self) -> Vec<RegionIndex> {
        let dirty = self.gates.iter().enumerate().filter(|(_, gate)| gate.to_scrub);
        dirty.map(|(index, _)| RegionIndex(index as u32)).collect()
    }

    /// Takes over the lease times of a broker. All lives of the broker must have the same times.
    pub fn offered(&mut self, offered: &Offered) {
        self.grace_ms = offered.grace_ms;
        self.leases.offered(offered);
    }

    /// Redeems a ticket over a connection that proves the tenant `asker`; `None` if it proves none. The other
    /// requests take `asker` likewise.
    pub fn redeem(&mut self, now: MonoNs, asker: Option<&Name>, ticket: &Ticket) -> Result<Leased, Refusal> {
        let (mut actions, mut handles) = (Vec::new(), self.handles);
        let next_handle = || {
            handles += 1;
            Handle(handles)
        };
        // The node makes a region mappable for clients of its host now and then. Every second lease asks for such
        // memory.
        if let Some(region) = self.leases.take_to_make_mappable() {
            assert_eq!(
                self.leases.made_mappable(region),
                None,
                "nothing has to go where regions are made mappable"
            );
        }
        let lease = Lease { ticket: ticket.clone(), shared: ticket.id.0.is_multiple_of(2) };
        let answer = self.leases.redeem(now, asker, &lease, next_handle, &mut actions);
        self.handles = handles;
        let is_draining = self.inventory().draining;
        assert!(is_draining || !matches!(&answer, Err(refusal) if refusal.code == Code::Draining));
        if let Ok(leased) = &answer {
            assert!(!is_draining, "a node that is being emptied grants nothing");
            assert_eq!(leased.grants.len(), ticket.region_count as usize, "all that was promised");
            let id = (ticket.term, ticket.id);
            assert!(!self.redeemed.contains(&id), "ticket {id:?} was redeemed twice");
            self.redeemed.push(id);
            assert!(asker.is_none_or(|asker| *asker == ticket.tenant), "{asker:?} redeemed {ticket:?}");
            let tenants = leased.grants.iter().map(|grant| (grant.region, ticket.tenant.clone()));
            self.tenants.extend(tenants);
            self.classes.extend(leased.grants.iter().map(|grant| (grant.region, ticket.class)));
            self.heard_of(now, ticket.session, leased.lease_ttl_ms);
            self.given.extend(leased.grants.iter().map(|grant| Given {
                session: ticket.session,
                region: grant.region,
                epoch: grant.epoch,
                handle: grant.handle,
            }));
        }
        self.step(answer.is_ok(), &actions);
        answer
    }

    pub fn renew(
        &mut self,
        now: MonoNs,
        asker: Option<&Name>,
        proof: &SessionProof,
    ) -> Result<Renewed, Refusal> {
        let mut actions = Vec::new();
        let answer = self.leases.renew(now, asker, proof, &mut actions);
        if let Ok(renewed) = &answer {
            let leaves = self.inventory().draining || self.leases.is_evacuating(proof.session);
            assert_eq!(renewed.draining, leaves, "its holders are asked to leave");
            let owned = self.inventory().owned;
            let leased = owned.iter().filter(|owned| owned.owner == RegionOwner::Session(proof.session));
            assert_eq!(renewed.regions as usize, leased.count(), "a client compares this with what it holds");
            self.heard_of(now, proof.session, renewed.lease_ttl_ms);
        }
        self.step(answer.is_ok(), &actions);
        answer
    }

    pub fn release(&mut self, asker: Option<&Name>, release: &Release) -> Result<Released, Refusal> {
        let mut actions = Vec::new();
        let answer = self.leases.release(asker, release, &mut actions);
        if answer.is_ok() && release.whole {
            self.deadlines.remove(&release.session);
        }
        self.step(answer.is_ok(), &actions);
        answer
    }

    pub fn seal(&mut self, asker: Option<&Name>, seal: &Seal) -> Result<Sealed, Refusal> {
        let (mut actions, mut handles) = (Vec::new(), self.handles);
        let next_handle = || {
            handles += 1;
            Handle(handles)
        };
        let answer = self.leases.seal(asker, seal, next_handle, &mut actions);
        self.handles = handles;
        if let Ok(sealed) = &answer {
            let closes = actions.iter().filter(|action| matches!(action, Action::Close { .. })).count();
            assert!(closes <= sealed.regions.len() && actions.len() == 2 * closes, "{actions:?}");
            self.given.extend(sealed.regions.iter().map(|grant| Given {
                session: seal.session,
                region: grant.region,
                epoch: grant.epoch,
                handle: grant.handle,
            }));
        }
        self.step(answer.is_ok(), &actions);
        if let Ok(sealed) = &answer {
            let readable = |grant: &Grant| self.read(grant.region, grant.epoch, grant.handle).is_some();
            assert!(sealed.regions.iter().all(readable), "{sealed:?} cannot be read");
        }
        answer
    }

    /// Takes a region for a copy of a tenant's file.
    pub fn begin_copying(&mut self, tenant: &Name) -> Result<RegionAt, Refusal> {
        let mut actions = Vec::new();
        self.handles += 1;
        let answer = self.leases.begin_copying(tenant, Handle(self.handles), &mut actions);
        if let Ok(at) = &answer {
            assert!(!self.inventory().draining, "a node that is being emptied takes nothing");
            self.tenants.insert(at.region, tenant.clone());
            self.classes.insert(at.region, FileClass::Pinned);
        }
        self.step(answer.is_ok(), &actions);
        answer
    }

    /// Fills the region with what was read from another node, and makes it immutable. Refused if it was taken back.
    pub fn end_copying(&mut self, at: &RegionAt, content: Content) -> Result<Grant, Refusal> {
        let (mut actions, mut handles) = (Vec::new(), self.handles);
        handles += 1;
        let answer = self.leases.end_copying(at, Handle(handles), &mut actions);
        self.handles = handles;
        if answer.is_ok() {
            let gate = &mut self.gates[at.region.0 as usize];
            assert!(gate.right.is_some_and(|right| right.writable && right.epoch == at.epoch));
            gate.content = content;
        }
        self.step(answer.is_ok(), &actions);
        answer
    }

    /// Takes back a region that could not be filled.
    pub fn abandon_copying(&mut self, at: &RegionAt) {
        let mut actions = Vec::new();
        self.leases.abandon_copying(at, &mut actions);
        self.step(true, &actions);
    }

    /// Notes that the broker knows of a copy.
    pub fn copies_known(&mut self, region: RegionIndex, epoch: Epoch) {
        self.leases.copies_known(region, epoch);
        self.step(true, &[]);
    }

    pub fn rule(&mut self, now: MonoNs, ruling: &Ruling) {
        let mut actions = Vec::new();
        self.leases.rule(now, ruling, &mut actions);
        self.step(true, &actions);
    }

    pub fn tick(&mut self, now: MonoNs) {
        let mut actions = Vec::new();
        self.leases.tick(now, &mut actions);
        self.step(true, &actions);
        self.invariant_i6_silent_session_owns_nothing_after_ttl_and_grace(now);
        assert!(self.leases.next_deadline().is_none_or(|next| next > now), "a tick leaves nothing overdue");
    }

    pub fn scrub(&mut self, region: RegionIndex) {
        let gate = &mut self.gates[region.0 as usize];
        assert!(gate.to_scrub && gate.right.is_none(), "a region is wiped once, while nobody is let in");
        gate.to_scrub = false;
        gate.content = Content::Zeros;
        let action = self.leases.scrubbed(region);
        self.step(true, action.as_slice());
    }

    /// Sets how many regions may have memory.
    pub fn limit(&mut self, now: MonoNs, regions: u32, reach: Withdrawal) {
        let (mut actions, before) = (Vec::new(), self.inventory());
        let left_before: Vec<SessionId> =
            self.deadlines.keys().copied().filter(|session| self.leases.is_evacuating(*session)).collect();
        self.leases.limit(now, regions, reach, &mut actions);
        self.step(true, &actions);
        let after = self.inventory();
        for owned in before.owned.iter().filter(|_| reach != Withdrawal::All) {
            let is_there = after.owned.iter().any(|other| other == owned);
            let may_go = match owned.owner {
                RegionOwner::Session(session) => {
                    self.classes[&owned.region] == FileClass::Cache || left_before.contains(&session)
                }
                _ => false,
            };
            assert!(is_there || may_go, "{owned:?} went for {reach:?}");
        }
        // Regions being wiped will go as well. If more must go, free regions have gone first.
        let (counts, is_met) = (&after.counts, self.leases.surplus() <= after.counts.cleaning);
        assert!(is_met || counts.free == 0, "free regions go first: {counts:?}");
        assert!(is_met || reach != Withdrawal::All, "all goes: {counts:?}");
    }

    fn heard_of(&mut self, now: MonoNs, session: SessionId, lease_ttl_ms: u32) {
        self.deadlines.insert(session, now.plus_ms(lease_ttl_ms.into()));
    }

    fn step(&mut self, granted: bool, actions: &[Action]) {
        assert!(granted || actions.is_empty(), "a refusal changes nothing: {actions:?}");
        let epochs: Vec<Epoch> = self.gates.iter().map(|gate| gate.epoch).collect();
        for action in actions {
            self.carry_out(*action);
        }
        self.invariant_i2_epochs_only_grow(&epochs);
        self.invariant_i1_one_writable_epoch();
        self.invariant_conservation();
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Open { region, epoch, writable, handle } => {
                self.invariant_i4_only_scrubbed_regions_are_opened(region, writable);
                let gate = &mut self.gates[region.0 as usize];
                assert!(gate.right.is_none(), "I1: {region} is opened while it is open");
                // A lease opens at a new epoch; a seal opens at the epoch that its `Close` has just set.
                let is_fresh = if writable { epoch > gate.epoch } else { epoch == gate.epoch };
                assert!(is_fresh, "I2: {region} is opened at {epoch}, it was at {}", gate.epoch);
                gate.epoch = epoch;
                gate.right = Some(Right { epoch, writable, handle });
            }
            Action::OpenSegment { region, epoch, handle, .. } => {
                self.invariant_i4_only_scrubbed_regions_are_opened(region, true);
                let gate = &mut self.gates[region.0 as usize];
                assert!(gate.right.is_none() && epoch > gate.epoch, "I1, I2: {region} is opened at {epoch}");
                gate.epoch = epoch;
                gate.right = Some(Right { epoch, writable: false, handle });
            }
            Action::Suspend(region) => {
                let gate = &mut self.gates[region.0 as usize];
                assert!(gate.right.is_some_and(|right| right.writable) && !gate.suspended);
                gate.suspended = true;
            }
            Action::Resume(region) => {
                let gate = &mut self.gates[region.0 as usize];
                assert!(gate.right.is_some() && gate.suspended);
                gate.suspended = false;
            }
            Action::Close { region, epoch } => {
                let gate = &mut self.gates[region.0 as usize];
                assert!(epoch > gate.epoch, "I2: {region} is closed at {epoch}, it was at {}", gate.epoch);
                *gate = Gate { epoch, right: None, suspended: false, ..*gate };
            }
            Action::Scrub(region) => {
                let gate = &mut self.gates[region.0 as usize];
                assert!(gate.right.is_none() && !gate.to_scrub);
                gate.to_scrub = true;
            }
            Action::GiveBack(region) => {
                let gate = &self.gates[region.0 as usize];
                let is_clean = gate.content == Content::Zeros;
                assert!(gate.right.is_none() && !gate.to_scrub && is_clean, "{region} is given back");
            }
        }
    }

    /// I1: at most one of all holders of grants of a region can write it: the present one. Everybody tries to
    /// read and then to write. A reader finds nothing but zeros or what its own session wrote (I4).
    fn invariant_i1_one_writable_epoch(&mut self) {
        let inventory = self.inventory();
        let mut writers: BTreeMap<RegionIndex, Epoch> = BTreeMap::new();
        for given in &self.given {
            let Some(content) = self.read(given.region, given.epoch, given.handle) else { continue };
            let is_own = content == Content::Zeros || content == Content::Written(given.session);
            assert!(is_own, "I4: {given:?} reads {content:?}");
            let gate = &mut self.gates[given.region.0 as usize];
            if gate.right.is_some_and(|right| right.writable) {
                gate.content = Content::Written(given.session);
                let other = writers.insert(given.region, given.epoch);
                assert_eq!(other, None, "I1: two epochs of {} can be written", given.region);
                let holds = inventory.owned.iter().any(|owned| {
                    let owner = RegionOwner::Session(given.session);
                    owned.region == given.region && owned.epoch == given.epoch && owned.owner == owner
                });
                assert!(holds, "I1: {given:?} writes what it does not hold");
            }
        }
    }

    /// I2: no epoch goes back, and the leases and the gates agree on it.
    fn invariant_i2_epochs_only_grow(&self, before: &[Epoch]) {
        for (index, (gate, before)) in self.gates.iter().zip(before).enumerate() {
            assert!(gate.epoch >= *before, "I2: region {index} went from {before} to {}", gate.epoch);
        }
        for owned in self.inventory().owned.iter() {
            let gate = &self.gates[owned.region.0 as usize];
            assert_eq!(gate.epoch, owned.epoch, "I2: the gate of {} is elsewhere", owned.region);
        }
    }

    /// I4: a region that is opened for writing holds zeros; a sealed one keeps its holder's bytes.
    fn invariant_i4_only_scrubbed_regions_are_opened(&self, region: RegionIndex, writable: bool) {
        let gate = &self.gates[region.0 as usize];
        assert!(!gate.to_scrub, "I4: {region} is opened before it is wiped");
        assert_eq!(
            gate.content == Content::Zeros,
            writable,
            "I4: {region} is opened with {:?}",
            gate.content
        );
    }

    /// I6: a session cannot write after its deadline, and owns nothing after the grace.
    fn invariant_i6_silent_session_owns_nothing_after_ttl_and_grace(&mut self, now: MonoNs) {
        let grace_ms = u64::from(self.grace_ms);
        for given in &self.given {
            let deadline = self.deadlines.get(&given.session);
            if deadline.is_none_or(|deadline| now >= *deadline)
                && self.gates[given.region.0 as usize].right.is_some_and(|right| right.writable)
            {
                let seen = self.read(given.region, given.epoch, given.handle);
                assert_eq!(seen, None, "I6: {given:?} is let in after its deadline {deadline:?} at {now:?}");
            }
        }
        self.deadlines.retain(|_, deadline| now < deadline.plus_ms(grace_ms));
        for owned in self.inventory().owned.iter() {
            if let RegionOwner::Session(session) | RegionOwner::Sealing(session) = owned.owner
                && session != SessionId(0)
            {
                let lives = self.deadlines.contains_key(&session);
                assert!(lives, "I6: silent session {session} owns {owned:?} at {now:?}");
            }
        }
    }

    /// Every region is counted once, and its gate fits its state.
    fn invariant_conservation(&self) {
        let inventory = self.inventory();
        let counts = &inventory.counts;
        assert_eq!((counts.leased + counts.named) as usize, inventory.owned.len());
        let total = counts.free + counts.leased + counts.named + counts.cleaning + counts.away;
        assert_eq!(total as usize, self.gates.len(), "{counts:?}");
        assert_eq!(counts.cleaning as usize, self.to_scrub().len(), "what is not clean is being cleaned");
        let mut by_tenant: BTreeMap<&Name, u32> = BTreeMap::new();
        for owned in inventory.owned.iter() {
            *by_tenant.entry(&self.tenants[&owned.region]).or_default() += 1;
        }
        let reported: BTreeMap<&Name, u32> =
            inventory.tenants.iter().map(|has| (&has.tenant, has.regions)).collect();
        assert_eq!(reported, by_tenant, "a region is its tenant's until it is taken back");
        assert_eq!(reported.len(), inventory.tenants.len(), "each tenant is reported once");
        for (index, gate) in self.gates.iter().enumerate() {
            let owned = inventory.owned.iter().find(|owned| owned.region.0 as usize == index);
            // The node writes to the regions that it fills by itself.
            if owned.is_some_and(|owned| owned.owner == RegionOwner::Sealing(SessionId(0))) {
                assert!(gate.right.is_some(), "region {index}: {gate:?}");
                continue;
            }
            let owned_writable = owned.map(|owned| matches!(owned.owner, RegionOwner::Session(_)));
            assert_eq!(gate.right.map(|right| right.writable), owned_writable, "region {index}: {gate:?}");
        }
    }
}
