//! `farpool bench tiers`: hash joins over a near and a far memory tier, with the strategies of paper 002 ("Hash Joins
//! Meet CXL") and others.
//!
//! Every result is shown as three numbers: measured in the paper, predicted from the bytes that each phase moves, and
//! measured by a backend. One of three backends is chosen. The virtual clock simulates the strategies, without joining,
//! to check the prediction. The emulator runs real joins on a machine with one tier and delays them as two tiers would.
//! The third backend runs real joins on two NUMA nodes. Each speed-up is relative to a join in the same round that
//! leaves all data in the far tier.

use super::runner::{BackendKind, Setting};
use super::strategies::{Bar, Found, measure};
use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::signals::Stop;
use crate::units::{self, show_bytes};
use crate::{Outcome, table};
use farpool_tiers::plan::partial_move::{PAPER_NON_PARTITIONED, PAPER_PARTITIONED, best_gain};
use farpool_tiers::plan::traffic::Rates;
use serde_json::{Value, json};
use std::io::Write;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  farpool bench tiers
  farpool bench tiers --backend emulated --rounds 5 --json > tiers.json
  farpool bench tiers --backend numa --size 4GiB
bench/papers/hash-joins-cxl/run.py draws what it finds.")]
pub(crate) struct TierArgs {
    /// Backend that runs the joins
    #[arg(long, value_enum, default_value_t = BackendKind::Virtual)]
    backend: BackendKind,
    /// Size of the probe side; the build side is 1/16, 1/4 and all of it
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "128MiB")]
    size: u64,
    /// Divisor for the paper's rates, with --backend emulated
    #[arg(long, default_value_t = 20.0)]
    slower: f64,
    /// Extra latency of a cache line in the far tier, in nanoseconds
    #[arg(long, default_value_t = 0.0)]
    far_latency: f64,
    /// Rounds, each of which measures every strategy once; the median is shown; not with --backend virtual
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Permitted sizes of the probe side, in bytes.
const SIZES: std::ops::RangeInclusive<u64> = 4 << 20..=16 << 30;

pub(crate) fn run(args: &TierArgs) -> Outcome {
    if !SIZES.contains(&args.size) {
        let given = show_bytes(args.size);
        return Err(Failure::Usage(format!("--size {given}: 4MiB to 16GiB are permitted")));
    }
    if !(1..=100).contains(&args.rounds) {
        return Err(Failure::Usage(format!("--rounds {}: 1 to 100 are permitted", args.rounds)));
    }
    if !(1.0..=1_000.0).contains(&args.slower) {
        return Err(Failure::Usage(format!("--slower {}: 1 to 1000 are permitted", args.slower)));
    }
    if !(0.0..=100_000.0).contains(&args.far_latency) {
        let given = args.far_latency;
        return Err(Failure::Usage(format!("--far-latency {given}: 0 to 100000 are permitted")));
    }
    let is_virtual = args.backend == BackendKind::Virtual;
    let is_emulated = args.backend == BackendKind::Emulated;
    let setting = Setting {
        backend: args.backend,
        probe_bytes: args.size,
        slower: if is_emulated { args.slower } else { 1.0 },
        far_latency_ns: args.far_latency,
        rounds: if is_virtual { 1 } else { args.rounds },
    };
    let mut stop = Stop::catch()?;
    let found = measure(&setting, &mut stop)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json_of(&setting, &found))?;
        return Ok(());
    }
    for line in lines(&setting, &found) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Describes the run in one line.
fn caption(setting: &Setting) -> String {
    let Setting { backend, probe_bytes, slower, rounds, .. } = setting;
    let probe = show_bytes(*probe_bytes);
    match backend {
        BackendKind::Virtual => {
            format!("virtual clock, rates of the paper's machine, probe side {probe}")
        }
        BackendKind::Emulated => format!(
            "EMULATED tiers, the paper's rates / {slower}, probe side {probe}, medians of {rounds} rounds; {}",
            machine()
        ),
        BackendKind::Numa => {
            format!("two NUMA nodes, probe side {probe}, medians of {rounds} rounds; {}", machine())
        }
    }
}

fn lines(setting: &Setting, found: &Found) -> Vec<String> {
    let label = setting.backend.name();
    let number = |value: f64| format!("{value:.3}");
    let mut all = vec![format!("Table 1: measured in the paper, from bytes alone, {label}")];
    let model = |name: &str, whose: &str, k: f64, m: f64, x: f64, gain: f64| {
        vec![name.to_owned(), whose.to_owned(), number(k), number(m), number(x), number(gain)]
    };
    let paper = [
        model("partitioned", "paper", PAPER_PARTITIONED.k, PAPER_PARTITIONED.m, 0.5528, 1.1703),
        model("non-partitioned", "paper", PAPER_NON_PARTITIONED.k, PAPER_NON_PARTITIONED.m, 0.5104, 1.0214),
    ];
    let mut rows = Vec::new();
    for (paper, (by_bytes, taken)) in paper.into_iter().zip([found.partitioned, found.non_partitioned]) {
        let name = paper[0].clone();
        rows.push(paper);
        for (whose, of) in [("bytes", by_bytes), (label, taken)] {
            let x = of.best_share(found.mixed);
            rows.push(model(&name, whose, of.k, of.m, x, of.gain(x)));
        }
    }
    all.extend(table::lines(&["join", "", "k", "m", "x*", "g(x*)"], &rows));
    all.push(String::new());
    all.push(format!("Figure 2: copying all of an input to a mix with the near share x; {label}"));
    let rate = |rate: f64| format!("{:.2}", rate / 1e9);
    let rows: Vec<Vec<String>> = found
        .moves
        .iter()
        .map(|of| {
            vec![
                format!("{:.1}", of.x),
                format!("{:.2}", of.far_over_near()),
                rate(of.rate),
                rate(of.by_bytes),
            ]
        })
        .collect();
    all.extend(table::lines(&["x", "far bytes / near", "GB/s", "bytes"], &rows));
    all.push(String::new());
    all.push(format!("Figure 5: gain of moving the share x before partitioning; {label}"));
    let rows: Vec<Vec<String>> = found
        .curve
        .iter()
        .map(|point| {
            let taken = found.partitioned.1.gain(point.x);
            vec![format!("{:.2}", point.x), number(point.gain), number(point.by_bytes), number(taken)]
        })
        .collect();
    all.extend(table::lines(&["x", label, "bytes", "g(x) of k and m"], &rows));
    let best = found.curve.iter().max_by(|one, other| one.gain.total_cmp(&other.gain));
    if let Some(best) = best {
        all.push(format!(
            "best: {:.3} at {:.2}; from bytes {:.3} at {:.2}; paper 1.272 at 0.50",
            best.gain, best.x, found.best_by_bytes.1, found.best_by_bytes.0
        ));
    }
    let (one_pass, by_bytes) = found.one_pass;
    all.push(format!("* one pass that writes near, nothing moved: {one_pass:.3}; from bytes {by_bytes:.3}"));
    all.push(String::new());
    all.push("Figure 6: the gain that the paper's model projects, by lambda = m k".to_owned());
    let projected =
        |name: &str, lambda: f64| vec![name.to_owned(), number(lambda), number(best_gain(lambda))];
    let mut rows: Vec<Vec<String>> =
        [1.0, 1.5, 2.0, 3.0, 4.0, 5.0].map(|lambda| projected("", lambda)).into();
    rows.push(projected("paper", PAPER_PARTITIONED.k * PAPER_PARTITIONED.m));
    rows.push(projected("bytes", found.partitioned.0.k * found.partitioned.0.m));
    rows.push(projected(label, found.partitioned.1.k * found.partitioned.1.m));
    all.extend(table::lines(&["", "lambda", "phi"], &rows));
    all.push(String::new());
    all.push(format!("Figure 4: whole joins, gain over staying in the far tier; {label}"));
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    let row = |bar: &Bar| {
        let [moving, first, second] = bar.seconds;
        vec![
            bar.join.to_owned(),
            bar.build.to_owned(),
            bar.strategy.to_owned(),
            bar.shares.clone(),
            ms(moving),
            ms(first),
            ms(second),
            number(bar.gain),
            number(bar.by_bytes),
            bar.paper.to_owned(),
        ]
    };
    let header = [
        "join",
        "build:probe",
        "strategy",
        "near",
        "move ms",
        "partition/build",
        "join/probe",
        "gain",
        "bytes",
        "paper",
    ];
    all.extend(table::lines(&header, &found.bars.iter().map(row).collect::<Vec<_>>()));
    all.push(String::new());
    all.push(caption(setting));
    all.push(format!("Placing six objects over nine phases takes {:.0} us.", found.placing_us));
    all.push(
        "The paper says that its strategy takes 22.20 and 3.59 % less than the far tier, which would be 1.285 and 1.037; but \
         22.20 % is what it says of the model's gain as well, 1.222. Full copies lose to the far tier. *: ours."
            .to_owned(),
    );
    if setting.backend != BackendKind::Virtual {
        all.push("What came out of every join was what was drawn.".to_owned());
    }
    if setting.backend == BackendKind::Emulated {
        all.push("Emulated: ratios mean something, times do not.".to_owned());
    }
    if setting.backend == BackendKind::Numa {
        let Rates { near, far, together } = found.rates;
        all.push(format!(
            "Measured, copying: near {} GB/s, far {}, together {}; the mix has {:.2} near.",
            rate(near.both),
            rate(far.both),
            rate(together),
            found.mixed
        ));
    }
    all
}

fn json_of(setting: &Setting, found: &Found) -> Value {
    let model = |of: farpool_tiers::plan::partial_move::Linear| {
        let x = of.best_share(found.mixed);
        json!({ "k": of.k, "m": of.m, "x": x, "gain": of.gain(x), "lambda": of.m * of.k, "phi": best_gain(of.m * of.k) })
    };
    let pair = |(by_bytes, taken)| json!({ "bytes": model(by_bytes), "taken": model(taken) });
    let bar = |bar: &Bar| {
        json!({
            "join": bar.join, "build_probe": bar.build, "strategy": bar.strategy, "near": bar.shares,
            "seconds": bar.seconds, "gain": bar.gain, "by_bytes": bar.by_bytes, "paper": bar.paper,
            "near_bytes": bar.near_bytes, "far_bytes": bar.far_bytes,
        })
    };
    let curve: Vec<Value> = found
        .curve
        .iter()
        .map(|point| json!({ "x": point.x, "gain": point.gain, "by_bytes": point.by_bytes }))
        .collect();
    let moves: Vec<Value> = found
        .moves
        .iter()
        .map(|of| json!({ "x": of.x, "bytes_per_s": of.rate, "by_bytes": of.by_bytes }))
        .collect();
    let Rates { near, far, together } = found.rates;
    json!({
        "rates": { "near": near.both, "far": far.both, "together": together }, "mixed": found.mixed,
        "figure_2": moves, "one_pass": { "gain": found.one_pass.0, "by_bytes": found.one_pass.1 },
        "backend": setting.backend.name(), "probe_bytes": setting.probe_bytes, "slower": setting.slower,
        "far_latency_ns": setting.far_latency_ns, "rounds": setting.rounds, "machine": machine(),
        "table_1": { "partitioned": pair(found.partitioned), "non_partitioned": pair(found.non_partitioned) },
        "figure_4": found.bars.iter().map(bar).collect::<Vec<_>>(), "figure_5": curve,
        "placing_us": found.placing_us,
        "figure_5_best_by_bytes": { "x": found.best_by_bytes.0, "gain": found.best_by_bytes.1 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting() -> Setting {
        Setting {
            backend: BackendKind::Virtual,
            probe_bytes: 16 << 20,
            slower: 1.0,
            far_latency_ns: 0.0,
            rounds: 1,
        }
    }

    #[test]
    fn virtual_figures_are_those_of_bytes_and_the_same_in_every_run() {
        let mut stop = Stop::catch().unwrap();
        let found = measure(&setting(), &mut stop).unwrap();
        for point in &found.curve {
            assert!((point.gain / point.by_bytes - 1.0).abs() < 0.015, "{point:?}");
        }
        for bar in &found.bars {
            assert!((bar.gain / bar.by_bytes - 1.0).abs() < 0.06, "{bar:?}");
        }
        for of in &found.moves {
            assert!((of.rate / of.by_bytes - 1.0).abs() < 0.06, "{of:?}");
        }
        assert!((found.one_pass.0 / found.one_pass.1 - 1.0).abs() < 0.02, "{:?}", found.one_pass);
        let again = measure(&setting(), &mut stop).unwrap();
        assert_eq!(json_of(&setting(), &found)["figure_4"], json_of(&setting(), &again)["figure_4"]);
    }

    #[test]
    fn ours_beat_the_papers_and_those_beat_staying_far() {
        let found = measure(&setting(), &mut Stop::catch().unwrap()).unwrap();
        let gain = |strategy: &str| {
            let of = |bar: &&Bar| bar.join == "partitioned" && bar.strategy == strategy;
            found.bars.iter().find(of).map_or(0.0, |bar| bar.gain)
        };
        let (moved, ours) = (gain("move a share near"), gain("* one pass, joined beside"));
        assert!(1.2 < moved && moved < 1.3 && 1.9 < ours, "{moved} {ours}");
        assert!(gain("copy all near") < 1.0 && gain("copy all to the mix") < 1.0);
        let lines = lines(&setting(), &found);
        assert!(lines.iter().any(|line| line.starts_with("best: ")), "{lines:?}");
    }
}
