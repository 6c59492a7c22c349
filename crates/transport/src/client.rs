//! The asking side of a framed conversation, over any [`Stream`].
//!
//! Replies come in the order of requests and one frame is in flight at a time, so a read's reply is received
//! by one vectored call straight into the callers' buffers, header and all, and nothing behind it can be
//! caught by mistake. A refused reply is shorter: its few bytes are then gathered back from those buffers.

use crate::socket::{Stream, read_full, write_full};
use crate::tls::{self, TlsError};
use crate::{Link, LinkError, ReadOp, Transport, WriteOp, check_ops, fitting};
use farpool_wire::control::{Hello, Request};
use farpool_wire::data::{Span, decode_refused_index, put_spans};
use farpool_wire::frame::Header;
use farpool_wire::limits::*;
use farpool_wire::{MonoNs, Opcode, Refusal, Reply, WireError};
use std::io::{self, IoSlice, IoSliceMut};

/// A link that moves everything in frames.
pub struct FrameLink<S> {
    stream: S,
    transport: Transport,
    next_id: u64,
    /// Request bodies and control replies, reused.
    scratch: Vec<u8>,
    spans: Vec<Span>,
}

pub(crate) fn broken(error: io::Error) -> LinkError {
    if let Some(untrusted) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        return LinkError::Untrusted(untrusted.clone());
    }
    if error.kind() == io::ErrorKind::TimedOut { LinkError::TimedOut } else { LinkError::Cut(error) }
}

impl<S: Stream> FrameLink<S> {
    /// Greets the peer over a fresh stream and settles the version.
    pub fn greet(stream: S, transport: Transport, deadline: MonoNs) -> Result<Self, LinkError> {
        let mut link = FrameLink { stream, transport, next_id: 1, scratch: Vec::new(), spans: Vec::new() };
        let hello = Request::Hello(Hello { version_min: VERSION_MIN, version_max: VERSION_MAX });
        match link.call(&hello, deadline)? {
            Reply::Hello(welcome) if (VERSION_MIN..=VERSION_MAX).contains(&welcome.version) => Ok(link),
            Reply::Hello(welcome) => Err(LinkError::Protocol(WireError::Version { found: welcome.version })),
            other => Err(LinkError::Protocol(WireError::Opcode { found: other.opcode() as u16 })),
        }
    }

    /// The stream, for what only one transport can do.
    pub(crate) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends a control request without waiting for its reply. Returns the request id.
    pub(crate) fn send_call(&mut self, request: &Request, deadline: MonoNs) -> Result<u64, LinkError> {
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
        let header = self.request_header(request.opcode(), id);
        let mut parts = [IoSlice::new(&header), IoSlice::new(&self.scratch)];
        write_full(&mut self.stream, &mut parts, deadline).map_err(broken)?;
        Ok(id)
    }

    /// The header of a request whose body is `scratch`. Where the stream itself notices a changed byte, the
    /// body goes without a checksum, and so does its reply.
    fn request_header(&self, opcode: Opcode, id: u64) -> [u8; HEADER_BYTES] {
        let body_crc = (!self.stream.is_sealed()).then(|| crc32c::crc32c(&self.scratch));
        self.header(opcode, id, self.scratch.len(), body_crc).encode()
    }

    fn header(&self, opcode: Opcode, request_id: u64, body_bytes: usize, body_crc: Option<u32>) -> Header {
        Header {
            version: VERSION_MAX,
            is_reply: false,
            opcode,
            request_id,
            body_bytes: body_bytes as u32,
            body_crc,
            refusal: None,
        }
    }

    /// Receives the header of a control reply. A peer that speaks TLS answers a greeting in plaintext with an
    /// alert, which is shorter than a header.
    fn receive_head(&mut self, deadline: MonoNs) -> Result<Header, LinkError> {
        let mut head = [0; HEADER_BYTES];
        let received = read_full(&mut self.stream, &mut [IoSliceMut::new(&mut head)], deadline);
        if !self.stream.is_sealed() && tls::is_alert(&head) {
            return Err(LinkError::Untrusted(TlsError::peer_speaks_tls()));
        }
        received.map_err(broken)?;
        Header::decode(&head).map_err(LinkError::Protocol)
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Receives the rest of a reply to `request` whose header is here.
    pub(crate) fn receive_body(
        &mut self,
        header: &Header,
        opcode: Opcode,
        id: u64,
        deadline: MonoNs,
    ) -> Result<Result<Reply, Refusal>, LinkError> {
        check_reply(header, opcode, id)?;
        self.scratch.clear();
        self.scratch.resize(header.body_bytes as usize, 0);
        read_full(&mut self.stream, &mut [IoSliceMut::new(&mut self.scratch)], deadline).map_err(broken)?;
        header.check_body(&self.scratch).map_err(LinkError::Protocol)?;
        if let Some(refusal) = header.refusal {
            return Ok(Err(refusal));
        }
        Reply::decode(opcode, &self.scratch).map(Ok).map_err(LinkError::Protocol)
    }

    /// One read frame: all of `ops` fit it.
    fn read_frame(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let batch = ops.len() > 1;
        let opcode = if batch { Opcode::ReadBatch } else { Opcode::Read };
        let id = self.take_id();
        self.spans.clear();
        self.spans.extend(ops.iter().map(|op| op.span));
        self.scratch.clear();
        put_spans(&self.spans, batch, &mut self.scratch);
        let header = self.request_header(opcode, id);
        let mut parts = [IoSlice::new(&header), IoSlice::new(&self.scratch)];
        write_full(&mut self.stream, &mut parts, deadline).map_err(broken)?;

        let wanted: usize = ops.iter().map(|op| op.into.len()).sum();
        let mut head = [0; HEADER_BYTES];
        let mut got = 0;
        while got < HEADER_BYTES {
            let mut slices = Vec::with_capacity(1 + ops.len());
            slices.push(IoSliceMut::new(&mut head[got..]));
            slices.extend(ops.iter_mut().map(|op| IoSliceMut::new(op.into)));
            got += read_some(&mut self.stream, &mut slices, deadline)?;
        }
        let header = Header::decode(&head).map_err(LinkError::Protocol)?;
        check_reply(&header, opcode, id)?;
        let landed = got - HEADER_BYTES;
        if let Some(refusal) = header.refusal {
            let body = self.gather_back(ops, landed, header.body_bytes as usize, deadline)?;
            header.check_body(&body).map_err(LinkError::Protocol)?;
            return Err(LinkError::Refused { index: refused_index(batch, &body, ops.len())?, refusal });
        }
        if header.body_bytes as usize != wanted || landed > wanted {
            return Err(LinkError::Protocol(WireError::Value {
                what: "the length of a read's reply",
                found: header.body_bytes.into(),
            }));
        }
        let mut slices: Vec<IoSliceMut<'_>> = ops.iter_mut().map(|op| IoSliceMut::new(op.into)).collect();
        let mut rest = &mut slices[..];
        IoSliceMut::advance_slices(&mut rest, landed);
        read_full(&mut self.stream, rest, deadline).map_err(broken)?;
        let crc = || ops.iter().fold(0, |crc, op| crc32c::crc32c_append(crc, op.into));
        header.check_body_crc(crc).map_err(LinkError::Protocol)
    }

    /// The body of a refused reply, of which `landed` bytes lie in the callers' buffers.
    fn gather_back(
        &mut self,
        ops: &[ReadOp<'_>],
        landed: usize,
        body_bytes: usize,
        deadline: MonoNs,
    ) -> Result<Vec<u8>, LinkError> {
        if body_bytes > 64 || landed > body_bytes {
            return Err(LinkError::Protocol(WireError::TooMany {
                what: "bytes of a refused read",
                found: body_bytes as u64,
                max: 64,
            }));
        }
        let mut body: Vec<u8> = ops.iter().flat_map(|op| op.into.iter().copied()).take(landed).collect();
        body.resize(body_bytes, 0);
        read_full(&mut self.stream, &mut [IoSliceMut::new(&mut body[landed..])], deadline).map_err(broken)?;
        Ok(body)
    }

    /// One write frame: all of `ops` fit it.
    fn write_frame(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let batch = ops.len() > 1;
        let opcode = if batch { Opcode::WriteBatch } else { Opcode::Write };
        let id = self.take_id();
        self.spans.clear();
        self.spans.extend(ops.iter().map(|op| op.span));
        self.scratch.clear();
        put_spans(&self.spans, batch, &mut self.scratch);
        let payload_bytes: usize = ops.iter().map(|op| op.from.len()).sum();
        let body_crc = (!self.stream.is_sealed()).then(|| {
            let spans = crc32c::crc32c(&self.scratch);
            ops.iter().fold(spans, |crc, op| crc32c::crc32c_append(crc, op.from))
        });
        let head = self.header(opcode, id, self.scratch.len() + payload_bytes, body_crc).encode();
        let mut parts = Vec::with_capacity(2 + ops.len());
        parts.push(IoSlice::new(&head));
        parts.push(IoSlice::new(&self.scratch));
        parts.extend(ops.iter().map(|op| IoSlice::new(op.from)));
        write_full(&mut self.stream, &mut parts, deadline).map_err(broken)?;

        let mut head = [0; HEADER_BYTES];
        read_full(&mut self.stream, &mut [IoSliceMut::new(&mut head)], deadline).map_err(broken)?;
        let header = Header::decode(&head).map_err(LinkError::Protocol)?;
        check_reply(&header, opcode, id)?;
        let body = self.gather_back(&[], 0, header.body_bytes as usize, deadline)?;
        header.check_body(&body).map_err(LinkError::Protocol)?;
        match header.refusal {
            Some(refusal) => {
                Err(LinkError::Refused { index: refused_index(batch, &body, ops.len())?, refusal })
            }
            None => Ok(()),
        }
    }
}

fn refused_index(batch: bool, body: &[u8], ops: usize) -> Result<usize, LinkError> {
    if !batch || body.is_empty() {
        return Ok(0);
    }
    let index = decode_refused_index(body).map_err(LinkError::Protocol)? as usize;
    Ok(index.min(ops.saturating_sub(1)))
}

fn read_some(
    stream: &mut dyn Stream,
    into: &mut [IoSliceMut<'_>],
    deadline: MonoNs,
) -> Result<usize, LinkError> {
    loop {
        match stream.read(into) {
            Ok(0) => return Err(LinkError::Cut(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.wait(crate::socket::Interest::Readable, deadline).map_err(broken)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(error)),
        }
    }
}

fn check_reply(header: &Header, opcode: Opcode, id: u64) -> Result<(), LinkError> {
    // A peer that cannot even read a request answers with id 0 and why, then hangs up.
    if let (true, 0, Some(refusal)) = (header.is_reply, header.request_id, header.refusal) {
        return Err(LinkError::Refused { index: 0, refusal });
    }
    if !header.is_reply || header.request_id != id || header.opcode != opcode {
        return Err(LinkError::Protocol(WireError::Value {
            what: "the request id of a reply",
            found: header.request_id,
        }));
    }
    Ok(())
}

impl<S: Stream> Link for FrameLink<S> {
    fn transport(&self) -> Transport {
        self.transport
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        let id = self.send_call(request, deadline)?;
        let header = self.receive_head(deadline)?;
        let reply = self.receive_body(&header, request.opcode(), id, deadline)?;
        reply.map_err(|refusal| LinkError::Refused { index: 0, refusal })
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        check_ops(ops.iter().map(|op| (op.span.bytes, op.into.len())))?;
        let mut done = 0;
        while done < ops.len() {
            let count = fitting(ops[done..].iter().map(|op| op.into.len()));
            self.read_frame(&mut ops[done..done + count], deadline).map_err(|error| error.behind(done))?;
            done += count;
        }
        Ok(())
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        check_ops(ops.iter().map(|op| (op.span.bytes, op.from.len())))?;
        let mut done = 0;
        while done < ops.len() {
            let count = fitting(ops[done..].iter().map(|op| op.from.len()));
            self.write_frame(&ops[done..done + count], deadline).map_err(|error| error.behind(done))?;
            done += count;
        }
        Ok(())
    }

    fn is_worn(&self) -> bool {
        self.stream.is_worn()
    }
}

impl LinkError {
    /// The same error, its index counted from `done` operations earlier.
    fn behind(self, done: usize) -> LinkError {
        match self {
            LinkError::Refused { index, refusal } => LinkError::Refused { index: index + done, refusal },
            other => other,
        }
    }
}
