//! How well a file's times tell that it changed.

use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, openat};
use rustix::io::pwrite;
use std::path::Path;

/// How well a file's times tell that it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Nobody changes files but through the cache, which is promised and not found out.
    Alone,
    /// Each change has a time that nobody was told before (Linux 6.13 on ext4, XFS, Btrfs and tmpfs: multigrain
    /// timestamps).
    Exact,
    /// Changes of the same tick, some milliseconds, have the same time.
    Coarse,
}

/// Changes that are looked at: coarse clocks move on once in some thousands.
const CHANGES: u64 = 64;

impl Times {
    /// Of the file system that a folder lies in, found by changing a file without a name there.
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
