//! Connections that one process hands over to another.
//!
//! A connection consists of a socket. If its messages pass through rings in shared memory, it also has that memory,
//! which holds the state of both directions. A process that has answered all requests can pass these descriptors to
//! another process, which answers from then on. The peer notices nothing, and bytes on their way are not lost. A TLS
//! connection also has keys, which cannot be passed on. Then the first process stays in between and forwards frames in
//! both directions.

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

/// Deadline in milliseconds for accepting the shared memory that this process has just sent to itself. It is there
/// already.
const LOCAL_MS: u64 = 1_000;

/// Descriptors of a connection that is handed over.
#[derive(Debug)]
pub enum HandedOver {
    /// A TCP socket.
    Tcp(OwnedFd),
    /// A Unix socket.
    Unix(OwnedFd),
    /// A Unix socket that is used for wake-ups, and the shared memory with the rings of both directions.
    Ring(OwnedFd, OwnedFd),
}

impl HandedOver {
    /// Returns the kind as a number from 0 to 2, for the process that sends the descriptors on.
    pub fn kind(&self) -> u8 {
        match self {
            HandedOver::Tcp(_) => 0,
            HandedOver::Unix(_) => 1,
            HandedOver::Ring(..) => 2,
        }
    }

    /// Returns the descriptors to send on.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            HandedOver::Tcp(socket) | HandedOver::Unix(socket) => vec![socket.as_fd()],
            HandedOver::Ring(socket, memory) => vec![socket.as_fd(), memory.as_fd()],
        }
    }

    /// Builds a connection from a kind and descriptors that another process sent. `None` if they do not belong
    /// together.
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

    /// Continues the connection where the other process left it.
    pub fn resume(self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            HandedOver::Tcp(socket) => Box::new(Socket::tcp(TcpStream::from(socket))?),
            HandedOver::Unix(socket) => Box::new(Socket::unix(UnixStream::from(socket))?),
            HandedOver::Ring(socket, memory) => {
                Box::new(RingStream::resume(Socket::unix(UnixStream::from(socket))?, memory)?)
            }
        })
    }

    /// Duplicates the descriptors.
    pub fn try_clone(&self) -> io::Result<HandedOver> {
        Ok(match self {
            HandedOver::Tcp(socket) => HandedOver::Tcp(socket.try_clone()?),
            HandedOver::Unix(socket) => HandedOver::Unix(socket.try_clone()?),
            HandedOver::Ring(socket, memory) => HandedOver::Ring(socket.try_clone()?, memory.try_clone()?),
        })
    }
}

/// Receiver of a connection that is handed over. It is called once the reply that announces the change has been sent.
pub trait Successor: Send {
    /// Takes the connection over. An error ends the connection.
    fn take(self: Box<Self>, connection: HandedOver) -> io::Result<()>;
}

/// Answering side of a call lane, a connection on which functions are called: takes requests and sends replies, one at
/// a time.
pub struct Lane {
    stream: Box<dyn Stream>,
    frame: Vec<u8>,
    filled: usize,
    out: Outgoing,
    body: Vec<u8>,
}

impl Lane {
    /// Wraps a connection on which the greeting is over.
    pub fn over(stream: Box<dyn Stream>) -> Lane {
        let frame = vec![0; 64 << 10];
        Lane { stream, frame, filled: 0, out: Outgoing::default(), body: Vec::new() }
    }

    /// Waits for the next request. Returns `None` at the end of the connection, and an error if the peer breaks the
    /// protocol.
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
            // `Header::decode` refuses longer bodies, so the size is bounded.
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

    /// Sends the reply to the request with the header `to`.
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

/// Makes a call lane within this machine. Returns the caller's link and the connection for the answering side.
pub fn local_lane() -> io::Result<(Box<dyn Link>, HandedOver)> {
    let (near, far) = UnixStream::pair()?;
    let offered = RingStream::offer(Socket::unix(far)?)?.hand_over()?;
    let deadline = farpool_host::clock::now().plus_ms(LOCAL_MS);
    let ring = RingStream::accept(Socket::unix(near)?, deadline)?;
    Ok((Box::new(FrameLink::greeted(ring, Transport::Shm)), offered))
}

/// Forwards one whole frame from one stream to the other. Returns false at the end of the connection.
fn carry(from: &mut dyn Stream, to: &mut dyn Stream, frame: &mut Vec<u8>) -> io::Result<bool> {
    let forever = MonoNs(u64::MAX);
    frame.resize(HEADER_BYTES, 0);
    match read_full(from, &mut [IoSliceMut::new(frame)], forever) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        other => other?,
    }
    let Some(head) = frame.first_chunk::<HEADER_BYTES>() else { return Ok(false) };
    let header = Header::decode(head).map_err(invalid)?;
    // `Header::decode` refuses longer bodies, so the size is bounded.
    frame.resize(HEADER_BYTES + header.body_bytes as usize, 0);
    read_full(from, &mut [IoSliceMut::new(&mut frame[HEADER_BYTES..])], forever)?;
    write_full(to, &mut [IoSlice::new(frame)], forever)?;
    Ok(true)
}

/// Forwards frames between a connection that cannot be handed over and its successor, until one of them disconnects.
pub(crate) fn stay_between(stream: &mut dyn Stream, successor: Box<dyn Successor>) -> io::Result<()> {
    let (near, far) = UnixStream::pair()?;
    std::thread::scope(|threads| {
        // Some successors do the work in this call, and return when it is done. They need a thread of their own.
        threads.spawn(|| successor.take(HandedOver::Unix(far.into())));
        let mut behind = Socket::unix(near)?;
        let mut frame = Vec::new();
        while carry(stream, &mut behind, &mut frame)? && carry(&mut behind, stream, &mut frame)? {}
        Ok(())
    })
}
