//! Ending well: a server runs until it is told to stop, and then puts its things away.

use crate::exit::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals caught from now on; take it before starting what must be put away.
pub struct Stop(Signals);

impl Stop {
    /// Catches them from now on.
    pub fn catch() -> Result<Stop, Failure> {
        // A terminal that goes takes along what was started from it, unless that was told not to listen (nohup).
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup)).map(Stop).map_err(Failure::failed)
    }

    /// Whether one has come.
    pub fn has_come(&mut self) -> bool {
        self.0.pending().next().is_some()
    }

    /// An error if one has come.
    pub fn check(&mut self) -> Result<(), Failure> {
        if self.has_come() { Err(Failure::failed("stopped by a signal")) } else { Ok(()) }
    }

    /// Returns when the first one comes.
    pub fn wait(mut self) {
        let _ = self.0.forever().next();
    }
}

/// Whether whoever started this process had a signal ignored (`SigIgn`, proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
