//! Work that a node does beside its data: scans, the lookups of their semi-joins, and functions that clients call.
//!
//! Each scan, lookup and call belongs to a client's connection. If it is wrong or hostile it ends with a reason, and
//! the node goes on. The rights to the regions it touches are checked as for any read.
//!
//! Never in this crate: a rule about leases, a write to a region, or anything that a read or a write of bytes waits
//! for.
#![forbid(unsafe_code)]

mod columns;
mod functions;
mod hops;
mod lookups;
mod scans;

pub use functions::FunctionOptions;

use crate::functions::Functions;
use crate::lookups::LookupTables;
use crate::scans::Scans;
use farpool_host::Host;
use farpool_node::{Extend, Extension, Memory};
use farpool_transport::{Dialer, Peer, Successor};
use farpool_wire::control::{LaneOpened, OpenHoppingLane};
use farpool_wire::{Code, Refusal, Reply, Request};
use std::sync::Arc;

/// Extension of a node, over its host (clock and log), its way to other nodes and its memory.
pub(crate) struct NearData<M> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) memory: Arc<M>,
    pub(crate) scans: Scans,
    pub(crate) lookups: LookupTables,
    pub(crate) functions: Functions,
}

/// Returns the extension with all of this crate's services, and with these functions.
pub fn extension<M: Memory>(functions: FunctionOptions) -> Extend<M> {
    Box::new(move |host, dialer, memory| {
        let functions = Functions::start(functions, &host)?;
        let (scans, lookups) = (Scans::default(), LookupTables::default());
        Ok(Box::new(NearData { host, dialer, memory, scans, lookups, functions }))
    })
}

impl<M: Memory> Extension for NearData<M> {
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::OpenScan(open) => self.open_scan(peer, open),
            Request::NextChunk(next) => self.next_chunk(peer.connection, next.scan),
            Request::ClaimGroups(claim) => self.claim_groups(&claim),
            Request::CloseScan(close) => self.close_scan(close.scan),
            Request::PutLookup(put) => self.put_lookup(peer, put),
            Request::DropLookup(drop) => self.drop_lookup(drop.lookup),
            Request::RunningCalls(_) => Ok(Reply::RunningCalls(self.running_calls(peer))),
            other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
        }
    }

    fn open_lane(
        &self,
        peer: &Peer,
        open: OpenHoppingLane,
    ) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        self.lane(peer, open)
    }

    fn ended(&self, peer: &Peer) {
        self.end_scans(peer.connection);
        self.lookups.end(peer.connection);
    }

    fn tick(&self) {
        self.tidy_scans();
    }
}
