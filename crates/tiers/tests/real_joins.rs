//! Joins over tiers with real kernels on real memory. Every strategy gives the rows that a join by a map gives, and
//! bytes are counted on the tier where they lie. Nothing is asserted about times.

mod strategies;

use farpool_join::{Exact, JoinSpec, Kind, Settings, Sides, Tuple};
use farpool_tiers::plan::balance::Balance;
use farpool_tiers::plan::hash_join::{Joining, Partitioning};
use farpool_tiers::plan::interleave::Interleave;
use farpool_tiers::plan::traffic::{Rates, TierSide};
use farpool_tiers::stage::{RealTime, StageReport};
use farpool_tiers::strategy::{PartitionedStrategy, Strategy};
use farpool_tiers::{Emulated, Nodes, Numa, TierMemory, Tiered, join};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use strategies::{ALPHA, Run, Sum, drawn, naive, strategies, total, tuples};

fn fast(workers: usize) -> Emulated {
    Emulated::new(Rates::shared(30e9, 20e9, 40e9), workers).unwrap()
}

#[test]
fn every_strategy_gives_what_a_map_gives() {
    let cases = std::env::var("FARPOOL_JOIN_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(120);
    let memory = TierMemory::new(Nodes::ANY, 2);
    let strategies = strategies();
    let rows = prop_oneof![Just(0usize), 1usize..50, 1usize..10_000, 1usize..100_000];
    let inputs = (rows.clone(), rows, 1u64..20_000, 0.0f64..1.5, 0..Kind::ALL.len(), 0u64..1_000);
    let machine = (0..strategies.len(), 1usize..=4, any::<bool>());
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    runner
        .run(&(inputs, machine), |((build, probe, keys, skew, kind, seed), (at, workers, is_emulated))| {
            // The keys of only one side are skewed. With two, a join would give too many pairs.
            let builds = tuples(build, keys.max(build as u64 / 3), 0.0, seed);
            let probes = tuples(probe, keys, skew, seed + 1);
            let (emulated, numa) = (fast(workers), Numa::new(workers));
            let tiers: &dyn RealTime = if is_emulated { &emulated } else { &numa };
            let kind = Kind::ALL[kind];
            let run = Run { tiers, memory: &memory, sides: (&builds, &probes), kind };
            let mut balance = Balance::new(0.3);
            let joined = run.run(&strategies[at], Some(&mut balance)).unwrap();
            prop_assert_eq!(total(&joined), naive(&builds, &probes, kind), "{:?}", &strategies[at]);
            Ok(())
        })
        .unwrap();
}

/// The bytes counted on a tier are those that lie there by address, except for blocks that are not full at the end.
#[test]
fn what_is_charged_is_what_lies_where() {
    let memory = TierMemory::new(Nodes::ANY, 2);
    let (build, probe) = (300_000, 1_200_000);
    let mut far = memory.rows(Interleave::FAR, build + probe).unwrap();
    let tuples = &mut far.tuples_mut()[..build + probe];
    for (row, tuple) in tuples.iter_mut().enumerate() {
        // The keys of the build side, which comes first, are distinct and far apart, so the table has buckets.
        let key = if row < build { row as u64 } else { drawn(row as u64) % build as u64 };
        *tuple = Tuple { key: drawn(key) as i64, payload: row as i64 };
    }
    let sides = far.tuples()[..build + probe].split_at(build);
    let tiers = fast(2);
    let run = Run { tiers: &tiers, memory: &memory, sides, kind: Kind::Semi };
    let all_bytes = ((build + probe) * 16) as f64;
    for strategy in strategies() {
        let joined = run.run(&strategy, None).unwrap();
        let what = format!("{strategy:?} {:?}", joined.reports);
        let written = |name: &str, side: TierSide| -> f64 {
            let of = joined.reports.iter().filter(|report: &&StageReport| report.name == name);
            of.map(|report| report.traffic.of(side).written).sum()
        };
        let Strategy::Partitioned(strategy) = &strategy else {
            let table: u64 = joined.table_bytes.iter().sum();
            let made = written("build", TierSide::Near) + written("build", TierSide::Far);
            assert!(made > 0.8 * table as f64 && made <= table as f64, "{what}");
            continue;
        };
        assert_eq!(joined.partition_bytes.iter().sum::<u64>() as f64, all_bytes, "{what}");
        let kept =
            if strategy.partitioning == Partitioning::KeepWhileCounting { 0.54 * all_bytes } else { 0.0 };
        for side in TierSide::ALL {
            let kept = if side == TierSide::Near { kept } else { 0.0 };
            let lies = joined.partition_bytes[side.index()] as f64;
            // Blocks of partitions that are not full may lie on either tier: two threads have some of them.
            assert!(
                (written("partition", side) - kept - lies).abs() < 0.08 * all_bytes,
                "{side}: {lies} {what}"
            );
        }
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let memory = TierMemory::new(Nodes::ANY, 1);
    let tiers = Numa::new(2);
    let run = Run { tiers: &tiers, memory: &memory, sides: (&[], &[]), kind: Kind::Inner };
    let beside = PartitionedStrategy::new(Partitioning::InFar, Joining::Beside { batches: 2 }, ALPHA);
    let error = run.run(&Strategy::Partitioned(beside), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "joining batches during partitioning needs one-pass partitioning, not \"in the far tier\""
    );
    let settings = Settings::new(3, 7);
    let on = Tiered { tiers: &tiers, memory: &memory };
    let (none, how): (&[Tuple], _) = (&[], JoinSpec { kind: Kind::Inner, equal: &Exact });
    let (sides, sinks) = (Sides { build: none, probe: none }, vec![Sum::default(); 2]);
    let error = join(on, &settings, &strategies()[0], sides, how, None, sinks).unwrap_err();
    let words = "a join on 2 workers has settings for 3 threads and 2 sinks; all must be equal";
    assert_eq!(error.to_string(), words);
}
