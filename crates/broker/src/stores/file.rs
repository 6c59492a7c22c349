//! File of a store on disk: a front page of our own, followed by the data of redb, an embedded database.
//!
//! The idea: redb keeps the last two commits in its file. If the few bytes that tell them apart are damaged, it may
//! take the older one for the last. The front page therefore has the number of the last commit as well, written and
//! synced after redb's own commit. A file is checked through a view that keeps redb's writes in memory, so a file that
//! is refused is not changed.
//!
//! The front page (4096 bytes): at 0 `FPBROKER`, the format (8 bytes), CRC32C of both (4 bytes); at 512 and 1024,
//! alternately, the number of a commit (8 bytes) and its CRC32C (4 bytes), each in a sector of its own, which a crash
//! leaves whole. Integers are little-endian.
//!
//! Invariant: the last commit of redb is the one that the front page names or, after a crash, the next one.

use farpool_lock::Mutex;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Version of the format.
pub const STORE_FORMAT: u64 = 5;
/// Oldest version of the format that is read.
pub const STORE_FORMAT_MIN: u64 = 3;
const MAGIC: &[u8; 8] = b"FPBROKER";
/// First bytes of a file that has only redb's data: a store of a format before the third, or a file of another program.
const REDB_MAGIC: &[u8; 5] = b"redb\x1a";
/// Bytes of the front page's head.
const HEAD_BYTES: usize = 20;
/// Bytes of the front page, before redb's data.
const FRONT_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// Bytes of a page that a view keeps in memory.
const VIEW_PAGE_BYTES: u64 = 4096;

/// Reason why a file cannot be used as a store.
#[derive(Debug)]
pub(super) enum Unusable {
    /// File that belongs, or may belong, to another program, or that cannot be read. The text has the reason, without
    /// the file's name.
    Other(String),
    /// File that has only redb's data: a store of a format before the third, or a file of another program.
    PlainRedb,
    /// Damaged store. The text has the reason.
    Damaged(String),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Unusable::Other(error.to_string())
    }
}

/// File of a store, locked against other processes that open it as a store.
#[derive(Debug)]
pub(super) struct StoreFile {
    file: Arc<File>,
}

impl StoreFile {
    /// Opens the file. If there is none, or an empty one, makes a new store: `fill` writes its contents and returns the
    /// number of the last commit.
    pub(super) fn open(
        path: &Path,
        fill: &dyn Fn(Behind) -> Result<u64, Unusable>,
    ) -> Result<StoreFile, Unusable> {
        loop {
            let file = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    create(path, fill)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if !file.metadata()?.is_file() {
                return Err(Unusable::Other("it is not a regular file".to_owned()));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Unusable::Other("another broker has it open".to_owned()));
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // Another process may have replaced the file before this one was locked.
            if !is_at(&file, path)? {
                continue;
            }
            if file.metadata()?.len() == 0 {
                replace(path, fill)?;
                continue;
            }
            return Ok(StoreFile { file: Arc::new(file) });
        }
    }

    /// Returns the number of the last commit. Fails if the file is not an undamaged store of this format.
    pub(super) fn last_commit(&self) -> Result<u64, Unusable> {
        let mut page = vec![0; FRONT_BYTES as usize];
        let bytes = self.file.metadata()?.len().min(FRONT_BYTES) as usize;
        self.file.read_exact_at(&mut page[..bytes], 0)?;
        if page.starts_with(REDB_MAGIC) {
            return Err(Unusable::PlainRedb);
        }
        let (head, checksum) = page[..HEAD_BYTES].split_at(16);
        if crc32c::crc32c(head).to_le_bytes() != *checksum {
            let mut behind = [0; REDB_MAGIC.len()];
            let is_ours = head.starts_with(MAGIC)
                || (self.behind().read(0, &mut behind).is_ok() && behind == *REDB_MAGIC);
            return Err(match is_ours {
                true => Unusable::Damaged("the checksum of its front page is wrong".to_owned()),
                false => Unusable::Other("it is not a broker store".to_owned()),
            });
        }
        let (magic, format) = head.split_at(MAGIC.len());
        let format = format.try_into().map_or(0, u64::from_le_bytes);
        if magic != MAGIC || !(STORE_FORMAT_MIN..=STORE_FORMAT).contains(&format) {
            return Err(Unusable::Other(other_format(&format.to_string())));
        }
        let sector = |index: u64| {
            let (at, _) = sector_of(index);
            let (number, rest) = page[at as usize..].split_first_chunk::<8>()?;
            let is_whole = rest.starts_with(&crc32c::crc32c(number).to_le_bytes());
            is_whole.then(|| u64::from_le_bytes(*number))
        };
        let last = sector(0).max(sector(1));
        last.ok_or_else(|| {
            Unusable::Damaged("its front page does not say which commit is the last".to_owned())
        })
    }

    /// Notes durably that the file has this version of the format, so that earlier versions refuse it. It is in one
    /// sector, which a crash leaves whole.
    pub(super) fn raise_format(&self) -> io::Result<()> {
        self.file.write_all_at(&head(), 0)?;
        self.file.sync_data()
    }

    /// Notes durably on the front page that redb has this commit.
    pub(super) fn note_commit(&self, commit: u64) -> io::Result<()> {
        let (at, bytes) = sector_of(commit);
        self.file.write_all_at(&bytes, at)?;
        self.file.sync_data()
    }

    /// Returns redb's part of the file.
    pub(super) fn behind(&self) -> Behind {
        Behind { file: Arc::clone(&self.file) }
    }

    /// Returns a view of redb's part of the file. Writes to the view stay in memory.
    pub(super) fn view(&self) -> io::Result<View> {
        let behind = self.behind();
        let bytes = behind.len()?;
        Ok(View {
            behind,
            state: Mutex::new(ViewState { bytes, behind_bytes: bytes, pages: BTreeMap::new() }),
        })
    }

    /// Returns all bytes of the file.
    pub(super) fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.file.metadata()?.len() as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// Returns the error message for a store of another format.
pub(super) fn other_format(format: &str) -> String {
    format!(
        "it has format {format}; this version reads formats {STORE_FORMAT_MIN} to {STORE_FORMAT}. Use the version that \
         wrote it, or another --store file"
    )
}

/// Returns the head of the front page.
fn head() -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&STORE_FORMAT.to_le_bytes());
    let checksum = crc32c::crc32c(&head[..16]).to_le_bytes();
    head[16..].copy_from_slice(&checksum);
    head
}

/// Returns the offset at which the number of a commit is written, and the bytes to write.
fn sector_of(commit: u64) -> (u64, [u8; 12]) {
    let number = commit.to_le_bytes();
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&number);
    bytes[8..].copy_from_slice(&crc32c::crc32c(&number).to_le_bytes());
    (SECTOR_BYTES * (1 + commit % 2), bytes)
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a whole new store to a file beside `path` and syncs it, so that a crash never leaves part of a store under
/// `path`.
fn written(path: &Path, fill: &dyn Fn(Behind) -> Result<u64, Unusable>) -> Result<PathBuf, Unusable> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".new-{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&beside)?;
    let file = Arc::new(file);
    let commit = fill(Behind { file: Arc::clone(&file) })?;
    let mut front = vec![0; FRONT_BYTES as usize];
    front[..HEAD_BYTES].copy_from_slice(&head());
    let (at, bytes) = sector_of(commit);
    front[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    file.write_all_at(&front, 0)?;
    file.sync_all()?;
    Ok(beside)
}

/// Puts a new store at `path`. If another file has been created there meanwhile, that one stays.
fn create(path: &Path, fill: &dyn Fn(Behind) -> Result<u64, Unusable>) -> Result<(), Unusable> {
    let beside = written(path, fill)?;
    let linked = std::fs::hard_link(&beside, path);
    std::fs::remove_file(&beside)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(sync_folder(path)?),
    }
}

/// Replaces a file that the caller has locked by a new store.
pub(super) fn replace(path: &Path, fill: &dyn Fn(Behind) -> Result<u64, Unusable>) -> Result<(), Unusable> {
    std::fs::rename(written(path, fill)?, path)?;
    Ok(sync_folder(path)?)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Redb's part of a file, after the front page.
#[derive(Debug)]
pub(super) struct Behind {
    file: Arc<File>,
}

impl StorageBackend for Behind {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().saturating_sub(FRONT_BYTES))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, within(offset)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(within(len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, within(offset)?)
    }
}

/// Converts an offset in redb's part to one in the file. A damaged file may make redb ask for any offset.
fn within(offset: u64) -> io::Result<u64> {
    let beyond =
        || io::Error::new(io::ErrorKind::InvalidInput, "the offset is beyond the end of the largest file");
    offset.checked_add(FRONT_BYTES).filter(|offset| *offset <= i64::MAX as u64).ok_or_else(beyond)
}

/// View of redb's part of a file. Writes stay in memory.
#[derive(Debug)]
pub(super) struct View {
    behind: Behind,
    state: Mutex<ViewState>,
}

#[derive(Debug)]
struct ViewState {
    /// Length of the view in bytes.
    bytes: u64,
    /// Bytes at the start of redb's part that the view shows as they are in the file. It shows zeros after them, except
    /// where something was written to the view.
    behind_bytes: u64,
    /// Pages that were written to the view, by their numbers.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl View {
    /// Returns a page as the view shows it.
    fn page(&self, state: &ViewState, page: u64) -> io::Result<Vec<u8>> {
        if let Some(written) = state.pages.get(&page) {
            return Ok(written.clone());
        }
        let mut bytes = vec![0; VIEW_PAGE_BYTES as usize];
        let begins = page * VIEW_PAGE_BYTES;
        let there = state.behind_bytes.saturating_sub(begins).min(VIEW_PAGE_BYTES) as usize;
        self.behind.read(begins, &mut bytes[..there])?;
        Ok(bytes)
    }
}

/// Splits a range at page boundaries. Yields for each part the page, the range within the page, and the offset within
/// the range.
fn page_ranges(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let from = (at % VIEW_PAGE_BYTES) as usize;
        let count = (VIEW_PAGE_BYTES as usize - from).min(bytes - done);
        let begins = done;
        done += count;
        (count > 0).then_some((at / VIEW_PAGE_BYTES, from..from + count, begins))
    })
}

impl StorageBackend for View {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, range, at) in page_ranges(offset, out.len()) {
            out[at..at + range.len()].copy_from_slice(&self.page(&state, page)?[range]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.bytes {
            let (last, rest) = (len / VIEW_PAGE_BYTES, (len % VIEW_PAGE_BYTES) as usize);
            // The bytes behind the new end must be zeros if the file grows again.
            let mut page = self.page(&state, last)?;
            page[rest..].fill(0);
            state.pages.retain(|page, _| *page < last);
            state.pages.insert(last, page);
            state.behind_bytes = state.behind_bytes.min(len);
        }
        state.bytes = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > state.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, range, at) in page_ranges(offset, data.len()) {
            let mut bytes = self.page(&state, page)?;
            bytes[range.clone()].copy_from_slice(&data[at..at + range.len()]);
            state.pages.insert(page, bytes);
        }
        Ok(())
    }
}
