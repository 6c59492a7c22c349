//! Safe wrappers of SQLite's own functions and of its own file system, which handles databases and journals.
//!
//! The idea: a file of this extension wraps a file of SQLite's file system, in memory that this one initialised
//! ([`File`]). Operations that the extension changes go through the methods here. All others are passed on unchanged by
//! [`File::call`].

use crate::abi::{self, ApiRoutines, Code, RawFile, RawMethods, RawVfs};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// Oldest supported version of SQLite.
const VERSION_MIN: c_int = 3_037_000;

/// Functions that SQLite passes to an extension.
#[derive(Clone, Copy)]
pub(crate) struct Api(&'static ApiRoutines);

impl Api {
    /// Takes SQLite's table of functions; `None` if the pointer is null.
    ///
    /// # Safety
    ///
    /// `api` is null or points to that table, which lives until the process ends.
    pub(crate) unsafe fn new(api: *const ApiRoutines) -> Option<Api> {
        // SAFETY: as the caller promises.
        unsafe { api.as_ref() }.map(Api)
    }

    /// Returns an error if this SQLite is too old.
    pub(crate) fn check_version(self) -> Result<(), String> {
        // SAFETY: the function takes no arguments.
        let version = unsafe { (self.0.libversion_number)() };
        if version < VERSION_MIN {
            return Err(format!(
                "farpool: SQLite 3.37 or newer is needed; the version number of this one is {version}"
            ));
        }
        Ok(())
    }

    /// Writes a warning to SQLite's log.
    pub(crate) fn warn(self, line: &str) {
        let line = c_text(line);
        // SAFETY: the format takes one NUL-terminated string.
        unsafe { (self.0.log)(abi::WARNING, c"%s".as_ptr(), line.as_ptr()) };
    }

    /// Returns a copy of a text in memory that SQLite frees; null if there is no memory.
    pub(crate) fn text(self, text: &str) -> *mut c_char {
        let text = c_text(text);
        // SAFETY: the format takes one NUL-terminated string.
        unsafe { (self.0.mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Returns SQLite's default file system.
    pub(crate) fn default_vfs(self) -> Option<NonNull<RawVfs>> {
        // SAFETY: null asks for the default file system.
        NonNull::new(unsafe { (self.0.vfs_find)(ptr::null()) })
    }

    /// Makes a file system SQLite's default.
    pub(crate) fn register(self, vfs: &'static mut RawVfs) -> Result<(), Code> {
        // SAFETY: `vfs` is static, so it is never moved or freed.
        result(unsafe { (self.0.vfs_register)(vfs, 1) })
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// Name of a file as SQLite passes it to a file system: a path, followed in memory by URI parameters for
/// `sqlite3_uri_parameter`.
#[derive(Clone, Copy)]
pub(crate) struct Filename(NonNull<c_char>);

impl Filename {
    /// Takes a name; `None` if the pointer is null.
    ///
    /// # Safety
    ///
    /// SQLite made the name for `xOpen`, and keeps it until the file is closed. It is not used after that.
    pub(crate) unsafe fn new(name: *const c_char) -> Option<Filename> {
        NonNull::new(name.cast_mut()).map(Filename)
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        // SAFETY: `new` was promised a NUL-terminated string that lives as long as `self` is used.
        let path = unsafe { CStr::from_ptr(self.0.as_ptr()) };
        Path::new(OsStr::from_bytes(path.to_bytes()))
    }
}

/// File system that was SQLite's default before this extension.
pub(crate) struct Beneath(NonNull<RawVfs>);

// SAFETY: SQLite calls a file system from all threads at the same time, and never removes its default one.
unsafe impl Send for Beneath {}
// SAFETY: the same argument as for `Send`.
unsafe impl Sync for Beneath {}

fn result(code: c_int) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(code) }
}

impl Beneath {
    /// Takes a file system of SQLite.
    ///
    /// # Safety
    ///
    /// `vfs` stays valid and in place until the process ends.
    pub(crate) unsafe fn new(vfs: NonNull<RawVfs>) -> Beneath {
        Beneath(vfs)
    }

    /// Returns the pointer that SQLite passes to the functions of this file system.
    pub(crate) fn raw(&self) -> *mut RawVfs {
        self.0.as_ptr()
    }

    /// Returns the name of this file system.
    pub(crate) fn name(&self) -> String {
        // SAFETY: the file system and its name, a NUL-terminated string, live until the process ends.
        unsafe { CStr::from_ptr(self.0.as_ref().name) }.to_string_lossy().into_owned()
    }

    /// Opens a file. Also returns the flags with which it was opened.
    pub(crate) fn open(&self, name: Filename, flags: c_int) -> Result<(File, c_int), Code> {
        // SAFETY: the file system lives until the process ends.
        let vfs = unsafe { self.0.as_ref() };
        let mut file = File { memory: vec![0_u64; (vfs.file_bytes as usize).div_ceil(8)] };
        let mut opened = 0;
        // SAFETY: the file's memory is zeroed, aligned to 8 bytes and as large as the file system asks. The name is
        // SQLite's, and lives until the file is closed.
        let code = unsafe { (vfs.open)(self.raw(), name.0.as_ptr(), file.raw(), flags, &mut opened) };
        result(code).map(|()| (file, opened))
    }
}

/// Open file of SQLite's file system. Dropping it closes it.
pub(crate) struct File {
    /// Memory in which the file system keeps its file. It never moves.
    memory: Vec<u64>,
}

// SAFETY: SQLite may pass a file to another thread, but uses it in one thread at a time.
unsafe impl Send for File {}

impl Drop for File {
    fn drop(&mut self) {
        let raw = self.raw();
        // SAFETY: the memory was zeroed before `open`. If the file system set the methods, the file can be closed,
        // once.
        unsafe {
            if let Some(methods) = (*raw).methods.as_ref() {
                (methods.close)(raw);
            }
        }
    }
}

impl File {
    fn raw(&mut self) -> *mut RawFile {
        self.memory.as_mut_ptr().cast()
    }

    /// Calls a function of the file system on this file. Returns `INTERNAL` if the file has no methods.
    pub(crate) fn call(&mut self, call: impl FnOnce(&RawMethods, *mut RawFile) -> c_int) -> c_int {
        let raw = self.raw();
        // SAFETY: the file system initialised the memory, and its methods live until the process ends.
        match unsafe { (*raw).methods.as_ref() } {
            Some(methods) => call(methods, raw),
            None => abi::INTERNAL,
        }
    }

    /// Reports whether processes that have the file open can share memory. Without that there is no write-ahead log.
    pub(crate) fn has_shared_memory(&mut self) -> bool {
        self.call(|methods, _| (methods.version >= 2 && methods.shm_map.is_some()).into()) != 0
    }

    /// Reads into the buffer. Returns false if the file ended first; the rest of the buffer is then zeroed.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<bool, Code> {
        let (bytes, at) = (into.len() as c_int, offset as i64);
        // SAFETY: the buffer has this many bytes.
        let read =
            self.call(|methods, raw| unsafe { (methods.read)(raw, into.as_mut_ptr().cast(), bytes, at) });
        match read {
            abi::OK => Ok(true),
            abi::IOERR_SHORT_READ => Ok(false),
            code => Err(code),
        }
    }

    /// Writes all of the data.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Code> {
        let (bytes, at) = (from.len() as c_int, offset as i64);
        // SAFETY: the buffer has this many bytes.
        result(self.call(|methods, raw| unsafe { (methods.write)(raw, from.as_ptr().cast(), bytes, at) }))
    }

    /// Sets the length of the file.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), Code> {
        // SAFETY: the file is open.
        result(self.call(|methods, raw| unsafe { (methods.truncate)(raw, bytes as i64) }))
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        let mut bytes = 0;
        // SAFETY: the file is open.
        result(self.call(|methods, raw| unsafe { (methods.size)(raw, &mut bytes) }))?;
        u64::try_from(bytes).map_err(|_| abi::IOERR_FSTAT)
    }

    /// Hints that the file will grow to this many bytes.
    pub(crate) fn hint_size(&mut self, mut bytes: i64) -> Result<(), Code> {
        // SAFETY: the argument of this operation is an i64.
        result(unsafe { self.control(abi::FCNTL_SIZE_HINT, (&raw mut bytes).cast()) })
    }

    /// Reports whether the file was renamed, replaced or deleted since it was opened.
    pub(crate) fn has_moved(&mut self) -> Result<bool, Code> {
        let mut moved: c_int = 0;
        // SAFETY: the argument of this operation is an int.
        match unsafe { self.control(abi::FCNTL_HAS_MOVED, (&raw mut moved).cast()) } {
            abi::OK => Ok(moved != 0),
            abi::NOTFOUND => Ok(false),
            code => Err(code),
        }
    }

    /// Passes a call of `sqlite3_file_control` on.
    ///
    /// # Safety
    ///
    /// `argument` is of the type that `operation` takes.
    pub(crate) unsafe fn control(&mut self, operation: c_int, argument: *mut c_void) -> Code {
        // SAFETY: the caller promises the argument, and the file is open.
        self.call(|methods, raw| unsafe { (methods.control)(raw, operation, argument) })
    }
}
