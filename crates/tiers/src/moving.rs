//! Inputs of which parts are copied to another tier, and read from there from then on.
//!
//! The idea: an input is a row of morsels, and each has a copy or none. Copies are made beforehand (the paper's
//! strategies), or when a morsel is read for the first time. Those of one tier lie close together in chunks of it.

use crate::memory::TierMemory;
use crate::plan::traffic::Side;
use crate::region::{CHUNK_BYTES, RegionError};
use crate::stage::{Morsel, Work};
use crate::strategy::MORSEL_BYTES;
use farpool_join::{Memory, Source, Tuple};
use farpool_lock::Mutex;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a morsel.
pub(crate) const MORSEL_ROWS: usize = MORSEL_BYTES as usize / size_of::<Tuple>();
const CHUNK_MORSELS: usize = CHUNK_BYTES / MORSEL_BYTES as usize;

/// Chunks for copies of morsels.
pub(crate) struct Copies<'m> {
    /// By side.
    chunks: [Vec<Memory<'m>>; 2],
    /// By morsel.
    to: Vec<Option<Side>>,
}

impl<'m> Copies<'m> {
    /// Of these morsels; those that stay where they are have none.
    pub(crate) fn new(memory: &'m TierMemory, to: Vec<Option<Side>>) -> Result<Copies<'m>, RegionError> {
        let mut chunks = [Vec::new(), Vec::new()];
        for side in Side::ALL {
            let morsels = to.iter().filter(|of| **of == Some(side)).count();
            let count = morsels.div_ceil(CHUNK_MORSELS);
            memory.reserve(side, count)?;
            for _ in 0..count {
                chunks[side.index()].push(memory.chunk(side)?);
            }
        }
        Ok(Copies { chunks, to })
    }

    /// Of no morsels.
    pub(crate) fn none() -> Copies<'m> {
        Copies { chunks: [Vec::new(), Vec::new()], to: Vec::new() }
    }
}

/// Where a morsel is copied to.
struct Slot<'t> {
    empty: Mutex<Option<&'t mut [Tuple]>>,
    copied: OnceLock<&'t [Tuple]>,
}

/// An input with its copies.
pub(crate) struct Input<'t> {
    original: &'t [Tuple],
    /// By morsel.
    slots: Vec<Option<Slot<'t>>>,
    /// Copies are made by whoever reads first.
    keeps: bool,
}

impl<'t> Input<'t> {
    /// Copies are yet to be made by whoever reads first.
    pub(crate) fn kept_by_readers(original: &'t [Tuple], copies: &'t mut Copies<'_>) -> Input<'t> {
        Input { keeps: true, ..Input::new(original, copies) }
    }

    /// Copies are yet to be made, by a step of their own.
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

    /// Copies were made, by the same morsels in the same memory.
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

    /// Bytes of all morsels.
    pub(crate) fn morsel_bytes(&self) -> impl Iterator<Item = u64> {
        self.original.chunks(MORSEL_ROWS).map(|rows| size_of_val(rows) as u64)
    }

    /// Where a morsel lies before it is copied.
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
            // Nobody else had the place.
            let _ = slot.copied.set(copy);
        }
    }
}

impl Work for Input<'_> {
    fn run(&self, _worker: usize, morsel: &Morsel) {
        self.copy(morsel.chunk as usize);
    }
}

impl Source for Input<'_> {
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
