//! Shared memory: a client on the node's host maps a region that it has leased and copies bytes itself.
//!
//! The node cannot revoke a mapping, so two rules make a late copy harmless. Writes: every lease has its own memfd,
//! which is never reused, so a late write changes memory that nobody will read. Reads: the node changes the region's
//! fence word before anything else. The client compares the word before and after each copy of at most 256 KiB; if it
//! has changed, the copy is thrown away and the caller gets an error.
//!
//! All other messages go through a [`ring`]. The two sides connect over a Unix socket, which admits only the node's own
//! user and root. It is in the abstract namespace and leaves no file behind; or it is a file in a folder that both
//! sides see, where they are in different network namespaces, as pods are. The socket carries descriptors, and wakes a
//! side that is parked.

mod descriptors;
mod link;
mod mapping;
pub mod ring;

pub use link::{MappedRegion, MemoryStream, ShmLink, ShmSpace, connect, connect_for};

use crate::serve::{Peer, Service};
use crate::socket::{Socket, Stream};
use crate::tcp::Listening;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

/// Memory of a node as a client on the same host sees it. Bytes are only copied; there is no reference into it.
pub trait MappedBytes: std::fmt::Debug + Send + Sync {
    /// Returns the size in bytes.
    fn bytes(&self) -> u64;
    /// Reports whether the bytes may be written.
    fn is_writable(&self) -> bool;
    /// Copies bytes out. Returns false if the range is not inside the memory.
    fn copy_out(&self, offset: u64, into: &mut [u8]) -> bool;
    /// Copies bytes in. Returns false if the range is not inside the memory or the memory is read-only.
    fn copy_in(&self, offset: u64, from: &[u8]) -> bool;
    /// Returns the 64-bit word at an offset. `None` if the offset is unaligned or outside the memory.
    fn word(&self, offset: u64) -> Option<u64>;
}

/// A region as a client on the same host has mapped it.
#[derive(Debug)]
pub struct Mapped {
    /// Bytes of the region. Not writable if the client may only read it.
    pub region: Box<dyn MappedBytes>,
    /// Fence words of the region's node, which show which regions may be used. Not writable.
    pub words: Arc<dyn MappedBytes>,
}

/// Begin and end of the name of a node's socket. A client connects to no other file, whatever a node says.
pub const SOCKET_NAME: (&str, &str) = ("farpool-", ".sock");

/// Returns the address of a node's socket: a path if the text is one, else a name in the abstract namespace.
fn address_of(socket: &str) -> io::Result<SocketAddr> {
    if !socket.starts_with('/') {
        return SocketAddr::from_abstract_name(socket);
    }
    let name = socket.rsplit('/').next().unwrap_or_default();
    if !name.starts_with(SOCKET_NAME.0) || !name.ends_with(SOCKET_NAME.1) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{socket} is no socket of a node")));
    }
    SocketAddr::from_pathname(socket)
}

/// Serves local clients on a Unix socket: an absolute path, or a name in the abstract namespace.
pub fn listen(socket: &str, service: Arc<dyn Service>) -> io::Result<Listening> {
    let listener = UnixListener::bind_addr(&address_of(socket)?)?;
    listener.set_nonblocking(true)?;
    let accept = |listener: &UnixListener| {
        let (stream, _) = listener.accept()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let own = rustix::process::geteuid();
        if peer.uid != own && !peer.uid.is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Socket::unix(stream)
    };
    let admit = |socket: Socket| -> io::Result<(Box<dyn Stream>, Peer)> {
        Ok((Box::new(ring::RingStream::offer(socket)?), Peer { is_local: true, ..Peer::default() }))
    };
    crate::tcp::run(listener, accept, admit, service)
}
