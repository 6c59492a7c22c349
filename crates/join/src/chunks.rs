//! Interface through which a join gets its memory.
//!
//! The idea: a join never allocates large memory itself. It asks its caller for chunks of 2 MiB and states their
//! purpose. The caller decides on which memory tier each chunk lies. A table is one run of chunks with consecutive
//! addresses, which may still lie on different tiers.

use crate::JoinError;
use crate::memory::{CacheLine, LineMemory};

/// Bytes of a chunk: a huge page, the unit in which memory is placed on tiers.
pub const CHUNK_BYTES: usize = 2 << 20;
/// Cache lines of a chunk.
pub const CHUNK_LINES: usize = CHUNK_BYTES / size_of::<CacheLine>();

/// Side of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinSide {
    /// Side from which tables are made. It should be the smaller one.
    Build,
    /// Side whose rows are looked up in the tables.
    Probe,
}

/// Purpose of memory that a join asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Partitions of one side (its rows, divided by the hash of their key): written once from front to back, and read
    /// once.
    Partition {
        /// Side whose rows are written.
        side: JoinSide,
        /// Thread that writes the memory, counted from 0.
        worker: usize,
    },
    /// A table in which rows are looked up: written range by range, then read at random.
    Table,
    /// Working memory of a thread. It should fit a cache.
    Scratch {
        /// Thread, counted from 0.
        worker: usize,
    },
}

/// Source of memory in chunks.
pub trait ChunkSource: Sync {
    /// Returns `count` consecutive chunks, aligned to [`CHUNK_BYTES`], with any content. Dropping the result gives them
    /// back.
    ///
    /// # Errors
    /// Returns [`JoinError::Memory`] with a reason if there is no memory.
    fn take(&self, purpose: Purpose, count: usize) -> Result<LineMemory<'_>, JoinError>;
}

/// Takes chunks from a source and checks their size and alignment.
pub(crate) fn take(
    chunks: &dyn ChunkSource,
    purpose: Purpose,
    count: usize,
) -> Result<LineMemory<'_>, JoinError> {
    let memory = chunks.take(purpose, count)?;
    let (bytes, asked) = (size_of_val(memory.lines()), count * CHUNK_BYTES);
    let misaligned = memory.lines().as_ptr().addr() % CHUNK_BYTES;
    match bytes == asked && (misaligned == 0 || count == 0) {
        true => Ok(memory),
        false => Err(JoinError::Chunk { bytes, asked, misaligned }),
    }
}

/// Returns the number of chunks that hold `lines` lines.
pub(crate) fn chunks_for(lines: usize) -> usize {
    lines.div_ceil(CHUNK_LINES)
}
