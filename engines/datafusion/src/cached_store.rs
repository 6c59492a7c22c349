//! An object store behind a cache of blocks in near and far memory (paper 000, "Accelerating Relational Databases by
//! Leveraging Remote Memory and RDMA", section 3.1).
//!
//! The idea: the store says which version of an object it has, by an entity tag or by time and size. The blocks of one
//! version never change, so a cached block of the right version is always correct. The only question is whether the
//! version is still current. It is asked again when the last answer is older than `max_age`. A block that is missing
//! is read with a condition on the version. If the object changed in the middle of a query, that read fails, and
//! everything is read again from the new version. Bytes of two versions are never mixed.

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use datafusion::common::exec_datafusion_err;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    self, CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, Result,
};
use farpool_cache::{BlockCache, Version};
use farpool_lock::Mutex;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Number of objects whose version is remembered, at most. If there are more, some are forgotten, and the store is
/// asked for their version again.
const KNOWN_MAX: usize = 1 << 16;
/// Size in bytes of one request to the store, at most. Adjacent missing blocks are read together up to this size, and
/// streams are read in steps of this size.
const RUN_BYTES: u64 = 4 << 20;
/// Number of requests that run at the same time for one read, for missing blocks or for a stream.
const RUNS_AHEAD: usize = 2;
/// Number of times that a read starts over because its object changed. After that, it goes to the store without the
/// cache.
const ATTEMPTS: usize = 3;

/// Version of an object, as the store last reported it (at the time `since`).
#[derive(Clone, Debug)]
struct Known {
    meta: ObjectMeta,
    version: Version,
    since: Instant,
}

/// Reports whether two descriptions are of the same version of an object.
fn is_same(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    // Listings leave out versions, so a missing version counts as equal. Their times may be coarser or finer than those
    // of the objects.
    let is_version_same = match (&one.version, &other.version) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    let is_tag_same = match (&one.e_tag, &other.e_tag) {
        (Some(one), Some(other)) => one == other,
        _ => one.last_modified == other.last_modified,
    };
    one.size == other.size && is_version_same && is_tag_same
}

/// An object store whose reads are cached.
#[derive(Clone)]
pub struct CachedStore {
    store: Arc<dyn ObjectStore>,
    cache: BlockCache,
    known: Arc<Mutex<HashMap<Path, Known>>>,
    max_age: Duration,
    settling: Option<Duration>,
}

impl CachedStore {
    /// Makes a store whose reads are kept in `cache`. The version of an object is trusted for `max_age`, so a change
    /// may go unseen for that long. Several stores may share a cache.
    pub fn new(store: Arc<dyn ObjectStore>, cache: &BlockCache, max_age: Duration) -> CachedStore {
        CachedStore { store, cache: cache.clone(), known: Arc::default(), max_age, settling: None }
    }

    /// Returns a copy for a store, such as a folder, that distinguishes versions only by modification time and may be
    /// read while it is written to. Blocks of an object are cached only once its last change is older than `after`.
    /// After each read from the store, it is asked whether the object is still the same.
    pub fn settling(self, after: Duration) -> CachedStore {
        CachedStore { settling: Some(after), ..self }
    }

    fn is_settled(&self, meta: &ObjectMeta) -> bool {
        self.settling.is_none_or(|after| {
            let changed = SystemTime::from(meta.last_modified);
            SystemTime::now().duration_since(changed).is_ok_and(|since| since > after)
        })
    }

    fn forget(&self, location: &Path) {
        self.known.lock().remove(location);
    }

    /// Records the version that the store reports, and returns it. A changed object gets a new version in the cache.
    fn learn(&self, meta: &ObjectMeta) -> Known {
        let mut known = self.known.lock();
        let since = Instant::now();
        if let Some(before) = known.get_mut(&meta.location)
            && is_same(&before.meta, meta)
        {
            before.since = since;
            return before.clone();
        }
        if known.len() >= KNOWN_MAX {
            // It does not matter which are forgotten: those that are read again are soon known again.
            let some: Vec<Path> = known.keys().take(KNOWN_MAX / 16).cloned().collect();
            some.iter().for_each(|one| drop(known.remove(one)));
        }
        let learnt = Known { meta: meta.clone(), version: self.cache.new_version(), since };
        known.insert(meta.location.clone(), learnt.clone());
        learnt
    }

    async fn current(&self, location: &Path) -> Result<Known> {
        let fresh =
            self.known.lock().get(location).filter(|known| known.since.elapsed() < self.max_age).cloned();
        match fresh {
            Some(known) => Ok(known),
            None => Ok(self.learn(&self.store.head(location).await?)),
        }
    }

    /// Reads ranges of one version of an object. All ranges must lie within the object.
    async fn ranges(&self, known: &Known, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let size = self.cache.block_bytes() as u64;
        let mut blocks: BTreeMap<u64, Option<Bytes>> = BTreeMap::new();
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            blocks.extend((range.start / size..range.end.div_ceil(size)).map(|block| (block, None)));
        }
        let (cache, version) = (self.cache.clone(), known.version);
        // A read from far memory may block, so it runs on a thread for that.
        let is_settled = self.is_settled(&known.meta);
        let found = tokio::task::spawn_blocking(move || {
            if is_settled {
                let wanted: Vec<_> = blocks.keys().map(|block| (version, *block)).collect();
                blocks.values_mut().zip(cache.get_all(&wanted)).for_each(|(block, found)| *block = found);
            }
            blocks
        });
        let mut blocks = found.await.map_err(|error| failed(&error.to_string()))?;
        let missing: Vec<u64> =
            blocks.iter().filter(|(_, bytes)| bytes.is_none()).map(|(block, _)| *block).collect();
        let runs = runs_of(&missing, (RUN_BYTES / size).max(1));
        let read = runs.into_iter().map(|run| async move {
            let range = run.start * size..(run.end * size).min(known.meta.size);
            Ok::<_, object_store::Error>((run, self.fetch(known, range).await?))
        });
        let mut read = futures::stream::iter(read).buffer_unordered(RUNS_AHEAD);
        while let Some((run, bytes)) = read.try_next().await? {
            for (at, block) in run.enumerate() {
                let from = at * size as usize;
                // The block is copied: a slice would keep all bytes that were read with it in memory.
                let bytes = Bytes::copy_from_slice(&bytes[from..bytes.len().min(from + size as usize)]);
                if is_settled {
                    self.cache.put(version, block, bytes.clone());
                }
                blocks.insert(block, Some(bytes));
            }
        }
        ranges.iter().map(|range| bytes_of_range(&blocks, range, size)).collect()
    }

    /// Reads a range of one version of an object from the store. The error is `Precondition` if the object changed
    /// since.
    async fn fetch(&self, known: &Known, range: Range<u64>) -> Result<Bytes> {
        let wanted = range.end - range.start;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: known.meta.e_tag.clone(),
            version: known.meta.version.clone(),
            ..GetOptions::default()
        };
        let result = self.store.get_opts(&known.meta.location, options).await?;
        if !is_same(&known.meta, &result.meta) {
            return Err(changed(&known.meta));
        }
        let bytes = result.bytes().await?;
        if bytes.len() as u64 != wanted {
            return Err(changed(&known.meta));
        }
        if self.settling.is_some() && !is_same(&known.meta, &self.store.head(&known.meta.location).await?) {
            return Err(changed(&known.meta));
        }
        Ok(bytes)
    }

    /// Reads ranges of an object, and starts over with the new version if the object changed meanwhile.
    async fn read(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        for _ in 0..ATTEMPTS {
            let known = self.current(location).await?;
            if ranges.iter().any(|range| range.end > known.meta.size || range.start > range.end) {
                // The store itself returns the right error for a range beyond the object.
                break;
            }
            match self.ranges(&known, ranges).await {
                Err(object_store::Error::Precondition { .. }) => self.forget(location),
                other => return other,
            }
        }
        self.store.get_ranges(location, ranges).await
    }

    /// Streams a range of one version of an object, `RUN_BYTES` or a little more at a time.
    fn stream(&self, known: Known, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let step = RUN_BYTES.next_multiple_of(self.cache.block_bytes() as u64);
        let store = self.clone();
        let numbers = if range.is_empty() { 0..0 } else { range.start / step..range.end.div_ceil(step) };
        let run = move |number: u64| range.start.max(number * step)..range.end.min((number + 1) * step);
        futures::stream::iter(numbers)
            .map(run)
            .map(move |range| {
                let (store, known) = (store.clone(), known.clone());
                async move {
                    let mut bytes = store.ranges(&known, &[range]).await?;
                    Ok(bytes.pop().unwrap_or_default())
                }
            })
            .buffered(RUNS_AHEAD)
            .boxed()
    }
}

/// Merges adjacent block numbers into runs of at most `most` blocks.
fn runs_of(blocks: &[u64], most: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == *block && run.end - run.start < most => run.end += 1,
            _ => runs.push(*block..block + 1),
        }
    }
    runs
}

/// Copies a range out of the blocks that cover it.
fn bytes_of_range(blocks: &BTreeMap<u64, Option<Bytes>>, range: &Range<u64>, size: u64) -> Result<Bytes> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let numbers = range.start / size..range.end.div_ceil(size);
    let part = |number: u64| {
        let block = blocks.get(&number).and_then(Option::as_ref);
        let block = block.ok_or_else(|| failed("a block was not read"))?;
        let from = range.start.saturating_sub(number * size) as usize;
        let to = (range.end - number * size).min(block.len() as u64) as usize;
        if from > to {
            return Err(failed("a block is shorter than it should be"));
        }
        Ok(block.slice(from..to))
    };
    if numbers.end - numbers.start == 1 {
        return part(numbers.start);
    }
    let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
    for number in numbers {
        whole.extend_from_slice(&part(number)?);
    }
    Ok(whole.freeze())
}

fn failed(why: &str) -> object_store::Error {
    object_store::Error::Generic { store: "farpool cache", source: Box::new(exec_datafusion_err!("{why}")) }
}

fn changed(meta: &ObjectMeta) -> object_store::Error {
    let source = Box::new(exec_datafusion_err!("the object changed while it was read"));
    object_store::Error::Precondition { path: meta.location.to_string(), source }
}

impl fmt::Debug for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cache over {}", self.store)
    }
}

#[async_trait]
impl ObjectStore for CachedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let put = self.store.put_opts(location, payload, options).await;
        self.forget(location);
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        // The new version exists once the upload is complete, and is looked up on the next read.
        let upload = self.store.put_multipart_opts(location, options).await?;
        Ok(Box::new(Upload { upload, store: self.clone(), location: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head || options.version.is_some() {
            let result = self.store.get_opts(location, options.clone()).await?;
            if options.version.is_none() {
                self.learn(&result.meta);
            }
            return Ok(result);
        }
        for _ in 0..ATTEMPTS {
            let known = self.current(location).await?;
            let size = known.meta.size;
            let range = match &options.range {
                None => Ok(0..size),
                Some(range) => range.as_range(size),
            };
            let (Ok(range), Ok(())) = (range, options.check_preconditions(&known.meta)) else { break };
            let mut stream = self.stream(known.clone(), range.clone()).peekable();
            // The stream has returned nothing to the caller yet, so another can take its place.
            if let Some(Err(object_store::Error::Precondition { .. })) = Pin::new(&mut stream).peek().await {
                self.forget(location);
                continue;
            }
            return Ok(GetResult {
                meta: known.meta,
                range,
                attributes: Default::default(),
                payload: GetResultPayload::Stream(stream.boxed()),
            });
        }
        // The object kept changing, or the range is invalid. The store answers without the cache.
        self.store.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (before, after) = (self.clone(), self.clone());
        let locations = locations.inspect_ok(move |location| before.forget(location)).boxed();
        // The version is forgotten once more after the deletion: another reader may have asked for it meanwhile.
        self.store.delete_stream(locations).inspect_ok(move |location| after.forget(location)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        self.store.list(prefix).inspect_ok(move |meta| drop(store.learn(meta))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.store.list_with_delimiter(prefix).await?;
        listed.objects.iter().for_each(|meta| drop(self.learn(meta)));
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copied = self.store.copy_opts(from, to, options).await;
        self.forget(to);
        copied
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let renamed = self.store.rename_opts(from, to, options).await;
        self.forget(from);
        self.forget(to);
        renamed
    }
}

/// An upload that makes the store forget the object's version when it completes.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    store: CachedStore,
    location: Path,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> object_store::UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let completed = self.upload.complete().await;
        self.store.forget(&self.location);
        completed
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
