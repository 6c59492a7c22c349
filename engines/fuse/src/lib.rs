//! Far memory as a folder, for any program that reads and writes files.
//!
//! The idea: there are two kinds of folders. A *scratch folder* is empty at first and ends with its process. File
//! contents are temporary files in a pool of far memory; names and attributes are kept in this process. Nothing
//! survives the process, so `fsync` returns at once. Reading contents that were lost is an error. A *cached folder*
//! shows a folder of this machine. All operations pass through to it, and blocks of files that were read are kept in
//! far memory.
//!
//! Never in this crate: a rule about leases, a socket, a clock in `tree.rs`.
#![forbid(unsafe_code)]

mod adapter;
mod attaching;
mod cached;
mod complaints;
mod listings;
mod mount_table;
mod scratch;
mod tree;
mod unmounting;

pub use attaching::{Device, attach, detach};
pub use cached::CachedOptions;
pub use mount_table::{KernelMount, MountTable};
pub use scratch::ScratchOptions;
pub use unmounting::{Unmounted, detach_dead};

use adapter::{Adapter, Files};
use cached::Cached;
use complaints::Complaints;
use farpool_cache::BlockCache;
use farpool_files::Pool;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use scratch::Scratch;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

/// Number of threads that answer the kernel. They block while they wait for far memory, so one is not enough.
const THREADS: usize = 4;
/// Source name of a mounted scratch folder. That of a cached folder is this name, a colon, and the path of the folder
/// that it shows.
const NAME: &str = "farpool";

/// Reason why a folder was not mounted.
#[derive(Debug)]
pub enum MountError {
    /// The path does not exist or is no folder.
    NoFolder(PathBuf, io::Error),
    /// The folder is not empty, and the mount would hide its contents.
    NotEmpty(PathBuf),
    /// The folder has a mount whose process has ended. It could not be removed; the string says why.
    Dead(PathBuf, String),
    /// The kernel or `fusermount3` refused the mount.
    Refused(PathBuf, io::Error),
    /// A symbolic link is in the path, which could lead elsewhere by the time of the mount.
    Link(PathBuf),
    /// Waiting until another process had mounted the folder ended with an error.
    NotAttached(PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::NoFolder(at, error) => {
                write!(f, "{}: {error}; name an existing folder", at.display())
            }
            MountError::NotEmpty(at) => write!(
                f,
                "{} is not empty, and its files would be hidden; choose an empty folder, or give --over-non-empty",
                at.display()
            ),
            MountError::Dead(at, why) => write!(
                f,
                "{at} has a stale mount (its process has ended) that cannot be removed: {why}; run umount --lazy {at}",
                at = at.display()
            ),
            MountError::Refused(at, error) => write!(
                f,
                "{}: {error}; mounting needs /dev/fuse, and either root or the program fusermount3 (Debian: fuse3)",
                at.display()
            ),
            MountError::Link(at) => write!(
                f,
                "{}: a symbolic link is in this path; give the path that realpath prints",
                at.display()
            ),
            MountError::NotAttached(at, error) => {
                write!(f, "{at}: {error} while it waited for farpool mount attach {at}", at = at.display())
            }
        }
    }
}

impl std::error::Error for MountError {}

/// Returns when a device is mounted, or with an error if that is not to be waited for any longer.
pub type Wait<'w> = Box<dyn FnOnce(&Device) -> io::Result<()> + 'w>;

/// Options of both kinds of mounts.
#[derive(Default)]
pub struct MountOptions<'w> {
    /// True if users other than the one who mounts may access the folder. Their permissions are checked as usual.
    pub allow_other: bool,
    /// True if the mount may hide files that are in the folder already.
    pub over_non_empty: bool,
    /// Waits until another process has mounted the folder with a device ([`attach`]). This process mounts and unmounts
    /// nothing then.
    pub wait: Option<Wait<'w>>,
}

/// A mounted folder. Dropping it unmounts it as [`Self::unmount`] does.
#[derive(Debug)]
pub struct Mounted {
    session: Option<BackgroundSession>,
    /// Canonical path of the folder. `None` if another process has mounted it, which then unmounts it as well.
    at: Option<PathBuf>,
}

impl Mounted {
    /// Unmounts the folder. If it is in use, it is detached: its path is free at once, but programs that have files
    /// open in it can still access them until this process ends.
    pub fn unmount(mut self) -> io::Result<Unmounted> {
        self.end()
    }

    /// Reports whether the mount has ended, for example because another program unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    fn end(&mut self) -> io::Result<Unmounted> {
        let is_over = self.is_over();
        let Some(session) = self.session.take() else { return Ok(Unmounted::Unused) };
        let ended = match &self.at {
            Some(at) if !is_over => unmounting::unmount(at, || !session.guard.is_finished()),
            _ => Ok(Unmounted::Unused),
        };
        // Dropping the session would unmount whatever is mounted at that path now. That may be another mount, such as
        // the volume below a folder that was mounted over itself.
        std::mem::forget(session);
        ended
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Mounts an empty file system over a folder, with the owner and permissions of the folder. Messages about failures of
/// later accesses are passed to `say`, at most one a second.
///
/// Errors: the folder does not exist or is not empty, or nothing can be mounted here.
pub fn mount_scratch(
    pool: &Pool,
    at: &Path,
    options: ScratchOptions,
    mount: MountOptions<'_>,
    say: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Mounted, MountError> {
    let found = check_folder(at, mount.over_non_empty)?;
    let scratch = Scratch::new(pool, options, &found, Complaints::new(say));
    begin(scratch, at, NAME, mount)
}

/// Mounts `folder` of this machine at `at`, which is another folder or the same one. Reads are cached in far memory.
/// Changes that other programs make in `folder` are seen after [`CachedOptions::max_age`], except by programs that
/// mapped the file into their memory before.
///
/// Errors: one of the folders does not exist, the one to mount over is not empty, or nothing can be mounted here.
pub fn mount_cached(
    folder: &Path,
    at: &Path,
    cache: &BlockCache,
    options: CachedOptions,
    mount: MountOptions<'_>,
) -> Result<Mounted, MountError> {
    let no_folder = |error| MountError::NoFolder(folder.to_owned(), error);
    let is_itself = folder.canonicalize().map_err(no_folder)?
        == at.canonicalize().map_err(|error| MountError::NoFolder(at.to_owned(), error))?;
    // A folder mounted over itself hides nothing.
    check_folder(at, mount.over_non_empty || is_itself)?;
    let cached = Cached::new(folder, cache, options).map_err(no_folder)?;
    begin(cached, at, &format!("{NAME}:{}", folder.display()), mount)
}

fn check_folder(at: &Path, over_non_empty: bool) -> Result<Metadata, MountError> {
    let no_folder = |error| MountError::NoFolder(at.to_owned(), error);
    let found = std::fs::metadata(at).map_err(no_folder)?;
    let mut entries = std::fs::read_dir(at).map_err(no_folder)?;
    if entries.next().is_some() && !over_non_empty {
        return Err(MountError::NotEmpty(at.to_owned()));
    }
    Ok(found)
}

fn begin(files: impl Files, at: &Path, from: &str, mount: MountOptions<'_>) -> Result<Mounted, MountError> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(from.to_owned()),
        MountOption::Subtype(NAME.to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if mount.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let place = at.canonicalize().map_err(|error| MountError::Refused(at.to_owned(), error))?;
    let adapter = Adapter::new(files);
    let (session, place) = match mount.wait {
        None => (Session::new(adapter, at, &config), Some(place)),
        Some(wait) => {
            let device = Device::open().map_err(|error| MountError::Refused(at.to_owned(), error))?;
            // The folder must not be accessed from here on, until the session answers.
            wait(&device).map_err(|error| MountError::NotAttached(at.to_owned(), error))?;
            (Session::from_fd(adapter, device.0, config.acl, config), None)
        }
    };
    let session =
        session.and_then(Session::spawn).map_err(|error| MountError::Refused(at.to_owned(), error))?;
    let mounted = Mounted { session: Some(session), at: place };
    // This reads the attributes of the mounted folder once. Before, the kernel takes the folder for one of the user
    // root, and does not let others change it.
    std::fs::metadata(at).map_err(|error| MountError::Refused(at.to_owned(), error))?;
    Ok(mounted)
}
