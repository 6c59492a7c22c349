//! The answering side: the trait that a service implements, and the step from one request frame to one reply.
//!
//! There is no socket in this module. The same code answers over TCP, over shared memory and in the simulator.

use crate::admission::Admission;
use crate::delay::Delay;
use crate::lane::Successor;
use crate::outgoing::Outgoing;
use crate::shm::Mapped;
use crate::times::{ConnectionKind, OperationTimes};
use crate::tls::Identity;
use farpool_wire::control::{Attach, Attached, LaneOpened, OpenHoppingLane, Welcome};
use farpool_wire::data::{Operations, Span, decode_read, decode_write, decode_write_table};
use farpool_wire::frame::Header;
use farpool_wire::limits::*;
use farpool_wire::{ClientId, Code, List, Opcode, Payload, Refusal, Reply, Request, TraceId, WireError};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of connections that this process has answered so far.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Identity of the peer, as far as the connection proves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Number that no other connection of this process has. 0 for a peer without a connection.
    pub connection: u64,
    /// True if the peer is on this host and runs as the same user. The Unix socket checked both.
    pub is_local: bool,
    /// Identity from the peer's certificate. `None` on connections without TLS.
    pub identity: Option<Identity>,
    /// Client number from the greeting; 0 before it. It proves nothing.
    pub client: ClientId,
    /// Id of the query that the present request belongs to, for logs.
    pub trace: TraceId,
}

impl Peer {
    /// Returns the kind of the peer's connection.
    pub(crate) fn kind(&self) -> ConnectionKind {
        match (self.is_local, &self.identity) {
            (true, _) => ConnectionKind::Shm,
            (false, Some(_)) => ConnectionKind::Tls,
            (false, None) => ConnectionKind::Tcp,
        }
    }
}

/// A shared region and the node's fence words (numbers that show which regions may still be used), for a local peer.
#[derive(Debug)]
pub struct Shared {
    /// Memory to map.
    pub memory: Mappable,
    /// Position of the region's fence word.
    pub attached: Attached,
}

/// Memory that a local peer may map.
#[derive(Debug)]
pub enum Mappable {
    /// File descriptors, sent together with the reply.
    Files {
        /// Memory of the region. Opened without write access if the peer's handle permits only reading.
        region: OwnedFd,
        /// Fence words of the node. They cannot be mapped writable.
        words: OwnedFd,
    },
    /// Memory of the simulator, in which both sides are in one process. It is never sent over a socket.
    Simulated(Mapped),
}

/// Access that an operation needs to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Copies bytes out. Write handles and read handles permit it.
    Read,
    /// Copies bytes in. Only a write handle permits it.
    Write,
}

/// Index of the first range that was refused, and the reason.
pub type RefusedAt = (usize, Refusal);

/// The operations that a node or a broker offers to its peers.
///
/// One service answers all connections, and each connection has a thread, so the methods are called from many threads
/// at once. A service locks what it needs by itself; the callers hold no lock. There are three kinds of methods.
/// `call`, `share` and `open_lane` answer control requests. `read` and `write` copy the bytes of small frames through
/// buffers. `admits`, `send` and `receive` move the bytes of large frames straight between memory and a socket.
///
/// Order of calls on one connection: the greeting is answered without the service; then `admission` is called, then
/// any of the others, and `ended` last. `admits` comes before the first `receive` of a write, and before the first
/// `send` of a read that one call cannot move whole. The default of each operation refuses it with
/// [`Code::Unsupported`].
pub trait Service: Send + Sync + 'static {
    /// Answers a control request.
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal>;
    /// Returns the delay after which `call` answers a request. `None` if it answers at once. Called once for each
    /// request whose opcode [may be delayed](Opcode::may_be_delayed).
    ///
    /// Errors: the refusal with which the request is answered instead.
    fn delay(&self, _peer: &Peer, _request: &Request) -> Result<Option<Delay>, Refusal> {
        Ok(None)
    }
    /// Copies the range into the buffer, which is exactly as long.
    fn read(&self, _span: &Span, _into: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Read as u64))
    }
    /// Copies the bytes into the range, which is exactly as long.
    fn write(&self, _span: &Span, _from: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Write as u64))
    }
    /// Checks that all ranges may be accessed as `intent` says. Returns the first range that may not, and the reason.
    fn admits(&self, _spans: &[Span], _intent: Intent) -> Result<(), RefusedAt> {
        Err((0, Refusal::new(Code::Unsupported, 0)))
    }
    /// Sends `head`, then the bytes of the ranges after their first `skip` bytes, straight from memory to a socket. It
    /// is one system call that does not wait. Returns the number of bytes sent, those of `head` included; often fewer
    /// than all. If the call would reach a range that is refused, nothing is sent.
    fn send(
        &self,
        _socket: BorrowedFd<'_>,
        _head: &[u8],
        _spans: &[Span],
        _skip: u64,
    ) -> Result<io::Result<usize>, RefusedAt> {
        Err((0, Refusal::new(Code::Unsupported, 0)))
    }
    /// Receives the bytes of the ranges after their first `skip` bytes, straight from a socket into memory. It is one
    /// system call that does not wait. Returns the number of bytes received, often fewer than all; 0 at the end of the
    /// connection.
    fn receive(
        &self,
        _socket: BorrowedFd<'_>,
        _spans: &[Span],
        _skip: u64,
    ) -> Result<io::Result<usize>, RefusedAt> {
        Err((0, Refusal::new(Code::Unsupported, 0)))
    }
    /// Returns the descriptors of a region for a local peer to map.
    fn share(&self, _attach: &Attach) -> Result<Shared, Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::Attach as u64))
    }
    /// Turns a connection into a call lane, on which a tenant's functions are called. Returns the reply, and the
    /// successor that takes the connection over once the reply has been sent.
    fn open_lane(
        &self,
        _peer: &Peer,
        _open: OpenHoppingLane,
    ) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        Err(Refusal::new(Code::Unsupported, Opcode::OpenLane as u64))
    }
    /// Returns where the times of operations are counted. `None` if they are not.
    fn times(&self) -> Option<&OperationTimes> {
        None
    }
    /// Notes that a connection has ended. Its number is not used again.
    fn ended(&self, _peer: &Peer) {}
    /// Returns the object by which the connection asks to be admitted each time it moves data. Called after the
    /// greeting, until it returns one. `None` if data moves without admission.
    fn admission(&self, _peer: &Peer) -> Option<Box<dyn Admission>> {
        None
    }
}

/// State of one conversation that the next reply depends on.
#[derive(Debug)]
pub struct Conversation {
    peer: Peer,
    greeted: bool,
    spans: Vec<Span>,
    /// Body of a control reply; reused.
    body: Vec<u8>,
    /// Sum of the bytes that were read to make the last reply and the bytes of rows that are sent with it.
    worked: u64,
    /// Nanoseconds for which this side waited until the peer received bytes or sent a request. The next `NextChunk`
    /// reply reports them.
    waited_ns: u64,
}

/// Next step of the connection after a frame was answered.
pub enum Next {
    /// Continue with the next frame.
    Continue,
    /// Send the pending replies, then these bytes, which are many, and continue.
    Bytes(Payload<CHUNK_BYTES_MAX>),
    /// Send the pending replies together with the descriptors of this memory, which belong to the last reply, and
    /// continue.
    Memory(Box<Mappable>),
    /// Send the pending replies, then hand the connection over.
    HandOver(Box<dyn Successor>),
    /// Send the pending replies and close the connection.
    HangUp,
}

impl Conversation {
    /// Starts a conversation with a peer that has not greeted, and numbers its connection.
    pub fn new(peer: Peer) -> Self {
        // The numbers are only compared with each other, so no ordering is needed.
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

    /// Adds the time for which this side waited for the peer.
    pub(crate) fn note_waited(&mut self, waited_ns: u64) {
        self.waited_ns += waited_ns;
    }

    /// Returns the sum of the bytes that were read to make the last reply and the bytes of rows that are sent with it.
    pub(crate) fn worked(&self) -> u64 {
        self.worked
    }

    /// Returns the peer. `None` before the greeting.
    pub(crate) fn greeted_peer(&self) -> Option<&Peer> {
        self.greeted.then_some(&self.peer)
    }

    /// Answers a frame. The reply is appended to `out`.
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

    /// Returns the delay of a frame that was received whole. `None` if it is answered at once. One that is not
    /// valid is.
    pub(crate) fn delay(
        &mut self,
        service: &dyn Service,
        header: &Header,
        body: &[u8],
    ) -> Result<Option<Delay>, Refusal> {
        let is_valid = self.greeted && !header.is_reply && header.opcode.may_be_delayed();
        if !is_valid || header.check_body(body).is_err() {
            return Ok(None);
        }
        self.peer.trace = header.trace;
        Request::decode(header.opcode, body).map_or(Ok(None), |request| service.delay(&self.peer, &request))
    }

    /// Reports whether the payload of a frame may move straight between socket and memory. It may if the connection
    /// needs no checksum, because then nobody has to see all bytes first.
    pub(crate) fn may_stream(&self, header: &Header) -> bool {
        self.greeted && !header.is_reply && header.body_crc.is_none()
    }

    /// Returns the ranges of a read whose frame has been received, and the sum of their bytes.
    pub(crate) fn ranges_to_send(
        &mut self,
        header: &Header,
        body: &[u8],
    ) -> Result<(&[Span], u64), WireError> {
        let total = decode_read(body, Operations::of(header.opcode), &mut self.spans)?;
        Ok((&self.spans, total))
    }

    /// Returns the ranges of a write whose frame has begun to arrive, and the offset of its payload in the body. `None`
    /// while part of the table is missing.
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
        self.peer.trace = header.trace;
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
            Request::OpenLane(lane) => {
                let open = OpenHoppingLane { lane, peers: List::default(), caller: List::default() };
                service.open_lane(&self.peer, open).map(|(opened, successor)| {
                    next = Next::HandOver(successor);
                    Reply::OpenLane(opened)
                })
            }
            Request::OpenHoppingLane(open) => {
                service.open_lane(&self.peer, open).map(|(opened, successor)| {
                    next = Next::HandOver(successor);
                    Reply::OpenHoppingLane(opened)
                })
            }
            other => service.call(&self.peer, other),
        };
        match answer {
            // The batches may be large, so they are not copied into one buffer with the header.
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
        // The reply is built in place: the header's place is reserved, the bytes follow, and the header is written
        // last.
        let start = out.len();
        let head = out.room(HEADER_BYTES);
        // `decode_read` keeps the total within IO_BYTES_MAX.
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
            // `decode_write` has checked that the payload has exactly as many bytes as the ranges.
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

/// Refuses a data request. The refusal of a batch carries the index of the refused operation.
pub(crate) fn refuse_at(header: &Header, index: usize, refusal: Refusal, out: &mut Outgoing) {
    match Operations::of(header.opcode) {
        Operations::One => refuse(header, refusal, out),
        Operations::Batch => out.reply(header, &(index as u32).to_le_bytes(), Some(refusal)),
    }
}

/// Replies to bytes that are not a valid frame, with id 0 and the reason. A stream that does not begin with our magic
/// bytes gets no reply.
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
        trace: TraceId::NONE,
    };
    out.extend(&header.encode());
}
