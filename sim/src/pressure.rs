//! Memory pressure: hosts that reclaim memory from a node for a while.

use crate::faults::Chore;
use crate::host::SimHost;
use crate::kernel::{ProcessId, World};
use farpool_host::Host;
use farpool_node::{Withdrawal, keep_regions};
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// Limits a node to part of its regions, or none, as a host does that needs the memory. A later chore lifts the limit.
pub(crate) fn begin(world: &mut World, process: ProcessId) {
    let mut lives = world.parties.nodes.iter().map(|place| place.life.as_ref());
    let Some(index) = lives.position(|life| life.is_some_and(|life| life.process == process)) else { return };
    let (life_ns, all) = (world.plan.life_ns(), u64::from(world.plan.regions_of_node[index]));
    let left = world.random.below(all) as u32;
    let evacuate_ms = world.random.skewed(1, 2 * life_ns / MS);
    let back_ns = world.random.skewed(MS, 2 * life_ns);
    world.note(process, "gives memory back", [left.into(), evacuate_ms, back_ns / MS]);
    limit(world, index, left, Some(evacuate_ms));
    world.chore_in(back_ns, Chore::MemoryIsBack(index));
}

/// Lifts the limit of a node.
pub(crate) fn end(world: &mut World, index: usize) {
    let all = world.plan.regions_of_node[index];
    limit(world, index, all, None);
}

/// Limits a node to `regions` regions. With `evacuate_ms`, the node gives clients this many ms to move their files to
/// other nodes; without, it takes regions away at once.
fn limit(world: &mut World, index: usize, regions: u32, evacuate_ms: Option<u64>) {
    let Some(life) = &world.parties.nodes[index].life else { return };
    let (process, service) = (life.process, Arc::clone(&life.service));
    let limit = move || {
        let until = |ms| Withdrawal::Evacuable(SimHost(process).now().plus_ms(ms));
        keep_regions(&service, regions, evacuate_ms.map_or(Withdrawal::Discardable, until));
    };
    world.spawn(process, Box::new(limit));
}
