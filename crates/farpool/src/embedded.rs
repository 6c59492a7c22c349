//! A pool inside this process: a broker and nodes that end with the session.

use farpool_broker::{Broker, LeaseSettings, stores::MemoryStore};
use farpool_files::{Error, ErrorKind, Pool, PoolOptions};
use farpool_near_data::FunctionOptions;
use farpool_node::{Node, NodeOptions};
use farpool_transport::Exposure;
use farpool_wire::Name;
use farpool_wire::limits::*;
use std::net::SocketAddr;
use std::time::Duration;

/// Longest time until the broker knows an embedded node. It normally takes a moment, but longer if many more threads
/// than CPUs want to run.
const EMBEDDED_START: Duration = Duration::from_secs(60);

/// Regions that each node has unless their size is chosen, and memory suffices. A small table takes one that its
/// session leases and one that it shares with other files, and what is written next another one.
const REGIONS: u64 = 8;

/// Duration of a lease in an embedded pool, and time after which a node counts as silent, in ms. Its broker, nodes and
/// session end together, so nothing is gained by noticing soon that one of them is silent. A machine with many more
/// threads than CPUs may keep their threads waiting for seconds.
const EMBEDDED_SILENCE_MS: u32 = 30_000;

/// Options of a pool inside this process, for tests and for use on one machine.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Bytes donated by all nodes together. They are memory of this process, and stay in the pool when the machine runs
    /// short of it.
    pub memory_bytes: u64,
    /// Number of nodes, 1 to 64.
    pub node_count: u32,
    /// Size of a region in bytes, a power of two from 1 MiB to 2 GiB. Default: 64 MiB, or the largest of which each
    /// node has eight.
    pub region_bytes: Option<u64>,
    /// Options of the session.
    pub pool: PoolOptions,
}

impl EmbeddedOptions {
    /// Makes options for one node with this much memory.
    pub fn new(memory_bytes: u64) -> Self {
        EmbeddedOptions { memory_bytes, node_count: 1, region_bytes: None, pool: PoolOptions::default() }
    }

    /// Returns the region size to use: the one given, otherwise the default.
    fn region_bytes(&self) -> Result<u64, Error> {
        if !(1..=64).contains(&self.node_count) {
            let message = format!("the node count is {}; 1 to 64 are permitted", self.node_count);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let share = self.memory_bytes / u64::from(self.node_count);
        if share < REGION_BYTES_MIN {
            let message = format!(
                "{} bytes over {} nodes are {share} for each; at least {REGION_BYTES_MIN} are needed",
                self.memory_bytes, self.node_count
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let largest = (1 << share.ilog2()) / REGIONS;
        Ok(self.region_bytes.unwrap_or(largest.clamp(REGION_BYTES_MIN, REGION_BYTES_DEFAULT)))
    }
}

/// Starts a broker and nodes, and opens a session with them.
pub(crate) fn embedded(options: EmbeddedOptions) -> Result<Pool, Error> {
    let region_bytes = options.region_bytes()?;
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let start = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Invalid, error.to_string());
    let store = Box::new(MemoryStore::default());
    let settings = LeaseSettings {
        lease_ttl_ms: EMBEDDED_SILENCE_MS,
        node_silence_ms: EMBEDDED_SILENCE_MS,
        ..LeaseSettings::default()
    };
    let broker =
        Broker::start(loopback, &Exposure::default(), settings, store).map_err(|error| start(&error))?;
    let mut nodes = Vec::new();
    for index in 1..=options.node_count {
        let name = Name::new(format!("embedded-{index}")).map_err(|error| start(&error))?;
        let share = options.memory_bytes / u64::from(options.node_count);
        let mut node = NodeOptions::new(name, share, broker.address().to_string());
        node.region_bytes = region_bytes;
        // The memory is part of this process, like any other that it has allocated.
        node.pressure.source = None;
        node.extension = farpool_near_data::extension(FunctionOptions::default());
        let node = Node::start(node).map_err(|error| start(&error))?;
        if !node.wait_joined(EMBEDDED_START) {
            return Err(Error::new(ErrorKind::Unreachable, "an embedded node did not reach its broker"));
        }
        nodes.push(node);
    }
    let url = format!("farpool://{}", broker.address());
    Pool::connect_embedded(&url, options.pool, Box::new((nodes, broker)))
}
