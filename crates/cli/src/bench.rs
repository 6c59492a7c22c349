//! `farpool bench io`: what far memory costs on this machine, beside a plain memcpy in the same run.
//!
//! Broker and node are processes of their own. Every byte read is compared with what was written, outside the
//! timed part. Loopback is not a network: the figures bound what the code costs, not what a wire adds.

use crate::certs::Authority;
use crate::exit::Failure;
use crate::units::show_bytes;
use crate::{Outcome, bench_leases, table, units};
use farpool::{
    CreateOptions, FarFile, FileClass, Identity, Pool, PoolOptions, Protection, ReadRange, Tls, TlsFiles,
    TransportChoice, WriteRange,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

/// Measure this machine.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Far reads and writes over each transport, beside memcpy.
    Io(IoArgs),
    /// Tickets a second, and the time to set up a lease.
    Leases(bench_leases::LeaseArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench io --size 512MiB --seconds 1")]
pub(crate) struct IoArgs {
    /// Bytes of the far file
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "512MiB")]
    size: u64,
    /// Seconds for each measured point
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds; the median of each point is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure TCP with TLS as well, under certificates that are made for this run and never written to a disk
    #[arg(long)]
    tls: bool,
    /// Measure sealed files as well: encrypted and authenticated page by page before they leave the client
    #[arg(long)]
    sealed: bool,
    /// For machines
    #[arg(long)]
    json: bool,
}

const SMALL: usize = 8 << 10;
const LARGE: usize = 512 << 10;
const DEPTH: usize = 64;

pub(crate) fn run(command: &Command) -> Outcome {
    let args = match command {
        Command::Io(args) => args,
        Command::Leases(args) => return bench_leases::run(args),
    };
    if args.size < (LARGE * 4) as u64 || args.size > 64 << 30 {
        return Err(Failure::Usage(format!("--size {}: 2MiB to 64GiB are permitted", show_bytes(args.size))));
    }
    if !(0.01..=600.0).contains(&args.seconds) || !(1..=100).contains(&args.rounds) {
        return Err(Failure::Usage(format!(
            "--seconds {} --rounds {}: 0.01 to 600 seconds and 1 to 100 rounds are permitted",
            args.seconds, args.rounds
        )));
    }
    bench_io(args)
}

/// One measured point.
#[derive(Clone, Copy)]
struct Point {
    p50_us: f64,
    p99_us: f64,
    gb_per_s: f64,
}

/// A thing that can be read and written at offsets: local memory or a far file.
trait Target {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure>;
    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure>;
}

struct Local(Vec<u8>);

impl Target for Local {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
        for range in ranges {
            let at = range.offset as usize;
            range.into.copy_from_slice(&self.0[at..at + range.into.len()]);
        }
        Ok(())
    }

    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
        for range in ranges {
            let at = range.offset as usize;
            self.0[at..at + range.from.len()].copy_from_slice(range.from);
        }
        Ok(())
    }
}

impl Target for FarFile {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
        Ok(self.read_batch(ranges)?)
    }

    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
        Ok(self.write_batch(ranges)?)
    }
}

/// The word that must stand at an offset, different everywhere.
fn pattern(offset: u64) -> u64 {
    (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(offset: u64, into: &mut [u8]) {
    for (index, word) in into.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&pattern(offset + index as u64 * 8).to_le_bytes());
    }
}

fn check(offset: u64, bytes: &[u8]) -> Result<(), Failure> {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let at = offset + index as u64 * 8;
        if word != pattern(at).to_le_bytes() {
            return Err(Failure::Failed(format!("WRONG BYTES at {at}: {word:02x?}")));
        }
    }
    Ok(())
}

/// Reads for a while; only the reads are timed.
fn measure(
    target: &mut dyn Target,
    size: u64,
    block: usize,
    depth: usize,
    random: bool,
    seconds: f64,
) -> Result<Point, Failure> {
    let blocks = size / block as u64;
    let mut buffer = vec![0u8; block * depth];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = 0;
    let mut offset = || {
        if random {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % blocks * block as u64
        } else {
            next = (next + 1) % blocks;
            next * block as u64
        }
    };
    let (mut times, mut spent, mut bytes) = (Vec::new(), Duration::ZERO, 0u64);
    while spent.as_secs_f64() < seconds {
        let mut ranges: Vec<ReadRange<'_>> =
            buffer.chunks_exact_mut(block).map(|into| ReadRange { offset: offset(), into }).collect();
        let start = Instant::now();
        target.read(&mut ranges)?;
        let took = start.elapsed();
        for range in &ranges {
            check(range.offset, range.into)?;
        }
        times.push(took);
        spent += took;
        bytes += (block * depth) as u64;
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    Ok(Point { p50_us: at(0.5), p99_us: at(0.99), gb_per_s: bytes as f64 / spent.as_secs_f64() / 1e9 })
}

/// Writes the whole file once, block by block.
fn fill_all(target: &mut dyn Target, size: u64) -> Result<Point, Failure> {
    let mut block = vec![0; LARGE];
    let (mut times, mut spent) = (Vec::new(), Duration::ZERO);
    for offset in (0..size / LARGE as u64 * LARGE as u64).step_by(LARGE) {
        fill(offset, &mut block);
        let start = Instant::now();
        target.write(&[WriteRange { offset, from: &block }])?;
        times.push(start.elapsed());
        spent += start.elapsed();
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let bytes = times.len() as f64 * LARGE as f64;
    Ok(Point { p50_us: at(0.5), p99_us: at(0.99), gb_per_s: bytes / spent.as_secs_f64() / 1e9 })
}

/// A process of this binary that ends with this value.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn start(args: &[&str]) -> Result<(Server, String), Failure> {
    let own = std::env::current_exe()?;
    let mut child = Server(Process::new(own).args(args).stdout(Stdio::piped()).spawn()?);
    let out = child.0.stdout.take().ok_or_else(|| Failure::failed("no output of a child"))?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let ready = line.strip_prefix("ready ").map(|rest| rest.trim().to_owned());
    ready
        .map(|ready| (child, ready))
        .ok_or_else(|| Failure::Failed(format!("farpool {} did not start", args[0])))
}

const POINTS: [&str; 4] =
    ["8 KiB random, depth 1", "8 KiB random, depth 64", "512 KiB sequential", "512 KiB first write"];

fn measure_all(
    target: &mut dyn Target,
    written: Point,
    args: &IoArgs,
    bar: &ProgressBar,
) -> Result<[Point; 4], Failure> {
    let mut point = |block, depth, random| {
        let point = measure(target, args.size, block, depth, random, args.seconds);
        bar.inc(1);
        point
    };
    Ok([point(SMALL, 1, true)?, point(SMALL, DEPTH, true)?, point(LARGE, 1, false)?, written])
}

/// PEM text in memory, under a path that the processes of this user can open for as long as we run.
struct MemoryFile {
    file: std::fs::File,
}

impl MemoryFile {
    fn new(text: &str) -> Result<MemoryFile, Failure> {
        let fd = rustix::fs::memfd_create("farpool-bench", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = std::fs::File::from(fd.map_err(Failure::failed)?);
        file.write_all(text.as_bytes())?;
        Ok(MemoryFile { file })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// A certificate that lasts as long as its user, as flags of our own commands.
struct Certificate {
    files: [MemoryFile; 3],
}

impl Certificate {
    fn issue(authority: &Authority, identity: &Identity) -> Result<Certificate, Failure> {
        let issued = authority.issue(identity, 1)?;
        let files = [&authority.pem, &issued.cert, &issued.key];
        let [ca, cert, key] = files.map(|text| MemoryFile::new(text));
        Ok(Certificate { files: [ca?, cert?, key?] })
    }

    fn flags(&self) -> Vec<String> {
        let named = ["--tls-ca", "--tls-cert", "--tls-key"].into_iter().zip(&self.files);
        named.flat_map(|(flag, file)| [flag.to_owned(), file.path()]).collect()
    }

    fn load(&self) -> Result<Tls, Failure> {
        let [ca, cert, key] = &self.files;
        let files = TlsFiles { ca: ca.path().into(), cert: cert.path().into(), key: key.path().into() };
        Tls::load(&files).map_err(Failure::failed)
    }
}

/// A broker and a node, started for the measurement. The node goes first.
struct Cluster {
    _node: Server,
    _broker: Server,
    url: String,
    tls: Option<Tls>,
}

impl Cluster {
    fn start(args: &IoArgs, with_tls: bool) -> Result<Cluster, Failure> {
        const NODE: &str = "bench";
        let certificates = if with_tls {
            let authority = Authority::new(1)?;
            let node = Identity::Node(farpool_node::node_id(NODE));
            let issue = |identity: &Identity| Certificate::issue(&authority, identity);
            Some((issue(&Identity::Broker)?, issue(&node)?, issue(&Identity::Admin)?))
        } else {
            None
        };
        let start = |flags: &[&str], certificate: Option<&Certificate>| {
            let more = certificate.map(Certificate::flags).unwrap_or_default();
            let all: Vec<&str> = flags.iter().copied().chain(more.iter().map(String::as_str)).collect();
            start(&all)
        };
        let certificate = certificates.as_ref();
        let (broker, url) =
            start(&["broker", "--listen", "127.0.0.1:0"], certificate.map(|(broker, ..)| broker))?;
        // Room for one file at a time, and for what is being wiped behind it.
        let memory = format!("{}", (args.size * 2).next_multiple_of(64 << 20) + (256 << 20));
        let node = ["node", "--name", NODE, "--memory", &memory, "--broker", &url];
        let (node, _) = start(&node, certificate.map(|(_, node, _)| node))?;
        let tls = certificate.map(|(.., admin)| admin.load()).transpose()?;
        Ok(Cluster { _node: node, _broker: broker, url, tls })
    }
}

fn bench_io(args: &IoArgs) -> Outcome {
    let plain = Cluster::start(args, false)?;
    let secured = if args.tls { Some(Cluster::start(args, true)?) } else { None };
    let (shm, tcp) = (TransportChoice::Shm, TransportChoice::Tcp);
    let mut targets = vec![("shm", shm, &plain, false), ("tcp", tcp, &plain, false)];
    targets.extend(secured.iter().map(|secured| ("tcp+tls", tcp, secured, false)));
    if args.sealed {
        targets.extend([("shm, sealed", shm, &plain, true), ("tcp, sealed", tcp, &plain, true)]);
        targets.extend(secured.iter().map(|secured| ("tcp+tls, sealed", tcp, secured, true)));
    }
    let names: Vec<&str> = ["memcpy"].into_iter().chain(targets.iter().map(|(name, ..)| *name)).collect();
    let bar = ProgressBar::new((args.rounds * names.len() * 3) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let mut rounds: Vec<Vec<[Point; 4]>> = Vec::new();
    let mut local = Local(vec![0; args.size as usize]);
    fill_all(&mut local, args.size)?;
    for _ in 0..args.rounds {
        bar.set_message("memcpy");
        let written = fill_all(&mut local, args.size)?;
        let mut round = vec![measure_all(&mut local, written, args, &bar)?];
        for (name, transport, cluster, sealed) in &targets {
            bar.set_message(*name);
            let options = PoolOptions {
                transport: *transport,
                tls: cluster.tls.clone(),
                label: Some("farpool bench".into()),
                ..PoolOptions::default()
            };
            let pool = connect(&cluster.url, &options, args.size)?;
            let mut file = pool.create(
                "bench",
                FileClass::Scratch,
                CreateOptions {
                    size_hint: args.size,
                    protection: Some(Protection::None),
                    sealed: Some(*sealed),
                },
            )?;
            let written = fill_all(&mut file, args.size)?;
            round.push(measure_all(&mut file, written, args, &bar)?);
            pool.close();
        }
        rounds.push(round);
    }
    bar.finish_and_clear();
    let median = |target: usize, point: usize, field: fn(&Point) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(|round| field(&round[target][point])).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let mut rows = Vec::new();
    let mut machine_rows = Vec::new();
    for (point, label) in POINTS.iter().enumerate() {
        let base = median(0, point, |point| point.gb_per_s);
        for (target, name) in names.iter().enumerate() {
            let (p50, p99) =
                (median(target, point, |point| point.p50_us), median(target, point, |point| point.p99_us));
            let rate = median(target, point, |point| point.gb_per_s);
            rows.push(vec![
                (*label).to_owned(),
                (*name).to_owned(),
                format!("{p50:.1}"),
                format!("{p99:.1}"),
                format!("{rate:.2}"),
                format!("{:.2}", rate / base),
            ]);
            machine_rows.push(json!({
                "point": label, "target": name, "p50_us": p50, "p99_us": p99, "gb_per_s": rate, "of_memcpy": rate / base,
            }));
        }
    }
    let machine = machine();
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(
            out,
            "{}",
            json!({ "machine": machine, "size_bytes": args.size, "rounds": args.rounds, "points": machine_rows })
        )?;
    } else {
        for line in table::lines(&["access", "to", "p50 us", "p99 us", "GB/s", "of memcpy"], &rows) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "{} file, median of {} rounds, every byte checked. {machine}",
            show_bytes(args.size),
            args.rounds
        )?;
        writeln!(out, "tcp is loopback, not a network; at depth 64 the times are of a whole batch.")?;
        if args.sealed {
            writeln!(out, "Sealed is AES-256-GCM by the client, in pages of 4 KiB.")?;
        }
        if args.tls {
            writeln!(out, "tls is mutual TLS 1.3 with AES-128-GCM; shm never leaves the host and has none.")?;
        }
    }
    Ok(())
}

/// Connects once the node has joined with this much free.
fn connect(url: &str, options: &PoolOptions, bytes: u64) -> Result<Pool, Failure> {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        let pool = Pool::connect_with(url, options.clone())?;
        let free: u64 = pool
            .status()?
            .nodes
            .iter()
            .map(|node| u64::from(node.counts.free) * node.info.region_bytes)
            .sum();
        if free >= bytes {
            return Ok(pool);
        }
        if Instant::now() > give_up {
            return Err(Failure::failed("the node did not join the pool"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One line that says what was measured on.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown CPU");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cpus} x {}, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}
