//! Temporary files of DataFusion in far memory: rows that do not fit into near memory go to scratch files of the pool.
//!
//! The idea: DataFusion writes a few hundred bytes or one batch at a time, and reads from front to end. A round trip
//! for each write would make it slow. Therefore a writer fills a buffer of one extent, hands it over, and goes on at
//! once. Extents are sent in the background, and readers ask for a few extents ahead.
//!
//! When little is written, nothing waits. When much is written, the number of extents in flight is bounded over all
//! files together, because a join has a hundred files open. A writer beyond the bound waits for the oldest extent, of
//! whichever file. When the pool is full, the rest of a file goes to a file on the local disk: that is slower, but
//! nothing fails.
//!
//! DataFusion trusts what it reads back from its own files. A checksum of each extent is therefore kept in this process
//! and compared with what comes back.

use crate::external;
use bytes::Bytes;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use farpool::{
    AsyncQueue, Completion, CreateOptions, ErrorKind, FarFile, FileClass, Operation, Pool, Protection,
};
use farpool_lock::{Condvar, Mutex};
use futures::Stream;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// Bytes of an extent: the unit in which a file is written. The last extent of a file may be smaller.
const EXTENT_BYTES: usize = 128 << 10;
/// Extents in flight at the same time, over all files.
const UNDER_WAY_MAX: usize = 64;
/// Number of buffers kept for later extents, at most.
const FREE_MAX: usize = UNDER_WAY_MAX;
/// Limit for the bytes of one read. A single extent that is larger is still read at once.
const READ_BYTES: usize = 512 << 10;
/// Number of reads that a reader keeps in flight.
const READS_AHEAD: usize = 2;

/// Storage of an extent. The extent has the same offset in the far file and in the local file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Far,
    Disk,
}

/// Range of a temporary file that was written completely, with its CRC-32C.
#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    bytes: usize,
    checksum: u32,
    place: Place,
}

/// Totals over all files made so far, including deleted ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// Files that were made.
    pub files: u64,
    /// Bytes written to the pool.
    pub far_bytes: u64,
    /// Bytes written to the local disk, because the pool had no room.
    pub disk_bytes: u64,
}

impl Spilled {
    /// Returns the difference to an earlier total.
    pub fn since(self, before: Spilled) -> Spilled {
        Spilled {
            files: self.files.saturating_sub(before.files),
            far_bytes: self.far_bytes.saturating_sub(before.far_bytes),
            disk_bytes: self.disk_bytes.saturating_sub(before.disk_bytes),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    files: AtomicU64,
    far_bytes: AtomicU64,
    disk_bytes: AtomicU64,
}

/// Factory of temporary files that are scratch files of a pool. Clones share queues, buffers and counters.
#[derive(Clone)]
pub struct FarTempFiles {
    pool: Pool,
    protection: Option<Protection>,
    /// Queue of writes. Reads have a queue of their own, so that they do not wait behind writes.
    writes: AsyncQueue,
    reads: AsyncQueue,
    counters: Arc<Counters>,
    leaving: Arc<Mutex<Leaving>>,
}

/// Extents that are being written, the oldest first (each with its file and offset), and buffers for reuse.
#[derive(Default)]
struct Leaving {
    extents: VecDeque<(Arc<Shared>, u64, Operation)>,
    free: Vec<Vec<u8>>,
}

/// Number of the next file. Names need to be unique in this process only.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl FarTempFiles {
    /// Makes a factory of temporary files in this pool. `protection` is that of the files; `None` means the session's.
    /// Fails if the threads of the queues cannot be started.
    pub fn new(pool: &Pool, protection: Option<Protection>) -> Result<FarTempFiles> {
        let queue = || pool.async_queue().map_err(external);
        let (writes, reads) = (queue()?, queue()?);
        Ok(FarTempFiles {
            pool: pool.clone(),
            protection,
            writes,
            reads,
            counters: Arc::default(),
            leaving: Arc::default(),
        })
    }

    /// Waits until the oldest extent in flight, of whichever file, is written. Returns false if none is in flight.
    fn settle_oldest(&self) -> bool {
        let Some((shared, offset, write)) = self.leaving.lock().extents.pop_front() else { return false };
        let mut bytes = shared.settle(offset, write.wait());
        let mut leaving = self.leaving.lock();
        if leaving.free.len() < FREE_MAX {
            bytes.clear();
            leaving.free.push(bytes);
        }
        true
    }

    /// Returns the totals so far, including deleted files.
    pub fn spilled(&self) -> Spilled {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Spilled {
            files: read(&self.counters.files),
            far_bytes: read(&self.counters.far_bytes),
            disk_bytes: read(&self.counters.disk_bytes),
        }
    }
}

impl TempFileFactory for FarTempFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let name = format!("datafusion/{} {description}", NEXT.fetch_add(1, Ordering::Relaxed));
        let options =
            CreateOptions { protection: self.protection, is_optional: true, ..CreateOptions::default() };
        let file = self.pool.create(&name, FileClass::Scratch, options).map_err(external)?;
        self.counters.files.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(FarTempFile {
            shared: Arc::new(Shared {
                files: self.clone(),
                file,
                state: Mutex::default(),
                settled: Condvar::new(),
            }),
        }))
    }
}

/// State of one file, shared by its writer and readers. The file is deleted when the last of them is dropped.
struct Shared {
    files: FarTempFiles,
    file: FarFile,
    state: Mutex<State>,
    settled: Condvar,
}

#[derive(Default)]
struct State {
    /// Extents that were written, by offset.
    extents: Vec<Extent>,
    /// Number of extents of this file in flight.
    under_way: usize,
    /// Error of an extent that could not be written, which makes the whole file unusable. `None` if there was none.
    failed: Option<String>,
    /// Local file for the extents for which the pool had no room. `None` if there were none.
    disk: Option<Arc<File>>,
}

impl Shared {
    fn length(&self) -> u64 {
        self.state.lock().extents.iter().map(|extent| extent.bytes as u64).sum()
    }

    /// Returns the file on the local disk, which is created on first use and has no name.
    fn disk(&self) -> io::Result<Arc<File>> {
        let mut state = self.state.lock();
        let disk = match &state.disk {
            Some(disk) => Arc::clone(disk),
            None => Arc::new(tempfile::tempfile()?),
        };
        state.disk = Some(Arc::clone(&disk));
        Ok(disk)
    }

    /// Records the result of writing an extent, and returns its buffer. If the pool was full, writes the extent to the
    /// local disk.
    fn settle(&self, offset: u64, done: Completion) -> Vec<u8> {
        let failed = match done.result {
            Ok(()) => {
                self.files.counters.far_bytes.fetch_add(done.bytes.len() as u64, Ordering::Relaxed);
                self.add(offset, &done.bytes, Place::Far);
                None
            }
            Err(full) if full.kind() == ErrorKind::Exhausted => {
                let to_disk = self.to_disk(offset, &done.bytes);
                to_disk.err().map(|error| format!("{full}; and on the local disk: {error}"))
            }
            Err(error) => Some(error.to_string()),
        };
        self.ended(1, failed);
        done.bytes
    }

    /// Counts extents that are no longer in flight, and wakes waiting threads.
    fn ended(&self, extents: usize, failed: Option<String>) {
        let mut state = self.state.lock();
        state.under_way -= extents;
        state.failed = state.failed.take().or(failed);
        drop(state);
        self.settled.notify_all();
    }

    /// Returns an error if some extent of the file is missing.
    fn check(&self, state: &State) -> io::Result<()> {
        match &state.failed {
            Some(why) => Err(io::Error::other(format!("temporary file {:?}: {why}", self.file.name()))),
            None => Ok(()),
        }
    }

    /// Waits until no extent of this file is in flight.
    fn drain(&self) -> io::Result<()> {
        loop {
            {
                let state = self.state.lock();
                self.check(&state)?;
                if state.under_way == 0 {
                    return Ok(());
                }
            }
            if !self.files.settle_oldest() {
                // Another thread waits for the last extents of this file, and will notify this thread.
                drop(self.settled.wait_while(self.state.lock(), |state| state.under_way > 0));
            }
        }
    }

    fn to_disk(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk()?.write_all_at(bytes, offset)?;
        self.files.counters.disk_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.add(offset, bytes, Place::Disk);
        Ok(())
    }

    fn add(&self, offset: u64, bytes: &[u8], place: Place) {
        let extent = Extent { offset, bytes: bytes.len(), checksum: crc32c::crc32c(bytes), place };
        let mut state = self.state.lock();
        let at = state.extents.partition_point(|before| before.offset < offset);
        state.extents.insert(at, extent);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The delete fails only if the pool is gone, and then the file is too.
        let _ = self.files.pool.delete(&self.file.name());
    }
}

struct FarTempFile {
    shared: Arc<Shared>,
}

impl SpillFile for FarTempFile {
    fn size(&self) -> Option<u64> {
        Some(self.shared.length())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        Ok(Box::pin(Reader { shared: Arc::clone(&self.shared), offset: 0, ahead: VecDeque::new() }))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        let shared = Arc::clone(&self.shared);
        let offset = shared.length();
        Ok(Box::new(Writer { shared, offset, staged: Vec::new() }))
    }
}

/// Gathers small writes into extents.
struct Writer {
    shared: Arc<Shared>,
    /// Offset in the file at which the staged bytes will be.
    offset: u64,
    staged: Vec<u8>,
}

impl Writer {
    /// Starts writing the staged bytes. Waits if too many extents are in flight.
    fn send(&mut self) -> io::Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let (offset, bytes) = (self.offset, std::mem::take(&mut self.staged));
        self.offset += bytes.len() as u64;
        // Once one extent went to the local disk because the pool was full, all later extents of the file go there too.
        let is_full = self.shared.state.lock().disk.is_some();
        if is_full {
            self.shared.drain()?;
            return self.shared.to_disk(offset, &bytes);
        }
        let files = &self.shared.files;
        self.shared.state.lock().under_way += 1;
        let write = files.writes.write(&self.shared.file, offset, bytes);
        let under_way = {
            let mut leaving = files.leaving.lock();
            leaving.extents.push_back((Arc::clone(&self.shared), offset, write));
            leaving.extents.len()
        };
        if under_way > UNDER_WAY_MAX {
            files.settle_oldest();
        }
        Ok(())
    }
}

impl Drop for Writer {
    /// Abandons the file's extents in flight. Nobody waits for them.
    fn drop(&mut self) {
        let mut leaving = self.shared.files.leaving.lock();
        let (own, others): (VecDeque<_>, VecDeque<_>) =
            leaving.extents.drain(..).partition(|(shared, ..)| Arc::ptr_eq(shared, &self.shared));
        leaving.extents = others;
        drop(leaving);
        if !own.is_empty() {
            self.shared
                .ended(own.len(), Some("its writer was dropped before all bytes were written".to_owned()));
        }
        // Dropped without the lock: this may drop the last reference to the file, and delete it.
        drop(own);
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.staged.capacity() == 0 {
            self.staged = self.shared.files.leaving.lock().free.pop().unwrap_or_default();
        }
        let count = bytes.len().min(EXTENT_BYTES - self.staged.len());
        self.staged.extend_from_slice(&bytes[..count]);
        if self.staged.len() == EXTENT_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    /// Waits until all written bytes can be read, because some readers read a file that is still being written.
    fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        self.shared.drain()
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        Ok(self.flush()?)
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send>>;

/// Stream of the extents of a file in order, which reads ahead. It ends at the last extent that was written; polled
/// again, it continues with extents that were written since.
struct Reader {
    shared: Arc<Shared>,
    /// Offset of the next extent to read.
    offset: u64,
    ahead: VecDeque<Reading>,
}

impl Reader {
    /// Takes the next extents that are adjacent and in the same storage, up to the bytes of one read. Stops before a
    /// gap, until the extent that fills it is written.
    fn next_extents(&mut self) -> io::Result<Vec<Extent>> {
        let state = self.shared.state.lock();
        self.shared.check(&state)?;
        let first = state.extents.partition_point(|extent| extent.offset < self.offset);
        let place = state.extents.get(first).map(|first| first.place);
        let (mut end, mut bytes) = (self.offset, 0);
        let fits = |extent: &&Extent| {
            let follows = extent.offset == end && Some(extent.place) == place;
            end = extent.offset + extent.bytes as u64;
            bytes += extent.bytes;
            follows && bytes <= READ_BYTES.max(extent.bytes)
        };
        let extents: Vec<Extent> = state.extents[first..].iter().take_while(fits).copied().collect();
        drop(state);
        self.offset = extents.last().map_or(self.offset, |last| last.offset + last.bytes as u64);
        Ok(extents)
    }

    fn ask(&self, extents: Vec<Extent>) -> Option<Reading> {
        let Extent { offset, place, .. } = *extents.first()?;
        let shared = Arc::clone(&self.shared);
        let mut into = vec![0; extents.iter().map(|extent| extent.bytes).sum()];
        Some(match place {
            Place::Far => {
                let read = shared.files.reads.read(&shared.file, offset, into);
                Box::pin(async move {
                    let done = read.await;
                    done.result.map_err(external)?;
                    checked(&shared, done.bytes, &extents)
                })
            }
            Place::Disk => Box::pin(async move {
                let read = tokio::task::spawn_blocking(move || {
                    shared.disk()?.read_exact_at(&mut into, offset)?;
                    checked(&shared, into, &extents)
                });
                read.await.map_err(|error| exec_datafusion_err!("reading a temporary file: {error}"))?
            }),
        })
    }
}

/// Returns the bytes of adjacent extents if their checksums match.
fn checked(shared: &Shared, bytes: Vec<u8>, extents: &[Extent]) -> Result<Vec<u8>> {
    let mut rest = &bytes[..];
    for extent in extents {
        let (of_extent, behind) = rest.split_at(extent.bytes);
        rest = behind;
        if crc32c::crc32c(of_extent) != extent.checksum {
            return Err(exec_datafusion_err!(
                "temporary file {:?}: {} bytes at offset {} do not match their checksum",
                shared.file.name(),
                extent.bytes,
                extent.offset
            ));
        }
    }
    Ok(bytes)
}

impl Stream for Reader {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.ahead.len() < READS_AHEAD {
            let extents = match self.next_extents() {
                Ok(extents) => extents,
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            };
            let Some(reading) = self.ask(extents) else { break };
            self.ahead.push_back(reading);
        }
        let Some(oldest) = self.ahead.front_mut() else { return Poll::Ready(None) };
        let Poll::Ready(bytes) = oldest.as_mut().poll(context) else { return Poll::Pending };
        self.ahead.pop_front();
        Poll::Ready(Some(bytes.map(Bytes::from)))
    }
}
