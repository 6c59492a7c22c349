//! SQLite's own file system, which does all that is done to databases and their journals.
//!
//! The idea: a file system of SQLite's is a table of functions in C (sqlite.org/c3ref/vfs.html and io_methods.html), whose layout
//! it keeps for ever. All calls into it are here, and nothing else is.

use sqlite_plugin::{sqlite3_api_routines, vars};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

/// A result code of SQLite's that is not OK.
pub(crate) type Code = c_int;

/// `sqlite3_vfs`, as far as it is used.
#[repr(C)]
struct RawVfs {
    version: c_int,
    file_bytes: c_int,
    longest_path: c_int,
    next: *mut RawVfs,
    name: *const c_char,
    data: *mut c_void,
    open: unsafe extern "C" fn(*mut RawVfs, *const c_char, *mut RawFile, c_int, *mut c_int) -> c_int,
    delete: unsafe extern "C" fn(*mut RawVfs, *const c_char, c_int) -> c_int,
    access: unsafe extern "C" fn(*mut RawVfs, *const c_char, c_int, *mut c_int) -> c_int,
    full_path: unsafe extern "C" fn(*mut RawVfs, *const c_char, c_int, *mut c_char) -> c_int,
}

/// `sqlite3_file`: what comes behind is the file system's own.
#[repr(C)]
struct RawFile {
    methods: *const RawMethods,
}

/// `sqlite3_io_methods` of version 2, which the file systems of Unix have at least.
#[repr(C)]
struct RawMethods {
    version: c_int,
    close: unsafe extern "C" fn(*mut RawFile) -> c_int,
    read: unsafe extern "C" fn(*mut RawFile, *mut c_void, c_int, i64) -> c_int,
    write: unsafe extern "C" fn(*mut RawFile, *const c_void, c_int, i64) -> c_int,
    truncate: unsafe extern "C" fn(*mut RawFile, i64) -> c_int,
    sync: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
    size: unsafe extern "C" fn(*mut RawFile, *mut i64) -> c_int,
    lock: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
    unlock: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
    check_reserved_lock: unsafe extern "C" fn(*mut RawFile, *mut c_int) -> c_int,
    control: unsafe extern "C" fn(*mut RawFile, c_int, *mut c_void) -> c_int,
    sector_size: unsafe extern "C" fn(*mut RawFile) -> c_int,
    characteristics: unsafe extern "C" fn(*mut RawFile) -> c_int,
    shm_map: unsafe extern "C" fn(*mut RawFile, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    shm_lock: unsafe extern "C" fn(*mut RawFile, c_int, c_int, c_int) -> c_int,
    shm_barrier: unsafe extern "C" fn(*mut RawFile),
    shm_unmap: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
}

type CreateFilename = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const c_char,
    c_int,
    *mut *const c_char,
) -> *const c_char;
type FreeFilename = unsafe extern "C" fn(*const c_char);

/// The file system that was SQLite's default.
pub(crate) struct Beneath {
    vfs: NonNull<RawVfs>,
    create_filename: CreateFilename,
    free_filename: FreeFilename,
}

// SAFETY: SQLite calls a file system from all threads at once, and never takes its default one away.
unsafe impl Send for Beneath {}
// SAFETY: as above.
unsafe impl Sync for Beneath {}

fn result(code: c_int) -> Result<(), Code> {
    if code == vars::SQLITE_OK { Ok(()) } else { Err(code) }
}

fn c_path(path: &str) -> Result<CString, Code> {
    CString::new(path).map_err(|_| vars::SQLITE_CANTOPEN)
}

impl Beneath {
    /// The default one; nothing if this SQLite lacks what is needed.
    ///
    /// # Safety
    ///
    /// `api` is null or SQLite's table of functions.
    pub(crate) unsafe fn find(api: *mut sqlite3_api_routines) -> Option<Beneath> {
        // SAFETY: as the caller promises.
        let api = unsafe { api.as_ref() }?;
        // SAFETY: null asks for the default one.
        let vfs = unsafe { api.vfs_find?(ptr::null()) };
        let vfs = NonNull::new(vfs.cast::<RawVfs>())?;
        let (create_filename, free_filename) = (api.create_filename?, api.free_filename?);
        Some(Beneath { vfs, create_filename, free_filename })
    }

    /// Opens a file. Says as well with which flags it was opened.
    pub(crate) fn open(&'static self, path: &str, flags: c_int) -> Result<(File, c_int), Code> {
        let path = c_path(path)?;
        let none = c"".as_ptr();
        // SAFETY: strings that end, and no parameters.
        let name = unsafe { (self.create_filename)(path.as_ptr(), none, none, 0, ptr::null_mut()) };
        let name = NonNull::new(name.cast_mut()).ok_or(vars::SQLITE_NOMEM)?;
        // SAFETY: it lives as long as the process.
        let bytes = unsafe { self.vfs.as_ref() }.file_bytes as usize;
        let mut file = File { memory: vec![0_u64; bytes.div_ceil(8)], name, of: self };
        let mut opened = 0;
        // SAFETY: the file's memory is zeroed, aligned to 8 bytes and as large as the file system asks; the name has the layout
        // that it reads parameters from, and lives until the file is closed.
        let code = unsafe {
            (self.vfs.as_ref().open)(self.vfs.as_ptr(), name.as_ptr(), file.raw(), flags, &mut opened)
        };
        result(code).map(|()| (file, opened))
    }

    /// Removes a file, for good when this returns if it is asked to.
    pub(crate) fn delete(&self, path: &str, is_synced: bool) -> Result<(), Code> {
        let path = c_path(path)?;
        // SAFETY: a string that ends.
        result(unsafe { (self.vfs.as_ref().delete)(self.vfs.as_ptr(), path.as_ptr(), is_synced.into()) })
    }

    pub(crate) fn access(&self, path: &str, flags: c_int) -> Result<bool, Code> {
        let path = c_path(path)?;
        let mut may = 0;
        // SAFETY: a string that ends, and a place for the answer.
        result(unsafe { (self.vfs.as_ref().access)(self.vfs.as_ptr(), path.as_ptr(), flags, &mut may) })?;
        Ok(may != 0)
    }

    pub(crate) fn full_path(&self, path: &str) -> Result<String, Code> {
        let path = c_path(path)?;
        // SAFETY: it lives as long as the process.
        let longest = unsafe { self.vfs.as_ref() }.longest_path;
        let mut full = vec![0_u8; longest as usize + 1];
        // SAFETY: a string that ends, and as many bytes as are said.
        let code = unsafe {
            let into = full.as_mut_ptr().cast::<c_char>();
            (self.vfs.as_ref().full_path)(self.vfs.as_ptr(), path.as_ptr(), longest + 1, into)
        };
        // A link on the way is no error.
        if code != vars::SQLITE_OK_SYMLINK {
            result(code)?;
        }
        let end = full.iter().position(|byte| *byte == 0).ok_or(vars::SQLITE_CANTOPEN)?;
        full.truncate(end);
        String::from_utf8(full).map_err(|_| vars::SQLITE_CANTOPEN)
    }
}

/// An open file. Dropped, it is closed.
pub(crate) struct File {
    memory: Vec<u64>,
    name: NonNull<c_char>,
    of: &'static Beneath,
}

// SAFETY: SQLite hands a file from thread to thread, and uses it in one at a time.
unsafe impl Send for File {}

impl Drop for File {
    fn drop(&mut self) {
        let raw = self.raw();
        // SAFETY: the memory was zeroed, and set by the file system if it opened the file: then it can be closed, once. The name
        // was made by SQLite and is not used afterwards.
        unsafe {
            if let Some(methods) = (*raw).methods.as_ref() {
                (methods.close)(raw);
            }
            (self.of.free_filename)(self.name.as_ptr());
        }
    }
}

impl File {
    fn raw(&mut self) -> *mut RawFile {
        self.memory.as_mut_ptr().cast()
    }

    fn call(&mut self, call: impl FnOnce(&RawMethods, *mut RawFile) -> c_int) -> Result<(), Code> {
        let raw = self.raw();
        // SAFETY: the memory is what the file system made it, and its methods live as long as the process.
        let methods = unsafe { (*raw).methods.as_ref() }.ok_or(vars::SQLITE_INTERNAL)?;
        result(call(methods, raw))
    }

    /// Whether the buffer was filled: if the file ends before, the rest is zeroed.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<bool, Code> {
        let (bytes, at) = (into.len() as c_int, offset as i64);
        // SAFETY: a buffer of that many bytes.
        let read =
            self.call(|methods, raw| unsafe { (methods.read)(raw, into.as_mut_ptr().cast(), bytes, at) });
        match read {
            Ok(()) => Ok(true),
            Err(vars::SQLITE_IOERR_SHORT_READ) => Ok(false),
            Err(code) => Err(code),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Code> {
        let (bytes, at) = (from.len() as c_int, offset as i64);
        // SAFETY: a buffer of that many bytes.
        self.call(|methods, raw| unsafe { (methods.write)(raw, from.as_ptr().cast(), bytes, at) })
    }

    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), Code> {
        // SAFETY: the file is open.
        self.call(|methods, raw| unsafe { (methods.truncate)(raw, bytes as i64) })
    }

    pub(crate) fn sync(&mut self, flags: c_int) -> Result<(), Code> {
        // SAFETY: the file is open.
        self.call(|methods, raw| unsafe { (methods.sync)(raw, flags) })
    }

    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        let mut bytes = 0;
        // SAFETY: the file is open.
        self.call(|methods, raw| unsafe { (methods.size)(raw, &mut bytes) })?;
        u64::try_from(bytes).map_err(|_| vars::SQLITE_IOERR_FSTAT)
    }

    pub(crate) fn lock(&mut self, level: c_int) -> Result<(), Code> {
        // SAFETY: the file is open.
        self.call(|methods, raw| unsafe { (methods.lock)(raw, level) })
    }

    pub(crate) fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        // SAFETY: the file is open.
        self.call(|methods, raw| unsafe { (methods.unlock)(raw, level) })
    }

    pub(crate) fn has_reserved_lock(&mut self) -> Result<bool, Code> {
        let mut has = 0;
        // SAFETY: the file is open.
        self.call(|methods, raw| unsafe { (methods.check_reserved_lock)(raw, &mut has) })?;
        Ok(has != 0)
    }

    /// Whether its name leads to another file by now, or to none.
    pub(crate) fn has_moved(&mut self) -> Result<bool, Code> {
        let mut moved: c_int = 0;
        // SAFETY: the file is open, and the answer is an int (sqlite.org/c3ref/c_fcntl_begin_atomic_write.html).
        let asked = self.call(|methods, raw| unsafe {
            (methods.control)(raw, vars::SQLITE_FCNTL_HAS_MOVED, (&raw mut moved).cast())
        });
        match asked {
            Ok(()) => Ok(moved != 0),
            Err(vars::SQLITE_NOTFOUND) => Ok(false),
            Err(code) => Err(code),
        }
    }

    pub(crate) fn sector_size(&mut self) -> Result<c_int, Code> {
        let mut bytes = 0;
        self.call(|methods, raw| {
            // SAFETY: the file is open.
            bytes = unsafe { (methods.sector_size)(raw) };
            vars::SQLITE_OK
        })?;
        Ok(bytes)
    }

    pub(crate) fn characteristics(&mut self) -> Result<c_int, Code> {
        let mut flags = 0;
        self.call(|methods, raw| {
            // SAFETY: the file is open.
            flags = unsafe { (methods.characteristics)(raw) };
            vars::SQLITE_OK
        })?;
        Ok(flags)
    }

    /// Part of the memory that all who have the database open share, of which `region` counts parts of so many bytes; null if it
    /// is not there and not to be made.
    pub(crate) fn shm_map(
        &mut self,
        region: c_int,
        bytes: c_int,
        is_made: bool,
    ) -> Result<Option<NonNull<u8>>, Code> {
        let mut at = ptr::null_mut();
        self.shared(|methods, raw| {
            // SAFETY: the file is open, and its methods are of version 2 at least.
            unsafe { (methods.shm_map)(raw, region, bytes, is_made.into(), &mut at) }
        })?;
        Ok(NonNull::new(at.cast()))
    }

    pub(crate) fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code> {
        // SAFETY: the file is open, and its methods are of version 2 at least.
        self.shared(|methods, raw| unsafe { (methods.shm_lock)(raw, offset, count, flags) })
    }

    pub(crate) fn shm_barrier(&mut self) {
        let _ = self.shared(|methods, raw| {
            // SAFETY: the file is open, and its methods are of version 2 at least.
            unsafe { (methods.shm_barrier)(raw) };
            vars::SQLITE_OK
        });
    }

    pub(crate) fn shm_unmap(&mut self, is_deleted: bool) -> Result<(), Code> {
        // SAFETY: the file is open, and its methods are of version 2 at least.
        self.shared(|methods, raw| unsafe { (methods.shm_unmap)(raw, is_deleted.into()) })
    }

    /// Calls what a file system of version 1 has not: without it there are no write-ahead logs.
    fn shared(&mut self, call: impl FnOnce(&RawMethods, *mut RawFile) -> c_int) -> Result<(), Code> {
        self.call(
            |methods, raw| if methods.version < 2 { vars::SQLITE_IOERR_SHMOPEN } else { call(methods, raw) },
        )
    }
}
