//! Race of two tries of one call: what each of them looks at while it waits for an answer.

use farpool_files::beneath::NodeLinks;
use farpool_transport::LinkError;
use farpool_wire::MonoNs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Interval in ns at which a try looks whether the other one has ended.
const LOOK_NS: u64 = 500_000;

/// One of two tries of a call.
#[derive(Clone, Copy)]
pub(crate) struct Try<'c> {
    /// True once one of the tries has an answer.
    pub(crate) is_over: &'c AtomicBool,
    /// When and how the other try begins; `None` for the second one.
    pub(crate) second: Option<&'c Second<'c>>,
}

/// The second try, before it begins.
pub(crate) struct Second<'c> {
    pub(crate) begins: MonoNs,
    pub(crate) has_begun: AtomicBool,
    /// Begins the second try elsewhere than at a node.
    pub(crate) begin: &'c (dyn Fn(&NodeLinks) + Sync),
}

impl Try<'_> {
    /// Reports whether one of the tries has an answer.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Begins the second try if it is time. Returns when to look again.
    ///
    /// Errors: the other try has an answer.
    pub(crate) fn look(&self, now: MonoNs, slow: &NodeLinks) -> Result<MonoNs, LinkError> {
        if self.is_over() {
            return Err(LinkError::Disconnected(io::ErrorKind::Interrupted.into()));
        }
        match self.second {
            Some(second) if now < second.begins => return Ok(second.begins),
            Some(second) if !second.has_begun.swap(true, Ordering::Relaxed) => (second.begin)(slow),
            _ => {}
        }
        Ok(MonoNs(now.0 + LOOK_NS))
    }
}
