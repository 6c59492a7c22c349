//! Faults, and how each of them ends.
//!
//! The idea: every fault is something that happens in data centres. A chore applies it to the simulated pool, and
//! most faults schedule a second chore that undoes them.

mod heads;
mod ways;

pub(crate) use ways::congest;

use crate::clock::{Clock, RATE_TRUE};
use crate::electorate::Trouble;
use crate::kernel::{MachineId, ProcessId, World, world};
use crate::net::Ending;
use crate::parties::{self, BROKER_MACHINE, Phase, SPARE_MACHINE};
use crate::pressure;
use crate::profile::{Profile, Theme};
use crate::replayed_requests;
use crate::store::Mishap;

/// Event that the world itself causes, at a time in the queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Chore {
    NextFault,
    /// Replays the request of this number, which was answered before and waits in the world's list of replays.
    AskAgain(u64),
    /// Ends a process. Its machine keeps running.
    Kill(ProcessId),
    /// Restarts a broker whose store failed and which answers nothing more, as an operator would.
    RestartFailedBroker(ProcessId),
    StartBroker(MachineId),
    StartNode(usize),
    StartClient(usize),
    StartAdmin,
    Thaw(ProcessId),
    Wake(MachineId),
    Boot(MachineId),
    /// Ends the fault in which the broker's disk is full.
    DiskHasSpace,
    LocalDiskWorks(MachineId),
    /// Ends the memory pressure on the host of this node, which may use all its memory again.
    MemoryIsBack(usize),
    /// Ends this broker, the older of two that run over one disk.
    EndOlder(ProcessId),
    /// Makes connections of a machine to the pool's address reach the older of two brokers, although the machine may
    /// have spoken with the newer one already.
    Mislead(MachineId),
    /// Makes the cluster that elects the leader answer this machine again.
    MendCluster(MachineId),
    /// Makes connections of a machine to the pool's address reach the newer broker again.
    Lead(MachineId),
    /// Cuts the connections of a machine to brokers.
    CutFromBrokers(MachineId),
    /// Ends all faults and repairs the pool; the phase in which the pool recovers begins.
    Heal,
    /// Begins the next phase.
    Begin(Phase),
}

const MS: u64 = 1_000_000;

/// Carries out a chore. The caller must not have borrowed the world.
pub(crate) fn carry_out(chore: Chore) {
    match chore {
        Chore::NextFault => next_fault(),
        Chore::AskAgain(number) => replayed_requests::ask(number),
        Chore::Kill(process) => end_and_restart(process),
        Chore::RestartFailedBroker(process) => restart_broker(process),
        Chore::StartBroker(machine) => {
            let may = world(|world| {
                let mut lives = world.parties.brokers.iter();
                let is_free = match world.plan.stands {
                    true => lives.all(|life| life.machine != machine),
                    false => lives.next().is_none(),
                };
                is_free && world.machines[machine].is_up
            });
            if may {
                parties::start_broker(machine);
            }
        }
        Chore::StartNode(index) => {
            let may = world(|world| {
                let place = &world.parties.nodes[index];
                place.life.is_none() && world.machines[place.machine].is_up
            });
            if may {
                parties::start_node(index);
            }
        }
        Chore::StartClient(index) => {
            let may = world(|world| {
                let place = &world.parties.clients[index];
                place.process.is_none() && !place.has_written && world.machines[place.machine].is_up
            });
            if may {
                parties::start_client(index);
            }
        }
        Chore::StartAdmin => {
            let may = world(|world| {
                world.parties.admin.is_none() && world.machines.last().is_some_and(|machine| machine.is_up)
            });
            if may {
                parties::start_admin();
            }
        }
        Chore::Thaw(process) => thaw(process),
        Chore::Wake(machine) => wake(machine),
        Chore::Boot(machine) => boot(machine),
        Chore::DiskHasSpace => world(|world| world.parties.disk.set_full(false)),
        Chore::LocalDiskWorks(machine) => world(|world| world.machines[machine].disk_is_broken = false),
        Chore::MemoryIsBack(index) => world(|world| pressure::end(world, index)),
        Chore::EndOlder(process) => {
            parties::end(process, Ending::HangsUp);
            // The newer broker may have ended before the older one; then there is none left, and this starts one.
            carry_out(Chore::StartBroker(BROKER_MACHINE));
        }
        Chore::Mislead(machine) => world(|world| heads::mislead(world, machine)),
        Chore::Lead(machine) => world(|world| world.net.misled.retain(|misled| *misled != machine)),
        Chore::CutFromBrokers(machine) => world(|world| heads::cut_from_brokers(world, machine)),
        Chore::MendCluster(machine) => world(|world| {
            let now = world.now();
            world.parties.cluster.befall(now, 0, Trouble::Mends(machine));
        }),
        Chore::Heal => heal(),
        Chore::Begin(phase) => world(|world| world.parties.phase = phase),
    }
}

fn is_faulty() -> bool {
    world(|world| world.parties.phase == Phase::Faulty)
}

fn thaw(process: ProcessId) {
    world(|world| {
        if world.is_alive(process) && world.process(process).is_frozen {
            world.note(process, "goes on", [0; 3]);
            tell_oracle_it_runs(world, process);
            world.freeze(process, false);
        }
    });
}

fn tell_oracle_it_runs(world: &mut World, process: ProcessId) {
    let clock = world.clock_of(process);
    let lives = world.parties.nodes.iter().filter_map(|place| place.life.as_ref());
    if let Some(incarnation) =
        lives.filter(|life| life.process == process).map(|life| life.incarnation).next()
    {
        world.oracle.node_runs_again(incarnation, clock);
    }
}

fn wake(machine: MachineId) {
    world(|world| {
        if !std::mem::take(&mut world.machines[machine].is_asleep) {
            return;
        }
        let now = world.now();
        world.machines[machine].clock.set_stopped(now, false);
        world.clock_changed(machine);
        for process in world.alive_on(machine) {
            tell_oracle_it_runs(world, process);
            world.thawed(process);
        }
    });
}

fn boot(machine: MachineId) {
    let starts = world(|world| {
        if std::mem::replace(&mut world.machines[machine].is_up, true) {
            return Vec::new();
        }
        let rate = if world.plan.drifting_clocks {
            world.random.range(RATE_TRUE * 9 / 10, RATE_TRUE * 11 / 10)
        } else {
            RATE_TRUE
        };
        let shows = world.random.range(1_000_000_000, 20_000_000_000);
        let (now, boot) = (world.now(), u128::from(world.random.draw().max(1)));
        world.machines[machine].clock = Clock::new(now, shows, rate);
        world.machines[machine].boot = boot;
        starts_on(world, machine)
    });
    for start in starts {
        carry_out(start);
    }
}

fn starts_on(world: &World, machine: MachineId) -> Vec<Chore> {
    let mut starts = Vec::new();
    if machine == BROKER_MACHINE || machine == SPARE_MACHINE {
        starts.push(Chore::StartBroker(machine));
    }
    if machine == world.machines.len() - 1 {
        starts.push(Chore::StartAdmin);
    }
    let nodes = world.parties.nodes.iter().enumerate();
    starts.extend(
        nodes.filter(|(_, place)| place.machine == machine).map(|(index, _)| Chore::StartNode(index)),
    );
    let clients = world.parties.clients.iter().enumerate();
    starts.extend(
        clients.filter(|(_, place)| place.machine == machine).map(|(index, _)| Chore::StartClient(index)),
    );
    starts
}

/// Returns the chore that starts the successor of a process.
fn successor(world: &World, process: ProcessId) -> Option<Chore> {
    let mut brokers = world.parties.brokers.iter().rev();
    // Only the newest broker has a successor, unless brokers elect a leader.
    let is_started = match world.plan.stands {
        true => brokers.any(|life| life.process == process),
        false => brokers.next().is_some_and(|life| life.process == process),
    };
    if is_started {
        return Some(Chore::StartBroker(world.process(process).machine));
    }
    let is_it = |place: &parties::NodePlace| place.life.as_ref().is_some_and(|life| life.process == process);
    if let Some(index) = world.parties.nodes.iter().position(is_it) {
        return Some(Chore::StartNode(index));
    }
    let index = world.parties.clients.iter().position(|place| place.process == Some(process))?;
    Some(Chore::StartClient(index))
}

fn end_and_restart(process: ProcessId) {
    let next = world(|world| {
        if !world.is_alive(process) {
            return None;
        }
        let next = successor(world, process);
        let life_ns = world.plan.life_ns();
        next.map(|next| (next, world.random.skewed(20 * MS, 2 * life_ns)))
    });
    parties::end(process, Ending::HangsUp);
    if let Some((next, after)) = next {
        let after = if is_faulty() { after } else { after.min(100 * MS) };
        world(|world| world.chore_in(after, next));
    }
}

fn restart_broker(process: ProcessId) {
    let machine = world(|world| {
        let life = world.parties.brokers.iter().find(|life| life.process == process)?;
        Some((life.machine, world.parties.brokers.len()))
    });
    let Some((machine, count)) = machine else { return };
    parties::end(process, Ending::HangsUp);
    if count == 1 {
        parties::start_broker(machine);
    }
}

/// Repairs everything that is broken. No faults happen after this.
fn heal() {
    let (asleep, down, frozen, older) = world(|world| {
        world.parties.phase = Phase::Mending;
        world.net.clear_paths();
        world.parties.disk.set_full(false);
        world.parties.disk.plan(None);
        let machines = world.machines.iter().enumerate();
        let asleep: Vec<MachineId> =
            machines.clone().filter(|(_, machine)| machine.is_asleep).map(|(index, _)| index).collect();
        let down: Vec<MachineId> =
            machines.filter(|(_, machine)| !machine.is_up).map(|(index, _)| index).collect();
        let all: Vec<ProcessId> =
            (0..world.machines.len()).flat_map(|machine| world.alive_on(machine)).collect();
        let frozen: Vec<ProcessId> =
            all.into_iter().filter(|process| world.process(*process).is_frozen).collect();
        for machine in &mut world.machines {
            machine.disk_is_broken = false;
        }
        for place in &world.parties.nodes {
            if let Some(life) = &place.life {
                life.service.memory().refuse(0);
            }
        }
        world.parties.cluster.heal();
        let count = if world.plan.stands { 0 } else { world.parties.brokers.len() };
        let older: Vec<ProcessId> =
            world.parties.brokers.iter().take(count.saturating_sub(1)).map(|life| life.process).collect();
        world.plan.interrupts_per_million = 0;
        (asleep, down, frozen, older)
    });
    older.into_iter().for_each(|process| parties::end(process, Ending::HangsUp));
    asleep.into_iter().for_each(wake);
    down.into_iter().for_each(boot);
    frozen.into_iter().for_each(thaw);
    let (nodes, clients) = world(|world| (world.parties.nodes.len(), world.parties.clients.len()));
    carry_out(Chore::StartBroker(BROKER_MACHINE));
    if world(|world| world.plan.stands) {
        carry_out(Chore::StartBroker(SPARE_MACHINE));
    }
    carry_out(Chore::StartAdmin);
    (0..nodes).for_each(|index| carry_out(Chore::StartNode(index)));
    (0..nodes).for_each(|index| carry_out(Chore::MemoryIsBack(index)));
    (0..clients).for_each(|index| carry_out(Chore::StartClient(index)));
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Disconnect,
    StallConnection,
    SwallowDirection,
    BlockDirection,
    BlockBoth,
    Isolate,
    SlowPath,
    ClientDies,
    NodeDies,
    BrokerDies,
    MachineDies,
    ClientFreezes,
    NodeFreezes,
    BrokerFreezes,
    MachineSleeps,
    MachineStops,
    ClockSteps,
    ClockDrifts,
    WallClockSteps,
    DiskFull,
    CommitMishap,
    MemoryRefused,
    MemoryWanted,
    LocalDisk,
    TwoHeads,
    ClusterTrouble,
}

/// Reports whether a fault hits the broker, its disk, the election, or more than one machine.
fn is_for_everybody(fault: Fault) -> bool {
    use Fault::*;
    matches!(
        fault,
        BrokerDies | BrokerFreezes | DiskFull | CommitMishap | TwoHeads | ClusterTrouble | WallClockSteps
    )
}

/// Relative frequency of each fault.
const WEIGHTS: [(Fault, u64); 26] = [
    (Fault::Disconnect, 24),
    (Fault::StallConnection, 20),
    (Fault::SwallowDirection, 12),
    (Fault::BlockDirection, 10),
    (Fault::BlockBoth, 6),
    (Fault::Isolate, 5),
    (Fault::SlowPath, 6),
    (Fault::ClientDies, 8),
    (Fault::NodeDies, 5),
    (Fault::BrokerDies, 6),
    (Fault::MachineDies, 3),
    (Fault::ClientFreezes, 12),
    (Fault::NodeFreezes, 7),
    (Fault::BrokerFreezes, 5),
    (Fault::MachineSleeps, 4),
    (Fault::MachineStops, 4),
    (Fault::ClockSteps, 6),
    (Fault::ClockDrifts, 3),
    (Fault::WallClockSteps, 4),
    (Fault::DiskFull, 2),
    (Fault::CommitMishap, 7),
    (Fault::MemoryRefused, 5),
    (Fault::MemoryWanted, 8),
    (Fault::LocalDisk, 2),
    (Fault::TwoHeads, 6),
    (Fault::ClusterTrouble, 8),
];

fn next_fault() {
    if !is_faulty() {
        return;
    }
    let fault = world(|world| {
        let every = world.plan.fault_every_ns;
        let next = world.random.below(2 * every) + MS;
        world.chore_in(next, Chore::NextFault);
        let total = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut drawn = world.random.below(total);
        let found = WEIGHTS.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        found.map_or(Fault::Disconnect, |(fault, _)| *fault)
    });
    let is_elsewhere = world(|world| is_for_everybody(fault) && world.plan.theme != Theme::Everybody);
    if !is_elsewhere {
        happen(fault);
    }
}

fn happen(fault: Fault) {
    match fault {
        Fault::Disconnect | Fault::StallConnection | Fault::SwallowDirection => {
            world(|world| ways::befall_connection(world, fault));
        }
        Fault::BlockDirection | Fault::BlockBoth | Fault::Isolate | Fault::SlowPath => {
            world(|world| ways::befall_path(world, fault));
        }
        Fault::ClientDies | Fault::NodeDies | Fault::BrokerDies => {
            if let Some(process) = world(|world| any_process(world, fault)) {
                world(|world| world.tally.fault(word(fault)));
                end_and_restart(process);
            }
        }
        Fault::ClientFreezes | Fault::NodeFreezes | Fault::BrokerFreezes => world(|world| {
            if let Some(process) = any_process(world, fault).filter(|process| world.runs(*process)) {
                let life_ns = world.plan.life_ns();
                let ns = world.random.skewed(MS, 2 * life_ns);
                world.tally.fault(word(fault));
                world.note(process, "freezes", [ns / MS, 0, 0]);
                world.freeze(process, true);
                world.chore_in(ns, Chore::Thaw(process));
            }
        }),
        Fault::MachineDies => machine_dies(),
        Fault::MachineSleeps | Fault::MachineStops | Fault::ClockSteps | Fault::ClockDrifts => {
            world(|world| befall_clock(world, fault));
        }
        Fault::WallClockSteps => world(wall_clock_steps),
        Fault::DiskFull => world(|world| {
            let life_ns = world.plan.life_ns();
            let ns = world.random.skewed(100 * MS, life_ns);
            world.tally.fault(word(fault));
            world.parties.disk.set_full(true);
            world.chore_in(ns, Chore::DiskHasSpace);
        }),
        Fault::CommitMishap => world(|world| {
            let mishaps = [
                Mishap::Fails,
                Mishap::FailsTooLate,
                Mishap::DiesBefore,
                Mishap::DiesBehind,
                Mishap::DiesBehind,
            ];
            let mishap = *world.random.pick(&mishaps);
            world.parties.disk.plan(Some(mishap));
        }),
        Fault::MemoryRefused => world(|world| {
            let times = world.random.range(1, 3);
            if let Some(process) = any_process(world, Fault::NodeDies) {
                let lives = world.parties.nodes.iter().filter_map(|place| place.life.as_ref());
                lives
                    .filter(|life| life.process == process)
                    .for_each(|life| life.service.memory().refuse(times));
            }
        }),
        Fault::MemoryWanted => world(|world| {
            if let Some(process) = any_process(world, Fault::NodeDies) {
                world.tally.fault(word(fault));
                pressure::begin(world, process);
            }
        }),
        Fault::LocalDisk => world(|world| {
            let machine = any_machine(world);
            let life_ns = world.plan.life_ns();
            let ns = world.random.skewed(100 * MS, life_ns);
            world.tally.fault(word(fault));
            world.machines[machine].disk_is_broken = true;
            world.chore_in(ns, Chore::LocalDiskWorks(machine));
        }),
        Fault::TwoHeads => heads::two_heads(),
        Fault::ClusterTrouble => world(heads::cluster_trouble),
    }
}

fn word(fault: Fault) -> &'static str {
    match fault {
        Fault::Disconnect => "connection cut",
        Fault::StallConnection => "connection stalled",
        Fault::SwallowDirection => "one way swallowed",
        Fault::BlockDirection => "partition, one way",
        Fault::BlockBoth => "partition",
        Fault::Isolate => "machine isolated",
        Fault::SlowPath => "slow link",
        Fault::ClientDies => "client died",
        Fault::NodeDies => "node died",
        Fault::BrokerDies => "broker died",
        Fault::MachineDies => "machine died",
        Fault::ClientFreezes => "client frozen",
        Fault::NodeFreezes => "node frozen",
        Fault::BrokerFreezes => "broker frozen",
        Fault::MachineSleeps => "machine asleep",
        Fault::MachineStops => "machine and its clock stopped",
        Fault::ClockSteps => "clock stepped",
        Fault::ClockDrifts => "clock drifts anew",
        Fault::WallClockSteps => "wall clock of a broker stepped",
        Fault::DiskFull => "disk full",
        Fault::CommitMishap => "commit mishap",
        Fault::MemoryRefused => "memory refused",
        Fault::MemoryWanted => "memory wanted by the host",
        Fault::LocalDisk => "local disk broken",
        Fault::TwoHeads => "two brokers",
        Fault::ClusterTrouble => "the brokers' cluster in trouble",
    }
}

/// Returns the machines that faults may hit in this world.
fn scope(world: &World) -> Vec<MachineId> {
    match world.plan.theme {
        Theme::Everybody => (0..world.machines.len()).collect(),
        Theme::OneNode(node) => vec![world.parties.nodes[node].machine],
        Theme::Clients => world.parties.clients.iter().map(|place| place.machine).collect(),
    }
}

fn any_process(world: &mut World, fault: Fault) -> Option<ProcessId> {
    let scope = scope(world);
    let all: Vec<ProcessId> = match fault {
        Fault::ClientDies | Fault::ClientFreezes => {
            world.parties.clients.iter().filter_map(|place| place.process).collect()
        }
        Fault::NodeDies | Fault::NodeFreezes => world
            .parties
            .nodes
            .iter()
            .filter_map(|place| place.life.as_ref().map(|life| life.process))
            .collect(),
        _ => world.parties.brokers.iter().map(|life| life.process).collect(),
    };
    let in_scope = |process: &ProcessId| scope.contains(&world.process(*process).machine);
    let all: Vec<ProcessId> = all.into_iter().filter(in_scope).collect();
    if all.is_empty() { None } else { Some(*world.random.pick(&all)) }
}

fn any_machine(world: &mut World) -> MachineId {
    let scope = scope(world);
    *world.random.pick(&scope)
}

fn befall_clock(world: &mut World, fault: Fault) {
    let machine = any_machine(world);
    let life_ns = world.plan.life_ns();
    let now = world.now();
    if !world.machines[machine].is_up || world.machines[machine].is_asleep {
        return;
    }
    world.tally.fault(word(fault));
    let ns = world.random.skewed(MS, 2 * life_ns);
    world.note(ProcessId(u32::MAX), word(fault), [machine as u64, ns / MS, 0]);
    match fault {
        Fault::MachineSleeps | Fault::MachineStops => {
            world.machines[machine].is_asleep = true;
            if matches!(fault, Fault::MachineStops) {
                world.machines[machine].clock.set_stopped(now, true);
                world.oracle.holds.clock_stopped(machine);
            }
            world.chore_in(ns, Chore::Wake(machine));
        }
        Fault::ClockSteps => {
            // A real clock that counts the time of a suspension steps at the moment that the machine wakes up. So the
            // oracle is told that the processes of this machine have run without a stop only since the step.
            world.machines[machine].clock.step(now, ns);
            world.oracle.holds.clock_stepped(machine);
            for process in world.alive_on(machine) {
                tell_oracle_it_runs(world, process);
            }
            world.clock_changed(machine);
        }
        _ => {
            let rate = world.random.range(RATE_TRUE * 9 / 10, RATE_TRUE * 11 / 10);
            world.machines[machine].clock.set_rate(now, rate);
            world.clock_changed(machine);
        }
    }
}

/// Sets the wall clock of a machine for brokers, forwards or backwards.
fn wall_clock_steps(world: &mut World) {
    world.tally.fault(word(Fault::WallClockSteps));
    let machine = if world.random.one_in(2) { BROKER_MACHINE } else { SPARE_MACHINE };
    let most_ms = 2 * world.plan.snapshots.hold_ms_max;
    let ms = world.random.skewed(1, most_ms) as i64;
    let ahead_ms = if world.random.one_in(2) { ms } else { -ms };
    world.note(ProcessId(u32::MAX), word(Fault::WallClockSteps), [machine as u64, ahead_ms as u64, 0]);
    world.machines[machine].wall_ahead_ms = ahead_ms;
}

fn machine_dies() {
    let dying = world(|world| {
        let machine = any_machine(world);
        if !world.machines[machine].is_up {
            return None;
        }
        world.tally.fault(word(Fault::MachineDies));
        let life_ns = world.plan.life_ns();
        let ns = world.random.skewed(500 * MS, 2 * life_ns);
        world.chore_in(ns, Chore::Boot(machine));
        Some((machine, world.alive_on(machine)))
    });
    let Some((machine, processes)) = dying else { return };
    processes.into_iter().for_each(|process| parties::end(process, Ending::FallsSilent));
    world(|world| {
        world.machines[machine].is_up = false;
        world.machines[machine].is_asleep = false;
    });
}

/// Schedules the faults of a world, and their end.
pub(crate) fn plan(world: &mut World) {
    let (every, faulty_ns) = (world.plan.fault_every_ns, world.plan.faulty_ns);
    if every > 0 && world.plan.profile != Profile::Still {
        let first = world.random.below(2 * every);
        world.chore_in(first + 2_000 * MS, Chore::NextFault);
    }
    world.chore_in(faulty_ns, Chore::Heal);
}
