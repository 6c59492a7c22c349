//! Mounting by two processes: one serves a folder and has no privileges, the other mounts it and ends.
//!
//! The idea: the process that serves opens `/dev/fuse` and waits. The other takes a copy of this file descriptor and
//! gives it to the kernel with the mount. So a service can run without the right to mount, which is nearly as much as
//! root's.

use crate::{MountError, MountOptions, NAME, detach_dead, unmounting};
use nix::mount::{MsFlags, mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
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
/// Errors: this process may not mount or may not take the device, or `pid` has no device that waits.
pub fn attach(at: &Path, pid: u32, options: &MountOptions<'_>) -> Result<(), MountError> {
    let refused = |error: io::Error| MountError::Refused(at.to_owned(), error);
    detach_dead(at)?;
    let place = at.canonicalize().map_err(|error| MountError::NoFolder(at.to_owned(), error))?;
    let process = PathBuf::from(format!("/proc/{pid}"));
    let server = std::fs::metadata(&process).map_err(|error| refused(about(pid, &error)))?;
    let device = device_of(pid, &process).map_err(|error| refused(about(pid, &error)))?;
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
    mount(Some(NAME), &place, Some(kind.as_str()), flags, Some(told.as_str()))
        .map_err(|error| refused(error.into()))?;
    // The kernel passes this on to the process that serves the folder, except where only the server's user may ask.
    match std::fs::metadata(&place) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            let _ = unmounting::take_away(&place, unmounting::How::Detached);
            Err(refused(about(pid, &error)))
        }
        _ => Ok(()),
    }
}

fn about(pid: u32, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the process {pid}: {error}"))
}

/// Returns a copy of the device of a process.
fn device_of(pid: u32, process: &Path) -> io::Result<OwnedFd> {
    let none =
        || io::Error::new(io::ErrorKind::NotFound, format!("it has not opened {FUSE} to wait for a mount"));
    let mut found = Vec::new();
    for entry in process.join("fd").read_dir()? {
        let entry = entry?;
        // A descriptor may be closed between the listing and this call.
        if std::fs::read_link(entry.path()).is_ok_and(|target| target == Path::new(FUSE)) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let (&[number], Some(pid)) = (&found[..], pid) else { return Err(none()) };
    Ok(pidfd_getfd(pidfd_open(pid, PidfdFlags::empty())?, number, PidfdGetfdFlags::empty())?)
}
