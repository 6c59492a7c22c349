//! How sandbox processes are to be, and the folders that they are given: of compiled code, and of control groups.

use crate::abi::{digest, hex};
use farpool_wire::limits::LANE_QUEUE_MS;
use std::fs::{self, File, Permissions};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How sandbox processes are to be.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// The program: `farpool-sandbox`.
    pub program: PathBuf,
    /// The most bytes of a function's heap.
    pub heap_bytes: u64,
    /// Ed25519 public keys that native functions may be signed with; without any, none is run.
    pub keys: Vec<[u8; 32]>,
    /// A folder where what modules were compiled to is kept, in a folder for each tenant.
    pub cache: Option<PathBuf>,
    /// Control groups that the processes are put into, by their folders: the limits of these are theirs.
    pub groups: Vec<PathBuf>,
    /// Processes at a time: [`Self::PROCESSES_RANGE`].
    pub processes_max: usize,
    /// Their niceness, above that of whoever starts them: [`Self::NICENESS_RANGE`].
    pub niceness: u8,
    /// The longest wait of a caller for one of them, in milliseconds. Clients expect [`LANE_QUEUE_MS`] at the most.
    pub queue_ms: u64,
}

impl SandboxOptions {
    /// The most bytes of a heap, where nothing is said.
    pub const HEAP_BYTES: u64 = 256 << 20;
    /// What the most bytes of a heap may be.
    pub const HEAP_BYTES_RANGE: RangeInclusive<u64> = 1 << 20..=512 << 20;
    /// The permitted range of the number of processes.
    pub const PROCESSES_RANGE: RangeInclusive<usize> = 1..=1_024;
    /// The niceness where nothing is said: those who wait for the node itself come first.
    pub const NICENESS: u8 = 10;
    /// The permitted niceness.
    pub const NICENESS_RANGE: RangeInclusive<u8> = 0..=19;

    /// Sandboxes by this program, with defaults.
    pub fn new(program: PathBuf) -> SandboxOptions {
        SandboxOptions {
            program,
            heap_bytes: Self::HEAP_BYTES,
            keys: Vec::new(),
            cache: None,
            groups: Vec::new(),
            processes_max: 16,
            niceness: Self::NICENESS,
            queue_ms: LANE_QUEUE_MS,
        }
    }
}

/// Makes the folder in which tenants have theirs. Only the node's user gets into it: theirs have to be open to
/// processes that have users of their own.
pub(crate) fn tenants(cache: &Path) -> io::Result<PathBuf> {
    let folder = cache.join("tenants");
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
    Ok(folder)
}

/// Opens a tenant's folder: one tenant's code is never another's.
pub(crate) fn tenant_folder(cache: &Path, tenant: &str) -> io::Result<OwnedFd> {
    let folder = tenants(cache)?.join(hex(&digest(tenant.as_bytes())[..8]));
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    Ok(File::open(folder)?.into())
}

/// The list of a control group's processes, to be written to.
pub(crate) fn members(group: &Path) -> io::Result<File> {
    let list = group.join("cgroup.procs");
    File::options().write(true).open(&list).map_err(|error| {
        let message =
            format!("{} is no control group that processes can be put into: {error}", group.display());
        io::Error::new(error.kind(), message)
    })
}
