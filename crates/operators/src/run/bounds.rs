//! Limits of a run, and the reasons why a run stops.

use std::fmt;

/// Limits of a run. The caller chooses all of them, and the seed: this crate reads no clock and draws no random
/// numbers.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Random number that lays out hash tables. Whoever sends programs or data must not know it.
    pub seed: u64,
    /// Rows of one pushed batch.
    pub batch_rows_max: usize,
    /// Bytes of the columns of one batch, when it is pushed and after every operator. At most 1 GiB, because offsets
    /// of text have 32 bits.
    pub batch_bytes_max: usize,
    /// Bytes that are held, of the groups or of the rows of a top (the first rows in an order). Groups beyond the
    /// limit are output early, as partial groups. A top that exceeds the limit stops the run.
    pub held_bytes_max: usize,
    /// Steps of the whole run, or since the last [`super::Run::refill`]. A step is counted for each row and
    /// instruction, each row and key or aggregate, each byte that a pattern or a cast reads, and each 8 bytes of text
    /// or bytes among the keys of a semi-join.
    pub steps_max: u64,
}

/// Greatest permitted value of the limits in bytes. Greater ones are lowered to it.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

impl Default for Bounds {
    /// Limits for a client's own use: 1 Mi rows or 1 GiB per batch, 256 MiB held, and any number of steps.
    fn default() -> Bounds {
        Bounds {
            seed: 0x243f_6a88_85a3_08d3,
            batch_rows_max: 1 << 20,
            batch_bytes_max: BATCH_BYTES_MAX,
            held_bytes_max: 256 << 20,
            steps_max: u64::MAX,
        }
    }
}

/// Reason why a run or a merge stopped. The run or merge must not be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A value does not fit its type.
    Overflow {
        /// Number of the operator in the program, from 0.
        operator: usize,
        /// The computation, with the values of the row.
        what: String,
    },
    /// A limit was exceeded.
    TooLarge {
        /// Name of the limited quantity.
        what: &'static str,
        /// The quantity that there would be.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A batch has other columns than the program reads, or a batch of partial results has other columns than the
    /// program makes.
    Columns(String),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Overflow { operator, what } => {
                write!(f, "operator {operator}: {what} does not fit its type")
            }
            Stopped::TooLarge { what, found, max } => {
                write!(f, "{found} {what}: at most {max} are permitted")
            }
            Stopped::Columns(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Stopped {}

/// Counter of the steps of a run, which are its units of work ([`Bounds::steps_max`]).
#[derive(Debug)]
pub(super) struct Steps {
    taken: u64,
    max: u64,
}

impl Steps {
    pub(super) fn new(max: u64) -> Steps {
        Steps { taken: 0, max }
    }

    /// Sets the counter to zero, so that the run may take `max` steps again.
    pub(super) fn refill(&mut self) {
        self.taken = 0;
    }

    /// Counts steps before the work is done. It is an error if the limit is exceeded.
    pub(super) fn take(&mut self, steps: usize) -> Result<(), Stopped> {
        self.taken = self.taken.saturating_add(steps as u64);
        bounded("steps", self.taken, self.max)
    }
}

pub(super) fn bounded(what: &'static str, found: u64, max: u64) -> Result<(), Stopped> {
    if found <= max { Ok(()) } else { Err(Stopped::TooLarge { what, found, max }) }
}
