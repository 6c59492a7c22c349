//! The frame: a 40-byte header that can be trusted before the body arrives, and a bounded body.

use crate::codec::WireError;
use crate::limits::*;
use crate::refusal::{Code, Refusal};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"FPW1";

const FLAG_REPLY: u8 = 1;
const FLAG_BODY_CRC: u8 = 2;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// What a frame asks for or answers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $value),* }

        impl Opcode {
            /// Every opcode, in wire order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// The opcode with this number on the wire.
            pub fn from_wire(value: u16) -> Result<Opcode, WireError> {
                match value { $($value => Ok(Opcode::$name),)* found => Err(WireError::Opcode { found }) }
            }
        }
    };
}

opcodes! {
    /// Opens a connection and settles the version.
    Hello = 1,
    /// Client to broker: begin or resume a session.
    OpenSession = 16,
    /// Client to broker: the session still lives.
    KeepSession = 17,
    /// Client to broker: the session is over.
    CloseSession = 18,
    /// Client to broker: promise me bytes.
    RequestTickets = 19,
    /// Client to broker: give sealed extents to a name.
    Publish = 20,
    /// Anybody to broker: where are the bytes of this name.
    OpenName = 21,
    /// Anybody to broker: forget this name and free its bytes.
    DropName = 22,
    /// Anybody to broker: call this file something else.
    RenameName = 23,
    /// Anybody to broker: a page of names.
    ListNames = 24,
    /// Anybody to broker: the pool at a glance.
    Status = 25,
    /// Administrator to broker: empty this node, or use it again.
    Drain = 26,
    /// Node to broker: here I am, with this memory.
    Offer = 32,
    /// Node to broker: this is held, this is free, these tickets are spent.
    Inventory = 33,
    /// Client to node: make leases of this ticket.
    Lease = 48,
    /// Client to node: let me map this region (same host only).
    Attach = 49,
    /// Client to node: my session lives, extend its leases.
    Renew = 50,
    /// Client to node: take these regions, or all, back.
    Release = 51,
    /// Client to node: no more writes to these regions.
    Seal = 52,
    /// Read one range.
    Read = 64,
    /// Write one range.
    Write = 65,
    /// Read up to `BATCH_OPS_MAX` ranges.
    ReadBatch = 66,
    /// Write up to `BATCH_OPS_MAX` ranges.
    WriteBatch = 67,
    /// Client to node: run this program over these row groups.
    OpenScan = 80,
    /// Client to node: what has left the scan, or will next.
    NextChunk = 81,
    /// Client to node: these row groups of the scan are mine.
    ClaimGroups = 82,
    /// Client to node: the scan is not wanted any more.
    CloseScan = 83,
    /// Client to node: a part of what semi-joins of scans look up in.
    PutLookup = 84,
    /// Client to node: the lookup is not wanted any more.
    DropLookup = 85,
    /// Client to node: from now on this connection is for calls of functions over this window.
    OpenLane = 96,
    /// On a lane: a number for this function.
    UseFunction = 97,
    /// On a lane: this function, and a number for it.
    PutFunction = 98,
    /// On a lane: where the columns of the window's table are.
    PutColumns = 99,
    /// On a lane: run this function.
    CallFunction = 100,
    /// On a lane: more of the output.
    NextOutput = 101,
    /// On a lane: bytes that the running function wants.
    Supply = 102,
    /// Anybody to node: which calls of functions run there.
    RunningCalls = 103,
}

/// A decoded frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Protocol version of the frame.
    pub version: u8,
    /// Whether this answers a request.
    pub is_reply: bool,
    /// What is asked or answered.
    pub opcode: Opcode,
    /// Chosen by the asker, echoed in the reply. Replies come in the order of requests.
    pub request_id: u64,
    /// Bytes of body behind the header.
    pub body_bytes: u32,
    /// CRC32C of the body, where the connection itself does not protect it.
    pub body_crc: Option<u32>,
    /// In a reply: why the request was refused. The body is then empty, or the table of a refused batch.
    pub refusal: Option<Refusal>,
}

impl Header {
    /// A request header for `body`, checksummed.
    pub fn request(opcode: Opcode, request_id: u64, body: &[u8]) -> Header {
        Header {
            version: VERSION_MAX,
            is_reply: false,
            opcode,
            request_id,
            body_bytes: body.len() as u32,
            body_crc: Some(crc32c::crc32c(body)),
            refusal: None,
        }
    }

    /// The header of the reply to this request, checksummed if the request was: the asker knows whether the
    /// connection protects its bytes by itself.
    pub fn reply(&self, body: &[u8], refusal: Option<Refusal>) -> Header {
        Header {
            version: VERSION_MAX,
            is_reply: true,
            opcode: self.opcode,
            request_id: self.request_id,
            body_bytes: body.len() as u32,
            body_crc: self.body_crc.map(|_| crc32c::crc32c(body)),
            refusal,
        }
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut flags = 0;
        if self.is_reply {
            flags |= FLAG_REPLY;
        }
        if self.body_crc.is_some() {
            flags |= FLAG_BODY_CRC;
        }
        let (status, detail) = self.refusal.map_or((0, 0), |refusal| (refusal.code as u16, refusal.detail));
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

    /// Reads and checks a header. Magic and checksum come before everything else, so that a stream of
    /// something else is named as such; the length is bounded before anybody allocates for it.
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
        // The greeting keeps this layout for ever, so that any two versions can find out what they share.
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
        let refusal = match (is_reply, u16_at(32)) {
            (_, 0) if u64_at(24) == 0 => None,
            (_, 0) => return Err(WireError::Reserved { field: "detail without a refusal" }),
            (false, _) => return Err(WireError::Reserved { field: "status of a request" }),
            (true, status) => {
                let code = Code::from_wire(status)
                    .ok_or(WireError::Value { what: "a refusal", found: status.into() })?;
                Some(Refusal::new(code, u64_at(24)))
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
        })
    }

    /// Checks a body that arrived under this header.
    pub fn check_body(&self, body: &[u8]) -> Result<(), WireError> {
        self.check_body_crc(|| crc32c::crc32c(body))
    }

    /// Checks a body whose checksum is made elsewhere (its bytes may be scattered).
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
