//! The far level of the cache: blocks in the slots of one far file.
//!
//! The index in this process alone knows which block is in which slot. Far memory only reads and writes bytes of slots.
//! References to a slot are counted, so a slot that leaves the index is not overwritten while somebody still reads it.
//! The index keeps a checksum of each block: a block that comes back is what was written, or it is a miss. If the pool
//! has no room, the cache does not ask it for more for a while, and new blocks replace others. A slot whose memory is
//! lost is never used again; a new slot at the end of the file replaces it.

use crate::backoff::Backoff;
use crate::{CacheOptions, Counters, Key, count};
use bytes::Bytes;
use farpool_files::{CreateOptions, Error, ErrorKind, FarFile, FileClass, Pool, ReadRange, WriteRange};
use farpool_lock::{Condvar, Mutex};
use quick_cache::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Limit of the bytes that wait to be written to far memory. Further blocks are not kept.
const UNDER_WAY_BYTES: usize = 32 << 20;
/// Limit of the blocks in one write.
const BATCH: usize = 32;
/// Slots in addition to the index's capacity: for blocks that are being written, and for those that are read while they
/// are evicted.
const SPARE_SLOTS: u32 = 64;

/// Number that distinguishes the caches of one process, whose far files share a namespace.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// Far level of a cache: a far file that is divided into slots of one block each.
pub(crate) struct Far {
    pool: Pool,
    /// Far file with the slots.
    file: FarFile,
    /// Slot of each block. It decides which blocks are evicted.
    index: Cache<Key, Arc<Slot>>,
    /// Most blocks in the index.
    blocks: u32,
    /// Slots without a block.
    free: Arc<Mutex<Free>>,
    /// Bytes of a slot.
    block_bytes: usize,
    /// Time within which far memory must answer a read.
    patience: Duration,
    /// Back-off from all requests, after a slow one.
    backoff: Mutex<Backoff>,
    /// Back-off from using slots that have no memory yet, after the pool had no room for one.
    growth: Mutex<Backoff>,
    counters: Arc<Counters>,
    /// Queue of the blocks that are to be written.
    offers: SyncSender<(Key, Bytes)>,
    waiting: Arc<Waiting>,
}

/// Count of the blocks that were offered to far memory, and are neither written nor refused yet.
#[derive(Default)]
struct Waiting {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Waiting {
    fn done(&self, blocks: usize) {
        *self.count.lock() -= blocks;
        self.fewer.notify_all();
    }
}

/// Unused slots.
struct Free {
    /// Slots that have had memory, and still have it unless it was revoked.
    with: Vec<u32>,
    /// Slots that were taken and got no memory.
    without: Vec<u32>,
    /// First slot that was never used. Slots get memory in the order of their numbers, as they are needed.
    next: u32,
    /// Number of slots that may still be taken from `next` on.
    left: u32,
}

impl Free {
    fn without_memory(&mut self) -> Option<u32> {
        self.without.pop().or_else(|| {
            self.left = self.left.checked_sub(1)?;
            self.next = self.next.checked_add(1)?;
            Some(self.next - 1)
        })
    }
}

/// Slot of a block. Dropping it frees the slot.
struct Slot {
    /// Number of the slot in the far file, from 0.
    number: u32,
    /// Bytes of the block in the slot.
    bytes: u32,
    /// CRC32C of the block.
    checksum: u32,
    /// True if a block was written to the slot before, so that it has memory unless that was revoked.
    has_memory: bool,
    /// True once the slot's memory was found to be lost. The slot is then not reused.
    is_lost: AtomicBool,
    /// True if a write to the slot has failed, and its bytes may still arrive. The slot is then not reused.
    is_barred: bool,
    free: Arc<Mutex<Free>>,
}

impl Slot {
    fn failed(&self, error: &Error) {
        self.is_lost.fetch_or(error.kind() == ErrorKind::Lost, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.free.lock();
        if *self.is_lost.get_mut() {
            free.left += 1;
        } else if !self.is_barred {
            if self.has_memory { &mut free.with } else { &mut free.without }.push(self.number);
        }
    }
}

impl Far {
    pub(crate) fn new(
        pool: &Pool,
        blocks: u32,
        options: &CacheOptions,
        counters: &Arc<Counters>,
    ) -> Result<Arc<Far>, Error> {
        let name = format!("block cache {}", CACHES.fetch_add(1, Ordering::Relaxed));
        let file = pool.create(
            &name,
            FileClass::Cache,
            CreateOptions { is_optional: true, ..CreateOptions::default() },
        )?;
        let slots = blocks.saturating_add(SPARE_SLOTS);
        let free = Free { with: Vec::new(), without: Vec::new(), next: 0, left: slots };
        let (offers, offered) = sync_channel((UNDER_WAY_BYTES / options.block_bytes).max(BATCH));
        let far = Arc::new(Far {
            pool: pool.clone(),
            file,
            index: Cache::new(blocks as usize),
            blocks,
            free: Arc::new(Mutex::new(free)),
            block_bytes: options.block_bytes,
            patience: options.patience,
            backoff: Mutex::default(),
            growth: Mutex::default(),
            counters: Arc::clone(counters),
            offers,
            waiting: Arc::default(),
        });
        let writer = Writer { far: Arc::downgrade(&far), waiting: Arc::clone(&far.waiting) };
        std::thread::Builder::new()
            .name("farpool-cache".to_owned())
            .spawn(move || writer.run(&offered))
            .map_err(|error| Error::not_rebuilt(format!("cannot start a thread for the cache: {error}")))?;
        Ok(far)
    }

    /// Queues a block to be written to far memory, unless it is in far memory already or the queue is full.
    pub(crate) fn offer(&self, key: Key, block: Bytes) {
        if self.index.contains_key(&key) {
            return;
        }
        *self.waiting.count.lock() += 1;
        if self.offers.try_send((key, block)).is_err() {
            count(&self.counters.far_refused);
            self.waiting.done(1);
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.index.remove(key);
    }

    /// Reads those of the blocks that are in far memory, all with one request. The result is `None` for each miss.
    pub(crate) fn get(&self, keys: &[Key]) -> Vec<Option<Bytes>> {
        let begun = Instant::now();
        let mut found = vec![None; keys.len()];
        if !self.backoff.lock().is_over(begun) {
            return found;
        }
        let slots: Vec<(usize, Arc<Slot>)> =
            (0..).zip(keys).filter_map(|(at, key)| Some((at, self.index.get(key)?))).collect();
        if slots.is_empty() {
            return found;
        }
        let mut blocks: Vec<Vec<u8>> = slots.iter().map(|(_, slot)| vec![0; slot.bytes as usize]).collect();
        let mut ranges: Vec<ReadRange<'_>> = slots
            .iter()
            .zip(&mut blocks)
            .map(|((_, slot), into)| ReadRange { offset: self.offset(slot.number), into })
            .collect();
        let read = self.file.read_batch(&mut ranges);
        let took = begun.elapsed();
        let mut has_come = vec![read.is_ok(); slots.len()];
        if read.is_err() {
            // Reads the blocks one by one, so that a lost one does not fail the others. Stops if that takes too long.
            for ((range, (_, slot)), has_come) in ranges.iter_mut().zip(&slots).zip(&mut has_come) {
                if begun.elapsed() > self.patience {
                    break;
                }
                let read = self.file.read_batch(std::slice::from_mut(range));
                *has_come = read.inspect_err(|error| slot.failed(error)).is_ok();
            }
        }
        self.backoff.lock().heard(took <= self.patience, Instant::now());
        for (((at, slot), block), has_come) in slots.into_iter().zip(blocks).zip(has_come) {
            if has_come && crc32c::crc32c(&block) == slot.checksum {
                found[at] = Some(Bytes::from(block));
            } else {
                count(&self.counters.far_failures);
                // Removes only this slot: meanwhile the block may have been written to another one.
                self.index.remove_if(&keys[at], |there| Arc::ptr_eq(there, &slot));
            }
        }
        found
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.block_bytes as u64
    }

    /// Writes blocks to free slots, then adds them to the index. Counts those as refused that cannot be written.
    fn write(&self, blocks: &[(Key, Bytes)]) {
        if !self.backoff.lock().is_over(Instant::now()) {
            return self.refuse(blocks.len());
        }
        let slots = self.slots(blocks.len());
        self.refuse(blocks.len() - slots.len());
        if slots.is_empty() {
            return;
        }
        let is_growing = slots.iter().any(|slot| !slot.has_memory);
        let placed = || slots.iter().zip(blocks);
        let ranges: Vec<WriteRange<'_>> = placed()
            .map(|(slot, (_, block))| WriteRange { offset: self.offset(slot.number), from: block })
            .collect();
        let begun = Instant::now();
        let written = self.file.write_batch(&ranges);
        let now = Instant::now();
        self.backoff.lock().heard(now - begun <= self.patience * BATCH as u32, now);
        match &written {
            Ok(()) if is_growing => self.growth.lock().heard(true, now),
            Err(error) if error.kind() == ErrorKind::Exhausted => self.growth.lock().heard(false, now),
            _ => {}
        }
        for ((mut slot, range), (key, block)) in slots.into_iter().zip(&ranges).zip(blocks) {
            if let Err(error) = &written
                && (error.kind() == ErrorKind::Exhausted
                    || begun.elapsed() > self.patience
                    || !self.write_one(&mut slot, range))
            {
                self.refuse(1);
                continue;
            }
            count(&self.counters.far_writes);
            (slot.bytes, slot.checksum) = (block.len() as u32, crc32c::crc32c(block));
            slot.has_memory = true;
            self.index.insert(*key, Arc::new(slot));
        }
    }

    /// Writes one block after a batch has failed, so that a lost slot does not fail the others. Reports whether it was
    /// written.
    fn write_one(&self, slot: &mut Slot, range: &WriteRange<'_>) -> bool {
        let Err(error) = self.file.write_batch(std::slice::from_ref(range)) else { return true };
        slot.failed(&error);
        slot.is_barred = error.kind() == ErrorKind::Poisoned;
        false
    }

    /// Returns up to `wanted` free slots. If the pool has had no room a short time ago, evicts blocks to free theirs.
    fn slots(&self, wanted: usize) -> Vec<Slot> {
        let may_grow = self.growth.lock().is_over(Instant::now());
        let take = |count: usize| -> Vec<Slot> {
            let mut free = self.free.lock();
            let slot = |number, has_memory| {
                let free = Arc::clone(&self.free);
                let is_lost = AtomicBool::default();
                Slot { number, bytes: 0, checksum: 0, has_memory, is_lost, is_barred: false, free }
            };
            let next = || match free.with.pop() {
                Some(number) => Some(slot(number, true)),
                None if may_grow => free.without_memory().map(|number| slot(number, false)),
                None => None,
            };
            std::iter::from_fn(next).take(count).collect()
        };
        let mut slots = take(wanted);
        if may_grow {
            self.index.set_capacity(self.blocks.into());
        } else if slots.len() < wanted {
            let more = wanted - slots.len();
            self.index.set_capacity(self.index.len().saturating_sub(more) as u64);
            slots.extend(take(more));
        }
        slots
    }

    fn refuse(&self, blocks: usize) {
        self.counters.far_refused.fetch_add(blocks as u64, Ordering::Relaxed);
    }

    pub(crate) fn settle(&self) {
        let mut waiting = self.waiting.count.lock();
        while *waiting > 0 {
            waiting = self.waiting.fewer.wait(waiting);
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // If the deletion fails, the file ends with the session.
        let _ = self.pool.delete(&self.file.name());
    }
}

/// Thread that writes the offered blocks, until the cache is dropped.
struct Writer {
    far: std::sync::Weak<Far>,
    waiting: Arc<Waiting>,
}

impl Writer {
    fn run(&self, offered: &Receiver<(Key, Bytes)>) {
        while let Ok(first) = offered.recv() {
            let blocks: Vec<_> = std::iter::once(first).chain(offered.try_iter().take(BATCH - 1)).collect();
            if let Some(far) = self.far.upgrade() {
                far.write(&blocks);
            }
            self.waiting.done(blocks.len());
        }
    }
}
