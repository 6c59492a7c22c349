//! `farpool bench groups`: speed of grouping rows, with the code that nodes and clients run.
//!
//! The table has two columns of eight bytes, a key and a number. A run (the part at a node) takes batches of 65,536
//! rows and holds a bounded number of groups. If more come, it emits partial groups. A merge (the part at a client)
//! combines the partial groups of each key. Each result is compared with that of a plain hash map, outside the timed
//! part. `bench/papers/farview/run.py groups` runs this benchmark and local engines over such tables.

use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::harness::mixing::drawn;
use crate::harness::statistics::median;
use crate::{Outcome, table};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use farpool::operators::{
    Aggregate, AggregateFunction, Bounds, Merge, Operator, Prepared, Program, Run, Type, limits::GROUPS_MAX,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench groups --rows 1000000 --groups 16,1000 --rounds 3")]
pub(crate) struct GroupsArgs {
    /// Rows; each counts as 64 bytes, eight columns of eight
    #[arg(long, default_value_t = 1 << 24)]
    rows: usize,
    /// Numbers of groups, one table for each
    #[arg(long, default_value = "16,1000,64000,1000000", value_delimiter = ',')]
    groups: Vec<u64>,
    /// Groups that a bounded run holds at most
    #[arg(long, default_value_t = 64_000)]
    bound: u32,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the random keys and numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Rows of a batch, as many as in a row group of a far table.
const BATCH_ROWS: usize = 65_536;
/// Bytes of a row in the throughputs shown: those of a row of eight columns, although only two are made.
const ROW_BYTES: f64 = 64.0;
/// Distance between two keys, so that keys are not consecutive numbers.
const KEY_STEP: u64 = 7_919;

pub(crate) fn run(args: &GroupsArgs) -> Outcome {
    if !(1..=1 << 28).contains(&args.rows)
        || args.groups.is_empty()
        || !args.groups.iter().all(|groups| (1..=u64::from(GROUPS_MAX)).contains(groups))
        || !(1..=GROUPS_MAX).contains(&args.bound)
        || !(1..=100).contains(&args.rounds)
    {
        return Err(Failure::Usage(format!(
            "--rows {} --groups {:?} --bound {} --rounds {}: 1 to {} rows, 1 to {GROUPS_MAX} groups, a bound of as \
             many and 1 to 100 rounds are permitted",
            args.rows,
            args.groups,
            args.bound,
            args.rounds,
            1 << 28
        )));
    }
    let bar = ProgressBar::new((args.groups.len() * args.rounds) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let mut points = Vec::new();
    for groups in &args.groups {
        bar.set_message(format!("{groups} groups"));
        let batches = batches(args.rows, *groups, args.seed);
        let wanted = wanted(&batches);
        let mut measured: Vec<Point> = Vec::new();
        for is_sum in [true, false] {
            for bound in [GROUPS_MAX, args.bound] {
                measured.push(Point { is_sum, groups: *groups, bound, times: Vec::new(), partial: 0 });
            }
        }
        for _ in 0..args.rounds {
            for point in &mut measured {
                point.measure(&batches, &wanted)?;
            }
            bar.inc(1);
        }
        points.extend(measured);
    }
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    if args.json {
        let point = |point: &Point| {
            json!({
                "what": point.what(), "groups": point.groups, "bound": point.bound, "partial_groups": point.partial,
                "run_gb_per_s": point.rate(args.rows, |time| time.run),
                "whole_gb_per_s": point.rate(args.rows, |time| time.run + time.merge),
                "fastest_run_gb_per_s": point.fastest(args.rows, |time| time.run),
                "fastest_whole_gb_per_s": point.fastest(args.rows, |time| time.run + time.merge),
            })
        };
        let points: Vec<_> = points.iter().map(point).collect();
        writeln!(
            out,
            "{}",
            json!({ "machine": machine(), "rows": args.rows, "rounds": args.rounds, "points": points })
        )?;
        return Ok(());
    }
    let row = |point: &Point| {
        vec![
            point.what().to_owned(),
            point.groups.to_string(),
            point.bound.to_string(),
            format!("{:.1}", point.rate(args.rows, |time| time.run)),
            format!("{:.1}", point.rate(args.rows, |time| time.run + time.merge)),
            point.partial.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let header = ["what", "groups", "held at most", "run GB/s", "with merge GB/s", "partial groups"];
    for line in table::lines(&header, &rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{} rows of 64 bytes (8 columns, of which 1 or 2 are read), one thread, medians of {} rounds. {}",
        args.rows,
        args.rounds,
        machine()
    )?;
    writeln!(out, "Every result equals that of a hash map; groups are in the order of their keys.")?;
    Ok(())
}

fn batches(rows: usize, groups: u64, seed: u64) -> Vec<RecordBatch> {
    let start = seed << 32;
    let key = |row: usize| ((drawn(start + 2 * row as u64) % groups) * KEY_STEP) as i64;
    let number = |row: usize| (drawn(start + 2 * row as u64 + 1) >> 34) as i64;
    let batch = |first: usize| {
        let rows = first..rows.min(first + BATCH_ROWS);
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(key)));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.map(number)));
        RecordBatch::try_from_iter_with_nullable([("key", keys, true), ("number", numbers, true)])
    };
    (0..rows).step_by(BATCH_ROWS).flat_map(batch).collect()
}

/// Returns the expected keys and sums, in the order of the keys.
fn wanted(batches: &[RecordBatch]) -> Vec<(i64, i128)> {
    let mut sums: HashMap<i64, i128> = HashMap::new();
    for batch in batches {
        let keys = batch.column(0).as_primitive::<Int64Type>().values();
        let numbers = batch.column(1).as_primitive::<Int64Type>().values();
        for (key, number) in keys.iter().zip(numbers) {
            *sums.entry(*key).or_default() += i128::from(*number);
        }
    }
    let mut sums: Vec<(i64, i128)> = sums.into_iter().collect();
    sums.sort_unstable();
    sums
}

/// Measurement of one combination: with a sum or only the distinct keys (`is_sum`), the number of groups of the table,
/// and the number of groups that a run may hold (`bound`). It has times for each round.
struct Point {
    is_sum: bool,
    groups: u64,
    bound: u32,
    times: Vec<Times>,
    /// Number of partial groups that the run emitted in the latest round.
    partial: usize,
}

#[derive(Clone, Copy)]
struct Times {
    run: Duration,
    merge: Duration,
}

impl Point {
    fn what(&self) -> &'static str {
        if self.is_sum { "GROUP BY, sum" } else { "DISTINCT" }
    }

    /// Returns the throughput in GB of the table per second, by the median over rounds of `time`.
    fn rate(&self, rows: usize, time: impl Fn(&Times) -> Duration) -> f64 {
        rows as f64 * ROW_BYTES / 1e9 / median(self.times.iter().map(|times| time(times).as_secs_f64()))
    }

    /// Returns the throughput in GB per second, by the shortest `time` of all rounds. That round was disturbed least by
    /// other programs.
    fn fastest(&self, rows: usize, time: impl Fn(&Times) -> Duration) -> f64 {
        let shortest = self.times.iter().map(time).min().unwrap_or_default();
        rows as f64 * ROW_BYTES / 1e9 / shortest.as_secs_f64()
    }

    fn measure(&mut self, batches: &[RecordBatch], wanted: &[(i64, i128)]) -> Outcome {
        let aggregates = match self.is_sum {
            true => vec![Aggregate { function: AggregateFunction::Sum, column: Some(1) }],
            false => Vec::new(),
        };
        let group = Operator::Group { keys: vec![0], aggregates, groups: self.bound };
        let program = Program::check(vec![Type::Int64; 2], vec![group])
            .map_err(|flaw| Failure::Failed(format!("{flaw:?}")))?;
        let prepared =
            Prepared::new(Arc::new(program)).map_err(|flaw| Failure::Failed(format!("{flaw:?}")))?;
        let prepared = Arc::new(prepared);
        let seed = drawn(self.times.len() as u64 ^ u64::from(self.bound));
        let bounds = Bounds { seed, ..Bounds::default() };
        let mut times = Times { run: Duration::ZERO, merge: Duration::ZERO };
        let mut run = Run::new(prepared.clone(), Vec::new(), bounds).map_err(Failure::failed)?;
        let mut merge = Merge::new(prepared.program(), !seed).map_err(Failure::failed)?;
        self.partial = 0;
        // Partial groups are merged as soon as the run emits them, because a node also sends them at once.
        let mut merge_all = |merge: &mut Merge, partial: Vec<RecordBatch>, time: &mut Duration| {
            let begun = Instant::now();
            for batch in &partial {
                self.partial += batch.num_rows();
                merge.push(batch).map_err(Failure::failed)?;
            }
            *time += begun.elapsed();
            Ok::<(), Failure>(())
        };
        for (index, batch) in batches.iter().enumerate() {
            let begun = Instant::now();
            let partial = run.push(batch, (index * BATCH_ROWS) as u64).map_err(Failure::failed)?;
            times.run += begun.elapsed();
            merge_all(&mut merge, partial, &mut times.merge)?;
        }
        let begun = Instant::now();
        let partial = run.finish().map_err(Failure::failed)?;
        times.run += begun.elapsed();
        merge_all(&mut merge, partial, &mut times.merge)?;
        let begun = Instant::now();
        let whole = merge.finish().map_err(Failure::failed)?;
        times.merge += begun.elapsed();
        self.times.push(times);
        let found = whole.iter().flat_map(|batch| {
            let keys = batch.column(0).as_primitive::<Int64Type>().values();
            let sums = self.is_sum.then(|| batch.column(1).as_primitive::<Decimal128Type>().values());
            keys.iter().enumerate().map(move |(row, key)| (*key, sums.map(|sums| sums[row])))
        });
        if !found.eq(wanted.iter().map(|(key, sum)| (*key, self.is_sum.then_some(*sum)))) {
            let what =
                format!("{} of {} groups: the result is not that of a hash map", self.what(), self.groups);
            return Err(Failure::Failed(what));
        }
        Ok(())
    }
}
