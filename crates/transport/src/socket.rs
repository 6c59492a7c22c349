//! A byte stream with non-blocking vectored calls and a wait that ends at a deadline: what the framing
//! code on both sides is written against.

use crate::lane::HandedOver;
use farpool_host::clock;
use farpool_host::waiting::{Step, Waiter, time_left};
use farpool_wire::MonoNs;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes to read, or the end.
    Readable,
    /// Room to write.
    Writable,
}

/// A byte stream. `read` and `write` return `WouldBlock` rather than wait.
pub trait Stream: Send {
    /// Reads into the slices in order.
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// Writes from the slices in order.
    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Waits; `TimedOut` when the deadline passes first. May return before there is anything: to be called until
    /// there is.
    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()>;

    /// Whether a read would find something, were it only the end. Where that cannot be told, true.
    fn is_readable(&mut self) -> bool {
        true
    }

    /// Whether a write would find room worth a call. Where that cannot be told, true.
    fn is_writable(&mut self) -> bool {
        true
    }

    /// What was waited for has come, as somebody found who did not ask this stream for it.
    fn heard(&mut self) {}

    /// Sends on what `write` has taken and keeps; `WouldBlock` while there is more.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether what passes it is encrypted and authenticated.
    fn is_sealed(&self) -> bool {
        false
    }

    /// Whether a byte could be changed on the way and nobody notice, so that frames need checksums of their own.
    fn needs_checksums(&self) -> bool {
        !self.is_sealed()
    }

    /// The socket that bytes may go to and come from past this stream; nothing if it has to see them.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What can be polled for room to write; nothing if `write` is to be waited for.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket()
    }

    /// Nothing more will be waited for until the next question.
    fn rest(&mut self) {}

    /// From now on waits without spinning.
    fn never_spin(&mut self) {}

    /// Whether it has been used for so much that the next conversation should have a new one.
    fn is_worn(&self) -> bool {
        false
    }

    /// What it is made of, for another process to go on with. `Unsupported` where that cannot be.
    fn hand_over(&self) -> io::Result<HandedOver> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends bytes with descriptors beside the first of them. How many bytes went. Streams that have a local
    /// socket only.
    fn write_with_descriptors(&mut self, _from: &[u8], _beside: [BorrowedFd<'_>; 2]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A TCP or Unix socket.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    waiter: Waiter,
    /// Both ends are in this kernel: bytes are copied from memory to memory, and no wire can change them.
    is_within_host: bool,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Takes over a TCP connection.
    pub fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // A packet to an address of one's own never leaves the kernel.
        let is_within_host = stream.local_addr()?.ip() == stream.peer_addr()?.ip();
        let waiter = if is_within_host { Waiter::within_host() } else { Waiter::across_hosts() };
        Ok(Socket { kind: Kind::Tcp(stream), waiter, is_within_host })
    }

    /// Takes over a Unix connection.
    pub fn unix(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket { kind: Kind::Unix(stream), waiter: Waiter::within_host(), is_within_host: true })
    }

    /// A second handle on the same connection, to shut it down from elsewhere.
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

    /// Says that nothing more will be sent.
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
        // Whoever spins asks the socket itself: looking whether there is something costs as much as taking it.
        let step = self.waiter.step();
        if step == Step::Look {
            return Ok(());
        }
        let flags = match interest {
            Interest::Readable => PollFlags::IN,
            Interest::Writable => PollFlags::OUT,
        };
        match poll(&mut [PollFd::new(&self.as_fd(), flags)], Some(&step.within(left))) {
            // Whether that was all of the time is seen when this is called again.
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

/// Ends a connection that another thread is using.
#[derive(Debug)]
pub struct ShutdownHandle(Kind);

impl ShutdownHandle {
    /// Both directions, now. The other thread's next call sees the end.
    pub fn shutdown(&self) {
        // An error means the connection has ended already.
        let _ = match &self.0 {
            Kind::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Kind::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }
}

/// Waits until one of several sockets takes bytes, or has ended. `TimedOut` when the deadline passes first. May return
/// before.
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

/// Writes all slices, and sends them.
pub(crate) fn write_full(
    stream: &mut dyn Stream,
    mut from: &mut [IoSlice<'_>],
    deadline: MonoNs,
) -> io::Result<()> {
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
