//! Control messages. Fields stand in wire order; `spec/wire.md` describes them without Rust.

pub use crate::catalog::*;
use crate::codec::{Cursor, Field, List, Name, WireError, wire_struct};
use crate::frame::Opcode;
pub use crate::function::*;
use crate::ids::*;
use crate::limits::*;
pub use crate::nodes::*;
pub use crate::repair::*;
pub use crate::scan::*;
pub use crate::segments::*;
pub use crate::snapshots::*;

wire_struct! {
    /// First message on a connection. Its form never changes.
    Hello {
        /// Oldest version that the sender speaks.
        version_min: u8,
        /// Newest version that the sender speaks.
        version_max: u8,
        /// Client that this connection and others belong to. A node divides its time among clients. 0: the connection
        /// is a client by itself.
        client: ClientId,
    }
}

wire_struct! {
    /// Answer to `Hello`: the version that both use from now on.
    Welcome {
        /// Version that the answering side has chosen.
        version: u8,
    }
}

wire_struct! {
    /// Request to begin a session, or to resume one after the broker restarted.
    OpenSession {
        /// Session to resume; 0 begins a new one.
        resume: SessionId,
        /// Secret of the session to resume; 0 for a new one.
        secret: Secret,
        /// Name that the client gives itself in listings.
        label: Name,
    }
}

wire_struct! {
    /// Answer to `OpenSession`: the session and its times.
    SessionOpened {
        /// Id of the session.
        session: SessionId,
        /// Secret that proves the session, to broker and nodes.
        secret: Secret,
        /// Tenant of the session: that of the connection's certificate, or [`crate::TENANT_LOCAL`].
        tenant: Name,
        /// Term of the broker: number of its life, which only grows.
        term: Term,
        /// Time without a renewal after which a lease expires, in ms.
        lease_ttl_ms: u32,
        /// Time for which an expired lease keeps its bytes, unusable until it is renewed, in ms.
        grace_ms: u32,
        /// Number of failure domains (host labels) with a node that may grant leases now.
        hosts: u32,
    }
}

wire_struct! {
    /// Answer to `KeepSession`: the session lives on.
    SessionKept {
        /// Number of failure domains (host labels) with a node that may grant leases now.
        hosts: u32,
    }
}

wire_struct! {
    /// Session and its proof.
    SessionProof {
        /// Id of the session.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
    }
}

wire_struct! {
    /// Request for promises of memory. All of it is promised, or nothing.
    RequestTickets {
        /// Session that asks.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Bytes wanted at least. Whole regions are promised.
        bytes: u64,
        /// File class that the memory is for.
        class: FileClass,
        /// Boot id of the client's host, whose nodes are reached by shared memory; 0: unknown.
        near: u128,
        /// Incarnations not to use. A node that has restarted since may be used again.
        avoid: List<Incarnation, NODES_MAX>,
        /// Failure domains not to use, because other copies lie there: host labels, or what stands before one of their
        /// slashes.
        apart: List<Name, APART_MAX>,
    }
}

wire_struct! {
    /// Signed promise, for a limited time, of regions on one life (run of the process) of a node to one session.
    Ticket {
        /// Id of the ticket. No other ticket of the term has it.
        id: TicketId,
        /// Term of the broker that signed the ticket.
        term: Term,
        /// Session that may redeem the ticket.
        session: SessionId,
        /// First 16 bytes of the SHA-256 of the session's secret.
        secret_digest: u128,
        /// Node that redeems the ticket.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// Number of regions promised.
        region_count: u32,
        /// File class that the regions are for.
        class: FileClass,
        /// Tenant of the session.
        tenant: Name,
        /// Last time at which the ticket is good, in ms of the broker's clock.
        not_after_ms: u64,
        /// HMAC-SHA-256 of all the fields before, under the node's ticket key.
        mac: [u8; 32],
    }
}

wire_struct! {
    /// Ticket and the node to take it to.
    TicketOffer {
        /// Ticket to redeem.
        ticket: Ticket,
        /// Node that redeems it.
        node: NodeInfo,
    }
}

wire_struct! {
    /// Answer to `RequestTickets`: the promises.
    Tickets {
        /// Tickets that together cover the bytes asked for.
        tickets: List<TicketOffer, TICKETS_MAX>,
    }
}

wire_struct! {
    /// Tenant in the pool's status.
    TenantStatus {
        /// Name of the tenant.
        tenant: Name,
        /// Bytes of the regions that it holds: leased, sealed (immutable) or owned by its published files.
        held_bytes: u64,
        /// Bytes promised to it by tickets not redeemed yet.
        promised_bytes: u64,
        /// Most bytes that it may hold; 0: no limit.
        quota_bytes: u64,
    }
}

wire_struct! {
    /// Answer to `Status`: the state of the pool.
    StatusReport {
        /// Term of the broker: number of its life, which only grows.
        term: Term,
        /// Number of sessions that have not been silent for too long.
        sessions: u32,
        /// Number of published files.
        files: u64,
        /// Bytes of these files.
        file_bytes: u64,
        /// Number of tickets granted and not yet redeemed.
        tickets_open: u32,
        /// Nodes of the pool.
        nodes: List<NodeStatus, NODES_MAX>,
        /// Tenants that hold something or have a quota.
        tenants: List<TenantStatus, TENANTS_MAX>,
    }
}

wire_struct! {
    /// Request to redeem a ticket.
    Lease {
        /// Ticket to redeem.
        ticket: Ticket,
        /// True if the client is on the node's host and will map the regions.
        shared: bool,
    }
}

wire_struct! {
    /// Leased or sealed (immutable) region.
    Grant {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch (fencing counter) of the region under this lease or seal.
        epoch: Epoch,
        /// Right to the region: to read and write if leased, to read if sealed.
        handle: Handle,
    }
}

wire_struct! {
    /// Answer to `Lease`: the leases made of a ticket.
    Leased {
        /// Time within which to renew, in ms.
        lease_ttl_ms: u32,
        /// Grants, one for each region promised.
        grants: List<Grant, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Request for the file descriptors of a region and of the fence words, which show which regions may still be used.
    Attach {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// Right to the region. Only a write handle permits a writable mapping.
        handle: Handle,
    }
}

wire_struct! {
    /// Answer to `Attach`. Two descriptors come with it: the region, then the fence words (read-only).
    Attached {
        /// Bytes of the region.
        region_bytes: u64,
        /// Offset of the region's fence word in the second descriptor, in bytes.
        word_offset: u64,
        /// Bytes of the second descriptor.
        words_bytes: u64,
    }
}

wire_struct! {
    /// Answer to `Renew`: the session's leases on this node live on.
    Renewed {
        /// Time within which to renew next, in ms.
        lease_ttl_ms: u32,
        /// Number of regions that the session leases on this node.
        regions: u32,
        /// True if the client should move its bytes to other nodes.
        draining: bool,
    }
}

wire_struct! {
    /// Request to give regions back.
    Release {
        /// Session that holds the regions.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// True if everything that the session holds on this node goes, whatever the list says.
        whole: bool,
        /// Regions to give back, if `whole` is false.
        regions: List<RegionAt, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Answer to `Release`.
    Released {
        /// Number of regions that were this session's and are not any more.
        regions: u32,
    }
}

wire_struct! {
    /// Request to end writing to regions, for ever.
    Seal {
        /// Session that holds the regions.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Regions to seal.
        regions: List<RegionAt, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Answer to `Seal`: the sealed regions at their new epochs, in the order asked.
    Sealed {
        /// Grants with read handles, one for each region.
        regions: List<Grant, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Message without content: a request that needs no fields, or an answer that says only that it is done.
    Done {}
}

macro_rules! messages {
    ($($opcode:ident($request:ident) -> $reply:ident),* $(,)?) => {
        /// Control request.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Request { $($opcode($request)),* }

        /// Answer to the control request of the same name.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Reply { $($opcode($reply)),* }

        impl Request {
            /// Returns the opcode of the request's frame.
            pub fn opcode(&self) -> Opcode {
                match self { $(Request::$opcode(_) => Opcode::$opcode),* }
            }
            /// Appends the body of the request.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Request::$opcode(message) => message.put(out)),* }
            }
            /// Reads the body of a request. A data opcode is an error.
            pub fn decode(opcode: Opcode, body: &[u8]) -> Result<Request, WireError> {
                let mut from = Cursor::new(body);
                let request = match opcode {
                    $(Opcode::$opcode => Request::$opcode(Field::take(&mut from)?),)*
                    data => return Err(WireError::Opcode { found: data as u16 }),
                };
                from.finish()?;
                Ok(request)
            }
        }

        impl Reply {
            /// Returns the opcode of the reply's frame.
            pub fn opcode(&self) -> Opcode {
                match self { $(Reply::$opcode(_) => Opcode::$opcode),* }
            }
            /// Appends the body of the reply.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Reply::$opcode(message) => message.put(out)),* }
            }
            /// Reads the body of a reply. A data opcode is an error.
            pub fn decode(opcode: Opcode, body: &[u8]) -> Result<Reply, WireError> {
                let mut from = Cursor::new(body);
                let reply = match opcode {
                    $(Opcode::$opcode => Reply::$opcode(Field::take(&mut from)?),)*
                    data => return Err(WireError::Opcode { found: data as u16 }),
                };
                from.finish()?;
                Ok(reply)
            }
        }
    };
}

messages! {
    Hello(Hello) -> Welcome,
    OpenSession(OpenSession) -> SessionOpened,
    KeepSession(SessionProof) -> SessionKept,
    CloseSession(SessionProof) -> Done,
    RequestTickets(RequestTickets) -> Tickets,
    Publish(Publish) -> Published,
    OpenName(ByName) -> Opened,
    DropName(ByName) -> Done,
    RenameName(Rename) -> Done,
    ListNames(ListNames) -> Names,
    Status(Done) -> StatusReport,
    Drain(DrainNode) -> Done,
    ListMemory(Done) -> MemoryListed,
    PublishPlaces(PublishPlaces) -> Published,
    OpenPlaces(ByName) -> PlacesOpened,
    ListRepairs(Done) -> RepairsListed,
    ClaimRebuild(ClaimRebuild) -> RebuildClaimed,
    Offer(Offer) -> Offered,
    Inventory(Inventory) -> Ruling,
    OfferMemory(NodeMemory) -> Done,
    NextRepair(NextRepair) -> RepairGiven,
    EndRepair(EndRepair) -> RepairEnded,
    Segments(SegmentReport) -> SegmentRuling,
    AddParts(AddParts) -> Done,
    CommitTables(CommitTables) -> TablesCommitted,
    OpenTable(OpenTable) -> TableOpened,
    OpenParts(OpenParts) -> PartsOpened,
    HoldSnapshots(HoldSnapshots) -> SnapshotsHeld,
    ListSnapshots(ListSnapshots) -> SnapshotsListed,
    AwaitNames(AwaitNames) -> NamesAwaited,
    Lease(Lease) -> Leased,
    Attach(Attach) -> Attached,
    Renew(SessionProof) -> Renewed,
    Release(Release) -> Released,
    Seal(Seal) -> Sealed,
    Checksums(Checksums) -> ChecksumsTaken,
    SealRanges(SealRanges) -> RangesSealed,
    OpenScan(OpenScan) -> ScanOpened,
    NextChunk(ScanId) -> Chunk,
    ClaimGroups(ClaimGroups) -> Claimed,
    CloseScan(ScanId) -> Done,
    PutLookup(PutLookup) -> LookupPut,
    DropLookup(LookupId) -> Done,
    OpenLane(OpenLane) -> LaneOpened,
    UseFunction(UseFunction) -> FunctionUsed,
    PutFunction(PutFunction) -> FunctionUsed,
    PutColumns(PutColumns) -> Done,
    CallFunction(CallFunction) -> Called,
    NextOutput(NextOutput) -> OutputPiece,
    Supply(Supply) -> Called,
    RunningCalls(Done) -> RunningCalls,
    OpenHoppingLane(OpenHoppingLane) -> LaneOpened,
}
