//! `farpool bench cache`: random reads of a file four times the size of local memory, from a disk and through a cache
//! in far memory (paper 000, "Accelerating Relational Databases by Leveraging Remote Memory and RDMA", section 3.1).
//!
//! There is one cache for each transport to far memory. A first pass over the file fills the caches. Then the same
//! random reads go in turns to the file, by direct I/O, and to each cache. Every byte that is read is compared with the
//! expected one, outside the timed part.

use crate::exit::Failure;
use crate::harness::contents::Contents;
use crate::harness::machine::machine;
use crate::harness::mixing::mix;
use crate::harness::pools::{Cluster, Room, wait_quiet};
use crate::harness::statistics::{median, quantiles};
use crate::units::{bytes, show_bytes};
use crate::{Outcome, table};
use bytes::Bytes;
use farpool::TransportChoice;
use farpool_cache::{BlockCache, CacheOptions, Counts, Version};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::OFlags;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench cache --size 1GiB --folder /var/tmp")]
pub(crate) struct CacheArgs {
    /// Size of the file
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "1GiB")]
    size: u64,
    /// Size of local memory [default: a quarter of the file]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    near: Option<u64>,
    /// Block size of the cache, and size of each read
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "8KiB")]
    block: u64,
    /// Directory for the file, on the disk to compare with
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Reads per round, from the disk and from each cache
    #[arg(long, default_value_t = 100_000)]
    reads: u64,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Alignment that direct I/O requires of buffers and offsets, in bytes.
const ALIGNMENT: usize = 4096;
const TRANSPORTS: [(&str, TransportChoice); 2] =
    [("tcp", TransportChoice::Tcp), ("shm", TransportChoice::Shm)];

/// File that is read by direct I/O, and its expected contents.
struct Disk {
    file: File,
    contents: Contents,
    block_bytes: usize,
    buffer: Vec<u8>,
}

impl Disk {
    fn create(args: &CacheArgs, bar: &ProgressBar) -> Result<Disk, Failure> {
        let path = args.folder.join(format!("farpool-bench-cache-{}", std::process::id()));
        let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
        let file = options.open(&path).map_err(failed)?;
        // An unlinked file is gone however this process ends.
        std::fs::remove_file(&path).map_err(failed)?;
        let block_bytes = args.block as usize;
        let buffer = vec![0; block_bytes + ALIGNMENT];
        let mut disk = Disk { file, contents: Contents::new(args.size, 0), block_bytes, buffer };
        for block in 0..args.size / args.block {
            let at = disk.aligned();
            disk.contents.fill(0, block * args.block, &mut disk.buffer[at..at + block_bytes]);
            disk.file.write_all_at(&disk.buffer[at..at + block_bytes], block * args.block).map_err(failed)?;
            bar.inc(1);
        }
        disk.file.sync_all().map_err(failed)?;
        Ok(disk)
    }

    fn aligned(&self) -> usize {
        self.buffer.as_ptr().align_offset(ALIGNMENT)
    }

    fn read(&mut self, block: u64) -> Result<&[u8], Failure> {
        let at = self.aligned();
        let into = &mut self.buffer[at..at + self.block_bytes];
        self.file.read_exact_at(into, block * self.block_bytes as u64)?;
        Ok(into)
    }

    fn check(&self, block: u64, found: &[u8]) -> Result<(), Failure> {
        self.contents.check(block * self.block_bytes as u64, found)
    }
}

/// Cache in far memory for the file, and its results: the times of a read in us, by round (`medians`, `means`, and the
/// 99th percentiles in `tails`).
struct Cached {
    name: &'static str,
    cache: BlockCache,
    version: Version,
    /// Shares of reads served by local memory, by far memory and by the file, for each round.
    shares: Vec<[f64; 3]>,
    medians: Vec<f64>,
    means: Vec<f64>,
    tails: Vec<f64>,
}

impl Cached {
    fn read(&self, disk: &mut Disk, block: u64) -> Result<Bytes, Failure> {
        if let Some(found) = self.cache.get(self.version, block) {
            return Ok(found);
        }
        let bytes = Bytes::copy_from_slice(disk.read(block)?);
        self.cache.put(self.version, block, bytes.clone());
        Ok(bytes)
    }
}

fn check(args: &CacheArgs) -> Result<u64, Failure> {
    let near = args.near.unwrap_or(args.size / 4);
    let is_block = args.block.is_power_of_two() && (4 << 10..=4 << 20).contains(&args.block);
    if !is_block || args.size < 4 * args.block || !args.size.is_multiple_of(args.block) {
        return Err(Failure::Usage(format!(
            "--size {} --block {}: blocks of a power of two from 4KiB to 4MiB, and at least four of them, are permitted",
            args.size, args.block
        )));
    }
    if !(1..=100).contains(&args.rounds) || !(1_000..=10_000_000).contains(&args.reads) {
        return Err(Failure::Usage(format!(
            "--rounds {} --reads {}: 1 to 100 rounds and 1000 to 10000000 reads are permitted",
            args.rounds, args.reads
        )));
    }
    Ok(near)
}

pub(crate) fn run(args: &CacheArgs) -> Outcome {
    let near_bytes = check(args)?;
    let blocks = args.size / args.block;
    let fills = blocks * (1 + TRANSPORTS.len() as u64);
    let bar = ProgressBar::new(fills + args.rounds * args.reads * (1 + TRANSPORTS.len() as u64));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent}% {msg}") {
        bar.set_style(style);
    }
    bar.set_message("writing the file");
    let mut disk = Disk::create(args, &bar)?;
    let cluster = Cluster::start(Room { bytes: args.size * 2, clients: 2, nodes: 1 }, &[])?;
    let mut ways = Vec::new();
    for (name, transport) in TRANSPORTS {
        let pool = cluster.session(transport, args.size)?;
        let options = CacheOptions {
            block_bytes: args.block as usize,
            near_bytes,
            far_bytes: args.size + args.size / 8,
            ..CacheOptions::default()
        };
        let cache = BlockCache::new(&options, Some(&pool)).map_err(Failure::failed)?;
        let version = cache.new_version();
        let (shares, medians, means, tails) = Default::default();
        ways.push(Cached { name, cache, version, shares, medians, means, tails });
    }
    for way in &ways {
        bar.set_message(format!("first pass, {}", way.name));
        for block in 0..blocks {
            let found = way.read(&mut disk, block)?;
            disk.check(block, &found)?;
            way.cache.settle();
            bar.inc(1);
        }
    }
    let mut direct = [Vec::new(), Vec::new(), Vec::new()];
    let quantiles_us = |times: &mut [Duration]| {
        let mean = times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64;
        let [p50, .., p99, _] = quantiles(times);
        [p50, mean, p99]
    };
    for round in 0..args.rounds {
        let offsets = || (0..args.reads).map(move |read| mix(round << 40 | read) % blocks);
        bar.set_message(format!("round {}: direct disk", round + 1));
        let mut times = Vec::with_capacity(args.reads as usize);
        for block in offsets() {
            let begun = Instant::now();
            disk.read(block)?;
            times.push(begun.elapsed());
            let at = disk.aligned();
            disk.check(block, &disk.buffer[at..at + disk.block_bytes])?;
            bar.inc(1);
        }
        for (all, one) in direct.iter_mut().zip(quantiles_us(&mut times)) {
            all.push(one);
        }
        for way in &mut ways {
            bar.set_message(format!("round {}: through a cache, {}", round + 1, way.name));
            wait_quiet(cluster.pids(), cluster.patience())?;
            let before = way.cache.counts();
            times.clear();
            for block in offsets() {
                let begun = Instant::now();
                let found = way.read(&mut disk, block)?;
                times.push(begun.elapsed());
                disk.check(block, &found)?;
                bar.inc(1);
            }
            let Counts { near_hits, far_hits, misses, .. } = way.cache.counts().since(before);
            way.shares.push([near_hits, far_hits, misses].map(|hits| hits as f64 / args.reads as f64));
            let [p50, mean, p99] = quantiles_us(&mut times);
            way.medians.push(p50);
            way.means.push(mean);
            way.tails.push(p99);
        }
    }
    bar.finish_and_clear();
    let direct = direct.map(|all| median(all.into_iter()));
    show(args, near_bytes, direct, &ways)
}

fn show(args: &CacheArgs, near_bytes: u64, direct: [f64; 3], ways: &[Cached]) -> Outcome {
    let of = |values: &[f64]| median(values.iter().copied());
    let mut out = std::io::stdout().lock();
    let figures = ways.iter().map(|way| {
        let shares = [0, 1, 2].map(|at| median(way.shares.iter().map(|shares| shares[at])));
        (way.name, [of(&way.medians), of(&way.means), of(&way.tails)], shares)
    });
    if args.json {
        let each: Vec<_> = figures
            .map(|(name, [p50, mean, p99], [near, far, missed])| {
                json!({
                    "way": name, "p50_us": p50, "mean_us": mean, "p99_us": p99, "near": near, "far": far,
                    "missed": missed, "disk_over_this": direct[1] / mean,
                })
            })
            .collect();
        let told = json!({
            "machine": machine(), "size": args.size, "near": near_bytes, "block": args.block, "reads": args.reads,
            "rounds": args.rounds, "direct_us": { "p50": direct[0], "mean": direct[1], "p99": direct[2] }, "ways": each,
        });
        writeln!(out, "{told}")?;
        return Ok(());
    }
    let time = |us: f64| format!("{us:.1}");
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let mut rows = vec![vec![
        "direct disk".to_owned(),
        time(direct[0]),
        time(direct[1]),
        time(direct[2]),
        "1.00".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        "100 %".to_owned(),
    ]];
    rows.extend(figures.map(|(name, [p50, mean, p99], [near, far, missed])| {
        let ratio = format!("{:.2}", direct[1] / mean);
        let name = format!("through a cache, {name}");
        vec![name, time(p50), time(mean), time(p99), ratio, share(near), share(far), share(missed)]
    }));
    let heads = ["random reads", "p50 us", "mean us", "p99 us", "disk/this", "near", "far", "disk"];
    for line in table::lines(&heads, &rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(
        out,
        "\n{} in blocks of {}, {} of local memory; medians of {} rounds of {} reads, one at a time, each byte checked. {}",
        show_bytes(args.size),
        show_bytes(args.block),
        show_bytes(near_bytes),
        args.rounds,
        args.reads,
        machine()
    )?;
    Ok(())
}
