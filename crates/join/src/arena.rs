//! Blocks of memory that one thread writes one after another and many threads read afterwards.
//!
//! The idea: an [`Arena`] divides chunks of 2 MiB into blocks of equal length and returns each one once, for writing.
//! [`Blocks`] gives shared access to the same blocks after writing has ended.
//!
//! Invariant: a line is reached by one mutable reference, or by shared references, never by both. Blocks are told apart
//! by their number, which only grows.
#![allow(unsafe_code)]

use crate::JoinError;
use crate::chunks::{CHUNK_LINES, ChunkSource, Purpose, take};
use crate::memory::{CacheLine, LineMemory};
use std::cell::{Cell, RefCell};

/// Divider of chunks into blocks, which one thread writes.
pub(crate) struct Arena<'m> {
    chunks: &'m dyn ChunkSource,
    purpose: Purpose,
    /// Cache lines of a block.
    block_lines: usize,
    /// Chunks that were taken so far.
    memories: RefCell<Vec<LineMemory<'m>>>,
    /// Number of blocks that were returned so far.
    blocks: Cell<usize>,
}

impl<'m> Arena<'m> {
    /// Returns an arena of blocks of `block_lines` cache lines: a power of two, at most the lines of a chunk.
    pub(crate) fn new(chunks: &'m dyn ChunkSource, purpose: Purpose, block_lines: usize) -> Arena<'m> {
        assert!(block_lines.is_power_of_two() && block_lines <= CHUNK_LINES, "blocks of {block_lines} lines");
        Arena { chunks, purpose, block_lines, memories: RefCell::default(), blocks: Cell::new(0) }
    }

    /// Returns the next block. Blocks are numbered from 0.
    #[allow(clippy::mut_from_ref)] // Each block is handed out once.
    pub(crate) fn block(&self) -> Result<&mut [CacheLine], JoinError> {
        let block = self.blocks.get();
        let in_chunk = CHUNK_LINES / self.block_lines;
        let mut memories = self.memories.borrow_mut();
        if block == memories.len() * in_chunk {
            memories.push(take(self.chunks, self.purpose, 1)?);
        }
        self.blocks.set(block + 1);
        let start = memories[block / in_chunk].start();
        // SAFETY: `take` checked that a memory has the lines of a chunk. This block is a part of it that belongs to no
        // other block number, and no number is used twice. The block lives as long as `self`: if the vector moves its
        // elements, the lines they point to stay in place. `finish` consumes `self`, so no block is left when `Blocks`
        // reads the lines.
        Ok(unsafe {
            let first = start.as_ptr().add(block % in_chunk * self.block_lines);
            std::slice::from_raw_parts_mut(first, self.block_lines)
        })
    }

    /// Ends writing, and returns the blocks for reading.
    pub(crate) fn finish(self) -> Blocks<'m> {
        Blocks { memories: self.memories.into_inner(), block_lines: self.block_lines }
    }
}

/// Blocks that are no longer written.
#[derive(Debug)]
pub(crate) struct Blocks<'m> {
    memories: Vec<LineMemory<'m>>,
    block_lines: usize,
}

impl Blocks<'_> {
    /// Returns the block of this number.
    pub(crate) fn block(&self, block: usize) -> &[CacheLine] {
        let in_chunk = CHUNK_LINES / self.block_lines;
        let first = block % in_chunk * self.block_lines;
        &self.memories[block / in_chunk].lines()[first..first + self.block_lines]
    }
}
