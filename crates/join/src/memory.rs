//! Memory that the caller of a join has placed on a memory tier, as cache lines.
//!
//! The idea: [`LineMemory`] owns a range of lines, together with a value that keeps them mapped.
//!
//! Invariant: a line is reached by one mutable reference, or by shared references, never by both. The borrow of the
//! `LineMemory` ensures it.
#![allow(unsafe_code)]

use crate::Tuple;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Cache line of eight words: four tuples, or a bucket of four keys and a word for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [i64; 8]);

const _: () = assert!(size_of::<CacheLine>() == 64);

/// Range of cache lines and the value that keeps them mapped. Dropping it gives the lines back to their source.
pub struct LineMemory<'m> {
    start: NonNull<CacheLine>,
    lines: usize,
    /// Owner of the mapping. It is only stored to be dropped together with this value.
    _keeper: Box<dyn Send + Sync + 'm>,
    owned: PhantomData<CacheLine>,
}

// SAFETY: the lines are plain numbers that this value alone owns, and its keeper may be sent.
unsafe impl Send for LineMemory<'_> {}
// SAFETY: through a shared reference the lines can only be read.
unsafe impl Sync for LineMemory<'_> {}

impl<'m> LineMemory<'m> {
    /// Returns the lines that begin at `start`. Dropping `keeper` gives them back.
    ///
    /// # Safety
    /// The lines must be mapped, aligned, writable, initialised, and accessed by nobody else until `keeper` is dropped,
    /// even if `keeper` is moved.
    pub unsafe fn new(
        start: NonNull<CacheLine>,
        lines: usize,
        keeper: Box<dyn Send + Sync + 'm>,
    ) -> LineMemory<'m> {
        LineMemory { start, lines, _keeper: keeper, owned: PhantomData }
    }

    /// Returns a range of no lines.
    pub fn none() -> LineMemory<'m> {
        LineMemory { start: NonNull::dangling(), lines: 0, _keeper: Box::new(()), owned: PhantomData }
    }

    /// Returns the address of the first line.
    pub(crate) fn start(&self) -> NonNull<CacheLine> {
        self.start
    }

    /// Returns all lines.
    pub fn lines(&self) -> &[CacheLine] {
        // SAFETY: the caller of `new` promised valid lines; writers borrow `self` exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.lines) }
    }

    /// Returns all lines for writing.
    pub fn lines_mut(&mut self) -> &mut [CacheLine] {
        // SAFETY: the caller of `new` promised valid lines; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.lines) }
    }

    /// Returns all lines as tuples, four to a line.
    pub fn tuples(&self) -> &[Tuple] {
        tuples(self.lines())
    }

    /// Returns all lines as tuples for writing, four to a line.
    pub fn tuples_mut(&mut self) -> &mut [Tuple] {
        tuples_mut(self.lines_mut())
    }
}

impl std::fmt::Debug for LineMemory<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineMemory").field("start", &self.start).field("lines", &self.lines).finish()
    }
}

/// Returns lines as tuples, four to a line.
pub(crate) fn tuples(lines: &[CacheLine]) -> &[Tuple] {
    // SAFETY: a line is as large as four tuples and stricter aligned, and both are plain numbers without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 4) }
}

/// Returns lines as tuples for writing, four to a line.
pub(crate) fn tuples_mut(lines: &mut [CacheLine]) -> &mut [Tuple] {
    // SAFETY: a line is as large as four tuples and stricter aligned, and both are plain numbers without gaps. The
    // lines are borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 4) }
}

/// Returns lines as words, eight to a line.
pub(crate) fn words(lines: &[CacheLine]) -> &[i64] {
    // SAFETY: a line is eight words, without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 8) }
}

/// Returns lines as words for writing, eight to a line.
pub(crate) fn words_mut(lines: &mut [CacheLine]) -> &mut [i64] {
    // SAFETY: a line is eight words, without gaps. The lines are borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 8) }
}

/// Returns words as 32-bit halves for writing, two to a word.
pub(crate) fn halves_mut(words: &mut [i64]) -> &mut [u32] {
    // SAFETY: a word is two halves, without gaps, and stricter aligned. The words are borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 2) }
}
