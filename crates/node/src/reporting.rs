//! The background threads: expiry, which must be on time; housekeeping (wiping, pre-faulting), which takes
//! its time; the report to the broker; and the look at the host's memory.

use crate::host_memory::MemorySource;
use crate::memory::Memory;
use crate::pressure::{Pressure, Verdict};
use crate::service::NodeService;
use farpool_lease::NodeLeases;
use farpool_lease::node::{Action, Reach};
use farpool_lease::ticket::TicketKey;
use farpool_transport::{Brokers, Dialer, LinkError};
use farpool_wire::control::{NodeInfo, Offer};
use farpool_wire::{Code, RegionIndex, Reply, Request, mutant};

/// How often expiry is looked at when nothing else happens: what a node uses.
pub const TICK_MS: u64 = 50;
/// Changes within this time go to the broker in one report.
const REPORT_GATHER_MS: u64 = 10;
/// Pause between two tries to replace another life of this node.
const TAKE_OVER_MS: u64 = 100;
/// Longest pause between two tries to reach the broker.
const RETRY_MS_MAX: u64 = 1_000;
/// The same, where there are others to ask.
const OTHERS_MS: u64 = 100;
/// The broker must answer within this.
const BROKER_PATIENCE_MS: u64 = 2_000;

/// Expires leases, until the node stops.
pub fn keep_time<M: Memory>(node: &NodeService<M>, tick_ms: u64) {
    while !node.chores.lock().stop {
        let mut actions = Vec::new();
        let mut leases = node.leases();
        leases.tick(node.host.now(), &mut actions);
        // Suspending, closing and wiping cannot fail.
        let _ = node.carry_out(&actions);
        drop(leases);
        if !actions.is_empty() {
            node.changed();
        }
        node.extension.tick();
        node.host.wait(&node.stopped, 0, node.host.now().plus_ms(tick_ms));
    }
}

/// When pages that nobody has touched yet come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefault {
    /// Ahead of their use, as soon as the node has nothing else to do.
    Ahead,
    /// As they are used.
    OnUse,
}

/// Wipes what was released; when nothing waits for that, touches pages if that is wanted, and makes memory mappable
/// ahead of the leases that will want it. Until the node stops.
pub fn keep_house<M: Memory>(node: &NodeService<M>, prefault: Prefault, tick_ms: u64) {
    let mut untouched: Vec<RegionIndex> = match prefault {
        Prefault::Ahead => (0..node.arena.region_count()).rev().map(RegionIndex).collect(),
        Prefault::OnUse => Vec::new(),
    };
    loop {
        let heard = node.chores_changed.heard();
        let (next, sharing_wanted) = {
            let mut chores = node.chores.lock();
            if chores.stop {
                return;
            }
            (chores.scrub.pop_front(), chores.sharing_wanted)
        };
        if let Some(region) = next {
            scrub(node, region);
            continue;
        }
        if let Some(region) = untouched.pop() {
            node.chores.lock().touched += 1;
            if !node.leases().is_away(region) {
                // A region that is in use by now is being touched by its holder.
                let _ = node.arena.prefault(region);
            }
            // It may have gone meanwhile, and would have pages again.
            if node.leases().is_away(region) {
                let _ = node.arena.give_back(region);
            }
            node.chores.lock().touched += 1;
            continue;
        }
        if sharing_wanted && make_mappable(node) {
            continue;
        }
        node.host.wait(&node.chores_changed, heard, node.host.now().plus_ms(tick_ms));
    }
}

/// Tells the rules something, and does what follows.
fn decide<M: Memory>(node: &NodeService<M>, tell: impl FnOnce(&mut NodeLeases) -> Option<Action>) {
    let mut leases = node.leases();
    let action = tell(&mut leases);
    // Wiping and giving back cannot fail but by a bug, which is said aloud.
    let _ = node.carry_out(action.as_slice());
}

fn scrub<M: Memory>(node: &NodeService<M>, region: RegionIndex) {
    node.wait_moved(region);
    // What goes is not wiped but given back, which comes to the same and is soon over.
    let goes = node.leases().surplus() > 0;
    let wiped = if mutant!(NoWiping) {
        Ok(())
    } else if goes {
        node.arena.scrub_away(region)
    } else {
        node.arena.scrub(region)
    };
    match wiped {
        Ok(()) if node.is_withheld(region) => {}
        Ok(()) => {
            decide(node, |leases| leases.scrubbed(region));
            node.changed();
        }
        // Not granted again: a region that cannot be wiped is lost capacity, not somebody's bytes.
        Err(error) => {
            node.host.say(&format!("farpool node: wiping region {region}: {error}"));
            node.withhold(region);
        }
    }
}

/// Makes one more free region mappable. Whether there was one to make.
fn make_mappable<M: Memory>(node: &NodeService<M>) -> bool {
    let Some(region) = node.leases().take_to_make_mappable() else { return false };
    match node.arena.share(region) {
        Ok(()) => {
            decide(node, |leases| leases.made_mappable(region));
            true
        }
        // As it was; the lease that wants it will try again, and say so.
        Err(_) => {
            decide(node, |leases| leases.scrubbed(region));
            false
        }
    }
}

/// Presents the node to the broker and reports until the node stops. Serves on without a broker: what is
/// leased stays leased.
pub fn report<M: Memory>(
    node: &NodeService<M>,
    dialer: &dyn Dialer,
    info: &NodeInfo,
    ticket_key: TicketKey,
    brokers: &Brokers,
) {
    let mut retry_ms = 50;
    let mut complained = false;
    loop {
        let joined_before = retry_ms;
        match report_until_cut(node, dialer, info, ticket_key, brokers, &mut retry_ms) {
            Ok(()) => return,
            Err(error) => {
                let is_other_life = is_other_life(&error);
                if !complained || retry_ms < joined_before {
                    let why = if is_other_life {
                        "another node of this name reported a moment ago; if it is an earlier run of this node, this \
                         one replaces it soon; if it is alive, one of the two needs another name"
                            .to_owned()
                    } else {
                        error.to_string()
                    };
                    node.host.say(&format!("farpool node {}: broker {brokers}: {why}; retrying", info.name));
                }
                complained = true;
                if brokers.count() > 1 {
                    retry_ms = retry_ms.min(OTHERS_MS);
                }
                if is_other_life {
                    // Soon after the other is silent.
                    retry_ms = TAKE_OVER_MS;
                }
            }
        }
        node.host.wait(&node.stopped, 0, node.host.now().plus_ms(retry_ms));
        if node.chores.lock().stop {
            return;
        }
        retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
    }
}

/// Returns whether the broker knows another process by this node's name.
fn is_other_life(error: &LinkError) -> bool {
    matches!(error, LinkError::Refused { refusal, .. } if refusal.code == Code::WrongIncarnation)
}

fn report_until_cut<M: Memory>(
    node: &NodeService<M>,
    dialer: &dyn Dialer,
    info: &NodeInfo,
    ticket_key: TicketKey,
    brokers: &Brokers,
    retry_ms: &mut u64,
) -> Result<(), LinkError> {
    let host = &*node.host;
    let patience = || host.now().plus_ms(BROKER_PATIENCE_MS);
    let mut link = brokers.dial(dialer, patience())?;
    let mut ask = |request: &Request| {
        let answer = link.call(request, patience());
        brokers.heard(&answer);
        answer
    };
    let offer = Offer { info: info.clone(), ticket_key };
    let Reply::Offer(offered) = ask(&Request::Offer(offer))? else { return Ok(()) };
    node.leases().offered(&offered);
    *retry_ms = 50;
    loop {
        let inventory = node.leases().inventory(node.traffic(), node.arena.locked_count());
        let (was_draining, was_empty) = (inventory.draining, node.is_empty(&inventory));
        let sent = host.now();
        let Reply::Inventory(ruling) = ask(&Request::Inventory(inventory))? else {
            return Ok(());
        };
        let (is_draining, may_end) = {
            let mut actions = Vec::new();
            let mut leases = node.leases();
            // As of when it was asked for: the broker's clock may be ahead of this by the journey, not behind.
            leases.rule(sent, &ruling, &mut actions);
            let _ = node.carry_out(&actions);
            (leases.is_draining(), leases.may_end())
        };
        if is_draining != was_draining {
            // Whoever asked for it waits to see that it is so.
            node.changed();
        }
        let is_news = {
            let mut chores = node.chores.lock();
            // Only once the broker has been shown that nothing is left and nothing comes: it is the last that it
            // hears.
            let drained = was_draining && was_empty && may_end;
            let is_news = !chores.joined || drained != chores.drained;
            (chores.joined, chores.drained) = (true, drained);
            is_news
        };
        if is_news {
            node.chores_changed.ring();
        }
        let next_report = host.now().plus_ms(offered.heartbeat_ms.into());
        loop {
            let heard = node.chores_changed.heard();
            if node.chores.lock().stop {
                return Ok(());
            }
            if node.chores.lock().report {
                // What changes together is reported together.
                host.wait(&node.stopped, 0, host.now().plus_ms(REPORT_GATHER_MS));
                break;
            }
            if host.now() >= next_report {
                break;
            }
            host.wait(&node.chores_changed, heard, next_report);
        }
        node.chores.lock().report = false;
    }
}

/// How often the host's memory is looked at.
const PRESSURE_LOOK_MS: u64 = 100;

/// Gives memory back when the host needs it, and takes it again when it does not. Until the node stops.
pub fn keep_reserve<M: Memory>(
    node: &NodeService<M>,
    source: &dyn MemorySource,
    mut pressure: Pressure,
    evacuate_ms: u64,
) {
    let region_bytes = node.arena.region_bytes();
    let regions = |bytes: u64| u32::try_from(bytes / region_bytes).unwrap_or(u32::MAX);
    let mut touched_before = 0;
    while !node.chores.lock().stop {
        if let Ok(sample) = source.sample() {
            let touched = node.chores.lock().touched;
            if std::mem::replace(&mut touched_before, touched) != touched {
                // What fell since the last look fell by this node's own doing.
                pressure.forget_fall();
            }
            let now = node.host.now();
            // Nobody else changes the limit.
            let (present, surplus) = {
                let leases = node.leases();
                (leases.present(), leases.surplus())
            };
            let limit = present - surplus;
            match pressure.look(now, &sample, u64::from(surplus) * region_bytes) {
                Verdict::Hold => {}
                Verdict::GiveBack { bytes, is_emergency } => {
                    let reach =
                        if is_emergency { Reach::All } else { Reach::Evacuable(now.plus_ms(evacuate_ms)) };
                    let fewer = regions(bytes.saturating_add(region_bytes - 1));
                    keep_regions(node, limit.saturating_sub(fewer), reach);
                }
                Verdict::Take { bytes } => {
                    let more = limit.saturating_add(regions(bytes).max(1));
                    keep_regions(node, more, Reach::Discardable);
                }
            }
        }
        node.host.wait(&node.stopped, 0, node.host.now().plus_ms(PRESSURE_LOOK_MS));
    }
}

/// From now on so many regions may have memory: see [`farpool_lease::NodeLeases::limit`]. For one thread at a time.
pub fn keep_regions<M: Memory>(node: &NodeService<M>, regions: u32, reach: Reach) {
    let mut actions = Vec::new();
    let mut leases = node.leases();
    let before = leases.surplus();
    leases.limit(node.host.now(), regions, reach, &mut actions);
    // Pages go without the lock: giving many back takes long, and none of these regions is anybody's until the limit is
    // raised by the same thread.
    let (pages, gates): (Vec<_>, Vec<_>) =
        actions.iter().partition(|action| matches!(action, Action::GiveBack(_)));
    let _ = node.carry_out(&gates);
    let is_news = before != leases.surplus() || !actions.is_empty();
    drop(leases);
    let _ = node.carry_out(&pages);
    if is_news {
        node.changed();
    }
}
