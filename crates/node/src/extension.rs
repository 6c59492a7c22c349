//! What a node does for its clients besides keeping regions and moving their bytes: nothing, unless it is extended.
//!
//! The idea: an extension answers what the node's own rules do not, and of the node it has no more than the host it
//! runs on and the memory it serves. Before it touches a region it asks [`admit`](crate::dispatch::admit), as the node
//! does.

use farpool_host::Host;
use farpool_region::Arena;
use farpool_transport::{Peer, Successor};
use farpool_wire::control::{LaneOpened, OpenLane};
use farpool_wire::{Code, Opcode, Refusal, Reply, Request};
use std::io;
use std::sync::Arc;

/// Answers for a node. Called from many threads at once, but never where bytes are read or written. What is not
/// implemented is not supported.
pub trait Extension: Send + Sync + 'static {
    /// Answers a control request that is not about leases.
    fn call(&self, _peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        Err(Refusal::new(Code::Unsupported, request.opcode() as u64))
    }
    /// Makes a connection one on which functions are called; see [`farpool_transport::Service::open_lane`].
    fn open_lane(&self, _peer: &Peer, _open: OpenLane) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::OpenLane as u64))
    }
    /// Ends what belongs to a connection that has ended.
    fn ended(&self, _peer: &Peer) {}
    /// Ends what nobody has used for too long. Called at every tick of the node.
    fn tick(&self) {}
}

/// No extension.
impl Extension for () {}

/// Makes the extension of a node of its host and its memory, before it serves anybody.
pub type Extend<M = Arena> = Box<dyn FnOnce(Arc<dyn Host>, Arc<M>) -> io::Result<Box<dyn Extension>> + Send>;
