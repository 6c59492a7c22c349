//! Connections from this process to brokers and nodes.

use crate::exposure::Exposure;
use crate::shm::{self, ShmSpace};
use crate::tls::Identity;
use crate::{Link, LinkError, tcp};
use farpool_host::{Host, HostLayer, Machine};
use farpool_wire::{ClientId, MonoNs, NodeId};
use std::sync::Arc;

/// Peer to connect to, and the transport to use.
#[derive(Clone, Copy, Debug)]
pub enum Dial<'a> {
    /// The broker at `host:port`.
    Broker {
        /// Address as `host:port`.
        address: &'a str,
    },
    /// The memory node at `host:port`.
    Node {
        /// Address as `host:port`.
        address: &'a str,
        /// Node that must answer there. With TLS its certificate must name it.
        node: NodeId,
    },
    /// A memory node on this host, by its Unix socket. Its regions can be mapped.
    Local {
        /// Name of the socket.
        socket: &'a str,
        /// Regions of that node that this process has mapped.
        space: &'a Arc<ShmSpace>,
    },
}

/// A host that can connect to others. [`Sockets`] is the real one; the simulator has its own.
pub trait Dialer: Host {
    /// Connects to a peer and exchanges greetings with it.
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError>;
}

/// This machine with its sockets.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    exposure: Exposure,
    /// Client number that all connections of this process send in their greeting.
    client: ClientId,
}

impl Sockets {
    /// Returns this machine as a host whose connections are limited by `exposure`. All its connections count as one
    /// client when nodes share their work between clients.
    pub fn dialer(exposure: Exposure) -> Arc<dyn Dialer> {
        let mut client = [0; 8];
        // If the system gives no random bytes the number is 0, and nodes treat each connection as a client of its own.
        let client = Machine.random(&mut client).map_or(0, |()| u64::from_le_bytes(client));
        Arc::new(Sockets { exposure, client: ClientId(client) })
    }
}

impl HostLayer for Sockets {
    fn inner(&self) -> &dyn Host {
        &Machine
    }
}

impl Dialer for Sockets {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let connect =
            |address, expected| tcp::connect_for(self.client, &self.exposure, address, &expected, deadline);
        match to {
            Dial::Broker { address } => connect(address, Identity::Broker),
            Dial::Node { address, node } => connect(address, Identity::Node(node)),
            Dial::Local { socket, space } => {
                shm::connect_for(self.client, socket, Arc::clone(space), deadline)
            }
        }
    }
}
