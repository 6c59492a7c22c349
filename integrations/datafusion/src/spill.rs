//! Temporary files of DataFusion in far memory: what does not fit near goes to scratch files of the pool.
//!
//! The idea: DataFusion writes a few hundred bytes or a batch at a time, and reads from front to end. So writes are
//! gathered into extents, which leave behind the writer's back, a few at a time; readers ask for extents ahead. Each
//! extent's checksum is kept here and compared when it comes back, for DataFusion takes what it wrote itself for valid.
//! When the pool has no room left, the rest of a file goes to a file on the local disk: it takes longer, and that is all.

use crate::external;
use bytes::Bytes;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use farpool::{AsyncQueue, CreateOptions, ErrorKind, FarFile, FileClass, Operation, Pool, Protection};
use futures::Stream;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// The first extents of a file, which may stay small.
const EXTENT_BYTES_MIN: usize = 64 << 10;
/// Extents of a file that has grown.
const EXTENT_BYTES_MAX: usize = 512 << 10;
/// An extent is this part of what its file has by then.
const EXTENT_PART: u64 = 8;
/// Extents of a writer that may be on their way.
const WRITES_UNDER_WAY: usize = 3;
/// Extents that a reader asks for before they are wanted.
const READS_AHEAD: usize = 4;

/// Where extents are: offsets are those of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Far,
    Disk,
}

/// A part of a file that was written whole.
#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    bytes: usize,
    checksum: u32,
    place: Place,
}

/// Bytes that files have held so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// Files that were made.
    pub files: u64,
    /// Bytes written to the pool.
    pub far_bytes: u64,
    /// Bytes written to the local disk, since the pool had no room.
    pub disk_bytes: u64,
}

impl Spilled {
    /// What came on top since then.
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

/// Makes temporary files that are scratch files of a pool.
#[derive(Clone)]
pub struct FarTempFiles {
    pool: Pool,
    protection: Option<Protection>,
    /// One for writes and one for reads, so that none waits for the other.
    writes: AsyncQueue,
    reads: AsyncQueue,
    counters: Arc<Counters>,
}

/// Numbers of files, which are private to this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl FarTempFiles {
    /// In this pool, protected as asked or as the session is by itself. Errors if threads cannot be started.
    pub fn new(pool: &Pool, protection: Option<Protection>) -> Result<FarTempFiles> {
        let queue = || pool.async_queue().map_err(external);
        let (writes, reads) = (queue()?, queue()?);
        Ok(FarTempFiles { pool: pool.clone(), protection, writes, reads, counters: Arc::default() })
    }

    /// What files have held so far, those that are gone included.
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
            shared: Arc::new(Shared { files: self.clone(), file, state: Mutex::default() }),
        }))
    }
}

/// What a file's writer and readers share. The file is deleted with the last of them.
struct Shared {
    files: FarTempFiles,
    file: FarFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    extents: Vec<Extent>,
    /// Where extents are that the pool had no room for.
    disk: Option<Arc<File>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self) -> u64 {
        self.state().extents.iter().map(|extent| extent.bytes as u64).sum()
    }

    /// The file on the local disk, which has no name there.
    fn disk(&self) -> io::Result<Arc<File>> {
        let mut state = self.state();
        let disk = match &state.disk {
            Some(disk) => Arc::clone(disk),
            None => Arc::new(tempfile::tempfile()?),
        };
        state.disk = Some(Arc::clone(&disk));
        Ok(disk)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // If it cannot be deleted, the pool is gone, and the file with it.
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
        Ok(Box::pin(Reader { shared: Arc::clone(&self.shared), next: 0, ahead: VecDeque::new() }))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        let shared = Arc::clone(&self.shared);
        let offset = shared.length();
        let staged = Vec::with_capacity(EXTENT_BYTES_MIN);
        Ok(Box::new(Writer { shared, offset, staged, under_way: VecDeque::new() }))
    }
}

/// Gathers what is written into extents. What it has under way is not in the file before it is over.
struct Writer {
    shared: Arc<Shared>,
    /// Where the staged bytes will be.
    offset: u64,
    staged: Vec<u8>,
    under_way: VecDeque<(u64, Operation)>,
}

impl Writer {
    fn extent_bytes(&self) -> usize {
        (self.offset / EXTENT_PART).clamp(EXTENT_BYTES_MIN as u64, EXTENT_BYTES_MAX as u64) as usize
    }

    /// Sends the staged bytes on their way, after those before them if there are too many.
    fn send(&mut self) -> io::Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        while self.under_way.len() >= WRITES_UNDER_WAY {
            self.take()?;
        }
        let (offset, bytes) = (self.offset, std::mem::take(&mut self.staged));
        self.offset += bytes.len() as u64;
        // Who once had to go to the disk stays there: the pool is full.
        let is_full = self.shared.state().disk.is_some();
        match is_full {
            true => {
                self.drain()?;
                self.to_disk(offset, &bytes)
            }
            false => {
                let write = self.shared.files.writes.write(&self.shared.file, offset, bytes);
                self.under_way.push_back((offset, write));
                Ok(())
            }
        }
    }

    /// Waits for the oldest extent on its way.
    fn take(&mut self) -> io::Result<()> {
        let Some((offset, write)) = self.under_way.pop_front() else { return Ok(()) };
        let done = write.wait();
        match done.result {
            Ok(()) => {
                self.shared.files.counters.far_bytes.fetch_add(done.bytes.len() as u64, Ordering::Relaxed);
                self.add(offset, &done.bytes, Place::Far);
                if self.staged.capacity() == 0 {
                    self.staged = done.bytes;
                    self.staged.clear();
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Exhausted => self.to_disk(offset, &done.bytes),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        while !self.under_way.is_empty() {
            self.take()?;
        }
        Ok(())
    }

    fn to_disk(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.shared.disk()?.write_all_at(bytes, offset)?;
        self.shared.files.counters.disk_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.add(offset, bytes, Place::Disk);
        Ok(())
    }

    fn add(&mut self, offset: u64, bytes: &[u8], place: Place) {
        let checksum = crc32c::crc32c(bytes);
        self.shared.state().extents.push(Extent { offset, bytes: bytes.len(), checksum, place });
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.extent_bytes().saturating_sub(self.staged.len());
        let count = bytes.len().min(room.max(1));
        self.staged.extend_from_slice(&bytes[..count]);
        if self.staged.len() >= self.extent_bytes() {
            self.send()?;
        }
        Ok(count)
    }

    /// Afterwards readers find all that was written: some read what is still being written.
    fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        self.drain()
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        Ok(self.flush()?)
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send>>;

/// Hands out the extents that there are, in order. At the end it says so, and goes on if there are more later.
struct Reader {
    shared: Arc<Shared>,
    next: usize,
    ahead: VecDeque<Reading>,
}

impl Reader {
    fn ask(&self, extent: Extent) -> Reading {
        let shared = Arc::clone(&self.shared);
        let into = vec![0; extent.bytes];
        let name = move |shared: &Shared| format!("temporary file {:?}", shared.file.name());
        match extent.place {
            Place::Far => {
                let read = shared.files.reads.read(&shared.file, extent.offset, into);
                Box::pin(async move {
                    let done = read.await;
                    done.result.map_err(external)?;
                    checked(done.bytes, extent, || name(&shared))
                })
            }
            Place::Disk => Box::pin(async move {
                let read = tokio::task::spawn_blocking(move || {
                    let mut into = into;
                    shared.disk()?.read_exact_at(&mut into, extent.offset)?;
                    checked(into, extent, || name(&shared))
                });
                read.await.map_err(|error| exec_datafusion_err!("reading a temporary file: {error}"))?
            }),
        }
    }
}

fn checked(bytes: Vec<u8>, extent: Extent, name: impl Fn() -> String) -> Result<Vec<u8>> {
    match crc32c::crc32c(&bytes) == extent.checksum {
        true => Ok(bytes),
        false => Err(exec_datafusion_err!(
            "{}: {} bytes from {} on came back as others than were written",
            name(),
            extent.bytes,
            extent.offset
        )),
    }
}

impl Stream for Reader {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.ahead.len() < READS_AHEAD {
            let extent = self.shared.state().extents.get(self.next).copied();
            let Some(extent) = extent else { break };
            let reading = self.ask(extent);
            self.ahead.push_back(reading);
            self.next += 1;
        }
        let Some(oldest) = self.ahead.front_mut() else { return Poll::Ready(None) };
        let Poll::Ready(bytes) = oldest.as_mut().poll(context) else { return Poll::Pending };
        self.ahead.pop_front();
        Poll::Ready(Some(bytes.map(Bytes::from)))
    }
}
