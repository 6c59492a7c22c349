//! Links and listeners: how a client's operations reach a node, and a node's service reaches the wire.
//!
//! The idea: a [`Link`] is one conversation of one caller at a time; requests go out and replies come back
//! in order, so a reply lands straight in the caller's buffers. Concurrency is more links, not locks. All
//! transports speak the frames of `spec/wire.md`; they differ in how bytes move:
//!
//! * [`tcp`]: sockets, vectored calls, spin-then-park waiting; sealed by [`tls`] where there are certificates.
//! * [`shm`]: the client maps the region and copies by itself; the node is asked only for the mapping.
//! * [`sim`]: a simulated net with seeded delays, losses and cuts on a virtual clock.
//! * [`shaped`]: a wrapper over any link that emulates a slower one.
//!
//! Never in this crate: a decision about leases (that is the [`Service`]), a retry (that is the client), or
//! an async runtime.
#![deny(unsafe_code)]

mod brokers;
mod client;
mod connection;
mod dial;
pub mod landing;
mod lane;
mod outgoing;
mod passage;
pub mod reach;
pub mod serve;
pub mod shaped;
pub mod shm;
pub mod sim;
pub mod socket;
pub mod tcp;
pub mod tls;

pub use brokers::{BROKERS_MAX, Brokers, is_not_leader};
pub use client::FrameLink;
pub use dial::{Dial, Dialer, Sockets};
pub use lane::{HandedOver, Lane, Successor, local_lane};
pub use outgoing::Outgoing;
pub use passage::Passage;
pub use reach::{Reach, ReachError};
pub use serve::{Intent, Mappable, Peer, RefusedAt, Service, Shared};
pub use socket::wait_writable;
pub use tls::{Identity, Tls, TlsError, TlsErrorKind, TlsFiles};

use farpool_wire::data::Span;
use farpool_wire::limits::{BATCH_OPS_MAX, IO_BYTES_MAX};
use farpool_wire::{Code, MonoNs, Refusal, Reply, Request, WireError};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// How bytes travel over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Sockets.
    Tcp,
    /// Memory mapped by client and node of one host.
    Shm,
    /// A simulated net.
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

/// One read: the range, and where its bytes go. The buffer is exactly as long as the range.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Where from.
    pub span: Span,
    /// Where to.
    pub into: &'a mut [u8],
}

/// One write: the range and its bytes, exactly as many.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// Where to.
    pub span: Span,
    /// What.
    pub from: &'a [u8],
}

/// Why an operation over a link did not happen.
#[derive(Debug)]
pub enum LinkError {
    /// The peer refused operation `index`; the link is still good. Of the others, any may have been done.
    Refused {
        /// Which of the operations given: the first that was refused.
        index: usize,
        /// Why.
        refusal: Refusal,
    },
    /// Nothing came within the time. The link is unusable: an answer may still be under way.
    TimedOut,
    /// The connection ended. The link is unusable.
    Cut(io::Error),
    /// The peer broke the protocol. The link is unusable.
    Protocol(WireError),
    /// There is no trust between us and the peer, so there is no link.
    Untrusted(TlsError),
}

impl LinkError {
    /// Whether the link may be used again.
    pub fn link_survives(&self) -> bool {
        match self {
            // Whoever could not read us hangs up.
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
            LinkError::Cut(error) => write!(f, "the connection ended: {error}"),
            LinkError::Protocol(error) => write!(f, "the peer broke the protocol: {error}"),
            LinkError::Untrusted(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for LinkError {}

/// One conversation with a node or broker. Used by one caller at a time.
pub trait Link: Send {
    /// How its bytes travel.
    fn transport(&self) -> Transport;

    /// Asks a control question.
    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError>;

    /// Sends a control question ahead, as [`Self::post_read`] does for reads. By default nothing goes ahead.
    fn post_call(&mut self, _request: &Request, _deadline: MonoNs) -> Result<(), LinkError> {
        Ok(())
    }

    /// The answer to the oldest question that was posted, which was this one.
    fn take_call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.call(request, deadline)
    }

    /// Reads every range, or reports the first that was refused. A range may be at most `IO_BYTES_MAX`.
    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError>;

    /// Writes every range in order, or reports the first that was refused. A range may be at most
    /// `IO_BYTES_MAX`.
    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError>;

    /// Sends ahead what [`Self::take_read`], called with the same operations, will then wait for: between the two
    /// the caller has other things to do, such as posting to other nodes. Several may be under way; they are
    /// taken in the order they were posted, with no other use of the link in between. By default nothing goes
    /// ahead.
    fn post_read(&mut self, _ops: &[ReadOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        Ok(())
    }

    /// Finishes the oldest read that was posted. Errors as of [`Self::read`].
    fn take_read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.read(ops, deadline)
    }

    /// Whether the oldest that was posted has begun to be answered, or the link has ended: taking it will not wait
    /// for long. Links that nothing goes ahead on are always ready.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// As [`Self::post_read`], for a write.
    fn post_write(&mut self, _ops: &[WriteOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        Ok(())
    }

    /// As [`Self::post_write`], without waiting: whether all has been sent. If not, it is to be called again with the
    /// same operations, with no other use of the link in between, once [`Self::descriptor`] can be written to. Links
    /// that have none send all.
    fn post_write_some(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<bool, LinkError> {
        self.post_write(ops, deadline).map(|()| true)
    }

    /// What can be polled for the peer to take more, if there is such a thing.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Finishes the oldest write that was posted. Errors as of [`Self::write`].
    fn take_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.write(ops, deadline)
    }

    /// Whether it has been used for so much that the next caller should have a new one.
    fn is_worn(&self) -> bool {
        false
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn transport(&self) -> Transport {
        (**self).transport()
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

    fn is_worn(&self) -> bool {
        (**self).is_worn()
    }
}

/// How many of the operations from the front fit one frame. At least one, so that progress is certain: an
/// operation that is too large by itself is refused by [`check_ops`] first.
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

/// The contract of [`Link::read`] and [`Link::write`] on what the caller hands in.
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
