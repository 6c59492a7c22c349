//! Buffer of replies that wait to be sent.
//!
//! The buffer zeroes its memory only when it grows. A reply to a large read is written in place, and zeroing the memory
//! each time would cost as much as copying the bytes.

use farpool_wire::frame::Header;
use farpool_wire::{Payload, Refusal};
use std::ops::Range;

/// Buffer of replies that wait to be sent. Dereferences to the bytes to send.
#[derive(Debug, Default)]
pub struct Outgoing {
    buffer: Vec<u8>,
    used: usize,
}

impl Outgoing {
    /// Reserves `count` bytes at the end and returns their range. They hold old bytes: the caller must overwrite all of
    /// them.
    pub(crate) fn room(&mut self, count: usize) -> Range<usize> {
        let range = self.used..self.used + count;
        if self.buffer.len() < range.end {
            self.buffer.resize(range.end, 0);
        }
        self.used = range.end;
        range
    }

    /// Returns the bytes of a range that [`Self::room`] reserved.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.buffer[range]
    }

    /// Removes everything from `length` on.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.used = self.used.min(length);
    }

    /// Appends a whole reply.
    pub(crate) fn reply(&mut self, to: &Header, body: &[u8], refusal: Option<Refusal>) {
        self.extend(&to.reply(body, refusal).encode());
        self.extend(body);
    }

    /// Appends the header of a reply and the first part of its body. The caller sends the second part itself, right
    /// after this.
    pub(crate) fn begin_reply<const MAX: usize>(&mut self, to: &Header, first: &[u8], second: &Payload<MAX>) {
        let whole = to.reply(&[], None);
        let body_crc =
            to.body_crc.map(|_| second.slices().fold(crc32c::crc32c(first), crc32c::crc32c_append));
        let body_bytes = (first.len() + second.len()) as u32;
        self.extend(&Header { body_bytes, body_crc, ..whole }.encode());
        self.extend(first);
    }

    /// Appends `bytes`.
    pub fn extend(&mut self, bytes: &[u8]) {
        let range = self.room(bytes.len());
        self.bytes_mut(range).copy_from_slice(bytes);
    }

    /// Removes the first `count` bytes, which have been sent.
    pub(crate) fn sent(&mut self, count: usize) {
        let count = count.min(self.used);
        self.buffer.copy_within(count..self.used, 0);
        self.used -= count;
    }

    /// Removes all bytes. The memory stays allocated.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

impl std::ops::Deref for Outgoing {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[..self.used]
    }
}
