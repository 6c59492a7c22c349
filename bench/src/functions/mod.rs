//! `farpool bench functions`: what a call of a shipped function costs beyond an empty round trip, and how many page reads
//! it is worth (paper 001, tables 1 and 2).
//!
//! The idea: every kind of call is made in turns with an empty round trip on the same transport, with the same way of
//! waiting, through the same library; the difference of medians is what shipping costs. Every answer is compared with what
//! this program computes over the same list.

mod beside;
mod memory;
mod row_groups;

use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::harness::processes::{Server, start};
use crate::harness::statistics::{median, quantiles};
use crate::query::wide_table::Way;
use crate::{Outcome, input, table, units};
use farpool::function::{CallOptions, Caller, Function, Place};
use farpool::{CreateOptions, FarFile, FileClass, Pool, PoolOptions, TransportChoice};
use farpool_calls::SigningKey;
use farpool_host::waiting::{self, Waiting};
use farpool_planner::break_even_accesses;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The function that is shipped, in WebAssembly text: a module of one function. Arguments and output are those of
/// `examples/functions/walk.wat`, but it does not hop.
const WALK: &str = r#"(module (memory (export "memory") 1)
  (func (export "walk") (param $call i32) (result i64)
    (local $window i64) (local $at i64) (local $left i64) (local $sum i64) (local $from i32) (local $node i32)
    (local.set $window (i64.load offset=8 (local.get $call)))
    (local.set $from (i32.wrap_i64 (i64.load offset=24 (local.get $call))))
    (local.set $at (i64.load (local.get $from)))
    (local.set $left (i64.load offset=8 (local.get $from)))
    (block $done (loop $step
      (br_if $done (i64.eqz (local.get $left)))
      (local.set $node (i32.wrap_i64 (i64.add (local.get $window) (local.get $at))))
      (local.set $sum (i64.add (local.get $sum) (i64.load offset=8 (local.get $node))))
      (local.set $at (i64.load (local.get $node)))
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br $step)))
    (i64.store (i32.wrap_i64 (i64.load offset=40 (local.get $call))) (local.get $at))
    (i64.store offset=8 (i32.wrap_i64 (i64.load offset=40 (local.get $call))) (local.get $sum))
    (i64.const 16))"#;
/// Bytes of a node of the list.
const NODE_BYTES: usize = 64;
/// What a page read fetches.
const PAGE_BYTES: usize = 8 << 10;
/// Calls before those that count.
const WARM_UP: usize = 200;
/// Native functions that are used for the first time: each stays in its process.
const NATIVES: u64 = 50;
/// Functions that go through values one behind the other.
const SCANS: [&str; 2] = ["filter_sum", "sum"];
/// Bytes that they go through: once what a cache holds, once the whole list.
const SCANNED_BYTES: u64 = 256 << 10;
/// Scans of each kind in a round.
const SCANS_EACH: usize = 30;
/// Name of the list in the pool.
const LIST: &str = "bench-functions-list";

/// Calls of shipped functions: resident, Wasm, native, beside empty round trips, page reads and thread migration.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench functions --calls 1000 --waiting adaptive --waiting park")]
pub(crate) struct FunctionArgs {
    /// Calls of each kind, in all rounds; of first uses a tenth
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    calls: u32,
    /// Rounds, in each of which every kind has its turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How all sides wait: spin, adaptive, park; may be given several times
    #[arg(long, value_name = "HOW", value_parser = units::waiting, default_values = ["adaptive", "park"])]
    waiting: Vec<Waiting>,
    /// Bytes of the list that is walked
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64MiB")]
    size: u64,
    /// Steps of the long walk that compares Wasm with native code; 0: none
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    steps: u64,
    /// Steps for each value of a table by the function that runs at the node, here, and at both
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = row_groups::WORK, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    work: Vec<u64>,
    /// How the client reaches the node
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Way::Tcp, Way::Shm])]
    transports: Vec<Way>,
    /// A pool that is there, by the address of its broker; by default one is started. Its nodes cannot be started again, so no
    /// first use of what a node compiled in an earlier life is measured
    #[arg(long, value_name = "ADDRESS")]
    pool: Option<String>,
    /// Reach it without TLS, also beyond this machine
    #[arg(long, requires = "pool")]
    plaintext: bool,
    /// A folder of what examples/functions/build.sh makes, with --native and without: for native calls, and for scans by
    /// modules with and without vectors beside native ones. Nodes of a pool that is there do not know the key of this run
    #[arg(long, value_name = "DIR", conflicts_with = "pool")]
    examples: Option<PathBuf>,
    /// For machines: one JSON object
    #[arg(long)]
    json: bool,
}

/// Times of one kind of call.
struct Kind {
    name: &'static str,
    times: Vec<Duration>,
}

impl Kind {
    fn new(name: &'static str) -> Kind {
        Kind { name, times: Vec::new() }
    }

    fn median_us(&self) -> f64 {
        median(self.times.iter().map(|time| time.as_secs_f64() * 1e6))
    }

    fn p99_us(&self) -> f64 {
        quantiles(&mut self.times.clone())[2]
    }
}

/// A list and what walks through it give.
struct List {
    next: Vec<u32>,
}

impl List {
    /// One cycle through all nodes (Sattolo).
    fn new(bytes: u64) -> List {
        let count = (bytes as usize / NODE_BYTES).max(2);
        let mut next: Vec<u32> = (0..count as u32).collect();
        let mut random = 88_172_645_463_325_252u64;
        for index in (1..count).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            next.swap(index, (random % index as u64) as usize);
        }
        List { next }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.next.len() * NODE_BYTES];
        for (index, (node, next)) in bytes.chunks_exact_mut(NODE_BYTES).zip(&self.next).enumerate() {
            node[..8].copy_from_slice(&(u64::from(*next) * NODE_BYTES as u64).to_le_bytes());
            node[8..16].copy_from_slice(&(index as u64).to_le_bytes());
        }
        bytes
    }

    /// Its nodes in memory of this process, of which the first word is the index of the next.
    fn nodes(&self) -> Vec<[u64; NODE_BYTES / 8]> {
        self.next.iter().map(|next| [u64::from(*next), 0, 0, 0, 0, 0, 0, 0]).collect()
    }

    fn walked(&self, first: u64, steps: u64) -> Vec<u8> {
        let (mut at, mut sum) = (first as usize / NODE_BYTES, 0u64);
        for _ in 0..steps {
            sum = sum.wrapping_add(at as u64);
            at = self.next[at] as usize;
        }
        words(&[(at * NODE_BYTES) as u64, sum])
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A session with a pool, and the broker and the node of it that were started for it.
struct Stage {
    pool: Pool,
    transport: TransportChoice,
    address: String,
    plaintext: bool,
    _servers: Vec<Server>,
}

impl Stage {
    fn new(
        args: &FunctionArgs,
        way: Waiting,
        transport: TransportChoice,
        more: &[String],
    ) -> Result<Stage, Failure> {
        waiting::choose(way);
        let (address, servers) = match &args.pool {
            Some(address) => (address.clone(), Vec::new()),
            None => Stage::servers(args, way, more)?,
        };
        let pool = Stage::session(&address, transport, args.plaintext)?;
        Ok(Stage { pool, transport, address, plaintext: args.plaintext, _servers: servers })
    }

    /// Starts a broker and a node. Returns the address of the pool, and the processes in the order in which they end.
    fn servers(args: &FunctionArgs, way: Waiting, more: &[String]) -> Result<(String, Vec<Server>), Failure> {
        let (broker, address) = start(&["broker", "--listen", "127.0.0.1:0"])?;
        let address = address.rsplit(' ').next().unwrap_or_default().to_owned();
        let memory = (2 * args.size + (256 << 20)).to_string();
        let mut node =
            vec!["node", "--name", "n1", "--memory", &memory, "--broker", &address, "--waiting", way.word()];
        node.extend(more.iter().map(String::as_str));
        let (node, _) = start(&node)?;
        Ok((address, vec![node, broker]))
    }

    fn session(address: &str, transport: TransportChoice, plaintext: bool) -> Result<Pool, Failure> {
        Ok(Pool::connect_with(address, PoolOptions { transport, plaintext, ..PoolOptions::default() })?)
    }

    /// Another client.
    fn connect(&self) -> Result<Pool, Failure> {
        Stage::session(&self.address, self.transport, self.plaintext)
    }

    fn publish(&self, list: &List) -> Result<FarFile, Failure> {
        let file = self.pool.create(LIST, FileClass::Pinned, CreateOptions::default())?;
        file.write_at(0, &list.bytes())?;
        self.pool.publish(LIST, true)?;
        Ok(self.pool.open(LIST)?)
    }
}

/// A module that no other has the bytes of: `walk`, so many other functions, and a number.
fn module(functions: usize, number: u64) -> Result<Vec<u8>, Failure> {
    let mut more = String::new();
    for index in 1..functions {
        more += &format!(
            "(func (export \"sum{index}\") (param $at i32) (param $end i32) (result i64) (local $sum i64)
               (block $done (loop $next
                 (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
                 (local.set $sum (i64.add (local.get $sum) (i64.load offset={} (local.get $at))))
                 (local.set $at (i32.add (local.get $at) (i32.const {})))
                 (br $next)))
               (local.get $sum))\n",
            8 * index,
            8 * (index + 1)
        );
    }
    // What makes it another module: a global costs nothing to compile.
    more += &format!("(global i64 (i64.const {number})))");
    wat::parse_str(WALK.to_owned() + "\n" + &more)
        .map_err(|error| Failure::Failed(format!("the module: {error}")))
}

fn timed<T>(kind: &mut Kind, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let begun = Instant::now();
    let result = run()?;
    kind.times.push(begun.elapsed());
    Ok(result)
}

fn check(got: &[u8], wanted: &[u8], what: &str) -> Outcome {
    if got == wanted {
        Ok(())
    } else {
        Err(Failure::Failed(format!("{what} gave {got:02x?}, not {wanted:02x?}")))
    }
}

/// Functions of the examples. Native ones are signed by a key of this run, which nodes are told of.
struct Examples {
    walk: Function,
    /// They differ from it by a number.
    walks: Vec<Function>,
    /// By the name of the scan: the same function as a module, as one with vectors, and native.
    scans: Vec<(&'static str, [(&'static str, Function); 3])>,
    keys: tempfile::NamedTempFile,
}

pub(crate) fn run(args: &FunctionArgs) -> Outcome {
    let list = List::new(args.size);
    let examples = args.examples.as_ref().map(|folder| examples(folder)).transpose()?;
    let mut found = Vec::new();
    for way in &args.waiting {
        for transport in &args.transports {
            found.push(measure(args, &list, *way, transport.choice(), examples.as_ref())?);
        }
    }
    let memory = memory::measure(args.rounds);
    let migration = migration(args.calls)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let points: Vec<Value> = found.iter().map(Point::json).collect();
        let migration = json!({ "one_way_us": migration[0], "there_and_back_us": migration[1] });
        let levels =
            memory.iter().map(|(level, ns)| json!({ "level": level.name, "bytes": level.bytes, "ns": ns }));
        let levels: Vec<Value> = levels.collect();
        let all = json!({ "machine": machine(), "points": points, "migration": migration, "memory": levels });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    writeln!(out, "Shipped functions: one call each, medians of {} calls. {}", args.calls, machine())?;
    for point in &found {
        writeln!(out)?;
        point.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    writeln!(out)?;
    for (level, ns) in &memory {
        let bytes = units::show_bytes(level.bytes);
        writeln!(out, "{}: {ns:.1} ns for each dependent access to {bytes} of this process", level.name)?;
    }
    writeln!(out, "thread migration: {:.1} us one way, {:.1} us there and back", migration[0], migration[1])?;
    Ok(())
}

/// What was found with one transport and way of waiting.
struct Point {
    transport: TransportChoice,
    way: Waiting,
    kinds: Vec<Kind>,
    /// Nanoseconds for each dependent access of a long walk.
    access_ns: Vec<(&'static str, f64)>,
    scans: Vec<Scan>,
    beside: Vec<beside::Beside>,
    placed: Vec<row_groups::Placed>,
}

/// How fast the forms of a scan are.
struct Scan {
    name: &'static str,
    bytes: u64,
    gb_per_s: Vec<(&'static str, f64)>,
}

const EMPTY: &str = "empty round trip";
const EMPTY_RESIDENT: &str = "empty round trip, node";
const PAGE: &str = "page of 8 KiB read";

impl Point {
    fn empty_us(&self, kind: &Kind) -> f64 {
        let beside = if kind.name == "resident" { EMPTY_RESIDENT } else { EMPTY };
        self.kinds.iter().find(|other| other.name == beside).map_or(0.0, Kind::median_us)
    }

    /// From how many dependent accesses on a call takes less than reading a page for each.
    fn break_even(&self, kind: &Kind) -> Option<u64> {
        let page_ns = self.kinds.iter().find(|other| other.name == PAGE)?.median_us() * 1e3;
        let local_ns = self.access_ns.first().map_or(110.0, |(_, ns)| *ns);
        break_even_accesses(kind.median_us() * 1e3, page_ns, local_ns)
    }

    fn json(&self) -> Value {
        let kinds: Vec<Value> = self
            .kinds
            .iter()
            .map(|kind| {
                json!({
                    "kind": kind.name, "median_us": kind.median_us(), "p99_us": kind.p99_us(),
                    "beyond_empty_us": kind.median_us() - self.empty_us(kind), "calls": kind.times.len(),
                    "break_even_accesses": self.break_even(kind),
                })
            })
            .collect();
        let access: serde_json::Map<String, Value> =
            self.access_ns.iter().map(|(name, ns)| ((*name).to_owned(), json!(ns))).collect();
        let scan = |scan: &Scan| {
            let rates: serde_json::Map<String, Value> =
                scan.gb_per_s.iter().map(|(name, rate)| ((*name).to_owned(), json!(rate))).collect();
            json!({ "scan": scan.name, "bytes": scan.bytes, "gb_per_s": rates })
        };
        let scans: Vec<Value> = self.scans.iter().map(scan).collect();
        let pages_beside: Vec<Value> = self
            .beside
            .iter()
            .map(|beside::Beside { name, median_us, p99_us, calls }| {
                json!({ "beside": name, "median_us": median_us, "p99_us": p99_us, "calls": calls })
            })
            .collect();
        let placed = self.placed.iter().map(|row_groups::Placed { work, ms, chosen }| {
            let ms: serde_json::Map<String, Value> = row_groups::PLACES
                .iter()
                .zip(ms)
                .map(|((name, _), ms)| ((*name).to_owned(), json!(ms)))
                .collect();
            json!({ "work": work, "ms": ms, "chosen": chosen })
        });
        let placed: Vec<Value> = placed.collect();
        json!({
            "transport": format!("{:?}", self.transport).to_lowercase(), "waiting": self.way.word(), "kinds": kinds,
            "access_ns": access, "scans": scans, "pages_beside": pages_beside, "placed": placed,
        })
    }

    fn lines(&self) -> Vec<String> {
        let transport = format!("{:?}", self.transport).to_lowercase();
        let mut lines = vec![format!("{transport}, {}:", self.way.word())];
        let rows: Vec<Vec<String>> = self
            .kinds
            .iter()
            .map(|kind| {
                let is_call = ![EMPTY, EMPTY_RESIDENT, PAGE].contains(&kind.name);
                let beyond = kind.median_us() - self.empty_us(kind);
                let accesses = self.break_even(kind).map_or("never".to_owned(), |count| count.to_string());
                vec![
                    kind.name.to_owned(),
                    format!("{:.2}", kind.median_us()),
                    format!("{:.2}", kind.p99_us()),
                    if is_call { format!("{beyond:+.2}") } else { String::new() },
                    if is_call { accesses } else { String::new() },
                    kind.times.len().to_string(),
                ]
            })
            .collect();
        lines.extend(table::lines(
            &["call", "us", "p99", "beyond empty", "pays from accesses", "calls"],
            &rows,
        ));
        for (name, ns) in &self.access_ns {
            lines.push(format!("{name}: {ns:.1} ns for each dependent access"));
        }
        for beside::Beside { name, median_us, p99_us, calls } in &self.beside {
            let calls = if *calls > 0 { format!(", {calls} of them") } else { String::new() };
            lines.push(format!("{PAGE} beside {name}{calls}: {median_us:.2} us, p99 {p99_us:.2} us"));
        }
        for row_groups::Placed { work, ms, chosen } in &self.placed {
            let ways = row_groups::PLACES.iter().zip(ms).map(|((name, _), ms)| format!("{name} {ms:.2} ms"));
            let ways = ways.collect::<Vec<_>>().join(", ");
            lines.push(format!("{work} steps for each value of 16 MiB: {ways} (chose {chosen})"));
        }
        for Scan { name, bytes, gb_per_s } in &self.scans {
            let native = gb_per_s.last().map_or(f64::NAN, |(_, rate)| *rate);
            let rates: Vec<String> = gb_per_s
                .iter()
                .map(|(form, rate)| format!("{form} {rate:.1} GB/s ({:.2})", rate / native))
                .collect();
            lines.push(format!("{name} of {}: {}", units::show_bytes(*bytes), rates.join(", ")));
        }
        lines
    }
}

/// Takes functions out of a folder, and signs those that are shared objects with a key of this run.
fn examples(folder: &std::path::Path) -> Result<Examples, Failure> {
    let read = |name: String| {
        let file = folder.join(name);
        input::file(&file, FUNCTION_BYTES_MAX)
            .map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))
    };
    let walk = read("walk.so".to_owned())?;
    // Behind the sections of an object nobody looks.
    let walks = (0..=NATIVES).map(|number: u64| ([&walk[..], &number.to_le_bytes()].concat(), "walk"));
    let mut objects: Vec<_> = walks.collect();
    for name in SCANS {
        objects.push((read(format!("{name}.so"))?, name));
    }
    let (key, _) = SigningKey::generate()?;
    let signed = objects.into_iter().map(|(object, entry)| key.sign(object, entry));
    let mut signed = signed.collect::<Result<Vec<_>, _>>()?;
    let scans = SCANS.iter().zip(signed.split_off(NATIVES as usize + 1)).map(|(name, native)| {
        let module = |file: String| Ok::<_, Failure>(Function::wasm(read(file)?, name)?);
        let (plain, vectors) = (module(format!("{name}.wasm"))?, module(format!("{name}.simd.wasm"))?);
        Ok((*name, [("wasm", plain), ("wasm with vectors", vectors), ("native", native)]))
    });
    let scans = scans.collect::<Result<_, Failure>>()?;
    let walk = signed.pop().ok_or_else(|| Failure::failed("no object was signed"))?;
    let mut keys = tempfile::NamedTempFile::new()?;
    writeln!(keys, "{}", key.public_hex())?;
    Ok(Examples { walk, walks: signed, scans, keys })
}

fn measure(
    args: &FunctionArgs,
    list: &List,
    way: Waiting,
    transport: TransportChoice,
    examples: Option<&Examples>,
) -> Result<Point, Failure> {
    let cache = tempfile::tempdir()?;
    let mut more = vec!["--function-cache".to_owned(), cache.path().display().to_string()];
    if let Some(examples) = examples {
        more.extend(["--function-keys".to_owned(), examples.keys.path().display().to_string()]);
    }
    let firsts = (args.calls / 10).max(10) as usize;
    // Nodes of a pool that is there may have compiled what an earlier run was the first to use.
    let unique = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64 >> 1);
    let made = |functions, from: usize| -> Result<Vec<Function>, Failure> {
        let number = |at: usize| unique.wrapping_add((from + at) as u64);
        (0..firsts).map(|at| Ok(Function::wasm(module(functions, number(at))?, "walk")?)).collect()
    };
    let (ones, eights) = (made(1, 0)?, made(8, firsts)?);
    // What a life of the node before this one has compiled.
    let cached = if args.pool.is_none() { made(1, 2 * firsts)? } else { Vec::new() };
    if !cached.is_empty() {
        let stage = Stage::new(args, way, transport, &more)?;
        let caller = stage.publish(list)?.caller(Default::default())?;
        for function in &cached {
            caller.call(function, &words(&[0, 1, 0]), shipped(false))?;
        }
        await_files(cache.path(), cached.len())?;
    }
    let stage = Stage::new(args, way, transport, &more)?;
    let file = stage.publish(list)?;
    let found = measure_at(args, list, way, &stage, &file, [&ones, &eights, &cached], examples);
    stage.pool.delete(LIST)?;
    found
}

/// Measures at one pool, over the published list. `firsts` are functions that nobody has used: modules of one function, of
/// eight, and those that an earlier life of the node has compiled.
fn measure_at(
    args: &FunctionArgs,
    list: &List,
    way: Waiting,
    stage: &Stage,
    file: &FarFile,
    firsts: [&[Function]; 3],
    examples: Option<&Examples>,
) -> Result<Point, Failure> {
    let caller = file.caller(Default::default())?;
    let mut kinds: Vec<Kind> = [
        EMPTY_RESIDENT,
        "resident",
        EMPTY,
        "wasm, warm",
        "wasm, fresh instance",
        "wasm, first use, 1 function",
        "wasm, first use, 8 functions",
        "wasm, first use, compiled before",
        PAGE,
        "native, first use",
        "native",
    ]
    .map(Kind::new)
    .into();
    let (resident, walk) = (Function::resident("walk")?, Function::wasm(module(1, u64::MAX)?, "walk")?);
    let one = list.walked(0, 1);
    let step = words(&[0, 1, 0]);
    let each = args.calls.div_ceil(args.rounds) as usize;
    let first_each = firsts[0].len().div_ceil(args.rounds as usize);
    let mut page = vec![0; PAGE_BYTES];
    let pages = list.next.len() * NODE_BYTES / PAGE_BYTES;
    for round in 0..args.rounds as usize {
        let calls = |kind: &mut Kind, function: &Function, fresh: bool| -> Outcome {
            for _ in 0..WARM_UP {
                caller.call(function, &step, shipped(fresh))?;
            }
            for _ in 0..each {
                let called = timed(kind, || Ok(caller.call(function, &step, shipped(fresh))?))?;
                check(&called.output, &one, kind.name)?;
            }
            Ok(())
        };
        for _ in 0..each {
            timed(&mut kinds[0], || Ok(caller.round_trip(&resident)?))?;
        }
        calls(&mut kinds[1], &resident, false)?;
        for _ in 0..each {
            timed(&mut kinds[2], || Ok(caller.round_trip(&walk)?))?;
        }
        calls(&mut kinds[3], &walk, false)?;
        calls(&mut kinds[4], &walk, true)?;
        for (kind, functions) in (5..).zip(firsts) {
            for function in functions.iter().skip(round * first_each).take(first_each) {
                let called = timed(&mut kinds[kind], || Ok(caller.call(function, &step, shipped(false))?))?;
                check(&called.output, &one, kinds[kind].name)?;
            }
        }
        for index in 0..each {
            let offset = (index * 7_919 + round) % pages * PAGE_BYTES;
            timed(&mut kinds[8], || Ok(file.read_at(offset as u64, &mut page)?))?;
            let wanted = u64::from(list.next[offset / NODE_BYTES]) * NODE_BYTES as u64;
            check(&page[..8], &wanted.to_le_bytes(), PAGE)?;
        }
        if let Some(examples) = examples {
            let each = examples.walks.len().div_ceil(args.rounds as usize);
            for function in examples.walks.iter().skip(round * each).take(each) {
                let called = timed(&mut kinds[9], || Ok(caller.call(function, &step, shipped(false))?))?;
                check(&called.output, &one, "native")?;
            }
            calls(&mut kinds[10], &examples.walk, false)?;
        }
    }
    kinds.retain(|kind| !kind.times.is_empty());
    let access_ns = accesses(args, list, &caller, &resident, &walk, examples)?;
    let scans = examples.map_or(Ok(Vec::new()), |examples| scans(args, list, &caller, examples))?;
    let beside = beside::measure(&stage.connect()?, list, file, args.rounds as usize)?;
    let placed = row_groups::measure(&stage.connect()?, &args.work, args.rounds as usize)?;
    Ok(Point { transport: stage.transport, way, kinds, access_ns, scans, beside, placed })
}

fn shipped(fresh: bool) -> CallOptions {
    CallOptions { place: Place::Ship, fresh, deadline: Duration::from_secs(600) }
}

/// Waits until so many files are in the folders of tenants: a node writes compiled code when nobody waits for it.
fn await_files(folder: &std::path::Path, count: usize) -> Outcome {
    let until = Instant::now() + Duration::from_secs(10);
    let files = || -> std::io::Result<usize> {
        let mut files = 0;
        for tenant in std::fs::read_dir(folder.join("tenants"))? {
            let names = std::fs::read_dir(tenant?.path())?;
            files += names.flatten().filter(|file| file.path().extension().is_none()).count();
        }
        Ok(files)
    };
    while files()? < count {
        if Instant::now() > until {
            return Err(Failure::failed("the node does not keep what it compiled"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A long walk by each kind of function, in turns.
fn accesses(
    args: &FunctionArgs,
    list: &List,
    caller: &Caller,
    resident: &Function,
    walk: &Function,
    examples: Option<&Examples>,
) -> Result<Vec<(&'static str, f64)>, Failure> {
    if args.steps == 0 {
        return Ok(Vec::new());
    }
    let mut functions = vec![("resident", resident), ("wasm", walk)];
    functions.extend(examples.map(|examples| ("native", &examples.walk)));
    let wanted = list.walked(0, args.steps);
    let mut times = vec![Vec::new(); functions.len()];
    for _ in 0..args.rounds {
        for ((name, function), times) in functions.iter().zip(&mut times) {
            let called = caller.call(function, &words(&[0, args.steps, 0]), shipped(false))?;
            check(&called.output, &wanted, name)?;
            times.push(called.ran.as_nanos() as f64 / args.steps as f64);
        }
    }
    Ok(functions.iter().zip(times).map(|((name, _), times)| (*name, median(times.into_iter()))).collect())
}

/// Scans by each form of a function, in turns.
fn scans(
    args: &FunctionArgs,
    list: &List,
    caller: &Caller,
    examples: &Examples,
) -> Result<Vec<Scan>, Failure> {
    let bytes = list.bytes();
    let mut found = Vec::new();
    for (name, forms) in &examples.scans {
        for scanned in [SCANNED_BYTES.min(bytes.len() as u64), bytes.len() as u64] {
            let values =
                bytes[..scanned as usize].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let threshold = scanned / 2;
            let passing = || values.clone().filter(|value| *value > threshold);
            let (asked, wanted) = match *name {
                "sum" => (vec![0, scanned / 8], vec![values.clone().fold(0, u64::wrapping_add)]),
                _ => {
                    let sum = passing().fold(0, u64::wrapping_add);
                    (vec![0, scanned / 8, threshold], vec![sum, passing().count() as u64])
                }
            };
            let (asked, wanted) = (words(&asked), words(&wanted));
            let mut rates = vec![Vec::new(); forms.len()];
            for _ in 0..args.rounds as usize * SCANS_EACH {
                for ((form, function), rates) in forms.iter().zip(&mut rates) {
                    let called = caller.call(function, &asked, shipped(false))?;
                    check(&called.output, &wanted, form)?;
                    rates.push(scanned as f64 / called.ran.as_nanos().max(1) as f64);
                }
            }
            let rates = forms.iter().zip(rates).map(|((form, _), rates)| (*form, median(rates.into_iter())));
            found.push(Scan { name, bytes: scanned, gb_per_s: rates.collect() });
        }
    }
    Ok(found)
}

/// Moving this thread to another CPU, and there and back: medians in microseconds.
fn migration(calls: u32) -> Result<[f64; 2], Failure> {
    let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let [one, other, ..] = cpus[..] else { return Ok([f64::NAN; 2]) };
    let pin = |cpu| {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).map_err(std::io::Error::from)
    };
    let (mut there, mut both) = (Kind::new("there"), Kind::new("both"));
    for _ in 0..calls {
        pin(one)?;
        let begun = Instant::now();
        pin(other)?;
        there.times.push(begun.elapsed());
        pin(one)?;
        both.times.push(begun.elapsed());
    }
    sched_setaffinity(None, &allowed).map_err(std::io::Error::from)?;
    Ok([there.median_us(), both.median_us()])
}
