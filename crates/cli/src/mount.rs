//! `farpool mount`: far memory as a directory.

use crate::exit::Failure;
use crate::signals::Stop;
use crate::supervisor::Ready;
use crate::units::{bytes, millis, show_bytes};
use crate::{Outcome, exposure, monitoring, mount_helper, supervisor};
use farpool::monitoring::{Endpoint, MonitoredSession, More};
use farpool::{CreateOptions, Pool, PoolOptions, Protection, TransportChoice};
use farpool_cache::{BlockCache, CacheOptions, Counts};
use farpool_fuse::{
    CachedOptions, Device, MountError, MountOptions, Mounted, ScratchOptions, Unmounted, Wait, detach_dead,
    mount_cached, mount_scratch,
};
use farpool_host::{Event, Host, Machine, UsableMemory};
use farpool_monitoring::{Scrape, families};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Mount an empty directory for temporary files, which are deleted when this process ends
    Scratch(ScratchArgs),
    /// Mount a directory of this machine, with its reads cached in far memory
    Cache(CacheArgs),
    /// Mount the directory of a `farpool mount scratch --wait-for-attach`, and end
    Attach(AttachArgs),
    /// Unmount a directory if Farpool has mounted it, whether it is in use or not
    Detach(DetachArgs),
}

/// Mount an empty directory for temporary files, which are deleted when this process ends.
#[derive(clap::Args)]
#[command(
    after_help = "Example:  mkdir /tmp/far && farpool mount scratch /tmp/far --pool farpool://127.0.0.1:7700"
)]
pub(crate) struct ScratchArgs {
    /// Directory to mount over; the mount has its owner and permissions
    folder: PathBuf,
    /// Limit for the size of all files together, each in units of 64 KiB [default: what the pool has]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    quota: Option<u64>,
    /// Limit for the number of files and directories [default: what the memory of this process holds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    /// Protection of the files when a node is lost: none, mirror or local [default: as the pool allows]
    #[arg(long, value_name = "HOW")]
    protection: Option<Protection>,
    /// Encrypt all data before it leaves this process
    #[arg(long)]
    encrypted: bool,
    /// Return from a write only when its data is in the pool; slower for small writes
    #[arg(long)]
    write_through: bool,
    /// Transport to the nodes: auto, tcp or shm
    #[arg(long, value_name = "HOW", default_value = "auto")]
    transport: TransportChoice,
    #[command(flatten)]
    monitoring: monitoring::Args,
    /// Serve the directory without the right to mount: wait until `farpool mount attach` has mounted it. For services
    #[arg(long, hide = true)]
    wait_for_attach: bool,
    #[command(flatten)]
    mount: MountArgs,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Mount a directory of this machine, with its reads cached in far memory. Writes go to the directory first.
#[derive(clap::Args)]
#[command(
    after_help = "Example:  farpool mount cache /srv/data /srv/data --size 8GiB --pool farpool://127.0.0.1:7700"
)]
pub(crate) struct CacheArgs {
    /// Directory to cache
    folder: PathBuf,
    /// Where to mount it: an empty directory, or the cached directory itself
    at: PathBuf,
    /// Cache size in far memory
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "1GiB")]
    size: u64,
    /// Size of the local cache in this process, used before far memory; the kernel's page cache comes on top [default:
    /// 16MiB, or an eighth of the memory limit of this process's control group if that is less]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    local_cache: Option<u64>,
    /// Block size: a block is read and cached as a whole; 4KiB to 4MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "64KiB")]
    block: u64,
    /// How long cached names, attributes and contents are used before they are checked again
    #[arg(long, value_name = "TIME", value_parser = millis, default_value = "1s")]
    max_age: u32,
    /// Promise that files change only through this mount. Without it, on file systems with coarse timestamps (before
    /// Linux 6.13), each write invalidates all cached blocks of its file
    #[arg(long)]
    exclusive: bool,
    /// Transport to the nodes: auto, tcp or shm
    #[arg(long, value_name = "HOW", default_value = "auto")]
    transport: TransportChoice,
    #[command(flatten)]
    monitoring: monitoring::Args,
    #[command(flatten)]
    mount: MountArgs,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Mount the directory of a `farpool mount scratch --wait-for-attach`, and end. This command needs the right to mount,
/// and that one does not.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool mount attach /srv/far --pid 4711 --allow-other")]
pub(crate) struct AttachArgs {
    /// Directory that the process serves
    folder: PathBuf,
    /// Number of the process that serves it
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Allow other users to access the mount; file permissions are checked as usual
    #[arg(long)]
    allow_other: bool,
}

/// Unmount a directory if Farpool has mounted it, whether it is in use or not. A mount of anything else stays.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool mount detach /srv/far")]
pub(crate) struct DetachArgs {
    /// Directory to unmount
    folder: PathBuf,
}

#[derive(clap::Args)]
struct MountArgs {
    /// Allow other users to access the mount; file permissions are checked as usual
    #[arg(long)]
    allow_other: bool,
    /// Mount over a directory that is not empty; its contents are hidden meanwhile
    #[arg(long)]
    over_non_empty: bool,
    /// Where standard error goes once the directory is mounted: a file, or the journal if the name is empty. Only
    /// mount.farpool gives it
    #[arg(long, hide = true, value_name = "FILE")]
    log_later: Option<String>,
}

/// Interval between two checks that nobody else has unmounted the directory.
const LOOK: Duration = Duration::from_millis(200);
/// Interval between two checks that another process has mounted the directory.
const LOOK_FOR_ATTACH: Duration = Duration::from_millis(20);

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Scratch(args) => scratch(args),
        Command::Cache(args) => cache(args),
        Command::Attach(args) => {
            let options = MountOptions { allow_other: args.allow_other, ..MountOptions::default() };
            farpool_fuse::attach(&args.folder, args.pid, &options).map_err(not_mounted)
        }
        Command::Detach(args) => {
            if !farpool_fuse::detach(&args.folder).map_err(not_mounted)? {
                writeln!(std::io::stderr(), "nothing of Farpool is mounted at {}", args.folder.display())?;
            }
            Ok(())
        }
    }
}

impl MountArgs {
    fn options<'w>(&self, wait: Option<Wait<'w>>) -> MountOptions<'w> {
        MountOptions { allow_other: self.allow_other, over_non_empty: self.over_non_empty, wait }
    }
}

fn connect(
    args: &exposure::ClientArgs,
    monitoring: &monitoring::Args,
    at: &Path,
    options: PoolOptions,
) -> Result<(Pool, Option<Endpoint>), Failure> {
    let exposure = args.exposure()?;
    let endpoint = monitoring.endpoint(exposure.tls.as_ref())?;
    let label = Some(format!("farpool mount {}", at.display()));
    let options = PoolOptions { label, tls: exposure.tls, plaintext: exposure.plaintext, ..options };
    Ok((Pool::connect_with(&args.pool, options)?, endpoint))
}

fn scratch(args: &ScratchArgs) -> Outcome {
    let mut stop = Stop::catch()?;
    let options = PoolOptions {
        protection: args.protection,
        encrypt_scratch: args.encrypted,
        transport: args.transport,
        ..PoolOptions::default()
    };
    let (pool, endpoint) = connect(&args.exposure, &args.monitoring, &args.folder, options)?;
    let options = ScratchOptions {
        quota_bytes: args.quota,
        files_max: args.files,
        create: CreateOptions::default(),
        write_through: args.write_through,
    };
    let mut ready = None;
    let wait = args.wait_for_attach.then(|| -> Wait<'_> {
        Box::new(|device| {
            ready =
                Some(is_serving(&args.folder).map_err(|failure| std::io::Error::other(failure.to_string()))?);
            wait_for_attach(device, &mut stop)
        })
    });
    if wait.is_none() {
        free(&args.folder)?;
    }
    let mounted = mount_scratch(&pool, &args.folder, options, args.mount.options(wait), refused)
        .map_err(not_mounted)?;
    let _server = monitoring::serve(endpoint, Arc::new(MonitoredSession::new("mount", &pool, None)))?;
    hold(mounted, &args.folder, &args.mount, stop, ready)?;
    ended(format!("{} were written to far memory", show_bytes(pool.stats().bytes_written)));
    // If the mount is in use, it is served until this process ends. Without this call, the pool would get the memory
    // back only after the leases have expired.
    pool.close();
    Ok(())
}

/// Returns the default size of the local cache, which leaves most of a pod's memory to others.
fn local_cache_bytes() -> u64 {
    const BYTES_MAX: u64 = 16 << 20;
    UsableMemory::find().group_limit().map_or(BYTES_MAX, |group| BYTES_MAX.min(group.total_bytes / 8))
}

fn cache(args: &CacheArgs) -> Outcome {
    let stop = Stop::catch()?;
    let options = PoolOptions { transport: args.transport, ..PoolOptions::default() };
    let (pool, endpoint) = connect(&args.exposure, &args.monitoring, &args.at, options)?;
    let options = CacheOptions {
        block_bytes: usize::try_from(args.block).unwrap_or(usize::MAX),
        near_bytes: args.local_cache.unwrap_or_else(local_cache_bytes),
        far_bytes: args.size,
        ..CacheOptions::default()
    };
    let cache = BlockCache::new(&options, Some(&pool)).map_err(Failure::failed)?;
    let max_age = Duration::from_millis(args.max_age.into());
    let options = CachedOptions { max_age, is_exclusive: args.exclusive };
    // Each file, directory and open file of the mount takes a file descriptor of this process, so its limit is raised
    // to the maximum.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).map_err(Failure::failed)?;
    free(&args.at)?;
    let mounted = mount_cached(&args.folder, &args.at, &cache, options, args.mount.options(None))
        .map_err(not_mounted)?;
    let counted = cache.clone();
    let more: More = Box::new(move |into| measure_cache(&counted.counts(), into));
    let monitored = MonitoredSession::new("mount", &pool, Some(more));
    let _server = monitoring::serve(endpoint, Arc::new(monitored))?;
    hold(mounted, &args.at, &args.mount, stop, None)?;
    let counts: Vec<String> =
        cache.counts().named().into_iter().map(|(what, times)| format!("{what} {times}")).collect();
    ended(format!("blocks: {}", counts.join(", ")));
    pool.close();
    Ok(())
}

/// Adds the counters of a cache.
fn measure_cache(counts: &Counts, into: &mut Scrape) {
    for (result, count) in
        [("near_hit", counts.near_hits), ("far_hit", counts.far_hits), ("miss", counts.misses)]
    {
        into.set(&families::CACHE_LOOKUPS, &[result], count);
    }
    into.set(&families::CACHE_FAILURES, &[], counts.far_failures);
    into.set(&families::CACHE_WRITES, &[], counts.far_writes);
    into.set(&families::CACHE_REFUSED, &[], counts.far_refused);
}

/// Logs that a request of a program has failed, and why.
fn refused(why: &str) {
    Machine.log(&Event::warn("file_refused", why));
}

/// Logs what a mount has done by its end.
fn ended(what: String) {
    Machine.log(&Event::info("mount_ended", what));
}

fn not_mounted(error: MountError) -> Failure {
    Failure::Failed(format!("mount {error}"))
}

/// Detaches mounts on the directory whose processes were killed.
fn free(at: &Path) -> Outcome {
    let count = detach_dead(at).map_err(not_mounted)?;
    if count > 0 {
        let message = format!("detached a stale mount at {}, whose process was killed", at.display());
        Machine.log(&Event::info("stale_mount_detached", message));
    }
    Ok(())
}

/// Tells systemd that the directory is served.
fn is_serving(at: &Path) -> Result<Ready, Failure> {
    let asked = at.to_owned();
    // The kernel passes this on to the threads that serve the mount.
    supervisor::ready(&format!("serving {}", at.display()), move || {
        let _ = rustix::fs::statvfs(&asked);
    })
}

/// Waits until another process has mounted the directory, or a signal to stop arrives.
fn wait_for_attach(device: &Device, stop: &mut Stop) -> std::io::Result<()> {
    while !device.is_mounted()? {
        stop.check().map_err(|failure| std::io::Error::other(failure.to_string()))?;
        std::thread::sleep(LOOK_FOR_ATTACH);
    }
    Ok(())
}

/// Serves a mounted directory until this process gets a signal to stop, or somebody else unmounts it.
/// `ready` is what systemd was told before the directory was mounted.
fn hold(mounted: Mounted, at: &Path, args: &MountArgs, mut stop: Stop, ready: Option<Ready>) -> Outcome {
    let later = args.log_later.as_deref().map(mount_helper::later_log).transpose();
    let later = later.map_err(|error| Failure::Failed(format!("the log of the mount: {error}")))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", at.display())?;
    out.flush()?;
    if let Some(later) = later {
        // Nobody reads the pipe to mount.farpool from now on.
        nix::unistd::dup2_stderr(later).map_err(std::io::Error::from)?;
    }
    let ready = ready.map_or_else(|| is_serving(at), Ok)?;
    while !stop.has_come() {
        if mounted.is_over() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    drop(ready);
    let ended = mounted.unmount();
    if ended.map_err(|error| Failure::Failed(format!("unmount {}: {error}", at.display())))?
        == Unmounted::InUse
    {
        let message = format!(
            "{} was in use: it was detached, and the folder is free; files that are open in it fail with \"transport \
             endpoint is not connected\" from now on",
            at.display()
        );
        Machine.log(&Event::warn("mount_in_use", message));
    }
    Ok(())
}
