//! Connections that change hands: from the process that greeted to one that goes on.
//!
//! The idea: what a connection is made of is a socket, and perhaps the memory of a ring, whose state both sides see. A
//! process that has answered all that was asked can hand these to another one, which answers from then on; neither the
//! peer nor a byte on its way notices. A connection that TLS seals has secrets besides: the process that has them stays
//! between, and carries frames to and fro.

use crate::client::FrameLink;
use crate::outgoing::Outgoing;
use crate::shm::ring::RingStream;
use crate::socket::{Interest, Socket, Stream, read_full, write_full};
use crate::{Link, Transport};
use farpool_wire::frame::Header;
use farpool_wire::limits::{FRAME_BODY_BYTES_MAX, HEADER_BYTES};
use farpool_wire::{MonoNs, Refusal, Reply, Request, WireError};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A ring that was offered within this process is there.
const LOCAL_MS: u64 = 1_000;

/// What a connection is made of.
#[derive(Debug)]
pub enum HandedOver {
    /// A TCP socket.
    Tcp(OwnedFd),
    /// A Unix socket.
    Unix(OwnedFd),
    /// A Unix socket that calls, and the memory of the node's side of a ring.
    Ring(OwnedFd, OwnedFd),
}

impl HandedOver {
    /// The kind as a number, for whoever sends the descriptors on: 0 to 2.
    pub fn kind(&self) -> u8 {
        match self {
            HandedOver::Tcp(_) => 0,
            HandedOver::Unix(_) => 1,
            HandedOver::Ring(..) => 2,
        }
    }

    /// The descriptors, to be sent on.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            HandedOver::Tcp(socket) | HandedOver::Unix(socket) => vec![socket.as_fd()],
            HandedOver::Ring(socket, memory) => vec![socket.as_fd(), memory.as_fd()],
        }
    }

    /// Puts together what was sent on. Nothing if it is not a connection.
    pub fn of(kind: u8, descriptors: Vec<OwnedFd>) -> Option<HandedOver> {
        let mut descriptors = descriptors.into_iter();
        let handed = match (kind, descriptors.next()?, descriptors.next()) {
            (0, socket, None) => HandedOver::Tcp(socket),
            (1, socket, None) => HandedOver::Unix(socket),
            (2, socket, Some(memory)) => HandedOver::Ring(socket, memory),
            _ => return None,
        };
        descriptors.next().is_none().then_some(handed)
    }

    /// Goes on with the connection where it was left.
    pub fn resume(self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            HandedOver::Tcp(socket) => Box::new(Socket::tcp(TcpStream::from(socket))?),
            HandedOver::Unix(socket) => Box::new(Socket::unix(UnixStream::from(socket))?),
            HandedOver::Ring(socket, memory) => {
                Box::new(RingStream::resume(Socket::unix(UnixStream::from(socket))?, memory)?)
            }
        })
    }

    /// A second handle on the same connection.
    pub fn try_clone(&self) -> io::Result<HandedOver> {
        Ok(match self {
            HandedOver::Tcp(socket) => HandedOver::Tcp(socket.try_clone()?),
            HandedOver::Unix(socket) => HandedOver::Unix(socket.try_clone()?),
            HandedOver::Ring(socket, memory) => HandedOver::Ring(socket.try_clone()?, memory.try_clone()?),
        })
    }
}

/// Whoever goes on with a connection once the reply that says so has left.
pub trait Successor: Send {
    /// Takes it over. An error ends the connection.
    fn take(self: Box<Self>, connection: HandedOver) -> io::Result<()>;
}

/// A connection that was taken over: requests in, replies out, one at a time.
pub struct Lane {
    stream: Box<dyn Stream>,
    frame: Vec<u8>,
    filled: usize,
    out: Outgoing,
    body: Vec<u8>,
}

impl Lane {
    /// Over a connection that has greeted.
    pub fn over(stream: Box<dyn Stream>) -> Lane {
        let frame = vec![0; 64 << 10];
        Lane { stream, frame, filled: 0, out: Outgoing::default(), body: Vec::new() }
    }

    /// Waits for the next request. Nothing at the end of the connection, or if the peer breaks the protocol.
    pub fn take_request(&mut self) -> io::Result<Option<(Header, Request)>> {
        loop {
            let mut wanted = HEADER_BYTES;
            if let Some(head) = self.frame[..self.filled].first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(head).map_err(invalid)?;
                wanted += header.body_bytes as usize;
                if self.filled >= wanted {
                    let body = &self.frame[HEADER_BYTES..wanted];
                    header.check_body(body).map_err(invalid)?;
                    let request = Request::decode(header.opcode, body).map_err(invalid)?;
                    self.frame.copy_within(wanted..self.filled, 0);
                    self.filled -= wanted;
                    return Ok(Some((header, request)));
                }
            }
            // Bounded: `Header::decode` refuses longer bodies.
            if self.frame.len() < wanted {
                self.frame.resize(wanted.min(HEADER_BYTES + FRAME_BODY_BYTES_MAX), 0);
            }
            match self.stream.read(&mut [IoSliceMut::new(&mut self.frame[self.filled..])]) {
                Ok(0) => return Ok(None),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait(Interest::Readable, MonoNs(u64::MAX))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers the request of this header.
    pub fn reply(&mut self, to: &Header, answer: Result<Reply, Refusal>, deadline: MonoNs) -> io::Result<()> {
        self.body.clear();
        match answer {
            Ok(reply) => {
                reply.encode(&mut self.body);
                self.out.reply(to, &self.body, None);
            }
            Err(refusal) => self.out.reply(to, &[], Some(refusal)),
        }
        let sent = write_full(&mut *self.stream, &mut [IoSlice::new(&self.out)], deadline);
        self.out.clear();
        sent
    }
}

fn invalid(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A lane within this machine: the caller's link, and what is to be handed over to whoever answers.
pub fn local_lane() -> io::Result<(Box<dyn Link>, HandedOver)> {
    let (near, far) = UnixStream::pair()?;
    let offered = RingStream::offer(Socket::unix(far)?)?.hand_over()?;
    let deadline = farpool_host::clock::now().plus_ms(LOCAL_MS);
    let ring = RingStream::accept(Socket::unix(near)?, deadline)?;
    Ok((Box::new(FrameLink::greeted(ring, Transport::Shm)), offered))
}

/// Carries one whole frame from a stream to another. False at the end of the connection.
fn carry(from: &mut dyn Stream, to: &mut dyn Stream, frame: &mut Vec<u8>) -> io::Result<bool> {
    let forever = MonoNs(u64::MAX);
    frame.resize(HEADER_BYTES, 0);
    match read_full(from, &mut [IoSliceMut::new(frame)], forever) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        other => other?,
    }
    let Some(head) = frame.first_chunk::<HEADER_BYTES>() else { return Ok(false) };
    let header = Header::decode(head).map_err(invalid)?;
    // Bounded: `Header::decode` refuses longer bodies.
    frame.resize(HEADER_BYTES + header.body_bytes as usize, 0);
    read_full(from, &mut [IoSliceMut::new(&mut frame[HEADER_BYTES..])], forever)?;
    write_full(to, &mut [IoSlice::new(frame)], forever)?;
    Ok(true)
}

/// Stays between a connection that cannot be handed over and whoever takes its place, until one of them leaves.
pub(crate) fn stay_between(stream: &mut dyn Stream, successor: Box<dyn Successor>) -> io::Result<()> {
    let (near, far) = UnixStream::pair()?;
    std::thread::scope(|threads| {
        // Some go on right here, and for as long as there is something to do.
        threads.spawn(|| successor.take(HandedOver::Unix(far.into())));
        let mut behind = Socket::unix(near)?;
        let mut frame = Vec::new();
        while carry(stream, &mut behind, &mut frame)? && carry(&mut behind, stream, &mut frame)? {}
        Ok(())
    })
}
