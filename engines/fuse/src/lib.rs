//! Far memory as a folder, for programs that know files and nothing else.
//!
//! The idea: there are two kinds. A scratch folder begins empty and ends with its process. What is in it lies in
//! scratch files of a pool; names and attributes are kept here. Nothing survives, so `fsync` has nothing to wait for;
//! nothing that was lost reads as anything but an error. A cached folder is one of this machine: everything passes
//! through to it, and what is read of files is kept in far memory.
//!
//! Never in this crate: a rule about leases, a socket, a clock in `tree.rs`.
#![forbid(unsafe_code)]

mod adapter;
mod cached;
mod complaints;
mod listings;
mod scratch;
mod tree;
mod unmounting;

pub use cached::CachedOptions;
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

/// Threads that answer the kernel. What they wait for is the pool.
const THREADS: usize = 4;
/// Source by which mounts of this crate are known: this, or this and a colon before more.
const NAME: &str = "farpool";

/// Why a folder was not mounted.
#[derive(Debug)]
pub enum MountError {
    /// It is not there, or is no folder.
    NoFolder(PathBuf, io::Error),
    /// It has something in it, which would be hidden.
    NotEmpty(PathBuf),
    /// A mount is there whose process has ended, and it stays there because of this.
    Dead(PathBuf, String),
    /// The kernel, or `fusermount3`, did not do it.
    Refused(PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::NoFolder(at, error) => {
                write!(f, "{}: {error}; an existing folder can be mounted over", at.display())
            }
            MountError::NotEmpty(at) => write!(
                f,
                "{} is not empty, and what is in it would be hidden; an empty folder can be mounted over, or any with \
                 --over-non-empty",
                at.display()
            ),
            MountError::Dead(at, why) => write!(
                f,
                "{at} has a mount whose process has ended, and {why}; take it away with umount --lazy {at}",
                at = at.display()
            ),
            MountError::Refused(at, error) => write!(
                f,
                "{}: {error}; mounting takes /dev/fuse, and either root or the program fusermount3 (Debian: fuse3)",
                at.display()
            ),
        }
    }
}

impl std::error::Error for MountError {}

/// How a folder is mounted, whatever is in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountOptions {
    /// Whether users other than the one who mounts may use it; their rights are checked as anywhere.
    pub allow_other: bool,
    /// Whether what is in the folder already may be hidden.
    pub over_non_empty: bool,
}

/// A folder while it is mounted. Dropped, it is unmounted as by [`Self::unmount`].
#[derive(Debug)]
pub struct Mounted {
    session: Option<BackgroundSession>,
    /// Canonical.
    at: PathBuf,
}

impl Mounted {
    /// Unmounts it. In use, it is detached: its folder is free, and what is open in it is served until this process
    /// ends.
    pub fn unmount(mut self) -> io::Result<Unmounted> {
        self.end()
    }

    /// Tells whether it has ended, as it does when somebody else unmounts it.
    pub fn is_over(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    fn end(&mut self) -> io::Result<Unmounted> {
        let is_over = self.is_over();
        let Some(session) = self.session.take() else { return Ok(Unmounted::Unused) };
        let ended = if is_over {
            Ok(Unmounted::Unused)
        } else {
            unmounting::unmount(&self.at, || !session.guard.is_finished())
        };
        // Dropped, it would unmount whatever is at that path by now, such as the volume that a folder was mounted over
        // itself on.
        std::mem::forget(session);
        ended
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Mounts an empty file system over a folder, whose owner and permissions it takes on. `say` hears of failures, at most
/// one a second.
///
/// Errors: the folder is not there or not empty, or nothing can be mounted here.
pub fn mount_scratch(
    pool: &Pool,
    at: &Path,
    options: ScratchOptions,
    mount: MountOptions,
    say: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Mounted, MountError> {
    let found = check_folder(at, mount)?;
    let scratch = Scratch::new(pool, options, &found, Complaints::new(say));
    begin(scratch, at, NAME, mount)
}

/// Mounts a folder of this machine, whose reads are kept in a cache, over another or over itself. What others
/// change in the folder is read as it is once [`CachedOptions::fresh_for`] is over, but by programs that mapped it into
/// their memory before.
///
/// Errors: one of the folders is not there, the one to mount over is not empty, or nothing can be mounted here.
pub fn mount_cached(
    folder: &Path,
    at: &Path,
    cache: &BlockCache,
    options: CachedOptions,
    mount: MountOptions,
) -> Result<Mounted, MountError> {
    let no_folder = |error| MountError::NoFolder(folder.to_owned(), error);
    let is_itself = folder.canonicalize().map_err(no_folder)?
        == at.canonicalize().map_err(|error| MountError::NoFolder(at.to_owned(), error))?;
    // What is mounted over itself hides nothing.
    check_folder(at, MountOptions { over_non_empty: mount.over_non_empty || is_itself, ..mount })?;
    let cached = Cached::new(folder, cache, options).map_err(no_folder)?;
    begin(cached, at, &format!("{NAME}:{}", folder.display()), mount)
}

fn check_folder(at: &Path, mount: MountOptions) -> Result<Metadata, MountError> {
    let no_folder = |error| MountError::NoFolder(at.to_owned(), error);
    let found = std::fs::metadata(at).map_err(no_folder)?;
    let mut entries = std::fs::read_dir(at).map_err(no_folder)?;
    if entries.next().is_some() && !mount.over_non_empty {
        return Err(MountError::NotEmpty(at.to_owned()));
    }
    Ok(found)
}

fn begin(files: impl Files, at: &Path, from: &str, mount: MountOptions) -> Result<Mounted, MountError> {
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
    let session = Session::new(Adapter::new(files), at, &config).and_then(Session::spawn);
    let session = session.map_err(|error| MountError::Refused(at.to_owned(), error))?;
    let mounted = Mounted { session: Some(session), at: place };
    // Until somebody asks, the kernel takes its root for root's, and lets nobody else change it.
    std::fs::metadata(at).map_err(|error| MountError::Refused(at.to_owned(), error))?;
    Ok(mounted)
}
