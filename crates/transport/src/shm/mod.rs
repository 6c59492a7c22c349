//! Shared memory: the client maps a leased region and copies by itself.
//!
//! The node cannot take a mapping back, so two things make a late copy harmless. Writes: every lease has a
//! memfd of its own that is never used again, so a late write spoils memory nobody will see. Reads: the
//! region's fence word, which the node changes before anything else, is compared before and after each copy
//! of at most 256 KiB; if it moved, the copy is thrown away and the caller gets an error.
//!
//! Everything else passes a [`ring`]. The two sides meet over a Unix socket in the abstract namespace, which leaves
//! no file behind, and which admits only the node's own user and root; it carries descriptors, and wakes whoever
//! is parked.

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

/// A node's memory as a client on its host has it: copied from and to, never referred to.
pub trait MappedBytes: std::fmt::Debug + Send + Sync {
    /// How many.
    fn bytes(&self) -> u64;
    /// Whether they may be written.
    fn is_writable(&self) -> bool;
    /// Copies out; false if the range leaves the memory.
    fn copy_out(&self, offset: u64, into: &mut [u8]) -> bool;
    /// Copies in; false if the range leaves the memory or it is read-only.
    fn copy_in(&self, offset: u64, from: &[u8]) -> bool;
    /// The word at an offset; nothing if it is misplaced.
    fn word(&self, offset: u64) -> Option<u64>;
}

/// A region as a client on its host has it.
#[derive(Debug)]
pub struct Mapped {
    /// Its bytes; not writable for a read handle.
    pub region: Box<dyn MappedBytes>,
    /// The fence words of its node; not writable.
    pub words: Arc<dyn MappedBytes>,
}

/// Serves local clients on an abstract Unix socket of this name.
pub fn listen(name: &str, service: Arc<dyn Service>) -> io::Result<Listening> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
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
