//! `farpool bench join`: hash joins of tuples of 16 bytes, phase by phase, as in paper 002 ("Hash Joins Meet CXL").
//!
//! The workload is that of the paper: dense keys in random order, drawn by the probe side uniformly or by Zipf's law.
//! Every combination of algorithm and partitioner joins the same tuples in turns, in the same huge pages, which a first
//! round has touched. The number of joined pairs and the sum of their payloads are compared with those of a computation
//! by arrays indexed by key.

use crate::exit::Failure;
use crate::harness::machine::{cpus, machine};
use crate::harness::mixing::drawn;
use crate::harness::statistics::median;
use crate::{Outcome, table};
use farpool_join::{
    BuildTable, CHUNK_BYTES, ChunkSource, Exact, HugePages, JoinSide, JoinSpec, Kernels, Kind, LineMemory,
    Partitioner, Purpose, RowQueue, Settings, Sides, Sink, Tuple, join_partitions, partition, probe,
};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench join --build 16Mi --probe 64Mi --skew 0,1.5 --rounds 5")]
pub(crate) struct JoinArgs {
    /// Rows of the build side, such as 5000, 64Ki or 16Mi
    #[arg(long, default_value = "16Mi", value_parser = rows)]
    build: usize,
    /// Rows of the probe side
    #[arg(long, default_value = "64Mi", value_parser = rows)]
    probe: usize,
    /// Exponents of Zipf's law for the keys of the probe side; 0 draws uniformly
    #[arg(long, default_value = "0", value_delimiter = ',')]
    skew: Vec<f64>,
    /// Rows of the build side with the same key
    #[arg(long, default_value_t = 1)]
    duplicates: usize,
    /// Distance between consecutive keys; with a large distance the table cannot be addressed directly by key
    #[arg(long, default_value_t = 1)]
    step: usize,
    /// Number of threads
    #[arg(long, default_value_t = cpus())]
    threads: usize,
    /// Radix bits, so 2^BITS partitions [default: by the size of the build side]
    #[arg(long)]
    bits: Option<u32>,
    /// Algorithms: partitioned (PHJ), shared (NPHJ)
    #[arg(long, default_value = "partitioned,shared", value_delimiter = ',', value_parser = ["partitioned", "shared"])]
    algorithms: Vec<String>,
    /// Partitioners: one-pass, two-reads (that of the paper)
    #[arg(long, default_value = "one-pass,two-reads", value_delimiter = ',', value_parser = ["one-pass", "two-reads"])]
    partitioners: Vec<String>,
    /// Use plain Rust instead of the CPU's vector instructions
    #[arg(long)]
    portable: bool,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the random keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory to write the tuples of the first workload to, as r.bin and s.bin, for other programs
    #[arg(long)]
    write: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Largest number of rows of a side.
const ROWS_MAX: usize = 1 << 30;
/// Largest distance between consecutive keys. With [`ROWS_MAX`] rows, all keys still fit in an `i64`.
const STEP_MAX: usize = 1 << 30;

pub(crate) fn run(args: &JoinArgs) -> Outcome {
    let within = (1..=ROWS_MAX).contains(&args.build) && args.probe <= ROWS_MAX;
    let skews = args.skew.iter().all(|skew| (0.0..=4.0).contains(skew));
    let counts = (1..=args.build).contains(&args.duplicates) && (1..=100).contains(&args.rounds);
    if !within || !skews || !counts || !(1..=STEP_MAX).contains(&args.step) {
        return Err(Failure::Usage(format!(
            "--build {} --probe {} --skew {:?} --duplicates {} --step {} --rounds {}: 1 to {ROWS_MAX} rows, exponents of \
             0 to 4, duplicates up to the rows of the build side, steps of 1 to {STEP_MAX} and 1 to 100 rounds are permitted",
            args.build, args.probe, args.skew, args.duplicates, args.step, args.rounds
        )));
    }
    let pages = HugePages::new();
    let mut points = Vec::new();
    for skew in &args.skew {
        let workload = Workload::new(&pages, args, *skew)?;
        if let (Some(folder), true) = (&args.write, points.is_empty()) {
            workload.write(folder)?;
        }
        let mut measured: Vec<Point> = Vec::new();
        for algorithm in &args.algorithms {
            for partitioner in &args.partitioners {
                let (algorithm, partitioner) = (algorithm.clone(), partitioner.clone());
                measured.push(Point { skew: *skew, algorithm, partitioner, bits: 0, times: Vec::new() });
            }
        }
        // The first round faults the pages in and is not recorded.
        for round in 0..=args.rounds {
            for point in &mut measured {
                let times = point.measure(&pages, args, &workload)?;
                if round > 0 {
                    point.times.push(times);
                }
            }
        }
        points.extend(measured);
    }
    report(args, &points)
}

fn report(args: &JoinArgs, points: &[Point]) -> Outcome {
    let kernels = settings(args).kernels.name();
    let mut out = std::io::stdout().lock();
    if args.json {
        let points: Vec<Value> = points.iter().map(|point| point.value(args)).collect();
        let whole = json!({
            "machine": machine(), "build": args.build, "probe": args.probe, "duplicates": args.duplicates,
            "step": args.step,
            "threads": args.threads, "kernels": kernels, "rounds": args.rounds, "points": points,
        });
        writeln!(out, "{whole}")?;
        return Ok(());
    }
    let row = |point: &Point| {
        let [first, second, all] = point.seconds();
        vec![
            point.algorithm.clone(),
            point.partitioner.clone(),
            point.skew.to_string(),
            point.bits.to_string(),
            format!("{first:.3}"),
            format!("{second:.3}"),
            format!("{all:.3}"),
            format!("{:.1}", point.rate(args)),
        ]
    };
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let header = [
        "join",
        "partitioner",
        "Zipf",
        "bits",
        "partition / build s",
        "join / probe s",
        "all s",
        "M tuples/s",
    ];
    for line in table::lines(&header, &rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{} x {} tuples of 16 bytes, {} rows a key, steps of {}, {} threads, {kernels} kernels, medians of {} rounds. {}",
        args.build,
        args.probe,
        args.duplicates,
        args.step,
        args.threads,
        args.rounds,
        machine()
    )?;
    writeln!(out, "Counts and sums equal those of arrays by key.")?;
    Ok(())
}

/// Parses a number of rows.
fn rows(text: &str) -> Result<usize, String> {
    let (number, shift) = match (text.strip_suffix("Ki"), text.strip_suffix("Mi")) {
        (Some(number), _) => (number, 10),
        (_, Some(number)) => (number, 20),
        _ => (text, 0),
    };
    let number: usize =
        number.parse().map_err(|_| format!("{text:?} is not a number of rows, such as 16Mi"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than {} rows", usize::MAX))
}

fn settings(args: &JoinArgs) -> Settings {
    let kernels = if args.portable { Kernels::PORTABLE } else { Kernels::best() };
    Settings { bits: args.bits, kernels, ..Settings::new(args.threads, args.seed) }
}

/// Generator of numbers from 1 to `keys` by Zipf's law, by rejection-inversion (Hoermann and Derflinger, 1996). `low`
/// and `high` limit the values that are inverted. `place` is the index in the sequence of random numbers.
struct Zipf {
    keys: f64,
    exponent: f64,
    low: f64,
    high: f64,
    place: u64,
}

impl Zipf {
    fn new(keys: usize, exponent: f64, seed: u64) -> Zipf {
        let mut zipf = Zipf { keys: keys as f64, exponent, low: 0.0, high: 0.0, place: seed << 40 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.keys + 0.5);
        zipf
    }

    fn integral(&self, at: f64) -> f64 {
        let power = 1.0 - self.exponent;
        // If the power is near 0, the logarithm is the limit of the formula.
        if power.abs() < 1e-9 { at.ln() } else { (power * at.ln()).exp_m1() / power }
    }

    fn inverse(&self, value: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { value.exp() } else { ((value * power).ln_1p() / power).exp() }
    }

    fn next(&mut self) -> i64 {
        loop {
            self.place = self.place.wrapping_add(1);
            let unit = (drawn(self.place) >> 11) as f64 / (1_u64 << 53) as f64;
            let value = self.high + unit * (self.low - self.high);
            let key = self.inverse(value).round().clamp(1.0, self.keys);
            if value >= self.integral(key + 0.5) - (-self.exponent * key.ln()).exp() {
                return key as i64;
            }
        }
    }
}

/// Both sides of a join, and its expected result.
struct Workload<'p> {
    build: LineMemory<'p>,
    probe: LineMemory<'p>,
    rows: (usize, usize),
    wanted: Sum,
}

impl<'p> Workload<'p> {
    fn new(pages: &'p HugePages, args: &JoinArgs, skew: f64) -> Result<Workload<'p>, Failure> {
        let room = |rows: usize, side| {
            let purpose = Purpose::Partition { side, worker: 0 };
            pages.take(purpose, (rows * size_of::<Tuple>()).div_ceil(CHUNK_BYTES)).map_err(Failure::failed)
        };
        let (mut build, mut outer) = (room(args.build, JoinSide::Build)?, room(args.probe, JoinSide::Probe)?);
        let keys = args.build.div_ceil(args.duplicates);
        let tuples = &mut build.tuples_mut()[..args.build];
        for (row, tuple) in tuples.iter_mut().enumerate() {
            *tuple = Tuple { key: ((row % keys + 1) * args.step) as i64, payload: row as i64 };
        }
        for row in (1..tuples.len()).rev() {
            tuples.swap(row, (drawn(row as u64 ^ (args.seed << 32)) % (row as u64 + 1)) as usize);
        }
        let mut zipf = Zipf::new(keys, skew, args.seed);
        let mut even = 0_u64;
        let probes = &mut outer.tuples_mut()[..args.probe];
        for (row, tuple) in probes.iter_mut().enumerate() {
            even = even.wrapping_add(1);
            let key = match skew > 0.0 {
                true => zipf.next(),
                false => (drawn(even ^ (args.seed << 40)) % keys as u64) as i64 + 1,
            };
            *tuple = Tuple { key: key * args.step as i64, payload: row as i64 };
        }
        let place = |key: i64| key as usize / args.step - 1;
        let mut by_key = vec![(0_u64, 0_i64); keys];
        for tuple in &*tuples {
            let (count, sum) = &mut by_key[place(tuple.key)];
            *count += 1;
            *sum += tuple.payload;
        }
        let mut wanted = Sum::default();
        for tuple in &*probes {
            let (count, sum) = by_key[place(tuple.key)];
            wanted.pairs += count;
            wanted.sum = wanted.sum.wrapping_add(sum).wrapping_add(tuple.payload.wrapping_mul(count as i64));
        }
        Ok(Workload { build, probe: outer, rows: (args.build, args.probe), wanted })
    }

    fn build(&self) -> &[Tuple] {
        &self.build.tuples()[..self.rows.0]
    }

    fn probe(&self) -> &[Tuple] {
        &self.probe.tuples()[..self.rows.1]
    }

    fn write(&self, folder: &Path) -> Outcome {
        for (name, tuples) in [("r.bin", self.build()), ("s.bin", self.probe())] {
            let mut file = std::io::BufWriter::new(std::fs::File::create(folder.join(name))?);
            for tuple in tuples {
                file.write_all(&tuple.key.to_le_bytes())?;
                file.write_all(&tuple.payload.to_le_bytes())?;
            }
            file.flush()?;
        }
        Ok(())
    }
}

/// Number of joined pairs, and the sum of both payloads over all pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) pairs: u64,
    pub(crate) sum: i64,
}

impl Sink for Sum {
    fn pair(&mut self, build: i64, probe: i64) {
        self.pairs += 1;
        self.sum = self.sum.wrapping_add(build).wrapping_add(probe);
    }

    fn pairs(&mut self, builds: &[i64], probes: &[i64]) {
        self.pairs += builds.len() as u64;
        let sums = builds.iter().zip(probes).map(|(build, probe)| build.wrapping_add(*probe));
        self.sum = sums.fold(self.sum, i64::wrapping_add);
    }

    fn lone(&mut self, _probe: i64) {}
}

/// Measurement of one combination of skew, algorithm and partitioner.
struct Point {
    skew: f64,
    algorithm: String,
    partitioner: String,
    bits: u32,
    /// Seconds of the two phases in each round: partitioning and joining, or building and probing the table.
    times: Vec<[f64; 2]>,
}

impl Point {
    /// Returns the median seconds of the first phase, of the second phase, and of both together.
    fn seconds(&self) -> [f64; 3] {
        let of = |time: fn(&[f64; 2]) -> f64| median(self.times.iter().map(time));
        [of(|times| times[0]), of(|times| times[1]), of(|times| times[0] + times[1])]
    }

    /// Returns the throughput in millions of tuples of both sides per second.
    fn rate(&self, args: &JoinArgs) -> f64 {
        (args.build + args.probe) as f64 / self.seconds()[2] / 1e6
    }

    fn value(&self, args: &JoinArgs) -> Value {
        let [first, second, all] = self.seconds();
        json!({
            "join": self.algorithm, "partitioner": self.partitioner, "skew": self.skew, "bits": self.bits,
            "partition_or_build_s": first, "join_or_probe_s": second, "all_s": all,
            "mtuples_per_s": self.rate(args), "times_s": self.times,
        })
    }

    fn measure(
        &mut self,
        pages: &HugePages,
        args: &JoinArgs,
        workload: &Workload<'_>,
    ) -> Result<[f64; 2], Failure> {
        let partitioner = match self.partitioner.as_str() {
            "two-reads" => Partitioner::TwoReads,
            _ => Partitioner::OnePass,
        };
        let settings = Settings { partitioner, ..settings(args) };
        let (build, outer) = (workload.build(), workload.probe());
        let hasher = settings.hasher(build.len()).map_err(Failure::failed)?;
        self.bits = hasher.bits();
        let cut = |side, tuples: &[Tuple]| {
            let cursor = RowQueue::new(tuples.len());
            partition(&settings, &hasher, pages, side, tuples, &cursor).map_err(Failure::failed)
        };
        let how = JoinSpec { kind: Kind::Inner, equal: &Exact };
        let sinks = vec![Sum::default(); args.threads];
        let begun = Instant::now();
        let parts = cut(JoinSide::Build, build)?;
        let (sums, first, second) = if self.algorithm == "partitioned" {
            let probes = cut(JoinSide::Probe, outer)?;
            let (first, begun) = (begun.elapsed(), Instant::now());
            let sums = join_partitions(&settings, pages, Sides { build: &parts, probe: &probes }, how, sinks);
            (sums, first, begun.elapsed())
        } else {
            let table = BuildTable::build(&settings, pages, &parts).map_err(Failure::failed)?;
            drop(parts);
            let (first, begun) = (begun.elapsed(), Instant::now());
            let sums = probe(&settings, &table, outer, &RowQueue::new(outer.len()), how, sinks);
            (sums, first, begun.elapsed())
        };
        let mut found = Sum::default();
        for sum in sums.map_err(Failure::failed)? {
            found.pairs += sum.pairs;
            found.sum = found.sum.wrapping_add(sum.sum);
        }
        if found != workload.wanted {
            return Err(Failure::Failed(format!(
                "WRONG ROWS: {} pairs with payloads of {} instead of {} with {}, {} {}",
                found.pairs,
                found.sum,
                workload.wanted.pairs,
                workload.wanted.sum,
                self.algorithm,
                self.partitioner
            )));
        }
        Ok([first.as_secs_f64(), second.as_secs_f64()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_a_unit() {
        assert_eq!(rows("16Mi"), Ok(16 << 20));
        assert_eq!(rows("3Ki"), Ok(3 << 10));
        assert_eq!(rows("17"), Ok(17));
        assert!(rows("1G").is_err_and(|error| error.contains("16Mi")));
    }

    /// Key 1 of a hundred comes as often as Zipf's law says, within 5 %.
    #[test]
    fn zipf_draws_the_first_key_as_often_as_it_should() {
        for exponent in [0.75, 1.0, 1.5] {
            let mut zipf = Zipf::new(100, exponent, 1);
            let drawn: Vec<i64> = (0..100_000).map(|_| zipf.next()).collect();
            assert!(drawn.iter().all(|key| (1..=100).contains(key)));
            let firsts = drawn.iter().filter(|key| **key == 1).count() as f64 / 100_000.0;
            let wanted = 1.0 / (1..=100).map(|key| f64::from(key).powf(-exponent)).sum::<f64>();
            assert!((firsts / wanted - 1.0).abs() < 0.05, "{exponent}: {firsts} instead of {wanted}");
        }
    }
}
