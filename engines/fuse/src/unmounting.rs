//! Taking mounts away: this process's own, in use or not, and those that a process that was killed has left behind.
//!
//! The idea: a mount in use cannot be unmounted, but it can be detached: its folder is free at once, and what is open
//! in it lasts as long as the process that serves it. Root asks the kernel; anybody else asks `fusermount3`.
//!
//! Never in this module: unmounting what is not Farpool's.

use crate::{MountError, NAME};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A mount that is unmounted has nobody left to serve, and its threads end within this time.
const ENDING: Duration = Duration::from_secs(5);
/// Time between two looks whether they have.
const LOOK: Duration = Duration::from_millis(2);
/// Mounts whose processes were killed that may lie over each other on one folder.
const DEAD_MAX: usize = 64;

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody used it.
    Unused,
    /// Somebody uses it: its folder is free, and what is open in it answers `ENOTCONN` from the end of this process on.
    InUse,
}

/// Unmounts what is mounted at a canonical path, or detaches it if it is in use. `is_served` tells whether anybody can
/// still reach it.
pub(crate) fn unmount(at: &Path, is_served: impl Fn() -> bool) -> io::Result<Unmounted> {
    match take_away(at, How::IfUnused) {
        Ok(()) => {}
        // Somebody else has just done it.
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {}
        Err(_) => {
            take_away(at, How::Detached)?;
            return Ok(Unmounted::InUse);
        }
    }
    // Another mount namespace may have it still.
    let give_up = Instant::now() + ENDING;
    while is_served() {
        if Instant::now() >= give_up {
            return Ok(Unmounted::InUse);
        }
        std::thread::park_timeout(LOOK);
    }
    Ok(Unmounted::Unused)
}

/// Detaches mounts of Farpool's from a folder whose processes have ended without unmounting them: how many there were.
///
/// Errors: [`MountError::Dead`] if one cannot be detached, or is another program's.
pub fn detach_dead(at: &Path) -> Result<usize, MountError> {
    // A slash behind it would have it looked into.
    let at: PathBuf = at.components().collect();
    for detached in 0..DEAD_MAX {
        // Attributes the kernel may still know; this it asks for each time.
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
                return Err(dead(format!("it is another program's ({kind} of {source})")));
            }
            None => return Err(dead("it is in a folder above".to_owned())),
        }
        take_away(&place, How::Detached).map_err(|error| dead(error.to_string()))?;
    }
    Err(MountError::Dead(at, format!("it lies over {DEAD_MAX} others")))
}

/// A mount, as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    kind: OsString,
    source: OsString,
}

impl Listed {
    /// Tells whether this program made it. One that root mounts has no kind of its own.
    fn is_ours(&self) -> bool {
        let source = self.source.as_bytes().strip_prefix(NAME.as_bytes());
        let is_from_us = source.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"));
        is_from_us && self.kind.as_bytes().starts_with(b"fuse")
    }
}

/// Finds what was mounted last at a canonical path, in what proc_pid_mountinfo(5) describes.
fn mounted_at(mounts: &[u8], place: &Path) -> Option<Listed> {
    let listed = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let at = unescaped(fields.nth(4)?);
        // Behind fields that may be missing, and a dash.
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let mut next = || fields.next().map(|field| OsString::from_vec(unescaped(field)));
        let (kind, source) = (next()?, next()?);
        (at == place.as_os_str().as_bytes()).then_some(Listed { kind, source })
    };
    mounts.split(|byte| *byte == b'\n').filter_map(listed).next_back()
}

/// Puts spaces, tabs, ends of lines and backslashes back in, which stand there as `\` and three octal digits.
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
    /// `EBUSY` if it is in use.
    IfUnused,
    /// Also if it is in use.
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

/// Has the program that may do it for users without rights do it.
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
    Err(io::Error::other("that takes root or the program fusermount3 (Debian: fuse3)"))
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
    }
}
