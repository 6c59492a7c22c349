//! Faults of the leading broker: two brokers that run over one disk, and trouble in the cluster that elects the leader.

use super::{Chore, Fault, MS, word};
use crate::electorate::Trouble;
use crate::kernel::{MachineId, World, world};
use crate::net::CALLER;
use crate::parties::{self, BROKER_MACHINE, Phase, SPARE_MACHINE};

/// Starts a second broker over the disk of the first, as after a failover in which the first only seemed to be dead.
pub(super) fn two_heads() {
    let older = world(|world| {
        let [life] = &world.parties.brokers[..] else { return None };
        let (process, machine, is_ready) = (life.process, life.machine, life.service.is_some());
        if !is_ready || !world.machines[SPARE_MACHINE].is_up || machine == SPARE_MACHINE {
            return None;
        }
        world.tally.fault(word(Fault::TwoHeads));
        let life_ns = world.plan.life_ns();
        if world.random.one_in(2) && world.runs(process) {
            let ns = world.random.skewed(10 * MS, life_ns);
            world.freeze(process, true);
            world.chore_in(ns, Chore::Thaw(process));
        }
        for machine in 0..world.machines.len() {
            if world.random.one_in(2) {
                let ns = world.random.skewed(10 * MS, life_ns);
                world.net.misled.push(machine);
                world.chore_in(ns, Chore::Lead(machine));
            }
        }
        let ns = world.random.range(life_ns / 8, 3 * life_ns).max(100 * MS);
        world.chore_in(ns, Chore::EndOlder(process));
        // Some nodes return to the older broker after they have spoken with the newer one.
        for node in 0..world.parties.nodes.len() {
            for _ in 0..world.random.below(4) {
                let machine = world.parties.nodes[node].machine;
                let (from, during) = (world.random.below(ns), world.random.skewed(MS, ns));
                world.chore_in(from, Chore::Mislead(machine));
                world.chore_in(from + during, Chore::Lead(machine));
            }
        }
        Some(process)
    });
    if older.is_some() {
        parties::start_broker(SPARE_MACHINE);
    }
}

/// Causes one fault in the cluster that elects the leader. Each is something that a real etcd cluster may do.
pub(super) fn cluster_trouble(world: &mut World) {
    if !world.plan.stands {
        return;
    }
    world.tally.fault(word(Fault::ClusterTrouble));
    let (now, lasts_ns, life_ns) = (world.now(), world.plan.lead_ms * MS, world.plan.life_ns());
    let machine = if world.random.one_in(2) { BROKER_MACHINE } else { SPARE_MACHINE };
    let ns = world.random.skewed(10 * MS, life_ns);
    let trouble = match world.random.below(5) {
        0 => Trouble::LeasesEnd,
        1 => Trouble::KeyGoes,
        2 => Trouble::LeasesBeginAnew,
        3 => Trouble::Stalls(ns),
        _ => Trouble::Isolates(machine),
    };
    if let Trouble::Isolates(machine) = trouble {
        world.chore_in(ns, Chore::MendCluster(machine));
    }
    world.parties.cluster.befall(now, lasts_ns, trouble);
}

/// Makes connections of a machine to the pool's address reach the older of two brokers, and cuts those it has.
pub(super) fn mislead(world: &mut World, machine: MachineId) {
    if world.parties.brokers.len() < 2 || world.parties.phase != Phase::Faulty {
        return;
    }
    world.net.misled.push(machine);
    cut_from_brokers(world, machine);
}

/// Cuts the connections of a machine to brokers.
pub(super) fn cut_from_brokers(world: &mut World, machine: MachineId) {
    for conn in world.net.open() {
        let Some((caller, server)) = world.net.ends_of(conn) else { continue };
        let is_to_broker = world.parties.brokers.iter().any(|life| life.process == server);
        if is_to_broker && world.process(caller).machine == machine {
            world.tally.fault(word(Fault::Disconnect));
            world.reset_end(conn, CALLER);
            world.reset_end(conn, 1 - CALLER);
        }
    }
}
