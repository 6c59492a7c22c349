//! Small published files share regions: many of them fit where each would take a region, and all of their memory comes
//! back.

use crate::programs::eventually;
use crate::protected_files::Cluster;
use crate::published_files::nothing_held;
use farpool::{
    CreateOptions, EmbeddedOptions, ErrorKind, FileClass, IfTaken, Pool, PoolOptions, Protection,
    TransportChoice,
};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 10_000;

/// Pool of two nodes with 12 regions of 1 MiB each.
fn pool(transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(24 * MIB);
    options.node_count = 2;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

fn content(number: u64) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at * 31 + number * 17) as u8).collect()
}

fn put(pool: &Pool, number: u64) {
    let name = format!("small/{number}");
    let file = pool.create(&name, FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, &content(number)).expect("a write");
    pool.publish(&name, IfTaken::Replace).expect("published");
}

fn check(pool: &Pool, number: u64) {
    let file = pool.open(&format!("small/{number}")).expect("opened");
    let mut found = vec![0; file.length() as usize];
    file.read_at(0, &mut found).expect("a read");
    assert!(found == content(number), "file {number}");
}

fn regions_used(pool: &Pool) -> u32 {
    let status = pool.status().expect("a status");
    status.nodes.iter().map(|node| node.counts.leased + node.counts.named + node.counts.cleaning).sum()
}

#[test]
fn many_small_files_take_as_many_bytes_and_not_as_many_regions() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let writer = pool(transport);
        let options = PoolOptions { transport, ..PoolOptions::default() };
        let reader = Pool::connect_with(writer.url(), options).expect("a second session");
        // 800 files of 12 KiB, the next multiple of a page, are 9.4 MiB: each would have taken a MiB.
        (0..800).for_each(|number| put(&writer, number));
        assert!(regions_used(&reader) <= 14, "{} regions are used ({transport:?})", regions_used(&reader));
        (0..800).rev().for_each(|number| check(&reader, number));
        (0..800).for_each(|number| reader.delete(&format!("small/{number}")).expect("dropped"));
        assert_eq!(reader.open("small/7").err().map(|error| error.kind()), Some(ErrorKind::NotFound));
        nothing_held(&reader);
    }
}

#[test]
fn small_files_that_are_to_have_parity_have_mirrors_and_share_regions() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let mut cluster = Cluster::new(3);
        let pool = cluster.connect(transport, Some(Protection::Rs { data: 2, parity: 1 }));
        (0..200).for_each(|number| put(&pool, number));
        // Two copies of 200 files of 12 KiB are 4.7 MiB.
        assert!(regions_used(&pool) <= 15, "{} regions are used ({transport:?})", regions_used(&pool));
        // One that is small at first, and then grows, has parity in the end.
        let grown = pool.create("grown", FileClass::Pinned, CreateOptions::default()).expect("created");
        let bytes: Vec<u8> = (0..3 * MIB as usize).map(|at| (at * 31 / 7) as u8).collect();
        for part in [0..1_000, 1_000..200_000, 200_000..bytes.len()] {
            grown.write_at(part.start as u64, &bytes[part]).expect("a write");
        }
        pool.publish("grown", IfTaken::Refuse).expect("published");
        cluster.lose_node(1);
        (0..200).for_each(|number| check(&pool, number));
        let file = pool.open("grown").expect("opened");
        let mut found = vec![0; bytes.len()];
        file.read_at(0, &mut found).expect("a read");
        assert!(found == bytes, "{transport:?}");
    }
}

#[test]
fn segments_that_are_almost_empty_are_emptied_and_their_memory_comes_back() {
    let pool = pool(TransportChoice::Tcp);
    (0..800).for_each(|number| put(&pool, number));
    (0..800).filter(|number| number % 10 != 0).for_each(|number| {
        pool.delete(&format!("small/{number}")).expect("dropped");
    });
    // The files that are left take a tenth of 9.4 MiB. Two segments may still be added to, and sessions keep a region
    // or two.
    eventually("the segments are emptied", || match regions_used(&pool) {
        used if used <= 6 => Ok(()),
        used => Err(format!("{used} regions are used")),
    });
    (0..800).step_by(10).for_each(|number| check(&pool, number));
}

#[test]
fn file_that_replaces_another_one_leaves_its_readers_an_error_or_the_new_bytes() {
    let pool = pool(TransportChoice::Shm);
    for number in 0..200 {
        put(&pool, 3);
        let before = pool.open("small/3").expect("opened");
        let file = pool.create("small/3", FileClass::Pinned, CreateOptions::default()).expect("created");
        file.write_at(0, &content(number)).expect("a write");
        pool.publish("small/3", IfTaken::Replace).expect("replaced");
        let mut found = vec![0; FILE_BYTES as usize];
        if before.read_at(0, &mut found).is_ok() {
            assert!(found == content(3) || found == content(number), "{number}");
        }
    }
}
