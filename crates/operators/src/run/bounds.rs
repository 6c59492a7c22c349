//! What a run may use, and why one stops.

use std::fmt;

/// What a run may use. All of it is the caller's to say, the seed as well: this crate reads no clock and draws no
/// random numbers.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Random, and unknown to whoever sends programs or data: hash tables are laid out by it.
    pub seed: u64,
    /// Rows of one pushed batch.
    pub batch_rows_max: usize,
    /// Bytes of the columns of one batch, as pushed and at every step behind that; at most 1 GiB, as offsets of text
    /// have 32 bits.
    pub batch_bytes_max: usize,
    /// Bytes of the groups, or of the rows of a top, that are held. Groups beyond leave as partial groups; a top
    /// that does not fit stops the run.
    pub held_bytes_max: usize,
    /// Steps of the whole run, or since [`super::Run::refill`]: one for each row and instruction, for each row and key
    /// or aggregate, and for each byte that a pattern reads.
    pub steps_max: u64,
}

/// The most that [`Bounds::batch_bytes_max`] and the other bounds in bytes count as.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

impl Default for Bounds {
    /// For a client's own use: 1 Mi rows or 1 GiB a batch, 256 MiB held, as many steps as it takes.
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

/// Why a run or a merge ended early. It holds nothing of use behind that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A value that does not fit its type.
    Overflow {
        /// Which operator of the program; 0 is the first.
        operator: usize,
        /// What was computed, with the values of the row.
        what: String,
    },
    /// More than a bound permits.
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there would be.
        found: u64,
        /// How much is permitted.
        max: u64,
    },
    /// A batch whose columns are not those of the program, or of its partial results.
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

/// Steps that are left.
#[derive(Debug)]
pub(super) struct Steps {
    taken: u64,
    max: u64,
}

impl Steps {
    pub(super) fn new(max: u64) -> Steps {
        Steps { taken: 0, max }
    }

    /// Forgets what was taken.
    pub(super) fn refill(&mut self) {
        self.taken = 0;
    }

    /// Takes some, before the work is done.
    pub(super) fn take(&mut self, steps: usize) -> Result<(), Stopped> {
        self.taken = self.taken.saturating_add(steps as u64);
        bounded("steps", self.taken, self.max)
    }
}

pub(super) fn bounded(what: &'static str, found: u64, max: u64) -> Result<(), Stopped> {
    if found <= max { Ok(()) } else { Err(Stopped::TooLarge { what, found, max }) }
}
