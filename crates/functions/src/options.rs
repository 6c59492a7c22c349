//! Options of sandbox processes, and their folders: the cache of compiled code, and control groups.

use crate::abi::{digest, hex};
use farpool_wire::limits::LANE_QUEUE_MS;
use std::fs::{self, File, Permissions};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Options of sandbox processes.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// Path of the program `farpool-sandbox`.
    pub program: PathBuf,
    /// Largest size of a function's heap, in bytes.
    pub heap_bytes: u64,
    /// Ed25519 public keys that sign functions. If there are none, native functions are refused.
    pub keys: Vec<[u8; 32]>,
    /// True if WebAssembly functions, too, must be signed by one of the keys.
    pub signed_alone: bool,
    /// Folder that caches compiled modules, with a subfolder for each tenant. `None`: nothing is cached.
    pub cache: Option<PathBuf>,
    /// Folders of control groups. Each process is put into all of them, so their limits apply to it.
    pub groups: Vec<PathBuf>,
    /// Largest number of sandbox processes that a node has at a time, within [`Self::PROCESSES_RANGE`].
    pub processes_max: usize,
    /// Niceness of the processes, added to that of the node, within [`Self::NICENESS_RANGE`].
    pub niceness: u8,
    /// Longest time in ms that a caller waits for a process if all are in use; then it is refused. Clients expect
    /// [`LANE_QUEUE_MS`] at most.
    pub queue_ms: u64,
}

impl SandboxOptions {
    /// Default of the largest heap, in bytes.
    pub const HEAP_BYTES: u64 = 256 << 20;
    /// Permitted range of the largest heap, in bytes.
    pub const HEAP_BYTES_RANGE: RangeInclusive<u64> = 1 << 20..=512 << 20;
    /// Permitted range of the number of processes.
    pub const PROCESSES_RANGE: RangeInclusive<usize> = 1..=1_024;
    /// Default niceness. It lets requests to the node itself come first.
    pub const NICENESS: u8 = 10;
    /// Permitted range of the niceness.
    pub const NICENESS_RANGE: RangeInclusive<u8> = 0..=19;

    /// Makes options with this program and defaults for everything else.
    pub fn new(program: PathBuf) -> SandboxOptions {
        SandboxOptions {
            program,
            heap_bytes: Self::HEAP_BYTES,
            keys: Vec::new(),
            signed_alone: false,
            cache: None,
            groups: Vec::new(),
            processes_max: 16,
            niceness: Self::NICENESS,
            queue_ms: LANE_QUEUE_MS,
        }
    }
}

/// Creates the folder `tenants` in the cache of compiled code, which contains a folder for each tenant. Only the node's
/// user can enter it, because the folders in it must be open to sandbox processes, which have other users.
pub(crate) fn tenants(cache: &Path) -> io::Result<PathBuf> {
    let folder = cache.join("tenants");
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
    Ok(folder)
}

/// Creates and opens a tenant's folder for compiled code. No tenant reads the code of another.
pub(crate) fn tenant_folder(cache: &Path, tenant: &str) -> io::Result<OwnedFd> {
    let folder = tenants(cache)?.join(hex(&digest(tenant.as_bytes())[..8]));
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    Ok(File::open(folder)?.into())
}

/// Opens the list of a control group's processes for writing.
pub(crate) fn members(group: &Path) -> io::Result<File> {
    let list = group.join("cgroup.procs");
    File::options().write(true).open(&list).map_err(|error| {
        let message = format!("{} is not a control group that accepts processes: {error}", group.display());
        io::Error::new(error.kind(), message)
    })
}
