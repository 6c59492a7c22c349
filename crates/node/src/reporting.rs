//! The background threads: expiry, which must be on time; housekeeping (wiping, pre-faulting), which takes
//! its time; and the report to the broker.

use crate::options::NodeOptions;
use crate::service::{Chores, NodeService};
use farpool_lease::ticket::TicketKey;
use farpool_transport::{FrameLink, Link, LinkError, clock, socket::Socket, tcp};
use farpool_wire::control::{NodeInfo, Offer};
use farpool_wire::{RegionIndex, Reply, Request};
use std::sync::PoisonError;
use std::time::Duration;

/// How often expiry is looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(50);
/// Changes within this time go to the broker in one report.
const REPORT_GATHER: Duration = Duration::from_millis(10);
/// Longest pause between two tries to reach the broker.
const RETRY_MS_MAX: u64 = 1_000;
/// The broker must answer within this.
const BROKER_PATIENCE_MS: u64 = 2_000;

/// Expires leases.
pub(crate) fn keep_time(node: &NodeService) {
    loop {
        {
            let mut actions = Vec::new();
            let mut leases = node.leases();
            leases.tick(clock::now(), &mut actions);
            // Suspending, closing and wiping cannot fail.
            let _ = node.carry_out(&actions);
            if !actions.is_empty() {
                drop(leases);
                node.changed();
            }
        }
        let chores = node.chores();
        let (chores, _) = node
            .chores_changed
            .wait_timeout_while(chores, TICK, |chores| !chores.stop)
            .unwrap_or_else(PoisonError::into_inner);
        if chores.stop {
            return;
        }
    }
}

/// Wipes what was released; when nothing waits for that, touches pages nobody has touched yet, and makes
/// memory mappable ahead of the leases that will want it.
pub(crate) fn keep_house(node: &NodeService, options: &NodeOptions) {
    let mut untouched: Vec<RegionIndex> = (0..node.arena.region_count()).rev().map(RegionIndex).collect();
    if !options.prefault {
        untouched.clear();
    }
    loop {
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
        let chores = node.chores();
        let nothing = |chores: &mut Chores| !chores.stop && chores.scrub.is_empty();
        drop(
            node.chores_changed
                .wait_timeout_while(chores, TICK, nothing)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

fn scrub(node: &NodeService, region: RegionIndex) {
    match node.arena.scrub(region) {
        Ok(()) if node.is_withheld(region) => {}
        Ok(()) => {
            node.leases().scrubbed(region);
            node.changed();
        }
        // Not granted again: a region that cannot be wiped is lost capacity, not somebody's bytes.
        Err(error) => eprintln!("farpool node: wiping region {region}: {error}"),
    }
}

/// Makes one more free region mappable. Whether there was one to make.
fn make_mappable(node: &NodeService) -> bool {
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
pub(crate) fn report(node: &NodeService, info: &NodeInfo, ticket_key: TicketKey, broker: &str) {
    let mut retry_ms = 50;
    let mut complained = false;
    loop {
        let joined_before = retry_ms;
        match report_until_cut(node, info, ticket_key, broker, &mut retry_ms) {
            Ok(()) => return,
            Err(error) => {
                if !complained || retry_ms < joined_before {
                    eprintln!("farpool node {}: broker {broker}: {error}; trying on", info.name);
                }
                complained = true;
            }
        }
        let chores = node.chores();
        let pause = Duration::from_millis(retry_ms);
        let (chores, _) = node
            .chores_changed
            .wait_timeout_while(chores, pause, |chores| !chores.stop)
            .unwrap_or_else(PoisonError::into_inner);
        if chores.stop {
            return;
        }
        retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
    }
}

fn report_until_cut(
    node: &NodeService,
    info: &NodeInfo,
    ticket_key: TicketKey,
    broker: &str,
    retry_ms: &mut u64,
) -> Result<(), LinkError> {
    let patience = || clock::now().plus_ms(BROKER_PATIENCE_MS);
    let mut link: FrameLink<Socket> = tcp::connect(broker, patience())?;
    let offer = Offer { info: info.clone(), ticket_key };
    let Reply::Offer(offered) = link.call(&Request::Offer(offer), patience())? else { return Ok(()) };
    node.leases().offered(&offered);
    *retry_ms = 50;
    let heartbeat = Duration::from_millis(offered.heartbeat_ms.into());
    loop {
        let inventory = node.leases().inventory(node.traffic(), node.arena.locked_count());
        let sent = clock::now();
        let Reply::Inventory(ruling) = link.call(&Request::Inventory(inventory), patience())? else {
            return Ok(());
        };
        {
            let mut actions = Vec::new();
            let mut leases = node.leases();
            // As of when it was asked for: the broker's clock may be ahead of this by the journey, not behind.
            leases.rule(sent, &ruling, &mut actions);
            let _ = node.carry_out(&actions);
        }
        let mut chores = node.chores();
        if !std::mem::replace(&mut chores.joined, true) {
            node.chores_changed.notify_all();
        }
        let (mut chores, _) = node
            .chores_changed
            .wait_timeout_while(chores, heartbeat, |chores| !chores.stop && !chores.report)
            .unwrap_or_else(PoisonError::into_inner);
        if chores.report && !chores.stop {
            (chores, _) = node
                .chores_changed
                .wait_timeout_while(chores, REPORT_GATHER, |chores| !chores.stop)
                .unwrap_or_else(PoisonError::into_inner);
        }
        chores.report = false;
        if chores.stop {
            return Ok(());
        }
    }
}
