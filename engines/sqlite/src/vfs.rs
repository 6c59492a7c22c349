//! Decides where files are stored: databases, journals and logs by SQLite's own file system, with a cache for
//! databases; temporary files in far memory.
//!
//! The idea: SQLite tells a file system at `open` what a file is for. A main database gets a [`CachedFile`], which all
//! connections of this process to that database share, so that a write by one updates the blocks that the others read.
//! Changes by other processes are noticed by the file's attributes, which are checked before each read. If far memory
//! is lost, reads go to the file again. A temporary file becomes a scratch file of the pool behind a buffer
//! ([`Buffered`]); if its bytes are lost, the statement fails with an I/O error.

use crate::abi::{self, Code};
use crate::beneath::{Api, Beneath, File, Filename};
use crate::buffered::Buffered;
use crate::settings::Settings;
use farpool_cache::{BlockCache, CachedFile, FileIdentity, OriginFile, Times};
use farpool_files::{CreateOptions, ErrorKind, FarFile, FileClass, Pool};
use farpool_lock::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Destination of errors of far memory: SQLite's log, and the answer to `PRAGMA farpool_error` (`last`).
#[derive(Clone)]
struct Log {
    api: Api,
    last: Arc<Mutex<Option<String>>>,
}

impl Log {
    fn tell(&self, what: String) {
        self.api.warn(&format!("farpool: {what}"));
        *self.last.lock() = Some(what);
    }
}

pub(crate) struct FarVfs {
    beneath: Beneath,
    pool: Pool,
    cache: Option<BlockCache>,
    /// Cached files of open databases by device and inode, shared by all connections to a database.
    databases: Mutex<HashMap<(u64, u64), Weak<CachedFile>>>,
    next_file: AtomicU64,
    log: Log,
}

impl FarVfs {
    /// Connects to the pool that the settings name, and creates the file system. `beneath` is the one that was SQLite's
    /// default.
    pub(crate) fn new(settings: &Settings, api: Api, beneath: Beneath) -> Result<FarVfs, String> {
        let (pool, cache) = settings.connect()?;
        Ok(FarVfs {
            beneath,
            pool,
            cache,
            databases: Mutex::default(),
            next_file: AtomicU64::new(0),
            log: Log { api, last: Arc::default() },
        })
    }

    /// Returns the session with the pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the file system that was SQLite's default before this one.
    pub(crate) fn beneath(&self) -> &Beneath {
        &self.beneath
    }

    /// Opens a file. A file without a name is temporary. Also returns the flags with which it was opened.
    pub(crate) fn open(&self, name: Option<Filename>, flags: c_int) -> Result<(Handle, c_int), Code> {
        let name = match name {
            Some(name) if flags & abi::OPEN_TEMPORARY == 0 => name,
            _ => return self.open_temporary().map(|handle| (handle, flags)),
        };
        let (mut file, opened) = self.beneath.open(name, flags)?;
        let kept = if flags & abi::OPEN_MAIN_DB != 0 { self.cached(name.path()) } else { None };
        // The cache looked the file up by its name, so the name must still be that of the opened file.
        let kept = if file.has_moved()? { None } else { kept };
        Ok((Handle::Own { file, kept }, opened))
    }

    /// Returns the answer to a pragma of this extension. `None` for other pragmas.
    pub(crate) fn pragma(&self, name: &str) -> Option<String> {
        match name {
            "farpool_error" => Some(self.log.last.lock().clone().unwrap_or_else(|| "none".to_owned())),
            "farpool_stats" => {
                let counts = self.cache.as_ref().map(|cache| cache.counts().named()).unwrap_or_default();
                let mut all: serde_json::Map<_, _> =
                    counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
                let stats = self.pool.stats();
                all.insert("bytes_written".to_owned(), stats.bytes_written.into());
                all.insert("bytes_read".to_owned(), stats.bytes_read.into());
                all.insert("leased_bytes".to_owned(), stats.leased_bytes.into());
                Some(serde_json::Value::Object(all).to_string())
            }
            _ => None,
        }
    }

    /// Returns the names of this file system and of the one beneath it, as SQLite shows them for
    /// `SQLITE_FCNTL_VFSNAME`.
    pub(crate) fn full_name(&self) -> String {
        format!("farpool/{}", self.beneath.name())
    }

    /// Returns a copy of a text in memory that SQLite frees; null if there is no memory.
    pub(crate) fn text(&self, text: &str) -> *mut c_char {
        self.log.api.text(text)
    }

    fn open_temporary(&self) -> Result<Handle, Code> {
        let name = format!("SQLite temporary file {}", self.next_file.fetch_add(1, Ordering::Relaxed));
        let made = self.pool.create(&name, FileClass::Scratch, CreateOptions::default());
        let far = made.map_err(|error| {
            self.log.tell(error.to_string());
            abi::CANTOPEN
        })?;
        let store = Temporary { far, pool: self.pool.clone(), log: self.log.clone() };
        Ok(Handle::Temporary(Buffered::new(store)))
    }

    /// Returns the cache of a database. `None` if there is no cache, or the file's attributes cannot be read.
    fn cached(&self, path: &Path) -> Option<Kept> {
        let cache = self.cache.clone()?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        // `O_PATH`: closing any other descriptor of the file would release this process's POSIX locks on it.
        let place = openat(CWD, path, flags, Mode::empty()).ok()?;
        let stat = statat(&place, "", AtFlags::EMPTY_PATH).ok()?;
        let key = (stat.st_dev, stat.st_ino);
        let mut databases = self.databases.lock();
        databases.retain(|_, file| file.strong_count() > 0);
        let file = databases.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let folder = path.parent().unwrap_or(Path::new("."));
            Arc::new(CachedFile::new(Times::of(folder)))
        });
        databases.insert(key, Arc::downgrade(&file));
        Some(Kept { cache, file, place })
    }
}

/// Cache of a database, for one open file. `file` is the state that all open files of the database share, and `place`
/// an `O_PATH` descriptor with which the file's attributes are read.
pub(crate) struct Kept {
    cache: BlockCache,
    file: Arc<CachedFile>,
    place: OwnedFd,
}

impl Kept {
    fn identity(&self) -> Result<FileIdentity, Code> {
        let stat = statat(&self.place, "", AtFlags::EMPTY_PATH).map_err(|_| abi::IOERR_FSTAT)?;
        Ok(FileIdentity::from(&stat))
    }
}

/// Open database and its cache, borrowed for one call.
struct Beside<'a> {
    file: RefCell<&'a mut File>,
    kept: &'a Kept,
}

impl OriginFile for Beside<'_> {
    type Error = Code;

    fn identity(&self) -> Result<FileIdentity, Code> {
        self.kept.identity()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Code> {
        if self.file.borrow_mut().read(offset, into)? {
            return Ok(into.len());
        }
        // The file ended before the buffer was full. SQLite's file system does not return how many bytes it read.
        let left = self.identity()?.size.saturating_sub(offset);
        Ok(into.len().min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Code> {
        self.file.borrow_mut().write(offset, from)
    }
}

/// Temporary file in far memory. Dropping this value deletes the file.
pub(crate) struct Temporary {
    far: FarFile,
    pool: Pool,
    log: Log,
}

impl Temporary {
    fn failed(&self, error: &farpool_files::Error, code: Code) -> Code {
        self.log.tell(error.to_string());
        if error.kind() == ErrorKind::Exhausted { abi::FULL } else { code }
    }
}

impl crate::buffered::Store for Temporary {
    type Error = Code;

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Code> {
        let read = self.far.read_at(offset, into).map_err(|error| self.failed(&error, abi::IOERR_READ))?;
        if read == into.len() { Ok(()) } else { Err(abi::IOERR_READ) }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Code> {
        self.far.write_at(offset, from).map_err(|error| self.failed(&error, abi::IOERR_WRITE))
    }

    fn truncate(&self, bytes: u64) -> Result<(), Code> {
        self.far.truncate(bytes).map_err(|error| self.failed(&error, abi::IOERR_TRUNCATE))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = self.pool.delete(&self.far.name()) {
            self.log.tell(error.to_string());
        }
    }
}

/// Open file of the extension's file system.
pub(crate) enum Handle {
    /// Database, journal or log in SQLite's file system. `kept` is the cache of a database.
    Own { file: File, kept: Option<Kept> },
    /// Temporary file in far memory.
    Temporary(Buffered<Temporary>),
}

impl Handle {
    /// Returns the file in SQLite's file system. `None` if this is a temporary file in far memory.
    pub(crate) fn own(&mut self) -> Option<&mut File> {
        match self {
            Handle::Own { file, .. } => Some(file),
            Handle::Temporary(_) => None,
        }
    }

    /// Reads into the buffer. Returns false if the file ended first; the rest of the buffer is then zeroed.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<bool, Code> {
        let count = match self {
            Handle::Own { file, kept: Some(kept) } => {
                let beside = Beside { file: RefCell::new(file), kept };
                kept.file.read(&kept.cache, &beside, offset, into)?
            }
            Handle::Own { file, kept: None } => return file.read(offset, into),
            Handle::Temporary(file) => file.read(offset, into)?,
        };
        into[count..].fill(0);
        Ok(count == into.len())
    }

    /// Writes all of the data.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Code> {
        match self {
            Handle::Own { file, kept: Some(kept) } => {
                let beside = Beside { file: RefCell::new(file), kept };
                kept.file.write(&kept.cache, &beside, offset, from)
            }
            Handle::Own { file, kept: None } => file.write(offset, from),
            Handle::Temporary(file) => file.write(offset, from),
        }
    }

    /// Sets the length of the file.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), Code> {
        match self {
            Handle::Own { file, kept: Some(kept) } => {
                kept.file.resize(&kept.cache, || kept.identity(), bytes, || file.truncate(bytes))
            }
            Handle::Own { file, kept: None } => file.truncate(bytes),
            Handle::Temporary(file) => file.truncate(bytes),
        }
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        match self {
            Handle::Own { file, .. } => file.size(),
            Handle::Temporary(file) => Ok(file.length()),
        }
    }

    /// Hints that the file will grow to this many bytes. A database with a chunk size (`SQLITE_FCNTL_CHUNK_SIZE`,
    /// sqlite.org/c3ref/c_fcntl_begin_atomic_write.html) grows at once.
    pub(crate) fn hint_size(&mut self, bytes: i64) -> Result<(), Code> {
        match self {
            Handle::Own { file, kept: Some(kept) } => {
                let grown = u64::try_from(bytes).unwrap_or(0).max(kept.identity()?.size);
                kept.file.resize(&kept.cache, || kept.identity(), grown, || file.hint_size(bytes))
            }
            Handle::Own { file, kept: None } => file.hint_size(bytes),
            Handle::Temporary(_) => Ok(()),
        }
    }
}
