//! The functions of this extension that SQLite calls. They are in two tables: one for the virtual file system, and one
//! for open files.
//!
//! The idea: each function finds the file system or file that it was called for, converts the arguments, and calls a
//! method in `vfs`. Operations that the extension does not change go, with the same arguments, to the file system that
//! was SQLite's default.
//!
//! Never in this module: a decision where something is stored.

use crate::abi::{self, Function, RawFile, RawMethods, RawVfs};
use crate::beneath::{Api, Filename};
use crate::vfs::{FarVfs, Handle};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;

/// Name under which the file system is registered with SQLite.
const NAME: &CStr = c"farpool";

/// Sector size that is reported for temporary files in far memory, in bytes. SQLite's own file system reports the same.
const SECTOR_BYTES: c_int = 4096;

/// Open file, in memory that SQLite allocated for it.
#[repr(C)]
struct OpenFile {
    methods: *const RawMethods,
    vfs: &'static FarVfs,
    handle: Handle,
}

// SQLite aligns the memory of a file to 8 bytes only.
const _: () = assert!(align_of::<OpenFile>() <= 8);
// SQLite calls a file system from all threads at the same time, and may pass a file to another thread.
const _: () = {
    const fn is_shared<T: Sync>() {}
    const fn is_handed_over<T: Send>() {}
    is_shared::<FarVfs>();
    is_handed_over::<Handle>();
};

const fn methods(version: c_int, has_shared_memory: bool) -> RawMethods {
    RawMethods {
        version,
        close,
        read,
        write,
        truncate,
        sync,
        size,
        lock,
        unlock,
        check_reserved_lock,
        control,
        sector_size,
        characteristics,
        shm_map: if has_shared_memory { Some(shm_map) } else { None },
        shm_lock: if has_shared_memory { Some(shm_lock) } else { None },
        shm_barrier: if has_shared_memory { Some(shm_barrier) } else { None },
        shm_unmap: if has_shared_memory { Some(shm_unmap) } else { None },
        fetch: Some(fetch),
        unfetch: Some(unfetch),
    }
}

/// Methods of files through which processes can share memory.
static SHARING: RawMethods = methods(3, true);
/// Methods of all other files. SQLite uses a write-ahead log only if the table has functions for shared memory.
static NOT_SHARING: RawMethods = methods(3, false);

/// Registers the file system and makes it SQLite's default, until the process ends.
pub(crate) fn register(api: Api, far: FarVfs) -> Result<(), abi::Code> {
    let far: &'static FarVfs = Box::leak(Box::new(far));
    // SAFETY: the caller of `Beneath::new` has promised that the file system beneath lives until the process ends.
    let beneath = unsafe { &*far.beneath().raw() };
    let is_version = |version| beneath.version >= version;
    let mut raw = RawVfs {
        version: beneath.version.min(3),
        file_bytes: size_of::<OpenFile>() as c_int,
        path_bytes_max: beneath.path_bytes_max,
        next: ptr::null_mut(),
        name: NAME.as_ptr(),
        data: ptr::from_ref(far).cast_mut().cast(),
        open,
        delete,
        access,
        full_path,
        dl_open: beneath.dl_open.and(Some(dl_open)),
        dl_error: beneath.dl_error.and(Some(dl_error)),
        dl_sym: beneath.dl_sym.and(Some(dl_sym)),
        dl_close: beneath.dl_close.and(Some(dl_close)),
        randomness: beneath.randomness.and(Some(randomness)),
        sleep: beneath.sleep.and(Some(sleep)),
        current_time: beneath.current_time.and(Some(current_time)),
        last_error: beneath.last_error.and(Some(last_error)),
        current_time_ms: None,
        set_system_call: None,
        system_call: None,
        next_system_call: None,
    };
    if is_version(2) {
        raw.current_time_ms = beneath.current_time_ms.and(Some(current_time_ms));
    }
    if is_version(3) {
        raw.set_system_call = beneath.set_system_call.and(Some(set_system_call));
        raw.system_call = beneath.system_call.and(Some(system_call));
        raw.next_system_call = beneath.next_system_call.and(Some(next_system_call));
    }
    api.register(Box::leak(Box::new(raw)))
}

/// Returns the file system to which SQLite's pointer belongs.
///
/// # Safety
///
/// `vfs` is the table that [`register`] made.
unsafe fn far(vfs: *mut RawVfs) -> &'static FarVfs {
    // SAFETY: the caller promises the table of `register`, whose `data` points to a `FarVfs`. `register` leaked both,
    // so neither is ever freed.
    unsafe { &*(*vfs).data.cast::<FarVfs>() }
}

/// Returns the open file to which SQLite's pointer belongs.
///
/// # Safety
///
/// `file` was opened by [`open`], and no other reference to it exists.
unsafe fn opened<'a>(file: *mut RawFile) -> &'a mut OpenFile {
    // SAFETY: the caller promises that `open` opened the file and that no other reference to it exists.
    unsafe { &mut *file.cast::<OpenFile>() }
}

/// Passes the file in SQLite's own file system to `call` and returns its result. Returns `of_temporary` if the file is
/// a temporary one in far memory.
///
/// # Safety
///
/// `file` was opened by [`open`], and no other reference to it exists.
unsafe fn pass(
    file: *mut RawFile,
    of_temporary: c_int,
    call: impl FnOnce(&RawMethods, *mut RawFile) -> c_int,
) -> c_int {
    // SAFETY: the caller promises that `open` opened the file and that no other reference to it exists.
    let file = unsafe { opened(file) };
    file.handle.own().map_or(of_temporary, |own| own.call(call))
}

fn code(result: Result<(), abi::Code>) -> c_int {
    result.err().unwrap_or(abi::OK)
}

// SAFETY of all functions below: SQLite calls them as documented for `sqlite3_vfs` and `sqlite3_io_methods`, with this
// file system and its files, and uses each file in one thread at a time.

unsafe extern "C" fn open(
    vfs: *mut RawVfs,
    name: *const c_char,
    file: *mut RawFile,
    flags: c_int,
    as_opened: *mut c_int,
) -> c_int {
    // SAFETY: SQLite provides memory for an `OpenFile` at `file`. SQLite closes every file that has methods, so they
    // are null until the file is open.
    unsafe { (*file).methods = ptr::null() };
    // SAFETY: SQLite passes the table of this file system, and a name that it made for this file, or null.
    let (vfs, name) = unsafe { (far(vfs), Filename::new(name)) };
    let (mut handle, flags) = match vfs.open(name, flags) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let is_sharing = handle.own().is_some_and(|own| own.has_shared_memory());
    let methods = if is_sharing { &SHARING } else { &NOT_SHARING };
    // SAFETY: SQLite has allocated as many bytes at `file` as `register` asked for: an `OpenFile`. `as_opened` is null
    // or may be written.
    unsafe {
        ptr::write(file.cast::<OpenFile>(), OpenFile { methods, vfs, handle });
        if let Some(as_opened) = as_opened.as_mut() {
            *as_opened = flags;
        }
    }
    abi::OK
}

unsafe extern "C" fn close(file: *mut RawFile) -> c_int {
    // SAFETY: SQLite passes an open file, closes it once, and does not use it afterwards.
    unsafe {
        drop(ptr::read(file.cast::<OpenFile>()));
        (*file).methods = ptr::null();
    }
    abi::OK
}

unsafe extern "C" fn read(file: *mut RawFile, into: *mut c_void, bytes: c_int, offset: i64) -> c_int {
    let (Ok(bytes), Ok(offset)) = (usize::try_from(bytes), u64::try_from(offset)) else {
        return abi::IOERR_READ;
    };
    // SAFETY: SQLite passes an open file of this file system, and a buffer of this many bytes.
    let (file, into) = unsafe { (opened(file), slice::from_raw_parts_mut(into.cast::<u8>(), bytes)) };
    match file.handle.read(offset, into) {
        Ok(true) => abi::OK,
        Ok(false) => abi::IOERR_SHORT_READ,
        Err(code) => code,
    }
}

unsafe extern "C" fn write(file: *mut RawFile, from: *const c_void, bytes: c_int, offset: i64) -> c_int {
    let (Ok(bytes), Ok(offset)) = (usize::try_from(bytes), u64::try_from(offset)) else {
        return abi::IOERR_WRITE;
    };
    // SAFETY: SQLite passes an open file of this file system, and a buffer of this many bytes.
    let (file, from) = unsafe { (opened(file), slice::from_raw_parts(from.cast::<u8>(), bytes)) };
    code(file.handle.write(offset, from))
}

unsafe extern "C" fn truncate(file: *mut RawFile, bytes: i64) -> c_int {
    let Ok(bytes) = u64::try_from(bytes) else { return abi::IOERR_TRUNCATE };
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    code(unsafe { opened(file) }.handle.truncate(bytes))
}

unsafe extern "C" fn sync(file: *mut RawFile, flags: c_int) -> c_int {
    // A temporary file is not synchronised, because it need not survive the process.
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe { pass(file, abi::OK, |methods, raw| (methods.sync)(raw, flags)) }
}

unsafe extern "C" fn size(file: *mut RawFile, bytes: *mut i64) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    match unsafe { opened(file) }.handle.size() {
        Ok(size) => {
            // SAFETY: SQLite passes a pointer that may be written.
            unsafe { *bytes = size as i64 };
            abi::OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn lock(file: *mut RawFile, level: c_int) -> c_int {
    // A temporary file needs no lock, because no other process or connection can open it.
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe { pass(file, abi::OK, |methods, raw| (methods.lock)(raw, level)) }
}

unsafe extern "C" fn unlock(file: *mut RawFile, level: c_int) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe { pass(file, abi::OK, |methods, raw| (methods.unlock)(raw, level)) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut RawFile, is_reserved: *mut c_int) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and an `is_reserved` that may be written.
    unsafe {
        *is_reserved = 0;
        pass(file, abi::OK, |methods, raw| (methods.check_reserved_lock)(raw, is_reserved))
    }
}

unsafe extern "C" fn control(file: *mut RawFile, operation: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    let OpenFile { vfs, handle, .. } = unsafe { opened(file) };
    match operation {
        abi::FCNTL_PRAGMA => {
            let strings = argument.cast::<*mut c_char>();
            // SAFETY: SQLite passes an array of three strings: a place for the answer, the pragma's name, and the
            // pragma's argument or null.
            let name = unsafe { CStr::from_ptr(*strings.add(1)) };
            if let Some(answer) = name.to_str().ok().and_then(|name| vfs.pragma(name)) {
                // SAFETY: the first string of the same array may be set. SQLite frees it.
                unsafe { *strings = vfs.text(&answer) };
                return abi::OK;
            }
        }
        abi::FCNTL_VFSNAME => {
            // SAFETY: for this operation, SQLite passes a place for a text, which it frees.
            unsafe { *argument.cast::<*mut c_char>() = vfs.text(&vfs.full_name()) };
            return abi::OK;
        }
        abi::FCNTL_SIZE_HINT => {
            // SAFETY: for this operation, SQLite passes a pointer to an `sqlite3_int64`.
            return code(handle.hint_size(unsafe { *argument.cast::<i64>() }));
        }
        // SQLite is told that a group of writes cannot be atomic: if SQLite's file system undid such writes, they would
        // stay in the cache.
        abi::FCNTL_BEGIN_ATOMIC_WRITE..=abi::FCNTL_ROLLBACK_ATOMIC_WRITE => return abi::NOTFOUND,
        _ => {}
    }
    match handle {
        // SAFETY: SQLite passed this argument for this operation.
        Handle::Own { file, .. } => unsafe { file.control(operation, argument) },
        Handle::Temporary(_) if operation == abi::FCNTL_LOCKSTATE => {
            // SAFETY: for this operation, SQLite passes a pointer to an `int`.
            unsafe { *argument.cast::<c_int>() = abi::LOCK_NONE };
            abi::OK
        }
        Handle::Temporary(_) => abi::NOTFOUND,
    }
}

unsafe extern "C" fn sector_size(file: *mut RawFile) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe { pass(file, SECTOR_BYTES, |methods, raw| (methods.sector_size)(raw)) }
}

unsafe extern "C" fn characteristics(file: *mut RawFile) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    let flags =
        unsafe { pass(file, abi::IOCAP_POWERSAFE_OVERWRITE, |methods, raw| (methods.characteristics)(raw)) };
    flags & !abi::IOCAP_BATCH_ATOMIC
}

unsafe extern "C" fn shm_map(
    file: *mut RawFile,
    region: c_int,
    bytes: c_int,
    is_made: c_int,
    at: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and an `at` that may be written.
    unsafe {
        pass(file, abi::IOERR_SHMOPEN, |methods, raw| {
            methods.shm_map.map_or(abi::IOERR_SHMOPEN, |map| map(raw, region, bytes, is_made, at))
        })
    }
}

unsafe extern "C" fn shm_lock(file: *mut RawFile, offset: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe {
        pass(file, abi::IOERR_SHMOPEN, |methods, raw| {
            methods.shm_lock.map_or(abi::IOERR_SHMOPEN, |lock| lock(raw, offset, count, flags))
        })
    }
}

unsafe extern "C" fn shm_barrier(file: *mut RawFile) {
    let barrier = |methods: &RawMethods, raw| {
        // SAFETY: `pass` passes the open file of SQLite's file system, to which these methods belong.
        methods.shm_barrier.map_or(abi::OK, |barrier| unsafe {
            barrier(raw);
            abi::OK
        })
    };
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe { pass(file, abi::OK, barrier) };
}

unsafe extern "C" fn shm_unmap(file: *mut RawFile, is_deleted: c_int) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe {
        pass(file, abi::OK, |methods, raw| methods.shm_unmap.map_or(abi::OK, |unmap| unmap(raw, is_deleted)))
    }
}

unsafe extern "C" fn fetch(file: *mut RawFile, offset: i64, bytes: c_int, at: *mut *mut c_void) -> c_int {
    // SAFETY: SQLite passes a place for the answer. The answer null makes SQLite read instead of using mapped memory.
    unsafe { *at = ptr::null_mut() };
    // SAFETY: SQLite passes an open file of this file system, and uses it in this thread only.
    unsafe {
        pass(file, abi::OK, |methods, raw| match methods.fetch {
            Some(fetch) if methods.version >= 3 => fetch(raw, offset, bytes, at),
            _ => abi::OK,
        })
    }
}

unsafe extern "C" fn unfetch(file: *mut RawFile, offset: i64, at: *mut c_void) -> c_int {
    // SAFETY: SQLite passes an open file of this file system, and an `at` that is null or an answer of `fetch`.
    unsafe {
        pass(file, abi::OK, |methods, raw| match methods.unfetch {
            Some(unfetch) if methods.version >= 3 => unfetch(raw, offset, at),
            _ => abi::OK,
        })
    }
}

/// Defines functions that call the file system beneath with the same arguments. The expression after the result type is
/// returned if the file system beneath lacks the function; SQLite does not call it then, because [`register`] leaves it
/// out of the table.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty, $otherwise:expr)?;)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut RawVfs, $($argument: $kind),*) $(-> $answer)? {
            // SAFETY: `vfs` is this file system, and the other arguments are valid for SQLite's own too.
            unsafe {
                let beneath = far(vfs).beneath().raw();
                match (*beneath).$name {
                    Some(function) => function(beneath, $($argument),*),
                    None => { $($otherwise)? }
                }
            }
        }
    )*};
}

passed_on! {
    dl_open(path: *const c_char) -> *mut c_void, ptr::null_mut();
    dl_error(bytes: c_int, message: *mut c_char);
    dl_sym(library: *mut c_void, symbol: *const c_char) -> Function, None;
    dl_close(library: *mut c_void);
    randomness(bytes: c_int, into: *mut c_char) -> c_int, 0;
    sleep(microseconds: c_int) -> c_int, 0;
    current_time(days: *mut f64) -> c_int, abi::ERROR;
    last_error(bytes: c_int, message: *mut c_char) -> c_int, 0;
    current_time_ms(milliseconds: *mut i64) -> c_int, abi::ERROR;
    set_system_call(name: *const c_char, function: Function) -> c_int, abi::NOTFOUND;
    system_call(name: *const c_char) -> Function, None;
    next_system_call(name: *const c_char) -> *const c_char, ptr::null();
}

unsafe extern "C" fn delete(vfs: *mut RawVfs, path: *const c_char, is_synced: c_int) -> c_int {
    // SAFETY: `vfs` is this file system, and the other arguments are valid for SQLite's own too.
    unsafe {
        let beneath = far(vfs).beneath().raw();
        ((*beneath).delete)(beneath, path, is_synced)
    }
}

unsafe extern "C" fn access(vfs: *mut RawVfs, path: *const c_char, flags: c_int, may: *mut c_int) -> c_int {
    // SAFETY: `vfs` is this file system, and the other arguments are valid for SQLite's own too.
    unsafe {
        let beneath = far(vfs).beneath().raw();
        ((*beneath).access)(beneath, path, flags, may)
    }
}

unsafe extern "C" fn full_path(
    vfs: *mut RawVfs,
    path: *const c_char,
    bytes: c_int,
    into: *mut c_char,
) -> c_int {
    // SAFETY: `vfs` is this file system, and the other arguments are valid for SQLite's own too.
    unsafe {
        let beneath = far(vfs).beneath().raw();
        ((*beneath).full_path)(beneath, path, bytes, into)
    }
}
