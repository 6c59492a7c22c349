//! Control messages. Fields stand in wire order; `spec/wire.md` says the same without Rust.

pub use crate::catalog::*;
use crate::codec::{Cursor, Field, List, Name, WireError, wire_struct};
use crate::frame::Opcode;
pub use crate::function::*;
use crate::ids::*;
use crate::limits::*;
pub use crate::nodes::*;
pub use crate::scan::*;

wire_struct! {
    /// First message on a connection, in a form that never changes.
    Hello {
        /// Oldest version the asker speaks.
        version_min: u8,
        /// Newest version the asker speaks.
        version_max: u8,
        /// Whom this connection and others are for. A node shares its time between clients; 0: the connection is
        /// a client by itself.
        client: ClientId,
    }
}

wire_struct! {
    /// The version both will use from now on.
    Welcome {
        /// Chosen by the answering side.
        version: u8,
    }
}

wire_struct! {
    /// Begins a session, or resumes one after a broker restart.
    OpenSession {
        /// The session to resume; 0 begins a new one.
        resume: SessionId,
        /// The secret of the session to resume; 0 for a new one.
        secret: Secret,
        /// What the client calls itself in listings.
        label: Name,
    }
}

wire_struct! {
    /// The session, and the times it lives by.
    SessionOpened {
        /// Its id.
        session: SessionId,
        /// Proves it, to broker and nodes.
        secret: Secret,
        /// For whom it is: who connected, by its certificate, or [`crate::TENANT_LOCAL`].
        tenant: Name,
        /// The broker's term.
        term: Term,
        /// A lease not renewed for this long expires.
        lease_ttl_ms: u32,
        /// An expired lease keeps its bytes for this long, unusable until renewed.
        grace_ms: u32,
        /// Failure domains (host labels) with a node that may grant leases now.
        hosts: u32,
    }
}

wire_struct! {
    /// The session lives on.
    SessionKept {
        /// Failure domains (host labels) with a node that may grant leases now.
        hosts: u32,
    }
}

wire_struct! {
    /// A session and its proof.
    SessionProof {
        /// Which session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
    }
}

wire_struct! {
    /// Asks for promises of memory, all of it or nothing.
    RequestTickets {
        /// Which session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// Bytes wanted, at least; whole regions are promised.
        bytes: u64,
        /// What they are for.
        class: FileClass,
        /// The client's host (boot id): nodes there are reached by shared memory. 0: unknown.
        near: u128,
        /// Lives of nodes not to use (a node that has restarted may be used again).
        avoid: List<Incarnation, NODES_MAX>,
        /// Failure domains (host labels) not to use: the copy of a mirror must lie on another one.
        apart: List<Name, APART_MAX>,
    }
}

wire_struct! {
    /// A signed, timed promise of so many regions on this life of this node to this session.
    Ticket {
        /// Never repeated within a term.
        id: TicketId,
        /// The term of the broker that signed it.
        term: Term,
        /// Who may redeem it.
        session: SessionId,
        /// First 16 bytes of the SHA-256 of the session's secret.
        secret_digest: u128,
        /// Where.
        node: NodeId,
        /// In which life of the node.
        incarnation: Incarnation,
        /// How many regions.
        region_count: u32,
        /// For what.
        class: FileClass,
        /// The session's tenant.
        tenant: Name,
        /// Until when, in milliseconds of the broker's clock.
        not_after_ms: u64,
        /// HMAC-SHA-256 of all the fields before, under the node's ticket key.
        mac: [u8; 32],
    }
}

wire_struct! {
    /// A ticket and the node to take it to.
    TicketOffer {
        /// The promise.
        ticket: Ticket,
        /// Where to redeem it.
        node: NodeInfo,
    }
}

wire_struct! {
    /// The promises.
    Tickets {
        /// Together they cover the bytes asked for.
        tickets: List<TicketOffer, TICKETS_MAX>,
    }
}

wire_struct! {
    /// A tenant in the pool's status.
    TenantStatus {
        /// Its name.
        tenant: Name,
        /// Bytes of regions it holds: leased, sealed or named.
        held_bytes: u64,
        /// Bytes promised to it by tickets not redeemed yet.
        promised_bytes: u64,
        /// The most it may hold; 0: no limit.
        quota_bytes: u64,
    }
}

wire_struct! {
    /// The pool at a glance.
    StatusReport {
        /// The broker's term.
        term: Term,
        /// Sessions heard of within their time.
        sessions: u32,
        /// Published files.
        files: u64,
        /// Their bytes.
        file_bytes: u64,
        /// Tickets granted and not yet redeemed.
        tickets_open: u32,
        /// The nodes.
        nodes: List<NodeStatus, NODES_MAX>,
        /// The tenants that hold something or have a quota.
        tenants: List<TenantStatus, TENANTS_MAX>,
    }
}

wire_struct! {
    /// Redeems a ticket.
    Lease {
        /// The promise.
        ticket: Ticket,
        /// Whether the client is on this host and will map the regions.
        shared: bool,
    }
}

wire_struct! {
    /// One leased region.
    Grant {
        /// Which.
        region: RegionIndex,
        /// Its epoch under this lease.
        epoch: Epoch,
        /// The right to read and write it.
        handle: Handle,
    }
}

wire_struct! {
    /// The leases made of a ticket.
    Leased {
        /// Renew within this time.
        lease_ttl_ms: u32,
        /// One for each region promised.
        grants: List<Grant, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Asks for the file descriptors of a region and of the page of fence words.
    Attach {
        /// Which region.
        region: RegionIndex,
        /// Its epoch.
        epoch: Epoch,
        /// A right to it; with a write handle the mapping may be written.
        handle: Handle,
    }
}

wire_struct! {
    /// Two descriptors come with this: the region, then the fence words (read-only).
    Attached {
        /// Bytes of the region.
        region_bytes: u64,
        /// Where the region's fence word lies in the second descriptor.
        word_offset: u64,
        /// Bytes of the second descriptor.
        words_bytes: u64,
    }
}

wire_struct! {
    /// The session's leases here live on.
    Renewed {
        /// Renew again within this time.
        lease_ttl_ms: u32,
        /// Regions it holds here.
        regions: u32,
        /// Whether the node is being emptied: move what lies here.
        draining: bool,
    }
}

wire_struct! {
    /// Gives regions back.
    Release {
        /// Which session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// Whether everything it holds here goes, whatever the list says.
        whole: bool,
        /// Regions that go.
        regions: List<RegionAt, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// What was given back.
    Released {
        /// Regions that were this session's and are not any more.
        regions: u32,
    }
}

wire_struct! {
    /// Ends writing to regions, for ever.
    Seal {
        /// Which session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// Regions to seal.
        regions: List<RegionAt, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// The sealed regions at their new epochs, in the order asked; the handles read.
    Sealed {
        /// One for each region.
        regions: List<Grant, LEASE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Done; nothing more to say.
    Done {}
}

macro_rules! messages {
    ($($opcode:ident($request:ident) -> $reply:ident),* $(,)?) => {
        /// A control request.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Request { $($opcode($request)),* }

        /// The answer to the control request of the same name.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Reply { $($opcode($reply)),* }

        impl Request {
            /// The opcode of its frame.
            pub fn opcode(&self) -> Opcode {
                match self { $(Request::$opcode(_) => Opcode::$opcode),* }
            }
            /// Appends its body.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Request::$opcode(message) => message.put(out)),* }
            }
            /// Reads a body; data opcodes are not control messages.
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
            /// The opcode of its frame.
            pub fn opcode(&self) -> Opcode {
                match self { $(Reply::$opcode(_) => Opcode::$opcode),* }
            }
            /// Appends its body.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Reply::$opcode(message) => message.put(out)),* }
            }
            /// Reads a body; data opcodes are not control messages.
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
    Offer(Offer) -> Offered,
    Inventory(Inventory) -> Ruling,
    Lease(Lease) -> Leased,
    Attach(Attach) -> Attached,
    Renew(SessionProof) -> Renewed,
    Release(Release) -> Released,
    Seal(Seal) -> Sealed,
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
}
