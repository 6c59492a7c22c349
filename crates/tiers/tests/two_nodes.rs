//! Memory of a machine with a second NUMA node that has no CPUs: on which node do pages lie? `make guest-test` runs
//! these tests in a QEMU guest. They are ignored elsewhere.

mod strategies;

use farpool_join::Kind;
use farpool_tiers::calibrate::calibrate;
use farpool_tiers::plan::interleave::Interleave;
use farpool_tiers::plan::traffic::TierSide;
use farpool_tiers::region::{CHUNK_BYTES, Nodes, TieredRegion};
use farpool_tiers::topology::Topology;
use farpool_tiers::{Numa, TierMemory};
use strategies::{Run, naive, strategies, total, tuples};

const NODES: Nodes = Nodes { near: Some(0), far: Some(1) };

#[test]
#[ignore = "needs two NUMA nodes: make guest-test"]
fn node_without_cpus_is_the_far_tier() {
    let topology = Topology::read().unwrap();
    let (near, far) = topology.tiers().unwrap();
    assert_eq!((near.id, far.id, far.is_cpu_less()), (0, 1, true));
    assert_eq!(near.distances, [(0, 10), (1, 30)]);
    // `make guest-test` sets up firmware that promises these values.
    assert!(far.promised.read_latency_ns.is_some(), "{far:?}");
    assert!(near.promised.read_mb_per_s > far.promised.read_mb_per_s, "{near:?} {far:?}");
}

#[test]
#[ignore = "needs two NUMA nodes: make guest-test"]
fn chunks_lie_where_the_map_says_at_every_ratio() {
    const CHUNKS: usize = 40;
    for (near, far) in [(1, 0), (0, 1), (1, 1), (3, 2), (7, 3), (1, 4), (13, 7)] {
        let interleave = Interleave::ratio(near, far).unwrap();
        let region = TieredRegion::new(CHUNKS * CHUNK_BYTES, interleave, NODES, 2).unwrap();
        let landed = region.landed().unwrap();
        assert!(landed.astray.is_empty(), "{near}:{far}: {landed:?}");
        // The number of near chunks is exact, and all of their pages are on node 0.
        let near_chunks = region.chunk_map().iter().filter(|side| **side == TierSide::Near).count();
        assert_eq!(near_chunks, CHUNKS * near as usize / (near + far) as usize, "{near}:{far}");
        assert_eq!(landed.share_on(0), near_chunks as f64 / CHUNKS as f64, "{near}:{far}");
        assert_eq!(landed.share_on(0) + landed.share_on(1), 1.0, "{near}:{far}");
    }
}

/// The kernel accepts a policy for a full node, and takes pages of another one. `landed` must report those chunks.
#[test]
#[ignore = "needs two NUMA nodes: make guest-test"]
fn chunks_that_a_full_node_did_not_take_are_told() {
    let topology = Topology::read().unwrap();
    let (_, far) = topology.tiers().unwrap();
    let bytes = far.bytes as usize + 16 * CHUNK_BYTES;
    let region = TieredRegion::new(bytes, Interleave::FAR, NODES, 2).unwrap();
    let landed = region.landed().unwrap();
    assert!(landed.astray.len() >= 16, "{} of {} chunks", landed.astray.len(), landed.chunks);
    let astray = landed.astray[0];
    assert_eq!((astray.meant_for, astray.node), (TierSide::Far, Some(1)));
    assert!(landed.share_on(0) > 0.0 && landed.share_on(1) > 0.5, "{:?}", landed.pages);
}

#[test]
#[ignore = "needs two NUMA nodes: make guest-test"]
fn both_tiers_are_measured() {
    let rates = calibrate(&Topology::read().unwrap(), 2).unwrap().rates().unwrap();
    assert_eq!(rates.check(), Ok(()));
}

/// The inputs of the joins lie on the node without CPUs, which is the far tier.
#[test]
#[ignore = "needs two NUMA nodes: make guest-test"]
fn joins_by_every_strategy_are_right_and_lie_where_their_map_says() {
    const ROWS: (usize, usize) = (20_000, 90_000);
    let memory = TierMemory::new(NODES, 2);
    let mut far = memory.rows(Interleave::FAR, ROWS.0 + ROWS.1).unwrap();
    let (build, probe) = far.tuples_mut()[..ROWS.0 + ROWS.1].split_at_mut(ROWS.0);
    build.copy_from_slice(&tuples(ROWS.0, 15_000, 0.0, 1));
    probe.copy_from_slice(&tuples(ROWS.1, 15_000, 0.8, 2));
    let sides = far.tuples()[..ROWS.0 + ROWS.1].split_at(ROWS.0);
    assert_eq!(memory.bytes_by_side([sides.0, sides.1]), [0, (ROWS.0 + ROWS.1) as u64 * 16]);
    let wanted = naive(sides.0, sides.1, Kind::Left);
    let tiers = Numa::new(2);
    for strategy in strategies() {
        let run = Run { tiers: &tiers, memory: &memory, sides, kind: Kind::Left };
        let joined = run.run(&strategy, None).unwrap();
        assert_eq!(total(&joined), wanted, "{strategy:?}");
        let landed = memory.landed().unwrap();
        assert!(landed.astray.is_empty(), "{strategy:?}: {landed:?}");
        assert_eq!(landed.share_on(0) + landed.share_on(1), 1.0, "{strategy:?}");
    }
    let landed = memory.landed().unwrap();
    assert!(landed.share_on(0) > 0.1 && landed.share_on(1) > 0.1, "{:?}", landed.pages);
}
