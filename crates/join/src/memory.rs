//! Memory that somebody else placed, as plain lines.
//!
//! The idea: [`Memory`] owns a range of lines together with whatever keeps it there. An [`Arena`] cuts chunks into
//! pieces of equal length, each handed out once; [`Pieces`] is the same when nothing is written any more.
//!
//! Invariant: a line is reached by one mutable reference, or by shared ones, never by both: memory by borrowing it,
//! pieces by their number, which only grows.
#![allow(unsafe_code)]

use crate::chunks::{CHUNK_LINES, Chunks, Line, Purpose, take};
use crate::{JoinError, Tuple};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Lines, and what keeps them. Dropping it gives them back.
pub struct Memory<'m> {
    start: NonNull<Line>,
    lines: usize,
    /// Dropped behind the last use of the lines.
    _keeper: Box<dyn Send + Sync + 'm>,
    owned: PhantomData<Line>,
}

// SAFETY: the lines are plain numbers that this value alone owns, and its keeper may be sent.
unsafe impl Send for Memory<'_> {}
// SAFETY: shared, it only shows its lines.
unsafe impl Sync for Memory<'_> {}

impl<'m> Memory<'m> {
    /// Of lines that begin at `start` and are given back by dropping `keeper`.
    ///
    /// # Safety
    /// Until `keeper` is dropped, wherever it is moved to, the lines are mapped, aligned, writable, initialised, and
    /// accessed by nobody else.
    pub unsafe fn new(start: NonNull<Line>, lines: usize, keeper: Box<dyn Send + Sync + 'm>) -> Memory<'m> {
        Memory { start, lines, _keeper: keeper, owned: PhantomData }
    }

    /// No lines.
    pub fn none() -> Memory<'m> {
        Memory { start: NonNull::dangling(), lines: 0, _keeper: Box::new(()), owned: PhantomData }
    }

    /// All of them.
    pub fn lines(&self) -> &[Line] {
        // SAFETY: what `new` was promised; whoever writes borrows `self` alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.lines) }
    }

    /// All of them, to be written.
    pub fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: what `new` was promised; `self` is borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.lines) }
    }

    /// All of them as tuples, four in each line.
    pub fn tuples(&self) -> &[Tuple] {
        tuples(self.lines())
    }

    /// The same, to be written.
    pub fn tuples_mut(&mut self) -> &mut [Tuple] {
        tuples_mut(self.lines_mut())
    }
}

impl std::fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("start", &self.start).field("lines", &self.lines).finish()
    }
}

/// Lines as the tuples that they hold, four each.
pub(crate) fn tuples(lines: &[Line]) -> &[Tuple] {
    // SAFETY: a line is as large as four tuples and stricter aligned, and both are plain numbers without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 4) }
}

/// The same to be written.
pub(crate) fn tuples_mut(lines: &mut [Line]) -> &mut [Tuple] {
    // SAFETY: as for `tuples`; the lines are borrowed by nobody else meanwhile.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 4) }
}

/// Lines as words, eight each.
pub(crate) fn words(lines: &[Line]) -> &[i64] {
    // SAFETY: a line is eight words, without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 8) }
}

/// The same to be written.
pub(crate) fn words_mut(lines: &mut [Line]) -> &mut [i64] {
    // SAFETY: as for `words`; the lines are borrowed by nobody else meanwhile.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 8) }
}

/// Words as halves, to be written.
pub(crate) fn halves_mut(words: &mut [i64]) -> &mut [u32] {
    // SAFETY: a word is two halves, without gaps, and stricter aligned; the words are borrowed by nobody else
    // meanwhile.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 2) }
}

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
        let start = memories[piece / in_chunk].start;
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
