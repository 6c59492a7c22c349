//! Pool of one node in this process, and sessions that send it single messages of the tests' choice.

use crate::certificates::Ca;
use crate::programs::PATIENCE;
use farpool_broker::stores::MemoryStore;
use farpool_broker::{Broker, LeaseSettings};
use farpool_node::{Node, NodeOptions};
pub use farpool_tests::raw_session::*;
use farpool_transport::shm::{self, ShmSpace};
use farpool_transport::sim::{Faults, SimNet};
use farpool_transport::{Exposure, Identity, Link, Transport, tcp};
use farpool_wire::Name;
use std::net::SocketAddr;
use std::sync::Arc;

/// Name of the only node of this pool.
pub const NODE: &str = "raw";

/// Broker and node in this process. Fields are dropped in order, so the node ends before its broker.
pub struct OneNode {
    pub node: Node,
    pub broker: Broker,
    /// TLS settings with which clients connect.
    pub exposure: Exposure,
}

/// Returns settings by which a lease outlasts any test, however busy the machine is: raw sessions do not renew theirs.
pub fn lasting_leases() -> LeaseSettings {
    LeaseSettings { lease_ttl_ms: 600_000, ..LeaseSettings::default() }
}

pub fn one_node(regions: u64, settings: LeaseSettings) -> OneNode {
    one_node_within(regions, settings, [Exposure::default(), Exposure::default(), Exposure::default()])
}

/// Starts a pool whose peers have certificates. Returns it with the CA that issued them.
pub fn one_tls_node(regions: u64, settings: LeaseSettings) -> (OneNode, Ca) {
    let ca = Ca::new();
    let reaches = [ca.broker(), ca.node(NODE), ca.tenant("raw-client")].map(Ca::exposure);
    (one_node_within(regions, settings, reaches), ca)
}

/// Starts a pool with the TLS settings of the broker, of the node and of the clients, in this order.
pub fn one_node_within(
    regions: u64,
    settings: LeaseSettings,
    [broker, node, exposure]: [Exposure; 3],
) -> OneNode {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let store = Box::new(MemoryStore::default());
    let broker = Broker::start(loopback, &broker, settings, store).expect("a broker");
    let name = Name::new(NODE).expect("a name");
    let mut options = NodeOptions::new(name, regions * MIB, broker.address().to_string());
    options.region_bytes = MIB;
    options.exposure = node;
    // The node keeps its memory, however little the other tests of this machine leave free.
    options.pressure.source = None;
    let node = Node::start(options).expect("a node");
    assert!(node.wait_joined(PATIENCE), "the node joins");
    OneNode { node, broker, exposure }
}

impl OneNode {
    /// Connects to the node over a transport. With `Sim`, a simulated network without faults, time is virtual.
    pub fn link(&self, transport: Transport) -> Box<dyn Link> {
        let info = self.node.info();
        match transport {
            Transport::Tcp => {
                tcp::connect(&self.exposure, &info.address, &Identity::Node(info.node), soon()).expect("tcp")
            }
            Transport::Shm => {
                let space = Arc::new(ShmSpace::default());
                shm::connect(&info.shm_socket, space, soon()).expect("shm")
            }
            Transport::Sim => {
                Box::new(SimNet::new(1, Faults::none()).connect(self.node.service()).expect("sim"))
            }
        }
    }

    pub fn session(&self) -> RawSession {
        RawSession::open(self)
    }
}

impl Lessor for OneNode {
    fn broker_link(&self) -> Box<dyn Link> {
        let address = self.broker.address().to_string();
        tcp::connect(&self.exposure, &address, &Identity::Broker, soon()).expect("broker")
    }
}
