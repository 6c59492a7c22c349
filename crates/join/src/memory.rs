//! Memory that somebody else placed, as plain lines.
//!
//! The idea: [`Memory`] owns a range of lines together with whatever keeps it there.
//!
//! Invariant: a line is reached by one mutable reference, or by shared ones, never by both: by borrowing the memory.
#![allow(unsafe_code)]

use crate::Tuple;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A cache line of plain words: four tuples, or a bucket of four keys and what belongs to each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [i64; 8]);

const _: () = assert!(size_of::<Line>() == 64);

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

    /// Where they begin.
    pub(crate) fn start(&self) -> NonNull<Line> {
        self.start
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
