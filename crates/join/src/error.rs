//! Errors of joins.

use std::fmt;

/// Reason why a join failed, with the value and what is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// A setting is out of its range.
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Value of the setting.
        value: u64,
        /// Least value that is permitted.
        least: u64,
        /// Greatest value that is permitted.
        most: u64,
    },
    /// The source of chunks has no memory. The text is its reason.
    Memory(String),
    /// A chunk does not have the size or alignment that was asked for.
    Chunk {
        /// Bytes of the chunk.
        bytes: usize,
        /// Bytes that were asked for.
        asked: usize,
        /// Address of the chunk modulo the alignment; 0 if it is aligned.
        misaligned: usize,
    },
    /// A queue of morsels (ranges of rows) did not return each row exactly once.
    Morsels {
        /// Rows of the input.
        rows: usize,
        /// Sum of the rows of all morsels, or the end of a morsel that goes beyond the rows.
        handed: usize,
    },
    /// A side has more rows than a join permits.
    TooManyRows {
        /// Rows of the side.
        rows: usize,
        /// Rows that are permitted.
        most: usize,
    },
    /// The two sides were partitioned with different seeds or numbers of bits.
    Unlike,
    /// Key columns cannot be compared. The text says why.
    Keys(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Setting { name, value, least, most } => {
                write!(f, "join setting {name} is {value}; it must be from {least} to {most}")
            }
            JoinError::Memory(reason) => write!(f, "no memory for a join: {reason}"),
            JoinError::Chunk { bytes, asked, misaligned } => write!(
                f,
                "the source of chunks returned {bytes} bytes, misaligned by {misaligned}; {asked} aligned are needed"
            ),
            JoinError::Morsels { rows, handed } => {
                write!(
                    f,
                    "the queue handed out {handed} rows of an input of {rows}; it must hand out each row once"
                )
            }
            JoinError::TooManyRows { rows, most } => {
                write!(f, "{rows} rows on one side of a join; at most {most} are permitted")
            }
            JoinError::Unlike => f.write_str(
                "the two sides of a join were partitioned with different bits or seeds: use one hasher",
            ),
            JoinError::Keys(reason) => write!(f, "keys of a join: {reason}"),
        }
    }
}

impl std::error::Error for JoinError {}
