//! What all parts of a session stand on: its host, its settings, its counters, and whether it still goes on.
//!
//! Methods of three kinds: deadlines by the host's clock; [`Base::check_open`] and [`Base::pause`], which refuse to go
//! on once the session has ended; and those that end it. No lock: whoever ends it leaves a word, and rings for those
//! who pause.

use crate::error::{Error, ErrorKind};
use crate::options::PoolOptions;
use crate::stats::Counters;
use farpool_host::{Bell, ForkMark};
use farpool_transport::Dialer;
use farpool_wire::MonoNs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct Base {
    /// The clock, the threads, the random numbers, and the ways to others.
    pub(crate) host: Arc<dyn Dialer>,
    pub(crate) options: PoolOptions,
    pub(crate) counters: Arc<Counters>,
    is_closed: AtomicBool,
    mark: ForkMark,
    /// Rings when the session ends.
    stopping: Bell,
}

impl Base {
    pub(crate) fn new(host: Arc<dyn Dialer>, options: PoolOptions) -> Result<Base, Error> {
        Ok(Base {
            host,
            options,
            counters: Arc::default(),
            is_closed: AtomicBool::new(false),
            mark: ForkMark::new()
                .map_err(|error| Error::new(ErrorKind::Exhausted, format!("mapping a page: {error}")))?,
            stopping: Bell::default(),
        })
    }

    /// Until when something that begins now may last.
    pub(crate) fn deadline(&self, timeout_ms: u64) -> MonoNs {
        self.host.now().plus_ms(timeout_ms)
    }

    /// Until when one peer may be waited for that is asked now.
    pub(crate) fn request_deadline(&self) -> MonoNs {
        self.deadline(self.options.request_timeout_ms)
    }

    /// Refuses what is asked of a session that was closed, or that another process opened.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        // The connections are shared with the parent: either process could get the other's answers.
        if self.is_forked() {
            let message = "this pool was opened by the process this one was forked from: open one here";
            return Err(Error::new(ErrorKind::Forked, message));
        }
        Ok(())
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.mark.is_forked()
    }

    /// Waits, unless the session is being closed.
    pub(crate) fn pause(&self, ms: u64) -> Result<(), Error> {
        self.host.wait(&self.stopping, 0, self.deadline(ms));
        if self.stopping.heard() > 0 { Err(closed()) } else { Ok(()) }
    }

    /// Ends the session, and all pauses. Whether it had not ended before.
    pub(crate) fn close(&self) -> bool {
        let is_first = !self.is_closed.swap(true, Ordering::AcqRel);
        if is_first {
            self.stopping.ring();
        }
        is_first
    }

    /// Ends the session in this process, in which nobody pauses.
    pub(crate) fn abandon(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the pool is closed")
}
