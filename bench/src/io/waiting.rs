//! `farpool bench waiting`: the cost of each waiting mode on CPUs that are idle or busy, and with a single CPU. A
//! thread that waits for a message spins, parks in the kernel, or first spins and then parks (adaptive).
//!
//! The idea: the best mode depends on how long the wait will be, which nobody knows in advance. Each mode is therefore
//! measured where it should win and where it should lose: few outstanding reads on idle CPUs; reads at a steady rate
//! beside work on every CPU; and client and node on one CPU, where a spinning side keeps the other from answering.

use super::leases::{Over, Pool};
use super::neighbour::{Load, work};
use crate::Outcome;
use crate::exit::Failure;
use crate::harness::access::{ACCESSES, Access, LARGE, Offsets, SMALL};
use crate::harness::bursts::{Means, Target};
use crate::harness::cpu::{allowed_cpus, pin};
use crate::harness::machine::machine;
use crate::harness::measure::{Client, Servers, Until, Work, measure};
use crate::harness::mixing::mix;
use crate::harness::pools::{Cluster, Room, Way, wait_quiet};
use crate::harness::statistics::{Figures, median, quantiles};
use crate::harness::titled;
use crate::signals::Stop;
use farpool::{ReadRange, TransportChoice, WriteRange};
use farpool_host::clock;
use farpool_host::waiting::{Waiting, choose};
use farpool_transport::Link;
use farpool_wire::control::Hello;
use farpool_wire::limits::{VERSION_MAX, VERSION_MIN};
use farpool_wire::{ClientId, Request};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench waiting --json | bench/drawing.py waiting > waiting.svg")]
pub(crate) struct WaitingArgs {
    /// Reads of 8 KiB per second beside busy CPUs
    #[arg(long, default_value_t = 2_000)]
    rate: u32,
    /// Seconds per measured point
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds, each of which measures every mode once; the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const DEPTHS: [usize; 4] = [1, 2, 4, 8];
const FILE_BYTES: u64 = 64 << 20;
const WAYS: usize = Waiting::ALL.len();

/// Waiting mode, and a pool whose node uses it too.
struct Side {
    name: &'static str,
    waiting: Waiting,
    cluster: Cluster,
}

/// Results of reads at a steady rate beside work on every CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    p50_us: f64,
    p99_us: f64,
    reads_per_s: f64,
    /// Steps per second of the work on the CPUs, relative to those while nothing is read.
    work: f64,
}

/// Median times of empty round trips between two processes on one CPU, in us: over tcp, and over shared memory.
type OneCpu = [f64; 2];

/// Results of all rounds: of reads on idle CPUs (`quiet`), of reads beside work (`busy`), of round trips on one CPU,
/// and of round trips between two threads by a futex (`hand_over`, in us). The first index is the waiting mode, except
/// in `hand_over`.
#[derive(Default)]
struct Found {
    quiet: [[Vec<Figures>; DEPTHS.len()]; WAYS],
    busy: [Vec<Busy>; WAYS],
    one_cpu: [Vec<OneCpu>; WAYS],
    hand_over: Vec<f64>,
}

pub(crate) fn run(args: &WaitingArgs) -> Outcome {
    if !(1..=100_000).contains(&args.rate)
        || !(0.05..=600.0).contains(&args.seconds)
        || !(1..=100).contains(&args.rounds)
    {
        return Err(Failure::Usage(format!(
            "--rate {} --seconds {} --rounds {}: 1 to 100000 reads a second, 0.05 to 600 seconds and 1 to 100 rounds \
             are permitted",
            args.rate, args.seconds, args.rounds
        )));
    }
    let mut stop = Stop::catch()?;
    let cpus = allowed_cpus()?;
    let room = Room { bytes: FILE_BYTES, clients: 1, nodes: 1 };
    let mut sides = Vec::new();
    for (name, waiting) in Waiting::ALL {
        let flags = ["--waiting".to_owned(), name.to_owned()];
        sides.push(Side { name, waiting, cluster: Cluster::start(room, &flags)? });
    }
    let bar = ProgressBar::new((args.rounds * WAYS) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let mut found = Found::default();
    for round in 0..args.rounds {
        found.hand_over.push(hand_over_us(cpus[0], args.seconds)?);
        for (way, side) in sides.iter().enumerate() {
            bar.set_message(side.name);
            // The nodes of the other modes must be idle too: one of them may still spin.
            for other in &sides {
                wait_quiet(other.cluster.pids(), Duration::from_secs(3))?;
            }
            choose(side.waiting);
            quiet(args, side, round, &mut found.quiet[way])?;
            found.busy[way].push(busy(args, side, &cpus)?);
            // Two spinning processes on one CPU switch only at the scheduler's tick. That takes some 10 ms per round
            // trip.
            found.one_cpu[way].push(one_cpu(side, cpus[0], args.seconds)?);
            pin(&cpus)?;
            choose(Waiting::Adaptive);
            bar.inc(1);
            stop.check()?;
        }
    }
    bar.finish_and_clear();
    show(args, &sides, &found)
}

const TCP: Way = Way { transport: TransportChoice::Tcp, is_encrypted: false, shape: None };

fn quiet(args: &WaitingArgs, side: &Side, round: usize, found: &mut [Vec<Figures>]) -> Outcome {
    let target = side.cluster.open(TCP, FILE_BYTES)?;
    let mut clients = [Client::new(Means::Calls(Box::new(target)), FILE_BYTES, 0)];
    let servers = Servers { pids: side.cluster.pids().to_vec(), never_rest: false };
    let work =
        |access, depth, until| Work { access, depth, until, seed: 1, round: round as u64, write_number: 0 };
    let fill = Access { is_random: false, ..ACCESSES[3] };
    measure(&mut clients, work(fill, 1, Until::Once), &servers)?;
    for (depth, found) in DEPTHS.into_iter().zip(found) {
        let point = work(ACCESSES[0], depth, Until::Seconds(args.seconds / DEPTHS.len() as f64));
        found.push(measure(&mut clients, point, &servers)?.figures);
    }
    Ok(())
}

/// Measures reads at a steady rate while every CPU has work. A read that takes too long delays the next one. Those
/// after it are made without a pause until the rate is reached again.
fn busy(args: &WaitingArgs, side: &Side, cpus: &[usize]) -> Result<Busy, Failure> {
    let mut target = side.cluster.open(TCP, FILE_BYTES)?;
    for offset in (0..FILE_BYTES).step_by(LARGE) {
        let block: Vec<u8> =
            (0..LARGE).step_by(SMALL).flat_map(|at| [mark(offset + at as u64); SMALL]).collect();
        target.write(&[WriteRange { offset, from: &block }])?;
    }
    let seconds = Duration::from_secs_f64(args.seconds);
    let alone = beside(cpus, || {
        std::thread::sleep(seconds);
        Ok(())
    })?;
    let mut times = Vec::new();
    let with = beside(cpus, || {
        let every = Duration::from_secs_f64(1.0 / f64::from(args.rate));
        let mut offsets = Offsets::new(ACCESSES[0], FILE_BYTES, 1);
        let mut buffer = vec![0; SMALL];
        let begun = Instant::now();
        let mut due = begun;
        while begun.elapsed() < seconds {
            if let Some(early) = due.checked_duration_since(Instant::now()) {
                std::thread::sleep(early);
            }
            let offset = offsets.next().unwrap_or(0);
            let asked = Instant::now();
            target.read(&mut [ReadRange { offset, into: &mut buffer }])?;
            times.push(asked.elapsed());
            if buffer.iter().any(|byte| *byte != mark(offset)) {
                return Err(Failure::Failed(format!("WRONG BYTES in the block at {offset}")));
            }
            due += every;
        }
        Ok(())
    })?;
    let reads_per_s = times.len() as f64 / args.seconds;
    let [p50_us, _, p99_us, _] = quantiles(&mut times);
    Ok(Busy { p50_us, p99_us, reads_per_s, work: with / alone })
}

/// Returns the byte that fills the block at an offset.
fn mark(offset: u64) -> u8 {
    mix(offset + 1) as u8
}

/// Runs work on all CPUs while `act` runs. Returns the steps of work per second, over all CPUs.
fn beside(cpus: &[usize], act: impl FnOnce() -> Outcome + Send) -> Result<f64, Failure> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let begun = Instant::now();
        let workers: Vec<_> =
            cpus.iter().map(|cpu| scope.spawn(move || work(Load::Cpu, *cpu, is_over))).collect();
        // `act` runs in another thread, so that its CPU time does not count for this thread: the workers that this
        // thread starts in a later call would inherit what is left of its time slice.
        let result = scope.spawn(act).join();
        let seconds = begun.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        let mut steps = 0;
        for worker in workers {
            steps += worker.join().map_err(|_| Failure::failed("the work beside panicked"))??.len();
        }
        result.map_err(|_| Failure::failed("the reader beside the work panicked"))??;
        Ok(steps as f64 / seconds)
    })
}

/// Measures empty calls over tcp and over shared memory, with client and node on one CPU. Leaves this thread pinned to
/// that CPU.
fn one_cpu(side: &Side, cpu: usize, seconds: f64) -> Result<OneCpu, Failure> {
    pin(&[cpu])?;
    // The node inherits the CPU of this thread.
    let mut pool = Pool::start(&["--waiting", side.name])?;
    let mut found = [0.0; 2];
    for (over, found) in [Over::Tcp, Over::Shm].into_iter().zip(&mut found) {
        pool.wait_quiet()?;
        let mut link = pool.dial_node(over)?;
        *found = calls_us(&mut *link, seconds / 4.0)?;
    }
    Ok(found)
}

fn calls_us(link: &mut dyn Link, seconds: f64) -> Result<f64, Failure> {
    // A `Hello` may be repeated and has no effect on the node.
    let hello =
        Request::Hello(Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client: ClientId(0) });
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed().as_secs_f64() < seconds {
        let asked = Instant::now();
        link.call(&hello, clock::now().plus_ms(10_000)).map_err(Failure::failed)?;
        times.push(asked.elapsed());
    }
    Ok(quantiles(&mut times)[0])
}

/// Measures the median round trip of a number between two threads that park in a futex on one CPU, in us.
fn hand_over_us(cpu: usize, seconds: f64) -> Result<f64, Failure> {
    const OVER: u32 = u32::MAX;
    let turn = AtomicU32::new(0);
    let wait_for = |wanted: fn(u32) -> bool| loop {
        let now = turn.load(Ordering::Acquire);
        if now == OVER || wanted(now) {
            return now;
        }
        // The wait may return early, so the loop checks the number again.
        let _ = rustix::thread::futex::wait(&turn, rustix::thread::futex::Flags::PRIVATE, now, None);
    };
    let give = |next: u32| {
        turn.store(next, Ordering::Release);
        let _ = rustix::thread::futex::wake(&turn, rustix::thread::futex::Flags::PRIVATE, 1);
    };
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            pin(&[cpu])?;
            loop {
                match wait_for(|turn| turn % 2 == 1) {
                    OVER => return Ok::<(), Failure>(()),
                    asked => give(asked + 1),
                }
            }
        });
        let asking = scope.spawn(|| {
            pin(&[cpu])?;
            let mut times = Vec::new();
            let begun = Instant::now();
            while begun.elapsed().as_secs_f64() < seconds / 4.0 {
                let asked = Instant::now();
                give(turn.load(Ordering::Relaxed) + 1);
                wait_for(|turn| turn % 2 == 0);
                times.push(asked.elapsed());
            }
            give(OVER);
            Ok::<_, Failure>(quantiles(&mut times)[0])
        });
        let panicked = || Failure::failed("a thread of hand-overs panicked");
        answering.join().map_err(|_| panicked())??;
        asking.join().map_err(|_| panicked())?
    })
}

fn show(args: &WaitingArgs, sides: &[Side], found: &Found) -> Outcome {
    let hand_over = median(found.hand_over.iter().copied());
    let mut out = std::io::stdout().lock();
    let (mut quiet, mut busy, mut one, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (way, side) in sides.iter().enumerate() {
        let mut depths: Vec<Value> = Vec::new();
        for (depth, rounds) in DEPTHS.iter().zip(&found.quiet[way]) {
            let figures = Figures::median(rounds);
            let server_us = figures.server_cpu_us.unwrap_or(0.0);
            quiet.push(vec![
                side.name.to_owned(),
                depth.to_string(),
                format!("{:.1}", figures.p50_us),
                format!("{:.1}", figures.p99_us),
                format!("{:.1}", figures.client_cpu_us),
                format!("{server_us:.1}"),
            ]);
            depths.push(json!({
                "depth": depth, "p50_us": figures.p50_us, "p99_us": figures.p99_us,
                "client_cpu_us": figures.client_cpu_us, "server_cpu_us": server_us,
            }));
        }
        let of = |field: fn(&Busy) -> f64| median(found.busy[way].iter().map(field));
        let beside = Busy {
            p50_us: of(|busy| busy.p50_us),
            p99_us: of(|busy| busy.p99_us),
            reads_per_s: of(|busy| busy.reads_per_s),
            work: of(|busy| busy.work),
        };
        busy.push(vec![
            side.name.to_owned(),
            format!("{:.1}", beside.p50_us),
            format!("{:.1}", beside.p99_us),
            format!("{:.0}", beside.reads_per_s),
            format!("{:.3}", beside.work),
        ]);
        let [tcp, ring] = [0, 1].map(|at| median(found.one_cpu[way].iter().map(|found| found[at])));
        one.push(vec![side.name.to_owned(), format!("{tcp:.1}"), format!("{ring:.1}")]);
        values.push(json!({
            "waiting": side.name, "quiet": depths,
            "busy": {
                "p50_us": beside.p50_us, "p99_us": beside.p99_us, "reads_per_s": beside.reads_per_s,
                "work_of_alone": beside.work,
            },
            "one_cpu": { "tcp_us": tcp, "ring_us": ring },
        }));
    }
    if args.json {
        let all = json!({
            "machine": machine(), "rate": args.rate, "seconds": args.seconds, "rounds": args.rounds,
            "futex_hand_over_us": hand_over, "ways": values,
        });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    one.push(vec!["futex, between two threads".into(), format!("{hand_over:.1}"), format!("{hand_over:.1}")]);
    let mut part =
        |title: &str, header: &[&str], rows: &[Vec<String>]| titled::write(&mut out, title, header, rows);
    part(
        "8 KiB random reads over tcp, CPUs otherwise idle",
        &["waiting", "depth", "p50 us", "p99", "cpu client", "server"],
        &quiet,
    )?;
    part(
        &format!("{} reads of 8 KiB a second over tcp, every CPU busy with work", args.rate),
        &["waiting", "p50 us", "p99", "reads/s", "work, of alone"],
        &busy,
    )?;
    part("Empty calls, both ends on one CPU, p50 us", &["waiting", "tcp", "ring of shm"], &one)?;
    writeln!(
        out,
        "Medians of {} rounds of {} s; client and node wait in the same way. {}",
        args.rounds,
        args.seconds,
        machine()
    )?;
    writeln!(out, "tcp is loopback, not a network. A read beside work is timed from when it is asked for.")?;
    Ok(())
}
