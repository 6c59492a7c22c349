//! Where a connection that moves data lets others go first.
//!
//! The idea: a connection's thread is inside its [`Passage`] while it copies, seals, sends and receives data,
//! and outside while it waits for its socket or does something else. What it does inside at one time is a piece:
//! 256 KiB at most, or one range that is larger (1 MiB at most). It reads nothing from its socket while it waits
//! to be let in, so its peer's requests stay with the peer.

use crate::socket::{Interest, Stream};
use farpool_wire::MonoNs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// One connection's way past those that share what serves them. Used by the connection's thread.
pub trait Passage: Send {
    /// Waits to be let in.
    fn enter(&mut self);
    /// Says what was moved inside, and leaves. What is dropped inside has left.
    fn leave(&mut self, bytes: u64);
    /// Whether somebody waits to be let in.
    fn is_wanted(&self) -> bool;
    /// Whether its thread may spin while it waits for its socket.
    fn may_spin(&self) -> bool {
        true
    }
}

/// Bytes after which a connection makes room for whoever waits. Each time costs two threads a wake-up, some
/// microseconds, and these bytes take the longer part of ten: less would cost more than it shares.
const PIECE_BYTES_WANTED: u64 = 32 << 10;
/// Bytes after which it does so whether or not anybody is seen to wait.
const PIECE_BYTES_MAX: u64 = 256 << 10;

/// A stream, and its connection's passage. While it waits, the connection is outside.
pub(crate) struct Passing<'c> {
    stream: &'c mut dyn Stream,
    passage: Option<Box<dyn Passage>>,
    is_inside: bool,
    /// Moved since it went in.
    moved: u64,
    /// What was moved inside is not sent yet: sending it belongs there as well.
    is_sending: bool,
    /// Nanoseconds for which it waited for the peer to take something, or to ask.
    waited_ns: u64,
}

impl<'c> Passing<'c> {
    pub(crate) fn new(stream: &'c mut dyn Stream) -> Self {
        Passing { stream, passage: None, is_inside: false, moved: 0, is_sending: false, waited_ns: 0 }
    }

    pub(crate) fn begin(&mut self, passage: Option<Box<dyn Passage>>) {
        if passage.as_ref().is_some_and(|passage| !passage.may_spin()) {
            self.stream.never_spin();
        }
        self.passage = passage;
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.passage.is_some()
    }

    /// Goes in, if it is not inside; makes room for others first, if it is their time.
    pub(crate) fn enter(&mut self) {
        let Some(passage) = &mut self.passage else { return };
        if self.is_inside
            && (self.moved >= PIECE_BYTES_MAX || (self.moved >= PIECE_BYTES_WANTED && passage.is_wanted()))
        {
            passage.leave(std::mem::take(&mut self.moved));
            self.is_inside = false;
        }
        if !self.is_inside {
            passage.enter();
            self.is_inside = true;
        }
    }

    /// Notes what was moved inside.
    pub(crate) fn note_moved(&mut self, bytes: u64) {
        self.moved += bytes;
        self.is_sending = true;
    }

    /// Goes out, if it is inside.
    pub(crate) fn leave(&mut self) {
        if let Some(passage) = self.passage.as_mut().filter(|_| self.is_inside) {
            passage.leave(self.moved);
        }
        self.moved = 0;
        self.is_inside = false;
    }

    /// How long it has waited for the peer to take something, or to ask, since this was last called, in nanoseconds.
    pub(crate) fn take_waited_ns(&mut self) -> u64 {
        std::mem::take(&mut self.waited_ns)
    }

    /// Everything that was moved has been sent.
    pub(crate) fn note_sent(&mut self) {
        self.is_sending = false;
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Stream for Passing<'_> {
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

    fn is_sealed(&self) -> bool {
        self.stream.is_sealed()
    }

    fn needs_checksums(&self) -> bool {
        self.stream.needs_checksums()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.socket()
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
