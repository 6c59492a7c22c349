//! Faults of connections and of the paths between machines.

use super::{Fault, MS, any_machine, scope, word};
use crate::kernel::{ProcessId, World};
use crate::net::{CALLER, ConnId};

pub(super) fn befall_connection(world: &mut World, fault: Fault) {
    let scope = scope(world);
    let is_in_scope = |ends: Option<(ProcessId, ProcessId)>| {
        let machine_of = |process| world.process(process).machine;
        ends.is_some_and(|(one, other)| {
            scope.contains(&machine_of(one)) || scope.contains(&machine_of(other))
        })
    };
    let open: Vec<ConnId> =
        world.net.open().into_iter().filter(|conn| is_in_scope(world.net.ends_of(*conn))).collect();
    if open.is_empty() {
        return;
    }
    let conn: ConnId = *world.random.pick(&open);
    let Some((caller, _)) = world.net.ends_of(conn) else { return };
    world.tally.fault(word(fault));
    let way = world.random.below(2) as usize;
    world.note(caller, word(fault), [way as u64, 0, 0]);
    match fault {
        Fault::Disconnect => match world.random.below(3) {
            // Both ends see the connection reset; bytes in flight are lost.
            0 => {
                world.reset_end(conn, CALLER);
                world.reset_end(conn, 1 - CALLER);
            }
            // One end sees the connection reset. The other may wait for ever, and bytes that are sent to it still
            // arrive.
            _ => world.reset_end(conn, way),
        },
        Fault::StallConnection => {
            let most = world.plan.life_ns().max(1_000 * MS);
            let ns = world.random.skewed(MS, most);
            world.delay_direction(conn, way, ns);
        }
        _ => world.lose_direction(conn, way),
    }
}

pub(super) fn befall_path(world: &mut World, fault: Fault) {
    let count = world.machines.len() as u64;
    let (mut from, mut to) = (any_machine(world), world.random.below(count) as usize);
    if from == to {
        return;
    }
    if !matches!(fault, Fault::Isolate) && world.random.one_in(2) {
        (from, to) = (to, from);
    }
    let life_ns = world.plan.life_ns();
    let ns = world.random.skewed(10 * MS, 2 * life_ns);
    let until = world.now() + ns;
    world.tally.fault(word(fault));
    let note = [from as u64, to as u64, ns / MS];
    world.note(ProcessId(u32::MAX), word(fault), note);
    match fault {
        Fault::BlockDirection => world.net.path(from, to).blocked_until = until,
        Fault::BlockBoth => {
            world.net.path(from, to).blocked_until = until;
            world.net.path(to, from).blocked_until = until;
        }
        Fault::Isolate => {
            for other in 0..world.machines.len() {
                world.net.path(from, other).blocked_until = until;
                world.net.path(other, from).blocked_until = until;
            }
        }
        _ => {
            let most = life_ns / 4;
            world.net.path(from, to).slow_ns = world.random.skewed(MS, most.max(2 * MS));
        }
    }
}

/// Congests the path between a process and a node, in one direction, for as long as a few of its requests may take.
/// Requests (or answers) then overtake each other, and some come after the request has timed out.
pub(crate) fn congest(world: &mut World, process: ProcessId) {
    let here = world.process(process).machine;
    let node = world.random.below(world.parties.nodes.len() as u64) as usize;
    let there = world.parties.nodes[node].machine;
    let scope = scope(world);
    let may = world.plan.fault_every_ns > 0 && (scope.contains(&here) || scope.contains(&there));
    if here == there || !may {
        return;
    }
    let timeout_ns = world.plan.request_timeout_ms * MS;
    let (from, to) = if world.random.one_in(3) { (there, here) } else { (here, there) };
    let until = world.now() + world.random.below(4 * timeout_ns);
    world.tally.fault("congestion");
    world.note(process, "congestion", [from as u64, to as u64, (until - world.now()) / MS]);
    let path = world.net.path(from, to);
    // The delay is close to the timeout of requests: some messages arrive just in time, some just too late.
    (path.congested_until, path.congested_ns) = (until, timeout_ns * 3 / 4);
}
