//! Local copies of scratch files, written behind. A write is done when its bytes are in a bounded buffer of this
//! process. They reach the disk later.
//!
//! The idea: think of one letter box that anybody may empty, one person at a time, always oldest letter first. The box
//! is a queue for all files of the session. A thread that takes from it holds the mutex `writing`. The writes of a file
//! therefore reach the disk in their order, no matter who carries them out.
//!
//! - Usually a background thread does. It ends after one second without work.
//! - A writer that finds the buffer full carries out some writes first.
//! - A reader that needs bytes still in the queue carries out writes until they are on disk.

use crate::error::{Error, ErrorKind};
use crate::plan::RangeSet;
use crate::stats::{Counters, add};
use farpool_host::{DiskFile, Host, HostEvent, HostMutex};
use farpool_lock::{Mutex, MutexGuard};
use farpool_wire::mutant;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a file on the local disk, at the same offsets.
pub(crate) struct DiskCopy {
    file: Box<dyn DiskFile>,
    folder: String,
    /// Number of writes of this file that wait or are being carried out.
    behind: AtomicU64,
    /// Ranges that the disk does not have because a write failed, and the last error.
    failed: Mutex<(RangeSet, Option<String>)>,
}

struct Job {
    copy: Arc<DiskCopy>,
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    bytes: u64,
}

/// Writes that wait for the disk, for all files of a session.
pub(crate) struct WriteBehind {
    host: Arc<dyn Host>,
    counters: Arc<Counters>,
    /// Bytes that may wait. A writer that finds more carries out some writes itself.
    limit_bytes: u64,
    queue: Mutex<Queue>,
    writing: HostMutex<()>,
    filled: HostEvent,
    is_running: AtomicBool,
}

impl DiskCopy {
    pub(crate) fn create(host: &dyn Host, folder: &Path) -> Result<DiskCopy, Error> {
        let shown = folder.display().to_string();
        let file = host.temporary_file(folder).map_err(|error| {
            let message = format!(
                "local protection cannot create a file in {shown}: {error}; choose another local folder"
            );
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok(DiskCopy { file, folder: shown, behind: AtomicU64::new(0), failed: Mutex::default() })
    }

    fn failed(&self) -> MutexGuard<'_, (RangeSet, Option<String>)> {
        self.failed.lock()
    }

    /// Reports whether the disk is known to lack bytes of a range.
    pub(crate) fn lacks(&self, range: Range<u64>) -> bool {
        self.failed().0.touches(range)
    }

    fn write(&self, counters: &Counters, offset: u64, from: &[u8]) {
        let range = offset..offset + from.len() as u64;
        let result = self.file.write_at(offset, from);
        let mut failed = self.failed();
        match result {
            Ok(()) => {
                failed.0.remove(range);
                add(&counters.disk_bytes_written, from.len() as u64);
            }
            Err(error) => {
                failed.0.insert(range);
                failed.1 = Some(error.to_string());
            }
        }
    }

    fn error(&self, error: Option<io::Error>) -> Error {
        let why = error.map(|error| error.to_string()).or_else(|| self.failed().1.clone());
        let why = why.unwrap_or_else(|| "it was not written".to_owned());
        let message = format!("the local copy in {} does not have these bytes either: {why}", self.folder);
        Error::new(ErrorKind::Lost, message)
    }

    /// Cuts the file on disk off at a length, which frees the space after it.
    pub(crate) fn truncate(&self, bytes: u64) {
        self.failed().0.remove(bytes..u64::MAX);
        // An error leaves too many bytes on disk. They are never read, because the file's map knows what was written.
        let _ = self.file.set_length(bytes);
    }
}

impl WriteBehind {
    pub(crate) fn new(host: Arc<dyn Host>, counters: Arc<Counters>, limit_bytes: u64) -> WriteBehind {
        WriteBehind {
            host,
            counters,
            limit_bytes,
            queue: Mutex::default(),
            writing: HostMutex::default(),
            filled: HostEvent::default(),
            is_running: AtomicBool::new(false),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Queues a write. If the buffer is full, carries out waiting writes first.
    pub(crate) fn put(self: &Arc<Self>, copy: &Arc<DiskCopy>, offset: u64, from: &[u8]) {
        while self.queue().bytes.saturating_add(from.len() as u64) > self.limit_bytes && self.step() {}
        copy.behind.fetch_add(1, Ordering::AcqRel);
        {
            let mut queue = self.queue();
            queue.bytes += from.len() as u64;
            queue.jobs.push_back(Job { copy: Arc::clone(copy), offset, bytes: from.to_vec() });
        }
        self.filled.signal();
        if !self.is_running.swap(true, Ordering::AcqRel) {
            let behind = Arc::clone(self);
            if self.host.spawn("farpool-behind", Box::new(move || behind.run())).is_err() {
                // Writers and readers carry out the waiting writes if there is no thread.
                self.is_running.store(false, Ordering::Release);
            }
        }
    }

    /// Carries out writes, and returns after a second without any.
    fn run(&self) {
        const IDLE_MS: u64 = 1_000;
        loop {
            let heard = self.filled.heard();
            if self.step() {
                continue;
            }
            self.host.wait(&self.filled, heard, self.host.now().plus_ms(IDLE_MS));
            if self.filled.heard() == heard {
                self.is_running.store(false, Ordering::Release);
                // A write may have been queued after the last look and before the flag was cleared.
                if self.queue().jobs.is_empty() || self.is_running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }
    }

    /// Carries out the next write. Returns false if there is none.
    fn step(&self) -> bool {
        let _writing = self.writing.take(&*self.host);
        let next = |queue: &mut Queue| match mutant!(DiskOutOfOrder) {
            true => queue.jobs.pop_back(),
            false => queue.jobs.pop_front(),
        };
        let Some(job) = next(&mut self.queue()) else { return false };
        job.copy.write(&self.counters, job.offset, &job.bytes);
        self.queue().bytes -= job.bytes.len() as u64;
        job.copy.behind.fetch_sub(1, Ordering::AcqRel);
        true
    }

    /// Carries out the waiting writes until none of the file is left, and waits for those that other threads carry out.
    fn flush(&self, copy: &DiskCopy) {
        while copy.behind.load(Ordering::Acquire) > 0 && self.step() {}
        // Whoever carries out a write holds this lock. Another thread may still be carrying out the last one.
        drop(self.writing.take(&*self.host));
    }

    /// Drops the waiting writes of a file that is not needed any more.
    pub(crate) fn forget(&self, copy: &Arc<DiskCopy>) {
        let mut queue = self.queue();
        let (gone, kept): (VecDeque<Job>, VecDeque<Job>) =
            std::mem::take(&mut queue.jobs).into_iter().partition(|job| Arc::ptr_eq(&job.copy, copy));
        queue.jobs = kept;
        for job in gone {
            queue.bytes -= job.bytes.len() as u64;
            job.copy.behind.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits until a range has reached the disk. Fails if the disk did not take it.
    pub(crate) fn confirm(&self, copy: &DiskCopy, range: Range<u64>) -> Result<(), Error> {
        self.flush(copy);
        if copy.lacks(range) { Err(copy.error(None)) } else { Ok(()) }
    }

    /// Reads bytes that were written. Waits until they have reached the disk.
    pub(crate) fn read(&self, copy: &DiskCopy, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.confirm(copy, offset..offset + into.len() as u64)?;
        copy.file.read_at(offset, into).map_err(|error| copy.error(Some(error)))?;
        add(&self.counters.disk_bytes_read, into.len() as u64);
        Ok(())
    }
}
