//! Extension of a node: services besides keeping regions and moving their bytes.
//!
//! An extension answers requests that the node itself does not. It gets the host and the memory of the node,
//! and its way to other nodes. Before it touches a region it calls [`admit`](crate::admit::admit), as the node does.

use farpool_host::Host;
use farpool_region::Arena;
use farpool_transport::{Dialer, Peer, Successor};
use farpool_wire::control::{LaneOpened, OpenHoppingLane};
use farpool_wire::{Code, Opcode, Refusal, Reply, Request};
use std::io;
use std::sync::Arc;

/// Answers control requests for a node. Called from many threads at once. Reads and writes of regions never come here.
/// The default of each request refuses it as unsupported.
pub trait Extension: Send + Sync + 'static {
    /// Answers a control request that is not about leases.
    fn call(&self, _peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        Err(Refusal::new(Code::Unsupported, request.opcode() as u64))
    }
    /// Turns a connection into a call lane: hands it to the process that runs a tenant's functions. See
    /// [`farpool_transport::Service::open_lane`].
    fn open_lane(
        &self,
        _peer: &Peer,
        _open: OpenHoppingLane,
    ) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::OpenLane as u64))
    }
    /// Ends everything that belongs to a connection that has ended.
    fn ended(&self, _peer: &Peer) {}
    /// Ends everything that was unused for too long. Called at every tick of the node.
    fn tick(&self) {}
}

/// Extension that refuses every request as unsupported.
impl Extension for () {}

/// Function that makes the extension of a node from its host, its way to other nodes and its memory, before the node
/// serves anybody.
pub type Extend<M = Arena> =
    Box<dyn FnOnce(Arc<dyn Host>, Arc<dyn Dialer>, Arc<M>) -> io::Result<Box<dyn Extension>> + Send>;
