//! Where a join's memory comes from.
//!
//! The idea: a join never allocates what is large. It asks its caller for chunks of 2 MiB, one at a time, and says what
//! for; which tier each of them lies on is the caller's decision, and may be another for every chunk. A table is asked
//! for as one run of chunks, whose addresses follow each other; its chunks may lie on different tiers all the same.

use crate::JoinError;
use crate::memory::{Line, Memory};

/// Bytes of a chunk: a huge page, the unit in which memory is placed.
pub const CHUNK_BYTES: usize = 2 << 20;
/// Lines of a chunk.
pub const CHUNK_LINES: usize = CHUNK_BYTES / size_of::<Line>();

/// A side of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// What tables are made of: the smaller one, if the caller is wise.
    Build,
    /// What is looked up.
    Probe,
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Partitions of a side, written once, front to back, and read once.
    Partition {
        /// Which side.
        side: Side,
        /// The thread that writes it, from 0.
        worker: usize,
    },
    /// A table in memory, written by ranges and then read all over.
    Table,
    /// What a thread works in, all of it in a cache if that is large enough.
    Scratch {
        /// The thread, from 0.
        worker: usize,
    },
}

/// Hands out memory in chunks.
pub trait Chunks: Sync {
    /// So many chunks in a row, aligned to [`CHUNK_BYTES`], of whatever content. They are given back by dropping what
    /// is returned.
    ///
    /// # Errors
    /// [`JoinError::Memory`] with a reason, if there are none.
    fn take(&self, purpose: Purpose, count: usize) -> Result<Memory<'_>, JoinError>;
}

/// What a source handed out, if it is what was asked for.
pub(crate) fn take(chunks: &dyn Chunks, purpose: Purpose, count: usize) -> Result<Memory<'_>, JoinError> {
    let memory = chunks.take(purpose, count)?;
    let (bytes, asked) = (size_of_val(memory.lines()), count * CHUNK_BYTES);
    let misaligned = memory.lines().as_ptr().addr() % CHUNK_BYTES;
    match bytes == asked && (misaligned == 0 || count == 0) {
        true => Ok(memory),
        false => Err(JoinError::Chunk { bytes, asked, misaligned }),
    }
}

/// Chunks for so many lines.
pub(crate) fn chunks_for(lines: usize) -> usize {
    lines.div_ceil(CHUNK_LINES)
}
