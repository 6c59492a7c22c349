//! Blocks found in the cache have the right bytes, even if far memory is full or closed. Blocks that fit are found.

use bytes::Bytes;
use farpool::{EmbeddedOptions, Pool};
use farpool_cache::{BlockCache, CacheError, CacheOptions, Version};
use proptest::prelude::*;
use std::time::Duration;

const BLOCK: usize = 4 << 10;

fn options(near_blocks: u64, far_blocks: u64) -> CacheOptions {
    CacheOptions {
        block_bytes: BLOCK,
        near_bytes: near_blocks * BLOCK as u64,
        far_bytes: far_blocks * BLOCK as u64,
        // It is long, so that a slow machine does not turn far hits into misses.
        patience: Duration::from_secs(60),
    }
}

fn pool(bytes: u64) -> Pool {
    Pool::embedded(EmbeddedOptions::new(bytes)).expect("an embedded pool")
}

/// Returns the content of a block of a version. Every seventh block is short, as the last one of a file may be.
fn block(version: Version, number: u64) -> Bytes {
    let seed = version.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let length = if number % 7 == 6 { BLOCK / 3 } else { BLOCK };
    (0..length as u64).map(|at| (seed.wrapping_add(at * 0x1_0001) >> 7) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn block_that_is_found_is_that_of_its_version(
        near in 0u64..40,
        far in 0u64..200,
        asks in prop::collection::vec((0u64..3, 0u64..300, 1u64..12), 1..500)
    ) {
        let pool = pool(16 << 20);
        let cache = BlockCache::new(&options(near, far), Some(&pool)).expect("a cache");
        let versions: Vec<Version> = (0..3).map(|_| cache.new_version()).collect();
        let mut asked = 0;
        for (version, first, count) in asks {
            let version = versions[version as usize];
            let wanted: Vec<_> = (first..first + count).map(|number| (version, number)).collect();
            for ((_, number), found) in wanted.iter().zip(cache.get_all(&wanted)) {
                match found {
                    Some(found) => prop_assert!(found == block(version, *number)),
                    None => cache.put(version, *number, block(version, *number)),
                }
            }
            asked += count;
        }
        let counts = cache.counts();
        prop_assert_eq!(counts.far_failures, 0);
        prop_assert_eq!(counts.near_hits + counts.far_hits + counts.misses, asked);
    }
}

#[test]
fn working_set_of_four_times_near_memory_is_found_far_when_it_is_read_again() {
    let pool = pool(64 << 20);
    let cache = BlockCache::new(&options(512, 2500), Some(&pool)).expect("a cache");
    let version = cache.new_version();
    for _ in 0..2 {
        for number in 0..2048 {
            if cache.get(version, number).is_none() {
                cache.put(version, number, block(version, number));
            }
            cache.settle();
        }
    }
    let before = cache.counts();
    for number in 0..2048 {
        let found = cache.get(version, number);
        assert!(found.is_none_or(|found| found == block(version, number)), "block {number}");
        cache.settle();
    }
    let counts = cache.counts().since(before);
    assert!(counts.misses <= 2048 / 20, "{counts:?}");
    assert!(counts.far_hits > counts.near_hits, "{counts:?}");
}

#[test]
fn pool_without_room_or_closed_makes_misses_and_nothing_else() {
    let pool = pool(1 << 20);
    let cache = BlockCache::new(&options(8, 4096), Some(&pool)).expect("a cache");
    let version = cache.new_version();
    let ask = |number: u64| match cache.get(version, number) {
        Some(found) => assert!(found == block(version, number), "block {number}"),
        None => cache.put(version, number, block(version, number)),
    };
    for number in 0..1024 {
        ask(number);
        cache.settle();
    }
    // The pool holds 256 blocks. More writes than that show that later blocks replaced earlier ones.
    let counts = cache.counts();
    assert!(counts.far_refused > 0 && counts.far_writes > 256, "{counts:?}");
    pool.close();
    (0..1024).rev().for_each(ask);
    let all: Vec<_> = (0..1024).map(|number| (version, number)).collect();
    for ((_, number), found) in all.iter().zip(cache.get_all(&all)) {
        assert!(found.is_none_or(|found| found == block(version, *number)), "block {number}");
    }
    cache.settle();
    assert_eq!(cache.get(version, 9999), None);
}

#[test]
fn block_size_that_is_not_permitted_is_refused_by_name() {
    for bytes in [0, 1000, 2048, 8 << 20] {
        let options = CacheOptions { block_bytes: bytes, ..CacheOptions::default() };
        let Err(CacheError::Setting(why)) = BlockCache::new(&options, None) else {
            panic!("{bytes} was taken");
        };
        assert!(why.contains(&bytes.to_string()) && why.contains("4096 to 4194304"), "{why}");
    }
}
