//! Far memory for SQLite: a virtual file system in a loadable extension. SQLite itself is not changed.
//!
//! ```sql
//! .load libfarpool_sqlite
//! .open big.db
//! ```
//!
//! The idea: the extension puts a layer over SQLite's default file system. Databases, journals and write-ahead logs
//! stay where they are. SQLite's own file system does all operations on them, including locks and shared memory. The
//! layer keeps pages that were read from a database in far memory (`farpool-cache`). Temporary files, to which sorts,
//! indices and temporary tables spill, are in far memory only.
//!
//! The environment variable `FARPOOL_SQLITE` holds settings as flags, such as
//! `--pool farpool://10.0.0.2:7700 --cache 8GiB`.
//!
//! Never in this crate: a lock, or a rule about journals. SQLite has both.

mod abi;
mod beneath;
mod buffered;
mod settings;
mod shim;
mod vfs;

use beneath::{Api, Beneath};
use farpool_files::Pool;
use farpool_lock::Mutex;
use settings::Settings;
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;
use vfs::FarVfs;

/// True if the extension has registered its file system in this process. The lock is held during the registration, so
/// that it happens once.
static HAS_BEGUN: Mutex<bool> = Mutex::new(false);
/// Session of this process with the pool of far memory.
static POOL: OnceLock<Pool> = OnceLock::new();

/// Entry point that SQLite calls when it loads the extension. It makes the file system SQLite's default, until the
/// process ends.
///
/// # Safety
///
/// `api` is null or SQLite's table of functions, which lives until the process ends. `message` is null or points to a
/// pointer to a string, which may be written. SQLite promises both to an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    _database: *mut c_void,
    message: *mut *mut c_char,
    api: *const c_void,
) -> c_int {
    // SAFETY: the caller promises that `api` is null or SQLite's table of functions.
    let api = unsafe { Api::new(api.cast()) };
    let Some(api) = api else { return abi::ERROR };
    let begun = catch_unwind(|| begin(api));
    let Err(why) = begun
        .unwrap_or_else(|_| Err("farpool: internal error; the file system was not registered".to_owned()))
    else {
        return abi::OK_LOAD_PERMANENTLY;
    };
    // SAFETY: the caller promises that `message` is null or may be written. SQLite frees the text.
    if let Some(message) = unsafe { message.as_mut() } {
        *message = api.text(&why);
    }
    abi::ERROR
}

/// Closes the session with the pool when the process exits. Otherwise nodes would keep the session's memory until its
/// leases expire.
extern "C" fn give_back() {
    // The process ends anyway, so errors and panics are ignored.
    let _ = catch_unwind(|| POOL.get().map(Pool::close));
}

fn begin(api: Api) -> Result<(), String> {
    // Programs load the extension once for each connection to a database, but one file system serves all of them.
    let mut has_begun = HAS_BEGUN.lock();
    if *has_begun {
        return Ok(());
    }
    api.check_version()?;
    let settings = Settings::of_environment()?;
    let beneath = api.default_vfs().ok_or("farpool: this SQLite has no file system of its own")?;
    // SAFETY: SQLite never removes its default file system.
    let beneath = unsafe { Beneath::new(beneath) };
    let vfs = FarVfs::new(&settings, api, beneath)?;
    let pool = vfs.pool().clone();
    shim::register(api, vfs)
        .map_err(|code| format!("farpool: SQLite refused the file system: error {code}"))?;
    *has_begun = true;
    if POOL.set(pool).is_ok() {
        // SAFETY: `give_back` can be called at any time. SQLite never unloads this extension, so its code stays in
        // place.
        unsafe { libc::atexit(give_back) };
    }
    Ok(())
}
