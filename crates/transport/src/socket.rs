//! Byte streams with non-blocking vectored calls, and a wait that ends at a deadline.
//!
//! The framing code on both sides is written against [`Stream`].

use crate::delay::DelayedPeer;
use crate::lane::HandedOver;
use farpool_host::clock;
use farpool_host::waiting::{WaitStep, Waiter, time_left};
use farpool_wire::MonoNs;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes can be read, or the connection has ended.
    Readable,
    /// Bytes can be written.
    Writable,
}

/// A byte stream. `read` and `write` return `WouldBlock` instead of waiting.
pub trait Stream: Send {
    /// Reads into the slices in order.
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// Writes from the slices in order.
    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Waits until the stream is ready. Returns `TimedOut` if the deadline passes first. It may return too early, so
    /// the caller retries its operation and waits again.
    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()>;

    /// Reports whether a read would return bytes or the end. True if the stream cannot tell.
    fn is_readable(&mut self) -> bool {
        true
    }

    /// Reports whether a write would have enough room to be worth a call. True if the stream cannot tell.
    fn is_writable(&mut self) -> bool {
        true
    }

    /// Notes that the awaited bytes have come, although not by [`Self::read`]. The next wait starts to spin anew.
    fn heard(&mut self) {}

    /// Sends bytes that `write` has accepted and buffered. Returns `WouldBlock` while some remain.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Reports whether the stream encrypts and authenticates its bytes.
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Reports whether a byte could be changed on the way without notice. Frames then need checksums of their own.
    fn needs_checksums(&self) -> bool {
        !self.is_encrypted()
    }

    /// Returns the socket, if bytes may be sent and received over it directly, without `read` and `write` of this
    /// stream. `None` if the stream has to see all bytes.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the descriptor to poll for room to write. `None` if only [`Self::wait`] can wait for it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket()
    }

    /// Notes that no reply is awaited until the next request, so that the stream need not be polled.
    fn rest(&mut self) {}

    /// Makes all later waits sleep instead of spinning.
    fn never_spin(&mut self) {}

    /// Reports whether the next conversation should use a new stream, because half of the TLS records that one key may
    /// encrypt were sent or received. Always false without TLS.
    fn is_worn(&self) -> bool {
        false
    }

    /// Returns the descriptors of the connection, for another process to continue it. `Unsupported` if that is not
    /// possible.
    fn hand_over(&self) -> io::Result<HandedOver> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends bytes, with descriptors attached to the first of them. Returns the number of bytes sent. Only streams over
    /// a Unix socket can do it.
    fn write_with_descriptors(&mut self, _from: &[u8], _beside: [BorrowedFd<'_>; 2]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl<S: Stream> DelayedPeer for S {
    fn has_stirred(&mut self) -> bool {
        self.is_readable()
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor()
    }
}

/// A TCP or Unix socket.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    waiter: Waiter,
    /// True if both ends are in this kernel. Bytes are then copied from memory to memory, and no network can change
    /// them.
    is_within_host: bool,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Wraps a TCP connection.
    pub fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // A packet to an address of this machine never leaves the kernel.
        let is_within_host = stream.local_addr()?.ip() == stream.peer_addr()?.ip();
        let waiter = if is_within_host { Waiter::within_host() } else { Waiter::across_hosts() };
        Ok(Socket { kind: Kind::Tcp(stream), waiter, is_within_host })
    }

    /// Wraps a Unix connection.
    pub fn unix(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket { kind: Kind::Unix(stream), waiter: Waiter::within_host(), is_within_host: true })
    }

    /// Returns a second handle on the connection, with which another thread can shut it down.
    pub fn shutdown_handle(&self) -> io::Result<ShutdownHandle> {
        Ok(ShutdownHandle(match &self.kind {
            Kind::Tcp(stream) => Kind::Tcp(stream.try_clone()?),
            Kind::Unix(stream) => Kind::Unix(stream.try_clone()?),
        }))
    }

    fn is_ready(&self, flags: PollFlags) -> bool {
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.as_fd(), flags)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Tells the peer that nothing more will be sent.
    pub(crate) fn finish(&self) {
        // An error means the connection has ended already.
        let _ = match &self.kind {
            Kind::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Kind::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Stream for Socket {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let result = match &mut self.kind {
            Kind::Tcp(stream) => stream.read_vectored(into),
            Kind::Unix(stream) => stream.read_vectored(into),
        };
        if result.is_ok() {
            self.waiter.heard();
        }
        result
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let result = match &mut self.kind {
            Kind::Tcp(stream) => stream.write_vectored(from),
            Kind::Unix(stream) => stream.write_vectored(from),
        };
        if result.is_ok() {
            self.waiter.heard();
        }
        result
    }

    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()> {
        let left = time_left(deadline, clock::now()).ok_or(io::ErrorKind::TimedOut)?;
        // A spinning thread retries its operation on the socket: checking for bytes costs as much as receiving them.
        let step = self.waiter.step();
        if step == WaitStep::Look {
            return Ok(());
        }
        let flags = match interest {
            Interest::Readable => PollFlags::IN,
            Interest::Writable => PollFlags::OUT,
        };
        match poll(&mut [PollFd::new(&self.as_fd(), flags)], Some(&step.within(left))) {
            // If the time is over, the next call returns `TimedOut`.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn heard(&mut self) {
        self.waiter.heard();
    }

    fn is_readable(&mut self) -> bool {
        self.is_ready(PollFlags::IN)
    }

    fn is_writable(&mut self) -> bool {
        self.is_ready(PollFlags::OUT)
    }

    fn needs_checksums(&self) -> bool {
        !self.is_within_host
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn rest(&mut self) {
        self.waiter.rest();
    }

    fn never_spin(&mut self) {
        self.waiter.never_spin();
    }

    fn hand_over(&self) -> io::Result<HandedOver> {
        Ok(match &self.kind {
            Kind::Tcp(stream) => HandedOver::Tcp(stream.try_clone()?.into()),
            Kind::Unix(stream) => HandedOver::Unix(stream.try_clone()?.into()),
        })
    }
}

/// Handle that ends a connection which another thread uses.
#[derive(Debug)]
pub struct ShutdownHandle(Kind);

impl ShutdownHandle {
    /// Shuts down both directions. The other thread's next call sees the end.
    pub fn shutdown(&self) {
        // An error means the connection has ended already.
        let _ = match &self.0 {
            Kind::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Kind::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }
}

/// Waits until one of several sockets can be written to or has ended. Returns `TimedOut` if the deadline passes first.
/// It may return too early.
pub fn wait_writable(sockets: &[BorrowedFd<'_>], deadline: MonoNs) -> io::Result<()> {
    let left = time_left(deadline, clock::now()).ok_or(io::ErrorKind::TimedOut)?;
    let mut waited: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
    match poll(&mut waited, Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads until all slices are full.
pub(crate) fn read_full(
    stream: &mut dyn Stream,
    mut into: &mut [IoSliceMut<'_>],
    deadline: MonoNs,
) -> io::Result<()> {
    IoSliceMut::advance_slices(&mut into, 0);
    while !into.is_empty() {
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => IoSliceMut::advance_slices(&mut into, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.wait(Interest::Readable, deadline)?
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all slices and flushes the stream.
pub fn write_full(stream: &mut dyn Stream, mut from: &mut [IoSlice<'_>], deadline: MonoNs) -> io::Result<()> {
    IoSlice::advance_slices(&mut from, 0);
    while !from.is_empty() {
        match stream.write(from) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut from, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.wait(Interest::Writable, deadline)?
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    while let Err(error) = stream.flush() {
        match error.kind() {
            io::ErrorKind::WouldBlock => stream.wait(Interest::Writable, deadline)?,
            _ => return Err(error),
        }
    }
    Ok(())
}
