//! `farpool node`: donates memory of this host to a pool.

use crate::exit::Failure;
use crate::input::{self, KEYS_BYTES_MAX};
use crate::monitored::MonitoredNode;
use crate::signals::Stop;
use crate::{Outcome, exposure, monitoring, supervisor, units};
use farpool::function::{self, SandboxOptions};
use farpool_host::waiting::{self, Waiting};
use farpool_host::{Event, Host, Machine};
use farpool_near_data::FunctionOptions;
use farpool_node::{Donation, HostMemory, Limits, MemorySource, Node, NodeOptions, NodeState, SocketFolder};
use farpool_wire::limits::HOST_LABEL_LEVELS_MAX;
use farpool_wire::{Name, shown};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two looks at the state of the node.
const LOOK: Duration = Duration::from_millis(100);

/// Run a memory node: donate RAM of this machine to a pool.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool node --name n1 --memory 4GiB --broker farpool://127.0.0.1:7700")]
pub(crate) struct Args {
    /// Name of the node; a node that is started again under the same name replaces its predecessor
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Memory to donate: a size, or a share of the memory that this process may use, such as 60%. The limits of its
    /// control groups count, such as that of a pod. Rounded down to whole regions
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = units::memory)]
    memory: units::MemoryAmount,
    /// Pool to join; several brokers are separated by commas
    #[arg(long, value_name = "farpool://HOST:PORT[,..]")]
    broker: String,
    /// Region size, the unit of donation and lease: a power of two from 1MiB to 2GiB
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64MiB")]
    region_size: u64,
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Address at which clients reach the node [default: the address it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Failure domains of the node, from the widest to its host, such as zone-1/rack-2/host-3 [default: the name of
    /// this host]
    #[arg(long, value_name = "NAME")]
    host_label: Option<String>,
    /// NUMA node of this host whose memory is donated, such as CXL memory, which is a node without CPUs [default: the
    /// kernel chooses]
    #[arg(long, value_name = "NUMBER", conflicts_with = "dax")]
    memory_node: Option<u32>,
    /// Donate huge pages of this size, 2MiB or 1GiB, that this host keeps for programs that ask for them. The node
    /// takes them when it starts and gives none back to the host
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    #[arg(conflicts_with_all = ["dax", "no_huge_pages", "reserve", "evacuate"])]
    huge_pages: Option<u64>,
    /// DAX device whose memory is donated, such as /dev/dax0.0. The node gives none back to the host, and clients do
    /// not map it
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["reserve", "evacuate"])]
    dax: Option<PathBuf>,
    /// Do not ask for transparent huge pages
    #[arg(long)]
    no_huge_pages: bool,
    /// Do not lock donated memory into RAM
    #[arg(long)]
    no_lock: bool,
    /// Do not prefault donated memory
    #[arg(long)]
    no_prefault: bool,
    /// Do not offer shared memory to clients on this host
    #[arg(long)]
    no_shm: bool,
    /// Directory for the socket of shared memory, for clients on this host in other network namespaces, such as pods
    /// that have the same directory at the same path, which has at most 60 bytes [default: a socket without a file, for
    /// this network namespace]
    #[arg(long, value_name = "DIR", conflicts_with = "no_shm")]
    shm_dir: Option<PathBuf>,
    /// Limit for traffic over sockets, such as 500MB/s; 1MB/s to 1TB/s. Turns shared memory off, because its clients
    /// copy by themselves
    #[arg(long, value_name = "SIZE/s", value_parser = units::rate)]
    bandwidth_limit: Option<u64>,
    /// Limit for copies of published files that the node makes after a loss or for a drain, such as 500MB/s; 1MB/s to
    /// 1TB/s
    #[arg(long, value_name = "SIZE/s", value_parser = units::rate, default_value = "256MiB/s")]
    repair_bandwidth: u64,
    /// Limit for CPU time spent on client traffic, in CPUs, such as 0.5; 0.01 up to the CPUs of the host. Connections
    /// then do not spin, and shared memory is off
    #[arg(long, value_name = "CPUS", value_parser = units::cpus)]
    cpu_limit: Option<u32>,
    /// Memory to keep available on this host: when less is available, the node gives memory back [default: a tenth of
    /// the host's memory and at least 2GiB, but at most a quarter]. Limits of control groups count as well
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    reserve: Option<u64>,
    /// How long clients may take to move scratch data away when the host needs its memory
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "10s")]
    evacuate: u32,
    /// Share of the memory that may hold pinned or published data, in percent. Such data cannot be moved; it is given
    /// up only in an emergency
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), default_value = "100")]
    firm_share: u32,
    /// Never give memory back to the host, even when the host is short of it
    #[arg(long, conflicts_with_all = ["reserve", "evacuate"])]
    no_reserve: bool,
    /// When this process is told to stop, let clients move their scratch data to other nodes first, for up to this
    /// time; a second signal ends it at once. Published files stay: `farpool drain` moves them as well
    #[arg(long, value_name = "TIME", value_parser = units::millis)]
    drain_on_stop: Option<u32>,
    /// How connections wait: adaptive, spin or park. Spin and park are for measurements; spin takes whole CPUs
    #[arg(long, value_name = "HOW", value_parser = units::waiting, default_value = "adaptive")]
    waiting: Waiting,
    /// Do not run functions that clients ship, neither WebAssembly nor native ones
    #[arg(long)]
    no_functions: bool,
    /// Limit for the memory that one function allocates: 1MiB to 512MiB
    #[arg(long, value_name = "SIZE", value_parser = function_heap, default_value = "256MiB")]
    function_heap: u64,
    /// Limit for processes that run functions, one per client; further clients wait: 1 to 1024
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(PROCESSES), default_value = "16", conflicts_with = "no_functions")]
    function_processes: u32,
    /// Niceness of the processes that run functions, relative to the node: 0 to 19
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(NICENESS), default_value_t = SandboxOptions::NICENESS, conflicts_with = "no_functions")]
    function_niceness: u8,
    /// File with public keys, one per line; native functions signed with these keys are run. The owner of such a key
    /// can do on this machine whatever the sandbox process can: protect the key like root access
    #[arg(long, value_name = "FILE", conflicts_with = "no_functions")]
    function_keys: Option<PathBuf>,
    /// Refuse WebAssembly functions, too, unless they are signed with a key of --function-keys
    #[arg(long, requires = "function_keys")]
    function_signed: bool,
    /// Directory for compiled functions, so that they survive a restart of the node
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_functions")]
    function_cache: Option<PathBuf>,
    /// Control group for the processes that run functions; its limits apply to them. May be given several times,
    /// because version 1 has separate groups for memory and CPUs
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_functions")]
    function_group: Vec<PathBuf>,
    #[command(flatten)]
    monitoring: monitoring::Args,
    #[command(flatten)]
    exposure: exposure::Args,
}

/// Permitted range of `--function-processes`.
const PROCESSES: std::ops::RangeInclusive<i64> =
    *SandboxOptions::PROCESSES_RANGE.start() as i64..=*SandboxOptions::PROCESSES_RANGE.end() as i64;

/// Permitted range of `--function-niceness`.
const NICENESS: std::ops::RangeInclusive<i64> =
    *SandboxOptions::NICENESS_RANGE.start() as i64..=*SandboxOptions::NICENESS_RANGE.end() as i64;

/// Parses a value of `--function-heap`.
fn function_heap(text: &str) -> Result<u64, String> {
    let bytes = units::bytes(text)?;
    match SandboxOptions::HEAP_BYTES_RANGE.contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("{text:?} is not permitted: 1MiB to 512MiB are")),
    }
}

/// Returns the options for shipped functions. `None` if functions are off or the sandbox program is not installed.
fn sandboxes(args: &Args) -> Result<Option<SandboxOptions>, Failure> {
    let keys = args.function_keys.as_deref().map(function_keys).transpose()?.unwrap_or_default();
    if args.no_functions {
        return Ok(None);
    }
    // If the environment names a sandbox program, it must exist. Otherwise there need not be one beside this program.
    let Some(program) = function::sandbox_program() else { return Ok(None) };
    if !program.is_file() {
        return Err(Failure::Failed(format!("the sandbox program {} does not exist", program.display())));
    }
    let (heap_bytes, cache, groups) =
        (args.function_heap, args.function_cache.clone(), args.function_group.clone());
    let processes_max = args.function_processes as usize;
    Ok(Some(SandboxOptions {
        heap_bytes,
        keys,
        signed_alone: args.function_signed,
        cache,
        groups,
        processes_max,
        niceness: args.function_niceness,
        ..SandboxOptions::new(program)
    }))
}

/// Reads the public keys of a file: one key per line, in hexadecimal; `#` begins a comment.
fn function_keys(file: &Path) -> Result<Vec<[u8; 32]>, Failure> {
    let wrong = |what: String| Failure::Usage(format!("--function-keys {}: {what}", file.display()));
    let text = input::file(file, KEYS_BYTES_MAX).and_then(input::text);
    let text = text.map_err(|error| wrong(error.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let key = |line: &str| {
        let key = crate::function::digits(line).and_then(|bytes| bytes.try_into().ok());
        key.ok_or_else(|| wrong(format!("{line:?} is not a key; 64 hexadecimal digits are needed")))
    };
    lines.map(key).collect()
}

/// Reads the name that a flag gives.
fn name(flag: &str, name: &str) -> Result<Name, Failure> {
    Name::new(name)
        .map_err(|error| Failure::Usage(format!("{flag} {name:?}: {error}; 1 to 255 bytes are permitted")))
}

/// Reads a host label. Up to [`HOST_LABEL_LEVELS_MAX`] failure domains are told apart.
fn host_label(label: &str) -> Result<Name, Failure> {
    let levels = label.split('/').count();
    if label.split('/').all(|part| !part.is_empty()) && levels <= HOST_LABEL_LEVELS_MAX {
        return name("--host-label", label);
    }
    Err(Failure::Usage(format!(
        "--host-label {}: use 1 to {HOST_LABEL_LEVELS_MAX} names with a / between them, from the widest failure domain \
         to the host, such as zone-1/rack-2/host-3",
        shown(label)
    )))
}

/// Returns the bytes to donate. Looks at the memory of the host if they are a share of it, or if a reserve of it is
/// kept: a host that does not tell its memory permits neither.
fn memory_bytes(args: &Args, host: &HostMemory) -> Result<u64, Failure> {
    if let (units::MemoryAmount::Bytes(bytes), true) = (args.memory, args.no_reserve) {
        return Ok(bytes);
    }
    let sample =
        host.sample().map_err(|error| Failure::Failed(format!("the memory of this host: {error}")))?;
    let usable_bytes = sample.spaces.iter().map(|space| space.total_bytes).min().unwrap_or(0);
    Ok(args.memory.bytes(usable_bytes))
}

/// Returns the folder for sockets of shared memory.
fn socket_folder(args: &Args) -> Result<Option<SocketFolder>, Failure> {
    let Some(folder) = &args.shm_dir else { return Ok(None) };
    let wrong = |what: String| Failure::Usage(format!("--shm-dir {}: {what}", folder.display()));
    SocketFolder::new(folder).map(Some).map_err(wrong)
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut stop = Stop::catch()?;
    waiting::choose(args.waiting);
    let exposure = args.exposure.exposure(&format!("node-{}", args.name))?;
    let brokers = exposure::brokers_of("--broker", &args.broker, &exposure)?;
    let host = HostMemory::find();
    let host = args.memory_node.map_or_else(|| host.clone(), |node| host.clone().and_node(node));
    let memory_bytes = memory_bytes(args, &host)?;
    let mut options = NodeOptions::new(name("--name", &args.name)?, memory_bytes, brokers.to_string());
    options.region_bytes = args.region_size;
    options.listen = exposure::resolve("--listen", &args.listen, &exposure)?;
    if let Some(address) = &args.advertise {
        exposure::resolve("--advertise", address, &exposure)?;
    }
    let endpoint = args.monitoring.endpoint(exposure.tls.as_ref())?;
    options.exposure = exposure;
    options.advertise = args.advertise.clone();
    options.host_label = args.host_label.as_deref().map(host_label).transpose()?;
    options.donation = match (&args.dax, args.huge_pages) {
        (Some(device), _) => Donation::Device(device.clone()),
        (None, Some(page_bytes)) => Donation::HugePages { page_bytes },
        (None, None) => Donation::Ordinary,
    };
    options.numa_node = args.memory_node;
    options.pressure.source = Some(Arc::new(host));
    options.huge_pages = !args.no_huge_pages;
    options.lock_memory = !args.no_lock;
    options.prefault = !args.no_prefault;
    options.shared_memory = !args.no_shm;
    options.socket_folder = socket_folder(args)?;
    options.limits = Limits { bytes_per_second: args.bandwidth_limit, cpu_milli: args.cpu_limit };
    options.limits.check().map_err(Failure::Usage)?;
    options.repair_bytes_per_second = args.repair_bandwidth;
    let functions = FunctionOptions { sandboxes: sandboxes(args)?, ..FunctionOptions::default() };
    options.extension = farpool_near_data::extension(functions);
    if args.no_reserve {
        options.pressure.source = None;
    }
    options.pressure.reserve_bytes = args.reserve;
    options.pressure.evacuate_ms = args.evacuate.into();
    options.pressure.firm_percent = args.firm_share;
    // If the host runs out of memory, the kernel should kill this process before any other. Where setting that is not
    // permitted, the score stays as it is.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let node =
        Node::start(options).map_err(|error| Failure::Failed(format!("node {}: {error}", args.name)))?;
    let _server = monitoring::serve(endpoint, Arc::new(MonitoredNode(node.view())))?;
    // The node is ready once it has joined the pool, so that clients can lease from it. Until then it reports its
    // attempts on standard error.
    while !node.wait_joined(LOOK) {
        if stop.has_come() {
            return Ok(());
        }
    }
    writeln!(std::io::stdout(), "ready {} {}", args.name, node.address())?;
    let ready = supervisor::ready(&format!("serving {} at {}", args.name, node.address()), node.probe())?;
    let mut ends = None;
    while ends.is_none_or(|ends| Instant::now() < ends) {
        if stop.has_come() {
            match args.drain_on_stop {
                Some(patience_ms) if ends.is_none() => {
                    node.leave();
                    ends = Some(Instant::now() + Duration::from_millis(patience_ms.into()));
                }
                _ => break,
            }
        }
        if node.wait_drained(LOOK) {
            writeln!(std::io::stdout(), "drained {}", args.name)?;
            break;
        }
    }
    drop(ready);
    if ends.is_some() {
        say_what_is_lost(&args.name, &node.view().state());
    }
    Ok(())
}

/// Says which data is lost when a node ends that was told to let clients move it first.
fn say_what_is_lost(name: &str, state: &NodeState) {
    let bytes = |regions: u32| u64::from(regions) * state.region_bytes;
    let (scratch, published) = (bytes(state.counts.leased), bytes(state.counts.named));
    if scratch + published > 0 {
        let message = format!(
            "node {name} ends with {} of scratch data that clients have not moved, and {} of published files; run \
             farpool drain before a node is stopped for good",
            units::show_bytes(scratch),
            units::show_bytes(published)
        );
        Machine.log(&Event::warn("node_ends_with_data", message).node(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        node: Args,
    }

    fn args(more: &[&str]) -> Args {
        let needed = ["farpool", "--name", "n1", "--broker", "farpool://127.0.0.1:7700"];
        Command::try_parse_from([&needed[..], more].concat()).expect("permitted").node
    }

    #[test]
    fn host_that_does_not_tell_its_memory_donates_a_size_if_no_reserve_is_kept() {
        let host = HostMemory::find_below(Path::new("/missing"));
        let bytes = |more: &[&str]| memory_bytes(&args(more), &host).ok();
        assert_eq!(bytes(&["--memory", "4GiB", "--no-reserve"]), Some(4 << 30));
        assert_eq!(bytes(&["--memory", "60%", "--no-reserve"]), None);
        assert_eq!(bytes(&["--memory", "4GiB"]), None);
    }

    #[test]
    fn folder_with_too_long_a_path_for_sockets_is_refused_with_its_flag_and_both_lengths() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().canonicalize().expect("a path").join("x".repeat(80));
        std::fs::create_dir(&folder).expect("made");
        let found = socket_folder(&args(&["--memory", "1GiB", "--shm-dir", &folder.display().to_string()]));
        let Err(Failure::Usage(refused)) = found else { panic!("it is refused") };
        assert!(refused.starts_with("--shm-dir "), "{refused}");
        let length = format!("{} bytes; at most 60 are", folder.as_os_str().len());
        assert!(refused.contains(&length), "{refused}");
    }
}
