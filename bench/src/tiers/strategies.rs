//! Measurements of `farpool bench tiers`. They follow figures of paper 002 ("Hash Joins Meet CXL"): whole joins by each
//! strategy (figure 4), the gain of moving a share of the input to the near tier first (figure 5), and the rate of
//! copies alone (figure 2).
//!
//! `x` is the near share of data that is moved or copied. The mix is data divided between both tiers so that they are
//! equally busy; `mixed` is its near share. A prediction from bytes takes the bytes that each phase moves and the rates
//! of the tiers.

use super::runner::{Inputs as Rows, ROW_BYTES, Runner, Setting};
use crate::exit::Failure;
use crate::harness::statistics::median;
use crate::signals::Stop;
use farpool_tiers::plan::hash_join::{
    Inputs, Joining, NonPartitioned, PartitionedJoin, Partitioning, SharedTable,
};
use farpool_tiers::plan::partial_move::Linear;
use farpool_tiers::plan::phases::{Phase, PhasePlan};
use farpool_tiers::plan::traffic::{Rates, TierSide, Traffic};
use farpool_tiers::share_in_chunks;
use farpool_tiers::stage::StageReport;
use farpool_tiers::strategy::{
    CopyPlan, LOOKUP_BYTES, MORSEL_BYTES, NonPartitionedStrategy, PartitionedStrategy, Strategy,
    TABLE_ROW_BYTES,
};
use std::time::Instant;

/// Sizes of the build side, relative to the probe side: the label, and the divisor of the probe side.
const BUILDS: [(&str, usize); 3] = [("1:16", 16), ("1:4", 4), ("1:1", 1)];
/// Number of steps of `x` from 0 to 1 for figure 5. [`MOVE_STEPS`] is that for figure 2.
const STEPS: u32 = 20;
const MOVE_STEPS: u32 = 10;
/// Largest number of batches into which a probe side is divided to overlap partitioning and joining.
const BATCHES_MAX: u32 = 4;
/// Share of both sides that the paper moves for a join through one table (table 1).
const PAPER_SHARE: f64 = 0.5104;

/// Bar of figure 4: a join with one size of the build side, by one strategy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) join: &'static str,
    pub(crate) build: &'static str,
    pub(crate) strategy: String,
    /// Near shares that the strategy chose, as text for the table.
    pub(crate) shares: String,
    /// Seconds of three phases: moving; partitioning or building; joining or probing.
    pub(crate) seconds: [f64; 3],
    /// Speed-up over the strategy that leaves all data in the far tier, as measured.
    pub(crate) gain: f64,
    /// The same speed-up, predicted from bytes.
    pub(crate) by_bytes: f64,
    /// The same speed-up in the paper, as text. `-` for a strategy that the paper does not have.
    pub(crate) paper: &'static str,
    pub(crate) near_bytes: f64,
    pub(crate) far_bytes: f64,
}

/// Point of figure 5: speed-up if the share `x` is moved near before partitioning, measured (`gain`) and predicted
/// (`by_bytes`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) gain: f64,
    pub(crate) by_bytes: f64,
}

/// Point of figure 2: an input is copied whole to a mix with the near share `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Move {
    pub(crate) x: f64,
    /// Bytes of the input per second, as measured. `by_bytes` is the predicted rate.
    pub(crate) rate: f64,
    pub(crate) by_bytes: f64,
}

impl Move {
    /// Returns far bytes divided by near bytes while the input is moved: the paper's `T(x)`.
    pub(crate) fn far_over_near(&self) -> f64 {
        2.0 / self.x - 1.0
    }
}

/// All results of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) mixed: f64,
    pub(crate) rates: Rates,
    /// The parameters `k` and `m` of the paper's model of a partial move: predicted from bytes, and measured. `k` is
    /// the rate of the move relative to the phase over far data. `m` is the phase's speed-up for each share moved.
    pub(crate) partitioned: (Linear, Linear),
    pub(crate) non_partitioned: (Linear, Linear),
    pub(crate) moves: Vec<Move>,
    pub(crate) curve: Vec<Point>,
    /// Share `x` with the largest predicted speed-up, and that speed-up.
    pub(crate) best_by_bytes: (f64, f64),
    /// Speed-up of partitioning in one pass that writes to the near tier: measured, and predicted from bytes.
    pub(crate) one_pass: (f64, f64),
    pub(crate) bars: Vec<Bar>,
    /// Time to place six objects over nine phases, in us.
    pub(crate) placing_us: f64,
}

/// Strategy to measure for figure 4. The text fields are those of its [`Bar`]. `run` is the strategy itself, and
/// `planned_seconds` its time predicted from bytes.
struct Candidate {
    join: &'static str,
    build: &'static str,
    strategy: String,
    shares: String,
    run: Strategy,
    planned_seconds: f64,
    paper: &'static str,
}

/// Seconds of three phases (moving; partitioning or building; joining or probing) in each round, and the bytes moved in
/// the latest round.
#[derive(Default)]
struct Rounds {
    seconds: Vec<[f64; 3]>,
    traffic: Traffic,
}

impl Rounds {
    fn phases(&self) -> [f64; 3] {
        [0, 1, 2].map(|phase: usize| median(self.seconds.iter().map(|seconds| seconds[phase])))
    }

    /// Returns the speed-up over `base`: the median over rounds of the ratio of both times in the same round.
    fn gain_over(&self, base: &Rounds) -> f64 {
        let whole = |seconds: &[f64; 3]| seconds.iter().sum::<f64>();
        median(self.seconds.iter().zip(&base.seconds).map(|(own, base)| whole(base) / whole(own)))
    }
}

/// Returns the seconds of moving, of partitioning or building, and of joining or probing; and the bytes moved.
fn by_phase(reports: &[StageReport]) -> ([f64; 3], Traffic) {
    let mut seconds = [0.0; 3];
    let mut traffic = Traffic::default();
    for report in reports {
        let phase = match report.name {
            "join" | "probe" => 2,
            name if name.starts_with("move") => 0,
            _ => 1,
        };
        seconds[phase] += report.seconds;
        traffic = traffic.plus(report.traffic, 1.0);
    }
    (seconds, traffic)
}

/// Returns the numbers of rows of both sides. Each side is a multiple of [`MORSEL_BYTES`], the bytes that a worker
/// processes at a time.
fn rows_of(setting: &Setting, divisor: usize) -> RowCounts {
    let morsel = MORSEL_BYTES as usize;
    let probe = setting.probe_bytes as usize / morsel * morsel;
    let build = (probe / divisor / morsel).max(1) * morsel;
    RowCounts { build: build / ROW_BYTES, probe: probe / ROW_BYTES }
}

/// Number of rows of both sides of a join.
#[derive(Clone, Copy)]
struct RowCounts {
    build: usize,
    probe: usize,
}

impl RowCounts {
    /// Returns the bytes of both sides.
    fn inputs(self) -> Inputs {
        Inputs { build: (self.build * ROW_BYTES) as f64, probe: (self.probe * ROW_BYTES) as f64 }
    }
}

pub(crate) fn measure(setting: &Setting, stop: &mut Stop) -> Result<Found, Failure> {
    let runner = Runner::new(setting)?;
    let (rates, mixed) = (runner.rates, runner.mixed);
    // All figures but figure 4 use the smallest build side.
    let rows = rows_of(setting, BUILDS[0].1);
    let inputs = rows.inputs();
    let found = {
        let rows = runner.inputs(rows.build, rows.probe)?;
        let shares: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
        let partition = |partitioning, x: f64| {
            let strategy = PartitionedStrategy::new(partitioning, Joining::Left, mixed);
            Strategy::Partitioned(PartitionedStrategy { input_share: x, ..strategy })
        };
        let moving = |x: f64| partition(Partitioning::MoveThenRun, x);
        let table_mix = in_chunks(mixed, inputs);
        let probing = |x: f64| Strategy::NonPartitioned(shared_table(CopyPlan::Share(x), table_mix));
        let of_probe = |reports: Vec<StageReport>| -> Vec<StageReport> {
            let is_of_probe =
                |report: &StageReport| report.name == "probe" || report.name == "move probe side";
            reports.into_iter().filter(is_of_probe).collect()
        };
        let measured = Measured { rounds: setting.rounds, runner: &runner, rows: &rows };
        let (partitioned, curve) = curve(measured, stop, &shares, moving, |reports| reports)?;
        let few: Vec<f64> = shares.iter().copied().filter(|x| *x <= mixed + 1e-9 || *x == 1.0).collect();
        let (non_partitioned, _) = self::curve(measured, stop, &few, probing, of_probe)?;
        let of_plan = PartitionedJoin::new(Partitioning::MoveThenRun, Joining::Left, inputs, mixed);
        // Returns the predicted seconds of the move, and of partitioning both sides after it.
        let phases = |x: f64| {
            let [moving, build, probe] = of_plan.plan.at(&rates, vec![x, mixed, mixed]).phase_seconds[..]
            else {
                return [0.0; 2];
            };
            [moving, build + probe]
        };
        let by_bytes = Linear::of_times(phases(0.0)[1], phases(1.0)[0], |x| phases(x)[1], mixed);
        let probe = NonPartitioned::new(&table(Inputs { build: 0.0, ..inputs }, Some(table_mix)));
        let probe_phases = |x: f64| probe.plan.at(&rates, vec![0.0, x, table_mix, table_mix]).phase_seconds;
        let probe_by_bytes =
            Linear::of_times(probe_phases(0.0)[1], probe_phases(1.0)[0], |x| probe_phases(x)[1], mixed);
        let planned = |x: f64| phases(x).iter().sum::<f64>();
        let best = of_plan.plan.place(&rates, f64::INFINITY).map_err(Failure::failed)?;
        let point = |(x, gain)| Point { x, gain, by_bytes: planned(0.0) / planned(x) };
        let one_pass = PartitionedStrategy::new(Partitioning::OnePass, Joining::Left, mixed);
        let near = Strategy::Partitioned(PartitionedStrategy {
            build_share: 1.0,
            batch_shares: vec![1.0],
            ..one_pass
        });
        let phases = [partition(Partitioning::InFar, 0.0), near];
        let phases = in_turns(measured, stop, &phases, |reports| reports)?;
        let plan = PartitionedJoin::new(Partitioning::OnePass, Joining::Left, inputs, mixed).plan;
        Found {
            mixed,
            rates,
            partitioned: (by_bytes, partitioned),
            non_partitioned: (probe_by_bytes, non_partitioned),
            moves: moves(measured, stop)?,
            curve: curve.into_iter().map(point).collect(),
            best_by_bytes: (best.share(of_plan.input), planned(0.0) / best.seconds()),
            one_pass: (
                phases[1].gain_over(&phases[0]),
                planned(0.0) / plan.seconds(&rates, &[0.0, 1.0, 1.0]),
            ),
            bars: Vec::new(),
            placing_us: placing_us(&rates)?,
        }
    };
    let bars = bars(&runner, setting, stop)?;
    runner.check_memory()?;
    Ok(Found { bars, ..found })
}

/// Number of rounds, and the machine and inputs of the joins.
#[derive(Clone, Copy)]
struct Measured<'a> {
    rounds: usize,
    runner: &'a Runner,
    rows: &'a Rows<'a>,
}

/// Measures all strategies in turns. `of` returns the stages of a join that count.
fn in_turns(
    measured: Measured<'_>,
    stop: &mut Stop,
    strategies: &[Strategy],
    of: impl Fn(Vec<StageReport>) -> Vec<StageReport>,
) -> Result<Vec<Rounds>, Failure> {
    let Measured { rounds, runner, rows } = measured;
    let mut all: Vec<Rounds> = strategies.iter().map(|_| Rounds::default()).collect();
    // Memory is slower at its first touch, so real machines get a warm-up round.
    let first = usize::from(runner.is_real());
    for round in 0..rounds + first {
        for (strategy, into) in strategies.iter().zip(&mut all) {
            let (seconds, traffic) = by_phase(&of(runner.run(strategy, rows)?));
            if round >= first {
                into.seconds.push(seconds);
                into.traffic = traffic;
            }
            stop.check()?;
        }
    }
    Ok(all)
}

/// Measures figure 2: copies of an input to both tiers, with near shares from 0.1 to 1.
fn moves(measured: Measured<'_>, stop: &mut Stop) -> Result<Vec<Move>, Failure> {
    let Measured { runner, rows, .. } = measured;
    let shares: Vec<f64> = (1..=MOVE_STEPS).map(|step| f64::from(step) / f64::from(MOVE_STEPS)).collect();
    let copy =
        |x: &f64| Strategy::Partitioned(PartitionedStrategy::new(Partitioning::CopyMixed, Joining::Left, *x));
    let strategies: Vec<Strategy> = shares.iter().map(copy).collect();
    let is_move = |report: &StageReport| report.name == "move";
    let all = in_turns(measured, stop, &strategies, |reports| reports.into_iter().filter(is_move).collect())?;
    let bytes = rows.bytes();
    let point = |(x, of): (f64, Rounds)| {
        let mut traffic = Traffic::default();
        (traffic.far.read, traffic.far.written, traffic.near.written) = (1.0, 1.0 - x, x);
        Move { x, rate: bytes / of.phases()[0], by_bytes: 1.0 / runner.rates.seconds(&traffic) }
    };
    Ok(shares.into_iter().zip(all).map(point).collect())
}

/// Measures strategies that move a share of the input near first. Returns the parameters `k` and `m` of the paper's
/// model, and each share with its speed-up over moving nothing. `shares` begins with 0 and ends with 1. `of` returns
/// the stages of a join that count.
fn curve(
    measured: Measured<'_>,
    stop: &mut Stop,
    shares: &[f64],
    strategy: impl Fn(f64) -> Strategy,
    of: impl Fn(Vec<StageReport>) -> Vec<StageReport>,
) -> Result<(Linear, Vec<(f64, f64)>), Failure> {
    let strategies: Vec<Strategy> = shares.iter().map(|x| strategy(*x)).collect();
    let all = in_turns(measured, stop, &strategies, of)?;
    let Some((first, last)) = all.first().zip(all.last()) else {
        return Err(Failure::failed("no share was tried"));
    };
    let runs = |of: &Rounds| of.phases()[1] + of.phases()[2];
    // Values between two measured shares are interpolated.
    let at = |x: f64| {
        let behind = shares.iter().position(|tried| *tried >= x - 1e-9).unwrap_or(shares.len() - 1).max(1);
        let (low, high) = (shares[behind - 1], shares[behind]);
        let part = ((x - low) / (high - low)).clamp(0.0, 1.0);
        runs(&all[behind - 1]) * (1.0 - part) + runs(&all[behind]) * part
    };
    let linear = Linear::of_times(runs(first), last.phases()[0], at, measured.runner.mixed);
    Ok((linear, shares.iter().zip(&all).map(|(x, of)| (*x, of.gain_over(first))).collect()))
}

/// Returns the median time, in us, to compute a placement: two joins with six objects over nine phases, and near memory
/// of 3 GB.
fn placing_us(rates: &Rates) -> Result<f64, Failure> {
    let mut plan = PhasePlan::default();
    let names = ["orders", "lines", "parts of orders", "parts of lines", "table", "output"];
    let [orders, lines, order_parts, line_parts, table, output] = names.map(|name| plan.object(name, 1e9));
    plan.then(Phase::new("move orders").moves(orders, 1e9))
        .then(Phase::new("count orders").reads(orders, 1e9))
        .then(Phase::new("partition orders").reads(orders, 1e9).writes(order_parts, 1e9))
        .then(Phase::new("move lines").moves(lines, 1e9))
        .then(Phase::new("count lines").reads(lines, 1e9))
        .then(Phase::new("partition lines").reads(lines, 1e9).writes(line_parts, 1e9))
        .then(Phase::new("join").reads(order_parts, 1e9).reads(line_parts, 1e9).writes(output, 1e9))
        .then(Phase::new("build").reads(output, 1e9).reads(table, 4e9).writes(table, 4e9))
        .then(Phase::new("probe").reads(lines, 1e9).reads(table, 4e9));
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        plan.place(rates, 3e9).map_err(Failure::failed)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times.into_iter()))
}

fn bars(runner: &Runner, setting: &Setting, stop: &mut Stop) -> Result<Vec<Bar>, Failure> {
    let mut bars = Vec::new();
    for (build, divisor) in BUILDS {
        runner.trim();
        let rows = rows_of(setting, divisor);
        let inputs = rows.inputs();
        let rows = runner.inputs(rows.build, rows.probe)?;
        for candidates in [partitioned(runner, build, inputs)?, non_partitioned(runner, build, inputs)?] {
            let strategies: Vec<Strategy> =
                candidates.iter().map(|candidate| candidate.run.clone()).collect();
            let measured = Measured { rounds: setting.rounds, runner, rows: &rows };
            let all = in_turns(measured, stop, &strategies, |reports| reports)?;
            let planned_in_far = candidates.first().map_or(0.0, |first| first.planned_seconds);
            for (candidate, of) in candidates.iter().zip(&all) {
                bars.push(Bar {
                    join: candidate.join,
                    build: candidate.build,
                    strategy: candidate.strategy.clone(),
                    shares: candidate.shares.clone(),
                    seconds: of.phases(),
                    gain: of.gain_over(&all[0]),
                    by_bytes: planned_in_far / candidate.planned_seconds,
                    paper: candidate.paper,
                    near_bytes: of.traffic.of(TierSide::Near).total(),
                    far_bytes: of.traffic.of(TierSide::Far).total(),
                });
            }
        }
    }
    Ok(bars)
}

/// Returns the strategies of partitioned joins. The first one leaves all data in the far tier.
fn partitioned(runner: &Runner, build: &'static str, inputs: Inputs) -> Result<Vec<Candidate>, Failure> {
    use Partitioning::{CopyMixed, CopyNear, InFar, MoveThenRun, OnePass};
    let candidate = |(partitioning, joining, paper): (Partitioning, Joining, &'static str)| {
        let join = PartitionedJoin::new(partitioning, joining, inputs, runner.mixed);
        let placed = join.plan.place(&runner.rates, f64::INFINITY).map_err(Failure::failed)?;
        let run = PartitionedStrategy::new(partitioning, joining, runner.mixed).placed(&join, &placed);
        let near = placed.shares[join.build.index()..].iter().map(|share| format!("{share:.2}"));
        let near = near.collect::<Vec<_>>().join(" ");
        let (strategy, shares) = match (partitioning, joining) {
            (OnePass, Joining::Beside { .. }) => {
                ("* one pass, joined beside".to_owned(), format!("w {near}"))
            }
            (OnePass, _) => ("* one pass".to_owned(), format!("w {near}")),
            (MoveThenRun, _) => (partitioning.name().to_owned(), format!("x {:.2}", run.input_share)),
            _ => (partitioning.name().to_owned(), "-".to_owned()),
        };
        let run = Strategy::Partitioned(run);
        let planned_seconds = placed.seconds();
        Ok::<_, Failure>(Candidate {
            join: "partitioned",
            build,
            strategy,
            shares,
            run,
            planned_seconds,
            paper,
        })
    };
    let strategies = [
        (InFar, Joining::After, "1"),
        (CopyNear, Joining::After, "below 1"),
        (CopyMixed, Joining::After, "below 1"),
        (MoveThenRun, Joining::After, "1.222"),
        (OnePass, Joining::After, "-"),
    ];
    let mut all: Vec<Candidate> = strategies.into_iter().map(candidate).collect::<Result<_, _>>()?;
    let beside = (2..=BATCHES_MAX).map(|batches| candidate((OnePass, Joining::Beside { batches }, "-")));
    let beside = beside.collect::<Result<Vec<_>, _>>()?;
    // Only the number of batches with the shortest planned time is measured.
    let best = beside.into_iter().min_by(|one, other| one.planned_seconds.total_cmp(&other.planned_seconds));
    all.extend(best);
    Ok(all)
}

/// Returns the strategies of joins through one hash table that all workers share. The first one leaves the inputs in
/// the far tier and divides the table between both tiers (the mix).
fn non_partitioned(runner: &Runner, build: &'static str, inputs: Inputs) -> Result<Vec<Candidate>, Failure> {
    let (rates, mixed) = (&runner.rates, runner.mixed);
    let table_mix = in_chunks(mixed, inputs);
    let in_mix = NonPartitioned::new(&table(inputs, Some(table_mix)));
    let moved = |share: f64| {
        let mut shares = vec![table_mix; 4];
        (shares[in_mix.build.index()], shares[in_mix.probe.index()]) = (share, share);
        in_mix.plan.at(rates, shares)
    };
    let copied: f64 = {
        let phases = moved(mixed).phase_seconds;
        // A copy to the mix also writes the far share: `1 - mixed` of its bytes.
        let copy = |of: f64| {
            let mut traffic = Traffic::default();
            (traffic.far.read, traffic.far.written, traffic.near.written) =
                (of, of * (1.0 - mixed), of * mixed);
            rates.seconds(&traffic)
        };
        phases[1] + phases[2] + phases[4] + copy(inputs.build) + copy(inputs.probe)
    };
    let free = NonPartitioned::new(&table(inputs, None));
    let mut shares = free.plan.place(rates, f64::INFINITY).map_err(Failure::failed)?.shares;
    shares[free.table.index()] = in_chunks(shares[free.table.index()], inputs);
    let placed = free.plan.at(rates, shares);
    let ours = NonPartitionedStrategy::placed(&free, &placed);
    // The prediction from bytes ignores latency, but a lookup in the far tier waits for it. This strategy avoids the
    // wait: its table is in the near tier.
    let all_near = NonPartitionedStrategy { table_share: 1.0, ..ours };
    let mut near_table = placed.shares.clone();
    near_table[free.table.index()] = 1.0;
    let near_table = free.plan.seconds(rates, &near_table);
    let candidate = |strategy: &str, shares: String, run, planned_seconds, paper| Candidate {
        join: "non-partitioned",
        build,
        strategy: strategy.to_owned(),
        shares,
        run: Strategy::NonPartitioned(run),
        planned_seconds,
        paper,
    };
    let run = |moved| shared_table(moved, table_mix);
    let none = || "-".to_owned();
    let [in_far, near] = [0.0, 1.0].map(|share| moved(share).seconds());
    let (half, share) = (moved(PAPER_SHARE).seconds(), format!("x {PAPER_SHARE:.2}"));
    Ok(vec![
        candidate(Partitioning::InFar.name(), none(), run(CopyPlan::Share(0.0)), in_far, "1"),
        candidate(Partitioning::CopyNear.name(), none(), run(CopyPlan::Share(1.0)), near, "below 1"),
        candidate(Partitioning::CopyMixed.name(), none(), run(CopyPlan::Mixed(mixed)), copied, "below 1"),
        candidate(Partitioning::MoveThenRun.name(), share, run(CopyPlan::Share(PAPER_SHARE)), half, "1.037"),
        candidate("* table, placed", format!("t {:.2}", ours.table_share), ours, placed.seconds(), "-"),
        candidate("* table, all near", "t 1.00".to_owned(), all_near, near_table, "-"),
    ])
}

/// Returns the near share closest to `near_share` that the hash table of a build side can have. Memory is divided
/// between the tiers in whole chunks.
fn in_chunks(near_share: f64, inputs: Inputs) -> f64 {
    share_in_chunks(near_share, (inputs.build / ROW_BYTES as f64 * TABLE_ROW_BYTES) as usize)
}

fn table(inputs: Inputs, near_share: Option<f64>) -> SharedTable {
    SharedTable {
        build_bytes: inputs.build,
        probe_bytes: inputs.probe,
        row_bytes: ROW_BYTES as f64,
        slot_bytes: f64::from(LOOKUP_BYTES),
        table_row_bytes: TABLE_ROW_BYTES,
        near_share,
        may_move: true,
    }
}

/// Returns a strategy whose table, and the partitions it is built from, have this near share.
fn shared_table(moved: CopyPlan, share: f64) -> NonPartitionedStrategy {
    NonPartitionedStrategy { moved, partitions_share: share, table_share: share }
}
