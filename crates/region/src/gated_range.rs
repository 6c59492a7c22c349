//! Ranges of regions that the kernel copies to and from a socket, without a buffer between.
//!
//! The idea: a [`GatedRange`] is the address of a range whose gate has been entered, and lives no longer than that
//! entry. One call hands several ranges to the kernel, which copies as much as the socket takes or has, and returns at
//! once. It is a copy like any other: it ends with the call, so a close waits for the call and for nothing longer.
//! Zero-copy sends are never used: they leave pages with the kernel until they are acknowledged, past the gate, and
//! were slower on loopback (decision 0011).
//!
//! Invariants: nothing of an older epoch is copied after a close (I2), and no copy is torn by one (I3).
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most ranges that one call sends from or receives into.
pub const RANGES_MAX: usize = 64;

/// Address of a range of a region whose gate was entered, and is not left as long as this value lives.
#[derive(Debug)]
pub struct GatedRange<'e> {
    address: *mut u8,
    bytes: usize,
    /// Borrow of the `Entered` that the range came from, so that the gate is not left before.
    inside: PhantomData<&'e ()>,
}

impl<'e> GatedRange<'e> {
    /// Returns a range. `address` must be one that the gate of an `Entered` living for `'e` has admitted for `bytes`.
    pub(crate) fn new(address: *mut u8, bytes: usize) -> GatedRange<'e> {
        GatedRange { address, bytes, inside: PhantomData }
    }
}

/// List of addresses and lengths for the kernel: `head`, then at most [`RANGES_MAX`] ranges.
struct List {
    entries: [libc::iovec; RANGES_MAX + 1],
    /// Number of entries that are filled.
    used: usize,
}

impl List {
    fn new(head: &[u8], gated_ranges: &[GatedRange<'_>]) -> io::Result<List> {
        if gated_ranges.len() > RANGES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut list = List { entries: [none; RANGES_MAX + 1], used: 0 };
        // The kernel only reads what is sent; the pointer is mutable because the same type serves receiving.
        let head = (!head.is_empty()).then(|| (head.as_ptr().cast_mut(), head.len()));
        let ranges = gated_ranges.iter().map(|gated_range| (gated_range.address, gated_range.bytes));
        for (place, (address, bytes)) in list.entries.iter_mut().zip(head.into_iter().chain(ranges)) {
            *place = libc::iovec { iov_base: address.cast(), iov_len: bytes };
            list.used += 1;
        }
        Ok(list)
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all-zero is a valid `msghdr`: no name, no control data, no flags.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.entries.as_mut_ptr();
        message.msg_iovlen = self.used as _;
        message
    }
}

fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sends `head` and then the ranges with one call that does not wait. Returns the bytes sent, which may be fewer;
/// fails with `WouldBlock` if none can be sent.
pub fn send(socket: BorrowedFd<'_>, head: &[u8], from: &[GatedRange<'_>]) -> io::Result<usize> {
    let mut list = List::new(head, from)?;
    let message = list.message();
    // SAFETY: `message` refers to `list`, which lives until after the call. Each of its entries is a range that stays
    // mapped meanwhile: `head` is borrowed, and the gate of a `GatedRange` was entered and is not left before its
    // lifetime ends. The kernel copies from them and keeps no reference. Others may write the regions meanwhile; any
    // bytes may be sent.
    counted(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// Receives into the ranges, one after another, with one call that does not wait. Returns the bytes received; 0 at
/// the end of the connection; fails with `WouldBlock` if there are none yet.
///
/// `into` must come from [`Entered::range_in`](crate::Entered::range_in), which checks the right to write.
pub fn receive(socket: BorrowedFd<'_>, into: &[GatedRange<'_>]) -> io::Result<usize> {
    let mut list = List::new(&[], into)?;
    let mut message = list.message();
    // SAFETY: `message` refers to `list`, which lives until after the call. Each of its entries is a range that stays
    // mapped meanwhile, because the gate of a `GatedRange` was entered and is not left before its lifetime ends. The
    // kernel writes region memory, to which no Rust reference exists, and keeps no reference. Others may read or write
    // it meanwhile; any bytes are valid.
    counted(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}
