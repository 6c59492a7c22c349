//! A cache of blocks in two levels: hot blocks in this process, warm ones in far memory (paper 000, section 3.1: an
//! extension of the buffer pool).
//!
//! A block belongs to a version of a thing, and a version never changes. A block that is found is therefore valid, and
//! nothing needs to be invalidated: a thing that changes gets another version, and the old version's blocks are evicted
//! in time. A block that leaves near memory is written to far memory in the background, and comes back when it is read.
//! Far memory may revoke blocks, lose them or be slow. Then it is a miss, and the caller reads the thing itself.
//!
//! Never in this crate: knowledge of what is cached, or a way to it.
#![forbid(unsafe_code)]

mod backoff;
mod blocks;
mod far;
mod file;
mod times;

pub use blocks::FileIdentity;
pub use file::{CachedFile, OriginFile};
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

/// Permitted bytes of a block.
pub const BLOCK_BYTES: RangeInclusive<usize> = (4 << 10)..=(4 << 20);

/// Most bytes that far memory is asked for in one request. Requests are short, so that slow far memory is noticed soon.
const ASKED_BYTES: usize = 4 << 20;

/// Number of a version of a thing. The caller gives each version its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub u64);

/// Key of a block: its version, and its number from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    version: Version,
    block: u64,
}

/// Sizes of a cache, and its patience with far memory.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes of a block: a power of two in [`BLOCK_BYTES`].
    pub block_bytes: usize,
    /// Limit of the bytes in this process.
    pub near_bytes: u64,
    /// Limit of the bytes in far memory, which is taken when it is needed.
    pub far_bytes: u64,
    /// Time within which far memory must deliver. After a slower read the cache backs off: for a while it does not ask
    /// far memory.
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

/// Reason why a cache was not made.
#[derive(Debug)]
pub enum CacheError {
    /// A setting is outside what is permitted.
    Setting(String),
    /// Far memory could not be used.
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
        /// Counters of a cache since it was made.
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
            /// Returns the difference to earlier counters.
            pub fn since(self, before: Counts) -> Counts {
                Counts { $($name: self.$name.saturating_sub(before.$name)),* }
            }

            /// Returns each counter with its name.
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
    /// Blocks that far memory had and did not deliver: lost, revoked, late or damaged.
    far_failures,
    /// Blocks written to far memory.
    far_writes,
    /// Blocks that were not written to far memory, because too many were queued or it had no room.
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

/// Handler of evictions from near memory: offers the blocks to far memory, if the cache has a far level.
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

/// A cache of blocks. Clones share it.
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
    /// Blocks in this process; `None` if it may hold none.
    near: Option<Cache<Key, Bytes, ByBytes, DefaultHashBuilder, ToFar>>,
    /// Blocks in far memory; `None` if there is no pool, or it may hold none.
    far: Option<Arc<Far>>,
    counters: Arc<Counters>,
    /// Number of the next version.
    versions: AtomicU64,
}

impl BlockCache {
    /// Makes a cache in this process alone, or with a pool's far memory as second level.
    ///
    /// Errors: a block size that is not permitted, or far memory that cannot be used.
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

    /// Returns the bytes of a block. The last block of a version may be shorter.
    pub fn block_bytes(&self) -> usize {
        self.inner.block_bytes
    }

    /// Returns a version number that was not used before.
    pub fn new_version(&self) -> Version {
        Version(self.inner.versions.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a block, if it is cached. May wait for far memory.
    pub fn get(&self, version: Version, block: u64) -> Option<Bytes> {
        let Inner { near, counters, .. } = &*self.inner;
        let key = Key { version, block };
        if let Some(found) = near.as_ref().and_then(|near| near.get(&key)) {
            count(&counters.near_hits);
            return Some(found);
        }
        self.get_far(&[key]).pop().flatten()
    }

    /// Returns the blocks that are cached, and `None` for the others. Asks far memory for many at once, and may wait
    /// for it.
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

    /// Looks in far memory for blocks that are not in near memory, and puts those that it finds into near memory.
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

    /// Caches a block. It must be the content of that version, because every later caller gets it.
    pub fn put(&self, version: Version, block: u64, bytes: Bytes) {
        debug_assert!(bytes.len() <= self.inner.block_bytes, "a block is no longer than a block");
        let key = Key { version, block };
        match (&self.inner.near, &self.inner.far) {
            (Some(near), _) => near.insert(key, bytes),
            (None, Some(far)) => far.offer(key, bytes),
            (None, None) => {}
        }
    }

    /// Removes a block that nobody will ask for. A block that is just being written to far memory may stay there.
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

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.inner.counters.read()
    }

    /// Waits until all queued blocks have been written to far memory or refused.
    pub fn settle(&self) {
        if let Some(far) = &self.inner.far {
            far.settle();
        }
    }
}
