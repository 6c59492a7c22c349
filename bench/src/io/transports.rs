//! `farpool bench io`: far reads and writes over each transport, beside memcpy and rival systems such as Redis. All
//! that are measured and compared are called contenders; memcpy is the first of them.
//!
//! Brokers, nodes and rivals are separate processes. Clients are threads with a session each; those of some rivals are
//! processes. Loopback is not a network: the results show the cost of the code, without the delay of a wire.

use super::contenders::{Asked, Cast, Contender, Stage, contenders};
use super::empty_rpc;
use super::report::{self, Idle, Report, Row};
use super::rivals::{Rival, Word, asked_for, parse_rival};
use crate::exit::Failure;
use crate::harness::access::{ACCESSES, Access, LARGE, SMALL, UNDER_WAY_BYTES_MAX, parse_access};
use crate::harness::contents::Hash;
use crate::harness::cpu::{Ran, process_ns};
use crate::harness::machine::{cpus, machine};
use crate::harness::measure::{Measured, Until, Work, measure};
use crate::harness::pools::{Cluster, Existing};
use crate::harness::shape::parse_shape;
use crate::harness::statistics::{Figures, median};
use crate::signals::Stop;
use crate::units::{self, show_bytes};
use crate::{Outcome, exposure};
use farpool_host::waiting::{self, Waiting};
use farpool_transport::Exposure;
use farpool_transport::shaped::LinkShape;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  farpool bench io\n  \
    farpool bench io --depths 1,16,64,128 --clients 1,2,4 --nodes 1,2,4 --json | bench/drawing.py io > growth.svg\n  \
    farpool bench io --beside redis,memcached,tmpfs,disk,fuse --json")]
pub(crate) struct IoArgs {
    /// Size of the far files of all clients together
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "512MiB")]
    size: u64,
    /// Seconds per measured point
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds, each of which measures every point once; the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Accesses to measure [default: all]
    #[arg(long, value_name = "ACCESS", value_delimiter = ',', value_parser = parse_access)]
    access: Vec<Access>,
    /// Queue depths: outstanding operations per client; combinations of more than 8 MiB in flight are skipped
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64")]
    depths: Vec<usize>,
    /// Numbers of concurrent clients, each with a session and a file of its own
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    clients: Vec<u64>,
    /// Numbers of memory nodes
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", conflicts_with = "pool")]
    nodes: Vec<u64>,
    /// Seed of the random offsets: equal seeds give equal work
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rivals to measure as well: redis, memcached, tmpfs, disk, fuse, tokio, libfabric (or one of its providers:
    /// libfabric-net, libfabric-rxm, libfabric-shm)
    #[arg(long, value_name = "RIVAL", value_delimiter = ',', value_parser = parse_rival)]
    beside: Vec<Word>,
    /// Directory for the file of `--beside disk`
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: PathBuf,
    /// Also measure TCP with TLS, with certificates that are made for this run and kept in memory
    #[arg(long, conflicts_with = "pool")]
    tls: bool,
    /// Also measure encrypted files: each page is encrypted and authenticated before it leaves the client
    #[arg(long)]
    encrypted: bool,
    /// Also measure TCP over an emulated link, with this latency in microseconds and bandwidth in Gbit/s
    #[arg(long, value_name = "LATENCY_US,GBIT", value_parser = parse_shape)]
    shape: Option<LinkShape>,
    /// Measure an existing pool, over TCP, instead of starting one
    #[arg(long, value_name = "farpool://HOST:PORT")]
    pool: Option<String>,
    /// Allow connections to other machines without encryption or authentication, with --pool
    #[arg(long, requires = "pool")]
    plaintext: bool,
    /// Process ids of the nodes of --pool on this machine, to measure their CPU time
    #[arg(long, value_name = "PID", value_delimiter = ',', requires = "pool")]
    node_pid: Vec<u32>,
    /// Waiting mode of client and nodes: adaptive, spin or park
    #[arg(long, value_name = "HOW", value_parser = units::waiting, default_value = "adaptive", conflicts_with = "pool")]
    waiting: Waiting,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl IoArgs {
    fn asked(&self) -> Asked {
        Asked {
            is_existing: self.pool.is_some(),
            with_tls: self.tls,
            encrypted: self.encrypted,
            shape: self.shape,
        }
    }
}

/// First write of a file, before the measured accesses. [`FIRST_WRITE_OF_KEYS`] is that of a key-value store.
const FIRST_WRITE: Access = Access {
    name: "512 KiB first writes",
    word: "512k-first-write",
    block: LARGE,
    is_random: false,
    is_write: true,
};
const FIRST_WRITE_OF_KEYS: Access = Access { block: SMALL, ..FIRST_WRITE };
const KEYS_AT_ONCE: usize = 64;
const IDLE: Duration = Duration::from_secs(2);

/// Numbers of nodes and clients that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crowd {
    nodes: u64,
    clients: u64,
}

/// Row of the report. The fields are indices into the lists of [`Run`]; `access` is an index into [`ACCESSES`] (its
/// length for the first write), and `depth` the number of outstanding operations per client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    crowd: usize,
    access: usize,
    depth: usize,
    contender: usize,
}

struct Run<'a> {
    args: &'a IoArgs,
    contenders: Vec<Contender>,
    rivals: Vec<Rival>,
    crowds: Vec<Crowd>,
    accesses: Vec<Access>,
    depths: Vec<usize>,
    stage: Stage,
    /// SIGINT or SIGTERM ends the run after the current measurement. The processes that the run started end with it.
    stop: Stop,
    bar: ProgressBar,
    found: BTreeMap<Key, Vec<Figures>>,
    /// Hash of the operations of the transport or system that was measured first, by round and by the fields of [`Key`]
    /// without `contender`. All others must have done the same operations.
    hashes: BTreeMap<(usize, usize, usize, usize), Hash>,
    idle: Vec<Idle>,
    empty: Vec<[f64; 4]>,
}

pub(crate) fn run(args: &IoArgs) -> Outcome {
    check(args)?;
    waiting::choose(args.waiting);
    let mut run = Run::prepare(args)?;
    for round in 0..args.rounds {
        run.round(round)?;
    }
    run.bar.finish_and_clear();
    let report = run.report();
    if args.json { report::show_json(&report) } else { report::show(&report) }
}

fn check(args: &IoArgs) -> Outcome {
    let within = |flag: &str, values: &[u64], max: u64| match values
        .iter()
        .find(|value| !(1..=max).contains(*value))
    {
        Some(wrong) => Err(Failure::Usage(format!("--{flag} {wrong}: 1 to {max} are permitted"))),
        None => Ok(()),
    };
    let depths: Vec<u64> = args.depths.iter().map(|depth| *depth as u64).collect();
    within("depths", &depths, (UNDER_WAY_BYTES_MAX / SMALL) as u64)?;
    within("clients", &args.clients, 64)?;
    within("nodes", &args.nodes, 64)?;
    let most = args.clients.iter().max().copied().unwrap_or(1);
    let least = most * (LARGE * 4) as u64;
    if args.size < least || args.size > 64 << 30 {
        return Err(Failure::Usage(format!(
            "--size {}: {} to 64GiB are permitted for {most} clients",
            show_bytes(args.size),
            show_bytes(least)
        )));
    }
    if !(0.01..=600.0).contains(&args.seconds) || !(1..=100).contains(&args.rounds) {
        return Err(Failure::Usage(format!(
            "--seconds {} --rounds {}: 0.01 to 600 seconds and 1 to 100 rounds are permitted",
            args.seconds, args.rounds
        )));
    }
    if let Some(url) = &args.pool {
        // The session decides later whether a connection without TLS is permitted.
        exposure::brokers_of("--pool", url, &Exposure { tls: None, plaintext: true })?;
    }
    Ok(())
}

/// Sorts the values and removes duplicates.
fn sorted<T: Ord + Copy>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

impl<'a> Run<'a> {
    fn prepare(args: &'a IoArgs) -> Result<Run<'a>, Failure> {
        let stop = Stop::catch()?;
        let (clients, nodes) = (sorted(&args.clients), sorted(&args.nodes));
        let most = clients.last().copied().unwrap_or(1);
        let asked = args.asked();
        let mut stage = match &args.pool {
            Some(url) => {
                let pool = Existing { url, plaintext: args.plaintext, pids: &args.node_pid };
                Stage::existing(Cluster::existing(pool), nodes[0])
            }
            None => Stage::start(args.size, most, &nodes, asked)?,
        };
        let rivals = asked_for(&args.beside);
        stage.add_rivals(&rivals, args.size, &args.disk)?;
        let crowds = nodes
            .iter()
            .flat_map(|nodes| clients.iter().map(|clients| Crowd { nodes: *nodes, clients: *clients }));
        let accesses: Vec<Access> =
            ACCESSES.into_iter().filter(|one| args.access.is_empty() || args.access.contains(one)).collect();
        let mut run = Run {
            args,
            contenders: contenders(asked, &rivals),
            rivals,
            crowds: crowds.collect(),
            accesses,
            depths: sorted(&args.depths),
            stage,
            stop,
            bar: ProgressBar::hidden(),
            found: BTreeMap::new(),
            hashes: BTreeMap::new(),
            idle: Vec::new(),
            empty: Vec::new(),
        };
        let points: usize = run.accesses.iter().map(|access| run.depths_of(access).len()).sum();
        let series: usize = (0..run.crowds.len()).map(|crowd| run.measured_in(crowd).len()).sum();
        run.bar = ProgressBar::new((args.rounds * points * series) as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
            run.bar.set_style(style);
        }
        Ok(run)
    }

    fn depths_of(&self, access: &Access) -> Vec<usize> {
        let fits = |depth: &usize| depth * access.block <= UNDER_WAY_BYTES_MAX;
        self.depths.iter().copied().filter(fits).collect()
    }

    /// Returns the indices of the transports and systems that are measured with the numbers of nodes and clients of
    /// `crowd`. Systems without nodes are measured with the first number of nodes only. The exception is memcpy
    /// (index 0), to which all results are compared.
    fn measured_in(&self, crowd: usize) -> Vec<usize> {
        let is_first = self.crowds[crowd].nodes == self.crowds[0].nodes;
        let wanted = |(index, contender): (usize, &Contender)| {
            (index == 0 || contender.has_nodes() || is_first).then_some(index)
        };
        self.contenders.iter().enumerate().filter_map(wanted).collect()
    }

    fn round(&mut self, round: usize) -> Outcome {
        self.bar.set_message("empty round trips");
        if cpus() > 1 {
            self.empty.push(empty_rpc::measure(self.args.seconds.min(1.0))?);
        }
        for crowd in 0..self.crowds.len() {
            for contender in self.measured_in(crowd) {
                self.bar.set_message(self.contenders[contender].name);
                for block in [SMALL, LARGE] {
                    if self.accesses.iter().any(|access| access.block == block) {
                        self.series(round, crowd, contender, block)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Measures all accesses of one block size at all depths, on files that are created for them.
    fn series(&mut self, round: usize, crowd: usize, contender: usize, block: usize) -> Outcome {
        self.stage.wait_quiet()?;
        let Crowd { nodes, clients } = self.crowds[crowd];
        let bytes = self.args.size / clients / LARGE as u64 * LARGE as u64;
        let mut cast = self.stage.open(&self.contenders[contender], nodes, clients as usize, bytes)?;
        let work = |access, depth, until, write_number| Work {
            access,
            depth,
            until,
            seed: self.args.seed,
            round: round as u64,
            write_number,
        };
        // A key-value store can only read blocks of the size in which they were written, so small blocks are stored one
        // by one.
        let by_key = cast.is_by_key && block == SMALL;
        let (first, first_depth) =
            if by_key { (FIRST_WRITE_OF_KEYS, KEYS_AT_ONCE) } else { (FIRST_WRITE, 1) };
        let written = perform(&mut cast, work(first, first_depth, Until::Once, 0))?;
        if block == LARGE {
            self.note(Key { crowd, access: ACCESSES.len(), depth: 1, contender }, &written);
        }
        let mut number = 0;
        for (index, access) in ACCESSES.into_iter().enumerate().filter(|(_, access)| access.block == block) {
            if !self.accesses.contains(&access) {
                continue;
            }
            for depth in self.depths_of(&access) {
                number += 1;
                let until = Until::Seconds(self.args.seconds);
                let measured = perform(&mut cast, work(access, depth, until, number))?;
                let key = Key { crowd, access: index, depth, contender };
                self.note(key, &measured);
                self.compare(round, key, measured.hash)?;
                self.bar.inc(1);
                self.stop.check()?;
            }
        }
        let once = Access { is_write: false, ..first };
        // Reads the whole file and checks every byte, so that the writes are checked too.
        perform(&mut cast, work(once, first_depth, Until::Once, 0))?;
        if round == 0 && crowd == 0 && !cast.servers.pids.is_empty() && !self.has_rested(contender) {
            self.rest(contender, &cast)?;
        }
        Ok(())
    }

    fn note(&mut self, key: Key, measured: &Measured) {
        self.found.entry(key).or_default().push(measured.figures);
    }

    /// Checks that this transport or system did the same operations as the one that was measured first. Otherwise the
    /// comparison of their times would mean nothing.
    fn compare(&mut self, round: usize, key: Key, hash: Hash) -> Outcome {
        let Key { crowd, access, depth, contender } = key;
        let first = *self.hashes.entry((round, crowd, access, depth)).or_insert(hash);
        if first != hash {
            return Err(Failure::Failed(format!(
                "{} did other work than {} ({:016x}, not {:016x}) at {}, depth {depth}",
                self.contenders[contender].name,
                self.contenders[0].name,
                hash.0,
                first.0,
                ACCESSES[access].name
            )));
        }
        Ok(())
    }

    fn has_rested(&self, contender: usize) -> bool {
        self.idle.iter().any(|idle| idle.name == self.contenders[contender].name)
    }

    /// Measures the CPU time that clients and servers use while a file is open but nobody accesses it.
    fn rest(&mut self, contender: usize, cast: &Cast) -> Outcome {
        self.stage.wait_quiet()?;
        let served = Ran::now(&cast.servers.pids)?;
        let (own, others) = (process_ns(), Ran::now(&cast.client_pids)?);
        std::thread::sleep(IDLE);
        let client_ns = process_ns() - own + Ran::now(&cast.client_pids)?.since(&others);
        let served_ns = Ran::now(&cast.servers.pids)?.since(&served);
        let share = |ns: u64| ns as f64 / IDLE.as_nanos() as f64;
        self.idle.push(Idle {
            name: self.contenders[contender].name,
            client_share: share(client_ns),
            server_share: share(served_ns),
        });
        Ok(())
    }

    fn report(&self) -> Report {
        let kinds: Vec<Access> = ACCESSES.into_iter().chain([FIRST_WRITE]).collect();
        let rows = self.found.iter().map(|(key, figures)| {
            let figures = Figures::median(figures);
            let ceiling = self.found.get(&Key { contender: 0, ..*key });
            Row {
                access: kinds[key.access],
                nodes: self.crowds[key.crowd].nodes,
                clients: self.crowds[key.crowd].clients,
                depth: key.depth,
                name: self.contenders[key.contender].name,
                of_memcpy: ceiling
                    .map_or(0.0, |ceiling| figures.gb_per_s / Figures::median(ceiling).gb_per_s),
                figures,
            }
        });
        let mut hash = Hash::default();
        self.hashes.values().for_each(|one| hash.number(one.0));
        let empty = (!self.empty.is_empty())
            .then(|| [0, 1, 2, 3].map(|at| median(self.empty.iter().map(|quantiles| quantiles[at]))));
        let args = self.args;
        Report {
            rows: rows.collect(),
            empty_rpc_us: empty,
            idle: self.idle.clone(),
            machine: machine(),
            size_bytes: args.size,
            rounds: args.rounds,
            seconds: args.seconds,
            seed: args.seed,
            hash: hash.0,
            notes: report::notes(args.asked(), &self.rivals),
        }
    }
}

fn perform(cast: &mut Cast, work: Work) -> Result<Measured, Failure> {
    measure(&mut cast.clients, work, &cast.servers)
}
