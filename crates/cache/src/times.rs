//! Precision of a file's times as signs of a change.

use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, openat};
use rustix::io::pwrite;
use std::path::Path;

/// Precision of a file's times as signs of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Nobody changes the files but through the cache. The caller promises it; it is not checked.
    Exclusive,
    /// Each change has a time that nobody has seen before (Linux 6.13 on ext4, XFS, Btrfs and tmpfs: multigrain
    /// timestamps).
    Exact,
    /// Changes within one clock tick, some milliseconds, have the same time.
    Coarse,
}

/// Number of changes by which [`Times::of`] tests a file system. If each one gets a new time, times are exact: a coarse
/// clock advances only once in some thousands of changes.
const CHANGES: u64 = 64;

impl Times {
    /// Finds the precision for the file system of a folder, by changing a nameless file there.
    pub fn of(folder: &Path) -> Times {
        if is_exact(folder).unwrap_or(false) { Times::Exact } else { Times::Coarse }
    }
}

fn is_exact(folder: &Path) -> rustix::io::Result<bool> {
    let file =
        openat(CWD, folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))?;
    let times = |stat: Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
    let mut before = times(fstat(&file)?);
    for change in 0..CHANGES {
        pwrite(&file, &change.to_le_bytes(), 0)?;
        let after = times(fstat(&file)?);
        if after == before {
            return Ok(false);
        }
        before = after;
    }
    Ok(true)
}
