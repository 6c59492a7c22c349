//! `farpool bench operators`: operators that a memory node runs beside the data (filter, projection, pattern match,
//! decryption, semi-join), compared with memory bandwidth and with other libraries.
//!
//! Results leave a node through a send buffer. The upper bound of an operator is therefore a copy of its table through
//! a reused buffer of 128 KiB, not a copy to other memory. All implementations take turns on one core. The counts and
//! sums of the values that each selected are compared, outside the timed part.

use super::ciphers::Ciphers;
use super::operands::{GROUP_ROWS, SHARES, Sink, Tables, program, values};
use super::patterns::Patterns;
use super::semi_joins::Joins;
use crate::Outcome;
use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::harness::statistics::{gb_per_s, median};
use crate::harness::titled;
use crate::signals::Stop;
use arrow_array::Int64Array;
use arrow_select::filter::FilterBuilder;
use farpool_kernels::{Kept, Ranges, Row, compare, gather, project_rows, select_rows};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench operators --mib 256")]
pub(crate) struct OperatorArgs {
    /// Size of each table in MiB; the run takes four times as much memory. A table that fits in the CPU caches measures
    /// the caches
    #[arg(long, default_value_t = 1_024)]
    mib: usize,
    /// Rounds, each of which measures every contender once; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Also measure AES-128 in counter mode by Crypto++; needs its headers (Debian: libcrypto++-dev)
    #[arg(long)]
    cryptopp: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const WIDTHS: [usize; 4] = [64, 256, 512, 1_024];
/// Bytes of a wide row that the projection keeps: three columns of 8 bytes.
const PROJECTED: std::ops::Range<usize> = 16..40;
const RING_BYTES: usize = 128 << 10;

/// Name of an implementation, and its function. The function passes the rows whose first two columns are both below a
/// limit to the sink.
type Contender = (&'static str, fn(&Tables, i64, Sink<'_>) -> Outcome);

const CONTENDERS: [Contender; 5] = [
    ("memcpy of the table through a ring of 128 KiB", ring_copy),
    ("rows", rows),
    ("columns", columns),
    ("columns, as a program of a far table", program),
    ("columns, arrow-rs lt, and, filter", arrow),
];

pub(crate) fn run(args: &OperatorArgs) -> Outcome {
    if !(1..=1 << 16).contains(&args.mib) || !(1..=1_000).contains(&args.rounds) {
        return Err(Failure::Usage(format!(
            "--mib {} --rounds {}: 1 to 65536 MiB and 1 to 1000 rounds are permitted",
            args.mib, args.rounds
        )));
    }
    let mut stop = Stop::catch()?;
    let tables = Tables::new((args.mib << 20) / size_of::<Row>())?;
    let kept = check(&tables)?;
    let bytes = size_of_val(tables.rows());
    let bar = ProgressBar::new((args.rounds + Joins::CASES) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} parts") {
        bar.set_style(style);
    }
    let mut selecting = vec![vec![Vec::new(); SHARES.len()]; CONTENDERS.len()];
    let mut projecting = vec![vec![Vec::new(); WIDTHS.len()]; 2];
    let mut patterns = Patterns::new()?;
    let mut ciphers = Ciphers::new(&tables, args.cryptopp.then_some(args.mib))?;
    for _ in 0..args.rounds {
        for (share, (_, limit)) in SHARES.iter().enumerate() {
            for ((_, contender), found) in CONTENDERS.iter().zip(&mut selecting) {
                let begun = Instant::now();
                contender(&tables, *limit, &mut |values| {
                    black_box(values);
                })?;
                found[share].push(gb_per_s(bytes, begun));
            }
            stop.check()?;
        }
        for (at, width) in WIDTHS.iter().enumerate() {
            for (lines, found) in [Lines::All, Lines::Wanted].into_iter().zip(&mut projecting) {
                found[at].push(project(&tables, *width, lines));
            }
        }
        patterns.measure()?;
        ciphers.measure(&tables)?;
        bar.inc(1);
        stop.check()?;
    }
    let joins = Joins::measure(&tables, args.rounds, &mut stop, &bar)?;
    bar.finish_and_clear();
    show(args, &Found { kept, selecting, projecting, patterns, joins, ciphers })
}

/// Results of all rounds.
struct Found {
    /// Number of selected rows, for each entry of [`SHARES`] (percentages of selected rows).
    kept: Vec<usize>,
    /// Throughput in GB/s, by entry of [`CONTENDERS`], entry of [`SHARES`], and round.
    selecting: Vec<Vec<Vec<f64>>>,
    /// Throughput in GB/s, by variant of [`Lines`], entry of [`WIDTHS`], and round.
    projecting: Vec<Vec<Vec<f64>>>,
    patterns: Patterns,
    joins: Joins,
    ciphers: Ciphers,
}

/// Checks that all implementations select the same rows. Returns the number of selected rows for each entry of
/// [`SHARES`].
fn check(tables: &Tables) -> Result<Vec<usize>, Failure> {
    let mut kept = Vec::new();
    for (share, limit) in SHARES {
        let is_kept = |row: &&Row| row[0] < limit && row[1] < limit;
        let expected = tables.rows().iter().filter(is_kept).fold((0, 0), |(count, sum), row| {
            (count + row.len(), row.iter().fold(sum, |sum: i64, value| sum.wrapping_add(*value)))
        });
        for (name, contender) in &CONTENDERS[1..] {
            let mut found = (0, 0i64);
            contender(tables, limit, &mut |values| {
                found.0 += values.len();
                found.1 = values.iter().fold(found.1, |sum, value| sum.wrapping_add(*value));
            })?;
            if found != expected {
                return Err(Failure::Failed(format!(
                    "WRONG ROWS by {name} at {share} %: {found:?} values and their sum instead of {expected:?}"
                )));
            }
        }
        kept.push(expected.0 / 8);
    }
    Ok(kept)
}

/// Copies the whole table through a reused buffer and ignores the limit: the upper bound of every selection.
fn ring_copy(tables: &Tables, _: i64, send: Sink<'_>) -> Outcome {
    let mut ring = [[0; 8]; RING_BYTES / size_of::<Row>()];
    for part in tables.rows().chunks(ring.len()) {
        ring[..part.len()].copy_from_slice(part);
        send(ring[..part.len()].as_flattened());
    }
    Ok(())
}

fn rows(tables: &Tables, limit: i64, send: Sink<'_>) -> Outcome {
    const BLOCK: usize = 512;
    let mut ranges = Ranges::ALL;
    ranges.high[..2].fill(limit - 1);
    let mut ring: Vec<Row> = Vec::with_capacity(RING_BYTES / size_of::<Row>());
    for block in tables.rows().chunks(BLOCK) {
        if ring.len() + block.len() > ring.capacity() {
            send(ring.as_flattened());
            ring.clear();
        }
        select_rows(block, &ranges, &mut ring);
    }
    send(ring.as_flattened());
    Ok(())
}

/// Selects with the kernels for columns. Sends the columns of a row group one after another, as a node's reply does.
fn columns(tables: &Tables, limit: i64, send: Sink<'_>) -> Outcome {
    const BLOCK: usize = 4096;
    let less = farpool_kernels::CompareOp::Less;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut kept = vec![Kept::default(); GROUP_ROWS / BLOCK];
    let mut ring: Vec<i64> = Vec::with_capacity(RING_BYTES / 8);
    for group in tables.groups() {
        compare(values(group, 0), less, limit, &mut first);
        compare(values(group, 1), less, limit, &mut second);
        first.iter_mut().zip(&second).for_each(|(first, second)| *first &= second);
        for (block, words) in first.chunks(BLOCK / 64).enumerate() {
            kept[block].set(words, BLOCK.min(group.num_rows() - block * BLOCK));
        }
        for column in 0..8 {
            for (kept, values) in kept.iter().zip(values(group, column).chunks(BLOCK)) {
                if ring.len() + kept.count() > RING_BYTES / 8 {
                    send(&ring);
                    ring.clear();
                }
                gather(kept, values, &mut ring);
            }
        }
    }
    send(&ring);
    Ok(())
}

fn arrow(tables: &Tables, limit: i64, send: Sink<'_>) -> Outcome {
    let limit = Int64Array::new_scalar(limit);
    for group in tables.groups() {
        let less = |column: usize| arrow_ord::cmp::lt(group.column(column), &limit).map_err(Failure::failed);
        let both = arrow_arith::boolean::and(&less(0)?, &less(1)?).map_err(Failure::failed)?;
        let filter = FilterBuilder::new(&both).optimize().build();
        let batch = filter.filter_record_batch(group).map_err(Failure::failed)?;
        (0..8).for_each(|column| send(values(&batch, column)));
    }
    Ok(())
}

/// Cache lines that a projection of wide rows reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    All,
    /// Only lines that hold bytes of the projected columns.
    Wanted,
}

/// Projects rows of `width` bytes. Returns the throughput in GB of whole rows per second.
fn project(tables: &Tables, width: usize, lines: Lines) -> f64 {
    let bytes = tables.bytes();
    let mut ring: Vec<u8> = Vec::with_capacity(RING_BYTES);
    let begun = Instant::now();
    for part in bytes.chunks(width * (RING_BYTES / PROJECTED.len() / 64 * 64)) {
        if lines == Lines::All {
            black_box(part.as_chunks::<8>().0.iter().fold(0, |all, word| all ^ u64::from_ne_bytes(*word)));
        }
        ring.clear();
        project_rows(&part[..part.len() / width * width], width, PROJECTED, &mut ring);
        black_box(&ring);
    }
    gb_per_s(bytes.len(), begun)
}

fn show(args: &OperatorArgs, found: &Found) -> Outcome {
    let Found { kept, selecting, projecting, patterns, joins, ciphers } = found;
    let middle = |found: &[f64]| median(found.iter().copied());
    // Ratios are taken within each round, because the speed of the machine drifts.
    let ratio = |found: &[f64], beside: &[f64]| {
        median(found.iter().zip(beside).map(|(found, beside)| found / beside))
    };
    let (mut selected, mut values) = (Vec::new(), Vec::new());
    for (contender, (name, _)) in CONTENDERS.iter().enumerate() {
        let mut row = vec![(*name).to_owned()];
        for (share, (percent, _)) in SHARES.iter().enumerate() {
            let found = &selecting[contender][share];
            let of_ring = ratio(found, &selecting[0][share]);
            let of_arrow = ratio(found, &selecting[CONTENDERS.len() - 1][share]);
            row.push(format!("{:.1}", middle(found)));
            row.push(format!("{of_ring:.2}"));
            values.push(json!({
                "operator": "select", "by": name, "kept_percent": percent, "kept_rows": kept[share],
                "gb_per_s": middle(found), "of_ring_copy": of_ring, "of_arrow": of_arrow,
            }));
        }
        selected.push(row);
    }
    let mut projected = Vec::new();
    for (at, width) in WIDTHS.iter().enumerate() {
        let [full, smart] = [&projecting[0][at], &projecting[1][at]];
        projected.push(vec![
            width.to_string(),
            format!("{:.1}", middle(full)),
            format!("{:.1}", middle(smart)),
            format!("{:.2}", ratio(smart, full)),
        ]);
        values.push(json!({
            "operator": "project", "row_bytes": width, "full_gb_per_s": middle(full),
            "gb_per_s": middle(smart), "of_full": ratio(smart, full),
        }));
    }
    let (matched, of_patterns): (Vec<_>, Vec<_>) = patterns.lines().into_iter().unzip();
    values.extend(of_patterns);
    let (decrypted, of_decrypted): (Vec<_>, Vec<_>) = ciphers.alone().into_iter().unzip();
    let (behind, of_behind): (Vec<_>, Vec<_>) = ciphers.selecting().into_iter().unzip();
    values.extend(of_decrypted.into_iter().chain(of_behind));
    let (joined, of_joins): (Vec<_>, Vec<_>) = joins.lines().into_iter().unzip();
    values.extend(of_joins);
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({ "machine": machine(), "mib": args.mib, "rounds": args.rounds, "found": values });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    let mut part =
        |title: &str, header: &[&str], rows: &[Vec<String>]| titled::write(&mut out, title, header, rows);
    part(
        "Selection a < X and b < X over 8 columns of 8 bytes: GB/s of the table, and ratio to the copy",
        &["kept", "100 %", "/copy", "50 %", "/copy", "25 %", "/copy", "1 %", "/copy"],
        &selected,
    )?;
    part(
        "3 columns of 8 bytes out of wide rows: GB/s of the table",
        &["bytes of a row", "all read", "those lines alone", "ratio"],
        &projected,
    )?;
    part(
        "Patterns that match every other text: GB/s of text",
        &["pattern", "bytes of a text", "a program", "regex crate", "ratio"],
        &matched,
    )?;
    part("Buffers of 512 KiB of an encrypted table decrypted: GB/s", &["by", "GB/s", "ratio"], &decrypted)?;
    part(
        "The program above over plain columns, and over columns that are decrypted first: GB/s of the table",
        &["kept", "plain", "encrypted", "ratio"],
        &behind,
    )?;
    part(
        "Semi-join by integers that keeps every other row of 8 columns of 8 bytes: millions of rows/s, and ratio to a \
         filter by two columns that keeps as many",
        &["keys", "which lie", "filter", "by keys", "/filter", "by a Bloom filter", "/filter"],
        &joined,
    )?;
    writeln!(
        out,
        "One core, {} MiB of each, medians of {} rounds, ratios within each round. Rows and sums compared. {}",
        args.mib,
        args.rounds,
        machine()
    )?;
    Ok(())
}
