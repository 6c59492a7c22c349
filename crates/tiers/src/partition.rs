//! Plain work for morsels: copying, counting, scattering, reading back, on rows of two words.
//!
//! The idea: enough of a partitioner that backends have something real to do, and that what they did can be checked: every
//! row ends up in its partition exactly once, as counted. Rows go to lists of blocks, so one pass is enough and nobody
//! shares a block. It stands where a real partitioner is to stand, behind [`Work`].
//!
//! It is no fast one: without vector instructions or stores past the caches, it moves more bytes than its tickets say.

use crate::stage::{Morsel, Task, Work};
use crate::strategy::MORSEL_BYTES;
use farpool_place::traffic::Side;
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A row: a key and what goes with it.
pub const ROW_BYTES: usize = 16;
/// Partitions, as a power of two.
const PARTITION_BITS: u32 = 8;
const PARTITIONS: usize = 1 << PARTITION_BITS;
/// What a partition grows by.
const BLOCK_BYTES: usize = 4 << 10;
const MORSEL: usize = MORSEL_BYTES as usize;
/// Spreads keys over 64 bits: the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Memory of one join: the input, a copy of some of it, and partitions of all of it.
pub struct Partitions<'a> {
    input: &'a [u8],
    /// By morsel.
    copies: Vec<Mutex<&'a mut [u8]>>,
    /// Blocks that nobody has.
    blocks: Mutex<Vec<&'a mut [u8]>>,
    /// Blocks that are full, to be read back.
    full: Mutex<Vec<&'a mut [u8]>>,
    workers: Vec<Mutex<Worker<'a>>>,
    /// By morsel: whether it is read from its copy.
    is_copied: Vec<std::sync::atomic::AtomicBool>,
}

struct Worker<'a> {
    counts: Vec<u64>,
    /// By partition: the block that is being filled, and how much of it is.
    open: Vec<Option<(&'a mut [u8], usize)>>,
    scattered: Sum,
    read_back: u64,
}

/// Of rows, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub rows: u64,
    /// Of what goes with their keys.
    pub values: u64,
}

/// What partitioning came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of the rows that were scattered.
    pub scattered: Sum,
    /// Of the rows that lie in partitions.
    pub in_partitions: Sum,
    /// Rows that lie in a partition that is not theirs.
    pub misplaced: u64,
    /// Rows that were counted beforehand; 0 where nothing was.
    pub counted: u64,
    /// Words that were read back.
    pub read_back: u64,
}

/// Bytes that the partitions of so many bytes take at most, by so many workers.
pub fn partitions_bytes(input_bytes: usize, workers: usize) -> usize {
    input_bytes + workers * PARTITIONS * BLOCK_BYTES
}

impl<'a> Partitions<'a> {
    /// Of an input in whole morsels, with room for as much of a copy, and for partitions as [`partitions_bytes`] says.
    /// Panics if there is less room: morsels would be lost.
    pub fn new(
        input: &'a [u8],
        copies: &'a mut [u8],
        partitions: &'a mut [u8],
        workers: usize,
    ) -> Partitions<'a> {
        assert!(copies.len() >= input.len() && partitions.len() >= partitions_bytes(input.len(), workers));
        let worker = || Worker {
            counts: vec![0; PARTITIONS],
            open: (0..PARTITIONS).map(|_| None).collect(),
            scattered: Sum::default(),
            read_back: 0,
        };
        let blocks = partitions.chunks_exact_mut(BLOCK_BYTES).rev().collect();
        Partitions {
            input,
            copies: copies.chunks_exact_mut(MORSEL).map(Mutex::new).collect(),
            is_copied: input.chunks(MORSEL).map(|_| false.into()).collect(),
            blocks: Mutex::new(blocks),
            full: Mutex::new(Vec::new()),
            workers: (0..workers).map(|_| Mutex::new(worker())).collect(),
        }
    }

    /// What became of the rows. Reads all partitions.
    pub fn outcome(&self) -> Outcome {
        let mut outcome = Outcome {
            scattered: Sum::default(),
            in_partitions: Sum::default(),
            misplaced: 0,
            counted: 0,
            read_back: 0,
        };
        let mut check = |of: Option<usize>, block: &[u8]| {
            let mut first = of;
            for (key, value) in rows(block) {
                let partition = partition_of(key);
                outcome.misplaced += u64::from(*first.get_or_insert(partition) != partition);
                outcome.in_partitions.rows += 1;
                outcome.in_partitions.values = outcome.in_partitions.values.wrapping_add(value);
            }
        };
        lock(&self.full).iter().for_each(|block| check(None, block));
        for worker in &self.workers {
            for (partition, open) in lock(worker).open.iter().enumerate() {
                if let Some((block, filled)) = open {
                    check(Some(partition), &block[..*filled]);
                }
            }
        }
        for worker in &self.workers {
            let worker = lock(worker);
            outcome.scattered.rows += worker.scattered.rows;
            outcome.scattered.values = outcome.scattered.values.wrapping_add(worker.scattered.values);
            outcome.counted += worker.counts.iter().sum::<u64>();
            outcome.read_back += worker.read_back;
        }
        outcome
    }

    fn copy(&self, chunk: usize) {
        lock(&self.copies[chunk]).copy_from_slice(self.input_of(chunk));
        self.is_copied[chunk].store(true, std::sync::atomic::Ordering::Release);
    }

    fn input_of(&self, chunk: usize) -> &[u8] {
        &self.input[chunk * MORSEL..(chunk + 1) * MORSEL]
    }

    /// Has the rows of a morsel, from its copy if there is one.
    fn with_rows(&self, chunk: usize, mut take: impl FnMut(&[u8])) {
        match self.is_copied[chunk].load(std::sync::atomic::Ordering::Acquire) {
            true => take(&lock(&self.copies[chunk])),
            false => take(self.input_of(chunk)),
        }
    }

    fn scatter(&self, worker: &mut Worker<'a>, bytes: &[u8]) {
        for row in bytes.as_chunks::<ROW_BYTES>().0 {
            let (key, value) = words(row);
            let open = &mut worker.open[partition_of(key)];
            if let Some((block, filled)) = open {
                block[*filled..*filled + ROW_BYTES].copy_from_slice(row);
                *filled += ROW_BYTES;
                if *filled == BLOCK_BYTES
                    && let Some((block, _)) = open.take()
                {
                    lock(&self.full).push(block);
                }
            } else if let Some(block) = lock(&self.blocks).pop() {
                // There are as many blocks as can be needed.
                block[..ROW_BYTES].copy_from_slice(row);
                *open = Some((block, ROW_BYTES));
            }
            worker.scattered.rows += 1;
            worker.scattered.values = worker.scattered.values.wrapping_add(value);
        }
    }

    /// Reads as many bytes of full blocks as a morsel has, the same ones again and again if need be.
    fn read_back(&self, worker: &mut Worker<'a>, chunk: usize) {
        let full = lock(&self.full);
        if full.is_empty() {
            return;
        }
        let blocks = MORSEL / BLOCK_BYTES;
        let mut sum = 0u64;
        for at in 0..blocks {
            let block = &full[(chunk * blocks + at) % full.len()];
            sum = block
                .as_chunks::<8>()
                .0
                .iter()
                .fold(sum, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        }
        black_box(sum);
        worker.read_back += (MORSEL / 8) as u64;
    }
}

impl Work for Partitions<'_> {
    fn run(&self, worker: usize, morsel: &Morsel) {
        let chunk = morsel.chunk as usize;
        let mut worker = lock(&self.workers[worker]);
        match morsel.task {
            Task::Copy => self.copy(chunk),
            Task::Count | Task::CountAndKeep => {
                let counts = &mut worker.counts;
                self.with_rows(chunk, |bytes| {
                    rows(bytes).for_each(|(key, _)| counts[partition_of(key)] += 1)
                });
                if morsel.task == Task::CountAndKeep && morsel.written_bytes[Side::Near.index()] > 0 {
                    self.copy(chunk);
                }
            }
            Task::Scatter => self.with_rows(chunk, |bytes| self.scatter(&mut worker, bytes)),
            Task::ReadBack => self.read_back(&mut worker, chunk),
            // Of joins through one table only the tickets are run.
            Task::Build | Task::Probe => {}
        }
    }
}

/// Fills memory with rows whose keys look random, and says what they sum up to.
pub fn fill(input: &mut [u8]) -> Sum {
    let mut sum = Sum::default();
    for row in input.as_chunks_mut::<ROW_BYTES>().0 {
        let value = sum.rows;
        row[..8].copy_from_slice(&(value ^ value << 32).wrapping_mul(SPREAD).to_le_bytes());
        row[8..].copy_from_slice(&value.to_le_bytes());
        sum.rows += 1;
        sum.values = sum.values.wrapping_add(value);
    }
    sum
}

fn words(row: &[u8; ROW_BYTES]) -> (u64, u64) {
    let (words, _) = row.as_chunks::<8>();
    (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
}

fn rows(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    bytes.as_chunks::<ROW_BYTES>().0.iter().map(words)
}

fn partition_of(key: u64) -> usize {
    (key.wrapping_mul(SPREAD) >> (64 - PARTITION_BITS)) as usize
}

/// A worker that panicked has said so; the others go on.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
