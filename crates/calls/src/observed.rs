//! What a session has seen of links, queries and functions: by it is chosen where the next one runs.

use farpool_files::beneath::{NodeLinks, Session};
use farpool_lock::{Mutex, MutexGuard};
use farpool_planner::{Learned, Reach};
use std::sync::Arc;

/// What was seen in a session, and the CPUs of this process.
pub struct Observed {
    learned: Mutex<Learned>,
    /// CPUs of this process.
    pub cpus: usize,
}

impl Default for Observed {
    fn default() -> Observed {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Observed { learned: Mutex::default(), cpus }
    }
}

impl Observed {
    /// Returns what was seen in this session.
    pub fn of(session: &Session) -> Arc<Observed> {
        session.kept()
    }

    /// Returns what was learnt of it, locked.
    pub fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock()
    }
}

/// Returns how this process reaches a node.
pub fn reach(session: &Session, node: &NodeLinks) -> Reach {
    match () {
        () if node.is_shared() => Reach::Memory,
        () if session.is_here(node) => Reach::Loopback,
        () => Reach::Network,
    }
}
