//! Mounting by two processes: one serves a folder and has no privileges, the other mounts it and ends.
//!
//! The idea: the process that serves opens `/dev/fuse` and waits. The other takes a copy of this file descriptor and
//! gives it to the kernel with the mount. So a service can run without the right to mount, which is nearly as much as
//! root's.

use crate::mount_table::MountTable;
use crate::{MountError, MountOptions, NAME};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FUSE: &str = "/dev/fuse";

/// Open `/dev/fuse`, with which another process mounts the folder ([`attach`]).
#[derive(Debug)]
pub struct Device(pub(crate) OwnedFd);

impl Device {
    pub(crate) fn open() -> io::Result<Device> {
        let opened =
            rustix::fs::open(FUSE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from);
        opened.map(Device).map_err(|error| io::Error::new(error.kind(), format!("{FUSE}: {error}")))
    }

    /// Reports whether a folder is mounted with this device. The kernel wakes nobody when that happens.
    pub fn is_mounted(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        // The kernel's first message waits from the moment of the mount. Before, the device is in error.
        Ok(polled[0].revents().contains(PollFlags::IN))
    }
}

/// Mounts a scratch folder that the process `pid` serves with its [`Device`]. Returns when that process answers.
/// Only [`MountOptions::allow_other`] counts here.
///
/// Errors: this process may not mount or may not take the device, `pid` has no device that waits, or a symbolic link is
/// in the path of the folder.
pub fn attach(at: &Path, pid: u32, options: &MountOptions<'_>) -> Result<(), MountError> {
    let refused = |error: io::Error| MountError::Refused(at.to_owned(), error);
    let folder = open_folder(at)?;
    let (device, server) = device_of(pid).map_err(|error| refused(about(pid, &error)))?;
    let mut told = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        server.uid(),
        server.gid()
    );
    if options.allow_other {
        told.push_str(",allow_other");
    }
    let kind = format!("fuse.{NAME}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some(NAME), &by_number(&folder), Some(kind.as_str()), flags, Some(told.as_str()))
        .map_err(|error| refused(error.into()))?;
    // The kernel passes this on to the process that serves the folder, except where only the server's user may ask.
    match std::fs::metadata(at) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            detach(at)?;
            Err(refused(about(pid, &error)))
        }
        _ => Ok(()),
    }
}

/// Detaches the mount at a folder if it is one of Farpool's, whether its process runs or not. Returns false if there is
/// none.
///
/// Errors: this process may not unmount, or a symbolic link is in the path of the folder.
pub fn detach(at: &Path) -> Result<bool, MountError> {
    let refused = |error: io::Error| MountError::Refused(at.to_owned(), error);
    let folder = open_folder(at)?;
    if !is_ours(&folder).map_err(refused)? {
        return Ok(false);
    }
    umount2(&by_number(&folder), MntFlags::MNT_DETACH).map_err(|error| refused(error.into()))?;
    Ok(true)
}

/// Opens a folder, or the mount on it. Everything else goes by this descriptor: whoever owns a folder above could
/// otherwise put another in its place meanwhile.
fn open_folder(at: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, at, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).map_err(|error| match error {
        Errno::LOOP => MountError::Link(at.to_owned()),
        error => MountError::NoFolder(at.to_owned(), error.into()),
    })
}

fn by_number(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// Reports whether a folder is on a mount of this crate.
fn is_ours(folder: &OwnedFd) -> io::Result<bool> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", folder.as_raw_fd()))?;
    let number = about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    let mounts = MountTable::read()?;
    Ok(number.and_then(|number| mounts.numbered(number)).is_some_and(|mount| mount.is_ours()))
}

fn about(pid: u32, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the process {pid}: {error}"))
}

/// Returns a copy of the device of a process, and its owner.
fn device_of(pid: u32) -> io::Result<(OwnedFd, Metadata)> {
    let none =
        || io::Error::new(io::ErrorKind::NotFound, format!("it has not opened {FUSE} to wait for a mount"));
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(none)?;
    // Opened first: if the process ends and another gets its number, what is read below is not used.
    let process = pidfd_open(number, PidfdFlags::empty())?;
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let server = std::fs::metadata(&folder)?;
    let mut found = Vec::new();
    for entry in folder.join("fd").read_dir()? {
        let entry = entry?;
        // A descriptor may be closed between the listing and this call.
        if std::fs::read_link(entry.path()).is_ok_and(|target| target == Path::new(FUSE)) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    let &[device] = &found[..] else { return Err(none()) };
    Ok((pidfd_getfd(process, device, PidfdGetfdFlags::empty())?, server))
}
