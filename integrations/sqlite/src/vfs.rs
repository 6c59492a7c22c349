//! What SQLite asks of a file system: databases are SQLite's own files behind a cache, temporary files are far ones.

use crate::beneath::{Beneath, Code, File};
use crate::buffered::Buffered;
use crate::settings::Settings;
use farpool::{CreateOptions, ErrorKind, FarFile, FileClass, Pool};
use farpool_cache::{BlockCache, CachedFile, Identity, Source, Times};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use sqlite_plugin::flags::{AccessFlags, LockLevel, OpenKind, OpenOpts, ShmLockMode};
use sqlite_plugin::logger::{SqliteLogLevel, SqliteLogger};
use sqlite_plugin::vars;
use sqlite_plugin::vfs::{Pragma, PragmaErr, Vfs, VfsHandle};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where failures of far memory are told: SQLite's log, and `PRAGMA farpool_error`.
#[derive(Clone, Default)]
pub(crate) struct Log {
    logger: Arc<Mutex<Option<SqliteLogger>>>,
    last: Arc<Mutex<Option<String>>>,
}

impl Log {
    pub(crate) fn begin(&self, logger: SqliteLogger) {
        *lock(&self.logger) = Some(logger);
    }

    fn tell(&self, what: String) {
        if let Some(logger) = &*lock(&self.logger) {
            // It is taken for a format.
            let line = format!("farpool: {what}").replace('%', "%%").replace('\0', "");
            logger.log(SqliteLogLevel::Warn, &line);
        }
        *lock(&self.last) = Some(what);
    }
}

pub(crate) struct FarVfs {
    beneath: &'static Beneath,
    pool: Pool,
    cache: Option<BlockCache>,
    /// One for each database that is open, whoever has opened it.
    databases: Mutex<HashMap<(u64, u64), Weak<CachedFile>>>,
    next_file: AtomicU64,
    log: Log,
}

impl FarVfs {
    /// Errors: what is wrong with the settings, or the pool that does not answer.
    pub(crate) fn new(settings: &Settings, beneath: Beneath) -> Result<FarVfs, String> {
        let (pool, cache) = settings.connect()?;
        Ok(FarVfs {
            // SQLite never gives a file system back.
            beneath: Box::leak(Box::new(beneath)),
            pool,
            cache,
            databases: Mutex::default(),
            next_file: AtomicU64::new(0),
            log: Log::default(),
        })
    }

    pub(crate) fn log(&self) -> Log {
        self.log.clone()
    }

    fn open_temporary(&self) -> Result<Handle, Code> {
        let name = format!("SQLite temporary file {}", self.next_file.fetch_add(1, Ordering::Relaxed));
        let made = self.pool.create(&name, FileClass::Scratch, CreateOptions::default());
        let far = made.map_err(|error| {
            self.log.tell(error.to_string());
            vars::SQLITE_CANTOPEN
        })?;
        let store = Temporary { far, pool: self.pool.clone(), log: self.log.clone() };
        Ok(Handle::Temporary(Buffered::new(store)))
    }

    /// What is known of a database's file, if it can be told when others change it.
    fn cached(&self, path: &str) -> Option<Kept> {
        let cache = self.cache.clone()?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        // Opened so, it can be closed again without the locks of this process on the file going with it.
        let place = openat(CWD, path, flags, Mode::empty()).ok()?;
        let stat = statat(&place, "", AtFlags::EMPTY_PATH).ok()?;
        let key = (stat.st_dev, stat.st_ino);
        let mut databases = lock(&self.databases);
        databases.retain(|_, file| file.strong_count() > 0);
        let file = databases.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let folder = Path::new(path).parent().unwrap_or(Path::new("."));
            Arc::new(CachedFile::new(Times::of(folder)))
        });
        databases.insert(key, Arc::downgrade(&file));
        Some(Kept { cache, file, place })
    }
}

/// How a database's reads are kept.
pub(crate) struct Kept {
    cache: BlockCache,
    file: Arc<CachedFile>,
    place: OwnedFd,
}

impl Kept {
    fn identity(&self) -> Result<Identity, Code> {
        let stat = statat(&self.place, "", AtFlags::EMPTY_PATH).map_err(|_| vars::SQLITE_IOERR_FSTAT)?;
        Ok(Identity::from(&stat))
    }
}

/// A database's file for the time of a call.
struct Beside<'a> {
    file: RefCell<&'a mut File>,
    kept: &'a Kept,
}

impl Source for Beside<'_> {
    type Error = Code;

    fn identity(&self) -> Result<Identity, Code> {
        self.kept.identity()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Code> {
        if self.file.borrow_mut().read(offset, into)? {
            return Ok(into.len());
        }
        // SQLite's file system does not say how much it read.
        let left = self.identity()?.size.saturating_sub(offset);
        Ok(into.len().min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Code> {
        self.file.borrow_mut().write(offset, from)
    }
}

/// A temporary file in far memory. Dropped, it is gone.
pub(crate) struct Temporary {
    far: FarFile,
    pool: Pool,
    log: Log,
}

impl Temporary {
    fn failed(&self, error: &farpool::Error, code: Code) -> Code {
        self.log.tell(error.to_string());
        if error.kind() == ErrorKind::Exhausted { vars::SQLITE_FULL } else { code }
    }
}

impl crate::buffered::Store for Temporary {
    type Error = Code;

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Code> {
        let read =
            self.far.read_at(offset, into).map_err(|error| self.failed(&error, vars::SQLITE_IOERR_READ))?;
        if read == into.len() { Ok(()) } else { Err(vars::SQLITE_IOERR_READ) }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Code> {
        self.far.write_at(offset, from).map_err(|error| self.failed(&error, vars::SQLITE_IOERR_WRITE))
    }

    fn truncate(&self, bytes: u64) -> Result<(), Code> {
        self.far.truncate(bytes).map_err(|error| self.failed(&error, vars::SQLITE_IOERR_TRUNCATE))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = self.pool.delete(&self.far.name()) {
            self.log.tell(error.to_string());
        }
    }
}

/// An open file.
pub(crate) enum Handle {
    /// A database, a journal or a log, as SQLite has it. Of databases, pages that were read are kept.
    Own { file: File, kept: Option<Kept>, is_read_only: bool },
    /// A temporary file.
    Temporary(Buffered<Temporary>),
}

impl VfsHandle for Handle {
    fn readonly(&self) -> bool {
        matches!(self, Handle::Own { is_read_only: true, .. })
    }

    fn in_memory(&self) -> bool {
        false
    }
}

impl Handle {
    /// SQLite's own file; temporary ones have neither locks nor shared memory.
    fn own(&mut self) -> Result<&mut File, Code> {
        match self {
            Handle::Own { file, .. } => Ok(file),
            Handle::Temporary(_) => Err(vars::SQLITE_IOERR),
        }
    }
}

impl Vfs for FarVfs {
    type Handle = Handle;

    fn canonical_path<'a>(&self, path: Cow<'a, str>) -> Result<Cow<'a, str>, Code> {
        // What stands for bytes that are no UTF-8 would be the name of another file.
        if path.contains(char::REPLACEMENT_CHARACTER) {
            return Err(vars::SQLITE_CANTOPEN);
        }
        self.beneath.full_path(&path).map(Cow::Owned)
    }

    fn open(&self, path: Option<&str>, options: OpenOpts) -> Result<Handle, Code> {
        let kind = options.kind();
        let path = match path {
            Some(path) if !(kind.is_temp() || kind == OpenKind::SubJournal) => path,
            _ => return self.open_temporary(),
        };
        let (mut file, opened) = self.beneath.open(path, options.flags())?;
        let kept = if kind == OpenKind::MainDb { self.cached(path) } else { None };
        // What is known must be known of the file that was opened.
        let kept = if file.has_moved()? { None } else { kept };
        Ok(Handle::Own { file, kept, is_read_only: opened & vars::SQLITE_OPEN_READONLY != 0 })
    }

    fn delete(&self, path: &str) -> Result<(), Code> {
        // Whether it must be on disk is not passed on, so it always is.
        self.beneath.delete(path, true)
    }

    fn access(&self, path: &str, flags: AccessFlags) -> Result<bool, Code> {
        let flags = match flags {
            AccessFlags::Exists => vars::SQLITE_ACCESS_EXISTS,
            AccessFlags::Read => vars::SQLITE_ACCESS_READ,
            AccessFlags::ReadWrite => vars::SQLITE_ACCESS_READWRITE,
        };
        self.beneath.access(path, flags)
    }

    fn file_size(&self, handle: &mut Handle) -> Result<usize, Code> {
        let bytes = match handle {
            Handle::Own { file, .. } => file.size()?,
            Handle::Temporary(file) => file.length(),
        };
        usize::try_from(bytes).map_err(|_| vars::SQLITE_IOERR_FSTAT)
    }

    fn truncate(&self, handle: &mut Handle, size: usize) -> Result<(), Code> {
        let size = size as u64;
        match handle {
            Handle::Own { file, kept: Some(kept), .. } => {
                let Kept { cache, file: known, .. } = &*kept;
                known.resize(cache, || kept.identity(), size, || file.truncate(size))
            }
            Handle::Own { file, kept: None, .. } => file.truncate(size),
            Handle::Temporary(file) => file.truncate(size),
        }
    }

    fn write(&self, handle: &mut Handle, offset: usize, data: &[u8]) -> Result<usize, Code> {
        let at = offset as u64;
        match handle {
            Handle::Own { file, kept: Some(kept), .. } => {
                let beside = Beside { file: RefCell::new(file), kept };
                kept.file.write(&kept.cache, &beside, at, data)?;
            }
            Handle::Own { file, kept: None, .. } => file.write(at, data)?,
            Handle::Temporary(file) => file.write(at, data)?,
        }
        Ok(data.len())
    }

    fn read(&self, handle: &mut Handle, offset: usize, data: &mut [u8]) -> Result<usize, Code> {
        let at = offset as u64;
        match handle {
            Handle::Own { file, kept: Some(kept), .. } => {
                let beside = Beside { file: RefCell::new(file), kept };
                kept.file.read(&kept.cache, &beside, at, data)
            }
            Handle::Own { file, kept: None, .. } => {
                if file.read(at, data)? {
                    return Ok(data.len());
                }
                let left = file.size()?.saturating_sub(at);
                Ok(data.len().min(usize::try_from(left).unwrap_or(usize::MAX)))
            }
            Handle::Temporary(file) => file.read(at, data),
        }
    }

    fn lock(&self, handle: &mut Handle, level: LockLevel) -> Result<(), Code> {
        match handle {
            // SQLite asks for the first before it writes a journal, and for the other before it writes a log back and deletes it.
            Handle::Own { file, is_read_only: false, .. }
                if matches!(level, LockLevel::Reserved | LockLevel::Exclusive) =>
            {
                // Its journal and its log have the names of another database's.
                if file.has_moved()? {
                    return Err(vars::SQLITE_READONLY_DBMOVED);
                }
                file.lock(raw_level(level))
            }
            Handle::Own { file, .. } => file.lock(raw_level(level)),
            Handle::Temporary(_) => Ok(()),
        }
    }

    fn unlock(&self, handle: &mut Handle, level: LockLevel) -> Result<(), Code> {
        match handle {
            Handle::Own { file, .. } => file.unlock(raw_level(level)),
            Handle::Temporary(_) => Ok(()),
        }
    }

    fn check_reserved_lock(&self, handle: &mut Handle) -> Result<bool, Code> {
        match handle {
            Handle::Own { file, .. } => file.has_reserved_lock(),
            Handle::Temporary(_) => Ok(false),
        }
    }

    fn sync(&self, handle: &mut Handle) -> Result<(), Code> {
        match handle {
            Handle::Own { file, .. } => file.sync(vars::SQLITE_SYNC_FULL),
            // Nothing of it outlives the process.
            Handle::Temporary(_) => Ok(()),
        }
    }

    fn close(&self, handle: Handle) -> Result<(), Code> {
        drop(handle);
        Ok(())
    }

    fn pragma(&self, _handle: &mut Handle, pragma: Pragma<'_>) -> Result<Option<String>, PragmaErr> {
        match pragma.name {
            "farpool_error" => Ok(Some(lock(&self.log.last).clone().unwrap_or_else(|| "none".to_owned()))),
            "farpool_stats" => {
                let counts = self.cache.as_ref().map(|cache| cache.counts().named()).unwrap_or_default();
                let mut all: serde_json::Map<_, _> =
                    counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
                let stats = self.pool.stats();
                all.insert("bytes_written".to_owned(), stats.bytes_written.into());
                all.insert("bytes_read".to_owned(), stats.bytes_read.into());
                all.insert("leased_bytes".to_owned(), stats.leased_bytes.into());
                Ok(Some(serde_json::Value::Object(all).to_string()))
            }
            _ => Err(PragmaErr::NotFound),
        }
    }

    fn sector_size(&self, handle: &mut Handle) -> Result<c_int, Code> {
        match handle {
            Handle::Own { file, .. } => file.sector_size(),
            Handle::Temporary(_) => Ok(sqlite_plugin::vfs::DEFAULT_SECTOR_SIZE),
        }
    }

    fn device_characteristics(&self, handle: &mut Handle) -> Result<c_int, Code> {
        match handle {
            Handle::Own { file, .. } => file.characteristics(),
            Handle::Temporary(_) => Ok(sqlite_plugin::vfs::DEFAULT_DEVICE_CHARACTERISTICS),
        }
    }

    fn shm_map(
        &self,
        handle: &mut Handle,
        region: usize,
        bytes: usize,
        is_made: bool,
    ) -> Result<Option<NonNull<u8>>, Code> {
        let (region, bytes) = (c_int::try_from(region), c_int::try_from(bytes));
        let (Ok(region), Ok(bytes)) = (region, bytes) else { return Err(vars::SQLITE_IOERR_SHMMAP) };
        handle.own()?.shm_map(region, bytes, is_made)
    }

    fn shm_lock(&self, handle: &mut Handle, offset: u32, count: u32, mode: ShmLockMode) -> Result<(), Code> {
        let flags = match mode {
            ShmLockMode::LockShared => vars::SQLITE_SHM_LOCK | vars::SQLITE_SHM_SHARED,
            ShmLockMode::LockExclusive => vars::SQLITE_SHM_LOCK | vars::SQLITE_SHM_EXCLUSIVE,
            ShmLockMode::UnlockShared => vars::SQLITE_SHM_UNLOCK | vars::SQLITE_SHM_SHARED,
            ShmLockMode::UnlockExclusive => vars::SQLITE_SHM_UNLOCK | vars::SQLITE_SHM_EXCLUSIVE,
        };
        handle.own()?.shm_lock(offset as c_int, count as c_int, flags)
    }

    fn shm_barrier(&self, handle: &mut Handle) {
        if let Ok(file) = handle.own() {
            file.shm_barrier();
        }
    }

    fn shm_unmap(&self, handle: &mut Handle, is_deleted: bool) -> Result<(), Code> {
        handle.own()?.shm_unmap(is_deleted)
    }
}

fn raw_level(level: LockLevel) -> c_int {
    match level {
        LockLevel::Unlocked => vars::SQLITE_LOCK_NONE,
        LockLevel::Shared => vars::SQLITE_LOCK_SHARED,
        LockLevel::Reserved => vars::SQLITE_LOCK_RESERVED,
        LockLevel::Pending => vars::SQLITE_LOCK_PENDING,
        LockLevel::Exclusive => vars::SQLITE_LOCK_EXCLUSIVE,
    }
}
