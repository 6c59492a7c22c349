//! Unmounting: folders that this process has mounted, in use or not, and folders left mounted by a process that was
//! killed.
//!
//! The idea: a mount in use cannot be unmounted, but it can be detached. Its path is free at once, and files that are
//! open in it work until the process that serves it ends. Root asks the kernel directly; other users need
//! `fusermount3`.
//!
//! Never in this module: unmounting a mount that is not Farpool's.

use crate::{MountError, NAME};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
        let mounts = std::fs::read("/proc/self/mountinfo").map_err(|error| dead(error.to_string()))?;
        match mounted_at(&mounts, &place) {
            Some(mount) if mount.is_ours() => {}
            Some(Listed { kind, source }) => {
                let (kind, source) = (kind.display(), source.display());
                return Err(dead(format!("it belongs to another program ({kind} of {source})")));
            }
            None => return Err(dead("the mount is at a parent folder".to_owned())),
        }
        take_away(&place, How::Detached).map_err(|error| dead(error.to_string()))?;
    }
    Err(MountError::Dead(at, format!("it covers {DEAD_MAX} other stale mounts")))
}

/// Mount as listed in `/proc/self/mountinfo`: its file system type (`kind`) and its source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    kind: OsString,
    source: OsString,
}

impl Listed {
    /// Reports whether this crate made the mount. The source decides, because the type is only `fuse` if root mounted
    /// the folder.
    pub(crate) fn is_ours(&self) -> bool {
        let source = self.source.as_bytes().strip_prefix(NAME.as_bytes());
        let is_from_us = source.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"));
        is_from_us && self.kind.as_bytes().starts_with(b"fuse")
    }
}

/// Returns the last mount at a canonical path, which hides earlier ones. `mounts` are the contents of
/// `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn mounted_at(mounts: &[u8], place: &Path) -> Option<Listed> {
    let is_there = |line: &&[u8]| {
        let at = line.split(|byte| *byte == b' ').nth(4);
        at.is_some_and(|at| unescaped(at) == place.as_os_str().as_bytes())
    };
    mounts.split(|byte| *byte == b'\n').filter(is_there).filter_map(of_line).next_back()
}

/// Returns the mount with a number, as `mnt_id` in `/proc/self/fdinfo` has it.
pub(crate) fn listed(mounts: &[u8], number: &str) -> Option<Listed> {
    let has_number = |line: &&[u8]| line.split(|byte| *byte == b' ').next() == Some(number.as_bytes());
    mounts.split(|byte| *byte == b'\n').find(has_number).and_then(of_line)
}

fn of_line(line: &[u8]) -> Option<Listed> {
    // Optional fields end with a dash; type and source follow it. A path before them has no field that is a dash alone,
    // because its spaces are written as numbers.
    let mut fields = line.split(|byte| *byte == b' ').skip(5).skip_while(|field| *field != b"-").skip(1);
    let mut next = || fields.next().map(|field| OsString::from_vec(unescaped(field)));
    Some(Listed { kind: next()?, source: next()? })
}

/// Decodes a field of `/proc/self/mountinfo`, in which `\` and three octal digits stand for a space, tab, line feed or
/// backslash.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.first_chunk::<3>().filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = &behind[if code.is_some() { 3 } else { 0 }..];
    }
    bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_of_a_folder_is_the_last_one_at_that_very_path_and_ours_by_its_source() {
        let mounts = br"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
42 27 0:39 / /srv/far rw,relatime shared:7 master:3 - fuse.sshfs farpools: rw
43 42 0:40 / /srv/far rw,relatime - fuse.farpool farpool rw
44 27 0:41 / /srv/far/below rw - tmpfs farpool rw
45 27 0:42 / /srv/two\040words\134 rw - fuse farpool:/a\040b rw
46 27 0:43 / /srv/-\040- rw - fuse.sshfs farpools: rw
cut short";
        let at = |place: &str| mounted_at(mounts, Path::new(place));
        let listed = |kind: &str, source: &str| Listed { kind: kind.into(), source: source.into() };
        let cases = [
            ("/srv/far", listed("fuse.farpool", "farpool"), true),
            ("/srv/far/below", listed("tmpfs", "farpool"), false),
            (r"/srv/two words\", listed("fuse", "farpool:/a b"), true),
            ("/srv/- -", listed("fuse.sshfs", "farpools:"), false),
        ];
        for (place, wanted, is_ours) in cases {
            assert_eq!(at(place).as_ref(), Some(&wanted));
            assert_eq!(wanted.is_ours(), is_ours, "{place}");
        }
        assert_eq!(at("/srv"), None);
        assert_eq!(super::listed(mounts, "45"), Some(listed("fuse", "farpool:/a b")));
        assert_eq!(super::listed(mounts, "4"), None);
    }
}
