//! Why a join could not be done.

use std::fmt;

/// What went wrong, with the value and what is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// A setting is out of its range.
    Setting {
        /// Which one.
        name: &'static str,
        /// What it was.
        value: u64,
        /// The least that is permitted.
        least: u64,
        /// The most that is permitted.
        most: u64,
    },
    /// The memory that was asked for is not to be had. What the source of it said is inside.
    Memory(String),
    /// A chunk is not as large or not aligned as asked for.
    Chunk {
        /// Bytes of it.
        bytes: usize,
        /// Bytes that were asked for.
        asked: usize,
        /// Its address modulo the alignment wanted, 0 if that is right.
        misaligned: usize,
    },
    /// A queue of morsels handed out something else than every row once.
    Morsels {
        /// Rows of the input.
        rows: usize,
        /// The end of the range that is beyond them, or the sum of all ranges.
        handed: usize,
    },
    /// More rows than a table of this side holds.
    TooManyRows {
        /// How many there are.
        rows: usize,
        /// How many are permitted.
        most: usize,
    },
    /// Two inputs were partitioned by different numbers of bits or seeds.
    Unlike,
    /// Key columns cannot be compared.
    Keys(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Setting { name, value, least, most } => {
                write!(f, "{name} of a join is {value}; {least} to {most} is permitted")
            }
            JoinError::Memory(reason) => write!(f, "memory for a join: {reason}"),
            JoinError::Chunk { bytes, asked, misaligned } => write!(
                f,
                "a chunk of {bytes} bytes, {misaligned} bytes off its alignment, where {asked} aligned ones were asked for"
            ),
            JoinError::Morsels { rows, handed } => {
                write!(
                    f,
                    "morsels over {handed} rows of an input of {rows}: each row must be handed out once"
                )
            }
            JoinError::TooManyRows { rows, most } => {
                write!(f, "{rows} rows on one side of a join; at most {most} are permitted")
            }
            JoinError::Unlike => {
                f.write_str("the two sides of a join were partitioned by different bits or seeds")
            }
            JoinError::Keys(reason) => write!(f, "keys of a join: {reason}"),
        }
    }
}

impl std::error::Error for JoinError {}
