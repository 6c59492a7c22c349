//! `farpool bench neighbour`: slowdown of other work on a host that donates memory, while clients read that memory.
//!
//! The CPUs of the machine are split in half. One half stands for the donating host (the donor): it runs a memory node
//! and other work, the load. The other half runs the clients that read the node's memory. The halves still share memory
//! bandwidth and the last-level cache. Two hosts would share less.

use crate::exit::Failure;
use crate::harness::access::{ACCESSES, LARGE, Offsets, SMALL};
use crate::harness::bursts::Target;
use crate::harness::cpu::{allowed_cpus, pin};
use crate::harness::machine::{cpus, machine};
use crate::harness::mixing::mix;
use crate::harness::pools::{Cluster, Room, Way, wait_quiet};
use crate::harness::statistics::{median, quantiles};
use crate::signals::Stop;
use crate::units::{self, show_bytes};
use crate::{Outcome, table};
use farpool::{ReadRange, TransportChoice, WriteRange};
use serde_json::json;
use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench neighbour --limit 500MiB")]
pub(crate) struct NeighbourArgs {
    /// Size of the far file that is read meanwhile
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "256MiB")]
    size: u64,
    /// Seconds per measured point
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds, each of which measures every combination once; the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Also measure a node with this --bandwidth-limit
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Work on the CPUs of the donating host, besides its memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Sums ranges of memory that is larger than the caches.
    Memory,
    /// Computes in registers.
    Cpu,
}

const LOADS: [(Load, &str); 2] = [(Load::Memory, "memory-bound"), (Load::Cpu, "CPU-bound")];
/// Bytes of memory that the memory-bound load uses on each CPU.
const WORKING_SET_BYTES: usize = 128 << 20;
/// Bytes that a step of the memory-bound load reads. A step takes tens of microseconds.
const STEP_BYTES: usize = 256 << 10;
/// Iterations of a step of the CPU-bound load. It takes about as long as a memory-bound step.
const STEP_ROUNDS: u64 = 20_000;
const DEPTH: usize = 64;

/// Pool with one node, and whether clients read the node's memory while the load is measured.
struct Service {
    name: &'static str,
    cluster: Cluster,
    is_read: bool,
}

/// Results of one load beside one [`Service`] in one round: steps of the load on all CPUs per second, quantiles of the
/// time of a step, and bytes read from the node.
#[derive(Clone, Copy, Default)]
struct Point {
    steps_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    served_gb_per_s: f64,
}

/// CPUs of the two halves of the machine: those of the donating host, and those of the clients that read its memory.
struct Halves {
    donor: Vec<usize>,
    readers: Vec<usize>,
}

pub(crate) fn run(args: &NeighbourArgs) -> Outcome {
    if args.size < 4 * LARGE as u64 || args.size > 64 << 30 {
        return Err(Failure::Usage(format!("--size {}: 2MiB to 64GiB are permitted", show_bytes(args.size))));
    }
    if !(0.01..=600.0).contains(&args.seconds) || !(1..=100).contains(&args.rounds) {
        return Err(Failure::Usage(format!(
            "--seconds {} --rounds {}: 0.01 to 600 seconds and 1 to 100 rounds are permitted",
            args.seconds, args.rounds
        )));
    }
    // SIGINT or SIGTERM ends the run after the current measurement, and the nodes end with it.
    let mut stop = Stop::catch()?;
    let halves = Halves::of_this_machine()?;
    let room = Room { bytes: args.size, clients: 1, nodes: 1 };
    // Child processes inherit the CPUs of their parent.
    pin(&halves.donor)?;
    let start = |flags: &[String]| Cluster::start(room, flags);
    let mut services = vec![
        Service { name: "not served", cluster: start(&[])?, is_read: false },
        Service { name: "served at full speed", cluster: start(&[])?, is_read: true },
    ];
    if let Some(limit) = &args.limit {
        let flags = ["--bandwidth-limit".to_owned(), limit.clone()];
        services.push(Service { name: "served at the limit", cluster: start(&flags)?, is_read: true });
    }
    pin(&[&halves.donor[..], &halves.readers[..]].concat())?;
    let mut found: Vec<Vec<Point>> = vec![Vec::new(); LOADS.len() * services.len()];
    for _ in 0..args.rounds {
        for (at, point) in found.iter_mut().enumerate() {
            let (load, service) = (LOADS[at / services.len()].0, &services[at % services.len()]);
            for Service { cluster, .. } in &services {
                wait_quiet(cluster.pids(), cluster.patience())?;
            }
            point.push(measure(args, &halves, load, service)?);
            stop.check()?;
        }
    }
    show(args, &halves, &services, &found)
}

impl Halves {
    fn of_this_machine() -> Result<Halves, Failure> {
        let all = allowed_cpus()?;
        if all.len() < 2 {
            return Err(Failure::Failed(format!(
                "this process may use {} CPU: two are needed, one for the donor and one for its readers",
                all.len()
            )));
        }
        let (donor, readers) = all.split_at(all.len() / 2);
        Ok(Halves { donor: donor.to_vec(), readers: readers.to_vec() })
    }
}

/// Runs one step of a load. The result depends on all of its work, so the compiler cannot remove any.
fn step(load: Load, memory: &[u64], number: u64) -> u64 {
    match load {
        Load::Memory => {
            let words = STEP_BYTES / 8;
            let steps = (memory.len() / words) as u64;
            let start = (mix(number) % steps) as usize * words;
            memory[start..start + words].iter().fold(0, |sum, word| sum.wrapping_add(*word))
        }
        Load::Cpu => (0..STEP_ROUNDS).fold(number, |value, round| mix(value ^ round)),
    }
}

/// Runs steps of a load on one CPU until `is_over` is set. Returns the time of each step.
pub(crate) fn work(load: Load, cpu: usize, is_over: &AtomicBool) -> Result<Vec<Duration>, Failure> {
    pin(&[cpu])?;
    let memory = if load == Load::Memory { vec![1; WORKING_SET_BYTES / 8] } else { Vec::new() };
    let mut times = Vec::new();
    let mut last = Instant::now();
    let mut number = cpu as u64;
    while !is_over.load(Ordering::Relaxed) {
        number = number.wrapping_add(1);
        black_box(step(load, black_box(&memory), number));
        let now = Instant::now();
        times.push(now - last);
        last = now;
    }
    Ok(times)
}

/// Fills a far file, then reads it at random offsets until `is_over` is set. Only the bytes of the last read are
/// checked, so that checks do not slow down the reads.
fn read(service: &Service, halves: &Halves, bytes: u64, is_over: &AtomicBool, served: &AtomicU64) -> Outcome {
    pin(&halves.readers)?;
    let way = Way { transport: TransportChoice::Tcp, is_encrypted: false, shape: None };
    let mut target = service.cluster.open(way, bytes)?;
    let block = vec![7; LARGE];
    for offset in (0..bytes / LARGE as u64 * LARGE as u64).step_by(LARGE) {
        target.write(&[WriteRange { offset, from: &block }])?;
    }
    let mut offsets = Offsets::new(ACCESSES[0], bytes, 1);
    let mut buffer = vec![0; SMALL * DEPTH];
    while !is_over.load(Ordering::Relaxed) {
        let mut ranges: Vec<ReadRange<'_>> = buffer
            .chunks_exact_mut(SMALL)
            .zip(offsets.by_ref())
            .map(|(into, offset)| ReadRange { offset, into })
            .collect();
        target.read(&mut ranges)?;
        served.fetch_add(buffer.len() as u64, Ordering::Relaxed);
    }
    if buffer.iter().any(|byte| *byte != 7) {
        return Err(Failure::failed("WRONG BYTES in what was read last"));
    }
    Ok(())
}

fn measure(args: &NeighbourArgs, halves: &Halves, load: Load, service: &Service) -> Result<Point, Failure> {
    let (is_over, reads_are_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let reader = service
            .is_read
            .then(|| scope.spawn(|| read(service, halves, args.size, &reads_are_over, &served)));
        // The reader fills its file first. The load starts after its first read.
        while reader.as_ref().is_some_and(|reader| !reader.is_finished())
            && served.load(Ordering::Relaxed) == 0
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = Instant::now();
        let served_before = served.load(Ordering::Relaxed);
        let workers: Vec<_> = halves
            .donor
            .iter()
            .map(|cpu| {
                let is_over = &is_over;
                scope.spawn(move || work(load, *cpu, is_over))
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(args.seconds));
        is_over.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        let mut failure = None;
        for worker in workers {
            match worker.join() {
                Ok(Ok(steps)) => times.extend(steps),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(Failure::failed("the donor's work panicked")),
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let bytes = served.load(Ordering::Relaxed) - served_before;
        reads_are_over.store(true, Ordering::Relaxed);
        if let Some(reader) = reader {
            reader.join().map_err(|_| Failure::failed("the reader panicked"))??;
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        let busy: f64 = times.iter().map(Duration::as_secs_f64).sum();
        let count = times.len() as f64;
        let [p50_us, _, p99_us, _] = quantiles(&mut times);
        Ok(Point {
            // The rate is taken over the time of the steps, without the time to allocate their memory.
            steps_per_s: count / (busy / halves.donor.len() as f64).max(f64::MIN_POSITIVE),
            p50_us,
            p99_us,
            served_gb_per_s: bytes as f64 / seconds / 1e9,
        })
    })
}

fn show(args: &NeighbourArgs, halves: &Halves, services: &[Service], found: &[Vec<Point>]) -> Outcome {
    let of = |points: &[Point], field: fn(&Point) -> f64| median(points.iter().map(field));
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for (points, at) in found.iter().zip(0..) {
        let (_, load) = LOADS[at / services.len()];
        let service = services[at % services.len()].name;
        let alone = of(&found[at / services.len() * services.len()], |point| point.steps_per_s);
        let steps = of(points, |point| point.steps_per_s);
        let (p50, p99) = (of(points, |point| point.p50_us), of(points, |point| point.p99_us));
        let served = of(points, |point| point.served_gb_per_s);
        rows.push(vec![
            format!("{load} work, {service}"),
            format!("{steps:.0}"),
            format!("{:.3}", steps / alone),
            format!("{p50:.1}"),
            format!("{p99:.1}"),
            format!("{served:.2}"),
        ]);
        values.push(json!({
            "load": load, "service": service, "steps_per_s": steps, "of_not_served": steps / alone,
            "p50_us": p50, "p99_us": p99, "served_gb_per_s": served,
        }));
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({
            "machine": machine(), "cpus": cpus(), "donor_cpus": halves.donor, "reader_cpus": halves.readers,
            "rounds": args.rounds, "seconds": args.seconds, "limit": args.limit, "points": values,
        });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    let header = ["the donor's", "steps/s", "of not served", "p50 us", "p99 us", "served GB/s"];
    for line in table::lines(&header, &rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(out, "Medians of {} rounds of {} s. {}", args.rounds, args.seconds, machine())?;
    writeln!(
        out,
        "The donor (node and own work) has CPUs {:?}, its reader {:?}: 8 KiB random, depth {DEPTH}, over loopback.",
        halves.donor, halves.readers
    )?;
    writeln!(out, "Both halves share memory bandwidth and the last cache, which two hosts do not.")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_stay_in_their_memory_and_depend_on_it() {
        let memory = vec![1; 4 * STEP_BYTES / 8];
        for number in 0..1_000 {
            assert_eq!(step(Load::Memory, &memory, number), STEP_BYTES as u64 / 8);
        }
        assert_ne!(step(Load::Cpu, &[], 1), step(Load::Cpu, &[], 2));
    }
}
