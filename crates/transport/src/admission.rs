//! Admission of connections that move data, as the connection sees it: a node limits how many connections copy or send
//! at a time.
//!
//! A connection's thread is inside its [`Admission`] while it copies, encrypts, sends or receives data. It is outside
//! while it waits for its socket or does other work. The work of one stay inside is at most 256 KiB, or one range if
//! that is larger (1 MiB at most). A thread that waits to be admitted reads nothing from its socket, so its peer feels
//! back-pressure: the requests stay with the peer.

use crate::socket::{Interest, Stream};
use farpool_wire::MonoNs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// Admission of one connection to a node's shared resources. Only the connection's thread uses it. It calls `enter`,
/// moves data, calls `leave`, and then begins anew.
pub trait Admission: Send {
    /// Waits until the connection is admitted.
    fn enter(&mut self);
    /// Ends the admission, and reports how many bytes were moved during it. Dropping the value ends it as well.
    fn leave(&mut self, bytes: u64);
    /// Reports whether another connection waits to be admitted.
    fn is_wanted(&self) -> bool;
    /// Reports whether the connection's thread may spin while it waits for its socket.
    fn may_spin(&self) -> bool {
        true
    }
}

/// Bytes after which a connection leaves if another waits. A change costs a wake-up for each of two threads, some
/// microseconds; moving these bytes takes almost ten microseconds. A smaller value would cost more than it shares
/// (`docs/decisions/0012-fair-sharing.md`).
const LEAVE_BYTES_WANTED: u64 = 32 << 10;
/// Bytes after which a connection leaves even if no other is seen to wait.
const LEAVE_BYTES_MAX: u64 = 256 << 10;

/// Stream of a connection that waits to be admitted before it moves data, and leaves before it waits for the peer.
pub(crate) struct AdmittedStream<'c> {
    stream: &'c mut dyn Stream,
    admission: Option<Box<dyn Admission>>,
    is_inside: bool,
    /// Bytes moved since the connection entered.
    moved: u64,
    /// True while bytes that were moved inside have not all been sent. Sending them needs admission as well.
    is_sending: bool,
    /// Nanoseconds for which the connection waited until the peer received bytes or sent a request.
    waited_ns: u64,
}

impl<'c> AdmittedStream<'c> {
    pub(crate) fn new(stream: &'c mut dyn Stream) -> Self {
        AdmittedStream {
            stream,
            admission: None,
            is_inside: false,
            moved: 0,
            is_sending: false,
            waited_ns: 0,
        }
    }

    pub(crate) fn begin(&mut self, admission: Option<Box<dyn Admission>>) {
        if admission.as_ref().is_some_and(|admission| !admission.may_spin()) {
            self.stream.never_spin();
        }
        self.admission = admission;
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.admission.is_some()
    }

    /// Waits until the connection is admitted, if it is not. If it is and has moved enough, it leaves first to let
    /// others in.
    pub(crate) fn enter(&mut self) {
        let Some(admission) = &mut self.admission else { return };
        if self.is_inside
            && (self.moved >= LEAVE_BYTES_MAX || (self.moved >= LEAVE_BYTES_WANTED && admission.is_wanted()))
        {
            admission.leave(std::mem::take(&mut self.moved));
            self.is_inside = false;
        }
        if !self.is_inside {
            admission.enter();
            self.is_inside = true;
        }
    }

    /// Adds bytes that were moved while the connection was admitted.
    pub(crate) fn note_moved(&mut self, bytes: u64) {
        self.moved += bytes;
        self.is_sending = true;
    }

    /// Ends the connection's admission, if it is admitted.
    pub(crate) fn leave(&mut self) {
        if let Some(admission) = self.admission.as_mut().filter(|_| self.is_inside) {
            admission.leave(self.moved);
        }
        self.moved = 0;
        self.is_inside = false;
    }

    /// Returns the nanoseconds for which the connection waited for the peer since the last call.
    pub(crate) fn take_waited_ns(&mut self) -> u64 {
        std::mem::take(&mut self.waited_ns)
    }

    /// Notes that all bytes moved so far have been sent.
    pub(crate) fn note_sent(&mut self) {
        self.is_sending = false;
    }
}

impl Drop for AdmittedStream<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Stream for AdmittedStream<'_> {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.stream.read(into)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_sending {
            self.enter();
        }
        self.stream.write(from)
    }

    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()> {
        self.leave();
        let begun = farpool_host::clock::now();
        let waited = self.stream.wait(interest, deadline);
        self.waited_ns += farpool_host::clock::now().0.saturating_sub(begun.0);
        waited
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    fn needs_checksums(&self) -> bool {
        self.stream.needs_checksums()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.socket()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.stream.descriptor()
    }

    fn is_readable(&mut self) -> bool {
        self.stream.is_readable()
    }

    fn is_writable(&mut self) -> bool {
        self.stream.is_writable()
    }

    fn heard(&mut self) {
        self.stream.heard();
    }

    fn rest(&mut self) {
        self.stream.rest();
    }

    fn never_spin(&mut self) {
        self.stream.never_spin();
    }

    fn is_worn(&self) -> bool {
        self.stream.is_worn()
    }

    fn hand_over(&self) -> io::Result<crate::lane::HandedOver> {
        self.stream.hand_over()
    }

    fn write_with_descriptors(&mut self, from: &[u8], beside: [BorrowedFd<'_>; 2]) -> io::Result<usize> {
        self.stream.write_with_descriptors(from, beside)
    }
}
