//! The part of SQLite's C interface that the extension uses: the functions that SQLite passes to an extension, and the
//! two tables of functions that make a virtual file system (sqlite.org/c3ref/vfs.html and
//! sqlite.org/c3ref/io_methods.html).
//!
//! SQLite never changes these layouts; it only appends fields.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// Result code of SQLite. A code in an `Err` is never [`OK`].
pub(crate) type Code = c_int;

pub(crate) const OK: Code = 0;
pub(crate) const ERROR: Code = 1;
pub(crate) const INTERNAL: Code = 2;
pub(crate) const IOERR: Code = 10;
pub(crate) const NOTFOUND: Code = 12;
pub(crate) const FULL: Code = 13;
pub(crate) const CANTOPEN: Code = 14;
pub(crate) const WARNING: Code = 28;
pub(crate) const OK_LOAD_PERMANENTLY: Code = 1 << 8;
pub(crate) const IOERR_READ: Code = IOERR | 1 << 8;
pub(crate) const IOERR_SHORT_READ: Code = IOERR | 2 << 8;
pub(crate) const IOERR_WRITE: Code = IOERR | 3 << 8;
pub(crate) const IOERR_TRUNCATE: Code = IOERR | 6 << 8;
pub(crate) const IOERR_FSTAT: Code = IOERR | 7 << 8;
pub(crate) const IOERR_SHMOPEN: Code = IOERR | 18 << 8;

pub(crate) const OPEN_MAIN_DB: c_int = 0x100;
/// Flags of temporary files: temporary databases, materialised results of queries, and the journals of both and of
/// statements. SQLite deletes all of them when it closes them.
pub(crate) const OPEN_TEMPORARY: c_int = 0x200 | 0x400 | 0x1000 | 0x2000;

pub(crate) const FCNTL_LOCKSTATE: c_int = 1;
pub(crate) const FCNTL_SIZE_HINT: c_int = 5;
pub(crate) const FCNTL_VFSNAME: c_int = 12;
pub(crate) const FCNTL_PRAGMA: c_int = 14;
pub(crate) const FCNTL_HAS_MOVED: c_int = 20;
pub(crate) const FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
pub(crate) const FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;

pub(crate) const LOCK_NONE: c_int = 0;
pub(crate) const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;
pub(crate) const IOCAP_BATCH_ATOMIC: c_int = 0x4000;

/// Placeholder, of the size of a pointer, for a function that the extension does not use.
type Unused = usize;

/// `sqlite3_api_routines` (sqlite3ext.h), up to the last function that the extension uses.
#[repr(C)]
pub(crate) struct ApiRoutines {
    before_libversion_number: [Unused; 67],
    pub(crate) libversion_number: unsafe extern "C" fn() -> c_int,
    before_mprintf: [Unused; 1],
    pub(crate) mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
    before_vfs_find: [Unused; 71],
    pub(crate) vfs_find: unsafe extern "C" fn(*const c_char) -> *mut RawVfs,
    pub(crate) vfs_register: unsafe extern "C" fn(*mut RawVfs, c_int) -> c_int,
    before_log: [Unused; 24],
    pub(crate) log: unsafe extern "C" fn(c_int, *const c_char, ...),
}

const POINTER_BYTES: usize = size_of::<*const c_void>();
const _: () = assert!(offset_of!(ApiRoutines, libversion_number) == 67 * POINTER_BYTES);
const _: () = assert!(offset_of!(ApiRoutines, mprintf) == 69 * POINTER_BYTES);
const _: () = assert!(offset_of!(ApiRoutines, vfs_find) == 141 * POINTER_BYTES);
const _: () = assert!(offset_of!(ApiRoutines, log) == 167 * POINTER_BYTES);

/// `sqlite3_syscall_ptr`: a function of any type, such as a system call or a symbol of a library. `None` is null.
pub(crate) type Function = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`: a file system. If `version` is less than 3, the table in memory ends before the fields that were
/// added later, so they must not be read.
#[repr(C)]
pub(crate) struct RawVfs {
    pub(crate) version: c_int,
    pub(crate) file_bytes: c_int,
    pub(crate) path_bytes_max: c_int,
    pub(crate) next: *mut RawVfs,
    pub(crate) name: *const c_char,
    pub(crate) data: *mut c_void,
    pub(crate) open:
        unsafe extern "C" fn(*mut RawVfs, *const c_char, *mut RawFile, c_int, *mut c_int) -> c_int,
    pub(crate) delete: unsafe extern "C" fn(*mut RawVfs, *const c_char, c_int) -> c_int,
    pub(crate) access: unsafe extern "C" fn(*mut RawVfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(crate) full_path: unsafe extern "C" fn(*mut RawVfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(crate) dl_open: Option<unsafe extern "C" fn(*mut RawVfs, *const c_char) -> *mut c_void>,
    pub(crate) dl_error: Option<unsafe extern "C" fn(*mut RawVfs, c_int, *mut c_char)>,
    pub(crate) dl_sym: Option<unsafe extern "C" fn(*mut RawVfs, *mut c_void, *const c_char) -> Function>,
    pub(crate) dl_close: Option<unsafe extern "C" fn(*mut RawVfs, *mut c_void)>,
    pub(crate) randomness: Option<unsafe extern "C" fn(*mut RawVfs, c_int, *mut c_char) -> c_int>,
    pub(crate) sleep: Option<unsafe extern "C" fn(*mut RawVfs, c_int) -> c_int>,
    pub(crate) current_time: Option<unsafe extern "C" fn(*mut RawVfs, *mut f64) -> c_int>,
    pub(crate) last_error: Option<unsafe extern "C" fn(*mut RawVfs, c_int, *mut c_char) -> c_int>,
    // Fields since version 2.
    pub(crate) current_time_ms: Option<unsafe extern "C" fn(*mut RawVfs, *mut i64) -> c_int>,
    // Fields since version 3.
    pub(crate) set_system_call: Option<unsafe extern "C" fn(*mut RawVfs, *const c_char, Function) -> c_int>,
    pub(crate) system_call: Option<unsafe extern "C" fn(*mut RawVfs, *const c_char) -> Function>,
    pub(crate) next_system_call: Option<unsafe extern "C" fn(*mut RawVfs, *const c_char) -> *const c_char>,
}

/// `sqlite3_file`: an open file. The file system's own data about the file follows it in memory.
#[repr(C)]
pub(crate) struct RawFile {
    pub(crate) methods: *const RawMethods,
}

/// `sqlite3_io_methods`: the functions for an open file. If `version` is less than 3, the table in memory ends before
/// the fields that were added later, so they must not be read.
#[repr(C)]
pub(crate) struct RawMethods {
    pub(crate) version: c_int,
    pub(crate) close: unsafe extern "C" fn(*mut RawFile) -> c_int,
    pub(crate) read: unsafe extern "C" fn(*mut RawFile, *mut c_void, c_int, i64) -> c_int,
    pub(crate) write: unsafe extern "C" fn(*mut RawFile, *const c_void, c_int, i64) -> c_int,
    pub(crate) truncate: unsafe extern "C" fn(*mut RawFile, i64) -> c_int,
    pub(crate) sync: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
    pub(crate) size: unsafe extern "C" fn(*mut RawFile, *mut i64) -> c_int,
    pub(crate) lock: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
    pub(crate) unlock: unsafe extern "C" fn(*mut RawFile, c_int) -> c_int,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut RawFile, *mut c_int) -> c_int,
    pub(crate) control: unsafe extern "C" fn(*mut RawFile, c_int, *mut c_void) -> c_int,
    pub(crate) sector_size: unsafe extern "C" fn(*mut RawFile) -> c_int,
    pub(crate) characteristics: unsafe extern "C" fn(*mut RawFile) -> c_int,
    // Fields since version 2. They are `None` where the file system's locks cannot protect shared memory.
    pub(crate) shm_map:
        Option<unsafe extern "C" fn(*mut RawFile, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) shm_lock: Option<unsafe extern "C" fn(*mut RawFile, c_int, c_int, c_int) -> c_int>,
    pub(crate) shm_barrier: Option<unsafe extern "C" fn(*mut RawFile)>,
    pub(crate) shm_unmap: Option<unsafe extern "C" fn(*mut RawFile, c_int) -> c_int>,
    // Fields since version 3.
    pub(crate) fetch: Option<unsafe extern "C" fn(*mut RawFile, i64, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) unfetch: Option<unsafe extern "C" fn(*mut RawFile, i64, *mut c_void) -> c_int>,
}
