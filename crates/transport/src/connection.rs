//! The answering side of one connection: receives frames and sends replies, in order.
//!
//! Requests that arrived together are answered together, so that a peer that pipelines costs one write call for many
//! replies. Small requests and replies pass through buffers, where many of them share one system call. The bytes of
//! larger reads and writes move straight between the regions and the socket. One call moves at most 256 KiB, because
//! the revocation of a region has to wait for a call that uses its memory. The peer receives these bytes while the next
//! call is prepared. Bytes that need a checksum, or that TLS encrypts, pass through buffers whatever their size.

use crate::admission::AdmittedStream;
use crate::lane::{Successor, stay_between};
use crate::outgoing::Outgoing;
use crate::serve::{
    Conversation, Intent, Mappable, Next, Peer, RefusedAt, Service, refuse, refuse_at, reject,
};
use crate::socket::{Interest, Stream, write_full};
use farpool_wire::data::{Span, spans_behind};
use farpool_wire::frame::{Header, MAGIC};
use farpool_wire::limits::{CHUNK_BYTES_MAX, FRAME_BODY_BYTES_MAX, HEADER_BYTES};
use farpool_wire::{Code, MonoNs, Opcode, Payload, Refusal, WireError};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

/// Initial size of the receive buffer in bytes. It grows to the largest frame received.
const INPUT_BYTES_START: usize = 64 << 10;
/// Most bytes received by one call, unless a frame needs more. The remaining payload of a large write then goes
/// straight to its region.
const INPUT_BYTES_TAKEN: usize = 16 << 10;
/// Pending replies are sent at this many bytes, even if more requests have arrived.
const OUTPUT_BYTES_FLUSH: usize = 256 << 10;
/// Reads below this many bytes share a call with the replies around them, if there are any. Copying so few bytes costs
/// less than a call of their own (`docs/decisions/0011-data-path.md`).
const STREAM_BYTES_MIN: u64 = 16 << 10;
/// Milliseconds after which a peer that does not receive its replies is disconnected.
const SEND_PATIENCE_MS: u64 = 30_000;

/// Buffer of bytes that were received and not answered yet.
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of all frames that were removed.
    taken: u64,
}

impl Input {
    fn new() -> Self {
        Input { buffer: vec![0; INPUT_BYTES_START], start: 0, end: 0, taken: 0 }
    }

    /// Returns the header of the next frame. `None` if part of it is missing.
    fn header(&self) -> Result<Option<Header>, WireError> {
        let waiting = self.waiting();
        // The first four bytes are checked early: a peer that speaks another protocol may never send a whole header.
        if let Some(found) = waiting.first_chunk::<4>()
            && *found != MAGIC
        {
            return Err(WireError::Magic { found: *found });
        }
        waiting.first_chunk::<HEADER_BYTES>().map(Header::decode).transpose()
    }

    fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the bytes of the next frame's body that have been received.
    fn body(&self, header: &Header) -> &[u8] {
        let begun = self.waiting().get(HEADER_BYTES..).unwrap_or_default();
        &begun[..begun.len().min(header.body_bytes as usize)]
    }

    fn has_whole(&self, header: &Header) -> bool {
        self.body(header).len() == header.body_bytes as usize
    }

    /// Removes the first `count` bytes.
    fn take(&mut self, count: usize) {
        self.start += count;
        self.taken += count as u64;
    }

    /// Makes room for a frame of `whole` bytes at the front. The size is bounded, because `Header::decode` refuses
    /// longer bodies.
    fn make_room(&mut self, whole: usize) {
        debug_assert!(whole <= HEADER_BYTES + FRAME_BODY_BYTES_MAX);
        if self.start > 0 && (self.start == self.end || self.start + whole > self.buffer.len()) {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if whole > self.buffer.len() {
            self.buffer.resize(whole, 0);
        }
    }

    /// Waits for bytes and receives them, with room for a frame of `whole` bytes. Returns false at the end of the
    /// connection.
    fn receive(&mut self, stream: &mut AdmittedStream<'_>, whole: usize) -> io::Result<bool> {
        self.make_room(whole);
        let most = INPUT_BYTES_TAKEN.max(whole - (self.end - self.start));
        let room = self.end..self.buffer.len().min(self.end + most);
        let count = patiently(stream, Interest::Readable, MonoNs(u64::MAX), |stream| {
            stream.read(&mut [IoSliceMut::new(&mut self.buffer[room.clone()])])
        })?;
        self.end += count;
        Ok(count > 0)
    }
}

/// Retries a non-blocking operation until it succeeds, and waits for the stream before each retry.
fn patiently<T>(
    stream: &mut AdmittedStream<'_>,
    interest: Interest,
    deadline: MonoNs,
    mut attempt: impl FnMut(&mut AdmittedStream<'_>) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match attempt(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.wait(interest, deadline)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => {
                stream.heard();
                return other;
            }
        }
    }
}

/// Serves one connection until the peer leaves, the peer breaks the protocol or the socket is shut down.
pub(crate) fn serve(stream: &mut dyn Stream, peer: Peer, service: &dyn Service) -> io::Result<()> {
    let input = Input::new();
    let conversation = Conversation::new(peer);
    let mut connection = Connection {
        stream: AdmittedStream::new(stream),
        service,
        conversation,
        input,
        out: Outgoing::default(),
    };
    let ended = connection.serve();
    if let Some(peer) = connection.conversation.greeted_peer() {
        service.ended(peer);
    }
    ended
}

struct Connection<'c> {
    stream: AdmittedStream<'c>,
    service: &'c dyn Service,
    conversation: Conversation,
    input: Input,
    /// Replies that have not been sent yet.
    out: Outgoing,
}

impl Connection<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let header = match self.input.header() {
                Ok(header) => header,
                Err(error) => return self.hang_up(error),
            };
            let goes_on = match &header {
                Some(header) if self.input.has_whole(header) => match self.delay(header)? {
                    None => self.timed(header, Self::answer)?,
                    Some(refusal) => {
                        refuse(header, refusal, &mut self.out);
                        self.input.take(HEADER_BYTES + header.body_bytes as usize);
                        true
                    }
                },
                Some(header) if self.streams(header) && is_write(header) => {
                    self.timed(header, Self::take_write)?
                }
                _ => {
                    self.flush()?;
                    let body_bytes = header.map_or(0, |header| header.body_bytes as usize);
                    self.input.receive(&mut self.stream, HEADER_BYTES + body_bytes)?
                }
            };
            if !goes_on {
                return self.flush();
            }
        }
    }

    /// Answers a frame and counts how long it took. The wait for admission is part of it, and so is the wait for the
    /// rest of a long frame. A frame that hands the connection over is not counted, because its successor serves on.
    fn timed(
        &mut self,
        header: &Header,
        answer: impl FnOnce(&mut Self, &Header) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let service = self.service;
        let Some(times) = service.times() else { return answer(self, header) };
        let (begun, taken) = (farpool_host::clock::now(), self.input.taken);
        let goes_on = answer(self, header)?;
        let is_answered = goes_on && self.input.taken != taken;
        if let Some(peer) = self.conversation.greeted_peer().filter(|_| is_answered) {
            let ns = farpool_host::clock::now().0.saturating_sub(begun.0);
            times.note(peer.connection, peer.kind(), header.opcode, ns);
        }
        Ok(goes_on)
    }

    /// Sends the reason of a protocol error. The connection ends after it.
    fn hang_up(&mut self, error: WireError) -> io::Result<()> {
        reject(error, &mut self.out);
        self.flush()
    }

    fn streams(&self, header: &Header) -> bool {
        self.stream.socket().is_some() && self.conversation.may_stream(header)
    }

    /// Waits before a frame that has been received whole is answered, if its service delays it and the peer has sent
    /// nothing more. Returns the refusal with which the service answers instead.
    fn delay(&mut self, header: &Header) -> io::Result<Option<Refusal>> {
        let whole = HEADER_BYTES + header.body_bytes as usize;
        if !header.opcode.may_be_delayed() || self.input.waiting().len() > whole {
            return Ok(None);
        }
        let Connection { service, conversation, input, .. } = self;
        match conversation.delay(*service, header, input.body(header)) {
            Ok(None) => Ok(None),
            Ok(Some(delay)) => {
                self.flush()?;
                self.stream.leave();
                delay.sleep(&mut self.stream).map(|()| None)
            }
            Err(refusal) => Ok(Some(refusal)),
        }
    }

    /// Answers a frame that has been received whole. Reports whether the connection continues.
    fn answer(&mut self, header: &Header) -> io::Result<bool> {
        if matches!(header.opcode, Opcode::Read | Opcode::ReadBatch) && self.streams(header) {
            return self.give_read(header);
        }
        if header.opcode == Opcode::Attach {
            // Descriptors are sent with the first bytes of a write to the socket, and those must be the bytes of their
            // own reply.
            self.flush()?;
        }
        let next = self.answer_whole(header);
        self.input.take(HEADER_BYTES + header.body_bytes as usize);
        if !self.stream.has_begun()
            && let Some(peer) = self.conversation.greeted_peer()
        {
            self.stream.begin(self.service.admission(peer));
        }
        match next {
            Next::Continue if self.out.len() >= OUTPUT_BYTES_FLUSH => self.flush()?,
            Next::Continue => {}
            Next::Bytes(bytes) => self.flush_with(&bytes)?,
            Next::Memory(memory) => {
                let Mappable::Files { region, words } = *memory else {
                    return Err(io::ErrorKind::Unsupported.into());
                };
                let sent = self.stream.write_with_descriptors(&self.out, [region.as_fd(), words.as_fd()])?;
                self.out.sent(sent);
                self.flush()?;
            }
            Next::HandOver(successor) => {
                self.hand_over(successor)?;
                return Ok(false);
            }
            Next::HangUp => return Ok(false),
        }
        Ok(true)
    }

    /// Sends all pending replies, then hands the connection's descriptors over to the successor, which answers from
    /// then on. A connection that cannot be handed over (TLS) stays here, and its frames are forwarded.
    fn hand_over(&mut self, successor: Box<dyn Successor>) -> io::Result<()> {
        self.flush()?;
        self.stream.leave();
        // A peer must not send anything before it has the reply. The successor would not see bytes that were already
        // received here.
        if !self.input.waiting().is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match self.stream.hand_over() {
            Ok(connection) => successor.take(connection),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                stay_between(&mut self.stream, successor)
            }
            Err(error) => Err(error),
        }
    }

    /// Answers a whole frame through buffers. If the frame moves data, first waits until the node admits the
    /// connection, because only some connections may move data at a time. Other frames are answered without admission,
    /// because they may take long.
    fn answer_whole(&mut self, header: &Header) -> Next {
        let Connection { stream, service, conversation, input, out } = self;
        if !is_data(header) && header.opcode != Opcode::NextChunk {
            stream.leave();
            return conversation.answer(*service, header, input.body(header), out);
        }
        stream.enter();
        if !is_data(header) {
            conversation.note_waited(stream.take_waited_ns());
        }
        let before = out.len();
        let next = conversation.answer(*service, header, input.body(header), out);
        let moved = (out.len() - before).max(header.body_bytes as usize) as u64;
        stream.note_moved(if is_data(header) { moved } else { moved + conversation.worked() });
        next
    }

    /// Answers a read. The bytes go straight from memory to the socket, except those of a small read that shares a call
    /// with other replies.
    fn give_read(&mut self, header: &Header) -> io::Result<bool> {
        self.stream.enter();
        let Connection { stream, service, conversation, input, out } = self;
        let whole = HEADER_BYTES + header.body_bytes as usize;
        let Ok((spans, total)) = conversation.ranges_to_send(header, input.body(header)) else {
            conversation.answer(*service, header, input.body(header), out);
            return Ok(false);
        };
        let is_alone = out.is_empty() && input.waiting().len() == whole;
        if total < STREAM_BYTES_MIN && !is_alone {
            conversation.answer(*service, header, input.body(header), out);
            stream.note_moved(total);
            input.take(whole);
            if self.out.len() >= OUTPUT_BYTES_FLUSH {
                self.flush()?;
            }
            return Ok(true);
        }
        input.take(whole);
        let before = out.len();
        out.extend(&Header { body_bytes: total as u32, ..header.reply(&[], None) }.encode());
        match stream_out(stream, *service, spans, total, out) {
            Ok(sent) => sent.map(|()| true),
            Err((index, refusal)) => {
                out.truncate(before);
                refuse_at(header, index, refusal, out);
                Ok(true)
            }
        }
    }

    /// Receives a write whose payload is still arriving, straight into memory.
    fn take_write(&mut self, header: &Header) -> io::Result<bool> {
        // The peer may wait for earlier replies before it sends the rest.
        self.flush()?;
        let Connection { stream, service, conversation, input, out } = self;
        let (spans, table) = match conversation.ranges_to_receive(header, input.body(header)) {
            Ok(Some(found)) => found,
            Ok(None) => {
                let known = input.body(header).len();
                return input.receive(stream, HEADER_BYTES + known + 1);
            }
            Err(_) => {
                refuse(header, Refusal::new(Code::Malformed, header.opcode as u64), out);
                return Ok(false);
            }
        };
        let here = input.body(header)[table..].len();
        stream.enter();
        stream.note_moved(here as u64);
        let mut refused = service.admits(spans, Intent::Write).err();
        if refused.is_none() {
            refused = write_front(*service, spans, &input.body(header)[table..]).err();
        }
        input.take(HEADER_BYTES + table + here);
        let total = u64::from(header.body_bytes) - table as u64;
        let mut done = here as u64;
        while done < total {
            let mut has_waited = false;
            let count = patiently(stream, Interest::Readable, MonoNs(u64::MAX), |stream| {
                // Checking whether bytes have arrived costs less than a call of the service that has nothing to
                // receive.
                if std::mem::replace(&mut has_waited, true) && !stream.is_readable() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                stream.enter();
                if refused.is_none()
                    && let Some(socket) = stream.socket()
                {
                    match service.receive(socket, spans, done) {
                        Ok(received) => return received,
                        Err(refusal) => refused = Some(refusal),
                    }
                }
                // The write was refused. Its remaining bytes are received and thrown away, so that the next frame can
                // be read.
                input.make_room(INPUT_BYTES_START);
                let most = input.buffer.len().min((total - done) as usize);
                stream.read(&mut [IoSliceMut::new(&mut input.buffer[..most])])
            })?;
            if count == 0 {
                return Ok(false);
            }
            stream.note_moved(count as u64);
            done += count as u64;
        }
        match refused {
            None => out.reply(header, &[], None),
            Some((index, refusal)) => refuse_at(header, index, refusal, out),
        }
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.out.is_empty() { Ok(()) } else { self.flush_with(&Payload::default()) }
    }

    /// Sends the pending replies, then these bytes.
    fn flush_with(&mut self, bytes: &Payload<CHUNK_BYTES_MAX>) -> io::Result<()> {
        let deadline = farpool_host::clock::now().plus_ms(SEND_PATIENCE_MS);
        let mut parts: Vec<IoSlice<'_>> =
            std::iter::once(&self.out[..]).chain(bytes.slices()).map(IoSlice::new).collect();
        write_full(&mut self.stream, &mut parts, deadline)?;
        self.out.clear();
        self.stream.note_sent();
        Ok(())
    }
}

fn is_data(header: &Header) -> bool {
    is_write(header) || matches!(header.opcode, Opcode::Read | Opcode::ReadBatch)
}

fn is_write(header: &Header) -> bool {
    matches!(header.opcode, Opcode::Write | Opcode::WriteBatch)
}

/// Sends `out`, then the ranges. Returns a refusal only if nothing has been sent.
fn stream_out(
    stream: &mut AdmittedStream<'_>,
    service: &dyn Service,
    spans: &[Span],
    total: u64,
    out: &mut Outgoing,
) -> Result<io::Result<()>, RefusedAt> {
    // Ranges that the first call does not reach are checked before it, because a reply that has begun cannot be
    // withdrawn.
    if spans.len() > 1 || total == 0 || total > OUTPUT_BYTES_FLUSH as u64 {
        service.admits(spans, Intent::Read)?;
    }
    let head_bytes = out.len() as u64;
    let mut sent = 0;
    let deadline = farpool_host::clock::now().plus_ms(SEND_PATIENCE_MS);
    while sent < head_bytes + total {
        let (mut refused, mut has_waited) = (None, false);
        let count = patiently(stream, Interest::Writable, deadline, |stream| {
            // Checking whether the socket is writable costs less than a call of the service that can send nothing.
            if std::mem::replace(&mut has_waited, true) && !stream.is_writable() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            stream.enter();
            let socket = stream.socket().ok_or(io::ErrorKind::Unsupported)?;
            let head = out.get(sent as usize..).unwrap_or_default();
            match service.send(socket, head, spans, sent.saturating_sub(head_bytes)) {
                Ok(sent) => sent,
                Err(at) => {
                    refused = Some(at);
                    Ok(0)
                }
            }
        });
        match (count, refused) {
            (_, Some(at)) if sent == 0 => return Err(at),
            // The client reconnects, retries, and then gets the refusal.
            (_, Some(_)) => return Ok(Err(io::ErrorKind::ConnectionAborted.into())),
            (Ok(0), None) => return Ok(Err(io::ErrorKind::WriteZero.into())),
            (Ok(count), None) => {
                stream.note_moved(count as u64);
                sent += count as u64;
            }
            (Err(error), None) => return Ok(Err(error)),
        }
    }
    out.clear();
    stream.note_sent();
    Ok(Ok(()))
}

/// Writes the part of a payload that has arrived.
fn write_front(service: &dyn Service, spans: &[Span], mut payload: &[u8]) -> Result<(), RefusedAt> {
    for (index, span) in spans_behind(spans, 0) {
        let (bytes, behind) = payload.split_at(payload.len().min(span.bytes as usize));
        if bytes.is_empty() {
            break;
        }
        let part = Span { bytes: bytes.len() as u32, ..span };
        service.write(&part, bytes).map_err(|refusal| (index, refusal))?;
        payload = behind;
    }
    Ok(())
}
