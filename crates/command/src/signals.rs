//! Signals that end a command: a server runs until it gets one, and then shuts down cleanly.

use crate::exit::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals that ask this process to stop: SIGINT, SIGTERM and SIGHUP. Catch them before starting anything that must be
/// shut down cleanly.
pub struct Stop(Signals);

impl Stop {
    /// Starts to catch the signals.
    pub fn catch() -> Result<Stop, Failure> {
        // SIGHUP is sent when the terminal closes. A process started under `nohup` ignores it, and must go on ignoring
        // it.
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup)).map(Stop).map_err(Failure::failed)
    }

    /// Reports whether a signal has arrived.
    pub fn has_come(&mut self) -> bool {
        self.0.pending().next().is_some()
    }

    /// Returns an error if a signal has arrived.
    pub fn check(&mut self) -> Result<(), Failure> {
        if self.has_come() { Err(Failure::failed("stopped by a signal")) } else { Ok(()) }
    }

    /// Waits until a signal arrives.
    pub fn wait(mut self) {
        let _ = self.0.forever().next();
    }
}

/// Reports whether this process was started with a signal ignored (`SigIgn`, proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
