//! Unmounting: folders that this process has mounted, in use or not, and folders left mounted by a process that was
//! killed.
//!
//! The idea: a mount in use cannot be unmounted, but it can be detached. Its path is free at once, and files that are
//! open in it work until the process that serves it ends. Root asks the kernel directly; other users need
//! `fusermount3`.
//!
//! Never in this module: unmounting a mount that is not Farpool's.

use crate::MountError;
use crate::mount_table::MountTable;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time to wait until the threads that served an unmounted folder have ended. If they still run after it, the mount
/// counts as in use.
const ENDING: Duration = Duration::from_secs(5);
/// Interval between two checks that the threads which served an unmounted folder have ended.
const LOOK: Duration = Duration::from_millis(2);
/// Limit for the dead mounts (their process has ended) on top of each other at one folder that are detached.
const DEAD_MAX: usize = 64;

/// Result of unmounting a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount was not in use.
    Unused,
    /// The mount was in use and is detached. Files that are open in it fail with `ENOTCONN` after this process ends.
    InUse,
}

/// Unmounts the folder at a canonical path, or detaches it if it is in use. `is_served` reports whether the threads
/// that serve the folder still run.
pub(crate) fn unmount(at: &Path, is_served: impl Fn() -> bool) -> io::Result<Unmounted> {
    match take_away(at, How::IfUnused) {
        Ok(()) => {}
        // `EINVAL`: nothing is mounted here any more, because another program has just unmounted it.
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {}
        Err(_) => {
            take_away(at, How::Detached)?;
            return Ok(Unmounted::InUse);
        }
    }
    // The threads end when the last copy of the mount is gone. Another mount namespace may still have one.
    let give_up = Instant::now() + ENDING;
    while is_served() {
        if Instant::now() >= give_up {
            return Ok(Unmounted::InUse);
        }
        std::thread::park_timeout(LOOK);
    }
    Ok(Unmounted::Unused)
}

/// Detaches Farpool's mounts on a folder whose processes ended without unmounting. Returns their number.
///
/// Errors: [`MountError::Dead`] if a dead mount cannot be detached, or belongs to another program.
pub fn detach_dead(at: &Path) -> Result<usize, MountError> {
    // A trailing slash would make the kernel enter the dead mount.
    let at: PathBuf = at.components().collect();
    for detached in 0..DEAD_MAX {
        // `statvfs` always asks the process that serves the mount, and fails with `NOTCONN` if that has ended. `stat`
        // might return attributes that the kernel has cached.
        match rustix::fs::statvfs(&at) {
            Err(rustix::io::Errno::NOTCONN) => {}
            _ => return Ok(detached),
        }
        let dead = |why: String| MountError::Dead(at.clone(), why);
        let place = at.canonicalize().map_err(|error| dead(error.to_string()))?;
        let mounts = MountTable::read().map_err(|error| dead(error.to_string()))?;
        match mounts.at(&place) {
            Some(mount) if mount.is_ours() => {}
            Some(mount) => return Err(dead(format!("it belongs to another program ({mount})"))),
            None => return Err(dead("the mount is at a parent folder".to_owned())),
        }
        take_away(&place, How::Detached).map_err(|error| dead(error.to_string()))?;
    }
    Err(MountError::Dead(at, format!("it covers {DEAD_MAX} other stale mounts")))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Fails with `EBUSY` if the mount is in use.
    IfUnused,
    /// Removes the path even if the mount is in use.
    Detached,
}

fn take_away(at: &Path, how: How) -> io::Result<()> {
    let flags = MntFlags::UMOUNT_NOFOLLOW
        | if how == How::Detached { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(at, flags) {
        Err(Errno::EPERM) => by_helper(at, how),
        other => Ok(other?),
    }
}

/// Unmounts or detaches with the program `fusermount3`, which may do so for users other than root.
fn by_helper(at: &Path, how: How) -> io::Result<()> {
    let names = match std::env::var_os("FUSERMOUNT_PATH") {
        Some(path) => vec![path],
        None => vec!["fusermount3".into(), "fusermount".into()],
    };
    let flags = if how == How::Detached { &["-u", "-z", "--"][..] } else { &["-u", "--"] };
    for name in &names {
        let output = Command::new(name).args(flags).arg(at).stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("this needs root or the program fusermount3 (Debian: fuse3)"))
}
