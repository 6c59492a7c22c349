//! Frames: a 40-byte header that can be trusted before the body arrives, and a bounded body.

use crate::codec::WireError;
use crate::ids::TraceId;
use crate::limits::*;
use crate::refusal::{Code, Refusal};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"FPW1";

const FLAG_REPLY: u8 = 1;
const FLAG_BODY_CRC: u8 = 2;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// Kind of a request and its reply.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $value),* }

        impl Opcode {
            /// All opcodes, in wire order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// Returns the opcode with this number on the wire.
            pub fn from_wire(value: u16) -> Result<Opcode, WireError> {
                match value { $($value => Ok(Opcode::$name),)* found => Err(WireError::Opcode { found }) }
            }
        }
    };
}

opcodes! {
    /// First request of every connection: agrees on the version.
    Hello = 1,
    /// Client to broker: begins or resumes a session.
    OpenSession = 16,
    /// Client to broker: the session still lives.
    KeepSession = 17,
    /// Client to broker: the session is over.
    CloseSession = 18,
    /// Client to broker: asks for tickets.
    RequestTickets = 19,
    /// Client to broker: gives sealed extents (ranges of immutable regions) to a name, with one copy of each.
    Publish = 20,
    /// Anybody to broker: asks where the bytes of a name are, for one copy of each.
    OpenName = 21,
    /// Anybody to broker: forgets a name and frees its bytes.
    DropName = 22,
    /// Anybody to broker: gives a file another name.
    RenameName = 23,
    /// Anybody to broker: asks for a page of names.
    ListNames = 24,
    /// Anybody to broker: asks for the state of the pool.
    Status = 25,
    /// Administrator to broker: drains (empties) a node, or uses it again.
    Drain = 26,
    /// Anybody to broker: asks which memory the nodes donate.
    ListMemory = 27,
    /// Client to broker: gives sealed (immutable) regions to a name, with the copies of its runs.
    PublishPlaces = 28,
    /// Anybody to broker: asks where the bytes of a name and their copies are.
    OpenPlaces = 29,
    /// Anybody to broker: asks which published files lack copies.
    ListRepairs = 30,
    /// Client to broker: asks for the recipe of a file, and to make the file again if it is lost.
    ClaimRebuild = 31,
    /// Node to broker: offers its memory.
    Offer = 32,
    /// Node to broker: reports owned regions, the number of other regions in each state, and spent tickets.
    Inventory = 33,
    /// Node to broker: tells which memory it donates.
    OfferMemory = 34,
    /// Node to broker: asks whether it should make copies of published files.
    NextRepair = 35,
    /// Node to broker: reports the copies that it has made.
    EndRepair = 36,
    /// Node to broker: reports its segments, which many small published files share.
    Segments = 37,
    /// Client to broker: publishes parts of a table, ahead of the commit that adds them.
    AddParts = 38,
    /// Client to broker: changes tables, all or none of them.
    CommitTables = 39,
    /// Client to broker: asks for a snapshot of a table, and holds it.
    OpenTable = 40,
    /// Anybody to broker: asks where the bytes of parts of a table are.
    OpenParts = 41,
    /// Client to broker: holds snapshots, and no others.
    HoldSnapshots = 42,
    /// Anybody to broker: asks for the snapshots of a table.
    ListSnapshots = 43,
    /// Client to broker: waits until a name has another file.
    AwaitNames = 44,
    /// Client to node: turns a ticket into leases.
    Lease = 48,
    /// Client to node: asks to map a region (same host only).
    Attach = 49,
    /// Client to node: extends the session's leases.
    Renew = 50,
    /// Client to node: gives regions back, or all of them.
    Release = 51,
    /// Client to node: ends writing to regions.
    Seal = 52,
    /// Anybody to node: asks for the checksums of ranges of an immutable region.
    Checksums = 53,
    /// Client to node: copies ranges of leased regions into segments, where they are immutable.
    SealRanges = 54,
    /// Client to node: reads one range.
    Read = 64,
    /// Client to node: writes one range.
    Write = 65,
    /// Client to node: reads up to `BATCH_OPS_MAX` ranges.
    ReadBatch = 66,
    /// Client to node: writes up to `BATCH_OPS_MAX` ranges.
    WriteBatch = 67,
    /// Client to node: opens a scan, which runs a program over row groups.
    OpenScan = 80,
    /// Client to node: asks for the next chunk of a scan's results.
    NextChunk = 81,
    /// Client to node: takes row groups out of the scan, to process them itself.
    ClaimGroups = 82,
    /// Client to node: ends a scan.
    CloseScan = 83,
    /// Client to node: sends the next bytes of a lookup, the keys or a Bloom filter for semi-joins of scans.
    PutLookup = 84,
    /// Client to node: ends a lookup.
    DropLookup = 85,
    /// Client to node: makes this connection a lane, for calls of functions over a window (range of a file).
    OpenLane = 96,
    /// Client to node, on a lane: asks for the number of a function that the node has.
    UseFunction = 97,
    /// Client to node, on a lane: sends a function, and asks for its number.
    PutFunction = 98,
    /// Client to node, on a lane: tells where the columns of the window's table are.
    PutColumns = 99,
    /// Client to node, on a lane: calls a function.
    CallFunction = 100,
    /// Client to node, on a lane: asks for more of the output.
    NextOutput = 101,
    /// Client to node, on a lane: sends bytes that the running function needs.
    Supply = 102,
    /// Anybody to node: asks which calls of functions run there.
    RunningCalls = 103,
    /// Client to node, and node to node: makes this connection a lane whose calls go on at other nodes by themselves.
    OpenHoppingLane = 104,
}

impl Opcode {
    /// Returns the first protocol version that has the opcode. Peers of older versions end a connection on which it
    /// comes.
    pub fn since(self) -> u8 {
        match self {
            Opcode::ListMemory | Opcode::OfferMemory => VERSION_MEMORY,
            Opcode::PublishPlaces
            | Opcode::OpenPlaces
            | Opcode::ListRepairs
            | Opcode::ClaimRebuild
            | Opcode::NextRepair
            | Opcode::EndRepair
            | Opcode::Checksums
            | Opcode::OpenHoppingLane => VERSION_COPIES,
            Opcode::SealRanges
            | Opcode::Segments
            | Opcode::AddParts
            | Opcode::CommitTables
            | Opcode::OpenTable
            | Opcode::OpenParts
            | Opcode::HoldSnapshots
            | Opcode::ListSnapshots
            | Opcode::AwaitNames => VERSION_SEGMENTS,
            _ => VERSION_MIN,
        }
    }

    /// Reports whether the reply may be delayed until something has changed.
    pub fn may_be_delayed(self) -> bool {
        self == Opcode::AwaitNames
    }
}

/// Frame header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Protocol version of the frame.
    pub version: u8,
    /// True if the frame answers a request.
    pub is_reply: bool,
    /// Kind of the request or of the request answered.
    pub opcode: Opcode,
    /// Number that the asker chooses and the reply repeats. Replies come in the order of requests.
    pub request_id: u64,
    /// Bytes of the body behind the header.
    pub body_bytes: u32,
    /// CRC32C of the body; `None` where the connection itself protects the body.
    pub body_crc: Option<u32>,
    /// Reason of a refused reply. The body is then empty, or the index of the first operation refused in a batch.
    pub refusal: Option<Refusal>,
    /// Query that a request belongs to. Versions before [`VERSION_TRACES`] do not send it.
    pub trace: TraceId,
}

impl Header {
    /// Returns the header of a request with `body`, checksummed.
    pub fn request(opcode: Opcode, request_id: u64, body: &[u8]) -> Header {
        Header {
            version: VERSION_MAX,
            is_reply: false,
            opcode,
            request_id,
            body_bytes: body.len() as u32,
            body_crc: Some(crc32c::crc32c(body)),
            refusal: None,
            trace: TraceId::NONE,
        }
    }

    /// Returns the header of the reply to this request. It is checksummed if the request was: the asker knows whether
    /// the connection protects its bytes by itself. Its version is that of the request: the asker speaks it.
    pub fn reply(&self, body: &[u8], refusal: Option<Refusal>) -> Header {
        Header {
            version: self.version.clamp(VERSION_MIN, VERSION_MAX),
            is_reply: true,
            opcode: self.opcode,
            request_id: self.request_id,
            body_bytes: body.len() as u32,
            body_crc: self.body_crc.map(|_| crc32c::crc32c(body)),
            refusal,
            trace: TraceId::NONE,
        }
    }

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut flags = 0;
        if self.is_reply {
            flags |= FLAG_REPLY;
        }
        if self.body_crc.is_some() {
            flags |= FLAG_BODY_CRC;
        }
        let trace = if self.version < VERSION_TRACES { 0 } else { self.trace.0 };
        let (status, detail) =
            self.refusal.map_or((0, trace), |refusal| (refusal.code as u16, refusal.detail));
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = self.version;
        out[5] = flags;
        out[6..8].copy_from_slice(&(self.opcode as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.request_id.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.body_crc.unwrap_or(0).to_le_bytes());
        out[24..32].copy_from_slice(&detail.to_le_bytes());
        out[32..34].copy_from_slice(&status.to_le_bytes());
        let crc = crc32c::crc32c(&out[..36]);
        out[36..40].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and checks a header. Magic and checksum come before everything else, so that bytes of another protocol
    /// are named as such. The length is checked before anybody allocates for it.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, WireError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let found = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        if crc32c::crc32c(&bytes[..36]) != u32_at(36) {
            return Err(WireError::HeaderChecksum);
        }
        let version = bytes[4];
        let opcode = Opcode::from_wire(u16_at(6));
        // The greeting keeps this layout for ever, so that any two versions can find out which one they share.
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) && opcode != Ok(Opcode::Hello) {
            return Err(WireError::Version { found: version });
        }
        let opcode = opcode?;
        if bytes[5] & !(FLAG_REPLY | FLAG_BODY_CRC) != 0 {
            return Err(WireError::Reserved { field: "flags" });
        }
        if u16_at(34) != 0 {
            return Err(WireError::Reserved { field: "bytes 34 and 35 of the header" });
        }
        let is_reply = bytes[5] & FLAG_REPLY != 0;
        let body_bytes = u32_at(16);
        if body_bytes as usize > FRAME_BODY_BYTES_MAX {
            return Err(WireError::TooMany {
                what: "bytes of a frame body",
                found: body_bytes.into(),
                max: FRAME_BODY_BYTES_MAX as u64,
            });
        }
        let detail = u64_at(24);
        let has_trace = !is_reply && version >= VERSION_TRACES;
        let refusal = match (is_reply, u16_at(32)) {
            (_, 0) if detail == 0 || has_trace => None,
            (_, 0) => return Err(WireError::Reserved { field: "detail without a refusal" }),
            (false, _) => return Err(WireError::Reserved { field: "status of a request" }),
            (true, status) => {
                let code = Code::from_wire(status)
                    .ok_or(WireError::Value { what: "a refusal", found: status.into() })?;
                Some(Refusal::new(code, detail))
            }
        };
        if bytes[5] & FLAG_BODY_CRC == 0 && u32_at(20) != 0 {
            return Err(WireError::Reserved { field: "checksum of an unchecked body" });
        }
        Ok(Header {
            version,
            is_reply,
            opcode,
            request_id: u64_at(8),
            body_bytes,
            body_crc: (bytes[5] & FLAG_BODY_CRC != 0).then(|| u32_at(20)),
            refusal,
            trace: if has_trace { TraceId(detail) } else { TraceId::NONE },
        })
    }

    /// Checks a body that arrived with this header.
    pub fn check_body(&self, body: &[u8]) -> Result<(), WireError> {
        self.check_body_crc(|| crc32c::crc32c(body))
    }

    /// Checks a body whose checksum the caller computes, for example over scattered bytes.
    pub fn check_body_crc(&self, crc: impl FnOnce() -> u32) -> Result<(), WireError> {
        match self.body_crc {
            Some(expected) if crc() != expected => Err(WireError::BodyChecksum),
            _ => Ok(()),
        }
    }
}

/// Appends a whole frame: header, then body.
pub fn append_frame(out: &mut Vec<u8>, header: Header, body: &[u8]) {
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(body);
}
