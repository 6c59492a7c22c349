//! Control messages between nodes and the broker, and what both say of a node; the others are in [`crate::control`],
//! which has these as well.

use crate::codec::{Cursor, Field, List, Name, Text, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;

wire_struct! {
    /// Where a node is and how to reach it.
    NodeInfo {
        /// Its id.
        node: NodeId,
        /// Its name.
        name: Name,
        /// Its life.
        incarnation: Incarnation,
        /// `host:port` of its TCP listener.
        address: Text,
        /// Abstract Unix socket of its shared-memory listener; empty: none.
        shm_socket: Text,
        /// Boot id of its host: equal means same host.
        host_boot: u128,
        /// Its failure domain.
        host_label: Name,
        /// Bytes of each of its regions.
        region_bytes: u64,
    }
}

wire_struct! {
    /// What a node counted since it started.
    #[derive(Default)]
    Traffic {
        /// Reads served over the network.
        read_ops: u64,
        /// Their bytes.
        read_bytes: u64,
        /// Writes served over the network.
        write_ops: u64,
        /// Their bytes.
        write_bytes: u64,
        /// Data operations refused.
        refused_ops: u64,
        /// Regions mapped by clients on this host (their traffic does not pass the node).
        mapped_regions: u64,
        /// Nanoseconds of CPU time that its process has spun while it waited.
        spun_ns: u64,
    }
}

wire_struct! {
    /// A node in the pool's status.
    NodeStatus {
        /// Where it is.
        info: NodeInfo,
        /// Whether it was heard of lately.
        alive: bool,
        /// Whether it is being emptied.
        draining: bool,
        /// Milliseconds since it was heard of.
        heard_ms_ago: u64,
        /// Milliseconds since the broker, in this life of it, first heard of this life of the node.
        present_ms: u64,
        /// What is free and what is held.
        counts: RegionCounts,
        /// What it served.
        traffic: Traffic,
    }
}

wire_struct! {
    /// Where a node's regions stand.
    #[derive(Default)]
    RegionCounts {
        /// Ready to be granted.
        free: u32,
        /// Owned by sessions.
        leased: u32,
        /// Owned by names, or sealed on their way there.
        named: u32,
        /// Being wiped.
        cleaning: u32,
        /// Given back to the host, for lack of memory there.
        away: u32,
        /// Locked into RAM.
        locked: u32,
        /// Sessions that hold something here.
        sessions: u32,
    }
}

wire_struct! {
    /// A region that is not free, in a node's inventory.
    OwnedRegion {
        /// Which.
        region: RegionIndex,
        /// Its epoch.
        epoch: Epoch,
        /// Whose.
        owner: RegionOwner,
    }
}

/// Who owns a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionOwner {
    /// A session; it may write.
    Session(SessionId),
    /// Sealed by a session that lives; no name has it yet, as far as the node knows.
    Sealing(SessionId),
    /// Sealed by a session that is gone; no name has it, as far as the node knows.
    Orphan,
    /// A published file.
    Name(FileId),
}

impl Field for RegionOwner {
    const BYTES_MIN: usize = 9;
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, id) = match self {
            RegionOwner::Session(session) => (1u8, session.0),
            RegionOwner::Sealing(session) => (2, session.0),
            RegionOwner::Orphan => (3, 0),
            RegionOwner::Name(file) => (4, file.0),
        };
        kind.put(out);
        id.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let kind = u8::take(from)?;
        let id = u64::take(from)?;
        match kind {
            1 => Ok(RegionOwner::Session(SessionId(id))),
            2 => Ok(RegionOwner::Sealing(SessionId(id))),
            3 if id == 0 => Ok(RegionOwner::Orphan),
            3 => Err(WireError::Reserved { field: "owner of an orphan" }),
            4 => Ok(RegionOwner::Name(FileId(id))),
            found => Err(WireError::Value { what: "the kind of a region's owner", found: found.into() }),
        }
    }
}

wire_struct! {
    /// A node presents itself; its inventory follows at once.
    Offer {
        /// Where it is.
        info: NodeInfo,
        /// Signs and checks tickets for this life of the node.
        ticket_key: [u8; 32],
    }
}

wire_struct! {
    /// The times a node must keep.
    Offered {
        /// The broker's term.
        term: Term,
        /// A lease not renewed for this long expires.
        lease_ttl_ms: u32,
        /// An expired lease keeps its bytes for this long.
        grace_ms: u32,
        /// How often to send an inventory.
        heartbeat_ms: u32,
    }
}

wire_struct! {
    /// Empties a node, or takes it back into use.
    DrainNode {
        /// Which node, by its name.
        node: Name,
        /// Whether it gets no new leases and its holders are asked to leave.
        drain: bool,
        /// Whether its process ends once it holds nothing.
        stop: bool,
    }
}

wire_struct! {
    /// What a tenant holds at one node.
    TenantUse {
        /// Its name.
        tenant: Name,
        /// Regions: leased, sealed or named.
        regions: u32,
    }
}

wire_struct! {
    /// What a node holds.
    Inventory {
        /// Which node.
        node: NodeId,
        /// Which life of it.
        incarnation: Incarnation,
        /// Whether it is being emptied.
        draining: bool,
        /// Counts of regions.
        counts: RegionCounts,
        /// What it served.
        traffic: Traffic,
        /// Redeemed tickets whose time is not over.
        spent: List<TicketId, SPENT_TICKETS_MAX>,
        /// Every region that is not free.
        owned: List<OwnedRegion, NODE_REGIONS_MAX>,
        /// The same by tenant.
        tenants: List<TenantUse, TENANTS_MAX>,
    }
}

wire_struct! {
    /// A sealed region goes to a published file.
    Adoption {
        /// Which region.
        region: RegionIndex,
        /// At which epoch.
        epoch: Epoch,
        /// Its owner from now on.
        file: FileId,
    }
}

wire_struct! {
    /// A region at one epoch.
    RegionAt {
        /// Which region.
        region: RegionIndex,
        /// At which epoch.
        epoch: Epoch,
    }
}

wire_struct! {
    /// The broker's word on an inventory.
    Ruling {
        /// Its term.
        term: Term,
        /// Its clock, against which tickets are timed.
        broker_now_ms: u64,
        /// Sealed regions that a name owns.
        adopt: List<Adoption, NODE_REGIONS_MAX>,
        /// Sealed regions that nobody owns: free them.
        drop: List<RegionAt, NODE_REGIONS_MAX>,
        /// Whether the node is to be emptied: it grants nothing, and asks its holders to leave.
        drain: bool,
        /// Whether its process is to end once it holds nothing.
        stop: bool,
    }
}
