//! What the tiers really move: a short measurement of reading, writing and copying on each, and on both at once.
//!
//! The idea: the model wants seven numbers (`Rates`), and firmware promises are not measurements. All CPUs read, write
//! and copy a region of each tier, larger than caches; then both tiers are copied at once, in chunks mixed as they are
//! even. The best of a few rounds counts: others at the machine only make it slower. That takes some 100 ms once memory
//! is there, and is kept in the user's cache folder by what the machine is, so it happens once.
//!
//! On a machine with one node there is one tier, and nothing to place.

use crate::plan::interleave::Interleave;
use crate::plan::traffic::{Lanes, Rates};
use crate::region::{CHUNK_BYTES, Nodes, RegionError, TieredRegion};
use crate::topology::Topology;
use farpool_lock::Mutex;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Of each tier: several times what a core may have of a last-level cache.
pub const CALIBRATION_BYTES: usize = 96 << 20;
/// Of these the best counts.
const ROUNDS: usize = 3;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Of the near tier, or of the only one.
    pub near: Lanes,
    /// Of the far tier and of both at once, where there is one.
    pub far: Option<(Lanes, f64)>,
    /// How many threads moved it.
    pub threads: usize,
}

impl Calibration {
    /// Rates of two tiers, where there are two.
    pub fn rates(&self) -> Option<Rates> {
        self.far.map(|(far, together)| Rates { near: self.near, far, together })
    }
}

/// Measures the tiers of a topology.
pub fn calibrate(topology: &Topology, threads: usize) -> Result<Calibration, RegionError> {
    let threads = threads.clamp(1, 256);
    let Some((near, far)) = topology.tiers() else {
        let mut only = region(Nodes::ANY, Interleave::NEAR, threads)?;
        let lanes = lanes(&mut only, threads);
        return Ok(Calibration { near: lanes, far: None, threads });
    };
    let nodes = Nodes { near: Some(near.id), far: Some(far.id) };
    let of_near = lanes(&mut region(nodes, Interleave::NEAR, threads)?, threads);
    let of_far = lanes(&mut region(nodes, Interleave::FAR, threads)?, threads);
    // As many chunks of either as it moves in the same time, so that both are busy to the end.
    let chunks = (CALIBRATION_BYTES / CHUNK_BYTES) as u64;
    let even = Interleave::share(of_near.both / (of_near.both + of_far.both), chunks);
    let mut mixed = region(nodes, even, threads)?;
    let together = best(|| copied(&mut mixed, threads));
    // Both together are at least as fast as either, or one of them was disturbed.
    let together = together.max(of_near.both).max(of_far.both);
    Ok(Calibration { near: of_near, far: Some((of_far, together)), threads })
}

fn region(nodes: Nodes, interleave: Interleave, threads: usize) -> Result<TieredRegion, RegionError> {
    TieredRegion::new(CALIBRATION_BYTES, interleave, nodes, threads)
}

fn lanes(region: &mut TieredRegion, threads: usize) -> Lanes {
    let write = best(|| written(region, threads));
    let read = best(|| read(region, threads));
    let both = best(|| copied(region, threads));
    Lanes { read, write, both }
}

/// The best rate of some rounds.
fn best(mut rate: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| rate()).fold(0.0, f64::max)
}

/// Bytes a second.
fn read(region: &TieredRegion, threads: usize) -> f64 {
    let pieces: Vec<&[u8]> = region.bytes().chunks(CHUNK_BYTES).collect();
    let begun = Instant::now();
    in_threads(threads, pieces.len(), |at| {
        let (words, _) = pieces[at].as_chunks::<8>();
        black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
    });
    region.len() as f64 / begun.elapsed().as_secs_f64()
}

/// Bytes a second.
fn written(region: &mut TieredRegion, threads: usize) -> f64 {
    let bytes = region.len() as f64;
    let pieces: Vec<Mutex<&mut [u8]>> = region.bytes_mut().chunks_mut(CHUNK_BYTES).map(Mutex::new).collect();
    let begun = Instant::now();
    in_threads(threads, pieces.len(), |at| {
        pieces[at].lock().fill(black_box(1));
    });
    bytes / begun.elapsed().as_secs_f64()
}

/// Bytes a second, those that are read and those that are written: one half of a region into the other.
fn copied(region: &mut TieredRegion, threads: usize) -> f64 {
    // Of each tier, chunks in pairs: what is copied stays on its tier, so that each moves its share.
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

/// Does all pieces, each once.
fn in_threads(threads: usize, pieces: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= pieces {
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
