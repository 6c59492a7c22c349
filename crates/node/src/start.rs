//! Putting a node together, and taking it down.

use crate::options::NodeOptions;
use crate::reporting;
use crate::service::NodeService;
use farpool_lease::{NodeLeases, ticket};
use farpool_region::{Arena, ArenaOptions, RegionError};
use farpool_transport::tcp::Listening;
use farpool_transport::{Service, shm, tcp};
use farpool_wire::control::NodeInfo;
use farpool_wire::limits::NODE_REGIONS_MAX;
use farpool_wire::{Incarnation, Name, RegionIndex, Text};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running memory node. Dropping it stops it; its bytes are gone then.
pub struct Node {
    service: Arc<NodeService>,
    info: NodeInfo,
    address: SocketAddr,
    listening: Vec<Listening>,
    threads: Vec<JoinHandle<()>>,
}

/// Why a node did not start.
#[derive(Debug)]
pub enum StartError {
    /// A setting is outside what is permitted; the text names both.
    Setting(String),
    /// The memory could not be had.
    Region(RegionError),
    /// The address could not be served on.
    Listen(SocketAddr, io::Error),
    /// The system refused something else.
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

/// The boot id of this host, the same for all its processes and for nobody else; 0 if it has none. Equal to
/// a node's [`NodeInfo::host_boot`] when the node is on this host.
pub fn host_boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
}

fn random<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StartError::System(io::Error::other(error)))?;
    Ok(bytes)
}

impl Node {
    /// Starts serving; presents itself to the broker in the background.
    pub fn start(options: NodeOptions) -> Result<Node, StartError> {
        let region_count = options.memory_bytes / options.region_bytes.max(1);
        if region_count == 0 || region_count > NODE_REGIONS_MAX as u64 {
            return Err(StartError::Setting(format!(
                "{} bytes make {region_count} regions of {} bytes; 1 to {NODE_REGIONS_MAX} regions are permitted",
                options.memory_bytes, options.region_bytes
            )));
        }
        let region_count = region_count as u32;
        let arena = Arena::new(&ArenaOptions {
            region_bytes: options.region_bytes,
            region_count,
            huge_pages: options.huge_pages,
            lock: options.lock_memory,
        })
        .map_err(StartError::Region)?;

        let incarnation = Incarnation(u64::from_le_bytes(random()?).max(1));
        let ticket_key = random()?;
        let node = ticket::node_id(&options.name);
        let mut leases = NodeLeases::new(node, incarnation, ticket_key, region_count);
        // Fresh mappings are zero; pre-faulting them changes only how fast their first use is.
        for region in 0..region_count {
            leases.scrubbed(RegionIndex(region));
        }
        let service = Arc::new(NodeService::new(arena, leases));

        let listener = tcp::listen(options.listen, service.clone())
            .map_err(|error| StartError::Listen(options.listen, error))?;
        let address = listener.local_address().unwrap_or(options.listen);
        let mut listening = vec![listener];
        let mut shm_socket = String::new();
        if options.shared_memory {
            shm_socket = format!("farpool-{:016x}-{:016x}", node.0, incarnation.0);
            listening.push(shm::listen(&shm_socket, service.clone()).map_err(StartError::System)?);
        }

        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy().into_owned();
        let text = |text: String| Text::new(text).map_err(|error| StartError::Setting(error.to_string()));
        let info = NodeInfo {
            node,
            name: options.name.clone(),
            incarnation,
            address: text(options.advertise.clone().unwrap_or_else(|| address.to_string()))?,
            shm_socket: text(shm_socket)?,
            host_boot: host_boot_id(),
            host_label: match &options.host_label {
                Some(label) => label.clone(),
                None => Name::new(if host.is_empty() { "unnamed-host".into() } else { host })
                    .map_err(|error| StartError::Setting(error.to_string()))?,
            },
            region_bytes: options.region_bytes,
        };

        let mut running = Node { service, info, address, listening, threads: Vec::new() };
        let service = Arc::clone(&running.service);
        running.spawn("farpool-time", move || reporting::keep_time(&service))?;
        let service = Arc::clone(&running.service);
        let house_options = options.clone();
        running.spawn("farpool-house", move || reporting::keep_house(&service, &house_options))?;
        let service = Arc::clone(&running.service);
        let info = running.info.clone();
        running.spawn("farpool-report", move || {
            reporting::report(&service, &info, ticket_key, &options.broker)
        })?;
        Ok(running)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run).map_err(StartError::System)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the broker has taken the node in. Whether it has.
    pub fn wait_joined(&self, patience: Duration) -> bool {
        let chores = self.service.chores();
        let (chores, _) = self
            .service
            .chores_changed
            .wait_timeout_while(chores, patience, |chores| !chores.joined)
            .unwrap_or_else(PoisonError::into_inner);
        chores.joined
    }

    /// What answers its peers, for serving them by other means (the simulated net).
    pub fn service(&self) -> Arc<dyn Service> {
        self.service.clone()
    }

    /// What it told the broker of itself.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.service.chores().stop = true;
        self.service.chores_changed.notify_all();
        self.listening.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
