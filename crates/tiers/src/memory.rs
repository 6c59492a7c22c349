//! Memory of two tiers for joins: lends chunks of either tier, and keeps returned ones for the next join.
//!
//! The idea: a join asks for chunks of 2 MiB and states their purpose. A plan says which share of each object should
//! lie near. [`TierMemory`] has free chunks of both tiers whose pages are present already. [`ObjectMemory`] takes
//! chunks from it for one object, near and far evenly mixed at the object's share. Tables, and partitions that are laid
//! out in advance, lie in one run of chunks that is mixed in the same way. The tier of a row follows from its address
//! ([`TierMemory::bytes_by_side`]).
//!
//! Invariant: each chunk is either in a free list or lent once. Regions live at least as long as a loan or a free list
//! refers to them.
#![allow(unsafe_code)]

use crate::free_space::FreeSpace;
use crate::plan::interleave::Interleave;
use crate::plan::traffic::TierSide;
use crate::region::{CHUNK_BYTES, Landed, Nodes, TierRegionError, TieredRegion};
use farpool_join::{CHUNK_LINES, CacheLine, ChunkSource, JoinError, LineMemory, Purpose, Tuple};
use farpool_lock::Mutex;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(CHUNK_BYTES == farpool_join::CHUNK_BYTES);

/// Near shares are rounded to multiples of one part in this many. With so many, any prefix of a run of chunks is as
/// evenly mixed as the whole run.
const SHARE_STEPS: u64 = 1 << 20;
/// Number of single chunks that are allocated at a time if none is free.
const SLAB_CHUNKS: usize = 16;

/// Returns the near share that an object of `bytes` really gets: whole chunks, as close to `near_share` as they can be.
pub fn share_in_chunks(near_share: f64, bytes: usize) -> f64 {
    let chunks = bytes.div_ceil(CHUNK_BYTES).max(1) as u64;
    Interleave::share(near_share, SHARE_STEPS).near_among(chunks) as f64 / chunks as f64
}

/// Memory of two tiers, from which joins borrow chunks.
///
/// `reserve` makes chunks ready before they are needed. `rows` lends memory for inputs; objects of a join borrow
/// through `ObjectMemory`. `bytes_by_side` and `landed` report where bytes lie. `trim` returns free memory to the
/// system. One lock guards the free lists; it is not held while the kernel allocates.
#[derive(Debug)]
pub struct TierMemory {
    /// NUMA nodes of the two tiers.
    nodes: Nodes,
    /// Number of threads that touch new memory, so that its pages are present.
    threads: usize,
    pools: Mutex<Pools>,
}

/// Free lists, and all memory that was allocated.
#[derive(Debug, Default)]
struct Pools {
    /// Free single chunks by tier (near, far): the region, and the index of the chunk in it.
    singles: [Vec<(Arc<TieredRegion>, usize)>; 2],
    /// Free runs: regions that are lent as a whole, each with the ratio of its near chunks.
    runs: Vec<(Interleave, Arc<TieredRegion>)>,
    /// All regions by their start address.
    known: BTreeMap<usize, Arc<TieredRegion>>,
}

impl TierMemory {
    /// Returns memory without chunks. They will be allocated from these NUMA nodes, and touched by `threads` threads.
    pub fn new(nodes: Nodes, threads: usize) -> TierMemory {
        TierMemory { nodes, threads, pools: Mutex::default() }
    }

    /// Allocates chunks until `chunks` of a tier are free, so that joins do not wait while the kernel zeroes pages.
    pub fn reserve(&self, side: TierSide, chunks: usize) -> Result<(), TierRegionError> {
        let missing = chunks.saturating_sub(self.pools.lock().singles[side.index()].len());
        if missing == 0 { Ok(()) } else { self.make_singles(side, missing) }
    }

    /// Lends memory for `rows` rows, with near chunks at this ratio. Its content is undefined.
    pub fn rows(&self, interleave: Interleave, rows: usize) -> Result<LineMemory<'_>, TierRegionError> {
        self.run(interleave, (rows * size_of::<Tuple>()).div_ceil(CHUNK_BYTES))
    }

    /// Returns the bytes of these rows by tier (near, far). Rows outside this memory count as far.
    pub fn bytes_by_side<'t>(&self, slices: impl IntoIterator<Item = &'t [Tuple]>) -> [u64; 2] {
        let pools = self.pools.lock();
        let mut bytes = [0; 2];
        for slice in slices {
            let (mut at, end) = (slice.as_ptr().addr(), slice.as_ptr_range().end.addr());
            while at < end {
                let region = pools.known.range(..=at).next_back();
                let inside = region.filter(|(base, region)| at < *base + region.len());
                let (side, until) = match inside {
                    Some((base, region)) => {
                        let offset = at - base;
                        (region.side_of(offset), base + (offset / CHUNK_BYTES + 1) * CHUNK_BYTES)
                    }
                    None => (TierSide::Far, end),
                };
                let until = until.min(end);
                bytes[side.index()] += (until - at) as u64;
                at = until;
            }
        }
        bytes
    }

    /// Asks the kernel on which NUMA nodes the pages of all chunks lie.
    pub fn landed(&self) -> Result<Landed, TierRegionError> {
        let known: Vec<Arc<TieredRegion>> = self.pools.lock().known.values().cloned().collect();
        let mut landed = Landed::default();
        for region in known {
            landed.add(region.landed()?);
        }
        Ok(landed)
    }

    /// Returns free memory to the system.
    pub fn trim(&self) {
        let mut pools = self.pools.lock();
        let Pools { singles, runs, known } = &mut *pools;
        singles.iter_mut().for_each(Vec::clear);
        runs.clear();
        // A region that something else still refers to is lent, at least in part. Its chunks that were free are not
        // lent again; they return to the system with the region.
        known.retain(|_, region| Arc::strong_count(region) > 1);
    }

    fn make_singles(&self, side: TierSide, count: usize) -> Result<(), TierRegionError> {
        let interleave = if side == TierSide::Near { Interleave::NEAR } else { Interleave::FAR };
        let region = self.region(count, interleave)?;
        let chunks = (0..region.chunk_map().len()).rev().map(|chunk| (Arc::clone(&region), chunk));
        self.pools.lock().singles[side.index()].extend(chunks);
        Ok(())
    }

    fn region(&self, chunks: usize, interleave: Interleave) -> Result<Arc<TieredRegion>, TierRegionError> {
        let bytes = chunks.saturating_mul(CHUNK_BYTES);
        let region = Arc::new(TieredRegion::new(bytes, interleave, self.nodes, self.threads)?);
        self.pools.lock().known.insert(region.base().addr(), Arc::clone(&region));
        Ok(region)
    }

    /// Lends one chunk of a tier.
    pub(crate) fn chunk(&self, side: TierSide) -> Result<LineMemory<'_>, TierRegionError> {
        loop {
            let single = self.pools.lock().singles[side.index()].pop();
            let Some((region, chunk)) = single else {
                self.make_singles(side, SLAB_CHUNKS)?;
                continue;
            };
            return Ok(self.lend(region, Lent::Single { side, chunk }, chunk, 1));
        }
    }

    /// Lends `count` consecutive chunks, of which near ones have this ratio.
    pub(crate) fn run(
        &self,
        interleave: Interleave,
        count: usize,
    ) -> Result<LineMemory<'_>, TierRegionError> {
        if count == 0 {
            return Ok(LineMemory::none());
        }
        let mut pools = self.pools.lock();
        // A longer run will do, because any prefix of it is evenly mixed. A much longer one is left for larger objects.
        let fits = |(of, region): &(Interleave, Arc<TieredRegion>)| {
            let chunks = region.chunk_map().len();
            *of == interleave && (count..=2 * count + 4).contains(&chunks)
        };
        let kept = pools.runs.iter().position(fits).map(|at| pools.runs.swap_remove(at));
        drop(pools);
        let region = match kept {
            Some((_, region)) => region,
            // A few more than needed: the next join may need a little more.
            None => self.region(count + count / 16 + 1, interleave)?,
        };
        Ok(self.lend(region, Lent::Run { interleave }, 0, count))
    }

    fn lend(&self, region: Arc<TieredRegion>, lent: Lent, first: usize, count: usize) -> LineMemory<'_> {
        // SAFETY: `first + count` is no more than the region has, so the address lies within its mapping; it is not
        // null.
        let start =
            unsafe { NonNull::new_unchecked(region.base().add(first * CHUNK_BYTES).cast::<CacheLine>()) };
        let loan = Loan { memory: self, region, lent };
        // SAFETY: the loan keeps the region, which stays where it is, is writable, aligned to chunks and initialised
        // (zeroed by the kernel, then written by joins only). The chunks are in no free list until the loan is dropped,
        // so they are lent once. This module never reads a region through its slices.
        unsafe { LineMemory::new(start, count * CHUNK_LINES, Box::new(loan)) }
    }
}

/// Origin of lent chunks: the free list to which they return.
#[derive(Clone, Copy)]
enum Lent {
    Single { side: TierSide, chunk: usize },
    Run { interleave: Interleave },
}

/// Lent chunks. Dropping returns them to their free list.
struct Loan<'m> {
    memory: &'m TierMemory,
    region: Arc<TieredRegion>,
    lent: Lent,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let region = Arc::clone(&self.region);
        let mut pools = self.memory.pools.lock();
        match self.lent {
            Lent::Single { side, chunk } => pools.singles[side.index()].push((region, chunk)),
            Lent::Run { interleave } => pools.runs.push((interleave, region)),
        }
    }
}

/// Source of chunks for one object of a join (partitions, a table), with a given near share. Scratch memory of threads
/// always lies near, because it stays in a cache.
#[derive(Debug)]
pub(crate) struct ObjectMemory<'m> {
    memory: &'m TierMemory,
    /// Ratio of near chunks.
    interleave: Interleave,
    /// Number of chunks that were taken one by one for partitions.
    taken: AtomicU64,
    /// Bytes of taken chunks that are not written yet, by tier.
    pub(crate) room: Arc<FreeSpace>,
    /// Bytes taken so far, by tier (near, far).
    taken_bytes: [AtomicU64; 2],
}

impl<'m> ObjectMemory<'m> {
    pub(crate) fn new(memory: &'m TierMemory, near_share: f64) -> ObjectMemory<'m> {
        let interleave = Interleave::share(near_share, SHARE_STEPS);
        ObjectMemory {
            memory,
            interleave,
            taken: AtomicU64::new(0),
            room: Arc::default(),
            taken_bytes: Default::default(),
        }
    }

    /// Returns the bytes taken so far in whole chunks, by tier (near, far).
    pub(crate) fn taken_bytes(&self) -> [u64; 2] {
        self.taken_bytes.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Counts bytes, by tier (near, far), as taken and as free to be written.
    fn deal(&self, bytes: [u64; 2]) {
        self.room.add(bytes);
        self.taken_bytes.iter().zip(bytes).for_each(|(taken_bytes, bytes)| {
            taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        });
    }

    /// Makes chunks ready for `bytes`, and `spare_chunks` more.
    pub(crate) fn reserve(&self, bytes: usize, spare_chunks: usize) -> Result<(), TierRegionError> {
        let all = bytes.div_ceil(CHUNK_BYTES) + spare_chunks;
        let near = self.interleave.near_among(all as u64) as usize;
        self.memory.reserve(TierSide::Near, near)?;
        self.memory.reserve(TierSide::Far, all - near)
    }

    /// Returns the bytes of a run of `chunks` chunks, by tier (near, far).
    fn bytes_of_first(&self, chunks: u64) -> [u64; 2] {
        let near = self.interleave.near_among(chunks);
        [near, chunks - near].map(|chunks| chunks * CHUNK_BYTES as u64)
    }
}

impl ChunkSource for ObjectMemory<'_> {
    fn take(&self, purpose: Purpose, count: usize) -> Result<LineMemory<'_>, JoinError> {
        let refused = |error: TierRegionError| JoinError::Memory(error.to_string());
        match (purpose, count) {
            (Purpose::Scratch { .. }, 1) => self.memory.chunk(TierSide::Near).map_err(refused),
            (Purpose::Scratch { .. }, _) => self.memory.run(Interleave::NEAR, count).map_err(refused),
            (Purpose::Partition { .. }, 1) => {
                let at = self.taken.fetch_add(1, Ordering::Relaxed);
                let side = if self.interleave.is_near(at) { TierSide::Near } else { TierSide::Far };
                let mut bytes = [0; 2];
                bytes[side.index()] = CHUNK_BYTES as u64;
                self.deal(bytes);
                self.memory.chunk(side).map_err(refused)
            }
            (Purpose::Partition { .. } | Purpose::Table, _) => {
                self.deal(self.bytes_of_first(count as u64));
                self.memory.run(self.interleave, count).map_err(refused)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_lie_as_they_are_dealt_and_come_back() {
        let memory = TierMemory::new(Nodes::ANY, 2);
        let placed = ObjectMemory::new(&memory, 0.75);
        let purpose = Purpose::Partition { side: farpool_join::JoinSide::Probe, worker: 0 };
        for _ in 0..3 {
            let all: Vec<LineMemory<'_>> = (0..8).map(|_| placed.take(purpose, 1).unwrap()).collect();
            let bytes = memory.bytes_by_side(all.iter().map(LineMemory::tuples));
            assert_eq!(bytes.map(|bytes| bytes as usize / CHUNK_BYTES), [6, 2]);
        }
        assert_eq!(memory.landed().unwrap().chunks, 2 * SLAB_CHUNKS, "what came back was lent again");
        assert_eq!(share_in_chunks(0.7, 12 * CHUNK_BYTES - 1), 8.0 / 12.0);
        let table = placed.take(Purpose::Table, 12).unwrap();
        let tuples = table.tuples();
        assert_eq!(memory.bytes_by_side([tuples]).map(|bytes| bytes as usize / CHUNK_BYTES), [9, 3]);
        // This slice begins and ends within chunks.
        let part = &tuples[100..tuples.len() - 300];
        assert_eq!(memory.bytes_by_side([part]).iter().sum::<u64>(), size_of_val(part) as u64);
        assert_eq!(memory.bytes_by_side([&[Tuple::default()][..]]), [0, 16], "elsewhere is far");
        memory.trim();
        assert_eq!(memory.bytes_by_side([tuples]).map(|bytes| bytes as usize / CHUNK_BYTES), [9, 3]);
        drop(table);
        memory.trim();
        assert_eq!(memory.landed().unwrap().chunks, 0);
    }
}
