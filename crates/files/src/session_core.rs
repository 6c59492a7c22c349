//! Core of a session: its host, its settings, its counters, and whether it has ended.
//!
//! Methods are of three kinds: those that compute deadlines by the host's clock; [`SessionCore::check_open`] and
//! [`SessionCore::pause`], which fail once the session has ended; and [`SessionCore::close`] and
//! [`SessionCore::abandon`], which end it. There is no lock: ending the session sets a flag and wakes the threads that
//! pause.

use crate::error::{Error, ErrorKind};
use crate::options::PoolOptions;
use crate::stats::Counters;
use farpool_host::{ForkMark, HostEvent};
use farpool_transport::Dialer;
use farpool_transport::times::OperationTimes;
use farpool_wire::MonoNs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Slowest rate at which a node is expected to touch, copy or read the bytes that a request is about before it answers,
/// in bytes per ms. 400 MB/s were measured on a virtual machine whose host had to find the pages first.
const WORK_BYTES_PER_MS: u64 = 128 << 10;

/// Time limit in ms of what another node can do as well: a read, or a step of a scan.
pub const BRIEF_MS: u64 = 750;
/// Time in ms after which a node that has not answered is asked whether it is there, if others can do the same. The
/// rest of [`BRIEF_MS`] is for the answer.
pub(crate) const LOOK_MS: u64 = BRIEF_MS / 3;
/// Bytes of such a read or write for which the node has 1 ms more: 16 MB/s, a slow link.
const BRIEF_BYTES_PER_MS: u64 = 16 << 10;

/// Number of places that bytes are written to, at most, until a node takes them.
pub(crate) const PLACES_MAX: u32 = 3;

/// How long a reader or writer waits for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferPatience {
    /// Not long, because another node has the bytes, too, or can take them.
    Brief,
    /// Time of any request.
    Full,
}

/// Effort to read from the nodes that are known to have the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A node that does not answer soon is given up.
    Rushed,
    /// Such a node is given up where others have the bytes. If none of them answers soon, each gets more time.
    Usual,
    /// Each node has the time of any request.
    Patient,
}

/// Host, settings, counters and end of a session, shared by all of its parts.
pub(crate) struct SessionCore {
    /// Clock, threads, random numbers and connections.
    pub(crate) host: Arc<dyn Dialer>,
    pub(crate) options: PoolOptions,
    pub(crate) counters: Arc<Counters>,
    /// Times of requests for ranges of files.
    pub(crate) times: OperationTimes,
    is_closed: AtomicBool,
    mark: ForkMark,
    /// Event that is signalled when the session ends.
    stopping: HostEvent,
}

impl SessionCore {
    pub(crate) fn new(host: Arc<dyn Dialer>, options: PoolOptions) -> Result<SessionCore, Error> {
        Ok(SessionCore {
            host,
            options,
            counters: Arc::default(),
            times: OperationTimes::default(),
            is_closed: AtomicBool::new(false),
            mark: ForkMark::new()
                .map_err(|error| Error::new(ErrorKind::Exhausted, format!("mapping a page: {error}")))?,
            stopping: HostEvent::default(),
        })
    }

    /// Returns the deadline of an operation that starts now and may take `timeout_ms`.
    pub(crate) fn deadline(&self, timeout_ms: u64) -> MonoNs {
        self.host.now().plus_ms(timeout_ms)
    }

    /// Returns the deadline of a request to one peer that is sent now.
    pub(crate) fn request_deadline(&self) -> MonoNs {
        self.request_deadline_for(0)
    }

    /// Returns the deadline of a request that is sent now, and for which the peer works through this many bytes.
    pub(crate) fn request_deadline_for(&self, bytes: u64) -> MonoNs {
        self.deadline(self.options.request_timeout_ms.saturating_add(bytes / WORK_BYTES_PER_MS))
    }

    /// Returns the time limit of a read or write of this many bytes, in ms.
    pub(crate) fn transfer_timeout_ms(&self, patience: TransferPatience, bytes: u64) -> u64 {
        let full = self.options.request_timeout_ms;
        match patience {
            TransferPatience::Brief => full.min(BRIEF_MS + bytes / BRIEF_BYTES_PER_MS),
            TransferPatience::Full => full,
        }
    }

    /// Fails if the session was closed, or was opened by the process that this one was forked from.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        // The connections are shared with the parent process. Either process could get the other's answers.
        if self.is_forked() {
            let message = "the pool was opened before this process was forked; open it again in this process";
            return Err(Error::new(ErrorKind::Forked, message));
        }
        Ok(())
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.mark.is_forked()
    }

    /// Waits for `ms`. Fails at once if the session ends.
    pub(crate) fn pause(&self, ms: u64) -> Result<(), Error> {
        self.host.wait(&self.stopping, 0, self.deadline(ms));
        if self.stopping.heard() > 0 { Err(closed()) } else { Ok(()) }
    }

    /// Ends the session and all pauses. Returns true if it had not ended before.
    pub(crate) fn close(&self) -> bool {
        let is_first = !self.is_closed.swap(true, Ordering::AcqRel);
        if is_first {
            self.stopping.signal();
        }
        is_first
    }

    /// Ends the session in this forked process, which has no threads that pause.
    pub(crate) fn abandon(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the pool is closed")
}
