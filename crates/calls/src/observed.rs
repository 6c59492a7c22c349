//! Observations of a session about links, queries and functions. They decide where the next query or call runs.

use farpool_files::beneath::{NodeLinks, Session};
use farpool_lock::{Mutex, MutexGuard};
use farpool_planner::{Distance, Learned};
use std::sync::Arc;

/// Rates and costs that a session has learnt, and the number of CPUs.
pub struct Observed {
    learned: Mutex<Learned>,
    /// Number of CPUs of this process.
    pub cpus: usize,
}

impl Default for Observed {
    fn default() -> Observed {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Observed { learned: Mutex::default(), cpus }
    }
}

impl Observed {
    /// Returns the observations of this session, which are shared by all its queries and calls.
    pub fn of(session: &Session) -> Arc<Observed> {
        session.kept()
    }

    /// Locks what was learnt and returns it. Callers hold the lock for a look or a note, never during a request.
    pub fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock()
    }
}

/// Returns how this process reaches a node: by shared memory, the loopback interface or the network.
pub fn distance(session: &Session, node: &NodeLinks) -> Distance {
    match () {
        () if node.is_shared() => Distance::Memory,
        () if session.is_here(node) => Distance::Loopback,
        () => Distance::Network,
    }
}
