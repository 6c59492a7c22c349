//! Ranges of regions as sources and targets of a socket: the kernel copies between the two, nobody else does.
//!
//! The idea: a [`Window`] is the address of a range whose gate has been entered, for as long as that lasts. One
//! call hands several of them to the kernel, which copies what the socket takes or has and returns at once. It
//! is a copy like any other: over when the call is, so a close waits for it and for nothing longer. (A send
//! that leaves pages with the kernel until they are acknowledged would outlast the gate: never that.)
//!
//! Invariants: I2 and I3, as for [`Entered::copy_out`](crate::Entered::copy_out).
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most windows of one call.
pub const WINDOWS_MAX: usize = 64;

/// A range of a region inside its gate.
#[derive(Debug)]
pub struct Window<'e> {
    address: *mut u8,
    bytes: usize,
    /// Borrows the `Entered` that it was made of, so the gate is not left before.
    inside: PhantomData<&'e ()>,
}

impl<'e> Window<'e> {
    /// `address` must be what the gate of an `Entered` that lives for `'e` has admitted for `bytes`.
    pub(crate) fn new(address: *mut u8, bytes: usize) -> Window<'e> {
        Window { address, bytes, inside: PhantomData }
    }
}

/// A list for the kernel: `head`, then the windows. No more than [`WINDOWS_MAX`] of them.
struct List {
    entries: [libc::iovec; WINDOWS_MAX + 1],
    used: usize,
}

impl List {
    fn new(head: &[u8], windows: &[Window<'_>]) -> io::Result<List> {
        if windows.len() > WINDOWS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut list = List { entries: [none; WINDOWS_MAX + 1], used: 0 };
        // The kernel only reads what is sent; the type is the same both ways.
        let head = (!head.is_empty()).then(|| (head.as_ptr().cast_mut(), head.len()));
        let ranges = windows.iter().map(|window| (window.address, window.bytes));
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

/// Sends `head` and then the windows with one call that does not wait. Returns the bytes sent, which may be
/// fewer; `WouldBlock` if none can be.
pub fn send(socket: BorrowedFd<'_>, head: &[u8], from: &[Window<'_>]) -> io::Result<usize> {
    let mut list = List::new(head, from)?;
    let message = list.message();
    // SAFETY: `message` refers to `list`, which lives until after the call. Each of its entries is a range that
    // stays mapped meanwhile: `head` is borrowed, and a window's gate was entered and is not left before its
    // lifetime ends. The kernel copies from them and keeps no reference. Others may write the regions
    // meanwhile; any bytes may be sent.
    counted(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// Receives into the windows, one behind the other, with one call that does not wait. Returns the bytes
/// received; 0 at the end of the connection; `WouldBlock` if there are none yet.
///
/// `into` must come from [`Entered::window_in`](crate::Entered::window_in), which looks at who may write.
pub fn receive(socket: BorrowedFd<'_>, into: &[Window<'_>]) -> io::Result<usize> {
    let mut list = List::new(&[], into)?;
    let mut message = list.message();
    // SAFETY: as in `send`, the other way round: the kernel writes region memory, to which no Rust reference
    // exists, and what others write or read there meanwhile is theirs to order.
    counted(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}
