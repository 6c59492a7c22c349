//! `farpool node`.

use crate::exit::Failure;
use crate::input::{self, KEYS_BYTES_MAX};
use crate::signals::Stop;
use crate::{Outcome, reach, units};
use farpool::function::{self, SandboxOptions};
use farpool_host::waiting::{self, Waiting};
use farpool_near_data::FunctionOptions;
use farpool_node::{Limits, Node, NodeOptions};
use farpool_wire::Name;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Run a memory node: donate RAM of this machine to a pool.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool node --name n1 --memory 4GiB --broker farpool://127.0.0.1:7700")]
pub(crate) struct Args {
    /// What it is called; started again under its name it replaces its former life
    #[arg(long, value_name = "NAME")]
    name: String,
    /// How much to donate; rounded down to whole regions
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: u64,
    /// The pool to donate it to; several brokers of it have commas between
    #[arg(long, value_name = "farpool://HOST:PORT[,..]")]
    broker: String,
    /// Unit of donation and lease: a power of two from 1MiB to 2GiB
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64MiB")]
    region_size: u64,
    /// Where to serve; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Where clients reach it, if not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Its failure domain; by default the name of this host
    #[arg(long, value_name = "NAME")]
    host_label: Option<String>,
    /// Do not ask for huge pages
    #[arg(long)]
    no_huge_pages: bool,
    /// Do not lock donated memory into RAM
    #[arg(long)]
    no_lock: bool,
    /// Do not touch donated memory ahead of its first use
    #[arg(long)]
    no_prefault: bool,
    /// Do not offer shared memory to clients on this host
    #[arg(long)]
    no_shm: bool,
    /// Move no more than this over sockets, such as 500MB/s; 1MB/s to 1TB/s. Shared memory is not offered then:
    /// its clients copy by themselves
    #[arg(long, value_name = "SIZE/s", value_parser = units::rate)]
    bandwidth_limit: Option<u64>,
    /// Spend no more than so many CPUs on clients' bytes, such as 0.5; 0.01 to the CPUs there are. Connections do
    /// not spin then, and shared memory is not offered
    #[arg(long, value_name = "CPUS", value_parser = units::cpus)]
    cpu_limit: Option<u32>,
    /// What is to stay available to others on this host: whatever is short of it is given back. By default a tenth of
    /// its memory and at least 2GiB, but not more than a quarter. The limits of control groups count as well
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    reserve: Option<u64>,
    /// How long scratch stays, once its clients were asked to move it, when the host needs its memory
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "10s")]
    evacuate: u32,
    /// Of the memory, how many of a hundred may be pinned or published: it cannot be moved, and goes in an emergency
    /// only
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), default_value = "100")]
    firm_share: u32,
    /// Keep the memory whatever the host needs
    #[arg(long, conflicts_with_all = ["reserve", "evacuate"])]
    no_reserve: bool,
    /// How connections wait: adaptive, or for measurements spin (takes whole CPUs) or park
    #[arg(long, value_name = "HOW", value_parser = units::waiting, default_value = "adaptive")]
    waiting: Waiting,
    /// Run no functions that clients ship: no WebAssembly, nothing native
    #[arg(long)]
    no_functions: bool,
    /// The most memory of a function's own: 1MiB to 512MiB
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "256MiB")]
    function_heap: u64,
    /// Processes that run functions at a time, one for each client; further clients wait their turn: 1 to 1024
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(PROCESSES), default_value = "16", conflicts_with = "no_functions")]
    function_processes: u32,
    /// Niceness of the processes that run functions, above that of the node: 0 to 19
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(NICENESS), default_value_t = SandboxOptions::NICENESS, conflicts_with = "no_functions")]
    function_niceness: u8,
    /// Public keys, one on a line, whose native functions are run. Whoever has such a key can do on this machine what
    /// the sandbox process can: treat it as root's
    #[arg(long, value_name = "FILE", conflicts_with = "no_functions")]
    function_keys: Option<PathBuf>,
    /// Where compiled functions are kept from one life of the node to the next
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_functions")]
    function_cache: Option<PathBuf>,
    /// A control group that the processes of shipped functions are put into, so that its limits are theirs; may be
    /// given several times, as version 1 has one for memory and one for CPUs
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_functions")]
    function_group: Vec<PathBuf>,
    #[command(flatten)]
    reach: reach::Args,
}

/// The permitted range of `--function-processes`.
const PROCESSES: std::ops::RangeInclusive<i64> =
    *SandboxOptions::PROCESSES_RANGE.start() as i64..=*SandboxOptions::PROCESSES_RANGE.end() as i64;

/// The permitted range of `--function-niceness`.
const NICENESS: std::ops::RangeInclusive<i64> =
    *SandboxOptions::NICENESS_RANGE.start() as i64..=*SandboxOptions::NICENESS_RANGE.end() as i64;

/// How shipped functions run: by the program beside this one, if it is there.
fn sandboxes(args: &Args) -> Result<Option<SandboxOptions>, Failure> {
    let keys = args.function_keys.as_deref().map(function_keys).transpose()?.unwrap_or_default();
    if !SandboxOptions::HEAP_BYTES_RANGE.contains(&args.function_heap) {
        let heap = args.function_heap;
        return Err(Failure::Usage(format!("--function-heap {heap}: 1MiB to 512MiB are permitted")));
    }
    if args.no_functions {
        return Ok(None);
    }
    // Named by a path, it must be there; else whoever did not build it does without.
    let Some(program) = function::sandbox_program() else { return Ok(None) };
    if !program.is_file() {
        return Err(Failure::Failed(format!("{} is not there", program.display())));
    }
    let (heap_bytes, cache, groups) =
        (args.function_heap, args.function_cache.clone(), args.function_group.clone());
    let processes_max = args.function_processes as usize;
    Ok(Some(SandboxOptions {
        heap_bytes,
        keys,
        cache,
        groups,
        processes_max,
        niceness: args.function_niceness,
        ..SandboxOptions::new(program)
    }))
}

/// Public keys of a file.
fn function_keys(file: &Path) -> Result<Vec<[u8; 32]>, Failure> {
    let wrong = |what: String| Failure::Usage(format!("--function-keys {}: {what}", file.display()));
    let text = input::file(file, KEYS_BYTES_MAX).and_then(input::text);
    let text = text.map_err(|error| wrong(error.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let key = |line: &str| {
        let key = crate::function::digits(line).and_then(|bytes| bytes.try_into().ok());
        key.ok_or_else(|| wrong(format!("{line:?} is no key; 64 hexadecimal digits are")))
    };
    lines.map(key).collect()
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut stop = Stop::catch()?;
    waiting::choose(args.waiting);
    let name = |flag: &str, name: &str| {
        Name::new(name).map_err(|error| {
            Failure::Usage(format!("{flag} {name:?}: {error}; 1 to 255 bytes are permitted"))
        })
    };
    let reach = args.reach.reach(&format!("node-{}", args.name))?;
    let brokers = reach::brokers_of("--broker", &args.broker, &reach)?;
    let mut options = NodeOptions::new(name("--name", &args.name)?, args.memory, brokers.to_string());
    options.region_bytes = args.region_size;
    options.listen = reach::resolve("--listen", &args.listen, &reach)?;
    if let Some(address) = &args.advertise {
        reach::resolve("--advertise", address, &reach)?;
    }
    options.reach = reach;
    options.advertise = args.advertise.clone();
    options.host_label = args.host_label.as_deref().map(|label| name("--host-label", label)).transpose()?;
    options.huge_pages = !args.no_huge_pages;
    options.lock_memory = !args.no_lock;
    options.prefault = !args.no_prefault;
    options.shared_memory = !args.no_shm;
    options.limits = Limits { bytes_per_second: args.bandwidth_limit, cpu_milli: args.cpu_limit };
    options.limits.check().map_err(Failure::Usage)?;
    let functions = FunctionOptions { sandboxes: sandboxes(args)?, ..FunctionOptions::default() };
    options.extension = farpool_near_data::extension(functions);
    if args.no_reserve {
        options.pressure.source = None;
    }
    options.pressure.reserve_bytes = args.reserve;
    options.pressure.evacuate_ms = args.evacuate.into();
    options.pressure.firm_percent = args.firm_share;
    // Whatever happens, this process dies before one of the host's own. Where that is not permitted, it is as it was.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let node =
        Node::start(options).map_err(|error| Failure::Failed(format!("node {}: {error}", args.name)))?;
    // Ready is when clients can lease from it; until then its tries are on stderr.
    while !node.wait_joined(Duration::from_millis(100)) {
        if stop.has_come() {
            return Ok(());
        }
    }
    writeln!(std::io::stdout(), "ready {} {}", args.name, node.address())?;
    while !stop.has_come() {
        if node.wait_drained(Duration::from_millis(100)) {
            writeln!(std::io::stdout(), "drained {}", args.name)?;
            break;
        }
    }
    Ok(())
}
