//! Blocks of things that are read again and again, near as long as they are hot, far as long as they are warm (paper
//! 000, section 3.1: an extension of the buffer pool).
//!
//! The idea: a block belongs to a version of a thing, and a version never changes, so a block that is found is right,
//! and nothing has to be invalidated: what changes gets another version, and the old one's blocks grow cold. A block
//! that leaves near memory is written to far memory behind its reader's back; whoever reads it again brings it back.
//! Far memory may take blocks away, lose them or be slow: then it is a miss, and whoever asked has the thing itself.
//!
//! Never in this crate: knowledge of what is cached, or a way to it.
#![forbid(unsafe_code)]

mod blocks;
mod far;
mod file;
mod rest;
mod times;

pub use blocks::Identity;
pub use file::{CachedFile, Source};
pub use times::Times;

use bytes::Bytes;
use far::Far;
use farpool_files::{Error, Pool};
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that a block may have.
pub const BLOCK_BYTES: RangeInclusive<usize> = (4 << 10)..=(4 << 20);

/// Far memory is asked for so much at once: what comes late is then known soon enough.
const ASKED_BYTES: usize = 4 << 20;

/// A version of something. Whoever has a version gives it a number, and another one its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub u64);

/// A block of a version: its number, counted from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    version: Version,
    block: u64,
}

/// How large a cache is, and where.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes of a block: a power of two in [`BLOCK_BYTES`].
    pub block_bytes: usize,
    /// Bytes in this process.
    pub near_bytes: u64,
    /// Bytes in far memory; taken when they are needed.
    pub far_bytes: u64,
    /// Far memory is left alone for a while after a block did not come within this time: then it is faster not to ask.
    pub patience: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            block_bytes: 64 << 10,
            near_bytes: 64 << 20,
            far_bytes: 1 << 30,
            patience: Duration::from_millis(200),
        }
    }
}

/// Why there is no cache.
#[derive(Debug)]
pub enum CacheError {
    /// A setting is outside what is permitted.
    Setting(String),
    /// Far memory cannot be had.
    Pool(Error),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheError::Setting(why) => f.write_str(why),
            CacheError::Pool(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CacheError {}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a cache did so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }

        impl Counts {
            /// What came on top since then.
            pub fn since(self, before: Counts) -> Counts {
                Counts { $($name: self.$name.saturating_sub(before.$name)),* }
            }

            /// Each with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counts! {
    /// Blocks found in this process.
    near_hits,
    /// Blocks found in far memory.
    far_hits,
    /// Blocks found nowhere.
    misses,
    /// Blocks that far memory had and did not give: lost, taken away, late or damaged.
    far_failures,
    /// Blocks written to far memory.
    far_writes,
    /// Blocks that were not written to far memory, since others were under way or it had no room.
    far_refused,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Clone, Copy)]
struct ByBytes;

impl Weighter<Key, Bytes> for ByBytes {
    fn weight(&self, _key: &Key, block: &Bytes) -> u64 {
        block.len().max(1) as u64
    }
}

/// What leaves near memory goes to far memory.
#[derive(Clone)]
struct ToFar(Option<Arc<Far>>);

impl Lifecycle<Key, Bytes> for ToFar {
    type RequestState = ();

    fn begin_request(&self) {}

    fn on_evict(&self, (): &mut (), key: Key, block: Bytes) {
        if let Some(far) = &self.0 {
            far.offer(key, block);
        }
    }
}

/// A cache. Clones share it.
#[derive(Clone)]
pub struct BlockCache {
    inner: Arc<Inner>,
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

struct Inner {
    block_bytes: usize,
    near: Option<Cache<Key, Bytes, ByBytes, DefaultHashBuilder, ToFar>>,
    far: Option<Arc<Far>>,
    counters: Arc<Counters>,
    versions: AtomicU64,
}

impl BlockCache {
    /// A cache in this process alone, or with far memory of a pool behind it.
    ///
    /// Errors: a block size that is not permitted, or no far memory that could be asked for blocks.
    pub fn new(options: &CacheOptions, pool: Option<&Pool>) -> Result<BlockCache, CacheError> {
        let block_bytes = options.block_bytes;
        if !block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&block_bytes) {
            return Err(CacheError::Setting(format!(
                "the block size is {block_bytes} bytes; a power of two from {} to {} is permitted",
                BLOCK_BYTES.start(),
                BLOCK_BYTES.end()
            )));
        }
        let counters = Arc::new(Counters::default());
        let blocks = |bytes: u64| usize::try_from(bytes / block_bytes as u64).unwrap_or(usize::MAX);
        let far = match pool {
            Some(pool) if options.far_bytes > 0 => {
                let count = u32::try_from(blocks(options.far_bytes)).unwrap_or(u32::MAX);
                Some(Far::new(pool, count, options, &counters).map_err(CacheError::Pool)?)
            }
            _ => None,
        };
        let near = (options.near_bytes > 0).then(|| {
            let lifecycle = ToFar(far.clone());
            Cache::with(
                blocks(options.near_bytes),
                options.near_bytes,
                ByBytes,
                Default::default(),
                lifecycle,
            )
        });
        Ok(BlockCache {
            inner: Arc::new(Inner { block_bytes, near, far, counters, versions: AtomicU64::new(0) }),
        })
    }

    /// Bytes of a block. The last one of a version may be shorter.
    pub fn block_bytes(&self) -> usize {
        self.inner.block_bytes
    }

    /// A number for a version that nobody has had.
    pub fn new_version(&self) -> Version {
        Version(self.inner.versions.fetch_add(1, Ordering::Relaxed))
    }

    /// A block, if it is here. May wait for far memory.
    pub fn get(&self, version: Version, block: u64) -> Option<Bytes> {
        let Inner { near, counters, .. } = &*self.inner;
        let key = Key { version, block };
        if let Some(found) = near.as_ref().and_then(|near| near.get(&key)) {
            count(&counters.near_hits);
            return Some(found);
        }
        self.get_far(&[key]).pop().flatten()
    }

    /// Blocks of versions, those that are here. Far memory is asked for many at once, and may be waited for.
    pub fn get_all(&self, wanted: &[(Version, u64)]) -> Vec<Option<Bytes>> {
        if let [(version, block)] = wanted {
            return vec![self.get(*version, *block)];
        }
        let keys: Vec<Key> = wanted.iter().map(|&(version, block)| Key { version, block }).collect();
        let near = self.inner.near.as_ref();
        let mut found: Vec<_> = keys.iter().map(|key| near.and_then(|near| near.get(key))).collect();
        let missing: Vec<usize> = (0..keys.len()).filter(|at| found[*at].is_none()).collect();
        self.inner.counters.near_hits.fetch_add((keys.len() - missing.len()) as u64, Ordering::Relaxed);
        for missing in missing.chunks((ASKED_BYTES / self.inner.block_bytes).max(1)) {
            let keys: Vec<Key> = missing.iter().map(|at| keys[*at]).collect();
            for (at, block) in missing.iter().zip(self.get_far(&keys)) {
                found[*at] = block;
            }
        }
        found
    }

    /// Blocks that are not near.
    fn get_far(&self, keys: &[Key]) -> Vec<Option<Bytes>> {
        let Inner { near, far, counters, .. } = &*self.inner;
        let found = far.as_ref().map_or_else(|| vec![None; keys.len()], |far| far.get(keys));
        for (key, block) in keys.iter().zip(&found) {
            count(if block.is_some() { &counters.far_hits } else { &counters.misses });
            if let (Some(near), Some(block)) = (near, block) {
                near.insert(*key, block.clone());
            }
        }
        found
    }

    /// Keeps a block, which must be what the version has there: whoever asks for it gets it.
    pub fn put(&self, version: Version, block: u64, bytes: Bytes) {
        debug_assert!(bytes.len() <= self.inner.block_bytes, "a block is no longer than a block");
        let key = Key { version, block };
        match (&self.inner.near, &self.inner.far) {
            (Some(near), _) => near.insert(key, bytes),
            (None, Some(far)) => far.offer(key, bytes),
            (None, None) => {}
        }
    }

    /// Lets go of a block that nobody will ask for. One that is on its way to far memory may stay.
    pub fn forget(&self, version: Version, block: u64) {
        let key = Key { version, block };
        let Inner { near, far, .. } = &*self.inner;
        if let Some(near) = near {
            near.remove(&key);
        }
        if let Some(far) = far {
            far.forget(&key);
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.inner.counters.read()
    }

    /// Waits until nothing is on its way to far memory.
    pub fn settle(&self) {
        if let Some(far) = &self.inner.far {
            far.settle();
        }
    }
}
