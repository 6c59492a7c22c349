//! `farpool-sim`: runs thousands of simulated worlds, or replays one of them.
#![forbid(unsafe_code)]

use clap::Parser;
use farpool_sim::{
    Budget, CampaignProgress, CampaignReport, Profile, WorldOutcome, run, run_world, run_world_printed,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Text below the options in `--help`.
const HELP: &str = "\
Profiles:
  still  No faults. No operation may fail, but for want of memory, or because others use the same names.
  calm   A fault every two lives of a lease (its time and its grace), as in a data centre in a quiet week.
  rough  One to four faults in each life of a lease.
  hell   Four to twenty faults in each life of a lease, so that many are under way at once.
  mixed  One of the others for each world, drawn from its seed: rough and hell twice as often.

Every world also draws how many nodes, clients and tenants it has, all times and latencies, which machines faults hit
(all, the host of one node, or those of clients), and whether two brokers elect a leader. --trace prints that.

Examples:
  cargo xtask sim --minutes 10 --profile hell
  cargo xtask sim --seed 7 --profile mixed --trace";

/// Simulates whole pools under faults, and checks the invariants of spec/lease.md after every step.
///
/// The default budget is one minute. Exit code 1: a violation was found; the command that replays it is printed.
#[derive(Parser)]
#[command(name = "farpool-sim", after_help = HELP)]
struct Args {
    /// Run only the world of this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event of that world
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Severity of the faults: still, calm, rough, hell, or mixed; see below
    #[arg(long, default_value = "mixed")]
    profile: Profile,
    /// Stop after this number of worlds
    #[arg(long)]
    worlds: Option<u64>,
    /// Stop after this many simulated hours
    #[arg(long)]
    hours: Option<f64>,
    /// Stop after this many minutes of real time
    #[arg(long)]
    minutes: Option<f64>,
    /// Seed of the first world; the default depends on the time
    #[arg(long)]
    from: Option<u64>,
    /// Worlds that run at once; by default one for each CPU
    #[arg(long)]
    threads: Option<usize>,
    /// Hunt for deliberate mistakes instead, with this many tries for each
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "TRIES", num_args = 0..=1, default_missing_value = "5")]
    mutants: Option<u32>,
    /// Hunt only for this mistake
    #[cfg(feature = "mutants")]
    #[arg(long, requires = "mutants")]
    only: Option<String>,
    /// Give up a try after this many seconds
    #[cfg(feature = "mutants")]
    #[arg(long, default_value_t = 60.0, requires = "mutants")]
    seconds: f64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "mutants")]
    if let Some(tries) = args.mutants {
        return hunt(&args, tries);
    }
    match args.seed {
        Some(seed) => replay(&args, seed),
        None => campaign(&args),
    }
}

/// Hunts for the deliberate mistakes that are compiled in, and prints a table in Markdown. Returns exit code 1 if at
/// least one mistake was not found.
#[cfg(feature = "mutants")]
fn hunt(args: &Args, tries: u32) -> ExitCode {
    use farpool_wire::mutants::Mutant;
    let wanted = |mutant: &&Mutant| args.only.as_ref().is_none_or(|only| mutant.word() == only);
    let mutants: Vec<Mutant> = Mutant::ALL.iter().filter(wanted).copied().collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let limit = Duration::from_secs_f64(args.seconds.clamp(1.0, 1e6));
    let found = farpool_sim::hunt::hunt(
        &mutants,
        tries,
        limit,
        args.profile,
        args.threads.unwrap_or(threads),
        |hunted| eprintln!("{}: caught {} of {tries} times", hunted.mutant.word(), hunted.catches.len()),
    );
    println!("| mistake | caught | by | median worlds | median seconds | a seed |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for hunted in &found {
        let mut catches = hunted.catches.clone();
        catches.sort_by_key(|caught| caught.took);
        let mut by: Vec<&str> = catches.iter().map(|caught| caught.invariant.as_str()).collect();
        by.sort_unstable();
        by.dedup();
        let middle = catches.get(catches.len() / 2);
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        println!(
            "| {} | {} of {tries} | {} | {} | {} | {} |",
            hunted.mutant.word(),
            catches.len(),
            by.join(", "),
            shown(middle.map(|caught| caught.worlds.to_string())),
            shown(middle.map(|caught| format!("{:.1}", caught.took.as_secs_f64()))),
            shown(middle.map(|caught| caught.seed.to_string())),
        );
    }
    let got_away = found.iter().filter(|hunted| hunted.catches.is_empty()).count();
    println!("\n{} mistakes, {got_away} not found", found.len());
    if got_away > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn replay(args: &Args, seed: u64) -> ExitCode {
    let outcome = match args.trace {
        true => run_world_printed(seed, args.profile),
        false => run_world(seed, args.profile),
    };
    let report = CampaignReport {
        worlds: 1,
        tally: outcome.tally.clone(),
        found: outcome.violation.is_some().then(|| outcome.clone()),
        ..CampaignReport::default()
    };
    if !args.json {
        println!("seed {seed}, profile {}: hash {:016x}", args.profile.word(), outcome.hash);
    }
    finish(args, &report, Some(outcome.hash))
}

fn campaign(args: &Args) -> ExitCode {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let no_limit = args.worlds.is_none() && args.hours.is_none() && args.minutes.is_none();
    let minutes = args.minutes.or(no_limit.then_some(1.0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let budget = Budget {
        first_seed: args.from.unwrap_or(since_1970.as_secs() << 20),
        profile: args.profile,
        worlds: args.worlds,
        hours: args.hours,
        time: minutes.map(|minutes| Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0)),
        threads: args.threads.unwrap_or(threads).max(1),
    };
    let bar = if args.json { ProgressBar::hidden() } else { ProgressBar::new(1_000) };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {msg}") {
        bar.set_style(style);
    }
    let report = run(&budget, |progress: CampaignProgress| {
        bar.set_position((progress.share * 1_000.0) as u64);
        let CampaignProgress { worlds, hours, faults, .. } = progress;
        bar.set_message(format!("{worlds} worlds, {hours:.0} cluster-hours, {faults} faults"));
    });
    bar.finish_and_clear();
    if !args.json {
        println!("seeds from {}, profile {}", budget.first_seed, budget.profile.word());
    }
    finish(args, &report, None)
}

fn finish(args: &Args, report: &CampaignReport, hash: Option<u64>) -> ExitCode {
    if args.json {
        println!("{}", as_json(report, hash));
    } else {
        for line in table(report) {
            println!("{line}");
        }
        if let Some(found) = &report.found {
            tell(args, found);
        }
    }
    if report.found.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn tell(args: &Args, found: &WorldOutcome) {
    let Some((violation, last)) = &found.violation else { return };
    println!("\nLast events (time, process, event):");
    for line in last {
        println!("{line}");
    }
    println!("\n{}: {}", violation.invariant, violation.what);
    println!("\ncargo xtask sim --seed {} --profile {} --trace", found.seed, args.profile.word());
}

fn table(report: &CampaignReport) -> Vec<String> {
    let tally = &report.tally;
    let seconds = report.took.as_secs_f64();
    let mut lines = vec![
        format!("worlds          {:>12}", report.worlds),
        format!("cluster-hours   {:>12.1}", tally.hours()),
        format!("events          {:>12}", tally.events),
        format!("connections     {:>12}", tally.connections),
        format!(
            "operations      {:>12}  of which refused or failed: {}",
            tally.operation_count(),
            tally.failures()
        ),
        format!("bytes compared  {:>12}", tally.bytes_compared),
        format!("checks          {:>12}", tally.checks),
        format!("interruptions   {:>12}  in the middle of a copy or a check", tally.interrupts),
        format!("faults          {:>12}", tally.fault_count()),
    ];
    lines.extend(tally.faults.iter().map(|(kind, count)| format!("  {kind:<28}{count:>9}")));
    lines.push(format!("violations      {:>12}", u32::from(report.found.is_some())));
    if seconds > 0.0 {
        lines.push(format!("seeds/s         {:>12.1}  in {seconds:.1} s", report.worlds as f64 / seconds));
    }
    lines
}

fn as_json(report: &CampaignReport, hash: Option<u64>) -> serde_json::Value {
    let tally = &report.tally;
    let operations: Vec<_> = tally
        .operations
        .iter()
        .map(|((kind, succeeded), count)| json!({ "kind": kind, "succeeded": succeeded, "count": count }))
        .collect();
    json!({
        "worlds": report.worlds,
        "cluster_hours": tally.hours(),
        "events": tally.events,
        "connections": tally.connections,
        "operations": operations,
        "errors": tally.errors,
        "bytes_compared": tally.bytes_compared,
        "checks": tally.checks,
        "interruptions": tally.interrupts,
        "faults": tally.faults,
        "fault_count": tally.fault_count(),
        "seconds": report.took.as_secs_f64(),
        "hash": hash.map(|hash| format!("{hash:016x}")),
        "violation": report.found.as_ref().and_then(|found| found.violation.as_ref().map(|(violation, last)| json!({
            "seed": found.seed,
            "profile": found.profile.word(),
            "invariant": violation.invariant,
            "what": violation.what,
            "last": last,
        }))),
    })
}
