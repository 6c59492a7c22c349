//! A stream through shared memory: two rings of bytes, and a Unix socket that wakes the other side.
//!
//! Client and node of one host exchange messages through memory that both have mapped. While both sides are awake, a
//! request and its reply cost two cache lines and no system call. When a side has been idle for a while it parks: it
//! waits for a byte on the socket over which the two connected. The other side sends that byte when it has moved bytes
//! and sees the parked flag. The socket also shows when the other side is gone, and carries descriptors. The socket
//! alone would cost both sides system calls for each message.
//!
//! The node makes the memory, fixes its size with file seals, and sends it with the first byte of the connection.
//! Neither side trusts the values that the other writes there: see [`protocol`].

pub mod protocol;

use super::descriptors::{receive_descriptors, send_descriptors};
use super::mapping::{Access, Mapping};
use super::{Mapped, MappedBytes, address_of};
use crate::lane::HandedOver;
use crate::socket::{Interest, Socket, Stream};
use farpool_host::clock;
use farpool_host::waiting::{WaitStep, Waiter, time_left};
use farpool_wire::MonoNs;
use protocol::{Impossible, RingSide, Word, Words};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Bytes of each ring. The one from client to node carries small requests. The one from node to client is larger, so
/// that the node can write the next batch of rows while the client reads one. Longer frames pass in several steps.
const RING_BYTES: [u64; 2] = [64 << 10, 512 << 10];
/// Bytes before the rings. They hold the words of both rings (byte counts and parked flags), each on a cache line of
/// its own.
const WORDS_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
const MEMORY_BYTES: u64 = WORDS_BYTES + RING_BYTES[0] + RING_BYTES[1];
/// Byte on the socket that wakes the other side.
const BELL: u8 = b'!';
/// Number of checks of the ring after which a side that spins checks the socket too.
const LOOKS_UNHEARD: u32 = 1 << 12;
/// Limit of descriptors received together. The node never sends more with one wake-up byte.
const DESCRIPTORS_MAX: usize = 2;

/// One ring of the memory: index 0 from client to node, 1 back.
struct Ring<'m> {
    memory: &'m Mapping,
    index: u64,
}

impl Ring<'_> {
    fn at(&self, word: Word) -> u64 {
        (4 * self.index + word as u64) * LINE_BYTES
    }

    fn bytes_at(&self, offset: u64) -> u64 {
        WORDS_BYTES + if self.index == 0 { 0 } else { RING_BYTES[0] } + offset
    }

    fn bytes(&self) -> u64 {
        bytes_of(self.index)
    }

    /// Returns the ranges of the ring that hold `count` bytes from `offset` on, as offset and length. There are two if
    /// the bytes wrap around the end.
    fn runs(&self, offset: u64, count: u64) -> [(u64, usize); 2] {
        let first = count.min(self.bytes() - offset);
        [(offset, first as usize), (0, (count - first) as usize)]
    }
}

impl Words for Ring<'_> {
    fn load(&self, word: Word) -> u64 {
        // The offsets are constants inside the mapping.
        self.memory.word(self.at(word)).unwrap_or_default()
    }

    fn store(&self, word: Word, value: u64) {
        self.memory.store_word(self.at(word), value);
    }

    fn swap(&self, word: Word, value: u64) -> u64 {
        self.memory.swap_word(self.at(word), value)
    }

    fn fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// One side of a connection through shared memory.
pub struct RingStream {
    socket: Socket,
    memory: Mapping,
    /// File that `memory` maps.
    file: OwnedFd,
    reader: RingSide,
    writer: RingSide,
    /// Index of the ring that this side reads. It writes the other.
    reads: u64,
    waiter: Waiter,
    /// Checks of the ring since the stream began, while spinning.
    looks: u32,
    has_ended: bool,
    /// Descriptors received with a wake-up byte.
    beside: Vec<OwnedFd>,
}

fn damaged(_: Impossible) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the peer of a shared-memory ring shows an impossible byte count",
    )
}

impl RingStream {
    /// Makes the memory of both rings and sends it to the client over the socket. This is the node's side.
    pub(crate) fn offer(socket: Socket) -> io::Result<RingStream> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create("farpool-ring", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag; later ones may insist on it.
            Err(rustix::io::Errno::INVAL) => memfd_create("farpool-ring", flags)?,
            other => other?,
        };
        ftruncate(&fd, MEMORY_BYTES)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Mapping::new(fd.as_fd(), MEMORY_BYTES as usize, Access::ReadWrite)?;
        send_descriptors(&socket, &[BELL], &[fd.as_fd()])?;
        Ok(RingStream::over(socket, memory, fd, 0))
    }

    /// Continues the node's side of a ring that another process has begun. The memory shows how many bytes each side
    /// has moved. A peer that has changed these counts damages only its own connection.
    pub(crate) fn resume(socket: Socket, file: OwnedFd) -> io::Result<RingStream> {
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Mapping::new(file.as_fd(), MEMORY_BYTES as usize, Access::ReadWrite)?;
        let mut stream = RingStream::over(socket, memory, file, 0);
        let (reads, writes) = (stream.ring(0), stream.ring(1));
        let (reader, writer) = (stream.reader.resumed(&reads), stream.writer.resumed(&writes));
        (stream.reader, stream.writer) = (reader, writer);
        Ok(stream)
    }

    /// Connects to a node's Unix socket. This is the client's side.
    pub fn connect(socket: &str, deadline: MonoNs) -> io::Result<RingStream> {
        RingStream::accept(UnixStream::connect_addr(&address_of(socket)?).and_then(Socket::unix)?, deadline)
    }

    /// Receives the memory of both rings from the node, and maps it.
    pub(crate) fn accept(mut socket: Socket, deadline: MonoNs) -> io::Result<RingStream> {
        let mut fds = Vec::new();
        let count = loop {
            match receive_descriptors(&socket, &mut [0], &mut fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket.wait(Interest::Readable, deadline)?;
                }
                other => break other?,
            }
        };
        let (1, Some(fd)) = (fds.len(), fds.pop()) else {
            let kind = if count == 0 { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidData };
            return Err(kind.into());
        };
        // A process that could shrink the file could kill this one by SIGBUS.
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Mapping::new(fd.as_fd(), MEMORY_BYTES as usize, Access::ReadWrite)?;
        socket.heard();
        socket.rest();
        Ok(RingStream::over(socket, memory, fd, 1))
    }

    fn over(socket: Socket, memory: Mapping, file: OwnedFd, reads: u64) -> RingStream {
        let (reader, writer) = (RingSide::reader(bytes_of(reads)), RingSide::writer(bytes_of(1 - reads)));
        let (waiter, beside) = (Waiter::within_host(), Vec::new());
        RingStream { socket, memory, file, reader, writer, reads, waiter, looks: 0, has_ended: false, beside }
    }

    fn ring(&self, index: u64) -> Ring<'_> {
        Ring { memory: &self.memory, index }
    }

    fn call(&self) {
        // Errors are ignored: a full socket holds enough wake-up bytes, and a closed one shows its end by itself.
        let _ = rustix::net::send(
            self.socket.as_fd(),
            &[BELL],
            rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
        );
    }

    /// Receives the pending wake-up bytes, and the descriptors attached to them.
    fn hear(&mut self) -> io::Result<()> {
        let mut bells = [0; 64];
        loop {
            match receive_descriptors(&self.socket, &mut bells, &mut self.beside) {
                Ok(0) => {
                    self.has_ended = true;
                    return Ok(());
                }
                Ok(_) if self.beside.len() > DESCRIPTORS_MAX => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the peer sent more descriptors than were requested",
                    ));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    self.has_ended = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the file descriptors that came with the bytes read so far, each once.
    pub(crate) fn take_beside(&mut self) -> io::Result<Vec<OwnedFd>> {
        self.hear()?;
        Ok(std::mem::take(&mut self.beside))
    }
}

/// Returns the size in bytes of the ring with index 0 or 1.
fn bytes_of(index: u64) -> u64 {
    RING_BYTES[usize::from(index != 0)]
}

impl Stream for RingStream {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        let mut calls = false;
        for slice in into.iter_mut().filter(|slice| !slice.is_empty()) {
            let ring = Ring { memory: &self.memory, index: self.reads };
            let ready = self.reader.ready(&ring).map_err(damaged)?.min(slice.len() as u64);
            if ready == 0 {
                break;
            }
            let mut rest = &mut slice[..ready as usize];
            for (offset, count) in ring.runs(self.reader.offset(), ready) {
                let (part, behind) = rest.split_at_mut(count);
                self.memory.copy_out(ring.bytes_at(offset), part);
                rest = behind;
            }
            calls |= self.reader.advance(&ring, ready);
            total += ready as usize;
        }
        if calls {
            self.call();
        }
        match total {
            0 if into.iter().all(|slice| slice.is_empty()) => Ok(0),
            0 if self.has_ended => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => {
                self.waiter.heard();
                Ok(total)
            }
        }
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut total: u64 = 0;
        let ring = Ring { memory: &self.memory, index: 1 - self.reads };
        let room = self.writer.ready(&ring).map_err(damaged)?;
        for slice in from {
            let fits = (room - total).min(slice.len() as u64);
            let mut rest = &slice[..fits as usize];
            let at = (self.writer.offset() + total) % ring.bytes();
            for (offset, count) in ring.runs(at, fits) {
                let (part, behind) = rest.split_at(count);
                self.memory.copy_in(ring.bytes_at(offset), part);
                rest = behind;
            }
            total += fits;
        }
        if total == 0 {
            let wanted = from.iter().any(|slice| !slice.is_empty());
            return if wanted { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(0) };
        }
        self.waiter.heard();
        if self.writer.advance(&ring, total) {
            self.call();
        }
        Ok(total as usize)
    }

    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()> {
        let left = time_left(deadline, clock::now()).ok_or(io::ErrorKind::TimedOut)?;
        if self.has_ended {
            return Ok(());
        }
        let step = self.waiter.step();
        if step == WaitStep::Look {
            self.looks = self.looks.wrapping_add(1);
            // Only the socket shows that the other side is gone.
            return if self.looks.is_multiple_of(LOOKS_UNHEARD) { self.hear() } else { Ok(()) };
        }
        let (side, index) = match interest {
            Interest::Readable => (self.reader, self.reads),
            Interest::Writable => (self.writer, 1 - self.reads),
        };
        if !side.park(&self.ring(index)).map_err(damaged)? {
            return Ok(());
        }
        let polled = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&step.within(left)));
        side.unpark(&self.ring(index));
        match polled {
            // If the time is over, the next call returns `TimedOut`.
            Ok(0) => Ok(()),
            Ok(_) => self.hear(),
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn is_readable(&mut self) -> bool {
        self.has_ended || self.reader.ready(&self.ring(self.reads)) != Ok(0)
    }

    fn needs_checksums(&self) -> bool {
        false
    }

    fn heard(&mut self) {
        self.waiter.heard();
    }

    fn rest(&mut self) {
        self.waiter.rest();
    }

    fn never_spin(&mut self) {
        self.waiter.never_spin();
    }

    fn hand_over(&self) -> io::Result<HandedOver> {
        // Only the node's side is handed over to another process.
        let HandedOver::Unix(socket) = self.socket.hand_over()? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(HandedOver::Ring(socket, self.file.try_clone()?))
    }

    fn write_with_descriptors(&mut self, from: &[u8], beside: [BorrowedFd<'_>; 2]) -> io::Result<usize> {
        // The descriptors are sent before the bytes they belong to. A peer that reads those bytes finds the
        // descriptors.
        send_descriptors(&self.socket, &[BELL], &beside)?;
        match self.write(&[IoSlice::new(from)]) {
            // The descriptors have been sent; the bytes follow when there is room.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }
}

impl super::MemoryStream for RingStream {
    type Beside = Vec<OwnedFd>;

    fn read_beside(&mut self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let count = self.read(&mut [IoSliceMut::new(into)])?;
        fds.extend(self.take_beside()?);
        Ok(count)
    }

    fn map(
        fds: Vec<OwnedFd>,
        attached: &farpool_wire::control::Attached,
        words: Option<Arc<dyn MappedBytes>>,
    ) -> Result<Mapped, crate::LinkError> {
        super::link::map_files(fds, attached, words)
    }
}
