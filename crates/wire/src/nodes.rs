//! Control messages between nodes and the broker, and the descriptions of nodes in them. [`crate::control`]
//! re-exports them.

use crate::codec::{Cursor, Field, List, Name, Text, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;

wire_struct! {
    /// Description of a node, and how to reach it.
    NodeInfo {
        /// Id of the node.
        node: NodeId,
        /// Name of the node.
        name: Name,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// `host:port` of the node's TCP listener.
        address: Text,
        /// Abstract Unix socket of the node's shared-memory listener; empty: none.
        shm_socket: Text,
        /// Boot id of the node's host. Equal boot ids mean the same host.
        host_boot: u128,
        /// Failure domains of the node, from the widest to the host ([`crate::host_label`]).
        host_label: Name,
        /// Bytes of each of the node's regions.
        region_bytes: u64,
    }
}

wire_struct! {
    /// Counters of a node since its start.
    #[derive(Default)]
    Traffic {
        /// Reads served over the network.
        read_ops: u64,
        /// Bytes of these reads.
        read_bytes: u64,
        /// Writes served over the network.
        write_ops: u64,
        /// Bytes of these writes.
        write_bytes: u64,
        /// Data operations refused.
        refused_ops: u64,
        /// Regions mapped by clients on the node's host, whose traffic does not pass the node.
        mapped_regions: u64,
        /// CPU time that the node's process has spun while it waited, in ns.
        spun_ns: u64,
    }
}

wire_struct! {
    /// Node in the pool's status.
    NodeStatus {
        /// Description of the node.
        info: NodeInfo,
        /// True if the node has reported and has not been silent for too long.
        alive: bool,
        /// True if the node is being emptied.
        draining: bool,
        /// Milliseconds since the broker last heard of the node.
        heard_ms_ago: u64,
        /// Milliseconds since this life (run) of the broker first heard of this life of the node.
        present_ms: u64,
        /// Counts of the node's regions.
        counts: RegionCounts,
        /// Counters of what the node served.
        traffic: Traffic,
    }
}

wire_struct! {
    /// Numbers of a node's regions by state.
    #[derive(Default)]
    RegionCounts {
        /// Regions that can be granted.
        free: u32,
        /// Regions owned by sessions.
        leased: u32,
        /// Regions owned by published files, or sealed (immutable) and not published yet.
        named: u32,
        /// Regions that are being wiped.
        cleaning: u32,
        /// Regions given back to the host, because it needed memory.
        away: u32,
        /// Regions locked into RAM.
        locked: u32,
        /// Number of sessions that lease regions of the node.
        sessions: u32,
    }
}

/// Kind of memory that a node donates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory that its host uses for everything.
    Ordinary,
    /// Huge pages that its host keeps for programs that ask for them.
    HugePages,
    /// Device that its host uses for nothing else.
    Device,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: &'static [MemoryKind] = &[MemoryKind::Ordinary, MemoryKind::HugePages, MemoryKind::Device];
}

impl Field for MemoryKind {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            MemoryKind::Ordinary => 1,
            MemoryKind::HugePages => 2,
            MemoryKind::Device => 3,
        });
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        match u8::take(from)? {
            1 => Ok(MemoryKind::Ordinary),
            2 => Ok(MemoryKind::HugePages),
            3 => Ok(MemoryKind::Device),
            found => Err(WireError::Value { what: "a kind of memory", found: found.into() }),
        }
    }
}

wire_struct! {
    /// Description of the memory that a node donates, by which the node also tells it to the broker.
    NodeMemory {
        /// Node that donates it.
        node: NodeId,
        /// Kind of the memory.
        kind: MemoryKind,
        /// Bytes of a huge page; 0 for other kinds.
        page_bytes: u64,
        /// Number of the NUMA node of its host that it comes from; empty if none was chosen.
        numa_node: List<u32, 1>,
        /// Path of the device; empty for other kinds.
        device: Text,
    }
}

impl std::fmt::Display for NodeMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            MemoryKind::Ordinary => f.write_str("ordinary")?,
            MemoryKind::HugePages if self.page_bytes >= 1 << 30 => {
                write!(f, "huge pages of {} GiB", self.page_bytes >> 30)?;
            }
            MemoryKind::HugePages => write!(f, "huge pages of {} MiB", self.page_bytes >> 20)?,
            MemoryKind::Device => write!(f, "{}", self.device)?,
        }
        self.numa_node.iter().try_for_each(|node| write!(f, ", NUMA node {node}"))
    }
}

wire_struct! {
    /// Answer to `ListMemory`: the memory of the nodes that told it.
    MemoryListed {
        /// Descriptions, by node.
        nodes: List<NodeMemory, NODES_MAX>,
    }
}

wire_struct! {
    /// Region with an owner, in a node's report.
    OwnedRegion {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// Owner of the region.
        owner: RegionOwner,
    }
}

/// Owner of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionOwner {
    /// Session that leases the region and may write.
    Session(SessionId),
    /// Live session that sealed the region (made it immutable). No published file owns it yet, as far as the node
    /// knows. Session 0 is the node itself, which makes copies of a published file.
    Sealing(SessionId),
    /// Nobody: the session that sealed it is gone, and no published file owns it, as far as the node knows.
    Orphan,
    /// Published file.
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
    /// Request by which a node presents itself. Its inventory (report) follows at once.
    Offer {
        /// Description of the node.
        info: NodeInfo,
        /// Key that signs and checks tickets for this life (run of the process) of the node.
        ticket_key: [u8; 32],
    }
}

wire_struct! {
    /// Answer to `Offer`: the times that a node must keep.
    Offered {
        /// Term of the broker: number of its life, which only grows.
        term: Term,
        /// Time without a renewal after which a lease expires, in ms.
        lease_ttl_ms: u32,
        /// Time for which an expired lease keeps its bytes, in ms.
        grace_ms: u32,
        /// Interval between two inventories (reports), in ms.
        heartbeat_ms: u32,
    }
}

wire_struct! {
    /// Request to drain (empty) a node, or to use it again.
    DrainNode {
        /// Name of the node.
        node: Name,
        /// True if the node grants nothing more and asks its holders to leave.
        drain: bool,
        /// True if the node's process ends once it holds nothing.
        stop: bool,
    }
}

wire_struct! {
    /// Regions of one node that a tenant holds.
    TenantUse {
        /// Name of the tenant.
        tenant: Name,
        /// Number of its regions: leased, sealed (immutable) or owned by its published files.
        regions: u32,
    }
}

wire_struct! {
    /// Request by which a node reports what it holds.
    Inventory {
        /// Node that reports.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// True if the node is being emptied.
        draining: bool,
        /// Counts of the node's regions.
        counts: RegionCounts,
        /// Counters of what the node served.
        traffic: Traffic,
        /// Redeemed tickets whose time is not over.
        spent: List<TicketId, SPENT_TICKETS_MAX>,
        /// Regions that have an owner.
        owned: List<OwnedRegion, NODE_REGIONS_MAX>,
        /// Numbers of these regions by tenant.
        tenants: List<TenantUse, TENANTS_MAX>,
    }
}

wire_struct! {
    /// Order that a sealed region belongs to a published file.
    Adoption {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// File that owns it from now on.
        file: FileId,
    }
}

wire_struct! {
    /// Region at one epoch (value of the region's fencing counter).
    RegionAt {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
    }
}

wire_struct! {
    /// Answer to `Inventory`: the broker's decisions.
    Ruling {
        /// Term of the broker: number of its life, which only grows.
        term: Term,
        /// Broker's clock, by which tickets are timed, in ms.
        broker_now_ms: u64,
        /// Sealed regions that a published file owns.
        adopt: List<Adoption, NODE_REGIONS_MAX>,
        /// Sealed regions that nobody owns, which the node frees.
        drop: List<RegionAt, NODE_REGIONS_MAX>,
        /// True if the node should drain: grant nothing, and ask its holders to leave.
        drain: bool,
        /// True if the node's process should end once it holds nothing.
        stop: bool,
    }
}
