//! Measurement of the rates of the memory tiers: reading, writing and copying on each tier, and copying on both at
//! once.
//!
//! The idea: a plan needs seven rates ([`Rates`]), and promises of firmware are not measurements. All CPUs read, write
//! and copy a region on each tier that is larger than the caches. Then they copy on both tiers at once, with chunks
//! mixed so that both are busy to the end. The best of a few rounds counts, because other users of the machine only
//! make a round slower. All rounds take some 100 ms after the memory is allocated. The result is kept in the user's
//! cache directory ([`kept`](crate::kept)), so this happens once for each machine.
//!
//! A machine with one node has one tier, and there is nothing to place.

use crate::plan::interleave::Interleave;
use crate::plan::traffic::{Rates, TierRates};
use crate::region::{CHUNK_BYTES, Nodes, TierRegionError, TieredRegion};
use crate::topology::Topology;
use farpool_lock::Mutex;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of each region that is read, written and copied: several times the last-level cache that a core may have.
pub const CALIBRATION_BYTES: usize = 96 << 20;
/// Number of rounds, of which the best counts.
const ROUNDS: usize = 3;

/// Measured rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Rates of the near tier, or of the only tier.
    pub near: TierRates,
    /// Rates of the far tier, and of both at once in bytes a second; `None` if there is one tier.
    pub far: Option<(TierRates, f64)>,
    /// Number of threads that moved the bytes.
    pub threads: usize,
}

impl Calibration {
    /// Returns the rates of both tiers; `None` if there is one tier.
    pub fn rates(&self) -> Option<Rates> {
        self.far.map(|(far, together)| Rates { near: self.near, far, together })
    }
}

/// Measures the tiers of a topology with `threads` threads, limited to 1..=256.
pub fn calibrate(topology: &Topology, threads: usize) -> Result<Calibration, TierRegionError> {
    let threads = threads.clamp(1, 256);
    let Some((near, far)) = topology.tiers() else {
        let mut only = region(Nodes::ANY, Interleave::NEAR, threads)?;
        let rates = rates(&mut only, threads);
        return Ok(Calibration { near: rates, far: None, threads });
    };
    let nodes = Nodes { near: Some(near.id), far: Some(far.id) };
    let of_near = rates(&mut region(nodes, Interleave::NEAR, threads)?, threads);
    let of_far = rates(&mut region(nodes, Interleave::FAR, threads)?, threads);
    // Each tier has as many chunks as it moves in the same time, so both are busy to the end.
    let chunks = (CALIBRATION_BYTES / CHUNK_BYTES) as u64;
    let even = Interleave::share(of_near.both / (of_near.both + of_far.both), chunks);
    let mut mixed = region(nodes, even, threads)?;
    let together = best(|| copied(&mut mixed, threads));
    // Both tiers together are at least as fast as either alone. If not, other users of the machine disturbed a round.
    let together = together.max(of_near.both).max(of_far.both);
    Ok(Calibration { near: of_near, far: Some((of_far, together)), threads })
}

fn region(nodes: Nodes, interleave: Interleave, threads: usize) -> Result<TieredRegion, TierRegionError> {
    TieredRegion::new(CALIBRATION_BYTES, interleave, nodes, threads)
}

fn rates(region: &mut TieredRegion, threads: usize) -> TierRates {
    let write = best(|| written(region, threads));
    let read = best(|| read(region, threads));
    let both = best(|| copied(region, threads));
    TierRates { read, write, both }
}

/// Returns the best rate of some rounds.
fn best(mut rate: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| rate()).fold(0.0, f64::max)
}

/// Returns the rate of reading, in bytes a second.
fn read(region: &TieredRegion, threads: usize) -> f64 {
    let chunks: Vec<&[u8]> = region.bytes().chunks(CHUNK_BYTES).collect();
    let begun = Instant::now();
    in_threads(threads, chunks.len(), |at| {
        let (words, _) = chunks[at].as_chunks::<8>();
        black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
    });
    region.len() as f64 / begun.elapsed().as_secs_f64()
}

/// Returns the rate of writing, in bytes a second.
fn written(region: &mut TieredRegion, threads: usize) -> f64 {
    let bytes = region.len() as f64;
    let chunks: Vec<Mutex<&mut [u8]>> = region.bytes_mut().chunks_mut(CHUNK_BYTES).map(Mutex::new).collect();
    let begun = Instant::now();
    in_threads(threads, chunks.len(), |at| {
        chunks[at].lock().fill(black_box(1));
    });
    bytes / begun.elapsed().as_secs_f64()
}

/// Returns the rate of copying half of a region to the other half, in bytes a second. Read and written bytes both
/// count.
fn copied(region: &mut TieredRegion, threads: usize) -> f64 {
    // Pairs of chunks on the same tier: bytes stay on their tier, so each tier moves its share.
    let map = region.chunk_map().to_vec();
    let mut waiting: [Option<&mut [u8]>; 2] = [None, None];
    let mut pairs = Vec::new();
    for (chunk, side) in region.bytes_mut().chunks_mut(CHUNK_BYTES).zip(map) {
        match waiting[side.index()].take() {
            None => waiting[side.index()] = Some(chunk),
            Some(from) => pairs.push(Mutex::new((from, chunk))),
        }
    }
    let begun = Instant::now();
    in_threads(threads, pairs.len(), |at| {
        let (from, to) = &mut *pairs[at].lock();
        to.copy_from_slice(from);
        black_box(to.first());
    });
    (pairs.len() * 2 * CHUNK_BYTES) as f64 / begun.elapsed().as_secs_f64()
}

/// Calls `work` once for each number below `count`, on several threads.
fn in_threads(threads: usize, count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            work(at);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| {
            scope.spawn(run);
        });
        run();
    });
}
