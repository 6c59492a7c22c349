//! Processes of a world: its broker (now and then two), nodes and clients; starting and ending them.
//!
//! Each is a process on a machine, made of the real code: [`BrokerService`], [`NodeService`] with its loops,
//! [`farpool_files::Pool`] under a workload. The oracle sees their answers before they are sent.

use crate::clock::{Clock, RATE_TRUE};
use crate::electorate::{Cluster, SimElectorate};
use crate::faults::Chore;
use crate::holds::{Moment, Opening};
use crate::host::SimHost;
use crate::kernel::{self, MachineId, MachineState, ProcessId, World, rest, world};
use crate::memory::SimMemory;
use crate::names::NameBook;
use crate::net::Ending;
use crate::observed::{ObservedBroker, ObservedNode};
use crate::replayed_requests::UnderWay;
use crate::snapshots::SnapshotBook;
use crate::store::Disk;
use crate::{admin, workload};
use farpool_broker::BrokerService;
use farpool_broker::election::Standby;
use farpool_host::HostEvent;
use farpool_lease::ticket;
use farpool_near_data::FunctionOptions;
use farpool_node::{NodeService, Prefault, keep_copies, keep_house, keep_time, report};
use farpool_transport::{Brokers, Identity, Service};
use farpool_wire::control::NodeInfo;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::{Incarnation, MonoNs, Name, NodeId, Request, Text};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Address of the pool, at which the first broker or its successor listens.
const BROKER: &str = "10.0.0.1:7700";
/// Address of the second of two brokers that elect a leader.
const STANDING: &str = "10.0.0.2:7700";
/// Machine of the first broker. The next machine is for a second one.
pub(crate) const BROKER_MACHINE: MachineId = 0;
pub(crate) const SPARE_MACHINE: MachineId = 1;

/// Time in ns after which a broker looks for what comes with time.
const LOOK_NS: u64 = 500_000_000;
/// Bytes per second that a node copies of published files: about a second for a region.
const COPY_BYTES_PER_SECOND: u64 = REGION_BYTES_MIN;

/// Phase of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Faults happen.
    #[default]
    Faulty,
    /// No more faults; the pool recovers from earlier ones.
    Mending,
    /// Clients prove that every published name is still there.
    Proving,
    /// All names are dropped, every client must be able to write, and no region may stay in use.
    Clearing,
}

/// Broker process that runs now.
pub(crate) struct BrokerLife {
    pub(crate) process: ProcessId,
    pub(crate) machine: MachineId,
    /// Number of the opening of the disk by this broker's store, by which older brokers are told from newer ones.
    pub(crate) opening: u64,
    /// Service of the broker. `None` until it has begun its term.
    pub(crate) service: Option<Arc<dyn Service>>,
    /// Nodes that have told this broker on which host they are.
    pub(crate) met: BTreeSet<NodeId>,
    /// Last report of each node that this broker has taken.
    pub(crate) reports: BTreeMap<NodeId, TakenReport>,
}

/// Report of a node that a broker has taken.
pub(crate) struct TakenReport {
    pub(crate) incarnation: Incarnation,
    /// When it was taken, by the broker's clock.
    pub(crate) at: MonoNs,
    pub(crate) is_draining: bool,
}

impl BrokerLife {
    fn new(process: ProcessId, machine: MachineId, opening: u64) -> BrokerLife {
        BrokerLife {
            process,
            machine,
            opening,
            service: None,
            met: BTreeSet::new(),
            reports: BTreeMap::new(),
        }
    }

    /// Notes that the broker has done what a request asks, at the time `at` of its clock.
    pub(crate) fn note_done(&mut self, request: &Request, at: MonoNs) {
        match request {
            Request::Offer(offer) => _ = self.met.insert(offer.info.node),
            Request::Inventory(report) => {
                let taken = TakenReport { incarnation: report.incarnation, at, is_draining: report.draining };
                self.reports.insert(report.node, taken);
            }
            _ => {}
        }
    }
}

/// Node process that runs now, in one life.
pub(crate) struct NodeLife {
    pub(crate) process: ProcessId,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) service: Arc<NodeService<SimMemory>>,
}

pub(crate) struct NodePlace {
    pub(crate) machine: MachineId,
    pub(crate) life: Option<NodeLife>,
}

pub(crate) struct ClientPlace {
    pub(crate) machine: MachineId,
    pub(crate) process: Option<ProcessId>,
    pub(crate) lives: u64,
    /// True once the client has seen every published name that must exist. Set in the phases without faults.
    pub(crate) has_seen_names: bool,
    /// True once the client has written and read a file in the last phase.
    pub(crate) has_written: bool,
    /// Last error that kept the client from seeing all names or from writing.
    pub(crate) trouble: String,
}

/// Processes of a world, and the state of the world that they share.
#[derive(Default)]
pub(crate) struct Parties {
    pub(crate) disk: Disk,
    pub(crate) cluster: Cluster,
    /// Brokers that run, oldest first. There are two during the fault that starts a second broker over the same disk,
    /// and in worlds in which two brokers elect a leader.
    pub(crate) brokers: Vec<BrokerLife>,
    /// Time at which the last deposed broker (one that had lost the disk to a newer one) ended, in ns. `None` if there
    /// was none.
    pub(crate) deposed_until: Option<u64>,
    pub(crate) nodes: Vec<NodePlace>,
    pub(crate) clients: Vec<ClientPlace>,
    pub(crate) admin: Option<ProcessId>,
    pub(crate) phase: Phase,
    pub(crate) names: NameBook,
    /// Rows of each snapshot of a table.
    pub(crate) snapshots: SnapshotBook,
    /// Number of the table that clients of each tenant change now. A table that is lost gets a successor.
    pub(crate) grown_generations: BTreeMap<String, u64>,
    /// Requests that are scheduled to be sent once more.
    pub(crate) again: UnderWay,
    /// Number that goes into the next bytes that are written, so that all contents differ.
    pub(crate) next_stamp: u64,
    /// Number of the next write by concurrent tasks of one client (`workload::storm`).
    pub(crate) next_unit: u32,
    /// Number of tenants whose names are all dropped; counted in the last phase.
    pub(crate) names_cleared: usize,
    /// Nodes that the administrator ordered to be drained, and has not taken back into use.
    pub(crate) drained: BTreeSet<usize>,
    /// True once all nodes are in use again; set in the phases without faults.
    pub(crate) all_in_use: bool,
    /// Lives of nodes that have ended, whose memory is gone.
    pub(crate) ended: Vec<Incarnation>,
}

impl World {
    /// Reports whether a broker that had lost the disk to a newer one was alive at the time `since` (in ns) or later.
    /// Such a broker may have answered with an old state.
    pub(crate) fn had_deposed_broker(&self, since: u64) -> bool {
        let openings = self.parties.disk.openings();
        let lives = self.parties.brokers.iter().any(|life| (1..openings).contains(&life.opening));
        lives || self.parties.deposed_until.is_some_and(|until| until >= since)
    }

    /// Returns what the clocks of the machines for brokers show now.
    pub(crate) fn moment(&self) -> Moment {
        let now = self.now();
        let clocks = [BROKER_MACHINE, SPARE_MACHINE].map(|machine| self.machines[machine].clock.at(now));
        Moment { at: now, clocks }
    }

    /// Tells the oracle that a broker on a machine has opened the disk, and leads from now on.
    pub(crate) fn disk_opened(&mut self, opening: Opening, machine: MachineId) {
        let now = self.moment();
        self.oracle.disk_opened();
        self.oracle.holds.began(opening, machine, now);
    }

    /// Creates the machines.
    pub(crate) fn set_up(&mut self) {
        let plan = self.plan.clone();
        // Two machines are for brokers, the last one is the administrator's.
        let count = 3 + plan.nodes + plan.clients;
        for _ in 0..count {
            let rate = match plan.drifting_clocks {
                true => self.random.range(RATE_TRUE * 9 / 10, RATE_TRUE * 11 / 10),
                false => RATE_TRUE,
            };
            let shows = self.random.range(1_000_000_000, 1_000_000_000_000);
            let clock = Clock::new(self.now(), shows, rate);
            let boot = u128::from(self.random.draw().max(1));
            let (is_up, is_asleep, disk_is_broken) = (true, false, false);
            let wall_ahead_ms = 0;
            let machine = MachineState { clock, wall_ahead_ms, boot, is_up, is_asleep, disk_is_broken };
            self.machines.push(machine);
        }
        for index in 0..plan.nodes {
            let machine = 2 + plan.host_of_node[index];
            self.parties.nodes.push(NodePlace { machine, life: None });
        }
        for index in 0..plan.clients {
            let of_node = |node: usize| self.parties.nodes[node].machine;
            let machine = plan.client_with_node[index].map_or(2 + plan.nodes + index, of_node);
            self.parties.clients.push(ClientPlace {
                machine,
                process: None,
                lives: 0,
                has_seen_names: false,
                has_written: false,
                trouble: String::new(),
            });
        }
    }
}

/// Returns the addresses of the pool's brokers.
pub(crate) fn brokers() -> Brokers {
    let text = match world(|world| world.plan.stands) {
        true => format!("{BROKER},{STANDING}"),
        false => BROKER.to_owned(),
    };
    Brokers::new(&text).expect("they are addresses")
}

/// Starts a broker that takes part in the election.
fn start_standing(machine: MachineId) {
    let (process, settings) = world(|world| {
        let process = world.start_process(format!("broker@{machine}"), machine, Some(Identity::Broker));
        world.note(process, "starts", [0; 3]);
        world.parties.brokers.push(BrokerLife::new(process, machine, 0));
        (process, world.plan.broker_settings())
    });
    let begin = move || {
        let standby = Arc::new(Standby::new(Arc::new(SimHost(process))));
        let service: Arc<dyn Service> = Arc::<Standby>::clone(&standby);
        world(|world| {
            let observed = Arc::new(ObservedBroker::new(process, Arc::clone(&service)));
            let address = if machine == BROKER_MACHINE { BROKER } else { STANDING };
            world.net.listen(address, machine, process, observed);
            let mut lives = world.parties.brokers.iter_mut();
            if let Some(life) = lives.find(|life| life.process == process) {
                life.service = Some(service);
            }
        });
        let told = |service: &Arc<BrokerService>| {
            let term = service.term();
            world(|world| world.note(process, "begins its term", [term.0, 0, 0]));
        };
        standby.stand(settings, &SimElectorate(process), &HostEvent::default(), told);
    };
    world(|world| world.spawn(process, Box::new(begin)));
}

/// Starts a broker that opens the world's disk, on which every earlier broker thereby loses its access. In a world with
/// an election, starts one that takes part in the election instead.
pub(crate) fn start_broker(machine: MachineId) {
    if world(|world| world.plan.stands) {
        return start_standing(machine);
    }
    let (process, settings, store) = world(|world| {
        let process = world.start_process(format!("broker@{machine}"), machine, Some(Identity::Broker));
        let store = world.parties.disk.open();
        let opening = store.opening();
        world.disk_opened(opening, machine);
        world.parties.brokers.push(BrokerLife::new(process, machine, opening));
        world.note(process, "starts", [0; 3]);
        (process, world.plan.broker_settings(), store)
    });
    let begin = move || match BrokerService::open(Arc::new(SimHost(process)), settings, Box::new(store)) {
        Ok(service) => {
            let term = service.term();
            let looking = Arc::new(service);
            let service: Arc<dyn Service> = Arc::<BrokerService>::clone(&looking);
            let observed: Arc<dyn Service> = Arc::new(ObservedBroker::new(process, Arc::clone(&service)));
            world(|world| {
                world.net.listen(BROKER, machine, process, observed);
                world.note(process, "begins its term", [term.0, 0, 0]);
                let mut brokers = world.parties.brokers.iter_mut();
                if let Some(life) = brokers.find(|life| life.process == process) {
                    life.service = Some(service);
                }
            });
            while !looking.has_failed() {
                rest(LOOK_NS);
                looking.look();
            }
        }
        Err(error) => world(|world| {
            world.note_text(process, "does not start", [0; 3], Some(error.to_string().into()));
            let soon = world.random.range(200_000_000, 2_000_000_000);
            world.chore_in(soon, Chore::RestartFailedBroker(process));
        }),
    };
    world(|world| world.spawn(process, Box::new(begin)));
}

/// Starts a node in a new life, under the same name as before.
pub(crate) fn start_node(index: usize) {
    let name = Name::new(format!("node{index}")).expect("it is a name");
    let node = ticket::node_id(&name);
    let (process, machine, regions, label) = world(|world| {
        let machine = world.parties.nodes[index].machine;
        let process = world.start_process(format!("node{index}"), machine, Some(Identity::Node(node)));
        world.note(process, "starts", [0; 3]);
        (process, machine, world.plan.regions_of_node[index], world.plan.host_of_node[index])
    });
    let (host, brokers) = (Arc::new(SimHost(process)), brokers());
    let memory = SimMemory::new(REGION_BYTES_MIN, regions);
    let (service, life) = NodeService::begin(host, memory, node).expect("chance does not fail here");
    let functions = FunctionOptions { resident: Arc::new([]), sandboxes: None };
    let scans = farpool_near_data::extension(functions);
    let service = service.extended(Arc::new(SimHost(process)), scans).expect("no sandboxes are started");
    let service = Arc::new(service);
    let text = |text: String| Text::new(text).expect("it is short");
    let address = format!("10.0.1.{index}:7701");
    let shm_socket = format!("farpool-{:016x}-{:016x}", node.0, life.incarnation.0);
    world(|world| {
        let info = NodeInfo {
            node,
            name: name.clone(),
            incarnation: life.incarnation,
            address: text(address.clone()),
            shm_socket: text(shm_socket.clone()),
            host_boot: world.machines[machine].boot,
            host_label: Name::new(format!("host{label}")).expect("it is a name"),
            region_bytes: REGION_BYTES_MIN,
        };
        let observed: Arc<dyn Service> =
            Arc::new(ObservedNode::new(process, node, life.incarnation, Arc::clone(&service)));
        world.net.listen(&address, machine, process, Arc::clone(&observed));
        world.net.listen(&shm_socket, machine, process, observed);
        world.oracle.node_begins(life.incarnation, node);
        let tick_ms = world.plan.tick_ms;
        let loops = Arc::clone(&service);
        world.spawn(process, Box::new(move || keep_time(&loops, tick_ms)));
        let loops = Arc::clone(&service);
        world.spawn(process, Box::new(move || keep_house(&loops, Prefault::OnUse, tick_ms)));
        let loops = Arc::clone(&service);
        world.spawn(process, Box::new(move || keep_copies(&loops, &SimHost(process), COPY_BYTES_PER_SECOND)));
        let loops = Arc::clone(&service);
        let key = life.ticket_key;
        world.spawn(process, Box::new(move || report(&loops, &SimHost(process), &info, key, &brokers)));
        let place = &mut world.parties.nodes[index];
        place.life = Some(NodeLife { process, node, incarnation: life.incarnation, service });
    });
}

/// Starts a client's process and its workload.
pub(crate) fn start_client(index: usize) {
    world(|world| {
        let place = &mut world.parties.clients[index];
        place.lives += 1;
        let (machine, lives) = (place.machine, place.lives);
        let identity = Identity::tenant(world.plan.tenant_of(index)).ok();
        let process = world.start_process(format!("client{index}.{lives}"), machine, identity);
        world.parties.clients[index].process = Some(process);
        world.note(process, "starts", [0; 3]);
        world.spawn(process, Box::new(move || workload::run(process, index)));
    });
}

/// Starts the administrator.
pub(crate) fn start_admin() {
    world(|world| {
        let machine = world.machines.len() - 1;
        let process = world.start_process("admin".to_owned(), machine, Some(Identity::Admin));
        world.parties.admin = Some(process);
        world.spawn(process, Box::new(move || admin::run(process)));
    });
}

/// Ends a process, and notes what is lost with it. Its peers notice as `ending` says.
pub(crate) fn end(process: ProcessId, ending: Ending) {
    let ended = world(|world| {
        if !world.is_alive(process) {
            return None;
        }
        world.note(process, "ends", [u64::from(ending == Ending::HangsUp), 0, 0]);
        world.close_all(process, ending);
        let brokers =
            world.parties.brokers.extract_if(.., |life| life.process == process).collect::<Vec<_>>();
        let openings = world.parties.disk.openings();
        if brokers.iter().any(|life| (1..openings).contains(&life.opening)) {
            world.parties.deposed_until = Some(world.now());
        }
        let mut nodes = Vec::new();
        for place in &mut world.parties.nodes {
            if place.life.as_ref().is_some_and(|life| life.process == process) {
                nodes.extend(place.life.take());
            }
        }
        for life in &nodes {
            world.parties.ended.push(life.incarnation);
            world.oracle.node_ends(life.incarnation);
        }
        for place in &mut world.parties.clients {
            if place.process == Some(process) {
                place.process = None;
            }
        }
        world.parties.admin = world.parties.admin.filter(|admin| *admin != process);
        Some((brokers, nodes))
    });
    kernel::kill(process);
    drop(ended);
}
