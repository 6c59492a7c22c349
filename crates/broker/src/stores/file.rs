//! The file of a store on disk: a front page of our own, and behind it what redb keeps.
//!
//! Idea: redb keeps the last two commits in its file and may take the older one for the last when the few bytes that
//! tell them apart were damaged. So the front page has the number of the last commit as well, written and synced after
//! redb's own. The file is looked at through a view that keeps in memory what redb would write, so that one that is
//! refused stays as it was.
//!
//! The front page (4096 bytes): at 0 `FPBROKER`, the format (8 bytes), CRC32C of both (4 bytes); at 512 and 1024 in
//! turn the number of a commit (8 bytes) and its CRC32C (4 bytes), each in a sector of its own, which a crash leaves
//! whole. Integers are little-endian.
//!
//! Invariant: what redb has committed last is the commit that the front page names, or, after a crash, the next one.

use farpool_lock::Mutex;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The version of what is in the file.
pub const STORE_FORMAT: u64 = 3;
const MAGIC: &[u8; 8] = b"FPBROKER";
/// What files of formats before the third begin with, and those of other programs: they are redb's alone.
const REDB_MAGIC: &[u8; 5] = b"redb\x1a";
/// Bytes before what redb keeps.
const FRONT_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// Pages that a view keeps.
const VIEW_PAGE_BYTES: u64 = 4096;

/// Why a file cannot be used as a store.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is, or may be, somebody else's, or cannot be reached. The text says why, without the file's name.
    Other(String),
    /// It is redb's alone: of a format before the third, or of another program.
    RedbAlone,
    /// It is a store, and damaged. The text says how.
    Damaged(String),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Unusable::Other(error.to_string())
    }
}

/// A store's file, which no other process has open as one.
#[derive(Debug)]
pub(super) struct StoreFile {
    file: Arc<File>,
}

impl StoreFile {
    /// Opens the file. If there is none yet, or an empty one, `fill` puts what a new store has into a new one, as
    /// commit 1.
    pub(super) fn open(
        path: &Path,
        fill: &dyn Fn(Behind) -> Result<(), Unusable>,
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
                return Err(Unusable::Other("it is no file".to_owned()));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Unusable::Other("another broker has it open".to_owned()));
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // Another process may have put a new file in its place before this one was locked.
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

    /// Returns the number of the last commit, if the file is a store of this format.
    pub(super) fn last_commit(&self) -> Result<u64, Unusable> {
        let mut page = vec![0; FRONT_BYTES as usize];
        let bytes = self.file.metadata()?.len().min(FRONT_BYTES) as usize;
        self.file.read_exact_at(&mut page[..bytes], 0)?;
        if page.starts_with(REDB_MAGIC) {
            return Err(Unusable::RedbAlone);
        }
        let (head, checksum) = page[..20].split_at(16);
        if crc32c::crc32c(head).to_le_bytes() != *checksum {
            let mut behind = [0; REDB_MAGIC.len()];
            let is_ours = head.starts_with(MAGIC)
                || (self.behind().read(0, &mut behind).is_ok() && behind == *REDB_MAGIC);
            return Err(match is_ours {
                true => Unusable::Damaged("its front page is not as it was written".to_owned()),
                false => Unusable::Other("it is not a broker store".to_owned()),
            });
        }
        let (magic, format) = head.split_at(MAGIC.len());
        let format = format.try_into().map_or(0, u64::from_le_bytes);
        if magic != MAGIC || format != STORE_FORMAT {
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

    /// Notes durably that redb has this commit.
    pub(super) fn note_commit(&self, commit: u64) -> io::Result<()> {
        let (at, bytes) = sector_of(commit);
        self.file.write_all_at(&bytes, at)?;
        self.file.sync_data()
    }

    /// Returns what redb keeps its data in.
    pub(super) fn behind(&self) -> Behind {
        Behind { file: Arc::clone(&self.file) }
    }

    /// Returns the same, seen so that what is written stays in memory.
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

/// Returns what is said of a store of another format.
pub(super) fn other_format(format: &str) -> String {
    format!(
        "it has format {format}; this version reads and writes format {STORE_FORMAT} only. Use the version that wrote it, or \
         another --store file"
    )
}

/// Returns where the number of a commit stands, and its bytes.
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

/// Writes a whole new store beside `path`, synced, so that a crash leaves no part of one under that name.
fn written(path: &Path, fill: &dyn Fn(Behind) -> Result<(), Unusable>) -> Result<PathBuf, Unusable> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".new-{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&beside)?;
    let file = Arc::new(file);
    fill(Behind { file: Arc::clone(&file) })?;
    let mut front = vec![0; FRONT_BYTES as usize];
    front[..8].copy_from_slice(MAGIC);
    front[8..16].copy_from_slice(&STORE_FORMAT.to_le_bytes());
    let checksum = crc32c::crc32c(&front[..16]).to_le_bytes();
    front[16..20].copy_from_slice(&checksum);
    let (at, bytes) = sector_of(1);
    front[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    file.write_all_at(&front, 0)?;
    file.sync_all()?;
    Ok(beside)
}

/// Puts a new store where nothing is; if something has come to be there meanwhile, that stays.
fn create(path: &Path, fill: &dyn Fn(Behind) -> Result<(), Unusable>) -> Result<(), Unusable> {
    let beside = written(path, fill)?;
    let linked = std::fs::hard_link(&beside, path);
    std::fs::remove_file(&beside)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(sync_folder(path)?),
    }
}

/// Puts a new store in the place of a file that the caller has locked.
pub(super) fn replace(path: &Path, fill: &dyn Fn(Behind) -> Result<(), Unusable>) -> Result<(), Unusable> {
    std::fs::rename(written(path, fill)?, path)?;
    Ok(sync_folder(path)?)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// What is behind the front page of a file.
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

/// A damaged file may name any place.
fn within(offset: u64) -> io::Result<u64> {
    let beyond = || io::Error::new(io::ErrorKind::InvalidInput, "a place beyond the end of every file");
    offset.checked_add(FRONT_BYTES).filter(|offset| *offset <= i64::MAX as u64).ok_or_else(beyond)
}

/// What is behind the front page, with what was written to it since in memory.
#[derive(Debug)]
pub(super) struct View {
    behind: Behind,
    state: Mutex<ViewState>,
}

#[derive(Debug)]
struct ViewState {
    /// Length as it is seen.
    bytes: u64,
    /// Bytes of the file that are still seen: behind them are zeros, until they are written.
    behind_bytes: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl View {
    /// Returns a page as it is seen.
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

/// Cuts a range into pieces, one in each page: the page, where it begins in that, and where in the range.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let from = (at % VIEW_PAGE_BYTES) as usize;
        let piece = (VIEW_PAGE_BYTES as usize - from).min(bytes - done);
        let begins = done;
        done += piece;
        (piece > 0).then_some((at / VIEW_PAGE_BYTES, from..from + piece, begins))
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
        for (page, range, at) in pieces(offset, out.len()) {
            out[at..at + range.len()].copy_from_slice(&self.page(&state, page)?[range]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.bytes {
            let (last, rest) = (len / VIEW_PAGE_BYTES, (len % VIEW_PAGE_BYTES) as usize);
            // What is cut off comes back as zeros.
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
        for (page, range, at) in pieces(offset, data.len()) {
            let mut bytes = self.page(&state, page)?;
            bytes[range.clone()].copy_from_slice(&data[at..at + range.len()]);
            state.pages.insert(page, bytes);
        }
        Ok(())
    }
}
