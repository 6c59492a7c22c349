//! Start and stop of a node with its listeners and threads.

use crate::background::{self, Prefault, TICK_MS};
use crate::copying;
use crate::memory::Memory;
use crate::observation::NodeState;
use crate::options::{Limits, NodeOptions, PressureOptions};
use crate::pressure::Pressure;
use crate::service::{Chores, Life, NodeService};
use farpool_host::{Event, Host, HostLayer, Task};
use farpool_lease::ticket;
use farpool_region::donation::Donation;
use farpool_region::{Arena, ArenaOptions, RegionError};
use farpool_transport::tcp::Listening;
use farpool_transport::{Brokers, Dialer, Identity, Service, Sockets, shm, tcp};
use farpool_wire::control::NodeInfo;
use farpool_wire::limits::NODE_REGIONS_MAX;
use farpool_wire::{Name, Text};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A running memory node. Dropping it stops it, and the bytes in its memory are lost.
pub struct Node {
    service: Arc<NodeService>,
    info: NodeInfo,
    address: SocketAddr,
    listening: Vec<Listening>,
    threads: Vec<Task>,
}

/// View of a running node. It does not keep the node running.
pub struct NodeView {
    service: Arc<NodeService>,
    info: NodeInfo,
}

impl NodeView {
    /// Returns the state of the node. Takes the lease lock for as long as a report to the broker does.
    pub fn state(&self) -> NodeState {
        let service = &*self.service;
        let (inventory, surplus_regions) = {
            let leases = service.leases();
            (leases.inventory(service.traffic(), service.arena.locked_count()), leases.surplus())
        };
        NodeState {
            joined: service.chores.lock().joined,
            draining: inventory.draining,
            region_bytes: service.arena.region_bytes(),
            counts: inventory.counts,
            surplus_regions,
            traffic: inventory.traffic,
            pressure: *service.pressure_seen.lock(),
            times: service.times.read(),
        }
    }

    /// Returns the facts that it reported to the broker.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }
}

/// Host of a node. Its log has the name of the node, because a process may have several.
struct NodeHost {
    inner: Arc<dyn Dialer>,
    name: Name,
}

impl HostLayer for NodeHost {
    fn inner(&self) -> &dyn Host {
        &*self.inner
    }

    fn log(&self, event: &Event) {
        self.inner.log(&event.clone().node(&*self.name));
    }
}

/// Reason why a node did not start.
#[derive(Debug)]
pub enum StartError {
    /// A setting is outside the permitted range; the text names both.
    Setting(String),
    /// The memory could not be allocated.
    Region(RegionError),
    /// The address could not be served on.
    Listen(SocketAddr, io::Error),
    /// Another system call failed.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Setting(what) => f.write_str(what),
            StartError::Region(error) => write!(f, "{error}"),
            StartError::Listen(address, error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{address} is in use by another process; choose another port, or 0 for a free one")
            }
            StartError::Listen(address, error) => write!(f, "cannot serve on {address}: {error}"),
            StartError::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Node {
    /// Starts serving. The node registers with the broker in the background.
    pub fn start(options: NodeOptions) -> Result<Node, StartError> {
        let dialer = Sockets::dialer(options.exposure.clone());
        let brokers = Brokers::new(&options.broker).map_err(StartError::Setting)?;
        let node = Identity::Node(ticket::node_id(&options.name));
        if let Some(tls) = options.exposure.tls.as_ref().filter(|tls| *tls.identity() != node) {
            return Err(StartError::Setting(format!(
                "its certificate belongs to {}; a node called {} needs a certificate of {node}",
                tls.identity(),
                options.name
            )));
        }
        options.limits.check().map_err(StartError::Setting)?;
        if !Limits::BYTES_PER_SECOND.contains(&options.repair_bytes_per_second) {
            return Err(StartError::Setting(format!(
                "copies are made at {} bytes per second; {} to {} are permitted (1MB/s to 1TB/s)",
                options.repair_bytes_per_second,
                Limits::BYTES_PER_SECOND.start(),
                Limits::BYTES_PER_SECOND.end()
            )));
        }
        let region_count = options.memory_bytes / options.region_bytes.max(1);
        if region_count == 0 || region_count > NODE_REGIONS_MAX as u64 {
            return Err(StartError::Setting(format!(
                "{} bytes are {region_count} regions of {} bytes; a node has 1 to {NODE_REGIONS_MAX} regions: change \
                 the memory or the region size",
                options.memory_bytes, options.region_bytes
            )));
        }
        let region_count = region_count as u32;
        let (is_ordinary, is_device) = match &options.donation {
            Donation::Ordinary => (true, false),
            Donation::HugePages { .. } => (false, false),
            Donation::Device(_) => (false, true),
        };
        let arena = Arena::new(&ArenaOptions {
            region_bytes: options.region_bytes,
            region_count,
            donation: options.donation,
            numa_node: options.numa_node,
            huge_pages: options.huge_pages,
            lock: options.lock_memory,
        })
        .map_err(StartError::Region)?;

        let node = ticket::node_id(&options.name);
        let memory = arena.description(node).map(|memory| memory.to_string()).unwrap_or_default();
        let host = Arc::new(NodeHost { inner: dialer.clone(), name: options.name.clone() });
        let (service, life) = NodeService::begin(host, arena, node).map_err(StartError::System)?;
        let Life { incarnation, ticket_key } = life;
        let bytes = u64::from(region_count) * options.region_bytes;
        service.host.log(&Event::info("donates", format!("donates {bytes} bytes of memory: {memory}")));
        let service = service
            .within(&options.limits)
            .extended(Arc::clone(&dialer), options.extension)
            .map_err(StartError::System)?;
        let service = Arc::new(service);
        let PressureOptions { source, reserve_bytes, evacuate_ms, firm_percent } = options.pressure;
        let firm_max = u64::from(region_count) * u64::from(firm_percent.min(100)) / 100;
        service.leases().set_firm_max(firm_max as u32);

        let listener = tcp::listen(options.listen, &options.exposure, service.clone())
            .map_err(|error| StartError::Listen(options.listen, error))?;
        let address = listener.local_address().unwrap_or(options.listen);
        let mut listening = vec![listener];
        let mut shm_socket = String::new();
        if options.shared_memory && !is_device && !options.limits.is_limited() {
            shm_socket = match &options.socket_folder {
                None => format!("farpool-{:016x}-{:016x}", node.0, incarnation.0),
                Some(folder) => folder
                    .socket(node, incarnation)
                    .map_err(|error| StartError::Setting(format!("{folder}: {error}")))?,
            };
            listening.push(shm::listen(&shm_socket, service.clone()).map_err(StartError::System)?);
        }

        let uname = rustix::system::uname();
        let host_name = uname.nodename().to_string_lossy().into_owned();
        let text = |text: String| Text::new(text).map_err(|error| StartError::Setting(error.to_string()));
        let info = NodeInfo {
            node,
            name: options.name.clone(),
            incarnation,
            address: text(options.advertise.clone().unwrap_or_else(|| address.to_string()))?,
            shm_socket: text(shm_socket)?,
            host_boot: dialer.boot_id(),
            host_label: match &options.host_label {
                Some(label) => label.clone(),
                None => Name::new(if host_name.is_empty() { "unnamed-host".into() } else { host_name })
                    .map_err(|error| StartError::Setting(error.to_string()))?,
            },
            region_bytes: options.region_bytes,
        };

        let mut running = Node { service, info, address, listening, threads: Vec::new() };
        let service = Arc::clone(&running.service);
        running.spawn("farpool-time", move || background::keep_time(&service, TICK_MS))?;
        let service = Arc::clone(&running.service);
        let prefault = if options.prefault { Prefault::Ahead } else { Prefault::OnUse };
        running.spawn("farpool-house", move || background::keep_house(&service, prefault, TICK_MS))?;
        if let Some(source) = source.filter(|_| is_ordinary) {
            let (service, pressure) = (Arc::clone(&running.service), Pressure::new(reserve_bytes));
            running.spawn("farpool-reserve", move || {
                background::keep_reserve(&service, &*source, pressure, evacuate_ms)
            })?;
        }
        let (service, peers) = (Arc::clone(&running.service), dialer.clone());
        let bytes_per_second = options.repair_bytes_per_second;
        running.spawn("farpool-copies", move || {
            copying::keep_copies(&service, &*peers, bytes_per_second);
        })?;
        let service = Arc::clone(&running.service);
        let info = running.info.clone();
        running.spawn("farpool-report", move || {
            background::report(&service, &*dialer, &info, ticket_key, &brokers);
        })?;
        Ok(running)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        self.threads.push(self.service.host.spawn(name, Box::new(run)).map_err(StartError::System)?);
        Ok(())
    }

    /// Returns the address it serves on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the broker has registered the node. Returns false if `patience` is over first.
    pub fn wait_joined(&self, patience: Duration) -> bool {
        self.wait_until(patience, |chores| chores.joined)
    }

    /// Begins to drain this node, because its process was told to end: it grants nothing, and its clients move their
    /// scratch data to other nodes.
    pub fn leave(&self) {
        self.service.leases().leave();
        self.service.changed();
    }

    /// Waits until the node has been drained: it was told to end, nothing is leased, immutable or published here, all
    /// regions are zeroed, and the broker knows. After [`Self::leave`] it is enough that nothing is leased, and a
    /// broker that cannot be reached need not know. Returns false if `patience` is over first.
    pub fn wait_drained(&self, patience: Duration) -> bool {
        self.wait_until(patience, |chores| chores.drained)
    }

    fn wait_until(&self, patience: Duration, is_so: impl Fn(&Chores) -> bool) -> bool {
        let host = &self.service.host;
        let give_up = host.now().plus_ms(patience.as_millis() as u64);
        loop {
            let heard = self.service.chores_changed.heard();
            if is_so(&self.service.chores.lock()) {
                return true;
            }
            if host.now() >= give_up {
                return false;
            }
            host.wait(&self.service.chores_changed, heard, give_up);
        }
    }

    /// Returns a function that takes the lock of the node's background work and releases it. It does not return if the
    /// node hangs.
    pub fn probe(&self) -> impl Fn() + Send + use<> {
        let service = Arc::clone(&self.service);
        move || drop(service.chores.lock())
    }

    /// Returns the service, to serve it by other means (the simulated network).
    pub fn service(&self) -> Arc<dyn Service> {
        self.service.clone()
    }

    /// Returns a view of the node for another thread.
    pub fn view(&self) -> NodeView {
        NodeView { service: Arc::clone(&self.service), info: self.info.clone() }
    }

    /// Returns the facts that it reported to the broker.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.service.stop();
        self.listening.clear();
        for thread in self.threads.drain(..) {
            thread.join();
        }
    }
}
