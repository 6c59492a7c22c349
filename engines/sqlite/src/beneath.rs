//! SQLite's own functions, and its own file system, which does all that is done to databases and their journals.
//!
//! The idea: a file of ours has one of SQLite's own behind it, in memory that SQLite's file system manages ([`File`]).
//! What is done to it in a way of ours goes through the methods here; everything else is passed on as it came, by
//! [`File::call`].

use crate::abi::{self, ApiRoutines, Code, RawFile, RawMethods, RawVfs};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// The first version of SQLite with which the extension works.
const VERSION_MIN: c_int = 3_037_000;

/// The functions that SQLite hands to an extension.
#[derive(Clone, Copy)]
pub(crate) struct Api(&'static ApiRoutines);

impl Api {
    /// Takes SQLite's table of functions; nothing if it is null.
    ///
    /// # Safety
    ///
    /// `api` is null or that table, which is there until the process ends.
    pub(crate) unsafe fn new(api: *const ApiRoutines) -> Option<Api> {
        // SAFETY: as the caller promises.
        unsafe { api.as_ref() }.map(Api)
    }

    /// Refuses a SQLite that is too old.
    pub(crate) fn check_version(self) -> Result<(), String> {
        // SAFETY: it takes nothing.
        let version = unsafe { (self.0.libversion_number)() };
        if version < VERSION_MIN {
            return Err(format!("farpool: this SQLite is older than 3.37: its version number is {version}"));
        }
        Ok(())
    }

    /// Writes a warning to SQLite's log.
    pub(crate) fn warn(self, line: &str) {
        let line = c_text(line);
        // SAFETY: the format takes one string that ends.
        unsafe { (self.0.log)(abi::WARNING, c"%s".as_ptr(), line.as_ptr()) };
    }

    /// Returns a copy of a text that SQLite frees, or null if there is no memory.
    pub(crate) fn text(self, text: &str) -> *mut c_char {
        let text = c_text(text);
        // SAFETY: the format takes one string that ends.
        unsafe { (self.0.mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Returns SQLite's default file system.
    pub(crate) fn default_vfs(self) -> Option<NonNull<RawVfs>> {
        // SAFETY: null asks for the default one.
        NonNull::new(unsafe { (self.0.vfs_find)(ptr::null()) })
    }

    /// Makes a file system SQLite's default one.
    pub(crate) fn register(self, vfs: &'static mut RawVfs) -> Result<(), Code> {
        // SAFETY: it stays where it is.
        result(unsafe { (self.0.vfs_register)(vfs, 1) })
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// The name of a file as SQLite hands it to a file system: the path, and behind it what sqlite3_uri_parameter finds.
#[derive(Clone, Copy)]
pub(crate) struct Filename(NonNull<c_char>);

impl Filename {
    /// Takes a name; nothing if it is null.
    ///
    /// # Safety
    ///
    /// SQLite made the name for `xOpen`, and keeps it for as long as it is used: until the file is closed.
    pub(crate) unsafe fn new(name: *const c_char) -> Option<Filename> {
        NonNull::new(name.cast_mut()).map(Filename)
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        // SAFETY: a string that ends, which `new` was promised.
        let path = unsafe { CStr::from_ptr(self.0.as_ptr()) };
        Path::new(OsStr::from_bytes(path.to_bytes()))
    }
}

/// The file system that was SQLite's default.
pub(crate) struct Beneath(NonNull<RawVfs>);

// SAFETY: SQLite calls a file system from all threads at once, and never takes its default one away.
unsafe impl Send for Beneath {}
// SAFETY: as above.
unsafe impl Sync for Beneath {}

fn result(code: c_int) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(code) }
}

impl Beneath {
    /// Takes a file system that SQLite has.
    ///
    /// # Safety
    ///
    /// It stays where it is until the process ends.
    pub(crate) unsafe fn new(vfs: NonNull<RawVfs>) -> Beneath {
        Beneath(vfs)
    }

    /// Returns what SQLite calls it by.
    pub(crate) fn raw(&self) -> *mut RawVfs {
        self.0.as_ptr()
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> String {
        // SAFETY: it lives as long as the process, and so does its name, a string that ends.
        unsafe { CStr::from_ptr(self.0.as_ref().name) }.to_string_lossy().into_owned()
    }

    /// Opens a file. Says as well with which flags it was opened.
    pub(crate) fn open(&self, name: Filename, flags: c_int) -> Result<(File, c_int), Code> {
        // SAFETY: it lives as long as the process.
        let vfs = unsafe { self.0.as_ref() };
        let mut file = File { memory: vec![0_u64; (vfs.file_bytes as usize).div_ceil(8)] };
        let mut opened = 0;
        // SAFETY: the file's memory is zeroed, aligned to 8 bytes and as large as the file system asks; the name is
        // SQLite's, and lives until the file is closed.
        let code = unsafe { (vfs.open)(self.raw(), name.0.as_ptr(), file.raw(), flags, &mut opened) };
        result(code).map(|()| (file, opened))
    }
}

/// An open file. Dropped, it is closed.
pub(crate) struct File {
    /// Memory that the file system beneath has made a file of. It never moves.
    memory: Vec<u64>,
}

// SAFETY: SQLite hands a file from thread to thread, and uses it in one at a time.
unsafe impl Send for File {}

impl Drop for File {
    fn drop(&mut self) {
        let raw = self.raw();
        // SAFETY: the memory was zeroed, and set by the file system if it opened the file: then it can be closed, once.
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

    /// Has the file system beneath do something to the file.
    pub(crate) fn call(&mut self, call: impl FnOnce(&RawMethods, *mut RawFile) -> c_int) -> c_int {
        let raw = self.raw();
        // SAFETY: the memory is what the file system made it, and its methods live as long as the process.
        match unsafe { (*raw).methods.as_ref() } {
            Some(methods) => call(methods, raw),
            None => abi::INTERNAL,
        }
    }

    /// Says whether those who have the file open can share memory, without which there are no write-ahead logs.
    pub(crate) fn has_shared_memory(&mut self) -> bool {
        self.call(|methods, _| (methods.version >= 2 && methods.shm_map.is_some()).into()) != 0
    }

    /// Says whether the buffer was filled: if the file ends before, the rest is zeroed.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<bool, Code> {
        let (bytes, at) = (into.len() as c_int, offset as i64);
        // SAFETY: a buffer of that many bytes.
        let read =
            self.call(|methods, raw| unsafe { (methods.read)(raw, into.as_mut_ptr().cast(), bytes, at) });
        match read {
            abi::OK => Ok(true),
            abi::IOERR_SHORT_READ => Ok(false),
            code => Err(code),
        }
    }

    /// Writes all of it.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Code> {
        let (bytes, at) = (from.len() as c_int, offset as i64);
        // SAFETY: a buffer of that many bytes.
        result(self.call(|methods, raw| unsafe { (methods.write)(raw, from.as_ptr().cast(), bytes, at) }))
    }

    /// Gives it another length.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), Code> {
        // SAFETY: the file is open.
        result(self.call(|methods, raw| unsafe { (methods.truncate)(raw, bytes as i64) }))
    }

    /// Returns its length, in bytes.
    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        let mut bytes = 0;
        // SAFETY: the file is open.
        result(self.call(|methods, raw| unsafe { (methods.size)(raw, &mut bytes) }))?;
        u64::try_from(bytes).map_err(|_| abi::IOERR_FSTAT)
    }

    /// Hints that the file will grow to so many bytes.
    pub(crate) fn hint_size(&mut self, mut bytes: i64) -> Result<(), Code> {
        // SAFETY: this hint is an i64.
        result(unsafe { self.control(abi::FCNTL_SIZE_HINT, (&raw mut bytes).cast()) })
    }

    /// Says whether its name leads to another file by now, or to none.
    pub(crate) fn has_moved(&mut self) -> Result<bool, Code> {
        let mut moved: c_int = 0;
        // SAFETY: the answer to this question is an int.
        match unsafe { self.control(abi::FCNTL_HAS_MOVED, (&raw mut moved).cast()) } {
            abi::OK => Ok(moved != 0),
            abi::NOTFOUND => Ok(false),
            code => Err(code),
        }
    }

    /// Passes on what `sqlite3_file_control` was called with.
    ///
    /// # Safety
    ///
    /// `argument` is what `operation` takes.
    pub(crate) unsafe fn control(&mut self, operation: c_int, argument: *mut c_void) -> Code {
        // SAFETY: as the caller promises; the file is open.
        self.call(|methods, raw| unsafe { (methods.control)(raw, operation, argument) })
    }
}
