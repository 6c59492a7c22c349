//! Background threads of a node: expiry of leases, which must be on time; housekeeping (zeroing, prefaulting), which
//! may be late; the report to the broker; and the check of the host's memory.

use crate::host_memory::MemorySource;
use crate::memory::Memory;
use crate::pressure::{Pressure, Verdict};
use crate::service::NodeService;
use farpool_host::Event;
use farpool_lease::node::{Action, Withdrawal};
use farpool_lease::ticket::TicketKey;
use farpool_region::RegionError;
use farpool_transport::{Brokers, Dialer, LinkError};
use farpool_wire::control::{NextRepair, NodeInfo, Offer};
use farpool_wire::{Code, RegionIndex, Reply, Request, mutant};

/// Milliseconds between two checks for expired leases when nothing else happens.
pub const TICK_MS: u64 = 50;
/// Milliseconds within which changes are gathered into one report.
const REPORT_GATHER_MS: u64 = 10;
/// Pause in ms between two attempts to register while the broker still knows an earlier run of this node.
const TAKE_OVER_MS: u64 = 100;
/// Longest pause in ms between two attempts to reach the broker.
const RETRY_MS_MAX: u64 = 1_000;
/// Longest pause in ms between two attempts if there are several brokers. It is short, because the next attempt goes to
/// another broker.
const OTHERS_MS: u64 = 100;
/// Timeout in ms of a request to the broker.
const BROKER_PATIENCE_MS: u64 = 2_000;

/// Expires leases until the node stops.
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

/// Time at which untouched pages get their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefault {
    /// Pages get memory before their first use, as soon as the node has nothing to zero.
    Ahead,
    /// Pages get memory at their first use.
    OnUse,
}

/// Zeroes released regions. When none is left, it makes memory mappable before leases need it, and prefaults pages if
/// requested. Runs until the node stops.
pub fn keep_house<M: Memory>(node: &NodeService<M>, prefault: Prefault, tick_ms: u64) {
    let mut untouched: Vec<RegionIndex> = match prefault {
        Prefault::Ahead => (0..node.arena.region_count()).rev().map(RegionIndex).collect(),
        Prefault::OnUse => Vec::new(),
    };
    loop {
        let heard = node.chores_changed.heard();
        let (next, files_wanted) = {
            let mut chores = node.chores.lock();
            if chores.stop {
                return;
            }
            let is_ahead = prefault == Prefault::Ahead;
            (chores.scrub.pop_front(), chores.sharing_wanted || (chores.sealing_wanted && is_ahead))
        };
        if let Some(region) = next {
            scrub(node, region);
            continue;
        }
        // Files come first: pages that a region had before it became one go back to the host.
        if files_wanted && make_mappable(node) {
            continue;
        }
        if let Some(region) = untouched.pop() {
            node.chores.lock().touched += 1;
            if !node.leases().is_away(region) {
                match node.arena.prefault(region) {
                    // A region that a session holds by now gets its pages when the session uses them.
                    Ok(()) | Err(RegionError::NotClosed { .. }) => {}
                    Err(error) => node.host.log(&Event::warn(
                        "out_of_memory",
                        format!("region {region} did not get its memory ahead of use: {error}"),
                    )),
                }
            }
            // The region's memory may have been returned to the host meanwhile; the prefault would then have given it
            // pages anew.
            if node.leases().is_away(region) {
                let _ = node.arena.give_back(region);
            }
            node.chores.lock().touched += 1;
            continue;
        }
        node.host.wait(&node.chores_changed, heard, node.host.now().plus_ms(tick_ms));
    }
}

fn scrub<M: Memory>(node: &NodeService<M>, region: RegionIndex) {
    node.wait_moved(region);
    // Memory that goes back to the host is not zeroed but returned. Fresh pages are zero too, and returning is fast.
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
            // Memory that only the node has had stays mappable. Carrying the decision out fails only because of a bug.
            let _ = node.put_back(region);
            node.changed();
        }
        // The region is not granted again. A region that cannot be zeroed is lost capacity, but shows nobody's bytes.
        Err(error) => {
            node.host.log(&Event::error(
                "region_withheld",
                format!(
                    "wiping region {region} failed: {error}; it is not used again until the node restarts"
                ),
            ));
            node.withhold(region);
        }
    }
}

/// Makes one more free region mappable. Returns false if there was none to take, or if it could not be made mappable.
fn make_mappable<M: Memory>(node: &NodeService<M>) -> bool {
    let Some(region) = node.leases().take_to_make_mappable() else { return false };
    // If it fails, the region stays as it was. The lease that needs it mappable retries, and reports the error.
    let made = node.arena.share(region);
    let _ = node.put_back(region);
    made.is_ok()
}

/// Registers the node with the broker and sends reports until the node stops. Without a broker the node keeps serving,
/// and leases stay valid.
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
        match report_until_disconnected(node, dialer, info, ticket_key, brokers, &mut retry_ms) {
            Ok(()) => return,
            Err(error) => {
                // Nobody can be told that a node leaves. If nothing is leased on it, there is nothing to wait for.
                if node.leases().may_leave() {
                    node.chores.lock().drained = true;
                    node.chores_changed.signal();
                }
                let is_other_life = is_other_life(&error);
                if !complained || retry_ms < joined_before {
                    let why = if is_other_life {
                        "another node of this name reported a moment ago; if it is an earlier run of this node, this \
                         one replaces it soon; if it is alive, one of the two needs another name"
                            .to_owned()
                    } else {
                        error.to_string()
                    };
                    node.host.log(&Event::warn(
                        "broker_unreachable",
                        format!("broker {brokers}: {why}; retrying"),
                    ));
                }
                complained = true;
                if brokers.count() > 1 {
                    retry_ms = retry_ms.min(OTHERS_MS);
                }
                if is_other_life {
                    // Retries soon after the other process has become silent.
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

/// Reports whether the broker refused because another process has reported by this node's name.
fn is_other_life(error: &LinkError) -> bool {
    matches!(error, LinkError::Refused { refusal, .. } if refusal.code == Code::WrongIncarnation)
}

fn report_until_disconnected<M: Memory>(
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
    if let Some(memory) = node.arena.description(info.node) {
        match ask(&Request::OfferMemory(memory)) {
            // A broker of version 1 does not know what to do with it.
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::Unsupported => {}
            other => drop(other?),
        }
    }
    node.host.log(&Event::info(
        "joined",
        format!("joined the pool of broker {brokers} in its term {}", offered.term),
    ));
    *retry_ms = 50;
    let mut has_segments = true;
    loop {
        // Chosen before the inventory, which then shows the region of copies that are reported.
        let about_copies =
            node.copy_order.next_request(NextRepair { node: info.node, incarnation: info.incarnation });
        // Segments come first: the broker then knows which of the regions they are.
        if has_segments {
            let report = node.leases().segment_report();
            match ask(&Request::Segments(report)) {
                Ok(Reply::Segments(ruling)) => {
                    let mut actions = Vec::new();
                    let mut leases = node.leases();
                    leases.rule_segments(&ruling, &mut actions);
                    let _ = node.carry_out(&actions);
                }
                Ok(_) => return Ok(()),
                // A broker of an earlier version knows no segments.
                Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::Unsupported => {
                    has_segments = false;
                    node.leases().set_no_segments();
                }
                Err(error) => return Err(error),
            }
        }
        let inventory = node.leases().inventory(node.traffic(), node.arena.locked_count());
        let (was_draining, was_empty) = (inventory.draining, node.is_empty(&inventory));
        let sent = host.now();
        let Reply::Inventory(ruling) = ask(&Request::Inventory(inventory))? else {
            return Ok(());
        };
        let (is_draining, may_end, may_leave) = {
            let mut actions = Vec::new();
            let mut leases = node.leases();
            // The broker's clock in the reply is taken as its time when the report was sent. It was read later, when
            // the report had arrived. The node's estimate of the broker's clock is therefore ahead by the journey of
            // the report, and never behind: a ticket may be refused that much too early, but not accepted too late.
            leases.rule(sent, &ruling, &mut actions);
            let _ = node.carry_out(&actions);
            (leases.is_draining(), leases.may_end(), leases.may_leave())
        };
        if is_draining != was_draining {
            // The client that asked for the drain waits for this report.
            node.changed();
        }
        let is_news = {
            let mut chores = node.chores.lock();
            // The node counts as drained only after a report has shown the broker that it grants nothing and, if it was
            // ordered to drain, that it is empty. Its process ends then and sends no other report.
            let drained = was_draining && (may_leave || (was_empty && may_end));
            let is_news = !chores.joined || drained != chores.drained;
            (chores.joined, chores.drained) = (true, drained);
            is_news
        };
        if is_news {
            node.chores_changed.signal();
        }
        if let Some(request) = about_copies {
            node.take_answer(ask(&request))?;
        }
        let next_report = host.now().plus_ms(offered.heartbeat_ms.into());
        loop {
            let heard = node.chores_changed.heard();
            if node.chores.lock().stop {
                return Ok(());
            }
            if node.chores.lock().report {
                // Changes that happen together are reported together.
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

/// Milliseconds between two checks of the host's memory (`docs/decisions/0030-memory-pressure.md`).
const PRESSURE_LOOK_MS: u64 = 100;

/// Returns memory to the host when the host needs it, and takes it back later. Runs until the node stops.
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
                // Memory that the node itself consumed since the last sample is not a trend.
                pressure.forget_fall();
            }
            node.pressure_seen.lock().note(&sample, &pressure);
            let now = node.host.now();
            // Only this thread changes how many regions may have memory.
            let (present, surplus) = {
                let leases = node.leases();
                (leases.present(), leases.surplus())
            };
            let limit = present - surplus;
            match pressure.look(now, &sample, u64::from(surplus) * region_bytes) {
                Verdict::Hold => {}
                Verdict::GiveBack { bytes, is_emergency } => {
                    let withdrawal = if is_emergency {
                        Withdrawal::All
                    } else {
                        Withdrawal::Evacuable(now.plus_ms(evacuate_ms))
                    };
                    let fewer = regions(bytes.saturating_add(region_bytes - 1)).min(limit);
                    if fewer > 0 {
                        let bytes = u64::from(fewer) * region_bytes;
                        node.pressure_seen.lock().note_asked(bytes, is_emergency);
                        let why =
                            if is_emergency { "has almost no memory left" } else { "is short of memory" };
                        let message = format!("the host {why}: {bytes} bytes go back to it");
                        node.host.log(&Event::warn("pressure", message));
                    }
                    keep_regions(node, limit - fewer, withdrawal);
                }
                Verdict::Take { bytes } => {
                    let more = limit.saturating_add(regions(bytes).max(1));
                    keep_regions(node, more, Withdrawal::Discardable);
                }
            }
        }
        node.host.wait(&node.stopped, 0, node.host.now().plus_ms(PRESSURE_LOOK_MS));
    }
}

/// Limits the number of regions that have memory; `withdrawal` says which kinds of regions may be taken back for that.
/// See [`farpool_lease::NodeLeases::limit`]. Called by one thread at a time.
pub fn keep_regions<M: Memory>(node: &NodeService<M>, regions: u32, withdrawal: Withdrawal) {
    let mut actions = Vec::new();
    let mut leases = node.leases();
    let before = leases.surplus();
    leases.limit(node.host.now(), regions, withdrawal, &mut actions);
    // Pages are returned without the lock, because returning many takes long. None of these regions is granted until
    // the same thread raises the limit.
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
