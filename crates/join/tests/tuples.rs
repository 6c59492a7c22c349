//! Joins of tuples give what a join by a map gives, for any sizes, keys, skew, threads, kernels and kind.

use farpool_join::{
    BuildTable, ChunkSource, Exact, HugePages, JoinError, JoinInput, JoinSide, JoinSpec, Kernels, Kind,
    LineMemory, Morsels, Partitioner, Purpose, RowQueue, Settings, Sides, Sink, Tuple, join_partitions,
    partition, probe,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the number of random joins to try, from `FARPOOL_JOIN_CASES`.
fn cases() -> u32 {
    std::env::var("FARPOOL_JOIN_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

/// Sink that collects all output rows.
#[derive(Default)]
struct Rows(Vec<(Option<i64>, i64)>);

impl Sink for Rows {
    fn pair(&mut self, build: i64, probe: i64) {
        self.0.push((Some(build), probe));
    }

    fn lone(&mut self, probe: i64) {
        self.0.push((None, probe));
    }
}

fn sinks(threads: usize) -> Vec<Rows> {
    std::iter::repeat_with(Rows::default).take(threads).collect()
}

fn sorted(sinks: Vec<Rows>) -> Vec<(Option<i64>, i64)> {
    let mut rows: Vec<_> = sinks.into_iter().flat_map(|sink| sink.0).collect();
    rows.sort_unstable();
    rows
}

/// Joins by a map, as the reference.
fn naive(build: &[Tuple], probe: &[Tuple], kind: Kind) -> Vec<(Option<i64>, i64)> {
    let mut map: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    build.iter().for_each(|tuple| map.entry(tuple.key).or_default().push(tuple.payload));
    let mut rows = Rows::default();
    for tuple in probe {
        let found = map.get(&tuple.key);
        match (kind, found) {
            (Kind::Inner | Kind::Left, Some(found)) => {
                found.iter().for_each(|build| rows.pair(*build, tuple.payload));
            }
            (Kind::Left | Kind::Anti, None) | (Kind::Semi, Some(_)) => rows.lone(tuple.payload),
            (Kind::Inner | Kind::Semi, None) | (Kind::Anti, Some(_)) => {}
        }
    }
    sorted(vec![rows])
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Partitioned,
    Shared,
}

fn run(
    settings: &Settings,
    algorithm: Algorithm,
    kind: Kind,
    chunks: &dyn ChunkSource,
    build: &[Tuple],
    outer: &[Tuple],
) -> Result<Vec<(Option<i64>, i64)>, JoinError> {
    let hasher = settings.hasher(build.len())?;
    let cut = |side, tuples: &[Tuple]| {
        partition(settings, &hasher, chunks, side, tuples, &RowQueue::new(tuples.len()))
    };
    let parts = cut(JoinSide::Build, build)?;
    assert_eq!(parts.rows(), build.len());
    let (how, sinks) = (JoinSpec { kind, equal: &Exact }, sinks(settings.threads));
    let sinks = match algorithm {
        Algorithm::Partitioned => {
            let outer = cut(JoinSide::Probe, outer)?;
            join_partitions(settings, chunks, Sides { build: &parts, probe: &outer }, how, sinks)?
        }
        Algorithm::Shared => {
            let table = BuildTable::build(settings, chunks, &parts)?;
            drop(parts);
            probe(settings, &table, outer, &RowQueue::new(outer.len()), how, sinks)?
        }
    };
    Ok(sorted(sinks))
}

/// Distribution of keys.
#[derive(Clone, Copy, Debug)]
enum Draw {
    /// Uniform among this many keys.
    Even(u64),
    /// Zipf's law among this many keys. The exponent is given in hundredths.
    Zipf(u64, u32),
    /// The least and the greatest values, and those around 0.
    Extremes,
    /// Consecutive multiples of this number.
    Steps(u64),
    /// The first number plus consecutive multiples of the second one, from 0 on.
    From(i64, u64),
    /// A single key.
    Hot,
}

fn mix(seed: u64) -> u64 {
    let mut value = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn tuples(rows: usize, draw: Draw, seed: u64) -> Vec<Tuple> {
    let tuple = |row: usize| {
        let drawn = mix(seed ^ row as u64);
        let unit = (drawn >> 11) as f64 / (1_u64 << 53) as f64;
        let key = match draw {
            Draw::Even(keys) => (drawn % keys) as i64 - (keys / 2) as i64,
            Draw::Zipf(keys, exponent) => {
                // The inverse of the integral of a power law, close to Zipf's law.
                let power = 1.0 - f64::from(exponent) / 100.0;
                let top = (keys as f64 + 1.0).powf(power);
                (1.0 + unit * (top - 1.0)).powf(1.0 / power) as i64
            }
            Draw::Extremes => [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX][drawn as usize % 7],
            Draw::Steps(step) => (row as u64).wrapping_mul(step) as i64,
            Draw::From(start, step) => start.wrapping_add((row as u64 * step) as i64),
            Draw::Hot => 42,
        };
        Tuple { key, payload: row as i64 - 5 }
    };
    (0..rows).map(tuple).collect()
}

fn draws() -> impl Strategy<Value = Draw> {
    prop_oneof![
        (1_u64..200_000).prop_map(Draw::Even),
        (2_u64..100_000, prop_oneof![Just(75), Just(101), Just(150)])
            .prop_map(|(keys, power)| Draw::Zipf(keys, power)),
        Just(Draw::Extremes),
        prop_oneof![Just(1), Just(1 << 20), Just(1 << 48), Just(1 << 60), Just(0x9e37_79b9_7f4a_7c15)]
            .prop_map(Draw::Steps),
        (prop_oneof![Just(i64::MIN), Just(-1_000), Just(1), Just(i64::MAX - 20_000)], 1_u64..7)
            .prop_map(|(start, step)| Draw::From(start, step)),
        Just(Draw::Hot),
    ]
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![2 => 0_usize..20, 3 => 0_usize..3_000, 1 => 3_000_usize..100_000]
}

fn kernels() -> impl Strategy<Value = Kernels> {
    proptest::sample::select(Kernels::all())
}

fn settings() -> impl Strategy<Value = Settings> {
    let partitioners = prop_oneof![Just(Partitioner::OnePass), Just(Partitioner::TwoReads)];
    (1_usize..=8, any::<u64>(), proptest::option::of(1_u32..=12), partitioners, kernels()).prop_map(
        |(threads, seed, bits, partitioner, kernels)| Settings {
            bits,
            partitioner,
            kernels,
            ..Settings::new(threads, seed)
        },
    )
}

/// Most pairs that a random join may have. Both sides are halved until there are no more, because a key that has many
/// rows on both sides has their product of pairs.
const ROWS_MAX: u64 = 300_000;

fn pairs(build: &[Tuple], outer: &[Tuple]) -> u64 {
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    build.iter().for_each(|tuple| *counts.entry(tuple.key).or_default() += 1);
    outer.iter().map(|tuple| counts.get(&tuple.key).copied().unwrap_or(0)).sum()
}

#[test]
fn join_of_tuples_gives_what_a_map_gives() {
    let pages = HugePages::new();
    let mut runner =
        TestRunner::new(Config { cases: cases(), failure_persistence: None, ..Config::default() });
    let kinds = proptest::sample::select(Kind::ALL.as_slice());
    let algorithms = prop_oneof![Just(Algorithm::Partitioned), Just(Algorithm::Shared)];
    let inputs = (sizes(), draws(), sizes(), proptest::option::of(draws()), any::<u64>());
    let all = (settings(), algorithms, kinds, inputs);
    let result =
        runner.run(&all, |(settings, algorithm, kind, (rows, draw, outer_rows, outer_draw, seed))| {
            let mut build = tuples(rows, draw, seed);
            // The probe side's keys are often drawn from the distribution of the build side, so that many rows match.
            let mut outer = tuples(outer_rows, outer_draw.unwrap_or(draw), !seed);
            while pairs(&build, &outer) > ROWS_MAX {
                build.truncate(build.len() / 2);
                outer.truncate(outer.len() / 2);
            }
            let found = run(&settings, algorithm, kind, &pages, &build, &outer);
            let wanted = naive(&build, &outer, kind);
            match found {
                Ok(found) => {
                    prop_assert!(found == wanted, "{} rows instead of {}", found.len(), wanted.len())
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
            Ok(())
        });
    if let Err(failed) = result {
        panic!("{failed}");
    }
}

/// Most probe rows have one key. Its partition would keep one thread busy alone, so all threads share its rows.
#[test]
fn heavy_partition_is_shared_out_and_each_row_comes_out_once() {
    let pages = HugePages::new();
    let build = tuples(5_000, Draw::Even(3_000), 1);
    let mut outer = tuples(600_000, Draw::Zipf(3_000, 150), 2);
    outer.iter_mut().step_by(2).for_each(|tuple| tuple.key = 77);
    for kernels in Kernels::all() {
        for kind in Kind::ALL {
            let settings = Settings { kernels, ..Settings::new(3, 9) };
            let found = run(&settings, Algorithm::Partitioned, kind, &pages, &build, &outer);
            assert!(
                found.is_ok_and(|found| found == naive(&build, &outer, kind)),
                "{kind:?} {}",
                kernels.name()
            );
        }
    }
}

/// Partitions are equal row by row, whatever instructions made them.
#[test]
fn kernels_lay_partitions_out_alike() {
    let pages = HugePages::new();
    for (rows, draw) in
        [(0, Draw::Hot), (1, Draw::Hot), (70_001, Draw::Even(1 << 40)), (9_999, Draw::Zipf(99, 150))]
    {
        let input = tuples(rows, draw, 3);
        for partitioner in [Partitioner::OnePass, Partitioner::TwoReads] {
            let mut first = None;
            for kernels in Kernels::all() {
                let settings = Settings { kernels, partitioner, bits: Some(7), ..Settings::new(1, 5) };
                let hasher = settings.hasher(rows).unwrap();
                let cursor = RowQueue::new(rows);
                let parts = partition(&settings, &hasher, &pages, JoinSide::Build, &input, &cursor).unwrap();
                let laid: Vec<Vec<Tuple>> =
                    (0..parts.partitions()).map(|at| parts.slices(at).flatten().copied().collect()).collect();
                for (at, tuples) in laid.iter().enumerate() {
                    assert!(tuples.iter().all(|tuple| hasher.partition(tuple.key) == at));
                    assert_eq!(tuples.len(), parts.count(at));
                }
                let first = first.get_or_insert_with(|| laid.clone());
                assert!(*first == laid, "{} lays {rows} rows out otherwise", kernels.name());
            }
        }
    }
}

/// Queue that returns these ranges, which leave rows out or go beyond the input. The number is the index of the next
/// range.
struct Lazy(AtomicUsize, Vec<Range<usize>>);

impl Morsels for Lazy {
    fn next(&self, _worker: usize) -> Option<Range<usize>> {
        self.1.get(self.0.fetch_add(1, Ordering::Relaxed)).cloned()
    }
}

#[test]
fn queue_that_hands_out_other_rows_than_there_are_is_refused() {
    let pages = HugePages::new();
    let input = tuples(10, Draw::Hot, 0);
    let settings = Settings::new(2, 0);
    let hasher = settings.hasher(10).unwrap();
    let wrong: [(&[Range<usize>], usize); 4] =
        [(&[0..3, 3..5], 5), (&[0..5, 5..11], 11), (&[0..10, 3..4], 11), (&[], 0)];
    for (ranges, handed) in wrong {
        for partitioner in [Partitioner::OnePass, Partitioner::TwoReads] {
            let settings = Settings { partitioner, ..settings };
            let queue = Lazy(AtomicUsize::new(0), ranges.to_vec());
            let refused = partition(&settings, &hasher, &pages, JoinSide::Build, &input, &queue).err();
            assert_eq!(refused, Some(JoinError::Morsels { rows: 10, handed }));
        }
    }
}

#[test]
fn settings_out_of_range_are_refused_with_the_range() {
    let refused = |settings: Settings, rows| settings.hasher(rows).err().map(|error| error.to_string());
    let settings = Settings::new(2, 0);
    assert_eq!(refused(settings, 100), None);
    let threads = refused(Settings { threads: 0, ..settings }, 1);
    assert_eq!(threads.as_deref(), Some("join setting threads is 0; it must be from 1 to 256"));
    let bits = refused(Settings { bits: Some(15), ..settings }, 1);
    assert_eq!(bits.as_deref(), Some("join setting bits is 15; it must be from 1 to 14"));
    assert!(refused(settings, usize::MAX).is_some_and(|error| error.contains("at most 2147483648")));
}

/// Source of chunks with a limited number of chunks.
struct Scarce {
    pages: HugePages,
    left: AtomicUsize,
}

impl ChunkSource for Scarce {
    fn take(&self, purpose: Purpose, count: usize) -> Result<LineMemory<'_>, JoinError> {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count));
        match taken {
            Ok(_) => self.pages.take(purpose, count),
            Err(left) => Err(JoinError::Memory(format!("{left} chunks left, {count} wanted"))),
        }
    }
}

/// Tries each number of chunks, from none to as many as the join needs, so that memory ends in every phase once.
#[test]
fn memory_that_ends_is_an_error_of_every_phase() {
    let build = tuples(50_000, Draw::Even(20_000), 4);
    for algorithm in [Algorithm::Partitioned, Algorithm::Shared] {
        let mut errors = 0;
        for left in 0.. {
            let scarce = Scarce { pages: HugePages::new(), left: AtomicUsize::new(left) };
            let settings = Settings::new(2, 1);
            match run(&settings, algorithm, Kind::Semi, &scarce, &build, &build) {
                Ok(found) => {
                    assert_eq!(found.len(), build.len());
                    break;
                }
                Err(error) => assert!(matches!(error, JoinError::Memory(_)), "{error}"),
            }
            errors += 1;
        }
        assert!(errors > 4, "{errors}");
    }
}

/// Source that leaves out rows with odd payloads.
struct Halves<'t>(&'t [Tuple]);

impl JoinInput for Halves<'_> {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        for tuple in self.0[rows].iter().filter(|tuple| tuple.payload % 2 == 0) {
            take(&[*tuple]);
        }
    }
}

#[test]
fn source_may_leave_rows_out() {
    let pages = HugePages::new();
    let input = tuples(30_001, Draw::Even(10_000), 4);
    let settings = Settings::new(2, 1);
    let hasher = settings.hasher(input.len()).unwrap();
    let cursor = RowQueue::new(input.len());
    let parts = partition(&settings, &hasher, &pages, JoinSide::Build, &Halves(&input), &cursor).unwrap();
    assert_eq!(parts.rows(), input.iter().filter(|tuple| tuple.payload % 2 == 0).count());
}
