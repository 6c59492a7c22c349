//! Ways from a process to others.

use crate::reach::Reach;
use crate::shm::{self, ShmSpace};
use crate::tls::Identity;
use crate::{Link, LinkError, tcp};
use farpool_host::{Host, HostLayer, Machine};
use farpool_wire::{ClientId, MonoNs, NodeId};
use std::sync::Arc;

/// Whom to reach, and how.
#[derive(Clone, Copy, Debug)]
pub enum Dial<'a> {
    /// The broker at `host:port`.
    Broker {
        /// Where.
        address: &'a str,
    },
    /// A memory node at `host:port`.
    Node {
        /// Where.
        address: &'a str,
        /// Which node is expected there.
        node: NodeId,
    },
    /// A memory node on this host, by its local socket: its regions can be mapped.
    Local {
        /// The name of the socket.
        socket: &'a str,
        /// What this process has mapped of that node.
        space: &'a Arc<ShmSpace>,
    },
}

/// A host from which others can be reached. [`Sockets`] is the real one; the simulator has another.
pub trait Dialer: Host {
    /// Connects and greets.
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError>;
}

/// This machine, and what its sockets reach.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    reach: Reach,
    /// What all connections of this host name as their client.
    client: ClientId,
}

impl Sockets {
    /// This machine as a host whose connections go as far as `reach` says. They count as one client.
    pub fn dialer(reach: Reach) -> Arc<dyn Dialer> {
        let mut client = [0; 8];
        // Without randomness there is no name, and each connection is a client by itself.
        let client = Machine.random(&mut client).map_or(0, |()| u64::from_le_bytes(client));
        Arc::new(Sockets { reach, client: ClientId(client) })
    }
}

impl HostLayer for Sockets {
    fn beneath(&self) -> &dyn Host {
        &Machine
    }
}

impl Dialer for Sockets {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let connect =
            |address, expected| tcp::connect_for(self.client, &self.reach, address, &expected, deadline);
        match to {
            Dial::Broker { address } => connect(address, Identity::Broker),
            Dial::Node { address, node } => connect(address, Identity::Node(node)),
            Dial::Local { socket, space } => {
                shm::connect_for(self.client, socket, Arc::clone(space), deadline)
            }
        }
    }
}
