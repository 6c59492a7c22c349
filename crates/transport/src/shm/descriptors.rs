//! File descriptors sent and received together with bytes (`SCM_RIGHTS`).

use crate::socket::Socket;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends bytes with at most two descriptors attached to the first of them. Returns the number of bytes sent.
///
/// The socket is non-blocking. It otherwise carries only single wake-up bytes, so it has room.
pub(crate) fn send_descriptors(socket: &Socket, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok(rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(from)], &mut beside, SendFlags::NOSIGNAL)?)
}

/// Receives bytes, and the descriptors attached to them.
pub(crate) fn receive_descriptors(
    socket: &Socket,
    into: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(into)],
        &mut beside,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}
