//! What `farpool bench tiers` measures: joins by strategy, and the curve of the partial move.

use super::figures::median;
use super::tiers::BackendKind;
use crate::exit::Failure;
use crate::signals::Stop;
use farpool_place::hash_join::{Joining, NonPartitioned, Partitioned, Partitioning, Table};
use farpool_place::interleave::Interleave;
use farpool_place::partial_move::Linear;
use farpool_place::phases::{Phase, Plan};
use farpool_place::traffic::{Rates, Side, Traffic};
use farpool_tiers::partition::{Partitions, ROW_BYTES, Sum, fill, partitions_bytes};
use farpool_tiers::stage::{Backend, NoWork, Stage, StageReport, Task};
use farpool_tiers::strategy::{MORSEL_BYTES, Moved, NonPartitionedRun, PartitionedRun};
use farpool_tiers::{Emulated, Nodes, TieredRegion, Virtual};
use std::time::Instant;

/// The mix of the paper's machine: three near to two far.
const MIXED: f64 = 0.6;
/// What looking a row up moves in the paper's tables, and in a compact one.
const BUCKET_BYTES: u32 = 64;
const SLOT_BYTES: u32 = 16;
/// Lines that a worker has under way. Where latency does not count, tickets of the emulator are for more of them at once,
/// or handing them out would take longer than they are held back.
const LINES_TOGETHER: u32 = 12;
const LINES_TOGETHER_EMULATED: u32 = 120;
/// On two emulated tiers: what keeps both busy without a crowd of threads. The virtual clock has a crowd for lines, as
/// hardware has many more under way than one group of a worker.
const WORKERS: usize = 2;
const CROWD: usize = 32;
/// The paper's build sides over its probe side of 256 Mi rows.
const BUILDS: [(&str, u32); 3] = [("1:16", 16), ("1:4", 4), ("1:1", 1)];
/// Steps of the curve.
const STEPS: u32 = 20;
/// Nanoseconds of a line of the near tier where latency counts at all.
const NEAR_LATENCY_NS: f64 = 0.0;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) backend: BackendKind,
    pub(super) probe_bytes: u64,
    /// The paper's rates are divided by this.
    pub(super) slower: f64,
    pub(super) far_latency_ns: f64,
    pub(super) rounds: usize,
}

/// A join by one strategy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) join: &'static str,
    pub(super) build: &'static str,
    pub(super) strategy: String,
    /// Near shares of what the strategy places.
    pub(super) shares: String,
    /// Moving; partitioning or building; joining or probing.
    pub(super) seconds: [f64; 3],
    /// Over staying in the far tier.
    pub(super) gain: f64,
    /// The same from bytes.
    pub(super) by_bytes: f64,
    /// What the paper says of it.
    pub(super) paper: &'static str,
    pub(super) near_bytes: f64,
    pub(super) far_bytes: f64,
}

/// A point of figure 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) gain: f64,
    pub(super) by_bytes: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) mixed: f64,
    /// `k` and `m` from bytes, and as taken.
    pub(super) partitioned: (Linear, Linear),
    pub(super) non_partitioned: (Linear, Linear),
    pub(super) curve: Vec<Point>,
    /// The best share and its gain.
    pub(super) best_by_bytes: (f64, f64),
    pub(super) bars: Vec<Bar>,
    /// How long it takes to place six objects over nine phases.
    pub(super) placing_us: f64,
}

/// Runs joins, and checks what comes of them.
struct Runner {
    streams: Box<dyn Backend>,
    lines: Box<dyn Backend>,
    /// Input, copies, partitions: where work is real.
    memory: Option<[TieredRegion; 3]>,
    rates: Rates,
    lines_together: u32,
}

impl Runner {
    fn new(setting: &Setting) -> Result<Runner, Failure> {
        let slower = |rate: f64| rate / setting.slower;
        let paper = Rates::PAPER;
        let rates = Rates::shared(slower(paper.near.both), slower(paper.far.both), slower(paper.together));
        let latency = [NEAR_LATENCY_NS, setting.far_latency_ns];
        let is_grouped = setting.backend == BackendKind::Emulated && setting.far_latency_ns == 0.0;
        let lines_together = if is_grouped { LINES_TOGETHER_EMULATED } else { LINES_TOGETHER };
        let runner = |streams, lines, memory| Runner { streams, lines, memory, rates, lines_together };
        match setting.backend {
            BackendKind::Virtual => {
                let machine = Virtual::new(rates).map_err(Failure::failed)?;
                let crowd = machine.with_workers(CROWD, 1).with_latency(latency[0], latency[1]);
                Ok(runner(Box::new(machine), Box::new(crowd), None))
            }
            BackendKind::Emulated => {
                let machine = Emulated::new(rates, WORKERS).map_err(Failure::failed)?;
                let touching = machine.with_latency(latency[0], latency[1]);
                let bytes = 2 * setting.probe_bytes as usize;
                let region = |bytes| TieredRegion::new(bytes, Interleave::FAR, Nodes::ANY, WORKERS);
                let memory = [bytes, bytes, partitions_bytes(bytes, WORKERS)].map(region);
                let [input, copies, partitions] = memory.map(|region| region.map_err(Failure::failed));
                Ok(runner(Box::new(machine), Box::new(touching), Some([input?, copies?, partitions?])))
            }
        }
    }

    /// Seconds of moving, of partitioning or building, and of joining or probing; and what was moved.
    fn run(&mut self, stages: &[Stage]) -> Result<([f64; 3], Traffic), Failure> {
        let is_touching = stages.iter().flat_map(|stage| &stage.morsels).any(|morsel| morsel.lines != [0, 0]);
        let mut stages = stages.to_vec();
        stages.iter_mut().for_each(|stage| stage.lines.together = self.lines_together);
        let stages = &stages[..];
        let reports = match &mut self.memory {
            Some(memory) if !is_touching => partition(&*self.streams, memory, stages)?,
            _ if is_touching => self.lines.run_all(stages, &NoWork),
            _ => self.streams.run_all(stages, &NoWork),
        };
        let mut seconds = [0.0; 3];
        let mut traffic = Traffic::default();
        for report in &reports {
            let phase = match report.name {
                "join" | "probe" => 2,
                name if name.starts_with("move") => 0,
                _ => 1,
            };
            seconds[phase] += report.seconds;
            traffic = traffic.plus(report.traffic, 1.0);
        }
        Ok((seconds, traffic))
    }
}

/// Does the work of the stages, and checks that every row is in its partition once.
fn partition(
    backend: &dyn Backend,
    memory: &mut [TieredRegion; 3],
    stages: &[Stage],
) -> Result<Vec<StageReport>, Failure> {
    let chunks = stages.iter().flat_map(|stage| &stage.morsels).map(|morsel| morsel.chunk + 1).max();
    let bytes = chunks.unwrap_or(0) as usize * MORSEL_BYTES as usize;
    let [input, copies, partitions] = memory;
    let expected: Sum = fill(&mut input.bytes_mut()[..bytes]);
    let work = Partitions::new(
        &input.bytes()[..bytes],
        copies.bytes_mut(),
        partitions.bytes_mut(),
        backend.workers(),
    );
    let reports = backend.run_all(stages, &work);
    let is_scattered =
        stages.iter().flat_map(|stage| &stage.morsels).any(|morsel| morsel.task == Task::Scatter);
    let outcome = work.outcome();
    if is_scattered && (outcome.in_partitions != expected || outcome.misplaced > 0) {
        return Err(Failure::Failed(format!("WRONG PARTITIONS: {outcome:?}, expected {expected:?}")));
    }
    Ok(reports)
}

/// A strategy of figure 4: what is run, and what its plan says.
struct Candidate {
    join: &'static str,
    build: &'static str,
    strategy: String,
    shares: String,
    stages: Vec<Stage>,
    planned_seconds: f64,
    paper: &'static str,
}

/// Times and bytes of all rounds.
#[derive(Default)]
struct Rounds {
    seconds: Vec<[f64; 3]>,
    traffic: Traffic,
}

impl Rounds {
    fn phases(&self) -> [f64; 3] {
        [0, 1, 2].map(|phase: usize| median(self.seconds.iter().map(|seconds| seconds[phase])))
    }

    /// How many times as long another one took, round by round.
    fn gain_over(&self, base: &Rounds) -> f64 {
        let whole = |seconds: &[f64; 3]| seconds.iter().sum::<f64>();
        median(self.seconds.iter().zip(&base.seconds).map(|(own, base)| whole(base) / whole(own)))
    }
}

pub(super) fn measure(setting: &Setting, stop: &mut Stop) -> Result<Found, Failure> {
    let mut runner = Runner::new(setting)?;
    let rates = runner.rates;
    let probe_chunks = chunks_of(setting.probe_bytes as f64);
    // The partition phase of the paper's figure 5, of its smallest build side.
    let input = probe_chunks + probe_chunks / BUILDS[0].1;
    let shares: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let moving = |x: f64| {
        let run = PartitionedRun::new(Partitioning::MoveThenRun, Joining::Left, input, MIXED);
        PartitionedRun { input_share: x, ..run }.stages()
    };
    let probing = |x: f64| probe_run(0, probe_chunks, BUCKET_BYTES, MIXED, Moved::Share(x)).stages();
    let (partitioned, curve) = curve(&mut runner, setting.rounds, stop, &shares, moving)?;
    let few: Vec<f64> = shares.iter().copied().filter(|x| *x <= MIXED + 1e-9 || *x == 1.0).collect();
    let (non_partitioned, _) = self::curve(&mut runner, setting.rounds, stop, &few, probing)?;
    let of_plan = Partitioned::new(Partitioning::MoveThenRun, Joining::Left, bytes_of(input), MIXED);
    let phases = |x: f64| of_plan.plan.at(&rates, vec![x, MIXED]).phase_seconds;
    let by_bytes = Linear::of_times(phases(0.0)[1], phases(1.0)[0], |x| phases(x)[1], MIXED);
    let probe = NonPartitioned::new(&table(0.0, bytes_of(probe_chunks), BUCKET_BYTES, Some(MIXED)));
    let probe_phases = |x: f64| probe.plan.at(&rates, vec![0.0, x, MIXED]).phase_seconds;
    let probe_by_bytes =
        Linear::of_times(probe_phases(0.0)[1], probe_phases(1.0)[0], |x| probe_phases(x)[1], MIXED);
    let planned = |x: f64| phases(x).iter().sum::<f64>();
    let best = of_plan.plan.place(&rates, f64::INFINITY).map_err(Failure::failed)?;
    let curve = curve.into_iter().map(|(x, gain)| Point { x, gain, by_bytes: planned(0.0) / planned(x) });
    let curve = curve.collect();
    Ok(Found {
        mixed: MIXED,
        partitioned: (by_bytes, partitioned),
        non_partitioned: (probe_by_bytes, non_partitioned),
        curve,
        best_by_bytes: (best.share(of_plan.input), planned(0.0) / best.seconds()),
        bars: bars(&mut runner, setting, stop)?,
        placing_us: placing_us(&rates)?,
    })
}

/// `k` and `m` as taken, and by share the gain over moving nothing. Shares begin with 0 and end with 1.
fn curve(
    runner: &mut Runner,
    rounds: usize,
    stop: &mut Stop,
    shares: &[f64],
    stages: impl Fn(f64) -> Vec<Stage>,
) -> Result<(Linear, Vec<(f64, f64)>), Failure> {
    let mut all: Vec<Rounds> = shares.iter().map(|_| Rounds::default()).collect();
    // Memory that was never touched is slower once.
    runner.run(&stages(0.0))?;
    for _ in 0..rounds {
        for (x, of) in shares.iter().zip(&mut all) {
            of.seconds.push(runner.run(&stages(*x))?.0);
            stop.check()?;
        }
    }
    let Some((first, last)) = all.first().zip(all.last()) else {
        return Err(Failure::failed("no share was tried"));
    };
    let runs = |of: &Rounds| of.phases()[1] + of.phases()[2];
    // The nearest share that was tried; those that the slope wants were.
    let at = |x: f64| {
        let nearest =
            shares.iter().zip(&all).min_by(|one, other| (one.0 - x).abs().total_cmp(&(other.0 - x).abs()));
        nearest.map_or(0.0, |(_, of)| runs(of))
    };
    let linear = Linear::of_times(runs(first), last.phases()[0], at, MIXED);
    Ok((linear, shares.iter().zip(&all).map(|(x, of)| (*x, of.gain_over(first))).collect()))
}

/// Two joins and what is written of them, in near memory for half of it.
fn placing_us(rates: &Rates) -> Result<f64, Failure> {
    let mut plan = Plan::default();
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

fn bars(runner: &mut Runner, setting: &Setting, stop: &mut Stop) -> Result<Vec<Bar>, Failure> {
    let probe_chunks = chunks_of(setting.probe_bytes as f64);
    let mut bars = Vec::new();
    for (build, divisor) in BUILDS {
        let build_chunks = (probe_chunks / divisor).max(1);
        let rates = runner.rates;
        for candidates in [
            partitioned(&rates, build, build_chunks + probe_chunks)?,
            non_partitioned(&rates, build, build_chunks, probe_chunks)?,
        ] {
            let mut all: Vec<Rounds> = candidates.iter().map(|_| Rounds::default()).collect();
            for _ in 0..setting.rounds {
                for (candidate, of) in candidates.iter().zip(&mut all) {
                    let (seconds, traffic) = runner.run(&candidate.stages)?;
                    of.seconds.push(seconds);
                    of.traffic = traffic;
                    stop.check()?;
                }
            }
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
                    near_bytes: of.traffic.of(Side::Near).total(),
                    far_bytes: of.traffic.of(Side::Far).total(),
                });
            }
        }
    }
    Ok(bars)
}

/// The first one stays in the far tier.
fn partitioned(rates: &Rates, build: &'static str, chunks: u32) -> Result<Vec<Candidate>, Failure> {
    use Partitioning::{CopyMixed, CopyNear, InFar, MoveThenRun, OnePass};
    let strategies = [
        (InFar, Joining::After, "1"),
        (CopyNear, Joining::After, "below 1"),
        (CopyMixed, Joining::After, "below 1"),
        (MoveThenRun, Joining::After, "1.222"),
        (OnePass, Joining::After, "-"),
        (OnePass, Joining::Beside, "-"),
    ];
    let candidate = |(partitioning, joining, paper): (Partitioning, Joining, &'static str)| {
        let join = Partitioned::new(partitioning, joining, bytes_of(chunks), MIXED);
        let placed = join.plan.place(rates, f64::INFINITY).map_err(Failure::failed)?;
        let (x, w) = (placed.share(join.input), placed.share(join.partitions));
        let run = PartitionedRun::new(partitioning, joining, chunks, MIXED);
        let (strategy, shares) = match (partitioning, joining) {
            (OnePass, Joining::Beside) => ("* one pass, joined beside".to_owned(), format!("w {w:.2}")),
            (OnePass, _) => ("* one pass".to_owned(), format!("w {w:.2}")),
            (MoveThenRun, _) => (partitioning.name().to_owned(), format!("x {x:.2}")),
            _ => (partitioning.name().to_owned(), "-".to_owned()),
        };
        Ok(Candidate {
            join: "partitioned",
            build,
            strategy,
            shares,
            stages: PartitionedRun { input_share: x, partitions_share: w, ..run }.stages(),
            planned_seconds: placed.seconds(),
            paper,
        })
    };
    strategies.into_iter().map(candidate).collect()
}

/// The first one stays in the far tier, its table in the mix.
fn non_partitioned(
    rates: &Rates,
    build: &'static str,
    build_chunks: u32,
    probe_chunks: u32,
) -> Result<Vec<Candidate>, Failure> {
    /// Table 1.
    const PAPER_SHARE: f64 = 0.5104;
    let (of_build, of_probe) = (bytes_of(build_chunks), bytes_of(probe_chunks));
    let plan =
        |slot_bytes, near_share| NonPartitioned::new(&table(of_build, of_probe, slot_bytes, near_share));
    let seconds = |plan: &Plan, share: f64, of_table: f64| plan.seconds(rates, &[share, share, of_table]);
    let bucket = plan(BUCKET_BYTES, Some(MIXED)).plan;
    // A copy to the mix: what is far of it is written far as well.
    let mixed_copy = |of: f64| {
        let mut traffic = Traffic::default();
        traffic.far.read = of;
        traffic.far.written = of * (1.0 - MIXED);
        traffic.near.written = of * MIXED;
        rates.seconds(&traffic)
    };
    let in_mix: f64 = {
        let moved = bucket.at(rates, vec![MIXED, MIXED, MIXED]).phase_seconds;
        moved[1] + moved[3] + mixed_copy(of_build) + mixed_copy(of_probe)
    };
    let ours = |slot_bytes| {
        let join = plan(slot_bytes, None);
        let placed = join.plan.place(rates, f64::INFINITY).map_err(Failure::failed)?;
        Ok::<_, Failure>((placed.share(join.table), placed.share(join.probe), placed.seconds()))
    };
    let (buckets, buckets_moved, buckets_seconds) = ours(BUCKET_BYTES)?;
    let (slots, slots_moved, slots_seconds) = ours(SLOT_BYTES)?;
    let candidate =
        |strategy: &str, shares: String, run: NonPartitionedRun, planned_seconds, paper| Candidate {
            join: "non-partitioned",
            build,
            strategy: strategy.to_owned(),
            shares,
            stages: run.stages(),
            planned_seconds,
            paper,
        };
    let run =
        |slot_bytes, of_table, moved| probe_run(build_chunks, probe_chunks, slot_bytes, of_table, moved);
    let none = || "-".to_owned();
    Ok(vec![
        candidate(
            Partitioning::InFar.name(),
            none(),
            run(BUCKET_BYTES, MIXED, Moved::Share(0.0)),
            seconds(&bucket, 0.0, MIXED),
            "1",
        ),
        candidate(
            Partitioning::CopyNear.name(),
            none(),
            run(BUCKET_BYTES, MIXED, Moved::Share(1.0)),
            seconds(&bucket, 1.0, MIXED),
            "below 1",
        ),
        candidate(
            Partitioning::CopyMixed.name(),
            none(),
            run(BUCKET_BYTES, MIXED, Moved::Mixed(MIXED)),
            in_mix,
            "below 1",
        ),
        candidate(
            Partitioning::MoveThenRun.name(),
            format!("x {PAPER_SHARE:.2}"),
            run(BUCKET_BYTES, MIXED, Moved::Share(PAPER_SHARE)),
            seconds(&bucket, PAPER_SHARE, MIXED),
            "1.037",
        ),
        candidate(
            "* table, placed",
            format!("t {buckets:.2}"),
            run(BUCKET_BYTES, buckets, Moved::Share(buckets_moved)),
            buckets_seconds,
            "-",
        ),
        candidate(
            "* compact table, placed",
            format!("t {slots:.2}"),
            run(SLOT_BYTES, slots, Moved::Share(slots_moved)),
            slots_seconds,
            "-",
        ),
    ])
}

fn table(build_bytes: f64, probe_bytes: f64, slot_bytes: u32, near_share: Option<f64>) -> Table {
    Table {
        build_bytes,
        probe_bytes,
        row_bytes: ROW_BYTES as f64,
        slot_bytes: f64::from(slot_bytes),
        near_share,
        may_move: true,
    }
}

fn probe_run(
    build_chunks: u32,
    probe_chunks: u32,
    slot_bytes: u32,
    table_share: f64,
    moved: Moved,
) -> NonPartitionedRun {
    NonPartitionedRun {
        build_chunks,
        probe_chunks,
        morsel_bytes: MORSEL_BYTES,
        chunk_rows: MORSEL_BYTES / ROW_BYTES as u32,
        slot_bytes,
        table_share,
        moved,
        lines_together: LINES_TOGETHER,
    }
}

fn chunks_of(bytes: f64) -> u32 {
    // At most 4 GiB in pieces of 64 KiB.
    (bytes / f64::from(MORSEL_BYTES)) as u32
}

fn bytes_of(chunks: u32) -> f64 {
    f64::from(chunks) * f64::from(MORSEL_BYTES)
}
