//! What a node is started with.

use farpool_transport::Reach;
use farpool_wire::Name;
use std::net::SocketAddr;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// What it is called; a node started again under its name replaces its former life.
    pub name: Name,
    /// Bytes to donate; rounded down to whole regions, at least one.
    pub memory_bytes: u64,
    /// Bytes of a region: a power of two from 1 MiB to 2 GiB.
    pub region_bytes: u64,
    /// Where to serve; port 0 picks a free one.
    pub listen: SocketAddr,
    /// `host:port` that clients are told; by default where it serves.
    pub advertise: Option<String>,
    /// `host:port` of the broker.
    pub broker: String,
    /// What proves this node to others and others to it, and how far its connections go. Default: no further
    /// than this machine, in plaintext.
    pub reach: Reach,
    /// Failure domain; by default the host's name.
    pub host_label: Option<Name>,
    /// Ask for huge pages (network regions).
    pub huge_pages: bool,
    /// Lock donated memory into RAM where the system permits it.
    pub lock_memory: bool,
    /// Touch donated pages in the background, so that no first write pays for them.
    pub prefault: bool,
    /// Serve clients on this host by shared memory.
    pub shared_memory: bool,
}

impl NodeOptions {
    /// A node on a free loopback port with default regions.
    pub fn new(name: Name, memory_bytes: u64, broker: String) -> Self {
        NodeOptions {
            name,
            memory_bytes,
            region_bytes: farpool_wire::limits::REGION_BYTES_DEFAULT,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            broker,
            reach: Reach::default(),
            host_label: None,
            huge_pages: true,
            lock_memory: true,
            prefault: true,
            shared_memory: true,
        }
    }
}
