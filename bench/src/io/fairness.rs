//! `farpool bench fairness`: throughput of modest clients (one outstanding read each) of a node that a greedy client
//! (many outstanding reads) keeps busy.
//!
//! Broker and node are separate processes. Each client is a session of its own in this process. Every byte that is read
//! is compared with what was written. Clients, node and kernel share the CPUs of this machine, so the kernel's
//! scheduler takes part in the sharing.

use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::harness::processes::start;
use crate::{Outcome, table};
use farpool::{
    CreateOptions, FarFile, FileClass, Pool, PoolOptions, Protection, ReadRange, TransportChoice, WriteRange,
};
use serde_json::json;
use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench fairness --seconds 3")]
pub(crate) struct FairnessArgs {
    /// Modest clients: clients with one outstanding read of 8 KiB each
    #[arg(long, default_value_t = 7)]
    modest: usize,
    /// Outstanding reads of 8 KiB of the greedy client
    #[arg(long, default_value_t = 128)]
    depth: usize,
    /// Connections of the greedy client
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Seconds per measured point
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bandwidth limit of the node; with it the clients share the node rather than the CPUs of this machine
    #[arg(long, value_name = "SIZE/s")]
    bandwidth_limit: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const READ_BYTES: usize = 8 << 10;
const FILE_BYTES: usize = 16 << 20;

/// Reads per second of each client, in the order of the clients.
type Rates = Vec<f64>;

pub(crate) fn run(args: &FairnessArgs) -> Outcome {
    if !(1..=64).contains(&args.modest)
        || !(1..=4_096).contains(&args.depth)
        || !(1..=args.depth.min(64)).contains(&args.connections)
        || !(0.05..=600.0).contains(&args.seconds)
        || !(1..=100).contains(&args.rounds)
    {
        return Err(Failure::Usage(format!(
            "--modest {} --depth {} --connections {} --seconds {} --rounds {}: 1 to 64 clients, a depth of 1 to 4096, \
             1 to 64 connections but no more than the depth, 0.05 to 600 seconds and 1 to 100 rounds are permitted",
            args.modest, args.depth, args.connections, args.seconds, args.rounds
        )));
    }
    let (_broker, url) = start(&["broker", "--listen", "127.0.0.1:0"])?;
    let fixed = ["--name", "bench", "--memory", "1GiB", "--region-size", "16MiB", "--no-reserve"];
    let fixed = fixed.into_iter().chain(["--no-lock", "--no-shm"]);
    let limit = args.bandwidth_limit.iter().flat_map(|rate| ["--bandwidth-limit", rate.as_str()]);
    let node: Vec<&str> = ["node", "--broker", &url].into_iter().chain(fixed).chain(limit).collect();
    let (_node, _) = start(&node)?;
    let clients: Vec<(Pool, FarFile)> =
        (0..=args.modest).map(|_| client(&url)).collect::<Result<_, Failure>>()?;
    let ((_, greedy), modest) = clients.split_first().ok_or_else(|| Failure::failed("no client"))?;
    let seconds = Duration::from_secs_f64(args.seconds);
    let greedy = Client { file: greedy, threads: args.connections, depth: args.depth / args.connections };
    let modest: Vec<Client<'_>> =
        modest.iter().map(|(_, file)| Client { file, threads: 1, depth: 1 }).collect();
    let all = [&[greedy][..], &modest[..]].concat();
    let peers = [&[Client { threads: 1, depth: 1, ..greedy }][..], &modest[..]].concat();
    let (mut alone, mut greedy_alone, mut together) = (Vec::new(), Vec::new(), Vec::new());
    let mut among_peers = Vec::new();
    for _ in 0..args.rounds {
        among_peers.push(measure(&peers, seconds)?.iter().sum::<f64>() / peers.len() as f64);
        alone.extend(measure(&modest[..1], seconds)?);
        greedy_alone.extend(measure(&[greedy], seconds)?);
        together.push(measure(&all, seconds)?);
    }
    let alone = Alone {
        modest: median(&mut alone),
        greedy: median(&mut greedy_alone),
        peers: median(&mut among_peers),
    };
    report(args, &alone, &together)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Reads per second of a client without clients of the other kind. `modest` and `greedy` had the node for themselves.
struct Alone {
    modest: f64,
    greedy: f64,
    /// Mean reads per second of a client if the greedy client also has only one outstanding read. This is its fair
    /// share of the machine in single reads. A single read costs several times as much as a read in a batch.
    peers: f64,
}

fn report(args: &FairnessArgs, alone: &Alone, together: &[Rates]) -> Outcome {
    let of_client =
        |client: usize| median(&mut together.iter().map(|rates| rates[client]).collect::<Vec<_>>());
    let rates: Rates = (0..=args.modest).map(of_client).collect();
    let equal = rates.iter().sum::<f64>() / rates.len() as f64;
    let mean = rates[1..].iter().sum::<f64>() / args.modest as f64;
    let least = rates[1..].iter().copied().fold(f64::MAX, f64::min);
    let by_reads = least / equal.min(alone.modest);
    let by_machine = least / alone.peers.min(alone.modest);
    let mut out = std::io::stdout().lock();
    if args.json {
        let figures = json!({
            "machine": machine(), "rounds": args.rounds, "modest": args.modest, "depth": args.depth,
            "connections": args.connections, "bandwidth_limit": args.bandwidth_limit,
            "modest_alone_per_s": alone.modest, "modest_among_peers_per_s": alone.peers,
            "greedy_alone_per_s": alone.greedy, "greedy_per_s": rates[0], "modest_per_s": rates[1..],
            "equal_reads_per_s": equal, "least_of_equal_reads": by_reads, "least_of_equal_machine": by_machine,
        });
        writeln!(out, "{figures}")?;
        return Ok(());
    }
    let row = |what: &str, rate: f64| vec![what.to_owned(), format!("{rate:.0}")];
    let rows = [
        row("greedy, alone", alone.greedy),
        row("modest, alone", alone.modest),
        row(&format!("modest, one of {}", args.modest + 1), alone.peers),
        row("greedy, beside the modest", rates[0]),
        row("modest, beside the greedy: mean", mean),
        row("modest, beside the greedy: least", least),
        row("an equal share of these reads", equal),
    ];
    for line in table::lines(&["client", "reads/s"], &rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "The slowest modest client got {by_reads:.2} of an equal share of the reads, and {by_machine:.2} of what \
         it gets among clients like it (or alone, if that is less)."
    )?;
    writeln!(out, "Medians of {} rounds. {}", args.rounds, machine())?;
    Ok(())
}

/// Opens a session with a new file for one client. Each 8-byte word of the file is the value of [`word`] at its offset.
fn client(url: &str) -> Result<(Pool, FarFile), Failure> {
    let options = PoolOptions {
        transport: TransportChoice::Tcp,
        protection: Some(Protection::None),
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(url, options)?;
    let file = pool.create("bench", FileClass::Scratch, CreateOptions::default())?;
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..FILE_BYTES as u64).step_by(bytes.len()) {
        for (at, word_bytes) in (offset..).step_by(8).zip(bytes.chunks_exact_mut(8)) {
            word_bytes.copy_from_slice(&word(at).to_le_bytes());
        }
        file.write_batch(&[WriteRange { offset, from: &bytes }])?;
    }
    Ok((pool, file))
}

fn word(offset: u64) -> u64 {
    (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Client: the file that it reads, and its number of threads.
#[derive(Clone, Copy)]
struct Client<'f> {
    file: &'f FarFile,
    threads: usize,
    /// Outstanding reads of each thread.
    depth: usize,
}

/// Runs all clients at once. Returns the reads per second of each.
fn measure(clients: &[Client<'_>], seconds: Duration) -> Result<Rates, Failure> {
    let threads: usize = clients.iter().map(|client| client.threads).sum();
    let (begin, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for (index, client) in clients.iter().enumerate() {
            for thread in 0..client.threads {
                let (begin, over, seed) = (&begin, &over, (index * 64 + thread) as u64);
                readers.push((
                    index,
                    scope.spawn(move || {
                        begin.wait();
                        read(client, seed, over)
                    }),
                ));
            }
        }
        begin.wait();
        let begun = Instant::now();
        std::thread::sleep(seconds);
        over.store(true, Ordering::Relaxed);
        let took = begun.elapsed().as_secs_f64();
        let mut rates = vec![0.0; clients.len()];
        for (index, reader) in readers {
            rates[index] += reader.join().map_err(|_| Failure::failed("a client panicked"))?? as f64 / took;
        }
        Ok(rates)
    })
}

/// Reads at random offsets until `over` is set, and checks the bytes. Returns the number of reads.
fn read(client: &Client<'_>, seed: u64, over: &AtomicBool) -> Result<u64, Failure> {
    let mut random = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut buffer = vec![0; READ_BYTES * client.depth];
    let mut offsets = vec![0; client.depth];
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        for offset in &mut offsets {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *offset = random % (FILE_BYTES / READ_BYTES) as u64 * READ_BYTES as u64;
        }
        let pieces = offsets.iter().zip(buffer.chunks_exact_mut(READ_BYTES));
        let mut ranges: Vec<ReadRange<'_>> =
            pieces.map(|(offset, into)| ReadRange { offset: *offset, into }).collect();
        client.file.read_batch(&mut ranges)?;
        for range in &ranges {
            let found = (range.offset..).step_by(8).zip(range.into.chunks_exact(8));
            if let Some((at, found)) =
                found.into_iter().find(|(at, found)| **found != word(*at).to_le_bytes())
            {
                return Err(Failure::Failed(format!("WRONG BYTES at {at}: {found:02x?}")));
            }
        }
        count += client.depth as u64;
    }
    Ok(count)
}
