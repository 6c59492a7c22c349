//! Simulated administrator: drains nodes, and takes them back into use.

use crate::host::SimHost;
use crate::kernel::{ProcessId, rest, world};
use crate::parties::{Phase, brokers};
use crate::random::Random;
use farpool_host::Host;
use farpool_transport::LinkError;
use farpool_wire::control::DrainNode;
use farpool_wire::{Name, Reply, Request};

const MS: u64 = 1_000_000;

struct Admin {
    process: ProcessId,
    random: Random,
}

/// Runs the administrator until the world ends. Takes every node back into use once the faults are over.
pub(crate) fn run(process: ProcessId) {
    let random = world(|world| world.random.fork(u64::from(process.0)));
    let mut admin = Admin { process, random };
    while world(|world| world.parties.phase) == Phase::Faulty {
        if world(|world| world.plan.drains) {
            admin.work();
        }
        admin.pause();
    }
    loop {
        let drained: Vec<usize> = world(|world| world.parties.drained.iter().copied().collect());
        if drained.is_empty() {
            break;
        }
        for node in drained {
            if admin.order(node, false, false).is_ok() {
                world(|world| world.parties.drained.remove(&node));
            }
        }
        rest(200 * MS);
    }
    world(|world| world.parties.all_in_use = true);
}

impl Admin {
    fn pause(&mut self) {
        let life_ns = world(|world| world.plan.life_ns());
        // Rests in steps, to notice soon that the faults are over.
        for _ in 0..self.random.range(1, 12) {
            if world(|world| world.parties.phase) == Phase::Faulty {
                rest(life_ns / 3 + MS);
            }
        }
    }

    fn order(&mut self, node: usize, drain: bool, stop: bool) -> Result<(), LinkError> {
        let host = SimHost(self.process);
        let deadline = || host.now().plus_ms(world(|world| world.plan.request_timeout_ms));
        let brokers = brokers();
        let name = Name::new(format!("node{node}")).expect("it is a name");
        let order = Request::Drain(DrainNode { node: name, drain, stop });
        let ask = || brokers.dial(&host, deadline())?.call(&order, deadline());
        let mut answer = ask();
        // One of the brokers leads and the others refuse the order, so it is sent to each in turn.
        for _ in 1..brokers.count() {
            if brokers.heard(&answer) {
                answer = ask();
            }
        }
        let reply = answer?;
        debug_assert!(matches!(reply, Reply::Drain(_)));
        Ok(())
    }

    fn work(&mut self) {
        let nodes = world(|world| world.plan.nodes) as u64;
        let node = self.random.below(nodes) as usize;
        let is_drained = world(|world| world.parties.drained.contains(&node));
        if is_drained && self.random.one_in(2) {
            if self.order(node, false, false).is_ok() {
                world(|world| {
                    world.parties.drained.remove(&node);
                    world.tally.operation("take back into use", true);
                });
            }
            return;
        }
        let stop = self.random.one_in(2);
        // Recorded as drained before the order is sent: the order may arrive although its answer is lost.
        world(|world| world.parties.drained.insert(node));
        let ordered = self.order(node, true, stop).is_ok();
        world(|world| {
            world.tally.operation("drain", ordered);
            world.note(self.process, "drains", [node as u64, u64::from(stop), u64::from(ordered)]);
        });
    }
}
