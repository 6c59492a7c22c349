//! The answering side of one connection: frames in, replies out, in order. Requests that arrived together are
//! answered together, so a pipelining peer costs one write for many replies.

use crate::outgoing::Outgoing;
use crate::serve::{Conversation, Mappable, Next, Peer, Service, reject};
use crate::socket::{Interest, Stream, write_full};
use farpool_wire::frame::{Header, MAGIC};
use farpool_wire::limits::{FRAME_BODY_BYTES_MAX, HEADER_BYTES};
use farpool_wire::{MonoNs, Opcode, WireError};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

/// What a connection begins with for incoming bytes; it grows to the largest frame that comes.
const INPUT_BYTES_START: usize = 64 << 10;
/// Replies are sent when this much has gathered, even if more requests wait.
const OUTPUT_BYTES_FLUSH: usize = 256 << 10;
/// A peer that does not take its replies for this long is cut off.
const SEND_PATIENCE_MS: u64 = 30_000;

/// Bytes received and not yet answered.
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn new() -> Self {
        Input { buffer: vec![0; INPUT_BYTES_START], start: 0, end: 0 }
    }

    /// The next whole frame's header, or how many bytes the buffer must hold for it.
    fn peek(&self) -> Result<Result<Header, usize>, WireError> {
        let waiting = &self.buffer[self.start..self.end];
        // Whoever speaks something else may never send as much as a header.
        if let Some(found) = waiting.first_chunk::<4>()
            && *found != MAGIC
        {
            return Err(WireError::Magic { found: *found });
        }
        let Some(head) = waiting.first_chunk::<HEADER_BYTES>() else { return Ok(Err(HEADER_BYTES)) };
        let header = Header::decode(head)?;
        let whole = HEADER_BYTES + header.body_bytes as usize;
        Ok(if waiting.len() >= whole { Ok(header) } else { Err(whole) })
    }

    /// Room for a frame of `whole` bytes at the front. Bounded: `Header::decode` refuses longer bodies.
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
}

/// Serves one connection until the peer leaves, breaks the protocol or the socket is shut down.
pub(crate) fn serve(stream: &mut dyn Stream, peer: Peer, service: &dyn Service) -> io::Result<()> {
    let mut conversation = Conversation::new(peer);
    let mut input = Input::new();
    let mut out = Outgoing::default();
    loop {
        match input.peek() {
            Err(error) => {
                reject(error, &mut out);
                return flush(stream, &mut out);
            }
            Ok(Ok(header)) => {
                let body_start = input.start + HEADER_BYTES;
                let body_end = body_start + header.body_bytes as usize;
                if header.opcode == Opcode::Attach {
                    // Descriptors go with the first bytes sent, which must be those of their own reply.
                    flush(stream, &mut out)?;
                }
                let next =
                    conversation.answer(service, &header, &input.buffer[body_start..body_end], &mut out);
                input.start = body_end;
                match next {
                    Next::Continue => {
                        if out.len() >= OUTPUT_BYTES_FLUSH {
                            flush(stream, &mut out)?;
                        }
                    }
                    Next::Memory(memory) => {
                        let Mappable::Files { region, words } = *memory else {
                            return Err(io::ErrorKind::Unsupported.into());
                        };
                        let sent = stream.write_with_descriptors(&out, [region.as_fd(), words.as_fd()])?;
                        out.sent(sent);
                        flush(stream, &mut out)?;
                    }
                    Next::HangUp => return flush(stream, &mut out),
                }
            }
            Ok(Err(whole)) => {
                flush(stream, &mut out)?;
                input.make_room(whole);
                let end = input.end;
                match stream.read(&mut [IoSliceMut::new(&mut input.buffer[end..])]) {
                    Ok(0) => return Ok(()),
                    Ok(count) => input.end += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        stream.wait(Interest::Readable, MonoNs(u64::MAX))?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

fn flush(stream: &mut dyn Stream, out: &mut Outgoing) -> io::Result<()> {
    if !out.is_empty() {
        let deadline = crate::clock::now().plus_ms(SEND_PATIENCE_MS);
        write_full(stream, &mut [IoSlice::new(out)], deadline)?;
        out.clear();
    }
    Ok(())
}
