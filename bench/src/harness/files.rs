//! Targets of a benchmark that need no server: memory of this process, and files accessed by `pread` and `pwrite`.

use super::bursts::{OneAtATime, Target};
use crate::exit::Failure;
use farpool::{ReadRange, WriteRange};
use rustix::fs::{OFlags, statfs};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Memory of this process. Far memory and the systems it is compared with are not expected to be faster.
pub(crate) struct Local(pub(crate) Vec<u8>);

impl Target for Local {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
        for range in ranges {
            let at = range.offset as usize;
            range.into.copy_from_slice(&self.0[at..at + range.into.len()]);
        }
        Ok(())
    }

    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
        for range in ranges {
            let at = range.offset as usize;
            self.0[at..at + range.from.len()].copy_from_slice(range.from);
        }
        Ok(())
    }
}

/// Medium of a file. It decides how a client keeps several operations (the depth) outstanding at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// File system in memory. Operations do not wait, so one thread carries them out one after another.
    Memory,
    /// Device with direct I/O. Operations wait, so a depth of N takes N threads.
    Waits,
}

/// File without a name. It disappears when this value is dropped.
pub(crate) struct DiskFile {
    file: File,
    medium: Medium,
}

/// Directory of a file system in memory that every Linux system has.
pub(crate) const TMPFS: &str = "/dev/shm";
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Reports whether the files of a directory lie in memory.
pub(crate) fn is_memory(folder: &Path) -> Result<bool, Failure> {
    let found = statfs(folder).map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
    Ok(MEMORY_FILE_SYSTEMS.contains(&(found.f_type as u64)))
}

impl DiskFile {
    /// Creates an empty file in a directory, with direct I/O for [`Medium::Waits`].
    pub(crate) fn create(folder: &Path, name: &str, medium: Medium) -> Result<DiskFile, Failure> {
        let path = folder.join(format!("farpool-bench-{}-{name}", std::process::id()));
        let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        if medium == Medium::Waits {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let file = options.open(&path).map_err(failed)?;
        // An unlinked file is gone however this process ends.
        std::fs::remove_file(&path).map_err(failed)?;
        Ok(DiskFile { file, medium })
    }
}

impl OneAtATime for DiskFile {
    fn read_one(&self, range: &mut ReadRange<'_>) -> Result<(), Failure> {
        Ok(self.file.read_exact_at(range.into, range.offset)?)
    }

    fn write_one(&self, range: WriteRange<'_>) -> Result<(), Failure> {
        Ok(self.file.write_all_at(range.from, range.offset)?)
    }
}

impl Target for DiskFile {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
        ranges.iter_mut().try_for_each(|range| self.read_one(range))
    }

    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
        ranges.iter().try_for_each(|range| self.write_one(*range))
    }

    fn by_threads(&self) -> Option<&dyn OneAtATime> {
        (self.medium == Medium::Waits).then_some(self as &dyn OneAtATime)
    }
}
