//! The answering side: what a service must offer, and how one frame becomes one reply. No socket here; the
//! same code answers over tcp, over the shared-memory socket and in the simulator.

use crate::lane::Successor;
use crate::outgoing::Outgoing;
use crate::passage::Passage;
use crate::shm::Mapped;
use crate::tls::Identity;
use farpool_wire::control::{Attach, Attached, LaneOpened, OpenLane, Welcome};
use farpool_wire::data::{Operations, Span, decode_read, decode_write, decode_write_table};
use farpool_wire::frame::Header;
use farpool_wire::limits::*;
use farpool_wire::{ClientId, Code, Opcode, Payload, Refusal, Reply, Request, WireError};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Connections that this process has ever answered.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Who is asking, as far as the connection proves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// A number that no other connection of this process has; 0 for a peer that came over none.
    pub connection: u64,
    /// On this host, under the same user: reached by a Unix socket that checked both.
    pub is_local: bool,
    /// Who it is, by its certificate; nothing on connections without TLS.
    pub identity: Option<Identity>,
    /// Whom it says it is for; 0 before it has greeted. Proves nothing.
    pub client: ClientId,
}

/// A shared region and the node's fence words, for a local peer.
#[derive(Debug)]
pub struct Shared {
    /// What to map.
    pub memory: Mappable,
    /// Where the region's word is.
    pub attached: Attached,
}

/// Memory that a local peer may map.
#[derive(Debug)]
pub enum Mappable {
    /// Descriptors, which travel beside the reply.
    Files {
        /// The region; opened without write access for a read handle.
        region: OwnedFd,
        /// The node's fence words; cannot be mapped writable.
        words: OwnedFd,
    },
    /// Memory of the simulator, where both sides are in one process. No socket carries it.
    Simulated(Mapped),
}

/// What an operation wants to do with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Copy out. A write handle may, a read handle may.
    Read,
    /// Copy in. Only a write handle may.
    Write,
}

/// Which of several ranges was refused, and why.
pub type RefusedAt = (usize, Refusal);

/// What a node or broker does for its peers. Called from many threads at once. What is not implemented is not
/// supported.
pub trait Service: Send + Sync + 'static {
    /// Answers a control request.
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal>;
    /// Copies the range into the buffer, which is exactly as long.
    fn read(&self, _span: &Span, _into: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Read as u64))
    }
    /// Copies the bytes, exactly as many as the range, into it.
    fn write(&self, _span: &Span, _from: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Write as u64))
    }
    /// Whether this may be done with all of these ranges; if not, which of them, and why.
    fn admits(&self, _spans: &[Span], _intent: Intent) -> Result<(), RefusedAt> {
        Err((0, Refusal::new(Code::Unsupported, 0)))
    }
    /// Sends `head`, and behind it what the ranges hold after their first `skip` bytes, straight from memory to
    /// a socket, by one call that does not wait. Returns the bytes sent, those of `head` included: seldom all.
    /// If a range is refused that the call would have come to, nothing is sent.
    fn send(
        &self,
        _socket: BorrowedFd<'_>,
        _head: &[u8],
        _spans: &[Span],
        _skip: u64,
    ) -> Result<io::Result<usize>, RefusedAt> {
        Err((0, Refusal::new(Code::Unsupported, 0)))
    }
    /// Receives what belongs in the ranges behind their first `skip` bytes, straight from a socket to memory, by
    /// one call that does not wait. Returns the bytes received: seldom all; 0 at the end of the connection.
    fn receive(
        &self,
        _socket: BorrowedFd<'_>,
        _spans: &[Span],
        _skip: u64,
    ) -> Result<io::Result<usize>, RefusedAt> {
        Err((0, Refusal::new(Code::Unsupported, 0)))
    }
    /// Hands out a region to a local peer.
    fn share(&self, _attach: &Attach) -> Result<Shared, Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Attach as u64))
    }
    /// Makes a connection one on which functions are called: what it is told, and who goes on with it from then on.
    fn open_lane(&self, _peer: &Peer, _open: OpenLane) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::OpenLane as u64))
    }
    /// A connection has ended; its number is not seen again.
    fn ended(&self, _peer: &Peer) {}
    /// What a connection passes whenever it moves data, until it ends. Asked for once it has greeted. Nothing:
    /// data moves as it comes.
    fn passage(&self, _peer: &Peer) -> Option<Box<dyn Passage>> {
        None
    }
}

/// The conversation so far, as much of it as the next frame's answer depends on.
#[derive(Debug)]
pub struct Conversation {
    peer: Peer,
    greeted: bool,
    spans: Vec<Span>,
    /// A control reply's body, reused.
    body: Vec<u8>,
    /// Bytes that were read for the last answer, and those that are sent behind it.
    worked: u64,
    /// Nanoseconds for which the peer did not take what was sent, or did not ask; told with the next chunk.
    waited_ns: u64,
}

/// What to do after a frame.
pub enum Next {
    /// Go on.
    Continue,
    /// Send what is to be sent, behind it these bytes, which are much, and go on.
    Bytes(Payload<CHUNK_BYTES_MAX>),
    /// Send what is to be sent, this memory with its last frame, and go on.
    Memory(Box<Mappable>),
    /// Send what is to be sent, and let somebody else go on.
    HandOver(Box<dyn Successor>),
    /// Send what is to be sent and hang up.
    HangUp,
}

impl Conversation {
    /// Begins with a peer that has not said hello, and numbers its connection.
    pub fn new(peer: Peer) -> Self {
        // They are only compared with each other.
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1;
        Conversation {
            peer: Peer { connection, ..peer },
            greeted: false,
            spans: Vec::new(),
            body: Vec::new(),
            worked: 0,
            waited_ns: 0,
        }
    }

    /// The peer was waited for so long.
    pub(crate) fn note_waited(&mut self, waited_ns: u64) {
        self.waited_ns += waited_ns;
    }

    /// Bytes that were read for the last answer, and those that are sent behind it.
    pub(crate) fn worked(&self) -> u64 {
        self.worked
    }

    /// Who is asking; nobody before the greeting.
    pub(crate) fn greeted_peer(&self) -> Option<&Peer> {
        self.greeted.then_some(&self.peer)
    }

    /// Answers a frame; the reply is appended to `out`.
    pub fn answer(
        &mut self,
        service: &dyn Service,
        header: &Header,
        body: &[u8],
        out: &mut Outgoing,
    ) -> Next {
        if header.is_reply || header.check_body(body).is_err() {
            reject(WireError::BodyChecksum, out);
            return Next::HangUp;
        }
        if !self.greeted && header.opcode != Opcode::Hello {
            refuse(header, Refusal::new(Code::Malformed, header.opcode as u64), out);
            return Next::HangUp;
        }
        match header.opcode {
            Opcode::Read | Opcode::ReadBatch => self.answer_read(service, header, body, out),
            Opcode::Write | Opcode::WriteBatch => self.answer_write(service, header, body, out),
            _ => self.answer_control(service, header, body, out),
        }
    }

    /// Whether a frame is of the kind whose payload may move straight between socket and memory: its bytes need
    /// no checksum on this connection, so nobody has to see them all first.
    pub(crate) fn may_stream(&self, header: &Header) -> bool {
        self.greeted && !header.is_reply && header.body_crc.is_none()
    }

    /// The ranges of a read whose frame is here, and their bytes.
    pub(crate) fn ranges_to_send(
        &mut self,
        header: &Header,
        body: &[u8],
    ) -> Result<(&[Span], u64), WireError> {
        let total = decode_read(body, Operations::of(header.opcode), &mut self.spans)?;
        Ok((&self.spans, total))
    }

    /// The ranges of a write whose frame has begun to arrive, and where its payload begins; nothing while their
    /// table is not all here.
    pub(crate) fn ranges_to_receive(
        &mut self,
        header: &Header,
        begun: &[u8],
    ) -> Result<Option<(&[Span], usize)>, WireError> {
        let operations = Operations::of(header.opcode);
        let payload = decode_write_table(begun, operations, header.body_bytes as usize, &mut self.spans)?;
        Ok(payload.map(|payload| (&*self.spans, payload)))
    }

    fn answer_control(
        &mut self,
        service: &dyn Service,
        header: &Header,
        body: &[u8],
        out: &mut Outgoing,
    ) -> Next {
        let request = match Request::decode(header.opcode, body) {
            Ok(request) => request,
            Err(_) => {
                refuse(header, Refusal::new(Code::Malformed, header.opcode as u64), out);
                return Next::HangUp;
            }
        };
        let mut next = Next::Continue;
        self.worked = 0;
        let answer = match request {
            Request::Hello(hello) => {
                if hello.version_min > VERSION_MAX || hello.version_max < VERSION_MIN {
                    refuse(header, Refusal::new(Code::VersionMismatch, VERSION_MAX.into()), out);
                    return Next::HangUp;
                }
                if !self.greeted {
                    self.peer.client = hello.client;
                }
                self.greeted = true;
                Ok(Reply::Hello(Welcome { version: hello.version_max.min(VERSION_MAX) }))
            }
            Request::Attach(attach) if self.peer.is_local => service.share(&attach).map(|shared| {
                next = Next::Memory(Box::new(shared.memory));
                Reply::Attach(shared.attached)
            }),
            Request::Attach(_) => Err(Refusal::new(Code::NotShared, 0)),
            Request::OpenLane(open) => service.open_lane(&self.peer, open).map(|(opened, successor)| {
                next = Next::HandOver(successor);
                Reply::OpenLane(opened)
            }),
            other => service.call(&self.peer, other),
        };
        match answer {
            // Much of it at a time, so it is not brought together first.
            Ok(Reply::NextChunk(mut chunk)) => {
                chunk.waited_ns = std::mem::take(&mut self.waited_ns);
                self.worked = chunk.read_bytes + chunk.batches.len() as u64;
                let head = chunk.head();
                out.begin_reply(header, &head, &chunk.batches);
                next = Next::Bytes(chunk.batches);
            }
            Ok(reply) => {
                self.body.clear();
                reply.encode(&mut self.body);
                if self.body.len() > FRAME_BODY_BYTES_MAX {
                    refuse(header, Refusal::new(Code::LimitReached, FRAME_BODY_BYTES_MAX as u64), out);
                    return Next::Continue;
                }
                out.reply(header, &self.body, None);
            }
            Err(refusal) => refuse(header, refusal, out),
        }
        next
    }

    fn answer_read(
        &mut self,
        service: &dyn Service,
        header: &Header,
        body: &[u8],
        out: &mut Outgoing,
    ) -> Next {
        let Ok(total) = decode_read(body, Operations::of(header.opcode), &mut self.spans) else {
            refuse(header, Refusal::new(Code::Malformed, header.opcode as u64), out);
            return Next::HangUp;
        };
        // The reply is made in place: room for the header, the bytes behind it, the header last.
        let start = out.len();
        let head = out.room(HEADER_BYTES);
        // `decode_read` holds the total under IO_BYTES_MAX.
        let body = out.room(total as usize);
        let mut at = body.start;
        for (index, span) in self.spans.iter().enumerate() {
            let end = at + span.bytes as usize;
            if let Err(refusal) = service.read(span, out.bytes_mut(at..end)) {
                out.truncate(start);
                refuse_at(header, index, refusal, out);
                return Next::Continue;
            }
            at = end;
        }
        let reply = header.reply(&out[body], None).encode();
        out.bytes_mut(head).copy_from_slice(&reply);
        Next::Continue
    }

    fn answer_write(
        &mut self,
        service: &dyn Service,
        header: &Header,
        body: &[u8],
        out: &mut Outgoing,
    ) -> Next {
        let Ok(payload) = decode_write(body, Operations::of(header.opcode), &mut self.spans) else {
            refuse(header, Refusal::new(Code::Malformed, header.opcode as u64), out);
            return Next::HangUp;
        };
        let mut rest = payload;
        for (index, span) in self.spans.iter().enumerate() {
            // `decode_write` has checked that the payloads are exactly the spans' bytes.
            let (bytes, behind) = rest.split_at(span.bytes as usize);
            rest = behind;
            if let Err(refusal) = service.write(span, bytes) {
                refuse_at(header, index, refusal, out);
                return Next::Continue;
            }
        }
        out.reply(header, &[], None);
        Next::Continue
    }
}

pub(crate) fn refuse(header: &Header, refusal: Refusal, out: &mut Outgoing) {
    out.reply(header, &[], Some(refusal));
}

/// Refuses a data request, of a batch with the index of the operation that was refused.
pub(crate) fn refuse_at(header: &Header, index: usize, refusal: Refusal, out: &mut Outgoing) {
    match Operations::of(header.opcode) {
        Operations::One => refuse(header, refusal, out),
        Operations::Batch => out.reply(header, &(index as u32).to_le_bytes(), Some(refusal)),
    }
}

/// The answer to bytes that are no frame: id 0, and why. To a stream that is not even ours, nothing.
pub fn reject(error: WireError, out: &mut Outgoing) {
    let refusal = match error {
        WireError::Magic { .. } => return,
        WireError::Version { .. } => Refusal::new(Code::VersionMismatch, VERSION_MAX.into()),
        _ => Refusal::new(Code::Malformed, 0),
    };
    let header = Header {
        version: VERSION_MAX,
        is_reply: true,
        opcode: Opcode::Hello,
        request_id: 0,
        body_bytes: 0,
        body_crc: None,
        refusal: Some(refusal),
    };
    out.extend(&header.encode());
}
