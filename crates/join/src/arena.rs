//! Pieces of memory: what one thread writes bit by bit, and many read afterwards.
//!
//! The idea: an [`Arena`] cuts chunks into pieces of equal length, each handed out once; [`Pieces`] is the same when
//! nothing is written any more.
//!
//! Invariant: a line is reached by one mutable reference, or by shared ones, never by both: pieces by their number,
//! which only grows.
#![allow(unsafe_code)]

use crate::JoinError;
use crate::chunks::{CHUNK_LINES, Chunks, Purpose, take};
use crate::memory::{Line, Memory};
use std::cell::{Cell, RefCell};

/// Cuts chunks into pieces while they are written by one thread.
pub(crate) struct Arena<'m> {
    chunks: &'m dyn Chunks,
    purpose: Purpose,
    piece_lines: usize,
    memories: RefCell<Vec<Memory<'m>>>,
    pieces: Cell<usize>,
}

impl<'m> Arena<'m> {
    /// Of pieces of so many lines, which must be a power of two and no more than a chunk has.
    pub(crate) fn new(chunks: &'m dyn Chunks, purpose: Purpose, piece_lines: usize) -> Arena<'m> {
        assert!(piece_lines.is_power_of_two() && piece_lines <= CHUNK_LINES, "pieces of {piece_lines} lines");
        Arena { chunks, purpose, piece_lines, memories: RefCell::default(), pieces: Cell::new(0) }
    }

    /// The next piece; they are numbered from 0.
    #[allow(clippy::mut_from_ref)] // Each piece is handed out once.
    pub(crate) fn piece(&self) -> Result<&mut [Line], JoinError> {
        let piece = self.pieces.get();
        let in_chunk = CHUNK_LINES / self.piece_lines;
        let mut memories = self.memories.borrow_mut();
        if piece == memories.len() * in_chunk {
            memories.push(take(self.chunks, self.purpose, 1)?);
        }
        self.pieces.set(piece + 1);
        let start = memories[piece / in_chunk].start();
        // SAFETY: a memory has the lines of a chunk (`take` looks), of which this piece is a part that no other number
        // names; it lives as long as `self`, wherever the vector moves to, for it only holds where the lines are. No
        // reference to all lines of it is made before `self` is gone, and with it every piece.
        Ok(unsafe {
            let first = start.as_ptr().add(piece % in_chunk * self.piece_lines);
            std::slice::from_raw_parts_mut(first, self.piece_lines)
        })
    }

    /// What was written, to be read.
    pub(crate) fn finish(self) -> Pieces<'m> {
        Pieces { memories: self.memories.into_inner(), piece_lines: self.piece_lines }
    }
}

/// Pieces that are written no more.
#[derive(Debug)]
pub(crate) struct Pieces<'m> {
    memories: Vec<Memory<'m>>,
    piece_lines: usize,
}

impl Pieces<'_> {
    /// The piece of this number.
    pub(crate) fn piece(&self, piece: usize) -> &[Line] {
        let in_chunk = CHUNK_LINES / self.piece_lines;
        let first = piece % in_chunk * self.piece_lines;
        &self.memories[piece / in_chunk].lines()[first..first + self.piece_lines]
    }
}
