//! The background threads: expiry, which must be on time; housekeeping (wiping, pre-faulting), which takes
//! its time; and the report to the broker.

use crate::memory::Memory;
use crate::service::NodeService;
use farpool_lease::ticket::TicketKey;
use farpool_transport::{Dial, LinkError};
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
/// The broker must answer within this.
const BROKER_PATIENCE_MS: u64 = 2_000;

/// Expires leases, until the node stops.
pub fn keep_time<M: Memory>(node: &NodeService<M>, tick_ms: u64) {
    while !node.chores().stop {
        let mut actions = Vec::new();
        let mut leases = node.leases();
        leases.tick(node.host.now(), &mut actions);
        // Suspending, closing and wiping cannot fail.
        let _ = node.carry_out(&actions);
        drop(leases);
        if !actions.is_empty() {
            node.changed();
        }
        node.tidy_scans();
        node.host.wait(&node.stopped, 0, node.host.now().plus_ms(tick_ms));
    }
}

/// Wipes what was released; when nothing waits for that, touches pages nobody has touched yet, and makes
/// memory mappable ahead of the leases that will want it. Until the node stops.
pub fn keep_house<M: Memory>(node: &NodeService<M>, prefault: bool, tick_ms: u64) {
    let mut untouched: Vec<RegionIndex> = (0..node.arena.region_count()).rev().map(RegionIndex).collect();
    if !prefault {
        untouched.clear();
    }
    loop {
        let heard = node.chores_changed.heard();
        let (next, sharing_wanted) = {
            let mut chores = node.chores();
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
            // A region that is in use by now is being touched by its holder.
            let _ = node.arena.prefault(region);
            continue;
        }
        if sharing_wanted && make_mappable(node) {
            continue;
        }
        node.host.wait(&node.chores_changed, heard, node.host.now().plus_ms(tick_ms));
    }
}

fn scrub<M: Memory>(node: &NodeService<M>, region: RegionIndex) {
    node.wait_moved(region);
    let wiped = if mutant!(NoWiping) { Ok(()) } else { node.arena.scrub(region) };
    match wiped {
        Ok(()) if node.is_withheld(region) => {}
        Ok(()) => {
            node.leases().scrubbed(region);
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
            node.leases().made_mappable(region);
            true
        }
        // As it was; the lease that wants it will try again, and say so.
        Err(_) => {
            node.leases().scrubbed(region);
            false
        }
    }
}

/// Presents the node to the broker and reports until the node stops. Serves on without a broker: what is
/// leased stays leased.
pub fn report<M: Memory>(node: &NodeService<M>, info: &NodeInfo, ticket_key: TicketKey, broker: &str) {
    let mut retry_ms = 50;
    let mut complained = false;
    loop {
        let joined_before = retry_ms;
        match report_until_cut(node, info, ticket_key, broker, &mut retry_ms) {
            Ok(()) => return,
            Err(error) => {
                let other = other_life(&error);
                if !complained || retry_ms < joined_before {
                    let why = match other {
                        Some(incarnation) => format!(
                            "another node of this name was heard of a moment ago (incarnation {incarnation:016x}). \
                             If it is this node's former life, it is replaced soon; if it is alive, one of the two \
                             needs another name"
                        ),
                        None => error.to_string(),
                    };
                    node.host.say(&format!("farpool node {}: broker {broker}: {why}; trying on", info.name));
                }
                complained = true;
                if other.is_some() {
                    // Soon after the other is silent.
                    retry_ms = TAKE_OVER_MS;
                }
            }
        }
        node.host.wait(&node.stopped, 0, node.host.now().plus_ms(retry_ms));
        if node.chores().stop {
            return;
        }
        retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
    }
}

/// The incarnation that the broker knows this node by, if it is not ours.
fn other_life(error: &LinkError) -> Option<u64> {
    match error {
        LinkError::Refused { refusal, .. } if refusal.code == Code::WrongIncarnation => Some(refusal.detail),
        _ => None,
    }
}

fn report_until_cut<M: Memory>(
    node: &NodeService<M>,
    info: &NodeInfo,
    ticket_key: TicketKey,
    broker: &str,
    retry_ms: &mut u64,
) -> Result<(), LinkError> {
    let host = &*node.host;
    let patience = || host.now().plus_ms(BROKER_PATIENCE_MS);
    let mut link = host.dial(Dial::Broker { address: broker }, patience())?;
    let offer = Offer { info: info.clone(), ticket_key };
    let Reply::Offer(offered) = link.call(&Request::Offer(offer), patience())? else { return Ok(()) };
    node.leases().offered(&offered);
    *retry_ms = 50;
    loop {
        let inventory = node.leases().inventory(node.traffic(), node.arena.locked_count());
        let (was_draining, was_empty) = (inventory.draining, node.is_empty(&inventory));
        let sent = host.now();
        let Reply::Inventory(ruling) = link.call(&Request::Inventory(inventory), patience())? else {
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
            let mut chores = node.chores();
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
            if node.chores().stop {
                return Ok(());
            }
            if node.chores().report {
                // What changes together is reported together.
                host.wait(&node.stopped, 0, host.now().plus_ms(REPORT_GATHER_MS));
                break;
            }
            if host.now() >= next_report {
                break;
            }
            host.wait(&node.chores_changed, heard, next_report);
        }
        node.chores().report = false;
    }
}
