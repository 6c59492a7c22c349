//! Local files read through a cache in far memory: the bytes are the file's, whatever happens to files, nodes and the
//! cache.

use crate::pools::Cluster;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::memory::InMemory;
use datafusion::object_store::path::Path;
use datafusion::object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload};
use farpool::{EmbeddedOptions, Pool};
use farpool_cache::{BlockCache, CacheOptions};
use farpool_datafusion::CachedStore;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const BLOCK: usize = 4 << 10;

fn cache(pool: &Pool, near_bytes: u64) -> BlockCache {
    let options = CacheOptions {
        block_bytes: BLOCK,
        near_bytes,
        far_bytes: 8 << 20,
        // The cache waits a minute for far memory, so that the test does not depend on the speed of this machine.
        patience: Duration::from_secs(60),
    };
    BlockCache::new(&options, Some(pool)).expect("a cache")
}

fn pool() -> Pool {
    Pool::embedded(EmbeddedOptions::new(32 << 20)).expect("an embedded pool")
}

fn contents(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(seed | 1) >> 5) as u8 ^ seed as u8).collect()
}

fn ranges() -> Vec<Vec<Range<u64>>> {
    let size = 300_001;
    vec![
        vec![0..1],
        vec![0..size],
        vec![4_095..4_097, 8_191..8_192, 299_000..size],
        (0..40).map(|at| at * 7_001..at * 7_001 + 3_000).collect(),
        vec![100_000..200_000, 50_000..150_000],
    ]
}

#[tokio::test]
async fn ranges_and_streams_of_a_cached_store_are_those_of_the_store() {
    let pool = pool();
    for near_bytes in [0, 16 * BLOCK as u64] {
        let cache = cache(&pool, near_bytes);
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let cached = CachedStore::new(Arc::clone(&store), &cache, Duration::ZERO);
        let place = Path::from("a/b");
        store.put(&place, PutPayload::from(contents(3, 300_001))).await.expect("put");
        for round in 0..3 {
            for wanted in ranges() {
                let here = cached.get_ranges(&place, &wanted).await.expect("read");
                let there = store.get_ranges(&place, &wanted).await.expect("read");
                assert!(here == there, "round {round}: {wanted:?}");
                cache.settle();
            }
            for range in [
                None,
                Some(GetRange::Offset(299_990)),
                Some(GetRange::Suffix(5)),
                Some(GetRange::Bounded(9..9_000)),
            ] {
                let options = GetOptions { range, ..GetOptions::default() };
                let here =
                    cached.get_opts(&place, options.clone()).await.map(|found| (found.range.clone(), found));
                let there = store.get_opts(&place, options).await.map(|found| (found.range.clone(), found));
                let ((here, found), (there, wanted)) = (here.expect("read"), there.expect("read"));
                assert_eq!(here, there);
                assert!(found.bytes().await.expect("read") == wanted.bytes().await.expect("read"));
            }
        }
        let counts = cache.counts();
        assert!(counts.far_hits > 0 && counts.far_failures == 0, "{counts:?}");
        for beyond in [299_000..300_002, 400_000..400_001] {
            let here = cached.get_range(&place, beyond.clone()).await;
            let there = store.get_range(&place, beyond).await;
            assert_eq!(here.is_ok(), there.is_ok());
        }
        assert!(cached.get(&Path::from("nowhere")).await.is_err());
    }
}

#[tokio::test]
async fn object_that_changed_since_it_was_asked_about_is_read_as_it_is_now() {
    let cache = cache(&pool(), 0);
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let cached = CachedStore::new(Arc::clone(&store), &cache, Duration::from_secs(3600));
    for (place, length) in [("shorter", 20_000), ("as long", 50_000), ("longer", 9_000_000)] {
        let place = Path::from(place);
        store.put(&place, PutPayload::from(contents(1, 50_000))).await.expect("put");
        assert_eq!(cached.head(&place).await.expect("there").size, 50_000);
        let now = contents(2, length);
        store.put(&place, PutPayload::from(now.clone())).await.expect("put");
        let found = cached.get(&place).await.expect("there");
        assert_eq!(found.meta.size, length as u64);
        assert!(*found.bytes().await.expect("read") == now, "{place}");
        assert!(*cached.get_range(&place, 10_000..20_000).await.expect("read") == now[10_000..20_000]);
    }
}

#[tokio::test]
async fn file_that_changes_behind_the_cache_is_read_as_it_is_now() {
    let (pool, folder) = (pool(), tempfile::tempdir().expect("a folder"));
    let cache = cache(&pool, 0);
    let files = LocalFileSystem::new_with_prefix(folder.path()).expect("a store");
    let settling = Duration::from_secs(2);
    let cached = CachedStore::new(Arc::new(files), &cache, Duration::ZERO).settling(settling);
    let place = Path::from("f");
    for round in 0..20 {
        let bytes = contents(round, 50_000 + round as usize);
        std::fs::write(folder.path().join("f"), &bytes).expect("written");
        for _ in 0..2 {
            let found = cached.get(&place).await.expect("there").bytes().await.expect("read");
            assert!(*found == *bytes, "round {round}");
            cache.settle();
        }
    }
    cached.put(&place, PutPayload::from(contents(99, 60_000))).await.expect("put");
    let found = cached.get_range(&place, 59_000..60_000).await.expect("read");
    assert!(*found == contents(99, 60_000)[59_000..]);
    assert_eq!(cache.counts().far_writes, 0, "what may be written to still is not kept");
    let file = std::fs::File::options().write(true).open(folder.path().join("f")).expect("there");
    file.set_modified(SystemTime::now() - 2 * settling).expect("a time");
    for _ in 0..2 {
        let found = cached.get(&place).await.expect("there").bytes().await.expect("read");
        assert!(*found == contents(99, 60_000));
        cache.settle();
    }
    assert!(cache.counts().far_hits > 0);
}

#[tokio::test]
async fn pool_that_closes_under_a_cached_store_costs_time_and_nothing_else() {
    let pool = pool();
    let cache = cache(&pool, 0);
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let cached = CachedStore::new(Arc::clone(&store), &cache, Duration::from_secs(60));
    let place = Path::from("a");
    store.put(&place, PutPayload::from(contents(5, 300_001))).await.expect("put");
    for round in 0..4 {
        if round == 2 {
            pool.close();
        }
        let found = cached.get_range(&place, 0..300_001).await.expect("read");
        assert!(*found == *contents(5, 300_001), "round {round}");
        cache.settle();
    }
}

#[test]
fn cache_that_lost_a_node_keeps_blocks_on_the_other_instead() {
    const BLOCKS: u64 = 1_500;
    let mut cluster = Cluster::start("64MiB");
    let cache = cache(&cluster.pool, 0);
    let version = cache.new_version();
    let block = |number: u64| bytes::Bytes::from(contents(number, BLOCK));
    let pass = || {
        let before = cache.counts();
        for number in 0..BLOCKS {
            match cache.get(version, number) {
                Some(found) => assert!(found == block(number), "block {number}"),
                None => cache.put(version, number, block(number)),
            }
            cache.settle();
        }
        cache.counts().since(before)
    };
    pass();
    let counts = pass();
    assert!(counts.misses <= BLOCKS / 20, "all of it is far: {counts:?}");
    cluster.lose_two();
    let begun = Instant::now();
    let mut failures = 0;
    loop {
        let counts = pass();
        failures += counts.far_failures;
        if failures > 0 && counts.misses <= BLOCKS / 20 {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "what was lost is kept again: {counts:?}, {failures}"
        );
    }
}
