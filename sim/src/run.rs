//! Run of one world, from its seed to its end.
//!
//! Faults happen for a while. Then everything is repaired, and every client must prove that the pool works and that
//! no published name is lost. At last every name is dropped, and no region may stay in use.

use crate::faults::{self, Chore};
use crate::kernel::{self, World, put_world, take_world, world};
use crate::names::Place;
use crate::oracle::Violation;
use crate::panics;
use crate::parties::{self, BROKER_MACHINE, ClientPlace, Phase, SPARE_MACHINE};
use crate::profile::{Plan, Profile, Theme};
use crate::tally::Tally;
use crate::trace::{self, Trace};
use farpool_wire::control::{OwnedRegion, RegionOwner, Traffic};
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::{SessionId, TENANT_ADMIN};
use std::collections::BTreeMap;

/// Result of a world.
#[derive(Clone, Debug)]
pub struct WorldOutcome {
    /// Seed of the world.
    pub seed: u64,
    /// Profile that was asked for.
    pub profile: Profile,
    /// Hash of everything that happened.
    pub hash: u64,
    /// Counts of what happened.
    pub tally: Tally,
    /// Violation of an invariant, with the last events before it. `None` if there was none.
    pub violation: Option<(Violation, Vec<String>)>,
}

/// Runs the world of a seed.
pub fn run_world(seed: u64, profile: Profile) -> WorldOutcome {
    run_traced(seed, profile, Plan::draw(seed, profile), Trace::new())
}

/// Runs the world of a seed. Prints its plan and everything that happens.
pub fn run_world_printed(seed: u64, profile: Profile) -> WorldOutcome {
    let plan = Plan::draw(seed, profile);
    println!("{plan:#?}");
    run_traced(seed, profile, plan, Trace::printed())
}

fn run_traced(seed: u64, profile: Profile, plan: Plan, trace: Trace) -> WorldOutcome {
    panics::quiet(true);
    #[cfg(feature = "mutants")]
    farpool_encryption::watch::watch(Some(|key, nonce| {
        kernel::world_if_free(|world| world.oracle.nonce_used(key, nonce));
    }));
    put_world(World::new(seed, plan, trace));
    let (nodes, clients) = world(|world| {
        world.set_up();
        faults::plan(world);
        (world.plan.nodes, world.plan.clients)
    });
    parties::start_broker(BROKER_MACHINE);
    if world(|world| world.plan.stands) {
        parties::start_broker(SPARE_MACHINE);
    }
    parties::start_admin();
    (0..nodes).for_each(parties::start_node);
    // Clients start one simulated second later, when broker and nodes are up.
    (0..clients).for_each(|index| world(|world| world.chore_in(1_000_000_000, Chore::StartClient(index))));
    go_on_until_the_end();
    world(World::everybody).into_iter().for_each(kernel::kill);
    let outcome = world(|world| world.outcome(seed, profile));
    let ended = take_world();
    drop(ended);
    panics::quiet(false);
    outcome
}

fn go_on_until_the_end() {
    let mut phase = Phase::Faulty;
    let mut phase_ends = u64::MAX;
    while world(|world| world.oracle.violation().is_none()) {
        if !kernel::step(phase_ends) {
            world(|world| world.late(phase));
            return;
        }
        look();
        let now = world(|world| world.parties.phase);
        if now != phase {
            phase = now;
            phase_ends = world(|world| world.now() + world.time_for(phase));
            if phase == Phase::Mending {
                world(|world| world.chore_in(world.mending_ns(), Chore::Begin(Phase::Proving)));
            }
        }
        let is_done = match phase {
            Phase::Proving
                if world(|world| world.parties.clients.iter().all(|place| place.has_seen_names)) =>
            {
                world(|world| world.parties.phase = Phase::Clearing);
                false
            }
            Phase::Clearing => world(|world| world.is_cleared() && world.held().is_none()),
            _ => false,
        };
        if is_done {
            return;
        }
    }
}

/// Shows the oracle the nodes whose state may have changed since it last looked.
fn look() {
    let nodes = world(|world| {
        world.steps += 1;
        let often = world.steps % 16 == 0;
        let touched = std::mem::take(&mut world.touched);
        let lives = world.parties.nodes.iter().filter_map(|place| place.life.as_ref());
        let lives = lives.filter(|life| touched.contains(&life.process));
        let found: Vec<_> = lives
            .filter(|life| life.service.memory().take_changed() || often)
            .map(|life| (life.process, life.incarnation, std::sync::Arc::clone(&life.service)))
            .collect();
        world.touched = touched;
        world.touched.clear();
        found
    });
    world(World::check_quota);
    for (process, incarnation, service) in nodes {
        world(|world| {
            let clock = world.clock_of(process);
            let named = world.named_in(incarnation);
            world.oracle.node_as_a_whole(incarnation, clock, &service, &named);
        });
        if service.is_drained() {
            faults::carry_out(Chore::Kill(process));
        }
    }
}

impl World {
    fn mending_ns(&self) -> u64 {
        2 * self.plan.life_ns() + 5_000_000_000
    }

    /// Returns the time in ns that a phase may take. A longer one is a violation.
    fn time_for(&self, phase: Phase) -> u64 {
        let patience_ns = (self.plan.request_timeout_ms + self.plan.broker_patience_ms) * 1_000_000;
        match phase {
            Phase::Faulty => u64::MAX,
            Phase::Mending => self.mending_ns() * 2,
            // The 6 lives: a region is returned after four renewals without use, and a session renews three times per
            // TTL.
            // Snapshots end once they are old and nobody holds them.
            Phase::Proving => {
                let old_ns = 2 * self.plan.snapshots.age_ms_max * 1_000_000;
                8 * self.plan.life_ns() + old_ns + 20 * patience_ns + 120_000_000_000
            }
            Phase::Clearing => 6 * self.plan.life_ns() + 20 * patience_ns + 60_000_000_000,
        }
    }

    /// Checks quotas, in worlds where broker and nodes always reach each other. No tenant may hold more than its own.
    fn check_quota(&mut self) {
        let Some(quota_bytes) = self.plan.quota_bytes else { return };
        let is_exact = self.plan.theme == Theme::Clients || self.plan.profile == Profile::Still;
        if !is_exact || !self.steps.is_multiple_of(16) {
            return;
        }
        let lives = self.parties.nodes.iter().filter_map(|place| place.life.as_ref());
        let mut held: BTreeMap<String, u64> = BTreeMap::new();
        // Copies that nodes make are not held up by quotas.
        let mut copied_bytes = 0;
        for life in lives {
            let Some(leases) = life.service.try_leases() else { return };
            let inventory = leases.inventory(Traffic::default(), 0);
            let is_copy = |owned: &&OwnedRegion| {
                owned.owner == RegionOwner::Sealing(SessionId(0))
                    || self.oracle.was_copied((life.incarnation, owned.region, owned.epoch))
            };
            copied_bytes += inventory.owned.iter().filter(is_copy).count() as u64 * REGION_BYTES_MIN;
            for share in inventory.tenants.iter() {
                *held.entry(share.tenant.to_string()).or_default() +=
                    u64::from(share.regions) * REGION_BYTES_MIN;
            }
        }
        for (tenant, bytes) in held.into_iter().filter(|(tenant, _)| tenant != TENANT_ADMIN) {
            self.oracle.holds_no_more_than(&tenant, bytes, quota_bytes + copied_bytes);
        }
    }

    fn is_cleared(&self) -> bool {
        self.parties.clients.iter().all(|place| place.has_written)
            && self.parties.names_cleared == self.plan.tenants.len().min(self.plan.clients)
            && self.parties.all_in_use
    }

    /// Reports a phase that took longer than it may, with the clients or the region that held it up.
    fn late(&mut self, phase: Phase) {
        let places = self.parties.clients.iter().enumerate();
        let is_late = |place: &ClientPlace| match phase {
            Phase::Clearing => !place.has_written,
            _ => !place.has_seen_names,
        };
        let troubled = places.filter(|(_, place)| is_late(place));
        let troubles: Vec<String> =
            troubled.map(|(index, place)| format!("client{index}: {:?}", place.trouble)).collect();
        match (troubles.is_empty(), self.held()) {
            (true, Some(held)) => {
                let what = format!("all names are dropped, all sessions over, and still {held}");
                self.oracle.violated("leak", what);
            }
            _ => {
                let troubles = troubles.join("; ");
                let what = format!("the faults are over, and the pool does not work ({phase:?}): {troubles}");
                self.oracle.violated("liveness", what);
            }
        }
    }

    /// Returns the regions that nodes keep for a session, each with the number of its node, but for those that it has
    /// published, and of which the broker has forgotten that their names were dropped.
    pub(crate) fn kept_for(&self, session: SessionId) -> Vec<(usize, OwnedRegion)> {
        let owners = [RegionOwner::Session(session), RegionOwner::Sealing(session)];
        let mut kept = Vec::new();
        for (node, place) in self.parties.nodes.iter().enumerate() {
            let Some(leases) = place.life.as_ref().and_then(|life| life.service.try_leases()) else {
                continue;
            };
            let inventory = leases.inventory(Traffic::default(), 0);
            let is_kept = |owned: &OwnedRegion| {
                let place = (inventory.incarnation, owned.region, owned.epoch);
                owners.contains(&owned.owner) && !self.oracle.may_be_awaited(&place)
            };
            let owned = inventory.owned.iter().filter(|owned| is_kept(owned));
            kept.extend(owned.map(|owned| (node, owned.clone())));
        }
        kept
    }

    /// Returns the regions that nodes lease to a session, each with the number of its renewals that the node has
    /// answered.
    pub(crate) fn leased_to(&self, session: SessionId) -> Vec<(Place, u64)> {
        let mut leased = Vec::new();
        for life in self.parties.nodes.iter().filter_map(|place| place.life.as_ref()) {
            let Some(leases) = life.service.try_leases() else { continue };
            let renewals = self.oracle.renewals(life.incarnation, session);
            let inventory = leases.inventory(Traffic::default(), 0);
            let owned = inventory.owned.iter().filter(|owned| owned.owner == RegionOwner::Session(session));
            leased.extend(owned.map(|owned| ((life.incarnation, owned.region, owned.epoch), renewals)));
        }
        leased
    }

    /// Returns a description of a region that is still in use or not wiped. `None` if there is none.
    fn held(&self) -> Option<String> {
        for (index, place) in self.parties.nodes.iter().enumerate() {
            let Some(life) = &place.life else { return Some(format!("node{index} is not there")) };
            let Some(leases) = life.service.try_leases() else { return Some(format!("node{index} is busy")) };
            let inventory = leases.inventory(Traffic::default(), 0);
            if let Some(owned) = inventory.owned.first() {
                let (region, owner) = (owned.region, owned.owner);
                let segments = leases.segment_report().segments;
                let names = self
                    .parties
                    .disk
                    .with_durable(|durable| durable.names.keys().cloned().collect::<Vec<_>>());
                return Some(format!(
                    "region {region} of node{index} is held: {owner:?}; names: {names:?}; segments: {segments:?}"
                ));
            }
            if inventory.counts.cleaning > 0 {
                return Some(format!("{} regions of node{index} are not clean", inventory.counts.cleaning));
            }
        }
        None
    }

    fn outcome(&mut self, seed: u64, profile: Profile) -> WorldOutcome {
        let mut tally = std::mem::take(&mut self.tally);
        tally.virtual_ns = self.now();
        tally.events = self.trace.count();
        tally.checks = self.oracle.checks;
        let violation = self.oracle.violation().cloned().map(|violation| {
            let last = self.trace.last();
            (violation, last.map(|happened| trace::words(happened, self.name_of(happened.who))).collect())
        });
        WorldOutcome { seed, profile, hash: self.trace.hash(), tally, violation }
    }
}
