//! Safe wrappers of SQLite's own functions, and of the file system that is SQLite's default. The latter stores
//! databases and journals.
//!
//! The idea: the extension has a file system of its own, whose files wrap files of SQLite's file system. [`File`] is
//! such a wrapped file, in memory that SQLite's file system initialised. Operations that the extension changes go
//! through the methods here. All others are passed on unchanged by [`File::call`].

use crate::abi::{self, ApiRoutines, Code, RawFile, RawMethods, RawVfs};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// Oldest supported version of SQLite: 3.37.0.
const VERSION_MIN: c_int = 3_037_000;

/// Functions that SQLite passes to an extension.
#[derive(Clone, Copy)]
pub(crate) struct Api(&'static ApiRoutines);

impl Api {
    /// Takes SQLite's table of functions. `None` if the pointer is null.
    ///
    /// # Safety
    ///
    /// `api` is null or points to that table, which lives until the process ends.
    pub(crate) unsafe fn new(api: *const ApiRoutines) -> Option<Api> {
        // SAFETY: the caller promises that `api` is null or points to the table, which lives until the process ends.
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

    /// Registers a file system and makes it SQLite's default.
    pub(crate) fn register(self, vfs: &'static mut RawVfs) -> Result<(), Code> {
        // SAFETY: SQLite keeps the pointer. `vfs` is static, so it is never moved or freed.
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
    /// Takes the name of a file. `None` if the pointer is null.
    ///
    /// # Safety
    ///
    /// `name` is null, or SQLite passed it to the function `open` of a file system. SQLite keeps such a name until the
    /// file is closed. The caller does not use the result after that.
    pub(crate) unsafe fn new(name: *const c_char) -> Option<Filename> {
        NonNull::new(name.cast_mut()).map(Filename)
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        // SAFETY: the caller of `new` has promised a name by SQLite, which is NUL-terminated, and that `self` is only
        // used while SQLite keeps it.
        let path = unsafe { CStr::from_ptr(self.0.as_ptr()) };
        Path::new(OsStr::from_bytes(path.to_bytes()))
    }
}

/// File system that was SQLite's default before this extension was loaded.
pub(crate) struct Beneath(NonNull<RawVfs>);

// SAFETY: SQLite itself calls a file system from all threads at the same time, so it may be used from any thread. The
// pointer stays valid, as the caller of `Beneath::new` has promised.
unsafe impl Send for Beneath {}
// SAFETY: the reasons given for `Send` above.
unsafe impl Sync for Beneath {}

fn result(code: c_int) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(code) }
}

impl Beneath {
    /// Wraps a file system of SQLite.
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
        // SAFETY: the caller of `new` has promised that the file system lives until the process ends. SQLite requires a
        // name that is a NUL-terminated string and lives as long.
        unsafe { CStr::from_ptr(self.0.as_ref().name) }.to_string_lossy().into_owned()
    }

    /// Opens a file. Also returns the flags with which it was opened.
    pub(crate) fn open(&self, name: Filename, flags: c_int) -> Result<(File, c_int), Code> {
        // SAFETY: the caller of `new` has promised that the file system lives until the process ends.
        let vfs = unsafe { self.0.as_ref() };
        let mut file = File { memory: vec![0_u64; (vfs.file_bytes as usize).div_ceil(8)] };
        let mut opened = 0;
        // SAFETY: the file's memory is zeroed, aligned to 8 bytes and as large as the file system asks (`file_bytes`).
        // The caller of `Filename::new` has promised a name by SQLite that lives until the file is closed.
        let code = unsafe { (vfs.open)(self.raw(), name.0.as_ptr(), file.raw(), flags, &mut opened) };
        result(code).map(|()| (file, opened))
    }
}

/// Open file of SQLite's file system. Dropping it closes it.
pub(crate) struct File {
    /// Memory in which SQLite's file system keeps the state of the file. It is on the heap and never moves.
    memory: Vec<u64>,
}

// SAFETY: SQLite requires that a file of its file system may be used in any thread, by one thread at a time. All
// methods of `File` take `&mut self`, so two threads never use it at the same time.
unsafe impl Send for File {}

impl Drop for File {
    fn drop(&mut self) {
        let raw = self.raw();
        // SAFETY: `Beneath::open` zeroed the memory, so the pointer to the methods is null unless the file system has
        // opened the file. Then the file must be closed once, which is done here only.
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

    /// Passes this file and the table of its methods to `call`. Returns the result of `call`, or `INTERNAL` if the file
    /// has no methods.
    pub(crate) fn call(&mut self, call: impl FnOnce(&RawMethods, *mut RawFile) -> c_int) -> c_int {
        let raw = self.raw();
        // SAFETY: `Beneath::open` zeroed the memory, and SQLite's file system then initialised it. The pointer to the
        // methods is null, or points to a table of the file system, which lives until the process ends.
        match unsafe { (*raw).methods.as_ref() } {
            Some(methods) => call(methods, raw),
            None => abi::INTERNAL,
        }
    }

    /// Reports whether processes that have the file open can share memory through it. Without that, SQLite has no
    /// write-ahead log for the database.
    pub(crate) fn has_shared_memory(&mut self) -> bool {
        self.call(|methods, _| (methods.version >= 2 && methods.shm_map.is_some()).into()) != 0
    }

    /// Reads into the buffer. Returns false if the file ended first; the rest of the buffer is then zeroed.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<bool, Code> {
        let (bytes, at) = (into.len() as c_int, offset as i64);
        // SAFETY: `call` passes an open file, and the buffer has this many bytes.
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
        // SAFETY: `call` passes an open file, and the buffer has this many bytes.
        result(self.call(|methods, raw| unsafe { (methods.write)(raw, from.as_ptr().cast(), bytes, at) }))
    }

    /// Sets the length of the file.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), Code> {
        // SAFETY: `call` passes an open file.
        result(self.call(|methods, raw| unsafe { (methods.truncate)(raw, bytes as i64) }))
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        let mut bytes = 0;
        // SAFETY: `call` passes an open file.
        result(self.call(|methods, raw| unsafe { (methods.size)(raw, &mut bytes) }))?;
        u64::try_from(bytes).map_err(|_| abi::IOERR_FSTAT)
    }

    /// Hints that the file will grow to this many bytes.
    pub(crate) fn hint_size(&mut self, mut bytes: i64) -> Result<(), Code> {
        // SAFETY: SQLite documents an `sqlite3_int64` as the argument of this operation; `bytes` is an `i64`.
        result(unsafe { self.control(abi::FCNTL_SIZE_HINT, (&raw mut bytes).cast()) })
    }

    /// Reports whether the file was renamed, replaced or deleted since it was opened.
    pub(crate) fn has_moved(&mut self) -> Result<bool, Code> {
        let mut moved: c_int = 0;
        // SAFETY: SQLite documents an `int` as the argument of this operation; `moved` is a `c_int`.
        match unsafe { self.control(abi::FCNTL_HAS_MOVED, (&raw mut moved).cast()) } {
            abi::OK => Ok(moved != 0),
            abi::NOTFOUND => Ok(false),
            code => Err(code),
        }
    }

    /// Passes a call of `sqlite3_file_control` on to SQLite's file system.
    ///
    /// # Safety
    ///
    /// `argument` points to a value of the type that SQLite documents for `operation`.
    pub(crate) unsafe fn control(&mut self, operation: c_int, argument: *mut c_void) -> Code {
        // SAFETY: the caller promises the argument. `call` passes an open file.
        self.call(|methods, raw| unsafe { (methods.control)(raw, operation, argument) })
    }
}
