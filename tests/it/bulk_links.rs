//! Tests of bulk connections: large reads go over connections of their own, so that small reads do not wait for them.

use crate::encrypted_batches::{MIB, Meddler, PAGE, connect_with};
use crate::protected_files::Cluster;
use crate::queue::block_on;
use crate::random::Random;
use farpool::{CreateOptions, ErrorKind, FarFile, FileClass, Pool, PoolOptions, Protection, TransportChoice};
use std::sync::Arc;

const BULK_TAG: u64 = 1_000;

fn world(bulk_links: usize, encrypted: bool) -> (Cluster, Arc<Meddler>, Pool, FarFile, Vec<u8>) {
    let (cluster, meddler) = (Cluster::new(1), Meddler::new());
    let options = PoolOptions { transport: TransportChoice::Tcp, bulk_links, ..PoolOptions::default() };
    let pool = connect_with(&cluster, &meddler, options);
    let options = CreateOptions {
        protection: Some(Protection::None),
        encrypted: Some(encrypted),
        ..CreateOptions::default()
    };
    let file = pool.create("f", FileClass::Scratch, options).expect("created");
    let bytes = Random(1).bytes(8 * MIB);
    file.write_at(0, &bytes).expect("written");
    (cluster, meddler, pool, file, bytes)
}

#[test]
fn small_reads_of_a_queue_complete_while_a_bulk_read_is_held_back() {
    for encrypted in [false, true] {
        let (_cluster, meddler, pool, file, bytes) = world(1, encrypted);
        meddler.hold_bulk(true);
        let mut queue = pool.queue();
        queue.read(BULK_TAG, &file, 3 * MIB as u64, vec![0; 512 << 10]);
        queue.flush();
        for tag in 0..50 {
            queue.read(tag, &file, tag * PAGE as u64, vec![0; 100]);
            let done = queue.wait().expect("under way");
            done.result.expect("read");
            assert_eq!(done.tag, tag, "what is held back is not waited for");
            assert!(done.bytes == bytes[tag as usize * PAGE..][..100]);
        }
        meddler.hold_bulk(false);
        let done = queue.wait().expect("under way");
        done.result.expect("read");
        assert_eq!(done.tag, BULK_TAG);
        assert!(done.bytes == bytes[3 * MIB..][..512 << 10]);
    }
}

#[test]
fn small_asynchronous_operations_complete_while_a_bulk_read_is_held_back() {
    let (_cluster, meddler, pool, file, bytes) = world(1, false);
    meddler.hold_bulk(true);
    let queue = pool.async_queue().expect("threads");
    let bulk = queue.read(&file, 3 * MIB as u64, vec![0; MIB]);
    for at in 0..50 {
        let done = block_on(queue.read(&file, at * PAGE as u64, vec![0; 100]));
        done.result.expect("read");
        assert!(done.bytes == bytes[at as usize * PAGE..][..100]);
    }
    block_on(queue.write(&file, 7, vec![1; 5])).result.expect("written");
    meddler.hold_bulk(false);
    let done = block_on(bulk);
    done.result.expect("read");
    assert!(done.bytes == bytes[3 * MIB..][..MIB]);
}

#[test]
fn bulk_reads_of_a_queue_share_as_many_connections_as_the_options_say() {
    for links in [1, 3] {
        let (_cluster, meddler, pool, file, bytes) = world(links, false);
        let mut queue = pool.queue();
        (0..20).for_each(|tag| queue.read(tag, &file, tag * 300_000, vec![0; 300_000]));
        while let Some(done) = queue.wait() {
            done.result.expect("read");
            assert!(done.bytes == bytes[done.tag as usize * 300_000..][..300_000]);
        }
        assert_eq!(meddler.bulk_links(), links as u64);
    }
}

#[test]
fn bulk_links_beyond_what_is_permitted_are_refused() {
    let cluster = Cluster::new(1);
    for bulk_links in [0, 17] {
        let options = PoolOptions { bulk_links, ..PoolOptions::default() };
        let error = Pool::connect_with(&cluster.url(), options).err().expect("not permitted");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("1 to 16"), "{error}");
    }
}

/// The reads are so large that each of the 6 connections in turn has the most bytes to transfer.
#[test]
fn reads_of_mixed_sizes_give_every_read_its_own_bytes() {
    for (links, encrypted) in [(1, false), (5, false), (5, true)] {
        let (_cluster, _meddler, pool, file, bytes) = world(links, encrypted);
        let (mut queue, mut random, mut asked) = (pool.queue(), Random(2), Vec::new());
        for _ in 0..1_000 {
            while queue.under_way() < 40 {
                let most = if random.below(3) == 0 { MIB } else { 10_000 };
                let count = 1 + random.below(most as u64) as usize;
                let at = random.below((bytes.len() - count) as u64) as usize;
                queue.read(asked.len() as u64, &file, at as u64, vec![0; count]);
                asked.push(at);
            }
            let done = queue.wait().expect("under way");
            done.result.expect("read");
            assert!(done.bytes == bytes[asked[done.tag as usize]..][..done.bytes.len()]);
        }
    }
}
