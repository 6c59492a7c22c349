//! The requesting side of a framed conversation, over any [`Stream`].
//!
//! Replies come in the order of the requests. A read's reply is therefore received by one vectored call straight into
//! the header buffer and the caller's buffers. A refused reply is shorter than the data that was asked for. Its few
//! bytes are then copied back out of the caller's buffers, and bytes that belong to the next reply are kept until that
//! reply is taken.

use crate::recv_buffers::RecvBuffer;
use crate::socket::{Interest, Stream, read_full, write_full};
use crate::tls::{self, TlsError};
use crate::{Link, LinkError, ReadOp, Transport, WriteOp, check_ops, fitting};
use farpool_wire::control::{Chunk, Hello, Request};
use farpool_wire::data::{Operations, Span, decode_refused_index, put_spans};
use farpool_wire::frame::Header;
use farpool_wire::limits::*;
use farpool_wire::{ClientId, Code, MonoNs, Opcode, Refusal, Reply, TraceId, WireError};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::BorrowedFd;

/// Link that sends and receives frames over a stream.
pub struct FrameLink<S> {
    stream: S,
    transport: Transport,
    /// Protocol version that both ends speak.
    version: u8,
    /// Id of the query that the next requests belong to, for the peer's log.
    trace: TraceId,
    next_id: u64,
    /// Bodies of requests and control replies; reused.
    scratch: Vec<u8>,
    spans: Vec<Span>,
    /// Data frames that were sent and whose replies have not been taken, oldest first.
    posted: VecDeque<Posted>,
    /// Number of posted read operations whose requests have not been sent yet, because enough bytes of requests are in
    /// flight. They are sent while the replies before them are taken, and no later operation overtakes them. So the
    /// operations in flight are always the first of those that were posted.
    owed: usize,
    /// Ids of the control requests whose replies have not been taken, oldest first.
    called: VecDeque<u64>,
    /// Progress of the write that `post_write_some` has begun and not finished.
    begun: Option<Begun>,
    /// First refusal among the replies of a write that were taken so far.
    refused: FirstRefusal,
    /// Bytes of later replies that were received together with a refused reply. The first `ahead_taken` of them have
    /// been taken.
    ahead: Vec<u8>,
    ahead_taken: usize,
}

/// A data frame that was sent: its request id, its opcode, and its number of operations.
#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    opcode: Opcode,
    ops: usize,
    /// Bytes of the request that count against [`POSTED_BYTES_MAX`].
    bytes: usize,
}

/// Progress of a write that consists of one or more frames.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// Operations in the frames before this one.
    done: usize,
    /// The frame that is being sent. Its header and table are in `scratch`.
    frame: Posted,
    /// Bytes of the frame that were sent.
    sent: usize,
}

/// In-flight limit for read requests, in bytes. A peer that is sending a reply does not receive requests. If the
/// requests did not fit the sockets' buffers, both sides would wait for each other. 32 KiB fit the buffers of any
/// socket (`docs/decisions/0011-data-path.md`).
const POSTED_BYTES_MAX: usize = 32 << 10;

const REPLY_LENGTH: &str = "the length of a reply";

pub(crate) fn broken(error: io::Error) -> LinkError {
    if let Some(untrusted) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        return LinkError::Untrusted(untrusted.clone());
    }
    if error.kind() == io::ErrorKind::TimedOut { LinkError::TimedOut } else { LinkError::Disconnected(error) }
}

impl<S: Stream> FrameLink<S> {
    /// Exchanges greetings with the peer over a new stream and agrees on the protocol version.
    pub fn greet(stream: S, transport: Transport, deadline: MonoNs) -> Result<Self, LinkError> {
        FrameLink::greet_for(ClientId(0), stream, transport, deadline)
    }

    /// Does the same as [`Self::greet`] for a client that has several links. They all send the same number `client`, so
    /// that the node shares its work fairly between clients and not between links.
    pub fn greet_for(
        client: ClientId,
        stream: S,
        transport: Transport,
        deadline: MonoNs,
    ) -> Result<Self, LinkError> {
        let mut link = FrameLink::greeted(stream, transport);
        let hello = Request::Hello(Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client });
        match link.call(&hello, deadline)? {
            Reply::Hello(welcome) if (VERSION_MIN..=VERSION_MAX).contains(&welcome.version) => {
                link.version = welcome.version;
                Ok(link)
            }
            Reply::Hello(welcome) => Err(LinkError::Protocol(WireError::Version { found: welcome.version })),
            other => Err(LinkError::Protocol(WireError::Opcode { found: other.opcode() as u16 })),
        }
    }

    /// Wraps a stream on which the greeting is over, or that needs none.
    pub(crate) fn greeted(stream: S, transport: Transport) -> Self {
        FrameLink {
            stream,
            transport,
            version: VERSION_MAX,
            trace: TraceId::NONE,
            next_id: 1,
            scratch: Vec::new(),
            spans: Vec::new(),
            posted: VecDeque::new(),
            owed: 0,
            called: VecDeque::new(),
            begun: None,
            refused: FirstRefusal::default(),
            ahead: Vec::new(),
            ahead_taken: 0,
        }
    }

    /// Returns the stream, for calls that only one transport has.
    pub(crate) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends a control request without waiting for its reply. Returns the request id.
    pub(crate) fn send_call(&mut self, request: &Request, deadline: MonoNs) -> Result<u64, LinkError> {
        let opcode = request.opcode();
        if opcode.since() > self.version {
            // The peer would end the connection.
            return Err(LinkError::Refused {
                index: 0,
                refusal: Refusal::new(Code::Unsupported, opcode as u64),
            });
        }
        self.scratch.clear();
        request.encode(&mut self.scratch);
        let id = self.take_id();
        if self.scratch.len() > FRAME_BODY_BYTES_MAX {
            return Err(LinkError::Protocol(WireError::TooMany {
                what: "bytes of a frame body",
                found: self.scratch.len() as u64,
                max: FRAME_BODY_BYTES_MAX as u64,
            }));
        }
        let header = self.request_header(opcode, id);
        let mut slices = [IoSlice::new(&header), IoSlice::new(&self.scratch)];
        write_full(&mut self.stream, &mut slices, deadline).map_err(broken)?;
        Ok(id)
    }

    /// Returns the header of a request whose body is in `scratch`. If the stream itself detects changed bytes, neither
    /// the body nor its reply carries a checksum.
    fn request_header(&self, opcode: Opcode, id: u64) -> [u8; HEADER_BYTES] {
        let body_crc = self.stream.needs_checksums().then(|| crc32c::crc32c(&self.scratch));
        self.header(opcode, id, self.scratch.len(), body_crc).encode()
    }

    fn header(&self, opcode: Opcode, request_id: u64, body_bytes: usize, body_crc: Option<u32>) -> Header {
        Header {
            version: self.version,
            is_reply: false,
            opcode,
            request_id,
            body_bytes: body_bytes as u32,
            body_crc,
            refusal: None,
            trace: self.trace,
        }
    }

    /// Receives the header of a control reply. A peer that speaks TLS answers a plaintext greeting with an alert, which
    /// is shorter than a header.
    fn receive_head(&mut self, deadline: MonoNs) -> Result<Header, LinkError> {
        let mut head = [0; HEADER_BYTES];
        let received = self.read_full(&mut [IoSliceMut::new(&mut head)], deadline);
        if !self.stream.is_encrypted() && tls::is_alert(&head) {
            return Err(LinkError::Untrusted(TlsError::peer_speaks_tls()));
        }
        received?;
        Header::decode(&head).map_err(LinkError::Protocol)
    }

    /// Reports whether a control request was posted whose reply was not taken.
    pub(crate) fn owes_reply(&self) -> bool {
        !self.called.is_empty()
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Receives the body of a reply whose header has been received.
    pub(crate) fn receive_body(
        &mut self,
        header: &Header,
        opcode: Opcode,
        id: u64,
        deadline: MonoNs,
    ) -> Result<Result<Reply, Refusal>, LinkError> {
        check_reply(header, opcode, id)?;
        if opcode == Opcode::NextChunk && header.refusal.is_none() {
            return self.receive_chunk(header, deadline).map(|chunk| Ok(Reply::NextChunk(chunk)));
        }
        self.scratch.clear();
        self.scratch.resize(header.body_bytes as usize, 0);
        read_full(&mut self.stream, &mut [IoSliceMut::new(&mut self.scratch)], deadline).map_err(broken)?;
        header.check_body(&self.scratch).map_err(LinkError::Protocol)?;
        self.rest();
        if let Some(refusal) = header.refusal {
            return Ok(Err(refusal));
        }
        Reply::decode(opcode, &self.scratch).map(Ok).map_err(LinkError::Protocol)
    }

    /// Receives a batch of rows (`NextChunk`) whose header has been received. Its bytes go straight to their final
    /// memory.
    fn receive_chunk(&mut self, header: &Header, deadline: MonoNs) -> Result<Chunk, LinkError> {
        let mut head = [0; Chunk::HEAD_BYTES];
        let body_bytes = header.body_bytes as usize;
        let Some(bytes) = body_bytes.checked_sub(head.len()).filter(|bytes| *bytes <= CHUNK_BYTES_MAX) else {
            return Err(value(REPLY_LENGTH, body_bytes as u64));
        };
        let mut batches = RecvBuffer::new(bytes).into_vec();
        let mut slices = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut batches)];
        read_full(&mut self.stream, &mut slices, deadline).map_err(broken)?;
        let crc = || crc32c::crc32c_append(crc32c::crc32c(&head), &batches);
        header.check_body_crc(crc).map_err(LinkError::Protocol)?;
        self.rest();
        Chunk::with_head(head, batches).map_err(LinkError::Protocol)
    }

    /// Sends the request of one read frame. All of `ops` fit the frame.
    fn post_read_frame(&mut self, ops: &[ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let opcode = if ops.len() > 1 { Opcode::ReadBatch } else { Opcode::Read };
        let id = self.take_id();
        self.scratch.clear();
        self.spans.clear();
        self.spans.extend(ops.iter().map(|op| op.span));
        put_spans(&self.spans, Operations::of(opcode), &mut self.scratch);
        let header = self.request_header(opcode, id);
        let mut slices = [IoSlice::new(&header), IoSlice::new(&self.scratch)];
        write_full(&mut self.stream, &mut slices, deadline).map_err(broken)?;
        let bytes = HEADER_BYTES + self.scratch.len();
        self.posted.push_back(Posted { id, opcode, ops: ops.len(), bytes });
        Ok(())
    }

    /// Sends read requests from the first of `ops` on until the in-flight limit is reached. Returns the number of
    /// operations sent.
    fn post_reads(&mut self, ops: &[ReadOp<'_>], deadline: MonoNs) -> Result<usize, LinkError> {
        let mut done = 0;
        while done < ops.len()
            && self.posted.iter().map(|posted| posted.bytes).sum::<usize>() < POSTED_BYTES_MAX
        {
            let count = fitting(ops[done..].iter().map(|op| op.into.len()));
            self.post_read_frame(&ops[done..done + count], deadline)?;
            done += count;
        }
        Ok(done)
    }

    /// Receives the reply to the oldest read in flight, into the first of `ops`. Returns the number of its operations
    /// and the refusal, if there is one.
    fn take_read_frame(
        &mut self,
        ops: &mut [ReadOp<'_>],
        deadline: MonoNs,
    ) -> Result<(usize, Option<(usize, Refusal)>), LinkError> {
        let Posted { id, opcode, ops: count, .. } = self.oldest()?;
        let Some(ops) = ops.get_mut(..count) else { return Err(out_of_order()) };
        let wanted: usize = ops.iter().map(|op| op.into.len()).sum();
        let mut head = [0; HEADER_BYTES];
        let mut got = 0;
        while got < HEADER_BYTES {
            let mut slices = Vec::with_capacity(1 + ops.len());
            slices.push(IoSliceMut::new(&mut head[got..]));
            slices.extend(ops.iter_mut().map(|op| IoSliceMut::new(op.into)));
            got += self.read_some(&mut slices, deadline)?;
        }
        let header = Header::decode(&head).map_err(LinkError::Protocol)?;
        check_reply(&header, opcode, id)?;
        let landed = got - HEADER_BYTES;
        if let Some(refusal) = header.refusal {
            let body = self.gather_back(ops, landed, header.body_bytes as usize, deadline)?;
            header.check_body(&body).map_err(LinkError::Protocol)?;
            return Ok((count, Some((refused_index(opcode, &body, count)?, refusal))));
        }
        if header.body_bytes as usize != wanted || landed > wanted {
            return Err(value(REPLY_LENGTH, header.body_bytes.into()));
        }
        if landed < wanted {
            let mut slices: Vec<IoSliceMut<'_>> = ops.iter_mut().map(|op| IoSliceMut::new(op.into)).collect();
            let mut rest = &mut slices[..];
            IoSliceMut::advance_slices(&mut rest, landed);
            self.read_full(rest, deadline)?;
        }
        let crc = || ops.iter().fold(0, |crc, op| crc32c::crc32c_append(crc, op.into));
        header.check_body_crc(crc).map_err(LinkError::Protocol)?;
        Ok((count, None))
    }

    /// Returns the body of a refused reply. Its first `landed` bytes were received into the caller's buffers, and may
    /// be followed there by the beginning of the next reply.
    fn gather_back(
        &mut self,
        ops: &[ReadOp<'_>],
        landed: usize,
        body_bytes: usize,
        deadline: MonoNs,
    ) -> Result<Vec<u8>, LinkError> {
        if body_bytes > 64 {
            return Err(LinkError::Protocol(WireError::TooMany {
                what: "bytes of a refused read",
                found: body_bytes as u64,
                max: 64,
            }));
        }
        let mut body: Vec<u8> = ops.iter().flat_map(|op| op.into.iter().copied()).take(landed).collect();
        if landed > body_bytes {
            // Bytes of the next reply go to the front of `ahead`, because they are read first.
            self.ahead.splice(..self.ahead_taken, body.drain(body_bytes..));
            self.ahead_taken = 0;
        }
        body.resize(body_bytes, 0);
        let start = landed.min(body_bytes);
        self.read_full(&mut [IoSliceMut::new(&mut body[start..])], deadline)?;
        Ok(body)
    }

    /// Puts the header and the table of a write frame into `scratch`. All of `ops` fit the frame.
    fn begin_write_frame(&mut self, ops: &[WriteOp<'_>]) -> Posted {
        let opcode = if ops.len() > 1 { Opcode::WriteBatch } else { Opcode::Write };
        let id = self.take_id();
        self.spans.clear();
        self.spans.extend(ops.iter().map(|op| op.span));
        self.scratch.clear();
        self.scratch.resize(HEADER_BYTES, 0);
        put_spans(&self.spans, Operations::of(opcode), &mut self.scratch);
        let payload_bytes: usize = ops.iter().map(|op| op.from.len()).sum();
        let spans = &self.scratch[HEADER_BYTES..];
        let body_crc = self
            .stream
            .needs_checksums()
            .then(|| ops.iter().fold(crc32c::crc32c(spans), |crc, op| crc32c::crc32c_append(crc, op.from)));
        let head = self.header(opcode, id, spans.len() + payload_bytes, body_crc).encode();
        self.scratch[..HEADER_BYTES].copy_from_slice(&head);
        // Only the header counts against the in-flight limit, because the peer receives the payload before it replies.
        Posted { id, opcode, ops: ops.len(), bytes: HEADER_BYTES }
    }

    /// Sends one write frame. All of `ops` fit the frame.
    fn post_write_frame(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let posted = self.begin_write_frame(ops);
        let mut slices = write_slices(&self.scratch, ops);
        write_full(&mut self.stream, &mut slices, deadline).map_err(broken)?;
        self.posted.push_back(posted);
        Ok(())
    }

    /// Sends as much of a frame as the peer takes now, from byte `sent` on. Reports whether the frame has been sent
    /// whole.
    fn send_on(&mut self, ops: &[WriteOp<'_>], sent: &mut usize) -> io::Result<bool> {
        let mut slices = write_slices(&self.scratch, ops);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, *sent);
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    *sent += count;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.stream.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Receives the reply to the oldest write in flight. Returns the number of its operations and the refusal, if there
    /// is one.
    fn take_write_frame(&mut self, deadline: MonoNs) -> Result<(usize, Option<(usize, Refusal)>), LinkError> {
        let Posted { id, opcode, ops: count, .. } = self.oldest()?;
        let mut head = [0; HEADER_BYTES];
        self.read_full(&mut [IoSliceMut::new(&mut head)], deadline)?;
        let header = Header::decode(&head).map_err(LinkError::Protocol)?;
        check_reply(&header, opcode, id)?;
        let body = self.gather_back(&[], 0, header.body_bytes as usize, deadline)?;
        header.check_body(&body).map_err(LinkError::Protocol)?;
        let Some(refusal) = header.refusal else {
            let is_empty = body.is_empty();
            return if is_empty { Ok((count, None)) } else { Err(value(REPLY_LENGTH, body.len() as u64)) };
        };
        Ok((count, Some((refused_index(opcode, &body, count)?, refusal))))
    }

    /// Tells the stream that no reply is awaited until the next request, so that it need not be polled.
    fn rest(&mut self) {
        self.stream.rest();
    }

    fn oldest(&mut self) -> Result<Posted, LinkError> {
        self.posted.pop_front().ok_or_else(out_of_order)
    }

    /// Reads at least one byte. Bytes that were received early come first.
    fn read_some(&mut self, into: &mut [IoSliceMut<'_>], deadline: MonoNs) -> Result<usize, LinkError> {
        if self.ahead_taken < self.ahead.len() {
            let mut left = &self.ahead[self.ahead_taken..];
            let count = left.read_vectored(into).unwrap_or_default();
            self.ahead_taken += count;
            return Ok(count);
        }
        loop {
            match self.stream.read(into) {
                Ok(0) => return Err(LinkError::Disconnected(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait(Interest::Readable, deadline).map_err(broken)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    fn read_full(&mut self, mut into: &mut [IoSliceMut<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        IoSliceMut::advance_slices(&mut into, 0);
        while !into.is_empty() {
            let count = self.read_some(into, deadline)?;
            IoSliceMut::advance_slices(&mut into, count);
        }
        Ok(())
    }
}

/// Returns the slices of a write frame: its header with the table, then the bytes of its operations.
fn write_slices<'o>(beginning: &'o [u8], ops: &'o [WriteOp<'_>]) -> Vec<IoSlice<'o>> {
    let mut slices = Vec::with_capacity(1 + ops.len());
    slices.push(IoSlice::new(beginning));
    slices.extend(ops.iter().map(|op| IoSlice::new(op.from)));
    slices
}

/// Error for a `take_*` call without a matching `post_*` call. Only this process can cause it.
fn out_of_order() -> LinkError {
    LinkError::Disconnected(io::Error::other(
        "a reply was taken that no posted request matches (a bug of this program)",
    ))
}

/// First refusal among several frames. Its index counts from the first operation of the first frame.
#[derive(Default)]
struct FirstRefusal(Option<(usize, Refusal)>);

impl FirstRefusal {
    fn note(&mut self, before: usize, refused: Option<(usize, Refusal)>) {
        if let Some((index, refusal)) = refused {
            self.0.get_or_insert((before + index, refusal));
        }
    }

    fn result(self) -> Result<(), LinkError> {
        match self.0 {
            Some((index, refusal)) => Err(LinkError::Refused { index, refusal }),
            None => Ok(()),
        }
    }
}

/// Returns the index of the refused operation from the body of the reply. An empty body stands for the first operation.
fn refused_index(opcode: Opcode, body: &[u8], ops: usize) -> Result<usize, LinkError> {
    if body.is_empty() {
        return Ok(0);
    }
    let index = decode_refused_index(body).map_err(LinkError::Protocol)? as usize;
    if Operations::of(opcode) == Operations::One || index >= ops {
        return Err(value("the refused operation", index as u64));
    }
    Ok(index)
}

fn value(what: &'static str, found: u64) -> LinkError {
    LinkError::Protocol(WireError::Value { what, found })
}

fn check_reply(header: &Header, opcode: Opcode, id: u64) -> Result<(), LinkError> {
    // A peer that cannot read a request replies with id 0 and the reason, then closes the connection.
    if let (true, 0, Some(refusal)) = (header.is_reply, header.request_id, header.refusal) {
        return Err(LinkError::Refused { index: 0, refusal });
    }
    if !header.is_reply || header.request_id != id || header.opcode != opcode {
        return Err(value("the request id of a reply", header.request_id));
    }
    Ok(())
}

impl<S: Stream> Link for FrameLink<S> {
    fn transport(&self) -> Transport {
        self.transport
    }

    fn set_trace(&mut self, trace: TraceId) {
        self.trace = trace;
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.post_call(request, deadline)?;
        self.take_call(request, deadline)
    }

    fn post_call(&mut self, request: &Request, deadline: MonoNs) -> Result<(), LinkError> {
        let id = self.send_call(request, deadline)?;
        self.called.push_back(id);
        Ok(())
    }

    fn take_call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        let id = self.called.pop_front().ok_or_else(out_of_order)?;
        let header = self.receive_head(deadline)?;
        let reply = self.receive_body(&header, request.opcode(), id, deadline)?;
        reply.map_err(|refusal| LinkError::Refused { index: 0, refusal })
    }

    fn begins_by(&mut self, until: MonoNs) -> Result<bool, LinkError> {
        if self.ahead_taken < self.ahead.len() {
            return Ok(true);
        }
        let mut first = [0; HEADER_BYTES];
        match self.read_some(&mut [IoSliceMut::new(&mut first)], until) {
            Err(LinkError::TimedOut) => Ok(false),
            Err(error) => Err(error),
            Ok(count) => {
                (self.ahead, self.ahead_taken) = (first[..count].to_vec(), 0);
                Ok(true)
            }
        }
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.post_read(ops, deadline)?;
        self.take_read(ops, deadline)
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.post_write(ops, deadline)?;
        self.take_write(ops, deadline)
    }

    fn post_read(&mut self, ops: &[ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        check_ops(ops.iter().map(|op| (op.span.bytes, op.into.len())))?;
        let sent = if self.owed > 0 { 0 } else { self.post_reads(ops, deadline)? };
        self.owed += ops.len() - sent;
        Ok(())
    }

    fn take_read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let mut refused = FirstRefusal::default();
        let under_way: usize = self.posted.iter().map(|posted| posted.ops).sum();
        let (mut done, mut posted) = (0, under_way.min(ops.len()));
        while done < ops.len() {
            // A read of many operations sends its last requests when the first replies are here.
            if posted < ops.len() {
                let sent = self.post_reads(&ops[posted..], deadline)?;
                posted += sent;
                self.owed = self.owed.saturating_sub(sent);
            }
            let (count, result) = self.take_read_frame(&mut ops[done..], deadline)?;
            refused.note(done, result);
            done += count;
        }
        self.rest();
        refused.result()
    }

    fn is_ready(&mut self) -> bool {
        self.ahead_taken < self.ahead.len() || self.stream.is_readable()
    }

    fn post_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        check_ops(ops.iter().map(|op| (op.span.bytes, op.from.len())))?;
        let mut done = 0;
        while done < ops.len() {
            let count = fitting(ops[done..].iter().map(|op| op.from.len()));
            self.post_write_frame(&ops[done..done + count], deadline)?;
            done += count;
        }
        Ok(())
    }

    fn post_write_some(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<bool, LinkError> {
        if self.stream.descriptor().is_none() {
            return self.post_write(ops, deadline).map(|()| true);
        }
        check_ops(ops.iter().map(|op| (op.span.bytes, op.from.len())))?;
        let mut done = self.begun.map_or(0, |begun| begun.done);
        while done < ops.len() {
            let Begun { frame, mut sent, .. } = match self.begun.take() {
                Some(begun) => begun,
                None => {
                    let count = fitting(ops[done..].iter().map(|op| op.from.len()));
                    Begun { done, frame: self.begin_write_frame(&ops[done..done + count]), sent: 0 }
                }
            };
            let Some(of_frame) = ops.get(done..done + frame.ops) else { return Err(out_of_order()) };
            if !self.send_on(of_frame, &mut sent).map_err(broken)? {
                self.begun = Some(Begun { done, frame, sent });
                return Ok(false);
            }
            self.posted.push_back(frame);
            done += frame.ops;
        }
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.stream.descriptor()
    }

    fn take_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let mut done = 0;
        while done < ops.len() {
            done = self.take_write_part(ops, done, deadline)?;
        }
        Ok(())
    }

    fn take_write_part(
        &mut self,
        ops: &[WriteOp<'_>],
        done: usize,
        deadline: MonoNs,
    ) -> Result<usize, LinkError> {
        let (count, result) = self.take_write_frame(deadline)?;
        self.refused.note(done, result);
        if done + count < ops.len() {
            return Ok(done + count);
        }
        self.rest();
        std::mem::take(&mut self.refused).result().map(|()| done + count)
    }

    fn is_worn(&self) -> bool {
        self.stream.is_worn()
    }
}
