//! Reads through a cache return the current bytes of the file, no matter who writes it.

use farpool::{EmbeddedOptions, Pool};
use farpool_cache::{BlockCache, CacheOptions, CachedFile, FileIdentity, OriginFile, Times};
use farpool_lock::Mutex;
use proptest::prelude::*;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4 << 10;

struct Disk(File);

impl OriginFile for Disk {
    type Error = io::Error;

    fn identity(&self) -> io::Result<FileIdentity> {
        Ok(FileIdentity::from(&rustix::fs::fstat(&self.0)?))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while count < into.len() {
            match self.0.read_at(&mut into[count..], offset + count as u64)? {
                0 => break,
                more => count += more,
            }
        }
        Ok(count)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64, usize),
    Write(u64, usize, u8),
    /// A write by another process, which does not use the cache.
    WriteBeside(u64, usize, u8),
    Truncate(u64),
    TruncateBeside(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (at, length) = (0..100_000_u64, prop_oneof![1..200_usize, 1..20_000_usize]);
    prop_oneof![
        8 => (at.clone(), length.clone()).prop_map(|(at, length)| Step::Read(at, length)),
        4 => (at.clone(), length.clone(), any::<u8>()).prop_map(|(at, length, byte)| Step::Write(at, length, byte)),
        2 => (at.clone(), length, any::<u8>()).prop_map(|(at, length, byte)| Step::WriteBeside(at, length, byte)),
        1 => at.clone().prop_map(Step::Truncate),
        1 => at.prop_map(Step::TruncateBeside),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn file_read_through_a_cache_is_the_file_whoever_writes_to_it(
        near in 0_u64..30, is_exclusive in any::<bool>(), steps in prop::collection::vec(step(), 1..400)
    ) {
        let pool = Pool::embedded(EmbeddedOptions::new(16 << 20)).expect("an embedded pool");
        let options = CacheOptions {
            block_bytes: BLOCK,
            near_bytes: near * BLOCK as u64,
            far_bytes: 1 << 20,
            patience: Duration::from_secs(60),
        };
        let cache = BlockCache::new(&options, Some(&pool)).expect("a cache");
        let disk = Disk(tempfile::tempfile().expect("a file"));
        // `Times::Exclusive` is permitted only if nobody else writes the file.
        let times = if is_exclusive { Times::Exclusive } else { Times::of(&std::env::temp_dir()) };
        let file = CachedFile::new(times);
        let mut model: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Read(at, length) => {
                    let mut into = vec![0; length];
                    let count = file.read(&cache, &disk, at, &mut into).expect("read");
                    let from = model.len().min(at as usize);
                    let until = model.len().min(at as usize + length);
                    prop_assert!(into[..count] == model[from..until], "{length} bytes at {at}, {times:?}");
                }
                Step::Write(at, length, byte) | Step::WriteBeside(at, length, byte) => {
                    let bytes: Vec<u8> = (0..length).map(|i| byte.wrapping_add(i as u8)).collect();
                    match step {
                        Step::WriteBeside(..) if !is_exclusive => disk.write_at(at, &bytes).expect("written"),
                        _ => file.write(&cache, &disk, at, &bytes).expect("written"),
                    }
                    let end = at as usize + length;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                Step::Truncate(length) | Step::TruncateBeside(length) => {
                    match step {
                        Step::TruncateBeside(_) if !is_exclusive => disk.0.set_len(length).expect("cut"),
                        _ => file
                            .resize(&cache, || disk.identity(), length, || disk.0.set_len(length))
                            .expect("cut"),
                    }
                    model.resize(length as usize, 0);
                }
            }
        }
    }
}

/// Returns a file of 200,000 bytes (49 blocks), all of it cached in far memory.
fn kept(pool: &Pool) -> (BlockCache, Disk, CachedFile, Vec<u8>) {
    let options = CacheOptions {
        block_bytes: BLOCK,
        near_bytes: 0,
        far_bytes: 1 << 20,
        patience: Duration::from_secs(60),
    };
    let cache = BlockCache::new(&options, Some(pool)).expect("a cache");
    let disk = Disk(tempfile::tempfile().expect("a file"));
    let file = CachedFile::new(Times::Exact);
    let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at / 7) as u8).collect();
    file.write(&cache, &disk, 0, &bytes).expect("written");
    cache.settle();
    (cache, disk, file, bytes)
}

#[test]
fn file_that_nobody_changes_is_read_from_the_cache_and_not_from_the_disk() {
    let pool = Pool::embedded(EmbeddedOptions::new(16 << 20)).expect("an embedded pool");
    let (cache, disk, file, bytes) = kept(&pool);
    let before = cache.counts();
    let mut into = vec![0; bytes.len()];
    file.read(&cache, &disk, 0, &mut into).expect("read");
    assert!(into == bytes);
    let counts = cache.counts().since(before);
    assert_eq!((counts.far_hits, counts.misses), (49, 0), "what was written is kept: {counts:?}");
}

#[test]
fn truncating_leaves_what_is_kept_of_the_blocks_before_it() {
    let pool = Pool::embedded(EmbeddedOptions::new(16 << 20)).expect("an embedded pool");
    // Blocks before the shorter of the old and the new length stay cached. The block that contains this length is a
    // miss, and blocks after it no longer exist. A length at a block boundary lies in no block.
    for (length, far_hits, misses) in [(200_000, 48, 1), (49 * 4096, 48, 1), (100_000, 24, 1), (4096, 1, 0)] {
        let (cache, disk, file, mut bytes) = kept(&pool);
        file.resize(&cache, || disk.identity(), length, || disk.0.set_len(length)).expect("cut");
        bytes.resize(length as usize, 0);
        let before = cache.counts();
        let mut into = vec![0; bytes.len()];
        file.read(&cache, &disk, 0, &mut into).expect("read");
        assert!(into == bytes, "{length}");
        let counts = cache.counts().since(before);
        assert_eq!((counts.far_hits, counts.misses), (far_hits, misses), "{length}: {counts:?}");
    }
}

/// File whose write waits, after its bytes have reached the disk, until a reader has called `identity`.
struct Held {
    disk: Disk,
    /// Barrier that the write and the test pass once the bytes are on the disk.
    written: Barrier,
    /// Barrier that the write and the reader pass once the reader has called `identity`.
    looked: Barrier,
    /// True from the end of the write until the next call of `identity`, which lets the write continue.
    is_awaited: AtomicBool,
}

impl OriginFile for Held {
    type Error = io::Error;

    fn identity(&self) -> io::Result<FileIdentity> {
        let identity = self.disk.identity();
        if self.is_awaited.swap(false, Ordering::SeqCst) {
            self.looked.wait();
        }
        identity
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.disk.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.disk.write_at(offset, from)?;
        self.is_awaited.store(true, Ordering::SeqCst);
        self.written.wait();
        self.looked.wait();
        Ok(())
    }
}

#[test]
fn reader_in_the_middle_of_a_write_takes_it_for_no_change_by_others() {
    let pool = Pool::embedded(EmbeddedOptions::new(16 << 20)).expect("an embedded pool");
    let (cache, disk, file, mut bytes) = kept(&pool);
    let held =
        Held { disk, written: Barrier::new(2), looked: Barrier::new(2), is_awaited: AtomicBool::new(false) };
    let mut into = vec![0; 10 * BLOCK];
    std::thread::scope(|scope| {
        let write = scope.spawn(|| file.write(&cache, &held, 100_000, b"far"));
        held.written.wait();
        let count = file.read(&cache, &held, 0, &mut into).expect("read");
        assert!(into[..count] == bytes[..10 * BLOCK]);
        write.join().expect("no panic").expect("written");
    });
    cache.settle();
    bytes[100_000..100_003].copy_from_slice(b"far");
    let before = cache.counts();
    let mut into = vec![0; bytes.len()];
    file.read(&cache, &held, 0, &mut into).expect("read");
    assert!(into == bytes);
    let counts = cache.counts().since(before);
    assert_eq!((counts.far_hits, counts.misses), (49, 0), "all of it is kept: {counts:?}");
}

#[test]
fn file_that_is_written_again_and_again_takes_no_room_of_what_was() {
    let pool = Pool::embedded(EmbeddedOptions::new(16 << 20)).expect("an embedded pool");
    let (cache, disk, file, mut bytes) = kept(&pool);
    // 1,000 rounds would fill far memory (256 blocks) with old versions if they were kept.
    for round in 0..1_000_u64 {
        let at = round % 49 * 4096 + 7;
        file.write(&cache, &disk, at, b"far").expect("written");
        bytes[at as usize..at as usize + 3].copy_from_slice(b"far");
        cache.settle();
    }
    let before = cache.counts();
    let mut into = vec![0; bytes.len()];
    file.read(&cache, &disk, 0, &mut into).expect("read");
    assert!(into == bytes);
    let counts = cache.counts().since(before);
    assert_eq!((counts.far_hits, counts.misses), (49, 0), "{counts:?}");
}

/// File that calls `then` once, right after its first read.
struct Meanwhile<F> {
    disk: Disk,
    then: Mutex<Option<F>>,
}

impl<F: FnOnce(&Disk)> OriginFile for Meanwhile<F> {
    type Error = io::Error;

    fn identity(&self) -> io::Result<FileIdentity> {
        self.disk.identity()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let count = self.disk.read_at(offset, into)?;
        if let Some(then) = self.then.lock().take() {
            then(&self.disk);
        }
        Ok(count)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.disk.write_at(offset, from)
    }
}

#[test]
fn reader_that_looked_before_a_file_grew_has_nothing_kept_that_ends_where_it_ended() {
    let pool = Pool::embedded(EmbeddedOptions::new(16 << 20)).expect("an embedded pool");
    let options = CacheOptions { block_bytes: BLOCK, near_bytes: 1 << 20, ..CacheOptions::default() };
    let cache = BlockCache::new(&options, Some(&pool)).expect("a cache");
    let disk = Disk(tempfile::tempfile().expect("a file"));
    let file = CachedFile::new(Times::Exclusive);
    let mut bytes: Vec<u8> = (0..2 * BLOCK + 100).map(|at| (at / 7) as u8).collect();
    disk.write_at(0, &bytes).expect("written");
    // The middle block is cached, so the whole read below needs two separate reads of the disk.
    file.read(&cache, &disk, BLOCK as u64, &mut [0; 10]).expect("read");
    let size = bytes.len() as u64;
    let held = Meanwhile {
        disk,
        then: Mutex::new(Some(|disk: &Disk| file.write(&cache, disk, size, &[7; 50]).expect("written"))),
    };
    file.read(&cache, &held, 0, &mut vec![0; bytes.len()]).expect("read");
    bytes.extend([7; 50]);
    for step in ["as it grew", "as it was written to"] {
        let mut into = vec![0; bytes.len()];
        assert_eq!(file.read(&cache, &held, 0, &mut into).expect("read"), bytes.len(), "{step}");
        assert!(into == bytes, "{step}");
        file.write(&cache, &held, size + 20, b"far").expect("written");
        bytes[size as usize + 20..][..3].copy_from_slice(b"far");
    }
}
