//! Strategies with real work on real memory: every row ends up in its partition once, whatever is copied, and wherever
//! tickets come from. Nothing is asserted of times.

use farpool_place::hash_join::{Joining, Partitioning};
use farpool_place::interleave::Interleave;
use farpool_place::traffic::Rates;
use farpool_tiers::partition::{Partitions, ROW_BYTES, fill, partitions_bytes};
use farpool_tiers::stage::{Backend, NoWork};
use farpool_tiers::strategy::{MORSEL_BYTES, Moved, NonPartitionedRun, PartitionedRun};
use farpool_tiers::{Emulated, Nodes, Numa, TieredRegion};

const CHUNKS: u32 = 40;
const BYTES: usize = (CHUNKS * MORSEL_BYTES) as usize;

fn backends() -> Vec<Box<dyn Backend>> {
    // Fast enough that nobody waits long.
    let rates = Rates::shared(30e9, 20e9, 40e9);
    vec![Box::new(Emulated::new(rates, 2).unwrap()), Box::new(Numa::new(3)), Box::new(Numa::new(1))]
}

#[test]
fn every_row_is_in_its_partition_once_whatever_the_strategy() {
    let region = |bytes, interleave| TieredRegion::new(bytes, interleave, Nodes::ANY, 2).unwrap();
    for backend in backends() {
        for partitioning in Partitioning::ALL {
            for joining in [Joining::Left, Joining::After, Joining::Beside] {
                let workers = backend.workers();
                let mut input = region(BYTES, Interleave::FAR);
                let mut copies = region(BYTES, Interleave::NEAR);
                let mut partitions =
                    region(partitions_bytes(BYTES, workers), Interleave::ratio(3, 2).unwrap());
                let expected = fill(&mut input.bytes_mut()[..BYTES]);
                assert_eq!(expected.rows, (BYTES / ROW_BYTES) as u64);
                let work = Partitions::new(
                    &input.bytes()[..BYTES],
                    copies.bytes_mut(),
                    partitions.bytes_mut(),
                    workers,
                );
                let strategy = PartitionedRun::new(partitioning, joining, CHUNKS, 0.6);
                let stages = PartitionedRun { input_share: 0.5, ..strategy }.stages();
                let reports = backend.run_all(&stages, &work);
                let outcome = work.outcome();
                let what = format!("{} {partitioning:?} {joining:?}", backend.label());
                assert_eq!(outcome.in_partitions, expected, "{what}");
                assert_eq!((outcome.scattered, outcome.misplaced), (expected, 0), "{what}");
                let counted = if partitioning == Partitioning::OnePass { 0 } else { expected.rows };
                assert_eq!(outcome.counted, counted, "{what}");
                for (stage, report) in stages.iter().zip(&reports) {
                    assert_eq!(report.traffic, stage.traffic(), "{what}");
                }
            }
        }
    }
}

#[test]
fn lines_of_a_table_are_all_asked_for_whatever_their_latency() {
    let run = NonPartitionedRun {
        build_chunks: 3,
        probe_chunks: 5,
        morsel_bytes: MORSEL_BYTES,
        chunk_rows: MORSEL_BYTES / ROW_BYTES as u32,
        slot_bytes: 64,
        table_share: 0.37,
        moved: Moved::Mixed(0.6),
        lines_together: 12,
    };
    let rates = Rates::shared(30e9, 20e9, 40e9);
    let emulated = Emulated::new(rates, 2).unwrap().with_latency(0.0, 150.0);
    for stage in run.stages() {
        assert_eq!(emulated.run(&stage, &NoWork).traffic, stage.traffic(), "{}", stage.name);
    }
}
