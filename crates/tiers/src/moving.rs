//! Inputs of which some morsels are copied to another tier and read from there afterwards.
//!
//! The idea: an input is a sequence of morsels of 4,096 rows, and each has a copy or none. Copies are made in a step of
//! their own (the strategies of paper 002), or when a morsel is read for the first time. Copies on one tier lie close
//! together in chunks.

use crate::memory::TierMemory;
use crate::plan::traffic::TierSide;
use crate::region::{CHUNK_BYTES, TierRegionError};
use crate::stage::{Morsel, Work};
use crate::strategy::MORSEL_BYTES;
use farpool_join::{JoinInput, LineMemory, Tuple};
use farpool_lock::Mutex;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a morsel.
pub(crate) const MORSEL_ROWS: usize = MORSEL_BYTES as usize / size_of::<Tuple>();
const CHUNK_MORSELS: usize = CHUNK_BYTES / MORSEL_BYTES as usize;

/// Memory for the copies of morsels.
pub(crate) struct Copies<'m> {
    /// Chunks by tier (near, far).
    chunks: [Vec<LineMemory<'m>>; 2],
    /// Tier of each morsel's copy; `None` if the morsel is not copied.
    to: Vec<Option<TierSide>>,
}

impl<'m> Copies<'m> {
    /// Reserves chunks for the copies of all morsels whose entry in `to` is a tier.
    pub(crate) fn new(
        memory: &'m TierMemory,
        to: Vec<Option<TierSide>>,
    ) -> Result<Copies<'m>, TierRegionError> {
        let mut chunks = [Vec::new(), Vec::new()];
        for side in TierSide::ALL {
            let morsels = to.iter().filter(|of| **of == Some(side)).count();
            let count = morsels.div_ceil(CHUNK_MORSELS);
            memory.reserve(side, count)?;
            for _ in 0..count {
                chunks[side.index()].push(memory.chunk(side)?);
            }
        }
        Ok(Copies { chunks, to })
    }

    /// Returns memory for no copies.
    pub(crate) fn none() -> Copies<'m> {
        Copies { chunks: [Vec::new(), Vec::new()], to: Vec::new() }
    }
}

/// Place for the copy of a morsel.
struct Slot<'t> {
    /// Memory for the copy; `None` once a thread has taken it to write the copy.
    empty: Mutex<Option<&'t mut [Tuple]>>,
    /// Finished copy.
    copied: OnceLock<&'t [Tuple]>,
}

/// Input whose morsels may have copies.
pub(crate) struct Input<'t> {
    original: &'t [Tuple],
    /// Copies by morsel; `None` if the morsel is not copied.
    slots: Vec<Option<Slot<'t>>>,
    /// True if the first reader of a morsel makes its copy.
    keeps: bool,
}

impl<'t> Input<'t> {
    /// Returns an input whose copies are made by the first reader of each morsel.
    pub(crate) fn kept_by_readers(original: &'t [Tuple], copies: &'t mut Copies<'_>) -> Input<'t> {
        Input { keeps: true, ..Input::new(original, copies) }
    }

    /// Returns an input whose copies are made by a step of their own: a stage whose [`Work`] is this input.
    pub(crate) fn new(original: &'t [Tuple], copies: &'t mut Copies<'_>) -> Input<'t> {
        let Copies { chunks, to } = copies;
        let mut of_side = chunks
            .each_mut()
            .map(|chunks| chunks.iter_mut().flat_map(|chunk| chunk.tuples_mut().chunks_mut(MORSEL_ROWS)));
        let slots = to.iter().map(|to| {
            let empty = of_side[(*to)?.index()].next()?;
            Some(Slot { empty: Mutex::new(Some(empty)), copied: OnceLock::new() })
        });
        Input { original, slots: slots.collect(), keeps: false }
    }

    /// Returns an input whose copies in this memory were made already.
    pub(crate) fn copied(original: &'t [Tuple], copies: &'t Copies<'_>) -> Input<'t> {
        let mut of_side = copies
            .chunks
            .each_ref()
            .map(|chunks| chunks.iter().flat_map(|chunk| chunk.tuples().chunks(MORSEL_ROWS)));
        let slots = copies.to.iter().map(|to| {
            let copy = of_side[(*to)?.index()].next()?;
            Some(Slot { empty: Mutex::new(None), copied: OnceLock::from(copy) })
        });
        Input { original, slots: slots.collect(), keeps: false }
    }

    /// Returns the bytes of each morsel.
    pub(crate) fn morsel_bytes(&self) -> impl Iterator<Item = u64> {
        self.original.chunks(MORSEL_ROWS).map(|rows| size_of_val(rows) as u64)
    }

    /// Returns the rows of a morsel, where they lie without a copy.
    pub(crate) fn original(&self, morsel: usize) -> &'t [Tuple] {
        let start = morsel * MORSEL_ROWS;
        &self.original[start..self.original.len().min(start + MORSEL_ROWS)]
    }

    fn copy(&self, morsel: usize) {
        let Some(Some(slot)) = self.slots.get(morsel) else { return };
        let empty = slot.empty.lock().take();
        if let Some(empty) = empty {
            let original = self.original(morsel);
            let copy = &mut empty[..original.len()];
            copy.copy_from_slice(original);
            // `set` cannot fail: `empty` was taken, so no other thread makes this copy.
            let _ = slot.copied.set(copy);
        }
    }
}

impl Work for Input<'_> {
    fn run(&self, _worker: usize, morsel: &Morsel) {
        self.copy(morsel.number as usize);
    }
}

impl JoinInput for Input<'_> {
    fn rows(&self) -> usize {
        self.original.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        let mut at = rows.start;
        while at < rows.end {
            let morsel = at / MORSEL_ROWS;
            let first = morsel * MORSEL_ROWS;
            let until = rows.end.min(first + MORSEL_ROWS);
            let copied = self.slots.get(morsel).and_then(|slot| slot.as_ref()?.copied.get());
            match copied {
                Some(copy) => take(&copy[at - first..until - first]),
                None => {
                    if self.keeps {
                        self.copy(morsel);
                    }
                    take(&self.original[at..until]);
                }
            }
            at = until;
        }
    }
}
