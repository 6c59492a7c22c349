//! Local disk of a client's machine. It holds an unnamed file for each local copy of a far file; the file is lost when
//! the process that made it ends.

use crate::kernel::{ProcessId, rest, world};
use farpool_host::DiskFile;
use farpool_lock::Mutex;
use std::io;

/// Unnamed file of one process on its machine's local disk.
#[derive(Debug)]
pub(crate) struct SimFile {
    process: ProcessId,
    bytes: Mutex<Vec<u8>>,
}

impl SimFile {
    pub(crate) fn new(process: ProcessId) -> SimFile {
        SimFile { process, bytes: Mutex::default() }
    }

    /// Spends the time of a disk access. Fails if the disk is broken.
    fn access(&self, what: &'static str) -> io::Result<()> {
        let (takes, is_broken) = world(|world| {
            let takes = world.random.skewed(5_000, world.plan.commit_ns_max);
            let machine = world.process(self.process).machine;
            (takes, world.machines[machine].disk_is_broken)
        });
        rest(takes);
        if is_broken {
            world(|world| world.tally.fault("local disk refused"));
            return Err(io::Error::other(format!("the disk refused to {what}")));
        }
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.access("read")?;
        let bytes = self.bytes.lock();
        let from = usize::try_from(offset).ok().and_then(|start| bytes.get(start..start + into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.access("write")?;
        let mut bytes = self.bytes.lock();
        let end = offset as usize + from.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.access("cut a file off")?;
        self.bytes.lock().resize(length as usize, 0);
        Ok(())
    }
}
