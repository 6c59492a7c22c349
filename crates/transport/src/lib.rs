//! Links and services: a client's operations go over a link to a node, and the node's service answers them.
//!
//! A [`Link`] is one conversation, used by one caller at a time. Requests go out and replies come back in order, so a
//! reply is received straight into the caller's buffers. A client that wants concurrency opens more links; no link is
//! shared under a lock. All transports speak the frames of `spec/wire.md` and differ in how bytes move:
//!
//! - [`tcp`]: sockets with vectored calls; a waiting thread spins, then parks (sleeps). With certificates, [`tls`]
//!   encrypts.
//! - [`shm`]: the client maps the region and copies by itself. It asks the node only for the mapping.
//! - [`sim`]: a simulated network with seeded delays, losses and disconnects, on a virtual clock.
//! - [`shaped`]: a wrapper over any link that emulates a slower one.
//!
//! A [`relay`] carries the connections of other programs over TLS.
//!
//! Never in this crate: a decision about leases (the [`Service`] decides), a retry (the client retries), or an async
//! runtime.
#![deny(unsafe_code)]

mod admission;
mod brokers;
mod client;
mod connection;
pub mod delay;
mod dial;
pub mod exposure;
mod lane;
mod outgoing;
pub mod recv_buffers;
pub mod relay;
pub mod serve;
pub mod shaped;
pub mod shm;
pub mod sim;
pub mod socket;
pub mod tcp;
pub mod times;
pub mod tls;

pub use admission::Admission;
pub use brokers::{BROKERS_MAX, Brokers, is_not_leader};
pub use client::FrameLink;
pub use dial::{Dial, Dialer, Sockets};
pub use exposure::{Exposure, ExposureError};
pub use lane::{HandedOver, Lane, Successor, local_lane};
pub use outgoing::Outgoing;
pub use serve::{Intent, Mappable, Peer, RefusedAt, Service, Shared};
pub use socket::wait_writable;
pub use tls::{Identity, Tls, TlsError, TlsErrorKind, TlsFiles};

use farpool_wire::data::Span;
use farpool_wire::limits::{BATCH_OPS_MAX, IO_BYTES_MAX};
use farpool_wire::{Code, MonoNs, Refusal, Reply, Request, TraceId, WireError};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// Kind of transport that carries the bytes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP sockets.
    Tcp,
    /// Memory that the client and a node of the same host have mapped.
    Shm,
    /// A simulated network.
    Sim,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
            Transport::Sim => "sim",
        })
    }
}

/// One read: the range and the buffer for its bytes. The buffer is exactly as long as the range.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Range to read.
    pub span: Span,
    /// Buffer that receives the bytes.
    pub into: &'a mut [u8],
}

/// One write: the range and exactly as many bytes.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// Range to write.
    pub span: Span,
    /// Bytes to write.
    pub from: &'a [u8],
}

/// Reason why an operation over a link failed.
#[derive(Debug)]
pub enum LinkError {
    /// The peer refused operation `index`. The link is still usable. Any of the other operations may have been done.
    Refused {
        /// Index of the first operation that was refused, among the operations of the call.
        index: usize,
        /// Reason of the refusal.
        refusal: Refusal,
    },
    /// No reply came before the deadline. The link is unusable, because the reply may still arrive.
    TimedOut,
    /// The connection ended. The link is unusable.
    Disconnected(io::Error),
    /// The peer broke the protocol. The link is unusable.
    Protocol(WireError),
    /// The TLS handshake failed, or the address needs TLS and none is configured. There is no link.
    Untrusted(TlsError),
}

impl LinkError {
    /// Reports whether the link may be used again after this error.
    pub fn link_survives(&self) -> bool {
        match self {
            // A peer that could not read our request closes the connection.
            LinkError::Refused { refusal, .. } => {
                !matches!(refusal.code, Code::Malformed | Code::VersionMismatch)
            }
            _ => false,
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Refused { refusal, .. } => write!(f, "{refusal}"),
            LinkError::TimedOut => f.write_str("no answer within the request timeout"),
            LinkError::Disconnected(error) => write!(f, "the connection ended: {error}"),
            LinkError::Protocol(error) => write!(f, "the peer broke the protocol: {error}"),
            LinkError::Untrusted(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for LinkError {}

/// One conversation with a node or a broker, used by one caller at a time.
///
/// There are two kinds of methods. `call`, `read` and `write` send a request and wait for its reply. `post_*` only
/// sends; the `take_*` method of the same kind waits for the reply later, so that the caller can post to several links
/// before it waits for any of them. Several operations may be posted on one link. They are taken in the order in which
/// they were posted, each with the same arguments, and the link is not used for anything else in between. The default
/// `post_*` sends nothing, and the default `take_*` does the whole operation.
///
/// Errors: after [`LinkError::Refused`] the link is usually still usable ([`LinkError::link_survives`] tells). After
/// any other error it is not. The methods take `&mut self` and hold no lock while they wait.
pub trait Link: Send {
    /// Returns the kind of transport.
    fn transport(&self) -> Transport;

    /// Sets the id of the query that the next requests belong to, which nodes write to their logs. A peer that speaks
    /// an older version of the protocol does not get it.
    fn set_trace(&mut self, _trace: TraceId) {}

    /// Sends a control request and waits for its reply.
    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError>;

    /// Sends a control request without waiting for its reply. The default sends nothing.
    fn post_call(&mut self, _request: &Request, _deadline: MonoNs) -> Result<(), LinkError> {
        Ok(())
    }

    /// Waits for the reply to the oldest control request that was posted. `request` must be that request.
    fn take_call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.call(request, deadline)
    }

    /// Waits until the reply to the oldest posted operation begins to arrive. Returns false if it has not by `until`;
    /// the reply is then still to be taken, and the link is usable. A link that posts nothing returns true at once.
    fn begins_by(&mut self, _until: MonoNs) -> Result<bool, LinkError> {
        Ok(true)
    }

    /// Reads every range, or returns the first refusal. A range has at most `IO_BYTES_MAX` bytes.
    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError>;

    /// Writes every range in order, or returns the first refusal. A range has at most `IO_BYTES_MAX` bytes.
    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError>;

    /// Sends read requests without waiting for their replies. [`Self::take_read`] with the same operations finishes
    /// them. Several reads may be posted; they are taken in the order in which they were posted, with no other use of
    /// the link in between. The default sends nothing.
    fn post_read(&mut self, _ops: &[ReadOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        Ok(())
    }

    /// Finishes the oldest read that was posted. Errors are those of [`Self::read`].
    fn take_read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.read(ops, deadline)
    }

    /// Reports whether the reply to the oldest posted operation has begun to arrive, or the link has ended. In both
    /// cases the `take_*` method does not wait for long. A link that posts nothing is always ready.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// Sends a write without waiting for its reply. [`Self::take_write`] with the same operations finishes it.
    fn post_write(&mut self, _ops: &[WriteOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        Ok(())
    }

    /// Sends as much of a write as the peer takes without waiting, and reports whether all of it has been sent. If not,
    /// the caller waits until [`Self::descriptor`] is writable and calls this again with the same operations, with no
    /// other use of the link in between. A link without a descriptor sends everything in the first call.
    fn post_write_some(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<bool, LinkError> {
        self.post_write(ops, deadline).map(|()| true)
    }

    /// Returns the file descriptor to poll until the peer takes more bytes. `None` if the link has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Finishes the oldest write that was posted. Errors are those of [`Self::write`].
    fn take_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.write(ops, deadline)
    }

    /// Takes one reply of the oldest write that was posted, of which `done` operations were answered. Returns how many
    /// are answered now. Errors are those of [`Self::write`]; a refusal comes with the last reply.
    fn take_write_part(
        &mut self,
        ops: &[WriteOp<'_>],
        _done: usize,
        deadline: MonoNs,
    ) -> Result<usize, LinkError> {
        self.take_write(ops, deadline).map(|()| ops.len())
    }

    /// Reports whether the link should be replaced by a new one before the next caller uses it, because many TLS
    /// records were sent or received under its keys: half of the permitted number. Always false without TLS.
    fn is_worn(&self) -> bool {
        false
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn transport(&self) -> Transport {
        (**self).transport()
    }

    fn set_trace(&mut self, trace: TraceId) {
        (**self).set_trace(trace);
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        (**self).call(request, deadline)
    }

    fn post_call(&mut self, request: &Request, deadline: MonoNs) -> Result<(), LinkError> {
        (**self).post_call(request, deadline)
    }

    fn take_call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        (**self).take_call(request, deadline)
    }

    fn begins_by(&mut self, until: MonoNs) -> Result<bool, LinkError> {
        (**self).begins_by(until)
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        (**self).read(ops, deadline)
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        (**self).write(ops, deadline)
    }

    fn post_read(&mut self, ops: &[ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        (**self).post_read(ops, deadline)
    }

    fn take_read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        (**self).take_read(ops, deadline)
    }

    fn is_ready(&mut self) -> bool {
        (**self).is_ready()
    }

    fn post_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        (**self).post_write(ops, deadline)
    }

    fn post_write_some(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<bool, LinkError> {
        (**self).post_write_some(ops, deadline)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }

    fn take_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        (**self).take_write(ops, deadline)
    }

    fn take_write_part(
        &mut self,
        ops: &[WriteOp<'_>],
        done: usize,
        deadline: MonoNs,
    ) -> Result<usize, LinkError> {
        (**self).take_write_part(ops, done, deadline)
    }

    fn is_worn(&self) -> bool {
        (**self).is_worn()
    }
}

/// Returns how many of the first operations fit one frame. It is at least one, so that a caller that loops makes
/// progress. An operation that is too large by itself was refused by [`check_ops`] before.
pub(crate) fn fitting(lengths: impl Iterator<Item = usize>) -> usize {
    let mut total = 0;
    let mut count = 0;
    for length in lengths.take(BATCH_OPS_MAX) {
        total += length;
        if total > IO_BYTES_MAX && count > 0 {
            break;
        }
        count += 1;
    }
    count
}

/// Checks the contract of [`Link::read`] and [`Link::write`]: each buffer is as long as its range, and at most
/// `IO_BYTES_MAX`.
pub(crate) fn check_ops(lengths: impl Iterator<Item = (u32, usize)>) -> Result<(), LinkError> {
    for (bytes, length) in lengths {
        if bytes as usize != length || length > IO_BYTES_MAX {
            return Err(LinkError::Protocol(WireError::TooMany {
                what: "bytes of one operation",
                found: length.max(bytes as usize) as u64,
                max: IO_BYTES_MAX as u64,
            }));
        }
    }
    Ok(())
}
