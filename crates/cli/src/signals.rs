//! Ending well: a server runs until it is told to stop, and then puts its things away.

use crate::exit::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals caught from now on; take it before starting what must be put away.
pub(crate) struct Stop(Signals);

impl Stop {
    pub(crate) fn catch() -> Result<Stop, Failure> {
        Signals::new([SIGINT, SIGTERM]).map(Stop).map_err(Failure::failed)
    }

    /// Whether one has come.
    pub(crate) fn has_come(&mut self) -> bool {
        self.0.pending().next().is_some()
    }

    /// An error if one has come.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        if self.has_come() { Err(Failure::failed("stopped by a signal")) } else { Ok(()) }
    }

    /// Returns when the first one comes.
    pub(crate) fn wait(mut self) {
        let _ = self.0.forever().next();
    }
}
